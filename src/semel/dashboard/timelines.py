"""The attempts of a key over time, measured for SVG: across in hundredths of the whole, down in pixels."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from semel.core.ledger import BY_HAND
from semel.ops.story import Story, StoryLine, span

ROW_HEIGHT: Final = 38
# Where in its row the words stand, and the bar below them.
WORDS_Y: Final = 14
BAR_Y: Final = 26
# An attempt that was over at once is seen all the same.
LEAST_SHARE: Final = 0.8
# From here on words stand to the left of where an attempt ended: to the right there is no room for them.
TURNS_AT: Final = 50.0

BEGUN: Final = "claimed"
ERASED: Final = "erased"
ENDINGS: Final = {
    "completed": "completed",
    "failed": "failed for good",
    "released": "gave the key back",
    "lapsed": "its lease expired",
    "interrupted": "interrupted by an operator",
    "held": "held in doubt",
    "running": "at work",
    ERASED: "completed, and erased since",
}


class TimelineRow(msgspec.Struct, frozen=True):
    """An attempt, or what somebody did by hand, as it is drawn."""

    kind: str
    """How it ended, as a name for its colour."""
    words: str
    words_x: float
    words_y: int
    anchor: str
    """On which side of `words_x` the words stand."""
    bar_y: int
    x: float
    width: float
    """Nothing for what somebody did by hand."""

    @property
    def end(self) -> float:
        """Where it ended."""
        return round(self.x + self.width, 2)


class Timeline(msgspec.Struct, frozen=True):
    """What happened to a key, one row below the other, and between which moments that was."""

    rows: tuple[TimelineRow, ...]
    start: float
    end: float

    @property
    def height(self) -> int:
        """How high it is, in pixels."""
        return len(self.rows) * ROW_HEIGHT

    @property
    def words(self) -> str:
        """All of it, for whoever does not see it."""
        return "; ".join(row.words for row in self.rows)


class _Stretch(msgspec.Struct):
    """A stretch of time, and what it is called."""

    kind: str
    words: str
    began: float
    ended: float


def timeline_of(story: Story) -> Timeline | None:
    """The attempts of a story as a picture; None where it has none."""
    stretches = list(_stretches(story.lines))
    if not stretches:
        return None
    start, end = min(one.began for one in stretches), max(one.ended for one in stretches)
    rows = [_row(place, one, start, end) for place, one in enumerate(stretches)]
    return Timeline(tuple(rows), start, end)


def _stretches(lines: Iterable[StoryLine]) -> Iterator[_Stretch]:
    begun: StoryLine | None = None
    for line in lines:
        if begun is not None and (line.kind == BEGUN or line.attempt != begun.attempt):
            yield _Stretch("earlier", "earlier attempts", begun.at, line.at)
            begun = None
        if line.kind == BEGUN:
            begun = line
        elif begun is None:
            yield _Stretch(
                line.kind, f"{line.kind} by {line.who}" if line.who else line.kind, line.at, line.at
            )
        else:
            yield _attempt(begun, line)
            begun = None


def _attempt(begun: StoryLine, line: StoryLine) -> _Stretch:
    # When it was done is not kept of what was erased; that is the moment at which it was erased.
    ended = begun.at if line.kind == ERASED else max(begun.at, line.at)
    after = "for" if line.kind == "running" else "after"
    # Moments are told to the second.
    length = f" {after} {span(ended - begun.at)}" if ended - begun.at >= 1 else ""
    words = f"attempt {line.attempt}: {ENDINGS.get(line.kind, line.kind)}{length}"
    return _Stretch(line.kind, words, begun.at, ended)


def _row(place: int, one: _Stretch, start: float, end: float) -> TimelineRow:
    whole = (end - start) or 1.0
    at_once = one.kind in BY_HAND and one.began == one.ended
    width = 0.0 if at_once else max(LEAST_SHARE, 100 * (one.ended - one.began) / whole)
    x = min(100 * (one.began - start) / whole, 100 - width)
    turned = x >= TURNS_AT
    return TimelineRow(
        kind=one.kind.replace(" ", "-"),
        words=one.words,
        words_x=round(x + width if turned else x, 2),
        words_y=place * ROW_HEIGHT + WORDS_Y,
        anchor="end" if turned else "start",
        bar_y=place * ROW_HEIGHT + BAR_Y,
        x=round(x, 2),
        width=round(width, 2),
    )
