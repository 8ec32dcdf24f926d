"""The schema of the file: its tables and indexes, its version, and the environment that it belongs to."""

import shlex
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from semel import errors
from semel.core.commands import Query
from semel.core.connections import ANSWER_SECONDS
from semel.stores.sql import PREFIX, quoted
from semel.stores.sqlite.errors import code_of
from semel.stores.sqlite.plan import SQLitePlan
from semel.tables import optional_index

META = quoted(PREFIX + "meta")
# The version of the schema that this release writes.
SCHEMA = 1

# How long after a refusal the change to WAL is tried again: SQLite gives up at once where two change it.
WAL_RETRY_SECONDS = 0.01


def lay_out(connection: sqlite3.Connection, plan: SQLitePlan) -> None:
    """Make a table, and what it lacks of indexes."""
    connection.execute(plan.definition())
    if missing := plan.kinds.keys() - _columns(connection, plan):
        raise errors.WrongSchema(
            f"table {plan.name} has no column {', '.join(sorted(missing))}, so this version of semel did not "
            "make it: open another file"
        )
    for statement in plan.indexes().values():
        connection.execute(statement)


def complete(connection: sqlite3.Connection, plan: SQLitePlan) -> bool:
    """Whether the file has all of a table."""
    # Only what reads the file makes a connection notice that its schema was changed; a PRAGMA does not.
    connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    indexes = {row[1] for row in connection.execute(f"PRAGMA index_list({plan.name})")}
    return plan.kinds.keys() <= _columns(connection, plan) and plan.indexes().keys() <= indexes


def has_index(connection: sqlite3.Connection, title: str) -> bool:
    """Whether the file has an index of this name."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (title,)).fetchone() is not None


def check_index(connection: sqlite3.Connection, plan: SQLitePlan, query: Query) -> None:
    """Refuse to ask an optional index that is not there."""
    index = plan.table.index(query.index)
    if index in plan.table.optional_indexes and not has_index(connection, plan.index_title(index.name)):
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        url, env = shlex.quote(f"sqlite:///{path}"), meta_of(connection).get("environment")
        raise errors.NotProvisioned(query.table.name, index.name, f"semel provision --url {url} --env {env}")


def choose(connection: sqlite3.Connection, chosen: Iterable[str], dropped: Iterable[str]) -> Iterator[str]:
    """Make optional indexes and drop others, as far as that is to be done; what was done."""
    for name, wanted in [*((name, True) for name in chosen), *((name, False) for name in dropped)]:
        table, index = optional_index(name)
        plan = SQLitePlan(table)
        title = plan.index_title(name)
        if has_index(connection, title) is not wanted:
            connection.execute(plan.optional_index(index) if wanted else f"DROP INDEX {quoted(title)}")
            yield f"{'made' if wanted else 'dropped'} index {title}"


def _columns(connection: sqlite3.Connection, plan: SQLitePlan) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({plan.name})")}


def prepare(connection: sqlite3.Connection, env: str, timeout: float = ANSWER_SECONDS) -> None:
    """Stamp a new file, though others may be doing so at the same time; refuse one that is not for `env`."""
    _use_wal(connection, timeout)
    if _stamped(connection, env):
        return
    with transaction(connection):
        # Another process may have been faster: look again, now that no other one can be.
        if not _stamped(connection, env):
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {META} (name TEXT PRIMARY KEY, value) WITHOUT ROWID"
            )
            stamp = [("schema", SCHEMA), ("environment", env)]
            connection.executemany(f"REPLACE INTO {META} VALUES (?, ?)", stamp)


def _stamped(connection: sqlite3.Connection, env: str) -> bool:
    meta = meta_of(connection)
    schema, stamped = meta.get("schema", 0), meta.get("environment")
    if schema > SCHEMA:
        raise errors.SchemaTooNew(schema, SCHEMA)
    if stamped not in (None, env):
        raise errors.WrongEnvironment(stamped, env)
    return schema == SCHEMA and stamped is not None


def meta_of(connection: sqlite3.Connection) -> dict[str, Any]:
    """Read what the file says of itself: its schema, and its environment."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'semel_meta'").fetchone():
        return {}
    return dict(connection.execute(f"SELECT name, value FROM {META}"))


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
