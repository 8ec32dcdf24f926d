"""Counters: so many in a period, counted once."""

from typing import Annotated, Final

from fastapi import APIRouter, Query

from semel.core.drive import adrive
from semel.periods import PERIODS, PeriodName
from semel.service.openapi import problems
from semel.service.tokens import LedgerReader, LedgerWriter
from semel.service.v1 import models, rules
from semel.service.v1.handles import charge_handle, charge_of
from semel.service.v1.models import answer
from semel.service.v1.strict_json import StrictRoute

routes: Final = APIRouter(prefix="/counters", tags=["counters"], route_class=StrictRoute)


@routes.post("/charge", operation_id="charge", responses=problems("key-malformed", "cap-reached"))
async def charge(asked: models.ChargeRequest, caller: LedgerWriter) -> models.ChargeResponse:
    """Count so much, if the period has room for it; the same token again counts nothing more."""
    made = await caller.s.aio.counters.charge(
        asked.counter,
        asked.by,
        cap=asked.cap,
        token=asked.token,
        per=PERIODS[asked.per](asked.zone),
        keep=asked.keep,
    )
    return answer(models.ChargeResponse, made, charge=charge_handle(made))


@routes.post("/refund", operation_id="refund_charge", responses=problems("key-malformed", "claim-malformed"))
async def refund(asked: models.RefundRequest, caller: LedgerWriter) -> models.RefundResponse:
    """Give a charge back, once."""
    held = charge_of(asked.charge)
    refunded = await caller.s.aio.counters.refund(held)
    if not refunded:
        await adrive(rules.check_charge(caller.s, held), caller.s.store, caller.s.events.failed)
    return models.RefundResponse(refunded=refunded)


@routes.get("", operation_id="get_counter", responses=problems("key-malformed"))
async def look(
    counter: Annotated[models.CounterName, Query()],
    caller: LedgerReader,
    per: Annotated[PeriodName, Query(description="How long a period is.")] = "day",
    zone: models.Zone = "UTC",
    cap: Annotated[models.Amount | None, Query(description="To be told how much of it remains.")] = None,
) -> models.TallyResponse:
    """How a counter stands now."""
    tally = await caller.s.aio.counters.look(counter, per=PERIODS[per](zone), cap=cap)
    return models.TallyResponse.model_validate(tally)
