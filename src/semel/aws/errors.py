"""Failed requests: what the service said, whether to retry and when, and the error to raise in the end."""

import math
import random
import re
from collections import Counter
from enum import Enum
from typing import Any

import msgspec

from semel.core.clock import Clock
from semel.errors import StoreError, StoreOutcomeUnknown, StoreThrottled, StoreUnavailable


class ErrorKind(Enum):
    """What follows from a failure."""

    UNREACHED = "not applied, because it was not sent"
    BUSY = "not applied, because the service is busy: retry later"
    PENDING = "an earlier sending of the same request is still in progress"
    FAILED = "the service failed: it may have been applied"
    CLOCK = "not applied, because it was signed for another time"
    EXPIRED = "not applied, because the credentials are no longer valid"
    REFUSED = "not applied, and for the caller to decide on"


# From DynamoDB's list of errors, from the codes that every AWS service shares, and S3's and SQS's names for
# the same things.
CODES = {
    ErrorKind.BUSY: (
        "BandwidthLimitExceeded KmsThrottled LimitExceededException OperationAborted PriorRequestNotComplete "
        "ProvisionedThroughputExceededException ReplicatedWriteConflictException RequestLimitExceeded "
        "RequestThrottled RequestThrottledException SlowDown ThrottledException Throttling "
        "ThrottlingException TooManyRequestsException TransactionConflictException"
    ),
    ErrorKind.PENDING: "TransactionInProgressException",
    ErrorKind.FAILED: (
        "InternalError InternalFailure InternalServerError RequestTimeout RequestTimeoutException "
        "ServiceUnavailable"
    ),
    ErrorKind.CLOCK: "RequestExpired RequestInTheFuture RequestTimeTooSkewed",
    ErrorKind.EXPIRED: "ExpiredToken ExpiredTokenException InvalidToken UnrecognizedClientException",
}
KINDS = {code: kind for kind, codes in CODES.items() for code in codes.split()}
# These two are for wrong keys as well; the message tells which.
SIGNATURE = frozenset({"InvalidSignatureException", "SignatureDoesNotMatch"})
MISTIMED = re.compile(r"signature (expired|not yet current)", re.IGNORECASE)

# An unknown caller is not permitted either; each service has its own names for that.
DENIED = SIGNATURE | {
    *("AccessDenied", "AccessDeniedException", "IncompleteSignature", "IncompleteSignatureException"),
    *("InvalidClientTokenId", "InvalidSecurity", "KmsAccessDenied", "MissingAuthenticationToken"),
    *("MissingAuthenticationTokenException", "UnrecognizedClientException"),
}

# Of the reasons why a transaction was cancelled, what other writers did: it passes when they are done.
CONTENTION = frozenset({"ReplicatedWriteConflict", "TransactionConflict"})
# Reasons that pass by themselves. "None" is that of a write that nothing refused.
PASSING = CONTENTION | frozenset(
    {"None", "ProvisionedThroughputExceeded", "RequestLimitExceeded", "ThrottlingError"}
)

TOO_MANY_REQUESTS = 429
# How much is shown of a response that is not the service's own, such as a proxy's page.
EXCERPT = 200


# What failed


class CancellationReason(msgspec.Struct, frozen=True):
    """Why one write of a transaction was not applied; the code is "None" if nothing refused it."""

    code: str
    message: str = ""
    item: dict[str, Any] | None = None


