"""The schema in the database: made by `migrate` or the text of `ddl`, and checked by the first command."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg import RawCursor

from semel import errors
from semel.core.clock import Clock
from semel.core.commands import Query
from semel.core.drive import run_sync
from semel.model import PROVISION, Problem
from semel.stores.postgres.address import DRIVER_ERRORS, PostgresAddress, translated
from semel.stores.postgres.interpreter import RoundTrip, RoundTrips
from semel.stores.postgres.session import SyncSession, blocking, execute_on
from semel.stores.postgres.statements import (
    BELL,
    COLUMN_TYPES,
    QUERIES,
    PostgresStatement,
    filled,
    qualified,
    realm,
)
from semel.stores.sql import PREFIX, UNUSUAL, listed, literal, missing_index, quoted
from semel.tables import OWN, Index, Table, optional_index

# How long a store relies on having seen an optional index, which its owner may drop.
LOOK_SECONDS = 5.0
# The version of the schema that this release writes.
SCHEMA = 1
ANOTHER_PLACE = "this version of semel did not make it, so choose another schema or database"
META = PREFIX + "meta"
# PostgreSQL cuts longer names.
LONGEST_NAME = 63


class PostgresLayout:
    """How a table is laid out: its definition, its indexes, and what a database lacks of it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.title: str = PREFIX + table.name
        self._needed = (*table.key, table.expires)
        self._types = {name: COLUMN_TYPES[kind] for name, kind in table.kinds.items()}

    def columns(self) -> dict[str, str]:
        """Return the columns with their types, as the catalog has them."""
        types = {name: kind.removesuffix(' COLLATE "C"') for name, kind in self._types.items()}
        return types | {BELL: "smallint"}

    def definition(self) -> str:
        """Return the statement that makes the table if there is none."""
        lines = [
            f"{quoted(name)} {kind}{' NOT NULL' if name in self._needed else ''}"
            for name, kind in self._types.items()
        ]
        lines += [f"{BELL} smallint NOT NULL DEFAULT 0", f"PRIMARY KEY ({listed(self.table.key)})"]
        body = ",\n    ".join(lines)
        return f"CREATE TABLE IF NOT EXISTS {quoted(self.title)} (\n    {body}\n);"

    def indexes(self) -> dict[str, str]:
        """Return the statements that make its indexes if they are missing, by their names."""
        table = self.table
        made = [self._index(table.expires, (table.expires,))]
        for name in table.listed_by:
            unusual = [UNUSUAL[name]] if name in UNUSUAL else []
            made.append(self._index("_".join((name, *table.key)), (name, *table.key), unusual))
        for index in table.indexes:
            # A row that lacks one of them is not in it, and costs nothing.
            there = [f"{quoted(name)} IS NOT NULL" for name in index.key if name not in self._needed]
            made.append(self._index(index.name, (*index.key, *table.key), there))
        return dict(made)

    def optional_index(self, index: Index, on: str, make: str = "CREATE INDEX") -> str:
        """Return the statement that makes an optional index if it is missing."""
        columns = [realm(quoted(index.partition)) if index.by_realm else quoted(index.partition)]
        columns += [quoted(name) for name in (index.sort, *self.table.key) if name is not None]
        return f"{make} IF NOT EXISTS {quoted(self.index_title(index.name))} ON {on} ({', '.join(columns)})"

    def index_title(self, name: str) -> str:
        """Return what an index of this name is called in the database."""
        return f"{self.title}_{name}".encode()[:LONGEST_NAME].decode(errors="ignore")

    def _index(self, name: str, columns: tuple[str, ...], only: Sequence[str] = ()) -> tuple[str, str]:
        """The name of an index, and its statement. With the key at its end it has the order of pages."""
        title = self.index_title(name)
        where = f" WHERE {' AND '.join(only)}" if only else ""
        on = f"{quoted(self.title)} ({listed(tuple(dict.fromkeys(columns)))}){where}"
        return title, f"CREATE INDEX IF NOT EXISTS {quoted(title)} ON {on};"

    def missing(self, state: "SchemaState") -> list[str]:
        """Return the columns that are not there."""
        return [name for name in self.columns() if name not in state.columns.get(self.title, {})]

    def changes(self, state: "SchemaState") -> Iterator[tuple[str, str]]:
        """Return what there is to do, each as a sentence and its statement."""
        if self.title not in state.columns:
            yield f"made table {self.title}", self.definition()
        for index, statement in self.indexes().items():
            if index not in state.indexes:
                yield f"made index {index}", statement


class SchemaState(NamedTuple):
    """What was found in a database: the columns of its tables with their types, indexes, and its stamp."""

    columns: dict[str, dict[str, str]]
    indexes: set[str]
    meta: dict[str, str]
    encoding: str
    forbidden: list[tuple[Any, ...]]

    @property
    def version(self) -> int:
        """The version of the schema; 0 if there is none."""
        return int(self.meta.get("schema", 0))

    @property
    def environment(self) -> str | None:
        """The environment it belongs to."""
        return self.meta.get("environment")


