"""Sessions with the server: one pool for threads, and one for the tasks of each event loop.

psycopg_pool is not used. It connects in threads of its own, so a caller would learn after a timeout that
there is no connection, and not why; after an outage it waits twice as long before each new try; and a
connection taken from it costs half as much as the statement. Here a caller that finds no idle session
connects.

Statements are executed below the driver's cursor, which decides each time whether to prepare, and sets
itself up for results of every kind: that costs a first call a tenth of its processor time. The driver adapts
the values, loads the rows and waits for the socket here too. On a connection of the caller's, its cursors
execute the statements.
"""

import asyncio
import random
import weakref
from collections import deque
from contextlib import nullcontext, suppress
from hashlib import blake2b
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import (
    DuplicatePreparedStatement,
    FeatureNotSupported,
    InvalidSqlStatementName,
    error_from_result,
)
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row
from psycopg.waiting import WAIT_R, WAIT_RW

from semel.core.clock import Clock
from semel.core.connections import read_poller
from semel.core.threads import FairSemaphore, SignalSafeEvent, Waiter
from semel.errors import SemelError, StoreClosed, StoreThrottled
from semel.stores.postgres.address import (
    DRIVER_ERRORS,
    AnswerTimeout,
    PostgresAddress,
    broken,
    translated,
    unreachable,
)
from semel.stores.postgres.interpreter import ConditionFailed, RoundTrip, RoundTrips, TransactionConflict
from semel.stores.postgres.statements import QUERIES, PostgresRows, PostgresStatement

T = TypeVar("T")
C = TypeVar("C", bound=psycopg.Connection[Any] | psycopg.AsyncConnection[Any])

IDLE, ACTIVE, FAILED = TransactionStatus.IDLE, TransactionStatus.ACTIVE, TransactionStatus.INERROR
GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
SYNC = ExecStatus.PIPELINE_SYNC

ROLLBACK: PostgresStatement = b"ROLLBACK", None
DEALLOCATE: PostgresStatement = b"DEALLOCATE ALL", None
SESSION: PostgresStatement = QUERIES["session"].encode(), None

# Prepared statements take memory in every session of the server. A table has a few; the rest is sent as text.
MOST = 100
# A name that does not stand for its statement: the session was told to forget its names, as by DISCARD ALL,
# or knows the name already, or a column changed its type. The server did nothing.
MISNAMED = (InvalidSqlStatementName, DuplicatePreparedStatement, FeatureNotSupported)
# The driver itself prepares nothing, also on a caller's connection: what it prepared fails once a column is
# altered, and the caller's transaction with it.
CONNECTION: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
AS_TEXT: dict[str, Any] = {"prepare": False, "binary": True}
# How long a statement that was interrupted may take to be cancelled.
CANCEL_SECONDS = 5.0
# The longest pause after a conflict; at random, so that the two do not meet again.
PAUSE_SECONDS = 0.05


