"""Records: what is known about a key."""

from typing import Annotated

from fastapi import APIRouter, Depends

from semel.errors import ResultUnreadable
from semel.model import MISSING, Record
from semel.service.house import House
from semel.service.problems import trouble
from semel.service.tokens import Caller, Tokens
from semel.service.v1.models import KeyQuery, RecordTold, WaitAsked, record_told
from semel.service.v1.openapi import StrictRoute, problems


def router(_house: House, tokens: Tokens) -> APIRouter:
    """The addresses of records."""
    routes = APIRouter(tags=["records"], route_class=StrictRoute)
    Reader = Annotated[Caller, Depends(tokens.asking("ledger:read"))]  # noqa: N806 - a type

    @routes.post(
        "/wait",
        responses=problems("key-malformed", "no-such-record", "in-progress"),
        response_model_exclude_unset=True,
    )
    async def wait(asked: WaitAsked, caller: Reader) -> RecordTold:
        """Wait until nobody is at work on a key, and give the record as it then is."""
        return await _record(caller, await caller.s.aio.ledger.wait(asked.key, asked.timeout))

    @routes.get(
        "/records", responses=problems("key-malformed", "no-such-record"), response_model_exclude_unset=True
    )
    async def get(key: KeyQuery, caller: Reader) -> RecordTold:
        """The record of a key."""
        return await _record(caller, await caller.s.aio.ledger.get(key))

    return routes


async def _record(caller: Caller, record: Record | None) -> RecordTold:
    if record is None:
        raise trouble("no-such-record", "it was never used, or its time is over")
    try:
        result = await caller.s.aio.ledger.result(record)
    except ResultUnreadable:
        result = MISSING
    return record_told(record, result)
