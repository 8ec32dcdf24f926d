"""Keys of deliveries: the same however often one is sent, and made only from what its sender fixed.

A source comes first, as in "STRIPE:evt_1". What counts attempts, or tells when one was made, is in no key.
"""

import math
import unicodedata
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from semel.core.keys import Key
from semel.doors.webhooks.reading import Headers, values
from semel.errors import InvalidKey

# Two notices of one message may differ by seconds; whoever says the same again mostly does so later.
BUCKET_SECONDS: Final = 60


def hubspot_key(event: Mapping[str, Any], *also: str) -> Key:
    """One event of a HubSpot batch; `also` names further fields that tell events of yours apart.

    Its eventId is not used, for HubSpot does not promise that it is unique. Events of several properties that
    changed at once differ in `propertyName` alone, so name that field if you subscribe to several. Classic
    events such as contact.creation have no objectTypeId: put it in, which is "0-1" for a contact.
    """
    fields = ["objectTypeId", "objectId", "subscriptionType"]
    if event.get("occurredAt") is not None:
        fields.append("occurredAt")
    if "attemptNumber" in also:
        raise InvalidKey(
            "attemptNumber differs at every attempt, so no retry would be recognised: leave it out"
        )
    return Key("HUBSPOT", *[_field(event, name, "a HubSpot event") for name in (*fields, *also)])


def aloware_key(body: Mapping[str, Any]) -> Key:
    """The key of an Aloware webhook, from its `body`."""
    return Key("ALOWARE", _field(body, "id", "an Aloware body"))


def richpanel_key(
    conversation: str, message: str | None = None, *, text: str = "", created_at: float | None = None
) -> Key:
    """A Richpanel message: by its id, or without one by its words and the minute it was written in."""
    return Key("evt", "rp", conversation, message or _fingerprint(text, created_at))


def stripe_key(event: Mapping[str, Any]) -> Key:
    """The key of a Stripe event: its `id`."""
    return Key("STRIPE", _field(event, "id", "a Stripe event"))


def slack_key(body: Mapping[str, Any]) -> Key:
    """The key of a Slack event, from its outer body."""
    return Key("SLACK", _field(body, "event_id", "a Slack event"))


def telegram_key(update: Mapping[str, Any]) -> Key:
    """The key of a Telegram update; it is unique for one bot."""
    return Key("TELEGRAM", _field(update, "update_id", "a Telegram update"))


def github_key(headers: Headers) -> Key:
    """A GitHub delivery; a redelivery has the same key, but GitHub does not sign this header."""
    return Key("GITHUB", _header(headers, "X-GitHub-Delivery"))


def standard_webhooks_key(headers: Headers) -> Key:
    """The key of a delivery by Standard Webhooks."""
    return Key("WEBHOOK", _header(headers, "webhook-id"))


def _fingerprint(text: str, created_at: float | None) -> str:
    words = " ".join(unicodedata.normalize("NFC", text).split())
    if not words or created_at is None or not math.isfinite(created_at):
        raise InvalidKey(
            "a Richpanel message without an id needs its text and its created_at, in seconds: "
            "without them it cannot be told from the next one"
        )
    # No word has a line break in it any more, so text and time cannot run into each other.
    minute = math.floor(created_at / BUCKET_SECONDS)
    return sha256(f"{words}\n{minute}".encode("utf-8", "backslashreplace")).hexdigest()


def _field(source: Mapping[str, Any], name: str, what: str) -> str | int:
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InvalidKey(f"{what} needs {name}, as text or a whole number, to have a key; this one has none")
    return value


def _header(headers: Headers, name: str) -> str:
    found = values(headers, name)
    if len(found) != 1 or not found[0]:
        raise InvalidKey(f"the key is the {name} header, and this delivery has not one, but none or several")
    return found[0]
