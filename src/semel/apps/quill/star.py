"""Facts in a local SQLite file, for whoever has no Power BI."""

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from semel.apps.quill.events import Event
from semel.apps.quill.pace import Together
from semel.apps.quill.schema import FACTS, TABLES, Row, dimensions, fact, key_of

KINDS: Final = {"string": "TEXT", "DateTime": "TEXT", "Int64": "INTEGER"}

# Another process may be writing: it takes milliseconds, and a copy of the file a little longer.
BUSY_SECONDS: Final = 5.0

TOTALS: Final = f"""
SELECT agent, metric, date, count(*) FROM {FACTS}
WHERE date BETWEEN ? AND ? GROUP BY date, agent, metric ORDER BY date, agent, metric
"""  # noqa: S608 - a constant of this module


@dataclass(frozen=True)
class Total:
    """How much of one thing an agent did on a day."""

    agent: str
    metric: str
    date: str
    count: int


class Broken(Exception):
    """Whoever wrote for several was interrupted."""


class Star:
    """The star schema in a file. A row that is there is left as it is, so posting twice does nothing."""

    repeats = True
    most = 10_000

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        # Those who come while another's rows are written have theirs written together.
        self._facts: Together[Row] = Together(self._write_facts, lambda: self._lock, self.most, Broken)
        self._known: set[tuple[str, str]] = set()
        self._connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection.executescript(DDL)
        except BaseException:
            self._connection.close()
            raise

    def ensure(self, events: Sequence[Event]) -> None:
        """See to the rows that these events refer to."""
        rows = dimensions(events)
        missing = rows.keys() - self._known
        if missing:
            with self._lock:
                self._write((table, rows[table, name]) for table, name in sorted(missing))
            self._known |= missing

    def post(self, events: Sequence[Event]) -> None:
        """Add the events."""
        self._facts.send([fact(event) for event in events])

    def totals(self, since: date, until: date) -> list[Total]:
        """What was done on these days, the last included."""
        with self._lock, closing(self._connection.execute(TOTALS, (f"{since}", f"{until}"))) as found:
            return [Total(*row) for row in found]

    def _write_facts(self, rows: Sequence[Row]) -> None:
        self._write((FACTS, row) for row in rows)

    def _write(self, rows: Iterable[tuple[str, Row]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for table, row in rows:
                self._connection.execute(INSERT[table], tuple(row.values()))
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()


def _columns(table: str) -> str:
    kinds = [f"{name} {KINDS[kind]} NOT NULL" for name, kind in TABLES[table].items()]
    references = [
        f"FOREIGN KEY ({key_of(other)}) REFERENCES {other}"
        for other in TABLES
        if table == FACTS and other != FACTS
    ]
    return ", ".join([*kinds, f"PRIMARY KEY ({key_of(table)})", *references])


DDL: Final = "\n".join(
    [
        "PRAGMA journal_mode = WAL;",
        "PRAGMA synchronous = FULL;",
        "PRAGMA foreign_keys = ON;",
        *(f"CREATE TABLE IF NOT EXISTS {table} ({_columns(table)}) WITHOUT ROWID;" for table in TABLES),
        f"CREATE INDEX IF NOT EXISTS {FACTS}_by_date ON {FACTS} (date, agent, metric);",
    ]
)
INSERT: Final = {
    table: f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' for _ in columns)})"  # noqa: S608 - as above
    for table, columns in TABLES.items()
}
