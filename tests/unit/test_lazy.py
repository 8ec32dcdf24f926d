"""Lazy results: what has not run is not recorded as done."""

import asyncio
import functools
import gc
import itertools
import sqlite3
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

import semel
from semel import errors
from semel.core.codecs import Codec
from semel.doors.inbox import Message, open_inbox
from semel.doors.queues.messages import Handler, Verdict
from semel.testing import FakeClock, Faulty

RAN: list[str] = []


@pytest.fixture(autouse=True)
def ran() -> list[str]:
    RAN.clear()
    return RAN


@pytest.fixture
def s() -> semel.Semel:
    return semel.connect("memory:", clock=FakeClock())


def rows(n: int = 1) -> Iterator[int]:
    RAN.append("rows")
    yield n


async def arows(n: int = 1) -> AsyncIterator[int]:
    RAN.append("arows")
    yield n


async def later(n: int = 1) -> int:
    RAN.append("later")
    return n


@contextmanager
def held(n: int = 1) -> Iterator[int]:
    RAN.append("held")
    yield n


@asynccontextmanager
async def aheld(n: int = 1) -> AsyncIterator[int]:
    RAN.append("aheld")
    yield n


class Yields:
    def __call__(self, n: int = 1) -> Iterator[int]:
        yield n

    def method(self, n: int = 1) -> Iterator[int]:
        yield n

    @contextmanager
    def manager(self, n: int = 1) -> Iterator[int]:
        yield n


def noted(n: int) -> int:
    RAN.append("noted")
    return n


LAZY: dict[str, tuple[Callable[[], Any], str]] = {
    "generator": (rows, "a generator"),
    "generator expression": (lambda: (noted(n) for n in [1]), "a generator"),
    "async generator": (arows, "an async generator"),
    "coroutine": (later, "an awaitable"),
    "context manager": (held, "a context manager"),
    "async context manager": (aheld, "a context manager"),
    "map": (lambda: map(noted, [1]), "an iterator"),
    "filter": (lambda: filter(noted, [1]), "an iterator"),
    "zip": (lambda: zip(map(noted, [1]), [1], strict=True), "an iterator"),
    "enumerate": (lambda: enumerate(map(noted, [1])), "an iterator"),
    "itertools": (lambda: itertools.chain(map(noted, [1])), "an iterator"),
}
every_lazy_result = pytest.mark.parametrize(("make", "named"), LAZY.values(), ids=list(LAZY))


def released(s: semel.Semel, key: str = "k") -> bool:
    record = s.ledger.get(key)
    assert record is not None
    return record.status is semel.Status.RELEASED


@pytest.mark.parametrize(
    "function",
    [
        rows,
        arows,
        held,
        aheld,
        functools.partial(rows, 2),
        functools.partial(functools.partial(arows), 2),
        functools.partial(held, 2),
        Yields(),
        Yields().method,
        Yields().manager,
        functools.partial(Yields()),
    ],
)
def test_a_function_whose_calls_run_nothing_is_refused_when_it_is_decorated(
    s: semel.Semel, function: Callable[..., Any]
) -> None:
    with pytest.raises(semel.InvalidOption, match=r"yields many values|context manager"):
        s.once(key=lambda *_: "k")(function)
    with pytest.raises(semel.InvalidOption, match=r"yields many values|context manager"):
        s.once.call("k", function)
    with pytest.raises(semel.InvalidOption, match=r"yields many values|context manager"):
        Handler(s, function, key=str, door="test")
    assert s.ledger.get("k") is None


def test_a_decorator_may_make_one_value_of_a_generator(s: semel.Semel) -> None:
    def listed(function: Callable[..., Iterator[int]]) -> Callable[..., list[int]]:
        @functools.wraps(function)
        def run(*args: Any) -> list[int]:
            return list(function(*args))

        return run

    assert s.once(key=lambda *_: "k", returns=Any)(listed(rows))(3) == [3]


@every_lazy_result
@pytest.mark.parametrize("options", [{}, {"on_error": "keep"}], ids=str)
def test_a_lazy_result_is_refused_and_its_key_is_released(
    s: semel.Semel, make: Callable[[], Any], named: str, options: Any, ran: list[str]
) -> None:
    @s.once("k", returns=Any, **options)
    def work() -> Any:
        return make()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that nobody awaits is one
        with pytest.raises(semel.LazyResult, match=f"work returned {named}") as refused:
            work()
        gc.collect()
    assert refused.value.returned.startswith(named)
    assert released(s)
    assert ran == []
    # The key is free: a corrected function runs.
    assert s.once.call("k", lambda: 5) == 5


