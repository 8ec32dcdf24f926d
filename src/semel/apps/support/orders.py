"""How an order stands: asked of Shopify, or of a function of yours."""

from typing import Any, Final, Literal, TypeAlias

import msgspec

from semel.apps.client import RemoteClient

OrderStatus: TypeAlias = Literal["processing", "on_hold", "partly_shipped", "shipped", "cancelled"]

WORDS: Final[dict[OrderStatus, str]] = {
    "processing": "is being prepared and has not been shipped yet",
    "on_hold": "is on hold at the moment, and one of us will have a look",
    "partly_shipped": "has been shipped in part, and the rest follows",
    "shipped": "has been shipped",
    "cancelled": "was cancelled",
}

# https://shopify.dev/docs/api/admin-graphql/latest/enums/OrderDisplayFulfillmentStatus
FULFILMENT: Final[dict[str, OrderStatus]] = {
    "FULFILLED": "shipped",
    "PARTIALLY_FULFILLED": "partly_shipped",
    "ON_HOLD": "on_hold",
}

VERSION: Final = "2026-01"
QUERY: Final = (
    "query($name: String!) { orders(first: 2, query: $name) "
    "{ nodes { name email cancelledAt displayFulfillmentStatus } } }"
)


class Order(msgspec.Struct, frozen=True):
    """All that is kept of an order: no number, no address, no parcel."""

    status: OrderStatus


class ShopifyAnswer(Exception):
    """Shopify answered, and did not say what was asked; another try may do better."""


class Shopify:
    """Finds orders in a shop, and tells of them only to whom they belong."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"X-Shopify-Access-Token": token}
        self._client = RemoteClient("shopify", url, headers=headers)

    def __call__(self, number: str, email: str) -> Order | None:
        """The order of this number and e-mail address; None where there is none."""
        body = {"query": QUERY, "variables": {"name": f"name:{number}"}}
        # It only reads, so it may be asked again whatever became of the first time.
        path = f"/admin/api/{VERSION}/graphql.json"
        answer = self._client.call("POST", path, json=body, repeatable=True).json()
        if "errors" in answer or not isinstance(answer.get("data"), dict):
            raise ShopifyAnswer("Shopify could not answer; it may be throttling")
        return next(
            filter(None, (_order(node, number, email) for node in answer["data"]["orders"]["nodes"])), None
        )

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


def _order(node: dict[str, Any], number: str, email: str) -> Order | None:
    # Whoever knows a number need not be whose order it is.
    theirs = str(node.get("email") or "").casefold() == email.casefold() != ""
    if not theirs or str(node["name"]).lstrip("#").casefold() != number.casefold():
        return None
    if node.get("cancelledAt"):
        return Order("cancelled")
    return Order(FULFILMENT.get(node["displayFulfillmentStatus"], "processing"))
