"""Quill's table in DynamoDB, as the document that it comes from describes it."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

import semel
from semel import errors
from semel.apps.configuration import gather
from semel.apps.ledgers import at
from semel.apps.quill import Settings, from_environment, store_url
from semel.aws.wire import Wire
from semel.core.clock import Clock
from semel.doors.queues.messages import Verdict
from semel.provision import ProvisionTarget as Site
from semel.provision import provision
from semel.service.settings import settings
from semel.stores.dynamodb.address import parse
from semel.tables import DOCUMENTS, LEDGER
from semel.tables.mapping import mapped
from semel.testing import FakeClock
from tests.apps.kit import Place, Service, place  # noqa: F401
from tests.apps.quill_kit import ALOWARE, SECRET, TOKEN, Office, Wall, bearer, call, creation, down, told

ANYBODY = {"AWS_ACCESS_KEY_ID": "anyone", "AWS_SECRET_ACCESS_KEY": "anything"}
DAY = 86400


class Desk:
    """The environment of a quill, its table, and the items in it as they are."""

    def __init__(self, endpoint: str) -> None:
        self.table = f"QuillLedger{uuid.uuid4().hex[:8]}"
        self.environ = {
            "DYNAMO_TABLE_NAME": self.table,
            "DYNAMO_TTL_DAYS": "14",
            "DYNAMO_ENDPOINT": endpoint,
            "DYNAMO_REGION": "us-west-2",
            "SEMEL_APPS__QUILL__ALOWARE_TOKEN": TOKEN,
            "SEMEL_APPS__QUILL__HUBSPOT_SECRET": SECRET,
        }
        self._wire = Wire("dynamodb", region="us-west-2", endpoint=endpoint)
        site = Site(url=self.url, env="dev", tables=at(self.url, (LEDGER, DOCUMENTS)), clock=Clock())
        provision(site)

    @property
    def url(self) -> str:
        return store_url(self.environ)

    def ask(self, operation: str, **request: Any) -> dict[str, Any]:
        return self._wire.call(operation, {"TableName": self.table, **request}, write=False)

    def item(self, key: str) -> dict[str, Any] | None:
        return self.ask("GetItem", Key={"pk": {"S": key}}, ConsistentRead=True).get("Item")

    def close(self) -> None:
        self._wire.close()


@pytest.fixture
def desk(dynoxide: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    for name, value in ANYBODY.items():
        monkeypatch.setenv(name, value)
    desk = Desk(dynoxide)
    yield desk
    desk.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s(desk: Desk, clock: FakeClock) -> Iterator[semel.Semel]:
    with semel.connect(desk.url, clock=clock) as s:
        yield s


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def office(s: semel.Semel, desk: Desk, clock: FakeClock, wall: Wall, tmp_path: Path) -> Iterator[Office]:
    chosen = from_environment(desk.environ)
    office = Office(s, clock, tmp_path, wall, ttl_days=chosen.ttl_days)
    yield office
    office.close()


@pytest.mark.seed("Q6")
def test_four_variables_say_which_table_where_and_for_how_long(desk: Desk) -> None:
    [table] = parse(desk.url).tables
    settings = from_environment(desk.environ | {"DYNAMO_TTL_DAYS": "3"})
    assert (table.title, table.partition, table.ttl) == (desk.table, "pk", "expiresAt")
    assert (parse(desk.url).region, parse(desk.url).endpoint) == (
        "us-west-2",
        desk.environ["DYNAMO_ENDPOINT"],
    )
    assert (settings.ttl_days, settings.aloware_token, settings.hubspot_secret) == (3, TOKEN, SECRET)
    assert from_environment({}).ttl_days == 14


@pytest.mark.seed("Q6")
def test_the_service_reads_the_days_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is not told by its own settings."""
    monkeypatch.setenv("DYNAMO_TTL_DAYS", "30")
    assert (Settings().ttl_days, Settings(ttl_days=7).ttl_days) == (30, 7)
    monkeypatch.setenv("DYNAMO_TTL_DAYS", "two weeks")
    with pytest.raises(errors.InvalidOption, match=r"^apps\.quill\.ttl_days: DYNAMO_TTL_DAYS"):
        Settings()


