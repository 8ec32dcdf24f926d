"""The file: its URL and connections, what its errors mean, its schema, and its time.

The time is one that all processes of the machine share, and that no change of its clock moves. What the clock
said when the file was first opened since the machine started is written into the file; from then on only what
has passed is counted. So a clock that is set forward ends no lease early. The file also knows the second in
which it was last written, and never starts below it: a clock that is set back revives nothing.
"""

import os
import shlex
import shutil
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec

from semel import errors
from semel.core.clock import ANSWER_SECONDS, Clock, SignalSafeLock, timeout_of
from semel.core.commands import Query
from semel.core.runtime import masked
from semel.stores.sql import quoted
from semel.stores.sqlite.statements import Row, SQLitePlan, queries
from semel.tables import optional_index

# With less room than this on its disk a file is as good as full: a minute of writes takes more.
LEAST_ROOM = 4 * 1024 * 1024
# After a burst the log is cut back to this; in between it is used again, which is faster than growing it.
LOG_BYTES = 16 * 1024 * 1024
OURS_ALONE = 0o600
# `RETURNING` came with this version.
OLDEST_SQLITE = (3, 35)

# How to execute a statement and have its rows: on a connection, on a cursor, or by the readers.
Execute: TypeAlias = Callable[..., Iterable[Row]]

FORM = "sqlite:///relative/path.db or sqlite:////absolute/path.db; a store to throw away is memory:"


class SQLiteConnection(sqlite3.Connection):
    """A connection of sqlite3's that can be referred to weakly."""


def make_private(path: str | Path) -> None:
    """Make a file where there is none, for nobody else to read."""
    with suppress(OSError):  # it is there, or opening it reports what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OURS_ALONE))


class SQLiteFile(msgspec.Struct, frozen=True):
    """Where the file is, how durable its writes are, and how long to wait for another transaction."""

    factory: ClassVar[type[sqlite3.Connection]] = SQLiteConnection

    path: str
    synchronous: str = "full"
    timeout: float = ANSWER_SECONDS

    @classmethod
    def from_url(cls, url: str) -> "SQLiteFile":
        """Parse a URL such as `sqlite:///semel.db?synchronous=normal`."""
        address, _, query = url.partition("?")
        name = unquote(address.removeprefix("sqlite:///"))
        if not address.startswith("sqlite:///") or name in ("", "/", ":memory:"):
            raise errors.InvalidOption(f"{masked(url)!r} names no file: write {FORM}")
        options = dict(parse_qsl(query, keep_blank_values=True))
        synchronous = options.pop("synchronous", "full")
        timeout = timeout_of(options.pop("timeout", None))
        if options or synchronous not in ("full", "normal"):
            known = "synchronous=full, synchronous=normal and timeout=10"
            raise errors.InvalidOption(f"{masked(url)!r}: the options are {known}")
        return cls(str(Path(name).absolute()), synchronous, timeout)

    def make(self) -> None:
        """Make the file where there is none, for nobody else to read; those beside it have the same mode."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise errors.StoreError(f"SQLite {sqlite3.sqlite_version} is too old: semel needs 3.35 or later")
        self.check()
        make_private(self.path)

    def check(self) -> None:
        """Report a missing folder, for which SQLite has no clear words."""
        folder = Path(self.path).parent
        if not folder.is_dir():
            raise errors.StoreUnavailable(f"{self.path} cannot be made: there is no folder {folder}")

    def identity(self) -> tuple[int, int] | None:
        """Return which file stands there now; None where there is none."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - before many writes, and Path takes three times as long
            return found.st_dev, found.st_ino
        except OSError:
            return None

    def room(self) -> int:
        """Return how many bytes are left on its disk."""
        return shutil.disk_usage(Path(self.path).parent).free

    def reader(self) -> sqlite3.Connection:
        """Open a connection that only reads."""
        return self._connect("query_only = 1")

    def writer(self) -> sqlite3.Connection:
        """Open a connection that writes."""
        return self._connect(
            # In it readers and a writer do not wait for each other. Of two who change to it one tries again.
            "journal_mode = WAL",
            f"synchronous = {self.synchronous}",
            f"journal_size_limit = {LOG_BYTES}",
            # What is deleted is gone from the file too; only some builds of SQLite see to that by themselves.
            "secure_delete = ON",
            # Pages that a transaction may have to undo stay in memory, and go to no file when they are many.
            "temp_store = MEMORY",
        )

    def _connect(self, *settings: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, self.timeout, isolation_level=None, check_same_thread=False, factory=self.factory
        )
        try:
            for setting in settings:
                connection.execute(f"PRAGMA {setting}")
        except BaseException:  # a file that is no database is only found out here
            connection.close()
            raise
        return connection


# What SQLite's errors mean: each is translated once, here

