"""Support, message by message: what is decided, done, remembered and told."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import msgspec
import pytest
import stamina
from fastapi import FastAPI
from fastapi.testclient import TestClient

import semel
from semel.apps.support import Conversation, Decision, Order, Settings, Support, Ticket
from semel.apps.support.api import router
from semel.apps.support.app import PATH
from semel.apps.tables import SUPPORT_AUDIT, SUPPORT_STATE
from semel.doors.inbox import Inbox, Message, open_inbox
from semel.doors.queues.messages import DeliveryResult, Handler, Verdict
from semel.errors import InvalidOption
from semel.model import NotHappened
from semel.redact import Redactor
from semel.stores.memory import MemoryStore
from semel.stores.shared import tables_of
from semel.telemetry import log_events
from semel.testing import FakeClock, Faulty
from tests.standins.richpanel import API_KEY, SHOP_TOKEN, Richpanel, Shop

TOKEN = "hook-token-of-the-tests"
EMAIL, PHONE = "ann.planted@example.com", "+46 70 123 45 67"
ORDER, TRACKING = "9087654", "1Z999AA10123456784"
WHERE = "Where is my order?"

DAY = 86400


class Letters:
    """An inbox that only remembers what was put into it."""

    name = "support"

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def record_key(self, key: str) -> str:
        return key

    def put(self, *messages: Message) -> None:
        self.messages += messages

    async def aput(self, *messages: Message) -> None:
        self.messages += messages


class Desk:
    """Support with its inbox, as one worker sees it."""

    def __init__(self, s: semel.Semel, settings: dict[str, Any]) -> None:
        self.s, self.inbox = s, Letters()
        self.app = Support(s, cast("Inbox", self.inbox), Settings(webhook_token=TOKEN, **settings))
        self._handler: Handler[Message] = Handler(
            s, self.app.handle, key=lambda message: message.key, door="inbox", **self.app.worker_options
        )

    def deliver(self, payload: Any, token: str = TOKEN) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        answer = self.app.hooks[PATH].receive(headers, json.dumps(payload).encode(), url="https://x" + PATH)
        return {"status": answer.status, **json.loads(answer.body)}

    def send(self, text: str, message: str | None = "m-1", conversation: str = "c-1", **more: Any) -> Message:
        payload = {"conversation_id": conversation, "message_id": message, "text": text, "email": EMAIL}
        assert self.deliver(payload | more)["accepted"] == 1
        return self.inbox.messages[-1]

    def take(self, message: Message) -> DeliveryResult:
        return self._handler.take(message)

    def handle(self, text: str, message: str | None = "m-1", conversation: str = "c-1", **more: Any) -> Any:
        taken = self.take(self.send(text, message, conversation, **more))
        if taken.error is not None:
            raise taken.error
        return taken.result

    def state(self, conversation: str = "c-1") -> dict[str, Any]:
        found = self.s.documents.on(SUPPORT_STATE).get(conversation)
        return {} if found is None else found.value

    def audit(self, conversation: str = "c-1") -> list[tuple[str, str]]:
        """What was told, in the order of time; at one moment by the name of the action."""
        entries = self.s.journal.on(SUPPORT_AUDIT).list(conversation).entries
        return [(entry.body["action_type"], entry.body["result"]) for entry in entries]

    def keys(self) -> list[str]:
        return [record.key for record in self.s.ledger.list().records]


Make = Callable[..., Desk]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s(clock: FakeClock) -> Iterator[semel.Semel]:
    with semel.connect("memory:", clock=clock, secret=b"of the tests", redact=Redactor()) as s:
        yield s


@pytest.fixture
def richpanel() -> Iterator[Richpanel]:
    with Richpanel() as side:
        yield side


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Shop() as side:
        side.add(ORDER, EMAIL)
        yield side


@pytest.fixture
def make(s: semel.Semel, richpanel: Richpanel, shop: Shop) -> Iterator[Make]:
    made = []

    def helpdesk(on: semel.Semel = s, **settings: Any) -> Desk:
        sides = {"richpanel_key": API_KEY, "richpanel_url": richpanel.url}
        sides |= {"shopify_url": shop.url, "shopify_token": SHOP_TOKEN}
        made.append(Desk(on, {"automation_enabled": True, **sides, **settings}))
        return made[-1]

    yield helpdesk
    for each in made:
        each.app.close()


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with stamina.set_testing(True, attempts=3, cap=True):
        yield


@pytest.fixture
def helpdesk(make: Make) -> Desk:
    return make()


# Coming in


@pytest.mark.seed("R8")
def test_a_delivery_is_answered_at_once_and_only_put_into_the_inbox(
    helpdesk: Desk, richpanel: Richpanel
) -> None:
    answer = helpdesk.deliver({"ticket_id": "c-1", "message_id": "m-1", "message": WHERE})
    assert (answer["status"], answer["accepted"]) == (200, 1)
    (message,) = helpdesk.inbox.messages
    assert (message.key, message.group) == ("evt:rp:c-1:m-1", "c-1")
    assert helpdesk.keys() == []
    assert helpdesk.state() == {}
    assert richpanel.received == []


@pytest.mark.parametrize("token", ["", "another"])
def test_who_does_not_know_the_token_is_refused(helpdesk: Desk, token: str) -> None:
    assert helpdesk.deliver({"ticket_id": "c-1", "message_id": "m-1", "text": "hi"}, token)["status"] == 401
    assert helpdesk.inbox.messages == []


@pytest.mark.seed("R4")
def test_a_message_without_an_id_is_named_by_its_words_and_minute(helpdesk: Desk) -> None:
    for at, text in (
        (1_700_000_001, "Hello  there"),
        ("2023-11-14T22:13:25Z", "Hello there "),
        (1_700_000_099, "Hello there"),
    ):
        helpdesk.send(text, None, created_at=at)
    first, again, later = [message.key for message in helpdesk.inbox.messages]
    assert first == again != later
    assert first.startswith("evt:rp:c-1:")
    assert len(first.rpartition(":")[2]) == 64


@pytest.mark.parametrize(
    "payload",
    [
        {"ticket": {"id": "c-1"}, "message": {"id": "m-1", "text": "hi", "sender_type": "operator"}},
        {"ticket": {"id": "c-1"}, "comment": {"id": "m-1", "body": "hi", "isOperator": True}},
    ],
)
def test_what_the_shop_writes_itself_is_ignored(helpdesk: Desk, payload: dict[str, Any]) -> None:
    """Else every reply would be answered in turn."""
    assert helpdesk.deliver(payload)["ignored"] == 1
    assert helpdesk.inbox.messages == []


@pytest.mark.parametrize(
    "payload", [{}, [], {"text": "hi", "message_id": "m"}, {"ticket_id": "c", "text": "hi"}, "hi"]
)
def test_what_has_no_name_is_told_and_not_accepted(helpdesk: Desk, payload: Any) -> None:
    helpdesk.deliver(payload)
    assert helpdesk.inbox.messages == []


ASTRAY = {
    "up": "..",
    "here": ".",
    "into another": "c-1/add-tags",
    "up in the middle": "../customers/7",
    "a query": "c-1?x=1",
    "a fragment": "c-1#x",
    "encoded": "%2e%2e",
    "a backslash": "..\\c-1",
    "a control character": "c\x001",
    "two lines": "c\r\n1",
    "absurdly long": "c" * 201,
}


@pytest.mark.parametrize("conversation", ASTRAY.values(), ids=ASTRAY)
def test_an_id_that_leads_out_of_richpanels_address_is_refused_and_the_log_says_why(
    helpdesk: Desk, richpanel: Richpanel, conversation: str, caplog: pytest.LogCaptureFixture
) -> None:
    helpdesk.s.events.listen(log_events)
    answer = helpdesk.deliver({"conversation_id": conversation, "message_id": "m-1", "text": WHERE})
    assert (answer["status"], answer["accepted"], answer["failed"]) == (200, 0, 1)
    assert helpdesk.inbox.messages == []
    [told] = [one.getMessage() + str(vars(one)) for one in caplog.records if "accepted" in str(vars(one))]
    assert "the id of its conversation is no part of an address" in told
    assert WHERE not in told
    assert richpanel.received == []


@pytest.mark.parametrize("conversation", ["..", "."])
def test_one_that_waits_already_is_a_dead_letter_and_nobody_is_asked(
    helpdesk: Desk, richpanel: Richpanel, conversation: str
) -> None:
    """However it came into the inbox."""
    message = helpdesk.send(WHERE)
    body = message.body | {"conversation": conversation}
    taken = helpdesk.take(msgspec.structs.replace(message, body=body))
    assert taken.verdict is Verdict.DEAD
    assert "names nothing in a path" in str(taken.error)
    assert richpanel.received == []


def test_an_id_of_any_other_letters_stays_in_its_place(helpdesk: Desk, richpanel: Richpanel) -> None:
    helpdesk.handle("thank you", conversation="<a b+c=d@é>")
    assert [conversation for conversation, _ in richpanel.assigned] == ["%3Ca%20b%2Bc%3Dd%40%C3%A9%3E"]


@pytest.mark.parametrize(
    ("told", "received"),
    [
        ("2023-11-14T23:13:21+01:00", "2023-11-14T22:13:21.000Z"),
        ("2023-11-14T22:13:21", "2023-11-14T22:13:21.000Z"),
        (1_700_000_001_500, "2023-11-14T22:13:21.500Z"),
        ("ann@example.com", "2023-11-14T22:13:20.000Z"),
        (None, "2023-11-14T22:13:20.000Z"),
    ],
)
def test_when_it_was_received_is_told_by_the_delivery_or_by_the_clock(
    helpdesk: Desk, told: Any, received: str
) -> None:
    assert helpdesk.send("hi", received_at=told).body["received_at"] == received


def test_the_id_of_an_email_is_hashed(helpdesk: Desk) -> None:
    """It may be an address, and would stand in keys for a month."""
    message = helpdesk.send("hi", "<CAF.1234@mail.example.com>")
    assert "@" not in message.key
    assert message.key == helpdesk.send("hi", "<CAF.1234@mail.example.com>").key


# Handling once


@pytest.mark.seed("R1", "R8")
def test_an_event_is_handled_once_and_its_record_tells_how(helpdesk: Desk, richpanel: Richpanel) -> None:
    message = helpdesk.send(WHERE)
    assert helpdesk.take(message).verdict is Verdict.DONE
    assert helpdesk.take(message).verdict is Verdict.DUPLICATE
    assert len(richpanel.replies) == 1
    record = helpdesk.s.ledger.get("evt:rp:c-1:m-1")
    assert record is not None
    digest = helpdesk.s.digest(message.body)
    assert record.details == {
        "received_at": "2023-11-14T22:13:20.000Z",
        "mode": "automation_candidate",
        "conversation_id": "c-1",
        "safe_mode": False,
        "automation_enabled": True,
        "source_message_id": "m-1",
        "payload_sha256": digest.sha256,
        "payload_bytes": digest.bytes,
        "intent": "order_status",
    }
    assert record.expires_at == pytest.approx(helpdesk.s.clock.now() + 30 * DAY)


@pytest.mark.seed("R5")
def test_each_action_has_a_key_of_its_own_made_from_what_never_changes(helpdesk: Desk) -> None:
    helpdesk.handle(f"Where is my order #{ORDER}?")
    number = helpdesk.s.digest(ORDER).sha256[:32]
    assert helpdesk.keys() == [
        "act:rp_assign:c-1:orders:m-1",
        "act:rp_reply:c-1:m-1",
        "act:rp_tag:c-1:intent-order_status:m-1",
        f"act:shopify_lookup:c-1:{number}",
        "evt:rp:c-1:m-1",
        "evt:rp:c-1:m-1>decide",
    ]


@pytest.mark.seed("R11")
@pytest.mark.parametrize(("safe", "mode"), [(False, "automation_candidate"), (True, "route_only")])
def test_every_record_of_a_message_tells_its_conversation_and_mode(
    helpdesk: Desk, clock: FakeClock, safe: bool, mode: str
) -> None:
    helpdesk.s.switches.turn("safe_mode", on=safe)
    clock.advance(1)
    helpdesk.handle(f"Where is my order #{ORDER}?")
    told = {record.key: record.details or {} for record in helpdesk.s.ledger.list().records}
    acts = {"act:rp_tag", "act:rp_assign"} | (set() if safe else {"act:rp_reply", "act:shopify_lookup"})
    assert {":".join(key.split(":")[:2]) for key in told} == acts | {"evt:rp"}
    assert {(one["conversation_id"], one["mode"]) for one in told.values()} == {("c-1", mode)}


@pytest.mark.seed("R5")
def test_an_action_that_failed_is_tried_again_and_those_that_were_done_are_not(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock
) -> None:
    richpanel.fail(next=3, status=503, path="/v1/tickets/c-1", method="PUT")
    message = helpdesk.send("I want a refund")
    assert helpdesk.take(message).verdict is Verdict.FAILED
    clock.advance(1)
    assert helpdesk.take(message).verdict is Verdict.DONE
    assert richpanel.tags == [("c-1", "intent-returns")]
    assert richpanel.assigned == [("c-1", "returns")]
    assert helpdesk.audit() == [
        ("tag", "fail: Unavailable (503)"),
        ("route", "success"),
        ("tag", "success"),
    ]


def test_the_decision_of_the_first_attempt_is_that_of_all(
    make: Make, richpanel: Richpanel, clock: FakeClock
) -> None:
    helpdesk = make(decide=f"{__name__}:fickle")
    FICKLE[:] = ["returns", "billing"]
    richpanel.fail(next=3, status=500)
    message = helpdesk.send("hello")
    assert helpdesk.take(message).verdict is Verdict.FAILED
    clock.advance(1)
    assert helpdesk.take(message).verdict is Verdict.DONE
    assert richpanel.assigned == [("c-1", "returns")]
    assert FICKLE == ["billing"]


FICKLE: list[str] = []


def fickle(ticket: Ticket, state: Conversation) -> Decision:
    return Decision(intent="any", team=FICKLE.pop(0), confidence=1.0)


# Kill switches


@pytest.mark.seed("R8")
def test_a_switch_that_is_turned_counts_from_the_next_message_on(
    helpdesk: Desk, richpanel: Richpanel
) -> None:
    assert helpdesk.handle(WHERE, "m-1", "c-1").mode == "automation_candidate"
    helpdesk.s.switches.turn("safe_mode", on=True, reason="trouble")
    handled = helpdesk.handle(WHERE, "m-1", "c-2")
    assert (handled.mode, handled.replied) == ("route_only", None)
    helpdesk.s.switches.turn("safe_mode", on=False)
    helpdesk.s.switches.turn("automation_enabled", on=False)
    assert helpdesk.handle(WHERE, "m-1", "c-3").mode == "route_only"
    helpdesk.s.switches.turn("automation_enabled", on=True)
    assert helpdesk.handle(WHERE, "m-1", "c-4").mode == "automation_candidate"
    assert [conversation for conversation, _ in richpanel.replies] == ["c-1", "c-4"]
    assert [conversation for conversation, _ in richpanel.assigned] == ["c-1", "c-2", "c-3", "c-4"]
    assert helpdesk.audit("c-2") == [
        ("route", "success"),
        ("auto_reply", "fail: safe_mode is on"),
        ("tag", "success"),
    ]
    assert ("auto_reply", "fail: automation_enabled is off") in helpdesk.audit("c-3")


def test_nothing_is_answered_until_somebody_allows_it(make: Make, richpanel: Richpanel) -> None:
    helpdesk = make(automation_enabled=False)
    assert helpdesk.handle(WHERE).mode == "route_only"
    assert richpanel.replies == []


def test_a_switch_that_is_turned_between_two_attempts_stops_the_reply(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock
) -> None:
    richpanel.fail(next=3, status=500)
    message = helpdesk.send(WHERE)
    assert helpdesk.take(message).verdict is Verdict.FAILED
    helpdesk.s.switches.turn("safe_mode", on=True)
    clock.advance(1)
    handled = helpdesk.take(message).result
    assert (handled.replied, handled.refused) == (None, "safe_mode is on")
    assert richpanel.replies == []
    assert "pending_flow" not in helpdesk.state()


def test_a_reply_that_was_sent_before_the_switch_was_turned_is_remembered(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = helpdesk.send(WHERE)
    with monkeypatch.context() as broken:
        broken.setattr(helpdesk.app, "_remember", lambda *_: 1 / 0)
        assert isinstance(helpdesk.take(message).error, ZeroDivisionError)
    helpdesk.s.switches.turn("safe_mode", on=True)
    clock.advance(1)
    assert helpdesk.take(message).result.replied == "ask_order_number"
    assert len(richpanel.replies) == 1
    assert helpdesk.state()["last_auto_reply"]["type"] == "ask_order_number"


# The flow


@pytest.mark.seed("R2")
def test_an_order_number_is_asked_for_and_the_next_message_brings_it(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock
) -> None:
    assert helpdesk.handle(WHERE, "m-1").replied == "ask_order_number"
    asked = helpdesk.state()
    assert asked["pending_flow"] == {
        "type": "need_order_number",
        "requested_at": "2023-11-14T22:13:20.000Z",
        "attempts": 1,
    }
    clock.advance(60)
    assert helpdesk.handle(f"It is {ORDER}", "m-2").replied == "order_status"
    assert richpanel.replies[-1] == ("c-1", "Your order ending in 7654 has been shipped.")
    state = helpdesk.state()
    assert "pending_flow" not in state
    assert state["last_auto_reply"] == {
        "type": "order_status",
        "sent_at": "2023-11-14T22:14:20.000Z",
        "source_message_id": "m-2",
    }
    assert (state["last_intent"], state["last_routed_team"]) == ("order_status", "orders")
    assert (state["last_processed_message_id"], state["last_routing_confidence"]) == ("m-2", 0.9)


def test_after_two_asks_that_brought_nothing_a_person_takes_over(
    helpdesk: Desk, richpanel: Richpanel
) -> None:
    handled = [helpdesk.handle(text, f"m-{n}") for n, text in enumerate((WHERE, "no idea", "really none"))]
    assert [each.replied for each in handled] == ["ask_order_number", "ask_order_number_again", None]
    assert [team for _, team in richpanel.assigned] == ["orders", "orders", "support"]
    assert ("c-1", "needs-human") in richpanel.tags
    assert "pending_flow" not in helpdesk.state()


def test_a_number_that_is_not_the_customers_is_asked_for_again_and_then_left_to_a_person(
    helpdesk: Desk, richpanel: Richpanel, shop: Shop
) -> None:
    """Neither a wrong number nor somebody else's order is told of."""
    shop.add("5550001", "somebody.else@example.com")
    handled = [
        helpdesk.handle("Where is my order #5550001?", "m-1"),
        helpdesk.handle("5550002, sorry", "m-2"),
        helpdesk.handle("then 5550003", "m-3"),
    ]
    assert [each.replied for each in handled] == ["order_not_found", None, None]
    assert handled[1].refused.startswith("order_not_found was the last reply")
    assert [team for _, team in richpanel.assigned][1:] == ["support", "support"]
    assert len(richpanel.replies) == 1


