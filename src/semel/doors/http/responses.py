"""Responses: problems of requests with an `Idempotency-Key`, and what is kept and given again."""

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from semel import errors
from semel.doors.http.field import read_length
from semel.doors.http.problems import ProblemDetails, problem_details, retry_after

Pairs: TypeAlias = list[tuple[str, str]]

REPLAYED: Final = "Idempotent-Replayed"
EXPIRES: Final = "Idempotency-Expires"
NOT_KEPT: Final = "Idempotency-Body"

# What describes a body, or where it is to be found. Whatever is personal to one request (cookies, tokens,
# traces) or made by the server for one connection is not here.
KEPT_HEADERS: Final = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-type",
    "etag",
    "last-modified",
    "link",
    "location",
    "retry-after",
    "vary",
)
ABOUT_THE_BODY: Final = frozenset(KEPT_HEADERS) - {"content-location", "link", "location", "retry-after"}
NEVER_KEPT: Final = frozenset(
    {"authentication-info", "authorization", "proxy-authorization", "set-cookie", "set-cookie2"}
)

ProblemType: TypeAlias = Literal[
    "key-missing",
    "key-malformed",
    "expiry-malformed",
    "body-too-large",
    "not-authenticated",
    "in-progress",
    "payload-changed",
    "outcome-unknown",
    "failed-before",
    "result-not-kept",
    "unavailable",
    "no-such-key",
]

# Each problem's status and title; they are published with the policy.
PROBLEMS: Final[dict[ProblemType, tuple[int, str]]] = {
    "key-missing": (400, "Idempotency-Key is missing"),
    "key-malformed": (400, "Idempotency-Key is malformed"),
    "expiry-malformed": (400, "Idempotency-Expiry-Seconds is not allowed as given"),
    "not-authenticated": (401, "A key belongs to somebody, and this request does not say to whom"),
    "no-such-key": (404, "No request with this key is known"),
    "in-progress": (409, "A request with this key is being worked on"),
    "outcome-unknown": (409, "What became of an earlier request with this key is not known yet"),
    "failed-before": (409, "The request with this key has failed for good"),
    "result-not-kept": (410, "The request with this key is done, and its response was not kept"),
    "body-too-large": (413, "The body is larger than this operation takes"),
    "payload-changed": (422, "This key was first used with another payload"),
    "unavailable": (503, "The ledger cannot be reached"),
}


