"""HTTP/1.1 as far as AWS uses it: parses a response from the bytes as they arrive.

There is no I/O in here. A thread's socket and an event loop's transport feed the same `Reader`.
"""

import re

import msgspec

# Far more than any answer of these services has.
MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024
WITHOUT_BODY = frozenset({204, 304})

_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: |$)")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,10}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")


class MalformedResponse(Exception):
    """What came is no answer, or not a whole one."""


class HttpResponse(msgspec.Struct):
    """A whole answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    # Whether another request may follow on the same connection.
    reusable: bool
    # On the monotonic clock, by whoever sent the request.
    sent: float = 0.0
    received: float = 0.0


class BodyReader:
    """How the end of an answer is found."""

    extra = False
    """Whether more came than the answer has."""

    def feed(self, data: bytes) -> bytes | None:
        """Take what has come; the whole, once it is there."""
        raise NotImplementedError

    def end(self) -> bytes | None:
        """The whole, if it is one now that no more will come; most are cut off then."""
        return None


class Sized(BodyReader):
    """So many bytes, as Content-Length says."""

    def __init__(self, size: int) -> None:
        self._missing = size
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> bytes | None:
        """Take what has come; the whole, once it is there."""
        self.extra: bool = len(data) > self._missing
        if self.extra:
            data = data[: self._missing]
        self._missing -= len(data)
        if not self._parts and not self._missing:
            return data
        self._parts.append(data)
        return None if self._missing else b"".join(self._parts)


class Endless(BodyReader):
    """Everything up to the end of the connection."""

    extra = True

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> bytes | None:
        """Take what has come."""
        _check_size(len(self._data) + len(data))
        self._data += data
        return None

    def end(self) -> bytes | None:
        """The whole."""
        return bytes(self._data)


class Chunked(BodyReader):
    """Pieces, each with its size before it, and an empty one at the end."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._whole = bytearray()
        self._size: int | None = None

    def feed(self, data: bytes) -> bytes | None:
        """Take what has come; the whole, once it is there."""
        self._data += data
        while self._size != 0:
            if not self._next_piece():
                return None
        return self._after_trailers()

    def _next_piece(self) -> bool:
        if self._size is None:
            line = self._line()
            if line is None:
                return False
            found = _CHUNK.fullmatch(line)
            if found is None:
                raise MalformedResponse(f"{line[:40]!r} is no size of a chunk")
            self._size = int(found[1], 16)
            _check_size(len(self._whole) + self._size)
            return True
        if len(self._data) < self._size + 2:
            return False
        if self._data[self._size : self._size + 2] != b"\r\n":
            raise MalformedResponse("a chunk does not end where it says")
        self._whole += self._data[: self._size]
        del self._data[: self._size + 2]
        self._size = None
        return True

    def _after_trailers(self) -> bytes | None:
        while (line := self._line()) is not None:
            if not line:
                self.extra: bool = bool(self._data)
                return bytes(self._whole)
        return None

    def _line(self) -> bytes | None:
        end = self._data.find(b"\r\n")
        if end < 0:
            if len(self._data) > MAX_HEAD:
                raise MalformedResponse("a line has no end")
            return None
        line = bytes(self._data[:end])
        del self._data[: end + 2]
        return line


class Reader:
    """Puts one answer together."""

    def __init__(self, *, tunnel: bool = False) -> None:
        self._tunnel = tunnel
        self._data = b""
        self._answer: HttpResponse | None = None
        self._body: BodyReader = Sized(0)

    def feed(self, data: bytes) -> HttpResponse | None:
        """Take what has come; the answer, once it is whole."""
        while self._answer is None:
            self._data += data
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                self._check_beginning()
                return None
            self._begin(self._data[:end].decode("latin-1"))
            data, self._data = self._data[end + 4 :], b""
        return self._finish(self._body.feed(data))

    def end(self) -> HttpResponse:
        """The answer, now that no more will come."""
        if self._answer is None:
            raise MalformedResponse(
                "the connection was closed in the middle of the answer" if self._data else CLOSED
            )
        answer = self._finish(self._body.end())
        if answer is None:
            raise MalformedResponse("the connection was closed in the middle of the answer")
        return answer

    def _finish(self, body: bytes | None) -> HttpResponse | None:
        if body is None or self._answer is None:
            return None
        self._answer.body = body
        self._answer.reusable = self._answer.reusable and not self._body.extra
        return self._answer

    def _begin(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        found = _STATUS.match(first)
        if found is None:
            raise MalformedResponse(f"it begins with {first[:60]!r}, which is not HTTP")
        status = int(found[2])
        if status < 200:  # more is to come
            return
        headers = _headers(lines)
        kept = headers.get("connection", "keep-alive" if found[1] == "1" else "close").lower()
        self._answer = HttpResponse(status, headers, b"", kept == "keep-alive")
        self._body = Sized(0) if self._tunnel or status in WITHOUT_BODY else _body(headers)

    def _check_beginning(self) -> None:
        if not self._data.startswith(b"HTTP/"[: len(self._data)]):
            raise MalformedResponse(f"it begins with {self._data[:60]!r}, which is not HTTP")
        if len(self._data) > MAX_HEAD:
            raise MalformedResponse("its headers have no end")


CLOSED = "the connection was closed without an answer"


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise MalformedResponse(f"{line[:60]!r} is no header")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _body(headers: dict[str, str]) -> BodyReader:
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked" or "content-length" in headers:
            raise MalformedResponse(f"it is sent as {coding!r}, and that cannot be read")
        return Chunked()
    length = headers.get("content-length")
    if length is None:
        return Endless()
    if not _LENGTH.fullmatch(length):
        raise MalformedResponse(f"its length is {length[:40]!r}, which is no number")
    _check_size(int(length))
    return Sized(int(length))


def _check_size(size: int) -> None:
    if size > MAX_BODY:
        raise MalformedResponse(f"it is larger than {MAX_BODY} bytes")
