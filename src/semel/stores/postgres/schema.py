"""The schema in the database: made by `migrate` or the text of `ddl`, and checked by the first command."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from typing import Any, NamedTuple

import psycopg
from psycopg import RawCursor

from semel import errors
from semel.core.clock import Clock
from semel.model import PROVISION, Problem
from semel.stores.postgres.address import PostgresAddress
from semel.stores.postgres.errors import DRIVER_ERRORS, translated, unreachable
from semel.stores.postgres.interpreter import RoundTrip, RoundTrips
from semel.stores.postgres.layout import NOTHING, Catalog, PostgresLayout
from semel.stores.postgres.pool import PostgresSession, run
from semel.stores.postgres.statements import PREFIX, PostgresStatement, qualified
from semel.stores.postgres.values import literal, quoted
from semel.tables import OWN, Table

META = PREFIX + "meta"

_FOLDER = files(__package__) / "schema"


def _queries() -> dict[str, str]:
    """The queries of `queries.sql` by their names."""
    parts = re.split(r"^-- name: (\w+)\n", (_FOLDER / "queries.sql").read_text("utf-8"), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _migrations() -> tuple[str, ...]:
    """The first makes schema 1 of none, and so on. One that was released is never changed."""
    names = sorted(path.name for path in _FOLDER.iterdir() if re.fullmatch(r"\d{4}\.sql", path.name))
    return tuple((_FOLDER / name).read_text("utf-8") for name in names)


QUERIES = _queries()
MIGRATIONS = _migrations()


class SchemaState(NamedTuple):
    """What was found in a database."""

    found: Catalog
    meta: dict[str, str] | None
    encoding: str
    forbidden: list[tuple[str, str]]

    @property
    def version(self) -> int:
        """The version of the schema; 0 where there is none."""
        return int((self.meta or {}).get("schema", 0))

    @property
    def environment(self) -> str | None:
        """The environment it belongs to."""
        return (self.meta or {}).get("environment")


def inspect(layouts: Sequence[PostgresLayout], schema: str | None) -> RoundTrips[SchemaState]:
    """Look at a database. No question fails because something is missing, which would end a transaction."""
    titles = [*(layout.title for layout in layouts), META]
    names = [qualified(title, schema) for title in titles]
    columns, indexes, forbidden, encoding = yield _round_trip(
        ("columns", [titles, names]),
        ("indexes", [names]),
        ("privileges", [titles[:-1], names[:-1]]),
        ("encoding", []),
    )
    there: dict[str, dict[str, str]] = {}
    for title, name, kind in columns:
        there.setdefault(title, {})[name] = kind
    meta: dict[str, str] | None = None
    if META in there:
        [rows] = yield RoundTrip([(QUERIES["meta"].format(meta=names[-1]).encode(), [])], commits=False)
        meta = dict(rows)
    indexed = {name for (name,) in indexes}
    return SchemaState(
        Catalog(there, indexed), meta, encoding[0][0], [(title, may) for title, may in forbidden]
    )


def _round_trip(*asked: tuple[str, list[Any]]) -> RoundTrip:
    statements: list[PostgresStatement] = [(QUERIES[name].encode(), values) for name, values in asked]
    return RoundTrip(statements, commits=False)


def check(state: SchemaState, layouts: Sequence[PostgresLayout], env: str, address: PostgresAddress) -> None:
    """Refuse to work on what is not as it should be."""
    if state.encoding != "UTF8":
        raise errors.WrongSchema(_misencoded(state).what)
    if state.version > len(MIGRATIONS):
        raise errors.SchemaTooNew(state.version, len(MIGRATIONS))
    if state.environment not in (None, env):
        raise errors.WrongEnvironment(state.environment, env)
    missing = [layout.title for layout in layouts if layout.title not in state.found.columns]
    remedy = _provision(address, env, layouts)
    if state.environment is None or missing:
        lacking = ", ".join(missing) or META
        raise errors.TableMissing(f"PostgreSQL at {address.place} has no {lacking}; {remedy}")
    wrong = [
        problem.what for layout in layouts for problem in _misfits(layout, state, remedy, address.schema)
    ]
    if wrong or state.version < len(MIGRATIONS):
        reasons = "; ".join(wrong) or f"schema {state.version} is older than {len(MIGRATIONS)}"
        raise errors.WrongSchema(f"PostgreSQL at {address.place}: {reasons}; {remedy}")


def _provision(address: PostgresAddress, env: str, layouts: Iterable[PostgresLayout] = ()) -> str:
    """The command that makes these tables; semel's own it makes unasked."""
    named = [layout.table.name for layout in layouts if layout.table not in OWN]
    tables = "".join(f" --table {name}" for name in named)
    return f"run: semel provision --url {literal(address.shown)} --env {env}{tables}"


# Findings


def problems(url: str, env: str, tables: Iterable[Table] = ()) -> list[Problem]:
    """What is wrong with a database, as far as semel is concerned."""
    address = PostgresAddress.from_url(url)
    layouts = layouts_of(tables)
    with _connected(address) as connection:
        state = _inspected(connection, layouts, address, address.schema)
    return list(_problems(state, layouts, env, address))


