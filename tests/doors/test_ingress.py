"""The ingress: a delivery is verified, its events are put into an inbox, and its sender has his answer."""

import asyncio
import json
from typing import Any

import pytest

import semel
from semel import errors
from semel.core.commands import Get, Query
from semel.core.events import What
from semel.doors.inbox import Message, StoreInbox
from semel.doors.inbox.sqs import SQSInbox
from semel.doors.webhooks import HUBSPOT, SLACK, Ingress, Notice, WebhookResponse
from semel.doors.webhooks.ingress import Remembers
from semel.stores.memory import MemoryStore
from semel.tables import INBOX
from semel.testing import FakeClock, Faulty
from tests.doors.inbox_kit import Diary, sweep
from tests.doors.test_webhooks import URL, by_hubspot, by_slack

SECRET = "correct-horse-battery"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    return Faulty(MemoryStore(clock))


@pytest.fixture
def s(store, clock):
    with semel.Semel(store, clock=clock) as s:
        yield s


@pytest.fixture
def inbox(s):
    return StoreInbox(s, "in")


@pytest.fixture
def heard(s):
    events: list[semel.Event] = []
    s.events.listen(events.append)
    return events


def message(notice: Notice) -> Message | None:
    """An event as a message: some are nobody's business, and one has no name."""
    told = notice.payload
    if told["what"] == "nothing":
        return None
    return Message(told["key"], told.get("says"), told.get("group"))


@pytest.fixture(params=["receive", "areceive"])
def deliver(request, s, inbox):
    """What hands a delivery over, through a thread or through a task."""
    ingress = Ingress(s, HUBSPOT, SECRET, inbox, message)

    def deliver(
        *events: dict[str, Any], secret: str = SECRET, body: bytes | None = None, prefer: str = ""
    ) -> WebhookResponse:
        told = json.dumps([{"what": "something", **event} for event in events]).encode()
        sent = by_hubspot(secret, told, s.clock.now())
        headers = [*sent.headers, *([("Prefer", prefer)] if prefer else [])]
        given = {"method": sent.method, "url": URL}
        if request.param == "receive":
            return ingress.receive(headers, body or told, **given)
        return asyncio.run(ingress.areceive(headers, body or told, **given))

    return deliver


def said(answer: WebhookResponse) -> dict[str, Any]:
    counts: dict[str, Any] = json.loads(answer.body)
    return counts


def counts(received: int, accepted: int, **more: int) -> dict[str, int]:
    return {"received": received, "accepted": accepted, "duplicates": 0, "ignored": 0, "failed": 0, **more}


@pytest.mark.seed("R8")
def test_events_are_accepted_at_once_and_nothing_is_written_to_the_ledger(deliver, s, store, inbox, clock):
    answer = deliver({"key": "a", "group": "g"}, {"key": "b", "group": "g", "says": [1]})
    assert (answer.status, said(answer)) == (200, counts(2, 2))
    writes = [each for command in store.seen for each in getattr(command, "writes", [command])]
    assert {write.table for write in writes if hasattr(write, "table")} == {INBOX}
    assert s.ledger.list().records == ()
    diary = Diary()
    sweep(inbox.worker(diary), clock)
    assert diary.keys == ["a", "b"]
    assert diary.messages[1].body == [1]


def test_an_event_that_comes_again_is_accepted_again_and_handled_once(deliver, inbox, clock):
    assert said(deliver({"key": "a"}, {"key": "b"}, {"key": "a"})) == counts(3, 2, duplicates=1)
    assert said(deliver({"key": "a"})) == counts(1, 1)
    diary = Diary()
    sweep(inbox.worker(diary), clock)
    assert sorted(diary.keys) == ["a", "b"]


WANTS = "respond-async, Return=Representation; now"


@pytest.mark.parametrize("group", [None, "g"])
def test_who_wants_to_know_is_told_what_came_before(deliver, store, inbox, clock, group):
    """While it waits, and when it was handled; whoever does not ask costs no look."""
    event = {"key": "a", "group": group}
    first = deliver(event, prefer=WANTS)
    assert said(first) == counts(1, 1, known=0)
    assert first.headers["Preference-Applied"] == "return=representation"
    other = {"key": "b", "group": group}
    assert said(deliver(event, other, prefer=WANTS)) == counts(2, 2, known=1)
    sweep(inbox.worker(Diary()), clock)
    assert said(deliver(event, prefer=WANTS)) == counts(1, 1, known=1)
    store.seen.clear()
    assert said(deliver(event)) == counts(1, 1)
    assert not any(isinstance(command, Get | Query) for command in store.seen)


def test_a_queue_does_not_know_what_it_had_and_nothing_is_said_of_it(s):
    class Blind:
        def put(self, *_messages: Message) -> None:
            pass

        async def aput(self, *_messages: Message) -> None:
            pass

    assert not issubclass(SQSInbox, Remembers)
    sent = by_slack(SECRET, b'{"event_id": "E1", "what": "something", "key": "a"}', s.clock.now())
    ingress = Ingress(s, SLACK, SECRET, Blind(), message)
    answer = ingress.receive([*sent.headers, ("Prefer", WANTS)], sent.body)
    assert (answer.status, said(answer)) == (200, counts(1, 1))
    assert "Preference-Applied" not in answer.headers


