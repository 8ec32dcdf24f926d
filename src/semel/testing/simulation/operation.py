"""One thing that somebody in a simulated world set out to do."""

from typing import Any, Literal, TypeAlias

import msgspec

from semel.core.policy import Policy
from semel.core.running import Run

OperationKind: TypeAlias = Literal["call", "forget", "resolve", "mark", "check", "drop", "wait", "beat"]


class SimulatedOperation(msgspec.Struct, eq=False):
    """A call or an operation, from its first step to its end: the author of its commands."""

    name: str
    kind: OperationKind
    id: str
    policy: Policy
    fingerprint: str | None = None
    ids: tuple[str, ...] = ()
    """The keys it is about, where they are several."""
    started: int = 0
    """The step before which it began."""
    final: bool = False
    """It belongs to the last round, in which nothing goes wrong any more."""
    outcome: Any = None

    # What it has done

    tokens: list[str] = []
    """Every token it made."""
    last: type | None = None
    """The kind of its last command."""
    waited: float = 0.0
    entered: bool = False
    """Its work began, or its resolver."""
    run: Run | None = None
    """The attempt that its work, or its resolver, began last."""
    begun: str | None = None
    """The token under which its work began."""
    forgot: str | None = None
    """The token of the record that it removed."""
    settlement: bytes | None = None
    """The result that an operator found out."""

    # What has befallen it

    faults: int = 0
    """How many faults it met with; without one, the store never fails it."""
    recognised: bool = False
    """Its last claim was answered with its own token."""
    made: bool = False
    """Its completion was answered with its own result."""
    shown: tuple[Any, float] = (None, 0.0)
    """The item in the last reply to it, and the time of that reply."""
    obstacle: Any = None
    """The record that refused its last claim."""
    refusals: int = 0
    """How often that record has refused it in a row."""
