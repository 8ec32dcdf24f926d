"""The store in one SQLite file."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.core.clock import Clock
from semel.core.commands import (
    Absent,
    Add,
    Applied,
    Batch,
    Delete,
    Found,
    Get,
    Page,
    Put,
    Query,
    Refused,
    Stored,
    Time,
    Transact,
    Update,
    Watch,
    Write,
    holds,
)
from semel.core.drive import Glance
from semel.core.runtime import FORKING, PAUSING
from semel.core.threads import SignalSafeLock
from semel.errors import StoreClosed, TableMissing, UsageError
from semel.model import COUNTED, TableSize
from semel.stores.shared import place_named, tables_of, wake
from semel.stores.sql import PREFIX, countings, quoted, sized
from semel.stores.sqlite.address import SQLiteFile
from semel.stores.sqlite.errors import translated
from semel.stores.sqlite.groupcommit import GroupCommit, QueuedWrite
from semel.stores.sqlite.interpreter import Define, Reap, SQLiteInterpreter, page
from semel.stores.sqlite.plan import SQLitePlan
from semel.stores.sqlite.pool import ReaderPool
from semel.stores.sqlite.schema import complete, prepare
from semel.stores.sqlite.time import file_time
from semel.stores.sqlite.within import SQLiteWithin
from semel.stores.waiting import KeyWatchers
from semel.stores.workers import WorkerThreads
from semel.tables import OWN, Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

# What would keep an event loop waiting is done by threads: one leads the writing of tasks, and so many answer
# their queries. Writing has a thread of its own, lest it wait behind four slow queries.
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
        self._plans: dict[str, SQLitePlan] = {}
        self._readers = ReaderPool(self._file)
        self._row = self._readers.row
        self._now: Callable[[], float] = self._clock.now
        self._interpreter = SQLiteInterpreter(self._plans)
        self._writer = GroupCommit(self._file, self._interpreter, self._time, self._in_thread, self._ring)
        self._carry_out: dict[type, Callable[[Any], Any]] = {
            Get: self._get,
            Put: self._put,
            Update: self._write,
            Add: self._write,
            Delete: self._write,
            Query: self._query,
            Transact: self._write,
            Batch: self._write,
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
        self._watchers = KeyWatchers(self._clock)
        self._starting = SignalSafeLock()
        self._pool: ThreadPoolExecutor | None = None
        self._worker = WorkerThreads(1, "semel-sqlite")

    def _prepare(self, env: str) -> None:
        self._file.make()
        try:
            with closing(self._file.writer()) as connection:
                prepare(connection, env, timeout=self._file.timeout)
                told = file_time(connection, self._clock)
                self._now = told or self._clock.now
                self._interpreter.keeps_time = told is not None
        except sqlite3.Error as error:
            raise translated(error, self._file) from error
        self._lay_out(OWN)

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._file.path

    def _time(self) -> float:
        return self._now()

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._file.path}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "SQLiteStore":
        """`sqlite:///relative/path.db` or `sqlite:////absolute/path.db`."""
        return cls(SQLiteFile.from_url(url), env=env, clock=clock)

    # The three ways to ask

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        return self._carry_out[type(command)](command)

    def at_once(self, command: Stored) -> Any | None:
        """What takes no lock: the time, a `Get`, and a `Put` that is refused by what is there."""
        if type(command) is Put:
            return self._refused(command) if command.table.name in self._plans else None
        if type(command) is Get:
            return self._get(command) if command.table.name in self._plans else None
        return self._get_time(command) if type(command) is Time else None

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out and answer it; what takes time is done by the store's own threads."""
        import asyncio

        if isinstance(command, Time):
            return self._get_time(command)
        in_thread = asyncio.get_running_loop().run_in_executor
        for table in tables_of(command):
            if table.name not in self._plans:
                await in_thread(self._threads(), self._learn, table)
        match command:
            case Get():
                return self._get(command)
            case Watch():
                return await self._awatch(command)
            case Query():
                return await in_thread(self._threads(), self._query, command)
        return await self._writer.asubmit(command)

    def glance(self, table: Table, attributes: tuple[str, ...], where: dict[str, str | int]) -> Glance:
        """A function from a key to these attributes of its item: every replay is this."""
        sql = self._learn(table).glance(attributes, where)
        row, now = self._row, self._now
        return lambda key: row(sql, (key, now()))

    def within(self, connection: sqlite3.Connection) -> SQLiteWithin:
        """This store inside the transaction that is open on a connection of the caller's to the same file.

        What it writes is committed, or rolled back, together with what the caller writes there.
        """
        store = SQLiteWithin(connection, self._interpreter, self._join, self._time, self._file)
        store.overflow = self.overflow
        return store

    def reap(self, limit: int = 500) -> int:
        """Remove up to so many expired items now; writes do it too, in proportion to what they write."""
        reaped: int = self._writer.submit(Reap(limit))
        return reaped

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The sizes of the tables that the file has, and that of the file, whose bytes they share."""
        with self._readers.connection() as connection:
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            bytes_, now = _file_size(connection), repr(self._now())
            sizes = []
            for table in (each for each in tables if PREFIX + each.name in there):
                statements = countings(quoted(PREFIX + table.name), table, now)
                counts = {name: connection.execute(sql).fetchone()[0] for name, sql in statements.items()}
                sizes.append(sized(table, counts, f"counted up to {COUNTED:,}", None))
        items = min(COUNTED, sum(size.items for size in sizes))
        return [*sizes, TableSize(table="", items=items, bytes=bytes_, how="bytes of the whole file")]

    def close(self) -> None:
        """Wait for the transaction under way, and let go of the file."""
        self._closed = True
        # Where a signal handler closes in the midst of a write, threads would wait for that, and it for them.
        wait = self._writer.close()
        with self._starting:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait)
        self._worker.stop(wait)
        self._readers.close()
        FORKING.discard(self)
        PAUSING.discard(self)

    # Reading

    def _get(self, command: Get | Watch) -> Found:
        plan = self._plans.get(command.table.name)
        if plan is None or plan.table is not command.table:
            plan = self._learn(command.table)
        row = self._row(plan.select, plan.place(command))
        now = self._now()
        return Found(now, None if row is None or row[plan.expires] <= now else plan.item(row))

    def _refused(self, command: Put) -> Refused | None:
        """The refusal of a `Put`, where what is there refuses it: to say no takes no lock."""
        when = command.when
        if when is None:
            return None
        plan = self._plans.get(command.table.name)
        if plan is None or plan.table is not command.table:
            plan = self._learn(command.table)
        row = self._row(plan.select, plan.place(command))
        if row is None:
            return None
        now = self._now()
        if row[plan.expires] <= now:
            return None
        item = plan.item(row)
        if type(when) is Absent or not holds(when, item, now):
            return Refused(now, item)
        return None

    def _query(self, command: Query) -> Page:
        plan = self._learn(command.table)
        with self._readers.connection() as connection, closing(connection.cursor()) as rows:
            return page(rows, plan, command, self._now())

    def _get_time(self, _command: Time) -> Found:
        if self._closed:
            raise StoreClosed("the store was closed")
        return Found(self._now(), None)

    def _watch(self, command: Watch) -> Found:
        return self._watchers.watch(place_named(command), command.seconds, lambda: self._get(command))

    async def _awatch(self, command: Watch) -> Found:
        async def look() -> Found:
            return self._get(command)

        return await self._watchers.awatch(place_named(command), command.seconds, look)

    # Writing

    def _put(self, command: Put) -> Applied | Refused:
        return self._refused(command) or self._write(command)

    def _write(self, command: Write | Transact | Batch) -> Any:
        for table in tables_of(command):
            known = self._plans.get(table.name)
            if known is None or known.table is not table:
                self._learn(table)
        return self._writer.submit(command)

    def _ring(self, job: QueuedWrite) -> None:
        """Wake whoever waits for what was written."""
        if job.error is None:
            wake(self._watchers, job.command, job.reply)

    # Tables and threads

    def _learn(self, table: Table) -> SQLitePlan:
        """The plan of a table, which is made in the file if this is its first use."""
        if table.name not in self._plans:
            self._lay_out((table,))
        plan = self._plans[table.name]
        if plan.table is not table and plan.table != table:
            raise UsageError(f"this store has another table named {table.name!r}")
        return plan

    def _lay_out(self, tables: Iterable[Table]) -> None:
        """Make what the file lacks of these tables, all at once, and know them from here on."""
        plans = [SQLitePlan(table) for table in tables]
        if lacking := self._lacking(plans):
            self._writer.submit(Define(lacking))
        for plan in plans:
            self._plans.setdefault(plan.table.name, plan)

    def _lacking(self, plans: Iterable[SQLitePlan]) -> tuple[SQLitePlan, ...]:
        with self._readers.connection() as connection:
            return tuple(plan for plan in plans if not complete(connection, plan))

    def _join(self, table: Table) -> None:
        """Know a table inside a transaction of the caller's: as that may hold the file, none is made."""
        if self._closed:
            raise StoreClosed("the store was closed")
        if table.name not in self._plans and self._lacking([SQLitePlan(table)]):
            raise TableMissing(
                f"{self._file.path} has no table {table.name} yet, or not all of it, and it cannot be made "
                "inside your transaction: use it once before you begin, as by reading any item of it"
            )
        self._learn(table)

    def _threads(self) -> ThreadPoolExecutor:
        """Threads of the store's own: asyncio's are the caller's, who may have filled them."""
        with self._starting:
            if self._closed:
                raise StoreClosed("the store was closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="semel-sqlite")
            return self._pool

    def _in_thread(self, work: Callable[[], None]) -> None:
        """Have a thread of the store do this."""
        if self._closed:
            raise StoreClosed("the store was closed")
        self._worker.do(work)

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
        inherited = [*self._readers.abandon(), self._writer.abandon()]
        self._reset()
        return inherited


def _file_size(connection: sqlite3.Connection) -> int:
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)
