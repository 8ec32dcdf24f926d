"""After an outage: facts that wait are posted together, each once, by all processes at one pace."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import semel
from semel.apps.client import RequestRefused
from semel.apps.quill import Quill, Settings, powerbi
from semel.apps.quill.backlog import BATCH
from semel.apps.quill.schema import FACTS
from semel.apps.quill.settings import EventRule
from semel.core.codecs import Encryption
from semel.doors.inbox import Message, StoreInbox, Worker
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock
from tests.amounts import amount
from tests.apps.kit import SECRET as SEALED
from tests.apps.kit import Place, Work, place  # noqa: F401
from tests.apps.quill_kit import (
    ADDRESS,
    HUBSPOT,
    SECRET,
    TOKEN,
    Wall,
    creation,
    dataset_at,
    down,
    lost,
    signed,
    told,
)
from tests.doors.inbox_kit import sweep
from tests.servers.running import until
from tests.standins import powerbi as other_side

EVENTS = amount(13_401, 3_000)


class Process:
    """Quill with its inbox and its worker, on a store that others have open too."""

    def __init__(self, s: semel.Semel, clock: FakeClock, sink: Any = None, **more: Any) -> None:
        self.s, self.clock = s, clock
        self.inbox = StoreInbox(s, "quill", shared=True)
        chosen = {"aloware_token": TOKEN, "hubspot_secret": SECRET, **more}
        self.app = Quill(s, self.inbox, Settings(**chosen))
        if sink is not None:
            self.app.sink.close()
            self.app.sink = sink
        self.worker: Worker = self.inbox.worker(self.app.handle, **self.app.worker_options)

    def deliver(self, *numbers: int) -> dict[str, int]:
        headers, body = signed([creation(number) for number in numbers], self.clock.now())
        return told(self.app.hooks[HUBSPOT].receive(headers, body, url=ADDRESS + HUBSPOT))

    def sweep(self) -> None:
        """Begin what may be begun, until nothing is left that may."""
        sweep(self.worker, self.clock)

    def drain(self) -> None:
        """Work until nothing waits, and let time pass in between."""
        for _ in range(100):
            self.sweep()
            if not self.inbox.waiting():
                return
            self.clock.advance(5)

    def close(self) -> None:
        self.app.close()


def key(number: int) -> str:
    return f"HUBSPOT:0-49:{number}:object.creation:{creation(number)['occurredAt']}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def there(clock: FakeClock, stack: ExitStack) -> other_side.PowerBI:
    return stack.enter_context(other_side.PowerBI(clock=clock))


def facts_sent(there: other_side.PowerBI) -> list[int]:
    """How many rows each request of facts brought that was taken."""
    posts = [each for each in there.posts if each.path.endswith(f"{FACTS}/rows") and each.status == 200]
    return [len(each.json["rows"]) for each in posts]


@pytest.mark.seed("Q7")
def test_a_backlog_of_thousands_drains_in_a_handful_of_requests(
    there: other_side.PowerBI, clock: FakeClock, tmp_path: Path, stack: ExitStack
) -> None:
    """An hour of outage, two processes: none is lost, none posted twice, and waiting spent no attempts."""
    dataset = dataset_at(there)

    def process() -> Process:
        s = stack.enter_context(semel.connect(f"sqlite:///{tmp_path / 'semel.db'}", clock=clock))
        return stack.enter_context(closing(Process(s, clock, **dataset)))

    one, other = process(), process()
    assert one.deliver(*range(EVENTS, EVENTS + 2))["posted"] == 2
    there.fail(next=10**6, status=408, path="/v1.0")
    for start in range(0, EVENTS, 100):
        assert one.deliver(*range(start, min(start + 100, EVENTS)))["queued"] > 0
    tries = len(there.posts)
    for _ in range(60):
        for each in (one, other):
            each.sweep()
        clock.advance(60)
    assert one.inbox.waiting() == min(EVENTS, 10_000)
    assert len(there.posts) - tries <= 70, "somebody asks about once a minute"
    spent = Counter(_attempts(one.s, number) for number in range(0, EVENTS, 7))
    assert max(spent) <= 5
    assert spent[0] + spent[1] > 0.9 * spent.total()
    there.reset()

    threads = [threading.Thread(target=each.drain) for each in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    rows = Counter(row["event_key"] for row in there.rows(FACTS))
    assert rows == Counter(key(number) for number in range(EVENTS + 2))
    sent = facts_sent(there)
    assert len(sent) <= 20, sent
    assert max(sent) > EVENTS / 4
    assert {each.status for each in there.posts} == {200}
    assert all(one.s.ledger.is_processed(key(number)) for number in range(0, EVENTS, 7))
    assert one.inbox.dead() == []
    record = one.s.ledger.get(key(7))
    assert record is not None
    assert record.details == {"notes": "posted later"}


def _attempts(s: semel.Semel, number: int) -> int:
    record = s.ledger.get(key(number))
    assert record is not None
    return record.attempt


# What becomes of a batch


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def process(store: MemoryStore, clock: FakeClock, wall: Wall, tmp_path: Path, stack: ExitStack) -> Process:
    s = stack.enter_context(semel.Semel(store, clock=clock))
    return stack.enter_context(closing(Process(s, clock, wall, star=str(tmp_path / "quill.db"))))


def queued(process: Process, wall: Wall, many: int = 50) -> None:
    """So many facts wait."""
    wall.failures = [down()]
    assert process.deliver(*range(many)) == {"received": many, "new": many, "queued": many}
    wall.steps.clear()


def statuses(process: Process, many: int = 50) -> Counter[str]:
    records = [process.s.ledger.get(key(number)) for number in range(many)]
    return Counter(record.status.value for record in records if record is not None)


def test_what_waits_goes_together_with_the_first(process: Process, wall: Wall) -> None:
    """Claimed in two round trips, posted in one, written down in one, and gone from the inbox."""
    queued(process, wall)
    process.sweep()
    assert wall.steps == ["ensure 50", "post 50"]
    assert sorted(wall.rows) == sorted(key(number) for number in range(50))
    assert (statuses(process), process.inbox.waiting()) == (Counter(COMPLETED=50), 0)


def test_a_post_that_failed_gives_all_of_them_back_and_counts_one_attempt(
    process: Process, wall: Wall
) -> None:
    """The one that was begun was tried; the others were taken along, and go with the next."""
    queued(process, wall)
    before = Counter(_attempts(process.s, number) for number in range(50))
    wall.failures = [down(retry_after=30.0)]
    sweep_once(process)
    assert wall.rows == []
    assert statuses(process) == Counter(RELEASED=50)
    assert before == Counter({1: 50})
    assert Counter(_attempts(process.s, number) for number in range(50)) == Counter({1: 49, 2: 1})
    process.clock.advance(30)
    process.drain()
    assert len(wall.rows) == len(set(wall.rows)) == 50


def sweep_once(process: Process) -> None:
    """Handle one message."""
    process.worker.look()
    lane = process.worker.lanes.begin()
    assert lane is not None
    process.worker.visit(lane)


def test_after_a_failure_the_next_requests_are_smaller_and_then_grow_again(
    process: Process, wall: Wall
) -> None:
    """One row may be what the other side fails at: it does not hold up thousands."""
    queued(process, wall, 500)
    poison = key(77)

    def fail_at_poison(facts: Any) -> None:
        if poison in [fact.key for fact in facts]:
            raise down()

    wall.before = fail_at_poison
    for _ in range(40):
        process.sweep()
        process.clock.advance(1)
    assert sorted(wall.rows) == sorted(key(number) for number in range(500) if number != 77)
    assert process.inbox.waiting() == 1


@pytest.mark.parametrize("policy", ["hold", "repeat"])
def test_a_batch_whose_answer_was_lost_follows_the_policy_for_each(
    store: MemoryStore, clock: FakeClock, wall: Wall, tmp_path: Path, stack: ExitStack, policy: Any
) -> None:
    s = stack.enter_context(semel.Semel(store, clock=clock))
    settings = {"star": str(tmp_path / "quill.db"), "lost_posts": policy}
    process = stack.enter_context(closing(Process(s, clock, wall, **settings)))
    queued(process, wall)
    wall.failures = [lost()]
    sweep_once(process)
    assert len(wall.rows) == 50
    if policy == "repeat":
        clock.advance(60)
        process.drain()
        assert Counter(wall.rows) == Counter({key(number): 2 for number in range(50)})
        return
    clock.advance(2)
    process.sweep()
    assert statuses(process) == Counter(UNKNOWN=50)
    assert process.inbox.waiting() == 50
    for number in range(50):
        s.ledger.resolve(key(number), semel.Happened() if number else semel.NotHappened())
    clock.advance(600)
    process.drain()
    assert Counter(wall.rows) == Counter([*(key(number) for number in range(50)), key(0)])


def test_a_row_that_is_refused_is_put_aside_and_takes_none_of_the_others_down(
    process: Process, wall: Wall
) -> None:
    queued(process, wall, 300)
    bad = {key(3), key(200)}

    def refuse(facts: Any) -> None:
        if bad & {fact.key for fact in facts}:
            raise RequestRefused("Power BI", "refuses: 400", 400)

    wall.before = refuse
    for _ in range(20):
        process.sweep()
        process.clock.advance(1)
    assert {letter.key for letter in process.inbox.dead()} == bad
    assert sorted(wall.rows) == sorted(key(number) for number in range(300) if key(number) not in bad)
    assert process.inbox.waiting() == 0


def test_what_is_done_or_in_doubt_or_another_has_is_not_taken_along(process: Process, wall: Wall) -> None:
    """It is what the ledger says: the done ones go from the inbox, the others wait for whoever has them."""
    queued(process, wall)
    ledger = process.s.ledger
    ledger.complete_many(ledger.claim_many([key(1), key(2)]))  # type: ignore[arg-type]
    ledger.doubt_many(ledger.claim_many([key(3)]))  # type: ignore[arg-type]
    ledger.claim(key(4), lease=600)
    process.sweep()
    assert len(wall.rows) == 46
    assert not {key(number) for number in (1, 2, 3, 4)} & set(wall.rows)
    assert process.inbox.waiting() == 2


def test_each_fact_goes_once_though_it_waits_several_times(process: Process, wall: Wall) -> None:
    wall.failures = [down(), down()]
    process.deliver(*range(20))
    process.deliver(*range(20))
    assert process.inbox.waiting() == 40
    process.drain()
    assert sorted(wall.rows) == sorted(key(number) for number in range(20))


def test_no_more_are_taken_along_than_can_be_posted_in_time(
    process: Process, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is slow to claim them: the lease is for posting, too."""
    queued(process, wall, 2 * BATCH + 500)
    ledger = type(process.s.ledger)
    claim_many = ledger.claim_many

    def slowly(self: Any, *args: Any, **kwargs: Any) -> Any:
        process.clock.advance(process.app.settings.lease / 4)
        return claim_many(self, *args, **kwargs)

    monkeypatch.setattr(ledger, "claim_many", slowly)
    sweep_once(process)
    # Those of a page are claimed at once; the third page would be too late.
    assert wall.steps == [f"ensure {len(wall.rows)}", f"post {len(wall.rows)}"]
    assert BATCH < len(wall.rows) <= 2 * BATCH + 1