LOCKED = (
    "another transaction has kept it locked for {0:g} s: is one left open? What belongs into one of yours is "
    "written by within(connection); timeout= in the URL says how long to wait"
)
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
ADVICE = {
    **dict.fromkeys(BUSY, LOCKED),
    sqlite3.SQLITE_FULL: "there is no room left on its disk",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: see to the folder and its permissions",
    sqlite3.SQLITE_READONLY: "it may not be written: see to the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "it may not be opened: see to the permissions of the file and its folder",
    sqlite3.SQLITE_IOERR: "its disk reports an error",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_PROTOCOL: "its locks cannot be had: it must not lie on a network drive",
}
DAMAGE = {
    sqlite3.SQLITE_CORRUPT: "it is damaged: restore it from a backup, or save what can be with `.recover`",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database",
}
BAD_VALUE = frozenset({sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT})
# What Python's module raises: for texts without a UTF-8 form and for huge integers, errors of Python's own.
DRIVER_ERRORS = (sqlite3.Error, UnicodeEncodeError, OverflowError)

# A commit that failed in one of these ways was certainly not made: its last page was never written.
NOT_COMMITTED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL})
# A write that is a transaction by itself, and failed in one of these ways, may have failed after its commit.
DOUBTFUL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})


def code_of(error: Exception) -> int | None:
    """Return SQLite's own code for an error; None where Python's module raised it by itself."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def translated(error: Exception, file: SQLiteFile, doubtful: bool = False) -> Exception:
    """Return a driver's error as one of semel's, and any other as it is."""
    code, path = code_of(error), file.path
    translation: errors.SemelError
    if doubtful:
        translation = errors.StoreOutcomeUnknown(f"{path}: the transaction may or may not be made ({error})")
    elif code in ADVICE:
        translation = errors.StoreUnavailable(f"{path}: {ADVICE[code].format(file.timeout)} ({error})")
    elif code in DAMAGE:
        translation = errors.StoreError(f"{path}: {DAMAGE[code]} ({error})")
    elif isinstance(error, UnicodeEncodeError | OverflowError | sqlite3.DataError) or code in BAD_VALUE:
        translation = errors.UsageError(f"SQLite cannot store this: {error}")
    elif isinstance(error, sqlite3.Error):
        translation = errors.StoreError(f"{path}: {error}")
    else:
        return error
    translation.__cause__ = error
    return translation


# The connections that read

# Idle readers beyond this are closed; each holds two file handles and a cache of its own.
KEPT = 32


class ReaderPool:
    """A pool of cursors without a lock. A thread that finds none idle opens another, so nobody waits."""

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file
        self._closed = False
        self.reset()

    def reset(self) -> set[sqlite3.Connection]:
        """Begin with no connection, and return those that are still open."""
        before = set(getattr(self, "_open", ()))
        self._idle: deque[sqlite3.Cursor] = deque()
        self._kept = 0 if self._closed else KEPT
        # One that a signal has taken from its thread is closed as nobody has it any more.
        self._open: weakref.WeakSet[sqlite3.Connection] = weakref.WeakSet()
        self._opening = SignalSafeLock()
        return before

    def execute(self, sql: str, values: Row = ()) -> list[Row]:
        """Read rows. Every replay is this, so it does nothing that it need not do."""
        idle = self._idle
        try:
            reader = idle.pop()
        except IndexError:
            reader = self._another()
        try:
            rows: list[Row] = reader.execute(sql, values).fetchall()
        except BaseException as error:
            self._drop(reader, error)
            raise
        idle.append(reader)
        if len(idle) > self._kept:
            self._trim()
        return rows

    def close(self) -> None:
        """Close all that are idle; each of the others is closed when it is put back."""
        with self._opening:
            self._closed = True
        self._kept = 0
        self._trim()

    def _another(self) -> sqlite3.Cursor:
        with self._opening:
            if self._closed:
                raise errors.StoreClosed("the store was closed")
            try:
                connection = self._file.reader()
            except sqlite3.Error as error:
                raise translated(error, self._file) from error
            self._open.add(connection)
        return connection.cursor()

    def _trim(self) -> None:
        while len(self._idle) > self._kept:
            with suppress(IndexError):  # another thread took it
                self._drop(self._idle.pop())

    def _drop(self, reader: sqlite3.Cursor, error: BaseException | None = None) -> None:
        """Close a reader; after an error, which leaves as one of semel's, it is not used again."""
        connection = reader.connection
        connection.close()
        self._open.discard(connection)
        if isinstance(error, DRIVER_ERRORS):
            raise translated(error, self._file) from error

    def pause(self, seconds: float) -> None:
        """Before a fork: close every one, those in use as they come back, and open none until `resume`."""
        self._opening.acquire()
        self._kept = 0
        for _ in range(int(seconds * 1000)):
            self._trim()
            if not self._open:
                return
            threading.Event().wait(0.001)

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._kept = 0 if self._closed else KEPT
        self._opening.release()


# The schema: tables and indexes, its version, and the environment that the file belongs to

# The version of the schema that this release writes.
SCHEMA = 1


