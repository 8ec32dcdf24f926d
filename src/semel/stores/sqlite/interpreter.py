"""Commands, carried out inside a transaction that somebody else begins and ends."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import msgspec

from semel.core.commands import (
    Add,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Found,
    Get,
    Item,
    Many,
    Page,
    Put,
    Query,
    Refused,
    Transact,
    Update,
    Write,
    allowed,
    holds,
    outcome,
    placed,
)
from semel.core.commands import cursor as next_page
from semel.stores.sqlite.plan import SQLitePlan, SQLiteRow, select
from semel.stores.sqlite.schema import check_index, lay_out
from semel.stores.sqlite.time import note_time

# For every row written up to two expired ones are removed, so that a store that is only ever written stays
# as small as what is alive in it; in batches of this many at least, as looking for them costs a little too.
REAPED_PER_WRITE = 2
REAP_BATCH = 64


class Define(msgspec.Struct, frozen=True):
    """Make tables, or what they lack."""

    plans: tuple[SQLitePlan, ...]


class Reap(msgspec.Struct, frozen=True):
    """Remove up to so many expired rows; the reply is how many there were."""

    limit: int


class SQLiteInterpreter:
    """Knows the tables, and reads, decides and writes; the decisions are those of `commands`."""

    def __init__(self, plans: dict[str, SQLitePlan]) -> None:
        self._plans = plans
        self._due = 0
        self.keeps_time = False
        """Whether the file has a time of its own, which is written into it."""
        self._second = 0
        self._carry_out: dict[type, Callable[[sqlite3.Cursor, Any, float], Any]] = {
            Get: self._get,
            Query: self._query,
            Put: self._write,
            Update: self._write,
            Add: self._write,
            Delete: self._write,
            Transact: self._transact,
            Batch: self._batch,
            Define: self._define,
            Reap: self._reap,
        }

    def carry_out(self, cursor: sqlite3.Cursor, command: Any, now: float) -> Any:
        """The reply to one command. Where it raises, it has left nothing behind."""
        return self._carry_out[type(command)](cursor, command, now)

    def finish(self, cursor: sqlite3.Cursor, now: float) -> None:
        """Before the end of a transaction: remove what has expired, as much as was written; note the time."""
        if self._due >= REAP_BATCH:
            limit, self._due = self._due, 0
            self._reap(cursor, Reap(limit), now)
        if self.keeps_time and now >= self._second:
            note_time(cursor, now)

    def committed(self, now: float) -> None:
        """The transaction of this time is in the file: its second need not be noted again."""
        if now >= self._second:
            self._second = int(now) + 1

    def _get(self, cursor: sqlite3.Cursor, command: Get, now: float) -> Found:
        return Found(now, _alive(cursor, self._plans[command.table.name], command, now))

    def _query(self, cursor: sqlite3.Cursor, command: Query, now: float) -> Page:
        return page(cursor, self._plans[command.table.name], command, now)

    def _write(self, cursor: sqlite3.Cursor, command: Write, now: float) -> Applied | Refused:
        plan = self._plans[command.table.name]
        if type(command) is Put and self._inserted(cursor, plan, command, now):
            return Applied(now)
        return self._decide(cursor, plan, command, now)

    def _decide(
        self, cursor: sqlite3.Cursor, plan: SQLitePlan, command: Write, now: float
    ) -> Applied | Refused:
        """Read what is there, and write if it allows that."""
        item = _alive(cursor, plan, command, now)
        if not allowed(command, item, now):
            return Refused(now, item)
        after = outcome(command, item, now)
        if after is None:
            cursor.execute(plan.delete, plan.place(command))
            return Applied(now)
        row = plan.row(after, now)
        if type(command) is Update:
            sql, places = plan.update(tuple(command.set))
            cursor.execute(sql, (*[row[place] for place in places], *plan.place(command)))
        else:
            cursor.execute(plan.replace, row)
        self._due += REAPED_PER_WRITE
        return Applied(now, after if type(command) is Add else None)

    def _inserted(self, cursor: sqlite3.Cursor, plan: SQLitePlan, command: Put, now: float) -> bool:
        """Whether there was no row at all: then nothing has to be read first, which is how most claims go."""
        if not allowed(command, None, now):
            return False
        self._due += REAPED_PER_WRITE
        return cursor.execute(*_insertion(plan, command, now)).rowcount == 1

    def _transact(self, cursor: sqlite3.Cursor, command: Transact, now: float) -> Applied | Cancelled:
        with Savepoint(cursor) as together:
            replies = [self._write(cursor, write, now) for write in command.writes]
            if Refused not in map(type, replies):
                return Applied(now)
            # No two of them are on one item: each was refused by what was there before.
            together.undo()
        return Cancelled(now, tuple(reply if type(reply) is Refused else None for reply in replies))

    def _batch(self, cursor: sqlite3.Cursor, command: Batch, now: float) -> Many:
        with Savepoint(cursor):
            return Many(tuple(self._each(cursor, command.writes, now)))

    def _each(
        self, cursor: sqlite3.Cursor, writes: tuple[Write, ...], now: float
    ) -> Iterator[Applied | Refused]:
        """The replies to writes of which many may be the same but for their keys: marks of a batch are."""
        like: Put | None = None
        statement = ""
        row: SQLiteRow = ()
        applied = Applied(now)
        for write in writes:
            plan = self._plans[write.table.name]
            if like is None or not _alike(write, like):
                like = write if type(write) is Put and not plan.sorted and allowed(write, None, now) else None
                if like is not None:
                    statement, row = _insertion(plan, like, now)
            if like is None:
                yield self._write(cursor, write, now)
            elif cursor.execute(statement, (write.key, *row[1:])).rowcount == 1:
                self._due += REAPED_PER_WRITE
                yield applied
            else:
                yield self._decide(cursor, plan, write, now)

    def _define(self, cursor: sqlite3.Cursor, command: Define, _now: float) -> None:
        for plan in command.plans:
            lay_out(cursor.connection, plan)

    def _reap(self, cursor: sqlite3.Cursor, command: Reap, now: float) -> int:
        reaped = 0
        for plan in list(self._plans.values()):
            reaped += cursor.execute(plan.reap, (now, command.limit - reaped)).rowcount
        return reaped


def _insertion(plan: SQLitePlan, command: Put, now: float) -> tuple[str, SQLiteRow]:
    return plan.insertion(placed(command, command.item.copy()), now)


def _alike(one: Write, other: Put) -> bool:
    """Whether two writes have nothing of their own but their keys."""
    return type(one) is Put and one.item is other.item and one.when is other.when and one.table is other.table


def page(rows: sqlite3.Cursor, plan: SQLitePlan, query: Query, now: float) -> Page:
    """A page of items; the cursor is left where the next page begins."""
    items: list[Item] = []
    check_index(rows.connection, plan, query)
    for row in rows.execute(*select(plan, query, now)):
        item = plan.item(row)
        if query.where is not None and not holds(query.where, item, now):
            continue
        if len(items) == query.limit:
            index = query.table.index(query.index)
            return Page(now, tuple(items), next_page(query.table, items[-1], index))
        items.append(item)
    return Page(now, tuple(items), None)


def _alive(cursor: sqlite3.Cursor, plan: SQLitePlan, command: Get | Write, now: float) -> Item | None:
    row = cursor.execute(plan.select, plan.place(command)).fetchone()
    return None if row is None or row[plan.expires] <= now else plan.item(row)


class Savepoint:
    """All of it or nothing of it, whatever becomes of the transaction around it."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def __enter__(self) -> Self:
        self._cursor.execute("SAVEPOINT together")
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self._cursor.execute("RELEASE together")
            return
        # Where SQLite has already given up the whole transaction, the error on its way out says so.
        with suppress(sqlite3.Error):
            self.undo()
            self._cursor.execute("RELEASE together")

    def undo(self) -> None:
        """Nothing of it."""
        self._cursor.execute("ROLLBACK TO together")
