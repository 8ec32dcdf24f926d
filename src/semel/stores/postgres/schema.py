"""The schema in the database: made by `migrate` or the text of `ddl`, and checked by the first command."""

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import RawCursor

from semel import errors
from semel.core.clock import Clock
from semel.core.commands import Query
from semel.core.drive import run_sync
from semel.model import PROVISION, Problem
from semel.stores.backfill import backfill, incomplete, optional, progress_of, refuse_incomplete
from semel.stores.choices import named, refuse_unchosen
from semel.stores.postgres.address import PostgresAddress
from semel.stores.postgres.errors import DRIVER_ERRORS, translated, unreachable
from semel.stores.postgres.interpreter import PostgresPlans, PostgresSteps, RoundTrip, RoundTrips
from semel.stores.postgres.layout import META, Catalog, PostgresLayout
from semel.stores.postgres.pool import PostgresSession, run
from semel.stores.postgres.statements import PostgresStatement, qualified
from semel.stores.sql import literal, quoted
from semel.tables import OWN, Addition, Table

T = TypeVar("T")

# A store that lacks columns looks so often whether they were added. Whoever has added some waits for twice as
# long, as a statement may be under way for a while: from then on nobody writes a row without them.
LOOK_SECONDS = 5.0

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

    def lacking(self, layout: PostgresLayout) -> Iterator[tuple[Addition, str]]:
        """What was added to a table later that it lacks, each with what exactly that is."""
        if layout.title in self.found.columns:
            for addition in layout.table.later:
                if what := layout.lacking(addition, self.found, self.meta or {}):
                    yield addition, what


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
    _check_stamp(state, env)
    missing = [layout.title for layout in layouts if layout.title not in state.found.columns]
    remedy = f"run: {_provision(address, env, layouts)}"
    if state.environment is None or missing:
        lacking = ", ".join(missing) or META
        raise errors.TableMissing(f"PostgreSQL at {address.place} has no {lacking}; {remedy}")
    wrong = [
        problem.what
        for layout in layouts
        for problem in _misfits(layout, state, remedy, address.schema)
        if not problem.optional
    ]
    if wrong or state.version < len(MIGRATIONS):
        reasons = "; ".join(wrong) or f"schema {state.version} is older than {len(MIGRATIONS)}"
        raise errors.WrongSchema(f"PostgreSQL at {address.place}: {reasons}; {remedy}")


def _provision(address: PostgresAddress, env: str, layouts: Iterable[PostgresLayout] = ()) -> str:
    """The command that makes these tables; semel's own it makes unasked."""
    named = [layout.table.name for layout in layouts if layout.table not in OWN]
    tables = "".join(f" --table {name}" for name in named)
    return f"semel provision --url {literal(address.shown)} --env {env}{tables}"


class SchemaCheck:
    """What a store knows of its database: looked at once, and again while something optional is missing."""

    def __init__(
        self, layouts: Sequence[PostgresLayout], env: str, address: PostgresAddress, clock: Clock
    ) -> None:
        self.plans: PostgresPlans = PostgresPlans(address.schema)
        self.whole: bool = False
        """Everything is there that may be, for good."""
        self._layouts = layouts
        self._env = env
        self._address = address
        self._clock = clock
        self._due_at = float("-inf")
        self._marks: Collection[str] = ()
        self._chosen: Collection[str] = ()

    def due(self) -> bool:
        """Whether to look before the next command."""
        return not self.whole and self._clock.monotonic() >= self._due_at

    def look(self) -> RoundTrips[None]:
        """Look at the database, and refuse one that is not as it has to be."""
        asked_at = self._clock.monotonic()
        state = yield from inspect(self._layouts, self._address.schema)
        check(state, self._layouts, self._env, self._address)
        absent = {layout.table.name: layout.absent(state.found) for layout in self._layouts}
        self.plans.lack({name: names for name, names in absent.items() if names})
        lacking = [(layout, each) for layout in self._layouts for each, _ in state.lacking(layout)]
        self._marks = {*(state.meta or {})} - {layout.table.mark(each.index) for layout, each in lacking}
        self._chosen = {name for layout in self._layouts for name in layout.chosen(state.found)}
        self.whole = not any(absent.values())
        self._due_at = asked_at + LOOK_SECONDS

    def completed(self, query: Query) -> RoundTrips[None]:
        """Refuse to go by what is not there, or lacks older rows; by now it may be otherwise."""
        choice = query.table.choice(query.index)
        known = query.index in self._chosen and self._clock.monotonic() < self._due_at
        if (choice is not None and not known) or incomplete(query, self._marks) or self.plans.lacks(query):
            yield from self.look()
            command = _provision(self._address, self._env, self._layouts)
            if lacking := self.plans.lacks(query):
                serves = query.table.optional[lacking].serves
                raise errors.NotProvisioned(serves, query.table.name, lacking, command)
            if choice is not None and query.index not in self._chosen:
                refuse_unchosen(query, choice, command)
            refuse_incomplete(query, self._marks, command)


# Findings


