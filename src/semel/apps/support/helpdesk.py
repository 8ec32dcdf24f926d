"""Where actions are carried out: at Richpanel, or in an outbox while there is no account."""

from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from semel.apps.client import RemoteClient
from semel.apps.support.settings import Settings

ActionKind: TypeAlias = Literal["auto_reply", "tag", "route", "escalate"]

OUTBOX = "outbox:support"


class SupportAction(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be done once about a conversation."""

    kind: ActionKind
    key: str
    conversation: str
    to: str = ""
    """The tag, the team, or the name of the reply."""
    text: str = ""
    why: dict[str, Any] = {}
    """What the audit tells of it besides."""


class Helpdesk(Protocol):
    """Carries actions out."""

    keeps_outbox: bool
    """Whether nobody else does, so that they are written down."""

    def do(self, action: SupportAction, key: str) -> None:
        """Carry one out; `key` is the same at every attempt at it."""

    def close(self) -> None:
        """Let go of connections."""


class Outbox:
    """Without an account, an action is done when it is written down."""

    keeps_outbox = True

    def do(self, action: SupportAction, key: str) -> None:
        """There is nobody to ask."""

    def close(self) -> None:
        """There is nothing to let go of."""


class Richpanel:
    """Richpanel's API.

    https://developer.richpanel.com/reference/update-a-conversation, and .../add-tags
    """

    keeps_outbox = False

    def __init__(self, settings: Settings) -> None:
        headers = {"x-richpanel-key": settings.richpanel_key}
        self._client = RemoteClient(
            "richpanel", settings.richpanel_url, headers=headers, timeout=settings.richpanel_timeout
        )
        self._keeps_keys = settings.richpanel_keeps_keys
        self._tags, self._assignees = settings.tag_ids, settings.assignees

    def do(self, action: SupportAction, key: str) -> None:
        """Carry one out; a reply whose answer is lost is sent again here only if its key is recognised."""
        more, body = self._request(action)
        path = self._client.path("v1", "tickets", action.conversation, *more)
        again = action.kind != "auto_reply" or self._keeps_keys
        self._client.call("PUT", path, json=body, key=key, repeatable=again)

    def _request(self, action: SupportAction) -> tuple[tuple[str, ...], dict[str, Any]]:
        match action.kind:
            case "auto_reply":
                return (), {"ticket": {"comment": {"body": action.text, "sender_type": "operator"}}}
            case "tag":
                return ("add-tags",), {"tags": [self._tags.get(action.to, action.to)]}
            case "route" | "escalate":
                return (), {"ticket": {"assignee_id": self._assignees.get(action.to, action.to)}}

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


def open_helpdesk(settings: Settings) -> Helpdesk:
    """Where actions go by these settings."""
    return Richpanel(settings) if settings.richpanel_key else Outbox()