def inspect(layouts: Sequence[PostgresLayout], schema: str | None) -> RoundTrips[SchemaState]:
    """Look at a database. No query fails because something is missing, which would end a transaction."""
    titles = [*(layout.title for layout in layouts), META]
    names = [qualified(title, schema) for title in titles]
    asked: dict[str, list[Any]] = {
        "columns": [titles, names],
        "indexes": [names],
        "privileges": [titles[:-1], names[:-1]],
        "encoding": [],
    }
    queries: list[PostgresStatement] = [(QUERIES[name].encode(), values) for name, values in asked.items()]
    columns, indexes, forbidden, encoding = yield RoundTrip(queries, commits=False)
    there: dict[str, dict[str, str]] = {}
    for title, name, kind in columns:
        there.setdefault(title, {})[name] = kind
    meta: list[Any] = []
    if META in there:
        [meta] = yield RoundTrip([(filled("meta", meta=names[-1]).encode(), [])], commits=False)
    return SchemaState(there, {name for (name,) in indexes}, dict(meta), encoding[0][0], forbidden)


def check(state: SchemaState, layouts: Sequence[PostgresLayout], env: str, address: PostgresAddress) -> None:
    """Refuse to work on what is not as it should be."""
    if state.encoding != "UTF8":
        raise errors.WrongSchema(_misencoded(state).what)
    _check_stamp(state, env)
    missing = [layout.title for layout in layouts if layout.title not in state.columns]
    if state.environment is None or missing:
        lacking, command = ", ".join(missing) or META, _provision(address, env, layouts)
        raise errors.TableMissing(f"PostgreSQL at {address.place} has no {lacking}; run: {command}")
    wrong = [problem for layout in layouts for problem in _misfits(layout, state, address.schema)]
    if wrong:
        reasons = "; ".join(f"{problem.what}: {problem.remedy}" for problem in wrong)
        raise errors.WrongSchema(f"PostgreSQL at {address.place}: {reasons}")


def _provision(address: PostgresAddress, env: str, layouts: Iterable[PostgresLayout] = ()) -> str:
    """The command that makes these tables; semel's own it makes unasked."""
    named = [layout.table.name for layout in layouts if layout.table not in OWN]
    tables = "".join(f" --table {name}" for name in named)
    return f"semel provision --url {literal(address.shown)} --env {env}{tables}"


class SchemaCheck:
    """What a store knows of its database: checked by the first command."""

    def __init__(
        self, layouts: Sequence[PostgresLayout], env: str, address: PostgresAddress, clock: Clock
    ) -> None:
        self.passed: bool = False
        self._layouts = layouts
        self._env = env
        self._address = address
        self._clock = clock
        self._due_at = float("-inf")
        self._indexes: set[str] = set()

    def look(self) -> RoundTrips[None]:
        """Look at the database, and refuse one that is not as it has to be."""
        asked_at = self._clock.monotonic()
        state = yield from inspect(self._layouts, self._address.schema)
        check(state, self._layouts, self._env, self._address)
        self._indexes = state.indexes
        self._due_at = asked_at + LOOK_SECONDS
        self.passed = True

    def check_index(self, query: Query) -> RoundTrips[None]:
        """Refuse to ask an optional index that is not there; by now it may be."""
        table = query.table
        if table.index(query.index) not in table.optional_indexes:
            return
        title = PostgresLayout(table).index_title(query.index)
        if title not in self._indexes or self._clock.monotonic() >= self._due_at:
            yield from self.look()
            if title not in self._indexes:
                command = _provision(self._address, self._env, self._layouts)
                raise errors.NotProvisioned(table.name, query.index, command)


# Findings


def problems(url: str, env: str, tables: Iterable[Table] = (), chosen: Iterable[str] = ()) -> list[Problem]:
    """What is wrong with a database, as far as semel is concerned; `chosen` are optional indexes."""
    address = PostgresAddress.from_url(url)
    layouts = layouts_of(tables)
    with _connected(address) as connection:
        state = SchemaBuilder(connection, env, layouts, address, address.schema).state()
    return [*_problems(state, layouts, env, address), *_unchosen(state, chosen)]


def _unchosen(state: SchemaState, chosen: Iterable[str]) -> Iterator[Problem]:
    for name in chosen:
        table, _ = optional_index(name)
        if PostgresLayout(table).index_title(name) not in state.indexes:
            yield missing_index(table, name)


