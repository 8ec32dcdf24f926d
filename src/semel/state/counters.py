"""Counters per hour, day, week or month of a time zone, with a cap; counted once, refunded once.

A charge names a token (a message's id, say). However often it is tried again, it counts once.
"""

from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from semel import errors
from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    Add,
    AllOf,
    AnyOf,
    Applied,
    AtMost,
    Condition,
    Equals,
    Get,
    Item,
    Put,
    Steps,
    Update,
    Write,
    read,
)
from semel.core.keys import Key, check
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict
from semel.core.policy import DAY, Seconds, lasting, seconds
from semel.core.realm import Moment, Realm, moment_of
from semel.periods import Day, Period, Span
from semel.tables import COUNTERS, Table

# How long a total outlives its period: for whoever looks back, and for late retries and refunds.
KEEP = 7 * DAY

# Before the token of a charge, in the partition of its counter; no period's label begins so.
CHARGED = "charge:"


class Tally(msgspec.Struct, frozen=True):
    """How a counter stands in one of its periods."""

    counter: str
    period: str
    used: int
    resets_at: float
    cap: int | None = None

    @property
    def remaining(self) -> int | None:
        """What there is still room for; None without a cap."""
        return None if self.cap is None else max(0, self.cap - self.used)


class Charged(msgspec.Struct, frozen=True):
    """What a charge gives: it was counted, and `refund` gives it back, once."""

    counter: str
    period: str
    token: str
    by: int
    id: str
    """This charge's own name: one that is made after a refund has another."""
    resets_at: float


class CounterSteps:
    """The rules of counters, as generators of commands."""

    def __init__(self, realm: Realm, table: Table = COUNTERS) -> None:
        self.realm = realm
        self._table = table
        self._updated = _updated(table)

    def on(self, table: Table) -> "CounterSteps":
        """The rules on another table of totals by period; only `add` and `look` are for such a one."""
        return CounterSteps(self.realm, table)

    # Counting once

    def charge(
        self,
        counter: str | Key,
        by: int = 1,
        *,
        cap: int,
        token: str,
        per: Period = Day(),  # noqa: B008 - a frozen value
        keep: Seconds = KEEP,
        at: Moment | None = None,
    ) -> PartPlan[Charged]:
        """Count this much under a token if the period has room for it; else it is refused with `CapReached`.

        The same token again counts nothing more, whenever it comes, and gives the charge that was made.
        """
        place = self.realm.name(counter), _entry(token)
        much, limit, kept = amount(by), amount(cap), lasting(keep, self.realm.horizon)
        if much > limit:
            raise errors.InvalidOption(f"by={much} is more than cap={limit}: there is never room for it")
        self._own()
        before = _Earlier(kept)

        def plan(mark: str) -> "Steps[Part[Charged]]":
            now = yield from self.realm.now()
            span = per.span(now if at is None else moment_of(at))
            made = Charged(str(counter), span.label, token, much, before.next(mark), span.end)
            # What is charged late, for a period that is long over, is remembered as long as any other.
            return self._charging(made, limit, place, max(span.end, now) + kept, before)

        return plan

    def _charging(
        self, made: Charged, cap: int, place: tuple[str, str], end: float, before: "_Earlier"
    ) -> Part[Charged]:
        known, (name, entry) = made, place
        charge: Item = {
            "by": made.by,
            "period": made.period,
            "token": made.id,
            "state": "charged",
            "updated_at": NOW,
            "expires_at": end,
        }
        writes: tuple[Write, ...] = (
            Put(self._table, name, charge, before.condition(), entry),
            self._adding(name, made.period, made.by, end, room(cap - made.by)),
        )

        def judge(refusals: PartRefusals) -> "PartVerdict | errors.SemelError":
            nonlocal known
            there, full = refusals
            if there is not None:
                if (charged := before.learn(made, there.item)) is None:
                    return PartVerdict.STALE
                known = charged
                return PartVerdict.MADE if known.id == made.id else PartVerdict.STANDS
            used = 0 if full is None or full.item is None else full.item["count"]
            return errors.CapReached(made.counter, used, cap, made.resets_at)

        return Part(writes, judge, lambda _: known, marked=True)

    def refund(self, charge: Charged) -> PartPlan[bool]:
        """Give a charge back, once; False where it is not there any more."""
        name, entry = self.realm.name(charge.counter), CHARGED + charge.token
        self._own()
        return self._refunding(charge, name, entry)

    def _refunding(self, charge: Charged, name: str, entry: str) -> Part[bool]:
        given = True
        made: Item = {"token": charge.id, "by": charge.by, "period": charge.period}
        mine = AllOf((*(Equals(field, value) for field, value in made.items()), Equals("state", "charged")))
        writes: tuple[Write, ...] = (
            Update(self._table, name, {"state": "refunded", "updated_at": NOW}, mine, entry),
            Add(self._table, name, "count", -charge.by, {"updated_at": NOW}, {}, PRESENT, charge.period),
        )

        def judge(refusals: PartRefusals) -> PartVerdict:
            nonlocal given
            item = (None if refusals[0] is None else refusals[0].item) or {}
            given = item.get("state") == "refunded" and all(item.get(field) == made[field] for field in made)
            # By whoever: a charge is given back once. Where only its total is gone, so is its period.
            return PartVerdict.STANDS

        return Part(writes, judge, lambda _: given, marked=True)

    # Counting, and looking

    def add(
        self,
        counter: str | Key,
        by: int = 1,
        *,
        per: Period = Day(),  # noqa: B008 - a frozen value
        keep: Seconds = KEEP,
        at: Moment | None = None,
    ) -> Steps[Tally]:
        """Count this much, without a token and without a cap: whoever tries it again counts it again."""
        now = yield from self.realm.now()
        span = per.span(now if at is None else moment_of(at))
        # Not sent again where its answer was lost: that would count twice.
        reply: Applied = yield self.adding(counter, amount(by), span, now, keep)
        return self._tally(str(counter), span, reply.item, None)

    def adding(
        self,
        counter: str | Key,
        by: int,
        span: Span,
        now: float,
        keep: Seconds,
        *,
        when: Condition | None = None,
    ) -> Add:
        """The write that counts this much in a period, where that is so."""
        # What is counted late, for a period that is long over, is remembered as long as any other.
        end = max(span.end, now) if self._table is COUNTERS else _midnight(span)
        return self._adding(self.realm.name(counter), span.label, by, end + seconds(keep), when)

    def subtracting(self, counter: str | Key, by: int, period: str) -> Add:
        """The write that takes this much back, where its period is still remembered."""
        name = self.realm.name(counter)
        return Add(self._table, name, "count", -by, {self._updated: NOW}, {}, PRESENT, period)

    def look(
        self,
        counter: str | Key,
        *,
        per: Period = Day(),  # noqa: B008 - a frozen value
        cap: int | None = None,
        at: Moment | None = None,
    ) -> Steps[Tally]:
        """How the counter stands now: read from the store itself, never from a replica."""
        span = per.span((yield from self.realm.now(at)))
        found = yield from read(Get(self._table, self.realm.name(counter), span.label))
        return self._tally(str(counter), span, found.item, cap)

    def _tally(self, counter: str, span: Span, item: Item | None, cap: int | None) -> Tally:
        used = 0 if item is None else item.get("count", 0)
        return Tally(counter, span.label, used, span.end, cap)

    def _adding(self, name: str, period: str, by: int, end: float, when: Condition | None) -> Add:
        # The end is that of the period, so it is the same whoever counts first, and set once.
        once = {self._table.expires: end}
        return Add(self._table, name, "count", by, {self._updated: NOW}, once, when, period)

    def _own(self) -> None:
        if self._table is not COUNTERS:
            raise errors.UsageError(
                f"table {self._table.name} keeps totals only, and no tokens: use add() and look() there, "
                "or charge semel's own counters"
            )


