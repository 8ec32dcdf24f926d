"""Counters per hour, day, week or month of a time zone, with a cap; counted once, refunded once.

A charge names a token (a message's id, say). However often it is tried again, it counts once.
"""

from datetime import UTC, datetime

import msgspec

from semel import errors
from semel.core.commands import (
    ABSENT,
    NOW,
    Add,
    Applied,
    Delete,
    Expect,
    Found,
    Get,
    Item,
    Put,
    Steps,
    Update,
    alive,
    read,
)
from semel.core.keys import Key, check
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict, unrefusable
from semel.core.policy import DAY, Seconds, lasting, seconds
from semel.core.realm import Moment, Realm, moment_of
from semel.periods import Day, Period, Span
from semel.tables import COUNTERS, Table

# How long a total outlives its period: for people who look back, and for late retries and refunds.
KEEP = 7 * DAY

# Before the token of a charge, in the partition of its counter; no period's label begins so.
CHARGED = "charge:"


class Tally(msgspec.Struct, frozen=True):
    """The state of a counter in one of its periods."""

    counter: str
    period: str
    used: int
    resets_at: float
    cap: int | None = None

    @property
    def remaining(self) -> int | None:
        """How much room is left; None without a cap."""
        return None if self.cap is None else max(0, self.cap - self.used)


