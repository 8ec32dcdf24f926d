"""Sample data: settings with which all apps run, a shop, and what senders might send.

All of it is made up, and meant to be seen through: agents and customers have numbers for names, addresses are
of example.com, and telephone numbers of nobody.
"""

import hmac
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from semel.apps.support.orders import Order
from semel.connect import Semel
from semel.core.policy import DAY
from semel.model import Claimed
from semel.stores.sqlite.file import SQLiteFile

ALOWARE: Final = "sample-token-of-aloware"
HUBSPOT: Final = "sample-token-of-hubspot"
RICHPANEL: Final = "sample-token-of-richpanel"
TELEGRAM: Final = "sample-token-of-telegram"
PROBE: Final = "sample-token-of-probe"
READER: Final = "sample-token-of-a-reader"

# About every fifth delivery is one of the last few once more.
AGAIN: Final = 0.2
REMEMBERED: Final = 12

# How an order number ends says what the shop will do.
LOST, FLAKY, UNKNOWN = "9", "7", "0"


def settings(url: str) -> dict[str, Any]:
    """Settings with which every app runs, without any account."""
    star = str(Path(SQLiteFile.from_url(url).path).with_name("quill.db"))
    return {
        "semel": {"url": url},
        # What fails here fails on purpose, and the line of figures tells it.
        "service": {"log_format": "text", "log_level": "error"},
        "tokens": {"sample": {"token": READER, "scopes": ["ledger:read", "apps:read", "metrics"]}},
        "apps": {
            "quill": {"aloware_token": ALOWARE, "hubspot_secret": HUBSPOT, "star": star},
            "support": {
                "webhook_token": RICHPANEL,
                "automation_enabled": True,
                "lookup": f"{__name__}:find_order",
            },
            "household": {"secret_token": TELEGRAM},
            "probe": {"token": PROBE},
        },
        # Fewer than usual, so that dead letters are seen within seconds.
        "inbox": {"support": {"max_attempts": 3}},
    }


# The shop


class ShopDown(Exception):
    """The sample shop does not answer."""


_asked: set[str] = set()


def find_order(number: str, _email: str) -> Order | None:
    """An order in the sample shop, which is down for some numbers at first, and for some for ever."""
    if number.endswith(LOST) or (number.endswith(FLAKY) and number not in _asked):
        _asked.add(number)
        raise ShopDown("it is down, on purpose")
    return None if number.endswith(UNKNOWN) else Order("shipped")


# Deliveries


class SampleDelivery(msgspec.Struct, frozen=True):
    """What is sent to one address."""

    path: str
    headers: dict[str, str]
    content: Any

    @property
    def body(self) -> bytes:
        """The content as JSON."""
        return msgspec.json.encode(self.content)

    @property
    def size(self) -> int:
        """How many events it brings."""
        return len(self.content) if isinstance(self.content, list) else 1

    def signed(self, address: str, now: float) -> dict[str, str]:
        """Its headers; HubSpot signs the address, the body and the time."""
        if self.path != "/webhooks/hubspot":
            return self.headers
        sent = str(int(now * 1000))
        text = f"POST{address}{self.path}".encode() + self.body + sent.encode()
        signature = b64encode(hmac.digest(HUBSPOT.encode(), text, "sha256")).decode()
        return {**self.headers, "X-HubSpot-Signature-v3": signature, "X-HubSpot-Request-Timestamp": sent}


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"Authorization": f"Bearer {token}"}


def call(id: int, agent: int) -> SampleDelivery:
    """Aloware tells of a call that an agent has made."""
    body = {"id": id, "user_id": agent, "contact": {"phone_number": "555-0107"}}
    return SampleDelivery(
        "/webhooks/aloware",
        bearer(ALOWARE),
        {"event": "OutboundPhoneCall-DispositionCompleted", "body": body},
    )


def batch(first: int, size: int, agent: int, now: float) -> SampleDelivery:
    """HubSpot tells of e-mails and cases, several at once."""
    events = [
        {
            "objectId": id,
            "objectTypeId": "0-5" if id % 3 == 0 else "0-49",
            "subscriptionType": "object.creation",
            "occurredAt": int(now * 1000),
            "sourceId": f"userId:{agent}",
        }
        for id in range(first, first + size)
    ]
    return SampleDelivery("/webhooks/hubspot", {}, events)


def message(customer: int, id: str, text: str) -> SampleDelivery:
    """Richpanel tells what a customer wrote."""
    content = {
        "conversation_id": f"customer-{customer}",
        "message_id": id,
        "text": text,
        "email": f"customer-{customer}@example.com",
    }
    return SampleDelivery("/webhooks/richpanel", bearer(RICHPANEL), content)


def update(id: int, chat: int, now: float, text: str) -> SampleDelivery:
    """Telegram tells what somebody wrote in a chat."""
    sent = {"message_id": id, "date": int(now), "chat": {"id": chat}, "from": {"id": 3}, "text": text}
    header = {"X-Telegram-Bot-Api-Secret-Token": TELEGRAM}
    return SampleDelivery("/webhooks/telegram", header, {"update_id": id, "message": sent})


def order(action: str, key: str, **asked: Any) -> SampleDelivery:
    """Somebody has the probe move messages."""
    headers = {**bearer(PROBE), "Idempotency-Key": f'"{key}"'}
    return SampleDelivery(f"/messages/{action}", headers, {"address": "sample", **asked})


