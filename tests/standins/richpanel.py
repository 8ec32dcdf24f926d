"""Stand-ins for Richpanel and for a shop at Shopify."""

from collections import deque
from typing import Any

from semel.core.clock import Clock
from tests.standins.base import Failure, Reply, Request, StandIn, serve

# "You can perform up to 50 requests per 30 seconds"; beyond, 429 with Retry-After and the two headers below.
# https://developer.richpanel.com/reference/limitations
LIMIT, WINDOW_SECONDS = 50, 30.0

API_KEY = "rp-key-of-the-tests"


class Richpanel(StandIn):
    """Richpanel's conversations, under its published paths.

    `PUT /v1/tickets/{id}` adds a comment or assigns: https://developer.richpanel.com/reference/update-a-conversation
    `PUT /v1/tickets/{id}/add-tags` adds tags: https://developer.richpanel.com/reference/add-tags
    The key comes as x-richpanel-key: https://developer.richpanel.com/reference/authentication
    """

    def __init__(self, port: int = 0, *, keeps_keys: bool = False, limit: int = LIMIT) -> None:
        super().__init__(port)
        self.keeps_keys, self.limit = keeps_keys, limit
        self.replies: list[tuple[str, str]] = []
        self.tags: list[tuple[str, str]] = []
        self.assigned: list[tuple[str, str]] = []
        self._lost: list[Failure] = []
        self._seen: dict[str, Reply] = {}
        self._recent: deque[float] = deque()
        self._clock = Clock()

    def reset(self) -> None:
        super().reset()
        with self.lock:
            for kept in (self.replies, self.tags, self.assigned, self._recent, self._lost):
                kept.clear()
            self._seen.clear()

    def lose_reply(self, *, sent: bool, hang: float = 30.0, status: int | None = None) -> None:
        """Leave the next reply to a customer unanswered or answered with `status`, `sent` or not."""
        with self.lock:
            self._lost.append(Failure(status=status, hang=hang, after_applying=sent))

    def _failure(self, request: Request) -> Failure | None:
        if self._lost and '"comment"' in request.text:
            return self._lost.pop(0)
        return super()._failure(request)

    def answer(self, request: Request) -> Reply:
        if request.headers.get("x-richpanel-key") != API_KEY:
            return Reply(401, {"error": "Unauthorized"})
        if (wait := self._too_many()) is not None:
            headers = {
                "Retry-After": str(wait),
                "X-RateLimit-Limit": str(self.limit),
                "X-RateLimit-Remaining": "0",
            }
            return Reply(429, {"error": "Too Many Requests"}, headers)
        if not self.keeps_keys or request.key is None:
            return self._done(request)
        if request.key not in self._seen:
            self._seen[request.key] = self._done(request)
        return self._seen[request.key]

    def _too_many(self) -> int | None:
        now = self._clock.monotonic()
        while self._recent and now - self._recent[0] >= WINDOW_SECONDS:
            self._recent.popleft()
        if len(self._recent) >= self.limit:
            return int(WINDOW_SECONDS - (now - self._recent[0])) + 1
        self._recent.append(now)
        return None

    def _done(self, request: Request) -> Reply:
        match request.method, request.path.split("/")[1:], request.json:
            case "PUT", ["v1", "tickets", id, "add-tags"], {"tags": [*tags]}:
                self.tags += [(id, tag) for tag in tags]
            case "PUT", ["v1", "tickets", id], {"ticket": dict(ticket)}:
                self._update(id, ticket)
            case _:
                return Reply(400, {"error": "unknown request"})
        return Reply(200, {"ticket": {"id": id}})

    def _update(self, id: str, ticket: dict[str, Any]) -> None:
        if "comment" in ticket:
            assert ticket["comment"]["sender_type"] == "operator"
            self.replies.append((id, ticket["comment"]["body"]))
        if "assignee_id" in ticket:
            self.assigned.append((id, ticket["assignee_id"]))

    def control(self, word: str, request: Request) -> Reply:
        if word == "lose_reply":
            self.lose_reply(**request.json)
            return Reply(204)
        if word != "done":
            return super().control(word, request)
        with self.lock:
            return Reply(200, {"replies": self.replies, "tags": self.tags, "assigned": self.assigned})


SHOP_TOKEN = "shpat-of-the-tests"


class Shop(StandIn):
    """Orders by number, asked for by Shopify's GraphQL Admin API.

    https://shopify.dev/docs/api/admin-graphql/latest/queries/orders
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.orders: dict[str, dict[str, Any]] = {}

    def add(self, number: str, email: str, status: str = "FULFILLED", cancelled: str | None = None) -> None:
        node: dict[str, Any] = {"name": f"#{number}", "email": email, "cancelledAt": cancelled}
        node["displayFulfillmentStatus"] = status
        with self.lock:
            self.orders[number] = node

    def answer(self, request: Request) -> Reply:
        if request.headers.get("x-shopify-access-token") != SHOP_TOKEN:
            return Reply(401, {"errors": "[API] Invalid API key or access token"})
        if request.method != "POST" or not request.path.endswith("/graphql.json"):
            return Reply(404)
        asked = request.json["variables"]["name"].removeprefix("name:")
        nodes = [node for number, node in self.orders.items() if number == asked]
        return Reply(200, {"data": {"orders": {"nodes": nodes}}})


if __name__ == "__main__":
    serve(Richpanel)
