"""What becomes a fact: as by default, as the settings declare it, or as a function of the owner's says."""

import functools
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

import msgspec

from semel.apps.payloads import value_at
from semel.apps.quill.declared import Tables, column_of, schema_of
from semel.apps.quill.events import (
    Adapter,
    AgentEvent,
    SourceEvent,
    aloware,
    event_of,
    hubspot,
    read_aloware,
    read_hubspot,
)
from semel.apps.quill.schema import BUILT_IN, DEFAULT, Fact, FactRow, StarSchema, built_in, fact_of, fitted
from semel.apps.quill.settings import EventRule, ReportColumn, Settings, function
from semel.core.keys import Key
from semel.doors.webhooks import Notice
from semel.errors import SemelError


class EventSource(NamedTuple):
    """A system that tells of events."""

    adapter: Adapter
    """What it tells of, in the words of the default report."""
    read: Callable[[Mapping[str, Any], str], SourceEvent]
    """Who did what it tells of, and when, whatever it is."""
    type: str
    """Where an event says what happened."""


SOURCES: Final = {
    "aloware": EventSource(aloware, read_aloware, "event"),
    "hubspot": EventSource(hubspot, read_hubspot, "subscriptionType"),
}


class Unreadable(SemelError):
    """An event that is declared as a fact, and lacks what its columns ask for."""


class Received:
    """An event that was received, as a function of the owner's sees it."""

    def __init__(
        self, source: str, notice: Notice, name: Callable[[], str], now: float, zone: ZoneInfo
    ) -> None:
        self.source = source
        """`aloware` or `hubspot`."""
        self.event: Any = notice.payload
        """What it says, as it came."""
        self.notice: Notice = notice
        self._name, self._now, self._zone = name, now, zone

    @functools.cached_property
    def key(self) -> str:
        """Its name in the ledger; `InvalidKey` where it has none."""
        return self._name()

    @functools.cached_property
    def _known(self) -> AgentEvent:
        return event_of(SOURCES[self.source].read(self.event, ""), "", self._now, self._zone)

    @property
    def agent(self) -> str:
        """Who did it: the source and its number for a user, such as `aloware:7`."""
        return self._known.agent

    @property
    def date(self) -> str:
        """The day on which it happened, where the contact is."""
        return self._known.date

    @property
    def occurred_at(self) -> str:
        """When it happened."""
        return self._known.occurred_at

    def default(self) -> AgentEvent | None:
        """What it is in the default report; None where it is nothing there."""
        event = SOURCES[self.source].adapter(self.notice)
        return None if event is None else event_of(event, self.key, self._now, self._zone)

    def at(self, path: str) -> Any:
        """What stands at a path such as `body.contact.id`, or `tags.0`; None where nothing does."""
        return value_at(self.event, path)


class FactReport(Protocol):
    """Makes facts of events."""

    schema: StarSchema

    def fact(self, received: Received) -> Fact | None:
        """The fact of an event; None where nobody counts it."""


def report_of(settings: Settings) -> FactReport:
    """The report that the settings ask for."""
    schema = schema_of(settings)
    if settings.facts:
        return Own(settings, schema)
    return Declared(settings, schema) if settings.events else Default()


class Default:
    """Calls, texts, e-mails and cases, by agent and day."""

    schema = DEFAULT

    def fact(self, received: Received) -> Fact | None:
        """The fact of an event; None where nobody counts it."""
        event = received.default()
        return None if event is None else fact_of(event)


