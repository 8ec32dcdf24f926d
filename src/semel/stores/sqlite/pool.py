"""The connections that only read: taken from a pool and put back, without a lock."""

import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from semel.core.threads import SignalSafeLock
from semel.errors import StoreClosed
from semel.stores.sqlite.address import SQLiteFile
from semel.stores.sqlite.errors import DRIVER_ERRORS, translated
from semel.stores.sqlite.plan import SQLiteRow

# Idle ones beyond this are closed; each holds two file handles and a cache of its own.
KEPT = 32


class ReaderPool:
    """A pool of cursors. Whoever finds none idle opens another, so nobody waits for anybody."""

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._idle: deque[sqlite3.Cursor] = deque()
        self._kept = 0 if self._closed else KEPT
        # One that a signal has taken from its thread is closed as nobody has it any more.
        self._open: weakref.WeakSet[sqlite3.Connection] = weakref.WeakSet()
        self._opening = SignalSafeLock()

    def row(self, select: str, place: SQLiteRow) -> SQLiteRow | None:
        """The one row of a place. Every replay is this, so it does nothing that it need not do."""
        idle = self._idle
        try:
            reader = idle.pop()
        except IndexError:
            reader = self._another()
        try:
            row: SQLiteRow | None = reader.execute(select, place).fetchone()
        except BaseException as error:
            self._dropped(reader, error)
            raise
        idle.append(reader)
        if len(idle) > self._kept:
            self._trim()
        return row

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection for longer readings."""
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._another()
        try:
            yield reader.connection
        except BaseException as error:
            self._dropped(reader, error)
            raise
        self._idle.append(reader)
        self._trim()

    def close(self) -> None:
        """Close all that are idle; each of the others is closed when it is put back."""
        with self._opening:
            self._closed = True
        self._kept = 0
        self._trim()

    def _another(self) -> sqlite3.Cursor:
        with self._opening:
            if self._closed:
                raise StoreClosed("the store was closed")
            try:
                connection = self._file.reader()
            except sqlite3.Error as error:
                raise translated(error, self._file) from error
            self._open.add(connection)
        return connection.cursor()

    def _trim(self) -> None:
        while len(self._idle) > self._kept:
            try:
                reader = self._idle.pop()
            except IndexError:  # another thread took it
                return
            self._drop(reader)

    def _dropped(self, reader: sqlite3.Cursor, error: BaseException) -> None:
        """After an error the reader is not used again, and the error leaves as one of semel's."""
        self._drop(reader)
        if isinstance(error, DRIVER_ERRORS):
            raise translated(error, self._file) from error

    def _drop(self, reader: sqlite3.Cursor) -> None:
        connection = reader.connection
        connection.close()
        self._open.discard(connection)

    # A fork

    def pause(self, seconds: float) -> None:
        """Close every one, those in use as they come back, and open none until `resume`."""
        self._opening.acquire()
        self._kept = 0
        for _ in range(int(seconds * 1000)):
            self._trim()
            if not self._open:
                return
            threading.Event().wait(0.001)

    def resume(self) -> None:
        """Go on, in the parent."""
        self._kept = 0 if self._closed else KEPT
        self._opening.release()

    def abandon(self) -> set[sqlite3.Connection]:
        """Begin anew, in the child; what is still open is the parent's."""
        inherited = set(self._open)
        self._reset()
        return inherited
