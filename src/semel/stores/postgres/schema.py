"""The schema in the database: made by `migrate` or the text of `ddl`, and checked by the first command."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

import psycopg

from semel import errors
from semel.core.clock import Clock
from semel.core.commands import Query
from semel.core.drive import run_sync
from semel.model import PROVISION, Problem
from semel.stores.postgres.address import PostgresAddress, translating
from semel.stores.postgres.interpreter import RoundTrip, RoundTrips
from semel.stores.postgres.session import SyncSession, blocking, execute_on
from semel.stores.postgres.statements import (
    BELL,
    COLUMN_TYPES,
    QUERIES,
    PostgresRows,
    PostgresStatement,
    filled,
    qualified,
    realm,
)
from semel.stores.sql import PREFIX, UNUSUAL, listed, literal, missing_index, quoted
from semel.tables import OWN, Index, Table, optional_index

T = TypeVar("T")

# How long a store relies on having seen an optional index, which its owner may drop.
LOOK_SECONDS = 5.0
# The version of the schema that this release writes.
SCHEMA = 1
ANOTHER_PLACE = "this version of semel did not make it, so choose another schema or database"
META = PREFIX + "meta"
# PostgreSQL cuts longer names.
LONGEST_NAME = 63
# An index may take its time. Who waits for a lock keeps others waiting behind it, and gives up soon.
SETTINGS = ("SET LOCAL statement_timeout = 0;", "SET LOCAL lock_timeout = '10s';")


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


class PostgresSchema:
    """What a database is to have for an environment: semel's own tables, and others."""

    def __init__(
        self, address: PostgresAddress, env: str, tables: Iterable[Table] = (), clock: Clock | None = None
    ) -> None:
        self.passed: bool = False
        self.layouts: list[PostgresLayout] = layouts_of(tables)
        self._address = address
        self._env = env
        self._clock = clock or Clock()
        self._due_at = float("-inf")
        self._indexes: set[str] = set()

    # The first command

    def before(self, steps: RoundTrips[T]) -> RoundTrips[T]:
        """Check the database before these steps."""
        yield from self._check()
        return (yield from steps)

    def check_index(self, query: Query) -> RoundTrips[None]:
        """Refuse to ask an optional index that is not there; by now it may be."""
        table = query.table
        if table.index(query.index) not in table.optional_indexes:
            return
        title = PostgresLayout(table).index_title(query.index)
        if title not in self._indexes or self._clock.monotonic() >= self._due_at:
            yield from self._check()
            if title not in self._indexes:
                raise errors.NotProvisioned(table.name, query.index, self._provision())

    def _check(self) -> RoundTrips[None]:
        """Look at the database, and refuse one that is not as it has to be."""
        asked_at = self._clock.monotonic()
        state = yield from self._inspect()
        if state.encoding != "UTF8":
            raise errors.WrongSchema(_misencoded(state).what)
        self._check_stamp(state)
        at = f"PostgreSQL at {self._address.place}"
        missing = [layout.title for layout in self.layouts if layout.title not in state.columns]
        if state.environment is None or missing:
            lacking = ", ".join(missing) or META
            raise errors.TableMissing(f"{at} has no {lacking}; run: {self._provision()}")
        if wrong := [problem for layout in self.layouts for problem in self._misfits(layout, state)]:
            reasons = "; ".join(f"{problem.what}: {problem.remedy}" for problem in wrong)
            raise errors.WrongSchema(f"{at}: {reasons}")
        self._indexes = state.indexes
        self._due_at = asked_at + LOOK_SECONDS
        self.passed = True

    def _check_stamp(self, state: SchemaState) -> None:
        if state.version > SCHEMA:
            raise errors.SchemaTooNew(state.version, SCHEMA)
        if state.environment not in (None, self._env):
            raise errors.WrongEnvironment(state.environment, self._env)

    def _provision(self) -> str:
        """The command that makes these tables; semel's own it makes unasked."""
        named = [layout.table.name for layout in self.layouts if layout.table not in OWN]
        tables = "".join(f" --table {name}" for name in named)
        return f"semel provision --url {literal(self._address.shown)} --env {self._env}{tables}"

    def _inspect(self) -> RoundTrips[SchemaState]:
        """Look at a database. No query fails because something is missing, which would end a transaction."""
        titles = [*(layout.title for layout in self.layouts), META]
        names = [qualified(title, self._address.schema) for title in titles]
        asked: dict[str, list[Any]] = {
            "columns": [titles, names],
            "indexes": [names],
            "privileges": [titles[:-1], names[:-1]],
            "encoding": [],
        }
        queries: list[PostgresStatement] = [
            (QUERIES[name].encode(), values) for name, values in asked.items()
        ]
        columns, indexes, forbidden, encoding = yield RoundTrip(queries, commits=False)
        there: dict[str, dict[str, str]] = {}
        for title, name, kind in columns:
            there.setdefault(title, {})[name] = kind
        meta: list[Any] = []
        if META in there:
            [meta] = yield RoundTrip([(filled("meta", meta=names[-1]).encode(), [])], commits=False)
        return SchemaState(there, {name for (name,) in indexes}, dict(meta), encoding[0][0], forbidden)

    # Findings

    def state(self, connection: "psycopg.Connection[Any]") -> SchemaState:
        """Return what is there now."""
        return run_sync(self._inspect(), lambda round_trip: execute_on(connection, round_trip.statements))

    def problems(self, state: SchemaState) -> Iterator[Problem]:
        """Return what is wrong with a database."""
        if state.encoding != "UTF8":
            yield _misencoded(state)
        if state.version > SCHEMA:
            what = f"the schema has version {state.version}, and this semel knows {SCHEMA}"
            yield Problem(what, "upgrade semel")
        if state.environment is None:
            yield Problem("the schema is not stamped for any environment", PROVISION)
        elif state.environment != self._env:
            yield Problem(
                f"it belongs to environment {state.environment!r}, not to {self._env!r}",
                "open it for that environment, or name another schema or database",
            )
        for layout in self.layouts:
            yield from self._misfits(layout, state)
            for index in layout.indexes():
                if index not in state.indexes:
                    yield Problem(f"index {index} is missing", PROVISION)
        for title, privilege in state.forbidden:
            role = quoted(self._address.role) if self._address.role else "that role"
            grant = f"GRANT {privilege} ON {qualified(title, self._address.schema)} TO {role}"
            yield Problem(f"the role may not {privilege} in {title}", grant)

    def _misfits(self, layout: PostgresLayout, state: SchemaState) -> Iterator[Problem]:
        there = state.columns.get(layout.title)
        if there is None:
            yield Problem(f"table {layout.title} is missing", PROVISION)
            return
        for name, right in layout.columns().items():
            kind = there.get(name)
            if kind is None:
                yield Problem(f"table {layout.title} has no column {name}", ANOTHER_PLACE)
            elif kind != right:
                yield Problem(
                    f"column {name} of table {layout.title} is {kind} and not {right}",
                    f"ALTER TABLE {qualified(layout.title, self._address.schema)} "
                    f"ALTER COLUMN {quoted(name)} TYPE {right} USING {quoted(name)}::{right}",
                )

    # Making it

    def build(self, connection: "psycopg.Connection[Any]") -> list[str]:
        """Make everything that is missing, and return what that was."""
        with translating(self._address):
            return [*self._stamp(connection), *self._tables(connection)]

    def _stamp(self, connection: "psycopg.Connection[Any]") -> Iterator[str]:
        schema = self._address.schema
        with self._alone(connection):
            if schema is not None and not _asked(connection, "namespace", quoted(schema)):
                _run(connection, f"CREATE SCHEMA {quoted(schema)}")
                yield f"made schema {schema}"
            state = self.state(connection)
            self._check_stamp(state)
            if state.version < SCHEMA:
                _run(connection, QUERIES["create_meta"])
                _asked(connection, "stamp", str(SCHEMA), self._env)
                yield f"brought the schema to version {SCHEMA}, for environment {self._env!r}"

    def _tables(self, connection: "psycopg.Connection[Any]") -> Iterator[str]:
        for layout in self.layouts:
            with self._alone(connection):
                state = self.state(connection)
                if layout.title not in state.columns:
                    _run(connection, layout.definition())
                    yield f"made table {layout.title}"
                elif lacks := [
                    each.what for each in self._misfits(layout, state) if each.remedy == ANOTHER_PLACE
                ]:
                    raise errors.WrongSchema(f"{'; '.join(lacks)}: {ANOTHER_PLACE}")
                for index, statement in layout.indexes().items():
                    if index not in state.indexes:
                        _run(connection, statement)
                        yield f"made index {index}"

    @contextmanager
    def _alone(self, connection: "psycopg.Connection[Any]") -> Iterator[None]:
        """A transaction in which no other session changes the schema."""
        with connection.transaction():
            for setting in (*SETTINGS, *_search_path(self._address.schema)):
                _run(connection, setting)
            _asked(connection, "alone")
            yield


