"""A session with the server: its connection, and the statements that it has prepared.

Statements are executed below the driver's cursor, which decides each time whether to prepare, and sets
itself up for results of every kind: that costs a first call a tenth of its processor time.

What waits is a generator, for threads and event loops alike. It yields what a sync session has waited for,
and what an async one has still to await.
"""

import asyncio
import selectors
import socket
import weakref
from collections.abc import Generator, Sequence
from contextlib import nullcontext, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import (
    DuplicatePreparedStatement,
    FeatureNotSupported,
    InvalidSqlStatementName,
    error_from_result,
)
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from semel.core.clock import read_poller
from semel.core.drive import run_async
from semel.stores.postgres.address import DRIVER_ERRORS, AnswerTimeout, PostgresAddress, unreachable
from semel.stores.postgres.statements import QUERIES, PostgresRows, PostgresStatement

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

T = TypeVar("T")
Waits: TypeAlias = Generator[Any, Any, T]

IDLE, ACTIVE, FAILED = TransactionStatus.IDLE, TransactionStatus.ACTIVE, TransactionStatus.INERROR
NO_PIPELINE = PipelineStatus.OFF
GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
SYNC = ExecStatus.PIPELINE_SYNC
AUTO = PyFormat.AUTO
# What comes for one statement that is prepared.
ROWS: list[bytes | None] = [None]

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


def blocking(steps: Waits[T]) -> T:
    """Run steps that have waited for what they yield."""
    reply = None
    try:
        while True:
            reply = steps.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()  # a signal may have come in between


async def awaiting(steps: Waits[T]) -> T:
    """Run steps, and await what they yield."""
    return await run_async(steps, lambda awaitable: awaitable)


class PostgresSession:
    """A connection of semel's own, used by one thread or task at a time."""

    driver: ClassVar[Any]
    awaits: ClassVar[bool] = False

    def __init__(self, connection: Any, address: PostgresAddress) -> None:
        self.connection = connection
        self.pgconn: PGconn = connection.pgconn
        self.pooled: bool = False
        """A pooler stands between: the session may be another one for each transaction."""
        self.names: dict[bytes, bytes] = {}
        """The statements that are prepared, with their names."""
        self._address = address
        self._fileno: int = connection.fileno()
        self._transformer = Transformer(connection)
        self._misnamed = False
        self._uses: dict[bytes, int] = {}
        self._results: list[PGresult] = []
        self._ended = False
        self._pipelined = False
        self._readable = read_poller(self._fileno)
        weakref.finalize(self, connection.pgconn.finish).atexit = False

    @classmethod
    def open(cls, address: PostgresAddress) -> "Waits[PostgresSession]":
        """Connect to the server, where every statement is a transaction of its own.

        A standby is refused, also behind a pooler.
        """
        try:
            session = cls((yield cls.driver.connect(address.conninfo, **CONNECTION)), address)
            [[[pid, in_recovery]]] = yield from session.execute([SESSION])
            if in_recovery:
                raise psycopg.errors.ReadOnlySqlTransaction("the server is in recovery")
        except DRIVER_ERRORS as error:
            raise unreachable(error, address) from error
        session.pooled = pid != session.pgconn.backend_pid
        return session

    def usable(self) -> bool:
        """Return whether nothing came in while it was idle: a server that ends a session says so."""
        return not self._readable(0)

    def drop(self) -> None:
        """Close it without waiting for anything."""
        self.pgconn.finish()

    def forget_names(self) -> bool:
        """Prepare everything again after a name failed; False if that was the last thing it did."""
        self.names.clear()
        self._misnamed, before = True, self._misnamed
        return not before

    def execute(self, statements: list[PostgresStatement]) -> Waits[list[PostgresRows]]:
        """Execute statements in one round trip, and return the rows of each.

        If one fails, none after it is executed.
        """
        pgconn = self.pgconn
        try:
            prepares = self._send(statements)
            while True:
                sending = pgconn.flush()
                ready = self._wait(sending)
                if self.awaits:  # else it has waited: not to yield is quicker
                    ready = yield ready
                if not ready:
                    raise AnswerTimeout(f"no answer within {self._address.timeout:g} s")
                pgconn.consume_input()
                if not sending and self._has_all():
                    rows = self._rows(prepares)  # of others that were sent before them too
                    return rows[len(rows) - len(statements) :]
        except (*DRIVER_ERRORS, GeneratorExit):
            raise
        except BaseException:  # out of a signal handler: the server would go on waiting, as for a lock
            if pgconn.transaction_status == ACTIVE:
                with suppress(*DRIVER_ERRORS):
                    yield self.connection.cancel_safe(timeout=CANCEL_SECONDS)
            raise

    def _wait(self, sending: int) -> Any:
        """Wait until something is to be read, or can be sent; False if the server is silent for too long."""
        raise NotImplementedError

    def _send(self, statements: list[PostgresStatement]) -> list[bytes | None]:
        """Send statements; return for each coming result the statement that it prepares, or None for rows."""
        pgconn = self.pgconn
        if self._misnamed:
            statements = [DEALLOCATE, *statements]
        if pgconn.transaction_status == FAILED:  # what failed within a transaction has left it open
            statements = [ROLLBACK, *statements]
        self._results, self._ended = [], False
        self._pipelined = len(statements) != 1 or statements[0][0] not in self.names
        if not self._pipelined:
            [(sql, values)] = statements
            self._send_values(sql, values or (), self.names[sql])
            return ROWS
        pgconn.enter_pipeline_mode()
        prepares: list[bytes | None] = []
        for sql, values in statements:
            name = self.names.get(sql)
            if name is None and values is not None and (sql in prepares or self._is_frequent(sql)):
                name = _name(sql)
                if sql not in prepares:
                    pgconn.send_prepare(name, sql)
                    prepares.append(sql)
            self._send_values(sql, values or (), name)
            prepares.append(None)
        pgconn.pipeline_sync()
        return prepares

    def _send_values(self, sql: bytes, values: Sequence[Any], name: bytes | None) -> None:
        transformer = self._transformer
        adapted = transformer.dump_sequence(values, [AUTO] * len(values))
        if name is None:
            self.pgconn.send_query_params(sql, adapted, transformer.types, transformer.formats, Format.BINARY)
        else:
            self.pgconn.send_query_prepared(name, adapted, transformer.formats, Format.BINARY)

    def _has_all(self) -> bool:
        """Take the results that came; whether that is all of the round trip."""
        pgconn, results = self.pgconn, self._results
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if self._ended or not (self._pipelined or results):
                    raise psycopg.OperationalError("the connection was closed")
                if not self._pipelined:
                    return True
            elif result.status == SYNC:
                pgconn.exit_pipeline_mode()
                return True
            else:
                results.append(result)
            self._ended = result is None
        return False

    def _is_frequent(self, sql: bytes) -> bool:
        """Whether a statement was executed often enough to be prepared; this counts as once more."""
        threshold, uses = self._address.prepare_threshold, self._uses.get(sql, 0)
        if threshold is None or self.pooled or self._misnamed or (not uses and len(self._uses) >= MOST):
            return False
        self._uses[sql] = uses + 1
        return uses >= threshold

    def _rows(self, prepares: list[bytes | None]) -> list[PostgresRows]:
        rows: list[PostgresRows] = []
        for place, result in enumerate(self._results):  # a commit that fails is one result more
            if result.status not in GOOD:
                raise error_from_result(result)
            prepared = prepares[place]
            if prepared is not None:
                self.names[prepared] = _name(prepared)
            else:
                self._transformer.set_pgresult(result)
                rows.append(self._transformer.load_rows(0, result.ntuples, tuple))
        self._misnamed = False
        return rows


