"""The ledger: every rule about the life of a record, as steps that any store can execute.

Read it from top to bottom: a key is claimed, its holder renews and ends the claim, others look and wait, and
operators resolve, mark and forget. Callers know these methods as `Ledger` and `AsyncLedger`, which drive
them (see `facades`).

Invariants:

- A claimant's random token is in its record. Every write of a holder expects it, so a late one is refused.
- A write is recognised by what it would have left: one whose reply was lost may be sent again.
- A move changes a record only from the states that `lifecycle` names, and sets the end of its life anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from semel import errors
from semel.core import lifecycle
from semel.core.codecs import Body, Codec, Decoder, Encoded, check_details, decoder_for, not_kept
from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    TRIES,
    After,
    AllOf,
    AnyOf,
    Applied,
    Batch,
    Begins,
    Condition,
    Delete,
    Discard,
    Equals,
    Fetch,
    Found,
    Get,
    Item,
    Many,
    Page,
    Pause,
    Put,
    Query,
    Refused,
    Stash,
    Steps,
    Update,
    Watch,
    Write,
    read,
    side_by_side,
    write,
    write_each,
)
from semel.core.events import Events, What
from semel.core.functions import refuse_lazy
from semel.core.keys import Key, key_of
from semel.core.lifecycle import Move, Status
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict, built_once
from semel.core.policy import (
    DAY,
    HOUR,
    LEASE,
    SETTLED,
    Seconds,
    check_limit,
    check_word,
    doubt_span,
    lasting,
    lease_and_ttl,
    seconds,
)
from semel.core.realm import SEALED, Realm
from semel.core.runtime import LONGEST_NAME, worker_name
from semel.model import (
    MISSING,
    RECORD_VERSION,
    Abandoned,
    Busy,
    Claimed,
    Failed,
    Failure,
    Happened,
    HistoryEntry,
    Listing,
    Mismatch,
    NotHappened,
    OnLapsed,
    OnStoreError,
    Outcome,
    Record,
    Replay,
    Settlement,
    Unknown,
)
from semel.tables import DOUBTS, FAILURES, FOREVER, LEDGER, Index

T = TypeVar("T")

Details: TypeAlias = dict[str, Any] | None
Answers: TypeAlias = list[bool]
Outcomes: TypeAlias = list[Outcome]
Rescue: TypeAlias = Callable[[Steps[None], Callable[[errors.StoreError, str], object]], None]
Notify: TypeAlias = Callable[[Applied | None], None]

# An error's message is kept for a person to read; it is no place for data.
MAX_ERROR_TEXT = 1000

# So much of what came before is kept in a record: the last entries, and of each the beginning of its note.
MAX_HISTORY = 8
MAX_NOTE = 200

# What somebody does to a record whose attempt is over.
BY_HAND = frozenset({"settled", "dropped", "completed by hand", "released by hand", "failed by hand"})

# A write that the store did not take is retried after the first figure, and then after twice as long each
# time, up to the second: a short outage costs little, and a recovering store is not flooded.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0

# Errors worth retrying: the store may recover.
RETRYABLE = (errors.StoreUnavailable, errors.StoreThrottled, errors.StoreOutcomeUnknown)

# A waiter looks again after the first figure, and then after twice as long each time, up to the second:
# quick work is noticed quickly, and slow work is not asked after ten times a second.
FIRST_LOOK = 0.02
SLOWEST_LOOK = 0.5
# What is left of a wait, or of a lease, may be less than any clock can tell.
SHORTEST_LOOK = 0.001

MISTYPED = "the result is not what the return annotation says, and later calls are given plain JSON"

# The moves by which a doubt is settled, and those by which an operator overrides what a record says.
SETTLE: dict[type, Move] = {
    Happened: lifecycle.SETTLE_DONE,
    NotHappened: lifecycle.SETTLE_UNDONE,
    Abandoned: lifecycle.SETTLE_FAILED,
}
OVERRIDE: dict[type, Move] = {
    Happened: lifecycle.OVERRIDE_DONE,
    NotHappened: lifecycle.OVERRIDE_UNDONE,
    Abandoned: lifecycle.OVERRIDE_FAILED,
}
OVERRIDDEN: dict[type, str] = {
    Happened: "completed by hand",
    NotHappened: "released by hand",
    Abandoned: "failed by hand",
}

# How an attempt has ended, by what its record says.
ENDED = {Status.COMPLETED: "completed", Status.FAILED: "failed", Status.RELEASED: "released"}

MARK = not_kept("mark")
DROPPED = not_kept("dropped")
MARKABLE = AnyOf((ABSENT, Equals("status", "RELEASED")))

# What the rules themselves raise, or a store does. Anything else came from outside, as from a signal handler.
UNINTERRUPTED = (errors.StoreError, errors.Refused, errors.ShuttingDown)

# When a record ends, what it is found by and what came before do not tell what became of it.
BESIDE = frozenset({"expires_at", "doubt", "doubt_since", "history", "failed", "failed_at"})


class ClaimTerms(msgspec.Struct, frozen=True):
    """On what terms a key is claimed."""

    lease: float
    ttl: float
    fingerprint: str | None = None
    on_lapsed: OnLapsed = "rerun"
    max_attempts: int | None = None
    subject: str | None = None
    doubt_ttl: float | None = None
    """How long a doubt waits for somebody to settle it; None for ever."""


class Ending(NamedTuple):
    """How a claim ends: the move, what it changes, and the event that reports it."""

    move: Move
    change: Item
    notify: Notify


def _no_event(_reply: Applied | None) -> None:
    """A move that is no news."""


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


class LedgerSteps:
    """The rules, as generators of commands."""

    def __init__(
        self,
        realm: Realm,
        codec: Codec | None = None,
        *,
        clock: Any = None,
        clear_details: bool = False,
        rescue: Rescue = no_rescue,
    ) -> None:
        self.realm = realm
        self.codec: Codec = codec or Codec()
        self.clock = clock
        """Whose pauses are made; it is never read here."""
        self.clear_details = clear_details
        """Details stand in attributes that others read too, and so they are not sealed."""
        self.rescue = rescue
        # What is asked of the realm at every call.
        self.prefix: str = realm.prefix
        self.name: Callable[[str | Key], str] = realm.name
        self.subject: Callable[[str], str] = realm.subject
        self.events: Events = realm.events
        self.horizon: float = realm.horizon
        self.token: Callable[[], str] = realm.token

    def about(self, name: str) -> Self:
        """These rules, whose events name the function that they are about."""
        realm = msgspec.structs.replace(self.realm, events=self.events.about(name))
        return type(self)(
            realm, self.codec, clock=self.clock, clear_details=self.clear_details, rescue=self.rescue
        )

    # Claiming a key

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

    # Ending a claim

    def complete(self, claim: Claimed, result: Any = None, *, details: Details = None) -> Steps[None]:
        """The effect happened: store its result, and details for people to read."""
        ending = yield from self.completion(claim, result, details)
        yield from self.end(claim, ending)

    def fail(self, claim: Claimed, error: BaseException | Failure, *, details: Details = None) -> Steps[None]:
        """It failed, and the failure is final."""
        return self.end(claim, self.failure(claim, error, details))

    def release(
        self, claim: Claimed, error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> Steps[None]:
        """It did not happen; let the next attempt run. This attempt counts, unless it did not begin."""
        return self.end(claim, self.releasing(claim, error, counted=counted))

    def completion(
        self, claim: Claimed, result: Any = None, details: Details = None, promised: Decoder | None = None
    ) -> Steps[Ending]:
        """Return how a claim ends whose effect happened.

        `promised` reads the result later; one that it cannot read stays plain JSON.
        """
        change = yield from self._stored(claim, result, promised)
        change = self._noted(claim.id, change, details)
        return Ending(lifecycle.COMPLETE, change, partial(self._emit, What.COMPLETED, claim))

    def failure(self, claim: Claimed, error: BaseException | Failure, details: Details = None) -> Ending:
        """Return how a claim ends that failed for good."""
        failure = self._kept(error)
        change = self._noted(claim.id, {"error": self._sealed_text(claim.id, failure)}, details)
        return Ending(lifecycle.FAIL, change, partial(self._warn_of_failure, claim, failure))

    def releasing(
        self, claim: Claimed, error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> Ending:
        """Return how a claim ends that did not happen."""
        change = self._released(claim, error, counted)
        return Ending(lifecycle.RELEASE, change, partial(self._emit, What.RELEASED, claim))

    def end(self, claim: Claimed, ending: Ending, until: float | None = None) -> Steps[None]:
        """End a claim in one write; retry while the store is unavailable, up to the end of the lease."""
        update = self._update(claim, ending)
        self._check(claim, ending, (yield from self._send_while_held(update, claim.lease, until)))

    def part(self, claim: Claimed, ending: Ending) -> Part[None]:
        """End a claim as a part of a transaction."""
        return Part((self._update(claim, ending),), partial(self._judge, claim, ending), ending.notify, True)

    def completion_part(self, claim: Claimed, result: Any = None, details: Details = None) -> PartPlan[None]:
        """Complete a claim as a part of a transaction; a retry does not store its result again."""

        def plan(_mark: str) -> Steps[Part[None]]:
            return self.part(claim, (yield from self.completion(claim, result, details)))

        return built_once(plan)

    def complete_many(
        self, claims: Iterable[Claimed], result: Any = None, *, details: Details = None
    ) -> Steps[Answers]:
        """The effects of several claims happened, with one result for each; False where a claim was lost."""
        moves = [
            (claim, self._noted(claim.id, self._shared_result(claim, result), details)) for claim in claims
        ]
        return self._move_many(moves, lifecycle.COMPLETE, What.COMPLETED)

    def release_many(
        self, claims: Iterable[Claimed], error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> Steps[Answers]:
        """None of them happened; let the next attempts run. False where a claim was lost."""
        moves = [(claim, self._released(claim, error, counted)) for claim in claims]
        return self._move_many(moves, lifecycle.RELEASE, What.RELEASED)

    def _shared_result(self, claim: Claimed, result: Any) -> Item:
        refuse_lazy(result, f"the work on {claim.key!r}")
        encoded = self.codec.encode(result, claim.id)
        if encoded.problem is not None:
            raise errors.UsageError(f"a result that many claims share has to fit each row: {encoded.problem}")
        return {"result": encoded.body.data, "encoding": encoded.body.encoding}

    def _move_many(self, moves: list[tuple[Claimed, Item]], move: Move, what: What) -> Steps[Answers]:
        if not moves:
            return []
        updates = [
            Update(LEDGER, claim.id, moved_on(change, move, claim, self.prefix), move.condition(claim.token))
            for claim, change in moves
        ]
        lease = max(claim.lease for claim, _ in moves)
        many: Many = yield from self._send_while_held(Batch(tuple(updates)), lease, None)
        answers = []
        for (claim, change), reply in zip(moves, many.replies, strict=True):
            made = type(reply) is Applied or was_made(reply.item, claim.token, change)
            if made:
                notify = self.events.warn if what is What.HELD else self.events.emit
                notify(what, claim.id, claim.attempt)
            else:
                self.events.warn(What.CLAIM_LOST, claim.id, claim.attempt, f"refused to {move.name}")
            answers.append(made)
        return answers

    # Other moves of a holder

    def renew(self, claim: Claimed) -> Steps[None]:
        """Still at work: the lease begins anew."""
        return self._move(claim, Ending(lifecycle.RENEW, {"lease_until": After(claim.lease)}, _no_event))

    def lapse(self, claim: Claimed) -> Steps[None]:
        """Interrupted: end the lease now, so that the next claimant's policy decides as after a crash."""
        return self._move(claim, Ending(lifecycle.LAPSE, {"lease_until": NOW}, _no_event))

    def doubt(self, claim: Claimed) -> Steps[None]:
        """The holder cannot tell whether the effect happened; somebody else has to."""
        notify = partial(self._warn_of_doubt, claim)
        return self._move(claim, Ending(lifecycle.DOUBT, self._found_by(), notify))

    def doubt_many(self, claims: Iterable[Claimed]) -> Steps[Answers]:
        """The holder of several claims cannot tell whether their effects happened; False for each lost."""
        moves = [(claim, self._found_by()) for claim in claims]
        return self._move_many(moves, lifecycle.DOUBT, What.HELD)

    def abandon(self, claim: Claimed) -> Steps[None]:
        """The caller was interrupted at its work: end the lease if it can be, for the next one's policy."""
        move = lifecycle.LAPSE
        change = moved_on({"lease_until": NOW}, move, claim, self.prefix)
        yield from _attempted(Update(LEDGER, claim.id, change, move.condition(claim.token)))

    def _move(self, claim: Claimed, ending: Ending) -> Steps[None]:
        """Make a holder's move by itself."""
        self._check(claim, ending, (yield from write(self._update(claim, ending))))

    def _update(self, claim: Claimed, ending: Ending) -> Update:
        move, change, _ = ending
        moved_on(change, move, claim, self.prefix)
        return Update(LEDGER, claim.id, change, move.condition(claim.token))

    def _check(self, claim: Claimed, ending: Ending, reply: Applied | Refused) -> None:
        """Report a move that was made, now or before; raise what its refusal means if it was not."""
        verdict = self._judge(claim, ending, (reply,)) if isinstance(reply, Refused) else None
        if isinstance(verdict, errors.SemelError):
            raise verdict
        ending.notify(None)

    def _judge(
        self, claim: Claimed, ending: Ending, refusals: PartRefusals
    ) -> PartVerdict | errors.SemelError:
        """What it means that a move was refused: it was made before, or the claim is lost."""
        move, change, _ = ending
        item = None if refusals[0] is None else refusals[0].item
        if was_made(item, claim.token, change):
            return PartVerdict.SAME
        if move is not lifecycle.RENEW:  # a late renewal of finished work is no news
            self.events.warn(What.CLAIM_LOST, claim.id, claim.attempt, f"refused to {move.name}")
        return errors.ClaimLost(claim.key, claim.attempt, move.name)

    def _send_while_held(self, command: Write | Batch, lease: float, until: float | None) -> Steps[Any]:
        """Send a write that ends a claim, and retry while the store is unavailable, up to the lease's end.

        The lease ends at `until`, on this process's clock; if that is not known, it is counted from here. The
        time is checked before each retry but the first one after a lost reply: nothing else tells whether
        the write was applied. So the whole takes what is left of the lease and two requests at most.
        """
        if until is None:
            until = lease + (yield Pause(0, self.clock))
        pause, unknown = FIRST_PAUSE, 0
        while True:
            try:
                return (yield command)
            except RETRYABLE as error:
                failed: errors.StoreError = error
            lost = isinstance(failed, errors.StoreOutcomeUnknown)
            unknown += lost
            # One connection may be broken, and the next one good.
            at_once = lost and unknown < TRIES
            now: float = yield Pause(0 if at_once else pause, self.clock)
            if now >= until and not (at_once and unknown == 1):
                if unknown and not lost:
                    raise errors.StoreOutcomeUnknown(f"an earlier try may have been applied: {failed}")
                raise failed
            if not at_once:
                pause = min(pause * 2, LONGEST_PAUSE, until - now)

    def _emit(self, what: What, claim: Claimed, _reply: Applied | None = None) -> None:
        self.events.emit(what, claim.id, claim.attempt)

    def _warn_of_doubt(self, claim: Claimed, _reply: Applied | None = None) -> None:
        self.events.warn(What.HELD, claim.id, claim.attempt)

    def _warn_of_failure(self, claim: Claimed, failure: Failure, _reply: Applied | None = None) -> None:
        """Tell that work has failed for good: with the error's words, where somebody scrubs them."""
        detail = failure.type if self.events.scrub is None else f"{failure.type}: {failure.message}"
        self.events.warn(What.FAILED, claim.id, claim.attempt, detail)

    # Looking and waiting

    def get(self, key: str | Key) -> Steps[Record | None]:
        """The record of a key, or None."""
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        return self._record(id, found.item)

    def peek(self, id: str, terms: ClaimTerms, decoder: Decoder) -> Steps[Outcome | None]:
        """What a claim would find on a qualified name that is done; None where it is not."""
        found = yield from read(Get(LEDGER, id))
        record = self._record(id, found.item)
        if record is None or record.status is not Status.COMPLETED:
            return None
        return (yield from self._outcome(record, found.now, terms, decoder))

    def result(self, record: Record, returns: Any = Any) -> Steps[Any]:
        """The result that a record holds; `MISSING` when only the fact was kept."""
        return (yield from self._result(record, decoder_for(returns)))

    def wait(self, key: str | Key, timeout: Seconds = LEASE) -> Steps[Record | None]:
        """Wait until nobody is at work on the key, and give the record as it then is."""
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        record = self._record(id, found.item)
        if record is None or not is_running(record, found.now):
            return record
        found = yield from self.settled(id, seconds(timeout))
        record = self._record(id, found.item)
        if record is not None and is_running(record, found.now):
            raise errors.InProgress(record.key, record.lease_until - found.now, record.attempt)
        return record

    def settled(self, id: str, timeout: float, lease_left: float = SLOWEST_LOOK) -> Steps[Found]:
        """Watch a qualified name until nobody holds it, or the time is up; what was seen last."""
        waited, pause = 0.0, FIRST_LOOK
        while True:
            look = max(min(pause, lease_left, timeout - waited), SHORTEST_LOOK)
            try:
                found = yield from read(Watch(LEDGER, id, look))
            except RETRYABLE:
                # Whoever waits has time: the store may be back at the next look.
                if waited + look >= timeout:
                    raise
                yield Pause(look, self.clock)
                waited += look
                pause = min(pause * 2, SLOWEST_LOOK)
                continue
            waited += found.waited
            record = self._record(id, found.item)
            if record is None or not is_running(record, found.now) or waited >= timeout:
                return msgspec.structs.replace(found, waited=waited)
            pause = min(pause * 2, SLOWEST_LOOK)
            lease_left = record.lease_until - found.now

    # Resolving and overriding by hand

    def resolve(
        self,
        key: str | Key,
        settlement: Settlement,
        *,
        ttl: Seconds | None = None,
        by: str = "",
        why: str = "",
    ) -> Steps[None]:
        """Settle what became of an attempt that vanished; the record keeps who found out, and why.

        Without a `ttl` it is kept for as long as it had left, and for 30 days at least.
        """
        if not isinstance(settlement, Happened | NotHappened | Abandoned):
            raise errors.InvalidOption(
                f"{settlement!r} settles nothing: give Happened(result), NotHappened() or Abandoned(reason)"
            )
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        record = self._record(id, found.item)
        terms = ClaimTerms(0, SETTLED if ttl is None else seconds(ttl), on_lapsed="hold")
        if record is not None and next_move(record, found.now, terms) is lifecycle.HOLD:
            yield from self._give_up(record, lifecycle.HOLD, terms)
        elif record is None or record.status is not Status.UNKNOWN:
            state = "absent" if record is None else record.status.value
            raise errors.Refused(key_of(id), f"is {state}; only what is UNKNOWN, or lapsed, is settled")
        span = kept_for(record, found.now) if ttl is None else terms.ttl
        claim = Claimed(id, record.token, record.attempt, 0, span, on_lapsed="hold")
        history = self.acted(record, "settled", found.now, by, why)
        ending = yield from self._settling(claim, settlement, SETTLE[type(settlement)], {"history": history})
        yield from self._move(claim, ending)

    def override(
        self, record: Record, settlement: Settlement, *, now: float, ttl: float, by: str, why: str
    ) -> PartPlan[None]:
        """An operator decides what became of a key, whatever its record said, if that is still as it was."""
        move, done = OVERRIDE[type(settlement)], OVERRIDDEN[type(settlement)]
        seen = msgspec.structs.replace(move, start=(record.status,))
        claim = Claimed(record.id, record.token, record.attempt, 0, ttl, on_lapsed="hold")

        def plan(_mark: str) -> Steps[Part[None]]:
            change = {"error": None, "history": self.acted(record, done, now, by, why)}
            return self.part(claim, (yield from self._settling(claim, settlement, seen, change)))

        return built_once(plan)

    def acted(self, record: Record, how: str, now: float, by: str, why: str) -> str:
        """The history of a record once somebody has done this to it."""
        note = self.events.scrubbed(why, MAX_NOTE)
        act = HistoryEntry(record.attempt, by[:LONGEST_NAME] or self.worker(), now, now, how, note)
        if record.status in ENDED:
            return self.history(record, ENDED[record.status], record.updated_at, act)
        return self.history(record, *_unfinished(record, now), act)

    def _settling(self, claim: Claimed, settlement: Settlement, move: Move, change: Item) -> Steps[Ending]:
        notify: Notify = _no_event
        match settlement:
            case Happened(result):
                change = (yield from self._stored(claim, result)) | change
                notify = partial(self._emit, What.COMPLETED, claim)
            case Abandoned(reason):
                change |= {"error": self._kept_text(claim.id, Failure("Abandoned", reason))}
        return Ending(move, change, notify)

    # Marking and forgetting

    def check_and_set(self, key: str | Key, ttl: Seconds = HOUR) -> Steps[bool]:
        """True the first time, False while that time is remembered: one atomic write."""
        token, id = self.token(), self.name(key)
        reply = yield from write(self._mark(id, lasting(ttl, self.horizon), token))
        return self._seen(id, _new(reply, token))

    def _mark(self, id: str, ttl: float, token: str) -> Put:
        """Write a record that is done from the start, unless one is there that may be done or doing."""
        return Put(LEDGER, id, self._marked(ttl, token), MARKABLE)

    def _marked(self, ttl: float, token: str) -> Item:
        done = {"status": "COMPLETED", "encoding": MARK.encoding}
        return opening(ClaimTerms(0, ttl), token, self.worker()) | done

    def _seen(self, id: str, new: bool) -> bool:
        self.events.emit(What.CLAIMED if new else What.REPLAYED, id)
        return new

    def check_and_set_many(self, keys: Iterable[str | Key], ttl: Seconds = HOUR) -> Steps[Answers]:
        """True for each new key, in one round trip; of equal keys in the batch the first one counts."""
        token = self.token()
        names = [self.name(key) for key in keys]
        span = lasting(ttl, self.horizon)
        item = self._marked(span, token)
        marks = tuple([Put(LEDGER, id, item, MARKABLE) for id in dict.fromkeys(names)])
        if not marks:
            return []
        many = yield from write_each(Batch(marks))
        new = {mark.key: _new(reply, token) for mark, reply in zip(marks, many.replies, strict=True)}
        # Popping leaves the later ones of equal keys without an entry: they are duplicates.
        return [self._seen(id, new.pop(id, False)) for id in names]

    def is_processed(self, key: str | Key, *, on_store_error: OnStoreError = "closed") -> Steps[bool]:
        """Whether the key is done; one that is only being worked on is not.

        Under `on_store_error="open"` it is taken for not done where the store is down, which is logged.
        """
        check_word("on_store_error", on_store_error, OnStoreError)
        try:
            record = yield from self.get(key)
        except (errors.StoreUnavailable, errors.StoreThrottled) as error:
            if on_store_error == "closed":
                raise
            self.events.warn(What.RAN_OPEN, self.name(key), detail=f"{type(error).__name__}: {error}")
            return False
        return record is not None and record.status is Status.COMPLETED

    def mark_processed(self, key: str | Key, ttl: Seconds = HOUR) -> Steps[None]:
        """Record that the key is done, whatever became of earlier attempts; a running one is left alone."""
        token = self.token()
        mark = self._mark(self.name(key), lasting(ttl, self.horizon), token)
        reply = yield from write(mark)
        while not _new(reply, token):
            record = self._record(mark.key, reply.item)
            if record is None:
                reply = yield from write(mark)
            elif record.status is Status.COMPLETED:
                return
            elif is_running(record, reply.now):
                raise errors.InProgress(record.key, record.lease_until - reply.now, record.attempt)
            elif record.status is Status.IN_PROGRESS:
                yield from self._give_up(
                    record, lifecycle.HOLD, ClaimTerms(0, seconds(ttl), on_lapsed="hold")
                )
                reply = yield from write(mark)
            else:
                move = lifecycle.MARK
                settled = Claimed(mark.key, record.token, record.attempt, 0, seconds(ttl), on_lapsed="hold")
                change = moved_on({"result": None, "encoding": MARK.encoding}, move, settled, self.prefix)
                reply = yield from write(Update(LEDGER, mark.key, change, move.condition(record.token)))

    def drop_result(self, key: str | Key) -> Steps[bool]:
        """Let the result go and keep the fact, so that duplicates are still known; False if there is none."""
        found = yield from read(Get(LEDGER, self.name(key)))
        record = self._record(self.name(key), found.item)
        if record is None or record.status is not Status.COMPLETED:
            return False
        history = self.acted(record, "dropped", found.now, "", "")
        change: Item = {"result": None, "encoding": DROPPED.encoding, "updated_at": NOW, "history": history}
        condition = lifecycle.DROP.condition(record.token)
        reply = yield from write(Update(LEDGER, record.id, change, condition))
        if isinstance(reply, Refused) and not was_made(reply.item, record.token, change):
            return False
        yield from self.discard(record.result, record.encoding)
        return True

    def forget(self, key: str | Key) -> Steps[bool]:
        """Remove the record, even one that cannot be read; the key may then run again. False if none."""
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        first = item = found.item
        while item is not None and first is not None:
            token = item.get("token")
            seen = Equals("token", token) if isinstance(token, str) else PRESENT
            reply = yield from write(Delete(LEDGER, id, seen))
            if type(reply) is Applied or reply.item is None:
                yield from self.discard(item.get("result"), item.get("encoding"))
                break
            # Another attempt at the same is forgotten too; what was born since was not meant.
            item = reply.item if _continues(reply.item, first) else None
        return first is not None

    # Listing

    def list(
        self,
        *,
        status: Status | str | None = None,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
        most: int = 0,
    ) -> Steps[Listing]:
        """A page of this environment's and scope's records: those of one status, of keys that begin so.

        Where keys lie in no order, a page ends after about `most` records were read; 0 fills it.
        """
        where: Condition = Begins(LEDGER.partition, self.prefix + prefix)
        if status is not None:
            if status not in set(Status):
                raise errors.InvalidOption(f"status={status!r}: it is one of {', '.join(Status)}")
            where = AllOf((where, Equals("status", str(status))))
        check_limit("limit", limit)
        page: Page = yield Query(LEDGER, where=where, limit=limit, after=after, most=most)
        return self.listing(page)

    def listing(self, page: Page) -> Listing:
        """A page of items as records, and the keys of those that cannot be read."""
        records, unreadable = [], []
        for item in page.items:
            try:
                records.append(self._readable(item[LEDGER.partition], item))
            except errors.RecordCorrupt as error:
                unreadable.append(error.key)
        looked = max(page.read, len(page.items))
        return Listing(tuple(records), page.after, tuple(unreadable), page.now, looked)

    def doubts(self, *, reverse: bool = False, limit: int = 100, after: str | None = None) -> Steps[Listing]:
        """What waits for somebody to find out what became of it, oldest first or, in `reverse`, newest first.

        That is what is UNKNOWN, and what lapsed where the policy is to hold it or to ask. It comes from an
        index; on a table that was there first and has none, all of it is looked through, a page at a time.
        """
        return (yield from self._listed(DOUBTS, in_doubt, limit, after, reverse))

    def failures(
        self, *, reverse: bool = False, limit: int = 100, after: str | None = None
    ) -> Steps[Listing]:
        """What failed for good, oldest first or, in `reverse`, newest first; from an index, as doubts are."""
        return (yield from self._listed(FAILURES, _failed, limit, after, reverse))

    def _listed(
        self,
        index: Index,
        wanted: Callable[[Record, float], bool],
        limit: int,
        after: str | None,
        reverse: bool = False,
    ) -> Steps[Listing]:
        """A page of the records that an index leads to; it may lag behind, so each is read."""
        check_limit("limit", limit)
        records: list[Record] = []
        unreadable: list[str] = []
        looked = 0
        while True:
            left = limit - len(records)
            page: Page = yield Query(
                LEDGER, self.prefix, reverse=reverse, index=index.name, limit=left, after=after
            )
            for item in page.items:
                found = yield from read(Get(LEDGER, item[LEDGER.partition]))
                try:
                    record = self._record(item[LEDGER.partition], found.item)
                except errors.RecordCorrupt as error:
                    unreadable.append(error.key)
                    continue
                if record is not None and wanted(record, found.now):
                    records.append(record)
            after, looked = page.after, looked + max(page.read, len(page.items))
            if after is None or len(records) >= limit:
                return Listing(tuple(records), after, tuple(unreadable), page.now, looked)

    # Records, as they are written and read

    def _stored(self, claim: Claimed, result: Any, promised: Decoder | None = None) -> Steps[Item]:
        """Encode a result; it goes into the overflow if its row cannot hold it."""
        refuse_lazy(result, f"the work on {claim.key!r}")
        encoded = self.codec.encode(result, claim.id, promised)
        if encoded.misfit:
            self.events.warn(What.RESULT_MISTYPED, claim.id, claim.attempt, f"{MISTYPED}: {encoded.misfit}")
        body = encoded.body
        if encoded.problem is not None:
            body = yield from self._overflow(claim, encoded)
        return {"result": body.data, "encoding": body.encoding}

    def _released(self, claim: Claimed, error: BaseException | Failure | None, counted: bool = True) -> Item:
        change: Item = {"error": None if error is None else self._kept_text(claim.id, error)}
        return change if counted else change | {"attempt": claim.attempt - 1}

    def _found_by(self) -> Item:
        """What a doubt is listed by; a claim that was made before there was such a list has none yet."""
        return {"doubt": self.prefix, "doubt_since": NOW}

    def _overflow(self, claim: Claimed, encoded: Encoded) -> Steps[Body]:
        """Place a result that its row cannot hold. The effect has happened: at worst the fact is kept."""
        body, problem = encoded.body, encoded.problem or ""
        if encoded.oversize is not None:
            try:
                reference = yield Stash(claim.id, encoded.oversize)
            except Exception as error:  # noqa: BLE001 - an overflow may fail in any way
                body, problem = not_kept("overflow-failed"), f"{type(error).__name__}: {error}"
            else:
                if reference is not None:
                    return self.codec.overflowed(encoded.encoding, reference)
        self.events.warn(What.RESULT_NOT_KEPT, claim.id, claim.attempt, problem)
        return body

    def _kept_text(self, id: str, error: BaseException | Failure) -> str:
        """An error as it is kept in a record."""
        return self._sealed_text(id, self._kept(error))

    def _kept(self, error: BaseException | Failure) -> Failure:
        failure = failure_of(error)
        message = self.events.scrubbed(failure.message, MAX_ERROR_TEXT)
        # A path, say, may hold half a character, which no JSON has.
        message = message.encode(errors="replace").decode()
        return msgspec.structs.replace(failure, message=message)

    def _sealed_text(self, id: str, failure: Failure) -> str:
        # Its type stays readable: whoever looks on wants to know it, and it is nobody's.
        message = self.realm.sealing.text(failure.message, LEDGER.name, id, "error", steady=True)
        return msgspec.json.encode(msgspec.structs.replace(failure, message=message)).decode()

    def _noted(self, id: str, change: Item, details: Details) -> Item:
        if details:
            check_details(details)
            change["details"] = details
            if not self.clear_details:
                change["details"] = self.realm.sealing.object(
                    details, LEDGER.name, id, "details", steady=True
                )
        return change

    def _opened(self, record: Record) -> Record:
        """A record whose error and details read as they were given, or say why they cannot be read."""
        failure = record.failure if record.error is not None and SEALED in record.error else None
        if failure is not None:
            message = self.realm.sealing.opened_text(failure.message, LEDGER.name, record.id, "error")
            failure = msgspec.structs.replace(failure, message=message)
            record = msgspec.structs.replace(record, error=msgspec.json.encode(failure).decode())
        if record.history is not None and SEALED in record.history:
            history = self.realm.sealing.opened_text(record.history, LEDGER.name, record.id, "history")
            record = msgspec.structs.replace(record, history=history)
        if record.details is not None and not self.clear_details:
            details = self._opened_details(record.id, record.details)
            record = msgspec.structs.replace(record, details=details)
        return record

    def _opened_details(self, id: str, kept: Item) -> Item:
        try:
            return self.realm.sealing.opened(kept, LEDGER.name, id, "details")  # type: ignore[no-any-return]
        except ValueError as error:
            return {"unreadable": str(error)}

    def worker(self) -> str:
        """Who is at work here, as a record keeps it."""
        return worker_name(self.realm.worker, self.events.task)

    def history(self, record: Record, how: str, ended: float, *acts: HistoryEntry) -> str:
        """What a record says of its past once the present attempt is past, and whatever was done then."""
        past = record.past
        # What was done by hand comes after the attempt that it ended.
        if not (past and past[-1].how in BY_HAND and past[-1].attempt == record.attempt):
            note = "" if record.failure is None else f"{record.failure.type}: {record.failure.message}"
            who, began = record.worker or "", record.began
            past = (*past, HistoryEntry(record.attempt, who, began, ended, how, note[:MAX_NOTE]))
        text = msgspec.json.encode((*past, *acts)[-MAX_HISTORY:]).decode()
        return self.realm.sealing.text(text, LEDGER.name, record.id, "history", steady=True)

    def _result(self, record: Record, decoder: Decoder) -> Steps[Any]:
        if record.result is None:
            return MISSING
        body = Body(record.result, record.encoding or "")
        try:
            reference = self.codec.reference(body)
            if reference is not None:
                data = yield Fetch(reference)
                if data is None:
                    return MISSING
                body = self.codec.fetched(body, data)
            return self.codec.decode(body, decoder, record.id)
        except (errors.ResultUnreadable, errors.UsageError) as error:
            reason = error.reason if isinstance(error, errors.ResultUnreadable) else str(error)
            raise errors.ResultUnreadable(record.key, reason) from error

    def discard(self, result: Any, encoding: Any) -> Steps[None]:
        """Remove a result from the overflow, if it is there."""
        if isinstance(result, bytes) and isinstance(encoding, str):
            reference = self.codec.reference(Body(result, encoding))
            if reference is not None:
                yield Discard(reference)

    def _record(self, id: str, item: Item | None) -> Record | None:
        """An item as a record; what cannot be read is reported and never taken for absent."""
        return None if item is None else self._readable(id, item)

    def _readable(self, id: str, item: Item) -> Record:
        try:
            record = msgspec.convert(item, Record)
            if record.version > RECORD_VERSION:
                raise errors.SchemaTooNew(record.version, RECORD_VERSION)
        except (msgspec.ValidationError, errors.SchemaTooNew) as error:
            self.events.warn(What.CORRUPT, id, detail=str(error))
            raise errors.RecordCorrupt(key_of(id), str(error)) from error
        kept = record.error is not None or record.details is not None or record.history is not None
        return self._opened(record) if kept else record


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