@pytest.mark.seed("Q6")
@pytest.mark.parametrize(
    ("environ", "toml", "url"),
    [
        ({"DYNAMO_REGION": "us-west-2"}, "", "dynamodb://us-west-2"),
        (
            {"DYNAMO_ENDPOINT": "http://localhost:8000"},
            "",
            "dynamodb://?endpoint=http%3A%2F%2Flocalhost%3A8000",
        ),
        (
            {"DYNAMO_REGION": "us-west-2", "DYNAMO_ENDPOINT": "http://localhost:8000"},
            "enabled = true\n",
            "dynamodb://us-west-2?endpoint=http%3A%2F%2Flocalhost%3A8000",
        ),
        ({"DYNAMO_REGION": "us-west-2", "SEMEL_URL": "redis://x"}, "", "redis://x"),
        ({"DYNAMO_REGION": "us-west-2"}, "[semel]\nurl = 'redis://x'\n", "redis://x"),
        ({"DYNAMO_REGION": "us-west-2"}, "enabled = false\n", "sqlite:///semel.db"),
        ({"DYNAMO_REGION": ""}, "", "sqlite:///semel.db"),
        ({"DYNAMO_TABLE_NAME": "Events"}, "", "sqlite:///semel.db"),
    ],
)
def test_region_and_endpoint_decide_for_the_service_too_where_no_url_does(
    tmp_path: Path, environ: dict[str, str], toml: str, url: str
) -> None:
    file = tmp_path / "semel.toml"
    file.write_text(f"[apps.quill]\naloware_token = '{TOKEN}'\n{toml}")
    assert settings(gather(str(file), environ)).semel.url == url
    file.write_text("[apps.probe]\n")
    others = {name: text for name, text in environ.items() if name != "SEMEL_URL"}
    assert settings(gather(str(file), others)).semel.url == "sqlite:///semel.db"


@pytest.mark.seed("Q6")
@pytest.mark.parametrize("place", ["dynamodb+sqs"], indirect=True)
def test_the_service_finds_its_table_by_them(place: Place, tmp_path: Path) -> None:  # noqa: F811
    """As a function on Lambda does: the same variables, the same item."""
    parts = urlsplit(place.url)
    endpoint = dict(parse_qsl(parts.query))["endpoint"]
    toml = f"[semel]\nenv = '{place.env}'\n[apps.quill]\naloware_token = '{TOKEN}'\n"
    environ = place.environ | {"DYNAMO_REGION": parts.netloc, "DYNAMO_ENDPOINT": endpoint}
    with Service(tmp_path, toml, environ) as service:
        headers, body = bearer(call(719285063))
        answer = httpx.post(f"{service.url}{ALOWARE}", headers=headers, content=body)
        assert answer.json()["posted"] == 1, service.log
    wire = Wire("dynamodb", region=parts.netloc, endpoint=endpoint)
    asked = {"TableName": place.environ["DYNAMO_TABLE_NAME"], "Key": {"pk": {"S": "ALOWARE:719285063"}}}
    found = wire.call("GetItem", asked | {"ConsistentRead": True}, write=False)
    wire.close()
    assert found["Item"]["status"] == {"S": "COMPLETED"}


@pytest.mark.seed("Q1", "Q6")
def test_without_them_it_is_the_documents_table() -> None:
    """`QuillIdempotencyLedger`, where AWS itself is."""
    [table] = parse(store_url({})).tables
    assert (table.title, mapped(table).titled_by) == ("QuillIdempotencyLedger", "DYNAMO_TABLE_NAME")
    assert (parse(store_url({})).region, parse(store_url({})).endpoint) == (None, None)


@pytest.mark.seed("Q6")
@pytest.mark.parametrize("wrong", [{"DYNAMO_TTL_DAYS": "two weeks"}, {"SEMEL_APPS__QUILL__LEASE": "long"}])
def test_a_variable_that_makes_no_sense_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(errors.InvalidOption, match=r"apps\.quill"):
        from_environment(wrong)


