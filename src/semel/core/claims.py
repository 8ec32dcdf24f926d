"""Claims: how a key is claimed, and the outcome of a claim that does not get it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeAlias, TypeVar

import msgspec

from semel import errors
from semel.core import lifecycle
from semel.core.codecs import Codec, Decoder, decoder_for
from semel.core.commands import (
    ABSENT,
    NOW,
    After,
    AnyOf,
    Applied,
    Found,
    Item,
    Put,
    Refused,
    Steps,
    Update,
    side_by_side,
    write,
)
from semel.core.events import What
from semel.core.holding import HolderSteps
from semel.core.keys import Key
from semel.core.lifecycle import Move, Status
from semel.core.policy import check_limit, check_word
from semel.core.realm import Realm
from semel.core.records import ClaimTerms, doubt_end, is_running, moved_on, opening
from semel.core.spans import DAY, LEASE, Seconds, doubt_span, lease_and_ttl
from semel.model import (
    Busy,
    Claimed,
    Failed,
    Failure,
    Mismatch,
    OnLapsed,
    Outcome,
    Record,
    Replay,
    Unknown,
)
from semel.tables import LEDGER

T = TypeVar("T")

Outcomes: TypeAlias = list[Outcome]


Rescue: TypeAlias = Callable[[Steps[None], Callable[[errors.StoreError, str], object]], None]


def no_rescue(_steps: Steps[None], _on_error: object) -> None:
    """Leave the steps of an abandoned call undone: its lease ends by itself."""


class PendingClaim:
    """A claim in the making, for as long as its caller has not heard what came of it."""

    _put: Put | None = None
    _ttl = 0.0
    _lapsed = False

    def made(self, put: Put, ttl: float, lapsed: bool = False) -> Put:
        """The write that is to make it, which is about to be sent."""
        # Once the call has tried to take over, that write may arrive late, and is then what is withdrawn.
        self._put, self._ttl, self._lapsed = put, ttl, lapsed or self._lapsed
        return put

    def withdrawn(self) -> Steps[None]:
        """Take it back, as the caller was interrupted: made or on its way, it holds nothing from then on.

        This may come before the claim does. So it is written where the claim would be, which is then refused.
        """
        claim = self._put
        if claim is None or claim.when is None:
            return
        item = claim.item | {"attempt": claim.item["attempt"] - 1, "lease_until": NOW}
        if not self._lapsed:
            item |= {"status": Status.RELEASED.value, "expires_at": After(self._ttl)}
            item = {name: value for name, value in item.items() if name not in ("doubt", "doubt_since")}
        when = AnyOf((claim.when, lifecycle.LAPSE.condition(item["token"])))
        yield from _attempted(Put(LEDGER, claim.key, item, when))


class ClaimSteps(HolderSteps):
    """The rules of claiming a key, as generators of commands."""

    def __init__(
        self,
        realm: Realm,
        codec: Codec | None = None,
        *,
        clock: Any = None,
        clear_details: bool = False,
        rescue: Rescue = no_rescue,
    ) -> None:
        super().__init__(realm, codec, clock=clock, clear_details=clear_details)
        self.rescue = rescue

    def about(self, name: str) -> Self:
        """These rules, whose events name the function that they are about."""
        realm = msgspec.structs.replace(self.realm, events=self.events.about(name))
        return type(self)(
            realm, self.codec, clock=self.clock, clear_details=self.clear_details, rescue=self.rescue
        )

    def claim(
        self,
        key: str | Key,
        *,
        fingerprint: str | None = None,
        lease: Seconds = LEASE,
        ttl: Seconds = DAY,
        on_lapsed: OnLapsed = "rerun",
        max_attempts: int | None = None,
        doubt_ttl: Seconds | None = None,
        subject: str | None = None,
        returns: Any = Any,
    ) -> Steps[Outcome]:
        """Claim a key, or learn what is in the way: one conditional write, answered with the record."""
        check_word("on_lapsed", on_lapsed, OnLapsed)
        check_limit("max_attempts", max_attempts)
        held, kept = lease_and_ttl(lease, ttl, self.horizon)
        person = self.realm.subject_of(subject)
        doubts = doubt_span(doubt_ttl, on_lapsed, held, self.horizon)
        terms = ClaimTerms(held, kept, fingerprint, on_lapsed, max_attempts, person, doubts)
        pending = PendingClaim()
        claiming = self.claim_on(self.name(key), terms, decoder_for(returns), pending)
        return (yield from self.guarded(claiming, pending))

    def claim_many(
        self,
        keys: Iterable[str | Key],
        *,
        lease: Seconds = LEASE,
        ttl: Seconds = DAY,
        on_lapsed: OnLapsed = "rerun",
        max_attempts: int | None = None,
        doubt_ttl: Seconds | None = None,
        subjects: Sequence[str | None] | None = None,
        returns: Any = Any,
    ) -> Steps[Outcomes]:
        """Claim several keys, in one round trip where none was used before; each outcome is its key's own.

        Those that were given back take one more for all of them. Where one of them cannot be read, none is
        claimed. `subjects` says of each whom it is about.
        """
        check_word("on_lapsed", on_lapsed, OnLapsed)
        check_limit("max_attempts", max_attempts)
        names = [self.name(key) for key in keys]
        if len(set(names)) < len(names):
            raise errors.UsageError("a key is claimed once in a batch: drop its duplicates first")
        if not names:
            return []
        held, kept = lease_and_ttl(lease, ttl, self.horizon)
        doubts = doubt_span(doubt_ttl, on_lapsed, held, self.horizon)
        persons = map(self.realm.subject_of, subjects or [None] * len(names))
        terms = [ClaimTerms(held, kept, None, on_lapsed, max_attempts, one, doubts) for one in persons]
        pending = [PendingClaim() for _ in names]
        return (
            yield from self.guarded(self._claimed_many(names, terms, decoder_for(returns), pending), *pending)
        )

    def _claimed_many(
        self,
        names: Sequence[str],
        terms: Sequence[ClaimTerms],
        decoder: Decoder,
        pending: Sequence[PendingClaim],
    ) -> Steps[Outcomes]:
        asked = zip(names, terms, pending, strict=True)
        claiming = [self.claim_on(id, its_terms, decoder, one) for id, its_terms, one in asked]
        found = yield from side_by_side([_readably(each) for each in claiming])
        outcomes = [one for one in found if not isinstance(one, errors.SemelError)]
        if len(outcomes) < len(found):
            mine = [one for one in outcomes if isinstance(one, Claimed)]
            yield from self.release_many(mine, counted=False)
            raise next(one for one in found if isinstance(one, errors.SemelError))
        return outcomes

    def claim_on(
        self, id: str, terms: ClaimTerms, decoder: Decoder, pending: PendingClaim, seen: Found | None = None
    ) -> Steps[Outcome]:
        """Claim a qualified name on checked terms, starting from what was `seen` there, if anything."""
        reply: Applied | Refused | None = None
        if seen is not None and seen.item is not None:
            reply = Refused(seen.now, seen.item)
        return self._claimed(id, terms, decoder, self.token(), reply, pending)

    def guarded(self, steps: Steps[T], *pending: PendingClaim) -> Steps[T]:
        """These steps; where they are torn off, what was claimed by them is given back."""
        try:
            return (yield from steps)
        except UNINTERRUPTED:
            raise
        except GeneratorExit:
            for one in pending:
                self.rescue(one.withdrawn(), self.events.failed)
            raise
        except BaseException:
            try:
                for one in pending:
                    yield from one.withdrawn()
            except RecursionError:  # here it has no room, and another thread has a stack of its own
                for one in pending:
                    self.rescue(one.withdrawn(), self.events.failed)
                raise
            raise

    def _claimed(  # noqa: PLR0917 - they are one claim's
        self,
        id: str,
        terms: ClaimTerms,
        decoder: Decoder,
        token: str,
        reply: Applied | Refused | None,
        pending: PendingClaim,
    ) -> Steps[Outcome]:
        attempt, lapsed = 1, False
        taken_over: tuple[int, ...] = ()  # the attempts that this call has tried to take over
        while True:
            if reply is None:
                attempt, lapsed = 1, False
                put = Put(LEDGER, id, self._opening(terms, token), ABSENT)
                reply = yield from write(pending.made(put, terms.ttl))
            if not isinstance(reply, Refused):
                break
            record = self._record(id, reply.item)
            if record is None:
                reply = None
                continue
            if _owned(record, token):
                # It may be an earlier write of mine, which came through late.
                attempt, lapsed = record.attempt, record.attempt in taken_over
                break
            if record.token == token:
                # My claim was made, and settled by somebody before I heard of it. What I do next is another
                # attempt, and no write that was meant for the first may fit it.
                token, taken_over = self.token(), ()
            move = next_move(record, reply.now, terms)
            if move is None:
                return (yield from self._outcome(record, reply.now, terms, decoder))
            if move.to is Status.IN_PROGRESS:
                attempt, lapsed = record.attempt + 1, move.lapsed
                taken_over += (attempt,) if lapsed else ()
                item = self._opening(terms, token, attempt, record)
                put = Put(LEDGER, id, item, move.condition(record.token))
                reply = yield from write(pending.made(put, terms.ttl, lapsed))
            else:
                yield from self._give_up(record, move, terms)
                reply = None  # whoever made this move, what it left is read afresh
        lease, ttl, on_lapsed = terms.lease, terms.ttl, terms.on_lapsed
        return self._won(Claimed(id, token, attempt, lease, ttl, lapsed, on_lapsed, terms.doubt_ttl))

    def _opening(self, terms: ClaimTerms, token: str, attempt: int = 1, before: Record | None = None) -> Item:
        """A record at the beginning of an attempt; one that may come to be in doubt can be found by that."""
        item = opening(terms, token, self.worker(), attempt, before)
        if before is not None:
            lapsed = before.status is Status.IN_PROGRESS
            ended = before.lease_until if lapsed else before.updated_at
            item["history"] = self.history(before, "lapsed" if lapsed else "released", ended)
            item["began_at"] = NOW
        if terms.on_lapsed != "rerun":
            item["doubt"] = self.prefix
            item["doubt_since"] = NOW
            item["expires_at"] = doubt_end(terms.doubt_ttl)
        return item

    def abandon(self, claim: Claimed) -> Steps[None]:
        """The caller was interrupted at its work: end the lease if it can be, for the next one's policy."""
        move = lifecycle.LAPSE
        change = moved_on({"lease_until": NOW}, move, claim, self.prefix)
        yield from _attempted(Update(LEDGER, claim.id, change, move.condition(claim.token)))

    def _won(self, claim: Claimed) -> Claimed:
        if claim.lapsed:
            self.events.warn(What.TAKEN_OVER, claim.id, claim.attempt)
        else:
            self.events.emit(What.CLAIMED, claim.id, claim.attempt)
        return claim

    def _outcome(self, record: Record, now: float, terms: ClaimTerms, decoder: Decoder) -> Steps[Outcome]:
        if _differs(record, terms):
            self.events.emit(What.MISMATCH, record.id, record.attempt)
            return Mismatch(record)
        status = record.status
        if status is Status.COMPLETED:
            self.events.emit(What.REPLAYED, record.id)
            return Replay(record, (yield from self._result(record, decoder)))
        if status is Status.FAILED:
            self.events.emit(What.FAILED_BEFORE, record.id, record.attempt)
            return Failed(record, record.failure or Failure("Unknown", "no error was kept"))
        if status is Status.UNKNOWN:
            self.events.emit(What.UNKNOWN, record.id, record.attempt)
            return Unknown(record)
        self.events.emit(What.BUSY, record.id, record.attempt)
        return Busy(record, max(0.0, record.lease_until - now))

    def _give_up(self, record: Record, move: Move, terms: ClaimTerms) -> Steps[None]:
        """Hold a vanished attempt, or fail one that had every chance."""
        change = moved_on({}, move, terms, self.prefix)
        if move.to is Status.FAILED:
            failure = Failure("AttemptsExhausted", f"given up after {record.attempt} attempts")
            # An error that is there stays as it is kept.
            change |= {} if record.error else {"error": self._kept_text(record.id, failure)}
        else:
            change |= {"doubt": self.prefix, "doubt_since": record.doubt_since or record.lease_until}
        reply = yield from write(Update(LEDGER, record.id, change, move.condition(record.token)))
        if type(reply) is Applied:
            what = What.HELD if move.to is Status.UNKNOWN else What.EXHAUSTED
            self.events.warn(what, record.id, record.attempt)


