"""The file itself: its URL, its connections, its schema, and what its errors mean."""

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec

from semel import errors
from semel.sockets import ANSWER_SECONDS, timeout_of
from semel.stores.sqlite.plan import Plan, quoted
from semel.tables import LEDGER

# With less room than this on its disk a file is as good as full: a minute of writes takes more.
LEAST_ROOM = 4 * 1024 * 1024
# How long after a refusal the change to WAL is tried again: SQLite gives up at once where two change it.
WAL_RETRY_SECONDS = 0.01
# After a burst the log is cut back to this; in between it is used again, which is faster than growing it.
LOG_BYTES = 16 * 1024 * 1024

OURS_ALONE = 0o600

DURABILITY = {"full": "FULL", "normal": "NORMAL"}
FORM = "sqlite:///relative/path.db or sqlite:////absolute/path.db; a store to throw away is memory:"


class File(msgspec.Struct, frozen=True):
    """Where the file is, how durable its writes are, and how long another's transaction is waited for."""

    path: str
    synchronous: str = "full"
    timeout: float = ANSWER_SECONDS

    @classmethod
    def from_url(cls, url: str) -> "File":
        """The file of a URL such as `sqlite:///semel.db?synchronous=normal`."""
        address, _, query = url.partition("?")
        name = unquote(address.removeprefix("sqlite:///"))
        if not address.startswith("sqlite:///") or name in ("", "/", ":memory:"):
            raise errors.InvalidOption(f"{url!r} names no file: write {FORM}")
        options = dict(parse_qsl(query, keep_blank_values=True))
        synchronous = options.pop("synchronous", "full")
        timeout = timeout_of(options.pop("timeout", None))
        if options or synchronous not in DURABILITY:
            raise errors.InvalidOption(
                f"{url!r}: the options are synchronous=full, synchronous=normal and timeout=10"
            )
        return cls(str(Path(name).absolute()), synchronous, timeout)

    def check(self) -> None:
        """Say in time what SQLite says in riddles."""
        folder = Path(self.path).parent
        if not folder.is_dir():
            raise errors.StoreUnavailable(f"{self.path} cannot be made: there is no folder {folder}")

    def make(self) -> None:
        """Make the file where there is none, for nobody else to read; those beside it have the same mode."""
        self.check()
        with suppress(OSError):  # it is there, or SQLite says what is wrong with it
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OURS_ALONE))

    def identity(self) -> tuple[int, int] | None:
        """Which file it is that stands there now; None where there is none."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - before every transaction, and Path takes three times as long
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def room(self) -> int:
        """How many bytes are left on its disk."""
        return shutil.disk_usage(Path(self.path).parent).free

    def reader(self) -> sqlite3.Connection:
        """A connection that only reads."""
        return self._connect("query_only = 1")

    def writer(self) -> sqlite3.Connection:
        """A connection that writes."""
        return self._connect(
            f"synchronous = {DURABILITY[self.synchronous]}",
            f"journal_size_limit = {LOG_BYTES}",
            # What is deleted is gone from the file too; only some builds of SQLite see to that by themselves.
            "secure_delete = ON",
        )

    def _connect(self, *settings: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self.timeout,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )
        try:
            for setting in settings:
                connection.execute(f"PRAGMA {setting}")
        except BaseException:  # what is no database is only found out here
            connection.close()
            raise
        return connection


class Connection(sqlite3.Connection):
    """A connection of sqlite3's, which others may know without keeping it open."""


# Schema


def lay_out(connection: sqlite3.Connection, plan: Plan) -> None:
    """Make a table, or what it lacks of columns and indexes."""
    connection.execute(plan.definition())
    found = _columns(connection, plan)
    for name in [name for name in plan.columns if name not in found]:
        connection.execute(f"ALTER TABLE {plan.name} ADD COLUMN {plan.column(name)}")
    for statement in plan.indexes().values():
        connection.execute(statement)


def complete(connection: sqlite3.Connection, plan: Plan) -> bool:
    """Whether the file has all of a table; it may be one that an earlier semel made."""
    # Only what reads the file makes a connection notice that its schema was changed; a PRAGMA does not.
    connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    indexes = {row[1] for row in connection.execute(f"PRAGMA index_list({plan.name})")}
    return plan.kinds.keys() <= _columns(connection, plan) and plan.indexes().keys() <= indexes


