"""The store in one SQLite file."""

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.core import commands
from semel.core.clock import Clock
from semel.core.commands import ANY, Found, Get, Page, Put, Query, Refused, Stored, Time, Watch, allowed
from semel.core.drive import Glance
from semel.core.runtime import FORKING, PAUSING
from semel.errors import StoreClosed, TableMissing, UsageError
from semel.model import COUNTED, TableSize
from semel.stores.shared import place_named, tables_of
from semel.stores.sql import PREFIX, countings, quoted, sized
from semel.stores.sqlite.commands import Chore, SQLiteCommands, SQLiteWithin
from semel.stores.sqlite.file import ReaderPool, SQLiteFile, complete, lay_out, names_in, prepare, time_of
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
        self._readers = ReaderPool(self._file)
        self._commands = SQLiteCommands(self._clock.now)
        self._plans = self._commands.plans
        self._writer = Writer(self._file, self._commands, self._refusal, KeyWatchers(self._clock))
        self._answers: dict[type, Callable[[Any], Any]] = {
            Get: self._get,
            Query: self._query,
            **dict.fromkeys((commands.Transact, commands.Batch), self._write_several),
            Watch: self._watch,
            Time: self._get_time,
        }
        self._reset()
        try:
            self._open(env)
        except BaseException:
            self.close()
            raise
        FORKING.add(self)
        PAUSING.add(self)

    def _reset(self) -> None:
        self._watchers = self._writer.watchers
        self._pool = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="semel-sqlite")

    def _open(self, env: str) -> None:
        self._file.make()
        plans, execute, known = [SQLitePlan(table) for table in OWN], self._readers.execute, self._commands
        making = Chore(lambda cursor, _now: prepare(cursor.execute, env, plans, self._clock))
        found = time_of(execute, env, plans, self._clock) or self._writer.submit(making)
        known.passed, known.began, known.noted = found
        # From here on there is a reader of this very file and its log, wherever it is moved.
        names_in(execute)
        self._plans.update((plan.table.name, plan) for plan in plans)

    @property
    def path(self) -> str:
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
        return self._writer.submit(command)

    def at_once(self, command: Stored) -> Any | None:
        """Execute what takes no lock: the time, a `Get`, and a `Put` that is refused by what is there."""
        kind = type(command)
        if kind is Time:
            return self._get_time(command)
        if (kind is Put or kind is Get) and command.table.name in self._plans:  # type: ignore[union-attr]
            return self._refusal(command) if kind is Put else self._get(command)
        return None

    async def aexecute(self, command: Stored) -> Any:
        """Execute the command and return its reply; what takes time is done by the store's own threads."""
        import asyncio

        self._check_open()
        in_thread = asyncio.get_running_loop().run_in_executor
        for table in () if isinstance(command, Time) else tables_of(command):
            if table.name not in self._plans:
                await in_thread(self._pool, self._learn, table)
        if isinstance(command, Get | Time):
            return self.execute(command)
        if isinstance(command, Watch):
            return await self._awatch(command)
        if isinstance(command, Query):
            return await in_thread(self._pool, self._query, command)
        return await self._writer.asubmit(command)

    def glance(self, table: Table, attributes: tuple[str, ...], where: dict[str, str | int]) -> Glance:
        """Return a function from a key to these attributes of its item: every replay is this."""
        sql = self._learn(table).glance(attributes, where)
        execute, passed, began = self._readers.execute, self._commands.passed, self._commands.began
        return lambda key: found[0] if (found := execute(sql, (key, passed() + began))) else None

    def within(self, connection: sqlite3.Connection) -> SQLiteWithin:
        """Return this store inside the transaction that is open on a caller's connection to the same file.

        What it writes is committed, or rolled back, together with what the caller writes there.
        """
        store = SQLiteWithin(connection, self._commands, self._join, self._file)
        store.overflow = self.overflow
        return store

    def reap(self, limit: int = 500) -> int:
        """Remove up to so many expired items now; writes do it too, in proportion to what they write."""
        reaped: int = self._writer.submit(Chore(lambda cursor, now: self._commands.reap(cursor, limit, now)))
        return reaped

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The sizes of the tables that the file has, and that of the file, whose bytes they share."""

        def count(sql: str) -> int:
            return int(self._readers.execute(sql)[0][0])

        there, now, sizes = names_in(self._readers.execute), repr(self._commands.now()), []
        for table in (each for each in tables if PREFIX + each.name in there):
            statements = countings(quoted(PREFIX + table.name), table, now)
            counts = {name: count(sql) for name, sql in statements.items()}
            sizes.append(sized(table, counts, f"counted up to {COUNTED:,}", None))
        items = min(COUNTED, sum(size.items for size in sizes))
        bytes_ = count("PRAGMA page_count") * count("PRAGMA page_size")
        return [*sizes, TableSize(table="", items=items, bytes=bytes_, how="bytes of the whole file")]

    def close(self) -> None:
        """Wait for the transaction under way, and close the file."""
        # Where a signal handler closes in the midst of a write, threads would wait for that, and it for them.
        wait = self._writer.close()
        self._pool.shutdown(wait)
        self._readers.close()
        FORKING.discard(self)
        PAUSING.discard(self)

    def _check_open(self) -> None:
        if self._writer.closed:
            raise StoreClosed("the store was closed")

    # Reading

    def _get(self, command: Any) -> Found:
        plan = self._plans.get(command.table.name)
        if plan is None or plan.table is not command.table:
            self._learn(command.table)
        return self._commands.get(self._readers, command, self._commands.passed() + self._commands.began)

    def _refusal(self, command: Any) -> Refused | None:
        """Return the refusal of a `Put` if a read shows it: a refusal takes no lock."""
        if type(command) is not Put or command.expect is ANY:
            return None
        found = self._get(command)
        refused = found.item is not None and not allowed(command, found.item)
        return Refused(found.now, found.item) if refused else None

    def _query(self, command: Query) -> Page:
        self._learn(command.table)
        return self._commands.query(self._readers, command, self._commands.now())

    def _get_time(self, _command: Any) -> Found:
        if self._writer.closed:
            self._check_open()
        return Found(self._commands.passed() + self._commands.began, None)

    def _watch(self, command: Watch) -> Found:
        return self._watchers.watch(place_named(command), command.seconds, lambda: self._get(command))

    async def _awatch(self, command: Watch) -> Found:
        async def look() -> Found:
            return self._get(command)

        return await self._watchers.awatch(place_named(command), command.seconds, look)

    # Writing

    def _write_several(self, command: Any) -> Any:
        for write in command.writes:
            plan = self._plans.get(write.table.name)
            if plan is None or plan.table is not write.table:
                self._learn(write.table)
        return self._writer.submit(command)

    # Tables and threads

    def _learn(self, table: Table) -> SQLitePlan:
        """Return the plan of a table, which is made in the file if this is its first use."""
        if table.name not in self._plans:
            new = SQLitePlan(table)
            if not complete(self._readers.execute, new):
                self._writer.submit(Chore(lambda cursor, _now: lay_out(cursor.execute, new)))
            self._plans.setdefault(table.name, new)
        plan = self._plans[table.name]
        if plan.table is not table and plan.table != table:
            raise UsageError(f"this store has another table named {table.name!r}")
        return plan

    def _join(self, table: Table) -> None:
        """Know a table inside a transaction of the caller's: as that may hold the file, none is made."""
        self._check_open()
        if table.name not in self._plans and not complete(self._readers.execute, SQLitePlan(table)):
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
