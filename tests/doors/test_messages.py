"""Messages of any queue: what became of each delivery, and so how to settle it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import semel
from semel.doors.queues.messages import BEHIND, DeliveryResult, Handler, Verdict
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty

Message = dict[str, Any]
ONE: Message = {"id": "m1", "body": "pay"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def events() -> list[semel.Event]:
    return []


@pytest.fixture
def store(clock: FakeClock) -> Faulty:
    return Faulty(MemoryStore(clock))


@pytest.fixture
def s(store: Faulty, clock: FakeClock, events: list[semel.Event]) -> Iterator[semel.Semel]:
    with semel.Semel(store, clock=clock) as ledger:
        ledger.events.listen(events.append)
        yield ledger


class Work:
    """A handler that does as it is told, and notes what it was given."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.seen: list[Any] = []

    def __call__(self, message: Message) -> Any:
        self.seen.append(message["id"])
        turn = self.turns.pop(0) if self.turns else "done"
        if isinstance(turn, BaseException):
            raise turn
        return turn() if callable(turn) else turn

    async def later(self, message: Message) -> Any:
        await asyncio.sleep(0)
        return self(message)


def handling(s: semel.Semel, work: Any, **options: Any) -> Handler[Message]:
    options = {"key": lambda message: message["id"], "fingerprint": lambda message: message["body"]} | options
    return Handler(s, work, door="queue", **options)


class Both:
    """The same handler, sync and async."""

    def __init__(self, s: semel.Semel, work: Work, is_async: bool, **options: Any) -> None:
        self.handler = handling(s, work.later if is_async else work, **options)
        self._is_async = is_async

    def take(self, message: Message = ONE) -> DeliveryResult:
        if self._is_async:
            return asyncio.run(self.handler.atake(message))
        return self.handler.take(message)


@pytest.fixture(params=[False, True], ids=["def", "async def"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def verdicts(both: Both, times: int = 2) -> list[str]:
    return [both.take().verdict.value for _ in range(times)]


def test_a_message_is_handled_once_and_its_copies_are_settled(s: semel.Semel, is_async: bool) -> None:
    work = Work({"paid": 1})
    both = Both(s, work, is_async)
    first, again = both.take(), both.take()
    assert first == DeliveryResult(Verdict.DONE, {"paid": 1})
    assert again == DeliveryResult(Verdict.DUPLICATE, {"paid": 1})
    assert first.settled
    assert again.settled
    assert not first.returns
    assert work.seen == ["m1"]


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}], ids=repr)
def test_nothing_is_a_result_too(s: semel.Semel, is_async: bool, result: Any) -> None:
    both = Both(s, Work(result), is_async)
    assert [both.take().result for _ in range(2)] == [result, result]


def test_a_kept_doubt_about_something_else_is_a_failure_and_blocks_nobody(
    s: semel.Semel, is_async: bool
) -> None:
    doubt = semel.OutcomeUnknown("reply:1", 1)
    both = Both(s, Work(doubt), is_async, on_error={semel.OutcomeUnknown: "keep"})
    assert verdicts(both) == ["dead", "dead"]


def test_an_error_is_told_and_the_next_delivery_runs(s: semel.Semel, is_async: bool) -> None:
    error = ValueError("no")
    both = Both(s, Work(error), is_async)
    taken = both.take()
    assert (taken.verdict, taken.error, taken.returns, taken.settled) == (Verdict.FAILED, error, True, False)
    assert both.take().verdict is Verdict.DONE


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()], ids=repr)
def test_an_interruption_is_raised_and_leaves_no_key_locked(
    s: semel.Semel, is_async: bool, error: BaseException
) -> None:
    both = Both(s, Work(error), is_async)
    with pytest.raises(type(error)):
        both.take()
    assert both.take().verdict is Verdict.DONE


@pytest.mark.parametrize("on_error", ["release", "keep", "doubt"])
def test_waiting_for_its_turn_is_no_attempt(s: semel.Semel, is_async: bool, on_error: Any) -> None:
    """However often it has to wait, whatever the policy for errors: its first attempt is still before it."""
    laters = [semel.Later(7.0, "the limits of the bank") for _ in range(9)]
    both = Both(s, Work(*laters, "paid"), is_async, on_error=on_error, max_attempts=1, on_lapsed="hold")
    taken = both.take()
    assert (taken.verdict, taken.retry_after, taken.returns) == (Verdict.LATER, 7.0, True)
    record = s.ledger.get("m1")
    assert record is not None
    assert (record.status, record.attempt) == (semel.Status.RELEASED, 0)
    assert verdicts(both, 9) == ["later"] * 8 + ["done"]
    record = s.ledger.get("m1")
    assert record is not None
    assert record.attempt == 1


