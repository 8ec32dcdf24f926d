"""Which node of a cluster has which keys."""

from bisect import bisect_right
from typing import Any

from redis.crc import key_slot

from semel.stores.redis.address import Node

__all__ = ["Slots", "key_slot"]


class Slots:
    """The slots of a cluster, as one of its nodes told, and what was learned since."""

    def __init__(self, ranges: list[tuple[int, int, Node]]) -> None:
        self._ranges = sorted(ranges, key=lambda each: each[0])
        self._starts = [start for start, _, _ in self._ranges]
        self._moved: dict[int, Node] = {}

    @classmethod
    def told(cls, reply: list[Any], by: Node) -> "Slots":
        """From an answer to CLUSTER SLOTS; a node without a name is the one that was asked."""
        ranges = []
        for start, end, (host, port, *_), *_replicas in reply:
            ranges.append((start, end, Node((host or b"").decode() or by.host, port)))
        return cls(ranges)

    def owner(self, key: bytes) -> Node | None:
        """The node that has a key; None where nobody does."""
        slot = key_slot(key)
        if slot in self._moved:
            return self._moved[slot]
        place = bisect_right(self._starts, slot) - 1
        if place < 0:
            return None
        _, end, node = self._ranges[place]
        return node if slot <= end else None

    def move(self, slot: int, node: Node) -> None:
        """A node said that another one has this slot now."""
        self._moved[slot] = node

    @property
    def nodes(self) -> list[Node]:
        """Every node that has slots, in one order."""
        return sorted({node for _, _, node in self._ranges} | set(self._moved.values()), key=str)