def _owned(record: Record, token: str) -> bool:
    """Whether my own claim is what stands in my way: it was made, and its answer was lost."""
    return record.token == token and record.status is Status.IN_PROGRESS


def _differs(record: Record, terms: ClaimTerms) -> bool:
    known = record.fingerprint is not None and terms.fingerprint is not None
    return known and record.fingerprint != terms.fingerprint


def failure_of(error: BaseException | Failure, kept_as: str = "") -> Failure:
    """An error as it is kept."""
    if isinstance(error, Failure):
        return error
    return Failure(type(error).__qualname__, errors.words_of(error), kept_as)


def opening(
    terms: ClaimTerms, token: str, worker: str, attempt: int = 1, before: Record | None = None
) -> Item:
    """A record at the beginning of an attempt."""
    item: Item = {
        "status": "IN_PROGRESS",
        "token": token,
        "attempt": attempt,
        "fingerprint": terms.fingerprint if before is None else before.fingerprint or terms.fingerprint,
        "created_at": NOW if before is None else before.created_at,
        "updated_at": NOW,
        "lease_until": After(terms.lease),
        "expires_at": After(terms.ttl),
        "version": RECORD_VERSION,
        "worker": worker,
    }
    if subject := terms.subject if before is None else before.subject or terms.subject:
        item["subject"] = subject
    return item


