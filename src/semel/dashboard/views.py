"""What a dashboard shows: a ledger, its inboxes, an application's own pages, and who may see them."""

from collections.abc import Mapping

import msgspec

from semel.connect import Semel
from semel.doors.inbox import Inbox
from semel.ops.blocks import AppPage


class LedgerView(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger as a dashboard has it; one of several has a name, which is part of its address."""

    s: Semel
    name: str = ""
    title: str = ""
    inboxes: Mapping[str, Inbox] = {}
    pages: Mapping[str, AppPage] = {}
    """The application's own, by the names that their addresses have."""
    switches: bool = True
    """Whether switches are shown and turned there; they stop the whole environment, so a tenant has none."""
    users: frozenset[str] | None = None
    """Who may see it; None for everybody who is let in."""

    def is_for(self, user: str) -> bool:
        """Whether a user may see it."""
        return self.users is None or user in self.users

    @property
    def path(self) -> str:
        """Where it is in the dashboard."""
        return f"/{self.name}" if self.name else ""

    @property
    def menu(self) -> list[tuple[str, str, str]]:
        """The pages that it has: the name, the address and the title of each."""
        inboxes = [("inboxes", "/inboxes", "Inboxes")] if self.inboxes else []
        own = [(f"own-{name}", f"/own/{name}", page.title) for name, page in self.pages.items()]
        last = [entry for entry in LAST if self.switches or entry[0] != "switches"]
        return [*MENU, *inboxes, *own, *last]


MENU = [
    ("overview", "/", "Overview"),
    ("ledger", "/ledger", "Ledger"),
    ("doubts", "/doubts", "In doubt"),
]
LAST = [
    ("counters", "/counters", "Counters"),
    ("switches", "/switches", "Switches"),
    ("persons", "/persons", "Persons"),
    ("journal", "/journal", "Journal"),
]