def _problems(
    state: SchemaState, layouts: Sequence[PostgresLayout], env: str, address: PostgresAddress
) -> Iterator[Problem]:
    if state.encoding != "UTF8":
        yield _misencoded(state)
    if state.version > SCHEMA:
        what = f"the schema has version {state.version}, and this semel knows {SCHEMA}"
        yield Problem(what, "upgrade semel")
    if state.environment is None:
        yield Problem("the schema is not stamped for any environment", PROVISION)
    if state.environment not in (None, env):
        yield Problem(
            f"it belongs to environment {state.environment!r}, not to {env!r}",
            "open it for that environment, or name another schema or database",
        )
    for layout in layouts:
        yield from _misfits(layout, state, address.schema)
        for index in layout.indexes():
            if index not in state.indexes:
                yield Problem(f"index {index} is missing", PROVISION)
    for title, privilege in state.forbidden:
        role = quoted(address.role) if address.role else "that role"
        grant = f"GRANT {privilege} ON {qualified(title, address.schema)} TO {role}"
        yield Problem(f"the role may not {privilege} in {title}", grant)


def _misfits(layout: PostgresLayout, state: SchemaState, schema: str | None) -> Iterator[Problem]:
    """What a table lacks, or has otherwise."""
    if layout.title not in state.columns:
        yield Problem(f"table {layout.title} is missing", PROVISION)
        return
    for name in layout.missing(state):
        yield Problem(f"table {layout.title} has no column {name}", ANOTHER_PLACE)
    there = state.columns[layout.title]
    for name, right in layout.columns().items():
        kind = there.get(name, right)
        if kind == right:
            continue
        yield Problem(
            f"column {name} of table {layout.title} is {kind} and not {right}",
            f"ALTER TABLE {qualified(layout.title, schema)} ALTER COLUMN {quoted(name)} TYPE {right} "
            f"USING {quoted(name)}::{right}",
        )


def _misencoded(state: SchemaState) -> Problem:
    return Problem(
        f"the database is encoded in {state.encoding}, and semel needs UTF8",
        "create another: createdb -E UTF8 -T template0 ...",
    )


# Making it


def migrate(
    target: "str | psycopg.Connection[Any]",
    env: str,
    tables: Iterable[Table] = (),
    schema: str | None = None,
) -> list[str]:
    """Make what a database lacks of the schema, and return what was done.

    `target` is a URL, whose `schema=` counts, or a connection. Others may be doing the same at the same time.
    """
    if isinstance(target, str):
        address = PostgresAddress.from_url(target)
        with _connected(address) as connection:
            return SchemaBuilder(connection, env, layouts_of(tables), address, address.schema).build()
    address = PostgresAddress("", f"{target.info.host}:{target.info.port}/{target.info.dbname}")
    return SchemaBuilder(target, env, layouts_of(tables), address, schema).build()


class SchemaBuilder(NamedTuple):
    """A database, and what it is to have."""

    connection: "psycopg.Connection[Any]"
    env: str
    layouts: Sequence[PostgresLayout]
    address: PostgresAddress
    schema: str | None

    def build(self) -> list[str]:
        """Make everything that is missing, and return what that was."""
        try:
            return [*self._namespace(), *self._stamp(), *self._tables()]
        except DRIVER_ERRORS as error:
            raise translated(error, self.address) from error

    def _namespace(self) -> Iterator[str]:
        if self.schema is None:
            return
        with _alone(self.connection, None):
            if not _asked(self.connection, "namespace", [quoted(self.schema)]):
                _run(self.connection, f"CREATE SCHEMA {quoted(self.schema)}")
                yield f"made schema {self.schema}"

    def _stamp(self) -> Iterator[str]:
        with _alone(self.connection, self.schema):
            state = self.state()
            _check_stamp(state, self.env)
            if state.version < SCHEMA:
                _run(self.connection, QUERIES["create_meta"])
                _asked(self.connection, "stamp", [str(SCHEMA), self.env])
                yield f"brought the schema to version {SCHEMA}, for environment {self.env!r}"

    def _tables(self) -> Iterator[str]:
        for layout in self.layouts:
            with _alone(self.connection, self.schema):
                state = self.state()
                if layout.title in state.columns and (missing := layout.missing(state)):
                    columns = ", ".join(missing)
                    raise errors.WrongSchema(f"table {layout.title} has no column {columns}: {ANOTHER_PLACE}")
                for what, sql in layout.changes(state):
                    _run(self.connection, sql)
                    yield what

    def state(self) -> SchemaState:
        """Return what is there now."""
        steps = inspect(self.layouts, self.schema)
        try:
            return run_sync(steps, lambda round_trip: execute_on(self.connection, round_trip.statements))
        except DRIVER_ERRORS as error:
            raise translated(error, self.address) from error


def _check_stamp(state: SchemaState, env: str) -> None:
    if state.version > SCHEMA:
        raise errors.SchemaTooNew(state.version, SCHEMA)
    if state.environment not in (None, env):
        raise errors.WrongEnvironment(state.environment, env)


