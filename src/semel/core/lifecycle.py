"""The states of a record and every move between them, as a table.

The ledger's conditions are made from this table, and so is the diagram in the docs.
"""

from enum import StrEnum

import msgspec

from semel.core.commands import AllOf, Condition, Equals, OneOf, Past


class Status(StrEnum):
    """What is known about a key that was claimed."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    RELEASED = "RELEASED"


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One arrow: where it starts, what it asks of the record, where it leads."""

    name: str
    start: tuple[Status, ...]
    to: Status
    token: bool = True
    """Only while the record still carries the token that the mover holds, or saw."""
    lapsed: bool = False
    """Only once the lease has run out."""
    note: str

    status: str = ""
    fixed: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "status", self.to.value)
        statuses = tuple(status.value for status in self.start)
        state: Condition = OneOf("status", statuses) if len(statuses) > 1 else Equals("status", statuses[0])
        fixed = (Past("lease_until"), state) if self.lapsed else (state,)
        msgspec.structs.force_setattr(self, "fixed", fixed)

    def condition(self, token: str) -> Condition:
        """The condition under which a store makes this move."""
        return AllOf((Equals("token", token), *self.fixed)) if self.token else AllOf(self.fixed)


RUNNING = (Status.IN_PROGRESS,)
# A holder that was given up for lost and comes back with its token knows better than anyone what happened.
HELD = (Status.IN_PROGRESS, Status.UNKNOWN)

TAKE_OVER = Move(
    name="take over",
    start=RUNNING,
    to=Status.IN_PROGRESS,
    lapsed=True,
    note="the lease ran out; the policy is to run again",
)
RECLAIM = Move(
    name="reclaim", start=(Status.RELEASED,), to=Status.IN_PROGRESS, note="an earlier attempt gave it back"
)
RENEW = Move(name="renew", start=RUNNING, to=Status.IN_PROGRESS, note="the holder is still at work")
LAPSE = Move(
    name="lapse",
    start=RUNNING,
    to=Status.IN_PROGRESS,
    note="the holder was interrupted: its lease ends now, as after a crash",
)
COMPLETE = Move(name="complete", start=HELD, to=Status.COMPLETED, note="the effect happened")
FAIL = Move(name="fail", start=HELD, to=Status.FAILED, note="it failed, and is to stay failed")
RELEASE = Move(name="release", start=HELD, to=Status.RELEASED, note="it did not happen; a retry may run")
DOUBT = Move(
    name="doubt", start=RUNNING, to=Status.UNKNOWN, note="the holder asked the other side, and it cannot tell"
)
HOLD = Move(
    name="hold",
    start=RUNNING,
    to=Status.UNKNOWN,
    lapsed=True,
    note="the lease ran out; the policy is to ask somebody",
)
EXHAUST = Move(
    name="exhaust",
    start=(Status.RELEASED,),
    to=Status.FAILED,
    note="given back as often as the limit allows",
)
EXHAUST_LAPSED = Move(
    name="exhaust",
    start=RUNNING,
    to=Status.FAILED,
    lapsed=True,
    note="vanished as often as the limit allows",
)
SETTLE_DONE = Move(
    name="settle", start=(Status.UNKNOWN,), to=Status.COMPLETED, note="somebody found that it happened"
)
SETTLE_UNDONE = Move(
    name="settle", start=(Status.UNKNOWN,), to=Status.RELEASED, note="somebody found that it did not"
)
SETTLE_FAILED = Move(name="settle", start=(Status.UNKNOWN,), to=Status.FAILED, note="somebody gave it up")
MARK = Move(
    name="mark",
    start=(Status.RELEASED, Status.FAILED, Status.UNKNOWN),
    to=Status.COMPLETED,
    note="it is known from elsewhere that it happened",
)
DROP = Move(
    name="drop the result",
    start=(Status.COMPLETED,),
    to=Status.COMPLETED,
    note="the result goes, the fact stays",
)
TAKE_BACK = Move(
    name="take back",
    start=(Status.COMPLETED,),
    to=Status.RELEASED,
    note="a decision allowed what then failed; it is decided anew",
)

MOVES = (
    TAKE_OVER,
    RECLAIM,
    RENEW,
    LAPSE,
    COMPLETE,
    FAIL,
    RELEASE,
    DOUBT,
    HOLD,
    EXHAUST,
    EXHAUST_LAPSED,
    SETTLE_DONE,
    SETTLE_UNDONE,
    SETTLE_FAILED,
    MARK,
    DROP,
    TAKE_BACK,
)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> IN_PROGRESS: claim", "    [*] --> COMPLETED: check_and_set"]
    for move in MOVES:
        guard = " / lease lapsed" if move.lapsed else ""
        lines += [f"    {start} --> {move.to}: {move.name}{guard}" for start in move.start]
    lines += [f"    {status} --> [*]: expires, or is forgotten" for status in Status]
    return "\n".join(lines)
