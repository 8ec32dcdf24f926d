"""Webhooks: is the delivery genuine, and what is it called.

    verifier = Stripe("whsec_...")
    verifier.verify(headers, body, now)  # BadSignature unless Stripe sent just these bytes
    key = stripe_key(json.loads(body))  # "STRIPE:evt_1", however often it is delivered

Nothing here opens a connection, reads a clock or writes a record.
"""

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
    GITHUB,
    HUBSPOT,
    PROVIDERS,
    SLACK,
    STANDARD_WEBHOOKS,
    STRIPE,
    TELEGRAM,
    Provider,
)
from semel.doors.webhooks.reading import Headers
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
    "GITHUB",
    "HUBSPOT",
    "PROVIDERS",
    "SLACK",
    "STANDARD_WEBHOOKS",
    "STRIPE",
    "TELEGRAM",
    "BadSignature",
    "Bearer",
    "GitHub",
    "Headers",
    "HubSpotV3",
    "PlainHmac",
    "Provider",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Telegram",
    "Verifier",
    "aloware_key",
    "github_key",
    "hubspot_key",
    "richpanel_key",
    "slack_key",
    "standard_webhooks_key",
    "stripe_key",
    "telegram_key",
]
