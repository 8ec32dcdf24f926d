"""The gate as callers know it, sync and async."""

from semel.core.facades import Facade, adriven, driven
from semel.gate.steps import GateSteps


class Gate(Facade[GateSteps]):
    """May this happen now?"""

    decide = driven(GateSteps.decide)
    reconsider = driven(GateSteps.reconsider)
    explain = driven(GateSteps.explain)
    recorded = driven(GateSteps.recorded)
    refund = driven(GateSteps.refund)


class AsyncGate(Facade[GateSteps]):
    """May this happen now? For `await`."""

    decide = adriven(GateSteps.decide)
    reconsider = adriven(GateSteps.reconsider)
    explain = adriven(GateSteps.explain)
    recorded = adriven(GateSteps.recorded)
    refund = adriven(GateSteps.refund)
