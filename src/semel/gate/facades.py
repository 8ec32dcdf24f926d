"""The gate's public methods, sync and async."""

from semel.core.facades import AsyncFacade, Driven, Facade, SyncFacade
from semel.gate.steps import GateSteps


class GateMethods(Facade[GateSteps]):
    """The methods of `Gate` and `AsyncGate`."""

    decide = Driven(GateSteps.decide)
    reconsider = Driven(GateSteps.reconsider)
    explain = Driven(GateSteps.explain)
    recorded = Driven(GateSteps.recorded)
    refund = Driven(GateSteps.refund)


class Gate(GateMethods, SyncFacade):
    """Decides by its rules whether something may happen now."""


class AsyncGate(GateMethods, AsyncFacade):
    """Decides by its rules whether something may happen now, by methods that are awaited."""
