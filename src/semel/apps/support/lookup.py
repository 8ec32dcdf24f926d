"""Looking orders up: asked once for a conversation and a number, within a while, and told to the audit."""

from collections.abc import Callable
from typing import TypeAlias

from semel.apps.support.acting import Audit, AuditEntry, customer_of, error_name, event_details
from semel.apps.support.orders import Order, Shopify
from semel.apps.support.planning import ending_of
from semel.apps.support.settings import Settings, function
from semel.apps.support.ticket import Ticket
from semel.connect import Semel
from semel.core.keys import Key
from semel.core.running import current_run

Asks: TypeAlias = Callable[[str, str], Order | None]
"""Finds an order by its number, if it was placed with this e-mail address."""


class Lookup:
    """Finds orders; of their numbers nothing is kept but a hash and the last digits."""

    def __init__(self, s: Semel, asks: Asks, audit: Audit, every: float) -> None:
        self._s, self._asks, self._audit, self._every = s, asks, audit, every

    def find(self, ticket: Ticket, number: str) -> Order | None:
        """The order of this number, if it is the customer's."""
        asking = current_run()
        details = event_details(asking)

        @self._s.once(
            key=self._key,
            subject="{person}",
            fingerprint=None,
            lease=min(asking.claim.lease, self._every / 2),
            ttl=self._every,
            horizon=self._every,
        )
        def find(conversation: str, number: str, email: str, person: str) -> Order | None:
            current_run().note(**details)
            return self._find(conversation, number, email, person)

        return find(ticket.conversation, number, ticket.email, customer_of(self._s, ticket))

    def _key(self, conversation: str, number: str, email: str, person: str) -> Key:
        return Key("act", "shopify_lookup", conversation, self._s.digest(number).sha256[:32])

    def _find(self, conversation: str, number: str, email: str, person: str) -> Order | None:
        run, about = current_run(), {"order": f"***{ending_of(number)}"}

        def entry(result: str) -> AuditEntry:
            return AuditEntry(conversation, "order_lookup", run.key, about, result, person)

        try:
            order = self._asks(number, email)
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
