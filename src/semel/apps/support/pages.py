"""Support's page in the dashboard: conversations, what was last decided and replied, and what was risky."""

from collections.abc import Mapping
from typing import Any, Final

from semel.apps.payloads import seconds_of
from semel.apps.support.app import Support
from semel.apps.support.conversation import Conversation
from semel.apps.tables import SUPPORT_AUDIT, SUPPORT_STATE
from semel.core.lifecycle import Status
from semel.ops.blocks import (
    AppPage,
    Cell,
    FactsBlock,
    FieldBlock,
    KeyLink,
    PageBlock,
    PageLink,
    TableBlock,
    TextBlock,
    TimeCell,
)
from semel.ops.model import Search
from semel.state.documents import Document

# So many events are looked at for the conversations that they belong to, and so many of these are listed.
LOOKED_AT: Final = 200
LISTED: Final = 25
ACTIONS: Final = 50
FIELD: Final = FieldBlock("conversation", "Conversation", "its id at the helpdesk")


def pages(app: Support) -> dict[str, AppPage]:
    """The pages of an app."""
    return {"conversations": AppPage("Conversations", ConversationPages(app).show)}


class ConversationPages:
    """Reads what is remembered of conversations; no message is among it."""

    def __init__(self, app: Support) -> None:
        self._ops = app.s.aio.ops
        self._states = app.s.aio.documents.on(SUPPORT_STATE).of(Conversation)
        self._audit = app.s.aio.journal.on(SUPPORT_AUDIT) if app.settings.audit else None
        self._handled = app.handled
        self._masked = app.redactor.text

    async def show(self, query: Mapping[str, str]) -> list[PageBlock]:
        """One conversation, or those that were handled last."""
        asked = query.get("conversation", "").strip()
        return await (self._one(asked) if asked else self._recent())

    async def _recent(self) -> list[PageBlock]:
        handled = list(dict.fromkeys(reversed(self._handled)))
        title = "Last handled by this process" if handled else "Of some events in the ledger"
        names = handled or await self._of_events()
        rows = [await self._row(name) for name in names[:LISTED]]
        columns = ("Conversation", "Handled", "Intent", "Team", "Last reply", "Waits for", "Risks")
        empty = "No message was handled yet. Point an HTTP target of Richpanel's at /webhooks/richpanel."
        return [FIELD, TableBlock(title, columns, tuple(rows), empty)]

    async def _of_events(self) -> list[str]:
        """Conversations of events in the ledger, which has them in no order of time."""
        found = await self._ops.search(Search(prefix="evt:", status=Status.COMPLETED), limit=LOOKED_AT)
        events = sorted(found.records, key=lambda record: record.updated_at, reverse=True)
        names = dict.fromkeys(str((record.details or {}).get("conversation_id") or "") for record in events)
        return list(filter(None, names))

    async def _row(self, name: str) -> tuple[Cell, ...]:
        found = await self._states.get(name)
        link = PageLink("conversations", self._masked(name), {"conversation": name})
        if found is None:
            return link, None, "nothing is remembered any more"
        state = found.value
        reply = None if state.last_auto_reply is None else state.last_auto_reply.type
        waits = None if state.pending_flow is None else state.pending_flow.type
        when, risks = _moment(state.last_processed_at), ", ".join(sorted(state.risk_flags))
        return link, when, state.last_intent, state.last_routed_team, reply, waits, risks

    async def _one(self, name: str) -> list[PageBlock]:
        found = await self._states.get(name)
        if found is None:
            return [FIELD, TextBlock("Nothing is remembered of this conversation, or not any more.")]
        blocks: list[PageBlock] = [FIELD, FactsBlock(_facts(found))]
        if self._audit is None:
            return [*blocks, TextBlock("There is no audit in this environment: apps.support.audit is false.")]
        listed = await self._audit.list(name, limit=ACTIONS, reverse=True)
        rows = tuple(_action(entry.body, entry.key) for entry in listed.entries)
        return [*blocks, TableBlock("What was done, newest first", ("Action", "Key", "Result"), rows)]


def _facts(found: Document[Conversation]) -> dict[str, Cell]:
    state = found.value
    reply, flow = state.last_auto_reply, state.pending_flow
    return {
        "Handled": _moment(state.last_processed_at),
        "Intent": state.last_intent,
        "Team": state.last_routed_team,
        "Sure of it": state.last_routing_confidence,
        "Risks": ", ".join(sorted(state.risk_flags)) or "none",
        "Last reply": None if reply is None else reply.type,
        "Replied": None if reply is None else _moment(reply.sent_at),
        "Waits for": None if flow is None else f"{flow.type}, asked {flow.attempts} times",
        "Version": found.version,
    }


def _action(body: Mapping[str, Any], key: str | None) -> tuple[Cell, ...]:
    return str(body.get("action_type") or ""), KeyLink(key) if key else None, str(body.get("result") or "")


def _moment(text: str | None) -> Cell:
    return None if text is None else TimeCell(seconds_of(text))