def _misencoded(state: SchemaState) -> Problem:
    return Problem(
        f"the database is encoded in {state.encoding}, and semel needs UTF8",
        "create another: createdb -E UTF8 -T template0 ...",
    )


def _search_path(schema: str | None) -> list[str]:
    return [] if schema is None else [f"SET LOCAL search_path = {quoted(schema)};"]


def _run(connection: "psycopg.Connection[Any]", sql: str) -> None:
    connection.execute(sql.encode())


def _asked(connection: "psycopg.Connection[Any]", name: str, *values: str) -> PostgresRows:
    return execute_on(connection, [(QUERIES[name].encode(), list(values))])[0]


@contextmanager
def _connected(address: PostgresAddress) -> "Iterator[psycopg.Connection[Any]]":
    session = blocking(SyncSession.open(address))  # which ends its connection as soon as it is gone
    with closing(session.connection), translating(address):
        yield session.connection


def problems(url: str, env: str, tables: Iterable[Table] = (), chosen: Iterable[str] = ()) -> list[Problem]:
    """What is wrong with a database, as far as semel is concerned; `chosen` are optional indexes."""
    address = PostgresAddress.from_url(url)
    schema = PostgresSchema(address, env, tables)
    with _connected(address) as connection:
        state = schema.state(connection)
    found = list(schema.problems(state))
    for name in chosen:
        table, _ = optional_index(name)
        if PostgresLayout(table).index_title(name) not in state.indexes:
            found.append(missing_index(table, name))
    return found


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
            return PostgresSchema(address, env, tables).build(connection)
    address = PostgresAddress("", f"{target.info.host}:{target.info.port}/{target.info.dbname}", schema)
    return PostgresSchema(address, env, tables).build(target)


