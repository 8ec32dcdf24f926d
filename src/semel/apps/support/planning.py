"""The decision about one message, made once: what it is about, where it goes, and what is answered."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from semel.apps.support.acting import SupportEvent
from semel.apps.support.conversation import Conversation
from semel.apps.support.orders import Order
from semel.apps.support.rules import NEED_ORDER_NUMBER, Decision, ask_for_number
from semel.apps.support.settings import Settings
from semel.apps.support.ticket import Ticket

Decide: TypeAlias = Callable[[Ticket, Conversation], Decision]
Find: TypeAlias = Callable[[SupportEvent, str], Order | None]

# Of a number with no more digits than these, the ending would be all of it.
LAST_DIGITS = 4


class AutomationMode(msgspec.Struct, frozen=True):
    """What the kill switches allow."""

    safe_mode: bool
    automation_enabled: bool

    @property
    def name(self) -> str:
        """The word for it in the event's record."""
        return "route_only" if self.stops else "automation_candidate"

    @property
    def stops(self) -> str:
        """Why nothing is answered; nothing where it may be."""
        if self.safe_mode:
            return "safe_mode is on"
        return "" if self.automation_enabled else "automation_enabled is off"


class ReplyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What will be done, as every attempt at the event finds it in the ledger; nothing in it is personal."""

    intent: str
    team: str
    confidence: float
    tags: tuple[str, ...]
    risk_flags: tuple[str, ...]
    reply: str | None
    awaits: str = ""
    asked: int = 0
    """How often the missing thing will have been asked for."""
    ending: str = ""
    """The last digits of an order number."""
    order: Order | None = None
    refused: str = ""
    """Why a reply that the rules chose is not sent."""


class Planner:
    """Makes plans by the rules and the settings."""

    def __init__(self, settings: Settings, decide: Decide, find: Find | None) -> None:
        self._settings, self._decide, self._find = settings, decide, find

    def plan(self, event: SupportEvent, state: Conversation, mode: AutomationMode, now: float) -> ReplyPlan:
        """What to do about a message, as the conversation stands."""
        decision = self._decide(event.ticket, state)
        if mode.stops:
            wanted = decision.reply is not None
            return _plan(decision, state, reply=None, awaits="", refused=mode.stops if wanted else "")
        if not decision.order:
            return self._checked(_plan(decision, state), state, now)
        if self._find is None:
            return self._left_to_a_person(_plan(decision, state), "nobody can look orders up")
        ending = ending_of(decision.order)
        order = self._find(event, decision.order)
        if order is None:
            decision = ask_for_number(decision, state.awaits(NEED_ORDER_NUMBER), "order_not_found")
        return self._checked(_plan(decision, state, ending=ending, order=order), state, now)

    def _checked(self, plan: ReplyPlan, state: Conversation, now: float) -> ReplyPlan:
        """A plan, left to a person where the customer has just got that very reply."""
        every = self._settings.reply_every
        if plan.reply is None or not state.has_just_got(plan.reply, now, every):
            return plan
        return self._left_to_a_person(plan, f"{plan.reply} was the last reply, less than {every:g} s ago")

    def _left_to_a_person(self, plan: ReplyPlan, why: str) -> ReplyPlan:
        tags = (*plan.tags, "needs-human")
        team = self._settings.human_team
        return msgspec.structs.replace(plan, team=team, tags=tags, reply=None, awaits="", refused=why)


def _plan(decision: Decision, state: Conversation, **changed: Any) -> ReplyPlan:
    """A plan as a decision has it, but for what is changed; the number of its order is left out."""
    fields = {name: getattr(decision, name) for name in Decision.__struct_fields__}
    fields |= {"order": None} | changed
    fields["risk_flags"] = tuple(sorted({*state.risk_flags, *decision.risk_flags}))
    fields["asked"] = state.awaits(fields["awaits"]) + 1 if fields["awaits"] else 0
    return ReplyPlan(**fields)


def ending_of(number: str) -> str:
    """The last digits of a number, as far as they do not tell all of it."""
    digits = "".join(filter(str.isdigit, number))
    return digits[-LAST_DIGITS:] if len(digits) > LAST_DIGITS else ""
