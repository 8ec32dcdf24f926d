"""The gate: may this happen now? One decision applies all rules, and is recorded with its reason.

    gate = s.gate(QuietHours("22:00", "07:00", "Europe/Stockholm"), Cap("replies:{chat}", 3))
    decision = gate.decide("reply:42:7", chat=42)

An `Allowed` has been charged already. Asked again about the same action with the same
facts, the gate gives the same answer.
"""

from typing import Final

from semel.core.facades import AsyncFacade, Driven, Facade, SyncFacade
from semel.gate.rules import (
    RULES,
    Cap,
    Charging,
    Cooldown,
    FastConversation,
    KillSwitch,
    QuietHours,
    Rule,
    RuleContext,
    RuleResult,
    Shadow,
    Taken,
    VaryingFact,
)
from semel.gate.steps import RECORD, Allowed, GateDecision, GateSteps, Refused

__all__ = [
    "RECORD",
    "RULES",
    "Allowed",
    "AsyncGate",
    "Cap",
    "Charging",
    "Cooldown",
    "FastConversation",
    "Gate",
    "GateDecision",
    "GateSteps",
    "KillSwitch",
    "QuietHours",
    "Refused",
    "Rule",
    "RuleContext",
    "RuleResult",
    "Shadow",
    "Taken",
    "VaryingFact",
]


class GateMethods(Facade[GateSteps]):
    """The methods of `Gate` and `AsyncGate`."""

    decide: Final = Driven(GateSteps.decide)
    reconsider: Final = Driven(GateSteps.reconsider)
    explain: Final = Driven(GateSteps.explain)
    recorded: Final = Driven(GateSteps.recorded)
    refund: Final = Driven(GateSteps.refund)


class Gate(GateMethods, SyncFacade):
    """Decides by its rules whether something may happen now."""


class AsyncGate(GateMethods, AsyncFacade):
    """Decides by its rules whether something may happen now, by methods that are awaited."""
