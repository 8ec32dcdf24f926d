"""The store in one SQLite file."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.core.clock import Clock
from semel.core.commands import (
    ANY,
    Batch,
    Found,
    Get,
    Page,
    Put,
    Query,
    Refused,
    Stored,
    Time,
    Transact,
    Watch,
    Write,
    allowed,
)
from semel.core.drive import Glance
from semel.core.runtime import FORKING, PAUSING
from semel.errors import StoreClosed, TableMissing, UsageError
from semel.model import COUNTED, TableSize
from semel.stores.shared import place_named, tables_of
from semel.stores.sql import PREFIX, countings, quoted, sized
from semel.stores.sqlite.commands import SQLiteCommands, SQLiteWithin
from semel.stores.sqlite.file import ReaderPool, SQLiteFile, complete, file_time, prepare, translated
from semel.stores.sqlite.statements import SQLitePlan
from semel.stores.sqlite.writer import Writer
from semel.stores.waiting import KeyWatchers
from semel.tables import OWN, Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

# Threads for the queries of tasks, which would keep an event loop waiting. The writer has one of its own,
# which does not wait behind slow queries.
QUERY_THREADS = 4


class SQLiteStore:
    """Items in one file, for every thread, task and process of one machine."""

    def __init__(
        self,
        file: SQLiteFile | str | Path,
        *,
        env: str = "dev",
        clock: Clock | None = None,
        overflow: "Overflow | None" = None,
    ) -> None:
        self.overflow = overflow
        self._clock = clock or Clock()
        self._file = file if isinstance(file, SQLiteFile) else SQLiteFile(str(Path(file).absolute()))
        self._closed = False
        self._readers = ReaderPool(self._file)
        self._row = self._readers.row
        self._commands = SQLiteCommands(self._clock.now)
        self._plans: dict[str, SQLitePlan] = self._commands.plans
        self._writer = Writer(self._file, self._commands, self._refusal, KeyWatchers(self._clock))
        self._answers: dict[type, Callable[[Any], Any]] = {
            Get: self._get,
            Query: self._query,
            Transact: self._write_several,
            Batch: self._write_several,
            Watch: self._watch,
            Time: self._get_time,
        }
        self._reset()
        try:
            self._prepare(env)
        except BaseException:
            self.close()
            raise
        FORKING.add(self)
        PAUSING.add(self)

    def _reset(self) -> None:
        self._watchers = self._writer.watchers
        self._pool = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="semel-sqlite")

    def _prepare(self, env: str) -> None:
        self._file.make()
        try:
            with closing(self._file.writer()) as connection:
                prepare(connection, env, timeout=self._file.timeout)
                told = file_time(connection, self._clock)
        except sqlite3.Error as error:
            raise translated(error, self._file) from error
        if told is not None:
            self._commands.now, self._commands.noted = told, 0.0
        self._lay_out(OWN)

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._file.path

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._file.path}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "SQLiteStore":
        """`sqlite:///relative/path.db` or `sqlite:////absolute/path.db`."""
        return cls(SQLiteFile.from_url(url), env=env, clock=clock)

    # The three ways to ask

    def execute(self, command: Stored) -> Any:
        """Execute the command and return its reply: a write here, any other in a method of its own."""
        answer = self._answers.get(type(command))
        if answer is not None:
            return answer(command)
        table: Table = command.table  # type: ignore[union-attr]
        plan = self._plans.get(table.name)
        if plan is None or plan.table is not table:
            self._learn(table)
        return self._writer.submit(self._commands.write, command, alone=True)

    def at_once(self, command: Stored) -> Any | None:
        """Execute what takes no lock: the time, a `Get`, and a `Put` that is refused by what is there."""
        kind = type(command)
        if kind is Time:
            return self._get_time(command)
        if (kind is Put or kind is Get) and command.table.name in self._plans:  # type: ignore[union-attr]
            return self._refusal(command) if kind is Put else self._get(command)  # type: ignore[arg-type]
        return None

    async def aexecute(self, command: Stored) -> Any:
        """Execute the command and return its reply; what takes time is done by the store's own threads."""
        import asyncio

        self._check_open()
        in_thread = asyncio.get_running_loop().run_in_executor
        for table in () if isinstance(command, Time) else tables_of(command):
            if table.name not in self._plans:
                await in_thread(self._pool, self._learn, table)
        match command:
            case Get() | Time():
                return self.execute(command)
            case Watch():
                return await self._awatch(command)
            case Query():
                return await in_thread(self._pool, self._query, command)
        alone = not isinstance(command, Transact | Batch)
        return await self._writer.asubmit(self._commands.execute, command, alone)

    def glance(self, table: Table, attributes: tuple[str, ...], where: dict[str, str | int]) -> Glance:
        """Return a function from a key to these attributes of its item: every replay is this."""
        sql = self._learn(table).glance(attributes, where)
        row, now = self._row, self._commands.now
        return lambda key: row(sql, (key, now()))

    def within(self, connection: sqlite3.Connection) -> SQLiteWithin:
        """Return this store inside the transaction that is open on a caller's connection to the same file.

        What it writes is committed, or rolled back, together with what the caller writes there.
        """
        store = SQLiteWithin(connection, self._commands, self._join, self._file)
        store.overflow = self.overflow
        return store

    def reap(self, limit: int = 500) -> int:
        """Remove up to so many expired items now; writes do it too, in proportion to what they write."""
        reaped: int = self._writer.submit(self._commands.reap, limit)
        return reaped

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The sizes of the tables that the file has, and that of the file, whose bytes they share."""

        def count(sql: str) -> int:
            return int(cursor.execute(sql).fetchone()[0])

        with self._readers.cursor() as cursor:
            there = {name for (name,) in cursor.execute("SELECT name FROM sqlite_master")}
            bytes_, now = count("PRAGMA page_count") * count("PRAGMA page_size"), repr(self._commands.now())
            sizes = []
            for table in (each for each in tables if PREFIX + each.name in there):
                statements = countings(quoted(PREFIX + table.name), table, now)
                counts = {name: count(sql) for name, sql in statements.items()}
                sizes.append(sized(table, counts, f"counted up to {COUNTED:,}", None))
        items = min(COUNTED, sum(size.items for size in sizes))
        return [*sizes, TableSize(table="", items=items, bytes=bytes_, how="bytes of the whole file")]

    def close(self) -> None:
        """Wait for the transaction under way, and close the file."""
        self._closed = True
        # Where a signal handler closes in the midst of a write, threads would wait for that, and it for them.
        wait = self._writer.close()
        self._pool.shutdown(wait)
        self._readers.close()
        FORKING.discard(self)
        PAUSING.discard(self)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store was closed")

    # Reading

    def _get(self, command: Get | Watch | Put) -> Found:
        plan = self._plans.get(command.table.name)
        if plan is None or plan.table is not command.table:
            plan = self._learn(command.table)
        row = self._row(plan.select, plan.place(command))
        return Found(self._commands.now(), None if row is None else plan.item(row))

    def _refusal(self, command: Write) -> Refused | None:
        """Return the refusal of a `Put` if a read shows it: a refusal takes no lock."""
        if type(command) is not Put or command.expect is ANY:
            return None
        found = self._get(command)
        refused = found.item is not None and not allowed(command, found.item)
        return Refused(found.now, found.item) if refused else None

    def _query(self, command: Query) -> Page:
        self._learn(command.table)
        with self._readers.cursor() as cursor:
            return self._commands.query(cursor, command, self._commands.now())

    def _get_time(self, _command: Any) -> Found:
        self._check_open()
        return Found(self._commands.now(), None)

    def _watch(self, command: Watch) -> Found:
        return self._watchers.watch(place_named(command), command.seconds, lambda: self._get(command))

    async def _awatch(self, command: Watch) -> Found:
        async def look() -> Found:
            return self._get(command)

        return await self._watchers.awatch(place_named(command), command.seconds, look)

    # Writing

    def _write_several(self, command: Transact | Batch) -> Any:
        for table in tables_of(command):
            self._learn(table)
        return self._writer.submit(self._commands.execute, command)

    # Tables and threads

    def _learn(self, table: Table) -> SQLitePlan:
        """Return the plan of a table, which is made in the file if this is its first use."""
        plan = self._plans.get(table.name)
        if plan is None:
            self._lay_out((table,))
            plan = self._plans[table.name]
        if plan.table is not table and plan.table != table:
            raise UsageError(f"this store has another table named {table.name!r}")
        return plan

    def _lay_out(self, tables: Iterable[Table]) -> None:
        """Make what the file lacks of these tables, in one transaction, and know them from here on."""
        plans = [SQLitePlan(table) for table in tables]
        if lacking := self._lacking(plans):
            self._writer.submit(self._commands.define, lacking)
        for plan in plans:
            self._plans.setdefault(plan.table.name, plan)

    def _lacking(self, plans: Iterable[SQLitePlan]) -> list[SQLitePlan]:
        with self._readers.cursor() as cursor:
            return [plan for plan in plans if not complete(cursor.connection, plan)]

    def _join(self, table: Table) -> None:
        """Know a table inside a transaction of the caller's: as that may hold the file, none is made."""
        self._check_open()
        if table.name not in self._plans and self._lacking([SQLitePlan(table)]):
            raise TableMissing(
                f"{self._file.path} has no table {table.name} yet, or not all of it, and it cannot be made "
                "inside your transaction: use it once before you begin, as by reading any item of it"
            )
        self._learn(table)

    # A fork

    # SQLite keeps account of its locks by process. A child that inherits an open connection inherits the
    # account and not the locks: it would write without any, and lose what it wrote when the parent closes. So
    # nothing is open while a process forks. What could not be closed in time is kept, as closing it in the
    # child would do the same harm.

    def pause_for_fork(self) -> None:
        """Close the file."""
        self._writer.pause(self._file.timeout)
        self._readers.pause(self._file.timeout)

    def resume_after_fork(self) -> None:
        """Open the file when it is next needed, in the parent."""
        self._readers.resume()
        self._writer.resume()

    def reset_after_fork(self) -> Any:
        """In a forked child: what is still open is the parent's."""
        inherited = [*self._readers.reset(), self._writer.abandon()]
        self._writer.watchers = KeyWatchers(self._clock)
        self._reset()
        return inherited