@every_lazy_result
def test_a_lazy_result_of_async_work_is_refused(
    s: semel.Semel, make: Callable[[], Any], named: str, ran: list[str]
) -> None:
    @s.once("k", returns=Any)
    async def work() -> Any:
        return make()

    async def main() -> None:
        with pytest.raises(semel.LazyResult, match=f"work returned {named}"):
            await work()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()
    assert released(s)
    assert ran == []


@every_lazy_result
def test_a_lazy_result_of_a_with_block_is_refused(
    s: semel.Semel, make: Callable[[], Any], named: str, ran: list[str]
) -> None:
    with pytest.raises(semel.LazyResult, match=named), s.once.running("k") as run:
        run.result = make()
    assert released(s)
    assert ran == []


@every_lazy_result
def test_a_claim_is_not_completed_with_a_lazy_result(
    s: semel.Semel, make: Callable[[], Any], named: str, ran: list[str]
) -> None:
    claim = s.ledger.claim("k")
    assert isinstance(claim, semel.Claimed)
    with pytest.raises(semel.LazyResult, match=named):
        s.ledger.complete(claim, make())
    with pytest.raises(semel.LazyResult, match=named):
        s.ledger.complete_many([claim], make())
    with pytest.raises(semel.LazyResult, match=named), s.transaction() as tx:
        tx.ledger.complete(claim, make())
    assert ran == []
    # Nothing was written: the claim is still held.
    s.ledger.complete(claim, 5)
    record = s.ledger.get("k")
    assert record is not None
    assert s.ledger.result(record) == 5


def test_a_handler_that_returns_a_lazy_result_has_not_handled_its_message(s: semel.Semel) -> None:
    handler: Handler[str] = Handler(s, lambda _: map(noted, [1]), key=str, door="test")
    taken = handler.take("k")
    assert taken.verdict is Verdict.FAILED
    assert isinstance(taken.error, semel.LazyResult)
    assert released(s)


def test_a_lazy_result_counts_as_an_attempt_so_that_a_message_is_not_retried_for_ever(s: semel.Semel) -> None:
    inbox = open_inbox(s, "jobs")
    inbox.put(Message("m", 1))
    handler: Handler[Message] = Handler(
        s, lambda _: map(noted, [1]), key=lambda message: message.key, door="test", max_attempts=2
    )
    verdicts = [handler.take(Message("m", 1)).verdict for _ in range(2)]
    assert verdicts == [Verdict.FAILED, Verdict.DEAD]


def test_errors_that_leave_the_outcome_in_doubt_do_so_for_a_lazy_result(s: semel.Semel) -> None:
    @s.once("k", on_error="doubt", on_lapsed="hold", returns=Any)
    def work() -> Any:
        RAN.append("an effect before the result")
        return map(noted, [1])

    with pytest.raises(semel.LazyResult):
        work()
    with pytest.raises(semel.OutcomeUnknown):
        work()
    assert RAN == ["an effect before the result"]


def test_a_lazy_result_is_refused_where_work_runs_unprotected() -> None:
    store = Faulty(semel.connect("memory:").store)
    s = semel.connect(store=store)
    store.refuse(10)

    @s.once("k", on_store_error="open", returns=Any)
    def work() -> Any:
        return rows()

    with pytest.raises(semel.LazyResult, match="a generator"):
        work()


def test_a_database_cursor_is_no_lazy_result(s: semel.Semel) -> None:
    """Its statement was executed, so the work is done; only its result cannot be stored."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (n)")

    @s.once("k", returns=Any)
    def insert() -> Any:
        return connection.execute("INSERT INTO t VALUES (1)")

    insert()
    with pytest.raises(errors.ResultNotKept, match="not-serialisable"):
        insert()
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_an_object_with_an_async_call_is_async_work(s: semel.Semel) -> None:
    class Charge:
        async def __call__(self, order: int) -> int:
            RAN.append("charged")
            return order

    charge: Any = s.once(key=lambda order: f"charge:{order}")(Charge())

    async def main() -> list[int]:
        return [await charge(1), await charge(1)]

    assert asyncio.run(main()) == [1, 1]
    assert RAN == ["charged"]


def test_a_codec_alone_still_tells_that_a_message_cannot_be_kept(s: semel.Semel) -> None:
    assert Codec().encode(rows(), "k").problem is not None
    with pytest.raises(semel.MessageRefused):
        open_inbox(s, "jobs").put(Message("m", rows()))
