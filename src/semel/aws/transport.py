"""The protocol of a transport, which a store uses to reach its service."""

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from semel.aws.time import ServiceTime
from semel.core.commands import Pause
from semel.core.drive import run_async, run_sync

T = TypeVar("T")

# In the form that JSON has on the wire: `{"B": ...}` holds base64 text. A function is asked once more where
# the service says that the clock was wrong, since what it makes may hold times.
WireRequest: TypeAlias = dict[str, Any] | Callable[[], dict[str, Any]]


class ThreadCall(msgspec.Struct, frozen=True):
    """Work that blocks: a task leaves it to a thread."""

    work: Callable[[], Any]


# Bytes are a request to be sent. It is answered by an HttpResponse or by what became of it.
WireStep: TypeAlias = bytes | Pause | ThreadCall
WireSteps: TypeAlias = Generator[WireStep, Any, T]


class Transport(Protocol):
    """Carries requests to one service and brings back its responses."""

    time: ServiceTime
    perform: Callable[[WireStep], Any]
    """Carry out one step in this thread."""

    def exchange(self, operation: str, request: WireRequest, *, write: bool) -> WireSteps[dict[str, Any]]:
        """The steps to the response of an operation such as `PutItem`.

        Whatever was certainly not applied is tried again, for a while; what may have been applied only if it
        is no `write`. ServiceError is for the caller to decide on.
        """
        ...

    async def aperform(self, step: WireStep) -> Any:
        """Carry out one step in this task."""
        ...

    def call(self, operation: str, request: WireRequest, *, write: bool) -> dict[str, Any]:
        """The response to an operation, asked for in this thread."""
        return run_sync(self.exchange(operation, request, write=write), self.perform)

    async def acall(self, operation: str, request: WireRequest, *, write: bool) -> dict[str, Any]:
        """The response to an operation, asked for in this task."""
        return await run_async(self.exchange(operation, request, write=write), self.aperform)

    async def leave(self) -> None:
        """Let go of what belongs to the running event loop."""
        ...

    def close(self) -> None:
        """Let go of everything else; calls from here on are refused."""
        ...


def made(request: WireRequest) -> dict[str, Any]:
    """The request itself."""
    return request() if callable(request) else request