class Charged(msgspec.Struct, frozen=True):
    """A charge that was counted; `refund` takes it back, once."""

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
        self._updated = "updated_at" if "updated_at" in table.attributes else "updatedAt"
        if self._updated not in table.attributes or table.sort is None:
            raise errors.UsageError(f"table {table.name} keeps no totals by period")

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
        """Count this much under a token if the period has room for it, else raise `CapReached`.

        The same token again counts nothing more, whenever it comes, and returns the charge that was made.
        """
        # With what stands before it, the token must still fit into a key.
        name, entry = self.realm.name(counter), check(CHARGED + check(token))
        kept = lasting(keep, self.realm.horizon)
        if amount(by) > amount(cap):
            raise errors.InvalidOption(f"by={by} is more than cap={cap}: there is never room for it")
        self._refuse_totals_only()
        refunded = ""  # the charge under this token that was refunded, and is replaced

        def plan(mark: str) -> "Steps[Part[Charged]]":
            now, span = yield from self._period(name, per, kept, at)
            # Replacing a charge of this very commit, which another worker has refunded, takes another name.
            id = f"{refunded}+" if refunded.startswith(mark) else mark
            charged = Charged(str(counter), span.label, token, by, id, span.end)

            def on_refused(refusals: PartRefusals) -> "PartVerdict | errors.SemelError":
                nonlocal charged, refunded
                there, full = refusals
                if there is None:
                    used = 0 if full is None or full.item is None else full.item["count"]
                    return errors.CapReached(charged.counter, used, cap, charged.resets_at)
                if there.item is None or there.item["state"] == "refunded":
                    refunded = "" if there.item is None else there.item["token"]
                    return PartVerdict.STALE
                charged = _earlier(charged, there.item, kept)
                return PartVerdict.MADE if charged.id == id else PartVerdict.STANDS

            item: Item = {
                "by": by,
                "period": span.label,
                "token": id,
                "state": "charged",
                "updated_at": NOW,
                "expires_at": (end := self.end_of(span, now, kept)),
            }
            # Over that very refund: a copy of an earlier charge that comes late counts nothing.
            expect: Expect = {"token": refunded, "state": "refunded"} if refunded else ABSENT
            put = Put(self._table, name, item, expect, entry)
            writes = put, self.adding(name, span.label, by, end, cap)
            return Part(writes, on_refused, lambda _: charged, marked=True)

        return plan

    def refund(self, charge: Charged) -> PartPlan[bool]:
        """Refund a charge, once; False if it no longer exists."""
        name, entry = self.realm.name(charge.counter), CHARGED + charge.token
        made: Item = {"token": charge.id, "by": charge.by, "period": charge.period}
        given_back = made | {"state": "refunded"}
        change = {"state": "refunded", "updated_at": NOW}
        update = Update(self._table, name, change, made | {"state": "charged"}, entry)
        writes = update, self.adding(name, charge.period, -charge.by)
        refunded = True
        self._refuse_totals_only()

        def on_refused(refusals: PartRefusals) -> PartVerdict:
            nonlocal refunded
            item = (refusals[0] and refusals[0].item) or {}
            # Another refund of it counts as this one. Where only the total is gone, so is its period.
            refunded = item.items() >= given_back.items()
            return PartVerdict.STANDS

        def plan(_mark: str) -> "Steps[Part[bool]]":
            now = yield from self.realm.now()
            # A charge does not expire before its period ends.
            if charge.resets_at <= now:
                found = yield from read(Get(self._table, name, entry))
                if found.item is None:
                    return Part((), unrefusable, lambda _: False)
            return Part(writes, on_refused, lambda _: refunded, marked=True)

        return plan

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
        """Count this much, without a token and without a cap. A retry is counted again."""
        name, kept = self.realm.name(counter), seconds(keep)
        now, span = yield from self._period(name, per, kept, at)
        # Not sent again if its reply was lost: that would count twice.
        reply: Applied = yield self.adding(name, span.label, amount(by), self.end_of(span, now, kept))
        return _tally(str(counter), span, reply.item)

    def _period(self, name: str, per: Period, keep: float, at: Moment | None) -> Steps[tuple[float, Span]]:
        """The present, and the period that is counted in, without an expired total."""
        now = yield from self.realm.now()
        span = per.span(now if at is None else moment_of(at))
        yield from self.clear(name, span, now, keep)
        return now, span

    def adding(
        self, name: str, period: str, by: int, end: float | None = None, cap: int | None = None
    ) -> Add:
        """Return the write that counts this much in a period, if that leaves it within the cap.

        `end` is when a new total expires. Without one, the total must be there.
        """
        change: Item = {self._updated: NOW} if end is None else {self._updated: NOW, self._table.expires: end}
        return Add(self._table, name, "count", by, change, cap, period)

    def end_of(self, span: Span, now: float, keep: float) -> float:
        """When the total of a period expires: the same for everyone who counts in it."""
        # A late one, for a period that is long over, is kept as long as any other.
        return (max(span.end, now) if self._table is COUNTERS else _midnight(span)) + keep

    def clear(self, name: str, span: Span, now: float, keep: float) -> Steps[None]:
        """Remove the total of a period that is long over, if it has expired: it would be counted on from."""
        if span.end + keep > now:
            return
        found: Found = yield Get(self._table, name, span.label)
        if found.item is not None and alive(self._table, found.item, found.now) is None:
            end = {self._table.expires: found.item[self._table.expires]}
            yield Delete(self._table, name, end, span.label)

    def look(
        self,
        counter: str | Key,
        *,
        per: Period = Day(),  # noqa: B008 - a frozen value
        cap: int | None = None,
        at: Moment | None = None,
    ) -> Steps[Tally]:
        """The state of a counter: read from the store itself, never from a replica."""
        span = per.span((yield from self.realm.now(at)))
        found = yield from read(Get(self._table, self.realm.name(counter), span.label))
        return _tally(str(counter), span, found.item, cap)

    def _refuse_totals_only(self) -> None:
        if self._table is not COUNTERS:
            raise errors.UsageError(
                f"table {self._table.name} keeps totals only, and no tokens: use add() and look() there, "
                "or charge semel's own counters"
            )


def _tally(counter: str, span: Span, item: Item | None, cap: int | None = None) -> Tally:
    return Tally(counter, span.label, 0 if item is None else item.get("count", 0), span.end, cap)


def _earlier(charged: Charged, item: Item, kept: float) -> Charged:
    """The charge that is there under the token; its period may be another than that of this call."""
    end = charged.resets_at if item["period"] == charged.period else item["expires_at"] - kept
    return msgspec.structs.replace(
        charged, period=item["period"], by=item["by"], id=item["token"], resets_at=end
    )


def amount(number: int) -> int:
    """Check a number that is counted, or counted up to."""
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