def test_one_that_no_inbox_takes_is_not_known_and_a_store_that_is_away_is_told(deliver, store):
    assert said(deliver({"key": "x", "group": ""}, prefer=WANTS)) == counts(1, 0, known=0, failed=1)
    store.refuse(10)
    assert deliver({"key": "a"}, prefer=WANTS).status == 503


@pytest.mark.parametrize(
    "bad",
    [
        {"what": "an event without a key"},
        {"key": ""},
        {"key": 7},
        {"key": ["unhashable"]},
        {"key": "line\nbreak"},
        {"key": "x", "group": ""},
        {"key": "x", "says": "\ud800"},
    ],
    ids=str,
)
def test_an_event_that_no_inbox_takes_is_told_as_failed_and_the_others_are_accepted(
    deliver, heard, inbox, bad
):
    """Another delivery of it would not help, so that none is asked for; but somebody should look."""
    answer = deliver({"key": "a"}, bad, {"key": "b"}, {"what": "nothing"})
    assert (answer.status, said(answer)) == (200, counts(4, 2, ignored=1, failed=1))
    assert inbox.waiting() == 2
    [event] = [event for event in heard if event.what is What.REFUSED]
    assert (event.door, event.warned) == ("webhook", True)


def test_a_delivery_of_nothing_to_do_puts_nothing_in(deliver, store):
    assert said(deliver()) == counts(0, 0)
    assert said(deliver({"what": "nothing"})) == counts(1, 0, ignored=1)
    assert store.seen == []


@pytest.mark.parametrize("fault", ["refuse", "lose_request"])
def test_while_the_inbox_is_down_the_sender_is_asked_to_come_again(deliver, store, heard, inbox, fault):
    getattr(store, fault)(3)
    answer = deliver({"key": "a"}, {"key": "b"})
    assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert any(event.what is What.STORE_ERROR and event.warned for event in heard)
    store._faults.clear()
    assert deliver({"key": "a"}, {"key": "b"}).status == 200
    assert inbox.waiting() == 2


def test_an_inbox_that_goes_down_between_two_events_is_no_reason_to_lose_one(deliver, store, inbox):
    """One event is not fit, so that the others are put in one by one: the second of these fails."""
    store._faults.extend(["none"])
    store.refuse()
    answer = deliver({"key": "a"}, {"key": "x", "group": ""}, {"key": "b"})
    assert (answer.status, inbox.waiting()) == (503, 1)
    assert said(deliver({"key": "a"}, {"key": "x", "group": ""}, {"key": "b"})) == counts(3, 2, failed=1)


def test_what_is_wrong_with_the_inbox_itself_is_never_taken_for_the_events_fault(s):
    """A queue that refuses everything, say: the sender keeps its events until somebody has mended it."""

    class Refusing:
        def put(self, *_messages: Message) -> None:
            raise errors.UsageError("SQS refuses this SendMessageBatch")

        async def aput(self, *_messages: Message) -> None:
            self.put()

    ingress = Ingress(s, HUBSPOT, SECRET, Refusing(), message)
    sent = by_hubspot(SECRET, b'[{"what": "something", "key": "a"}]', s.clock.now())
    assert ingress.receive(sent.headers, sent.body, method=sent.method, url=URL).status == 503


def test_what_is_not_genuine_is_refused_and_leaves_no_trace(deliver, store):
    answer = deliver({"key": "a"}, secret="a guess")
    assert (answer.status, json.loads(answer.body)) == (
        401,
        {"type": "about:blank", "title": "Unauthorized", "status": 401},
    )
    assert deliver({"key": "a"}, body=b'[{"what": "something", "key": "b"}]').status == 401
    assert store.seen == []


def test_what_is_genuine_and_cannot_be_read_or_is_too_large_is_refused(s, inbox):
    ingress = Ingress(s, HUBSPOT, SECRET, inbox, message)
    for body, status in ((b"no JSON", 400), (b" " * (HUBSPOT.max_bytes + 1), 413)):
        sent = by_hubspot(SECRET, body, s.clock.now())
        assert ingress.receive(sent.headers, body, method=sent.method, url=URL).status == status
    assert inbox.waiting() == 0


def test_a_greeting_is_answered_and_not_put_in(s, inbox):
    ingress = Ingress(s, SLACK, SECRET, inbox, message)
    body = b'{"type": "url_verification", "challenge": "3eZbrw1aB"}'
    sent = by_slack(SECRET, body, s.clock.now())
    answer = ingress.receive(sent.headers, body, method=sent.method, url=URL)
    assert answer.status == 200
    assert b"3eZbrw1aB" in answer.body
    assert inbox.waiting() == 0
