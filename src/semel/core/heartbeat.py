"""Leases are renewed while work runs: by one thread for all sync work, by one timer for a loop's own."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from semel import errors
from semel.core.clock import Clock
from semel.core.commands import Steps
from semel.core.drive import Store, adrive, drive
from semel.core.events import What
from semel.core.ledger import LedgerSteps
from semel.core.locks import SignalSafeEvent, SignalSafeLock
from semel.core.loops import PerLoop
from semel.core.running import RENEWALS_PER_LEASE, Run

if TYPE_CHECKING:
    import asyncio


def beat(ledger: LedgerSteps, run: Run, clock: Clock) -> Steps[None]:
    """Renew one lease, and note what came of it."""
    sent = clock.monotonic()
    try:
        if not run.kept:
            yield from ledger.renew(run.claim)
        if run.interrupted:
            # The renewal was under way when its work ended the lease, and may have come after that.
            yield from ledger.lapse(run.claim)
    except errors.ClaimLost:
        # What a transaction completes meanwhile needs no lease any more.
        if run.settling:
            run.renewed(sent)
        else:
            run.lose()
    except Exception:  # noqa: BLE001 - whatever it is, the next try may do better, and others have leases too
        run.missed()
    else:
        run.renewed(sent)


# How long the thread waits for something to do where nobody has said how soon it is needed.
IDLE_SECONDS = 60.0


class HeartbeatThread:
    """The thread that renews the leases of sync work.

    Work that ends before its first renewal is due costs an addition to a set and a removal: the thread is
    not woken for it, as it never sleeps longer than the shortest interval it was asked for. No signal reaches
    it, so it also writes what a call has left that was torn away.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._shortest = float("inf")
        self.loops: PerLoop[LoopHeartbeats] = PerLoop(
            lambda: LoopHeartbeats(store, clock), _nothing_to_wait_for, lambda _: None
        )
        """What renews the leases of async work, for each event loop."""
        self._forget()
        THREADS.add(self)

    def _forget(self) -> None:
        self._live: dict[Run, LedgerSteps] = {}
        self._left: deque[Steps[None]] = deque()
        self._lock = SignalSafeLock()
        self._wake = SignalSafeEvent()
        self._thread: threading.Thread | None = None

    def start(self, run: Run, ledger: LedgerSteps) -> None:
        """Keep this lease alive from now on."""
        self._live[run] = ledger
        if run.claim.lease < self._shortest:
            with self._lock:
                self._shortest = min(self._shortest, run.claim.lease)
            self._wake.set()
        if self._thread is None:
            self._begin()

    def stop(self, run: Run) -> None:
        """The work is over."""
        self._live.pop(run, None)

    def for_task(self, run: Run, ledger: LedgerSteps) -> "TaskHeartbeat":
        """Keep this lease of async work alive from now on, on the running event loop."""
        return TaskHeartbeat(run, ledger, self.loops.here())

    def rescue(self, steps: Steps[None]) -> None:
        """Take these steps in the place of a caller that was torn away."""
        self._left.append(steps)
        self._wake.set()
        if self._thread is None:
            self._begin()

    def _begin(self) -> None:
        threading.Thread(target=self._run, name="semel-heartbeat", daemon=True).start()

    def _run(self) -> None:
        # Here, and not where it is started: a signal may come between any two lines there.
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
        self._beat()

    def _beat(self) -> None:
        while True:
            idle = not self._live
            self._wake.wait(min(self._shortest / RENEWALS_PER_LEASE, IDLE_SECONDS))
            self._wake.clear()
            while self._left:
                with suppress(Exception):  # the store is away: the lease ends by itself
                    drive(self._left.popleft(), self._store)
            for run, ledger in list(self._live.items()):
                if run.due <= self._clock.monotonic() and run in self._live:
                    self._renew(run, ledger)
            if idle and not (self._live or self._left) and self._rest():
                return

    def _renew(self, run: Run, ledger: LedgerSteps) -> None:
        drive(beat(ledger, run, self._clock), self._store)
        if run.lost and run in self._live:
            self._live.pop(run, None)
            ledger.events.warn(What.CLAIM_LOST, run.claim.id, run.attempt, "the lease could not be renewed")

    def _rest(self) -> bool:
        # In this order: who adds a run before this line is seen by the next, and who adds one later starts a
        # thread of its own.
        self._thread = None
        if not (self._live or self._left):
            return True
        with self._lock:
            if self._thread is not None:
                return True
            self._thread = threading.current_thread()
            return False


