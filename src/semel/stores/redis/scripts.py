"""The Lua scripts, each in a file of its own: their texts and digests, their arguments and their replies."""

import hashlib
from collections.abc import Sequence
from importlib import resources
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import msgspec


class Script(msgspec.Struct, frozen=True):
    """A script's text, and the digest by which a server that has seen it knows it."""

    text: bytes
    digest: bytes


def _script(name: str) -> Script:
    text = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
    # Redis names scripts so; nothing is kept secret by it.
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


DOUBT = _script("doubt")
INDEX = _script("index")
OPEN = _script("open")
PAGE = _script("page")
READ = _script("read")
WRITE = _script("write")

# Arguments


class Bounds(NamedTuple):
    """How a range of a sorted set is read."""

    command: bytes
    first: bytes
    last: bytes

    def beyond(self, member: bytes) -> "Bounds":
        """The rest of the range after this one."""
        return self._replace(first=b"(" + member)


def time_argument(now: float | None) -> bytes:
    """The time that a script goes by; nothing leaves it to the server."""
    return b"" if now is None else repr(now).encode()


ScriptCondition: TypeAlias = tuple[Any, ...]
# Arguments of a script that MessagePack as Redis speaks it cannot carry.
Binary: TypeAlias = list[bytes]


# What is left out here is nil there.


class ScriptWrite(msgspec.Struct, omit_defaults=True):
    """One write, as write.lua takes it."""

    make: str
    expires: str
    when: ScriptCondition | None = None
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
    still: ScriptCondition | None = None
    """What has to be so, or the write is not made and has to be planned anew."""


class ScriptBatch(msgspec.Struct, omit_defaults=True):
    """Several writes, and how they are made, as write.lua takes them."""

    writes: Sequence[ScriptWrite]
    publish: str
    now: float | None = None
    together: bool = False
    confirm: bool = False
    late: float | None = None
    """From when on it is too late to make them."""


class WriteSettings(msgspec.Struct, frozen=True):
    """How a store has all its writes made."""

    publish: str = "PUBLISH"
    confirm: bool = False
    cluster: bool = False


ENCODER = msgspec.msgpack.Encoder()
HEAD = msgspec.msgpack.Decoder(tuple[float, list[int | list[int]]])

REFUSED, MADE, AGAIN = 0, 1, 2


class ScriptOutcome(NamedTuple):
    """What became of one write or reading: whether it was made, and the item's names and values, if any."""

    made: bool
    flat: list[bytes] | None
    again: bool = False
    """It was not made, and has to be planned anew: the item is not what it was thought to be."""


WITHOUT_ITEM = [ScriptOutcome(state == MADE, None, state == AGAIN) for state in (REFUSED, MADE, AGAIN)]


def outcomes(reply: Any) -> tuple[float, list[ScriptOutcome]]:
    """The time, and what became of each."""
    head, body = (reply, b"") if type(reply) is bytes else reply[:2]
    now, each = HEAD.decode(head)
    start, found = 0, []
    for outcome in each:
        if type(outcome) is int:
            found.append(WITHOUT_ITEM[outcome])
            continue
        state, *lengths = outcome  # type: ignore[misc]  # it is a list
        *starts, end = accumulate(lengths, initial=start)
        flat = [body[one : one + length] for one, length in zip(starts, lengths)]  # noqa: B905 - in every replay
        start = end
        found.append(ScriptOutcome(state == MADE, flat, state == AGAIN))
    return now, found
