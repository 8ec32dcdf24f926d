"""HTTP/1.1 as far as AWS uses it: parses a response from the bytes as they arrive.

There is no I/O in here. A thread's socket and an event loop's transport feed the same `Reader`.
"""

import re

import msgspec

# Far more than any response of these services has.
MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024
WITHOUT_BODY = frozenset({204, 304})
# In place of the size of a body.
CHUNKED, UNTIL_CLOSED = -1, -2

CLOSED = "the connection was closed without a response"
CUT_OFF = "the connection was closed in the middle of the response"

_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?(?=\r\n|\Z)")
_HEADER = re.compile(r"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)(?=\r\n|\Z)")
_LENGTH = re.compile(r"[0-9]{1,10}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")


class MalformedResponse(Exception):
    """The received bytes are not an HTTP response, or not a complete one."""


class HttpResponse(msgspec.Struct):
    """A complete response; header names are in lower case."""

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

    __slots__ = ("_chunks", "_data", "_head", "_response", "_size", "_trailers", "_tunnel")

    def __init__(self, *, tunnel: bool = False) -> None:
        self._tunnel = tunnel
        self._head = b""
        self._response: HttpResponse | None = None
        self._size = 0
        self._data = bytearray()
        self._chunks = bytearray()
        self._trailers = False

    def feed(self, data: bytes) -> HttpResponse | None:
        """Add bytes that have arrived; return the response once it is complete."""
        if self._response is None:
            data = self._read_head(self._head + data)
        response = self._response
        if response is None:
            return None
        if len(data) == self._size and not self._data:  # the whole body came at once, as it usually does
            response.body = data
            return response
        self._data += data
        if self._size == CHUNKED:
            return self._read_chunks(response)
        if self._size == UNTIL_CLOSED:
            _check_size(len(self._data))
            return None
        extra = len(self._data) - self._size
        return None if extra < 0 else self._complete(response, self._data[: self._size], extra)

    def end(self) -> HttpResponse:
        """Return the response, now that the connection is closed."""
        if self._response is None or self._size != UNTIL_CLOSED:
            raise MalformedResponse(CUT_OFF if self._response or self._head else CLOSED)
        return self._complete(self._response, self._data, 1)

    def _complete(self, response: HttpResponse, body: bytearray, extra: int) -> HttpResponse:
        response.body = bytes(body)
        response.reusable = response.reusable and not extra
        return response

    def _read_head(self, data: bytes) -> bytes:
        """Read up to the end of the head, if that has arrived, and return what follows it."""
        while True:
            first, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                break
            head = first.decode("latin-1")
            found = _STATUS.match(head)
            if found is None:
                raise MalformedResponse(f"it begins with {head[:60]!r}, which is not HTTP")
            status = int(found[2])
            if status >= 200:
                headers = _headers(head, found.end())
                kept = headers.get("connection", "keep-alive" if found[1] == "1" else "close").lower()
                self._response = HttpResponse(status, headers, b"", kept == "keep-alive")
                if not (self._tunnel or status in WITHOUT_BODY):
                    self._size = _body_size(headers)
                return rest
            data = rest  # a preliminary response
        if not data.startswith(b"HTTP/"[: len(data)]):
            raise MalformedResponse(f"it begins with {data[:60]!r}, which is not HTTP")
        if len(data) > MAX_HEAD:
            raise MalformedResponse("its headers have no end")
        self._head = data
        return b""

    def _read_chunks(self, response: HttpResponse) -> HttpResponse | None:
        """Read pieces, each with its size before it, up to an empty one and the trailers after it."""
        data = self._data
        while (end := data.find(b"\r\n")) >= 0:
            line, begin = bytes(data[:end]), end + 2
            if self._trailers:
                del data[:begin]
                if not line:
                    return self._complete(response, self._chunks, len(data))
                continue
            if (found := _CHUNK.fullmatch(line)) is None:
                raise MalformedResponse(f"{line[:40]!r} is not the size of a chunk")
            size = int(found[1], 16)
            _check_size(len(self._chunks) + size)
            if size == 0:
                self._trailers = True
                del data[:begin]
                continue
            if len(data) < begin + size + 2:
                return None
            if data[begin + size : begin + size + 2] != b"\r\n":
                raise MalformedResponse("a chunk does not end where it says")
            self._chunks += data[begin : begin + size]
            del data[: begin + size + 2]
        if len(data) > MAX_HEAD:
            raise MalformedResponse("a line has no end")
        return None


def _headers(head: str, begin: int) -> dict[str, str]:
    found = _HEADER.findall(head, begin)
    if len(found) != head.count("\r\n", begin):
        raise MalformedResponse(f"a line of {head[begin : begin + 200]!r} is not a header")
    headers: dict[str, str] = {}
    for name, value in found:
        name, value = name.lower(), value.rstrip(" \t")  # noqa: PLW2901
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _body_size(headers: dict[str, str]) -> int:
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise MalformedResponse(f"it is sent as {coding!r}, which cannot be read")
        return CHUNKED
    if length is None:
        return UNTIL_CLOSED
    if not _LENGTH.fullmatch(length):
        raise MalformedResponse(f"its length is {length[:40]!r}, which is not a number")
    if (size := int(length)) > MAX_BODY:
        _check_size(size)
    return size


def _check_size(size: int) -> None:
    if size > MAX_BODY:
        raise MalformedResponse(f"it is larger than {MAX_BODY} bytes")
