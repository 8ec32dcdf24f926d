"""Scopes: what a token or a user needs for what operators do, in the HTTP API and in the dashboard alike."""

from typing import Final

LOOK: Final = "ops:read"
"""Search records, read stories and the journal, see switches and inboxes."""
ACT: Final = "ops:write"
"""Act on records, reveal results, redrive and read dead letters, erase a subject."""
TURN: Final = "admin"
"""Turn switches, which stop every tenant of the environment."""
OF_APPS: Final = "apps:read"
"""Do what the other scopes allow in the ledgers and inboxes of applications too, and see switches."""

ROLES: Final = {"viewer": frozenset({LOOK}), "operator": frozenset({LOOK, ACT, TURN})}
"""What users of the dashboard who have a role instead of scopes may do."""