class Own:
    """What a function of the owner's makes of events."""

    def __init__(self, settings: Settings, schema: StarSchema) -> None:
        self.schema = schema
        self._function = function("facts", settings.facts)
        self._default = settings.with_default

    def fact(self, received: Received) -> Fact | None:
        """The fact of an event; None where nobody counts it."""
        fact = self._function(received)
        if fact is None:
            return Default().fact(received) if self._default else None
        if not isinstance(fact, Fact):
            raise Unreadable(f"the function of apps.quill.facts gave a {type(fact).__name__}, and no Fact")
        return self._whole(fact, received)

    def _whole(self, fact: Fact, received: Received) -> Fact:
        if fact.table not in self.schema.facts:
            raise Unreadable(f"apps.quill.fact_tables has no {fact.table}, which the function gave a row for")
        key = named(received.key, fact.apart)
        row = self._row(fact.table, {self.schema.key_of(fact.table): key} | fact.row)
        rows = {name: self._dimension(name, fact, row, received) for name in self.schema.refers[fact.table]}
        return Fact(fact.table, row, rows, key=key)

    def _dimension(self, name: str, fact: Fact, row: FactRow, received: Received) -> FactRow:
        key = self.schema.key_of(name)
        given = fact.dimensions.get(name)
        if given is None and self.schema.dimensions[name] is BUILT_IN.get(name):
            return built_in(name, row, received.source.upper())
        return self._row(name, {key: row[key]} | (given or {}))

    def _row(self, table: str, values: FactRow) -> FactRow:
        columns = self.schema.tables[table]
        if values.keys() != columns.keys():
            odd = ", ".join(sorted(values.keys() ^ columns.keys()))
            raise Unreadable(f"{table} has other columns than the function gave: {odd}")
        return {
            name: _fitted(table, name, ReportColumn(kind=kind), values[name])
            for name, kind in columns.items()
        }


class Declared:
    """What the settings declare."""

    def __init__(self, settings: Settings, schema: StarSchema) -> None:
        self.schema = schema
        self._rules, self._default = settings.events, settings.with_default
        tables = Tables(settings)
        self._dimensions = tables.dimensions
        self._columns = {
            name: tables.facts[rule.into] | _moved(tables.facts[rule.into], rule)
            for name, rule in self._rules.items()
        }

    def fact(self, received: Received) -> Fact | None:
        """The fact of an event, by the first of those declared that fits; None where nobody counts it."""
        for name, rule in self._rules.items():
            if _fits(rule, received):
                return self._fact(name, rule, received)
        return Default().fact(received) if self._default else None

    def _fact(self, name: str, rule: EventRule, received: Received) -> Fact:
        key = named(received.key, name if rule.apart else "")

        def row(table: str, columns: Mapping[str, ReportColumn]) -> FactRow:
            return {
                column: _fitted(table, column, at, _value(at.path, received, key, rule.metric))
                for column, at in columns.items()
            }

        made, rows = row(rule.into, self._columns[name]), dict[str, FactRow]()
        for dimension in self.schema.refers[rule.into]:
            columns = self._dimensions.get(dimension)
            if columns is None:
                rows[dimension] = built_in(dimension, made, received.source.upper(), rule.title)
            else:
                first = self.schema.key_of(dimension)
                others = {column: at for column, at in columns.items() if column != first}
                rows[dimension] = {first: made[first]} | row(dimension, others)
        return Fact(rule.into, made, rows, key=key)


def _moved(columns: Mapping[str, ReportColumn], rule: EventRule) -> dict[str, ReportColumn]:
    """The columns that events of this kind have elsewhere than others."""
    moved = {}
    for name, given in rule.columns.items():
        at, column = column_of(name, given), columns[name]
        default = column.default if at.default is None else at.default
        moved[name] = msgspec.structs.replace(column, path=at.path, default=default)
    return moved


def _value(path: str, received: Received, key: str, metric: str) -> Any:
    """What an event has at a path, or what quill knows of it by that word."""
    match path:
        case "$key":
            return key
        case "$metric":
            return metric
        case "$source":
            return received.source.upper()
        case "$agent" | "$date" | "$occurred_at":
            return getattr(received, path[1:])
        case _:
            return received.at(path)


def named(key: str, apart: str) -> str:
    """The key of a fact: its event's, or one of its own beside others of that event."""
    return f"{key}:{Key(apart)}" if apart else key


def _fits(rule: EventRule, received: Received) -> bool:
    if rule.source != received.source:
        return False
    asked = {SOURCES[rule.source].type: rule.type} | rule.where
    return all(_matches(received.at(path), pattern) for path, pattern in asked.items())


def _matches(value: Any, pattern: str) -> bool:
    """Whether a value is as a pattern says; what is not there is no text, and fits none but `*`."""
    if value is None or isinstance(value, Mapping | list):
        return pattern == "*"
    return fnmatchcase(fitted("string", value), pattern)


def _fitted(table: str, name: str, column: ReportColumn, value: Any) -> Any:
    """A value as its column has it; the error does not quote it."""
    value = column.default if value is None else value
    try:
        if value is None:
            raise ValueError("nothing is there")
        return fitted(column.kind, value)
    except (ValueError, OverflowError, OSError) as error:
        raise Unreadable(f"{table}.{name}: it is no {column.kind}, or missing") from error
