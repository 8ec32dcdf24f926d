"""Attempts that end with their invocation: the lease is what is left of it, and nothing renews it."""

from collections.abc import Callable
from math import ceil
from typing import Any, Final, Self, TypeAlias

from semel.connect import Semel
from semel.doors.queues.messages import DeliveryResult, Handler, Verdict
from semel.once import Block

LambdaEvent: TypeAlias = dict[str, Any]

# What an invocation has sent when its time is up may still arrive.
MARGIN: Final = 1


def remaining(context: Any) -> float | None:
    """How many seconds are left of an invocation; None where that cannot be told, as outside of Lambda."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    return None if ask is None else max(0.0, ask() / 1000)


def within(block: Block, seconds: float | None) -> Block:
    """A block whose attempts last no longer than an invocation that has so many seconds left."""
    if seconds is None:
        return block
    return block.lasting(ceil(seconds) + MARGIN)


class Attempts(Handler[Any]):
    """A handler of records, or of whole events, that begins none for which there is not enough time left."""

    def __init__(self, s: Semel, handle: Callable[..., Any], *, min_remaining: float, **more: Any) -> None:
        super().__init__(s, handle, **more)
        self._whole = self._block
        self._min_remaining = min_remaining
        self._context: Any = None

    def during(self, context: Any, *, with_context: bool = False) -> Self:
        """A copy of this handler for one invocation; `with_context` the function is given its context too."""
        # Several invocations may run in one process, each with a time of its own.
        other = object.__new__(type(self))
        vars(other).update(vars(self), _context=context)
        if with_context:
            handle: Callable[..., Any] = self._handle
            other._handle = lambda message: handle(message, context)
        return other

    def take(self, message: Any) -> DeliveryResult:
        """Handle a message, unless that was done before, or there is too little time left."""
        left = remaining(self._context)
        if left is not None and left < self._min_remaining:
            late = f"{left:.1f} s are left of this invocation, which is too little to begin anything"
            return DeliveryResult(Verdict.BEHIND, error=TimeoutError(late))
        self._block = within(self._whole, left)
        return super().take(message)
