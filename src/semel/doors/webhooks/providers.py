"""What is known of senders: how they sign, how long they go on trying, and how long they wait.

A ledger has to remember a delivery for longer than its sender may repeat it. None: not published.
"""

from dataclasses import dataclass
from typing import Final

from semel.doors.webhooks.verifiers import (
    GitHub,
    HubSpotV3,
    Slack,
    StandardWebhooks,
    Stripe,
    Telegram,
    Verifier,
)

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True)
class Provider:
    """A sender of webhooks."""

    name: str
    verifier: type[Verifier]
    retry_horizon: float | None
    answer_within: float | None


# Up to 10 retries over the next 24 hours; an answer after more than five seconds counts as failed.
# https://developers.hubspot.com/docs/api/webhooks#retries
HUBSPOT: Final = Provider("hubspot", HubSpotV3, retry_horizon=_DAY, answer_within=5)

# The last try of the specification's example schedule comes after 75:35:05; it recommends senders to wait for
# 15 to 30 seconds, of which a receiver can only count on the 15.
# https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
STANDARD_WEBHOOKS: Final = Provider(
    "standard-webhooks", StandardWebhooks, retry_horizon=75 * _HOUR + 35 * _MINUTE + 5, answer_within=15
)

# Up to three days in live mode; how long Stripe waits is not published.
# https://docs.stripe.com/webhooks#automatic-retries
STRIPE: Final = Provider("stripe", Stripe, retry_horizon=3 * _DAY, answer_within=None)

# GitHub never retries by itself, but people and scripts may redeliver what is up to three days old, under the
# same X-GitHub-Delivery. It waits for 10 seconds (Enterprise Server for 30).
# https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks
# https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries
GITHUB: Final = Provider("github", GitHub, retry_horizon=3 * _DAY, answer_within=10)

# Three retries: at once, after a minute, after five; with Delayed Events on, hourly ones for 24 hours follow.
# Whether they are on is not to be seen from here, so the longer time counts.
# https://docs.slack.dev/apis/events-api/#retries
SLACK: Final = Provider("slack", Slack, retry_horizon=_DAY + 6 * _MINUTE, answer_within=3)

# Updates are kept for 24 hours at most; how long Telegram waits is not published.
# https://core.telegram.org/bots/api#getting-updates
TELEGRAM: Final = Provider("telegram", Telegram, retry_horizon=_DAY, answer_within=None)

PROVIDERS: Final = {one.name: one for one in (HUBSPOT, STANDARD_WEBHOOKS, STRIPE, GITHUB, SLACK, TELEGRAM)}
