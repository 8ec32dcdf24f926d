"""How counters, switches and inboxes stand: what is used up, who turned what, and where messages are."""

import re
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import unquote

import msgspec

from semel.core.commands import Item, Page, Query, Steps, cursor
from semel.core.keys import key_of
from semel.core.keys import prefix as prefix_of
from semel.core.policy import DAY, HOUR, check_limit
from semel.gate.rules import Cap
from semel.ops.actions import SWITCHES
from semel.ops.model import PAGE_SIZE
from semel.ops.questions import EXAMINED
from semel.ops.related import ACTION_PAGES, ACTIONS_PAGE
from semel.periods import Day, Month, Period, Week
from semel.state.counters import KEEP
from semel.state.journal import Entry, JournalSteps
from semel.state.switches import SwitchSteps
from semel.tables import COUNTERS, INBOX

# The labels of periods begin with digits; charges and cooldowns beside them begin with a letter before "d".
BEYOND_PERIODS, BEYOND_ALL = ":", "d"
# Behind all lanes of an inbox.
BEYOND_LANES = "~"
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


class InboxPlace(msgspec.Struct, frozen=True, order=True):
    """An inbox that holds messages, and its scope."""

    scope: str
    name: str


class StandingSteps:
    """These questions, as generators of commands."""

    def __init__(self, journal: JournalSteps, switches: SwitchSteps, *, unordered: bool) -> None:
        self._realm = journal.realm
        self._turns = JournalSteps(switches.realm)
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
        begins = self._realm.prefix + prefix
        if self._by_scan:
            page: Page = yield Query(
                COUNTERS, prefix=begins, high=BEYOND_PERIODS, limit=limit, after=after, most=EXAMINED
            )
            found = tuple(_state(row, caps) for row in page.items)
            return CounterStates(found, page.after, True, page.read)
        rows: list[Item] = []
        for _ in range(limit):
            first: Page = yield Query(COUNTERS, prefix=begins, limit=1, after=after)
            if not first.items:
                after = None
                break
            name = first.items[0][COUNTERS.partition]
            periods: Page = yield Query(COUNTERS, name, high=BEYOND_PERIODS, reverse=True, limit=MOST_PERIODS)
            rows += periods.items
            after = cursor(COUNTERS, {"counter": name, "entry": BEYOND_ALL})
        return CounterStates(tuple(_state(row, caps) for row in rows), after, False)

    def inboxes(self, *, limit: int = PAGE_SIZE) -> Steps[tuple[InboxPlace, ...]]:
        """The inboxes that hold messages or dead letters, in all scopes of the environment.

        One request is made for each; where keys lie in no order, some two thousand rows are read.
        """
        check_limit("limit", limit)
        begins = prefix_of(self._realm.env, "").removesuffix("/")
        if self._by_scan:
            page: Page = yield Query(
                INBOX, prefix=begins, limit=EXAMINED, most=EXAMINED, only=("expires_at",)
            )
            return tuple(sorted({_inbox(row) for row in page.items}))[:limit]
        found: dict[InboxPlace, None] = {}
        after: str | None = None
        while len(found) < limit:
            first: Page = yield Query(INBOX, prefix=begins, limit=1, after=after, only=("expires_at",))
            if not first.items:
                break
            found[_inbox(first.items[0])] = None
            after = cursor(INBOX, {INBOX.partition: first.items[0][INBOX.partition], "entry": BEYOND_LANES})
        return tuple(found)

    def switch_history(self, name: str, *, limit: int = 20) -> Steps[tuple[SwitchTurn, ...]]:
        """How a switch was turned, newest first: by what it says itself, and by operators from any scope.

        The latest 600 turns of all switches are looked at, in three requests at most.
        """
        check_limit("limit", limit)
        switch = (yield from self._switches.read()).get(name)
        turns: list[SwitchTurn] = []
        if switch is not None:
            turns.append(SwitchTurn(switch.since, switch.on, switch.by, switch.reason))
        after: str | None = None
        for _ in range(ACTION_PAGES):
            page = yield from self._turns.list(SWITCHES, reverse=True, limit=ACTIONS_PAGE, after=after)
            turns += [_turn(entry) for entry in page.entries if _turns(entry, name)]
            after = page.after
            if after is None or len(turns) > limit:
                break
        return tuple(_once(turns)[:limit])


def _inbox(row: Item) -> InboxPlace:
    _, scope, name = row[INBOX.partition].split("/", 2)
    # A shard but the first has its number behind the name.
    return InboxPlace(unquote(scope), name.partition(":")[0])


def _turns(entry: Entry, name: str) -> bool:
    return entry.body.get("about") == name


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
