"""Which lanes may be begun, which somebody is in, and which rest: no I/O, no clock, no thread.

A lane holds what happens one after the other: the messages of a group, a partition, or one message alone.
"""

import heapq
import itertools
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

L = TypeVar("L", bound=Hashable)


class LaneScheduler(Generic[L]):
    """The lanes of one consumer; whoever asks holds its lock."""

    def __init__(self) -> None:
        self._ready: dict[L, None] = {}
        self._entered: set[L] = set()
        self._more: set[L] = set()
        """Lanes that got something while somebody was in them."""
        self._resting: dict[L, float] = {}
        self._ends: list[tuple[float, int, L]] = []
        """All rests by when they end, and also those that were since replaced."""
        self._numbers = itertools.count()
        self.paused_until: float = -inf
        """Before this nothing is begun at all."""

    @property
    def ready(self) -> int:
        """How many lanes may be begun."""
        return len(self._ready)

    @property
    def entered(self) -> int:
        """How many lanes somebody is in."""
        return len(self._entered)

    def knows(self, lane: L) -> bool:
        """Whether it may be begun, or rests, or somebody is in it."""
        return lane in self._ready or lane in self._entered or lane in self._resting

    def is_entered(self, lane: L) -> bool:
        """Whether somebody is in it."""
        return lane in self._entered

    def add(self, lane: L) -> None:
        """Something is in this lane."""
        if lane in self._entered:
            self._more.add(lane)
        elif lane not in self._resting:
            self._ready[lane] = None

    def rest(self, lane: L, until: float) -> None:
        """Leave this one alone until then, or for longer where that was said before."""
        until = max(until, self._resting.get(lane, until))
        self._ready.pop(lane, None)
        self._resting[lane] = until
        heapq.heappush(self._ends, (until, next(self._numbers), lane))

    def pause(self, until: float) -> None:
        """Begin nothing until then, or for longer where that was said before."""
        self.paused_until = max(until, self.paused_until)

    def wake(self, now: float) -> list[L]:
        """Go on with lanes whose rest is over, and after a pause with all; those that may be begun by it."""
        woken: list[L] = []
        if self.paused_until <= now:
            woken = list(self._ready) if self.paused_until != -inf else []
            self.paused_until = -inf
        while self._ends and self._ends[0][0] <= now:
            until, _, lane = heapq.heappop(self._ends)
            if self._resting.get(lane) == until:
                del self._resting[lane]
                self.add(lane)  # where somebody is in it, he is about to leave
                woken.append(lane)
        return woken

    @property
    def next_wake(self) -> float:
        """When that is the case at the earliest."""
        rest = self._ends[0][0] if self._ends else inf
        return rest if self.paused_until == -inf else min(rest, self.paused_until)

    def begin(self) -> L | None:
        """The lane that has been ready for longest, if there is one."""
        if not self._ready or self.paused_until != -inf:
            return None
        lane = next(iter(self._ready))
        del self._ready[lane]
        self._entered.add(lane)
        return lane

    def end(self, lane: L, *, more: bool) -> None:
        """Nobody is in it any more; it is ready again if there is `more`, or there may be by now."""
        self._entered.discard(lane)
        more = more or lane in self._more
        self._more.discard(lane)
        if more and lane not in self._resting:
            self._ready[lane] = None

    def forget(self, lane: L) -> None:
        """This lane is nobody's business any more."""
        self._ready.pop(lane, None)
        self._entered.discard(lane)
        self._more.discard(lane)
        self._resting.pop(lane, None)

    def __len__(self) -> int:
        """How many lanes it knows of."""
        return len(self._ready) + len(self._entered) + len(self._resting)