# After these the customer is asked for an order number.
ORDER_QUESTIONS: Final = (
    "Where is my order? You can reach me at 555-0142.",
    "When will my package arrive?",
    "Can you tell me the status of my order?",
)
QUESTIONS: Final = (
    *ORDER_QUESTIONS,
    "I would like a refund, please.",
    "The lamp came broken.",
    "My lawyer will hear of this.",
    "Thank you for the quick answer!",
)
CHATS: Final = (
    "I did the dishes",
    "Jag har dammsugit hela huset",
    "Took out the trash and the recycling",
    "Vem hämtar på dagis?",
    "Went for a run",
    "Good morning",
)


class SampleSenders:
    """Whoever sends, one delivery after the other; the same seed sends the same."""

    def __init__(self, rng: Random, now: Callable[[], float]) -> None:
        self._rng, self._now = rng, now
        # Nothing of an earlier run on the same file has these numbers.
        self._number = int(now() * 1000)
        self._asked: deque[int] = deque(maxlen=REMEMBERED)
        self._sent: deque[SampleDelivery] = deque(maxlen=REMEMBERED)
        # Whoever looks on sees a failure soon, and not too many.
        self._endings = cycle((FLAKY, "1", LOST, "2", UNKNOWN, "3", FLAKY, "4", "5", "6"))

    def __iter__(self) -> Iterator[SampleDelivery]:
        while True:
            if self._sent and self._rng.random() < AGAIN:
                yield self._rng.choice(self._sent)
            else:
                self._sent.append(self._next())
                yield self._sent[-1]

    def _next(self) -> SampleDelivery:
        self._number += 10
        kinds = (self._calls, self._emails, self._customers, self._customers, self._family, self._probe)
        return self._rng.choice(kinds)(self._number)

    def _calls(self, number: int) -> SampleDelivery:
        return call(number, self._rng.randint(1, 9))

    def _emails(self, number: int) -> SampleDelivery:
        return batch(number, self._rng.randint(1, 5), self._rng.randint(1, 9), self._now())

    def _customers(self, number: int) -> SampleDelivery:
        """A customer asks something, or answers with the order number that he was asked for."""
        if self._asked and self._rng.random() < 0.7:
            text = f"It is {self._rng.randint(1000, 9999)}{next(self._endings)}"
            return message(self._asked.popleft(), f"m-{number}", text)
        # Not 7, who is whoever looks on.
        customer, text = 1000 + number // 10 % 9000, self._rng.choice(QUESTIONS)
        if text in ORDER_QUESTIONS:
            self._asked.append(customer)
        return message(customer, f"m-{number}", text)

    def _family(self, number: int) -> SampleDelivery:
        return update(number, self._rng.choice((8, 9, -1009)), self._now(), self._rng.choice(CHATS))

    def _probe(self, number: int) -> SampleDelivery:
        if self._rng.random() < 0.5:
            return order("produce", f"sample-{number}", count=self._rng.randint(1, 5))
        return order("consume", f"sample-{number}", max=5, seconds=0.1)


# What is there from the start


def begin(s: Semel) -> None:
    """What no traffic brings by itself: work that vanished, work that was given up, switches."""
    # Nothing of an earlier run on the same file has this number.
    number = int(s.clock.now() * 1000)
    for name in ("vanished", "given-up"):
        claim = s.ledger.claim(f"sample:{name}-{number}", ttl=DAY)
        if isinstance(claim, Claimed) and name == "vanished":
            s.ledger.doubt(claim)
        elif isinstance(claim, Claimed):
            s.ledger.fail(claim, ShopDown("it is down, on purpose"))
    s.ops.turn("sample_pause", on=True, by="sample", why="to be seen here: nothing asks for it")
    s.ops.turn("sample_maintenance", on=True, by="sample", why="the shop is being moved")
    s.ops.turn("sample_maintenance", on=False, by="sample", why="the shop is back")


# To be pasted


class Paste(msgspec.Struct, frozen=True):
    """A delivery for a person to send, and the key that it has in the ledger of its app."""

    app: str
    what: str
    delivery: SampleDelivery
    key: str


def pastes(now: float) -> list[Paste]:
    """One for each app; none of them needs to be signed."""
    return [
        Paste("quill", "a call that an agent made", call(5550107, 3), "ALOWARE:5550107"),
        Paste(
            "support",
            "a customer's question",
            message(7, "m-1", "Where is my order?"),
            "evt:rp:customer-7:m-1",
        ),
        Paste("household", "what was done at home", update(1, 7, now, "I did the dishes"), "TELEGRAM:1"),
        Paste("probe", "three messages into a queue", order("produce", "mine", count=3), "PRODUCE#mine"),
    ]


# What comes in here is accepted, and looked at later: whether it is known is told to who asks.
ACCEPTED: Final = frozenset({"/webhooks/richpanel", "/webhooks/telegram"})


def curl(address: str, delivery: SampleDelivery) -> str:
    """A delivery as a line for a shell."""
    sent = delivery.headers | ({"Prefer": "return=representation"} if delivery.path in ACCEPTED else {})
    headers = " ".join(f"-H '{name}: {value}'" for name, value in sent.items())
    # Whether the probe has answered the same before is told by a header.
    shown = "-si" if delivery.path.startswith("/messages") else "-s"
    return f"curl {shown} -w '\\n' {address}{delivery.path} {headers} -d '{delivery.body.decode()}'"


def looks(address: str, now: float) -> list[str]:
    """Where a person sees what came of them, as lines for a shell."""
    day = datetime.fromtimestamp(now, UTC).date()
    places = (
        f"/apps/quill/facts?from={day}&to={day}",
        "/apps/support/conversations/customer-7/audit",
        "/apps/household/chats/7/activities",
    )
    return [f"curl -s -w '\\n' '{address}{place}' -H 'Authorization: Bearer {READER}'" for place in places]