def test_an_attempt_counts_though_others_had_to_wait(s: semel.Semel, is_async: bool) -> None:
    work = Work(semel.Later(1), ValueError("no"), semel.Later(1), ValueError("no"))
    both = Both(s, work, is_async, max_attempts=2)
    assert verdicts(both, 5) == ["later", "failed", "later", "dead", "dead"]


def test_after_its_last_attempt_a_message_is_dead(s: semel.Semel, is_async: bool) -> None:
    both = Both(s, Work(ValueError(), ValueError()), is_async, max_attempts=2)
    assert verdicts(both, 3) == ["failed", "dead", "dead"]


def test_an_error_that_is_kept_makes_a_message_dead(s: semel.Semel, is_async: bool) -> None:
    both = Both(s, Work(LookupError("no such order")), is_async, on_error={LookupError: "keep"})
    assert verdicts(both) == ["dead", "dead"]


def test_another_payload_under_the_same_key_is_dead(s: semel.Semel, is_async: bool) -> None:
    both = Both(s, Work(), is_async)
    both.take()
    taken = both.take({**ONE, "body": "refund"})
    assert taken.verdict is Verdict.DEAD
    assert isinstance(taken.error, semel.PayloadChanged)
    assert not taken.returns
    assert not taken.settled
    unchecked = Both(s, Work(), is_async, fingerprint=None)
    assert unchecked.take({**ONE, "body": "refund"}).verdict is Verdict.DUPLICATE


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": lambda message: message["nothing"]},
        {"key": lambda _message: ""},
        {"key": lambda _message: None},
        {"key": lambda _message: "x" * 2000},
        {"key": lambda _message: "a\x00b"},
        {"fingerprint": lambda message: message["nothing"]},
        {"fingerprint": lambda _message: object()},
    ],
    ids=["no such field", "empty", "none", "long", "unprintable", "no such payload", "no canonical form"],
)
def test_a_message_without_a_name_is_dead_and_is_not_handled(
    s: semel.Semel, is_async: bool, wrong: dict[str, Any]
) -> None:
    work = Work()
    taken = Both(s, work, is_async, **wrong).take()
    assert taken.verdict is Verdict.DEAD
    assert isinstance(taken.error, Exception)
    assert work.seen == []


def test_what_is_turned_away_is_told_without_its_words(s: semel.Semel, events: list[semel.Event]) -> None:
    def secret(_message: Message) -> str:
        raise ValueError("card 4111 1111 1111 1111")

    handling(s, Work(), key=secret).take(ONE)
    assert [(event.what, event.door, event.detail) for event in events] == [
        (semel.What.REFUSED, "queue", "a message without a key: ValueError")
    ]


def test_what_another_worker_is_busy_with_comes_again(
    s: semel.Semel, clock: FakeClock, is_async: bool
) -> None:
    both = Both(s, Work(), is_async)
    claim = s.ledger.claim("m1", fingerprint=s.fingerprint("pay"))
    clock.advance(20)
    taken = both.take()
    assert (taken.verdict, taken.retry_after, taken.returns) == (Verdict.BUSY, 10.0, True)
    clock.advance(11)
    assert both.take().verdict is Verdict.DONE
    assert isinstance(claim, semel.Claimed)


def test_what_somebody_has_to_settle_comes_again(s: semel.Semel, clock: FakeClock, is_async: bool) -> None:
    work = Work()
    both = Both(s, work, is_async, on_lapsed="hold")
    s.ledger.claim("m1", fingerprint=s.fingerprint("pay"))
    clock.advance(31)
    assert verdicts(both) == ["busy", "busy"]
    s.ledger.resolve("m1", semel.Happened("by hand"))
    assert both.take() == DeliveryResult(Verdict.DUPLICATE, "by hand")
    assert work.seen == []


def test_what_is_done_and_cannot_be_shown_again_is_done(s: semel.Semel, is_async: bool) -> None:
    work = Work(object())
    both = Both(s, work, is_async)
    assert verdicts(both) == ["done", "duplicate"]
    assert isinstance(both.take().error, semel.ResultNotKept)
    assert both.take().settled
    assert len(work.seen) == 1


def test_without_its_store_a_message_comes_again(s: semel.Semel, store: Faulty, is_async: bool) -> None:
    work = Work()
    both = Both(s, work, is_async)
    store.refuse()
    assert both.take().verdict is Verdict.FAILED
    store.lose_request(3)
    assert isinstance(both.take().error, semel.StoreOutcomeUnknown)
    assert work.seen == []
    assert both.take().verdict is Verdict.DONE


