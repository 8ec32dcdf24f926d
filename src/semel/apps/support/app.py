"""Support as a whole: what a webhook brings is handled once, in order, and told to the audit."""

import functools
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from semel import errors
from semel.apps.application import check_shared
from semel.apps.client import RequestRefused
from semel.apps.settings import naming
from semel.apps.support.acting import ActionRunner, Audit, SupportEvent, audit_entry, customer_of, event_of
from semel.apps.support.conversation import AutoReply, Conversation, PendingFlow
from semel.apps.support.helpdesk import ActionKind, SupportAction, open_helpdesk
from semel.apps.support.lookup import lookup
from semel.apps.support.planning import AutomationMode, Planner, ReplyPlan
from semel.apps.support.replies import templates, written
from semel.apps.support.settings import Settings, check, check_token, function
from semel.apps.support.ticket import Ticket, iso, ticket_of
from semel.apps.tables import SUPPORT_EVENTS, SUPPORT_STATE
from semel.connect import Semel
from semel.core.lifecycle import Status
from semel.core.policy import Options
from semel.core.running import current_run
from semel.doors.inbox import Inbox, Message
from semel.doors.webhooks import Bearer, Ingress, Notice, Provider
from semel.redact import Redactor
from semel.state.transaction import Transaction

if TYPE_CHECKING:
    from fastapi import APIRouter

    from semel.apps.deployment import Deployment
    from semel.ops.blocks import AppPage

PATH: Final = "/webhooks/richpanel"

_naming = functools.partial(naming, "support")

IN_DOUBT: Final = "nobody knows whether it was sent: settle it under its key"

# Of so many messages the conversations are remembered.
HANDLED: Final = 200

# A reply that stands so in the ledger was sent, or may have been.
BEGUN: Final = frozenset({Status.IN_PROGRESS, Status.COMPLETED, Status.UNKNOWN})


def _key(notice: Notice) -> str:
    ticket = ticket_of(notice.payload, 0.0)
    if ticket is None:
        raise errors.InvalidKey("what the shop writes itself is no event")
    return ticket.key


# An HTTP target of Richpanel's sends what its owner writes down, and a header of his choice; whether it ever
# tries again is not published.
RICHPANEL: Final = Provider("richpanel", Bearer, _key)


class Handled(msgspec.Struct, frozen=True):
    """What came of a message, as it is kept."""

    mode: str
    intent: str
    team: str
    replied: str | None
    refused: str = ""


