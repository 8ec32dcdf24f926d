"""Leases are renewed while work runs, and lost leases are noticed."""

import asyncio
import os
import threading
from typing import Any

import pytest

import semel
from semel.drive import drive
from semel.heartbeat import Heart, beat
from semel.ledger import LedgerSteps
from semel.running import Run
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty

SHORT = 0.15


def running(clock: FakeClock, store: Any, lease: float = 30.0) -> tuple[LedgerSteps, Run]:
    ledger = LedgerSteps()
    sent = clock.monotonic()
    claim = drive(ledger.claim("k", lease=lease), store)
    assert isinstance(claim, semel.Claimed)
    return ledger, Run(claim, sent, clock)


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
    s = semel.connect("memory:")
    renewals: list[int] = []
    enough = threading.Event()
    execute = s.store.execute

    def counted(command: Any) -> Any:
        if "lease_until" in getattr(command, "set", ()):
            renewals.append(1)
            if len(renewals) == 5:
                enough.set()
        return execute(command)

    s.store.execute = counted  # type: ignore[method-assign]

    @s.once("k", lease=SHORT)
    def work() -> str:
        assert enough.wait(60)
        assert not semel.current_run().lost
        return "done"

    assert work() == "done"
    record = s.ledger.get("k")
    assert record is not None
    assert record.attempt == 1


def test_async_work_longer_than_its_lease_keeps_its_claim() -> None:
    s = semel.connect("memory:")

    @s.once("k", lease=SHORT)
    async def work() -> int:
        renewed: set[float] = set()
        while len(renewed) < 4:
            record = await s.aio.ledger.get("k")
            assert record is not None
            renewed.add(record.lease_until)
            await asyncio.sleep(0.005)
        return semel.current_run().attempt

    assert asyncio.run(work()) == 1


def steal(s: semel.Semel, key: str) -> None:
    """Take a key from its holder, as after a pause longer than its lease."""
    s.ledger.forget(key)
    assert isinstance(s.ledger.claim(key), semel.Claimed)


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

    @s.once("k", lease=SHORT, on_lapsed="hold")
    async def work() -> None:
        store.away = True
        await asyncio.Event().wait()

    async def main() -> None:
        store.back = asyncio.Event()
        task = asyncio.create_task(work())
        while not task.cancelling():  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.001)
        assert store.asked == 1
        store.back.set()
        with pytest.raises(semel.ClaimLost):
            await task
        with pytest.raises(semel.OutcomeUnknown):
            await work()

    asyncio.run(main())


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
    heart = Heart(s.store, semel.Clock())
    ledger = LedgerSteps()

    def one_life(key: str) -> None:
        claim = s.ledger.claim(key, lease=SHORT)
        assert isinstance(claim, semel.Claimed)
        run = Run(claim, semel.Clock().monotonic(), semel.Clock())
        heart.start(run, ledger)
        thread = heart._thread
        assert thread is not None
        heart.stop(run)
        thread.join(60)
        assert not thread.is_alive()

    one_life("a")
    one_life("b")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_renews_its_own_leases_and_makes_its_own_tokens() -> None:
    s = semel.connect("memory:")
    parents = {semel.ledger.random_token(), *semel.ledger._stock}
    claim = s.ledger.claim("k", lease=SHORT)
    assert isinstance(claim, semel.Claimed)
    s._shared.heart.start(Run(claim, semel.Clock().monotonic(), semel.Clock()), LedgerSteps())
    child = os.fork()
    if child == 0:
        fresh = s._shared.heart._thread is None and not s._shared.heart._live
        tokens = {semel.ledger.random_token() for _ in range(100)}
        os._exit(0 if fresh and not tokens & parents else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
