"""The drivers: run the same steps in sync and in async code.

Everything that decides is a generator of commands (see `commands`). `drive` answers each command at once;
`adrive` awaits the answers, and sees to it that a cancellation never tears a write in two. Beneath them,
where a store asks its server, `run_sync` and `run_async` do the same for steps of any kind.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from semel.core.clock import Clock, SignalSafeEvent, running_loop
from semel.core.commands import (
    SETTLED,
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
    check_reply,
)
from semel.errors import StoreError, UsageError
from semel.model import ScanCost, TableSize
from semel.tables import Table

if TYPE_CHECKING:
    import asyncio

    from semel.core.codecs import Overflow

S = TypeVar("S")
T = TypeVar("T")


class Store(Protocol):
    """An interpreter of commands: what every store has.

    What only some stores have is in the protocols after this one, each a capability by itself: `Leaving`,
    `Reaping`, `Scanning`, `Measuring`, `Joining`, `Glancing`, `Limiting`, `FileBacked`. A store has one by
    having its members.
    """

    overflow: "Overflow | None"
    """Where results go that are too large for an item; `Semel` sets it."""

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it, with one of the replies that `REPLIES` names."""

    def at_once(self, command: Stored) -> Any | None:
        """The answer, where giving it takes no waiting; None leaves it to `aexecute`."""

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out and answer it, while the event loop goes on with other tasks."""

    def close(self) -> None:
        """Let go of connections and files; every command afterwards raises `StoreClosed`."""


class StoreType(Protocol):
    """The class of a store that `connect` can open: what an entry point of the group `semel.stores` names."""

    def from_url(self, url: str, *, env: str, clock: Clock) -> Store:
        """The store at a URL, for one environment; a class method."""


ErrorListener: TypeAlias = Callable[[StoreError, str], object]
"""Called by the drivers with each error of the store's, and the key that it was about."""
Glance: TypeAlias = Callable[[str], tuple[Any, ...] | None]


@runtime_checkable
class Leaving(Protocol):
    """A store with connections that belong to an event loop."""

    async def leave(self) -> None:
        """Close the connections that belong to the running event loop."""


@runtime_checkable
class Reaping(Protocol):
    """A store that removes expired items when it is told to."""

    def reap(self, limit: int = 500) -> int:
        """Remove up to `limit` expired items of the tables in use, and return how many."""


@runtime_checkable
class Scanning(Protocol):
    """A store whose keys lie in no order: a search that no index answers reads the whole table."""

    def scan_cost(self, table: Table) -> ScanCost:
        """What reading all of it takes, as far as the store can tell."""


@runtime_checkable
class Measuring(Protocol):
    """A store that tells how large its tables are, at a cost that does not grow with them."""

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The sizes of those tables that exist, or of all of them together."""


@runtime_checkable
class Limiting(Protocol):
    """A store whose items are limited in size, or stand in a table that other programs read too."""

    room: int
    """How many bytes a result may have; a larger one goes to the overflow."""
    plain_results: bool
    """Other programs read the results too, as JSON in a text: they are not compressed."""
    spreads_details: bool
    """A record's details are attributes of their own, which other programs read too."""


@runtime_checkable
class FileBacked(Protocol):
    """A store that is one file of this machine."""

    path: str


@runtime_checkable
class Glancing(Protocol):
    """A store that can look at an item without a lock or a wait, so that a replay costs about one look-up."""

    def glance(self, table: Table, attributes: tuple[str, ...], where: dict[str, str | int]) -> Glance:
        """A function from a key to these attributes of its item, None for one that is missing.

        It returns None if there is no item, or if its attributes are not as `where` says.
        """


@runtime_checkable
class Joining(Protocol):
    """A store that can write inside a transaction of the caller's."""

    def within(self, connection: Any) -> Store:
        """A store that writes on this connection, whose transaction is the caller's to end."""


async def leave(store: Store) -> None:
    """Close a store's connections that belong to the running event loop."""
    if isinstance(store, Leaving):
        await store.leave()


def joined(store: Store, connection: Any) -> Store:
    """The store inside the transaction of a connection of the caller's."""
    if not isinstance(store, Joining):
        raise UsageError(f"{store!r} has no transaction to share with you; SQLite and PostgreSQL have")
    return store.within(connection)


def run_sync(steps: Generator[S, Any, T], answer: Callable[[S], Any]) -> T:
    """Run steps to their end: what `answer` returns for each goes into them, and what it raises too."""
    try:
        step = next(steps)
        while True:
            try:
                reply = answer(step)
            except BaseException as error:  # noqa: BLE001 - the steps decide, whatever it is
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(steps: Generator[S, Any, T], answer: Callable[[S], Awaitable[Any]]) -> T:
    """Run steps to their end, as `run_sync` does, but await the answers."""
    try:
        step = next(steps)
        while True:
            try:
                reply = await answer(step)
            except BaseException as error:  # noqa: BLE001 - the steps decide, whatever it is
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


def attempted(call: Call) -> Returned | Raised:
    """Do the caller's work, and return what it returned or raised."""
    try:
        return Returned(call.work())
    except BaseException as error:  # noqa: BLE001 - handed to the steps as a value
        return Raised(error)


