"""Rates over time: what each process did in each minute, as small rows in the ledger's own store.

A process counts its events in memory, which costs no request, and writes them once a minute. Nothing personal
is in a row: keys are named by the digests that logs name them by.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from logging import getLogger
from typing import TypeAlias

import msgspec

from semel.core.clock import BackgroundThread, Clock, SignalSafeLock
from semel.core.commands import After, Page, Put, Query, Steps
from semel.core.drive import ErrorListener, Store, drive
from semel.core.events import Event, What
from semel.core.keys import prefix
from semel.core.policy import DAY
from semel.core.realm import Moment, moment_of
from semel.core.runtime import FORKING, process_name, random_token
from semel.errors import InvalidOption, StoreError
from semel.tables import JOURNAL

MINUTE, HOUR = 60, 3600

# How long rows are kept: minutes for a look at the last days, hours for a look at the last month.
KEPT = {MINUTE: 3 * DAY, HOUR: 31 * DAY}

# How many of the keys that were asked for again a row names: those that were so most often.
MOST_NAMED = {MINUTE: 50, HOUR: 500}

OWNER = "semel:rates"

# How long work took, from its claim to its end: the upper edges of the buckets, in seconds.
EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# A duplicate was given what an earlier call came to. `busy` is none: it counts polls.
DUPLICATES = frozenset({What.REPLAYED, What.FAILED_BEFORE})
BEGINS = frozenset({What.CLAIMED, What.TAKEN_OVER})
ENDS = frozenset({What.COMPLETED, What.FAILED, What.RELEASED})
# How long these took says nothing about the work.
VANISHED = frozenset({What.HELD, What.CLAIM_LOST, What.EXHAUSTED})

# Memory is bounded, whatever is counted: attempts under way, scopes, names, keys, and rows to be written.
MOST_RUNNING = 10_000
MOST_SCOPES = 1000
MOST_NAMES = 200
MOST_KEYS = 10_000
MOST_ROWS = 2000
OTHER_NAMES = "(others)"
MOST_REASONS = 50
REASON = re.compile(r"\w{0,60}")

# How far back duplicates of one key are looked for, and in how many pages of rows.
LOOKED_BACK = DAY
MOST_PAGES = 5

RowPlace: TypeAlias = tuple[str, int, int]
"""The scope, the width and the start of a row."""


class Rates(msgspec.Struct, frozen=True):
    """What happened in one minute, or in one hour."""

    start: int
    """The moment at which it began, in seconds since the epoch."""
    counts: dict[str, dict[str, int]] = {}
    """How often each kind of event came, by the function or the door that it is about."""
    seconds: dict[str, list[int]] = {}
    """How many took how long: one number for each of `EDGES`, and one for what took longer."""
    duplicates: dict[str, int] = {}
    """Which keys were asked for again most often, by digest."""
    reasons: dict[str, int] = {}
    """How often a gate refused for each kind of reason, such as "cap" or "quiet"."""

    def count(self, *whats: str) -> int:
        """How often any of these events came."""
        return sum(each.get(what, 0) for each in self.counts.values() for what in whats)


# Counting


class RateCounts:
    """What is counted of one scope in one minute."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.seconds: dict[str, list[int]] = {}
        self.duplicates: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    def count(self, name: str, event: Event, seconds: float | None) -> None:
        """Count an event, and how long its work took, where that is known."""
        if name not in self.counts and len(self.counts) >= MOST_NAMES:
            name = OTHER_NAMES
        self.counts.setdefault(name, Counter())[event.what.value] += 1
        if seconds is not None:
            buckets = self.seconds.setdefault(name, [0] * (len(EDGES) + 1))
            buckets[sum(edge < seconds for edge in EDGES)] += 1
        if event.what in DUPLICATES and (
            event.key_digest in self.duplicates or len(self.duplicates) < MOST_KEYS
        ):
            self.duplicates[event.key_digest] += 1
        # What is warned of was refused by a door, and not by a gate.
        if event.what is What.REFUSED and event.key_digest and not event.warned:
            self._count_reason(event.detail)

    def _count_reason(self, reason: str) -> None:
        # Its kind alone: the rest of it may name a person.
        kind = REASON.match(reason)[0]  # type: ignore[index]  # which matches any text
        known = kind in self.reasons or len(self.reasons) < MOST_REASONS
        self.reasons[kind if known else OTHER_NAMES] += 1

    def rates(self, start: int) -> Rates:
        """What was counted, as a value."""
        counts = {name: dict(each) for name, each in self.counts.items()}
        seconds = {name: list(each) for name, each in self.seconds.items()}
        return Rates(start, counts, seconds, dict(self.duplicates), dict(self.reasons))


