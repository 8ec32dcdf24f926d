"""One message of a customer's, and what it is called wherever it leaves a trace."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec

from semel.apps.payloads import mended, seconds_of, value_at
from semel.core.keys import Key
from semel.doors.webhooks import EventRefused, richpanel_key
from semel.errors import InvalidKey

# Nobody writes more than this to say what it is about; a queue has no room for much more.
MAX_TEXT = 20_000

# Longer than any id that a help desk gives, and short enough for every key that it is part of.
MAX_ID = 200
# What ends a segment of an address, or means another character in it.
NO_PART = frozenset("/\\?#%")

# Seconds since 1970 have ten digits until the year 2286; what is larger counts milliseconds.
MILLISECONDS = 10_000_000_000


def _paths(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name.partition(".")[0], name) for name in names)


# By what names the body of an HTTP target may call these, each behind the name that it begins with: Richpanel
# leaves its shape to whoever sets it up.
CONVERSATION = _paths("conversation_id", "ticket_id", "ticket.id", "conversation.id")
MESSAGE = _paths("message_id", "message.id", "comment.id")
TEXT = _paths(
    "text", "message.text", "message.plain_body", "message", "comment.plain_body", "comment.body", "body"
)
WRITTEN = _paths("created_at", "message.created_at", "comment.created_at")
EMAIL = _paths("email", "customer.email", "ticket.customer.email")
PHONE = _paths("phone", "customer.phone", "ticket.customer.phone")
CUSTOMER = (*PHONE, *_paths("customer_id", "customer.id", "ticket.customer.id"))
CHANNEL = _paths("channel", "via.channel", "message.via.channel", "ticket.via.channel")
SENDER = _paths("sender_type", "message.sender_type", "comment.sender_type")
OPERATOR = _paths("isOperator", "message.isOperator", "comment.isOperator")


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it waits in the inbox; only there is it kept as it was written."""

    conversation: str
    message: str | None
    """Its id, or a hash of an id that may be somebody's address; None where Richpanel gave none."""
    text: str
    written_at: float | None = None
    received_at: str = ""
    email: str = ""
    channel: str = ""
    customer: str = ""
    """The customer's phone number, or id."""

    @property
    def persons(self) -> tuple[str, ...]:
        """What the customer may be called, the best name first; a conversation is always somebody's."""
        return self.email, self.customer, self.conversation

    @property
    def key(self) -> Key:
        """The key of the event."""
        return richpanel_key(self.conversation, self.message, text=self.text, created_at=self.written_at)

    def action(self, name: str, *about: str) -> Key:
        """The key of an action on it, from what will never change."""
        last = self.key.rpartition(":")[2] if self.message is None else self.message
        return Key("act", name, self.conversation, *about, last)


def ticket_of(payload: Any, now: float) -> Ticket | None:
    """The message that a webhook brings; None for one that the shop itself has written."""
    if not isinstance(payload, dict):
        raise InvalidKey("a message of Richpanel's is an object")
    # Whoever fills a template in writes "true" as a text.
    if (
        str(_first(payload, OPERATOR)).lower() == "true"
        or str(_first(payload, SENDER) or "customer").lower() != "customer"
    ):
        return None
    received = _moment(payload.get("received_at"))
    return Ticket(
        conversation=_part(_text(_first(payload, CONVERSATION))),
        message=_nameless(_text(_first(payload, MESSAGE))),
        text=_text(_first(payload, TEXT, str))[:MAX_TEXT],
        written_at=_moment(_first(payload, WRITTEN)),
        received_at=iso(now if received is None else received),
        email=_text(_first(payload, EMAIL)),
        channel=_text(_first(payload, CHANNEL)),
        customer=_text(_first(payload, CUSTOMER)),
    )


def iso(moment: float) -> str:
    """A moment as people and other programs read it."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _first(payload: dict[str, Any], names: tuple[tuple[str, str], ...], kind: type = object) -> Any:
    """Return the first value of this type under these names, which may lead through objects."""
    for root, name in names:
        if root not in payload:
            continue
        value = payload[root] if root == name else value_at(payload, name)
        if value not in (None, "") and isinstance(value, kind):
            return value
    return None


def _text(value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return mended(str(value).strip()) if whole or isinstance(value, str) else ""


def _part(id: str) -> str:
    """The id of a conversation, if it can be part of an address and leads nowhere else in it."""
    if id in (".", "..") or NO_PART & set(id) or not id.isprintable() or len(id) > MAX_ID:
        raise EventRefused(
            f"the id of its conversation is no part of an address: it has at most {MAX_ID} characters, "
            "none of / \\ ? # % or a control character, and is not . or .."
        )
    return id


def _nameless(id: str) -> str | None:
    """A message's id; that of an e-mail may be an address, and goes as its hash."""
    if "@" in id:
        return sha256(id.encode("utf-8", "backslashreplace")).hexdigest()
    return id or None


def _moment(value: Any) -> float | None:
    try:
        moment = seconds_of(value) if isinstance(value, str) else _seconds(value)
        datetime.fromtimestamp(moment, UTC)
    except (TypeError, ValueError, OverflowError, OSError):  # no time at all, or one in no calendar
        return None
    return moment


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value / 1000 if value > MILLISECONDS else float(value)
