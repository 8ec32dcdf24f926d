"""The tables of a report: rows of facts, and the rows of dimensions that they refer to.

The same tables are made in SQLite and in Power BI; the first column of each names its rows.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from math import isfinite
from typing import Any, Final, Literal, TypeAlias

import msgspec

from semel.apps.quill.events import AgentEvent, Metric

FactRow: TypeAlias = dict[str, Any]

# Types by the names they have in Power BI.
# https://learn.microsoft.com/en-us/rest/api/power-bi/push-datasets/datasets-post-dataset-in-group
ColumnType: TypeAlias = Literal["string", "Int64", "Double", "bool", "DateTime"]
Columns: TypeAlias = dict[str, ColumnType]

FACTS: Final = "fact_activity"

# https://learn.microsoft.com/en-us/power-bi/developer/embedded/push-datasets-limitations
MOST_TABLES: Final = 75
MOST_COLUMNS: Final = 75
LONGEST_TEXT: Final = 4_000


class Fact(msgspec.Struct, frozen=True):
    """A row of facts, and the rows that it refers to."""

    table: str
    row: FactRow
    dimensions: dict[str, FactRow] = {}
    """By their tables; those that follow from the row itself may be left out."""
    apart: str = ""
    """A word for what is a fact of its own beside others of the same event; it becomes part of the key."""
    key: str = ""
    """The event's name in the ledger, and in the first column; quill fills both in."""
    person: str = ""
    """Whom the event is about; quill fills it in, and it is no part of the row."""


class StarSchema(msgspec.Struct, frozen=True):
    """Which tables there are, with their columns, and which of them refer to which."""

    dimensions: dict[str, Columns]
    facts: dict[str, Columns]
    refers: dict[str, list[str]]
    """To which dimensions the facts of a table refer: by a column that is named as the dimension's first."""

    @property
    def tables(self) -> dict[str, Columns]:
        """All of them, dimensions first."""
        return self.dimensions | self.facts

    def key_of(self, table: str) -> str:
        """The column that names the rows of a table."""
        return next(iter(self.tables[table]))


BUILT_IN: Final[dict[str, Columns]] = {
    "dim_agent": {"agent": "string", "source": "string"},
    "dim_date": {"date": "DateTime", "year": "Int64", "month": "Int64", "day": "Int64", "weekday": "string"},
    "dim_metric": {"metric": "string", "title": "string"},
}

DEFAULT: Final = StarSchema(
    BUILT_IN,
    {
        FACTS: {
            "event_key": "string",
            "source": "string",
            "agent": "string",
            "metric": "string",
            "date": "DateTime",
            "occurred_at": "DateTime",
        }
    },
    {FACTS: list(BUILT_IN)},
)

TITLES: Final[dict[str, str]] = {
    Metric.CALLS: "Outbound calls",
    Metric.TEXTS: "Outbound texts",
    Metric.EMAILS: "E-mails",
    Metric.CASES: "Cases",
}


def fact_of(event: AgentEvent) -> Fact:
    """The fact of an event in the report that is there by default."""
    row = {"event_key": event.key} | msgspec.structs.asdict(event) | {"metric": str(event.metric)}
    del row["key"]
    dimensions = {table: built_in(table, row, event.source) for table in BUILT_IN}
    return Fact(FACTS, row, dimensions, key=event.key)


def built_in(table: str, row: Mapping[str, Any], source: str, title: str = "") -> FactRow:
    """The row of a dimension that is there by default, for a row of facts."""
    match table:
        case "dim_agent":
            return {"agent": row["agent"], "source": source}
        case "dim_date":
            return _day(row["date"])
        case _:
            metric = row["metric"]
            return {"metric": metric, "title": title or TITLES.get(metric, metric)}


def _day(text: str) -> FactRow:
    day = date.fromisoformat(text)
    return {"date": text, "year": day.year, "month": day.month, "day": day.day, "weekday": f"{day:%A}"}


def dimensions(facts: Iterable[Fact]) -> dict[tuple[str, str], FactRow]:
    """The rows that these facts refer to, each once, by their table and name."""
    return {
        (table, str(next(iter(row.values())))): row
        for fact in facts
        for table, row in fact.dimensions.items()
    }


# Values


def fitted(kind: ColumnType, value: Any) -> Any:
    """A value as a column of this kind has it; `ValueError` where it cannot be that."""
    return FITTED[kind](value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        # JSON may hold half a character, which no encoding has.
        return str(value)[:LONGEST_TEXT].encode(errors="replace").decode()
    raise ValueError("it is no text")


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("it is no number")
    return value


def _finite(value: Any) -> float:
    number = float(_number(value))
    if not isfinite(number):
        raise ValueError("it is no number")
    return number


def _whole(value: Any) -> int:
    number = int(_number(value))
    if isinstance(value, float) and number != value:
        raise ValueError("it is no whole number")
    if not -(2**63) < number < 2**63 - 1:
        raise ValueError("it is too large")
    return number


def _truth(value: Any) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if not isinstance(value, bool | int | str) or str(value).lower() not in known:
        raise ValueError("it is neither true nor false")
    return known[str(value).lower()]


def _moment(value: Any) -> str:
    """A moment as ISO has it; a number is taken for milliseconds since 1970, as HubSpot tells them."""
    if isinstance(value, str) and not value.isdigit():
        datetime.fromisoformat(value)
        return value
    at = datetime.fromtimestamp(_finite(value) / 1000, UTC)
    return at.isoformat().replace("+00:00", "Z")


FITTED: Final[dict[ColumnType, Callable[[Any], Any]]] = {
    "string": _text,
    "Int64": _whole,
    "Double": _finite,
    "bool": _truth,
    "DateTime": _moment,
}
