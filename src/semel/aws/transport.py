"""What a store asks of the way to its service."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from semel.aws.time import ServiceTime

# In the form that JSON has on the wire: `{"B": ...}` holds base64 text. A function is asked once more where
# the service says that the clock was wrong, since what it makes may hold times.
WireRequest: TypeAlias = dict[str, Any] | Callable[[], dict[str, Any]]


class Transport(Protocol):
    """Carries requests to one service and brings back its answers."""

    time: ServiceTime

    def call(self, operation: str, request: WireRequest, *, write: bool) -> dict[str, Any]:
        """The answer to an operation such as `PutItem`.

        Whatever was certainly not applied is tried again, for a while; what may have been applied only if it
        is no `write`. ServiceError is for the caller to decide on.
        """
        ...

    async def acall(self, operation: str, request: WireRequest, *, write: bool) -> dict[str, Any]:
        """The same for a task."""
        ...

    async def leave(self) -> None:
        """Let go of what belongs to the running event loop."""
        ...

    def close(self) -> None:
        """Let go of everything else; calls from here on are refused."""
        ...


def made(request: WireRequest) -> dict[str, Any]:
    """The request itself."""
    return request() if callable(request) else request
