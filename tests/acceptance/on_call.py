"""A night on call, put into a store: what the pages for people on call ask about."""

import time
from functools import partial
from typing import Any

import pytest

import semel
from semel import Claimed, Ledger
from semel.core import ledger
from semel.doors.inbox import Message
from semel.ops.model import Action
from semel.service.runtime import Runtime
from semel.testing import FakeClock
from tests.acceptance.desk import Desk

PAGES = {
    "answer-on-call-questions.md",
    "run-failures-again.md",
    "see-whether-it-is-well.md",
    "see-whether-it-was-done-twice.md",
    "see-why-a-key-is-stuck.md",
    "stop-everything-now.md",
}
PERSON = "bob@example.com"
AWAY = TimeoutError("the bank did not answer")
FAILURES = {"o-1": AWAY, "o-2": AWAY, "o-3": ValueError("no such account")}


def prepare(desk: Desk, page: str, patch: pytest.MonkeyPatch) -> None:
    """Let the night happen that a page speaks of, half an hour ago; then ann is on call."""
    patch.setenv("LOGNAME", "ann")
    with patch.context() as night:
        clock = FakeClock(time.time() - 2100)
        night.setattr(semel, "connect", partial(semel.connect, clock=clock))
        with desk.runtime() as house:
            happen(house, clock, night)
            if page == "answer-on-call-questions.md":
                released = Action(name="release", key="invoice:o-1", by="eve", why="the bank is back")
                assert house.s.ops.perform(released).changed
    if page == "run-failures-again.md":
        with desk.runtime() as house:
            put_aside(house)


def happen(house: Runtime, clock: FakeClock, patch: pytest.MonkeyPatch) -> None:
    """What two workers did: the first vanished, and the second took over some of its work."""
    patch.setattr(ledger, "worker_name", lambda _, task: f"web-1:4711 {task}")
    claimed(house, "answer:m-7", "desk.answer", subject=PERSON)
    claimed(house, "charge:o-17", "shop.charge", on_lapsed="hold")
    claimed(house, "import:2026-10-25", "shop.load")
    clock.advance(62)
    patch.setattr(ledger, "worker_name", lambda _, task: f"web-2:4712 {task}")
    for message in ("m-7", "m-8"):
        claim = claimed(house, f"answer:{message}", "desk.answer", subject=PERSON)
        clock.advance(1)
        ledger_of(house, "desk.answer").complete(claim, {"text": "Dear Bob, ..."})
    for order, error in FAILURES.items():
        claim = claimed(house, f"invoice:{order}", "shop.invoice")
        clock.advance(10)
        ledger_of(house, "shop.invoice").fail(claim, error)
    claimed(house, "charge:o-18", "shop.charge", lease=3600)


def ledger_of(house: Runtime, function: str) -> Ledger:
    """The ledger, at the hands of a function."""
    return Ledger(house.s.ledger.steps.about(function), house.s.store)


def claimed(house: Runtime, key: str, function: str, **terms: Any) -> Claimed:
    claim = ledger_of(house, function).claim(key, **terms)
    assert isinstance(claim, Claimed)
    return claim


def put_aside(house: Runtime) -> None:
    """Have the desk fail at a message for good."""
    [inbox] = [app.inbox for app in house.apps if app.name == "support"]
    inbox.put(Message("msg:m-9", {"text": "Where is my order?"}, group="conversation:9"))

    def handle(_message: Message) -> None:
        worker.stop()
        raise ConnectionError("the help desk is down")

    worker = inbox.worker(handle, max_attempts=1)
    worker.run()
