"""What support knows, to be read: `GET .../conversations/...`."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, HTTPException, Query

from semel.apps.support.app import Support
from semel.apps.tables import SUPPORT_AUDIT, SUPPORT_STATE
from semel.state.journal import Entry


def router(app: Support) -> APIRouter:
    """The routes of an app."""
    routes = APIRouter(prefix="/conversations", tags=["support"])
    states, audit = app.s.documents.on(SUPPORT_STATE), app.s.journal.on(SUPPORT_AUDIT)

    @routes.get("/{conversation}")
    def state(conversation: str) -> dict[str, Any]:
        """Give the state of a conversation."""
        found = states.get(conversation)
        if found is None:
            raise HTTPException(404, "nothing is known of this conversation")
        about = {"conversation_id": conversation, "version": found.version, "expires_at": found.expires_at}
        return about | {name: _plain(value) for name, value in found.value.items()}

    @routes.get("/{conversation}/audit")
    def actions(
        conversation: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100, after: str | None = None
    ) -> dict[str, Any]:
        """Give what was done in a conversation, the oldest first."""
        if not app.settings.audit:
            raise HTTPException(404, "there is no audit in this environment: apps.support.audit is false")
        page = audit.list(conversation, limit=limit, after=after)
        return {"actions": [_action(entry) for entry in page.entries], "after": page.after}

    return routes


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else value


def _action(entry: Entry) -> dict[str, Any]:
    return {
        "ts_action_id": entry.id,
        "action_type": entry.body.get("action_type"),
        "action_payload": msgspec.json.decode(entry.body.get("action_payload_redacted") or "{}"),
        "idempotency_key": entry.key,
        "result": entry.body.get("result"),
    }