class PostgresSession(Generic[C]):
    """A connection of semel's own, and the statements that it has prepared."""

    def __init__(self, connection: C, address: PostgresAddress) -> None:
        self.connection = connection
        self.waiter: Waiter | None = None
        self.pooled: bool = False
        """A pooler stands between: the session may be another one for each transaction."""
        self.names: dict[bytes, bytes] = {}
        """The statements that are prepared, with their names."""
        self._pgconn = connection.pgconn
        self._address = address
        self._transformer = Transformer(connection)
        self._misnamed = False
        self._uses: dict[bytes, int] = {}
        self._results: list[PGresult] = []
        self._ended = False
        self._readable = read_poller(connection.fileno())
        weakref.finalize(self, connection.pgconn.finish).atexit = False

    def inspect(self, found: list[PostgresRows]) -> None:
        """Refuse a standby behind a pooler, and note whether there is a pooler."""
        [[[pid, in_recovery]]] = found
        if in_recovery:
            raise psycopg.errors.ReadOnlySqlTransaction("the server is in recovery")
        self.pooled = pid != self._pgconn.backend_pid

    def usable(self) -> bool:
        """Return whether nothing came in while it was idle: a server that ends a session says so."""
        return not self._readable(0)

    def drop(self) -> None:
        """Close it without waiting for anything."""
        self._pgconn.finish()

    def forget_names(self) -> bool:
        """Prepare everything again after a name failed; False if that was the last thing it did."""
        self.names.clear()
        self._misnamed, before = True, self._misnamed
        return not before

    # Statements

    def ask(self, statements: list[PostgresStatement]) -> list[PostgresRows]:
        """Execute statements on a sync connection in one round trip, and return the rows of each.

        If one fails, none after it is executed. The driver's `wait` would take half as long again.
        """
        awaited = self._send(statements)
        if self._pgconn.flush():  # they are large
            return self.connection.wait(self._receive(len(statements), awaited))  # type: ignore[return-value]
        try:
            while True:
                if not self._readable(self._address.timeout * 1000):
                    raise self._silent()
                self._pgconn.consume_input()
                if self._has_all():
                    return self._rows(len(statements), awaited)
        except DRIVER_ERRORS:
            raise
        except BaseException:  # out of a signal handler: the server would go on waiting, as for a lock
            if self._pgconn.transaction_status == ACTIVE:
                with suppress(*DRIVER_ERRORS):
                    self.connection.cancel_safe(timeout=CANCEL_SECONDS)
            raise

    def execute(self, statements: list[PostgresStatement]) -> PQGen[list[PostgresRows]]:
        """Execute statements as `ask` does, for the driver's `wait`."""
        return self._receive(len(statements), self._send(statements))

    def _receive(self, count: int, awaited: list[bytes | None]) -> PQGen[list[PostgresRows]]:
        silent_at = monotonic() + self._address.timeout
        while True:
            sending = self._pgconn.flush()
            if not sending and self._has_all():
                return self._rows(count, awaited)
            if (yield WAIT_RW if sending else WAIT_R):
                self._pgconn.consume_input()
                silent_at = monotonic() + self._address.timeout
            elif monotonic() >= silent_at:
                raise self._silent()

    def _has_all(self) -> bool:
        """Take the results that came; whether that is all of the round trip."""
        pgconn, results = self._pgconn, self._results
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is not None and result.status == SYNC:
                pgconn.exit_pipeline_mode()
                return True
            if result is None and self._ended:
                raise psycopg.OperationalError("the connection was closed")
            self._ended = result is None
            if result is not None:
                results.append(result)
        return False

    def _silent(self) -> AnswerTimeout:
        return AnswerTimeout(f"no answer within {self._address.timeout:g} s")

    def _send(self, statements: list[PostgresStatement]) -> list[bytes | None]:
        """Send statements; return for each coming result the statement that it prepares, or None for rows."""
        pgconn, transformer = self._pgconn, self._transformer
        if self._misnamed:
            statements = [DEALLOCATE, *statements]
        if pgconn.transaction_status == FAILED:  # what failed within a transaction has left it open
            statements = [ROLLBACK, *statements]
        self._results, self._ended = [], False
        pgconn.enter_pipeline_mode()
        awaited: list[bytes | None] = []
        fresh: dict[bytes, bytes] = {}
        for sql, values in statements:
            given = values or ()
            adapted = transformer.dump_sequence(given, [PyFormat.AUTO] * len(given))
            formats = transformer.formats
            name = self.names.get(sql) or fresh.get(sql)
            if name is None and values is not None and self._is_frequent(sql):
                name = fresh[sql] = _name(sql)
                pgconn.send_prepare(name, sql)
                awaited.append(sql)
            if name is None:
                pgconn.send_query_params(sql, adapted, transformer.types, formats, Format.BINARY)
            else:
                pgconn.send_query_prepared(name, adapted, formats, Format.BINARY)
            awaited.append(None)
        pgconn.pipeline_sync()
        return awaited

    def _is_frequent(self, sql: bytes) -> bool:
        """Whether a statement was executed often enough to be prepared; this counts as once more."""
        threshold, uses = self._address.prepare_threshold, self._uses.get(sql, 0)
        if threshold is None or self.pooled or self._misnamed or (not uses and len(self._uses) >= MOST):
            return False
        self._uses[sql] = uses + 1
        return uses >= threshold

    def _rows(self, count: int, awaited: list[bytes | None]) -> list[PostgresRows]:
        """Return the rows of the last `count` statements: others may have been sent before them."""
        rows: list[PostgresRows] = []
        for place, result in enumerate(self._results):  # a commit that fails is one result more
            if result.status not in GOOD:
                raise error_from_result(result)
            prepared = awaited[place]
            if prepared is not None:
                self.names[prepared] = _name(prepared)
            else:
                self._transformer.set_pgresult(result)
                rows.append(self._transformer.load_rows(0, result.ntuples, tuple))
        self._misnamed = False
        return rows[len(rows) - count :]


def _name(sql: bytes) -> bytes:
    """A name that is never another statement's: a session that knows it has prepared the same."""
    return b"semel_" + blake2b(sql, digest_size=16).hexdigest().encode()


