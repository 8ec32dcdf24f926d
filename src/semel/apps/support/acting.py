"""Acting: each action is done once, under its own key, and told to the audit."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from semel.apps.client import AnswerLost, RemoteError, RequestRefused, Unavailable
from semel.apps.persons import person
from semel.apps.support.helpdesk import OUTBOX, Helpdesk, SupportAction
from semel.apps.support.settings import Settings
from semel.apps.support.ticket import Ticket
from semel.connect import Semel
from semel.core.running import Run, current_run
from semel.model import Claimed, OnLapsed
from semel.redact import Redactor
from semel.state.transaction import Transaction
from semel.tables.seeds import SUPPORT_AUDIT

# What every item about an event has, its actions' too.
REPEATED: Final = ("conversation_id", "mode")

Act: TypeAlias = Callable[[SupportAction, dict[str, Any]], None]


class AuditEntry(msgspec.Struct, frozen=True):
    """What the audit tells of an action."""

    conversation: str
    kind: str
    key: str
    about: dict[str, Any]
    result: str
    person: str


class Audit:
    """Tells what was done, and what was not, without anything personal; nothing where it is turned off."""

    def __init__(self, s: Semel, redactor: Redactor, settings: Settings) -> None:
        self._s, self._redactor = s, redactor
        self._ttl, self._is_on = settings.audit_ttl, settings.audit

    def record(self, entry: AuditEntry, tx: Transaction | None = None) -> None:
        """Add an entry, in the same write as what it tells of where there is one."""
        if not self._is_on:
            return None
        if tx is None:
            with self._s.transaction() as alone:
                return self.record(entry, alone)
        payload = msgspec.json.encode(self._redactor.json(entry.about)).decode()
        body = {"action_type": entry.kind, "action_payload_redacted": payload, "result": entry.result}
        tx.journal.on(SUPPORT_AUDIT).append(
            entry.conversation, body, key=entry.key, ttl=self._ttl, subject=entry.person
        )
        return None


class ActionRunner:
    """Carries actions out, once."""

    def __init__(
        self, s: Semel, settings: Settings, helpdesk: Helpdesk, redactor: Redactor, audit: Audit
    ) -> None:
        self._s, self._settings, self._helpdesk = s, settings, helpdesk
        self._redactor, self._audit = redactor, audit
        self._acts: dict[tuple[Any, ...], Act] = {}
        """What carries actions out, by how long their events and their own policy have it."""

    def do(self, action: SupportAction) -> None:
        """Carry an action out, unless that was done before; that it failed is told to the audit too."""
        on_lapsed = self._settings.on_lost_reply if action.kind == "auto_reply" else "rerun"
        event = current_run()
        act, details = self._protected(event.claim, on_lapsed), event_details(event)
        try:
            try:
                act(action, details)
            except AnswerLost:
                act(action, details)  # nobody knows: what is done then is for its policy to say
        except RemoteError as error:
            self._audit.record(audit_entry(action, f"fail: {error_name(error)}"))
            raise

    def _protected(self, claim: Claimed, on_lapsed: OnLapsed) -> Act:
        """What carries an action out for as long as the event that asks for it."""
        terms = (claim.lease, claim.ttl, on_lapsed)
        if terms not in self._acts:
            self._acts[terms] = self._protect(claim, on_lapsed)
        return self._acts[terms]

    def _protect(self, claim: Claimed, on_lapsed: OnLapsed) -> Act:
        @self._s.once(
            key=lambda action, _: action.key,
            subject="{action.person}",
            fingerprint=None,
            lease=claim.lease,
            ttl=claim.ttl,
            horizon=claim.ttl,
            on_lapsed=on_lapsed,
            # Whatever went wrong, it may have been done, unless the other side says that it was not.
            on_error={RequestRefused: "release", Unavailable: "release", Exception: "doubt"},
        )
        def act(action: SupportAction, event: dict[str, Any]) -> None:
            current_run().note(**event)
            self._act(action)

        return act

    def _act(self, action: SupportAction) -> None:
        run = current_run()
        self._helpdesk.do(action, run.key_for("richpanel"))
        with self._s.transaction() as tx:
            tx.ledger.complete(run)
            self._audit.record(audit_entry(action, "success"), tx)
            if self._helpdesk.keeps_outbox:
                text = self._redactor.text(action.text)
                entry = {"action": action.kind, "conversation": action.conversation, "to": action.to}
                tx.journal.append(
                    OUTBOX,
                    entry | {"text": text},
                    key=action.key,
                    ttl=self._settings.audit_ttl,
                    subject=action.person,
                )


def customer_of(s: Semel, ticket: Ticket) -> str:
    """The person that a message is about, as its rows name him; support has a secret, and a conversation."""
    return person(s, *ticket.persons) or ticket.conversation


def event_details(event: Run) -> dict[str, Any]:
    """What the record of an action tells of the event that it belongs to."""
    facts = event.details or {}
    return {name: facts[name] for name in REPEATED if name in facts}


def audit_entry(action: SupportAction, result: str) -> AuditEntry:
    """An action as the audit tells of it: what was written to the customer is not repeated."""
    about = {"to": action.to, **action.why}
    return AuditEntry(action.conversation, action.kind, action.key, about, result, action.person)


def error_name(error: Exception) -> str:
    """An error in a word, without what it quotes."""
    status = getattr(error, "status", None)
    return type(error).__name__ if status is None else f"{type(error).__name__} ({status})"