def moved_on(change: Item, move: Move, claim: Claimed | ClaimTerms, prefix: str) -> Item:
    """Add what every move writes. Each sets the end of the record's life anew, so it outlives the lease.

    What may come to be in doubt does not end as other records do: by then somebody has to have settled it.
    """
    change["status"] = move.status
    change["updated_at"] = NOW
    reruns = claim.on_lapsed == "rerun"
    if move.to is Status.UNKNOWN or (move.to is Status.IN_PROGRESS and not reruns):
        change["expires_at"] = doubt_end(claim.doubt_ttl)
        return change
    change["expires_at"] = After(claim.ttl)
    if not reruns:
        change["doubt"] = change["doubt_since"] = None
    if move.to is Status.FAILED:
        change |= {"failed": prefix, "failed_at": NOW}
    elif Status.FAILED in move.start:
        change["failed"] = change["failed_at"] = None
    return change


def doubt_end(span: float | None) -> After | None:
    """When a doubt ends that waits so long; None where it waits for ever."""
    return None if span is None else After(span)


def was_made(item: Item | None, token: str, change: Item) -> bool:
    """Whether the record already is as the change would leave it: my write, whose answer was lost."""
    if item is None or item.get("token") != token:
        return False
    return all(
        item.get(name) == value
        for name, value in change.items()
        if type(value) is not After and name not in BESIDE
    )


