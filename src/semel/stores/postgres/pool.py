"""Connections, kept for the next command: a pool for threads, and one for the tasks of each event loop.

psycopg_pool is not used. It connects in threads of its own, so a caller would learn after a time-out that
there is no connection, and not why; after an outage it waits twice as long before each new try; and a
connection taken from it costs half as much as the statement. Here whoever finds no idle connection connects.
"""

import asyncio
import random
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, TypeVar

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from semel.core.clock import Clock
from semel.core.connections import read_poller
from semel.core.threads import FairSemaphore, SignalSafeEvent, Waiter
from semel.errors import StoreClosed, StoreThrottled
from semel.stores.postgres.address import PostgresAddress
from semel.stores.postgres.errors import DRIVER_ERRORS, broken, translated, unreachable
from semel.stores.postgres.interpreter import ConditionFailed, RoundTrip, RoundTrips, TransactionConflict
from semel.stores.postgres.plan import PostgresRows
from semel.stores.postgres.prepared import PreparedStatements
from semel.stores.postgres.statements import PostgresStatement

T = TypeVar("T")
C = TypeVar("C", bound=psycopg.Connection[Any] | psycopg.AsyncConnection[Any])

IDLE = TransactionStatus.IDLE
# Never prepared by the driver, also on a caller's connection: what it has prepared fails once a column is
# altered, and the caller's transaction with it.
AS_TEXT: dict[str, Any] = {"prepare": False, "binary": True}
# The longest pause after a conflict; at random, so that the two do not meet again.
PAUSE_SECONDS = 0.05


class PostgresSession(Generic[C]):
    """A connection with its cursor and its prepared statements."""

    def __init__(self, connection: C, clock: Clock) -> None:
        self.clock = clock
        self.waiter: Waiter | None = None
        self.use(connection)

    def use(self, connection: C) -> None:
        """Go on with another connection."""
        self.connection = connection
        kind: Any = RawCursor if isinstance(connection, psycopg.Connection) else AsyncRawCursor
        self.cursor: Any = kind(connection, row_factory=tuple_row)
        self.prepared: PreparedStatements | None = None
        self._readable = read_poller(connection.fileno())

    def usable(self) -> bool:
        """Whether nothing came in while it was idle: a server that ends a session says so, or hangs up."""
        return not self._readable(0)

    def idle(self) -> bool:
        """Whether no statement and no transaction is under way."""
        return self.connection.pgconn.transaction_status == IDLE

    def prepared_for(self, sql: bytes) -> PreparedStatements | None:
        """The prepared statements, where this is to be one and may be executed as such now."""
        prepared = self.prepared
        return prepared if prepared and prepared.worthwhile(sql) and self.idle() else None

    def drop(self) -> None:
        """Close it without waiting for anything."""
        self.connection.pgconn.finish()


class SessionPool(Generic[C]):
    """The sessions that are open, and those of them that are idle."""

    def __init__(self, address: PostgresAddress, clock: Clock) -> None:
        self.address = address
        self.clock = clock
        self.closed: bool = False
        self._idle: deque[PostgresSession[C]] = deque()
        # One that a signal has taken from its thread is closed as nobody has it any more.
        self._open: weakref.WeakSet[PostgresSession[C]] = weakref.WeakSet()

    @property
    def has_idle(self) -> bool:
        """Whether a session is there that nobody uses."""
        return bool(self._idle)

    def drop_all(self) -> None:
        """Close every session, whatever it is doing."""
        self.closed = True
        while True:
            try:
                sessions = list(self._open)
                break
            except RuntimeError:  # another thread opened one meanwhile
                continue
        for session in sessions:
            self._drop(session)

    def _take_idle(self) -> PostgresSession[C] | None:
        """An idle session that still works; one that has broken meanwhile is closed, and nobody notices."""
        while (session := self._pop_idle()) is not None:
            if session.usable():
                return session
            self._drop(session)
        return None

    def _pop_idle(self) -> PostgresSession[C] | None:
        try:
            return self._idle.pop()
        except IndexError:  # there is none, or another thread took it
            return None

    def _drop_idle(self) -> None:
        while (session := self._pop_idle()) is not None:
            self._drop(session)

    def _connected(self, connection: C, session: PostgresSession[C] | None = None) -> PostgresSession[C]:
        """A session by a new connection, or the one there was with a new connection."""
        if session is None:
            session = PostgresSession(connection, self.clock)
        else:
            session.drop()
            session.use(connection)
        # What is prepared by way of a pooler may be asked of another session the next time.
        threshold = None if getattr(connection, "pooled", False) else self.address.prepare_threshold
        session.prepared = PreparedStatements(connection, threshold)
        weakref.finalize(session, connection.pgconn.finish).atexit = False
        self._open.add(session)
        return session

    def _put(self, session: PostgresSession[C]) -> None:
        if not session.idle():
            self._drop(session)
            return
        self._idle.append(session)
        if self.closed:  # by another thread, which may have looked before the session was back
            self._drop_idle()

    def _drop(self, session: PostgresSession[C]) -> None:
        session.drop()
        self._open.discard(session)

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed("the store was closed")

    def _refuse(self) -> NoReturn:
        raise StoreThrottled(
            f"all {self.address.pool_size} connections to PostgreSQL at {self.address.place} were in use for "
            f"{self.address.timeout:g} s: raise pool_size in the URL"
        )