async def aattempted(call: Call) -> Returned | Raised:
    """Await the caller's work, and return what it returned or raised."""
    try:
        return Returned(await call.work())
    except BaseException as error:  # noqa: BLE001 - handed to the steps as a value
        return Raised(error)


def drive(  # noqa: C901, PLR0912, PLR0915 - one case for each kind of command
    steps: Steps[T],
    store: Store,
    on_error: ErrorListener | None = None,
    *,
    work: Callable[[Call], Any] | None = attempted,
    reply: Any = None,
    failed: BaseException | None = None,
) -> T:
    """Run the steps to their end, and the caller's work with them.

    Without `work` they run up to a `Call`, which is then what is returned; they go on from a `reply` to it,
    or from what has `failed`. Whatever is raised goes into them, also where it was raised here, out of a
    signal handler: they know what is to be undone. So the loop is within the `try`, and the `except` clauses
    call nothing.
    """
    execute: Callable[[Any], Any] = store.execute
    command: Any = None
    while True:
        try:
            while True:
                if failed is None:
                    command = steps.send(reply)
                else:
                    _report(on_error, command, failed)
                    command = steps.throw(failed)
                    failed = None
                kind = type(command)
                if kind not in OUTSIDE:
                    reply = execute(command)
                    if type(reply) is not SETTLED.get(kind):
                        check_reply(store, command, reply)
                elif kind is not Call:
                    reply = _outside(command, store)
                elif work is None:
                    return command  # type: ignore[no-any-return]
                else:
                    reply = work(command)
        except StopIteration as end:
            if steps.gi_frame is None:  # type: ignore[attr-defined]  # they are over
                failed = None  # it has this frame in its traceback
                result: T = end.value
                return result
            failed = end
        except BaseException as error:
            if steps.gi_frame is None:  # type: ignore[attr-defined]
                failed = None
                raise
            failed = error


async def adrive(  # noqa: C901, PLR0912, PLR0915 - one case for each kind of command
    steps: Steps[T],
    store: Store,
    on_error: ErrorListener | None = None,
    *,
    work: Callable[[Call], Awaitable[Any]] | None = aattempted,
    reply: Any = None,
) -> T:
    """Run the steps to their end, and the caller's work with them; without `work`, up to a `Call`.

    A cancellation waits for the command under way, since a write that is torn off may or may not have been
    made. It is delivered where nothing is half done: in place of the caller's work, during a wait, or at the
    end.
    """
    import asyncio

    if reply is None:
        running_loop()  # refuses what is no loop of asyncio, before anything is claimed
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
                        return command  # type: ignore[no-any-return]
                    else:
                        reply = await work(command)
                elif kind in OUTSIDE or (reply := store.at_once(command)) is None:
                    # A task of its own, which a cancellation does not reach.
                    answer = _aoutside(command, store) if kind in OUTSIDE else store.aexecute(command)
                    task = asyncio.get_running_loop().create_task(answer)
                    try:
                        await _Uncancellable(task)
                    except asyncio.CancelledError as error:
                        cancelled = error
                    reply = task.result()
                if type(reply) is not SETTLED.get(kind) and kind not in OUTSIDE:
                    check_reply(store, command, reply)
            except BaseException as error:  # noqa: BLE001 - the steps decide, whatever it is
                _report(on_error, command, error)
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as end:
        if cancelled:
            raise cancelled from None
        result: T = end.value
        return result


class _Uncancellable:
    """What a task waits for while another one executes a command.

    To asyncio this is a future that refuses to be cancelled, so the cancellation is delivered after the
    command has ended. It costs less than `asyncio.shield` in a loop, which makes a future for each wait.
    """

    __slots__ = ("_asyncio_future_blocking", "add_done_callback", "get_loop")

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self._asyncio_future_blocking = True
        self.add_done_callback = task.add_done_callback
        self.get_loop = task.get_loop

    def __await__(self) -> Generator[Self, None, None]:
        yield self

    def cancel(self, msg: object = None) -> bool:
        """Refuse: the task that waits is cancelled as soon as it goes on."""
        return False


def _report(on_error: ErrorListener | None, command: Any, error: BaseException) -> None:
    """Report an error of the store's to whoever drives."""
    if isinstance(error, StoreError) and on_error is not None:
        on_error(error, getattr(command, "key", ""))


def _interrupt(kind: type, cancelled: BaseException) -> Raised:
    if kind is Watch:
        raise cancelled
    return Raised(cancelled, begun=False)


INTERRUPTIBLE = frozenset({Call, Watch})
OUTSIDE = frozenset({Call, Pause, Stash, Fetch, Discard})
MACHINE = Clock()


async def _aoutside(command: Any, store: Store) -> Any:
    """What needs no store, for an event loop."""
    import asyncio

    if type(command) is not Pause:
        return await asyncio.to_thread(_outside, command, store)
    clock: Clock = command.clock or MACHINE
    await clock.wait_async(asyncio.Event(), command.seconds)
    return clock.monotonic()


def _outside(command: Any, store: Store) -> Any:
    """What needs no store: a pause, and the overflow."""
    if type(command) is Pause:
        clock: Clock = command.clock or MACHINE
        clock.wait(SignalSafeEvent(), command.seconds)
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
