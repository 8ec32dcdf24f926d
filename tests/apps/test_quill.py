"""Quill: what it makes of deliveries, in which order, and what becomes of them when something fails."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import semel
from semel import errors
from semel.apps.client import RequestRefused
from semel.apps.quill import Quill, Settings
from semel.apps.quill.events import Metric, SourceEvent, aloware, event_of, hubspot
from semel.apps.quill.schema import fact_of
from semel.apps.quill.settings import zone_of
from semel.apps.quill.star import Star
from semel.core.commands import Batch, Put, Raised, Update
from semel.doors.inbox import open_inbox
from semel.doors.queues.messages import Verdict
from semel.doors.webhooks import Notice
from semel.testing import FakeClock, Faulty
from tests.apps.quill_kit import (
    ADDRESS,
    ALOWARE,
    AT,
    HUBSPOT,
    SECRET,
    TOKEN,
    Box,
    Office,
    Wall,
    bearer,
    call,
    creation,
    down,
    lost,
    signed,
    text,
    told,
)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def office(s: semel.Semel, clock: FakeClock, wall: Wall, tmp_path: Path) -> Iterator[Office]:
    """Quill before a wall that knows no keys, as Power BI knows none."""
    office = Office(s, clock, tmp_path, wall)
    yield office
    office.close()


@pytest.fixture
def local(s: semel.Semel, clock: FakeClock, tmp_path: Path) -> Iterator[Office]:
    """Quill with its local star schema."""
    office = Office(s, clock, tmp_path)
    yield office
    office.close()


# Events


@pytest.mark.parametrize(
    ("payload", "metric"),
    [
        (call(1, "OutboundPhoneCall"), "calls"),
        (call(1, "OutboundPhoneCall-DispositionFailed"), "calls"),
        (call(1, "Call-Disposed"), "calls"),
        (call(1, "Recording-Saved", direction="2", type="1"), "calls"),
        (call(1, "Call-Disposed", direction="outbound", type="call"), "calls"),
        (text(1), "texts"),
        (call(1, "OutboundSMS-DispositionInvalid", type=2), "texts"),
        (call(1, "InboundPhoneCall-DispositionMissed", direction=1), None),
        (call(1, "Recording-Saved", direction=1), None),
        (call(1, "OutboundAppointment"), None),
        ({"event": "transcription.call.summarized", "body": {"communication": {"id": 1}}}, None),
        ({"event": "Contact-Created", "body": {"id": 55, "name": "Ada"}}, None),
        ({"event": "OutboundPhoneCall"}, None),
        ({}, None),
    ],
)
def test_what_aloware_tells(payload: dict[str, Any], metric: str | None) -> None:
    """Calls and texts that an agent began; whatever else happens there is nobody's activity."""
    found = aloware(Notice(payload, {}))
    assert (found and found.metric) == metric


@pytest.mark.parametrize(
    ("payload", "metric"),
    [
        (creation(1, "0-49"), "emails"),
        (creation(1, "0-5"), "cases"),
        ({"subscriptionType": "ticket.creation", "objectId": 1}, "cases"),
        (creation(1, "0-48"), None),  # a call: Aloware tells of it itself
        (creation(1, "0-1"), None),
        (creation(1, "0-49", subscriptionType="object.propertyChange"), None),
        (creation(1, "0-5", subscriptionType="object.deletion"), None),
        ({}, None),
    ],
)
def test_what_hubspot_tells(payload: dict[str, Any], metric: str | None) -> None:
    found = hubspot(Notice(payload, {}))
    assert (found and found.metric) == metric


@pytest.mark.parametrize(
    ("told", "agent"),
    [
        (aloware(Notice(call(1), {})), "aloware:123260"),
        (aloware(Notice(call(1, user_id=None, owner_id=7), {})), "aloware:7"),
        (aloware(Notice(call(1, user_id=-1, owner_id=-1), {})), "aloware:unassigned"),
        (aloware(Notice(call(1, user_id="Grace Hopper", owner_id=""), {})), "aloware:unassigned"),
        (hubspot(Notice(creation(1), {})), "hubspot:45678"),
        (hubspot(Notice(creation(1, sourceId="25200"), {})), "hubspot:unassigned"),
        (hubspot(Notice(creation(1, sourceId="userId:grace@example.org"), {})), "hubspot:unassigned"),
        (hubspot(Notice(creation(1, sourceId=None), {})), "hubspot:unassigned"),
    ],
)
def test_an_agent_is_a_number_of_its_source(told: SourceEvent, agent: str) -> None:
    """Whatever else stands in its place, a person's name for instance, is not taken over."""
    assert event_of(told, "k", AT, zone_of("UTC")).agent == agent


