"""Claims, and what becomes of them."""

from typing import Any, Final

from fastapi import APIRouter, Response

from semel.core.drive import adrive
from semel.model import Busy, Claimed, Failed, Failure, Mismatch, Outcome, Replay, Unknown
from semel.service.openapi import problems
from semel.service.problems import ProblemError, later, problem_error
from semel.service.tokens import LedgerWriter, Principal
from semel.service.v1 import models, rules
from semel.service.v1.handles import claim_handle, claim_of
from semel.service.v1.models import answer
from semel.service.v1.strict_json import StrictRoute

MOVE = problems("claim-malformed", "claim-lost")


routes: Final = APIRouter(tags=["claims"], route_class=StrictRoute)


@routes.post(
    "/claims",
    operation_id="claim",
    status_code=201,
    response_model=models.ClaimedResponse,
    responses={
        200: {"model": models.ClaimResponse, "description": "It was done before: a replay."},
        201: {"model": models.ClaimResponse, "description": "The key is the caller's: it is claimed."},
        **problems(
            "key-malformed",
            "in-progress",
            "outcome-unknown",
            "failed-before",
            "claim-over",
            "result-unreadable",
            "payload-changed",
        ),
    },
)
async def claim(asked: models.ClaimRequest, caller: LedgerWriter) -> Any:
    """Claim a key, or learn what is in the way.

    Send a `token` of your own: when the answer is lost, the same request gives the same claim.
    """
    begun = caller.s.clock.now()
    outcome = await adrive(
        rules.claim(caller.s, asked.key, asked.token, _terms(asked, caller)),
        caller.s.store,
        caller.s.events.failed,
    )
    response = _response(outcome, begun)
    if isinstance(response, models.ReplayResponse):
        return Response(response.model_dump_json(exclude_unset=True), 200, media_type="application/json")
    return response


@routes.post("/claims/complete", operation_id="complete_claim", responses=MOVE)
async def complete(asked: models.CompleteRequest, caller: LedgerWriter) -> models.CompletedResponse:
    """The effect happened; keep what came of it. The same again is done again."""
    s = caller.s
    held, ledger = claim_of(asked.claim, s.ledger.steps.prefix), s.ledger.steps
    overflows = s.store.overflow is not None
    kept = await adrive(
        rules.complete(ledger, held, asked.result, overflows=overflows), s.store, s.events.failed
    )
    return models.CompletedResponse(outcome="completed", kept=kept)


@routes.post("/claims/fail", operation_id="fail_claim", responses=MOVE)
async def fail(asked: models.FailRequest, caller: LedgerWriter) -> models.FailedResponse:
    """It failed, and is to stay failed."""
    held = claim_of(asked.claim, caller.s.ledger.steps.prefix)
    await caller.s.aio.ledger.fail(held, _failure(asked.error))
    return models.FailedResponse(outcome="failed")


@routes.post("/claims/release", operation_id="release_claim", responses=MOVE)
async def release(asked: models.ReleaseRequest, caller: LedgerWriter) -> models.ReleasedResponse:
    """It did not happen; let the next attempt run."""
    held = claim_of(asked.claim, caller.s.ledger.steps.prefix)
    error = None if asked.error is None else _failure(asked.error)
    await caller.s.aio.ledger.release(held, error)
    return models.ReleasedResponse(outcome="released")


@routes.post("/claims/renew", operation_id="renew_claim", responses=MOVE)
async def renew(asked: models.RenewRequest, caller: LedgerWriter) -> models.RenewedResponse:
    """Still at work: the lease begins anew."""
    held, begun = claim_of(asked.claim, caller.s.ledger.steps.prefix), caller.s.clock.now()
    await caller.s.aio.ledger.renew(held)
    return models.RenewedResponse(outcome="renewed", lease=held.lease, lease_until=begun + held.lease)


def _terms(asked: models.ClaimRequest, caller: Principal) -> dict[str, Any]:
    fingerprint = asked.fingerprint
    if "payload" in asked.model_fields_set:
        if fingerprint is not None:
            raise problem_error("invalid-request", "give either the payload or its fingerprint")
        fingerprint = caller.s.fingerprint(asked.payload)
    terms = asked.model_dump(include={"lease", "ttl", "on_lapsed", "max_attempts", "doubt_ttl"})
    return terms | {"fingerprint": fingerprint}


def _response(outcome: Outcome, begun: float) -> models.ClaimedResponse | models.ReplayResponse:
    match outcome:
        case Claimed():
            more = {"claim": claim_handle(outcome), "lease_until": begun + outcome.lease}
            return answer(models.ClaimedResponse, outcome, outcome="claimed", **more)
        case Replay():
            return _replayed(outcome)
        case Busy():
            attempt = outcome.record.attempt
            detail = (
                f"attempt {attempt} holds it for another {outcome.retry_after:.1f} s; POST /v1/wait waits"
            )
            raise ProblemError(later("in-progress", detail, outcome.retry_after, attempt=attempt))
        case Failed():
            error = {"type": outcome.failure.type, "message": outcome.failure.message}
            attempt = outcome.record.attempt
            raise problem_error("failed-before", f"at attempt {attempt}", error=error, attempt=attempt)
        case Mismatch():
            raise problem_error("payload-changed", "use another key, or send the payload of the first time")
        case Unknown():
            detail = (
                f"the outcome of attempt {outcome.record.attempt} is unknown; resolve it with `semel act`"
            )
            raise problem_error("outcome-unknown", detail, attempt=outcome.record.attempt)


def _replayed(outcome: Replay) -> models.ReplayResponse:
    record = outcome.record
    return models.ReplayResponse(
        outcome="replay",
        key=record.key,
        attempt=record.attempt,
        completed_at=record.updated_at,
        **models.kept_result(outcome.result),
    )


def _failure(error: models.SentError) -> Failure:
    return Failure(error.type, error.message)