def problems(url: str, env: str, tables: Iterable[Table] = ()) -> list[Problem]:
    """What is wrong with a database, as far as semel is concerned."""
    address = PostgresAddress.from_url(url)
    layouts = layouts_of(tables)
    with _connected(address) as connection:
        state = SchemaMigration(connection, env, layouts, address, address.schema).state()
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
        later = {layout.index_title(each.index) for each in layout.table.later}
        for index in layout.indexes():
            if index not in state.found.indexes and index not in later:
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
        if name not in layout.table.optional:
            yield Problem(f"table {layout.title} has no column {name}", remedy)
    for addition, what in state.lacking(layout):
        yield optional(what, addition)
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
    target: "str | psycopg.Connection[Any]",
    env: str,
    tables: Iterable[Table] = (),
    schema: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Bring a database to the newest schema, and say what was done.

    `target` is a URL, whose `schema=` counts, or a connection. Others may be doing the same at the same time.
    What takes its time is told to `say` meanwhile.
    """
    if isinstance(target, str):
        address = PostgresAddress.from_url(target)
        with _connected(address) as connection:
            return SchemaMigration(connection, env, layouts_of(tables), address, address.schema).made(say)
    address = PostgresAddress("", f"{target.info.host}:{target.info.port}/{target.info.dbname}")
    return SchemaMigration(target, env, layouts_of(tables), address, schema).made(say)


class SchemaMigration(NamedTuple):
    """A database on its way to the newest schema."""

    connection: "psycopg.Connection[Any]"
    env: str
    layouts: Sequence[PostgresLayout]
    address: PostgresAddress
    schema: str | None

    def made(self, say: Callable[[str], None]) -> list[str]:
        """Make everything that is missing, and say what that was."""
        try:
            return [*self._namespace(), *self._migrations(), *self._tables(), *self._completed(say)]
        except DRIVER_ERRORS as error:
            raise translated(error, self.address) from error

    def _namespace(self) -> Iterator[str]:
        if self.schema is None:
            return
        with _alone(self.connection, None):
            if not _asked(self.connection, "namespace", [quoted(self.schema)]):
                _run(self.connection, f"CREATE SCHEMA {quoted(self.schema)}")
                yield f"made schema {self.schema}"

    def _migrations(self) -> Iterator[str]:
        for number, migration in enumerate(MIGRATIONS, 1):
            with _alone(self.connection, self.schema):
                state = self.state()
                _check_stamp(state, self.env)
                if state.version < number:
                    _run(self.connection, migration)
                    _asked(self.connection, "stamp", [str(number), self.env])
                    yield f"brought the schema to version {number}, for environment {self.env!r}"

    def _tables(self) -> Iterator[str]:
        for layout in self.layouts:
            with _alone(self.connection, self.schema):
                for change in layout.changes(self.state().found):
                    _run(self.connection, change.sql)
                    yield change.what

    def _completed(self, say: Callable[[str], None]) -> Iterator[str]:
        """Bring older rows into indexes that were added later."""
        state, steps = self.state(), PostgresSteps(PostgresPlans(self.schema), Clock().imposed)
        lacking = [(layout, addition) for layout in self.layouts for addition, _ in state.lacking(layout)]
        if lacking:
            say(f"Waiting for {2 * LOOK_SECONDS:g} s, until everybody writes to the new columns ...")
            Clock().wait(threading.Event(), 2 * LOOK_SECONDS)
        for layout, addition in lacking:
            index = layout.index_title(addition.index)
            progress = progress_of(f"index {index}", say)
            filled = run_sync(
                backfill(layout.table, addition, progress), lambda command: self._committed(steps.of(command))
            )
            with _alone(self.connection, self.schema):
                _asked(self.connection, "mark", [layout.table.mark(addition.index)])
            yield f"completed index {index}, with {filled:,} older rows"

    def _committed(self, steps: RoundTrips[T]) -> T:
        with self.connection.transaction():
            return self._run(steps)

    def state(self) -> SchemaState:
        """What is there now."""
        return self._run(inspect(self.layouts, self.schema))

    def _run(self, steps: RoundTrips[T]) -> T:
        return run(PostgresSession(self.connection, Clock()), steps, self.address)


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


@contextmanager
def _connected(address: PostgresAddress) -> "Iterator[psycopg.Connection[Any]]":
    try:
        connection = address.connect()
    except DRIVER_ERRORS as error:
        raise unreachable(error, address) from error
    with closing(connection):
        yield connection


def ddl(tables: Iterable[Table], env: str, schema: str | None = None, chosen: Iterable[str] = ()) -> str:
    """The whole schema as SQL, for whoever runs it instead of `migrate`; running it again changes nothing.

    `chosen` are names of indexes that an owner may choose; `choices.choose` makes one without keeping
    anybody waiting, which no transaction can.
    """
    lines = ["BEGIN;", *_settings(None), QUERIES["alone"] + ";"]
    if schema is not None:
        lines += [f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};", _settings(schema)[-1]]
    lines += [migration.strip() for migration in MIGRATIONS]
    lines += [statement for layout in layouts_of(tables) for statement in layout.script()]
    for table, choice in map(named, chosen):
        lines.append(PostgresLayout(table).choice_statement(choice.index))
    stamp = QUERIES["stamp"].replace("$1", literal(str(len(MIGRATIONS)))).replace("$2", literal(env))
    return "\n\n".join([*lines, stamp + ";", "COMMIT;"]) + "\n"


def layouts_of(tables: Iterable[Table]) -> list[PostgresLayout]:
    """The layouts of semel's own tables and of these."""
    return [PostgresLayout(table) for table in {table.name: table for table in (*OWN, *tables)}.values()]
