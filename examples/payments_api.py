"""Payments that are made once: a FastAPI application whose clients may send every request again.

    SEMEL_URL=sqlite:///payments.db uvicorn --factory payments_api:create_app

    curl -i localhost:8000/payments \\
        -H 'Authorization: Bearer token-of-north' -H 'Idempotency-Key: "order-1"' \\
        -H 'Content-Type: application/json' -d '{"cents": 4200, "currency": "eur"}'

Send it twice: the second answer is the first one, and says so in `Idempotent-Replayed`. The promise is at
/.well-known/idempotency-key, and in /docs.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

import semel
from semel.doors.fastapi import idempotent_route, publish
from semel.doors.http import Idempotency

# Yours come from where you keep secrets.
SHOPS = {"token-of-north": "north", "token-of-south": "south"}

bearer = HTTPBearer(auto_error=False)
Responses = dict[int | str, dict[str, Any]]
PaymentId = Annotated[str, Path(pattern="^pay_[0-9a-f]{16}$")]


class Order(BaseModel):
    """What a shop asks for."""

    model_config = ConfigDict(extra="forbid")

    cents: int = Field(ge=1, le=1_000_000)
    currency: Literal["eur", "usd"]


class Payment(BaseModel):
    """What came of it."""

    id: str
    cents: int
    currency: str
    refund: str | None = None


class Refusal(BaseModel):
    """Why a request was refused."""

    detail: str


def shop_of(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> str:
    """The shop that a token belongs to."""
    shop = SHOPS.get(credentials.credentials) if credentials else None
    if shop is None:
        raise HTTPException(401, "send a token that is valid", {"WWW-Authenticate": "Bearer"})
    request.state.shop = shop
    return shop


Shop = Annotated[str, Depends(shop_of)]


def create_app(url: str | None = None) -> FastAPI:
    """The application, on the store at this URL."""
    s = semel.connect(url or os.environ.get("SEMEL_URL", "sqlite:///payments.db"))
    # A shop may go on trying for three days, and ask for more.
    idempotency = Idempotency(
        s,
        identity=lambda request: getattr(request.state, "shop", None),
        ttl=3 * semel.DAY,
        expiry=(semel.DAY, 30 * semel.DAY),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        s.close()

    app = FastAPI(title="Payments", version="1", lifespan=lifespan)
    app.include_router(payments(s, idempotency))
    publish(app, idempotency, dependencies=[Depends(shop_of)])
    return app


def payments(s: semel.Semel, idempotency: Idempotency) -> APIRouter:
    """The routes; those that write are protected, since their methods are the policy's."""
    router = APIRouter(
        prefix="/payments",
        tags=["payments"],
        route_class=idempotent_route(idempotency),
        responses={401: {"model": Refusal, "description": "No valid token"}},
    )
    unreadable: Responses = {400: {"model": Refusal, "description": "Not JSON at all"}}
    missing: Responses = {404: {"model": Refusal, "description": "No such payment"}}

    @router.post("", status_code=201, responses=unreadable)
    def pay(order: Order, shop: Shop) -> Payment:
        """Make a payment."""
        # The same at every attempt: one that follows a crash writes what the first one wrote.
        id = f"pay_{semel.current_run().key_for('payment')[:16]}"
        payment = Payment(id=id, cents=order.cents, currency=order.currency)
        s.scoped(shop).documents.put(id, payment.model_dump())
        return payment

    @router.get("/{payment_id}", responses=missing)
    def show(payment_id: PaymentId, shop: Shop) -> Payment:
        """Show a payment."""
        found = s.scoped(shop).documents.get(payment_id)
        if found is None:
            raise HTTPException(404, "there is no such payment")
        return Payment(**found.value)

    @router.post(
        "/{payment_id}/refund",
        responses={**missing, 409: {"model": Refusal, "description": "It was given back already"}},
    )
    def refund(payment_id: PaymentId, shop: Shop) -> Payment:
        """Give a payment back."""
        mine = semel.current_run().key_for("refund")[:16]
        found = s.scoped(shop).documents.get(payment_id)
        if found is None:
            raise HTTPException(404, "there is no such payment")
        if found.value.get("refund", mine) != mine:
            raise HTTPException(409, "it was given back already")
        value = {**found.value, "refund": mine}
        s.scoped(shop).documents.put(payment_id, value, version=found.version)
        return Payment(**value)

    return router
