"""The drivers: errors go into the steps, and a cancellation never tears a write in two."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

import semel
from semel.core.commands import ABSENT, Applied, Call, Found, Get, Put, Raised, Returned, Steps, Watch
from semel.core.drive import adrive, drive, run_async, run_sync
from semel.tables import LEDGER

PUT = Put(LEDGER, "k", {}, ABSENT)
GET = Get(LEDGER, "k")


class Scripted:
    """A store whose every answer waits for the test's word."""

    overflow: semel.Overflow | None = None

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.carried_out: list[Any] = []

    def execute(self, command: Any) -> Any:
        self.carried_out.append(command)
        return Applied(1.0)

    def at_once(self, command: Any) -> Any:
        return Found(1.0, None) if type(command) is Get else None

    async def aexecute(self, command: Any) -> Any:
        self.reached.set()
        await self.go_on.wait()
        self.carried_out.append(command)
        return Applied(1.0)

    def close(self) -> None:
        pass


def two_writes_and_work(work: Callable[[], Any]) -> Steps[tuple[Any, Any, Any]]:
    first = yield PUT
    done = yield Call(work)
    second = yield PUT
    return first, done, second


def test_the_work_is_done_between_the_writes() -> None:
    store = Scripted()
    first, done, second = drive(two_writes_and_work(lambda: "result"), store)
    assert (first, done, second) == (Applied(1.0), Returned("result"), Applied(1.0))
    assert store.carried_out == [PUT, PUT]


def test_an_error_of_the_work_is_a_value_and_an_error_of_the_store_is_thrown() -> None:
    error = StopIteration("even this one")

    def fails() -> None:
        raise error

    done = drive(two_writes_and_work(fails), Scripted())[1]
    assert done == Raised(error)

    class Down(Scripted):
        def execute(self, command: Any) -> Any:
            raise semel.StoreUnavailable("down")

    def tried() -> Steps[str]:
        try:
            yield PUT
        except semel.StoreUnavailable:
            return "noticed"
        return "missed"

    assert drive(tried(), Down()) == "noticed"


def test_without_work_the_driver_stops_at_the_call() -> None:
    steps = two_writes_and_work(lambda: None)
    store = Scripted()
    assert isinstance(drive(steps, store, work=None), Call)
    assert drive(steps, store, reply=Returned(1)) == (Applied(1.0), Returned(1), Applied(1.0))


async def cancelled_during(steps: Steps[Any], store: Scripted, times: int = 1) -> asyncio.Task[Any]:
    """Cancel while the store is at it, let the store finish, and give the finished task."""
    task = asyncio.ensure_future(adrive(steps, store))
    await store.reached.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    store.go_on.set()
    await asyncio.wait({task})
    return task


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancellation_waits_for_the_write_under_way(times: int) -> None:
    async def main() -> None:
        store = Scripted()

        def steps() -> Steps[Any]:
            return (yield PUT)

        task = await cancelled_during(steps(), store, times)
        assert task.cancelled()
        assert store.carried_out == [PUT]

    asyncio.run(main())


def test_a_cancellation_before_the_work_is_told_to_the_steps_which_may_give_back() -> None:
    async def main() -> None:
        store = Scripted()
        ran = []

        async def work() -> None:
            ran.append(1)

        seen: list[Any] = []

        def steps() -> Steps[Any]:
            yield PUT
            seen.append((yield Call(work)))
            seen.append((yield PUT))

        await cancelled_during(steps(), store)
        assert ran == []
        assert isinstance(seen[0], Raised)
        assert isinstance(seen[0].error, asyncio.CancelledError)
        assert not seen[0].begun
        assert seen[1] == Applied(1.0)

    asyncio.run(main())


def test_a_cancellation_is_not_lost_when_the_write_fails() -> None:
    class Failing(Scripted):
        async def aexecute(self, command: Any) -> Any:
            await super().aexecute(command)
            raise semel.StoreUnavailable("down")

    async def main() -> None:
        def steps() -> Steps[str]:
            try:
                yield PUT
            except semel.StoreUnavailable:
                return "coped"
            return "missed"

        task = await cancelled_during(steps(), Failing())
        assert task.cancelled()

    asyncio.run(main())


def test_a_wait_is_cancelled_at_once() -> None:
    async def main() -> None:
        store = Scripted()

        def steps() -> Steps[Any]:
            return (yield Watch(LEDGER, "k", 1000))

        task = asyncio.ensure_future(adrive(steps(), store))
        await store.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.carried_out == []

    asyncio.run(main())


def test_what_can_be_answered_at_once_makes_no_task() -> None:
    async def main() -> int:
        def steps() -> Steps[Any]:
            for _ in range(3):
                yield GET

        before = len(asyncio.all_tasks())
        await adrive(steps(), Scripted())
        return len(asyncio.all_tasks()) - before

    assert asyncio.run(main()) == 0


@pytest.mark.situation(34)
def test_a_completion_survives_the_cancellation_of_its_caller() -> None:
    """The work is done when the cancellation comes: its result is kept, and the cancellation goes on."""

    async def main() -> None:
        inner = semel.connect("memory:")
        store = Slow(inner.store)
        s = semel.Semel(store)

        @s.once("k")
        async def work() -> str:
            store.slow = True
            return "done"

        task = asyncio.ensure_future(work())
        await store.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await work() == "done"
        record = await s.aio.ledger.get("k")
        assert record is not None
        assert (record.status, record.attempt) == (semel.Status.COMPLETED, 1)

    asyncio.run(main())


class Slow(Scripted):
    """A real store that takes its time once it is told to."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store
        self.slow = False

    def at_once(self, command: Any) -> Any:
        return None if self.slow else self.store.execute(command)

    async def aexecute(self, command: Any) -> Any:
        if self.slow:
            self.slow = False
            await super().aexecute(command)
        return self.store.execute(command)


# Steps of any kind


def two_questions() -> Generator[str, Any, list[Any]]:
    answers = [(yield "first")]
    try:
        answers.append((yield "second"))
    except BaseException as error:  # noqa: BLE001 - whatever the answer raised
        answers.append(error)
    return answers


@pytest.mark.parametrize("raised", [ValueError("no"), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_steps_get_every_answer_and_every_error(way: str, raised: BaseException) -> None:
    def answer(step: str) -> str:
        if step == "second":
            raise raised
        return step.upper()

    async def aanswer(step: str) -> str:
        return answer(step)

    if way == "sync":
        found = run_sync(two_questions(), answer)
    else:
        found = asyncio.run(run_async(two_questions(), aanswer))
    assert found == ["FIRST", raised]
