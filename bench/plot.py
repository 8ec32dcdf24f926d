"""Dots on a logarithmic scale, as SVG: one row for each contender, one mark for each series.

A dot is a median, and the line through it the middle half of the rounds. The picture has its own background,
and follows the colours that its reader prefers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from bench.timing import figure

WIDTH, LABELS, RIGHT = 780, 270, 80
TOP, ROW, BOTTOM = 64, 40, 34
RADIUS = 5
LETTER = 6.6
"""About how wide a letter of a label is."""

STYLE = """
svg { --back: #ffffff; --text: #1f2328; --dim: #59636e; --grid: #d9dee3; --ours: #0550ae; --others: #6e7781 }
@media (prefers-color-scheme: dark) {
svg { --back: #0d1117; --text: #e6edf3; --dim: #9198a1; --grid: #2f353d; --ours: #79c0ff; --others: #b1bac4 }
}
text { font: 13px system-ui, sans-serif; fill: var(--text) }
.head { font-weight: 600; font-size: 15px }
.dim { fill: var(--dim); font-size: 12px }
.back { fill: var(--back) } .grid { stroke: var(--grid) }
.ours { --mark: var(--ours) } .others { --mark: var(--others) }
text.ours { font-weight: 600 }
.dot { fill: var(--mark); stroke: var(--mark); stroke-width: 2 }
.ring { fill: var(--back); stroke: var(--mark); stroke-width: 2 }
.spread { stroke: var(--mark); stroke-width: 2; opacity: 0.55 }
"""
MARKS = ("dot", "ring")


@dataclass(frozen=True)
class Spread:
    """A median, and where the middle half of the rounds lies."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class PlotRow:
    """What is drawn for one contender: a spread for each series that it was measured in."""

    label: str
    spreads: tuple[Spread | None, ...]
    ours: bool = False


class Axis:
    """A logarithmic scale over whole powers of ten."""

    def __init__(self, values: Sequence[float]) -> None:
        self.first = math.floor(math.log10(min(values)))
        self.last = max(self.first + 1, math.ceil(math.log10(max(values))))

    def at(self, value: float) -> float:
        """Where a value is, from the left edge of the picture."""
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return LABELS + share * (WIDTH - LABELS - RIGHT)

    @property
    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.first, self.last + 1)]


def drawn(title: str, unit: str, series: Sequence[str], rows: Sequence[PlotRow]) -> str:
    """The picture as SVG."""
    axis = Axis([value for row in rows for one in row.spreads if one for value in (one.low, one.high)])
    height = TOP + ROW * len(rows) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="head" x="16" y="26">{escape(title)}</text>',
        *_legend(series),
        *_grid(axis, unit, height),
    ]
    for place, row in enumerate(rows):
        parts += _row(axis, row, TOP + ROW * place + ROW / 2)
    return "\n".join([*parts, "</svg>\n"])


def _legend(series: Sequence[str]) -> Iterator[str]:
    x = 20.0
    for name, mark in zip(series, MARKS, strict=False):
        yield f'<circle class="others {mark}" cx="{x:g}" cy="44" r="{RADIUS - 1}"/>'
        yield f'<text class="dim" x="{x + 12:g}" y="48">{escape(name)}</text>'
        x += 36 + LETTER * len(name)


def _grid(axis: Axis, unit: str, height: int) -> Iterator[str]:
    for tick in axis.ticks:
        x, end = axis.at(tick), height - BOTTOM
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{end}"/>'
        label = f"{tick:,.0f}" if tick >= 1 else f"{tick:g}"
        yield f'<text class="dim" text-anchor="middle" x="{x:.1f}" y="{end + 18}">{label}</text>'
    below = height - BOTTOM + 18
    yield f'<text class="dim" text-anchor="end" x="{LABELS - 30}" y="{below}">{escape(unit)}</text>'


def _row(axis: Axis, row: PlotRow, y: float) -> Iterator[str]:
    whose = "ours" if row.ours else "others"
    yield f'<text class="{whose}" x="16" y="{y + 4:g}">{escape(_fitting(row.label))}</text>'
    two = sum(one is not None for one in row.spreads) > 1
    for place, (spread, mark) in enumerate(zip(row.spreads, MARKS, strict=False)):
        if spread is None:
            continue
        at = y + (place * 18 - 9 if two else 0)
        low, middle, high = axis.at(spread.low), axis.at(spread.median), axis.at(spread.high)
        yield f'<g class="{whose}">'
        yield f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{at:g}" y2="{at:g}"/>'
        yield f'<circle class="{mark}" cx="{middle:.1f}" cy="{at:g}" r="{RADIUS}"/></g>'
        after = max(high, middle + RADIUS) + 6
        yield f'<text class="dim" x="{after:.1f}" y="{at + 4:g}">{figure(spread.median)}</text>'


def _fitting(label: str) -> str:
    most = int((LABELS - 30) / LETTER)
    return label if len(label) <= most else label[: most - 1] + "…"
