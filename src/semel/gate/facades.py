"""The gate's public methods, sync and async."""

from typing import Final

from semel.core.facades import AsyncFacade, Driven, Facade, SyncFacade
from semel.gate.steps import GateSteps


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
