"""Answers of a server, read from bytes: what RESP, Redis' protocol, has of them.

The driver reads them too, a line at a time. An answer to a command of ours is short and comes in one piece,
and is then read for a third of the time.
"""

from typing import Any, TypeAlias

from redis._parsers import BaseParser

# An answer, and where it ends; None while a part of it has not come yet.
Read: TypeAlias = tuple[Any, int] | None


def read(data: bytes, start: int = 0) -> Read:
    """The answer that begins here; an error of the server's is an exception, and is not raised."""
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
    return (word if kind == TEXT else _error(word.decode(errors="replace"))), end


BULK, ARRAY, NUMBER, TEXT = b"$*:+"


def _array(data: bytes, start: int, size: int) -> Read:
    items: list[Any] = []
    for _ in range(size):
        item = read(data, start)
        if item is None:
            return None
        start = item[1]
        items.append(item[0])
    return (items if size >= 0 else None), start


def _error(text: str) -> Exception:
    # The driver knows which class each word stands for.
    error: Exception = BaseParser.parse_error(text)  # type: ignore[no-untyped-call]
    return error
