"""A clock that a test moves: nothing sleeps, and an hour passes at once."""

import heapq
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.core.clock import Awaited, Clock

if TYPE_CHECKING:
    import asyncio

# Some moment in November 2023. A test that shows it in an error message shows a plausible date.
START = 1_700_000_000.0

# How often a waiting task lets the others run before time moves: enough for a task that is about to set
# the event, and for the callback by which another thread would.
COURTESY = 5


class FakeClock(Clock):
    """A clock that stands still until it is moved; waiting moves it.

        clock = FakeClock()
        s = semel.connect("memory:", clock=clock)
        clock.advance(31)  # a lease of 30 seconds is over

    Threads may share one.
    """

    def __init__(self, now: float = START) -> None:
        self._now = now
        self._monotonic = 0.0
        self._plans: list[tuple[float, int, Callable[[], object]]] = []
        self._planned = 0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds since the epoch, as far as this clock is concerned."""
        return self._now

    def steady(self) -> float:
        """Seconds since the epoch: this clock is as steady as whoever moves it."""
        return self._now

    def imposed(self) -> float:
        """Seconds since the epoch: where this clock is used, it is everybody's."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that were let pass; a jump does not count."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time does not pass backwards; to set the clock back, jump")
        end = self._monotonic + seconds
        while self._step(end):
            pass

    def jump(self, seconds: float) -> None:
        """Set the clock forward, or back, as an administrator or NTP may: no time passes."""
        with self._lock:
            self._now += seconds

    def schedule(self, seconds: float, action: Callable[[], object]) -> None:
        """Call this once so many seconds have passed, in whichever thread moves the clock so far."""
        with self._lock:
            self._planned += 1
            heapq.heappush(self._plans, (self._monotonic + seconds, self._planned, action))

    def wait(self, event: Awaited, seconds: float) -> None:
        """Let so many seconds pass at once, or as many as it takes until the event is set."""
        end = self._monotonic + max(0.0, seconds)
        while not event.is_set() and self._step(end):
            pass

    async def wait_async(self, event: "asyncio.Event", seconds: float) -> None:
        """Let so many seconds pass, or less if the event is set, after other tasks had a chance to run."""
        end = self._monotonic + max(0.0, seconds)
        while not await _soon(event) and self._step(end):
            pass

    def _step(self, end: float) -> bool:
        """Move to the next plan and carry it out, or move to the end; False when the end is reached."""
        with self._lock:
            plan = heapq.heappop(self._plans) if self._plans and self._plans[0][0] <= end else None
            moment = end if plan is None else plan[0]
            # Another thread may have moved further meanwhile.
            passed = max(0.0, moment - self._monotonic)
            self._now += passed
            self._monotonic += passed
        if plan is None:
            return False
        plan[2]()
        return True


async def _soon(event: "asyncio.Event") -> bool:
    import asyncio

    for _ in range(COURTESY):
        if event.is_set():
            return True
        await asyncio.sleep(0)
    return event.is_set()
