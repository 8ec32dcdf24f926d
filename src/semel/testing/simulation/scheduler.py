"""Time and chance: what happens next, and what has happened so far."""

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from semel.testing.clock import FakeClock
from semel.testing.simulation.rng import SeededRandom
from semel.testing.simulation.trace import InvariantViolation, Trace

# Far more than any world needs that goes on: what is still busy then is stuck.
TOO_MANY_STEPS = 5000


class Scheduler:
    """Lets things happen one after the other, each at its time."""

    REPLAY = "python -m semel.testing.simulate --seed {}"
    """The command that runs the world of a seed."""

    def __init__(self, seed: int, listener: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.tally: Counter[str] = Counter()
        self.trace: Trace = Trace(listener)
        self.rng: SeededRandom = SeededRandom(seed)
        self.random: Callable[[], float] = self.rng.random
        self.clock: FakeClock = FakeClock()
        self.now: float = 0.0
        self.planned: int = 0
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def later(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """Plan something."""
        self.planned += 1
        heapq.heappush(self._queue, (self.now + seconds, self.planned, act, args))

    def until_quiet(self) -> None:
        """Let happen what is planned, and what comes of it, until nothing is left."""
        queue, clock = self._queue, self.clock
        limit = self.planned + TOO_MANY_STEPS
        while queue:
            time, _, act, args = heapq.heappop(queue)
            clock.advance(time - self.now)
            self.now = time
            act(*args)
            if self.planned > limit:
                self.fail("progress", f"still busy after {TOO_MANY_STEPS} steps")

    def fail(self, invariant: str, what: str) -> NoReturn:
        """An invariant does not hold."""
        raise self.violation(invariant, what)

    def violation(self, invariant: str, what: str) -> InvariantViolation:
        """The error that tells how this world came to break an invariant."""
        return InvariantViolation(invariant, what, self.seed, str(self.trace), self.REPLAY)

    def jump(self, seconds: float) -> None:
        """Set the clock."""
        self.note("clock", f"jumps {seconds:+.3f}")
        self.count("clock set forward" if seconds > 0 else "clock set back")
        self.clock.jump(seconds)

    def count(self, what: str) -> None:
        """Count it."""
        self.tally[what] += 1

    def note(self, who: str, what: str, detail: Any = "") -> None:
        """Remember a step for the trace."""
        self.trace.add(self.now, who, what, detail)
