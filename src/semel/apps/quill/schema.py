"""The star: one row for each event, and the rows that it refers to.

The same tables are made in SQLite and in Power BI; the first column of each names its rows.
"""

from collections.abc import Iterable
from datetime import date
from typing import Any, Final, TypeAlias

from semel.apps.quill.events import Event, Metric

Row: TypeAlias = dict[str, Any]

FACTS: Final = "fact_activity"

# Types by the names they have in Power BI.
# https://learn.microsoft.com/en-us/rest/api/power-bi/push-datasets/datasets-post-dataset-in-group
TABLES: Final[dict[str, dict[str, str]]] = {
    "dim_agent": {"agent": "string", "source": "string"},
    "dim_date": {"date": "DateTime", "year": "Int64", "month": "Int64", "day": "Int64", "weekday": "string"},
    "dim_metric": {"metric": "string", "title": "string"},
    FACTS: {
        "event_key": "string",
        "source": "string",
        "agent": "string",
        "metric": "string",
        "date": "DateTime",
        "occurred_at": "DateTime",
    },
}

TITLES: Final = {
    Metric.CALLS: "Outbound calls",
    Metric.TEXTS: "Outbound texts",
    Metric.EMAILS: "E-mails",
    Metric.CASES: "Cases",
}


def key_of(table: str) -> str:
    """The column that names the rows of a table."""
    return next(iter(TABLES[table]))


def fact(event: Event) -> Row:
    """The row of an event."""
    return {
        "event_key": event.key,
        "source": event.source,
        "agent": event.agent,
        "metric": event.metric.value,
        "date": event.date,
        "occurred_at": event.occurred_at,
    }


def dimensions(events: Iterable[Event]) -> dict[tuple[str, str], Row]:
    """The rows that these events refer to, each once, by their table and name."""
    rows: dict[tuple[str, str], Row] = {}
    for event in events:
        rows["dim_agent", event.agent] = {"agent": event.agent, "source": event.source}
        rows["dim_date", event.date] = _day(event.date)
        rows["dim_metric", event.metric.value] = {
            "metric": event.metric.value,
            "title": TITLES[event.metric],
        }
    return rows


def _day(text: str) -> Row:
    day = date.fromisoformat(text)
    return {
        "date": text,
        "year": day.year,
        "month": day.month,
        "day": day.day,
        "weekday": f"{day:%A}",
    }
