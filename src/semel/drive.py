"""The only fork between sync and async: two ways to run the same steps.

Everything that decides is a generator of commands (see `commands`). `drive` answers each command at once;
`adrive` awaits the answers, and sees to it that a cancellation never tears a write in two.
"""

import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from semel.clock import Clock
from semel.commands import (
    Call,
    Discard,
    Fetch,
    Pause,
    Raised,
    Returned,
    Stash,
    Steps,
    Stored,
    Watch,
)
from semel.errors import StoreError, UsageError
from semel.tables import Table

if TYPE_CHECKING:
    import asyncio

    from semel.codecs import Overflow

T = TypeVar("T")


class Store(Protocol):
    """An interpreter of commands."""

    overflow: "Overflow | None"

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        ...

    def at_once(self, command: Stored) -> Any | None:
        """The answer, where giving it takes no waiting; None leaves it to `aexecute`."""
        ...

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        ...

    def close(self) -> None:
        """Let go of connections and files."""
        ...


async def leave(store: Store) -> None:
    """Let a store go of what belongs to the running event loop, where it has connections that do."""
    if hasattr(store, "leave"):
        await store.leave()


Glance: TypeAlias = Callable[[str], tuple[Any, ...] | None]


class Glancing(Protocol):
    """A store that can look at an item without a lock and without waiting.

    It is what makes a replay about as quick as one look-up.
    """

    def glance(self, table: Table, attributes: tuple[str, ...], where: dict[str, str | int]) -> Glance:
        """A function from a key to these attributes of its item, or to None.

        None is for an item that is not there, or whose attributes are not as `where` says. An attribute that
        is missing is None.
        """
        ...


class Joining(Protocol):
    """A store that can write inside a transaction of the caller's."""

    def within(self, connection: Any) -> Store:
        """The same store on this connection, whose transaction is the caller's to end."""
        ...


def joined(store: Store, connection: Any) -> Store:
    """The store inside the transaction of a connection of the caller's."""
    if not hasattr(store, "within"):
        raise UsageError("this store has no transaction to share with you; SQLite and PostgreSQL have")
    return cast("Joining", store).within(connection)


def drive(steps: Steps[T], store: Store) -> T:
    """Run the steps to their end, and the caller's work with them."""
    result: T = advance(steps, store, _attempt)
    return result


def advance(  # noqa: C901 - one case for each kind of command
    steps: Steps[Any],
    store: Store,
    work: Callable[[Call], Any] | None = None,
    reply: Any = None,
    *,
    failed: BaseException | None = None,
) -> Any:
    """Run the steps to their end, or without `work` up to a `Call`, which is then what is returned.

    They go on from what they are told in reply, or from what has failed instead. Whatever is raised goes
    into them, also where it was raised here, out of a signal handler: they know what is to be undone. So the
    loop is within the `try`, and the `except` clauses call nothing.
    """
    execute: Callable[[Any], Any] = store.execute
    command: Any = None
    while True:
        try:
            while True:
                if failed is None:
                    command = steps.send(reply)
                else:
                    _tell(store, command, failed)
                    command = steps.throw(failed)
                    failed = None
                kind = type(command)
                if kind not in OUTSIDE:
                    reply = execute(command)
                elif kind is not Call:
                    reply = _outside(command, store)
                elif work is None:
                    return command
                else:
                    reply = work(command)
        except StopIteration as end:
            if steps.gi_frame is None:  # type: ignore[attr-defined]  # they are over
                failed = None  # it has this frame in its traceback
                return end.value
            failed = end
        except BaseException as error:
            if steps.gi_frame is None:  # type: ignore[attr-defined]
                failed = None
                raise
            failed = error


async def adrive(steps: Steps[T], store: Store) -> T:
    """Run the steps to their end, and the caller's work with them.

    A cancellation waits for the command under way, since a write that is torn off may or may not have been
    made. It is delivered where nothing is half done: in place of the caller's work, during a wait, or at the
    end.
    """
    result: T = await aadvance(steps, store, _aattempt)
    return result


async def aadvance(  # noqa: C901 - one case for each kind of command
    steps: Steps[Any], store: Store, work: Callable[[Call], Awaitable[Any]] | None = None, reply: Any = None
) -> Any:
    """Run the steps to their end, or without `work` up to a `Call`, which is then what is returned."""
    cancelled: BaseException | None = None
    try:
        command: Any = steps.send(reply)
        while True:
            try:
                kind = type(command)
                if kind in INTERRUPTIBLE:
                    if cancelled:
                        reply, cancelled = _interrupt(kind, cancelled), None
                    elif kind is Watch:
                        reply = await store.aexecute(command)
                    elif work is None:
                        return command
                    else:
                        reply = await work(command)
                elif kind in OUTSIDE or (reply := store.at_once(command)) is None:
                    task, cancelled = await _finished(command, store, cancelled)
                    reply = task.result()
            except BaseException as error:  # noqa: BLE001 - the steps decide, whatever it is
                _tell(store, command, error)
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as end:
        if cancelled:
            raise cancelled from None
        return end.value


def _tell(store: Store, command: Any, error: BaseException) -> None:
    """Let whoever listens know that the store did not do as asked."""
    if isinstance(error, StoreError) and hasattr(store, "on_error"):
        store.on_error(error, getattr(command, "key", ""))


def _interrupt(kind: type, cancelled: BaseException) -> Raised:
    if kind is Watch:
        raise cancelled
    return Raised(cancelled, begun=False)


INTERRUPTIBLE = frozenset({Call, Watch})
OUTSIDE = frozenset({Call, Pause, Stash, Fetch, Discard})


def _attempt(call: Call) -> Returned | Raised:
    try:
        return Returned(call.work())
    except BaseException as error:  # noqa: BLE001 - handed to the steps as a value
        return Raised(error)


async def _aattempt(call: Call) -> Returned | Raised:
    try:
        return Returned(await call.work())
    except BaseException as error:  # noqa: BLE001 - handed to the steps as a value
        return Raised(error)


async def _finished(
    command: Any, store: Store, cancelled: BaseException | None
) -> "tuple[asyncio.Task[Any], BaseException | None]":
    """The command carried out to its end, and the cancellation that came meanwhile."""
    import asyncio

    kind = type(command)
    if kind is Pause:
        task = asyncio.ensure_future(_apaused(command))
    elif kind in OUTSIDE:
        task = asyncio.ensure_future(asyncio.to_thread(_outside, command, store))
    else:
        task = asyncio.ensure_future(store.aexecute(command))
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    return task, cancelled


MACHINE = Clock()


async def _apaused(pause: Pause) -> float:
    import asyncio

    clock: Clock = pause.clock or MACHINE
    await clock.wait_async(asyncio.Event(), pause.seconds)
    return clock.monotonic()


def _outside(command: Any, store: Store) -> Any:
    """What needs no store: a pause, and the overflow."""
    if type(command) is Pause:
        clock: Clock = command.clock or MACHINE
        clock.wait(threading.Event(), command.seconds)
        return clock.monotonic()
    overflow = store.overflow
    if overflow is None:
        return None
    if type(command) is Stash:
        return overflow.put(command.name, command.data)
    if type(command) is Discard:
        return overflow.delete(command.reference)
    try:
        return overflow.get(command.reference)
    except (LookupError, FileNotFoundError):  # it is gone
        return None
