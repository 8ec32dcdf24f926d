"""Leases are renewed while work runs, and lost leases are noticed."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest

import semel
from semel.core import runtime
from semel.core.drive import drive
from semel.core.heartbeat import WORKERS, Heartbeats, beat
from semel.core.ledger import LedgerSteps
from semel.core.realm import Realm
from semel.core.running import Run
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty

SHORT = 0.15


def running(clock: FakeClock, store: Any, lease: float = 30.0) -> tuple[LedgerSteps, Run]:
    ledger = LedgerSteps(Realm())
    sent = clock.monotonic()
    claim = drive(ledger.claim("k", lease=lease), store)
    assert isinstance(claim, semel.Claimed)
    return ledger, Run(claim, sent, clock)


@pytest.mark.situation(12)
def test_a_beat_moves_the_deadline_counted_from_before_it_was_sent() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    ledger, run = running(clock, store)
    first = run.deadline
    clock.advance(10)
    drive(beat(ledger, run, clock), store)
    assert run.deadline == first + 10
    assert run.due == clock.monotonic() + 10
    record = drive(ledger.get("k"), store)
    assert record is not None
    assert record.lease_until == clock.now() + 30


def test_a_beat_that_finds_another_owner_loses_the_run() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    ledger, run = running(clock, store)
    clock.advance(31)
    assert isinstance(drive(ledger.claim("k"), store), semel.Claimed)
    drive(beat(ledger, run, clock), store)
    assert run.lost


def test_a_beat_that_fails_is_tried_again_soon_and_the_deadline_stands() -> None:
    clock = FakeClock()
    store = Faulty(MemoryStore(clock))
    ledger, run = running(clock, store)
    deadline = run.deadline
    clock.advance(10)
    store.refuse()
    drive(beat(ledger, run, clock), store)
    assert not run.lost
    assert run.deadline == deadline
    assert run.due == clock.monotonic() + 3
    clock.advance(20)
    assert run.lost


def test_sync_work_longer_than_its_lease_keeps_its_claim() -> None:
    """Time passes when the work says so, and not by how busy the machine is."""
    clock = FakeClock()
    s = semel.connect("memory:", clock=clock)
    renewed = threading.Event()
    execute = s.store.execute

    def counted(command: Any) -> Any:
        reply = execute(command)
        if "lease_until" in getattr(command, "set", ()):
            renewed.set()
        return reply

    s.store.execute = counted  # type: ignore[method-assign]

    @s.once("k", lease=SHORT)
    def work() -> str:
        for _ in range(5):
            renewed.clear()
            clock.advance(SHORT / 2)
            assert renewed.wait(60)
            assert not semel.current_run().lost
        return "done"

    assert work() == "done"
    record = s.ledger.get("k")
    assert record is not None
    assert record.attempt == 1


def test_async_work_longer_than_its_lease_keeps_its_claim() -> None:
    """The same for tasks."""
    clock = FakeClock()
    s = semel.connect("memory:", clock=clock)

    @s.once("k", lease=SHORT)
    async def work() -> int:
        renewed: set[float] = set()
        while len(renewed) < 4:
            record = await s.aio.ledger.get("k")
            assert record is not None
            renewed.add(record.lease_until)
            clock.advance(SHORT / 1000)
            await asyncio.sleep(0.005)
        return semel.current_run().attempt

    assert asyncio.run(work()) == 1


def steal(s: semel.Semel, key: str) -> None:
    """Take a key from its holder, as after a pause longer than its lease."""
    s.ledger.forget(key)
    assert isinstance(s.ledger.claim(key), semel.Claimed)


@pytest.mark.situation(17)
def test_async_work_is_cancelled_when_its_claim_is_lost() -> None:
    s = semel.connect("memory:")
    cancelled = []

    @s.once("k", lease=SHORT)
    async def work() -> None:
        steal(s, "k")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def main() -> None:
        with pytest.raises(semel.ClaimLost):
            await work()
        assert not asyncio.current_task().cancelling()

    asyncio.run(main())
    assert cancelled == [1]


def test_async_work_is_cancelled_when_the_store_stays_away_until_its_deadline() -> None:
    """Nobody took the key over, and nobody could say so: the work stops before its lease ends, in doubt."""
    store = Away(semel.connect("memory:").store)
    s = semel.Semel(store)
    asked: list[int] = []

    async def main() -> None:
        store.back = asyncio.Event()
        stopped = asyncio.Event()

        @s.once("k", lease=SHORT, on_lapsed="hold")
        async def work() -> None:
            store.away = True
            try:
                await asyncio.Event().wait()
            finally:
                asked.append(store.asked)
                stopped.set()

        task = asyncio.create_task(work())
        await stopped.wait()
        store.back.set()
        with pytest.raises(semel.ClaimLost):
            await task
        with pytest.raises(semel.OutcomeUnknown):
            await work()

    asyncio.run(main())
    assert asked == [2]  # a renewal without an answer does not keep the next one waiting


class Away:
    """A store whose answers stop coming."""

    overflow: semel.Overflow | None = None

    back: asyncio.Event

    def __init__(self, store: Any) -> None:
        self.store = store
        self.away = False
        self.asked = 0

    def execute(self, command: Any) -> Any:
        return self.store.execute(command)

    def at_once(self, command: Any) -> Any:
        return None if self.away else self.store.execute(command)

    async def aexecute(self, command: Any) -> Any:
        if not self.back.is_set():
            self.asked += 1
            await self.back.wait()
            raise semel.StoreUnavailable("it was away")
        return self.store.execute(command)

    def close(self) -> None:
        pass


def test_an_async_block_is_cancelled_when_its_claim_is_lost() -> None:
    s = semel.connect("memory:")

    async def main() -> None:
        with pytest.raises(semel.ClaimLost):
            async with s.once.running("k", lease=SHORT):
                steal(s, "k")
                await asyncio.Event().wait()

    asyncio.run(main())


@pytest.mark.situation(17)
def test_sync_work_is_told_when_its_claim_is_lost() -> None:
    s = semel.connect("memory:")
    heard = threading.Event()
    s.events.listen(lambda event: heard.set() if event.what is semel.What.CLAIM_LOST else None)

    @s.once("k", lease=SHORT)
    def work() -> None:
        steal(s, "k")
        assert heard.wait(60)
        assert semel.current_run().lost

    with pytest.raises(semel.ClaimLost):
        work()


def test_a_callers_own_cancellation_is_not_taken_for_a_lost_claim() -> None:
    s = semel.connect("memory:")
    started = asyncio.Event()

    @s.once("k", lease=SHORT)
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_the_heart_rests_when_nothing_runs_and_beats_again() -> None:
    s = semel.connect("memory:")
    heartbeats = Heartbeats(s.store, semel.Clock())
    ledger = LedgerSteps(Realm())

    def one_life(key: str) -> None:
        claim = s.ledger.claim(key, lease=SHORT)
        assert isinstance(claim, semel.Claimed)
        run = Run(claim, semel.Clock().monotonic(), semel.Clock())
        heartbeats.start(run, ledger)
        thread = heartbeats._scheduler.thread
        assert thread is not None
        heartbeats.stop(run)
        thread.join(60)
        assert not thread.is_alive()

    one_life("a")
    one_life("b")


@pytest.mark.situation(35)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_renews_its_own_leases_and_makes_its_own_tokens() -> None:
    s = semel.connect("memory:")
    parents = {runtime.random_token(), *runtime._stock}
    claim = s.ledger.claim("k", lease=SHORT)
    assert isinstance(claim, semel.Claimed)
    s._shared.heartbeats.start(Run(claim, semel.Clock().monotonic(), semel.Clock()), LedgerSteps(Realm()))
    child = os.fork()
    if child == 0:
        fresh = s._shared.heartbeats._scheduler.thread is None and not s._shared.heartbeats._live
        mine = {runtime.random_token() for _ in range(100)}
        os._exit(0 if fresh and not mine & parents else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# The timer of a loop


class Hours:
    """An event loop whose timers follow a clock that a test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.set: list[float] = []
        loop = asyncio.get_running_loop()

        def call_later(delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
            self.set.append(delay)
            timer = asyncio.TimerHandle(loop.time() + delay, callback, args, loop, context)

            def ring() -> None:
                if not timer.cancelled():
                    timer._run()

            if delay > 0:
                self.clock.schedule(delay, lambda: loop.call_soon(ring))
            else:
                loop.call_soon(ring)
            return timer

        loop.call_later = call_later  # type: ignore[method-assign,assignment]

    async def go_by(self, seconds: float, step: float = 1.0) -> None:
        """Let so much time pass, and everybody do what is due."""
        end = self.clock.monotonic() + seconds
        await quiet()
        while (left := end - self.clock.monotonic()) > 1e-9:
            self.clock.advance(min(step, left))
            await quiet()


async def quiet(turns: int = 12) -> None:
    """Let every task go on until it waits for something."""
    for _ in range(turns):
        await asyncio.sleep(0)


def live(s: semel.Semel) -> dict[Any, None]:
    """The leases that a loop keeps alive, and has not begun to renew."""
    return s._shared.heartbeats.loops.here().live


async def hold(s: semel.Semel, key: str, lease: float, until: asyncio.Event) -> None:
    async with s.once.running(key, lease=lease, on_busy="raise"):
        await until.wait()


def test_work_that_ends_before_its_renewal_sets_one_timer_for_all_of_it() -> None:
    async def main() -> None:
        hours = Hours()
        s = semel.connect("memory:", clock=hours.clock)
        for number in range(100):
            async with s.once.running("k", number):
                pass
        assert len(hours.set) == 1
        assert not live(s)

    asyncio.run(main())


def test_a_timer_that_rings_for_work_that_is_over_is_set_for_what_is_due_next() -> None:
    async def main() -> None:
        hours, over = Hours(), asyncio.Event()
        s = semel.connect("memory:", clock=hours.clock)
        async with s.once.running("first", lease=30):
            pass
        await hours.go_by(5)
        work = asyncio.create_task(hold(s, "second", 30, over))
        await hours.go_by(6)
        assert hours.set == [10, 5]  # what was due at 10 is over; what came at 5 is due at 15
        await hours.go_by(100)
        over.set()
        await work

    asyncio.run(main())


def test_a_shorter_lease_that_comes_later_is_renewed_in_time() -> None:
    async def main() -> None:
        hours, over = Hours(), asyncio.Event()
        s = semel.connect("memory:", clock=hours.clock)
        slow = asyncio.create_task(hold(s, "slow", 3000, over))
        await hours.go_by(1)
        quick = asyncio.create_task(hold(s, "quick", 3, over))
        await hours.go_by(4000)
        over.set()
        await asyncio.gather(slow, quick)
        for key in ("slow", "quick"):
            record = s.ledger.get(key)
            assert record is not None
            assert (record.attempt, record.status) == (1, semel.Status.COMPLETED)

    asyncio.run(main())


def test_hundreds_of_leases_of_any_length_are_each_renewed_before_they_end() -> None:
    async def main() -> None:
        hours, over = Hours(), asyncio.Event()
        s = semel.connect("memory:", clock=hours.clock)
        works = []
        for number in range(300):
            works.append(asyncio.create_task(hold(s, f"k{number}", 3 + number * 7 % 60, over)))
            if number % 10 == 0:
                await hours.go_by(0.3, step=0.3)
        await hours.go_by(60, step=0.5)
        assert all(s.ledger.get(f"k{number}").lease_until > hours.clock.now() for number in range(300))
        over.set()
        await asyncio.gather(*works)
        await quiet()
        assert not live(s)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_work_that_another_renewal_ends_is_not_renewed_itself() -> None:
    """Two are due at the same ring, and the first of them is cancelled, which ends the second too."""

    async def main() -> None:
        hours = Hours()
        s = semel.connect("memory:", clock=hours.clock)
        works = [asyncio.create_task(hold(s, key, 30, asyncio.Event())) for key in ("a", "b")]
        await quiet()
        heartbeats = s._shared.heartbeats.loops.here()
        first, second = live(s)
        begin = first.begin

        class Ending:
            run = first.run

            def begin(self) -> None:
                begin()
                second.stop()

        heartbeats.live = {Ending(): None, second: None}  # type: ignore[dict-item]
        await hours.go_by(11)
        assert second._task is None or second._task.cancelled()
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [RuntimeError("a bug of the store"), OSError("not translated")], ids=repr)
def test_a_renewal_that_fails_in_any_way_is_tried_again_as_soon_as_any_other(wrong: Exception) -> None:
    async def main() -> None:
        hours, over = Hours(), asyncio.Event()
        store = Breaking(MemoryStore(hours.clock))
        s = semel.Semel(store, clock=hours.clock)
        work = asyncio.create_task(hold(s, "k", 30, over))
        await hours.go_by(9)
        store.errors = [wrong] * 500
        await hours.go_by(8)
        assert store.broke == 3  # at 10, 13 and 16 seconds
        store.errors.clear()
        await hours.go_by(60)
        over.set()
        await work

    asyncio.run(main())