@pytest.mark.seed("R2")
def test_a_flow_ends_before_the_state_it_is_part_of(helpdesk: Desk, clock: FakeClock) -> None:
    helpdesk.handle(WHERE, "m-1")
    document = helpdesk.s.documents.on(SUPPORT_STATE).get("c-1")
    assert document is not None
    now = clock.now()
    assert document.expires_at == pytest.approx(now + 90 * DAY)
    assert document.ends == {"pending_flow": pytest.approx(now + 7 * DAY)}
    clock.advance(7 * DAY + 1)
    assert "pending_flow" not in helpdesk.state()
    assert helpdesk.handle(ORDER, "m-2").intent == "other"


@pytest.mark.seed("R2")
def test_every_message_makes_a_new_version_of_the_state(helpdesk: Desk) -> None:
    for number in range(3):
        helpdesk.handle("thank you", f"m-{number}")
    document = helpdesk.s.documents.on(SUPPORT_STATE).get("c-1")
    assert document is not None
    assert document.version == 3


def test_the_same_reply_does_not_come_twice_in_a_row(
    make: Make, richpanel: Richpanel, clock: FakeClock
) -> None:
    helpdesk = make(reply_every=3600)
    asks = f"Where is my order #{ORDER}?"
    assert helpdesk.handle(asks, "m-1").replied == "order_status"
    clock.advance(3599)
    again = helpdesk.handle(asks, "m-2")
    assert (again.replied, again.team) == (None, "support")
    assert ("auto_reply", "fail: order_status was the last reply, less than 3600 s ago") in helpdesk.audit()
    clock.advance(2)
    assert helpdesk.handle(asks, "m-3").replied == "order_status"
    assert len(richpanel.replies) == 2


