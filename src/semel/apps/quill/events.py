"""Events: what an agent did, as Aloware or HubSpot tells it, in the words of the report.

Nothing about the contact is taken over but the day it was for him.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from semel.apps.payloads import seconds_of, value_at
from semel.doors.webhooks import Notice

UNASSIGNED: Final = "unassigned"


class Metric(StrEnum):
    """What is counted."""

    CALLS = "calls"
    TEXTS = "texts"
    EMAILS = "emails"
    CASES = "cases"


class AgentEvent(msgspec.Struct, frozen=True):
    """One thing an agent did, under the name it has in the ledger."""

    key: str
    source: str
    agent: str
    """Whose it is: the source and its own number for a user."""
    metric: str
    date: str
    """The day on which it happened, where the contact is."""
    occurred_at: str


class SourceEvent(msgspec.Struct, frozen=True):
    """What a source tells, before the event has a name."""

    source: str
    user: str | None
    """The source's own number for the agent; None where it is nobody's doing."""
    metric: str
    at: float | None
    """When it happened; None where that is not told."""
    zone: Any = None
    """The name of the contact's time zone, where it is told."""


Adapter: TypeAlias = Callable[[Notice], SourceEvent | None]
"""Reads an event; None where it is none of those that are counted."""

# Aloware names what happened in `event` and sends the call or the text in `body`. Its help centre lists the
# events and shows no payload; what is read here was observed, and published, by people who receive them. Most
# names begin with the kind: `OutboundPhoneCall`, `OutboundPhoneCall-DispositionCompleted`, `OutboundSMS-...`.
# `Call-Disposed` and `Recording-Saved` do not, and are told by `direction` (2: outbound) and `type` (1: call,
# 2: text). All events of one call have its id, and so count once. Times are UTC, and do not say so.
# https://support.aloware.com/en/articles/9020028-aloware-webhooks-integration-guide
# A contact has a `timezone`, by its name.
# https://support.aloware.com/aloware-lead-api-documentation
_BY_NAME: Final = {
    "OutboundPhoneCall": Metric.CALLS,
    "OutboundSMS": Metric.TEXTS,
    "OutboundMMS": Metric.TEXTS,
}
_BY_TYPE: Final = {"1": Metric.CALLS, "2": Metric.TEXTS, "call": Metric.CALLS, "sms": Metric.TEXTS}
_OUTBOUND: Final = frozenset({"2", "outbound"})


def aloware(notice: Notice) -> SourceEvent | None:
    """What Aloware tells: calls and texts that an agent has begun."""
    body = value_at(notice.payload, "body")
    has_id = isinstance(body, Mapping) and "id" in body
    metric = _outbound(str(notice.payload.get("event")), body) if has_id else None
    return None if metric is None else read_aloware(notice.payload, metric)


def read_aloware(payload: Mapping[str, Any], metric: str) -> SourceEvent:
    """Who did it, when, and in which time zone, as Aloware tells it."""
    users = (_number(value_at(payload, path)) for path in ("body.user_id", "body.owner_id"))
    at, zone = value_at(payload, "body.created_at"), value_at(payload, "body.contact.timezone")
    return SourceEvent("ALOWARE", next(filter(None, users), None), metric, _moment(at), zone)


def _outbound(name: str, body: Mapping[str, Any]) -> Metric | None:
    kind = name.partition("-")[0]
    if kind.startswith(("Outbound", "Inbound")):
        return _BY_NAME.get(kind)
    outbound = str(body.get("direction")).lower() in _OUTBOUND
    return _BY_TYPE.get(str(body.get("type")).lower()) if outbound else None


# What HubSpot creates: an e-mail, a ticket. Its calls and texts are Aloware's own, which it writes there too.
# Legacy subscriptions name the object in their type, and newer ones by its number.
# https://developers.hubspot.com/docs/guides/crm/using-object-apis
# https://developers.hubspot.com/changelog/public-beta-generic-webhook-subscriptions
_CREATED: Final = {
    ("object.creation", "0-49"): Metric.EMAILS,
    ("object.creation", "0-5"): Metric.CASES,
    ("ticket.creation", None): Metric.CASES,
    ("ticket.creation", "0-5"): Metric.CASES,
}


def hubspot(notice: Notice) -> SourceEvent | None:
    """What HubSpot tells: e-mails and cases that were created."""
    event = notice.payload
    metric = _CREATED.get((event.get("subscriptionType"), event.get("objectTypeId")))
    return None if metric is None else read_hubspot(event, metric)


def read_hubspot(event: Mapping[str, Any], metric: str) -> SourceEvent:
    """Who did it, and when, as HubSpot tells it."""
    # "userId:45678" where a person did it; what an integration or a workflow did is nobody's.
    kind, _, user = str(event.get("sourceId")).partition(":")
    who, at = _number(user) if kind == "userId" else None, event.get("occurredAt")
    return SourceEvent("HUBSPOT", who, metric, None if at is None else float(at) / 1000)


# Where an event tells whom it is about: the best name first.
_PERSONS: Final = {
    "aloware": (
        "body.contact.email",
        "body.contact.phone_number",
        "body.contact.phone",
        "body.phone_number",
        "body.lead_number",
    ),
    "hubspot": (),
}
# A source's own numbers for contacts, where it tells no name.
_CONTACTS: Final = {"aloware": ("body.contact.id", "body.contact_id"), "hubspot": ("objectId",)}
# What a change of a contact may bring along, besides the contact's number.
_NAMING: Final = frozenset({"email", "phone", "mobilephone"})


def person_of(source: str, event: Any) -> str:
    """Whom an event is about: an e-mail address, a phone number, or a source's number of a contact."""
    names = [value_at(event, path) for path in _PERSONS[source]]
    if source == "hubspot" and value_at(event, "propertyName") in _NAMING:
        names.append(value_at(event, "propertyValue"))
    for name in names:
        if isinstance(name, str | int) and str(name).strip():
            return str(name).strip()
    numbers = (value_at(event, path) for path in _CONTACTS[source])
    found = next((number for number in numbers if isinstance(number, str | int) and number != ""), None)
    return "" if found is None else f"{source}:{found}"


def event_of(event: SourceEvent, key: str, now: float, zone: ZoneInfo) -> AgentEvent:
    """An event under its name; without a time of its own it happened when it came."""
    at = datetime.fromtimestamp(now if event.at is None else event.at, UTC)
    day = at.astimezone(_zone(event.zone) or zone).date().isoformat()
    agent = f"{event.source.lower()}:{event.user or UNASSIGNED}"
    return AgentEvent(key, event.source, agent, event.metric, day, at.isoformat().replace("+00:00", "Z"))


def _zone(name: Any) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if name and isinstance(name, str) else None
    except (ZoneInfoNotFoundError, ValueError, OSError):  # whoever wrote it meant something else
        return None


def _moment(text: Any) -> float | None:
    try:
        return seconds_of(text)
    except (TypeError, ValueError):
        return None


def _number(user: Any) -> str | None:
    """A user's number; whatever else stands there, -1 for nobody or somebody's name, is not taken over."""
    text = str(user)
    return text if text.isascii() and text.isdigit() and text.strip("0") else None
