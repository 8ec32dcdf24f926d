"""The rules of support: what a message is about, and which number in it is an order's."""

import pytest

from semel.apps.support import Conversation, PendingFlow, Ticket
from semel.apps.support.rules import decide, order_number

ASKED = [
    Conversation(pending_flow=PendingFlow("need_order_number", "2026-01-03T00:00:00Z", n)) for n in (1, 2)
]


def ticket(text: str) -> Ticket:
    return Ticket(conversation="c", message="m", text=text)


@pytest.mark.parametrize(
    ("text", "intent", "team"),
    [
        ("Where is my order?", "order_status", "orders"),
        ("where's my package", "order_status", "orders"),
        ("Can you give me the tracking number?", "order_status", "orders"),
        ("I would like to return the shoes", "returns", "returns"),
        ("REFUND please", "returns", "returns"),
        ("The glass arrived broken", "shipping", "shipping"),
        ("My parcel never arrived", "shipping", "shipping"),
        ("I was charged twice", "billing", "billing"),
        ("Please send me an invoice", "billing", "billing"),
        ("Cancel my order", "cancellation", "orders"),
        ("My bank opened a chargeback", "dispute", "disputes"),
        ("You will hear from my lawyer", "dispute", "disputes"),
        ("This is fraud", "dispute", "disputes"),
        ("Do you sell gift cards?", "other", "support"),
        ("", "other", "support"),
    ],
)
def test_a_message_goes_to_the_team_that_it_is_about(text: str, intent: str, team: str) -> None:
    decision = decide(ticket(text), Conversation())
    assert (decision.intent, decision.team) == (intent, team)


@pytest.mark.parametrize(
    "text", ["I dispute this", "Where is my order? My lawyer asks too", "refund or I sue"]
)
def test_what_is_risky_is_never_answered(text: str) -> None:
    decision = decide(ticket(text), ASKED[0])
    assert decision.reply is None
    assert decision.risk_flags


def test_words_inside_other_words_mean_nothing() -> None:
    for text in ("I have an issue", "pursue", "the discount", "a misreturned value"):
        assert decide(ticket(text), Conversation()).intent == "other", text


def test_a_message_about_several_things_is_less_certain_and_not_answered() -> None:
    decision = decide(ticket("Where is my order? I want to cancel it"), Conversation())
    assert (decision.intent, decision.reply, decision.confidence) == ("cancellation", None, 0.6)


def test_an_order_without_its_number_is_asked_for() -> None:
    decision = decide(ticket("Where is my order?"), Conversation())
    assert (decision.reply, decision.awaits, decision.order) == ("ask_order_number", "need_order_number", "")


def test_an_order_with_its_number_is_looked_up() -> None:
    decision = decide(ticket("Where is my order #10042?"), Conversation())
    assert (decision.reply, decision.awaits, decision.order) == ("order_status", "", "10042")


def test_while_a_number_is_awaited_any_message_may_bring_it() -> None:
    decision = decide(ticket("here you go: 10042"), ASKED[0])
    assert (decision.intent, decision.reply, decision.order) == ("order_status", "order_status", "10042")


def test_it_is_asked_for_twice_and_then_left_to_a_person() -> None:
    replies = [decide(ticket("no idea"), state).reply for state in (Conversation(), *ASKED)]
    assert replies == [None, "ask_order_number_again", None]
    last = decide(ticket("no idea"), ASKED[1])
    assert (last.team, last.awaits) == ("support", "")
    assert "needs-human" in last.tags


def test_a_message_about_something_else_ends_the_waiting() -> None:
    decision = decide(ticket("Forget it, I want a refund"), ASKED[0])
    assert (decision.intent, decision.reply, decision.awaits) == ("returns", None, "")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("order #10042", "10042"),
        ("Order number: A-10042, please", "A-10042"),
        ("my order is 10042", "10042"),
        ("order no. 10042", "10042"),
        ("# 10042", "10042"),
        ("order ORD-10042!", "ORD-10042"),
        ("order", ""),
        ("in order to 10042", ""),
        ("order 12", ""),
        ("order #1004212345678901", ""),
        ("I have 10042 questions", ""),
    ],
)
def test_an_order_number_follows_a_word_or_a_sign(text: str, number: str) -> None:
    assert order_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10042", "10042"),
        ("it's 10042.", "10042"),
        ("10042 or 10043", ""),
        ("+46701234567", ""),
        ("none", ""),
    ],
)
def test_a_bare_number_counts_where_it_is_the_only_one(text: str, number: str) -> None:
    assert order_number(text, bare=True) == number