@pytest.mark.seed("R2")
def test_risks_are_remembered_and_never_answered(helpdesk: Desk, richpanel: Richpanel) -> None:
    helpdesk.handle("I will open a chargeback, this is a scam", "m-1")
    helpdesk.handle("My lawyer will write to you about my order", "m-2")
    assert helpdesk.state()["risk_flags"] == {"chargeback", "fraud_suspected", "legal"}
    assert [team for _, team in richpanel.assigned] == ["disputes", "disputes"]
    assert richpanel.replies == []


# Orders


def test_an_order_is_looked_up_once_in_a_while(helpdesk: Desk, shop: Shop, clock: FakeClock) -> None:
    for number in range(2):
        helpdesk.handle(f"Where is my order #{ORDER}?", f"m-{number}")
    assert len(shop.received) == 1
    clock.advance(901)
    helpdesk.handle(f"Where is my order #{ORDER}?", "m-9")
    assert len(shop.received) == 2


@pytest.mark.parametrize(
    ("status", "cancelled", "words"),
    [
        ("FULFILLED", None, "has been shipped"),
        ("PARTIALLY_FULFILLED", None, "has been shipped in part"),
        ("ON_HOLD", None, "is on hold"),
        ("UNFULFILLED", None, "is being prepared"),
        ("FULFILLED", "2026-01-01T00:00:00Z", "was cancelled"),
    ],
)
def test_a_customer_is_told_how_the_order_stands(
    helpdesk: Desk, richpanel: Richpanel, shop: Shop, status: str, cancelled: str | None, words: str
) -> None:
    shop.add("10042", EMAIL.upper(), status, cancelled)
    helpdesk.handle("Where is my order 10042?")
    assert f"Your order ending in 0042 {words}" in richpanel.replies[0][1]