def test_of_two_leases_that_begin_at_once_the_shorter_sets_the_pace() -> None:
    """Else it would be renewed at the pace of the longer one, and end between two renewals."""
    clock = FakeClock()
    heart = Heartbeats(MemoryStore(clock), clock)

    def begin(lease: float) -> None:
        ledger, run = running(clock, MemoryStore(clock))
        heart.start(Run(msgspec.structs.replace(run.claim, lease=lease), 0.0, clock), ledger)

    class Long(float):
        """A lease during whose comparison another thread begins a short one."""

        __slots__ = ()

        def __lt__(self, other: float) -> bool:
            if not short.ident:
                short.start()
                short.join()
            return super().__lt__(other)

    short = threading.Thread(target=begin, args=(1.0,))
    begin(Long(3600))
    assert heart._shortest == 1.0


def test_an_error_that_no_store_should_raise_does_not_end_the_heartbeat_of_threads() -> None:
    store = Breaking(semel.connect("memory:").store)
    s = semel.Semel(store)
    renewed = threading.Event()

    @s.once("k", lease=SHORT)
    def work() -> None:
        store.errors = [RuntimeError("a bug of the store")]
        store.then = renewed.set
        assert renewed.wait(10), "nobody renews any more"

    work()


class Wrapping:
    """A store around another one."""

    overflow: semel.Overflow | None = None

    def __init__(self, store: Any) -> None:
        self.store = store

    def execute(self, command: Any) -> Any:
        return self.store.execute(command)

    def at_once(self, command: Any) -> Any:
        return self.execute(command)

    async def aexecute(self, command: Any) -> Any:
        return self.execute(command)

    def close(self) -> None:
        self.store.close()


