"""How counters and switches stand: what is used up and until when, and who turned what."""

import re
from collections.abc import Sequence
from datetime import datetime

import msgspec

from semel.core.commands import Begins, Item, Page, Query, Steps, cursor
from semel.core.keys import key_of
from semel.core.policy import check_limit
from semel.core.spans import DAY, HOUR
from semel.gate.rules import Cap
from semel.ops.actions import OPERATORS
from semel.ops.model import PAGE_SIZE
from semel.ops.questions import EXAMINED
from semel.ops.related import ACTION_PAGES, ACTIONS_PAGE
from semel.periods import Day, Month, Period, Week
from semel.state.counters import KEEP
from semel.state.journal import Entry, JournalSteps
from semel.state.switches import SwitchSteps
from semel.tables import COUNTERS

# The labels of periods begin with digits; charges and cooldowns beside them begin with a letter before "d".
BEYOND_PERIODS, BEYOND_ALL = ":", "d"
# So many periods of one counter are told of, the latest ones.
MOST_PERIODS = 20
# No zone is further away from UTC than that, a change of its clocks included.
ZONES = 15 * HOUR

LABELS: tuple[tuple[re.Pattern[str], type[Period], str], ...] = (
    (re.compile(r"\d{4}-\d{2}-\d{2}"), Day, "%Y-%m-%d"),
    (re.compile(r"\d{4}-W\d{2}"), Week, "%G-W%V-%u"),
    (re.compile(r"\d{4}-\d{2}"), Month, "%Y-%m"),
)


class CounterState(msgspec.Struct, frozen=True):
    """A counter in one of its periods, as its row tells."""

    counter: str
    period: str
    used: int
    updated_at: float
    resets_at: float | None
    """When its period ends; None where the row does not tell, as it is kept for a span of its own."""
    cap: int | None = None
    """The cap of the rule that counts here, where one was given."""

    @property
    def remaining(self) -> int | None:
        """What there is still room for; None where no cap is known."""
        return None if self.cap is None else max(0, self.cap - self.used)


class CounterStates(msgspec.Struct, frozen=True):
    """A page of counters, and where the next one begins; None when this is the last."""

    counters: tuple[CounterState, ...]
    after: str | None
    scan: bool
    """They were found by reading one row after the other, with all that was charged."""
    examined: int = 0
    """About how many keys the store has gone over to find these, where it had to."""


class SwitchTurn(msgspec.Struct, frozen=True):
    """A switch was turned: when, by whom, and why."""

    at: float
    on: bool
    by: str
    """Who turned it; empty where nobody said so."""
    why: str


class StandingSteps:
    """These questions, as generators of commands."""

    def __init__(self, journal: JournalSteps, switches: SwitchSteps, *, unordered: bool) -> None:
        self._realm = journal.realm
        self._entries = journal
        self._switches = switches
        self._by_scan = unordered

    def counters(
        self, prefix: str = "", *, limit: int = PAGE_SIZE, after: str | None = None, caps: Sequence[Cap] = ()
    ) -> Steps[CounterStates]:
        """A page of the counters whose names begin so, in each period that is remembered.

        `caps` are rules of your gates: they tell the caps, which no row does, and the ends of periods. Two
        requests are made for each counter; where keys lie in no order, some two thousand rows are read.
        """
        check_limit("limit", limit)
        where = Begins(COUNTERS.partition, self._realm.prefix + prefix)
        if self._by_scan:
            page: Page = yield Query(
                COUNTERS, where=where, high=BEYOND_PERIODS, limit=limit, after=after, most=EXAMINED
            )
            found = tuple(_state(row, caps) for row in page.items)
            return CounterStates(found, page.after, True, page.read)
        rows: list[Item] = []
        for _ in range(limit):
            first: Page = yield Query(COUNTERS, where=where, limit=1, after=after)
            if not first.items:
                after = None
                break
            name = first.items[0][COUNTERS.partition]
            periods: Page = yield Query(COUNTERS, name, high=BEYOND_PERIODS, reverse=True, limit=MOST_PERIODS)
            rows += periods.items
            after = cursor(COUNTERS, {"counter": name, "entry": BEYOND_ALL})
        return CounterStates(tuple(_state(row, caps) for row in rows), after, False)

    def switch_history(self, name: str, *, limit: int = 20) -> Steps[tuple[SwitchTurn, ...]]:
        """How a switch was turned, newest first: what it tells itself, and what operators' entries tell.

        The latest 600 entries of this scope's operators are looked at, in three requests at most.
        """
        check_limit("limit", limit)
        switch = (yield from self._switches.read()).get(name)
        turns: list[SwitchTurn] = []
        if switch is not None:
            turns.append(SwitchTurn(switch.since, switch.on, switch.by, switch.reason))
        after: str | None = None
        for _ in range(ACTION_PAGES):
            page = yield from self._entries.list(OPERATORS, reverse=True, limit=ACTIONS_PAGE, after=after)
            turns += [_turn(entry) for entry in page.entries if _turns(entry, name)]
            after = page.after
            if after is None or len(turns) > limit:
                break
        return tuple(_once(turns)[:limit])