def test_without_an_address_nobody_is_told_of_an_order(helpdesk: Desk, richpanel: Richpanel) -> None:
    assert helpdesk.handle(f"Where is my order #{ORDER}?", email="").replied == "order_not_found"


def test_orders_may_be_found_by_a_function(make: Make, richpanel: Richpanel, shop: Shop) -> None:
    helpdesk = make(lookup=f"{__name__}:own_orders")
    assert helpdesk.handle("Where is my order A-100?").replied == "order_status"
    assert "was cancelled" in richpanel.replies[0][1]
    assert shop.received == []


def own_orders(number: str, email: str) -> Order | None:
    return Order("cancelled") if (number, email) == ("A-100", EMAIL) else None


def test_where_nobody_can_look_orders_up_a_person_does(make: Make, richpanel: Richpanel) -> None:
    helpdesk = make(shopify_url="", shopify_token="")
    handled = helpdesk.handle(f"Where is my order #{ORDER}?")
    assert (handled.replied, handled.team) == (None, "support")


def test_a_shop_that_is_away_is_asked_again_later(
    helpdesk: Desk, shop: Shop, clock: FakeClock, richpanel: Richpanel
) -> None:
    shop.fail(next=3, status=503)
    message = helpdesk.send(f"Where is my order #{ORDER}?")
    assert helpdesk.take(message).verdict is Verdict.FAILED
    assert helpdesk.audit() == [("order_lookup", "fail: Unavailable (503)")]
    clock.advance(1)
    assert helpdesk.take(message).result.replied == "order_status"


