"""Which lanes a worker is in, which come next, and which are left alone: no I/O, no clock, no thread."""

import heapq
from collections.abc import Iterable
from math import inf

# While so many lanes are in line, no more are taken in: they are found again later.
AHEAD = 100


class Line:
    """The lanes of one worker; whoever asks holds its lock."""

    def __init__(self) -> None:
        self._ready: dict[str, None] = {}
        self._entered: set[str] = set()
        self._rung: set[str] = set()
        """Lanes that got something while somebody was in them."""
        self._resting: dict[str, float] = {}
        self._ends: list[tuple[float, str]] = []
        """The same by when it ends; also rests that were since replaced."""
        self._still_until = -inf
        """Before this nothing is begun at all."""

    @property
    def has_room(self) -> bool:
        """Whether it is worth looking for more."""
        return len(self._ready) < AHEAD

    def ring(self, lanes: Iterable[str]) -> None:
        """Something was put into these."""
        for lane in lanes:
            if lane in self._entered:
                self._rung.add(lane)
            elif lane not in self._resting and self.has_room:
                self._ready[lane] = None

    def knows(self, lane: str) -> bool:
        """Whether it is in line, or left alone, or somebody is in it."""
        return lane in self._ready or lane in self._entered or lane in self._resting

    def find(self, lane: str) -> None:
        """Something was seen in this one, of which nobody here knew."""
        self._ready[lane] = None

    def rest(self, lane: str, until: float) -> None:
        """Leave this one alone until then, or for longer where that was said before."""
        until = max(until, self._resting.get(lane, until))
        self._ready.pop(lane, None)
        self._resting[lane] = until
        heapq.heappush(self._ends, (until, lane))

    def stand_still(self, until: float) -> None:
        """Begin nothing until then, or for longer where that was said before."""
        self._still_until = max(until, self._still_until)

    def wake(self, now: float) -> bool:
        """Take those in whose rest is over, and go on after standing still; whether anything changed."""
        woken = self._still_until != -inf and self._still_until <= now
        if woken:
            self._still_until = -inf
        while self._ends and self._ends[0][0] <= now:
            until, lane = heapq.heappop(self._ends)
            if self._resting.get(lane) != until:
                continue
            del self._resting[lane]
            if lane in self._entered:
                self._rung.add(lane)  # whoever is in it is about to leave
            else:
                self._ready[lane] = None
            woken = True
        return woken

    @property
    def next_wake(self) -> float:
        """When that is the case at the earliest."""
        rest = self._ends[0][0] if self._ends else inf
        return rest if self._still_until == -inf else min(rest, self._still_until)

    def begin(self) -> str | None:
        """The lane that has been in line for longest, if there is one."""
        if not self._ready or self._still_until != -inf:
            return None
        lane = next(iter(self._ready))
        del self._ready[lane]
        self._entered.add(lane)
        return lane

    def end(self, lane: str, *, more: bool) -> None:
        """Nobody here is in it any more; it lines up again if there is `more`, or there may be by now."""
        self._entered.discard(lane)
        rung = lane in self._rung
        self._rung.discard(lane)
        if (more or rung) and lane not in self._resting:
            self._ready[lane] = None

    def __len__(self) -> int:
        """How many lanes it knows of."""
        return len(self._ready) + len(self._entered) + len(self._resting)
