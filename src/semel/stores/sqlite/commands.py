"""Commands on a cursor: in a transaction of the store's, in one of the caller's, or each by itself."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from semel.core.commands import (
    Add,
    Applied,
    Batch,
    Cancelled,
    Found,
    Get,
    Many,
    Page,
    Query,
    Refused,
    Stored,
    Time,
    Transact,
    Watch,
    Write,
)
from semel.core.commands import cursor as next_page
from semel.errors import StoreUnavailable, UsageError
from semel.stores.shared import tables_of
from semel.stores.sqlite.file import (
    BUSY,
    DRIVER_ERRORS,
    SQLiteFile,
    check_index,
    code_of,
    lay_out,
    translated,
)
from semel.stores.sqlite.statements import SQLitePlan, queries
from semel.tables import Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

# For every write up to two expired rows are removed, so that a store that is only ever written stays as small
# as what is alive in it; in batches of this many at least, as looking for them costs a little too.
REAPED_PER_WRITE = 2
REAP_BATCH = 64


class SQLiteCommands:
    """Executes commands; knows the tables, what is to be removed, and whether the time was noted."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.plans: dict[str, SQLitePlan] = {}
        self.due = 0
        """How many expired rows may be removed for what was written."""
        self.noted: float = float("inf")
        """The time noted in the file, which is the end of a second; endless if it has no time of its own."""
        self._execute: dict[type, Callable[[sqlite3.Cursor, Any, float], Any]] = {
            Get: self.get,
            Query: self.query,
            Transact: self.transact,
            Batch: self.batch,
        }

    def execute(self, cursor: sqlite3.Cursor, command: Any, now: float) -> Any:
        """Return the reply to one command. If it raises, it has left nothing behind."""
        return self._execute.get(type(command), self.write)(cursor, command, now)

    def get(self, cursor: sqlite3.Cursor, command: Get | Write, now: float) -> Found:
        """Read one item."""
        plan = self.plans[command.table.name]
        row = cursor.execute(plan.select, plan.place(command)).fetchone()
        return Found(now, None if row is None else plan.item(row))

    def query(self, cursor: sqlite3.Cursor, command: Query, now: float) -> Page:
        """Read a page."""
        plan = self.plans[command.table.name]
        check_index(cursor.connection, plan, command)
        rows = cursor.execute(*plan.page(command, now)).fetchall()
        items = tuple(map(plan.item, rows[: command.limit]))
        index = command.table.index(command.index)
        more = len(rows) > len(items)
        return Page(now, items, next_page(command.table, items[-1], index) if more else None)

    def write(self, cursor: sqlite3.Cursor, command: Write, now: float) -> Applied | Refused:
        """Write by one statement; only if that is refused, read what is there."""
        sql, values = self.plans[command.table.name].write(command, now)
        cursor.execute(sql, values)
        if type(command) is Add:
            row = cursor.fetchone()
            if row is not None:
                self.due += REAPED_PER_WRITE
                return Applied(now, self.plans[command.table.name].item(row))
        elif cursor.rowcount:
            self.due += REAPED_PER_WRITE
            return Applied(now)
        return Refused(now, self.get(cursor, command, now).item)

    def transact(self, cursor: sqlite3.Cursor, command: Transact, now: float) -> Applied | Cancelled:
        """Make all of the writes, or none."""
        with _savepoint(cursor):
            replies = [self.write(cursor, write, now) for write in command.writes]
            if Refused not in map(type, replies):
                return Applied(now)
            # No two of them are on one item: each was refused by what was there before.
            cursor.execute("ROLLBACK TO together")
        return Cancelled(now, tuple(reply if type(reply) is Refused else None for reply in replies))

    def batch(self, cursor: sqlite3.Cursor, command: Batch, now: float) -> Many:
        """Make each of the writes that is not refused."""
        with _savepoint(cursor):
            return Many(tuple([self.write(cursor, write, now) for write in command.writes]))

    def define(self, cursor: sqlite3.Cursor, plans: Iterable[SQLitePlan], _now: float) -> None:
        """Make tables, or what they lack."""
        for plan in plans:
            lay_out(cursor.connection, plan)

    def reap(self, cursor: sqlite3.Cursor, limit: int, now: float) -> int:
        """Remove up to a number of expired rows, and return how many there were."""
        reaped = 0
        for plan in list(self.plans.values()):
            reaped += cursor.execute(plan.reap, (now, limit - reaped)).rowcount
        return reaped

    def do_chores(self, cursor: sqlite3.Cursor, now: float) -> None:
        """Remove what has expired, in proportion to what was written, and note the time."""
        if self.due >= REAP_BATCH:
            limit, self.due = self.due, 0
            self.reap(cursor, limit, now)
        if now >= self.noted:
            cursor.execute(queries()["note_time"], (int(now) + 1,))