def _readably(steps: Steps[Outcome]) -> Steps[Outcome | errors.SemelError]:
    """What became of a claim, or that its record or its result cannot be read."""
    try:
        return (yield from steps)
    except (errors.RecordCorrupt, errors.ResultUnreadable) as error:
        return error


def _attempted(command: Put | Update) -> Steps[None]:
    """Write if it can be; what a lease holds in vain ends with it in any case."""
    try:
        yield command
    except errors.SemelError:
        return


# What the rules themselves raise, or a store does. Anything else came from outside, as from a signal handler.
UNINTERRUPTED = (errors.StoreError, errors.Refused, errors.ShuttingDown)


def _owned(record: Record, token: str) -> bool:
    """Whether my own claim is what stands in my way: it was made, and its answer was lost."""
    return record.token == token and record.status is Status.IN_PROGRESS


def _differs(record: Record, terms: ClaimTerms) -> bool:
    known = record.fingerprint is not None and terms.fingerprint is not None
    return known and record.fingerprint != terms.fingerprint


def next_move(record: Record, now: float, terms: ClaimTerms) -> Move | None:
    """The move that a claimant may make on a record it has found, or None."""
    if record.status is Status.COMPLETED or _differs(record, terms):
        return None
    spent = terms.max_attempts is not None and record.attempt >= terms.max_attempts
    if record.status is Status.RELEASED:
        return lifecycle.EXHAUST if spent else lifecycle.RECLAIM
    if record.status is not Status.IN_PROGRESS or is_running(record, now):
        return None
    if terms.on_lapsed == "hold":
        return lifecycle.HOLD
    # Where the other side can be asked, it is asked even when the attempts are spent.
    return lifecycle.EXHAUST_LAPSED if spent and terms.on_lapsed == "rerun" else lifecycle.TAKE_OVER
