"""Order notices: a shop tells of paid orders, and the warehouse is told of each once.

The shop's deliveries come in at /webhooks/shop, signed, and wait in the inbox. A worker posts each order to
the warehouse, and writes down in one go that it did; /apps/notices/orders/NUMBER shows it.
"""

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

import semel
from semel.apps.deployment import Deployment, DeploymentQueue, Function, secrets_of, settings_of
from semel.apps.functions import Functions
from semel.apps.settings import check_address, wrong
from semel.doors.inbox import Inbox, Message
from semel.doors.webhooks import Ingress, Notice, PlainHmac, Provider
from semel.ops.blocks import AppPage, Cell, KeyLink, PageBlock, TableBlock, TimeCell
from semel.state.journal import Entry
from semel.tables import DOCUMENTS, JOURNAL, LEDGER

if TYPE_CHECKING:
    from fastapi import APIRouter

PATH = "/webhooks/shop"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The section `[apps.notices]`."""

    shop_secret: str = ""
    """What the shop signs its deliveries with."""
    warehouse_url: str = ""
    """Where notices are posted to; without one they are kept in the journal."""
    warehouse_timeout: float = 10.0


class Order(msgspec.Struct, frozen=True):
    """What the shop tells of an order; the rest of a delivery is none of our business."""

    number: str
    items: int


class Refused(Exception):
    """The warehouse will not take this notice, however often it comes."""


def key_of(notice: Notice) -> str:
    """What names an order: the same for every delivery of it."""
    return f"paid:{notice.payload['number']}"


# It signs the body, and tries again for three days: that is how long an order is remembered at least.
SHOP = Provider("shop", partial(PlainHmac, header="X-Shop-Signature"), key_of, retry_horizon=3 * semel.DAY)


class Notices:
    """The application."""

    settings_type = Settings

    def __init__(self, s: semel.Semel, inbox: Inbox, settings: Settings) -> None:
        if settings.warehouse_url:
            check_address("notices", "warehouse_url", settings.warehouse_url)
        self.s, self._inbox, self._settings = s, inbox, settings
        self._warehouse = httpx.Client(timeout=settings.warehouse_timeout)

    # Taking deliveries

    @cached_property
    def hooks(self) -> dict[str, Ingress]:
        """Where the shop delivers; a function that only works on messages never asks."""
        if not self._settings.shop_secret:
            raise wrong("notices", "shop_secret", "set what the shop signs with: else anybody sends orders")
        return {PATH: Ingress(self.s, SHOP, self._settings.shop_secret, self._inbox, self._message)}

    def _message(self, notice: Notice) -> Message | None:
        """What is to be handled of an event; None where it is no order that was paid."""
        if notice.payload.get("event") != "order.paid":
            return None
        order = msgspec.convert(notice.payload, Order)
        # Messages of one group are handled in their order, one at a time.
        return Message(key_of(notice), msgspec.to_builtins(order), group=order.number)

    # Handling messages

    @property
    def worker_options(self) -> semel.Options:
        """Remember an order for a month; what the warehouse refuses goes to the dead letters at once."""
        return {"ttl": 30 * semel.DAY, "on_error": {Refused: "keep"}}

    def handle(self, message: Message) -> str:
        """Tell the warehouse of an order; this is called once for each, unless it fails."""
        order, run = msgspec.convert(message.body, Order), semel.current_run()
        receipt = self._notify(order, run.key_for("warehouse"))
        with self.s.transaction() as tx:
            if not self._settings.warehouse_url:
                tx.journal.append("outbox:notices", {"order": order.number, "items": order.items})
            tx.documents.put(f"order:{order.number}", {"items": order.items, "receipt": receipt})
            tx.ledger.complete(run, receipt)
        return receipt

    def _notify(self, order: Order, key: str) -> str:
        """Post a notice; the key is the same at every attempt, so that the warehouse knows a second one."""
        if not self._settings.warehouse_url:
            return "kept"
        answer = self._warehouse.post(
            self._settings.warehouse_url, json=msgspec.to_builtins(order), headers={"Idempotency-Key": key}
        )
        if 400 <= answer.status_code < 500 and answer.status_code != 429:
            raise Refused(f"the warehouse answered {answer.status_code}")
        answer.raise_for_status()
        return str(answer.json()["receipt"])

    # The rest

    def router(self) -> "APIRouter":
        """What can be read under /apps/notices/."""
        return routes(self.s)

    def pages(self) -> dict[str, AppPage]:
        """What the dashboard shows of it."""
        return {"outbox": AppPage("Outbox", lambda _query: outbox(self.s))}

    @classmethod
    def deployment(cls) -> Deployment:
        """What it needs on AWS."""
        return DEPLOYMENT

    def close(self) -> None:
        """Let go of connections."""
        self._warehouse.close()


def routes(s: semel.Semel) -> "APIRouter":
    """What became of an order, for a token with `apps:read`."""
    from fastapi import APIRouter, HTTPException  # which is none of a Lambda function's business

    router = APIRouter()

    @router.get("/orders/{number}")
    def order(number: str) -> dict[str, Any]:
        found = s.documents.get(f"order:{number}")
        if found is None:
            raise HTTPException(404, "the warehouse was not told of this order")
        return found.value

    return router


def _kept(entry: Entry) -> tuple[Cell, ...]:
    number = entry.body["order"]
    return KeyLink(f"paid:{number}", number), entry.body["items"], TimeCell(entry.at or 0.0)


async def outbox(s: semel.Semel) -> list[PageBlock]:
    """The orders that the warehouse was told of without being asked: the newest first."""
    kept = await s.aio.journal.list("outbox:notices", limit=50, reverse=True)
    rows = tuple(map(_kept, kept.entries))
    empty = "No order was kept: they are posted to the warehouse, or none was paid yet."
    return [TableBlock("Kept for the warehouse", ("Order", "Items", "When"), rows, empty)]


SETTINGS = settings_of(
    "notices",
    Settings,
    {
        "warehouse_url": "Where notices are posted to; none where they are kept in the journal.",
        "warehouse_timeout": "For how many seconds the warehouse is waited for.",
    },
)

SECRETS = secrets_of(
    "notices",
    {
        "secret": "32 random bytes, by which messages are sealed",
        "shop_secret": "what the shop signs with",
    },
)

INGRESS = Function(
    handler="notices.ingress",
    about="Puts what the shop sends into the queue, and writes nothing.",
    paths=(PATH,),
    sends=True,
    timeout=10,
    secrets=("secret", "shop_secret"),
    settings=(),
)

WORKER = Function(
    handler="notices.worker",
    about="Tells the warehouse of each order, once.",
    works=True,
    may={
        LEDGER: ("GetItem", "PutItem", "UpdateItem"),
        DOCUMENTS: ("GetItem", "PutItem"),
        JOURNAL: ("GetItem", "PutItem"),
    },
    secrets=("secret",),
)

DEPLOYMENT = Deployment(
    app="notices",
    ledger=LEDGER,
    tables=(LEDGER, DOCUMENTS, JOURNAL),
    queue=DeploymentQueue(),
    functions={"Ingress": INGRESS, "Worker": WORKER},
    settings=SETTINGS,
    secrets=SECRETS,
    requires="semel[apps,crypto,privacy]",
)

# What Lambda calls: `notices.ingress` behind an API, and `notices.worker` behind the queue.
FUNCTIONS = Functions.of("notices", Notices)
ingress, worker = FUNCTIONS.ingress, FUNCTIONS.worker