class RateCounter:
    """Counts the events of this process, by scope and minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[tuple[str, int], float] = {}
        self._counts: dict[tuple[str, int], RateCounts] = {}
        # Not a plain lock: a signal's handler may do work of its own in the midst of a call.
        self._lock = SignalSafeLock()

    def __call__(self, event: Event) -> None:
        """Count an event."""
        place = event.scope, _begin(self._clock.now(), MINUTE)
        with self._lock:
            seconds = self._timed(event)
            counts = self._counts.get(place)
            if counts is None:
                if len(self._counts) >= MOST_SCOPES:
                    return
                counts = self._counts[place] = RateCounts()
            counts.count(event.name or event.door, event, seconds)

    def _timed(self, event: Event) -> float | None:
        """Note that an attempt began; where it ends, how long it took."""
        attempt = event.key_digest, event.attempt
        if event.what in BEGINS and event.attempt:
            if len(self._running) >= MOST_RUNNING:
                self._running.pop(next(iter(self._running)), None)  # the oldest has vanished, most likely
            self._running[attempt] = self._clock.monotonic()
        elif event.what in ENDS:
            began = self._running.pop(attempt, None)
            return None if began is None else self._clock.monotonic() - began
        elif event.what in VANISHED:
            self._running.pop(attempt, None)
        return None

    def look(self, scope: str) -> list[Rates]:
        """What was counted of a scope and not taken yet, and stays there."""
        with self._lock:
            return [counts.rates(start) for (of, start), counts in self._counts.items() if of == scope]

    def take(self) -> list[tuple[str, Rates]]:
        """What was counted since this was last asked, each with its scope."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return [(scope, counts.rates(start)) for (scope, start), counts in taken.items()]


# In the store


class RateSteps:
    """Writing and reading the rates of one scope, as generators of commands."""

    def __init__(self, prefix: str) -> None:
        self._key = prefix + OWNER

    def keep(self, rates: Rates, width: int, name: str) -> Steps[None]:
        """Write a row of this name; written again, it takes the place of the one before."""
        row = msgspec.structs.replace(rates, duplicates=_most(rates.duplicates, MOST_NAMED[width]))
        # As text: a store may not take an empty name in an object, and a block of work has one.
        body = {"rates": msgspec.json.encode(row).decode()}
        item = {"at": rates.start, "body": body, "expires_at": After(KEPT[width])}
        yield Put(JOURNAL, self._key, item, sort=f"{_row(width, rates.start)}.{name}")

    def read(self, since: Moment, until: Moment, width: int = MINUTE) -> Steps[list[Rates]]:
        """The rates of all processes together, one for each minute or hour in which anything happened."""
        if width not in KEPT:
            raise InvalidOption(
                f"rates are kept by the minute and the hour: width is 60 or 3600, not {width!r}"
            )
        low, high = _between(moment_of(since), moment_of(until), width)
        rows: list[Rates] = []
        after: str | None = None
        while low < high:
            page: Page = yield Query(JOURNAL, self._key, low, high, limit=1000, after=after)
            rows += map(_rates_in, page.items)
            after = page.after
            if after is None:
                break
        return [
            msgspec.structs.replace(one, duplicates=_most(one.duplicates, MOST_NAMED[width]))
            for one in together(rows)
        ]

    def duplicates(self, digest: str, now: float) -> Steps[int | None]:
        """How many duplicates of a key were answered in the last day, as far as the rows of its hours tell.

        None where no rates are kept. Rows name the keys with the most duplicates, and the newest rows are
        read first, so many at most: there may have been more.
        """
        low, high = _between(now - LOOKED_BACK, now, HOUR)
        found: int | None = None
        after: str | None = None
        for _ in range(MOST_PAGES):
            page: Page = yield Query(
                JOURNAL, self._key, low, high, limit=200, after=after, reverse=True, only=("body",)
            )
            if page.items:
                found = (found or 0) + sum(_rates_in(item).duplicates.get(digest, 0) for item in page.items)
            after = page.after
            if after is None:
                break
        return found


def _rates_in(item: dict[str, dict[str, str]]) -> Rates:
    return msgspec.json.decode(item["body"]["rates"], type=Rates)


def _between(since: float, until: float, width: int) -> tuple[str, str]:
    """The names between which all rows of this time are; theirs are longer than the last."""
    return _row(width, _begin(since, width)), _row(width, _begin(until, width) + width)