@pytest.mark.seed("Q1")
def test_the_table_is_as_the_document_has_it(desk: Desk) -> None:
    """By `pk`, which is text; removed by `expiresAt`."""
    described = desk.ask("DescribeTable")["Table"]
    assert described["KeySchema"] == [{"AttributeName": "pk", "KeyType": "HASH"}]
    assert described["AttributeDefinitions"] == [{"AttributeName": "pk", "AttributeType": "S"}]
    removal = desk.ask("DescribeTimeToLive")["TimeToLiveDescription"]
    assert (removal["TimeToLiveStatus"], removal["AttributeName"]) == ("ENABLED", "expiresAt")


@pytest.mark.seed("Q2", "Q4", "Q5")
def test_an_item_is_as_the_document_has_it(office: Office, desk: Desk, clock: FakeClock) -> None:
    """Its key, when the server saw it, when it may go in whole seconds, and its source."""
    office.ring(call(719285063))
    office.deliver(creation(7, "0-5"))
    item = desk.item("ALOWARE:719285063")
    assert item is not None
    assert item["seenAt"] == {"S": "2023-11-14T22:13:20.000Z"}
    assert item["expiresAt"] == {"N": str(int(clock.now()) + 14 * DAY)}
    assert item["source"] == {"S": "ALOWARE"}
    assert item["status"] == {"S": "COMPLETED"}
    other = desk.item("HUBSPOT:0-5:7:object.creation:1700000000007")
    assert other is not None
    assert other["source"] == {"S": "HUBSPOT"}


@pytest.mark.seed("Q2")
def test_what_was_posted_later_is_noted(office: Office, desk: Desk, wall: Wall) -> None:
    wall.failures = [down()]
    office.ring(call(1))
    assert [one.verdict for one in office.work()] == [Verdict.DONE]
    item = desk.item("ALOWARE:1")
    assert item is not None
    assert item["notes"] == {"S": "posted later"}


@pytest.mark.seed("Q3")
def test_the_first_is_new_and_the_second_a_duplicate(office: Office, desk: Desk, wall: Wall) -> None:
    """Also where another program has written the first, by the document's own conditional write."""
    seen = {"pk": {"S": "ALOWARE:2"}, "seenAt": {"S": "2023-11-14T22:00:00Z"}, "source": {"S": "ALOWARE"}}
    desk.ask("PutItem", Item=seen | {"expiresAt": {"N": "1700000060"}})
    answers = [told(office.ring(call(number))) for number in (1, 1, 2)]
    assert answers == [
        {"received": 1, "new": 1, "posted": 1},
        {"received": 1, "duplicates": 1},
        {"received": 1, "duplicates": 1},
    ]
    assert wall.rows == ["ALOWARE:1"]


@pytest.mark.seed("Q4")
def test_what_has_expired_is_passed_over_and_a_janitor_removes_it(
    office: Office, desk: Desk, clock: FakeClock
) -> None:
    """This engine deletes nothing by itself."""
    for number in (1, 2, 3):
        office.ring(call(number))
    clock.advance(14 * DAY)
    assert desk.item("ALOWARE:1") is not None
    assert office.s.ledger.is_processed("ALOWARE:1") is False
    assert told(office.ring(call(1))) == {"received": 1, "new": 1, "posted": 1}
    assert office.s.store.reap() == 2  # type: ignore[attr-defined]
    assert [desk.item(f"ALOWARE:{number}") is not None for number in (1, 2, 3)] == [True, False, False]


@pytest.mark.seed("Q7")
def test_a_batch_is_claimed_and_completed_in_few_requests(office: Office, desk: Desk, wall: Wall) -> None:
    counts = told(office.deliver(*[creation(number) for number in range(1, 61)]))
    assert counts == {"received": 60, "new": 60, "posted": 60}
    assert told(office.deliver(*[creation(number) for number in range(1, 61)])) == {
        "received": 60,
        "duplicates": 60,
    }
    assert len(wall.rows) == 60
