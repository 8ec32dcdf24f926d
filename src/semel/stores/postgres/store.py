"""The store in a PostgreSQL database, and the store inside a transaction of the caller's."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from semel.core.clock import Clock, PerLoop, Waiter
from semel.core.commands import Applied, Batch, Found, Many, Stored, Time, Transact, Watch
from semel.core.drive import run_async, run_sync
from semel.core.runtime import FORKING
from semel.errors import StoreClosed, StoreUnavailable, UsageError
from semel.model import TableSize
from semel.stores.postgres.address import STANDBY, PostgresAddress, translating
from semel.stores.postgres.background import BackgroundWorker
from semel.stores.postgres.interpreter import PostgresSteps, RoundTrips, StepsWithin
from semel.stores.postgres.pool import AsyncPostgresPool, PostgresPool
from semel.stores.postgres.schema import PostgresSchema
from semel.stores.postgres.session import aexecute_on, awaiting, blocking, execute_on
from semel.stores.postgres.statements import PostgresPlan
from semel.stores.servertime import ServerTime
from semel.stores.shared import Plans, place_named, wake
from semel.stores.waiting import KeyWatchers
from semel.tables import Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

T = TypeVar("T")
CallersConnection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"

# To ask for a notification is to write. After a shorter wait the work is likely done before that pays.
WORTH_SUBSCRIBING = 0.03
# The replies to a command that wrote something, or may have.
WRITTEN = (Applied, Many)


class Commands:
    """Executes commands by round trips, which a store makes on its own connections or on the caller's."""

    _steps: PostgresSteps
    _time: ServerTime
    _watchers: KeyWatchers

    def execute(self, command: Stored) -> Any:
        """Execute the command, and return its reply."""
        if type(command) is Watch:
            return self._watchers.watch(*self._watched(command, self._run))
        return self.at_once(command) or self._replied(command, self._run(self._steps.of(command)))

    def at_once(self, command: Stored) -> Any | None:
        """Return the time, if the server told it lately; every other reply comes over a network."""
        return self._time.known() if type(command) is Time else None

    async def aexecute(self, command: Stored) -> Any:
        """Execute the command on a connection of the running loop, and return its reply."""
        if type(command) is Watch:
            return await self._watchers.awatch(*self._watched(command, self._arun))
        return self.at_once(command) or self._replied(command, await self._arun(self._steps.of(command)))

    def _run(self, steps: RoundTrips[T]) -> T:
        raise NotImplementedError

    async def _arun(self, steps: RoundTrips[T]) -> T:
        raise NotImplementedError

    def _watched(
        self, command: Watch, run: Callable[[RoundTrips[Found]], Any]
    ) -> tuple[Hashable, float, Callable[[], Any]]:
        """What is waited for, for how long, and how it is read after that."""
        return place_named(command), command.seconds, lambda: run(self._steps.read(command))

    def _replied(self, _command: Any, reply: Any) -> Any:
        self._time.observe(reply)
        return reply


