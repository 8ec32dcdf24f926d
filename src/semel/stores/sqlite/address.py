"""Where the file is: its URL, and connections to it."""

import os
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl, unquote

import msgspec

from semel import errors
from semel.core.connections import ANSWER_SECONDS, timeout_of
from semel.core.runtime import masked

# With less room than this on its disk a file is as good as full: a minute of writes takes more.
LEAST_ROOM = 4 * 1024 * 1024
# After a burst the log is cut back to this; in between it is used again, which is faster than growing it.
LOG_BYTES = 16 * 1024 * 1024

OURS_ALONE = 0o600

DURABILITY = {"full": "FULL", "normal": "NORMAL"}
FORM = "sqlite:///relative/path.db or sqlite:////absolute/path.db; a store to throw away is memory:"


class SQLiteConnection(sqlite3.Connection):
    """A connection of sqlite3's, which others may know without keeping it open."""


def make_private(path: str | Path) -> None:
    """Make a file where there is none, for nobody else to read."""
    with suppress(OSError):  # it is there, or whoever opens it says what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OURS_ALONE))


class SQLiteFile(msgspec.Struct, frozen=True):
    """Where the file is, how durable its writes are, and how long another's transaction is waited for."""

    factory: ClassVar[type[sqlite3.Connection]] = SQLiteConnection

    path: str
    synchronous: str = "full"
    timeout: float = ANSWER_SECONDS

    @classmethod
    def from_url(cls, url: str) -> "SQLiteFile":
        """The file of a URL such as `sqlite:///semel.db?synchronous=normal`."""
        address, _, query = url.partition("?")
        name = unquote(address.removeprefix("sqlite:///"))
        if not address.startswith("sqlite:///") or name in ("", "/", ":memory:"):
            raise errors.InvalidOption(f"{masked(url)!r} names no file: write {FORM}")
        options = dict(parse_qsl(query, keep_blank_values=True))
        synchronous = options.pop("synchronous", "full")
        timeout = timeout_of(options.pop("timeout", None))
        if options or synchronous not in DURABILITY:
            raise errors.InvalidOption(
                f"{masked(url)!r}: the options are synchronous=full, synchronous=normal and timeout=10"
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
        make_private(self.path)

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
            # Pages that a transaction may have to undo stay in memory, and go to no file when they are many.
            "temp_store = MEMORY",
        )

    def _connect(self, *settings: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self.timeout,
            isolation_level=None,
            check_same_thread=False,
            factory=self.factory,
        )
        try:
            for setting in settings:
                connection.execute(f"PRAGMA {setting}")
        except BaseException:  # what is no database is only found out here
            connection.close()
            raise
        return connection
