"""A scenario as a sequence diagram in SVG: its callers, the record between them, and time going down."""

from collections.abc import Iterator
from html import escape

import msgspec

from semel.core.lifecycle import Status
from tests.diagrams.playing import Played, Standing, in_words, play
from tests.diagrams.scenarios import ONE, OPERATOR, THREE, TWO, Asked, Local, Scenario

# Where the lines of the callers are, and the record between them. It is drawn no wider than it has to be, so
# that it can still be read where a phone shows it 380 pixels wide.
TIME, LEFT, RIGHT, FAR = 8, 66, 504, 624
BAR = (226, 344)
CENTRE = sum(BAR) / 2
MARGIN = 60
TOP, ROW, PAUSE = 52, 27, 10
# What is lost on its way ends near the record, beside the words over it, for which there is so much room.
SHORT, LETTERS = 0.2, 19

CLASSES: dict[Status | None, str] = {
    None: "absent",
    Status.IN_PROGRESS: "progress",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.UNKNOWN: "unknown",
    Status.RELEASED: "released",
}

# A picture in a page has no style of the page's: it brings both themes, and its own ground.
STYLE = """
svg { --ground: #ffffff; --ink: #1c2430; --muted: #5b6675; --line: #b9c2cd; --bad: #b42318;
  --progress: #d6e6fb; --completed: #d3efdc; --failed: #f9d9d6; --unknown: #fbe7b8; --released: #e6e2f3; }
@media (prefers-color-scheme: dark) {
  svg { --ground: #12161c; --ink: #e6eaf0; --muted: #a2adbb; --line: #4a5563; --bad: #ff8a80;
    --progress: #1d3d66; --completed: #1c4a30; --failed: #5f2421; --unknown: #5a4310; --released: #3b3459; }
}
text { font: 15px system-ui, sans-serif; fill: var(--ink);
  paint-order: stroke; stroke: var(--ground); stroke-width: 4px; stroke-linejoin: round; }
.ground { fill: var(--ground); }
.head { font-weight: 600; }
.small, .time { font-size: 14px; fill: var(--muted); }
.state { font-size: 14px; font-weight: 600; stroke: none; }
.bad { fill: var(--bad); }
.life { stroke: var(--line); stroke-width: 1.5; }
.call { stroke: var(--ink); stroke-width: 1.5; fill: none; }
.reply { stroke: var(--ink); stroke-width: 1.5; fill: none; stroke-dasharray: 5 4; }
.tip { fill: var(--ink); }
.ring { fill: var(--ground); stroke: var(--ink); stroke-width: 1.5; }
.cross { stroke: var(--bad); stroke-width: 2.5; }
.over { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 3 3; }
.bar { stroke: var(--line); }
.lapsed { stroke: var(--bad); stroke-dasharray: 3 3; }
.absent { fill: none; stroke-dasharray: 2 4; }
.progress { fill: var(--progress); }
.completed { fill: var(--completed); }
.failed { fill: var(--failed); }
.unknown { fill: var(--unknown); }
.released { fill: var(--released); }
"""


class Stretch(msgspec.Struct, frozen=True):
    """A stretch of the record's bar: from where on, and how the record stands from there."""

    y: float
    standing: Standing
    lapsed: bool = False


