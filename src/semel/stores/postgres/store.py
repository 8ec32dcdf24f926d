"""The store in a PostgreSQL database."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from semel.core.clock import Clock
from semel.core.commands import Found, Get, Query, Stored, Time, Watch
from semel.core.connections import PerLoop
from semel.core.running import RENEWING
from semel.core.runtime import FORKING
from semel.core.threads import Waiter
from semel.errors import StoreClosed, StoreUnavailable
from semel.model import TableSize
from semel.stores.postgres.address import PostgresAddress
from semel.stores.postgres.background import BackgroundWorker
from semel.stores.postgres.interpreter import PostgresSteps, RoundTrips
from semel.stores.postgres.plan import PostgresPlan
from semel.stores.postgres.pool import AsyncPostgresPool, PostgresPool, PostgresSession, arun, run
from semel.stores.postgres.schema import SchemaCheck, layouts_of
from semel.stores.postgres.within import PostgresWithin, StepsWithin
from semel.stores.servertime import ServerTime
from semel.stores.shared import Plans, made, place_named
from semel.stores.waiting import KeyWatchers
from semel.tables import Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

T = TypeVar("T")

# To ask for a notification is to write. After a shorter wait the work is likely to be done before it pays.
WORTH_SUBSCRIBING = 0.03

READS = frozenset({Get, Query, Time})


class PostgresStore:
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
        self._layouts = layouts_of(tables)
        self._schema = SchemaCheck(self._layouts, env, self._address, self._clock)
        plans = Plans(lambda table: PostgresPlan(table, self._address.schema))
        self._steps = PostgresSteps(plans.of, self._clock.imposed, self._schema.check_index)
        self._time = ServerTime(self._clock)
        self._connect()
        FORKING.add(self)

    def _connect(self) -> None:
        self._watchers = KeyWatchers(self._clock)
        renewals = self._address.for_renewals()
        self._pool = PostgresPool(self._address, self._clock)
        self._renewals = PostgresPool(renewals, self._clock)
        self._pools = self._per_loop(self._address)
        self._renewals_of_loops = self._per_loop(renewals)
        self._background = BackgroundWorker(self._address, self._clock, self._watchers.notify, self._reap)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._address.shown}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "PostgresStore":
        """`postgresql://user:password@host:port/database`; the first command connects."""
        return cls(PostgresAddress.from_url(url), env=env, clock=clock)

    # The three ways to ask

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if type(command) is Watch:
            return self._watch(command)
        reply = self.at_once(command)
        if reply is None:
            reply = self._run(self._steps.of(command))
            self._answered(command, reply)
        return reply

    def at_once(self, command: Stored) -> Any | None:
        """The time, where it was heard lately; every other answer comes over a network."""
        return self._time.known() if type(command) is Time else None

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out on a connection of the running loop and answer it."""
        if type(command) is Watch:
            return await self._awatch(command)
        reply = self.at_once(command)
        if reply is None:
            reply = await self._arun(self._steps.of(command))
            self._answered(command, reply)
        return reply

    def within(self, connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> PostgresWithin:
        """This store inside the transaction of a connection of the caller's, sync or async.

        What it writes is committed, or rolled back, together with what the caller writes there.
        """
        steps, clock, time = StepsWithin(self._steps), self._clock, self._time
        store = PostgresWithin(connection, steps, self._checking, self._address, clock=clock, time=time)
        store.overflow = self.overflow
        return store

    def reap(self, limit: int = 500) -> int:
        """Remove up to so many expired items now; it is done in the background too, as more is written."""
        return self._run(self._reap(limit))

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The sizes of the tables that the database has."""
        return self._run(self._steps.measure(tables, self._address.schema))

    async def leave(self) -> None:
        """Close the connections of the running loop."""
        await self._pools.leave()
        await self._renewals_of_loops.leave()

    def close(self) -> None:
        """Close every connection; what another thread is about ends with its statement."""
        self._background.stop()
        for pool in (self._pool, self._renewals):
            pool.close()
        for pools in (self._pools, self._renewals_of_loops):
            pools.drop_all()
        FORKING.discard(self)

    def _per_loop(self, address: PostgresAddress) -> PerLoop[AsyncPostgresPool]:
        def new_pool() -> AsyncPostgresPool:
            if self._pool.closed:
                raise StoreClosed("the store was closed")
            return AsyncPostgresPool(address, self._clock)

        return PerLoop(new_pool, _hang_up, AsyncPostgresPool.drop_all)

    # Round trips

    def _run(self, steps: RoundTrips[T]) -> T:
        steps = steps if self._schema.passed else self._checking(steps)
        first = next(steps)  # what is wrong with a command is raised before anything is sent
        waiter = Waiter()
        with waiter.held:
            pool, session = self._take(waiter)
            try:
                return run(session, steps, self._address, pool.renew, first)
            finally:
                pool.give(session)

    def _take(self, waiter: Waiter) -> tuple[PostgresPool, PostgresSession[psycopg.Connection[Any]]]:
        """A session and its pool, which for the renewal of a lease is another one."""
        if RENEWING.get():
            try:
                return self._renewals, self._renewals.take(waiter)
            except StoreUnavailable:  # perhaps the server has all the connections that it may have
                if not self._pool.has_idle:
                    raise
        return self._pool, self._pool.take(waiter)

    async def _arun(self, steps: RoundTrips[T]) -> T:
        steps = steps if self._schema.passed else self._checking(steps)
        first = next(steps)
        pool, session = await self._atake()
        try:
            return await arun(session, steps, self._address, pool.renew, first)
        finally:
            pool.give(session)

    async def _atake(self) -> tuple[AsyncPostgresPool, PostgresSession[psycopg.AsyncConnection[Any]]]:
        """A session and its pool, as `_take` gives them to threads."""
        pool = self._pools.here()
        if RENEWING.get():
            renewals = self._renewals_of_loops.here()
            try:
                return renewals, await renewals.take()
            except StoreUnavailable:
                if not pool.has_idle:
                    raise
        return pool, await pool.take()

    def _checking(self, steps: RoundTrips[T]) -> RoundTrips[T]:
        """Round trips that begin with a check of the database, unless it has passed one."""
        if not self._schema.passed:
            yield from self._schema.look()
        return (yield from steps)

    # Answers, waiting and reaping

    def _watch(self, command: Watch) -> Found:
        self._background.listen()
        look = self._look(command)
        return self._watchers.watch(place_named(command), command.seconds, lambda: self._run(look()))

    async def _awatch(self, command: Watch) -> Found:
        self._background.listen()
        read = self._look(command)

        async def look() -> Found:
            return await self._arun(read())

        return await self._watchers.awatch(place_named(command), command.seconds, look)

    def _look(self, command: Watch) -> Callable[[], RoundTrips[Found]]:
        """How an item is read after the wait: who waited in vain asks to be notified of the next write."""
        end = self._clock.monotonic() + command.seconds / 2

        def look() -> RoundTrips[Found]:
            in_vain = command.seconds >= WORTH_SUBSCRIBING and self._clock.monotonic() >= end
            subscribes = in_vain and self._background.listening
            return self._steps.subscribe(command) if subscribes else self._steps.read(command)

        return look

    def _answered(self, command: Any, reply: Any) -> None:
        """Note the time; wake whoever waits in this process for what was written, and count it."""
        self._time.observe(reply)
        if type(command) in READS:
            return
        for write in made(command, reply):
            self._background.count_write()
            self._watchers.notify(place_named(write))

    def _reap(self, limit: int) -> RoundTrips[int]:
        return self._steps.reap([layout.table for layout in self._layouts], limit)

    # A fork

    def reset_after_fork(self) -> Any:
        """In a forked child: the connections are the parent's, and ending one here would end its session."""
        inherited = self._pool, self._renewals, self._pools, self._renewals_of_loops, self._background
        self._connect()
        return inherited


async def _hang_up(pool: AsyncPostgresPool) -> None:
    pool.drop_all()
