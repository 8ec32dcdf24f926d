"""Translates the error responses of a service into semel's errors."""

import re
from enum import Enum
from typing import Any

import msgspec

from semel.errors import StoreError


class ErrorKind(Enum):
    """What follows from an error."""

    UNREACHED = "not applied, as it was never sent"
    BUSY = "not applied, as there is too much going on: later it may well be"
    PENDING = "an earlier sending of the same request is still being worked on"
    FAILED = "the service broke down over it: it may have been applied"
    CLOCK = "not applied, as it was signed for another time"
    EXPIRED = "not applied, as the credentials are no longer good"
    REFUSED = "not applied, and the caller's to decide"


# From DynamoDB's list of errors, from the codes that every AWS service shares, and S3's and SQS's names for
# the same things.
KINDS = {
    "BandwidthLimitExceeded": ErrorKind.BUSY,
    "KmsThrottled": ErrorKind.BUSY,
    "LimitExceededException": ErrorKind.BUSY,
    "OperationAborted": ErrorKind.BUSY,
    "PriorRequestNotComplete": ErrorKind.BUSY,
    "ProvisionedThroughputExceededException": ErrorKind.BUSY,
    "ReplicatedWriteConflictException": ErrorKind.BUSY,
    "RequestLimitExceeded": ErrorKind.BUSY,
    "RequestThrottled": ErrorKind.BUSY,
    "RequestThrottledException": ErrorKind.BUSY,
    "SlowDown": ErrorKind.BUSY,
    "ThrottledException": ErrorKind.BUSY,
    "Throttling": ErrorKind.BUSY,
    "ThrottlingException": ErrorKind.BUSY,
    "TooManyRequestsException": ErrorKind.BUSY,
    "TransactionConflictException": ErrorKind.BUSY,
    "TransactionInProgressException": ErrorKind.PENDING,
    "InternalError": ErrorKind.FAILED,
    "InternalFailure": ErrorKind.FAILED,
    "InternalServerError": ErrorKind.FAILED,
    "RequestTimeout": ErrorKind.FAILED,
    "RequestTimeoutException": ErrorKind.FAILED,
    "ServiceUnavailable": ErrorKind.FAILED,
    "RequestExpired": ErrorKind.CLOCK,
    "RequestInTheFuture": ErrorKind.CLOCK,
    "RequestTimeTooSkewed": ErrorKind.CLOCK,
    "ExpiredToken": ErrorKind.EXPIRED,
    "ExpiredTokenException": ErrorKind.EXPIRED,
    "InvalidToken": ErrorKind.EXPIRED,
    "UnrecognizedClientException": ErrorKind.EXPIRED,
}
# These two are for wrong keys as well; the message tells.
SIGNATURE = frozenset({"InvalidSignatureException", "SignatureDoesNotMatch"})
MISTIMED = re.compile(r"signature (expired|not yet current)", re.IGNORECASE)

# Who is not known is not permitted either; each service has names of its own for it.
DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignatureException",
        "KmsAccessDenied",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)

# Why a transaction was cancelled though nothing spoke against it.
PASSING = frozenset(
    {
        "None",
        "ProvisionedThroughputExceeded",
        "ReplicatedWriteConflict",
        "RequestLimitExceeded",
        "ThrottlingError",
        "TransactionConflict",
    }
)

# Of these, what other writers did: it passes as soon as they are done, unlike throttling.
CONTENTION = frozenset({"ReplicatedWriteConflict", "TransactionConflict"})

TOO_MANY_REQUESTS = 429
# What is shown of an answer that is not of the service's making, such as a proxy's page.
EXCERPT = 200


class CancellationReason(msgspec.Struct, frozen=True):
    """Why one action of a transaction was not carried out; the code "None": it alone would have been."""

    code: str
    message: str = ""
    item: dict[str, Any] | None = None


class ServiceError(StoreError):
    """The service did not do as asked, and said why."""

    def __init__(self, code: str, message: str, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{code}: {message}" if message else f"{code} (HTTP {status})")
        self.code = code
        self.message = message
        self.status = status
        self.body = body
        self.request: Any = None
        """What was asked, where whoever asked has noted it."""

    @property
    def item(self) -> dict[str, Any] | None:
        """The item that a condition failed on, where the request asked for it."""
        return self.body.get("Item") or None

    @property
    def reasons(self) -> list[CancellationReason]:
        """Of a cancelled transaction: why, for each of its actions, in their order."""
        found = self.body.get("CancellationReasons") or ()
        return [
            CancellationReason(r.get("Code") or "None", r.get("Message") or "", r.get("Item") or None)
            for r in found
        ]


class NoResponse(msgspec.Struct, frozen=True):
    """No answer, or none that can be used."""

    why: str
    # UNREACHED where the request cannot have got there whole, otherwise FAILED.
    kind: ErrorKind
    error: Exception | None = None


def kind(error: ServiceError | NoResponse) -> ErrorKind:
    """What follows from it."""
    if isinstance(error, NoResponse):
        return error.kind
    known = KINDS.get(error.code)
    if known is not None:
        return known
    if error.code in SIGNATURE and MISTIMED.search(error.message):
        return ErrorKind.CLOCK
    if error.code == "TransactionCanceledException":
        codes = {reason.code for reason in error.reasons}
        return ErrorKind.BUSY if codes and codes <= PASSING else ErrorKind.REFUSED
    if error.status == TOO_MANY_REQUESTS:
        return ErrorKind.BUSY
    return ErrorKind.FAILED if error.status >= 500 else ErrorKind.REFUSED


def contended(error: ServiceError | NoResponse) -> bool:
    """Whether nothing but another write on the same items stood in the way."""
    if isinstance(error, NoResponse) or kind(error) is not ErrorKind.BUSY:
        return False
    codes = {reason.code for reason in error.reasons} or {error.code.removesuffix("Exception")}
    return bool(codes & CONTENTION)


def service_error(status: int, data: bytes) -> ServiceError:
    """The error in an answer; what is not JSON is not the service's: it is shown, and the body is empty."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict):
        return ServiceError(f"HTTP {status}", excerpt(data), status, {})
    code = body.get("__type") or f"HTTP {status}"
    message = body.get("message") or body.get("Message") or ""
    return ServiceError(bare(str(code)), str(message), status, body)


def object_error(status: int, data: bytes) -> ServiceError:
    """The error in an answer of S3, which writes XML."""
    code, message = (_element(name, data) for name in (b"Code", b"Message"))
    if not code:
        return ServiceError(f"HTTP {status}", excerpt(data), status, {})
    return ServiceError(code, message, status, {"Code": code, "Message": message})


def _element(name: bytes, data: bytes) -> str:
    found = re.search(rb"<%b>([^<]*)</%b>" % (name, name), data)
    return found[1].decode("utf-8", "replace") if found else ""


def bare(code: str) -> str:
    """A code without its namespace and without the address that some services put behind it."""
    return code.rpartition("#")[2].partition(":")[0]


def excerpt(data: bytes) -> str:
    """The beginning of an answer, on one line."""
    return " ".join(data[:EXCERPT].decode("utf-8", "replace").split())