class Support:
    """The application: a hook for Richpanel, and what a worker does with each message."""

    settings_type = Settings
    needs_secret = True
    ledger_table = SUPPORT_EVENTS

    def __init__(self, s: Semel, inbox: Inbox, settings: Settings) -> None:
        check(settings)
        check_shared(inbox)
        self.s: Semel = s
        self._inbox = inbox
        self.settings: Settings = settings
        # What the other side refuses it will refuse again: somebody looks at it among the dead letters.
        self.worker_options: Options = {"ttl": settings.events_ttl, "on_error": {RequestRefused: "keep"}}
        self.redactor: Redactor = Redactor()
        self.handled: deque[str] = deque(maxlen=HANDLED)
        """The conversations of the last messages that this process has handled, for who looks on."""
        self._templates = templates(settings.templates)
        self._states = s.documents.on(SUPPORT_STATE).of(Conversation)
        self._audit = Audit(s, self.redactor, settings)
        self._lookup = lookup(s, settings, self._audit)
        find = None if self._lookup is None else self._lookup.find
        self._planner = Planner(settings, function("decide", settings.decide), find)
        self._helpdesk = open_helpdesk(settings)
        self._actor = ActionRunner(s, settings, self._helpdesk, self.redactor, self._audit)

    @functools.cached_property
    def hooks(self) -> dict[str, Ingress]:
        """Where Richpanel delivers; who only works on messages has no use for its token."""
        token, message = check_token(self.settings), self._message
        return {PATH: _naming("webhook_token", Ingress, self.s, RICHPANEL, token, self._inbox, message)}

    def router(self) -> "APIRouter":
        """What is remembered of conversations, to be read over HTTP."""
        from semel.apps.support.api import router

        return router(self)

    def pages(self) -> "dict[str, AppPage]":
        """Conversations, in the dashboard."""
        from semel.apps.support.pages import pages

        return pages(self)

    @classmethod
    def deployment(cls) -> "Deployment":
        """Support on AWS."""
        from semel.apps.support.deployment import DEPLOYMENT

        return DEPLOYMENT

    def close(self) -> None:
        """Let go of connections to the other sides."""
        self._helpdesk.close()
        if self._lookup is not None:
            self._lookup.close()

    def _message(self, notice: Notice) -> Message | None:
        ticket = ticket_of(notice.payload, self.s.clock.now())
        if ticket is None:
            return None
        body, person = msgspec.to_builtins(ticket), customer_of(self.s, ticket)
        return Message(str(ticket.key), body, group=ticket.conversation, subject=person)

    # Handling

    def handle(self, message: Message) -> Handled:
        """Decide about a message, act, and write down what came of it; each of these once."""
        run, ticket, mode = current_run(), msgspec.convert(message.body, Ticket), self._mode()
        self.handled.append(ticket.conversation)
        facts = self._facts(ticket, mode, message)
        run.note(**facts)
        event = event_of(self.s, ticket, run)
        plan = self._planned(event, mode)
        run.note(intent=plan.intent)
        for action in self._routing(ticket, plan):
            self._actor.do(action, event)
        reply = self._reply(ticket, plan)
        refused = plan.refused if plan.reply is None else self._answered(event, reply, plan)
        team = self.settings.human_team if refused == IN_DOUBT else plan.team
        handled = Handled(facts["mode"], plan.intent, team, None if refused else plan.reply, refused)
        with self.s.transaction() as tx:
            tx.ledger.complete(run, handled)
            self._remember(tx, event, plan, handled)
            if refused:
                self._audit.record(audit_entry(reply, event, f"fail: {refused}"), tx)
        return handled

    def _mode(self) -> AutomationMode:
        """How the kill switches stand at this moment."""
        switches, enabled = self.s.switches.list(), self.settings.automation_enabled
        safe, automation = switches.get("safe_mode"), switches.get("automation_enabled")
        return AutomationMode(safe is not None and safe.on, enabled if automation is None else automation.on)

    def _facts(self, ticket: Ticket, mode: AutomationMode, message: Message) -> dict[str, Any]:
        """What the event's record tells besides what the ledger knows."""
        digest = self.s.digest(message.body)
        facts = {
            "received_at": ticket.received_at,
            "mode": mode.name,
            "conversation_id": ticket.conversation,
            "safe_mode": mode.safe_mode,
            "automation_enabled": mode.automation_enabled,
            "payload_sha256": digest.sha256,
            "payload_bytes": digest.bytes,
        }
        return facts if ticket.message is None else facts | {"source_message_id": ticket.message}

    def _planned(self, event: SupportEvent, mode: AutomationMode) -> ReplyPlan:
        """The plan for a message: the same at every attempt, whatever has changed since the first."""

        def plan() -> ReplyPlan:
            current_run().note(**event.repeated)
            found = self._states.get(event.ticket.conversation)
            state = Conversation() if found is None else found.value
            return self._planner.plan(event, state, mode, self.s.clock.now())

        return self.s.once.step("decide", plan)

    def _remember(self, tx: Transaction, event: SupportEvent, plan: ReplyPlan, handled: Handled) -> None:
        """The conversation after this message; a flow is pending only where something was asked for."""
        now, ticket = iso(self.s.clock.now()), event.ticket
        fields: dict[str, Any] = {
            "last_processed_at": now,
            "last_processed_message_id": ticket.message,
            "last_routed_team": handled.team,
            "last_routing_confidence": plan.confidence,
            "last_intent": plan.intent,
            "risk_flags": set(plan.risk_flags),
            "pending_flow": None,
        }
        ends = {}
        if handled.replied is not None:
            fields["last_auto_reply"] = AutoReply(handled.replied, now, ticket.message or "")
            if plan.awaits:
                fields["pending_flow"] = PendingFlow(plan.awaits, now, plan.asked)
                ends = {"pending_flow": self.settings.flow_ttl}
        tx.documents.on(SUPPORT_STATE).change(
            ticket.conversation, fields, ends=ends, ttl=self.settings.state_ttl, subject=event.person
        )

    # Actions

    def _routing(self, ticket: Ticket, plan: ReplyPlan) -> list[SupportAction]:
        why = {"intent": plan.intent, "confidence": plan.confidence, "risk_flags": plan.risk_flags}
        if self.settings.excerpt:
            why["excerpt"] = self.redactor.excerpt(ticket.text)
        tags = [_action(ticket, "tag", ("rp_tag", tag), to=tag) for tag in plan.tags]
        return [*tags, _action(ticket, "route", ("rp_assign", plan.team), to=plan.team, why=why)]

    def _reply(self, ticket: Ticket, plan: ReplyPlan) -> SupportAction:
        """The reply that was planned; one that was refused is named all the same."""
        template = self._templates.get(plan.reply or "", "")
        text = written(template, plan.ending, plan.order)
        return _action(ticket, "auto_reply", ("rp_reply",), to=plan.reply or "", text=text)

    def _answered(self, event: SupportEvent, reply: SupportAction, plan: ReplyPlan) -> str:
        """Send the reply; why not, where it was not sent."""
        # Asked once more: what was done so far may have taken long enough for somebody to turn a switch.
        stops = self._mode().stops or self._lacks(plan.reply)
        if stops:
            # An earlier attempt may have sent it, before the switch was turned.
            record = self.s.ledger.get(reply.key)
            if record is None or record.status not in BEGUN:
                return stops
            return "" if record.status is Status.COMPLETED else self._in_doubt(event, plan)
        try:
            self._actor.do(reply, event)
        except errors.OutcomeUnknown:
            return self._in_doubt(event, plan)
        return ""

    def _lacks(self, reply: str | None) -> str:
        """That there is no such template: a rule made it up, or it was there at the first attempt."""
        return "" if reply in self._templates else f"there is no template {reply}"

    def _in_doubt(self, event: SupportEvent, plan: ReplyPlan) -> str:
        why = {"intent": plan.intent, "because": "nobody knows whether a reply was sent"}
        team = self.settings.human_team
        escalation = _action(event.ticket, "escalate", ("rp_assign", team), to=team, why=why)
        self._actor.do(escalation, event)
        return IN_DOUBT


def _action(ticket: Ticket, kind: ActionKind, names: tuple[str, ...], **more: Any) -> SupportAction:
    """An action on a message, under a key of its own."""
    key = str(ticket.action(*names))
    return SupportAction(kind=kind, key=key, conversation=ticket.conversation, **more)
