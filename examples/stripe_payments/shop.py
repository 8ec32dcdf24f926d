"""A shop that Stripe tells of payments: each event books its order once, however often it is delivered.

STRIPE_SECRET=whsec_... SEMEL_URL=sqlite:///shop.db uvicorn --factory shop:create_app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

import semel
from semel.doors.webhooks import STRIPE, Notice, Receiver


def create_app(url: str | None = None, secret: str | None = None) -> FastAPI:
    """The shop, on the store at this URL, for webhooks that are signed with this secret."""
    s = semel.connect(url or os.environ.get("SEMEL_URL", "sqlite:///shop.db"))

    async def book(notice: Notice) -> str:
        """Book a payment; this runs once for each event, unless it fails."""
        if notice.payload["type"] != "checkout.session.completed":
            return "ignored"
        session = notice.payload["data"]["object"]
        order = session["client_reference_id"]
        # The order and the completion of the event are written together, or not at all.
        async with s.aio.transaction() as tx:
            tx.documents.put(f"order:{order}", {"paid": session["amount_total"]})
            tx.journal.append(f"receipts:{order}", {"cents": session["amount_total"]})
            tx.ledger.complete(semel.current_run(), order)
        return str(order)

    receiver = Receiver(s, STRIPE, secret or os.environ["STRIPE_SECRET"], book)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        s.close()

    app = FastAPI(title="Shop", lifespan=lifespan)

    @app.post("/webhooks/stripe")
    async def stripe(request: Request) -> Response:
        """Take a delivery; the signature is over the bytes, so they are passed on as they are."""
        answer = await receiver.areceive(request.headers, await request.body())
        return Response(answer.body, answer.status, answer.headers)

    @app.get("/orders/{number}")
    async def show(number: str) -> dict[str, Any]:
        """Show an order that was paid, and how many receipts were written for it."""
        found = await s.aio.documents.get(f"order:{number}")
        if found is None:
            raise HTTPException(404, "this order is not paid")
        receipts = await s.aio.journal.list(f"receipts:{number}")
        return {**found.value, "receipts": len(receipts.entries)}

    return app