def test_a_batch_that_was_claimed_too_long_ago_is_not_posted(process: Process, wall: Wall) -> None:
    """Somebody else may have it by now. The one that was begun is in doubt, the others are free at once."""
    queued(process, wall)
    ensure = wall.ensure

    def slow(facts: Any) -> None:
        process.clock.advance(61)

    wall.ensure = slow  # type: ignore[method-assign]
    sweep_once(process)
    assert wall.rows == []
    wall.ensure = ensure  # type: ignore[method-assign]
    process.clock.advance(2)
    process.sweep()
    assert len(wall.rows) == len(set(wall.rows)) == 49
    assert statuses(process) == Counter(COMPLETED=49, UNKNOWN=1)


def test_a_store_that_fails_while_they_are_gathered_leaves_the_one_in_hand(
    process: Process, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued(process, wall)

    def away(*_: Any, **__: Any) -> Any:
        raise semel.StoreUnavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(type(process.s.ledger), "claim_many", away)
        sweep_once(process)
    assert len(wall.rows) == 1
    process.drain()
    assert len(wall.rows) == len(set(wall.rows)) == 50


def test_facts_of_another_table_go_by_themselves(
    store: MemoryStore, clock: FakeClock, wall: Wall, tmp_path: Path, stack: ExitStack
) -> None:
    """A request is for one table: all of it is there, or none."""
    s = stack.enter_context(semel.Semel(store, clock=clock))
    events = {
        "mails": {"source": "hubspot", "where": {"objectTypeId": "0-49"}, "metric": "emails"},
        "rest": {"source": "hubspot", "into": "fact_other"},
    }
    settings = {
        "events": msgspec.convert(events, dict[str, EventRule]),
        "fact_tables": {"fact_other": {"key": "$key"}},
        "star": str(tmp_path / "quill.db"),
    }
    process = stack.enter_context(closing(Process(s, clock, wall, **settings)))
    wall.failures = [down(), down()]
    headers, body = signed(
        [creation(number, "0-49" if number % 2 else "0-5") for number in range(10)], clock.now()
    )
    process.app.hooks[HUBSPOT].receive(headers, body, url=ADDRESS + HUBSPOT)
    wall.steps.clear()
    process.drain()
    assert wall.steps == ["ensure 5", "post 5"] * 2
    assert len(set(wall.rows)) == 10


def test_deliveries_that_wait_for_their_turn_spend_no_attempt_and_warn_of_nothing(
    there: other_side.PowerBI, clock: FakeClock, stack: ExitStack, caplog: Any
) -> None:
    """While Power BI is away one delivery finds out; those after it are taken in at once."""
    s = stack.enter_context(semel.connect("memory:", clock=clock))
    process = stack.enter_context(closing(Process(s, clock, **dataset_at(there))))
    process.deliver(0)
    there.fail(status=408, path="/v1.0")
    process.deliver(1)
    warned = caplog.text.count("were not posted")
    for number in range(2, 20):
        assert process.deliver(number) == {"received": 1, "new": 1, "queued": 1}
    assert [_attempts(s, number) for number in (1, 2, 19)] == [1, 0, 0]
    assert warned == caplog.text.count("were not posted") == 1
    clock.advance(powerbi.PAUSE)
    process.drain()
    assert facts_sent(there) == [1, 19]
    assert _attempts(s, 19) == 1


def test_a_local_file_is_filled_in_one_transaction_too(
    clock: FakeClock, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stack.enter_context(semel.connect("memory:", clock=clock))
    process = stack.enter_context(closing(Process(s, clock, star=str(tmp_path / "quill.db"))))
    star = process.app.star
    assert star is not None
    with monkeypatch.context() as patch:
        patch.setattr(star, "post", lambda facts: (_ for _ in ()).throw(OSError("disk full")))
        process.deliver(*range(40))
    posted: list[int] = []
    post = star.post

    def noted(facts: Any) -> None:
        posted.append(len(facts))
        post(facts)

    monkeypatch.setattr(star, "post", noted)
    process.drain()
    assert posted == [40]


# Killed


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("applied", [True, False])
def test_killed_in_the_middle_of_a_batch_each_fact_is_posted_once(
    place: Place,  # noqa: F811
    tmp_path: Path,
    applied: bool,
) -> None:
    """Nobody knows whether the rows are there: all of them are held, and whoever looks settles them."""
    many, wanted = 200, {key(number) for number in range(200)}
    with other_side.PowerBI() as there, place.connect("quill") as s:
        dataset = dataset_at(there)
        process = Process(s, s.clock, **dataset, powerbi_timeout=10.0)  # type: ignore[arg-type]
        there.fail(next=10**6, status=408, path="/v1.0")
        for start in range(0, many, 100):
            process.deliver(*range(start, start + 100))
        assert s.documents.delete(semel.Key("PACE", dataset["powerbi_workspace"], dataset["powerbi_dataset"]))
        there.reset()
        tables = f"/v1.0/myorg/groups/{other_side.WORKSPACE}/datasets/{dataset['powerbi_dataset']}/tables"
        there.fail(next=10, hang=120, after_applying=applied, path=f"{tables}/{FACTS}")
        text = place.toml("quill") + f'[apps.quill]\naloware_token = "{TOKEN}"\nhubspot_secret = "{SECRET}"\n'
        text += "".join(f'{name} = "{value}"\n' for name, value in dataset.items())
        program = Work(tmp_path, text + "lease = 180\npowerbi_timeout = 60\n", place.environ)
        program.start()
        # By two threads; how they share them out is a matter of who comes first.
        assert until(lambda: len(facts_begun(there)) == 2, still=program.is_running), program.log
        program.kill()
        begun = sum(facts_begun(there))
        there.fail(next=0)
        process.close()
    clock = FakeClock(s.clock.now() + 3600)
    with semel.connect(place.url, env=place.env, scope="quill", clock=clock, **_secrets()) as later:
        process = Process(later, clock, **dataset)
        process.app.sink.close()
        process.app.sink = wall = Wall()
        for _ in range(5):  # a sweep sees to some hundred messages, in no order
            process.sweep()
        unknown = {record.key for record in _unknown(later)}
        assert len(unknown) >= begun
        rows = [row["event_key"] for row in there.rows(FACTS)]
        assert (set(rows) <= unknown) if applied else rows == []
        for each in unknown:
            later.ledger.resolve(each, semel.Happened() if each in rows else semel.NotHappened())
        clock.advance(3600)
        process.drain()
        process.close()
    assert Counter([*rows, *wall.rows]) == Counter(wanted)


def facts_begun(there: other_side.PowerBI) -> list[int]:
    return [len(each.json["rows"]) for each in there.posts if each.path.endswith(f"{FACTS}/rows")]


def _unknown(s: semel.Semel) -> list[semel.Record]:
    found, after = [], None
    while True:
        page = s.ledger.list(status="UNKNOWN", after=after)
        found += [record for record in page.records if not record.key.startswith("DIM")]
        if page.after is None:
            return found
        after = page.after


def _secrets() -> dict[str, Any]:
    return {"secret": SEALED.encode(), "encryption": Encryption.from_secret(SEALED.encode())}


def test_messages_that_are_no_facts_are_left_to_whoever_reads_them(process: Process, wall: Wall) -> None:
    queued(process, wall, 3)
    process.inbox.put(Message("odd", {"what": "is this"}))
    process.sweep()
    assert len(wall.rows) == 3
    assert process.inbox.waiting() == 1
