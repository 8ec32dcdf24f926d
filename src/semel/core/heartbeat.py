"""Heartbeats: renew the leases of running work, each independently of all others.

Invariants:

- `Heartbeats._schedule`, the thread that decides when to renew, does no I/O and calls no listener. Worker
  threads send the renewals, so one that hangs delays only itself.
- A renewal that has no answer after a third of its lease is sent again, by another thread and connection.
"""

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, PriorityQueue, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from semel import errors
from semel.core.clock import BackgroundThread, Clock, PerLoop, SignalSafeLock, start_thread
from semel.core.commands import Steps
from semel.core.drive import ErrorListener, Store, adrive, drive
from semel.core.events import What
from semel.core.ledger import LedgerSteps
from semel.core.running import RENEWALS_PER_LEASE, RENEWING, RETRIES_PER_LEASE, Run
from semel.core.runtime import FORKING

if TYPE_CHECKING:
    import asyncio


def beat(ledger: LedgerSteps, run: Run, clock: Clock) -> Steps[None]:
    """Renew one lease, and record the outcome in its run."""
    sent = clock.monotonic()
    try:
        if not run.kept:
            yield from ledger.renew(run.claim)
        if run.interrupted:
            # The work ended its lease while the renewal was under way, which may have come later.
            yield from ledger.lapse(run.claim)
    except errors.ClaimLost:
        # A transaction that completes the claim meanwhile needs no lease any more.
        if not run.settling:
            return run.lose()
    except Exception:  # noqa: BLE001 - whatever it is, the next try may succeed
        return run.missed()
    run.renewed(sent)


def _warn(ledger: LedgerSteps, run: Run, detail: str) -> None:
    ledger.events.warn(What.CLAIM_LOST, run.claim.id, run.attempt, detail)


# How long the scheduler waits for something to do if no run needs it sooner.
IDLE_SECONDS = 60.0
# An idle worker thread ends after this time; a crowd comes back every third of its lease.
WORKER_IDLE_SECONDS = 20.0
# Worker threads with a renewal under way. At 10 ms a request they renew 1,600 leases a second, and a server
# is not flooded when thousands of leases are due together. Workers whose renewal hangs are not counted.
WORKERS = 16
# The scheduler looks at queued jobs this often: a worker may hang at any time.
QUEUED_SECONDS = 0.05
# What an interrupted caller has left has no lease to compare with.
HANGING_SECONDS = 1.0


# Steps of an interrupted caller, and the listener of the store's errors.
Unfinished: TypeAlias = tuple[Steps[None], ErrorListener]