class Picture:
    """A diagram in the making: what is drawn so far, and how far down it has come."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.y = float(TOP)
        self.at = -1.0
        self.drawn: list[str] = []
        self.parts = [Stretch(TOP - 18, Standing())]
        self.ends: dict[str, float] = {}
        self.lanes = lanes_of(scenario)

    def draw(self) -> str:
        """The whole picture."""
        for played in play(self.scenario):
            self._until(played.step.at)
            if isinstance(played.step, Local):
                self._local(played.step)
            else:
                self._call(played.step, played)
        return self._finished()

    def _until(self, at: float) -> None:
        """Let time pass: a lease may end on the way."""
        part = self.parts[-1]
        ends = part.standing.lease_until
        if part.standing.status is Status.IN_PROGRESS and not part.lapsed and at >= ends:
            self._moment(ends)
            self.parts.append(Stretch(self.y - 5, part.standing, lapsed=True))
            self._text(BAR[1] + 8, "the lease is over", "small bad")
            self._line("over", BAR[0] - 6, self.y - 5, BAR[1] + 4, self.y - 5)
            self.y += ROW
        self._moment(at)

    def _moment(self, at: float) -> None:
        if at != self.at:
            self.y += PAUSE
            self._text(TIME, f"{at:g} s", "time")
            self.at = at

    def _local(self, step: Local) -> None:
        x = self.lanes[step.who]
        if step.mark == "crash":
            self._cross(x, self.y - 5)
            self.ends[step.who] = self.y - 5
        else:
            kind = "tip" if step.mark == "effect" else "ring"
            self.drawn.append(f'<circle class="{kind}" cx="{x:g}" cy="{self.y - 5:g}" r="5"/>')
        self._beside(step.who, step.text, "bad" if step.mark == "crash" else "")
        self.y += ROW

    def _call(self, call: Asked, played: Played) -> None:
        names = [move.name for move in call.moves if move.name != call.verb]
        words = ": ".join((call.verb, *names))
        if call.lost == "request":
            self._request(call.who, words, reaches=False)
            words = "the same again"
        self._request(call.who, words)
        if played.standing != self.parts[-1].standing:
            self.parts.append(Stretch(self.y - ROW + 6, played.standing))
        if call.lost == "reply":
            self._reply(call.who, "reply is lost", arrives=False)
            self._request(call.who, "the same again")
        refused = played.answer in ("ClaimLost", "Mismatch")
        self._reply(call.who, played.answer, bad=refused)

    def _request(self, who: str, words: str, reaches: bool = True) -> None:
        x, edge = self.lanes[who], self._edge(who)
        self._beside(who, words, "")
        y = self.y + 6
        end = edge if reaches else edge + (x - edge) * SHORT
        self._line("call", x, y, end, y)
        self._tip(end, y, end > x) if reaches else self._cross(end, y)
        self.y += ROW

    def _reply(self, who: str, words: str, arrives: bool = True, bad: bool = False) -> None:
        x, edge = self.lanes[who], self._edge(who)
        self._beside(who, words, "bad" if bad or not arrives else "")
        y = self.y + 6
        end = x if arrives else edge + (x - edge) * SHORT
        self._line("reply", edge, y, end, y)
        self._tip(end, y, end > edge) if arrives else self._cross(end, y)
        self.y += ROW

    def _edge(self, who: str) -> float:
        return BAR[0] if self.lanes[who] < CENTRE else BAR[1]

    def _beside(self, who: str, words: str, kind: str) -> None:
        """A text between the caller's line and the record."""
        if len(words) > LETTERS:
            raise ValueError(f"there is no room for {words!r}: it has more than {LETTERS} letters")
        if self.lanes[who] < CENTRE:
            self._text(self.lanes[who] + 10, words, kind)
        else:
            self._text(self.lanes[who] - 10, words, kind, "end")

    def _text(
        self, x: float, words: str, kind: str = "", anchor: str = "start", y: float | None = None
    ) -> None:
        self.drawn.append(text(x, (self.y if y is None else y) - 1, words, kind, anchor))

    def _line(self, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
        self.drawn.append(line(kind, x1, y1, x2, y2))

    def _tip(self, x: float, y: float, to_the_right: bool) -> None:
        back = x - 8 if to_the_right else x + 8
        self.drawn.append(f'<path class="tip" d="M{x:g} {y:g} L{back:g} {y - 4:g} L{back:g} {y + 4:g} Z"/>')

    def _cross(self, x: float, y: float) -> None:
        self._line("cross", x - 6, y - 6, x + 6, y + 6)
        self._line("cross", x - 6, y + 6, x + 6, y - 6)

    def _finished(self) -> str:
        height, width = self.y + 6, max(self.lanes.values()) + MARGIN
        inside = [*self._lifelines(height - 12), *self._bar(height - 12), *self.drawn]
        title, words = escape(self.scenario.title.replace("`", "")), escape(in_words(self.scenario))
        size = f'width="{width:g}" height="{height:g}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {size} role="img">',
            f"<title>{title}</title>",
            f"<desc>{words}</desc>",
            f"<style>{STYLE}</style>",
            f'<rect class="ground" {size} rx="8"/>',
            *inside,
            "</svg>\n",
        ]
        return "\n".join(lines)

    def _lifelines(self, bottom: float) -> Iterator[str]:
        yield text(CENTRE, TOP - 28, "the record", "head", "middle")
        for who, x in self.lanes.items():
            yield text(x, TOP - 28, who, "head", "middle")
            yield line("life", x, TOP - 18, x, self.ends.get(who, bottom))

    def _bar(self, bottom: float) -> Iterator[str]:
        ends = [part.y for part in self.parts[1:]] + [bottom]
        for part, end in zip(self.parts, ends, strict=True):
            if end > part.y:
                yield from bar(part, end)


def lanes_of(scenario: Scenario) -> dict[str, float]:
    """Where each caller has its line: the first on the left of the record, the others on its right."""
    callers = list(dict.fromkeys(step.who for step in scenario.steps))
    right = [who for who in (TWO, THREE, OPERATOR) if who in callers]
    return {ONE: LEFT, **dict(zip(right, (RIGHT, FAR), strict=False))}


def bar(part: Stretch, end: float) -> Iterator[str]:
    """A stretch of the record's bar, with its state written on it."""
    kind = CLASSES[part.standing.status] + (" lapsed" if part.lapsed else "")
    height, width = end - part.y, BAR[1] - BAR[0]
    yield f'<rect class="bar {kind}" x="{BAR[0]}" y="{part.y:g}" width="{width}" height="{height:g}" rx="3"/>'
    words = [part.standing.status.value if part.standing.status else "no record"]
    if part.standing.status is Status.IN_PROGRESS and height > 36:
        words.append("lapsed" if part.lapsed else f"attempt {part.standing.attempt}")
    first = part.y + height / 2 + 4 - 9 * (len(words) - 1)
    for at, word in enumerate(words if height > 15 else []):
        yield text(CENTRE, first + 18 * at, word, "state" if at == 0 else "state small", "middle")


def text(x: float, y: float, words: str, kind: str, anchor: str) -> str:
    named = f' class="{kind}"' if kind else ""
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text{named} x="{x:g}" y="{y:g}"{placed}>{escape(words)}</text>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
