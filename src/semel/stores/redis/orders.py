"""What write.lua is told, and what scripts answer."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

Clause: TypeAlias = tuple[Any, ...]
# Arguments of a script that MessagePack as Redis speaks it cannot carry.
Binary: TypeAlias = list[bytes]


# What is left out here is nil there.


class Order(msgspec.Struct, omit_defaults=True):
    """One write."""

    make: str
    expires: str
    when: Clause | None = None
    set: dict[str, Any] = {}
    gone: Sequence[str] = ()
    once: dict[str, Any] = {}
    count: str | None = None
    by: float | str | None = None
    member: str | None = None
    score: int | None = None
    entries: Sequence[tuple[int, str]] = ()
    """What to enter into indexes: the place of the first of an index's keys, and what is entered there."""
    entered: bool = False
    """Whether indexes lead to the item that it leaves, by these entries or by others."""
    still: Clause | None = None
    """What has to be so, or the write is not made and has to be thought over."""


class Orders(msgspec.Struct, omit_defaults=True):
    """Several writes, and how they are made."""

    writes: Sequence[Order]
    publish: str
    now: float | None = None
    together: bool = False
    confirm: bool = False
    late: float | None = None
    """From when on it is too late to make them."""


class Manner(msgspec.Struct, frozen=True):
    """How a store has all its writes made."""

    publish: str = "PUBLISH"
    confirm: bool = False
    cluster: bool = False


ENCODER = msgspec.msgpack.Encoder()
HEAD = msgspec.msgpack.Decoder(tuple[float, list[int | list[int]]])

REFUSED, MADE, AGAIN = 0, 1, 2


class Outcome(NamedTuple):
    """What became of one write or reading: whether it was made, and the item's names and values, if any."""

    made: bool
    flat: list[bytes] | None
    again: bool = False
    """It was not made, and has to be thought over: the item is not what it was thought to be."""


def outcomes(reply: Any) -> tuple[float, list[Outcome]]:
    """The time, and what became of each."""
    head, body = (reply, b"") if type(reply) is bytes else reply[:2]
    now, each = HEAD.decode(head)
    start, found = 0, []
    for outcome in each:
        if type(outcome) is int:
            found.append(Outcome(outcome == MADE, None, outcome == AGAIN))
            continue
        flat = []
        for length in outcome[1:]:  # type: ignore[index]  # it is a list
            end = start + length
            flat.append(body[start:end])
            start = end
        found.append(Outcome(outcome[0] == MADE, flat, outcome[0] == AGAIN))  # type: ignore[index]
    return now, found
