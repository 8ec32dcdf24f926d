"""The store in a PostgreSQL database."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from semel.clock import Clock
from semel.commands import Found, Get, Query, Stored, Time, Watch
from semel.errors import StoreClosed
from semel.locks import Ticket
from semel.loops import PerLoop
from semel.stores.postgres.address import Address
from semel.stores.postgres.clerk import Clerk, Talk
from semel.stores.postgres.guest import Guest
from semel.stores.postgres.housekeeper import Housekeeper
from semel.stores.postgres.pool import AsyncPool, Pool, aconverse, converse
from semel.stores.postgres.schema import inspect, layouts_of, opened
from semel.stores.postgres.within import Within
from semel.stores.servertime import ServerTime
from semel.stores.shared import STORES, made, place_named
from semel.stores.waiting import WaitingRoom
from semel.tables import Table

if TYPE_CHECKING:
    from semel.codecs import Overflow

T = TypeVar("T")

# To ask to be told is to write. After a shorter wait it is likelier that the work is done before that pays.
WORTH_A_MARK = 0.03

READINGS = frozenset({Get, Query, Time})


class PostgresStore:
    """Items in the tables of a database, for every machine that can reach it."""

    def __init__(
        self,
        address: Address | str,
        *,
        env: str = "dev",
        clock: Clock | None = None,
        overflow: "Overflow | None" = None,
        tables: Iterable[Table] = (),
    ) -> None:
        self.overflow = overflow
        self._clock = clock or Clock()
        self._address = address if isinstance(address, Address) else Address.from_url(address)
        self._env = env
        self._layouts = layouts_of(tables)
        self._clerk = Clerk(self._address.schema, self._clock.imposed)
        self._time = ServerTime(self._clock)
        self._checked = False
        self._connect()
        STORES.add(self)

    def _connect(self) -> None:
        self._room = WaitingRoom(self._clock)
        self._pool = Pool(self._address, self._clock)
        self._pools = PerLoop(self._new_pool, _hang_up, AsyncPool.drop_all)
        self._housekeeper = Housekeeper(self._address, self._clock, self._room.ring, self._reaping)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._address.shown}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "PostgresStore":
        """`postgresql://user:password@host:port/database`; the first command connects."""
        return cls(Address.from_url(url), env=env, clock=clock)

    # The three ways to ask

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if type(command) is Watch:
            return self._watch(command)
        reply = self.at_once(command)
        if reply is None:
            reply = self._told(self._clerk.talk(command))
            self._answered(command, reply)
        return reply

    def at_once(self, command: Stored) -> Any | None:
        """The time, where it was heard lately; every other answer comes over a network."""
        return self._time.tell() if type(command) is Time else None

    async def aexecute(self, command: Stored) -> Any:
        """The same as `execute`, awaited."""
        if type(command) is Watch:
            return await self._awatch(command)
        reply = self.at_once(command)
        if reply is None:
            reply = await self._atold(self._clerk.talk(command))
            self._answered(command, reply)
        return reply

    def within(self, connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> Within:
        """This store inside the transaction of a connection of the caller's, sync or async.

        What it writes is committed, or rolled back, together with what the caller writes there.
        """
        clerk, clock, time = Guest(self._clerk), self._clock, self._time
        store = Within(connection, clerk, self._opening, self._address, clock=clock, time=time)
        store.overflow = self.overflow
        return store

    def reap(self, limit: int = 500) -> int:
        """Remove up to so many expired items now; it is done in the background too, as more is written."""
        return self._told(self._reaping(limit))

    async def leave(self) -> None:
        """Close the connections of the running loop."""
        await self._pools.leave()

    def close(self) -> None:
        """Close every connection; what another thread is about ends with its statement."""
        self._housekeeper.stop()
        self._pool.close()
        self._pools.drop_all()
        STORES.discard(self)

    def _new_pool(self) -> AsyncPool:
        if self._pool.closed:
            raise StoreClosed("the store was closed")
        return AsyncPool(self._address, self._clock)

    # Talking to the server

    def _told(self, talk: Talk[T]) -> T:
        talk = talk if self._checked else self._opening(talk)
        trip = next(talk)  # what is wrong with a command is said before anything is sent
        ticket = Ticket()
        with ticket.held:
            line = (pool := self._pool).take(ticket)
            try:
                return converse(line, talk, trip, self._address, pool.renew)
            finally:
                pool.give(line)

    async def _atold(self, talk: Talk[T]) -> T:
        talk = talk if self._checked else self._opening(talk)
        trip = next(talk)
        line = await (pool := self._pools.here()).take()
        try:
            return await aconverse(line, talk, trip, self._address, pool.renew)
        finally:
            pool.give(line)

    def _opening(self, talk: Talk[T]) -> Talk[T]:
        """The talk, after the database was found to be as it should be; which is looked at once."""
        if not self._checked:
            state = yield from inspect(self._layouts, self._address.schema)
            opened(state, self._layouts, self._env, self._address)
            self._checked = True
        return (yield from talk)

    # Answers, waiting and tidying

    def _watch(self, command: Watch) -> Found:
        self._housekeeper.listen()
        look = self._look(command)
        return self._room.watch(place_named(command), command.seconds, lambda: self._told(look()))

    async def _awatch(self, command: Watch) -> Found:
        self._housekeeper.listen()
        read = self._look(command)

        async def look() -> Found:
            return await self._atold(read())

        return await self._room.awatch(place_named(command), command.seconds, look)

    def _look(self, command: Watch) -> Callable[[], Talk[Found]]:
        """How an item is read after the wait: who waited in vain asks to be told of the next write too."""
        end = self._clock.monotonic() + command.seconds / 2

        def look() -> Talk[Found]:
            in_vain = command.seconds >= WORTH_A_MARK and self._clock.monotonic() >= end
            told = in_vain and self._housekeeper.listening
            return self._clerk.mark(command) if told else self._clerk.look(command)

        return look

    def _answered(self, command: Any, reply: Any) -> None:
        """Note the time; of what was written tell whoever waits in this process, and the housekeeper."""
        self._time.hear(reply)
        if type(command) in READINGS:
            return
        for write in made(command, reply):
            self._housekeeper.owe()
            self._room.ring(place_named(write))

    def _reaping(self, limit: int) -> Talk[int]:
        return self._clerk.reap([layout.table for layout in self._layouts], limit)

    # A fork

    def begin_anew(self) -> Any:
        """In a forked child: the connections are the parent's, and ending one here would end its session."""
        inherited = self._pool, self._pools, self._housekeeper
        self._connect()
        return inherited


async def _hang_up(pool: AsyncPool) -> None:
    pool.drop_all()
