"""Counters: so many in a period, counted once."""

from typing import Final

from fastapi import APIRouter

from semel.core.drive import adrive
from semel.periods import PERIODS, PeriodName
from semel.service.openapi import problems
from semel.service.tokens import LedgerReader, LedgerWriter
from semel.service.v1 import models, rules
from semel.service.v1.handles import charge_handle, charge_of
from semel.service.v1.models import answer
from semel.service.v1.strict_json import StrictRoute

routes: Final = APIRouter(prefix="/counters", tags=["counters"], route_class=StrictRoute)


@routes.post("/charge", responses=problems("key-malformed", "cap-reached"))
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


@routes.post("/refund", responses=problems("key-malformed", "claim-malformed"))
async def refund(asked: models.RefundRequest, caller: LedgerWriter) -> models.RefundResponse:
    """Give a charge back, once."""
    held = charge_of(asked.charge)
    refunded = await caller.s.aio.counters.refund(held)
    if not refunded:
        await adrive(rules.check_charge(caller.s, held), caller.s.store)
    return models.RefundResponse(refunded=refunded)


@routes.get("", responses=problems("key-malformed"))
async def look(
    counter: models.KeyQuery,
    caller: LedgerReader,
    per: PeriodName = "day",
    zone: models.Zone = "UTC",
    cap: models.Amount | None = None,
) -> models.TallyResponse:
    """How a counter stands now."""
    tally = await caller.s.aio.counters.look(counter, per=PERIODS[per](zone), cap=cap)
    return models.TallyResponse.model_validate(tally)
