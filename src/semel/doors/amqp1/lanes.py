"""Which message may begin: no I/O, no clock, no thread.

Messages of one group are begun one at a time and in the order in which they came, others side by side.
"""

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Any


class Item:
    """A message in hand."""

    __slots__ = ("group", "message", "number", "tries")

    def __init__(self, number: int, message: Any, group: Hashable) -> None:
        self.number = number
        """Its place in the order in which messages came."""
        self.message = message
        self.group = group
        self.tries = 0
        """How often it was handled here and has to be again."""

    def __lt__(self, other: "Item") -> bool:
        return self.number < other.number


class Lanes:
    """The messages in hand, in order."""

    def __init__(self) -> None:
        self._ready: list[Item] = []
        # The messages of a group; the first of them is ready, under way, or held for a while.
        self._groups: dict[Hashable, deque[Item]] = {}

    def arrive(self, item: Item) -> None:
        """A message has come."""
        if item.group is not None:
            lane = self._groups.setdefault(item.group, deque())
            lane.append(item)
            if len(lane) > 1:
                return
        heapq.heappush(self._ready, item)

    def next(self) -> Item | None:
        """The first of those that may begin, which has begun herewith."""
        return heapq.heappop(self._ready) if self._ready else None

    def again(self, item: Item) -> None:
        """It has to be handled once more, before the others of its group."""
        heapq.heappush(self._ready, item)

    def leave(self, item: Item) -> None:
        """It is settled: the next of its group may begin."""
        if item.group is None:
            return
        lane = self._groups[item.group]
        lane.popleft()
        if lane:
            heapq.heappush(self._ready, lane[0])
        else:
            del self._groups[item.group]

    def clear(self) -> None:
        """They are no longer in hand."""
        self._ready.clear()
        self._groups.clear()
