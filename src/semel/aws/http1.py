"""HTTP/1.1 as far as AWS uses it: parses a response from the bytes as they arrive, and does no I/O."""

import re
from collections.abc import Generator
from typing import TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
# Steps that are sent what arrives, and b"" at its end.
Arriving: TypeAlias = Generator[None, bytes, T]

# Far more than any response of these services has.
MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024
DIGITS = 10
WITHOUT_BODY = ("204", "304")
KEPT = "keep-alive"
# In place of the size of a body.
CHUNKED, UNTIL_CLOSED = -1, -2

CLOSED = "the connection was closed without a response"
CUT_OFF = "the connection was closed in the middle of the response"

_HEAD = re.compile(
    r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*)*+"
)
# The headers that are read.
_HEADER = re.compile(
    r"\r\n(connection|content-length|date|transfer-encoding|x-amz-crc32):[ \t]*([^\r\n]*[^\r\n \t])?",
    re.IGNORECASE,
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")


class MalformedResponse(Exception):
    """The received bytes are not an HTTP response, or not a complete one."""


class HttpResponse(msgspec.Struct):
    """A complete response; of its headers there are those that are read, by their names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    # Whether another request may follow on the same connection.
    reusable: bool
    # On the monotonic clock; the sender of the request sets them.
    sent: float = 0.0
    received: float = 0.0


class Reader:
    """Assembles one response."""

    __slots__ = ("_steps", "_tunnel")

    def __init__(self, *, tunnel: bool = False) -> None:
        self._tunnel = tunnel
        self._steps: Arriving[HttpResponse] | None = None

    def feed(self, data: bytes) -> HttpResponse | None:
        """Add bytes that have arrived, b"" at their end; return the response once it is complete."""
        if self._steps is None:
            head, end, body = data.partition(b"\r\n\r\n")
            if end:  # it is usually there as a whole
                response, size = _read_head(head)
                if size == len(body) and not self._tunnel and response.status >= 200:
                    response.body = body
                    return response
            self._steps = _assemble(self._tunnel)
            next(self._steps)
        try:
            self._steps.send(data)
        except StopIteration as complete:
            return complete.value  # type: ignore[no-any-return]
        return None


def _assemble(tunnel: bool) -> Arriving[HttpResponse]:
    data = bytearray()
    while True:
        response, size = _read_head((yield from _up_to(b"\r\n\r\n", data, start=b"HTTP/")))
        if response.status >= 200:  # others are preliminary
            break
    if tunnel:
        size = 0
    if size == UNTIL_CLOSED:
        while arrived := (yield):
            data += arrived
            _check_size(len(data))
        response.body, response.reusable = bytes(data), False
        return response
    response.body = yield from (_chunks(data) if size == CHUNKED else _exactly(size, data))
    response.reusable &= not data
    return response


def _chunks(data: bytearray) -> Arriving[bytes]:
    """Return pieces, each with its size before it, up to an empty one and the trailers after it."""
    body = bytearray()
    while True:
        line = yield from _up_to(b"\r\n", data)
        if (found := _CHUNK.fullmatch(line)) is None:
            raise MalformedResponse(f"{line[:40]!r} is not the size of a chunk")
        size = int(found[1], 16)
        if size == 0:
            break
        _check_size(len(body) + size)
        body += yield from _exactly(size, data)
        if (yield from _exactly(2, data)) != b"\r\n":
            raise MalformedResponse("a chunk does not end where it says")
    while (yield from _up_to(b"\r\n", data)):
        pass
    return bytes(body)


def _up_to(mark: bytes, data: bytearray, start: bytes = b"") -> Arriving[bytes]:
    """Take what stands before the mark, and the mark."""
    while (end := data.find(mark)) < 0:
        if not data.startswith(start[: len(data)]):
            raise MalformedResponse(f"it begins with {bytes(data[:60])!r}, which is not HTTP")
        if len(data) > MAX_HEAD:
            raise MalformedResponse("a line has no end")
        yield from _more(data, CLOSED if start and not data else CUT_OFF)
    taken = bytes(data[:end])
    del data[: end + len(mark)]
    return taken


def _exactly(size: int, data: bytearray) -> Arriving[bytes]:
    while len(data) < size:
        yield from _more(data, CUT_OFF)
    taken = bytes(data[:size])
    del data[:size]
    return taken


def _more(data: bytearray, otherwise: str) -> Arriving[None]:
    arrived = yield
    if not arrived:
        raise MalformedResponse(otherwise)
    data += arrived


def _read_head(data: bytes) -> tuple[HttpResponse, int]:
    """Return the response without its body, and the size of that."""
    head = data.decode("latin-1")
    found = _HEAD.fullmatch(head)
    if found is None:
        raise MalformedResponse(f"it begins with {head[:200]!r}, which is not HTTP")
    version, status = found.groups()
    headers: dict[str, str] = {}
    for name, value in _HEADER.findall(head):
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    kept = headers.get("connection", KEPT if version == "1" else "close")
    response = HttpResponse(int(status), headers, b"", kept is KEPT or kept.lower() == KEPT)
    if status in WITHOUT_BODY or status < "200":
        return response, 0
    return response, _body_size(headers.get("content-length"), headers.get("transfer-encoding"))


def _body_size(length: str | None, coding: str | None) -> int:
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise MalformedResponse(f"it is sent as {coding!r}, which cannot be read")
        return CHUNKED
    if length is None:
        return UNTIL_CLOSED
    if not (length.isdecimal() and length.isascii() and len(length) <= DIGITS):
        raise MalformedResponse(f"its length is {length[:40]!r}, which is not a number")
    size = int(length)
    return size if size <= MAX_BODY else _check_size(size)


def _check_size(size: int) -> int:
    if size > MAX_BODY:
        raise MalformedResponse(f"it is larger than {MAX_BODY} bytes")
    return size
