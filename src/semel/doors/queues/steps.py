"""What a consumer's loops are made of: generators, which threads or the tasks of an event loop carry out."""

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class RunState:
    """How far a consumer has come; `stopping` alone may be set from anywhere at any time."""

    def __init__(self) -> None:
        self.stopping: bool = False
        self.receiving = False
        """Whether somebody may still bring messages."""
        self.changed: bool = False
        """Whether something happened that others may be waiting for."""
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Nothing is begun any more, and this is why."""
        self.failure = self.failure or error
        self.stopping = True
        self.changed = True


class Wait(msgspec.Struct, frozen=True):
    """Wait until something changes, or so many seconds."""

    seconds: float | None


class ConsumerStep(Protocol):
    """Something that takes its time: what it gives is sent into the loop, what it raises is thrown."""

    def call(self) -> Any:
        """Do it, in a thread."""
        ...

    async def acall(self) -> Any:
        """Do it, in an event loop."""
        ...


class BlockingCall(msgspec.Struct, frozen=True):
    """A step: call a function that blocks; an event loop has a thread call it."""

    function: Callable[[], Any]

    def call(self) -> Any:
        """Call it in this thread."""
        return self.function()

    async def acall(self) -> Any:
        """Call it in a thread of its own."""
        import asyncio

        return await asyncio.to_thread(self.function)


ConsumerSteps: TypeAlias = Generator[Wait | ConsumerStep, Any, T]
ConsumerLoop: TypeAlias = ConsumerSteps[None]
