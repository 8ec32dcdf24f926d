"""One of something for each event loop: what asyncio has connected belongs to the loop that did it."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from semel.core.runtime import running_loop

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Makes a thing when a loop first asks for it, and closes it when that loop leaves.

    `drop` lets go of a thing whose loop is closed or in another thread, and so may not wait for anything.
    """

    def __init__(
        self, make: Callable[[], T], close: Callable[[T], Awaitable[None]], drop: Callable[[T], None]
    ) -> None:
        self._make = make
        self._close = close
        self._drop = drop
        self._made: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """The running loop's."""
        loop = running_loop()
        try:
            return self._made[loop]
        except KeyError:
            self._forget(lambda other: other.is_closed())
            made = self._made[loop] = self._make()
            return made

    async def leave(self) -> None:
        """Close the running loop's, if it has one."""
        made = self._made.pop(running_loop(), None)
        if made is not None:
            await self._close(made)

    def drop_all(self) -> None:
        """Let go of all of them, whatever their loops are doing."""
        self._forget(lambda _: True)

    def _forget(self, unwanted: "Callable[[asyncio.AbstractEventLoop], bool]") -> None:
        for loop in [loop for loop in list(self._made) if unwanted(loop)]:
            made = self._made.pop(loop, None)
            if made is not None:
                self._drop(made)


def close_after_loop(transport: Any) -> None:
    """Close a transport whose event loop was closed before it.

    A closed loop no longer closes what belongs to it, and asyncio warns for ever after. It has no public way
    to do so: whoever needs this comes here, and nowhere else are asyncio's private names used for it.
    """
    with suppress(RuntimeError):
        transport.abort()
    wrapped = getattr(transport, "_ssl_protocol", None)
    raw = transport if wrapped is None else wrapped._transport
    if getattr(raw, "_sock", None) is not None:
        raw._sock.close()
        raw._sock = None