SyncSession: TypeAlias = PostgresSession[psycopg.Connection[Any]]
AsyncSession: TypeAlias = PostgresSession[psycopg.AsyncConnection[Any]]


# The pools


class SessionPool(Generic[C]):
    """The sessions that are open, and those of them that are idle.

    `change` alone changes what is idle. It makes no I/O, but returns what is left to do, so threads that take
    and return sessions at the same moment, and a signal between any two lines, find it consistent.
    """

    def __init__(self, address: PostgresAddress, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self.closed: bool = False
        self._idle: deque[PostgresSession[C]] = deque()
        # If a signal takes a session from its thread, the session is closed because nothing refers to it.
        self._open: weakref.WeakSet[PostgresSession[C]] = weakref.WeakSet()

    @property
    def has_idle(self) -> bool:
        """Whether a session is idle."""
        return bool(self._idle)

    def change(
        self, *, taking: bool = False, returned: PostgresSession[C] | None = None, closing: bool = False
    ) -> tuple[PostgresSession[C] | None, list[PostgresSession[C]]]:
        """Take, return or close sessions; return one that may be used, and those that must be dropped."""
        if closing:
            self.closed = True
        useless: list[PostgresSession[C]] = []
        if returned is not None:
            idle = returned.connection.pgconn.transaction_status == IDLE
            (self._idle if idle else useless).append(returned)
        # Another thread may have closed the pool, and looked before the session was back.
        while taking or self.closed:
            try:
                session = self._idle.pop()
            except IndexError:  # there is none, or another thread took it
                break
            if not self.closed and session.usable():
                return session, useless
            useless.append(session)
        return None, useless

    def close(self) -> None:
        """Close idle sessions; the others are closed when they are returned."""
        for session in self.change(closing=True)[1]:
            session.drop()

    def drop_all(self) -> None:
        """Close every session, whatever it is doing."""
        self.close()
        while True:
            try:
                sessions = list(self._open)
                break
            except RuntimeError:  # another thread opened one in the meantime
                continue
        for session in sessions:
            session.drop()

    def _keep(self, session: PostgresSession[C], waiter: Waiter | None) -> PostgresSession[C]:
        session.waiter = waiter
        self._open.add(session)
        return session

    def _check_open(self) -> None:
        if self.closed:
            raise StoreClosed("the store was closed")

    def _failure(self, error: Exception, round_trip: RoundTrip) -> SemelError:
        """Return the error that the steps handle; raise any other."""
        failure = translated(error, self.address, round_trip)
        if not isinstance(failure, TransactionConflict | ConditionFailed):
            raise failure from error
        return failure

    def _exhausted(self) -> StoreThrottled:
        return StoreThrottled(
            f"all {self.address.pool_size} connections to PostgreSQL at {self.address.place} were in use for "
            f"{self.address.timeout:g} s: raise pool_size in the URL"
        )


class PostgresPool(SessionPool[psycopg.Connection[Any]]):
    """Sessions for threads, each for as long as its waiter is held."""

    def __init__(self, address: PostgresAddress, clock: Clock) -> None:
        super().__init__(address, clock)
        self._semaphore = FairSemaphore(address.pool_size)

    def take(self, waiter: Waiter) -> SyncSession:
        """Return a session that is the caller's until `give`."""
        if not self._semaphore.acquire(waiter, self.address.timeout):
            raise self._exhausted()
        try:
            session, useless = self.change(taking=True)
            for each in useless:
                each.drop()
            session = session or self._opened()
            session.waiter = waiter
        except BaseException:
            self._semaphore.release(waiter)
            raise
        return session

    def give(self, session: SyncSession) -> None:
        """Return a session. One that is not idle is closed, and the server undoes what it began."""
        for each in self.change(returned=session)[1]:
            each.drop()
        if session.waiter is not None:
            self._semaphore.release(session.waiter)

    def run(self, session: SyncSession, steps: RoundTrips[T], round_trip: RoundTrip) -> T:
        """Make round trips, beginning with this one, and return the session to the pool.

        One that only reads is made once more, on another connection, if its connection is found broken.
        """
        readable_again = True
        try:
            while True:
                try:
                    round_trip = steps.send(session.ask(round_trip.statements))
                except StopIteration as end:
                    value: T = end.value
                    return value
                except DRIVER_ERRORS as error:
                    if isinstance(error, MISNAMED) and session.forget_names():
                        continue
                    if readable_again and not round_trip.commits and broken(error):
                        session.drop()
                        session, readable_again = self._opened(session.waiter), False
                        continue
                    failure = self._failure(error, round_trip)
                    if type(failure) is TransactionConflict:
                        self._clock.wait(SignalSafeEvent(), random.uniform(0, PAUSE_SECONDS))
                    round_trip = steps.throw(failure)
        finally:
            self.give(session)

    def _opened(self, waiter: Waiter | None = None) -> SyncSession:
        self._check_open()
        return self._keep(open_session(self.address), waiter)


class AsyncPostgresPool(SessionPool[psycopg.AsyncConnection[Any]]):
    """Sessions for the tasks of one event loop."""

    def __init__(self, address: PostgresAddress, clock: Clock) -> None:
        super().__init__(address, clock)
        self._semaphore = asyncio.Semaphore(address.pool_size)

    async def take(self) -> AsyncSession:
        """Return a session that is the caller's until `give`."""
        try:
            async with asyncio.timeout(self.address.timeout if self._semaphore.locked() else None):
                await self._semaphore.acquire()
        except TimeoutError:
            raise self._exhausted() from None
        try:
            session, useless = self.change(taking=True)
            for each in useless:
                each.drop()
            session = session or await self._opened()
        except BaseException:
            self._semaphore.release()
            raise
        return session

    def give(self, session: AsyncSession) -> None:
        """Return a session. One that is not idle is closed, and the server undoes what it began."""
        for each in self.change(returned=session)[1]:
            each.drop()
        self._semaphore.release()

    async def run(self, session: AsyncSession, steps: RoundTrips[T], round_trip: RoundTrip) -> T:
        """Make round trips, beginning with this one, and return the session to the pool."""
        readable_again = True
        try:
            while True:
                try:
                    rows = await session.connection.wait(session.execute(round_trip.statements))
                    round_trip = steps.send(rows)
                except StopIteration as end:
                    value: T = end.value
                    return value
                except DRIVER_ERRORS as error:
                    if isinstance(error, MISNAMED) and session.forget_names():
                        continue
                    if readable_again and not round_trip.commits and broken(error):
                        session.drop()
                        session, readable_again = await self._opened(session.waiter), False
                        continue
                    failure = self._failure(error, round_trip)
                    if type(failure) is TransactionConflict:
                        await self._clock.wait_async(asyncio.Event(), random.uniform(0, PAUSE_SECONDS))
                    round_trip = steps.throw(failure)
        finally:
            self.give(session)

    async def _opened(self, waiter: Waiter | None = None) -> AsyncSession:
        self._check_open()
        return self._keep(await aopen_session(self.address), waiter)


def open_session(address: PostgresAddress) -> SyncSession:
    """Connect to the server, where every statement is a transaction of its own."""
    try:
        session = PostgresSession(psycopg.Connection.connect(address.conninfo, **CONNECTION), address)
        session.inspect(session.ask([SESSION]))
    except DRIVER_ERRORS as error:
        raise unreachable(error, address) from error
    return session


async def aopen_session(address: PostgresAddress) -> AsyncSession:
    """Connect to the server for the running loop, as `open_session` does."""
    try:
        connection = await psycopg.AsyncConnection.connect(address.conninfo, **CONNECTION)
        session = PostgresSession(connection, address)
        session.inspect(await connection.wait(session.execute([SESSION])))
    except DRIVER_ERRORS as error:
        raise unreachable(error, address) from error
    return session


# On a connection of the caller's


def execute_on(
    connection: "psycopg.Connection[Any]", statements: list[PostgresStatement]
) -> list[PostgresRows]:
    """Execute statements by the driver's cursors, in one round trip."""
    cursors = [RawCursor(connection, row_factory=tuple_row) for _ in statements]
    with connection.pipeline() if len(cursors) > 1 else nullcontext():
        for cursor, (sql, values) in zip(cursors, statements, strict=True):
            cursor.execute(sql, values, **AS_TEXT)
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


async def aexecute_on(
    connection: "psycopg.AsyncConnection[Any]", statements: list[PostgresStatement]
) -> list[PostgresRows]:
    """Execute statements as `execute_on` does, on an async connection."""
    cursors = [AsyncRawCursor(connection, row_factory=tuple_row) for _ in statements]
    async with connection.pipeline() if len(cursors) > 1 else nullcontext():
        for cursor, (sql, values) in zip(cursors, statements, strict=True):
            await cursor.execute(sql, values, **AS_TEXT)
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]