class _Earlier:
    """What is known of the charge that stands under a token already.

    A new one is written over one that was given back, that very one and nothing else: so no copy of a charge
    that comes through late counts again what was given back meanwhile.
    """

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._refunded = ""

    def learn(self, made: Charged, item: Item | None) -> Charged | None:
        """The charge that stands; None where the token is free."""
        if item is None or item["state"] == "refunded":
            self._refunded = "" if item is None else item["token"]
            return None
        # Its period may be another one than that of whoever asks now.
        end = made.resets_at if item["period"] == made.period else item["expires_at"] - self._kept
        return msgspec.structs.replace(
            made, period=item["period"], by=item["by"], id=item["token"], resets_at=end
        )

    def condition(self) -> Condition:
        """Nothing else has come since."""
        if not self._refunded:
            return ABSENT
        return AllOf((Equals("token", self._refunded), Equals("state", "refunded")))

    def next(self, mark: str) -> str:
        """The name of a new charge: another one, if it was my own that somebody else has given back."""
        return f"{self._refunded}+" if self._refunded.startswith(mark) else mark


def _entry(token: str) -> str:
    """Where a token's charge stands; with what is before it, it must still fit into a key."""
    return check(CHARGED + check(token))


@lru_cache(256)
def room(most: int) -> Condition:
    """That a total is at most so much, so that there is room for what is to be counted."""
    return AnyOf((ABSENT, AtMost("count", most)))


@lru_cache(256)
def _updated(table: Table) -> str:
    """The attribute that says when a total was last counted."""
    names = [name for name in ("updated_at", "updatedAt") if name in table.attributes]
    if not names or table.sort is None:
        raise errors.UsageError(f"table {table.name} keeps no totals by period")
    return names[0]


def amount(number: int) -> int:
    """A number that can be counted by, or up to."""
    # Whole numbers only: fractions add up differently in every store, and money has cents.
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**53:
        raise errors.InvalidOption(f"a counter counts whole numbers from 1 up, not {number!r}")
    return number


def _midnight(span: Span) -> float:
    """Midnight in UTC of the date that a period is named by: where totals by date begin to age."""
    try:
        return datetime.strptime(span.label, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise errors.UsageError(f"this table keeps totals by date, and {span.label!r} is none") from None