def _columns(connection: sqlite3.Connection, plan: Plan) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({plan.name})")}


def _lay_out_ledger(connection: sqlite3.Connection) -> None:
    lay_out(connection, Plan(LEDGER))


Migration: TypeAlias = Callable[[sqlite3.Connection], None]

# The first makes schema 1 of schema 0 (a new file, too), and so on. One that was released is never changed.
MIGRATIONS: tuple[Migration, ...] = (_lay_out_ledger,)

META = quoted("semel_meta")


def prepare(
    connection: sqlite3.Connection,
    env: str,
    migrations: tuple[Migration, ...] = MIGRATIONS,
    timeout: float = ANSWER_SECONDS,
) -> None:
    """Bring the file to the newest schema and stamp it, though others may be doing so at the same time."""
    _use_wal(connection, timeout)
    while not _ready(connection, env, len(migrations)):
        with transaction(connection):
            # Somebody else may have been faster: look again, now that nobody else can be.
            if _ready(connection, env, len(migrations)):
                return
            _migrate(connection, env, migrations)


def _ready(connection: sqlite3.Connection, env: str, newest: int) -> bool:
    schema, stamped = _meta(connection)
    if schema > newest:
        raise errors.SchemaTooNew(schema, newest)
    if stamped not in (None, env):
        raise errors.WrongEnvironment(stamped, env)
    return schema == newest and stamped is not None


def _meta(connection: sqlite3.Connection) -> tuple[int, str | None]:
    """The schema of the file, and the environment it belongs to."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'semel_meta'").fetchone():
        return 0, None
    found = dict(connection.execute(f"SELECT name, value FROM {META}"))
    return found.get("schema", 0), found.get("environment")


def _migrate(connection: sqlite3.Connection, env: str, migrations: tuple[Migration, ...]) -> None:
    """One step, in the transaction that is open."""
    connection.execute(f"CREATE TABLE IF NOT EXISTS {META} (name TEXT PRIMARY KEY, value) WITHOUT ROWID")
    schema, _ = _meta(connection)
    if schema < len(migrations):
        migrations[schema](connection)
        schema += 1
    values = [("schema", schema), ("environment", env)]
    connection.executemany(f"REPLACE INTO {META} VALUES (?, ?)", values)


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Turn the file to write-ahead logging, in which readers and a writer do not wait for each other."""
    if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
        return
    for _ in range(int(timeout / WAL_RETRY_SECONDS)):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY:
                raise
            threading.Event().wait(WAL_RETRY_SECONDS)
    connection.execute("PRAGMA journal_mode = WAL").fetchone()


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# Errors

LOCKED = (
    "another transaction has kept it locked for {0:g} s: is one left open? What belongs into one of yours is "
    "written by within(connection); timeout= in the URL says how long is waited"
)
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
ADVICE = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
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


def code_of(error: Exception) -> int | None:
    """SQLite's own code for an error; None where Python's module raised it by itself."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def translated(error: Exception, file: File) -> Exception:
    """A driver's error as one of semel's; any other as it is."""
    code, path = code_of(error), file.path
    if code in ADVICE:
        advice = ADVICE[code].format(file.timeout)
        return _because(errors.StoreUnavailable(f"{path}: {advice} ({error})"), error)
    if code in DAMAGE:
        return _because(errors.StoreError(f"{path}: {DAMAGE[code]} ({error})"), error)
    if isinstance(error, UnicodeEncodeError | OverflowError | sqlite3.DataError) or code in BAD_VALUE:
        return _because(errors.UsageError(f"SQLite cannot store this: {error}"), error)
    if isinstance(error, sqlite3.Error):
        return _because(errors.StoreError(f"{path}: {error}"), error)
    return error


def doubtful(error: Exception, file: File) -> Exception:
    """What a failed COMMIT means."""
    if code_of(error) in NOT_COMMITTED:
        return translated(error, file)
    told = f"{file.path}: the transaction may or may not have been made ({error})"
    return _because(errors.StoreOutcomeUnknown(told), error)


def _because(told: errors.SemelError, error: Exception) -> errors.SemelError:
    told.__cause__ = error
    return told