class PostgresPool(SessionPool[psycopg.Connection[Any]]):
    """Sessions for threads, each for as long as its waiter is held."""

    def __init__(self, address: PostgresAddress, clock: Clock) -> None:
        super().__init__(address, clock)
        self._semaphore = FairSemaphore(address.pool_size)

    def take(self, waiter: Waiter) -> PostgresSession[psycopg.Connection[Any]]:
        """A session that is the caller's until it is given back."""
        if not self._semaphore.acquire(waiter, self.address.timeout):
            self._refuse()
        try:
            session = self._take_idle() or self._connected(self._connect())
            session.waiter = waiter
        except BaseException:
            self._semaphore.release(waiter)
            raise
        return session

    def give(self, session: PostgresSession[psycopg.Connection[Any]]) -> None:
        """Put a session back; one that is not idle is closed, and the server undoes what it began."""
        self._put(session)
        if session.waiter is not None:
            self._semaphore.release(session.waiter)

    def renew(self, session: PostgresSession[psycopg.Connection[Any]]) -> None:
        """Give a session that broke another connection."""
        self._connected(self._connect(), session)

    def close(self) -> None:
        """Close idle sessions; the others are closed when they are given back."""
        self.closed = True
        self._drop_idle()

    def _connect(self) -> psycopg.Connection[Any]:
        self._check_open()
        try:
            return self.address.connect()
        except DRIVER_ERRORS as error:
            raise unreachable(error, self.address) from error


class AsyncPostgresPool(SessionPool[psycopg.AsyncConnection[Any]]):
    """Sessions for the tasks of one event loop."""

    def __init__(self, address: PostgresAddress, clock: Clock) -> None:
        super().__init__(address, clock)
        self._semaphore = asyncio.Semaphore(address.pool_size)

    async def take(self) -> PostgresSession[psycopg.AsyncConnection[Any]]:
        """A session that is the caller's until it is given back."""
        if self._semaphore.locked():
            await self._queue()
        else:
            await self._semaphore.acquire()
        try:
            return self._take_idle() or self._connected(await self._connect())
        except BaseException:
            self._semaphore.release()
            raise

    async def _queue(self) -> None:
        try:
            async with asyncio.timeout(self.address.timeout):
                await self._semaphore.acquire()
        except TimeoutError:
            self._refuse()

    def give(self, session: PostgresSession[psycopg.AsyncConnection[Any]]) -> None:
        """Put a session back; one that is not idle is closed, and the server undoes what it began."""
        self._put(session)
        self._semaphore.release()

    async def renew(self, session: PostgresSession[psycopg.AsyncConnection[Any]]) -> None:
        """Give a session that broke another connection."""
        self._connected(await self._connect(), session)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        self._check_open()
        try:
            return await self.address.aconnect()
        except DRIVER_ERRORS as error:
            raise unreachable(error, self.address) from error


# RoundTrips, carried out


