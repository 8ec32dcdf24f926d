"""What rates tell in numbers: by function, how long work took, what gates refused, what was saved."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from semel.core.events import What
from semel.dashboard.charts import OUTCOMES
from semel.ops.rates import DUPLICATES, EDGES, Rates, together

# So many names and keys are listed: those that come most often.
MOST_LISTED: Final = 15
MOST_REPEATED: Final = 5
# What took longer than the last edge has no end: it is said to be more than that.
ENDLESS: Final = EDGES[-1]


class NameFigures(msgspec.Struct, frozen=True):
    """What one function, or one door, did."""

    name: str
    counts: tuple[int, ...]
    """How often, for each of `OUTCOMES`."""
    refused: int
    median: float | None
    most: float | None
    """What 95 of 100 took at most."""

    @property
    def total(self) -> int:
        """All of it together."""
        return sum(self.counts) + self.refused


class Figures(msgspec.Struct, frozen=True):
    """What a stretch of time comes to."""

    names: tuple[NameFigures, ...]
    more: int
    """How many names are not listed."""
    median: float | None
    most: float | None
    reasons: tuple[tuple[str, int], ...]
    """Why gates refused, and how often."""
    repeated: tuple[tuple[str, int], ...]
    """The keys that were asked for again most often, by digest."""
    saved: float
    """About how many seconds of work the duplicates would have taken."""


def figures(rows: Iterable[Rates]) -> Figures:
    """The figures of these rates."""
    [whole] = together([msgspec.structs.replace(row, start=0) for row in rows]) or [Rates(0)]
    names = sorted((_of_name(name, whole) for name in whole.counts), key=lambda one: (-one.total, one.name))
    names = [one for one in names if one.total]
    buckets = [sum(each) for each in zip(*_even(whole.seconds.values()), strict=True)]
    return Figures(
        tuple(names[:MOST_LISTED]),
        max(0, len(names) - MOST_LISTED),
        quantile(buckets, 0.5),
        quantile(buckets, 0.95),
        tuple(sorted(whole.reasons.items(), key=lambda one: -one[1])),
        tuple(sorted(whole.duplicates.items(), key=lambda one: (-one[1], one[0]))[:MOST_REPEATED]),
        _saved(whole),
    )


def with_counted(rows: Iterable[Rates], counted: Iterable[Rates], width: int) -> list[Rates]:
    """Rates as they were written, and what this process has counted since."""
    since = [msgspec.structs.replace(row, start=row.start // width * width) for row in counted]
    return together([*rows, *since])


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The edge under which this share of all lies; None where there is none, infinity beyond the last."""
    total, below = sum(buckets), 0
    if not total:
        return None
    for number, edge in zip(buckets, (*EDGES, float("inf")), strict=False):
        below += number
        if below >= share * total:
            return edge
    return float("inf")


def took(seconds: float | None) -> str:
    """How long something took, as people read it; buckets tell no more than an upper edge."""
    if seconds is None:
        return ""
    if seconds == float("inf"):
        return f"> {ENDLESS:g} s"
    return f"≤ {seconds * 1000:g} ms" if seconds < 1 else f"≤ {seconds:g} s"


def _of_name(name: str, whole: Rates) -> NameFigures:
    counts, buckets = whole.counts[name], whole.seconds.get(name, [])
    return NameFigures(
        name,
        tuple(sum(counts.get(event, 0) for event in kind.events) for kind in OUTCOMES),
        counts.get(What.REFUSED.value, 0),
        quantile(buckets, 0.5),
        quantile(buckets, 0.95),
    )


def _saved(whole: Rates) -> float:
    """The duplicates of each name, at the time that half of its work took."""
    saved = 0.0
    for name, counts in whole.counts.items():
        median = quantile(whole.seconds.get(name, []), 0.5)
        if median is not None:
            saved += sum(counts.get(what.value, 0) for what in DUPLICATES) * min(median, ENDLESS)
    return saved


def _even(rows: Iterable[Sequence[int]]) -> list[list[int]]:
    """Rows of one length: those of another release may have other buckets."""
    lists = [list(row) for row in rows]
    most = max(map(len, lists), default=0)
    return [row + [0] * (most - len(row)) for row in lists]
