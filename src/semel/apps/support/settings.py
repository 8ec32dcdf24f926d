"""What can be set for support, in `[apps.support]`."""

import functools
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from semel.apps import settings as common
from semel.core.policy import DAY
from semel.core.runtime import Concealed

wrong: Final = functools.partial(common.wrong, "support")
function: Final = functools.partial(common.function_of, "support")

PositiveSpan: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]


class Settings(Concealed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything has a default but the token, without which anybody could send messages."""

    webhook_token: Annotated[str, common.CHOSEN] = ""
    """What Richpanel sends as `Authorization: Bearer ...`."""

    richpanel_key: Annotated[str, common.GIVEN] = ""
    """Without one, what would be done is kept in the outbox."""
    richpanel_url: str = "https://api.richpanel.com"
    richpanel_keeps_keys: bool = False
    """Whether the other side recognises an `Idempotency-Key`; Richpanel does not say that it does."""
    richpanel_timeout: PositiveSpan = 10.0
    tag_ids: dict[str, str] = {}
    """What Richpanel calls a tag, where that is not its name."""
    assignees: dict[str, str] = {}
    """Who a team's conversations are assigned to, where that is not the team's name."""
    on_lost_reply: Literal["hold", "rerun"] = "hold"
    """When nobody knows whether a reply was sent: ask a person, or send it again."""

    automation_enabled: bool = False
    """How that switch counts while nobody has turned it."""
    decide: str = "semel.apps.support.rules:decide"
    templates: dict[str, str] = {}
    """Replies by name, in place of those in `semel.apps.support.replies`."""
    reply_every: PositiveSpan = DAY
    """A conversation does not get the same reply twice in a row within this many seconds."""
    human_team: str = "support"
    """Who gets what no rule knows, and what automation gives up."""

    lookup: str = ""
    """A function `package.module:name` that finds an order; else Shopify is asked, where it is set up."""
    shopify_url: str = ""
    shopify_token: Annotated[str, common.GIVEN] = ""
    lookup_every: PositiveSpan = 900.0
    """For how many seconds what was found about an order counts."""

    events_ttl: PositiveSpan = 30 * DAY
    state_ttl: PositiveSpan = 90 * DAY
    flow_ttl: PositiveSpan = 7 * DAY
    audit_ttl: PositiveSpan = 60 * DAY
    audit: bool = True
    """Whether what was done is told to the audit; where it is not, there need be no table for it."""
    excerpt: bool = False
    """Keep the beginning of a message in the audit, redacted."""

    def __repr__(self) -> str:
        # Its keys and tokens are nobody's to read in a log.
        return f"<settings of support, {'with an account' if self.richpanel_key else 'with an outbox'}>"


def check_token(settings: Settings) -> str:
    """What Richpanel sends, without which nothing that comes is believed."""
    if not settings.webhook_token:
        raise wrong(
            "webhook_token", "set what Richpanel sends as a Bearer token, or anybody can send messages"
        )
    common.check_secret("support", "webhook_token", settings.webhook_token)
    return settings.webhook_token


def check(settings: Settings) -> None:
    """Refuse settings that cannot work, by their names."""
    if bool(settings.shopify_url) != bool(settings.shopify_token):
        lacks = "shopify_token" if settings.shopify_url else "shopify_url"
        raise wrong(lacks, "shopify_url and shopify_token go together")
    for name in ("richpanel", "shopify"):
        if getattr(settings, f"{name}_url") or name == "richpanel":
            common.check_address("support", f"{name}_url", getattr(settings, f"{name}_url"))
    for name in ("richpanel_key", "shopify_token"):
        common.check_header("support", name, getattr(settings, name))
    if settings.flow_ttl > settings.state_ttl:
        raise wrong(
            "flow_ttl", "a pending flow is part of the state, so it ends with state_ttl at the latest"
        )
