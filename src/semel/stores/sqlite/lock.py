"""A fair lock: processes that write to one file follow each other, and none goes first again and again.

SQLite lets whoever asks at the right moment begin. Who finds the file busy asks at ever longer intervals, up
to a tenth of a second, and a process with much to write asks anew at once: the one starves beside the other.
So whoever is next holds a lock on a file beside the database until it has begun, and who has just written
gets behind it. That is a courtesy. It is SQLite's own lock that keeps writes apart, and where this one cannot
be had, as on Windows, everything works, only less evenly.
"""

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from semel.core.threads import SignalSafeEvent

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

# Who has just had a turn may write on for so long before it looks whether somebody is next.
TURN_SECONDS = 0.0005
# So short that nobody notices, so long that it costs nothing.
LOOK_SECONDS = 0.0005
# Who is next for longer than the first figure was stopped or frozen: here the courtesy ends, for as long as
# the second says.
COURTESY_SECONDS = 0.25
RUDE_SECONDS = 5.0

_never = SignalSafeEvent()


class FairLock:
    """The queue of processes before one file; a process stands in it once."""

    def __init__(self, path: str, patience: float) -> None:
        self._database, self._patience = path, patience
        self._lock: int | None = None
        self._mine_until = self._rude_until = 0.0

    def begin(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        """Begin a transaction when it is this process's turn; the connection's own timeout is to be zero."""
        now = time.monotonic()
        if now < self._mine_until:
            try:
                return connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
        self._mine_until = now + TURN_SECONDS
        try:
            self._step_up()
            return self._begin(connection)
        finally:
            self._step_back()

    def _begin(self, connection: sqlite3.Connection) -> sqlite3.Cursor:
        deadline = 0.0
        while True:
            try:
                return connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                deadline = deadline or time.monotonic() + self._patience
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
            _never.wait(LOOK_SECONDS)

    def _step_up(self) -> None:
        """Become the next, where that can be had."""
        deadline = 0.0
        if self._rude_until and time.monotonic() < self._rude_until:
            return
        while True:
            try:
                if self._lock is None:
                    self._lock = self._open()
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                deadline = deadline or time.monotonic() + COURTESY_SECONDS
                if time.monotonic() > deadline:
                    self._rude_until = time.monotonic() + RUDE_SECONDS
                    return
            except (AttributeError, OSError):  # there are no such locks here, or none on this drive
                return
            else:
                return
            _never.wait(LOOK_SECONDS)

    def _open(self) -> int:
        # As SQLite does with its own files beside the database: who may write to the one may to the other.
        mode = Path(self._database).stat().st_mode & 0o777
        return os.open(f"{self._database}-turn", os.O_RDWR | os.O_CREAT, mode)

    def _step_back(self) -> None:
        if self._lock is not None:
            with suppress(AttributeError, OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave the queue."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
