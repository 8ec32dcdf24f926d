"""The store inside a transaction of the caller's: it stands or falls together with his own rows."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from semel.core.commands import Found, Get, Query, Stored, Time, Watch
from semel.errors import StoreUnavailable, UsageError
from semel.stores.shared import tables_of
from semel.stores.sqlite.address import SQLiteFile
from semel.stores.sqlite.errors import BUSY, DRIVER_ERRORS, code_of, translated
from semel.stores.sqlite.interpreter import SQLiteInterpreter
from semel.tables import Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

READS = frozenset({Get, Query})

# Changes nothing, and makes a transaction that has only read so far the one that writes.
TAKE_THE_LOCK = "DELETE FROM semel_meta WHERE 0"


class SQLiteWithin:
    """A store whose writes belong to the transaction that is open on a connection. It ends none itself.

    A file has one writer at a time: from the first write on, everybody else's wait for the caller to end his
    transaction, this store's own among them, and fail after the timeout of its URL. SQLite tells nobody that
    he has committed; who waits for a key finds out when he next looks, as he does for other processes. How
    durable a commit is, his connection decides.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        interpreter: SQLiteInterpreter,
        learn: Callable[[Table], Any],
        now: Callable[[], float],
        file: SQLiteFile,
    ) -> None:
        self.overflow: Overflow | None = None
        self._connection = connection
        self._interpreter = interpreter
        self._learn = learn
        self._now = now
        self._file = file
        try:
            self._check_file()
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        try:
            return self._carry_out(command)
        except DRIVER_ERRORS as error:
            raise self._translated(error) from error

    at_once = execute

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out in the caller's own thread: where it holds the file, nobody waits."""
        return self.execute(command)

    def close(self) -> None:
        """Nothing: the connection is the caller's."""

    def _carry_out(self, command: Stored) -> Any:
        if isinstance(command, Watch):
            raise UsageError("nothing can change while your transaction is open: wait before you begin it")
        if not self._connection.in_transaction:
            raise UsageError(
                "no transaction is open on this connection: begin one, as with "
                "connection.execute('BEGIN IMMEDIATE'), and end it yourself"
            )
        if isinstance(command, Time):
            return Found(self._now(), None)
        for table in tables_of(command):
            self._learn(table)
        with _plainly(self._connection) as cursor:
            if type(command) in READS:
                return self._interpreter.carry_out(cursor, command, self._now())
            cursor.execute(TAKE_THE_LOCK)
            # Read with the lock held, as it is for every other writer: nobody decides by an earlier time than
            # the one before him.
            now = self._now()
            reply = self._interpreter.carry_out(cursor, command, now)
            self._interpreter.finish(cursor, now)
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
    """A cursor that gives rows and texts as they are, however the caller wants his own."""
    with closing(connection.cursor()) as cursor:
        cursor.row_factory = None
        texts, connection.text_factory = connection.text_factory, str
        try:
            yield cursor
        finally:
            connection.text_factory = texts
