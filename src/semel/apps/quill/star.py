"""Facts in a local SQLite file, for whoever has no Power BI."""

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from semel.apps.client import RequestRefused
from semel.apps.quill.rate_limiter import RequestCombiner
from semel.apps.quill.schema import DEFAULT, Fact, FactRow, StarSchema, dimensions
from semel.stores.sqlite.file import make_private

NAME: Final = "the local file"

KINDS: Final = {
    "string": "TEXT",
    "DateTime": "TEXT",
    "Int64": "INTEGER",
    "Double": "REAL",
    "bool": "INTEGER",
}

# Another process may be writing: it takes milliseconds, and a copy of the file a little longer.
BUSY_SECONDS: Final = 5.0

PRAGMAS: Final = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"

# What totals are told by.
COUNTED: Final = ("date", "agent", "metric")


@dataclass(frozen=True)
class Total:
    """How much of one thing an agent did on a day."""

    agent: str
    metric: str
    date: str
    count: int


class WriteInterrupted(Exception):
    """Whoever wrote for several was interrupted."""


class OtherTables(Exception):
    """The file has tables of the same names with other columns."""


class Star:
    """The star schema in a file. A row that is there is left as it is, so posting twice does nothing."""

    repeats = True
    most = 10_000

    def __init__(self, path: str | Path, schema: StarSchema = DEFAULT) -> None:
        self._lock = threading.Lock()
        # Those who come while another's rows are written have theirs written together.
        self._facts: RequestCombiner[Fact, object] = RequestCombiner(
            self._write_facts, lambda: self._lock, self.most, WriteInterrupted
        )
        self._known: set[tuple[str, str]] = set()
        self._schema = schema
        self._inserts = {table: _insert(table, columns) for table, columns in schema.tables.items()}
        self._totals = _totals(schema)
        if str(path) != ":memory:":
            make_private(path)
        self._connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection.executescript("\n".join([PRAGMAS, *_ddl(schema)]))
            self._check()
        except BaseException:
            self._connection.close()
            raise

    def _check(self) -> None:
        for table, columns in self._schema.tables.items():
            found = [row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')]
            if found != list(columns):
                raise OtherTables(f"its {table} has the columns {', '.join(found)}")

    @property
    def counts(self) -> bool:
        """Whether there are totals: a table of facts with an agent, a metric and a date."""
        return bool(self._totals)

    def check(self) -> None:
        """There is always room in a file."""

    def ensure(self, facts: Sequence[Fact]) -> None:
        """See to the rows that these facts refer to."""
        rows = dimensions(facts)
        missing = rows.keys() - self._known
        if missing:
            with self._lock:
                self._write((table, rows[table, name]) for table, name in sorted(missing))
            self._known |= missing

    def post(self, facts: Sequence[Fact]) -> None:
        """Add the facts."""
        self._facts.send(facts)

    def totals(self, since: date, until: date) -> list[Total]:
        """What was done on these days, the last included."""
        days = {"since": f"{since}", "until": f"{until}"}
        with self._lock, closing(self._connection.execute(self._totals, days)) as found:
            return [Total(*row) for row in found]

    def _write_facts(self, facts: Sequence[Fact], _turn: object) -> None:
        self._write((fact.table, fact.row) for fact in facts)

    def _write(self, rows: Iterable[tuple[str, FactRow]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for table, row in rows:
                self._connection.execute(*self._insert(table, row))
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    def _insert(self, table: str, row: FactRow) -> tuple[str, list[object]]:
        columns = self._schema.tables.get(table, {})
        if row.keys() != columns.keys():
            # It was read while something else was declared, and has waited since.
            raise RequestRefused(NAME, f"has no table {table} with these columns")
        return self._inserts[table], [row[name] for name in columns]

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()


# Names are those of this module or were checked when they were declared.


def _ddl(schema: StarSchema) -> Iterable[str]:
    for table, columns in schema.tables.items():
        kinds = [f'"{name}" {KINDS[kind]} NOT NULL' for name, kind in columns.items()]
        references = [
            f'FOREIGN KEY ("{schema.key_of(other)}") REFERENCES "{other}"'
            for other in schema.refers.get(table, ())
        ]
        described = ", ".join([*kinds, f'PRIMARY KEY ("{schema.key_of(table)}")', *references])
        yield f'CREATE TABLE IF NOT EXISTS "{table}" ({described}) WITHOUT ROWID;'
    for table in _counted(schema):
        yield f'CREATE INDEX IF NOT EXISTS "{table}_by_date" ON "{table}" ({", ".join(COUNTED)});'


def _insert(table: str, columns: Iterable[str]) -> str:
    return f'INSERT OR IGNORE INTO "{table}" VALUES ({", ".join("?" for _ in columns)})'  # noqa: S608 - as above


def _totals(schema: StarSchema) -> str:
    """The statement that counts facts, where there are some to count."""
    counted = ", ".join(COUNTED)
    tables = [f'SELECT {counted} FROM "{table}"' for table in _counted(schema)]  # noqa: S608 - as above
    if not tables:
        return ""
    return (
        f"SELECT agent, metric, date, count(*) FROM ({' UNION ALL '.join(tables)})"  # noqa: S608 - as above
        f" WHERE date BETWEEN :since AND :until GROUP BY {counted} ORDER BY {counted}"
    )


def _counted(schema: StarSchema) -> list[str]:
    return [table for table, columns in schema.facts.items() if columns.keys() >= set(COUNTED)]
