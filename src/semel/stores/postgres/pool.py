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

from semel.clock import Clock
from semel.errors import StoreClosed, StoreThrottled
from semel.locks import Event, Places, Ticket
from semel.sockets import ear
from semel.stores.postgres.address import Address
from semel.stores.postgres.clerk import Collision, Objection, Rows, Talk, Trip
from semel.stores.postgres.errors import DRIVER_ERRORS, broken, translated, unreachable
from semel.stores.postgres.forms import Statement
from semel.stores.postgres.phrases import Phrases

T = TypeVar("T")
C = TypeVar("C", bound=psycopg.Connection[Any] | psycopg.AsyncConnection[Any])

IDLE = TransactionStatus.IDLE
# The longest pause after a collision; at random, so that the two do not meet again.
PAUSE_SECONDS = 0.05


class Line(Generic[C]):
    """A connection with a cursor, which remembers how values are adapted, and an ear for a farewell."""

    def __init__(self, connection: C, clock: Clock) -> None:
        self.clock = clock
        self.ticket: Ticket | None = None
        self.use(connection)

    def use(self, connection: C) -> None:
        """Go on by another connection."""
        self.connection = connection
        kind: Any = RawCursor if isinstance(connection, psycopg.Connection) else AsyncRawCursor
        self.cursor = kind(connection, row_factory=tuple_row)
        self.phrases: Phrases | None = None
        self._speaks = ear(connection.fileno())

    def usable(self) -> bool:
        """Whether nothing came in while it was idle: a server that ends a session says so, or hangs up."""
        return not self._speaks(0)

    def settled(self) -> bool:
        """Whether the last conversation is over, so that another may begin."""
        return self.connection.pgconn.transaction_status == IDLE

    def fluent(self, sql: bytes) -> Phrases | None:
        """The phrases of the session, where this statement is one and may be said now."""
        phrases = self.phrases
        return phrases if phrases and phrases.familiar(sql) and self.settled() else None

    def drop(self) -> None:
        """Hang up, without waiting for anything."""
        self.connection.pgconn.finish()


class Lines(Generic[C]):
    """The lines that are open, and those of them that are idle."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self.clock = clock
        self.closed = False
        self._idle: deque[Line[C]] = deque()
        # One that a signal has taken from the hands of its thread is hung up as nobody has it any more.
        self._open: weakref.WeakSet[Line[C]] = weakref.WeakSet()

    def drop_all(self) -> None:
        """Hang up on every line, whatever it is doing."""
        self.closed = True
        for line in list(self._open):
            self._drop(line)

    def _waiting(self) -> Line[C] | None:
        """An idle line that still works; one that has gone dead meanwhile is let go, and nobody notices."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if line.usable():
                return line
            self._drop(line)

    def _connected(self, connection: C, line: Line[C] | None = None) -> Line[C]:
        """A line by a new connection, or the one there was with a new connection."""
        if line is None:
            line = Line(connection, self.clock)
        else:
            line.drop()
            line.use(connection)
        line.phrases = Phrases(connection, self.address.prepare_threshold)
        weakref.finalize(line, connection.pgconn.finish).atexit = False
        self._open.add(line)
        return line

    def _put(self, line: Line[C]) -> None:
        if line.settled() and not self.closed:
            self._idle.append(line)
        else:
            self._drop(line)

    def _drop(self, line: Line[C]) -> None:
        line.drop()
        self._open.discard(line)

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed("the store was closed")

    def _refuse(self) -> NoReturn:
        raise StoreThrottled(
            f"all {self.address.pool_size} connections to PostgreSQL at {self.address.place} were in use for "
            f"{self.address.timeout:g} s: raise pool_size in the URL"
        )


class Pool(Lines[psycopg.Connection[Any]]):
    """Lines for threads, each for as long as its holder's ticket is held."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._places = Places(address.pool_size)

    def take(self, ticket: Ticket) -> Line[psycopg.Connection[Any]]:
        """A line that is the caller's until it is given back."""
        if not self._places.enter(ticket, self.address.timeout):
            self._refuse()
        try:
            line = self._waiting() or self._connected(self._connect())
            line.ticket = ticket
        except BaseException:
            self._places.leave(ticket)
            raise
        return line

    def give(self, line: Line[psycopg.Connection[Any]]) -> None:
        """Put a line back; one in the middle of something is let go, and the server undoes what was begun."""
        self._put(line)
        if line.ticket is not None:
            self._places.leave(line.ticket)

    def renew(self, line: Line[psycopg.Connection[Any]]) -> None:
        """Give a line that broke another connection."""
        self._connected(self._connect(), line)

    def close(self) -> None:
        """Hang up on idle lines; the others are let go when they are given back."""
        self.closed = True
        while self._idle:
            self._drop(self._idle.pop())

    def _connect(self) -> psycopg.Connection[Any]:
        self._check_open()
        try:
            return self.address.connect()
        except DRIVER_ERRORS as error:
            raise unreachable(error, self.address) from error