def lay_out(execute: Execute, plan: SQLitePlan) -> None:
    """Make a table, and the indexes that it lacks."""
    execute(plan.definition())
    if missing := plan.kinds.keys() - _columns(execute, plan):
        raise errors.WrongSchema(
            f"table {plan.name} has no column {', '.join(sorted(missing))}, so this version of semel did not "
            "make it: open another file"
        )
    for statement in plan.indexes().values():
        execute(statement)


def names_in(execute: Execute) -> set[str]:
    """Return the names of the file's tables and indexes."""
    return {name for (name,) in execute("SELECT name FROM sqlite_master")}


def complete(execute: Execute, plan: SQLitePlan) -> bool:
    """Return whether the file has all of a table."""
    # Only what reads the file makes a connection notice that its schema was changed; a PRAGMA does not.
    there = names_in(execute)
    return plan.indexes().keys() <= there and plan.kinds.keys() <= _columns(execute, plan)


def _columns(execute: Execute, plan: SQLitePlan) -> set[str]:
    return {row[1] for row in execute(f"PRAGMA table_info({plan.name})")}


def check_index(execute: Execute, plan: SQLitePlan, query: Query) -> None:
    """Refuse a query of an optional index that is not there."""
    index = plan.table.index(query.index)
    if index in plan.table.optional_indexes and plan.index_title(index.name) not in names_in(execute):
        (_, _, path), *_ = execute("PRAGMA database_list")
        url, env = shlex.quote(f"sqlite:///{path}"), meta_of(execute).get("environment")
        raise errors.NotProvisioned(query.table.name, index.name, f"semel provision --url {url} --env {env}")


def choose(execute: Execute, chosen: Iterable[str], dropped: Iterable[str]) -> Iterator[str]:
    """Make optional indexes and drop others, where that is not done yet, and report each."""
    for name, wanted in [*((name, True) for name in chosen), *((name, False) for name in dropped)]:
        table, index = optional_index(name)
        plan = SQLitePlan(table)
        title = plan.index_title(name)
        if (title in names_in(execute)) is not wanted:
            execute(plan.optional_index(index) if wanted else f"DROP INDEX {quoted(title)}")
            yield f"{'made' if wanted else 'dropped'} index {title}"


# What tells how many seconds have passed, when they began, and the time that is noted in the file.
FileTime: TypeAlias = tuple[Callable[[], float], float, float]


def time_of(execute: Execute, env: str, plans: Iterable[SQLitePlan], clock: Clock) -> FileTime | None:
    """Return the time of a file; None where something is still to be made in it.

    Where the clock is imposed, or there is no better one, the file need never know the time. Refuse a file of
    another environment.
    """
    meta, start = meta_of(execute), _start(clock)
    if not (_is_stamped(meta, env) and all(complete(execute, plan) for plan in plans)):
        return None
    if start is None:
        return clock.now, 0.0, float("inf")
    return (since_boot, meta[start], 0.0) if start in meta else None


def prepare(execute: Execute, env: str, plans: Iterable[SQLitePlan], clock: Clock) -> FileTime | None:
    """Make what a file lacks, in a transaction, and return its time."""
    # Another process may have been faster: look again, now that no other one can be.
    meta, start = meta_of(execute), _start(clock)
    if not _is_stamped(meta, env):
        execute(queries()["create_meta"])
        execute("REPLACE INTO semel_meta VALUES ('schema', ?), ('environment', ?)", (SCHEMA, env))
    for plan in plans:
        lay_out(execute, plan)
    if start is not None and start not in meta:
        # The first to open the file since the machine started decides.
        started = max(clock.now(), meta.get("written until", 0.0)) - since_boot()
        execute("DELETE FROM semel_meta WHERE name LIKE 'started %'")
        execute("INSERT INTO semel_meta VALUES (?, ?)", (start, started))
    return time_of(execute, env, plans, clock)


def _is_stamped(meta: dict[str, Any], env: str) -> bool:
    schema, stamped = meta.get("schema", 0), meta.get("environment")
    if schema > SCHEMA:
        raise errors.SchemaTooNew(schema, SCHEMA)
    if stamped not in (None, env):
        raise errors.WrongEnvironment(stamped, env)
    return schema == SCHEMA and stamped is not None


def meta_of(execute: Execute) -> dict[str, Any]:
    """Read what the file says of itself: its schema, its environment, and its time."""
    there = "semel_meta" in names_in(execute)
    return dict(execute("SELECT name, value FROM semel_meta")) if there else {}


# The time

BOOT = Path("/proc/sys/kernel/random/boot_id")

since_boot: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", 0))
"""Seconds since the machine started, its sleep included: the same for all of its processes."""


def this_boot() -> str | None:
    """Return what tells one run of the machine from the next; None where it cannot be told."""
    try:
        return BOOT.read_text().strip() if hasattr(time, "CLOCK_BOOTTIME") else None
    except OSError:
        return None


def _start(clock: Clock) -> str | None:
    """Return the name by which a file knows when the machine started."""
    boot = this_boot() if clock.imposed() is None else None
    return boot and f"started {boot}"
