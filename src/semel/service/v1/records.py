"""Records: what is known about a key."""

import asyncio
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from semel.errors import ResultUnreadable
from semel.model import MISSING, Record
from semel.service.middleware import GONE
from semel.service.openapi import problems
from semel.service.problems import problem_error
from semel.service.tokens import LedgerReader, Principal
from semel.service.v1.models import KeyQuery, RecordResponse, WaitRequest, record_response
from semel.service.v1.strict_json import StrictRoute

routes: Final = APIRouter(tags=["records"], route_class=StrictRoute)


@routes.post(
    "/wait",
    operation_id="wait",
    responses=problems("key-malformed", "no-such-record", "in-progress"),
    response_model=RecordResponse,
    response_model_exclude_unset=True,
)
async def wait(asked: WaitRequest, caller: LedgerReader, request: Request) -> Any:
    """Wait until nobody is at work on a key, and give the record as it then is."""
    waiting = asyncio.ensure_future(caller.s.aio.ledger.wait(asked.key, asked.timeout))
    try:
        if await _outlived(request, waiting):
            return Response(status_code=GONE)
        return await _record(caller, waiting.result())
    finally:
        waiting.cancel()


@routes.get(
    "/records",
    operation_id="get_record",
    responses=problems("key-malformed", "no-such-record"),
    response_model_exclude_unset=True,
)
async def get(key: KeyQuery, caller: LedgerReader) -> RecordResponse:
    """The record of a key."""
    return await _record(caller, await caller.s.aio.ledger.get(key))


async def _outlived(request: Request, waiting: "asyncio.Future[Any]") -> bool:
    """Whether the client has gone before the waiting was over: nobody's place is kept for it."""
    # The body has been read, so nothing comes any more but the news that nobody is there.
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    return not waiting.done()


async def _record(caller: Principal, record: Record | None) -> RecordResponse:
    if record is None:
        raise problem_error("no-such-record", "it was never used, or its time is over")
    try:
        result = await caller.s.aio.ledger.result(record)
    except ResultUnreadable:
        result = MISSING
    return record_response(record, result)