@contextmanager
def _alone(connection: "psycopg.Connection[Any]", schema: str | None) -> Iterator[None]:
    """A transaction in which no other session changes the schema."""
    with connection.transaction():
        for setting in _settings(schema):
            _run(connection, setting)
        _asked(connection, "alone", [])
        yield


def _settings(schema: str | None) -> list[str]:
    """An index may take its time. Who waits for a lock keeps others waiting behind it, and gives up soon."""
    settings = ["SET LOCAL statement_timeout = 0;", "SET LOCAL lock_timeout = '10s';"]
    return settings if schema is None else [*settings, f"SET LOCAL search_path = {quoted(schema)};"]


def _run(connection: "psycopg.Connection[Any]", sql: str) -> None:
    connection.execute(sql.encode())


def _asked(connection: "psycopg.Connection[Any]", name: str, values: list[Any]) -> int:
    """Make one of the queries; how many rows it gave or wrote."""
    return RawCursor(connection).execute(QUERIES[name].encode(), values).rowcount


@contextmanager
def _connected(address: PostgresAddress) -> "Iterator[psycopg.Connection[Any]]":
    session = blocking(SyncSession.open(address))
    with closing(session.connection):
        yield session.connection


def ddl(tables: Iterable[Table], env: str, schema: str | None = None, chosen: Iterable[str] = ()) -> str:
    """Return the whole schema as SQL, to run instead of `migrate`; running it again changes nothing.

    `chosen` are names of optional indexes; `choose` makes one without blocking writers, which no transaction
    can.
    """
    lines = ["BEGIN;", *_settings(None), QUERIES["alone"] + ";"]
    if schema is not None:
        lines += [f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};", _settings(schema)[-1]]
    lines.append(QUERIES["create_meta"])
    for layout in layouts_of(tables):
        lines += [layout.definition(), *layout.indexes().values()]
    for table, index in map(optional_index, chosen):
        layout = PostgresLayout(table)
        lines.append(layout.optional_index(index, quoted(layout.title)) + ";")
    stamp = QUERIES["stamp"].replace("$1", literal(str(SCHEMA))).replace("$2", literal(env))
    return "\n\n".join([*lines, stamp + ";", "COMMIT;"]) + "\n"


# Optional indexes


def choose(
    url: str, chosen: Iterable[str], dropped: Iterable[str], say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Make optional indexes and drop others, while everybody works; return what was done."""
    address = PostgresAddress.from_url(url)
    with _connected(address) as connection:
        connection.autocommit = True
        try:
            _run(connection, "SET statement_timeout = 0")
            made = [did for name in chosen for did in _make_index(connection, address.schema, name, say)]
            return made + [did for name in dropped for did in _drop_index(connection, address.schema, name)]
        except DRIVER_ERRORS as error:
            raise translated(error, address) from error


def _make_index(
    connection: "psycopg.Connection[Any]", schema: str | None, name: str, say: Callable[[str], None]
) -> Iterator[str]:
    table, index = optional_index(name)
    layout = PostgresLayout(table)
    title, on = layout.index_title(name), qualified(layout.title, schema)
    if _tells(connection, "valid", qualified(title, schema)):
        return
    say(f"Making index {title}; it waits for transactions that are open ...")
    # One that was left unfinished is there, and cannot be used.
    _run(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {qualified(title, schema)}")
    _run(connection, layout.optional_index(index, on, "CREATE INDEX CONCURRENTLY"))
    if not _tells(connection, "valid", qualified(title, schema)):
        raise errors.WrongSchema(f"index {title} is being made by somebody else: run this again when it is")
    # Without it the server guesses how many rows each scope has. On a new table it would be taught that
    # there are none, and read the whole of it for each claim until it learns better.
    if _tells(connection, "analyzed", on):
        _run(connection, f"ANALYZE {on}")
    yield f"made index {title}"


def _drop_index(connection: "psycopg.Connection[Any]", schema: str | None, name: str) -> Iterator[str]:
    title = PostgresLayout(optional_index(name)[0]).index_title(name)
    if _asked(connection, "valid", [qualified(title, schema)]):
        _run(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {qualified(title, schema)}")
        yield f"dropped index {title}"


def _tells(connection: "psycopg.Connection[Any]", name: str, about: str) -> bool:
    """Whether a query answers yes about a table or an index."""
    found = RawCursor(connection).execute(QUERIES[name].encode(), [about]).fetchone()
    return found is not None and bool(found[0])


def layouts_of(tables: Iterable[Table]) -> list[PostgresLayout]:
    """The layouts of semel's own tables and of these."""
    return [PostgresLayout(table) for table in {table.name: table for table in (*OWN, *tables)}.values()]
