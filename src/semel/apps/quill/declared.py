"""The tables that the settings declare, if all of it can work; what cannot is named."""

import re
from collections.abc import Iterable
from typing import Final

from semel.apps.quill.schema import (
    BUILT_IN,
    DEFAULT,
    FACTS,
    MOST_COLUMNS,
    MOST_TABLES,
    Columns,
    ColumnType,
    StarSchema,
    fitted,
)
from semel.apps.quill.settings import ColumnSettings, ReportColumn, Settings, wrong

# What Power BI and SQLite both take for a name.
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

KEY: Final = "$key"
METRIC: Final = "$metric"
# The default table of facts, as it would be declared: `agent` is `$agent`, and so on.
ACTIVITY: Final = {name: KEY if name == "event_key" else f"${name}" for name in DEFAULT.facts[FACTS]}
# What quill knows of an event itself, and of which kind it is.
WORDS: Final[dict[str, ColumnType]] = {ACTIVITY[name]: kind for name, kind in DEFAULT.facts[FACTS].items()}


class Tables:
    """What the settings say of tables."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        given = settings.fact_tables
        if FACTS not in given and (settings.with_default or FACTS in _used(settings)):
            given = {FACTS: {**ACTIVITY}, **given}
        self.facts: dict[str, dict[str, ReportColumn]] = {
            name: _columns("fact_tables", name, columns) for name, columns in given.items()
        }
        self.dimensions: dict[str, dict[str, ReportColumn]] = {
            name: _columns("dimensions", name, columns) for name, columns in settings.dimensions.items()
        }
        self._check()

    def schema(self) -> StarSchema:
        """The tables with the kinds of their columns, and what refers to what."""
        refers = {table: self._referred(table) for table in self.facts}
        used = {name for names in refers.values() for name in names}
        for name, columns in self.dimensions.items():
            if name not in used:
                problem = f"no table of facts has a column {_first(columns)}, by which it would refer to this"
                raise wrong(f"dimensions.{name}", problem)
        built_in = {
            name: columns for name, columns in BUILT_IN.items() if name in used - self.dimensions.keys()
        }
        kinds = {name: _kinds(columns) for name, columns in self.dimensions.items()}
        schema = StarSchema(
            built_in | kinds, {name: _kinds(columns) for name, columns in self.facts.items()}, refers
        )
        if len(schema.tables) > MOST_TABLES:
            raise wrong("fact_tables", f"Power BI takes {MOST_TABLES} tables, and these are more")
        return schema

    def _referred(self, table: str) -> list[str]:
        columns, found = self.facts[table], []
        for name, kinds in BUILT_IN.items():
            key, kind = next(iter(kinds.items()))
            mine = columns.get(key)
            if name not in self.dimensions and mine is not None and self._is(mine, f"${key}", kind):
                found.append(name)
        for name, others in self.dimensions.items():
            key = _first(others)
            if key not in columns:
                continue
            if columns[key].kind != others[key].kind:
                problem = f"it is of the kind {others[key].kind}, and {table}.{key} is {columns[key].kind}"
                raise wrong(f"dimensions.{name}.{key}", problem)
            found.append(name)
        return found

    def _is(self, column: ReportColumn, word: str, kind: ColumnType) -> bool:
        """Whether it is what a dimension that is there by default is about."""
        return column.kind == kind if self._settings.facts else column.path == word

    # What cannot work

    def _check(self) -> None:
        folded: dict[str, str] = {}
        for name in (*self.facts, *self.dimensions):
            other = folded.setdefault(name.lower(), name)
            if other != name or (name in self.facts and name in self.dimensions):
                raise wrong(f"dimensions.{name}", f"there is a table {other} already")
        for name, columns in self.facts.items():
            first = _first(columns)
            if columns[first].path != KEY:
                problem = f'the first column names the row by its event: write {first} = "{KEY}"'
                raise wrong(f"fact_tables.{name}.{first}", problem)
            self._check_paths("fact_tables", name, columns)
        keys: dict[str, str] = {}
        for name, columns in self.dimensions.items():
            key = _first(columns)
            if keys.setdefault(key, name) != name:
                raise wrong(f"dimensions.{name}.{key}", f"{keys[key]} is named by a column of that name too")
            self._check_paths("dimensions", name, columns)

    def _check_paths(self, setting: str, table: str, columns: dict[str, ReportColumn]) -> None:
        for name, column in columns.items():
            if self._settings.facts and column.path not in ("", KEY):
                problem = 'the function fills it in: give its kind alone, as { kind = "string" }'
                raise wrong(f"{setting}.{table}.{name}", problem)
            if not self._settings.facts and not column.path:
                raise wrong(f"{setting}.{table}.{name}", "say where it is in an event, as body.user_id")


def schema_of(settings: Settings) -> StarSchema:
    """The tables of the report that the settings ask for."""
    if settings.facts or settings.events:
        if settings.facts and settings.events:
            raise wrong("facts", "the function reads every event: leave it out, or apps.quill.events")
        tables = Tables(settings)
        schema = tables.schema()
        if settings.facts and not schema.facts:
            raise wrong("fact_tables", "declare the tables that the function's rows are for")
        for name in settings.events:
            _check_rule(settings, tables, name)
        return schema
    for setting in ("fact_tables", "dimensions"):
        if getattr(settings, setting):
            raise wrong(setting, "nothing is put there: declare apps.quill.events, or name apps.quill.facts")
    return DEFAULT


def _check_rule(settings: Settings, tables: Tables, name: str) -> None:
    rule, place = settings.events[name], f"events.{name}"
    _check_name(place, name)
    secret = {"aloware": "aloware_token", "hubspot": "hubspot_secret"}[rule.source]
    if not getattr(settings, secret):
        raise wrong(f"{place}.source", f"set apps.quill.{secret} too: nobody else could be believed")
    if rule.into not in tables.facts:
        raise wrong(f"{place}.into", f"there is no table {rule.into}; there are {', '.join(tables.facts)}")
    columns = tables.facts[rule.into]
    for column, given in rule.columns.items():
        if column not in columns or column == _first(columns):
            rest = ", ".join(list(columns)[1:])
            raise wrong(f"{place}.columns.{column}", f"{rule.into} has no such column to fill; it has {rest}")
        own = column_of(f"{place}.columns.{column}", given)
        if own.kind != columns[column].kind and (isinstance(given, ReportColumn) or own.path in WORDS):
            raise wrong(f"{place}.columns.{column}", f"the column is of the kind {columns[column].kind}")
    paths = {column: at.path for column, at in columns.items()} | {
        column: column_of("", given).path for column, given in rule.columns.items()
    }
    if METRIC in paths.values() and not rule.metric:
        raise wrong(f"{place}.metric", f"set it: {rule.into} has a column for it")


def column_of(setting: str, given: str | ReportColumn) -> ReportColumn:
    """A column as it was given, or where it stands in an event, which is a text unless quill knows better."""
    column = ReportColumn(path=given, kind=WORDS.get(given, "string")) if isinstance(given, str) else given
    if column.path.startswith("$") and column.path not in WORDS:
        raise wrong(setting, f"there is no {column.path}; there are {', '.join(WORDS)}")
    if column.path in WORDS and column.kind != WORDS[column.path]:
        raise wrong(setting, f"{column.path} is of the kind {WORDS[column.path]}")
    if column.default is not None:
        try:
            fitted(column.kind, column.default)
        except (ValueError, OverflowError) as error:
            raise wrong(setting, f"its default is of another kind: {error}") from error
    return column


def _columns(setting: str, table: str, given: ColumnSettings) -> dict[str, ReportColumn]:
    _check_name(f"{setting}.{table}", table)
    if not 0 < len(given) <= MOST_COLUMNS:
        raise wrong(f"{setting}.{table}", f"a table has from 1 to {MOST_COLUMNS} columns")
    for name in given:
        _check_name(f"{setting}.{table}.{name}", name)
    if len({name.lower() for name in given}) < len(given):
        raise wrong(f"{setting}.{table}", "two of its columns have names that differ in their case alone")
    return {name: column_of(f"{setting}.{table}.{name}", one) for name, one in given.items()}


def _check_name(setting: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise wrong(setting, "a name is made of letters, digits and _, and begins with no digit")


def _used(settings: Settings) -> set[str]:
    return {rule.into for rule in settings.events.values()}


def _first(columns: Iterable[str]) -> str:
    return next(iter(columns))


def _kinds(columns: dict[str, ReportColumn]) -> Columns:
    return {name: column.kind for name, column in columns.items()}
