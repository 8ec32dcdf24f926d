"""RESP, the protocol of Redis, as far as semel speaks it: commands to bytes, and bytes to replies.

redis-py reads replies too, a line at a time. A reply to semel is short and comes in one piece, and is read
here in a third of the time.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from semel.stores.redis.address import Node
from semel.stores.redis.scripts import Script

# A reply, and where it ends; None while a part of it has not come yet.
Parsed: TypeAlias = tuple[Any, int] | None


class RedisCommand(msgspec.Struct, frozen=True):
    """One command for the server that has its key; `rest` is what follows a script's text or digest."""

    key: bytes
    rest: tuple[bytes, ...]
    script: Script | None = None

    def encode(self, script_known: bool = True) -> bytes:
        """The command as it is sent, with the script itself to a server that does not know it yet."""
        if self.script is None:
            return pack(self.rest)
        if script_known:
            return pack((b"EVALSHA", self.script.digest, *self.rest))
        return pack((b"EVAL", self.script.text, *self.rest))


class RedisRequest(msgspec.Struct, frozen=True):
    """Bytes for one server, and how many replies they have."""

    node: Node
    data: bytes
    count: int
    writes: bool = False
    """Whether what is lost may have been made."""


class ErrorReply(str):
    """The text of an error that the server replied."""

    __slots__ = ()


def pack(words: Sequence[bytes]) -> bytes:
    """A command as bytes."""
    return b"".join([b"*%d\r\n" % len(words), *[b"$%d\r\n%b\r\n" % (len(word), word) for word in words]])


def read(data: bytes, start: int = 0) -> Parsed:
    """The reply that begins here."""
    end = data.find(b"\r\n", start)
    if end < 0:
        return None
    kind, word, end = data[start], data[start + 1 : end], end + 2
    if kind == BULK:
        size = int(word)
        stop = end + size
        if size < 0:
            return None, end
        return (data[end:stop], stop + 2) if len(data) >= stop + 2 else None
    if kind == ARRAY:
        return _array(data, end, int(word))
    if kind == NUMBER:
        return int(word), end
    return (word if kind == TEXT else ErrorReply(word.decode(errors="replace"))), end


BULK, ARRAY, NUMBER, TEXT = b"$*:+"


def _array(data: bytes, start: int, size: int) -> Parsed:
    items: list[Any] = []
    for _ in range(size):
        item = read(data, start)
        if item is None:
            return None
        start = item[1]
        items.append(item[0])
    return (items if size >= 0 else None), start
