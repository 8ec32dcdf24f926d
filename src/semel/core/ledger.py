"""The ledger: every rule about the life of a record, as steps that any store can execute.

Read it from top to bottom: a key is claimed, its holder renews and ends the claim, others look and wait, and
operators resolve, mark and forget. Callers know these methods as `Ledger` and `AsyncLedger`, which drive
them (see `facades`).

Invariants:

- A claimant's random token is in its record. Every write of a holder expects it, so a late one is refused.
- A write is recognised by what it would have left: one whose reply was lost may be sent again.
- A move changes a record only from the states that `lifecycle` names, and sets the end of its life anew.
- A take-over expects the token, the status and the lease that it read: a renewal in between refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar, cast

import msgspec

from semel import errors, model
from semel.core import lifecycle
from semel.core.codecs import Body, Codec, Decoder, Encoded, check_details, decoder_for, not_kept
from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    TRIES,
    After,
    Applied,
    Batch,
    Delete,
    Discard,
    Expect,
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
    alive,
    read,
    resend,
    side_by_side,
    write,
    write_each,
)
from semel.core.events import Events, What
from semel.core.functions import FINISHED, refuse_lazy
from semel.core.keys import Key, key_of
from semel.core.lifecycle import Move, Status
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict
from semel.core.policy import (
    DAY,
    HOUR,
    LEASE,
    SETTLED,
    ClaimTerms,
    Seconds,
    check_limit,
    check_word,
    lasting,
    seconds,
    terms_of,
)
from semel.core.realm import SEALED, Realm
from semel.core.runtime import LONGEST_NAME, worker_name
from semel.model import Claimed, Failure, Listing, OnLapsed, OnStoreError, Outcome, Record, Settlement
from semel.tables import DOUBTS, FAILURES, FOREVER, LEDGER, Index

T = TypeVar("T")

Details: TypeAlias = dict[str, Any] | None
Answers: TypeAlias = list[bool]
Outcomes: TypeAlias = list[Outcome]
Rescue: TypeAlias = Callable[[Steps[None], Callable[[errors.StoreError, str], object]], None]

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

# The move that settles a doubt, the one by which an operator overrides a record, and what that is called.
SETTLE: dict[type, tuple[Move, Move, str]] = {
    model.Happened: (lifecycle.SETTLE_DONE, lifecycle.OVERRIDE_DONE, "completed by hand"),
    model.NotHappened: (lifecycle.SETTLE_UNDONE, lifecycle.OVERRIDE_UNDONE, "released by hand"),
    model.Abandoned: (lifecycle.SETTLE_FAILED, lifecycle.OVERRIDE_FAILED, "failed by hand"),
}

# How an attempt has ended, by what its record says.
ENDED = {Status.COMPLETED: "completed", Status.FAILED: "failed", Status.RELEASED: "released"}

MARK = not_kept("mark")
DROPPED = not_kept("dropped")

# What the rules themselves raise, or a store does. Anything else came from outside, as from a signal handler.
UNINTERRUPTED = (errors.StoreError, errors.Refused, errors.ShuttingDown)

# When a record ends, what it is found by and what came before do not tell what became of it.
IGNORED_ON_RESEND = frozenset({"expires_at", "doubt", "doubt_since", "history", "failed", "failed_at"})


class Ending(msgspec.Struct, frozen=True):
    """How a claim ends: the move, what it changes, and what listeners are told."""

    move: Move
    change: Item
    event: What | None = None
    detail: str | None = None
    """What else they are told, of a move that is to be looked at."""


class PendingClaim(msgspec.Struct, eq=False):
    """A claim until its caller knows the outcome: what was sent, and what the next write expects."""

    fingerprint: str | None = None
    subject: str | None = None
    token: str = ""
    attempt: int = 1
    lapsed: bool = False
    before: Record | None = None
    """The record of the attempt before this one."""
    expect: Expect = ABSENT
    put: Put | None = None
    """The write that was sent last."""
    ttl: float = 0.0

    def start(self, expired: Item | None = None) -> None:
        """Claim the key as if for the first time; an expired record is replaced."""
        self.attempt, self.lapsed, self.before = 1, False, None
        self.expect = ABSENT if expired is None else {"expires_at": expired["expires_at"]}

    def follow(self, record: Record, move: Move) -> None:
        """Claim the key after another attempt."""
        self.attempt, self.lapsed, self.before = record.attempt + 1, move.lapsed, record
        self.expect = as_read(record)

    def is_mine(self, record: Record) -> bool:
        """Return whether an earlier write of this claim was applied, though its reply was lost."""
        if record.token != self.token or record.status is not Status.IN_PROGRESS:
            return False
        # A first write that comes through late is another attempt than the last one that was sent.
        self.lapsed = self.lapsed and record.attempt == self.attempt
        self.attempt = record.attempt
        return True

    def end(self) -> None:
        """End the work under the claim, in the thread that does it."""

    def withdrawn(self) -> Steps[None]:
        """Take the claim back, because the caller was interrupted: from then on it holds nothing.

        The claim may still be on its way. So this is written where the claim would be, which is then refused.
        """
        claim = self.put
        if claim is None:
            return
        item = claim.item | {"attempt": claim.item["attempt"] - 1, "lease_until": NOW}
        if not self.lapsed:
            item |= {"status": Status.RELEASED.value, "expires_at": After(self.ttl)}
            item = {name: value for name, value in item.items() if name not in ("doubt", "doubt_since")}
        reply = yield from _attempted(Put(LEDGER, claim.key, item, claim.expect))
        if isinstance(reply, Refused) and reply.item is not None:
            yield from _attempted(Put(LEDGER, claim.key, item, lifecycle.LAPSE.expects(item["token"])))


class LedgerSteps:
    """The rules, as generators of commands."""

    def __init__(
        self,
        realm: Realm,
        codec: Codec | None = None,
        *,
        clock: Any = None,
        clear_details: bool = False,
        rescue: Rescue = lambda *_: None,
    ) -> None:
        self.realm = realm
        self.codec: Codec = codec or Codec()
        self.clock = clock
        """Whose pauses are made; it is never read here."""
        self.clear_details = clear_details
        """Details stand in attributes that others read too, and so they are not sealed."""
        self.rescue = rescue
        """Finishes the steps of an abandoned call; without it, their lease ends by itself."""
        # What is asked of the realm at every call.
        self.prefix: str = realm.prefix
        self.name: Callable[[str | Key], str] = realm.name
        self.subject: Callable[[str], str] = realm.subject
        self.events: Events = realm.events
        self.horizon: float = realm.horizon
        self.token: Callable[[], str] = realm.token
        self._worker, self._task = realm.worker, realm.events.task

    def about(self, name: str) -> Self:
        """These rules, whose events name the function that they are about."""
        rules, events = object.__new__(type(self)), self.events.about(name)
        realm = msgspec.structs.replace(self.realm, events=events)
        rules.__dict__ |= self.__dict__ | {"realm": realm, "events": events, "_task": events.task}
        return rules

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
        terms = terms_of(lease, ttl, on_lapsed, max_attempts, doubt_ttl, horizon=self.horizon)
        pending = PendingClaim(fingerprint, self.realm.subject_of(subject))
        claiming = self.claim_on(self.name(key), terms, decoder_for(returns), pending)
        return self.guarded(claiming, pending)

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
        terms = terms_of(lease, ttl, on_lapsed, max_attempts, doubt_ttl, horizon=self.horizon)
        names = [self.name(key) for key in keys]
        if len(set(names)) < len(names):
            raise errors.UsageError("a key is claimed once in a batch: drop its duplicates first")
        pending = [PendingClaim(None, self.realm.subject_of(one)) for one in subjects or [None] * len(names)]
        decoder = decoder_for(returns)
        asked = zip(names, pending, strict=True)
        claiming = [_readably(self.claim_on(id, terms, decoder, one)) for id, one in asked]
        return self.guarded(self._claimed_all(claiming), *pending)

    def _claimed_all(self, claiming: Sequence[Steps[Outcome | errors.SemelError]]) -> Steps[Outcomes]:
        """Claim all of them; if one cannot be read, release the others and raise its error."""
        found = yield from side_by_side(claiming)
        failed = [one for one in found if isinstance(one, errors.SemelError)]
        if failed:
            yield from self.release_many([one for one in found if isinstance(one, Claimed)], counted=False)
            raise failed[0]
        return cast("Outcomes", found)

    def claim_on(  # noqa: C901 - a claim, read from top to bottom
        self, id: str, terms: ClaimTerms, decoder: Decoder, pending: PendingClaim, seen: Found | None = None
    ) -> Steps[Outcome]:
        """Claim a qualified name on checked terms, starting from what was `seen` there, if anything."""
        pending.token, pending.ttl = self.token(), terms.ttl
        reply: Applied | Refused | None = None
        if seen is not None:
            pending.start()
            reply = None if seen.item is None else Refused(seen.now, seen.item)
        while True:
            if reply is None:
                pending.put = self._build_claim(id, terms, pending)
                try:
                    reply = yield pending.put
                except errors.StoreOutcomeUnknown as lost:
                    reply = yield from resend(pending.put, lost)
            if type(reply) is Applied:
                return self._won(id, terms, pending)
            item, now, reply = reply.item, reply.now, None
            record = self._record(id, alive(LEDGER, item, now))
            if record is None:
                pending.start(item)
                continue
            if record.status is Status.COMPLETED:  # as in every replay
                return (yield from self._outcome(record, now, pending.fingerprint, decoder))
            if pending.is_mine(record):
                return self._won(id, terms, pending)
            if record.token == pending.token:
                # This claim was made, and resolved by an operator before its reply came. What comes next is
                # another attempt, and no write that was meant for the first may fit it.
                pending.token = self.token()
            move = next_move(record, now, terms, pending.fingerprint)
            if move is None:
                return (yield from self._outcome(record, now, pending.fingerprint, decoder))
            if move.to is Status.IN_PROGRESS:
                pending.follow(record, move)
            else:
                yield from self._give_up(record, move, terms)
                pending.start()  # this is refused by what that left

    def _build_claim(self, id: str, terms: ClaimTerms, pending: PendingClaim) -> Put:
        worker = worker_name(self._worker, self._task)
        item = new_record(terms, pending.token, worker, pending.fingerprint, pending.subject)
        before = pending.before
        if before is not None:  # the next attempt at the work of an earlier one
            lapsed = before.status is Status.IN_PROGRESS
            ended = before.lease_until if lapsed else before.updated_at
            item |= {
                "attempt": pending.attempt,
                "created_at": before.created_at,
                "began_at": NOW,
                "fingerprint": before.fingerprint or pending.fingerprint,
                "history": self.history(before, "lapsed" if lapsed else "released", ended),
            }
            if before.subject:
                item["subject"] = before.subject
        if terms.on_lapsed != "rerun":
            item |= self._found_by() | {"expires_at": doubt_end(terms.doubt_ttl)}
        return Put(LEDGER, id, item, pending.expect)

    def _won(self, id: str, terms: ClaimTerms, won: PendingClaim) -> Claimed:
        lease, ttl, on_lapsed = terms.lease, terms.ttl, terms.on_lapsed
        if won.lapsed:
            self.events.warn(What.TAKEN_OVER, id, won.attempt)
        elif self.events.listeners:
            self.events.emit(What.CLAIMED, id, won.attempt)
        return Claimed(id, won.token, won.attempt, lease, ttl, won.lapsed, on_lapsed, terms.doubt_ttl)

    def _outcome(
        self, record: Record, now: float, fingerprint: str | None, decoder: Decoder
    ) -> Steps[Outcome]:
        if _differs(record, fingerprint):
            self.events.emit(What.MISMATCH, record.id, record.attempt)
            return model.Mismatch(record)
        status = record.status
        if status is Status.COMPLETED:
            self.events.emit(What.REPLAYED, record.id)
            return model.Replay(record, (yield from self._result(record, decoder)))
        if status is Status.FAILED:
            self.events.emit(What.FAILED_BEFORE, record.id, record.attempt)
            return model.Failed(record, record.failure or Failure("Unknown", "no error was kept"))
        if status is Status.UNKNOWN:
            self.events.emit(What.UNKNOWN, record.id, record.attempt)
            return model.Unknown(record)
        self.events.emit(What.BUSY, record.id, record.attempt)
        return model.Busy(record, max(0.0, record.lease_until - now))

    def _give_up(self, record: Record, move: Move, terms: ClaimTerms) -> Steps[None]:
        """Hold a vanished attempt, or fail one that had every chance."""
        change = apply_move({}, move, terms, self.prefix)
        if move.to is Status.FAILED:
            failure = Failure("AttemptsExhausted", f"given up after {record.attempt} attempts")
            # An error that is there stays as it is kept.
            change |= {} if record.error else {"error": self._kept(record.id, failure)[0]}
        else:
            change |= {"doubt": self.prefix, "doubt_since": record.doubt_since or record.lease_until}
        reply = yield from write(Update(LEDGER, record.id, change, as_read(record)))
        if type(reply) is Applied:
            what = What.HELD if move.to is Status.UNKNOWN else What.EXHAUSTED
            self.events.warn(what, record.id, record.attempt)

    def guarded(self, steps: Steps[T], *pending: PendingClaim) -> Steps[T]:
        """Run these steps, and withdraw what they claimed if they are interrupted."""
        try:
            return (yield from steps)
        except UNINTERRUPTED:
            raise
        except BaseException as error:
            yield from self.withdraw(error, *pending)
            raise

    def withdraw(self, error: BaseException, *pending: PendingClaim) -> Steps[None]:
        """Withdraw claims whose caller was interrupted by this error."""
        try:
            for one in pending:
                one.end()
            if not isinstance(error, GeneratorExit | RecursionError):
                for one in pending:
                    yield from one.withdrawn()
                return
        except RecursionError:
            pass
        # A closed generator yields no commands, and here the stack may have no room; another thread has both.
        for one in pending:
            self.rescue(one.withdrawn(), self.events.failed)

    # Ending a claim

    def complete(self, claim: Claimed, result: Any = None, *, details: Details = None) -> Steps[None]:
        """The effect happened: store its result, and details for people to read."""
        yield from self.end(claim, (yield from self.completion(claim, result, details)))

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
        if type(result) not in FINISHED:
            refuse_lazy(result, f"the work on {claim.key!r}")
        encoded = self.codec.encode(result, claim.id, promised)
        body = encoded.body
        if encoded.problem is not None or encoded.misfit:
            body = yield from self._place(claim, encoded)
        change: Item = {"result": body.data, "encoding": body.encoding}
        if details:
            change = self._noted(claim.id, change, details)
        return Ending(lifecycle.COMPLETE, change, What.COMPLETED)

    def failure(self, claim: Claimed, error: BaseException | Failure, details: Details = None) -> Ending:
        """Return how a claim ends that failed for good; the error is told where somebody scrubs its words."""
        text, failure = self._kept(claim.id, error)
        change = self._noted(claim.id, {"error": text}, details)
        detail = failure.type if self.events.scrub is None else f"{failure.type}: {failure.message}"
        return Ending(lifecycle.FAIL, change, What.FAILED, detail)

    def releasing(
        self, claim: Claimed, error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> Ending:
        """Return how a claim ends that did not happen."""
        change: Item = {"error": None if error is None else self._kept(claim.id, error)[0]}
        if not counted:
            change["attempt"] = claim.attempt - 1
        return Ending(lifecycle.RELEASE, change, What.RELEASED)

    def end(self, claim: Claimed, ending: Ending, until: float | None = None) -> Steps[None]:
        """End a claim in one write; retry while the store is unavailable, up to the end of the lease."""
        update = self._update(claim, ending)
        try:
            reply: Applied | Refused = yield update
        except RETRYABLE as failed:
            reply = yield from self._send_while_held(update, claim.lease, until, failed)
        if type(reply) is not Applied and (held := held_as(claim, ending.move, reply)):
            update = Update(LEDGER, claim.id, update.set, held)
            reply = yield from self._send_while_held(update, claim.lease, until)
        self._report(claim, ending, reply)

    def part(
        self, claim: Claimed, ending: Ending | Steps[Ending], expect: Item | None = None
    ) -> PartPlan[None]:
        """End a claim as a part of a transaction; a retry does not store its result again."""
        update: Update | None = None

        def plan(_mark: str) -> Steps[Part[None]]:
            nonlocal ending, update
            made = ending = ending if isinstance(ending, Ending) else (yield from ending)
            update = update or self._update(claim, made, expect)
            return Part((update,), partial(judge, made), lambda _: self._report(claim, made), True)

        def judge(made: Ending, refusals: PartRefusals) -> PartVerdict | errors.SemelError:
            nonlocal update
            [refused] = refusals
            if expect is None and (held := held_as(claim, made.move, refused)):
                update = Update(LEDGER, claim.id, made.change, held)
                return PartVerdict.STALE
            return self._judge(claim, made, None if refused is None else refused.item)

        return plan

    def complete_many(
        self, claims: Iterable[Claimed], result: Any = None, *, details: Details = None
    ) -> Steps[Answers]:
        """The effects of several claims happened, with one result for each; False where a claim was lost."""
        ends = []
        for claim in claims:
            change = self._noted(claim.id, self._shared_result(claim, result), details)
            ends.append((claim, Ending(lifecycle.COMPLETE, change, What.COMPLETED)))
        return self._end_many(ends)

    def release_many(
        self, claims: Iterable[Claimed], error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> Steps[Answers]:
        """None of them happened; let the next attempts run. False where a claim was lost."""
        return self._end_many([(claim, self.releasing(claim, error, counted=counted)) for claim in claims])

    def _shared_result(self, claim: Claimed, result: Any) -> Item:
        refuse_lazy(result, f"the work on {claim.key!r}")
        encoded = self.codec.encode(result, claim.id)
        if encoded.problem is not None:
            raise errors.UsageError(f"a result that many claims share has to fit each row: {encoded.problem}")
        return {"result": encoded.body.data, "encoding": encoded.body.encoding}

    def _end_many(self, ends: Sequence[tuple[Claimed, Ending]]) -> Steps[Answers]:
        replies: dict[int, Any] = {}
        left = {place: self._update(*end) for place, end in enumerate(ends)}
        for _ in range(2):  # again for those that were marked as unresolved meanwhile
            if left:
                lease = max(claim.lease for claim, _ in ends)
                many: Many = yield from self._send_while_held(Batch(tuple(left.values())), lease, None)
                replies |= zip(left, many.replies, strict=True)
            left = {
                place: Update(LEDGER, claim.id, ending.change, held)
                for place, (claim, ending) in enumerate(ends)
                if place in left and (held := held_as(claim, ending.move, replies[place]))
            }
        return [self._was_made(*end, replies[place]) for place, end in enumerate(ends)]

    def _was_made(self, claim: Claimed, ending: Ending, reply: Applied | Refused) -> bool:
        try:
            self._report(claim, ending, reply)
        except errors.ClaimLost:
            return False
        return True

    # Other moves of a holder

    def renew(self, claim: Claimed) -> Steps[None]:
        """Still at work: the lease begins anew."""
        return self._move(claim, Ending(lifecycle.RENEW, {"lease_until": After(claim.lease)}))

    def lapse(self, claim: Claimed) -> Steps[None]:
        """Interrupted: end the lease now, so that the next claimant's policy decides as after a crash."""
        return self._move(claim, Ending(lifecycle.LAPSE, {"lease_until": NOW}))

    def doubt(self, claim: Claimed) -> Steps[None]:
        """The holder cannot tell whether the effect happened; somebody else has to."""
        return self._move(claim, Ending(lifecycle.DOUBT, self._found_by(), What.HELD, ""))

    def doubt_many(self, claims: Iterable[Claimed]) -> Steps[Answers]:
        """The holder of several claims cannot tell whether their effects happened; False for each lost."""
        return self._end_many(
            [(one, Ending(lifecycle.DOUBT, self._found_by(), What.HELD, "")) for one in claims]
        )

    def abandon(self, claim: Claimed) -> Steps[None]:
        """The caller was interrupted at its work: end the lease if it can be, for the next one's policy."""
        yield from _attempted(self._update(claim, Ending(lifecycle.LAPSE, {"lease_until": NOW})))

    def _move(self, claim: Claimed, ending: Ending, expect: Item | None = None) -> Steps[None]:
        self._report(claim, ending, (yield from write(self._update(claim, ending, expect))))

    def _update(self, claim: Claimed, ending: Ending, expect: Item | None = None) -> Update:
        move = ending.move
        change = apply_move(ending.change, move, claim, self.prefix)
        return Update(LEDGER, claim.id, change, expect or move.expects(claim.token))

    def _report(self, claim: Claimed, ending: Ending, reply: Applied | Refused | None = None) -> None:
        """Tell listeners of a move that was made, now or before; raise what its refusal means otherwise."""
        if type(reply) is Refused:
            verdict = self._judge(claim, ending, reply.item)
            if isinstance(verdict, errors.SemelError):
                raise verdict
        event, detail = ending.event, ending.detail
        if event is not None and detail is not None:
            self.events.warn(event, claim.id, claim.attempt, detail)
        elif event is not None and self.events.listeners:
            self.events.emit(event, claim.id, claim.attempt)

    def _judge(self, claim: Claimed, ending: Ending, item: Item | None) -> PartVerdict | errors.SemelError:
        """What it means that a move was refused: it was made before, or the claim is lost."""
        move = ending.move
        if already_applied(item, claim.token, ending.change):
            return PartVerdict.SAME
        if move is not lifecycle.RENEW:  # a late renewal of finished work is no news
            self.events.warn(What.CLAIM_LOST, claim.id, claim.attempt, f"refused to {move.name}")
        return errors.ClaimLost(claim.key, claim.attempt, move.name)

    def _send_while_held(
        self,
        command: Write | Batch,
        lease: float,
        until: float | None,
        failed: errors.StoreError | None = None,
    ) -> Steps[Any]:
        """Send a write that ends a claim, and retry while the store is unavailable, up to the lease's end.

        The lease ends at `until`, on this process's clock; if that is not known, it is counted from here. The
        time is checked before each retry but the first one after a lost reply: nothing else tells whether
        the write was applied. So the whole takes what is left of the lease and two requests at most.
        """
        if until is None:
            until = lease + (yield Pause(0, self.clock))
        pause, unknown = min(FIRST_PAUSE, until), 0
        while True:
            if failed is None:
                try:
                    return (yield command)
                except RETRYABLE as error:
                    failed = error
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
            failed = None

    # Looking and waiting

    def get(self, key: str | Key) -> Steps[Record | None]:
        """The record of a key, or None."""
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        return self._record(id, found.item)

    def _look(self, id: str) -> Steps[tuple[Record | None, float]]:
        """Read the record of a qualified name, and the store's time."""
        found = yield from read(Get(LEDGER, id))
        return self._record(id, found.item), found.now

    def peek(self, id: str, fingerprint: str | None, decoder: Decoder) -> Steps[Outcome | None]:
        """What a claim would find on a qualified name that is done; None where it is not."""
        record, now = yield from self._look(id)
        if record is None or record.status is not Status.COMPLETED:
            return None
        return (yield from self._outcome(record, now, fingerprint, decoder))

    def result(self, record: Record, returns: Any = Any) -> Steps[Any]:
        """The result that a record holds; `MISSING` when only the fact was kept."""
        return self._result(record, decoder_for(returns))

    def wait(self, key: str | Key, timeout: Seconds = LEASE) -> Steps[Record | None]:
        """Wait until nobody is at work on the key, and give the record as it then is."""
        id = self.name(key)
        record, now = yield from self._look(id)
        if record is None or not is_running(record, now):
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
            pause = min(pause * 2, SLOWEST_LOOK)
            try:
                found = yield from read(Watch(LEDGER, id, look))
            except RETRYABLE:
                # Whoever waits has time: the store may be back at the next look.
                waited += look
                if waited >= timeout:
                    raise
                yield Pause(look, self.clock)
                continue
            waited += found.waited
            record = self._record(id, found.item)
            if record is None or not is_running(record, found.now) or waited >= timeout:
                return msgspec.structs.replace(found, waited=waited)
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
        if not isinstance(settlement, model.Happened | model.NotHappened | model.Abandoned):
            raise errors.InvalidOption(
                f"{settlement!r} settles nothing: give Happened(result), NotHappened() or Abandoned(reason)"
            )
        id = self.name(key)
        record, now = yield from self._look(id)
        terms = ClaimTerms(0, SETTLED if ttl is None else seconds(ttl), on_lapsed="hold")
        if record is not None and next_move(record, now, terms) is lifecycle.HOLD:
            yield from self._give_up(record, lifecycle.HOLD, terms)
        elif record is None or record.status is not Status.UNKNOWN:
            state = "absent" if record is None else record.status.value
            raise errors.Refused(key_of(id), f"is {state}; only what is UNKNOWN, or lapsed, is settled")
        span = kept_for(record, now) if ttl is None else terms.ttl
        claim = Claimed(id, record.token, record.attempt, 0, span, on_lapsed="hold")
        history = self.acted(record, "settled", now, by, why)
        move, _, _ = SETTLE[type(settlement)]
        ending = yield from self._settling(claim, settlement, move, {"history": history})
        # A holder that has renewed its lease since may have begun its work: that is for another resolution.
        expect = ending.move.expects(record.token) | {"lease_until": record.lease_until}
        yield from self._move(claim, ending, expect)

    def override(
        self, record: Record, settlement: Settlement, *, now: float, ttl: float, by: str, why: str
    ) -> PartPlan[None]:
        """An operator decides what became of a key, whatever its record said, if that is still as it was."""
        _, move, done = SETTLE[type(settlement)]
        claim = Claimed(record.id, record.token, record.attempt, 0, ttl, on_lapsed="hold")
        change = {"error": None, "history": self.acted(record, done, now, by, why)}
        ending = self._settling(claim, settlement, move, change)
        return self.part(claim, ending, move.expects(record.token, record.status))

    def acted(self, record: Record, how: str, now: float, by: str, why: str) -> str:
        """The history of a record once somebody has done this to it."""
        note = self.events.scrubbed(why, MAX_NOTE)
        act = model.HistoryEntry(record.attempt, by[:LONGEST_NAME] or self.worker(), now, now, how, note)
        if record.status in ENDED:
            return self.history(record, ENDED[record.status], record.updated_at, act)
        return self.history(record, *_unfinished(record, now), act)

    def _settling(self, claim: Claimed, settlement: Settlement, move: Move, change: Item) -> Steps[Ending]:
        event: What | None = None
        match settlement:
            case model.Happened(result):
                completion = yield from self.completion(claim, result)
                change, event = completion.change | change, completion.event
            case model.Abandoned(reason):
                change |= {"error": self._kept(claim.id, Failure("Abandoned", reason))[0]}
        return Ending(move, change, event)

    # Marking and forgetting

    def check_and_set(self, key: str | Key, ttl: Seconds = HOUR) -> Steps[bool]:
        """True the first time, False while that time is remembered: one atomic write."""
        [new] = yield from self.check_and_set_many([key], ttl)
        return new

    def _mark(self, ttl: float, token: str) -> Item:
        """Return a record that is done from the start."""
        done = {"status": "COMPLETED", "encoding": MARK.encoding}
        return new_record(ClaimTerms(0, ttl), token, self.worker()) | done

    def check_and_set_many(self, keys: Iterable[str | Key], ttl: Seconds = HOUR) -> Steps[Answers]:
        """True for each new key, in one round trip; of equal keys in the batch the first one counts."""
        token, names = self.token(), [self.name(key) for key in keys]
        mark = self._mark(lasting(ttl, self.horizon), token)
        new: dict[str, bool] = {}
        left: dict[str, Put] = {id: Put(LEDGER, id, mark, ABSENT) for id in names}
        while left:
            replies = yield from write_each(tuple(left.values()))
            for id, reply in zip(list(left), replies, strict=True):
                new[id] = _was_made(reply, token)
                if released := _released(reply):
                    left[id] = Put(LEDGER, id, mark, released)
                else:
                    del left[id]
        # Popping leaves the later ones of equal keys without an entry: they are duplicates.
        firsts = [new.pop(id, False) for id in names]
        for id, first in zip(names, firsts, strict=True):
            self.events.emit(What.CLAIMED if first else What.REPLAYED, id)
        return firsts

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
        id, token, span = self.name(key), self.token(), lasting(ttl, self.horizon)
        mark, terms = self._mark(span, token), ClaimTerms(0, span, on_lapsed="hold")
        while True:
            reply = yield from write(Put(LEDGER, id, mark, ABSENT))
            if _was_made(reply, token):
                return
            record = self._record(id, reply.item)
            if record is None:
                continue
            if record.status is Status.COMPLETED:
                return
            if is_running(record, reply.now):
                raise errors.InProgress(record.key, record.lease_until - reply.now, record.attempt)
            if record.status is Status.IN_PROGRESS:
                yield from self._give_up(record, lifecycle.HOLD, terms)
                continue
            change: Item = {"result": None, "encoding": MARK.encoding}
            change = apply_move(change, lifecycle.MARK, terms, self.prefix)
            if type((yield from write(Update(LEDGER, id, change, as_read(record))))) is Applied:
                return

    def drop_result(self, key: str | Key) -> Steps[bool]:
        """Let the result go and keep the fact, so that duplicates are still known; False if there is none."""
        record, now = yield from self._look(self.name(key))
        if record is None or record.status is not Status.COMPLETED:
            return False
        history = self.acted(record, "dropped", now, "", "")
        change: Item = {"result": None, "encoding": DROPPED.encoding, "updated_at": NOW, "history": history}
        reply = yield from write(Update(LEDGER, record.id, change, as_read(record)))
        if isinstance(reply, Refused) and not already_applied(reply.item, record.token, change):
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
            expect = {"token": token} if isinstance(token, str) else PRESENT
            reply = yield from write(Delete(LEDGER, id, expect))
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
        if status is not None and status not in set(Status):
            raise errors.InvalidOption(f"status={status!r}: it is one of {', '.join(Status)}")
        check_limit("limit", limit)
        equal = {} if status is None else {"status": str(status)}
        page: Page = yield Query(
            LEDGER, prefix=self.prefix + prefix, equal=equal, limit=limit, after=after, most=most
        )
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

        That is what is UNKNOWN, and what lapsed where the policy is to hold it or to ask.
        """
        return self._listed(DOUBTS, in_doubt, limit, after, reverse)

    def failures(
        self, *, reverse: bool = False, limit: int = 100, after: str | None = None
    ) -> Steps[Listing]:
        """What failed for good, oldest first or, in `reverse`, newest first; from an index, as doubts are."""
        return self._listed(FAILURES, lambda record, _: record.status is Status.FAILED, limit, after, reverse)

    def _listed(
        self,
        index: Index,
        wanted: Callable[[Record, float], bool],
        limit: int,
        after: str | None,
        reverse: bool,
    ) -> Steps[Listing]:
        """A page of the records that an index leads to; it may lag behind, so each is read."""
        check_limit("limit", limit)
        records, unreadable, looked = list[Record](), list[str](), 0
        while True:
            page: Page = yield Query(
                LEDGER,
                self.prefix,
                reverse=reverse,
                index=index.name,
                limit=limit - len(records),
                after=after,
            )
            for item in page.items:
                try:
                    record, now = yield from self._look(item[LEDGER.partition])
                except errors.RecordCorrupt as error:
                    unreadable.append(error.key)
                else:
                    records += [record] if record is not None and wanted(record, now) else []
            after, looked = page.after, looked + max(page.read, len(page.items))
            if after is None or len(records) >= limit:
                return Listing(tuple(records), after, tuple(unreadable), page.now, looked)

    # Records, as they are written and read

    def _found_by(self) -> Item:
        """Return the attributes by which the index of unresolved records finds one."""
        return {"doubt": self.prefix, "doubt_since": NOW}

    def _place(self, claim: Claimed, encoded: Encoded) -> Steps[Body]:
        """Report a result that its annotation does not describe, and place one that its row cannot hold.

        The effect has happened: at worst the fact is kept.
        """
        if encoded.misfit:
            self.events.warn(What.RESULT_MISTYPED, claim.id, claim.attempt, f"{MISTYPED}: {encoded.misfit}")
        body, problem = encoded.body, encoded.problem
        if encoded.oversize is not None:
            try:
                reference = yield Stash(claim.id, encoded.oversize)
            except Exception as error:  # noqa: BLE001 - an overflow may fail in any way
                body, problem = not_kept("overflow-failed"), f"{type(error).__name__}: {error}"
            else:
                if reference is not None:
                    return self.codec.overflowed(encoded.encoding, reference)
        if problem is not None:
            self.events.warn(What.RESULT_NOT_KEPT, claim.id, claim.attempt, problem)
        return body

    def _kept(self, id: str, error: BaseException | Failure) -> tuple[str, Failure]:
        """An error as its record keeps it, and as listeners are told."""
        failure = failure_of(error)
        message = self.events.scrubbed(failure.message, MAX_ERROR_TEXT)
        # A path, say, may hold half a character, which no JSON has.
        failure = msgspec.structs.replace(failure, message=message.encode(errors="replace").decode())
        # Its type stays readable: whoever looks on wants to know it, and it is nobody's.
        sealed = self.realm.sealing.text(failure.message, LEDGER.name, id, "error", steady=True)
        return msgspec.json.encode(msgspec.structs.replace(failure, message=sealed)).decode(), failure

    def _noted(self, id: str, change: Item, details: Details) -> Item:
        if details:
            check_details(details)
            if not self.clear_details:
                details = self.realm.sealing.object(details, LEDGER.name, id, "details", steady=True)
            change["details"] = details
        return change

    def _opened(self, record: Record) -> Record:
        """A record whose error and details read as they were given, or say why they cannot be read."""
        sealing, place = self.realm.sealing, (LEDGER.name, record.id)
        changes: Item = {}
        failure = record.failure if record.error is not None and SEALED in record.error else None
        if failure is not None:
            message = sealing.opened_text(failure.message, *place, "error")
            failure = msgspec.structs.replace(failure, message=message)
            changes["error"] = msgspec.json.encode(failure).decode()
        if record.history is not None and SEALED in record.history:
            changes["history"] = sealing.opened_text(record.history, *place, "history")
        if record.details is not None and not self.clear_details:
            try:
                changes["details"] = sealing.opened(record.details, *place, "details")
            except ValueError as error:
                changes["details"] = {"unreadable": str(error)}
        return msgspec.structs.replace(record, **changes) if changes else record

    def worker(self) -> str:
        """Return the name of this worker, as a record keeps it."""
        return worker_name(self._worker, self._task)

    def history(self, record: Record, how: str, ended: float, *acts: model.HistoryEntry) -> str:
        """What a record says of its past once the present attempt is past, and whatever was done then."""
        past = record.past
        # What was done by hand comes after the attempt that it ended.
        if not (past and past[-1].how in BY_HAND and past[-1].attempt == record.attempt):
            note = "" if record.failure is None else f"{record.failure.type}: {record.failure.message}"
            who, began = record.worker or "", record.began
            past = (*past, model.HistoryEntry(record.attempt, who, began, ended, how, note[:MAX_NOTE]))
        text = msgspec.json.encode((*past, *acts)[-MAX_HISTORY:]).decode()
        return self.realm.sealing.text(text, LEDGER.name, record.id, "history", steady=True)

    def _result(self, record: Record, decoder: Decoder) -> Steps[Any]:
        if record.result is None:
            return model.MISSING
        body = Body(record.result, record.encoding or "")
        try:
            reference = self.codec.reference(body)
            if reference is not None:
                data = yield Fetch(reference)
                if data is None:
                    return model.MISSING
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
            if record.version > model.RECORD_VERSION:
                raise errors.SchemaTooNew(record.version, model.RECORD_VERSION)
        except (msgspec.ValidationError, errors.SchemaTooNew) as error:
            self.events.warn(What.CORRUPT, id, detail=str(error))
            raise errors.RecordCorrupt(key_of(id), str(error)) from error
        kept = record.error is not None or record.details is not None or record.history is not None
        return self._opened(record) if kept else record


def next_move(record: Record, now: float, terms: ClaimTerms, fingerprint: str | None = None) -> Move | None:
    """The move that a claimant may make on a record it has found, or None."""
    if record.status is Status.COMPLETED or _differs(record, fingerprint):
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


def _attempted(command: Put | Update) -> Steps[Applied | Refused | None]:
    """Write if possible, and return the reply; a lease that stays behind ends by itself."""
    try:
        reply: Applied | Refused = yield command
    except errors.SemelError:
        return None
    return reply


def as_read(record: Record) -> Item:
    """Return what a write expects that was decided from a record: nobody has moved it or renewed it since."""
    expect: Item = {"token": record.token, "status": record.status.value}
    if record.status is Status.IN_PROGRESS:
        expect["lease_until"] = record.lease_until
    return expect


def held_as(claim: Claimed, move: Move, reply: Applied | Refused | None) -> Item | None:
    """Return what the holder's next write expects, if its record was marked as unresolved meanwhile."""
    item = reply.item if type(reply) is Refused else None
    if item is None or item.get("token") != claim.token:
        return None
    others = [status for status in move.start[1:] if status.value == item.get("status")]
    return move.expects(claim.token, others[0]) if others else None