def _turns(entry: Entry, name: str) -> bool:
    return entry.body.get("about") == name and entry.body.get("action") in ("turn on", "turn off")


def _turn(entry: Entry) -> SwitchTurn:
    body = entry.body
    on = body.get("action") == "turn on"
    return SwitchTurn(entry.at or 0.0, on, str(entry.actor or ""), str(body.get("why", "")))


def _once(turns: list[SwitchTurn]) -> list[SwitchTurn]:
    """The turns without the one that the switch and an entry both tell of."""
    if not turns:
        return []
    last, *earlier = turns
    return earlier if any(_is_same(last, one) for one in earlier) else turns


def _is_same(one: SwitchTurn, other: SwitchTurn) -> bool:
    # They were written together, and each asked for the time by itself.
    together = abs(one.at - other.at) < 1
    return together and (one.on, one.by, one.why) == (other.on, other.by, other.why)


def _state(row: Item, caps: Sequence[Cap]) -> CounterState:
    counter, period = key_of(row[COUNTERS.partition]), row["entry"]
    cap = next((each for each in caps if _counts(each, counter)), None)
    updated = row.get("updated_at") or 0.0
    return CounterState(
        counter,
        period,
        int(row.get("count") or 0),
        updated,
        _end(period, updated, row[COUNTERS.expires], cap),
        None if cap is None else cap.cap,
    )


def _counts(cap: Cap, counter: str) -> bool:
    """Whether a rule counts under this name, whatever fills in its template."""
    pieces = [re.escape(piece) for piece in re.split(r"\{[^{}]*\}", cap.counter)]
    return re.fullmatch(".+".join(pieces), counter) is not None


def _end(period: str, updated: float, expires: float, cap: Cap | None) -> float | None:
    """When a period ends: by the rule that counts, by its label, or by how long its row is kept."""
    if cap is not None and (span := cap.per.span(updated)).label == period:
        return span.end
    if "T" in period:
        return _end_of_hour(period)
    # A row is kept for a week after its period, unless the caller wants otherwise: then it ends elsewhere.
    end, known = expires - KEEP, _end_in_utc(period)
    return end if known is not None and abs(end - known) <= ZONES else None


def _end_of_hour(period: str) -> float | None:
    try:
        return datetime.fromisoformat(period).timestamp() + HOUR
    except ValueError:
        return None


def _end_in_utc(period: str) -> float | None:
    for pattern, kind, form in LABELS:
        if pattern.fullmatch(period):
            day = f"{period}-1" if kind is Week else period
            try:
                start = datetime.strptime(f"{day} +0000", f"{form} %z")
            except ValueError:
                return None
            return kind().span(start.timestamp() + DAY / 2).end
    return None