# The other side fails


@pytest.mark.seed("R9")
def test_too_many_requests_are_tried_again_when_the_other_side_says(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock
) -> None:
    richpanel.fail(status=429, retry_after=30)
    message = helpdesk.send("I want a refund")
    taken = helpdesk.take(message)
    assert (taken.verdict, taken.retry_after) == (Verdict.FAILED, 30)
    assert len(richpanel.received) == 1
    clock.advance(30)
    assert helpdesk.take(message).verdict is Verdict.DONE


@pytest.mark.seed("R9")
def test_what_passes_soon_is_waited_for_in_place(helpdesk: Desk, richpanel: Richpanel) -> None:
    richpanel.fail(status=429, retry_after=0)
    richpanel.fail(status=503)
    helpdesk.handle("I want a refund")
    assert helpdesk.audit() == [("route", "success"), ("tag", "success")]


@pytest.mark.seed("R9")
def test_after_the_last_attempt_it_is_left_to_a_person(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock
) -> None:
    richpanel.stop()
    message = helpdesk.send("I want a refund")
    verdicts = []
    for _ in range(2):
        verdicts.append(helpdesk.take(message).verdict)
        clock.advance(60)
    assert set(verdicts) == {Verdict.FAILED}
    handler: Handler[Message] = Handler(
        helpdesk.s,
        helpdesk.app.handle,
        key=lambda one: one.key,
        door="inbox",
        **helpdesk.app.worker_options | {"max_attempts": 3},
    )
    assert handler.take(message).verdict is Verdict.DEAD


def test_what_the_other_side_refuses_is_not_tried_again(
    make: Make, richpanel: Richpanel, clock: FakeClock
) -> None:
    helpdesk = make(richpanel_key="wrong")
    message = helpdesk.send("I want a refund")
    assert helpdesk.take(message).verdict is Verdict.DEAD
    assert len(richpanel.received) == 1
    assert helpdesk.audit() == [("tag", "fail: RequestRefused (401)")]


@pytest.mark.seed("R9")
@pytest.mark.parametrize("sent", [True, False])
def test_a_reply_whose_answer_is_lost_is_not_sent_again_but_shown_to_a_person(
    make: Make, richpanel: Richpanel, sent: bool
) -> None:
    helpdesk = make(richpanel_timeout=0.2)
    richpanel.lose_reply(sent=sent)
    assert helpdesk.handle(WHERE).replied is None
    assert len(richpanel.replies) == sent
    assert richpanel.assigned[-1] == ("c-1", "support")
    assert [entry for entry in helpdesk.audit() if entry[0] in ("auto_reply", "escalate")] == [
        ("escalate", "success"),
        ("auto_reply", "fail: nobody knows whether it was sent: settle it under its key"),
    ]
    record = helpdesk.s.ledger.get("act:rp_reply:c-1:m-1")
    assert record is not None
    assert record.status is semel.Status.UNKNOWN
    state = helpdesk.state()
    assert "pending_flow" not in state
    assert state["last_routed_team"] == "support"


@pytest.mark.situation(56)
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_reply_that_is_answered_by_a_server_error_is_not_sent_again(
    helpdesk: Desk, richpanel: Richpanel, status: int
) -> None:
    """Its customer has it: it is held, a person takes over the conversation, and only tags are set again."""
    richpanel.lose_reply(sent=True, hang=0, status=status)
    handled = helpdesk.handle(WHERE)
    assert (handled.replied, handled.team) == (None, "support")
    assert len(richpanel.replies) == 1
    [held] = helpdesk.s.ledger.list(status=semel.Status.UNKNOWN).records
    assert held.key == "act:rp_reply:c-1:m-1"


@pytest.mark.situation(56)
def test_where_keys_are_recognised_a_reply_is_retried_after_a_server_error(
    make: Make, richpanel: Richpanel
) -> None:
    richpanel.keeps_keys = True
    helpdesk = make(richpanel_keeps_keys=True)
    richpanel.lose_reply(sent=True, hang=0, status=500)
    assert helpdesk.handle(WHERE).replied == "ask_order_number"
    assert len(richpanel.replies) == 1


@pytest.mark.parametrize("keeps_keys", [True, False])
def test_a_reply_may_be_sent_again_where_that_is_said(
    make: Make, richpanel: Richpanel, keeps_keys: bool
) -> None:
    """Under the same key: whoever recognises it sends one, and whoever does not sends two."""
    richpanel.keeps_keys = keeps_keys
    helpdesk = make(richpanel_timeout=0.2, on_lost_reply="rerun")
    richpanel.lose_reply(sent=True)
    assert helpdesk.handle(WHERE).replied == "ask_order_number"
    replies = [request for request in richpanel.received if "comment" in request.text]
    assert len(replies) == 2
    assert replies[0].key == replies[1].key != ""
    assert len(richpanel.replies) == (1 if keeps_keys else 2)