def _name(sql: bytes) -> bytes:
    """A name that is never another statement's: a session that knows it has prepared the same."""
    return b"semel_" + blake2b(sql, digest_size=16).hexdigest().encode()


class SyncSession(PostgresSession):
    """A session that blocks its thread."""

    driver = psycopg.Connection

    def _wait(self, sending: int) -> Any:
        if not sending:
            return self._readable(self._address.timeout * 1000)
        with selectors.DefaultSelector() as selector:
            selector.register(self._fileno, selectors.EVENT_READ | selectors.EVENT_WRITE)
            return selector.select(self._address.timeout)

    def notifications(self) -> list[bytes]:
        """Wait for notifications, and return their payloads."""
        self._wait(0)
        self.pgconn.consume_input()
        return [notification.extra for notification in iter(self.pgconn.notifies, None)]

    def hang_up(self) -> None:
        """End the connection under the thread that waits for it."""
        with socket.fromfd(self._fileno, socket.AF_INET, socket.SOCK_STREAM) as twin:
            twin.shutdown(socket.SHUT_RDWR)


class AsyncSession(PostgresSession):
    """A session of one event loop; any thread may drop it."""

    driver = psycopg.AsyncConnection
    awaits = True
    _ready: "asyncio.Future[bool] | None" = None

    def drop(self) -> None:
        """Close it, and wake the task that waits for it."""
        super().drop()
        if (ready := self._ready) is not None:
            with suppress(RuntimeError):  # its loop was closed
                ready.get_loop().call_soon_threadsafe(_resolve, ready, True)

    async def _wait(self, sending: int) -> bool:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bool] = loop.create_future()
        self._ready = ready
        timer = loop.call_later(self._address.timeout, _resolve, ready, False)
        loop.add_reader(self._fileno, _resolve, ready, True)
        if sending:
            loop.add_writer(self._fileno, _resolve, ready, True)
        try:
            return await ready
        finally:
            self._ready = None
            timer.cancel()
            loop.remove_reader(self._fileno)
            if sending:
                loop.remove_writer(self._fileno)


def _resolve(ready: "asyncio.Future[bool]", value: bool) -> None:
    if not ready.done():
        ready.set_result(value)


# On a connection of the caller's


def execute_on(connection: Any, statements: list[PostgresStatement]) -> list[PostgresRows]:
    """Execute statements by the driver's cursors, in one round trip."""
    cursors = [RawCursor(connection, row_factory=tuple_row) for _ in statements]
    with connection.pipeline() if len(cursors) > 1 else nullcontext():
        for cursor, (sql, values) in zip(cursors, statements, strict=True):
            cursor.execute(sql, values, **AS_TEXT)
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


async def aexecute_on(connection: Any, statements: list[PostgresStatement]) -> list[PostgresRows]:
    """Execute statements as `execute_on` does, on an async connection."""
    cursors = [AsyncRawCursor(connection, row_factory=tuple_row) for _ in statements]
    async with connection.pipeline() if len(cursors) > 1 else nullcontext():
        for cursor, (sql, values) in zip(cursors, statements, strict=True):
            await cursor.execute(sql, values, **AS_TEXT)
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]