class Heartbeats:
    """The threads that renew the leases of sync work, and the timers of async work.

    Work that ends before its first renewal costs a dictionary an addition and a removal: the scheduler never
    sleeps longer than the shortest interval, so nothing wakes it. No signal reaches these threads, so they
    also finish what an interrupted call has left.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._shortest = float("inf")
        self.loops: PerLoop[LoopHeartbeats] = PerLoop(lambda: LoopHeartbeats(store, clock))
        """What renews the leases of async work, for each event loop."""
        self._scheduler = BackgroundThread("semel-heartbeat", self._schedule, self._has_work)
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: the parent's leases are the parent's to renew."""
        self._live: dict[Run, LedgerSteps] = {}
        # What callers put here wakes the scheduler. To put is one call of C: no signal tears it, and it needs
        # hardly any stack.
        self._left: SimpleQueue[Unfinished | None] = SimpleQueue()
        self._lock = SignalSafeLock()
        # Jobs by the moment at which they are too late, and a number so that no two are compared further.
        self._jobs: PriorityQueue[tuple[float, int, Run | Unfinished]] = PriorityQueue()
        self._numbers = itertools.count()
        self._queued: set[Run] = set()
        self._workers: dict[threading.Thread, float | None] = {}
        """The moment at which a worker's job counts as hanging; None while it is idle."""

    def start(self, run: Run, ledger: LedgerSteps) -> None:
        """Keep this lease alive from now on."""
        self._live[run] = ledger
        if run.claim.lease < self._shortest:
            with self._lock:
                self._shortest = min(self._shortest, run.claim.lease)
            self._left.put(None)
        if self._scheduler.thread is None and not self._scheduler.start():
            self._live.pop(run, None)
            raise errors.NotBegun(run.key, "no thread could be started to renew its lease")

    def stop(self, run: Run) -> None:
        """Stop renewing: the work is over."""
        self._live.pop(run, None)

    def rescue(self, steps: Steps[None], on_error: ErrorListener) -> None:
        """Finish these steps of an interrupted caller; if no thread can, the lease ends by itself."""
        self._left.put((steps, on_error))
        self._scheduler.start()

    # The scheduler

    def _schedule(self) -> None:
        while True:
            idle = not self._has_work()
            with suppress(Empty):
                left = self._left.get(timeout=self._pause())
                idle = False
                if left is not None:
                    self._jobs.put((0.0, next(self._numbers), left))
            self._queue_due(self._clock.monotonic())
            if idle and not self._has_work():
                return

    def _pause(self) -> float:
        longest = min(self._shortest / RENEWALS_PER_LEASE, IDLE_SECONDS)
        if not self._jobs.empty():
            return min(longest, QUEUED_SECONDS)
        now = self._clock.monotonic()
        due = min([run.due for run in list(self._live)], default=now + longest)
        # Runs that are due soon after one another are renewed together.
        return max(min(due - now, longest), longest / RETRIES_PER_LEASE)

    def _queue_due(self, now: float) -> None:
        """Queue every renewal that is due, the most urgent first, and start workers for what is queued."""
        for run in list(self._live):
            if run.due <= now and run not in self._queued:
                self._queued.add(run)
                self._jobs.put((run.deadline, next(self._numbers), run))
        if not self._jobs.empty():
            self._start_workers(now)

    def _start_workers(self, now: float) -> None:
        """Start workers for the queued jobs; for one that hangs, another."""
        states = list(self._workers.values())
        idle = states.count(None)
        busy = sum(hangs_at is not None and now < hangs_at for hangs_at in states)
        for _ in range(min(self._jobs.qsize(), WORKERS - busy) - idle):
            worker = threading.Thread(target=self._work, name="semel-renewal")
            self._workers[worker] = None
            if not start_thread(worker):
                del self._workers[worker]
                break
        if not self._workers:  # the process can have no more threads: better late than never
            self._do_next(0.0)
            self._workers.pop(threading.current_thread(), None)  # it stays the scheduler

    def _has_work(self) -> bool:
        return bool(self._live) or not (self._left.empty() and self._jobs.empty())

    # The workers

    def _work(self) -> None:
        RENEWING.set(True)
        try:
            while self._do_next(WORKER_IDLE_SECONDS):
                pass
        finally:
            self._workers.pop(threading.current_thread(), None)

    def _do_next(self, seconds: float) -> bool:
        """Do the most urgent job, if there is one within this time."""
        try:
            _, _, job = self._jobs.get(timeout=seconds)
        except Empty:
            return False
        me = threading.current_thread()
        # A listener or a log handler may raise anything, and other leases depend on this thread.
        with suppress(BaseException):
            if isinstance(job, Run):
                self._workers[me] = job.sending() + job.claim.lease / RETRIES_PER_LEASE
                self._queued.discard(job)
                self._renew(job)
            else:
                self._workers[me] = self._clock.monotonic() + HANGING_SECONDS
                steps, on_error = job
                drive(steps, self._store, on_error)
        self._workers[me] = None
        return True

    def _renew(self, run: Run) -> None:
        ledger = self._live.get(run)
        if ledger is None:
            return
        # Past its deadline there is one last try, since another worker need not have taken over.
        last = run.lost and self._live.pop(run, None) is not None
        drive(beat(ledger, run, self._clock), self._store, ledger.events.failed)
        if run.lost:
            if last or self._live.pop(run, None) is not None:
                _warn(ledger, run, "the lease could not be renewed")
        elif last:
            self._live[run] = ledger
            if run.over:
                self._live.pop(run, None)


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
        self.live: dict[TaskHeartbeat, None] = {}
        """The heartbeats that have not begun."""
        self._set_for = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def start(self, run: Run, ledger: LedgerSteps) -> "TaskHeartbeat":
        """Keep this lease alive from now on; its heartbeat begins when the first renewal is due."""
        work = self.current_task()
        heartbeat = TaskHeartbeat(run, ledger, self, work, work.cancelling() if work else 0)
        self.live[heartbeat] = None
        if run.due < self._set_for:
            self._set(run.due)
        return heartbeat

    def _set(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._set_for = due
        self._timer = self.loop.call_later(due - self.clock.monotonic(), self._ring)

    def _ring(self) -> None:
        # Those that follow at once ring with it: a loop that is late would else set it once for each of them.
        due = max(self._set_for, self.clock.monotonic()) + TOGETHER
        for heartbeat in [heartbeat for heartbeat in self.live if heartbeat.run.due <= due]:
            del self.live[heartbeat]
            heartbeat.begin()
        self._timer, self._set_for = None, float("inf")
        if self.live:
            self._set(min(heartbeat.run.due for heartbeat in self.live))


class TaskHeartbeat(msgspec.Struct, eq=False):
    """What renews the lease of one piece of async work, and cancels the work when it is lost."""

    run: Run
    _ledger: LedgerSteps
    _heartbeats: LoopHeartbeats
    _work: "asyncio.Task[Any] | None"
    _cancelling: int
    _task: "asyncio.Task[None] | None" = None
    _cancelled: bool = False

    def stop(self) -> None:
        """The work is over."""
        if self._task is None:
            self._heartbeats.live.pop(self, None)
        else:
            self._task.cancel()

    def claim_lost(self) -> bool:
        """Whether the cancellation that is under way is this heartbeat's own, for a lost claim."""
        if not self._cancelled or self._work is None:
            return False
        return self._work.uncancel() <= self._cancelling

    def begin(self) -> None:
        """Renew the lease until the work is over or the claim is lost."""
        self._task = self._heartbeats.loop.create_task(self._beat())

    async def _beat(self) -> None:
        import asyncio

        RENEWING.set(True)  # in the context of this task, and of those that it creates
        run, clock, store = self.run, self._heartbeats.clock, self._heartbeats.store
        renewals: set[asyncio.Task[None]] = set()  # a loop itself holds its tasks only weakly
        while not run.lost:
            await asyncio.sleep(run.due - clock.monotonic())
            run.sending()
            # A task of its own: a renewal that hangs must keep neither the next one nor the deadline waiting.
            steps = beat(self._ledger, run, clock)
            renewal = self._heartbeats.loop.create_task(
                adrive(steps, store, self._ledger.events.failed), name="semel-renewal"
            )
            renewals.add(renewal)
            renewal.add_done_callback(renewals.discard)
            await asyncio.wait({renewal}, timeout=min(run.due, run.deadline) - clock.monotonic())
        if self._work is not None:
            self._cancelled = self._work.cancel()
        _warn(self._ledger, run, "the lease could not be renewed; the work is cancelled")
