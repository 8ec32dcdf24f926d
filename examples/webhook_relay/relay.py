"""A relay: a shop's webhooks are taken at once, and passed on to each subscriber once.

SHOP_SECRET=... SEMEL_URL=sqlite:///relay.db uvicorn --factory relay:create_app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from threading import Thread

import httpx
from fastapi import FastAPI, Request, Response

import semel
from semel.doors.inbox import Inbox, Message, open_inbox
from semel.doors.webhooks import Ingress, Notice, PlainHmac, Provider


def key_of(notice: Notice) -> str:
    """What names an event of the shop: the same for every delivery."""
    return f"shop:{notice.payload['id']}"


SHOP = Provider("shop", partial(PlainHmac, header="X-Shop-Signature"), key_of, retry_horizon=3 * semel.DAY)


def message_of(notice: Notice) -> Message:
    """An event as it waits; those of one order are passed on in their order."""
    return Message(key_of(notice), notice.payload, group=f"order:{notice.payload['order']}")


class Relay:
    """Passes events on to subscribers."""

    def __init__(
        self, s: semel.Semel, secret: str, subscribers: list[str], client: httpx.Client | None = None
    ) -> None:
        self.inbox: Inbox = open_inbox(s, "relay")
        self.ingress = Ingress(s, SHOP, secret, self.inbox, message_of)
        self._s, self._subscribers = s, subscribers
        self._client = client or httpx.Client(timeout=10)

    def handle(self, message: Message) -> int:
        """Pass an event on; a subscriber that has it is not asked again when another one fails."""
        run = semel.current_run()
        for url in self._subscribers:
            self._s.once.step(("to", url), self._post, url, message.body, run.key_for(url))
        return len(self._subscribers)

    def _post(self, url: str, body: object, key: str) -> int:
        answer = self._client.post(url, json=body, headers={"Idempotency-Key": key})
        return answer.raise_for_status().status_code

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


def create_app() -> FastAPI:
    """The relay as the environment sets it up, with its worker in a thread."""
    s = semel.connect(os.environ.get("SEMEL_URL", "sqlite:///relay.db"))
    relay = Relay(s, os.environ["SHOP_SECRET"], os.environ.get("SUBSCRIBERS", "").split())
    worker = relay.inbox.worker(relay.handle)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        thread = Thread(target=worker.run)
        thread.start()
        yield
        worker.stop()
        thread.join()
        relay.close()
        s.close()

    app = FastAPI(title="Relay", lifespan=lifespan)

    @app.post("/webhooks/shop")
    async def shop(request: Request) -> Response:
        """Take a delivery: it is stored before the shop is answered."""
        answer = await relay.ingress.areceive(request.headers, await request.body())
        return Response(answer.body, answer.status, answer.headers)

    return app