@pytest.mark.parametrize(
    ("created", "theirs", "ours", "day"),
    [
        ("2023-11-14 22:13:20", None, "UTC", "2023-11-14"),
        ("2023-11-15 03:00:00", "America/Los_Angeles", "UTC", "2023-11-14"),
        ("2023-11-14 22:13:20", "Asia/Tokyo", "UTC", "2023-11-15"),
        ("2023-11-14 22:13:20", None, "Asia/Tokyo", "2023-11-15"),
        ("2023-11-14 22:13:20", "Mars/Olympus", "Asia/Tokyo", "2023-11-15"),
        ("2023-11-14 22:13:20", 9, "UTC", "2023-11-14"),
        # Before and after the clocks go back, at three in the morning in summer.
        ("2023-10-28 21:59:59", "Europe/Stockholm", "UTC", "2023-10-28"),
        ("2023-10-28 22:00:00", "Europe/Stockholm", "UTC", "2023-10-29"),
        ("2023-10-29 22:59:59", "Europe/Stockholm", "UTC", "2023-10-29"),
        ("2023-11-14T23:30:00-08:00", "America/Los_Angeles", "UTC", "2023-11-14"),
    ],
)
def test_the_day_is_the_contacts(created: str, theirs: Any, ours: str, day: str) -> None:
    """By the zone in the payload, or else by the one that was set."""
    told = aloware(Notice(call(1, created_at=created, timezone=theirs), {}))
    assert told is not None
    assert event_of(told, "k", AT, zone_of(ours)).date == day


def test_without_a_time_of_its_own_an_event_happened_when_it_came() -> None:
    told = hubspot(Notice({"subscriptionType": "ticket.creation", "objectId": 1}, {}))
    assert told is not None
    event = event_of(told, "k", AT, zone_of("UTC"))
    assert (event.occurred_at, event.date) == ("2023-11-14T22:13:20Z", "2023-11-14")


# Deliveries


@pytest.mark.seed("Q7")
def test_the_order_of_work(office: Office, wall: Wall) -> None:
    """Duplicates inside the batch, then earlier ones; dimensions; facts; and only then is it written down."""
    office.deliver(creation(1))
    wall.steps.clear()
    seen: list[str | None] = []
    keys = [f"HUBSPOT:0-49:{n}:object.creation:{int(AT * 1000) + n}" for n in (2, 3)]
    wall.before = lambda events: seen.extend(office.status(event.key) for event in events)
    answer = office.deliver(creation(1), creation(2), creation(2), creation(3), creation(9, "0-1"))
    assert told(answer) == {"received": 5, "new": 2, "duplicates": 2, "ignored": 1, "posted": 2}
    assert wall.steps == ["ensure 2", "post 2"]
    assert seen == ["IN_PROGRESS", "IN_PROGRESS"]
    assert [office.status(key) for key in keys] == ["COMPLETED", "COMPLETED"]
    assert wall.rows[1:] == keys


@pytest.mark.seed("Q5")
@pytest.mark.seed("Q3")
def test_all_that_is_told_of_one_call_counts_once(local: Office) -> None:
    """Aloware tells of its beginning, its end, its recording: one id, one key, one fact."""
    names = [
        "OutboundPhoneCall",
        "OutboundPhoneCall-DispositionCompleted",
        "Recording-Saved",
        "Call-Disposed",
    ]
    answers = [told(local.ring(call(719285063, name))) for name in (*names, names[1])]
    assert answers[0] == {"received": 1, "new": 1, "posted": 1}
    assert answers[1:] == [{"received": 1, "duplicates": 1}] * 4
    assert local.status("ALOWARE:719285063") == "COMPLETED"
    assert [total.count for total in _totals(local)] == [1]