def _begin(moment: float, width: int) -> int:
    return int(moment // width) * width


def _row(width: int, start: int) -> str:
    return f"{'minute' if width == MINUTE else 'hour'}.{max(start, 0):012d}"


def _most(duplicates: dict[str, int], most: int) -> dict[str, int]:
    return dict(Counter(duplicates).most_common(most))


def together(rows: Iterable[Rates]) -> list[Rates]:
    """The rates of several processes added up, in the order of time."""
    by_start: dict[int, list[Rates]] = {}
    for row in rows:
        by_start.setdefault(row.start, []).append(row)
    return [_added(start, each) for start, each in sorted(by_start.items())]


def _added(start: int, rows: list[Rates]) -> Rates:
    counts: dict[str, Counter[str]] = {}
    seconds: dict[str, list[int]] = {}
    duplicates: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for row in rows:
        for name, each in row.counts.items():
            counts.setdefault(name, Counter()).update(each)
        for name, buckets in row.seconds.items():
            # Rows of another release may have other buckets.
            both = zip_longest(seconds.get(name, ()), buckets, fillvalue=0)
            seconds[name] = [one + other for one, other in both]
        duplicates.update(row.duplicates)
        reasons.update(row.reasons)
    by_name = {name: dict(each) for name, each in counts.items()}
    return Rates(start, by_name, seconds, dict(duplicates), dict(reasons))


# Keeping


class RateRow:
    """A row of this process: all that it counted in a minute or an hour, and whether the store has it."""

    def __init__(self, rates: Rates) -> None:
        self.rates: Rates = rates
        # A container that begins anew has its name and its number again, and a clock may go back: a row of
        # its own takes the place of no other.
        self.name: str = f"{process_name()}.{random_token()[:8]}"
        self.written: bool = False

    def add(self, rates: Rates) -> None:
        """Count these too."""
        [self.rates] = together([self.rates, msgspec.structs.replace(rates, start=self.rates.start)])
        self.written = False


class RateKeeper:
    """Counts the events of this process, and writes them once a minute from a thread of its own.

    The thread begins with the first event, in a forked child too, which has nothing of its parent's.
    """

    def __init__(self, env: str, store: Store, clock: Clock, on_error: ErrorListener | None = None) -> None:
        self._env = env
        self._store = store
        self._on_error = on_error
        self._clock = clock
        self._background = BackgroundThread("semel-rates", self._write_on)
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: have counted nothing."""
        self._counter = RateCounter(self._clock)
        self._rows: dict[RowPlace, RateRow] = {}
        self._flushing = SignalSafeLock()

    def __call__(self, event: Event) -> None:
        """Count an event."""
        if self._background.stopping.is_set():
            return
        self._counter(event)
        if self._background.thread is None:
            self._background.start()

    def counted(self, scope: str) -> list[Rates]:
        """What was counted of a scope since it was last written."""
        return self._counter.look(scope)

    def stop(self) -> None:
        """Write what is left, and end; what comes later is not counted any more."""
        if self._background.stopping.is_set():
            return
        self._background.stop()
        self._background.join()
        self.flush()

    def flush(self) -> None:
        """Write what was counted; where the store is away, it is written the next time."""
        with self._flushing:
            for scope, rates in self._counter.take():
                self._add((scope, MINUTE, rates.start), rates)
                self._add((scope, HOUR, _begin(rates.start, HOUR)), rates)
            self._write()
            self._forget()

    def _add(self, place: RowPlace, rates: Rates) -> None:
        row = self._rows.get(place)
        if row is None:
            self._rows[place] = RateRow(msgspec.structs.replace(rates, start=place[2]))
        else:
            row.add(rates)

    def _write(self) -> None:
        for (scope, width, _), row in list(self._rows.items()):
            if not row.written:
                try:
                    steps = RateSteps(prefix(self._env, scope)).keep(row.rates, width, row.name)
                    drive(steps, self._store, self._on_error)
                except StoreError:  # which was reported
                    return
                except Exception:
                    getLogger("semel").exception("rates could not be written")
                    return
                row.written = True

    def _forget(self) -> None:
        """Keep the rows that are not written, or may grow; of too many, the oldest minutes go."""
        now = self._clock.now()
        over = [place for place, row in self._rows.items() if row.written and place[1] + place[2] <= now]
        kept = len(self._rows) - len(over)
        oldest = sorted(self._rows.keys() - over, key=lambda place: (place[1], place[2]))
        for place in over + oldest[: max(0, kept - MOST_ROWS)]:
            del self._rows[place]

    def _write_on(self) -> None:
        while not self._background.stopping.wait(MINUTE - self._clock.now() % MINUTE):
            self.flush()