def _problems(
    state: SchemaState, layouts: Sequence[PostgresLayout], env: str, address: PostgresAddress
) -> Iterator[Problem]:
    if state.encoding != "UTF8":
        yield _misencoded(state)
    if state.version > len(MIGRATIONS):
        what = f"the schema has version {state.version}, and this semel knows {len(MIGRATIONS)}"
        yield Problem(what, "upgrade semel")
    if state.version < len(MIGRATIONS):
        yield Problem(f"the schema has version {state.version} of {len(MIGRATIONS)}", PROVISION)
    if state.environment not in (None, env):
        yield Problem(
            f"it belongs to environment {state.environment!r}, not to {env!r}",
            "open it for that environment, or name another schema or database",
        )
    for layout in layouts:
        yield from _misfits(layout, state, PROVISION, address.schema)
        for index in layout.indexes():
            if index not in state.found.indexes:
                yield Problem(f"index {index} is missing", PROVISION)
    for title, privilege in state.forbidden:
        role = quoted(address.role) if address.role else "that role"
        grant = f"GRANT {privilege} ON {qualified(title, address.schema)} TO {role}"
        yield Problem(f"the role may not {privilege} in {title}", grant)


def _misfits(
    layout: PostgresLayout, state: SchemaState, remedy: str, schema: str | None
) -> Iterator[Problem]:
    """What a table lacks, or has otherwise."""
    if layout.title not in state.found.columns:
        yield Problem(f"table {layout.title} is missing", remedy)
        return
    for name in layout.missing(state.found):
        yield Problem(f"table {layout.title} has no column {name}", remedy)
    for name, kind in layout.mistaken(state.found).items():
        right = layout.columns()[name]
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
    target: "str | psycopg.Connection[Any]", env: str, tables: Iterable[Table] = (), schema: str | None = None
) -> list[str]:
    """Bring a database to the newest schema, and say what was done.

    `target` is a URL, whose `schema=` counts, or a connection. Others may be doing the same at the same time.
    """
    if isinstance(target, str):
        address = PostgresAddress.from_url(target)
        with _connected(address) as connection:
            return _migrated(connection, env, layouts_of(tables), address, address.schema)
    address = PostgresAddress("", f"{target.info.host}:{target.info.port}/{target.info.dbname}")
    return _migrated(target, env, layouts_of(tables), address, schema)


def _migrated(
    connection: "psycopg.Connection[Any]",
    env: str,
    layouts: Sequence[PostgresLayout],
    address: PostgresAddress,
    schema: str | None,
) -> list[str]:
    try:
        return list(_migrations_made(connection, env, layouts, address, schema))
    except DRIVER_ERRORS as error:
        raise translated(error, address) from error


def _migrations_made(
    connection: "psycopg.Connection[Any]",
    env: str,
    layouts: Sequence[PostgresLayout],
    address: PostgresAddress,
    schema: str | None,
) -> Iterator[str]:
    if schema is not None:
        with _alone(connection, None):
            if not _asked(connection, "namespace", [quoted(schema)]):
                _run(connection, f"CREATE SCHEMA {quoted(schema)}")
                yield f"made schema {schema}"
    for number, migration in enumerate(MIGRATIONS, 1):
        with _alone(connection, schema):
            state = _inspected(connection, layouts, address, schema)
            _check_stamp(state, env)
            if state.version < number:
                _run(connection, migration)
                _asked(connection, "stamp", [str(number), env])
                yield f"brought the schema to version {number}, for environment {env!r}"
    for layout in layouts:
        with _alone(connection, schema):
            state = _inspected(connection, layouts, address, schema)
            for change in layout.changes(state.found):
                _run(connection, change.sql)
                yield change.what


def _check_stamp(state: SchemaState, env: str) -> None:
    if state.version > len(MIGRATIONS):
        raise errors.SchemaTooNew(state.version, len(MIGRATIONS))
    if state.environment not in (None, env):
        raise errors.WrongEnvironment(state.environment, env)


@contextmanager
def _alone(connection: "psycopg.Connection[Any]", schema: str | None) -> Iterator[None]:
    """A transaction in which nobody else changes the schema."""
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


def _inspected(
    connection: "psycopg.Connection[Any]",
    layouts: Sequence[PostgresLayout],
    address: PostgresAddress,
    schema: str | None,
) -> SchemaState:
    return run(PostgresSession(connection, Clock()), inspect(layouts, schema), address)


@contextmanager
def _connected(address: PostgresAddress) -> "Iterator[psycopg.Connection[Any]]":
    try:
        connection = address.connect()
    except DRIVER_ERRORS as error:
        raise unreachable(error, address) from error
    with closing(connection):
        yield connection


def ddl(tables: Iterable[Table], env: str, schema: str | None = None) -> str:
    """The whole schema as SQL, for whoever runs it instead of `migrate`; running it again changes nothing."""
    lines = ["BEGIN;", *_settings(None), _statement("alone")]
    if schema is not None:
        lines += [f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};", _settings(schema)[-1]]
    lines += [migration.strip() for migration in MIGRATIONS]
    lines += [change.sql for layout in layouts_of(tables) for change in layout.changes(NOTHING)]
    stamp = QUERIES["stamp"].replace("$1", literal(str(len(MIGRATIONS)))).replace("$2", literal(env))
    return "\n\n".join([*lines, stamp + ";", "COMMIT;"]) + "\n"


def _statement(name: str) -> str:
    return QUERIES[name] + ";"


def layouts_of(tables: Iterable[Table]) -> list[PostgresLayout]:
    """The layouts of semel's own tables and of these."""
    return [PostgresLayout(table) for table in {table.name: table for table in (*OWN, *tables)}.values()]