def ddl(tables: Iterable[Table], env: str, schema: str | None = None, chosen: Iterable[str] = ()) -> str:
    """Return the whole schema as SQL, to run instead of `migrate`; running it again changes nothing.

    `chosen` are names of optional indexes; `choose` makes one without blocking writers, which no transaction
    can.
    """
    lines = ["BEGIN;", *SETTINGS, QUERIES["alone"] + ";"]
    if schema is not None:
        lines += [f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};", *_search_path(schema)]
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
        _run(connection, "SET statement_timeout = 0")
        done = [did for name in chosen for did in _make_index(connection, address.schema, name, say)]
        for name in dropped:
            title = PostgresLayout(optional_index(name)[0]).index_title(name)
            qualified_title = qualified(title, address.schema)
            if _asked(connection, "valid", qualified_title):
                _run(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {qualified_title}")
                done.append(f"dropped index {title}")
        return done


def _make_index(
    connection: "psycopg.Connection[Any]", schema: str | None, name: str, say: Callable[[str], None]
) -> Iterator[str]:
    table, index = optional_index(name)
    layout = PostgresLayout(table)
    title, on = layout.index_title(name), qualified(layout.title, schema)
    if _asked(connection, "valid", qualified(title, schema)) == [(True,)]:
        return
    say(f"Making index {title}; it waits for transactions that are open ...")
    # One that was left unfinished is there, and cannot be used.
    _run(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {qualified(title, schema)}")
    _run(connection, layout.optional_index(index, on, "CREATE INDEX CONCURRENTLY"))
    if _asked(connection, "valid", qualified(title, schema)) != [(True,)]:
        raise errors.WrongSchema(f"index {title} is being made by somebody else: run this again when it is")
    # Without it the server guesses how many rows each scope has. On a new table it would be taught that
    # there are none, and read the whole of it for each claim until it learns better.
    if _asked(connection, "analyzed", on) == [(True,)]:
        _run(connection, f"ANALYZE {on}")
    yield f"made index {title}"


def layouts_of(tables: Iterable[Table]) -> list[PostgresLayout]:
    """The layouts of semel's own tables and of these."""
    return [PostgresLayout(table) for table in {table.name: table for table in (*OWN, *tables)}.values()]
