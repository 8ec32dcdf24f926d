"""Webhooks: a delivery is verified, each of its events is handled once, and the sender is answered.

    receiver = Receiver(s, STRIPE, "whsec_...", handle)
    answer = receiver.receive(headers, body)  # status, headers and body for any framework

Its parts are there for use on their own:

    verifier = Stripe("whsec_...")
    verifier.verify(headers, body, now)  # BadSignature unless Stripe sent just these bytes
    key = stripe_key(json.loads(body))  # "STRIPE:evt_1", however often it is delivered
"""

from semel.doors.webhooks.delivery_reader import DeliveryReader, WebhookResponse
from semel.doors.webhooks.ingress import EventRefused, Ingress
from semel.doors.webhooks.names import (
    aloware_key,
    github_key,
    hubspot_key,
    richpanel_key,
    slack_key,
    standard_webhooks_key,
    stripe_key,
    telegram_key,
)
from semel.doors.webhooks.providers import (
    ALOWARE,
    GITHUB,
    HUBSPOT,
    PROVIDERS,
    SLACK,
    STANDARD_WEBHOOKS,
    STRIPE,
    TELEGRAM,
    Provider,
)
from semel.doors.webhooks.reading import Headers, Notice
from semel.doors.webhooks.receiver import Receiver
from semel.doors.webhooks.verifiers import (
    Bearer,
    GitHub,
    HubSpotV3,
    PlainHmac,
    Slack,
    StandardWebhooks,
    Stripe,
    Telegram,
    Verifier,
)
from semel.errors import BadSignature

__all__ = [
    "ALOWARE",
    "GITHUB",
    "HUBSPOT",
    "PROVIDERS",
    "SLACK",
    "STANDARD_WEBHOOKS",
    "STRIPE",
    "TELEGRAM",
    "BadSignature",
    "Bearer",
    "DeliveryReader",
    "EventRefused",
    "GitHub",
    "Headers",
    "HubSpotV3",
    "Ingress",
    "Notice",
    "PlainHmac",
    "Provider",
    "Receiver",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Telegram",
    "Verifier",
    "WebhookResponse",
    "aloware_key",
    "github_key",
    "hubspot_key",
    "richpanel_key",
    "slack_key",
    "standard_webhooks_key",
    "stripe_key",
    "telegram_key",
]
