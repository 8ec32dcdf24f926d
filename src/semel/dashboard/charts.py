"""Rates over time as stacked columns, measured for SVG: a column is one unit wide, the chart 100 high."""

from collections.abc import Iterable
from typing import Final

import msgspec

from semel.core.events import What
from semel.ops.rates import DUPLICATES, HOUR, MINUTE, Rates


class ChartSpan(msgspec.Struct, frozen=True):
    """A stretch of time to look at: so many columns, each so long, made of rows so wide."""

    title: str
    columns: int
    seconds: int
    row: int

    def start(self, now: float) -> int:
        """When the first column begins; the last one is under way."""
        return (int(now // self.seconds) + 1 - self.columns) * self.seconds


SPANS: Final = {
    "hour": ChartSpan("Last hour", 60, MINUTE, MINUTE),
    "day": ChartSpan("Last day", 24, HOUR, HOUR),
    "week": ChartSpan("Last week", 28, 6 * HOUR, HOUR),
    "month": ChartSpan("Last 30 days", 30, 24 * HOUR, HOUR),
}


class OutcomeKind(msgspec.Struct, frozen=True):
    """One colour of the chart: what it stands for, and the events that it counts."""

    name: str
    title: str
    events: tuple[str, ...]


OUTCOMES: Final = (
    OutcomeKind("completed", "Completed", (What.COMPLETED.value,)),
    OutcomeKind("duplicates", "Duplicates prevented", tuple(sorted(what.value for what in DUPLICATES))),
    OutcomeKind("released", "Given back", (What.RELEASED.value,)),
    OutcomeKind("held", "Held in doubt", (What.HELD.value,)),
    OutcomeKind("failed", "Failed", (What.FAILED.value, What.EXHAUSTED.value)),
)


class ChartSegment(msgspec.Struct, frozen=True):
    """A part of a column."""

    name: str
    y: float
    height: float


class ChartColumn(msgspec.Struct, frozen=True):
    """What happened in one stretch of time."""

    start: int
    counts: tuple[int, ...]
    """How often, for each of `OUTCOMES`."""
    segments: tuple[ChartSegment, ...]

    @property
    def total(self) -> int:
        """All of it together."""
        return sum(self.counts)

    @property
    def summary(self) -> str:
        """What happened, in words; "" for nothing."""
        pairs = zip(OUTCOMES, self.counts, strict=True)
        return ", ".join(f"{kind.title.lower()} {number:,}" for kind, number in pairs if number)


class Chart(msgspec.Struct, frozen=True):
    """Columns, and the number that the top of the chart stands for."""

    columns: tuple[ChartColumn, ...]
    top: int

    @property
    def totals(self) -> dict[str, int]:
        """How often each outcome came in all of it."""
        sums = [sum(column.counts[place] for column in self.columns) for place in range(len(OUTCOMES))]
        return {kind.name: number for kind, number in zip(OUTCOMES, sums, strict=True)}


def drawn(rows: Iterable[Rates], span: ChartSpan, now: float) -> Chart:
    """The chart of these rates."""
    first = span.start(now)
    counts = [[0] * len(OUTCOMES) for _ in range(span.columns)]
    for row in rows:
        place = (row.start - first) // span.seconds
        if 0 <= place < span.columns:
            for number, kind in enumerate(OUTCOMES):
                counts[place][number] += row.count(*kind.events)
    top = round_up(max(map(sum, counts)))
    return Chart(
        tuple(
            ChartColumn(first + place * span.seconds, tuple(each), _stacked(each, top))
            for place, each in enumerate(counts)
        ),
        top,
    )


def round_up(most: int) -> int:
    """The next even number of the form 2, 4, 10 or 20 times a power of ten, so that its half is whole."""
    size = 1
    while True:
        for step in (2, 4, 10):
            if step * size >= most:
                return step * size
        size *= 10


def _stacked(counts: list[int], top: int) -> tuple[ChartSegment, ...]:
    segments, below = list[ChartSegment](), 0
    for kind, number in zip(OUTCOMES, counts, strict=True):
        if number:
            below += number
            segments.append(ChartSegment(kind.name, _measure(1 - below / top), _measure(number / top)))
    return tuple(segments)


def _measure(share: float) -> float:
    return round(share * 100, 3)
