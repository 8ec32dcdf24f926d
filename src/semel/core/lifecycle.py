"""The states of a record and every move between them, as a table.

What the ledger's writes expect is made from this table, and so is the diagram in the docs.
"""

from enum import StrEnum
from typing import Any

import msgspec


class Status(StrEnum):
    """What is known about a key that was claimed."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    RELEASED = "RELEASED"


class Move(msgspec.Struct, frozen=True):
    """One arrow: where it starts and where it leads, while the record has the token that the mover knows.

    A holder does not know whether its record was marked as unresolved. Its first write expects the first of
    the starting states, and is sent again for the state that refused it, if that is one of them.
    """

    name: str
    start: tuple[Status, ...]
    to: Status
    note: str
    lapsed: bool = False
    """Only once the lease has expired."""
    status: str = ""
    first: str = ""
    """The state that it leads to, and the first of the starting states, as they are stored."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "status", self.to.value)
        msgspec.structs.force_setattr(self, "first", self.start[0].value)

    def expects(self, token: str, status: Status | None = None) -> dict[str, Any]:
        """Return what a record must be for this move: held by this token, and in this state."""
        return {"token": token, "status": self.first if status is None else status.value}


IN_PROGRESS, COMPLETED, FAILED, UNKNOWN, RELEASED = Status
RUNNING = (IN_PROGRESS,)
# A holder that was given up for lost and comes back with its token knows better than anyone what happened.
HELD = (IN_PROGRESS, UNKNOWN)

TAKE_OVER = Move(
    "take over", RUNNING, IN_PROGRESS, "the lease ran out; the policy is to run again", lapsed=True
)
RECLAIM = Move("reclaim", (RELEASED,), IN_PROGRESS, "an earlier attempt released it")
RENEW = Move("renew", RUNNING, IN_PROGRESS, "the holder is still at work")
LAPSE = Move(
    "lapse", RUNNING, IN_PROGRESS, "the holder was interrupted: its lease ends now, as after a crash"
)
COMPLETE = Move("complete", HELD, COMPLETED, "the effect happened")
FAIL = Move("fail", HELD, FAILED, "it failed, and the failure is final")
RELEASE = Move("release", HELD, RELEASED, "it did not happen; a retry may run")
DOUBT = Move("doubt", RUNNING, UNKNOWN, "the remote system does not know either")
HOLD = Move("hold", RUNNING, UNKNOWN, "the lease ran out; the policy is to ask a person", lapsed=True)
EXHAUST = Move("exhaust", (RELEASED,), FAILED, "released as often as the limit allows")
EXHAUST_LAPSED = Move("exhaust", RUNNING, FAILED, "vanished as often as the limit allows", lapsed=True)
SETTLE_DONE = Move("settle", (UNKNOWN,), COMPLETED, "somebody found that it happened")
SETTLE_UNDONE = Move("settle", (UNKNOWN,), RELEASED, "somebody found that it did not")
SETTLE_FAILED = Move("settle", (UNKNOWN,), FAILED, "somebody abandoned it")
MARK = Move("mark", (RELEASED, FAILED, UNKNOWN), COMPLETED, "it is known from elsewhere that it happened")
DROP = Move("drop the result", (COMPLETED,), COMPLETED, "the result is deleted, the record stays")
TAKE_BACK = Move("take back", (COMPLETED,), RELEASED, "an allowed action failed; it is decided again")
# What an operator does by hand, to the record that he has seen.
OVERRIDE_DONE = Move(
    "complete by hand",
    (IN_PROGRESS, UNKNOWN, FAILED, RELEASED),
    COMPLETED,
    "an operator knows that it happened",
)
OVERRIDE_UNDONE = Move(
    "release by hand", (IN_PROGRESS, UNKNOWN, FAILED), RELEASED, "an operator lets it run again"
)
OVERRIDE_FAILED = Move("fail by hand", (IN_PROGRESS, UNKNOWN, RELEASED), FAILED, "an operator gives it up")

# In the order in which they stand here.
MOVES = tuple(move for move in list(globals().values()) if isinstance(move, Move))


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> IN_PROGRESS: claim", "    [*] --> COMPLETED: check_and_set"]
    for move in MOVES:
        guard = " / lease lapsed" if move.lapsed else ""
        lines += [f"    {start} --> {move.to}: {move.name}{guard}" for start in move.start]
    lines += [f"    {status} --> [*]: expires, or is forgotten" for status in Status]
    return "\n".join(lines)
