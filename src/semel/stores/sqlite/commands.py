"""Commands on a cursor: in a transaction of the store's, in one of the caller's, or each by itself."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from semel.core import commands
from semel.core.commands import Add, Applied, Batch, Found, Get, Page, Query, Refused, Stored, Transact, Write
from semel.errors import StoreUnavailable, UsageError
from semel.stores.shared import tables_of
from semel.stores.sqlite.file import BUSY, DRIVER_ERRORS, SQLiteFile, check_index, code_of, translated
from semel.stores.sqlite.statements import SQLitePlan, queries
from semel.tables import Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

# For every write up to two expired rows are removed, so that a store that is only ever written stays as small
# as what is alive in it; in batches of this many at least, as looking for them costs a little too.
REAPED_PER_WRITE = 2
REAP_BATCH = 64

WRITES = frozenset(get_args(Write))


class Chore(NamedTuple):
    """A command that only this store knows: what to do in a transaction of its own."""

    do: Callable[[sqlite3.Cursor, float], Any]


class SQLiteCommands:
    """Executes commands; knows the tables, what is to be removed, and the time.

    Where nothing is written, a cursor may be all of the store's readers.
    """

    def __init__(self, passed: Callable[[], float]) -> None:
        # Writes add the two by themselves, as a call would take longer.
        self.passed: Callable[[], float] = passed
        self.began: float = 0.0
        self.noted: float = float("inf")
        """The time noted in the file, which is the end of a second; endless if it has no time of its own."""
        self.plans: dict[str, SQLitePlan] = {}
        self.due: int = 0
        """How many expired rows may be removed for what was written."""
        self.ways: dict[type, Callable[[Any, Any, float], Any]] = {
            **dict.fromkeys(WRITES, self.write),
            **dict.fromkeys((Transact, Batch), self.several),
            Get: self.get,
            Query: self.query,
            Chore: lambda cursor, chore, now: chore.do(cursor, now),
        }
        """How each is executed, on a cursor and at a time. What raises has left nothing behind."""

    def now(self) -> float:
        """Return the time of the file."""
        return self.passed() + self.began

    def get(self, cursor: Any, command: Any, now: float) -> Found:
        """Read one item."""
        plan = self.plans[command.table.name]
        rows = list(cursor.execute(plan.select, plan.place(command)))
        return Found(now, plan.item(rows[0]) if rows else None)

    def query(self, cursor: Any, command: Query, now: float) -> Page:
        """Read a page."""
        plan = self.plans[command.table.name]
        check_index(cursor.execute, plan, command)
        rows = list(cursor.execute(*plan.page(command, now)))
        items = tuple(map(plan.item, rows[: command.limit]))
        index = command.table.index(command.index)
        more = len(rows) > len(items)
        return Page(now, items, commands.cursor(command.table, items[-1], index) if more else None)

    def write(self, cursor: sqlite3.Cursor, command: Write, now: float) -> Applied | Refused:
        """Write by one statement; only if that is refused, read what is there."""
        plan = self.plans[command.table.name]
        sql, values = plan.write(command, now)
        cursor.execute(sql, values)
        row = cursor.fetchone() if type(command) is Add else None
        if row is None and (type(command) is Add or not cursor.rowcount):
            return Refused(now, self.get(cursor, command, now).item)
        self.due += REAPED_PER_WRITE
        return Applied(now, None if row is None else plan.item(row))

    def several(self, cursor: sqlite3.Cursor, command: Transact | Batch, now: float) -> Any:
        """Make all of the writes or none; of a batch each that is not refused, whatever surrounds it."""
        cursor.execute("SAVEPOINT together")
        try:
            replies = tuple([self.write(cursor, write, now) for write in command.writes])
            # No two of them are on one item: each was refused by what was there before.
            refusals = tuple([reply if type(reply) is Refused else None for reply in replies])
            if type(command) is Transact and any(refusals):
                cursor.execute("ROLLBACK TO together")
        except BaseException:
            # Where SQLite has already given up the whole transaction, the error on its way out says so.
            with suppress(sqlite3.Error):
                cursor.execute("ROLLBACK TO together")
                cursor.execute("RELEASE together")
            raise
        cursor.execute("RELEASE together")
        if type(command) is Batch:
            return commands.Many(replies)
        return commands.Cancelled(now, refusals) if any(refusals) else Applied(now)

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
        executor: SQLiteCommands,
        learn: Callable[[Table], Any],
        file: SQLiteFile,
    ) -> None:
        self.overflow: Overflow | None = None
        self._connection, self._commands, self._learn, self._file = connection, executor, learn, file
        with self._translating():
            self._check_file()

    def execute(self, command: Stored) -> Any:
        """Execute the command and return its reply."""
        if isinstance(command, commands.Watch):
            raise UsageError("nothing can change while your transaction is open: wait before you begin it")
        with self._translating():
            if not self._connection.in_transaction:
                raise UsageError(
                    "no transaction is open on this connection: begin one, as with "
                    "connection.execute('BEGIN IMMEDIATE'), and end it yourself"
                )
            if isinstance(command, commands.Time):
                return Found(self._commands.now(), None)
            for table in tables_of(command):
                self._learn(table)
            with _plainly(self._connection) as cursor:
                return self._on(cursor, command)

    at_once = execute

    async def aexecute(self, command: Stored) -> Any:
        """Execute the command in the caller's own thread: where it holds the file, nothing has to wait."""
        return self.execute(command)

    def close(self) -> None:
        """Nothing: the connection is the caller's."""

    def _on(self, cursor: sqlite3.Cursor, command: Any) -> Any:
        way = self._commands.ways[type(command)]
        if type(command) in (Get, Query):
            return way(cursor, command, self._commands.now())
        cursor.execute(queries()["lock"])
        # Read with the lock held: no writer decides by an earlier time than the one before it.
        now = self._commands.now()
        reply = way(cursor, command, now)
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

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise UsageError(f"your connection cannot be used here: {error}") from error
        except DRIVER_ERRORS as error:
            if code_of(error) not in BUSY:
                raise translated(error, self._file) from error
            raise StoreUnavailable(
                f"{self._file.path}: another transaction has kept it locked, or has written since yours "
                f"began to read; roll back and try again, with BEGIN IMMEDIATE ({error})"
            ) from error


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
