"""Looking orders up: asked once for a conversation and a number, within a while, and told to the audit."""

from collections.abc import Callable
from typing import TypeAlias

from semel.apps.support.acting import Audit, AuditEntry, SupportEvent, error_name
from semel.apps.support.orders import Order, Shopify
from semel.apps.support.planning import ending_of
from semel.apps.support.settings import Settings, function
from semel.connect import Semel
from semel.core.commands import Raised
from semel.core.events import name_of
from semel.core.keys import Key
from semel.core.running import current_run
from semel.once import Block

Asks: TypeAlias = Callable[[str, str], Order | None]
"""Finds an order by its number, if it was placed with this e-mail address."""


class Lookup:
    """Finds orders; of their numbers nothing is kept but a hash and the last digits."""

    def __init__(self, s: Semel, asks: Asks, audit: Audit, every: float) -> None:
        self._s, self._asks, self._audit, self._every = s, asks, audit, every
        self._once = s.once.about(name_of(self._find))
        self._blocks: dict[float, Block] = {}
        """How a question is protected, by the lease of the event that asks."""

    def find(self, event: SupportEvent, number: str) -> Order | None:
        """The order of this number, if it is the customer's."""
        lease = min(event.claim.lease, self._every / 2)
        block = self._blocks.get(lease)
        if block is None:
            block = self._blocks[lease] = self._once.block(
                lease=lease, ttl=self._every, horizon=self._every, returns=Order | None
            )
        about = self._s.digest(number).sha256[:32]
        key = Key("act", "shopify_lookup", event.ticket.conversation, about)
        done = block.run(key, None, self._find, event, number, subject=event.person)
        if isinstance(done, Raised):
            raise done.error
        order: Order | None = done.value
        return order

    def _find(self, event: SupportEvent, number: str) -> Order | None:
        run, about = current_run(), {"order": f"***{ending_of(number)}"}
        run.note(**event.repeated)

        def entry(result: str) -> AuditEntry:
            conversation = event.ticket.conversation
            return AuditEntry(conversation, "order_lookup", run.key, about, result, event.person)

        try:
            order = self._asks(number, event.ticket.email)
        except Exception as error:
            self._audit.record(entry(f"fail: {error_name(error)}"))
            raise
        about["found"] = "nothing" if order is None else order.status
        with self._s.transaction() as tx:
            tx.ledger.complete(run, order)
            self._audit.record(entry("success"), tx)
        return order

    def close(self) -> None:
        """Let go of connections."""
        if isinstance(self._asks, Shopify):
            self._asks.close()


def lookup(s: Semel, settings: Settings, audit: Audit) -> Lookup | None:
    """What finds orders by these settings; None where nothing does."""
    if settings.lookup:
        return Lookup(s, function("lookup", settings.lookup), audit, settings.lookup_every)
    if settings.shopify_url:
        shop = Shopify(settings.shopify_url, settings.shopify_token)
        return Lookup(s, shop, audit, settings.lookup_every)
    return None