@contextmanager
def _savepoint(cursor: sqlite3.Cursor) -> Iterator[None]:
    """All of it or nothing of it, whatever becomes of the transaction around it."""
    cursor.execute("SAVEPOINT together")
    try:
        yield
    except BaseException:
        # Where SQLite has already given up the whole transaction, the error on its way out says so.
        with suppress(sqlite3.Error):
            cursor.execute("ROLLBACK TO together")
            cursor.execute("RELEASE together")
        raise
    cursor.execute("RELEASE together")


class SQLiteWithin:
    """A store whose writes belong to the transaction that is open on a connection. It ends none itself.

    A file has one writer at a time: from the first write on, all others wait for the caller to end the
    transaction, this store's own writes among them, and fail after the timeout of its URL. SQLite reports no
    commit to other connections; who waits for a key finds out at the next look, as for other processes. The
    caller's connection decides how durable the commit is.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        commands: SQLiteCommands,
        learn: Callable[[Table], Any],
        file: SQLiteFile,
    ) -> None:
        self.overflow: Overflow | None = None
        self._connection = connection
        self._commands = commands
        self._learn = learn
        self._file = file
        try:
            self._check_file()
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def execute(self, command: Stored) -> Any:
        """Execute the command and return its reply."""
        try:
            return self._execute(command)
        except DRIVER_ERRORS as error:
            raise self._translated(error) from error

    at_once = execute

    async def aexecute(self, command: Stored) -> Any:
        """Execute the command in the caller's own thread: where it holds the file, nothing has to wait."""
        return self.execute(command)

    def close(self) -> None:
        """Nothing: the connection is the caller's."""

    def _execute(self, command: Stored) -> Any:
        if isinstance(command, Watch):
            raise UsageError("nothing can change while your transaction is open: wait before you begin it")
        if not self._connection.in_transaction:
            raise UsageError(
                "no transaction is open on this connection: begin one, as with "
                "connection.execute('BEGIN IMMEDIATE'), and end it yourself"
            )
        if isinstance(command, Time):
            return Found(self._commands.now(), None)
        for table in tables_of(command):
            self._learn(table)
        with _plainly(self._connection) as cursor:
            if type(command) in (Get, Query):
                return self._commands.execute(cursor, command, self._commands.now())
            cursor.execute(queries()["lock"])
            # Read with the lock held: no writer decides by an earlier time than the one before it.
            now = self._commands.now()
            reply = self._commands.execute(cursor, command, now)
            self._commands.do_chores(cursor, now)
            return reply

    def _check_file(self) -> None:
        """Another name of the same file will not do: SQLite would keep another log for it."""
        if not isinstance(self._connection, sqlite3.Connection):
            raise UsageError(f"this store joins a sqlite3.Connection, not {type(self._connection).__name__}")
        with _plainly(self._connection) as cursor:
            found = cursor.execute("PRAGMA database_list").fetchone()[2]
        if not found or _real(found) != _real(self._file.path):
            raise UsageError(
                f"this connection is to {found or 'a database in memory'}, and the store is in "
                f"{self._file.path}: one transaction is in one file, so connect to that one"
            )

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.ProgrammingError):
            return UsageError(f"your connection cannot be used here: {error}")
        if code_of(error) in BUSY:
            return StoreUnavailable(
                f"{self._file.path}: another transaction has kept it locked, or has written since yours "
                f"began to read; roll back and try again, with BEGIN IMMEDIATE ({error})"
            )
        return translated(error, self._file)


def _real(path: str) -> str:
    return os.path.normcase(os.path.realpath(path))


@contextmanager
def _plainly(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor that returns rows and texts as they are, whatever the caller's connection does."""
    with closing(connection.cursor()) as cursor:
        cursor.row_factory = None
        texts, connection.text_factory = connection.text_factory, str
        try:
            yield cursor
        finally:
            connection.text_factory = texts