class HTTPResponse(msgspec.Struct, frozen=True):
    """A whole response: status, headers and body."""

    status: int
    headers: Pairs
    body: bytes


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response as it is stored: text as text, so that people can read it."""

    status: int
    headers: Pairs
    text: str | None = None
    data: bytes | None = None
    size: int | None = None
    """The length of a body that was not kept."""

    @property
    def body(self) -> bytes | None:
        """The body byte for byte; None where it was not kept."""
        if self.text is not None:
            return self.text.encode()
        return self.data


def problem(
    name: ProblemType, base: str, detail: str, headers: Pairs | None = None, **more: Any
) -> HTTPResponse:
    """A problem of this type, and what more there is to tell; `base` is where the policy is published."""
    return problem_response(problem_details(PROBLEMS, name, base, detail, headers or (), **more), base)


def problem_later(
    name: ProblemType, base: str, detail: str, seconds: float, headers: Pairs | None = None, **more: Any
) -> HTTPResponse:
    """A problem that may be gone in so many seconds."""
    wait = retry_after(seconds)
    return problem(name, base, detail, [wait, *(headers or ())], **more, retry_after=int(wait[1]))


def problem_of(error: BaseException, base: str) -> HTTPResponse | None:
    """What an error means to every client alike; None where that depends on what was asked."""
    match error:
        case errors.PayloadChanged():
            detail = "Use a new key for a new request, or send the payload of the first time."
            return problem("payload-changed", base, detail)
        case errors.ResultNotKept(reason=reason) | errors.ResultUnreadable(reason=reason):
            return problem("result-not-kept", base, f"It will not run again ({reason}).")
    return None


def problem_response(details: ProblemDetails, base: str) -> HTTPResponse:
    """The response that tells a problem, and where the policy is published."""
    body = details.body()
    headers = [
        ("Content-Language", "en"),
        ("Content-Length", str(len(body))),
        ("Link", f'<{base}>; rel="describedby"; type="application/json"'),
        *details.all_headers(),
    ]
    return HTTPResponse(details.status, headers, body)


def replayed(kept: Kept, expires_at: float, base: str) -> HTTPResponse:
    """A kept response, given again."""
    headers = [(REPLAYED, "true"), (EXPIRES, _http_date(expires_at))]
    body = kept.body
    if body is not None:
        return HTTPResponse(kept.status, [*kept.headers, *_length(kept.status, body), *headers], body)
    # The status still tells how it ended: a client that took this for a failure might do it all again.
    headers.append((NOT_KEPT, "not-kept"))
    headers += [pair for pair in kept.headers if pair[0].lower() not in ABOUT_THE_BODY]
    detail = f"It was answered with {kept.status}; a body of {kept.size} bytes was more than is kept."
    return problem("result-not-kept", base, detail, headers, status=kept.status)


# These have no body, and so no length (RFC 9110, 8.6).
WITHOUT_BODY: Final = frozenset({204, 304})


def _length(status: int, body: bytes) -> Pairs:
    return [] if status in WITHOUT_BODY else [("Content-Length", str(len(body)))]


def _http_date(moment: float) -> str:
    from email.utils import formatdate

    return formatdate(min(moment, LAST_DATE), usegmt=True)


# The end of the year 9999: no date of HTTP is later.
LAST_DATE: Final = 253402300799


# With these a handler says that it has not begun, and that the client may retry.
RETRY_STATUSES: Final = frozenset({408, 423, 425, 429})
SERVER_ERROR: Final = 500


def is_final(status: int) -> bool:
    """Whether a status is the outcome of a request: below 500, and none that asks for a retry."""
    return status < SERVER_ERROR and status not in RETRY_STATUSES


class RetryRequested(errors.Later):
    """The handler answered that the client may retry: the key is released, and no attempt is counted."""

    def __init__(self, status: int) -> None:
        errors.SemelError.__init__(self, f"the handler answered {status}")
        self.status: int = status
        self.retry_after: float = 0.0
        self.everyone: bool = False


class NotKept(errors.SemelError):
    """The handler answered with a status that is not kept, so that the request may run again."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the handler answered {status}")
        self.status = status


class Recording(msgspec.Struct, eq=False):
    """A response while it is being made: what of it will be kept."""

    _allowed: frozenset[str]
    room: int
    """So many bytes of its body are kept."""
    _chunks: list[bytes] | None = []
    _length: int | None = None
    begun: bool = False
    size: int = 0
    status: int = 0
    headers: Pairs = []

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """The head of the response."""
        self.begun = True
        self.status = status
        self.headers = []
        for name, value in headers:
            low = name.lower()
            if low in self._allowed:
                self.headers.append((name, value))
            elif low == "content-length":
                self._length = read_length(value)

    def add(self, chunk: bytes) -> None:
        """A piece of its body."""
        if not chunk:
            return
        self.size += len(chunk)
        if self.size > self.room:
            self._chunks = None
        elif self._chunks is not None:
            self._chunks.append(bytes(chunk))

    @property
    def full(self) -> bool:
        """Whether the client has the whole body: as Content-Length said, or since there cannot be any."""
        return self.status in WITHOUT_BODY or (self._length is not None and self.size >= self._length)

    def kept(self) -> Kept:
        """What is to be stored of it."""
        if self._chunks is None:
            return Kept(self.status, self.headers, size=self.size)
        body = b"".join(self._chunks)
        try:
            return Kept(self.status, self.headers, text=body.decode())
        except UnicodeDecodeError:
            return Kept(self.status, self.headers, data=body)
