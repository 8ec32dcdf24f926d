"""Quill's page in the dashboard: what agents did in the last days, and what is still to be posted."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from semel.apps.quill.app import Quill
from semel.apps.quill.star import Total
from semel.ops.blocks import AppPage, Cell, FactsBlock, PageBlock, TableBlock, TextBlock, TimeCell

DAYS: Final = 7
LISTED: Final = 200


def pages(app: Quill) -> dict[str, AppPage]:
    """The pages of quill."""

    async def facts(_query: Mapping[str, str]) -> list[PageBlock]:
        return await asyncio.to_thread(_facts, app)

    return {"facts": AppPage("Facts", facts)}


def _facts(app: Quill) -> list[PageBlock]:
    survey = app.inbox.survey()
    backlog: dict[str, Cell] = {
        "To be posted": survey.waiting,
        "The oldest came": None if survey.oldest is None else TimeCell(survey.oldest),
        "Facts go to": "a local file" if app.star is not None else "Power BI",
    }
    return [FactsBlock(backlog), *_totals(app)]


def _totals(app: Quill) -> list[PageBlock]:
    if app.star is None or not app.star.counts:
        return [
            TextBlock("The facts themselves are in Power BI." if app.star is None else "Nothing is counted.")
        ]
    today = datetime.fromtimestamp(app.now(), UTC).date()
    # A day more at the end: the day of whoever reports may be ahead of ours.
    totals = app.star.totals(today - timedelta(days=DAYS - 1), today + timedelta(days=1))
    empty = f"Nothing came in {DAYS} days. Point Aloware or HubSpot at the webhooks of this service."
    rows = tuple((one.date, one.agent, one.metric, one.count) for one in reversed(totals))[:LISTED]
    return [
        TableBlock(f"Last {DAYS} days, by metric", ("Metric", "Count"), _by_metric(totals), empty),
        *([TableBlock("By day and agent", ("Day", "Agent", "Metric", "Count"), rows)] if rows else []),
    ]


def _by_metric(totals: list[Total]) -> tuple[tuple[Cell, ...], ...]:
    counted: Counter[str] = Counter()
    for one in totals:
        counted[one.metric] += one.count
    return tuple(counted.most_common())
