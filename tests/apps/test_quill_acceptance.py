"""The running service takes deliveries while everything fails around it: each event is a fact, once."""

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

import semel
from semel.apps.quill.schema import DEFAULT, FACTS
from semel.aws.wire import Wire
from tests.apps.kit import Awaited, Place, Service, found, place  # noqa: F401
from tests.apps.quill_kit import ALOWARE, HUBSPOT, SECRET, TOKEN, bearer, call, creation, dataset_at, signed
from tests.servers.running import until
from tests.standins import powerbi

# In every payload of Aloware's; none of it is needed, so that none of it may be found again.
PERSONAL = {"name": "Ada Lovelace", "phone": "4155550123", "e-mail": "ada@example.org"}

EVENTS = 24


class Sender:
    """Aloware and HubSpot: they deliver until they are answered with success."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.client = httpx.Client(timeout=10)

    def aloware(self, number: int) -> int:
        headers, body = bearer(call(number))
        return self._post(ALOWARE, headers, body)

    def hubspot(self, numbers: Any) -> int:
        url = f"{self.service.url}{HUBSPOT}"
        return self._post(HUBSPOT, *signed([creation(number) for number in numbers], time.time(), url=url))

    def again(self, key: str) -> None:
        """Deliver the event of this key once more."""
        source, *names = key.split(":")
        if source == "ALOWARE":
            self.aloware(int(names[0]))
        elif source == "HUBSPOT":
            self.hubspot([int(names[1])])

    def _post(self, path: str, headers: dict[str, str], body: bytes) -> int:
        try:
            return self.client.post(f"{self.service.url}{path}", headers=headers, content=body).status_code
        except httpx.TransportError:
            return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


def at_once(send: Callable[[int], int], numbers: Iterable[int]) -> set[int]:
    """What is answered when all of them are sent in one moment."""
    with ThreadPoolExecutor(EVENTS) as threads:
        return set(threads.map(send, numbers))


def expected() -> set[str]:
    calls = {f"ALOWARE:{number}" for number in range(EVENTS)}
    mails = {creation(number)["occurredAt"]: number for number in range(EVENTS)}
    return calls | {f"HUBSPOT:0-49:{number}:object.creation:{at}" for at, number in mails.items()}


@pytest.fixture
def there() -> Iterator[powerbi.PowerBI]:
    with powerbi.PowerBI() as there:
        yield there


def with_powerbi(there: powerbi.PowerBI) -> str:
    return "".join(f'{name} = "{value}"\n' for name, value in dataset_at(there).items())


def toml(place: Place, more: str) -> str:  # noqa: F811
    quill = f'[apps.quill]\naloware_token = "{TOKEN}"\nhubspot_secret = "{SECRET}"\nlease = 2\n'
    return place.toml("quill", lease=2) + quill + "powerbi_timeout = 0.6\n" + more


def settle(s: semel.Semel, there: powerbi.PowerBI, sender: Sender) -> int:
    """What a person does who looks up in Power BI whether a row is there, and is not going to wait."""
    # A request that nobody waits for any more may still be on its way: whoever looks too early is misled.
    quiet = s.clock.now() - 1
    unknown = [one for one in s.ledger.list(status="UNKNOWN").records if one.updated_at < quiet]
    rows = {str(row[DEFAULT.key_of(table)]) for table in DEFAULT.tables for row in there.rows(table)}
    for record in unknown:
        name = record.key.split(":", 4)[4].replace("%3A", ":") if record.key.startswith("DIM") else record.key
        s.ledger.resolve(record.key, semel.Happened() if name in rows else semel.NotHappened())
        if name not in rows:
            sender.again(name)
    return len(unknown)


@pytest.mark.seed("Q7")
@pytest.mark.proof("restarts", 1)
def test_every_event_is_a_fact_once(place: Place, there: powerbi.PowerBI, tmp_path: Path) -> None:  # noqa: F811
    """Duplicates, a failing Power BI, answers that never come, SIGKILL in the middle of a post, a restart."""
    held = 0
    with (
        Service(tmp_path, toml(place, with_powerbi(there)), place.environ) as service,
        Sender(service) as sender,
    ):
        assert sender.aloware(0) == sender.aloware(0) == 200
        assert sender.hubspot([0, 1, 1, 0]) == 200
        there.fail(status=429, retry_after=0.5)
        assert at_once(sender.aloware, range(1, 12)) == {200}
        assert sender.hubspot(range(12)) == 200
        there.fail(next=2, hang=60, after_applying=True)
        last = threading.Thread(target=sender.hubspot, args=(range(12, EVENTS),))
        last.start()
        assert until(lambda: any(each.applied and each.status is None for each in there.posts))
        service.kill()
        last.join()
        there.fail(next=0)
        service.restart()
        # Whatever was not answered is delivered again, and more than that.
        assert at_once(sender.aloware, range(EVENTS)) == {200}, service.log[-6000:]
        assert sender.hubspot(range(EVENTS)) == 200
        with place.connect("quill") as s:
            settled, wanted = _settled(s), expected()

            def done() -> bool:
                nonlocal held
                held += settle(s, there, sender)
                return {row["event_key"] for row in there.rows(FACTS)} == wanted and settled()

            assert until(done, still=service.is_running), _missing(there, service)
    assert held > 0
    for table in DEFAULT.tables:
        counted = Counter(str(row[DEFAULT.key_of(table)]) for row in there.rows(table))
        assert {name: count for name, count in counted.items() if count > 1} == {}
    stacks = dict(place.files()) | {"log": service.log, "table": _table(place)}
    assert found(PERSONAL, stacks) == []


def _settled(s: semel.Semel) -> Awaited:
    """Whether every event is written down as done."""
    awaited = Awaited(s.ledger.is_processed)
    awaited.add(*expected())
    return awaited


def _missing(there: powerbi.PowerBI, service: Service) -> str:
    missing = expected() - {row["event_key"] for row in there.rows(FACTS)}
    return f"{sorted(missing)}\n{service.log[-3000:]}"


def _table(place: Place) -> str:  # noqa: F811
    if "DYNAMO_TABLE_NAME" not in place.environ:
        return ""
    wire = Wire("dynamodb", region="us-east-1", endpoint=place._dynamodb)
    try:
        return json.dumps(
            wire.call("Scan", {"TableName": place.environ["DYNAMO_TABLE_NAME"]}, write=False)["Items"]
        )
    finally:
        wire.close()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_without_power_bi_the_facts_are_in_a_file(place: Place, tmp_path: Path) -> None:  # noqa: F811
    """Killed while it takes deliveries, started again, sent everything again: each fact is there once."""
    star = tmp_path / "quill.db"
    with (
        Service(tmp_path, toml(place, f'star = "{star}"\n'), place.environ) as service,
        Sender(service) as sender,
    ):
        first = threading.Thread(target=at_once, args=(sender.aloware, range(12)))
        first.start()
        assert until(lambda: len(_facts(star)) > 2)
        service.kill()
        first.join()
        service.restart()
        assert at_once(sender.aloware, range(EVENTS)) == {200}, service.log[-6000:]
        assert sender.hubspot([*range(EVENTS), *range(EVENTS)]) == 200
        with place.connect("quill") as s:
            assert until(_settled(s), still=service.is_running), service.log[-6000:]
    assert sorted(_facts(star)) == sorted(expected())
    files = {file.name: file.read_bytes() for file in tmp_path.glob("quill.db*")}
    assert found(PERSONAL, dict(place.files()) | files | {"log": service.log, "table": _table(place)}) == []


def _facts(star: Path) -> list[str]:
    if not star.exists():
        return []
    with closing(sqlite3.connect(star)) as connection:
        return [key for (key,) in connection.execute(f"SELECT event_key FROM {FACTS}")]
