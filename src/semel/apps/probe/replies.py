"""What the probe answers: reports, and problems in the form that every door of HTTP gives them."""

import math
from typing import Any, Final

import msgspec

from semel import errors
from semel.apps.probe.orders import OrderFailed
from semel.commands import Raised
from semel.doors.http.answers import PROBLEMS, Answer, Kept, Kind, Pairs, problem, replayed
from semel.doors.webhooks import Answer as Reply
from semel.once import Done

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


def answer_to(done: Done, *, repeats: bool) -> Answer:
    """The answer to what came of a request; `repeats` where a doubtful one may simply be sent again."""
    if isinstance(done, Raised):
        return _refusal(done.error, repeats)
    body = msgspec.json.encode(done.value)
    kept = Kept(200, JSON, text=body.decode())
    if done.record is not None:
        return replayed(kept, done.record.expires_at, BASE)
    return Answer(kept.status, kept.headers, body)


def _refusal(error: BaseException, repeats: bool) -> Answer:
    match error:
        case errors.FailedBefore():
            return problem("failed-before", BASE, error.error_message)
        case errors.PayloadChanged():
            detail = "Use a new key for a new request, or send the payload of the first time."
            return problem("payload-changed", BASE, detail)
        case errors.OutcomeUnknown() | errors.SendOutcomeUnknown():
            return _in_doubt(repeats)
        case errors.ResultNotKept(reason=reason) | errors.ResultUnreadable(reason=reason):
            return problem("result-not-kept", BASE, f"It will not run again ({reason}).")
        case errors.BrokerUnavailable():
            pause = [("Retry-After", str(LONGEST_PAUSE))]
            return own_problem("broker-unavailable", AGAIN, pause, retry_after=LONGEST_PAUSE)
        case errors.BrokerError() | errors.InvalidPayload() | OrderFailed():
            return problem("failed-before", BASE, str(error))
    return _later(error)


def _later(error: BaseException) -> Answer:
    match error:
        case errors.InProgress(retry_after=left):
            return _come_back("in-progress", min(max(left, 1), LONGEST_PAUSE), "Somebody is at it.")
        case errors.ClaimLost():
            return _come_back("in-progress", 1, "Another attempt at it has taken over.")
        case errors.StoreUnavailable() | errors.StoreThrottled() | errors.StoreOutcomeUnknown():
            return _come_back("unavailable", LONGEST_PAUSE, AGAIN)
        case errors.ShuttingDown():
            return _come_back("unavailable", 1, f"This server is stopping. {AGAIN}")
    raise error


def _in_doubt(repeats: bool) -> Answer:
    if repeats:
        detail = f"Some messages may be there. {AGAIN} They are then sent under the ids that they had."
        return _come_back("outcome-unknown", LONGEST_PAUSE, detail)
    detail = "Some messages may be there. Somebody has to find out, and to settle it in the ledger."
    return problem("outcome-unknown", BASE, detail)


def _come_back(kind: Kind, seconds: float, detail: str) -> Answer:
    pause = math.ceil(seconds)
    return problem(kind, BASE, detail, [("Retry-After", str(pause))], retry_after=pause)


def own_problem(name: str, detail: str, headers: Pairs | None = None, **more: Any) -> Answer:
    """A problem of the probe's own."""
    status, title = OWN[name]
    own = {"type": f"{BASE}#{name}", "title": title, "status": status}
    return problem("unavailable", BASE, detail, headers, **own, **more)


def as_reply(answer: Answer) -> Reply:
    """An answer as hooks give it."""
    headers = {name: value for name, value in answer.headers if name.lower() not in LEFT_OUT}
    return Reply(answer.status, headers, answer.body)


# The server counts by itself what it sends, and not every one of them publishes problems.
LEFT_OUT: Final = frozenset({"content-length", "link"})