class Breaking(Wrapping):
    """A store with a bug."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.errors: list[Exception] = []
        self.broke = 0
        self.then: Any = lambda: None

    def execute(self, command: Any) -> Any:
        if self.errors:
            self.broke += 1
            raise self.errors.pop()
        if self.broke:
            self.then()
        return super().execute(command)


def test_each_loop_has_its_own_timer_and_a_closed_loop_leaves_none_behind() -> None:
    s = semel.connect("memory:")

    async def one(key: str) -> None:
        async with s.once.running(key, lease=30):
            assert len(live(s)) == 1
        assert not live(s)

    for number in range(20):
        asyncio.run(one(f"k{number}"))
    assert len(s._shared.heartbeats.loops._made) == 1


def test_loops_in_threads_do_not_see_each_others_work() -> None:
    s = semel.connect("memory:")
    barrier = threading.Barrier(8)
    seen: list[int] = []

    async def one(key: str) -> None:
        async with s.once.running(key, lease=30):
            await asyncio.to_thread(barrier.wait, 60)
            seen.append(len(live(s)))

    threads = [threading.Thread(target=asyncio.run, args=(one(f"k{number}"),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [1] * 8


def test_work_that_a_closed_loop_took_along_is_not_renewed_by_the_next() -> None:
    s = semel.connect("memory:")
    loop = asyncio.new_event_loop()
    block = s.once.running("k", lease=30)
    loop.run_until_complete(block.__aenter__())
    loop.close()

    async def next_one() -> None:
        assert not live(s)

    asyncio.run(next_one())


def test_a_cancellation_from_outside_goes_on_even_where_the_lease_is_gone_too() -> None:
    """Whoever cancelled the work, a server that stops or a time limit, waits for it to be cancelled."""

    async def main() -> None:
        hours = Hours()
        s = semel.connect("memory:", clock=hours.clock)
        work = asyncio.create_task(hold(s, "k", 30, asyncio.Event()))
        await hours.go_by(11)  # it is being renewed
        hours.clock.advance(60)  # and then nothing ran for a minute
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())


def test_a_lost_lease_cancels_its_own_work_and_no_other() -> None:
    async def main() -> None:
        hours, over = Hours(), asyncio.Event()
        s = semel.connect("memory:", clock=hours.clock)
        lost = asyncio.create_task(hold(s, "lost", 30, over))
        kept = asyncio.create_task(hold(s, "kept", 30, over))
        await quiet()
        steal(s, "lost")
        await hours.go_by(11)
        with pytest.raises(semel.ClaimLost):
            await lost
        assert not kept.done()
        over.set()
        await kept

    asyncio.run(main())


# Renewals of threads are independent of one another


class Blocking(Wrapping):
    """A store in memory whose renewals of some keys hang, until they are released."""

    def __init__(self, clock: semel.Clock | None = None) -> None:
        super().__init__(MemoryStore(clock))
        self.hangs: set[str] = set()
        self.hung = 0
        self.released = threading.Event()
        self._lock = threading.Lock()
        self.on_renewal: Any = lambda _key: None

    def execute(self, command: Any) -> Any:
        if getattr(command, "set", {}).get("status") == "IN_PROGRESS":
            key = command.key.rpartition("/")[2]
            if key in self.hangs:
                with self._lock:
                    self.hung += 1
                self.released.wait()
            reply = super().execute(command)
            self.on_renewal(key)
            return reply
        return super().execute(command)


class Renewals:
    """Counts the renewals of each key, and waits for a number of them."""

    def __init__(self, store: Blocking) -> None:
        self._count: dict[str, int] = {}
        self._changed = threading.Condition()
        store.on_renewal = self._renewed

    def _renewed(self, key: str) -> None:
        with self._changed:
            self._count[key] = self._count.get(key, 0) + 1
            self._changed.notify_all()

    def wait_for(self, keys: list[str], times: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: all(self._count.get(key, 0) >= times for key in keys), 60)


@contextmanager
def holding(s: semel.Semel, keys: list[str], lease: float) -> Iterator[list[Run]]:
    """Hold these keys in a thread for each."""
    over, runs, begun = threading.Event(), [], threading.Barrier(len(keys) + 1)

    def hold(key: str) -> None:
        with suppress(semel.ClaimLost), s.once.running(key, lease=lease) as run:
            runs.append(run)
            begun.wait(60)
            over.wait()

    threads = [threading.Thread(target=hold, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    begun.wait(60)
    try:
        yield runs
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


HEALTHY = [f"healthy-{number}" for number in range(5)]


@pytest.mark.situation(55)
@pytest.mark.parametrize("many", [1, 3 * WORKERS])
def test_renewals_that_hang_delay_no_other(many: int) -> None:
    """They begin to hang after a third of the lease; each crowd of them counts as hanging a tenth later."""
    clock = FakeClock()
    store = Blocking(clock)
    store.hangs = {f"hangs-{number}" for number in range(many)}
    s, renewals = semel.Semel(store, clock=clock), Renewals(store)
    heartbeats = s._shared.heartbeats

    def let_pass(seconds: float, hung: int) -> None:
        clock.advance(seconds)
        heartbeats._left.put(None)
        assert eventually(lambda: store.hung >= min(many, hung))

    with holding(s, sorted(store.hangs), lease=30), holding(s, HEALTHY, lease=30) as healthy:
        let_pass(10, WORKERS)
        for crowd in (2, 3, 4):
            let_pass(3, crowd * WORKERS)
        assert renewals.wait_for(HEALTHY, 1)
        clock.advance(12)  # what was not renewed is over by now
        assert not any(run.lost for run in healthy)
        store.released.set()


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true, within the time that a loaded machine may need."""
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            return False
        threading.Event().wait(0.01)
    return True