class AsyncPool(Lines[psycopg.AsyncConnection[Any]]):
    """Lines for the tasks of one event loop."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._room = asyncio.Semaphore(address.pool_size)

    async def take(self) -> Line[psycopg.AsyncConnection[Any]]:
        """A line that is the caller's until it is given back."""
        if self._room.locked():
            await self._queue()
        else:
            await self._room.acquire()
        try:
            return self._waiting() or self._connected(await self._connect())
        except BaseException:
            self._room.release()
            raise

    async def _queue(self) -> None:
        try:
            async with asyncio.timeout(self.address.timeout):
                await self._room.acquire()
        except TimeoutError:
            self._refuse()

    def give(self, line: Line[psycopg.AsyncConnection[Any]]) -> None:
        """Put a line back; one in the middle of something is let go, and the server undoes what was begun."""
        self._put(line)
        self._room.release()

    async def renew(self, line: Line[psycopg.AsyncConnection[Any]]) -> None:
        """Give a line that broke another connection."""
        self._connected(await self._connect(), line)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        self._check_open()
        try:
            return await self.address.aconnect()
        except DRIVER_ERRORS as error:
            raise unreachable(error, self.address) from error


# Talk, carried out


def converse(
    line: Line[psycopg.Connection[Any]],
    talk: Talk[T],
    trip: Trip,
    address: Address,
    renew: Callable[[Line[psycopg.Connection[Any]]], None] | None = None,
) -> T:
    """Carry talk out, from its first trip on.

    A reading on a line that turns out to be broken is said once more, where `renew` gives it a connection.
    """
    while True:
        try:
            trip = talk.send(_ask(line, trip.statements))
        except StopIteration as end:
            value: T = end.value
            return value
        except DRIVER_ERRORS as error:
            if renew is not None and not trip.commits and broken(error):
                renew(line)
                renew = None
                continue
            told = translated(error, address, trip)
            if isinstance(told, Collision):
                line.clock.wait(Event(), random.uniform(0, PAUSE_SECONDS))
            elif not isinstance(told, Objection):
                raise told from error
            trip = talk.throw(told)


async def aconverse(
    line: Line[psycopg.AsyncConnection[Any]],
    talk: Talk[T],
    trip: Trip,
    address: Address,
    renew: Callable[[Line[psycopg.AsyncConnection[Any]]], Awaitable[None]] | None = None,
) -> T:
    """Carry talk out in the same way, awaiting the answers."""
    while True:
        try:
            trip = talk.send(await _aask(line, trip.statements))
        except StopIteration as end:
            value: T = end.value
            return value
        except DRIVER_ERRORS as error:
            if renew is not None and not trip.commits and broken(error):
                await renew(line)
                renew = None
                continue
            told = translated(error, address, trip)
            if isinstance(told, Collision):
                await line.clock.wait_async(asyncio.Event(), random.uniform(0, PAUSE_SECONDS))
            elif not isinstance(told, Objection):
                raise told from error
            trip = talk.throw(told)


def _ask(line: Line[psycopg.Connection[Any]], statements: list[Statement]) -> list[Rows]:
    if len(statements) == 1:
        sql, values = statements[0]
        if values is not None and (phrases := line.fluent(sql)):
            return [line.connection.wait(phrases.say(sql, values))]
        line.cursor.execute(sql, values, binary=True)
        return [[] if values is None else line.cursor.fetchall()]
    if line.phrases:
        return line.connection.wait(line.phrases.say_together(statements))
    cursors = [RawCursor(line.connection, row_factory=tuple_row) for _ in statements]
    with line.connection.pipeline():
        for cursor, (sql, values) in zip(cursors, statements, strict=True):
            cursor.execute(sql, values, binary=True)
    return [
        [] if values is None else cursor.fetchall()
        for cursor, (_, values) in zip(cursors, statements, strict=True)
    ]


async def _aask(line: Line[psycopg.AsyncConnection[Any]], statements: list[Statement]) -> list[Rows]:
    if len(statements) == 1:
        sql, values = statements[0]
        if values is not None and (phrases := line.fluent(sql)):
            return [await line.connection.wait(phrases.say(sql, values))]
        await line.cursor.execute(sql, values, binary=True)
        return [[] if values is None else await line.cursor.fetchall()]
    if line.phrases:
        return await line.connection.wait(line.phrases.say_together(statements))
    cursors = [AsyncRawCursor(line.connection, row_factory=tuple_row) for _ in statements]
    async with line.connection.pipeline():
        for cursor, (sql, values) in zip(cursors, statements, strict=True):
            await cursor.execute(sql, values, binary=True)
    return [
        [] if values is None else await cursor.fetchall()
        for cursor, (_, values) in zip(cursors, statements, strict=True)
    ]
