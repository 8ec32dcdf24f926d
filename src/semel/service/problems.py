"""Problems by RFC 9457: every error response of the service, and which of semel's errors it is for."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

from semel import errors
from semel.doors.http import responses
from semel.doors.http.problems import (
    UNAVAILABLE,
    ProblemDetails,
    ProblemTypes,
    problem_details,
    retry_after,
)

# Where they are published, and what `type` begins with.
HOME: Final = "/problems"

ServiceProblemType: TypeAlias = Literal[
    "invalid-request",
    "key-malformed",
    "claim-malformed",
    "not-authenticated",
    "not-permitted",
    "no-such-page",
    "no-such-record",
    "no-such-gate",
    "no-such-app",
    "no-such-letter",
    "wrong-method",
    "body-too-slow",
    "in-progress",
    "outcome-unknown",
    "failed-before",
    "claim-lost",
    "claim-over",
    "cap-reached",
    "result-unreadable",
    "action-refused",
    "body-too-large",
    "not-json",
    "payload-changed",
    "internal",
    "unavailable",
    "overloaded",
    "timed-out",
    "stopping",
]

# Each problem's status and title; they are published at its type's address.
PROBLEMS: Final[dict[ServiceProblemType, tuple[int, str]]] = {
    "invalid-request": (400, "The request is not as this operation takes it"),
    "key-malformed": (400, "The key is empty, too long, or not printable"),
    "claim-malformed": (400, "This names no claim, charge or decision that was given out here"),
    "not-authenticated": (401, "The request does not say who sends it, or says it wrongly"),
    "not-permitted": (403, "The token does not give this right"),
    "no-such-page": (404, "There is nothing at this address"),
    "no-such-record": (404, "Nothing is known about this key"),
    "no-such-gate": (404, "No gate of this name is set up"),
    "no-such-app": (404, "No application of this name runs here, or none that has this"),
    "no-such-letter": (404, "The inbox has no such dead letter"),
    "wrong-method": (405, "This address is not asked in that way"),
    "body-too-slow": (408, "The body has not come in time"),
    "in-progress": (409, "Somebody is at work on this key"),
    "outcome-unknown": (409, "What became of an earlier attempt is not known yet"),
    "failed-before": (409, "The work on this key has failed for good"),
    "claim-lost": (409, "The claim is no longer the caller's; nothing was written"),
    "claim-over": (409, "The claim that was made with this token has been given back"),
    "cap-reached": (409, "The counter has no room for that much in this period"),
    "result-unreadable": (409, "The work is done, and its result cannot be read"),
    "action-refused": (409, "The record is not in the state that this action starts from"),
    "body-too-large": (413, "The body is larger than the service takes"),
    "not-json": (415, "The body is to be JSON, and to say so"),
    "payload-changed": (422, "This key was first used with another payload"),
    "internal": (500, "The service has failed, and says why in its log"),
    "unavailable": (503, "The store cannot be reached, or does not do as asked"),
    "overloaded": (503, "Too many requests are under way"),
    "timed-out": (503, "The request took longer than the service waits"),
    "stopping": (503, "The service is being stopped"),
}

# The end of the year 9999: no calendar goes further.
LAST: Final = 253402300799
# When to come back, where nobody knows better: a store that was restarted is back by then.
RETRY_AFTER: Final = 1.0


def problem(
    name: ServiceProblemType, detail: str, headers: Iterable[tuple[str, str]] = (), **more: Any
) -> ProblemDetails:
    """A problem of the service, and what more there is to tell."""
    return problem_details(PROBLEMS, name, HOME, detail, headers, **more)


class ProblemError(Exception):
    """Raised to answer with a problem."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def problem_error(kind: ServiceProblemType, detail: str, **more: Any) -> ProblemError:
    """The error to raise for a problem."""
    return ProblemError(problem(kind, detail, **more))


def later(kind: ServiceProblemType, detail: str, seconds: float = RETRY_AFTER, **more: Any) -> ProblemDetails:
    """A problem that may be gone in so many seconds."""
    return problem(kind, detail, [retry_after(seconds)], retry_after=round(max(0.0, seconds), 3), **more)


STOPPING: Final = later("stopping", "another process, or this one after its restart, will answer")


def moment(seconds: float) -> str:
    """A moment as ISO 8601 in UTC."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST), UTC).isoformat(timespec="milliseconds")


def problem_of(error: errors.SemelError) -> ProblemDetails:
    """What an error of semel's is to whoever asked over HTTP."""
    match error:
        case errors.InProgress():
            return later("in-progress", str(error), error.retry_after, attempt=error.attempt)
        case errors.CapReached():
            used, cap, resets_at = error.used, error.cap, moment(error.resets_at)
            detail = f"it stands at {used} of {cap}"
            return problem("cap-reached", detail, used=used, cap=cap, resets_at=resets_at)
        case errors.ShuttingDown() | errors.StoreClosed():
            return STOPPING
    if isinstance(error, UNAVAILABLE):
        # What the store said is for the log: it may name hosts and files.
        return later("unavailable", f"{type(error).__name__}: send the same request again")
    for kind, word in KINDS:
        if isinstance(error, kind):
            return problem(word, str(error))
    return problem("internal", f"{type(error).__name__}; the log has the rest, under this request's id")


KINDS: Final[Iterable[tuple[type[errors.SemelError], ServiceProblemType]]] = (
    (errors.InvalidKey, "key-malformed"),
    (errors.PayloadChanged, "payload-changed"),
    (errors.OutcomeUnknown, "outcome-unknown"),
    (errors.FailedBefore, "failed-before"),
    (errors.ClaimLost, "claim-lost"),
    (errors.ResultUnreadable, "result-unreadable"),
    (errors.UsageError, "invalid-request"),
)


def published(*own: ProblemTypes) -> dict[str, Any]:
    """All of them, as they are served at their home: those of idempotent requests and of apps as well."""
    known: Iterable[tuple[str, tuple[int, str]]] = chain(
        responses.PROBLEMS.items(), *(each.items() for each in own), PROBLEMS.items()
    )
    return {
        kind: {"type": f"{HOME}#{kind}", "status": status, "title": title} for kind, (status, title) in known
    }