def test_both_sources_make_facts(local: Office) -> None:
    for each in (call(1), call(2), text(3), call(4, user_id=7)):
        local.ring(each)
    local.deliver(creation(1), creation(2), creation(3, "0-5"))
    day = "2023-11-14"
    assert [(one.agent, one.metric, one.date, one.count) for one in _totals(local)] == [
        ("aloware:123260", "calls", day, 2),
        ("aloware:123260", "texts", day, 1),
        ("aloware:7", "calls", day, 1),
        ("hubspot:45678", "cases", day, 1),
        ("hubspot:45678", "emails", day, 2),
    ]


def test_a_hundred_events_take_one_round_trip_to_claim_and_one_to_complete(
    office: Office, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many a batch has, the store is asked twice."""
    asked: list[Any] = []
    store = office.s.store

    def heard(name: str) -> None:
        plain = getattr(store, name)

        def ask(command: Any) -> Any:
            asked.append(command)
            return plain(command)

        monkeypatch.setattr(store, name, ask)

    heard("execute")
    heard("at_once")
    counts = told(office.deliver(*[creation(number) for number in range(1, 101)]))
    assert counts == {"received": 100, "new": 100, "posted": 100}
    assert [(type(one), len(one.writes), type(one.writes[0])) for one in asked] == [
        (Batch, 100, Put),
        (Batch, 100, Update),
    ]
    assert wall.steps == ["ensure 100", "post 100"]


@pytest.mark.parametrize("kind", ["signature", "token", "garbage", "no array"])
def test_what_is_not_genuine_leaves_no_trace(
    office: Office, wall: Wall, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is verified on the bytes that came, before anything is claimed."""
    monkeypatch.setattr(office.s.store, "execute", pytest.fail)
    monkeypatch.setattr(office.s.store, "at_once", pytest.fail)
    headers, body = signed([creation(1)], office.clock.now())
    hook = office.app.hooks[HUBSPOT]
    match kind:
        case "signature":
            answer = hook.receive(headers, body.replace(b"0-49", b"0-5 "), url=ADDRESS + HUBSPOT)
        case "token":
            answer = office.ring(call(1), token="guessed")
        case "garbage":
            answer = office.app.hooks[ALOWARE].receive({"Authorization": f"Bearer {TOKEN}"}, b"{")
        case _:
            answer = hook.receive(*signed(7, office.clock.now()), url=ADDRESS + HUBSPOT)
    assert answer.status == (401 if kind in ("signature", "token") else 400)
    assert (wall.steps, office.box.messages) == ([], [])


def test_what_cannot_be_read_does_not_hold_up_the_rest(office: Office, wall: Wall) -> None:
    """An event without an id, with a time of no calendar, or that is none at all."""
    answer = office.deliver(
        creation(1), creation(2, objectId=None), "what", creation(3, occurredAt=1e30), creation(4)
    )
    assert told(answer) == {"received": 5, "new": 2, "posted": 2, "failed": 3}
    assert len(wall.rows) == 2


def test_both_secrets_count_while_one_is_changed(s: semel.Semel, clock: FakeClock, tmp_path: Path) -> None:
    old, new = "the-old-token-of-aloware", "the-new-token-of-aloware"
    office = Office(s, clock, tmp_path, aloware_token=[old, new])
    assert [office.ring(call(1), token=one).status for one in (old, new, TOKEN)] == [200, 200, 401]
    office.close()


def test_a_source_without_a_secret_is_not_served(s: semel.Semel, clock: FakeClock, tmp_path: Path) -> None:
    office = Office(s, clock, tmp_path, hubspot_secret="")
    assert list(office.app.hooks) == [ALOWARE]
    office.close()


def test_awaited_it_is_the_same(local: Office) -> None:
    """In threads, so that the loop goes on; many at once, and each fact once."""
    hook = local.app.hooks[ALOWARE]

    async def both() -> list[dict[str, int]]:
        answers = await asyncio.gather(
            *(hook.areceive(*bearer(call(number % 20))) for number in range(100)),
        )
        return [told(answer) for answer in answers]

    counts = asyncio.run(both())
    assert sum(one.get("posted", 0) for one in counts) == 20
    assert all(one.get("posted", 0) + one.get("duplicates", 0) + one.get("queued", 0) == 1 for one in counts)
    assert [total.count for total in _totals(local)] == [20]


# What fails


@pytest.mark.seed("Q7")
@pytest.mark.parametrize(
    "failure", [down(), RequestRefused("Power BI", "refuses: 404", 404), OSError("disk full")]
)
def test_a_failed_post_loses_nothing(office: Office, wall: Wall, failure: Exception) -> None:
    """Marked before it was posted, a fact would be gone. The claims are given back, and the worker posts."""
    wall.failures = [failure]
    batch = [creation(number) for number in (1, 2, 3)]
    assert told(office.deliver(*batch)) == {"received": 3, "new": 3, "queued": 3}
    assert wall.rows == []
    assert {one.verdict for one in office.work()} == {Verdict.DONE}
    assert len(wall.rows) == 3
    assert told(office.deliver(*batch)) == {"received": 3, "duplicates": 3}
    assert len(wall.rows) == 3


def test_a_delivery_that_comes_again_before_the_worker_posts_it(office: Office, wall: Wall) -> None:
    """Whoever is first posts it; the other finds it done."""
    wall.failures = [down()]
    office.deliver(creation(1))
    assert told(office.deliver(creation(1))) == {"received": 1, "new": 1, "posted": 1}
    assert [one.verdict for one in office.work()] == [Verdict.DUPLICATE]
    assert len(wall.rows) == 1


def test_the_worker_waits_for_as_long_as_the_other_side_asks(office: Office, wall: Wall) -> None:
    wall.failures = [down(), down(retry_after=37.0)]
    office.deliver(creation(1))
    [taken] = office.work()
    assert (taken.verdict, taken.retry_after) == (Verdict.FAILED, 37.0)
    assert [one.verdict for one in office.work()] == [Verdict.DONE]


def test_what_is_refused_is_put_aside(office: Office, wall: Wall) -> None:
    """No further try would help; and when it is delivered again, that is told."""
    wall.failures = [RequestRefused("Power BI", "refuses: 400", 400)] * 2
    office.deliver(creation(1))
    assert [one.verdict for one in office.work()] == [Verdict.DEAD]
    assert told(office.deliver(creation(1))) == {"received": 1, "failed": 1}
    assert wall.rows == []


def test_a_batch_is_posted_in_parts_that_stand_alone(office: Office, wall: Wall) -> None:
    """One that the other side did not take is left for later; those before it are done."""
    wall.most = 2
    wall.failures = [None, down(), None]  # type: ignore[list-item]
    answer = office.deliver(*[creation(number) for number in range(5)])
    assert told(answer) == {"received": 5, "new": 5, "posted": 3, "queued": 2}
    office.work()
    assert len(wall.rows) == len(set(wall.rows)) == 5


@pytest.mark.parametrize("happened", [True, False])
def test_a_post_whose_answer_was_lost_is_held_until_somebody_settles_it(
    office: Office, wall: Wall, happened: bool
) -> None:
    """It may be there: posting it again could double it, and dropping it could lose it."""
    wall.failures = [lost()]
    assert told(office.deliver(creation(1))) == {"received": 1, "new": 1, "queued": 1}
    key = wall.rows[0]
    assert office.status(key) == "UNKNOWN"
    assert [one.verdict for one in office.work()] == [Verdict.BUSY]
    assert told(office.deliver(creation(1))) == {"received": 1, "queued": 1}
    assert wall.rows == [key]
    if not happened:
        wall.rows.clear()
    office.s.ledger.resolve(key, semel.Happened() if happened else semel.NotHappened())
    verdicts = [one.verdict for one in office.work()]
    assert verdicts == [Verdict.DUPLICATE if happened else Verdict.DONE, Verdict.DUPLICATE]
    assert wall.rows == [key]


def test_the_worker_holds_what_it_is_not_told_either(office: Office, wall: Wall) -> None:
    wall.failures = [down(), lost()]
    office.deliver(creation(1))
    assert [one.verdict for one in office.work()] == [Verdict.FAILED]
    assert [one.verdict for one in office.work()] == [Verdict.BUSY]
    assert office.status(wall.rows[0]) == "UNKNOWN"


def test_lost_posts_are_repeated_where_that_is_said(s: semel.Semel, clock: FakeClock, tmp_path: Path) -> None:
    """Then a row may be there twice, which was chosen."""
    wall = Wall()
    office = Office(s, clock, tmp_path, wall, lost_posts="repeat")
    wall.failures = [lost(), lost()]
    office.deliver(creation(1))
    assert [one.verdict for one in office.work()] == [Verdict.FAILED]
    assert [one.verdict for one in office.work()] == [Verdict.DONE]
    assert len(wall.rows) == 3
    office.close()


class Crash(BaseException):
    """The process ends here: nothing after it runs."""


@pytest.mark.parametrize("repeats", [True, False])
def test_a_crash_after_the_claim(s: semel.Semel, clock: FakeClock, tmp_path: Path, repeats: bool) -> None:
    """Nobody knows what was posted: it is posted again where that is harmless, and held where it is not."""
    wall = Wall(repeats=repeats)
    office = Office(s, clock, tmp_path, wall)
    wall.failures = [Crash()]
    with pytest.raises(Crash):
        office.deliver(creation(1))
    assert told(office.deliver(creation(1))) == {"received": 1, "queued": 1}
    assert [one.verdict for one in office.work()] == [Verdict.BUSY]
    clock.advance(60)
    if repeats:
        assert [one.verdict for one in office.work()] == [Verdict.DONE]
        assert len(wall.rows) == 1
    else:
        assert told(office.deliver(creation(1))) == {"received": 1, "queued": 1}
        assert {one.verdict for one in office.work()} == {Verdict.BUSY}
        assert wall.rows == []
    office.close()


def test_a_crash_between_the_facts_and_the_ledger_doubles_nothing_in_the_star(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact has its event's key: written again it is the same row."""
    with monkeypatch.context() as patch:
        patch.setattr(type(local.s.ledger), "complete_many", _crash)
        with pytest.raises(Crash):
            local.ring(call(1))
    assert [total.count for total in _totals(local)] == [1]
    local.clock.advance(61)
    assert told(local.ring(call(1))) == {"received": 1, "new": 1, "posted": 1}
    assert [total.count for total in _totals(local)] == [1]


def _crash(*_: object) -> None:
    raise Crash


def test_if_not_even_the_inbox_takes_it_the_sender_is_to_come_again(office: Office, wall: Wall) -> None:
    wall.failures = [down()]
    office.box.full = errors.StoreUnavailable("the queue is away")
    answer = office.deliver(creation(1))
    assert (answer.status, "Retry-After" in answer.headers) == (503, True)
    office.box.full = None
    assert told(office.deliver(creation(1))) == {"received": 1, "new": 1, "posted": 1}


def test_while_the_ledger_is_away_events_wait_in_the_queue(
    clock: FakeClock, wall: Wall, tmp_path: Path
) -> None:
    """A queue of SQS may be there though the table is not; then nothing has to be sent again."""
    faulty = Faulty(semel.connect("memory:", clock=clock).store)
    with semel.Semel(faulty, clock=clock) as s:
        office = Office(s, clock, tmp_path, wall)
        faulty.refuse()
        assert told(office.deliver(creation(1), creation(2))) == {"received": 2, "queued": 2}
        assert {one.verdict for one in office.work()} == {Verdict.DONE}
        assert len(wall.rows) == 2
        office.close()


@pytest.mark.parametrize("happened", [True, False])
def test_what_is_in_doubt_for_longer_than_a_fact_is_remembered_is_settled_first(
    office: Office, wall: Wall, happened: bool
) -> None:
    """A doubt does not end with its time; and when somebody has settled it, it is not asked again."""
    wall.failures = [lost()]
    office.deliver(creation(1))
    [key] = wall.rows
    office.clock.advance(15 * 86400)
    assert [one.verdict for one in office.work()] == [Verdict.BUSY]
    assert (wall.rows, office.status(key)) == ([key], "UNKNOWN")
    if not happened:
        wall.rows.clear()
    office.s.ledger.resolve(key, semel.Happened() if happened else semel.NotHappened())
    assert [one.verdict for one in office.work()] == [Verdict.DUPLICATE if happened else Verdict.DONE]
    assert wall.rows == [key]


def test_what_failed_for_long_and_is_remembered_is_posted(office: Office, wall: Wall) -> None:
    """Each try is remembered anew, so that it is known that none of them did it."""
    wall.failures = [down(), down()]
    office.deliver(creation(1))
    office.clock.advance(13 * 86400)
    assert [one.verdict for one in office.work()] == [Verdict.FAILED]
    office.clock.advance(2 * 86400)
    assert [one.verdict for one in office.work()] == [Verdict.DONE]


def test_one_batch_from_many_at_once_is_posted_once(tmp_path: Path) -> None:
    """The provider sends it again while it is being worked on, on a store that several threads share."""
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}") as s:
        wall, clock = Wall(), s.clock
        office = Office(s, clock, tmp_path, wall)  # type: ignore[arg-type]
        batch = [creation(number) for number in range(50)]
        ready = threading.Barrier(8)
        answers: list[dict[str, int]] = []

        def deliver() -> None:
            ready.wait()
            answers.append(told(office.deliver(*batch)))

        threads = [threading.Thread(target=deliver) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        office.work()
        office.close()
    assert len(wall.rows) == len(set(wall.rows)) == 50
    assert sum(one.get("posted", 0) for one in answers) == 50


# The star


def test_facts_come_after_what_they_refer_to(local: Office, tmp_path: Path) -> None:
    """A fact whose agent, day or metric is not there is refused by the database itself."""
    local.deliver(creation(1, occurredAt=int(AT * 1000)))
    star = local.app.star
    assert star is not None
    rows = {
        table: star._connection.execute(f"SELECT * FROM {table}").fetchall()
        for table in ("dim_agent", "dim_date", "dim_metric", "fact_activity")
    }
    assert rows == {
        "dim_agent": [("hubspot:45678", "HUBSPOT")],
        "dim_date": [("2023-11-14", 2023, 11, 14, "Tuesday")],
        "dim_metric": [("emails", "E-mails")],
        "fact_activity": [
            (
                "HUBSPOT:0-49:1:object.creation:1700000000000",
                "HUBSPOT",
                "hubspot:45678",
                "emails",
                "2023-11-14",
                "2023-11-14T22:13:20Z",
            )
        ],
    }
    told = hubspot(Notice(creation(2, sourceId="userId:999"), {}))
    with pytest.raises(Exception, match="FOREIGN KEY"):
        star.post([fact_of(event_of(told, "k", AT, zone_of("UTC")))])  # type: ignore[arg-type]
    assert [total.count for total in _totals(local)] == [1]


def test_the_star_is_beside_the_store_unless_it_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    with semel.connect(f"sqlite:///{tmp_path / 'data' / 'semel.db'}") as s:
        Quill(s, Box(), Settings(aloware_token=TOKEN)).close()
    with semel.connect("memory:") as s:
        Quill(s, Box(), Settings(aloware_token=TOKEN)).close()
    assert (tmp_path / "data" / "quill.db").exists()
    assert (tmp_path / "quill.db").exists()


def test_facts_are_read_over_http(local: Office) -> None:
    fastapi = pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from semel.apps.quill.api import router

    for number in (1, 2):
        local.ring(call(number))
    local.ring(call(3, created_at="2023-11-16 12:00:00"))
    app = fastapi.FastAPI()
    app.include_router(router(local.app))
    with TestClient(app) as web:
        found = web.get("/facts", params={"from": "2023-11-01", "to": "2023-11-15"})
        assert found.json() == {
            "facts": [
                {"agent": "aloware:123260", "metric": "calls", "date": "2023-11-14", "count": 2},
            ]
        }
        assert web.get("/facts", params={"from": "yesterday", "to": "2023-11-15"}).status_code == 422
        local.app.sink, star = Wall(), local.app.sink
        assert web.get("/facts", params={"from": "2023-11-01", "to": "2023-11-15"}).status_code == 404
        local.app.sink = star


def _totals(office: Office) -> Any:
    assert isinstance(office.app.sink, Star)
    return office.app.sink.totals(date(2023, 1, 1), date(2023, 12, 31))


# Settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"aloware_token": "", "hubspot_secret": ""}, "aloware_token"),
        ({"aloware_token": "two words"}, "aloware_token"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"zone": ""}, "zone"),
        ({"ttl_days": 0.5}, "ttl_days"),
        ({"ttl_days": 0}, "ttl_days"),
        ({"lease": -1}, "lease"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"powerbi_url": "api.powerbi.com"}, "powerbi_url"),
        ({"powerbi_login": ""}, "powerbi_login"),
        ({"star": "/no/such/folder/quill.db"}, "star"),
        ({"powerbi_tenant": "t", "powerbi_client": "c"}, "powerbi_secret"),
        (dict.fromkeys(("powerbi_timeout",), 0.0), "powerbi_timeout"),
        (
            dict.fromkeys(
                (f"powerbi_{name}" for name in ("tenant", "client", "secret", "workspace", "dataset")), "x"
            )
            | {"lease": 20.0},
            "lease",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_named(
    s: semel.Semel, clock: FakeClock, tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    with (
        pytest.raises(errors.InvalidOption, match=rf"^apps\.quill\.{named}: "),
        closing(Office(s, clock, tmp_path, **settings).app) as app,
    ):
        assert app.hooks


@pytest.mark.seed("Q4")
def test_a_ledger_that_forgets_too_early_is_refused(s: semel.Semel, tmp_path: Path) -> None:
    """HubSpot tries for a day; whether Aloware does is not published."""
    settings: dict[str, Any] = {"ttl_days": 0.5, "star": str(tmp_path / "quill.db")}
    with (
        pytest.raises(errors.InvalidOption, match=r"ttl_days: hubspot goes on .* at least 86400"),
        closing(Quill(s, Box(), Settings(hubspot_secret=SECRET, **settings))) as refused,
    ):
        assert refused.hooks
    quill = Quill(s, Box(), Settings(aloware_token=TOKEN, **settings))
    assert quill.hooks
    open_inbox(s, "quill", shared=True).worker(quill.handle, **quill.worker_options)
    quill.close()


@pytest.mark.seed("Q4")
@pytest.mark.parametrize("days", [14.0, 3.0])
def test_events_are_remembered_for_the_days_that_were_set(
    s: semel.Semel, clock: FakeClock, wall: Wall, tmp_path: Path, days: float
) -> None:
    office = Office(s, clock, tmp_path, wall, ttl_days=days)
    office.ring(call(1))
    record = s.ledger.get("ALOWARE:1")
    assert record is not None
    assert record.expires_at == AT + days * 86400
    clock.advance(days * 86400 - 1)
    assert told(office.ring(call(1))) == {"received": 1, "duplicates": 1}
    clock.advance(1)
    assert told(office.ring(call(1))) == {"received": 1, "new": 1, "posted": 1}
    office.close()


def test_secrets_are_not_shown() -> None:
    shown = repr(Settings(aloware_token=TOKEN, hubspot_secret=SECRET, powerbi_secret="hush"))
    assert not any(one in shown for one in (TOKEN, SECRET, "hush"))


def test_nothing_personal_is_kept_or_logged(office: Office, wall: Wall, caplog: Any) -> None:
    """Neither in what waits, nor in what is told; of an error that quotes an event only its kind."""
    wall.failures = [down()]
    office.ring(call(1))
    office.ring(call("Ada Lovelace"))  # type: ignore[arg-type]
    office.ring({"event": "OutboundPhoneCall", "body": {"id": {"name": "Ada Lovelace"}}})
    kept = json.dumps([message.body for message in office.box.messages]) + caplog.text
    assert "OutboundPhoneCall" not in kept
    for planted in ("Ada", "4155550123", "ada@example.org", "see you soon"):
        assert planted not in kept
    assert Metric.CALLS in kept


def test_what_lapsed_before_it_was_posted_is_left_to_whoever_has_it_then(office: Office, wall: Wall) -> None:
    """Seeing to what it refers to took longer than its lease: by now somebody may have settled it."""
    wall.ensure = lambda facts: office.clock.advance(61)  # type: ignore[method-assign]
    counts = told(office.ring(call(1)))
    assert counts == {"received": 1, "new": 1, "queued": 1}
    assert wall.rows == []
    wall.ensure = lambda facts: None  # type: ignore[method-assign]
    assert [taken.verdict for taken in office.work()] == [Verdict.DONE]
    assert wall.rows == ["ALOWARE:1"]


def test_a_worker_whose_lease_is_over_posts_nothing(office: Office, wall: Wall) -> None:
    wall.failures = [down()]
    office.ring(call(1))

    wall.ensure = lambda facts: office.clock.advance(31)  # type: ignore[method-assign]
    [message] = office.box.messages
    done = office.s.once.block(heartbeat=False, lease=30).run(message.key, None, office.app.handle, message)
    assert isinstance(done, Raised)
    assert isinstance(done.error, errors.ClaimLost)
    assert wall.rows == []


def test_a_time_that_is_written_as_a_text_is_a_time(local: Office) -> None:
    at = str(int(AT * 1000))
    assert told(local.deliver(creation(1, occurredAt=at))) == {"received": 1, "new": 1, "posted": 1}