class PostgresStore(Commands):
    """Items in the tables of a database, for every machine that can reach it."""

    def __init__(
        self,
        address: PostgresAddress | str,
        *,
        env: str = "dev",
        clock: Clock | None = None,
        overflow: "Overflow | None" = None,
        tables: Iterable[Table] = (),
    ) -> None:
        self.overflow = overflow
        self._clock = clock or Clock()
        self._address = address if isinstance(address, PostgresAddress) else PostgresAddress.from_url(address)
        self._schema = PostgresSchema(self._address, env, tables, self._clock)
        plans = Plans(lambda table: PostgresPlan(table, self._address.schema))
        self._steps = PostgresSteps(plans.of, self._clock.imposed, self._schema.check_index)
        self._time = ServerTime(self._clock)
        self._connect()
        FORKING.add(self)

    def _connect(self) -> None:
        self._watchers = KeyWatchers(self._clock)
        self._pool = PostgresPool(self._address, self._clock)
        self._pools = PerLoop(self._new_pool, AsyncPostgresPool.leave, AsyncPostgresPool.drop_all)
        self._background = BackgroundWorker(self._address, self._watchers.notify, self.reap)

    def _new_pool(self) -> AsyncPostgresPool:
        if self._pool.closed:
            raise StoreClosed("the store was closed")
        return AsyncPostgresPool(self._address, self._clock)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._address.shown}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "PostgresStore":
        """Return the store at `postgresql://user:password@host:port/database`; the first command connects."""
        return cls(PostgresAddress.from_url(url), env=env, clock=clock)

    def within(self, connection: "CallersConnection") -> "PostgresWithin":
        """Return this store inside the transaction of a connection of the caller's, sync or async.

        What it writes is committed, or rolled back, together with what the caller writes there.
        """
        return PostgresWithin(self, connection)

    def reap(self, limit: int = 500) -> int:
        """Remove up to `limit` expired items now; the background thread does so too, as more is written."""
        return self._run(self._steps.reap([layout.table for layout in self._schema.layouts], limit))

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """Return the sizes of the tables that the database has."""
        return self._run(self._steps.measure(tables, self._address.schema))

    async def leave(self) -> None:
        """Close the connections of the running loop."""
        await self._pools.leave()

    def close(self) -> None:
        """Close every connection; a command in another thread ends with its statement."""
        self._background.stop()
        self._pool.close()
        self._pools.drop_all()
        FORKING.discard(self)

    # Round trips

    def _run(self, steps: RoundTrips[T]) -> T:
        steps = self.checked(steps)
        first = next(steps)  # what is wrong with a command is raised before anything is sent
        waiter = Waiter()
        with waiter.held:
            return blocking(self._pool.run(waiter, steps, first))

    async def _arun(self, steps: RoundTrips[T]) -> T:
        steps = self.checked(steps)
        first = next(steps)
        return await awaiting(self._pools.here().run(None, steps, first))

    def checked(self, steps: RoundTrips[T]) -> RoundTrips[T]:
        """Return the steps, after a check of the database unless it has passed one."""
        return steps if self._schema.passed else self._schema.before(steps)

    # Replies and waiting

    def _replied(self, command: Any, reply: Any) -> Any:
        """Count what was written, and wake the waiters in this process."""
        self._time.observe(reply)
        if type(reply) in WRITTEN:
            several = type(command) in (Transact, Batch)
            self._background.count_write(len(command.writes) if several else 1)
            wake(self._watchers, command, reply)
        return reply

    def _watched(
        self, command: Watch, run: Callable[[RoundTrips[Found]], Any]
    ) -> tuple[Hashable, float, Callable[[], Any]]:
        """A waiter in vain asks to be notified of the next write."""
        self._background.listen()
        end = self._clock.monotonic() + command.seconds / 2

        def look() -> Any:
            in_vain = command.seconds >= WORTH_SUBSCRIBING and self._clock.monotonic() >= end
            return run(self._steps.read(command, in_vain and self._background.listening))

        return place_named(command), command.seconds, look

    # A fork

    def reset_after_fork(self) -> Any:
        """In a forked child: the connections are the parent's, and closing one here would end its session."""
        inherited = self._pool, self._pools, self._background
        self._connect()
        return inherited


class PostgresWithin(Commands):
    """A store whose writes belong to the transaction that is open on a connection. It ends none itself.

    A sync connection is used by `execute`, and an async one by `aexecute`. Nothing takes effect before the
    caller commits, so no reply that is lost leaves a write in doubt.
    """

    def __init__(self, store: PostgresStore, connection: "CallersConnection") -> None:
        self.overflow: Overflow | None = store.overflow
        self._store = store
        self._connection: Any = connection
        self._steps = StepsWithin(store._steps)
        self._time = store._time
        self._watchers = KeyWatchers(store._clock)

    def close(self) -> None:
        """Do nothing: the connection is the caller's."""

    def _run(self, steps: RoundTrips[T]) -> T:
        if not isinstance(self._connection, psycopg.Connection):
            raise UsageError("this connection belongs to asyncio: await the methods of an AsyncLedger on it")
        with self._translating():
            result: T = run_sync(
                self._store.checked(steps), lambda trip: execute_on(self._connection, trip.statements)
            )
        return result

    async def _arun(self, steps: RoundTrips[T]) -> T:
        if not isinstance(self._connection, psycopg.AsyncConnection):
            raise UsageError("this connection is no asyncio's: use the methods of a Ledger on it")
        with self._translating():
            return await run_async(
                self._store.checked(steps), lambda trip: aexecute_on(self._connection, trip.statements)
            )

    def _translating(self) -> AbstractContextManager[None]:
        """Translate the driver's errors in a block; refuse a connection on which nothing can be written."""
        pgconn = self._connection.pgconn
        if pgconn.transaction_status == TransactionStatus.IDLE and self._connection.autocommit:
            raise UsageError(
                "no transaction is open on this connection: begin one, as with connection.transaction()"
            )
        if pgconn.parameter_status(b"in_hot_standby") == b"on":
            raise StoreUnavailable(f"the connection to share: {STANDBY}")
        return translating(self._store._address)