@pytest.mark.situation(55)
def test_what_an_interrupted_call_has_left_delays_no_renewal() -> None:
    store = Blocking()
    s, renewals = semel.Semel(store), Renewals(store)
    released = threading.Event()

    def hangs() -> Any:
        released.wait()
        yield from ()

    with holding(s, HEALTHY, lease=3) as healthy:
        for _ in range(3):
            s._shared.heartbeats.rescue(hangs(), s.events.failed)
        assert renewals.wait_for(HEALTHY, 2)
        assert not any(run.lost for run in healthy)
        released.set()


@pytest.mark.situation(55)
def test_a_crowd_is_renewed_side_by_side() -> None:
    """One after the other, the first of these would wait for the last, which never comes."""
    store = Blocking()
    together = threading.Barrier(WORKERS)
    renewed = threading.Event()

    def meet(_key: str) -> None:
        if not renewed.is_set():
            together.wait(60)
            renewed.set()

    store.on_renewal = meet
    s = semel.Semel(store)
    with holding(s, [f"k{number}" for number in range(WORKERS)], lease=3):
        assert renewed.wait(60)


@pytest.mark.situation(55)
def test_the_lease_that_ends_first_is_renewed_first() -> None:
    clock = FakeClock()
    store = Blocking()
    heartbeats = Heartbeats(store, clock)
    order: list[str] = []
    store.on_renewal = order.append
    ledger = LedgerSteps(Realm())
    for key, lease in (("long", 3000.0), ("short", 3.0), ("middle", 30.0)):
        claim = drive(ledger.claim(key, lease=lease), store)
        assert isinstance(claim, semel.Claimed)
        heartbeats._live[Run(claim, 0.0, clock)] = ledger
    heartbeats._start_workers = lambda now: None  # type: ignore[method-assign]
    heartbeats._queue_due(2000.0)
    while heartbeats._do_next(0.0):
        pass
    assert order == ["short", "middle", "long"]