THREADS: "weakref.WeakSet[HeartbeatThread]" = weakref.WeakSet()


def _after_fork() -> None:
    # Threads do not survive a fork, and the parent's leases are the parent's to renew.
    for thread in THREADS:
        thread._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


async def _nothing_to_wait_for(_heartbeats: "LoopHeartbeats") -> None:
    """A loop that ends has no work left whose lease could be renewed."""


# Each heartbeat waits for its own moment: this is about how often the timer rings, and nothing else.
TOGETHER = 0.1


class LoopHeartbeats:
    """The leases of async work on one event loop: one timer for all of them, set for the first that is due.

    Work that ends before that costs an entry in a dictionary, and neither a timer nor a task.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        import asyncio

        self.store = store
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.current_task: Callable[[], asyncio.Task[Any] | None] = asyncio.current_task
        self._live: dict[TaskHeartbeat, None] = {}
        self._set_for = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, heartbeat: "TaskHeartbeat") -> None:
        """Begin this heartbeat when its run's renewal is due."""
        self._live[heartbeat] = None
        if heartbeat.run.due < self._set_for:
            self._set(heartbeat.run.due)

    def remove(self, heartbeat: "TaskHeartbeat") -> None:
        """The work is over."""
        self._live.pop(heartbeat, None)

    def _set(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._set_for = due
        self._timer = self.loop.call_later(due - self.clock.monotonic(), self._ring)

    def _ring(self) -> None:
        # Those that follow at once ring with it: a loop that is late would else set it once for each of them.
        due = max(self._set_for, self.clock.monotonic()) + TOGETHER
        for heartbeat in [heartbeat for heartbeat in self._live if heartbeat.run.due <= due]:
            del self._live[heartbeat]
            heartbeat.begin()
        self._timer, self._set_for = None, float("inf")
        if self._live:
            self._set(min(heartbeat.run.due for heartbeat in self._live))


class TaskHeartbeat:
    """What renews the lease of one piece of async work, and cancels the work when it is lost."""

    __slots__ = ("_cancelled", "_cancelling", "_heartbeats", "_ledger", "_renewal", "_task", "_work", "run")

    def __init__(self, run: Run, ledger: LedgerSteps, heartbeats: LoopHeartbeats) -> None:
        self.run: Run = run
        self._ledger = ledger
        self._heartbeats = heartbeats
        self._task: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._cancelled = False
        self._work = heartbeats.current_task()
        self._cancelling = self._work.cancelling() if self._work else 0
        heartbeats.add(self)

    def stop(self) -> None:
        """The work is over."""
        if self._task is None:
            self._heartbeats.remove(self)
        else:
            self._task.cancel()

    def claim_lost(self) -> bool:
        """Whether the cancellation that is under way is this heartbeat's own, for a lost claim."""
        if not self._cancelled or self._work is None:
            return False
        return self._work.uncancel() <= self._cancelling

    def begin(self) -> None:
        """Keep the lease alive from now on."""
        self._task = self._heartbeats.loop.create_task(self._beat())

    async def _beat(self) -> None:
        import asyncio

        run, clock, store = self.run, self._heartbeats.clock, self._heartbeats.store
        while not run.lost:
            await asyncio.sleep(run.due - clock.monotonic())
            # A task of its own: a renewal that hangs must not keep the work going past its deadline.
            steps = beat(self._ledger, run, clock)
            self._renewal = self._heartbeats.loop.create_task(adrive(steps, store), name="semel-renewal")
            await asyncio.wait({self._renewal}, timeout=run.deadline - clock.monotonic())
        self._ledger.events.warn(
            What.CLAIM_LOST,
            run.claim.id,
            run.attempt,
            "the lease could not be renewed; the work is cancelled",
        )
        if self._work is not None:
            self._cancelled = self._work.cancel()
