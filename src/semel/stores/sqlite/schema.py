"""The schema of the file: its tables and indexes, its version, and the environment that it belongs to."""

import shlex
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from semel import errors
from semel.core.commands import Query
from semel.core.sockets import ANSWER_SECONDS
from semel.stores.choices import named, refuse_unchosen
from semel.stores.sql import PREFIX, quoted
from semel.stores.sqlite.errors import code_of
from semel.stores.sqlite.plan import SQLitePlan
from semel.tables import Choice

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


def has_choice(connection: sqlite3.Connection, plan: SQLitePlan, choice: Choice) -> bool:
    """Whether the file has an index that its owner may choose."""
    name, _ = plan.choice(choice.index)
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def check_choice(connection: sqlite3.Connection, plan: SQLitePlan, query: Query) -> None:
    """Refuse to ask an index that the file's owner has not chosen."""
    choice = plan.table.choice(query.index)
    if choice is not None and not has_choice(connection, plan, choice):
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        url, env = shlex.quote(f"sqlite:///{path}"), meta_of(connection).get("environment")
        refuse_unchosen(query, choice, f"semel provision --url {url} --env {env}")


def choose(connection: sqlite3.Connection, chosen: Iterable[str], dropped: Iterable[str]) -> Iterator[str]:
    """Make the indexes that are chosen and drop the others, as far as that is to be done; what was done."""
    for name, wanted in [*((name, True) for name in chosen), *((name, False) for name in dropped)]:
        table, choice = named(name)
        plan = SQLitePlan(table)
        if has_choice(connection, plan, choice) is wanted:
            continue
        title, statement = plan.choice(choice.index)
        connection.execute(statement if wanted else f"DROP INDEX IF EXISTS {quoted(title)}")
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