def run(
    session: PostgresSession[psycopg.Connection[Any]],
    steps: RoundTrips[T],
    address: PostgresAddress,
    renew: Callable[[PostgresSession[psycopg.Connection[Any]]], None] | None = None,
    round_trip: RoundTrip | None = None,
) -> T:
    """Make round trips, from the first one on, which may have been asked for already.

    One that only reads is made once more where its connection turns out to be broken and `renew` gives the
    session another. It is not run by `core.drive.run_sync`, which would cost a replay 1.2 % more processor
    time: it takes a generator around the steps, for what follows from an error.
    """
    round_trip = round_trip or next(steps)
    while True:
        try:
            round_trip = steps.send(_send(session, round_trip.statements))
        except StopIteration as end:
            value: T = end.value
            return value
        except DRIVER_ERRORS as error:
            if renew is not None and not round_trip.commits and broken(error):
                renew(session)
                renew = None
                continue
            failure = translated(error, address, round_trip)
            if isinstance(failure, TransactionConflict):
                session.clock.wait(SignalSafeEvent(), random.uniform(0, PAUSE_SECONDS))
            elif not isinstance(failure, ConditionFailed):
                raise failure from error
            round_trip = steps.throw(failure)


async def arun(
    session: PostgresSession[psycopg.AsyncConnection[Any]],
    steps: RoundTrips[T],
    address: PostgresAddress,
    renew: Callable[[PostgresSession[psycopg.AsyncConnection[Any]]], Awaitable[None]] | None = None,
    round_trip: RoundTrip | None = None,
) -> T:
    """Make round trips as `run` does, awaiting their answers."""
    round_trip = round_trip or next(steps)
    while True:
        try:
            round_trip = steps.send(await _asend(session, round_trip.statements))
        except StopIteration as end:
            value: T = end.value
            return value
        except DRIVER_ERRORS as error:
            if renew is not None and not round_trip.commits and broken(error):
                await renew(session)
                renew = None
                continue
            failure = translated(error, address, round_trip)
            if isinstance(failure, TransactionConflict):
                await session.clock.wait_async(asyncio.Event(), random.uniform(0, PAUSE_SECONDS))
            elif not isinstance(failure, ConditionFailed):
                raise failure from error
            round_trip = steps.throw(failure)


def _send(
    session: PostgresSession[psycopg.Connection[Any]], statements: list[PostgresStatement]
) -> list[PostgresRows]:
    if len(statements) == 1:
        sql, values = statements[0]
        if values is not None and (prepared := session.prepared_for(sql)):
            return [session.connection.wait(prepared.execute(sql, values))]
        session.cursor.execute(sql, values, **AS_TEXT)
        return [[] if values is None else session.cursor.fetchall()]
    if session.prepared:
        return session.connection.wait(session.prepared.execute_together(statements))
    cursors = [RawCursor(session.connection, row_factory=tuple_row) for _ in statements]
    with session.connection.pipeline():
        for cursor, (sql, values) in zip(cursors, statements, strict=True):
            cursor.execute(sql, values, **AS_TEXT)
    return [
        [] if values is None else cursor.fetchall()
        for cursor, (_, values) in zip(cursors, statements, strict=True)
    ]


async def _asend(
    session: PostgresSession[psycopg.AsyncConnection[Any]], statements: list[PostgresStatement]
) -> list[PostgresRows]:
    if len(statements) == 1:
        sql, values = statements[0]
        if values is not None and (prepared := session.prepared_for(sql)):
            return [await session.connection.wait(prepared.execute(sql, values))]
        await session.cursor.execute(sql, values, **AS_TEXT)
        return [[] if values is None else await session.cursor.fetchall()]
    if session.prepared:
        return await session.connection.wait(session.prepared.execute_together(statements))
    cursors = [AsyncRawCursor(session.connection, row_factory=tuple_row) for _ in statements]
    async with session.connection.pipeline():
        for cursor, (sql, values) in zip(cursors, statements, strict=True):
            await cursor.execute(sql, values, **AS_TEXT)
    return [
        [] if values is None else await cursor.fetchall()
        for cursor, (_, values) in zip(cursors, statements, strict=True)
    ]
