"""Responses to requests with an `Idempotency-Key`: problems, and what is stored and replayed."""

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from semel import errors
from semel.core.codecs import holds_no_dict
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
NEVER_STORED: Final = frozenset(
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


@holds_no_dict
class StoredResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response as it is stored: text as text, so that people can read it."""

    status: int
    headers: Pairs
    text: str | None = None
    data: bytes | None = None
    size: int | None = None
    """The length of a body that was not stored."""

    @property
    def body(self) -> bytes | None:
        """The body byte for byte; None where it was not stored."""
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


def replay(stored: StoredResponse, expires_at: float, base: str) -> HTTPResponse:
    """Return the response to a retry."""
    headers = [(REPLAYED, "true"), (EXPIRES, _http_date(expires_at))]
    body = stored.body
    if body is not None:
        return HTTPResponse(stored.status, [*stored.headers, *_length(stored.status, body), *headers], body)
    # The status still tells how it ended: a client that took this for a failure might do it all again.
    headers.append((NOT_KEPT, "not-kept"))
    headers += [pair for pair in stored.headers if pair[0].lower() not in ABOUT_THE_BODY]
    detail = f"It was answered with {stored.status}; a body of {stored.size} bytes was more than is stored."
    return problem("result-not-kept", base, detail, headers, status=stored.status)


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
FINAL_STATUSES: Final = frozenset(range(500)) - RETRY_STATUSES

is_final: Final = FINAL_STATUSES.__contains__
"""Whether a status is the outcome of a request: below 500, and none that asks for a retry."""


class RetryRequested(errors.Later):
    """The handler answered that the client may retry: the key is released, and no attempt is counted."""

    def __init__(self, status: int) -> None:
        errors.SemelError.__init__(self, f"the handler answered {status}")
        self.status: int = status
        self.retry_after: float = 0.0
        self.everyone: bool = False


class NotStored(errors.SemelError):
    """The handler answered with a status that is not stored, so that the request may run again."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the handler answered {status}")
        self.status = status


class Recording(msgspec.Struct, eq=False):
    """A response while it is being made: what of it will be stored."""

    _names: frozenset[str]
    """The headers that are stored."""
    max_bytes: int
    """A longer body is not stored."""
    begun: bool = False
    status: int = 0
    headers: Pairs = []
    size: int = 0
    _length: str | None = None
    _chunks: list[bytes] = []

    def start(self, status: int, headers: Iterable[tuple[Any, Any]]) -> None:
        """Record the head of the response; its headers are texts or bytes."""
        self.begun, self.status = True, status
        self.headers = []
        for name, value in headers:
            if type(name) is not str:
                name, value = bytes(name).decode("latin-1"), bytes(value).decode("latin-1")  # noqa: PLW2901
            low = name.lower()
            if low in self._names:
                self.headers.append((name, value))
            elif low == "content-length":
                self._length = value

    def add(self, chunk: bytes) -> None:
        """Record a piece of its body."""
        if chunk:
            self.size += len(chunk)
            if self.size <= self.max_bytes:
                self._chunks.append(bytes(chunk))
            else:
                self._chunks.clear()

    @property
    def full(self) -> bool:
        """Whether the client has the whole body: as Content-Length said, or since there cannot be any."""
        length = read_length(self._length)
        return self.status in WITHOUT_BODY or (length is not None and self.size >= length)

    def stored(self) -> StoredResponse:
        """Return what is stored of it."""
        if self.size > self.max_bytes:
            return StoredResponse(self.status, self.headers, size=self.size)
        body = b"".join(self._chunks)
        try:
            return StoredResponse(self.status, self.headers, text=body.decode())
        except UnicodeDecodeError:
            return StoredResponse(self.status, self.headers, data=body)
