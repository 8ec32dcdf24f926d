"""The page of the docs about SQL: `python -m semel.provision.statements > docs/reference/statements.md`."""

import re
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any, NamedTuple, Self, TypeAlias, cast

from semel.connect import Semel
from semel.core.commands import Stored
from semel.model import Claimed
from semel.stores.postgres.interpreter import PostgresSteps, RoundTrips
from semel.stores.postgres.layout import NOTHING, PostgresLayout
from semel.stores.sqlite import SQLiteStore
from semel.stores.sqlite.address import SQLiteConnection, SQLiteFile
from semel.stores.sqlite.plan import SQLitePlan
from semel.tables import LEDGER

HEADER = """\
# Statements

What the ledger runs on PostgreSQL and on SQLite, for whoever looks after the database. The page is made by
running the ledger; only line breaks were added. An attribute that a call does not use is not in what it runs
on PostgreSQL: a claim with a fingerprint, for example, writes one more column there.
"""
POSTGRES = """
## PostgreSQL

Each is one round trip and a transaction of its own, and what is run often is prepared. `$1` is NULL, and the
server's clock decides; only tests send a time. `n` is the time, `v` has the values of the call, `s0` changes
the row that is there, `s1` makes one where there is none, and `w` is what either has written. Where nothing
was written, the same statement answers with the row that was in the way: a replay is a claim that is refused.
`_bell` says whether somebody waits for the row, who is then notified. With `schema=` in the URL, the schema
stands before each name, and is part of the name of the channel.
"""
SQLITE = """
## SQLite

What is refused by what it reads takes no lock, and runs no transaction. Writes that come at the same time
share one.
"""
LIMIT = 500

WIDTH = 110
# What stands between parentheses stays in one line where it is as short as this.
SHORT = 60
# Before these words, and before each step of a WITH, a new line begins.
BREAKS = re.compile(
    r" (?=(?:FROM|WHERE|LEFT JOIN|CROSS JOIN|UNION ALL|RETURNING|SET|ON CONFLICT|ORDER BY|VALUES)\b)"
    r"|(?<=\)) (?=SELECT\b)|(?<=,) (?=\w+ AS (?:NOT |)(?:MATERIALIZED |)\()"
)
# Else a line that is too long is broken after a comma, or before one of these.
KEPT_TOGETHER = re.compile(r"(?<!,) (?!(?:AND|OR|THEN|LIMIT|WITHOUT)\b)")


class Ran(NamedTuple):
    """What one call of the ledger has asked of its store, and what SQLite has run for it."""

    title: str
    commands: list[Stored]
    statements: list[str]


class NotedCursor(sqlite3.Cursor):
    """A cursor that notes what it executes."""

    def execute(self, sql: str, values: Any = (), /) -> Self:
        """Execute a statement."""
        NOTED.append(sql)
        return super().execute(sql, values)


class NotedConnection(SQLiteConnection):
    """A connection whose cursors note what they execute."""

    def cursor(self, factory: Any = NotedCursor) -> Any:
        """A cursor that notes."""
        return super().cursor(factory)

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement by a cursor that notes."""
        cursor: sqlite3.Cursor = self.cursor().execute(sql, values)
        return cursor


class NotedFile(SQLiteFile, frozen=True):
    """A file of which is noted what is executed on it."""

    factory = NotedConnection


class NotedStore(SQLiteStore):
    """A store that notes the commands it is given."""

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        COMMANDS.append(command)
        return super().execute(command)


NOTED: list[str] = []
COMMANDS: list[Stored] = []

Calls: TypeAlias = "Iterator[tuple[str, Callable[[], object]]]"


def text() -> str:
    """The page."""
    with (
        TemporaryDirectory() as folder,
        closing(NotedStore(NotedFile(str(Path(folder) / "semel.db")))) as store,
    ):
        ran = list(_ran(store))
    return "".join([HEADER, POSTGRES, *_on_postgres(ran), SQLITE, *_on_sqlite(ran)])


def _ran(store: NotedStore) -> Iterator[Ran]:
    for title, call in _calls(Semel(store)):
        NOTED.clear()
        COMMANDS.clear()
        call()
        yield Ran(title, list(COMMANDS), list(NOTED))


def _calls(s: Semel) -> Calls:
    """What is done with the ledger, so that each call finds what it is about."""

    def claimed(key: str) -> Claimed:
        return cast("Claimed", s.ledger.claim(key))

    charge = s.once("charge:{order}")(_charge)
    charge("done")
    one, two, three = claimed("one"), claimed("two"), claimed("three")
    yield "claim", lambda: claimed("four")
    yield "renew", lambda: s.ledger.renew(one)
    yield "complete", lambda: s.ledger.complete(one, "result")
    yield "a claim that is refused, as by a completed record", lambda: s.ledger.claim("one")
    yield "replay of a protected function", lambda: charge("done")
    yield "fail", lambda: s.ledger.fail(two, ValueError())
    yield "release", lambda: s.ledger.release(three)
    yield "get", lambda: s.ledger.get("one")
    yield "list what is in doubt", s.ledger.doubts
    yield "reap", lambda: s.store.reap(LIMIT)  # type: ignore[attr-defined]


def _charge(order: str) -> str:
    return order


def _on_postgres(ran: Iterable[Ran]) -> Iterator[str]:
    steps = PostgresSteps(None, lambda: None)
    seen: set[str] = set()
    for title, commands, _ in ran:
        statements = [sql for command in commands for sql in _first(steps.of(command))]
        yield _section(title, [sql for sql in statements if sql not in seen])
        seen.update(statements)
    yield _section("reap", _first(steps.reap([LEDGER], LIMIT)))
    yield _section("the table", [change.sql for change in PostgresLayout(LEDGER).changes(NOTHING)])


def _first(steps: RoundTrips[Any]) -> list[str]:
    """The statements of the first round trip, which is mostly the only one."""
    return [sql.decode() for sql, _ in next(steps).statements]


def _on_sqlite(ran: Iterable[Ran]) -> Iterator[str]:
    for title, _, statements in ran:
        yield _section(title, statements)
    plan = SQLitePlan(LEDGER)
    yield _section("the table", [plan.definition(), *plan.indexes().values()])


def _section(title: str, statements: Iterable[str]) -> str:
    lines = "\n\n".join(_in_lines(sql.rstrip(";")) + ";" for sql in statements)
    return f"\n### {title}\n\n```sql\n{lines}\n```\n" if lines else ""


def _in_lines(sql: str) -> str:
    """A statement in lines, each as far to the right as it is deep in parentheses."""
    if "\n" in sql:
        return sql
    around = _parentheses(sql)
    breaks = [each.end() for each in BREAKS.finditer(sql) if min(around[each.start()], default=WIDTH) > SHORT]
    spans = zip([0, *breaks], [*breaks, len(sql)], strict=True)
    return "\n".join(_filled(sql[start:end].rstrip(), "  " * len(around[start])) for start, end in spans)


def _parentheses(sql: str) -> list[tuple[int, ...]]:
    """For each character the lengths of the parentheses around it."""
    around: list[tuple[int, ...]] = [()] * len(sql)
    opened: list[int] = []
    for place, character in enumerate(sql):
        if character == "(":
            opened.append(place)
        elif character == ")":
            start = opened.pop()
            for inside in range(start + 1, place):
                around[inside] += (place - start,)
    return around


def _filled(line: str, indent: str) -> str:
    whole = KEPT_TOGETHER.sub("\0", line)
    filled = fill(
        whole,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\0", " ")


if __name__ == "__main__":
    sys.stdout.write(text())
