"""What is known of senders: how they sign, name and pack events, how long they try, and how long they wait.

A ledger has to remember a delivery for longer than its sender may repeat it. None: not published.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from semel.doors.webhooks import names, verifiers
from semel.doors.webhooks.reading import Notice

Secrets: TypeAlias = str | Sequence[str]

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

_MEGABYTE: Final = 10**6


def one_or_many(body: Any) -> Iterable[Any]:
    """The events of a body: an array is a batch of them, an object is one."""
    if isinstance(body, Mapping):
        return [body]
    if isinstance(body, list):
        return body
    raise ValueError("it is neither an object nor an array")


def just_one(body: Any) -> Iterable[Any]:
    """A body whose key is in a header is one event, whatever it looks like: two could not be told apart."""
    return [body]


def no_greeting(_whole: Notice) -> None:
    """Every request of most senders brings events."""


@dataclass(frozen=True)
class Provider:
    """A sender of webhooks; `dataclasses.replace` makes your own of one that is known."""

    name: str
    verifier: Callable[[Secrets], verifiers.Verifier]
    key: Callable[[Notice], str]
    """Names an event: the same for every delivery of it."""
    retry_horizon: float | None = None
    """For how many seconds it goes on delivering what was not answered with success."""
    answer_within: float | None = None
    """After how many seconds it takes a delivery for failed."""
    events: Callable[[Any], Iterable[Any]] = one_or_many
    """Splits a body into events; a ValueError says that it is none of theirs."""
    greeting: Callable[[Notice], Any] = no_greeting
    """The answer, as JSON, to a request that only tries whether we are here; None where it brings events."""
    max_bytes: int = _MEGABYTE
    """A body that is larger is refused unread."""


# The objects that classic subscriptions such as contact.creation are about; generic ones tell the type.
# https://developers.hubspot.com/docs/guides/crm/understanding-the-crm#object-type-ids
_HUBSPOT_TYPES: Final = {
    "contact": "0-1",
    "company": "0-2",
    "deal": "0-3",
    "ticket": "0-5",
    "product": "0-7",
    "line_item": "0-8",
}
# Events of one object at one millisecond differ in these. Whether the object itself is in objectId depends on
# what happened to it.
# https://developers.hubspot.com/docs/apps/legacy-apps/public-apps/create-generic-webhook-subscriptions
_HUBSPOT_ALSO: Final = ("propertyName", "messageId", "associationType", "toObjectId")
_HUBSPOT_OBJECTS: Final = ("objectId", "fromObjectId", "primaryObjectId")


def _hubspot(notice: Notice) -> str:
    payload = {name: value for name, value in notice.payload.items() if value is not None}
    noun = str(payload.get("subscriptionType")).partition(".")[0]
    payload.setdefault("objectTypeId", _HUBSPOT_TYPES.get(noun, noun))
    payload["objectId"] = next((payload[name] for name in _HUBSPOT_OBJECTS if name in payload), None)
    return names.hubspot_key(payload, *[name for name in _HUBSPOT_ALSO if name in payload])


# Up to 10 retries over the next 24 hours; an answer after more than five seconds counts as failed. A body is
# an array of up to 100 events. What is answered with 400 or 401 may not come again.
# https://developers.hubspot.com/docs/api/webhooks#retries
# https://community.hubspot.com/t5/APIs-Integrations/Webhooks-response/td-p/277558
HUBSPOT: Final = Provider("hubspot", verifiers.HubSpotV3, _hubspot, retry_horizon=_DAY, answer_within=5)

# The last try of the specification's example schedule comes after 75:35:05; it recommends senders to wait for
# 15 to 30 seconds, of which a receiver can only count on the 15.
# https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
STANDARD_WEBHOOKS: Final = Provider(
    "standard-webhooks",
    verifiers.StandardWebhooks,
    lambda notice: names.standard_webhooks_key(notice.headers),
    retry_horizon=75 * _HOUR + 35 * _MINUTE + 5,
    answer_within=15,
    events=just_one,
)

# Up to three days in live mode; how long Stripe waits is not published.
# https://docs.stripe.com/webhooks#automatic-retries
STRIPE: Final = Provider(
    "stripe", verifiers.Stripe, lambda notice: names.stripe_key(notice.payload), retry_horizon=3 * _DAY
)


def _ping(whole: Notice) -> Any:
    return {"pong": True} if whole.header("X-GitHub-Event") == "ping" else None


# GitHub never retries by itself, but people and scripts may redeliver what is up to three days old, under the
# same X-GitHub-Delivery. It waits for 10 seconds (Enterprise Server for 30). A new webhook is tried with a
# ping. Payloads have up to 25 MB.
# https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks
# https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries
# https://docs.github.com/en/webhooks/webhook-events-and-payloads
GITHUB: Final = Provider(
    "github",
    verifiers.GitHub,
    lambda notice: names.github_key(notice.headers),
    retry_horizon=3 * _DAY,
    answer_within=10,
    events=just_one,
    greeting=_ping,
    max_bytes=26 * _MEGABYTE,
)


def _challenge(whole: Notice) -> Any:
    body = whole.payload
    if isinstance(body, Mapping) and body.get("type") == "url_verification":
        return {"challenge": body.get("challenge")}
    return None


# Three retries: at once, after a minute, after five; with Delayed Events on, hourly ones for 24 hours follow.
# Whether they are on is not to be seen from here, so the longer time counts. A new address is tried with a
# challenge, signed like everything else.
# https://docs.slack.dev/apis/events-api/#retries
# https://api.slack.com/events/url_verification
SLACK: Final = Provider(
    "slack",
    verifiers.Slack,
    lambda notice: names.slack_key(notice.payload),
    retry_horizon=_DAY + 6 * _MINUTE,
    answer_within=3,
    greeting=_challenge,
)

# Updates are kept for 24 hours at most; how long Telegram waits is not published.
# https://core.telegram.org/bots/api#getting-updates
TELEGRAM: Final = Provider(
    "telegram", verifiers.Telegram, lambda notice: names.telegram_key(notice.payload), retry_horizon=_DAY
)


def _aloware(notice: Notice) -> str:
    body = notice.payload.get("body")
    return names.aloware_key(body if isinstance(body, Mapping) else notice.payload)


# A token of your choice in the Authorization header; whether and for how long it retries is not published.
# An id is that of the call or contact, so give each kind of event an address and a scope of its own.
# https://support.aloware.com/en/articles/9020028-aloware-webhooks-integration-guide
ALOWARE: Final = Provider("aloware", verifiers.Bearer, _aloware)

PROVIDERS: Final = {
    one.name: one for one in (HUBSPOT, STANDARD_WEBHOOKS, STRIPE, GITHUB, SLACK, TELEGRAM, ALOWARE)
}
"""The senders of webhooks that semel knows, by their names."""
