"""Commands for a server, as they are sent."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from semel.stores.redis.address import Node
from semel.stores.redis.scripts import Script


class Ask(msgspec.Struct, frozen=True):
    """One command for the server that has its key; `rest` is what follows a script's text or digest."""

    key: bytes
    rest: tuple[bytes, ...]
    script: Script | None = None

    def packed(self, taught: bool = True) -> bytes:
        """The command as it is sent, with the script itself to a server that does not know it yet."""
        if self.script is None:
            return packed(self.rest)
        if taught:
            return packed((b"EVALSHA", self.script.digest, *self.rest))
        return packed((b"EVAL", self.script.text, *self.rest))


class Exchange(msgspec.Struct, frozen=True):
    """Bytes for one server, and how many answers they have."""

    node: Node
    data: bytes
    count: int
    writes: bool = False
    """Whether what is lost may have been made."""


def packed(words: Sequence[bytes]) -> bytes:
    """A command in the protocol of Redis."""
    return b"".join([b"*%d\r\n" % len(words), *[b"$%d\r\n%b\r\n" % (len(word), word) for word in words]])


class Bounds(NamedTuple):
    """How a range of a sorted set is read."""

    command: bytes
    first: bytes
    last: bytes

    def beyond(self, member: bytes) -> "Bounds":
        """The rest of the range after this one."""
        return self._replace(first=b"(" + member)


def told(now: float | None) -> bytes:
    """The time as a script is told; nothing leaves it to the server."""
    return b"" if now is None else repr(now).encode()
