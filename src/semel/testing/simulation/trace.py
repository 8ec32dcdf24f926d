"""What happened in a simulated world, told so that a person can follow it."""

from collections import deque
from collections.abc import Callable
from typing import Any

from semel.core.commands import (
    Applied,
    Batch,
    Delete,
    Found,
    Get,
    Many,
    Put,
    Raised,
    Refused,
    Returned,
    Update,
    Watch,
)

# Enough to see how a key came to where it is.
SHOWN = 40


class InvariantViolation(AssertionError):
    """An invariant did not hold; the message has the steps that led there and the command to replay them."""

    def __init__(self, invariant: str, what: str, seed: int, steps: str, replay: str) -> None:
        super().__init__(
            f"{invariant}: {what}\n\nseed {seed}, the last steps:\n{steps}\n\n"
            f"to replay it: {replay.format(seed)}"
        )
        self.invariant = invariant
        self.what = what
        self.seed = seed


class Trace:
    """The last steps, or with a listener every one of them as it is made.

    A step is kept as the values it is made of and written out only when somebody looks: writing takes longer
    than the step.
    """

    def __init__(self, listener: Callable[[str], None] | None = None) -> None:
        self._steps: deque[tuple[float, str, str, Any]] = deque(maxlen=SHOWN)
        self._listener = listener

    def add(self, time: float, who: str, what: str, detail: Any = "") -> None:
        """One thing that was done or happened."""
        step = (time, who, what, detail)
        self._steps.append(step)
        if self._listener is not None:
            self._listener(line(*step))

    def __str__(self) -> str:
        return "\n".join(line(*step) for step in self._steps)


def line(time: float, who: str, what: str, detail: Any) -> str:
    """A step as a line of text."""
    return f"{time:9.3f}  {who:<10} {what:<22} {described(detail)}".rstrip()


def described(detail: Any) -> str:
    """A command, a reply, an end or anything else in a few words."""
    if isinstance(detail, tuple):
        return " -> ".join(described(each) for each in detail)
    try:
        return _command(detail) or _reply(detail) or _end(detail) or str(detail)
    except (KeyError, TypeError):  # about no record of the ledger's
        return str(detail)


def _command(command: Any) -> str:
    match command:
        case Put():
            item = command.item
            return f"put {_name(command.key)} {item['status']} {item['token']} attempt {item['attempt']}"
        case Update():
            return f"update {_name(command.key)} {command.set.get('status', 'drop')} {_token(command.expect)}"
        case Delete():
            return f"delete {_name(command.key)} {_token(command.expect)}"
        case Get() | Watch():
            return f"get {_name(command.key)}"
        case Batch():
            return "batch: " + ", ".join(_command(write) for write in command.writes)
    return ""


def _reply(reply: Any) -> str:
    match reply:
        case Applied():
            return "applied"
        case Refused() | Found():
            return f"{type(reply).__name__.lower()} {_record(reply.item, reply.now)}"
        case Many():
            return ", ".join(_reply(each) for each in reply.replies)
    return ""


def _end(end: Any) -> str:
    match end:
        case Returned():
            return f"returned {end.value!r}"
        case Raised():
            return f"raised {_end(end.error)}" + ("" if end.begun else ", not begun")
        case BaseException():
            return f"{type(end).__name__} {end}".rstrip()[:60]
    return ""


def _name(id: str) -> str:
    return id.rpartition("/")[2]


def _record(item: dict[str, Any] | None, now: float) -> str:
    if item is None:
        return "nothing"
    lease = f" lease {item['lease_until'] - now:+.3f}" if item["status"] == "IN_PROGRESS" else ""
    return f"{item['status']} {item['token']} attempt {item['attempt']}{lease}"


def _token(expect: Any) -> str:
    """The token that a write expects."""
    return f"if {expect['token']}" if "token" in expect else "whatever token"
