"""What work notes about itself, and work that cannot tell whether its effect happened."""

from typing import Any

import pytest

import semel
from semel.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s(clock: FakeClock) -> semel.Semel:
    return semel.connect("memory:", clock=clock)


def test_what_work_notes_is_kept_in_its_record(s: semel.Semel) -> None:
    @s.once("evt:{id}")
    def handle(id: str) -> str:
        semel.current_run().note(mode="route_only")
        semel.current_run().note(safe_mode=True)
        return id

    assert handle("1") == "1"
    assert s.ledger.get("evt:1").details == {"mode": "route_only", "safe_mode": True}


def test_work_that_failed_for_good_keeps_its_notes_and_a_retry_begins_without(s: semel.Semel) -> None:
    @s.once("evt:{id}", max_attempts=2)
    def handle(id: str) -> str:
        if semel.current_run().attempt == 1:
            semel.current_run().note(first=True)
        semel.current_run().note(attempt=semel.current_run().attempt)
        raise ValueError(id)

    for _ in range(2):
        with pytest.raises(ValueError, match="1"):
            handle("1")
    assert s.ledger.get("evt:1").details == {"attempt": 2}


def test_notes_go_with_a_completion_inside_a_transaction(s: semel.Semel) -> None:
    @s.once("evt:{id}")
    def handle(id: str) -> str:
        run = semel.current_run()
        run.note(intent="order_status")
        with s.transaction() as tx:
            tx.ledger.complete(run, "done")
        return "ignored"

    assert handle("1") == "done"
    assert s.ledger.get("evt:1").details == {"intent": "order_status"}


def test_notes_of_which_two_names_are_one_in_json_are_refused_before_anything_is_kept(s: semel.Semel) -> None:
    twice = {1: "a", "1": "b"}

    @s.once("evt:{id}")
    def handle(id: str) -> str:
        semel.current_run().note(seen=twice)
        return id

    with pytest.raises(semel.UsageError, match="one name in JSON"):
        handle("1")
    assert s.ledger.get("evt:1").status == "RELEASED"
    claim = s.ledger.claim("evt:2")
    assert isinstance(claim, semel.Claimed)
    with pytest.raises(semel.UsageError, match="one name in JSON"):
        s.ledger.complete(claim, "done", details={"seen": twice})
    with pytest.raises(semel.UsageError, match="one name in JSON"):
        s.ledger.fail(claim, ValueError("no"), details={"seen": twice})
    s.ledger.complete(claim, "done", details={"seen": {1: "a"}})


def lost(*_: Any) -> str:
    raise TimeoutError("no answer came")


def test_a_doubtful_error_is_held_where_the_policy_holds(s: semel.Semel) -> None:
    send = s.once("send:{id}", on_error={TimeoutError: "doubt"}, on_lapsed="hold")(_sender(lost))
    with pytest.raises(TimeoutError):
        send("1")
    with pytest.raises(semel.OutcomeUnknown):
        send("1")
    s.ledger.resolve("send:1", semel.Happened("sent"))
    assert send("1") == "sent"


def test_a_doubtful_error_is_asked_about_where_the_policy_asks(s: semel.Semel) -> None:
    asked = []

    def ask(id: str) -> semel.Happened:
        asked.append(id)
        return semel.Happened("found")

    send = s.once("send:{id}", on_error={TimeoutError: "doubt"}, on_lapsed="resolve", resolver=ask)(
        _sender(lost)
    )
    with pytest.raises(TimeoutError):
        send("1")
    assert send("1") == "found"
    assert asked == ["1"]


def test_a_doubtful_error_runs_again_by_default_and_others_are_as_before(s: semel.Semel) -> None:
    tries = []

    def work(id: str) -> str:
        tries.append(semel.current_run().claim.lapsed)
        if len(tries) == 1:
            raise TimeoutError
        if len(tries) == 2:
            raise KeyError(id)
        return id

    send = s.once("send:{id}", on_error={TimeoutError: "doubt", KeyError: "keep"})(_sender(work))
    with pytest.raises(TimeoutError):
        send("1")
    with pytest.raises(KeyError):
        send("1")
    with pytest.raises(KeyError):
        send("1")
    assert tries == [False, True]


def test_the_last_attempt_that_is_in_doubt_is_not_failed(s: semel.Semel) -> None:
    send = s.once("send:{id}", on_error={TimeoutError: "doubt"}, on_lapsed="hold", max_attempts=1)(
        _sender(lost)
    )
    with pytest.raises(TimeoutError):
        send("1")
    with pytest.raises(semel.OutcomeUnknown):
        send("1")


def test_a_word_that_on_error_does_not_know_is_refused(s: semel.Semel) -> None:
    with pytest.raises(semel.InvalidOption, match="keep, release, doubt"):
        s.once("send:{id}", on_error={TimeoutError: "wonder"})  # type: ignore[dict-item]


def _sender(work: Any) -> Any:
    def send(id: str) -> str:
        result: str = work(id)
        return result

    return send
