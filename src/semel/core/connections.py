"""What connections to servers need: timeouts, sockets with data to read, and the loop they belong to."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from semel.errors import InvalidOption, UsageError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

# How long a connection, and each answer, is waited for. A server that is well answers within milliseconds,
# and one on a machine with far too much to do within seconds: who is silent for so long will not answer.
ANSWER_SECONDS = 10.0
LONGEST_SECONDS = 3600.0


def timeout_of(given: str | None) -> float:
    """The limit that `timeout=` in a URL sets."""
    if given is None:
        return ANSWER_SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_SECONDS:
        raise InvalidOption(
            f"timeout={given!r}: it is how many seconds a connection, or an answer, is waited for, such as 10"
        )
    return seconds


def read_poller(connection: Any) -> Callable[..., Any]:
    """A function that tells whether anything, be it the end, is to be read within so many milliseconds."""
    import select

    if not hasattr(select, "poll"):  # Windows, where select() does as well
        return lambda milliseconds=0: select.select([connection], [], [], milliseconds / 1000)[0]
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return lambda milliseconds=0: poll.poll(milliseconds)


def running_loop() -> "asyncio.AbstractEventLoop":
    """Return the running event loop of asyncio, or raise a `UsageError` that names what runs instead."""
    asyncio = sys.modules.get("asyncio")  # whose loop runs, if one does
    loop = None if asyncio is None else asyncio._get_running_loop()
    if loop is not None:
        return loop  # type: ignore[no-any-return]  # sys.modules knows no types
    library = _async_library()
    where = f"this code runs under {library}" if library else "no event loop of asyncio runs here"
    remedy = f"{library}.to_thread.run_sync" if library == "trio" else "a thread"
    raise UsageError(
        f"async calls of semel need asyncio, and {where}: call the sync methods in {remedy}, or run this "
        "code with asyncio"
    )


def _async_library() -> str:
    """The name of the async library that runs this code, such as "trio"; "" where that is unknown."""
    sniffio: Any = sys.modules.get("sniffio")
    try:
        name: str = sniffio.current_async_library()
    except Exception:  # noqa: BLE001 - there is no sniffio, or it does not know
        return ""
    return "" if name == "asyncio" else name


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
        """Return the running loop's."""
        asyncio = sys.modules.get("asyncio")
        made = None if asyncio is None else self._made.get(asyncio._get_running_loop())
        return self._make_here() if made is None else made

    def _make_here(self) -> T:
        loop = running_loop()
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