class Raising(logging.Handler):
    """A log handler with a bug."""

    def handle(self, record: logging.LogRecord) -> bool:
        raise OSError("the log is full")


@pytest.mark.situation(55)
def test_a_log_handler_or_listener_that_raises_ends_no_heartbeat() -> None:
    def exit_thread(event: semel.Event) -> None:
        if event.what is semel.What.CLAIM_LOST and threading.current_thread().name == "semel-renewal":
            raised.set()
            raise SystemExit("a listener that ends its thread")

    store, raised, handler = Blocking(), threading.Event(), Raising()
    s, renewals = semel.Semel(store, on_event=exit_thread), Renewals(store)
    logging.getLogger("semel").addHandler(handler)
    try:
        with holding(s, ["lost"], lease=0.6), holding(s, HEALTHY, lease=3) as healthy:
            steal(s, "lost")
            assert raised.wait(60)
            assert renewals.wait_for(HEALTHY, 2)
            assert not any(run.lost for run in healthy)
    finally:
        logging.getLogger("semel").removeHandler(handler)


@pytest.mark.situation(55)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_scheduler_that_fails_is_started_again() -> None:
    store = Blocking()
    s, renewals = semel.Semel(store), Renewals(store)
    heartbeats = s._shared.heartbeats
    queue_due = heartbeats._queue_due

    def fail_once(now: float) -> None:
        heartbeats._queue_due = queue_due  # type: ignore[method-assign]
        raise MemoryError

    heartbeats._queue_due = fail_once  # type: ignore[method-assign]
    with holding(s, HEALTHY, lease=3) as healthy:
        assert renewals.wait_for(HEALTHY, 1)
        assert not any(run.lost for run in healthy)


