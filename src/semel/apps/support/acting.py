"""Acting: each action is done once, under its own key, and told to the audit."""

from typing import Any, Final

import msgspec

from semel.apps.client import AnswerLost, RemoteError, RequestRefused, Unavailable
from semel.apps.persons import person
from semel.apps.support.helpdesk import OUTBOX, Helpdesk, SupportAction
from semel.apps.support.settings import Settings
from semel.apps.support.ticket import Ticket
from semel.apps.tables import SUPPORT_AUDIT
from semel.connect import Semel
from semel.core.commands import Raised
from semel.core.events import name_of
from semel.core.realm import SubjectHash
from semel.core.running import Run, current_run
from semel.model import Claimed, OnLapsed
from semel.once import Block
from semel.redact import Redactor
from semel.state.transaction import Transaction

# What every item about an event has, its actions' too.
REPEATED: Final = ("conversation_id", "mode")


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


class SupportEvent(msgspec.Struct, frozen=True):
    """The message that is being handled, and what the records of its actions have from it."""

    ticket: Ticket
    person: SubjectHash
    """The customer, hashed once for all records about them."""
    claim: Claimed
    repeated: dict[str, Any]


class ActionRunner:
    """Carries actions out, once."""

    def __init__(
        self, s: Semel, settings: Settings, helpdesk: Helpdesk, redactor: Redactor, audit: Audit
    ) -> None:
        self._s, self._settings, self._helpdesk = s, settings, helpdesk
        self._redactor, self._audit = redactor, audit
        self._once = s.once.about(name_of(self._act))
        self._blocks: dict[tuple[Any, ...], Block] = {}
        """How actions are protected, by how long their events are remembered and by their own policy."""

    def do(self, action: SupportAction, event: SupportEvent) -> None:
        """Carry an action out, unless that was done before; that it failed is told to the audit too."""
        on_lapsed = self._settings.on_lost_reply if action.kind == "auto_reply" else "rerun"
        block = self._block(event.claim, on_lapsed)
        done = block.run(action.key, None, self._act, action, event, subject=event.person)
        if isinstance(done, Raised) and isinstance(done.error, AnswerLost):
            # Nobody knows: what is done then is for its policy to say.
            done = block.run(action.key, None, self._act, action, event, subject=event.person)
        if isinstance(done, Raised):
            if isinstance(done.error, RemoteError):
                self._audit.record(audit_entry(action, event, f"fail: {error_name(done.error)}"))
            raise done.error

    def _block(self, claim: Claimed, on_lapsed: OnLapsed) -> Block:
        """How an action is protected for as long as the event that asks for it."""
        terms = (claim.lease, claim.ttl, on_lapsed)
        block = self._blocks.get(terms)
        if block is None:
            block = self._blocks[terms] = self._once.block(
                lease=claim.lease,
                ttl=claim.ttl,
                horizon=claim.ttl,
                on_lapsed=on_lapsed,
                # Whatever went wrong, it may have been done, unless the other side says that it was not.
                on_error={RequestRefused: "release", Unavailable: "release", Exception: "doubt"},
            )
        return block

    def _act(self, action: SupportAction, event: SupportEvent) -> None:
        run = current_run()
        run.note(**event.repeated)
        self._helpdesk.do(action, run.key_for("richpanel"))
        with self._s.transaction() as tx:
            tx.ledger.complete(run)
            self._audit.record(audit_entry(action, event, "success"), tx)
            if self._helpdesk.keeps_outbox:
                text = self._redactor.text(action.text)
                entry = {"action": action.kind, "conversation": event.ticket.conversation, "to": action.to}
                tx.journal.append(
                    OUTBOX,
                    entry | {"text": text},
                    key=action.key,
                    ttl=self._settings.audit_ttl,
                    subject=event.person,
                )


def customer_of(s: Semel, ticket: Ticket) -> str:
    """The person that a message is about, as its rows name him; support has a secret, and a conversation."""
    return person(s, *ticket.persons) or ticket.conversation


def event_of(s: Semel, ticket: Ticket, run: Run) -> SupportEvent:
    """A message as its actions know it, once its own record was told what they repeat."""
    facts = run.details or {}
    repeated: dict[str, Any] = {name: facts[name] for name in REPEATED if name in facts}
    hashed = SubjectHash(s.ledger.steps.subject(customer_of(s, ticket)))
    return SupportEvent(ticket, hashed, run.claim, repeated)


def audit_entry(action: SupportAction, event: SupportEvent, result: str) -> AuditEntry:
    """An action as the audit tells of it: what was written to the customer is not repeated."""
    about = {"to": action.to, **action.why}
    return AuditEntry(event.ticket.conversation, action.kind, action.key, about, result, event.person)


def error_name(error: Exception) -> str:
    """An error in a word, without what it quotes."""
    status = getattr(error, "status", None)
    return type(error).__name__ if status is None else f"{type(error).__name__} ({status})"
