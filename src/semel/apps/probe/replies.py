"""What the probe answers: reports, and problems in the form that every door of HTTP gives them."""

from typing import Any, Final

import msgspec

from semel import errors
from semel.apps.probe.orders import OrderFailed
from semel.core.commands import Raised
from semel.doors.http.problems import UNAVAILABLE, problem_details, retry_after
from semel.doors.http.responses import (
    PROBLEMS,
    HTTPResponse,
    Pairs,
    StoredResponse,
    problem,
    problem_later,
    problem_of,
    problem_response,
    replay,
)
from semel.doors.webhooks import WebhookResponse
from semel.once import WorkResult

# What the types of problems begin with: as in all of the service, where they are published.
BASE: Final = "/problems"

# As other doors of HTTP ask for: most work is over long before its lease is.
LONGEST_PAUSE: Final = 5

# What can be wrong with a request to the probe and with no other: status and title.
OWN: Final = {
    "method-not-allowed": (405, "Messages are produced and consumed by POST"),
    "request-malformed": (400, "The request cannot be carried out as it stands"),
    "broker-unavailable": (503, "The broker cannot be reached"),
}
# Every refusal by its status, for whoever describes the probe; `no-such-key` is another page's.
ANSWERS: Final = {
    status: title
    for name, (status, title) in (*PROBLEMS.items(), *OWN.items())
    if name not in ("no-such-key", "method-not-allowed")
}
JSON: Final = [("Content-Type", "application/json")]
AGAIN: Final = "Try again, with the same key."


def answer_to(done: WorkResult, *, repeats: bool) -> HTTPResponse:
    """The answer to what came of a request; `repeats` where a doubtful one may simply be sent again."""
    if isinstance(done, Raised):
        return _refusal(done.error, repeats)
    body = msgspec.json.encode(done.value)
    stored = StoredResponse(200, JSON, text=body.decode())
    if done.record is not None:
        return replay(stored, done.record.expires_at, BASE)
    return HTTPResponse(stored.status, stored.headers, body)


def _refusal(error: BaseException, repeats: bool) -> HTTPResponse:
    match error:
        case errors.FailedBefore():
            return problem("failed-before", BASE, error.error_message)
        case errors.OutcomeUnknown() | errors.SendOutcomeUnknown():
            return _in_doubt(repeats)
        case errors.BrokerUnavailable():
            pause = [retry_after(LONGEST_PAUSE)]
            return own_problem("broker-unavailable", AGAIN, pause, retry_after=LONGEST_PAUSE)
        case errors.BrokerError() | errors.InvalidPayload() | OrderFailed():
            return problem("failed-before", BASE, str(error))
    return problem_of(error, BASE) or _later(error)


def _later(error: BaseException) -> HTTPResponse:
    match error:
        case errors.InProgress(retry_after=left):
            return problem_later("in-progress", BASE, "Somebody is at it.", min(left, LONGEST_PAUSE))
        case errors.ClaimLost():
            return problem_later("in-progress", BASE, "Another attempt at it has taken over.", 1)
        case errors.ShuttingDown():
            return problem_later("unavailable", BASE, f"This server is stopping. {AGAIN}", 1)
    if isinstance(error, UNAVAILABLE):
        return problem_later("unavailable", BASE, AGAIN, LONGEST_PAUSE)
    raise error


def _in_doubt(repeats: bool) -> HTTPResponse:
    if repeats:
        detail = f"Some messages may be there. {AGAIN} They are then sent under the ids that they had."
        return problem_later("outcome-unknown", BASE, detail, LONGEST_PAUSE)
    detail = "Some messages may be there. Somebody has to find out, and to settle it in the ledger."
    return problem("outcome-unknown", BASE, detail)


def own_problem(name: str, detail: str, headers: Pairs | None = None, **more: Any) -> HTTPResponse:
    """A problem of the probe's own."""
    return problem_response(problem_details(OWN, name, BASE, detail, headers or (), **more), BASE)


def as_reply(answer: HTTPResponse) -> WebhookResponse:
    """An answer as hooks give it."""
    headers = {name: value for name, value in answer.headers if name.lower() not in LEFT_OUT}
    return WebhookResponse(answer.status, headers, answer.body)


# The server counts by itself what it sends, and not every one of them publishes problems.
LEFT_OUT: Final = frozenset({"content-length", "link"})
