"""The ledger: every rule about a key's life, as steps that any store can carry out.

Callers know these methods as `Ledger` and `AsyncLedger`, which drive them (see `facades`).
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

from semel import errors, lifecycle
from semel.codecs import Body, Codec, Decoder, Encoded, check_details, decoder_for, not_kept
from semel.commands import (
    ABSENT,
    NOW,
    PRESENT,
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
    resent,
    side_by_side,
    write,
    write_each,
)
from semel.events import Events, What
from semel.keys import Key, check, prefix
from semel.lifecycle import Move, Status
from semel.model import (
    MISSING,
    RECORD_VERSION,
    Abandoned,
    Busy,
    Claimed,
    Failed,
    Failure,
    Happened,
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
from semel.parts import Part, Plan, Refusals, Verdict
from semel.sealing import SEALED, Sealing
from semel.tables import DOUBTS, LEDGER

T = TypeVar("T")

Seconds: TypeAlias = float | timedelta
Answers: TypeAlias = list[bool]
Outcomes: TypeAlias = list[Outcome]
Details: TypeAlias = dict[str, Any] | None

LEASE = 30.0
# For retries and replays; an hour is enough where events are frequent and their retries quick.
DAY = 86400.0
HOUR = 3600.0

# A waiter looks again after the first figure, and then after twice as long each time, up to the second:
# quick work is noticed quickly, and slow work is not asked after ten times a second.
FIRST_LOOK = 0.02
SLOWEST_LOOK = 0.5
# What is left of a wait, or of a lease, may be less than any clock can tell.
SHORTEST_LOOK = 0.001

# A holder's write that the store did not take is sent again after the first figure, and then after twice as
# long each time, up to the second: a short outage costs little, and a store that comes back is not hurried.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0

# An error's message is kept for a person to read; it is no place for data.
MAX_ERROR_TEXT = 1000

MISTYPED = "the result is not what the return annotation says, and later calls are given plain JSON"

MARK = not_kept("mark")
DROPPED = not_kept("dropped")


# Randomness in stock: asking the system for every token takes longer than claiming a key in memory does.
_stock: deque[str] = deque()


def random_token() -> str:
    """A name for one attempt that nobody else has or can guess; never made from the time."""
    try:
        return _stock.popleft()
    except IndexError:
        first, *others = os.urandom(16 * 256).hex(" ", 16).split(" ")
        _stock.extend(others)
        return first


def forget_tokens() -> None:
    """Draw new randomness from now on: for every copy of a process, which must not have the same tokens."""
    _stock.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_tokens)


def seconds(span: Seconds) -> float:
    """A span of time as seconds; it must be more than none."""
    value = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise errors.InvalidOption(f"a span of time must be positive and finite, not {span!r}")
    return float(value)


def spans(lease: Seconds, ttl: Seconds, horizon: float = 0) -> tuple[float, float]:
    """A lease and a time to live that fit together."""
    held, kept = seconds(lease), lasting(ttl, horizon)
    if kept <= held:
        raise errors.InvalidOption(
            f"ttl ({kept:g} s) must be longer than lease ({held:g} s): a record outlives its lease"
        )
    return held, kept


def lasting(ttl: Seconds, horizon: float) -> float:
    """A time to live that is no shorter than the other side goes on retrying."""
    kept = seconds(ttl)
    if kept < horizon:
        raise errors.InvalidOption(
            f"ttl ({kept:g} s) is shorter than horizon ({horizon:g} s), for which the other side retries: "
            f"its last retries would run again. Use a ttl of at least {horizon:g}"
        )
    return kept


def doubt_span(span: Seconds | None, on_lapsed: OnLapsed, lease: float, horizon: float) -> float | None:
    """How long a doubt waits for somebody to settle it, if not for ever."""
    if span is None:
        return None
    if on_lapsed == "rerun":
        raise errors.InvalidOption(
            'doubt_ttl goes with on_lapsed="hold" or "resolve": else nothing is in doubt'
        )
    held = lasting(span, horizon)
    if held <= lease:
        raise errors.InvalidOption(
            f"doubt_ttl ({held:g} s) must be longer than lease ({lease:g} s), at whose end a doubt begins"
        )
    return held


def check_word(option: str, word: Any, words: Any) -> None:
    """Refuse a word that is not one of those an option knows."""
    if word not in get_args(words):
        raise errors.InvalidOption(f"{option}={word!r}: it is one of {', '.join(get_args(words))}")


def check_limit(max_attempts: int | None) -> None:
    """Refuse a limit that would allow no attempt at all."""
    if max_attempts is not None and max_attempts < 1:
        raise errors.InvalidOption(f"max_attempts must be at least 1, not {max_attempts}")


def failure_of(error: BaseException | Failure, kept_as: str = "") -> Failure:
    """An error as it is kept."""
    if isinstance(error, Failure):
        return error
    return Failure(type(error).__qualname__, errors.words_of(error), kept_as)


def no_subjects(_person: str) -> str:
    """What a ledger without a secret says to the name of a person."""
    raise errors.UsageError(
        "a person is named by a hash that nobody else can make, and for that the ledger needs a secret: "
        "connect(..., secret=b'...')"
    )


def nobody(_steps: Steps[None]) -> None:
    """Who takes the steps that an abandoned call has left, where nobody does: its lease ends by itself."""


Telling: TypeAlias = Callable[[Applied | None], None]


def _untold(_reply: Applied | None) -> None:
    """What is told of a move that is no news."""


class Terms(msgspec.Struct, frozen=True):
    """On what terms a key is claimed."""

    lease: float
    ttl: float
    fingerprint: str | None = None
    on_lapsed: OnLapsed = "rerun"
    max_attempts: int | None = None
    subject: str | None = None
    doubt_ttl: float | None = None
    """How long a doubt waits for somebody to settle it; None for ever."""


class Bid:
    """A claim in the making, for as long as its caller has not heard what came of it."""

    _put: Put | None = None
    _ttl = 0.0
    _lapsed = False

    def made(self, put: Put, ttl: float, lapsed: bool = False) -> Put:
        """The write that is to make it, which is about to be sent."""
        self._put, self._ttl, self._lapsed = put, ttl, lapsed
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
        *,
        env: str = "dev",
        scope: str = "",
        codec: Codec | None = None,
        events: Events | None = None,
        tokens: Callable[[], str] | None = None,
        horizon: Seconds | None = None,
        subjects: Callable[[str], str] = no_subjects,
        clock: Any = None,
        clear_details: bool = False,
        rescue: Callable[[Steps[None]], None] = nobody,
    ) -> None:
        self.prefix = prefix(env, scope)
        self.codec = codec or Codec()
        self.sealing = Sealing(self.codec.encryption)
        self.clear_details = clear_details
        """Details stand in attributes that others read too, and so they are not sealed."""
        self.events = events or Events()
        self.horizon = 0.0 if horizon is None else seconds(horizon)
        self.token = tokens or random_token
        self.subject = subjects
        self.clock = clock
        """Whose pauses are made; it is never read here."""
        self.rescue = rescue

    def name(self, key: str | Key) -> str:
        """The key's qualified name: environment, scope, key."""
        return self.prefix + check(key)

    # Claiming

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
        check_limit(max_attempts)
        held, kept = spans(lease, ttl, self.horizon)
        person = None if subject is None else self.subject(subject)
        doubts = doubt_span(doubt_ttl, on_lapsed, held, self.horizon)
        terms = Terms(held, kept, fingerprint, on_lapsed, max_attempts, person, doubts)
        bid = Bid()
        claiming = self.claim_on(self.name(key), terms, decoder_for(returns), bid)
        return (yield from self.guarded(claiming, bid))

    def claim_many(
        self,
        keys: Iterable[str | Key],
        *,
        lease: Seconds = LEASE,
        ttl: Seconds = DAY,
        on_lapsed: OnLapsed = "rerun",
        max_attempts: int | None = None,
        doubt_ttl: Seconds | None = None,
        returns: Any = Any,
    ) -> Steps[Outcomes]:
        """Claim several keys, in one round trip where none was used before; each outcome is its key's own.

        Those that were given back take one more for all of them. Where one of them cannot be read, none is
        claimed.
        """
        check_word("on_lapsed", on_lapsed, OnLapsed)
        check_limit(max_attempts)
        names = [self.name(key) for key in keys]
        if len(set(names)) < len(names):
            raise errors.UsageError("a key is claimed once in a batch: drop its duplicates first")
        if not names:
            return []
        held, kept = spans(lease, ttl, self.horizon)
        doubts = doubt_span(doubt_ttl, on_lapsed, held, self.horizon)
        terms = Terms(held, kept, None, on_lapsed, max_attempts, None, doubts)
        bids = [Bid() for _ in names]
        return (yield from self.guarded(self._claimed_many(names, terms, decoder_for(returns), bids), *bids))

    def _claimed_many(
        self, names: Sequence[str], terms: Terms, decoder: Decoder, bids: Sequence[Bid]
    ) -> Steps[Outcomes]:
        claiming = [self.claim_on(id, terms, decoder, bid) for id, bid in zip(names, bids, strict=True)]
        found = yield from side_by_side([_readably(each) for each in claiming])
        outcomes = [one for one in found if not isinstance(one, errors.SemelError)]
        if len(outcomes) < len(found):
            mine = [one for one in outcomes if isinstance(one, Claimed)]
            yield from self.release_many(mine, counted=False)
            raise next(one for one in found if isinstance(one, errors.SemelError))
        return outcomes

    def claim_on(
        self, id: str, terms: Terms, decoder: Decoder, bid: Bid, seen: Found | None = None
    ) -> Steps[Outcome]:
        """Claim a qualified name on checked terms, starting from what was `seen` there, if anything."""
        reply: Applied | Refused | None = None
        if seen is not None and seen.item is not None:
            reply = Refused(seen.now, seen.item)
        return self._claimed(id, terms, decoder, self.token(), reply, bid)

    def guarded(self, steps: Steps[T], *bids: Bid) -> Steps[T]:
        """These steps; where they are torn off, what was claimed by them is given back."""
        try:
            return (yield from steps)
        except UNINTERRUPTED:
            raise
        except GeneratorExit:
            for bid in bids:
                self.rescue(bid.withdrawn())
            raise
        except BaseException:
            for bid in bids:
                yield from bid.withdrawn()
            raise

    def _claimed(  # noqa: PLR0917 - they are one claim's
        self, id: str, terms: Terms, decoder: Decoder, token: str, reply: Applied | Refused | None, bid: Bid
    ) -> Steps[Outcome]:
        attempt, lapsed = 1, False
        while True:
            if reply is None:
                attempt, lapsed = 1, False
                put = Put(LEDGER, id, self._opening(terms, token), ABSENT)
                reply = yield from write(bid.made(put, terms.ttl))
            if not isinstance(reply, Refused):
                break
            record = self._record(id, reply.item)
            if record is None:
                reply = None
                continue
            if _owned(record, token):
                # It may be an earlier write of mine, which came through late.
                attempt, lapsed = record.attempt, lapsed and record.attempt == attempt
                break
            if record.token == token:
                # My claim was made, and settled by somebody before I heard of it. What I do next is another
                # attempt, and no write that was meant for the first may fit it.
                token = self.token()
            move = _next(record, reply.now, terms)
            if move is None:
                return (yield from self._outcome(record, reply.now, terms, decoder))
            if move.to is Status.IN_PROGRESS:
                attempt, lapsed = record.attempt + 1, move.lapsed
                item = self._opening(terms, token, attempt, record)
                put = Put(LEDGER, id, item, move.condition(record.token))
                reply = yield from write(bid.made(put, terms.ttl, lapsed))
            else:
                yield from self._give_up(record, move, terms)
                reply = None  # whoever made this move, what it left is read afresh
        lease, ttl, on_lapsed = terms.lease, terms.ttl, terms.on_lapsed
        return self._won(Claimed(id, token, attempt, lease, ttl, lapsed, on_lapsed, terms.doubt_ttl))

    def _opening(self, terms: Terms, token: str, attempt: int = 1, before: Record | None = None) -> Item:
        """A record at the beginning of an attempt; one that may come to be in doubt can be found by that."""
        item = opening(terms, token, attempt, before)
        if terms.on_lapsed != "rerun":
            item["doubt"] = self.prefix
            item["doubt_since"] = NOW
            item["expires_at"] = _end(terms.doubt_ttl)
        return item

    def abandon(self, claim: Claimed) -> Steps[None]:
        """The caller was interrupted at its work: end the lease if it can be, for the next one's policy."""
        move = lifecycle.LAPSE
        change = _move_on({"lease_until": NOW}, move, claim)
        yield from _attempted(Update(LEDGER, claim.id, change, move.condition(claim.token)))

    def _won(self, claim: Claimed) -> Claimed:
        if claim.lapsed:
            self.events.warn(What.TAKEN_OVER, claim.id, claim.attempt)
        else:
            self.events.emit(What.CLAIMED, claim.id, claim.attempt)
        return claim

    def _outcome(self, record: Record, now: float, terms: Terms, decoder: Decoder) -> Steps[Outcome]:
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

    def _give_up(self, record: Record, move: Move, terms: Terms) -> Steps[None]:
        """Hold a vanished attempt, or fail one that had every chance."""
        change = _move_on({}, move, terms)
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

    # What a holder does with its claim

    def completing(
        self, claim: Claimed, result: Any = None, details: Details = None, promised: Decoder | None = None
    ) -> Plan[None]:
        """The effect happened, or happens in the same write; keep what came of it, and what is noted of it.

        What is `promised` reads it later; a result that it cannot read stays plain JSON.
        """
        return lambda _mark: self._concluding(claim, lifecycle.COMPLETE, result, details, promised)

    def failing(self, claim: Claimed, error: BaseException | Failure, details: Details = None) -> Plan[None]:
        """It failed, and is to stay failed."""

        def plan(_mark: str) -> "Steps[Part[None]]":
            yield from ()
            failure = self._kept(error)
            change = self._noted(claim.id, {"error": self._sealed_text(claim.id, failure)}, details)
            return self._moving(claim, lifecycle.FAIL, change, partial(self._tell_failure, claim, failure))

        return plan

    def releasing(
        self, claim: Claimed, error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> Plan[None]:
        """It did not happen; let the next attempt run. This one counts, unless it was none at all."""

        def plan(_mark: str) -> "Steps[Part[None]]":
            yield from ()
            kept = None if error is None else self._kept(error)
            tell = partial(self._tell, What.RELEASED, claim)
            return self._moving(claim, lifecycle.RELEASE, self._given_back(claim, kept, counted), tell)

        return plan

    def complete(self, claim: Claimed, result: Any = None, *, details: Details = None) -> Steps[None]:
        """The effect happened; keep what came of it, and what is to be known about it besides."""
        return self.ended(claim, self.completing(claim, result, details))

    def fail(self, claim: Claimed, error: BaseException | Failure, *, details: Details = None) -> Steps[None]:
        """It failed, and is to stay failed."""
        return self.ended(claim, self.failing(claim, error, details))

    def release(
        self, claim: Claimed, error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> Steps[None]:
        """It did not happen; let the next attempt run. This one counts, unless it was none at all."""
        return self.ended(claim, self.releasing(claim, error, counted=counted))

    def ended(self, claim: Claimed, plan: Plan[None]) -> Steps[None]:
        """End a claim by itself, where the store is away for as long as the lease lasts."""
        part = yield from plan(claim.token)
        _judged(part, (yield from self._insist(part.writes[0], claim.lease)))

    def _given_back(self, claim: Claimed, kept: Failure | None, counted: bool) -> Item:
        change: Item = {"error": None if kept is None else self._sealed_text(claim.id, kept)}
        return change if counted else change | {"attempt": claim.attempt - 1}

    def complete_many(
        self, claims: Iterable[Claimed], result: Any = None, *, details: Details = None
    ) -> Steps[Answers]:
        """The effects of several claims happened, with one result for each; False where a claim was lost."""
        moves = [(claim, self._noted(claim.id, self._completion(claim, result), details)) for claim in claims]
        return self._move_many(moves, lifecycle.COMPLETE, What.COMPLETED)

    def release_many(
        self, claims: Iterable[Claimed], error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> Steps[Answers]:
        """None of them happened; let the next attempts run. False where a claim was lost."""
        kept = None if error is None else self._kept(error)
        moves = [(claim, self._given_back(claim, kept, counted)) for claim in claims]
        return self._move_many(moves, lifecycle.RELEASE, What.RELEASED)

    def _completion(self, claim: Claimed, result: Any) -> Item:
        encoded = self.codec.encode(result, claim.id)
        if encoded.problem is not None:
            raise errors.UsageError(f"a result that many claims share has to fit each row: {encoded.problem}")
        return {"result": encoded.body.data, "encoding": encoded.body.encoding}

    def _move_many(self, moves: list[tuple[Claimed, Item]], move: Move, what: What) -> Steps[Answers]:
        if not moves:
            return []
        updates = [
            Update(LEDGER, claim.id, _move_on(change, move, claim), move.condition(claim.token))
            for claim, change in moves
        ]
        many: Many = yield from self._insist(Batch(tuple(updates)), max(claim.lease for claim, _ in moves))
        answers = []
        for (claim, change), reply in zip(moves, many.replies, strict=True):
            made = type(reply) is Applied or _made(reply.item, claim.token, change)
            if made:
                tell = self.events.warn if what is What.HELD else self.events.emit
                tell(what, claim.id, claim.attempt)
            else:
                self.events.warn(What.CLAIM_LOST, claim.id, claim.attempt, f"refused to {move.name}")
            answers.append(made)
        return answers

    def renew(self, claim: Claimed) -> Steps[None]:
        """Still at work: the lease begins anew."""
        return self._move(claim, lifecycle.RENEW, {"lease_until": After(claim.lease)})

    def lapse(self, claim: Claimed) -> Steps[None]:
        """Interrupted: end the lease now, so that the next claimant's policy decides as after a crash."""
        return self._move(claim, lifecycle.LAPSE, {"lease_until": NOW})

    def doubt(self, claim: Claimed) -> Steps[None]:
        """The holder cannot tell whether the effect happened; somebody else has to."""
        tell = partial(self._tell_doubt, claim)
        return self._move(claim, lifecycle.DOUBT, self._found_by(claim), tell)

    def doubt_many(self, claims: Iterable[Claimed]) -> Steps[Answers]:
        """The holder of several claims cannot tell whether their effects happened; False for each lost."""
        moves = [(claim, self._found_by(claim)) for claim in claims]
        return self._move_many(moves, lifecycle.DOUBT, What.HELD)

    def _found_by(self, claim: Claimed) -> Item:
        """What a doubt is listed by; one that may come to be in doubt has it already."""
        return {"doubt": self.prefix, "doubt_since": NOW} if claim.on_lapsed == "rerun" else {}

    def _concluding(
        self,
        claim: Claimed,
        move: Move,
        result: Any,
        details: Details = None,
        promised: Decoder | None = None,
    ) -> Steps[Part[None]]:
        """What ends a claim with a result, which goes into the overflow where its row cannot hold it."""
        encoded = self.codec.encode(result, claim.id, promised)
        if encoded.misfit:
            self.events.warn(What.RESULT_MISTYPED, claim.id, claim.attempt, f"{MISTYPED}: {encoded.misfit}")
        body = encoded.body
        if encoded.problem is not None:
            body = yield from self._overflow(claim, encoded)
        change = self._noted(claim.id, {"result": body.data, "encoding": body.encoding}, details)
        return self._moving(claim, move, change, partial(self._tell, What.COMPLETED, claim))

    def _moving(self, claim: Claimed, move: Move, change: Item, tell: Telling = _untold) -> Part[None]:
        """A holder's move as a part of an atomic write."""
        _move_on(change, move, claim)
        write = Update(LEDGER, claim.id, change, move.condition(claim.token))
        return Part((write,), partial(self._judge, claim, move, change), tell, True)

    def _judge(
        self, claim: Claimed, move: Move, change: Item, refusals: Refusals
    ) -> Verdict | errors.SemelError:
        """What it means that a move was refused: it was made before, or the claim is lost."""
        item = None if refusals[0] is None else refusals[0].item
        if _made(item, claim.token, change):
            return Verdict.SAME
        if move is not lifecycle.RENEW:  # a late renewal of finished work is no news
            self.events.warn(What.CLAIM_LOST, claim.id, claim.attempt, f"refused to {move.name}")
        return errors.ClaimLost(claim.key, claim.attempt, move.name)

    def _move(self, claim: Claimed, move: Move, change: Item, tell: Telling = _untold) -> Steps[None]:
        """Make a holder's move by itself."""
        part = self._moving(claim, move, change, tell)
        _judged(part, (yield from write(part.writes[0])))

    def _insist(self, command: Write | Batch, lease: float) -> Steps[Any]:
        """Send a holder's write again while the store is away, for as long as a lease lasts.

        What it says has happened by then; to give it up at once would have it happen again.
        """
        pause, until = FIRST_PAUSE, 0.0
        while True:
            try:
                return (yield from resent(command))
            except AWAY as error:
                away = error
            now: float = yield Pause(pause, self.clock)
            until = until or now - pause + lease
            if now >= until:
                raise away
            pause = min(pause * 2, LONGEST_PAUSE, until - now)

    def _tell(self, what: What, claim: Claimed, _reply: Applied | None = None) -> None:
        self.events.emit(what, claim.id, claim.attempt)

    def _tell_doubt(self, claim: Claimed, _reply: Applied | None = None) -> None:
        self.events.warn(What.HELD, claim.id, claim.attempt)

    def _tell_failure(self, claim: Claimed, failure: Failure, _reply: Applied | None = None) -> None:
        """Tell that work has failed for good: with the error's words, where somebody scrubs them."""
        told = failure.type if self.events.scrub is None else f"{failure.type}: {failure.message}"
        self.events.warn(What.FAILED, claim.id, claim.attempt, told)

    # Looking and waiting

    def get(self, key: str | Key) -> Steps[Record | None]:
        """The record of a key, or None."""
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        return self._record(id, found.item)

    def peek(self, id: str, terms: Terms, decoder: Decoder) -> Steps[Outcome | None]:
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
        if record is None or not _running(record, found.now):
            return record
        found = yield from self.settled(id, seconds(timeout))
        record = self._record(id, found.item)
        if record is not None and _running(record, found.now):
            raise errors.InProgress(record.key, record.lease_until - found.now, record.attempt)
        return record

    def settled(self, id: str, timeout: float, lease_left: float = SLOWEST_LOOK) -> Steps[Found]:
        """Watch a qualified name until nobody holds it, or the time is up; what was seen last."""
        waited, pause = 0.0, FIRST_LOOK
        while True:
            look = max(min(pause, lease_left, timeout - waited), SHORTEST_LOOK)
            try:
                found = yield from read(Watch(LEDGER, id, look))
            except AWAY:
                # Whoever waits has time: the store may be back at the next look.
                if waited + look >= timeout:
                    raise
                yield Pause(look, self.clock)
                waited += look
                pause = min(pause * 2, SLOWEST_LOOK)
                continue
            waited += found.waited
            record = self._record(id, found.item)
            if record is None or not _running(record, found.now) or waited >= timeout:
                return msgspec.structs.replace(found, waited=waited)
            pause = min(pause * 2, SLOWEST_LOOK)
            lease_left = record.lease_until - found.now

    # Settling, marking, forgetting

    def resolve(self, key: str | Key, settlement: Settlement, *, ttl: Seconds = DAY) -> Steps[None]:
        """Settle what became of an attempt that vanished."""
        if not isinstance(settlement, Happened | NotHappened | Abandoned):
            raise errors.InvalidOption(
                f"{settlement!r} settles nothing: give Happened(result), NotHappened() or Abandoned(reason)"
            )
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        record = self._record(id, found.item)
        terms = Terms(0, seconds(ttl), on_lapsed="hold")
        if record is not None and _next(record, found.now, terms) is lifecycle.HOLD:
            yield from self._give_up(record, lifecycle.HOLD, terms)
        elif record is None or record.status is not Status.UNKNOWN:
            state = "absent" if record is None else record.status.value
            raise errors.Refused(
                id.split("/", 2)[2], f"is {state}; only what is UNKNOWN, or lapsed, is settled"
            )
        claim = Claimed(id, record.token, record.attempt, 0, terms.ttl, on_lapsed="hold")
        yield from self._settle(claim, settlement)

    def _settle(self, claim: Claimed, settlement: Settlement) -> Steps[None]:
        match settlement:
            case Happened(result):
                part = yield from self._concluding(claim, lifecycle.SETTLE_DONE, result)
                _judged(part, (yield from write(part.writes[0])))
            case NotHappened():
                yield from self._move(claim, lifecycle.SETTLE_UNDONE, {})
            case Abandoned(reason):
                text = self._kept_text(claim.id, Failure("Abandoned", reason))
                yield from self._move(claim, lifecycle.SETTLE_FAILED, {"error": text})

    def check_and_set(self, key: str | Key, ttl: Seconds = HOUR) -> Steps[bool]:
        """True the first time, False while that time is remembered: one atomic write."""
        token, id = self.token(), self.name(key)
        reply = yield from write(_mark(id, lasting(ttl, self.horizon), token))
        return self._seen(id, _new(reply, token))

    def _seen(self, id: str, new: bool) -> bool:
        self.events.emit(What.CLAIMED if new else What.REPLAYED, id)
        return new

    def check_and_set_many(self, keys: Iterable[str | Key], ttl: Seconds = HOUR) -> Steps[Answers]:
        """The same for many keys in one round trip; of equal keys in the batch the first one counts."""
        token = self.token()
        names = [self.name(key) for key in keys]
        span = lasting(ttl, self.horizon)
        item = _marked(span, token)
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
        mark = _mark(self.name(key), lasting(ttl, self.horizon), token)
        reply = yield from write(mark)
        while not _new(reply, token):
            record = self._record(mark.key, reply.item)
            if record is None:
                reply = yield from write(mark)
            elif record.status is Status.COMPLETED:
                return
            elif _running(record, reply.now):
                raise errors.InProgress(record.key, record.lease_until - reply.now, record.attempt)
            elif record.status is Status.IN_PROGRESS:
                yield from self._give_up(record, lifecycle.HOLD, Terms(0, seconds(ttl), on_lapsed="hold"))
                reply = yield from write(mark)
            else:
                move = lifecycle.MARK
                settled = Claimed(mark.key, record.token, record.attempt, 0, seconds(ttl), on_lapsed="hold")
                change = _move_on({"result": None, "encoding": MARK.encoding}, move, settled)
                reply = yield from write(Update(LEDGER, mark.key, change, move.condition(record.token)))

    def drop_result(self, key: str | Key) -> Steps[bool]:
        """Let the result go and keep the fact, so that duplicates are still known; False if there is none."""
        record = yield from self.get(key)
        if record is None or record.status is not Status.COMPLETED:
            return False
        change: Item = {"result": None, "encoding": DROPPED.encoding, "updated_at": NOW}
        condition = lifecycle.DROP.condition(record.token)
        reply = yield from write(Update(LEDGER, record.id, change, condition))
        if isinstance(reply, Refused) and not _made(reply.item, record.token, change):
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

    def list(
        self, *, status: Status | str | None = None, limit: int = 100, after: str | None = None
    ) -> Steps[Listing]:
        """A page of this environment's and scope's records, those of one status if asked."""
        where: Condition = Begins(LEDGER.partition, self.prefix)
        if status is not None:
            if status not in set(Status):
                raise errors.InvalidOption(f"status={status!r}: it is one of {', '.join(Status)}")
            where = AllOf((where, Equals("status", str(status))))
        if limit < 1:
            raise errors.InvalidOption(f"limit must be at least 1, not {limit}")
        page: Page = yield Query(LEDGER, where=where, limit=limit, after=after)
        records, unreadable = [], []
        for item in page.items:
            try:
                records.append(self._readable(item[LEDGER.partition], item))
            except errors.RecordCorrupt as error:
                unreadable.append(error.key)
        return Listing(tuple(records), page.after, tuple(unreadable), page.now)

    def doubts(self, *, limit: int = 100, after: str | None = None) -> Steps[Listing]:
        """What waits for somebody to find out what became of it, oldest first.

        That is what is UNKNOWN, and what lapsed where the policy is to hold it or to ask. It comes from an
        index; on a table that was there first and has none, all of it is looked through, a page at a time.
        """
        if limit < 1:
            raise errors.InvalidOption(f"limit must be at least 1, not {limit}")
        records: list[Record] = []
        unreadable: list[str] = []
        while True:
            left = limit - len(records)
            page: Page = yield Query(LEDGER, self.prefix, index=DOUBTS.name, limit=left, after=after)
            for item in page.items:
                found = yield from read(Get(LEDGER, item[LEDGER.partition]))
                try:
                    record = self._record(item[LEDGER.partition], found.item)
                except errors.RecordCorrupt as error:
                    unreadable.append(error.key)
                    continue
                if record is not None and _in_doubt(record, found.now):
                    records.append(record)
            after = page.after
            if after is None or len(records) >= limit:
                return Listing(tuple(records), after, tuple(unreadable), page.now)

    # Bodies

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
        message = self.sealing.text(failure.message, LEDGER.name, id, "error", steady=True)
        return msgspec.json.encode(msgspec.structs.replace(failure, message=message)).decode()

    def _noted(self, id: str, change: Item, details: Details) -> Item:
        if details:
            check_details(details)
            change["details"] = details
            if not self.clear_details:
                change["details"] = self.sealing.object(details, LEDGER.name, id, "details", steady=True)
        return change

    def _opened(self, record: Record) -> Record:
        """A record whose error and details read as they were given, or say why they cannot be read."""
        failure = record.failure if record.error is not None and SEALED in record.error else None
        if failure is not None:
            message = self.sealing.opened_text(failure.message, LEDGER.name, record.id, "error")
            failure = msgspec.structs.replace(failure, message=message)
            record = msgspec.structs.replace(record, error=msgspec.json.encode(failure).decode())
        if record.details is not None and not self.clear_details:
            details = self._opened_details(record.id, record.details)
            record = msgspec.structs.replace(record, details=details)
        return record

    def _opened_details(self, id: str, kept: Item) -> Item:
        try:
            return self.sealing.opened(kept, LEDGER.name, id, "details")  # type: ignore[no-any-return]
        except ValueError as error:
            return {"unreadable": str(error)}

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
            raise errors.RecordCorrupt(id.split("/", 2)[2], str(error)) from error
        return record if record.error is None and record.details is None else self._opened(record)


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


def opening(terms: Terms, token: str, attempt: int = 1, before: Record | None = None) -> Item:
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
    }
    if subject := terms.subject if before is None else before.subject or terms.subject:
        item["subject"] = subject
    return item


def _mark(id: str, ttl: float, token: str) -> Put:
    """Write a record that is done from the start, unless one is there that may be done or doing."""
    return Put(LEDGER, id, _marked(ttl, token), MARKABLE)


def _marked(ttl: float, token: str) -> Item:
    return opening(Terms(0, ttl), token) | {"status": "COMPLETED", "encoding": MARK.encoding}


MARKABLE = AnyOf((ABSENT, Equals("status", "RELEASED")))


def _new(reply: Applied | Refused, token: str) -> bool:
    return type(reply) is Applied or (reply.item is not None and reply.item.get("token") == token)


def _move_on(change: Item, move: Move, claim: Claimed | Terms) -> Item:
    """Add what every move writes. Each sets the end of the record's life anew, so it outlives the lease.

    What may come to be in doubt does not end as other records do: by then somebody has to have settled it.
    """
    change["status"] = move.status
    change["updated_at"] = NOW
    reruns = claim.on_lapsed == "rerun"
    if move.to is Status.UNKNOWN or (move.to is Status.IN_PROGRESS and not reruns):
        change["expires_at"] = _end(claim.doubt_ttl)
        return change
    change["expires_at"] = After(claim.ttl)
    if not reruns:
        change["doubt"] = change["doubt_since"] = None
    return change


# The store may be back in a moment.
AWAY = (errors.StoreUnavailable, errors.StoreThrottled, errors.StoreOutcomeUnknown)


def _judged(part: Part[None], reply: Applied | Refused) -> None:
    """Tell what was made by itself, now or before; raise what its refusal means where it was not."""
    verdict = part.judge((reply,)) if isinstance(reply, Refused) else None
    if isinstance(verdict, errors.SemelError):
        raise verdict
    part.result(None)


def _end(span: float | None) -> After | None:
    """When a doubt ends that waits so long; None where it waits for ever."""
    return None if span is None else After(span)


def _made(item: Item | None, token: str, change: Item) -> bool:
    """Whether the record already is as the change would leave it: my write, whose answer was lost."""
    if item is None or item.get("token") != token:
        return False
    return all(
        item.get(name) == value
        for name, value in change.items()
        if type(value) is not After and name not in BESIDE
    )


# When a record ends, and what it is found by, do not tell what became of it.
BESIDE = frozenset({"expires_at", "doubt", "doubt_since"})


def _owned(record: Record, token: str) -> bool:
    """Whether my own claim is what stands in my way: it was made, and its answer was lost."""
    return record.token == token and record.status is Status.IN_PROGRESS


def _running(record: Record, now: float) -> bool:
    return record.status is Status.IN_PROGRESS and record.lease_until > now


def _in_doubt(record: Record, now: float) -> bool:
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


def _differs(record: Record, terms: Terms) -> bool:
    known = record.fingerprint is not None and terms.fingerprint is not None
    return known and record.fingerprint != terms.fingerprint


def _next(record: Record, now: float, terms: Terms) -> Move | None:
    """The move that a claimant may make on a record it has found, or None."""
    if record.status is Status.COMPLETED or _differs(record, terms):
        return None
    spent = terms.max_attempts is not None and record.attempt >= terms.max_attempts
    if record.status is Status.RELEASED:
        return lifecycle.EXHAUST if spent else lifecycle.RECLAIM
    if record.status is not Status.IN_PROGRESS or _running(record, now):
        return None
    if terms.on_lapsed == "hold":
        return lifecycle.HOLD
    # Where the other side can be asked, it is asked even when the attempts are spent.
    return lifecycle.EXHAUST_LAPSED if spent and terms.on_lapsed == "rerun" else lifecycle.TAKE_OVER