def _released(reply: Applied | Refused) -> Item | None:
    """Return what the next write expects, if the record that refused one was released."""
    item = reply.item if type(reply) is Refused else None
    if item is None or item.get("status") != Status.RELEASED.value:
        return None
    return {"token": item["token"], "status": item["status"]}


def _differs(record: Record, fingerprint: str | None) -> bool:
    known = record.fingerprint is not None and fingerprint is not None
    return known and record.fingerprint != fingerprint


def failure_of(error: BaseException | Failure, kept_as: str = "") -> Failure:
    """An error as it is kept."""
    if isinstance(error, Failure):
        return error
    return Failure(type(error).__qualname__, errors.words_of(error), kept_as)


def new_record(
    terms: ClaimTerms, token: str, worker: str, fingerprint: str | None = None, subject: str | None = None
) -> Item:
    """A record at the beginning of its first attempt."""
    item: Item = {
        "status": "IN_PROGRESS",
        "token": token,
        "attempt": 1,
        "fingerprint": fingerprint,
        "created_at": NOW,
        "updated_at": NOW,
        "lease_until": After(terms.lease),
        "expires_at": After(terms.ttl),
        "version": model.RECORD_VERSION,
        "worker": worker,
    }
    if subject:
        item["subject"] = subject
    return item


def apply_move(change: Item, move: Move, claim: Claimed | ClaimTerms, prefix: str) -> Item:
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


def already_applied(item: Item | None, token: str, change: Item) -> bool:
    """Whether the record already is as the change would leave it: my write, whose answer was lost."""
    if item is None or item.get("token") != token:
        return False
    return all(
        item.get(name) == value
        for name, value in change.items()
        if type(value) is not After and name not in IGNORED_ON_RESEND
    )


def is_running(record: Record, now: float) -> bool:
    """Whether somebody is at work on it, and has not been silent for too long."""
    return record.status is Status.IN_PROGRESS and record.lease_until > now


def _was_made(reply: Applied | Refused, token: str) -> bool:
    """Return whether a write with this token was made, now or before."""
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
    lapsed = record.status is Status.IN_PROGRESS and record.lease_until <= now
    return record.status is Status.UNKNOWN or (lapsed and record.doubt_since is not None)


def _continues(item: Item, earlier: Item) -> bool:
    """Whether this is a later attempt in the same life of a record."""
    same_life = item.get("created_at") == earlier.get("created_at")
    return same_life and (item.get("attempt") or 0) > (earlier.get("attempt") or 0)