def is_running(record: Record, now: float) -> bool:
    """Whether somebody is at work on it, and has not been silent for too long."""
    return record.status is Status.IN_PROGRESS and record.lease_until > now


def _failed(record: Record, _now: float) -> bool:
    return record.status is Status.FAILED


def _new(reply: Applied | Refused, token: str) -> bool:
    return type(reply) is Applied or (reply.item is not None and reply.item.get("token") == token)


def kept_for(record: Record, now: float) -> float:
    """For how long a record is kept that somebody has settled; a doubt has no end of its own."""
    left = record.expires_at - now
    return max(SETTLED, left) if left < FOREVER else SETTLED


def _unfinished(record: Record, now: float) -> tuple[str, float]:
    """How and when an attempt without a result ended, if an operator acts on it now."""
    if is_running(record, now):
        return "interrupted", now
    # A worker that cannot tell says so within its lease; otherwise the lease expired.
    if record.status is Status.UNKNOWN and record.updated_at < record.lease_until:
        return "held", record.updated_at
    return "lapsed", record.lease_until


def in_doubt(record: Record, now: float) -> bool:
    """Whether somebody has to find out what became of it."""
    if record.status is Status.UNKNOWN:
        return True
    return (
        record.status is Status.IN_PROGRESS and record.doubt_since is not None and record.lease_until <= now
    )


def _continues(item: Item, earlier: Item) -> bool:
    """Whether this is a later attempt in the same life of a record."""
    same_life = item.get("created_at") == earlier.get("created_at")
    return same_life and (item.get("attempt") or 0) > (earlier.get("attempt") or 0)