class ServiceError(StoreError):
    """The service refused the request or failed, and said why."""

    def __init__(self, code: str, message: str, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{code}: {message}" if message else f"{code} (HTTP {status})")
        self.code = code
        self.message = message
        self.status = status
        self.body = body

    @property
    def item(self) -> dict[str, Any] | None:
        """The item that a condition failed on, if the request asked for it."""
        return self.body.get("Item") or None

    @property
    def reasons(self) -> list[CancellationReason]:
        """Why a transaction was cancelled, for each of its writes in their order."""
        return [
            CancellationReason(
                found.get("Code") or "None", found.get("Message") or "", found.get("Item") or None
            )
            for found in self.body.get("CancellationReasons") or ()
        ]


class NoResponse(msgspec.Struct, frozen=True):
    """No response, or an unusable one."""

    why: str
    # UNREACHED if the service cannot have received the whole request, otherwise FAILED.
    kind: ErrorKind
    error: Exception | None = None


FAILURES = (ServiceError, NoResponse)


def kind(error: ServiceError | NoResponse) -> ErrorKind:
    """Return what follows from a failure."""
    if isinstance(error, NoResponse):
        return error.kind
    if (known := KINDS.get(error.code)) is not None:
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
    """Whether only another write to the same items refused it."""
    if isinstance(error, NoResponse) or kind(error) is not ErrorKind.BUSY:
        return False
    codes = {reason.code for reason in error.reasons} or {error.code.removesuffix("Exception")}
    return bool(codes & CONTENTION)


def service_error(status: int, data: bytes) -> ServiceError:
    """Parse an error response; a body that is not the service's JSON is shown, and left out of `body`."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict):
        return ServiceError(f"HTTP {status}", excerpt(data), status, {})
    # Without its namespace, and without the address that some services put after it.
    code = str(body.get("__type") or f"HTTP {status}").rpartition("#")[2].partition(":")[0]
    return ServiceError(code, str(body.get("message") or body.get("Message") or ""), status, body)


def object_error(status: int, data: bytes) -> ServiceError:
    """Parse an error response of S3, which writes XML."""
    code, message = (_element(name, data) for name in (b"Code", b"Message"))
    if not code:
        return ServiceError(f"HTTP {status}", excerpt(data), status, {})
    return ServiceError(code, message, status, {"Code": code, "Message": message})


def _element(name: bytes, data: bytes) -> str:
    found = re.search(rb"<%b>([^<]*)</%b>" % (name, name), data)
    return found[1].decode("utf-8", "replace") if found else ""


def excerpt(data: bytes) -> str:
    """Return the beginning of a response on one line."""
    return " ".join(data[:EXCERPT].decode("utf-8", "replace").split())


# Retries

ADVICE = (
    "Is that the right endpoint and region, is the server up, and does a firewall, a proxy or a missing VPC "
    "endpoint block the way?"
)
# A transaction that its coordinator lost is finished when it is asked for again after five seconds.
PENDING_BASE, PENDING_LONGEST = 0.5, 2.0
# The service's own error is the best description of these.
CALLERS = frozenset({ErrorKind.CLOCK, ErrorKind.EXPIRED, ErrorKind.REFUSED})


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how long failed requests are retried; times are in seconds."""

    # DynamoDB's own advice is to begin with 25 ms and to double. Eight tries take two and a half seconds at
    # most, and usually half of that: less than callers wait and leases last.
    tries: int = 8
    base: float = 0.025
    longest: float = 1.0
    # A server that is down is seldom up a moment later.
    connects: int = 3
    # From the first failure on, timeouts included; no try begins after that.
    patience: float = 10.0


class RetryState:
    """The failures of one call so far."""

    def __init__(self, policy: RetryPolicy, clock: Clock, place: str, *, write: bool) -> None:
        self._policy, self._clock, self._place, self._write = policy, clock, place, write
        # How often each may happen: the last time is the caller's to handle.
        self._limits = {
            ErrorKind.UNREACHED: policy.connects,
            ErrorKind.BUSY: policy.tries,
            ErrorKind.PENDING: math.inf,
            # The caller has to find out first whether a write was applied.
            ErrorKind.FAILED: 1 if write else policy.tries,
            # One for a wrong clock and one for a wrong Date; after that it is not the clock.
            ErrorKind.CLOCK: 3,
            ErrorKind.EXPIRED: 2,
            ErrorKind.REFUSED: 1,
        }
        self._end = clock.monotonic() + policy.patience
        self._met: Counter[ErrorKind] = Counter()
        self._tries = 0

    def after(self, failure: ServiceError | NoResponse) -> float:
        """Return how long to wait before the next try, or raise the error of the last one."""
        what, cause = kind(failure), failure.error if isinstance(failure, NoResponse) else failure
        self._tries += 1
        # In every round of contention one write wins, so all of a herd get through in time; in eight rounds
        # few do.
        self._met[what] += not contended(failure)
        wait = self._wait(what)
        # A server that was silent for a whole timeout does not get another one.
        over = isinstance(cause, TimeoutError) or self._met[what] >= self._limits[what]
        if not over and self._clock.monotonic() + wait <= self._end:
            return wait
        if isinstance(failure, ServiceError) and what in CALLERS:
            raise failure
        raise self._error(what, failure.why if isinstance(failure, NoResponse) else str(failure)) from cause

    def _wait(self, what: ErrorKind) -> float:
        """Return a random wait, which spreads callers best; a pending transaction needs its time."""
        doubled = 2.0 ** (self._tries - 1)
        if what in CALLERS:
            return 0.0
        if what is ErrorKind.PENDING:
            return min(PENDING_LONGEST, PENDING_BASE * doubled) * (1 + random.random()) / 2
        return min(self._policy.longest, self._policy.base * doubled) * random.random()

    def _error(self, what: ErrorKind, why: str) -> Exception:
        if what is ErrorKind.UNREACHED:
            return StoreUnavailable(f"{self._place} cannot be reached: {why}. {ADVICE}")
        if what is ErrorKind.BUSY:
            return StoreThrottled(f"{self._place} was still too busy at try {self._tries}: {why}")
        if what is ErrorKind.PENDING or (what is ErrorKind.FAILED and self._write):
            return StoreOutcomeUnknown(f"{self._place}: the write may or may not have been applied: {why}")
        often = f" in {self._tries} tries" if self._tries > 1 else ""
        return StoreUnavailable(f"{self._place} gave no usable answer{often}: {why}")
