"""How an inbox stands: what waits in it, and how much is dead."""

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from semel.errors import UsageError
from semel.state.mailbox import Counted, Survey

if TYPE_CHECKING:
    from semel.doors.inbox import Inbox


class InboxStatus(msgspec.Struct, frozen=True):
    """What waits in an inbox, and its dead letters, in numbers."""

    survey: Survey
    dead: Counted | None
    """None where the queue was not told where its dead letters are."""


def status_of(inbox: "Inbox") -> InboxStatus:
    """How an inbox stands now."""
    survey, dead = inbox.survey(), None
    with suppress(UsageError):
        dead = inbox.count(dead=True)
    return InboxStatus(survey, dead)