def test_what_could_not_be_written_down_is_not_acknowledged(
    s: semel.Semel, store: Faulty, clock: FakeClock, is_async: bool
) -> None:
    work = Work(lambda: store.refuse(1000), lambda: store.lose_reply(1000))
    both = Both(s, work, is_async)
    assert both.take().verdict is Verdict.FAILED
    store.recover()
    clock.advance(31)
    assert both.take().verdict is Verdict.FAILED
    store.recover()
    assert both.take().verdict is Verdict.DUPLICATE


def test_a_zombie_does_not_acknowledge(s: semel.Semel, clock: FakeClock, is_async: bool) -> None:
    def taken_over() -> None:
        clock.advance(31)
        assert isinstance(s.ledger.claim("m1", fingerprint=s.fingerprint("pay")), semel.Claimed)

    taken = Both(s, Work(taken_over), is_async, heartbeat=False).take()
    assert taken.verdict is Verdict.FAILED
    assert isinstance(taken.error, semel.ClaimLost)


def test_a_worker_that_stops_begins_nothing(s: semel.Semel, is_async: bool) -> None:
    both = Both(s, Work(), is_async)
    both.take()
    s.drain()
    assert both.take().verdict is Verdict.DUPLICATE
    taken = both.take({**ONE, "id": "m2"})
    assert (taken.verdict, type(taken.error)) == (Verdict.FAILED, semel.ShuttingDown)


def test_a_message_inside_its_own_handling_comes_again(s: semel.Semel) -> None:
    inner: list[DeliveryResult] = []

    def take_again(message: Message) -> None:
        inner.append(handler.take(message))

    handler = handling(s, take_again)
    assert handler.take(ONE).verdict is Verdict.DONE
    assert (inner[0].verdict, type(inner[0].error)) == (Verdict.FAILED, semel.Reentered)


def test_async_work_handed_to_the_sync_way_is_refused_and_not_taken_for_done(s: semel.Semel) -> None:
    taken = handling(s, Work().later).take(ONE)
    assert (taken.verdict, type(taken.error)) == (Verdict.FAILED, semel.LazyResult)


@pytest.mark.parametrize("after", [7, 2.5])
def test_an_error_may_say_when_to_come_again(s: semel.Semel, after: float) -> None:
    error = ValueError("slow down")
    error.retry_after = after  # type: ignore[attr-defined]
    assert handling(s, Work(error)).take(ONE).retry_after == after
    error.retry_after = "tomorrow"  # type: ignore[attr-defined]
    assert handling(s, Work(error)).take(ONE).retry_after is None


def test_nobody_waits_for_another_worker_and_nothing_is_skipped(s: semel.Semel) -> None:
    assert handling(s, Work()).policy.on_busy == "raise"
    assert handling(s, Work(), on_busy="wait").policy.on_busy == "wait"
    with pytest.raises(semel.InvalidOption, match="skip"):
        handling(s, Work(), on_busy="skip")


# Several


def message(id: str, group: str | None = None) -> Message:
    return {"id": id, "body": id, "group": group}


def test_a_group_stops_at_its_first_that_has_to_come_again(s: semel.Semel) -> None:
    work = Work()
    handler = handling(s, lambda one: work(one) if one["id"] != "a2" else 1 / 0)
    batch = [message(id, id[0]) for id in ("a1", "b1", "a2", "a3", "b2", "a4")]
    taken = {one["id"]: taken for one, taken in handler.take_all(batch, lambda one: one["group"])}
    assert {id: one.verdict.value for id, one in taken.items()} == {
        "a1": "done",
        "b1": "done",
        "a2": "failed",
        "a3": "behind",
        "b2": "done",
        "a4": "behind",
    }
    assert taken["a3"] is BEHIND
    assert BEHIND.returns
    assert not BEHIND.settled
    assert work.seen == ["a1", "b1", "b2"]


def test_messages_without_a_group_do_not_hold_each_other_up(s: semel.Semel) -> None:
    handler = handling(s, Work(ValueError(), ValueError()))
    batch = [message(id) for id in "abc"]
    assert [taken.verdict.value for _, taken in handler.take_all(batch)] == ["failed", "failed", "done"]


def test_a_dead_message_does_not_hold_up_its_group(s: semel.Semel) -> None:
    handler = handling(s, Work(ValueError()), max_attempts=1)
    batch = [message(id, "g") for id in "ab"]
    taken = [one.verdict.value for _, one in handler.take_all(batch, lambda one: one["group"])]
    assert taken == ["dead", "done"]


def test_a_batch_is_taken_one_by_one_as_it_is_asked_for(s: semel.Semel) -> None:
    work = Work()
    batch = handling(s, work).take_all(message(id) for id in "abc")
    next(batch)
    assert work.seen == ["a"]