def test_where_keys_are_recognised_a_lost_reply_is_repeated_in_place(
    make: Make, richpanel: Richpanel
) -> None:
    richpanel.keeps_keys = True
    helpdesk = make(richpanel_timeout=0.2, richpanel_keeps_keys=True)
    richpanel.lose_reply(sent=True)
    assert helpdesk.handle(WHERE).replied == "ask_order_number"
    assert len(richpanel.replies) == 1


def test_a_reply_that_was_found_not_to_be_sent_is_sent_when_the_event_comes_again(
    make: Make, richpanel: Richpanel
) -> None:
    helpdesk = make(richpanel_timeout=0.2)
    richpanel.lose_reply(sent=False)
    message = helpdesk.send(WHERE)
    helpdesk.take(message)
    helpdesk.s.ledger.resolve("act:rp_reply:c-1:m-1", NotHappened())
    helpdesk.s.ledger.forget(message.key)
    assert helpdesk.take(message).result.replied == "ask_order_number"
    assert len(richpanel.replies) == 1


def test_a_worker_that_dies_while_a_reply_is_under_way_leaves_it_to_a_person(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = helpdesk.send(WHERE)
    with monkeypatch.context() as broken:
        broken.setattr(
            helpdesk.app._actor, "_audit", None
        )  # as if it died after the effect and before the record
        broken.setattr(helpdesk.app, "_routing", lambda *_: [])
        assert isinstance(helpdesk.take(message).error, AttributeError)
    assert len(richpanel.replies) == 1
    clock.advance(31)
    assert helpdesk.take(message).result.refused.startswith("nobody knows")
    assert len(richpanel.replies) == 1
    assert [result for kind, result in helpdesk.audit() if kind == "auto_reply"] == [
        "fail: nobody knows whether it was sent: settle it under its key"
    ]


# The audit


@pytest.mark.seed("R3")
def test_the_audit_tells_each_action_with_its_key_and_result(helpdesk: Desk) -> None:
    helpdesk.handle("I want a refund")
    entries = helpdesk.s.journal.on(SUPPORT_AUDIT).list("c-1").entries
    assert [(entry.id, entry.key) for entry in entries] == [
        (f"2023-11-14T22:13:20.000Z#{key}", key)
        for key in ("act:rp_assign:c-1:returns:m-1", "act:rp_tag:c-1:intent-returns:m-1")
    ]
    assert entries[0].body == {
        "action_type": "route",
        "action_payload_redacted": '{"to":"returns","intent":"returns","confidence":0.9,"risk_flags":[]}',
        "result": "success",
    }


@pytest.mark.seed("R3")
def test_an_action_and_its_entry_are_one_write(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that dies before it leaves neither; the next one does both."""
    message = helpdesk.send("I want a refund")
    with monkeypatch.context() as broken:
        broken.setattr("semel.state.transaction.Transaction.__exit__", lambda *_: 1 / 0)
        assert isinstance(helpdesk.take(message).error, ZeroDivisionError)
    assert helpdesk.audit() == []
    clock.advance(31)
    assert helpdesk.take(message).verdict is Verdict.DONE
    assert helpdesk.audit() == [("route", "success"), ("tag", "success")]


# Ends


@pytest.mark.seed("R11")
def test_without_an_audit_nothing_is_told_to_it_and_everything_else_is_done(
    make: Make, clock: FakeClock, richpanel: Richpanel
) -> None:
    store = Faulty(MemoryStore(clock))
    helpdesk = make(semel.Semel(store, clock=clock, secret=b"of the tests"), audit=False)
    helpdesk.handle(f"Where is my order #{ORDER}?")
    richpanel.fail(next=9, status=503)
    assert helpdesk.take(helpdesk.send("Where is my order?", "m-2")).verdict is Verdict.FAILED
    assert len(richpanel.replies) == 1
    assert helpdesk.state()["last_intent"] == "order_status"
    site = FastAPI()
    site.include_router(router(helpdesk.app))
    with TestClient(site) as client:
        answer = client.get("/conversations/c-1/audit")
        assert (answer.status_code, "audit is false" in answer.json()["detail"]) == (404, True)
        assert client.get("/conversations/c-1").status_code == 200
    asked = {table.name for command in store.seen for table in tables_of(command)}
    assert asked == {"ledger", "documents", "support-state"}


@pytest.mark.seed("R6")
def test_everything_ends(make: Make, clock: FakeClock) -> None:
    helpdesk = make(events_ttl=40 * DAY, state_ttl=50 * DAY, audit_ttl=20 * DAY)
    helpdesk.handle(f"Where is my order #{ORDER}?")
    clock.advance(20 * DAY + 1)
    assert helpdesk.audit() == []
    clock.advance(20 * DAY)
    assert helpdesk.keys() == []
    assert helpdesk.state() != {}
    clock.advance(10 * DAY)
    assert helpdesk.state() == {}


# What is personal


@pytest.mark.seed("R7")
def test_an_excerpt_is_kept_only_if_asked_for_and_redacted(make: Make) -> None:
    text = (
        f"I want a refund for order {ORDER}, write to {EMAIL} or call {PHONE}, parcel {TRACKING} " + "x" * 100
    )
    quiet, told = make(), make(excerpt=True)
    quiet.handle(text, "m-1", "c-1")
    told.handle(text, "m-2", "c-2")
    payloads = {
        conversation: [
            entry.body["action_payload_redacted"]
            for entry in told.s.journal.on(SUPPORT_AUDIT).list(conversation).entries
            if entry.body["action_type"] == "route"
        ]
        for conversation in ("c-1", "c-2")
    }
    assert "excerpt" not in payloads["c-1"][0]
    excerpt = json.loads(payloads["c-2"][0])["excerpt"]
    assert len(excerpt) <= 80
    assert excerpt.startswith("I want a refund for order ***7654, write to ***@*** or call ***-***-4567")


# Without an account


def test_without_an_account_actions_go_to_the_outbox(make: Make, richpanel: Richpanel) -> None:
    helpdesk = make(richpanel_key="")
    message = helpdesk.send(f"Where is my order #{ORDER}?")
    for _ in range(2):
        helpdesk.take(message)
    entries = [entry.body for entry in helpdesk.s.journal.list("outbox:support").entries]
    assert entries == [
        {"action": "tag", "conversation": "c-1", "to": "intent-order_status", "text": ""},
        {"action": "route", "conversation": "c-1", "to": "orders", "text": ""},
        {
            "action": "auto_reply",
            "conversation": "c-1",
            "to": "order_status",
            "text": "Your order ending in 7654 has been shipped.",
        },
    ]
    assert richpanel.received == []


# In order


@pytest.mark.seed("R10")
def test_a_conversation_is_handled_in_order_by_several_workers_without_a_queue(tmp_path: Any) -> None:
    order: dict[str, list[int]] = {f"c-{n}": [] for n in range(3)}
    left, lock, done = 3 * 8, threading.Lock(), threading.Event()
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    with semel.connect(url, secret=b"of the tests") as s:
        inbox = open_inbox(s, "support", shared=True)
        app = Support(s, inbox, Settings(webhook_token=TOKEN))

        def handle(message: Message) -> Any:
            nonlocal left
            handled = app.handle(message)
            with lock:
                order[message.group or ""].append(int(message.key.rpartition("-")[2]))
                left -= 1
            if not left:
                done.set()
            return handled

        for number in range(8):
            for conversation in order:
                body = {"conversation_id": conversation, "message_id": f"m-{number}", "text": "thank you"}
                headers = {"Authorization": f"Bearer {TOKEN}"}
                assert app.hooks[PATH].receive(headers, json.dumps(body).encode()).status == 200
        workers = [inbox.worker(handle, workers=2, **app.worker_options) for _ in range(2)]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        in_time = done.wait(30)
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()
        app.close()
    assert in_time
    assert order == {conversation: list(range(8)) for conversation in order}


# Settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"webhook_token": ""}, "webhook_token"),
        ({"webhook_token": TOKEN, "decide": "nothing"}, "decide"),
        ({"webhook_token": TOKEN, "decide": "semel.apps.support.rules:nothing"}, "decide"),
        ({"webhook_token": TOKEN, "lookup": "no.such.module:function"}, "lookup"),
        ({"webhook_token": TOKEN, "shopify_url": "https://shop.example"}, "shopify_token"),
        ({"webhook_token": TOKEN, "flow_ttl": 91 * DAY}, "flow_ttl"),
        ({"webhook_token": TOKEN, "templates": {"order_status": "{name}"}}, "templates.order_status"),
        ({"webhook_token": TOKEN, "templates": {"order_status": "{order"}}, "templates.order_status"),
        ({"webhook_token": TOKEN, "templates": {"order_status": "{order:d}"}}, "templates.order_status"),
        ({"webhook_token": TOKEN, "richpanel_url": ""}, "richpanel_url"),
        ({"webhook_token": TOKEN, "richpanel_url": "api.richpanel.com"}, "richpanel_url"),
        ({"webhook_token": TOKEN, "richpanel_key": "key\n"}, "richpanel_key"),
        ({"webhook_token": TOKEN, "shopify_url": "https://", "shopify_token": "y"}, "shopify_url"),
        ({"webhook_token": TOKEN, "shopify_url": "https://x:port", "shopify_token": "y"}, "shopify_url"),
    ],
)
def test_a_setting_that_cannot_work_is_named(s: semel.Semel, settings: dict[str, Any], named: str) -> None:
    with (
        pytest.raises(InvalidOption, match=rf"^apps\.support\.{named}: "),
        closing(Support(s, cast("Inbox", Letters()), Settings(**settings))) as app,
    ):
        assert app.hooks


def test_settings_show_no_secret() -> None:
    assert TOKEN not in repr(Settings(webhook_token=TOKEN, richpanel_key=TOKEN, shopify_token=TOKEN))


def test_names_of_tags_and_teams_may_be_those_of_the_account(make: Make, richpanel: Richpanel) -> None:
    helpdesk = make(tag_ids={"intent-returns": "tag-7"}, assignees={"returns": "user-9"})
    helpdesk.handle("I want a refund")
    assert richpanel.tags == [("c-1", "tag-7")]
    assert richpanel.assigned == [("c-1", "user-9")]


# To be read


def test_the_state_and_the_audit_are_read_over_http(helpdesk: Desk) -> None:
    site = FastAPI()
    site.include_router(router(helpdesk.app))
    helpdesk.handle("This is a scam. " + WHERE)
    with TestClient(site) as client:
        state = client.get("/conversations/c-1").json()
        first = client.get("/conversations/c-1/audit", params={"limit": 1}).json()
        rest = client.get("/conversations/c-1/audit", params={"after": first["after"]}).json()
        assert client.get("/conversations/c-2").status_code == 404
        assert client.get("/conversations/c-2/audit").json() == {"actions": [], "after": None}
    assert (state["conversation_id"], state["version"]) == ("c-1", 1)
    assert (state["risk_flags"], state["last_routed_team"]) == (["fraud_suspected"], "disputes")
    assert [one["action_type"] for one in first["actions"] + rest["actions"]] == ["route", "tag"]
    assert first["actions"][0] == {
        "ts_action_id": "2023-11-14T22:13:20.000Z#act:rp_assign:c-1:disputes:m-1",
        "action_type": "route",
        "action_payload": {
            "to": "disputes",
            "intent": "dispute",
            "confidence": 0.95,
            "risk_flags": ["fraud_suspected"],
        },
        "idempotency_key": "act:rp_assign:c-1:disputes:m-1",
        "result": "success",
    }


# The stand-in itself


@pytest.mark.seed("R9")
def test_more_requests_than_richpanel_takes_wait_for_their_time(make: Make, richpanel: Richpanel) -> None:
    """50 in 30 seconds: the next is told to come back, and what it asks for is not lost."""
    helpdesk = make()
    for number in range(25):
        helpdesk.handle("I want a refund", f"m-{number}")
    taken = helpdesk.take(helpdesk.send("I want a refund", "m-25"))
    assert taken.verdict is Verdict.FAILED
    assert taken.retry_after is not None
    assert 0 < taken.retry_after <= 30
    assert len(richpanel.tags) == len(richpanel.assigned) == 25


def test_a_switch_that_is_turned_while_the_message_is_routed_stops_the_reply(
    helpdesk: Desk, richpanel: Richpanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    do = helpdesk.app._helpdesk.do

    def turned_meanwhile(action: Any, key: str) -> None:
        do(action, key)
        helpdesk.s.switches.turn("safe_mode", on=True)

    monkeypatch.setattr(helpdesk.app._helpdesk, "do", turned_meanwhile)
    handled = helpdesk.handle(WHERE)
    assert (handled.replied, handled.refused) == (None, "safe_mode is on")
    assert richpanel.replies == []


def test_a_reply_in_doubt_stays_in_doubt_though_a_switch_is_turned(
    helpdesk: Desk, richpanel: Richpanel, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker died while it sent it: that the switch has stopped it would not be true."""
    do = helpdesk.app._helpdesk.do

    def die(action: Any, key: str) -> None:
        do(action, key)
        if action.kind == "auto_reply":
            raise KeyboardInterrupt

    message = helpdesk.send(WHERE)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(helpdesk.app._helpdesk, "do", die)
        helpdesk.take(message)
    helpdesk.s.switches.turn("safe_mode", on=True)
    clock.advance(60)
    handled = helpdesk.take(message).result
    assert handled.refused.startswith("nobody knows whether it was sent")
    assert handled.team == "support"
    assert len(richpanel.replies) == 1


def invents(_ticket: Ticket, _state: Conversation) -> Decision:
    return Decision(intent="other", team="orders", confidence=1.0, reply="never_written")


def test_a_reply_that_nobody_has_written_is_told_and_the_message_is_routed(
    make: Make, richpanel: Richpanel
) -> None:
    """Also where the settings have changed since the first attempt has planned it."""
    helpdesk = make(decide=f"{__name__}:invents")
    handled = helpdesk.handle(WHERE)
    assert (handled.replied, handled.refused) == (None, "there is no template never_written")
    assert ("auto_reply", "fail: there is no template never_written") in helpdesk.audit()
    assert (richpanel.replies, richpanel.assigned) == ([], [("c-1", "orders")])


def quotes(ticket: Ticket, _state: Conversation) -> Decision:
    raise ValueError(f"cannot make sense of {ticket.text!r}")


def finds(number: str, email: str) -> Order | None:
    raise LookupError(f"no order {number} of {email}")


@pytest.mark.seed("R7")
@pytest.mark.parametrize("own", [{"decide": f"{__name__}:quotes"}, {"lookup": f"{__name__}:finds"}])
def test_what_a_function_of_ones_own_quotes_is_neither_kept_nor_logged(
    make: Make, own: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    helpdesk = make(**own)
    taken = helpdesk.take(helpdesk.send("Where is my order #9087654? The blue sofa is for granny"))
    assert taken.verdict is Verdict.FAILED
    told = [str(taken.error), *map(str, (vars(one) for one in caplog.records))]
    told += [str(record) for record in helpdesk.s.ledger.list().records]
    told += [str(entry) for entry in helpdesk.s.journal.on(SUPPORT_AUDIT).list("c-1").entries]
    for planted in ("granny", "9087654", EMAIL):
        assert not [one for one in told if planted in one]
    assert taken.error is not None
    assert taken.error.__suppress_context__
    assert ("ValueError" in str(taken.error)) or ("LookupError" in str(taken.error))


ODD = {
    "half of a character": {"text": "Where is my order? \ud83d"},
    "a time of another age": {"received_at": "0001-01-01T00:00:00+14:00"},
    "a time in no calendar": {"received_at": 10**17},
    "a number without end": {"received_at": 10**400, "created_at": -(10**400)},
    "not a number": {"received_at": float("nan"), "created_at": float("inf")},
    "numbers as texts": {"message_id": "17", "created_at": "1700000000"},
    "a long text": {"text": WHERE + " please" * 70_000},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_genuine_message_is_handled_whatever_is_odd_about_it(
    helpdesk: Desk, richpanel: Richpanel, odd: dict[str, Any]
) -> None:
    payload = {"conversation_id": "c-1", "message_id": "m-1", "text": WHERE} | odd
    assert helpdesk.deliver(payload)["accepted"] == 1
    (message,) = helpdesk.inbox.messages
    json.dumps(message.body).encode()
    assert helpdesk.take(message).verdict is Verdict.DONE
    assert [team for _, team in richpanel.assigned] == ["orders"]


@pytest.mark.parametrize("word", ["true", "True", True])
def test_what_a_template_says_of_an_operator_counts_as_a_text_too(helpdesk: Desk, word: Any) -> None:
    """Taken for a customer's, our own replies would be answered."""
    answer = helpdesk.deliver(
        {"conversation_id": "c-1", "message_id": "m-1", "text": WHERE, "isOperator": word}
    )
    assert (answer["accepted"], answer["ignored"]) == (0, 1)
