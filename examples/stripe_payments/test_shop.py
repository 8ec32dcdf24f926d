"""The shop as Stripe sees it; the signature is made as Stripe makes it."""

import hmac
import json
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from shop import create_app

SECRET = "whsec_of-the-tests-only"


@pytest.fixture
def shop() -> Iterator[TestClient]:
    with TestClient(create_app("memory:", SECRET)) as shop:
        yield shop


def deliver(shop: TestClient, event: str, order: str, *, secret: str = SECRET) -> int:
    session = {"client_reference_id": order, "amount_total": 4200}
    body = json.dumps({"id": event, "type": "checkout.session.completed", "data": {"object": session}})
    moment = int(time.time())
    signature = hmac.new(secret.encode(), f"{moment}.{body}".encode(), "sha256").hexdigest()
    headers = {"Stripe-Signature": f"t={moment},v1={signature}"}
    return shop.post("/webhooks/stripe", content=body, headers=headers).status_code


def test_an_event_that_is_delivered_three_times_books_once(shop: TestClient) -> None:
    assert [deliver(shop, "evt_1", "o-1") for _ in range(3)] == [200, 200, 200]
    assert shop.get("/orders/o-1").json() == {"paid": 4200, "receipts": 1}


def test_a_delivery_that_stripe_did_not_sign_books_nothing(shop: TestClient) -> None:
    assert deliver(shop, "evt_1", "o-1", secret="whsec_guessed") == 401
    assert shop.get("/orders/o-1").status_code == 404
