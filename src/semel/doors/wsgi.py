"""WSGI: `app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, idempotency)`, for Flask and any other.

The whole request is read before anything is claimed. A response in one piece is written down first and sent
then; one that streams goes to the client as it comes, and only its end waits for the ledger.
"""

import io
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from itertools import chain
from operator import length_hint
from typing import Any, Final, Self, TypeAlias

from semel.doors.http.exchange import Exchange, claim
from semel.doors.http.field import read_length
from semel.doors.http.policy import Idempotency, RequestHead
from semel.doors.http.publish import page_of
from semel.doors.http.responses import WITHOUT_BODY, HTTPResponse

__all__ = ["IdempotencyMiddleware"]

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
WSGIApp: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

WANTED: Final = {
    "HTTP_IDEMPOTENCY_KEY": "idempotency-key",
    "HTTP_IDEMPOTENCY_EXPIRY_SECONDS": "idempotency-expiry-seconds",
    "CONTENT_LENGTH": "content-length",
}


class IdempotencyMiddleware:
    """Keeps a policy for every request of an application; place it inside what authenticates."""

    def __init__(self, app: WSGIApp, idempotency: Idempotency) -> None:
        self.app = app
        self.idempotency = idempotency

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        idempotency = self.idempotency
        if not idempotency.protects(environ["REQUEST_METHOD"]):
            page = _page(idempotency, environ)
            if page is None:
                return self.app(environ, start_response)
            return respond(page, start_response, head=environ["REQUEST_METHOD"] == "HEAD")
        claimed = claim(idempotency, request_of(environ, environ), partial(read, environ))
        if claimed is None:
            return self.app(environ, start_response)
        if isinstance(claimed, HTTPResponse):
            return respond(claimed, start_response)
        body = claimed.body
        known = environ | {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return _Begun(_run(claimed, self.app, known, start_response))


def _run(
    exchange: Exchange, app: WSGIApp, environ: Environ, start_response: StartResponse
) -> Generator[bytes, None, None]:
    """Let an application answer, and write down what it answers."""
    head = ResponseHead(start_response)
    try:
        made = exchange.attempt(partial(head.begin, app, environ))
        if isinstance(made, HTTPResponse):
            yield from respond(made, start_response)
        else:
            yield from _answered(exchange, head, *made)
    except BaseException as error:
        if exchange.is_open:
            exchange.end(error)
        raise
    finally:
        if hasattr(head.chunks, "close"):
            head.chunks.close()
        exchange.leave()


def _begin(pieces: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first piece, and the rest; where there is none, the rest can tell that it is empty."""
    try:
        return next(pieces), pieces
    except StopIteration:
        return b"", iter(())


class ResponseHead:
    """The head of a response, which the application may change until it is sent."""

    def __init__(self, start_response: StartResponse) -> None:
        self.start_response = start_response
        self._sent = False
        self._status = ""
        self.headers: list[tuple[str, str]] = []
        self.written: list[bytes] = []
        self.chunks: Iterable[bytes] = ()

    def begin(self, app: WSGIApp, environ: Environ) -> tuple[int, bytes, Iterator[bytes]]:
        """Have an application answer: the status, the body as far as it is made, and the rest of it."""
        self.chunks = app(environ, self.start)
        first, rest = _begin(iter(self.chunks))
        return self._code(), b"".join([*self.written, first]), rest

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """What the application calls; too late, it raises what the application is sorry for (PEP 3333)."""
        if self._sent and exc_info:
            raise exc_info[1].with_traceback(exc_info[2])
        self._status, self.headers = status, headers
        return self.written.append

    def _code(self) -> int:
        if not self._status:
            raise RuntimeError("the application gave no response: it did not call start_response")
        return int(self._status[:3])

    def send(self) -> None:
        """Let it go."""
        self._sent = True
        self.start_response(self._status, self.headers)


def _answered(
    exchange: Exchange, head: ResponseHead, code: int, first: bytes, rest: Iterator[bytes]
) -> Iterator[bytes]:
    if code in WITHOUT_BODY:
        rest = iter(list(rest)[:0])  # the client has all of it with the head
    if not _is_whole(head.headers, first, rest):
        head.send()
        yield from exchange.stream(code, head.headers, chain([first], rest))
        return
    answer = exchange.keep(code, head.headers, first)
    if answer is not None:
        yield from respond(answer, head.start_response)
        return
    head.send()
    yield first


def _is_whole(headers: list[tuple[str, str]], first: bytes, rest: Iterator[bytes]) -> bool:
    """Whether there is no more to come: a list of pieces tells, and so does Content-Length."""
    if length_hint(rest, 1) == 0:
        return True
    return ("content-length", str(len(first))) in [(name.lower(), value) for name, value in headers]


class _Begun:
    """A response whose first piece is made already: closing it then ends what was begun."""

    def __init__(self, pieces: Generator[bytes, None, None]) -> None:
        self._pieces = pieces
        self._first = [next(pieces)]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        return self._first.pop() if self._first else next(self._pieces)

    def close(self) -> None:
        """The server wants no more of it; what is left is made all the same."""
        self._pieces.close()


def read(environ: Environ, max_bytes: int) -> bytes | None:
    """The body of a request; None where it is larger than it may be."""
    length = read_length(environ.get("CONTENT_LENGTH"))
    # Without a length, only a server that ends the stream itself can be read to the end.
    ends = environ.get("wsgi.input_terminated", False)
    wanted = length if length is not None else max_bytes + 1 if ends else 0
    left, pieces = min(wanted, max_bytes + 1), []
    while left > 0 and (piece := environ["wsgi.input"].read(left)):
        pieces.append(piece)
        left -= len(piece)
    if left > 0 and length is not None:
        raise BrokenOff("the client went away before it had sent its request")
    body = b"".join(pieces)
    return None if len(body) > max_bytes else body


class BrokenOff(ConnectionError):
    """A request is not whole, and nobody is there any more to be told so."""


def request_of(environ: Environ, native: Any) -> RequestHead:
    """A request as the policy reads it."""
    found = {low: environ[name] for name, low in WANTED.items() if name in environ}
    root = environ.get("SCRIPT_NAME", "")
    path = root + environ.get("PATH_INFO", "")
    return RequestHead(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), found, native, root)


def _page(idempotency: Idempotency, environ: Environ) -> HTTPResponse | None:
    if not idempotency.may_have_page(environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")):
        return None
    return page_of(idempotency, request_of(environ, environ))


def respond(answer: HTTPResponse, start_response: StartResponse, *, head: bool = False) -> Iterable[bytes]:
    """Send an answer."""
    start_response(f"{answer.status} {_phrase(answer.status)}", list(answer.headers))
    return [b"" if head else answer.body]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