@pytest.mark.situation(55)
def test_if_no_worker_can_be_started_the_scheduler_renews_every_lease_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.core.heartbeat.start_thread", lambda _thread: False)
    store = Blocking()
    s, renewals = semel.Semel(store), Renewals(store)
    with holding(s, HEALTHY, lease=3) as healthy:
        assert renewals.wait_for(HEALTHY, 2)
        assert not any(run.lost for run in healthy)


@pytest.mark.parametrize("way", ["decorator", "block"])
def test_work_for_which_no_thread_can_be_started_did_not_begin(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a limit of processes, or at the end of the interpreter: nothing ran, and nothing is kept."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    s, ran = semel.connect("memory:"), []

    @s.once("k", on_error="keep", max_attempts=1)
    def work() -> str:
        ran.append(1)
        return "done"

    def block() -> None:
        with s.once.running("k", on_error="keep", max_attempts=1):
            ran.append(1)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(semel.errors.NotBegun, match="limit of threads"):
            work() if way == "decorator" else block()
    assert ran == []
    record = s.ledger.get("k")
    assert record is not None
    assert record.status is semel.Status.RELEASED
    assert not s._shared.heartbeats._live
    assert work() == "done"


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="a time namespace needs root on Linux"
)
def test_deadlines_are_counted_on_a_clock_that_goes_on_while_the_machine_sleeps() -> None:
    """In a time namespace whose boot was a day before its monotonic clock began, as after a day of sleep."""
    script = "import time, semel; print(semel.Clock().monotonic() - time.clock_gettime(time.CLOCK_MONOTONIC))"
    command = ["unshare", "--time", "--fork", "--boottime", "86400", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 86_000
