"""Marks: was this seen before?"""

from typing import Final

from fastapi import APIRouter

from semel.core.drive import adrive
from semel.service.openapi import problems
from semel.service.problems import problem_error
from semel.service.tokens import LedgerReader, LedgerWriter
from semel.service.v1 import rules
from semel.service.v1.models import CheckRequest, CheckResponse, KeyRequest, MarkRequest, ProcessedResponse
from semel.service.v1.strict_json import StrictRoute

routes: Final = APIRouter(tags=["marks"], route_class=StrictRoute)


@routes.post("/check-and-set", operation_id="check_and_set", responses=problems("key-malformed"))
async def check_and_set(asked: CheckRequest, caller: LedgerWriter) -> CheckResponse:
    """True the first time, false while that time is remembered: one atomic write.

    Send a `token` of your own: when the answer is lost, the same request gives the same answer.
    """
    steps = rules.ledger_with(caller.s, asked.token)
    if (asked.key is None) == (asked.keys is None):
        raise problem_error("invalid-request", "give either key or keys")
    if asked.keys is not None:
        return CheckResponse(
            new=await adrive(
                steps.check_and_set_many(asked.keys, asked.ttl), caller.s.store, caller.s.events.failed
            )
        )
    assert asked.key is not None  # noqa: S101 - for the type checker
    return CheckResponse(
        new=await adrive(steps.check_and_set(asked.key, asked.ttl), caller.s.store, caller.s.events.failed)
    )


@routes.post("/is-processed", operation_id="is_processed", responses=problems("key-malformed"))
async def is_processed(asked: KeyRequest, caller: LedgerReader) -> ProcessedResponse:
    """Whether a key is done; one that is only being worked on is not."""
    return ProcessedResponse(processed=await caller.s.aio.ledger.is_processed(asked.key))


@routes.post(
    "/mark-processed",
    operation_id="mark_processed",
    responses=problems("key-malformed", "in-progress"),
)
async def mark_processed(asked: MarkRequest, caller: LedgerWriter) -> ProcessedResponse:
    """Record that a key is done, whatever became of earlier attempts; a running one is left alone."""
    await caller.s.aio.ledger.mark_processed(asked.key, asked.ttl)
    return ProcessedResponse(processed=True)
