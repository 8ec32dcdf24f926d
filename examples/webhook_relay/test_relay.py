"""The relay as the shop and its subscribers see it."""

import hmac
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from relay import Relay, create_app

import semel
from semel.doors.inbox import Message
from semel.doors.webhooks import WebhookResponse

SECRET = "what-the-shop-signs-with"
NORTH, SOUTH = "https://north.example.com/events", "https://south.example.com/events"


class Subscribers(httpx.MockTransport):
    """Subscribers that remember what they were asked; one of them may be down for a while."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.down: list[str] = []
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        url = str(request.url)
        self.asked.append((url, json.loads(request.content)["id"], request.headers["Idempotency-Key"]))
        if url in self.down:
            self.down.remove(url)
            return httpx.Response(503)
        return httpx.Response(200)


@pytest.fixture
def subscribers() -> Subscribers:
    return Subscribers()


@pytest.fixture
def relay(subscribers: Subscribers) -> Iterator[Relay]:
    with semel.connect("memory:") as s:
        relay = Relay(s, SECRET, [NORTH, SOUTH], httpx.Client(transport=subscribers))
        yield relay
        relay.close()


def deliver(relay: Relay, id: str, order: str, secret: str = SECRET) -> int:
    body = json.dumps({"id": id, "order": order}).encode()
    signature = hmac.new(secret.encode(), body, "sha256").hexdigest()
    answer: WebhookResponse = relay.ingress.receive({"X-Shop-Signature": signature}, body)
    return answer.status


def work(relay: Relay, until: Callable[[], bool]) -> None:
    """Handle what waits, and try again at once what failed, until this is so."""

    def handle(message: Message) -> Any:
        try:
            return relay.handle(message)
        finally:
            if until():
                worker.stop()

    worker = relay.inbox.worker(handle, backoff=lambda _: 0.0)
    worker.run()


def test_an_event_that_is_delivered_twice_is_passed_on_once(relay: Relay, subscribers: Subscribers) -> None:
    assert [deliver(relay, id, "o-1") for id in ("1", "1", "2")] == [200, 200, 200]
    work(relay, lambda: len(subscribers.asked) == 4)
    assert [(url, id) for url, id, _ in subscribers.asked] == [
        (NORTH, "1"),
        (SOUTH, "1"),
        (NORTH, "2"),
        (SOUTH, "2"),
    ]


def test_a_subscriber_that_has_it_is_not_asked_again_when_another_one_failed(
    relay: Relay, subscribers: Subscribers
) -> None:
    subscribers.down = [SOUTH]
    deliver(relay, "1", "o-1")
    work(relay, lambda: len(subscribers.asked) == 3)
    assert Counter(url for url, _, _ in subscribers.asked) == {NORTH: 1, SOUTH: 2}
    assert len({key for url, _, key in subscribers.asked if url == SOUTH}) == 1


def test_a_delivery_that_the_shop_did_not_sign_is_refused(relay: Relay) -> None:
    assert deliver(relay, "1", "o-1", secret="guessed") == 401
    assert relay.inbox.waiting() == 0


def test_the_app_starts_as_the_environment_sets_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    monkeypatch.setenv("SEMEL_URL", "memory:")
    with TestClient(create_app()) as client:
        assert client.post("/webhooks/shop", content=b"{}").status_code == 401
