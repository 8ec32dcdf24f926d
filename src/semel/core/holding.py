"""What the holder of a claim does with it: complete, fail, release, renew, or doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from semel import errors
from semel.core import lifecycle
from semel.core.codecs import Codec, Decoder
from semel.core.commands import (
    NOW,
    TRIES,
    After,
    Applied,
    Batch,
    Item,
    Many,
    Pause,
    Refused,
    Steps,
    Update,
    Write,
    write,
)
from semel.core.events import What
from semel.core.lazy import refuse_lazy
from semel.core.lifecycle import Move
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict, part_of
from semel.core.realm import Realm
from semel.core.records import Details, RecordSteps, moved_on, was_made
from semel.model import Claimed, Failure
from semel.tables import LEDGER

Answers: TypeAlias = list[bool]

# A write that the store did not take is retried after the first figure, and then after twice as long each
# time, up to the second: a short outage costs little, and a recovering store is not flooded.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0

# Errors worth retrying: the store may recover.
RETRYABLE = (errors.StoreUnavailable, errors.StoreThrottled, errors.StoreOutcomeUnknown)

MISTYPED = "the result is not what the return annotation says, and later calls are given plain JSON"

Notify: TypeAlias = Callable[[Applied | None], None]


def _no_event(_reply: Applied | None) -> None:
    """A move that is no news."""


class HolderSteps(RecordSteps):
    """The moves of a holder, each conditional on the token of its claim."""

    def __init__(
        self,
        realm: Realm,
        codec: Codec | None = None,
        *,
        clock: Any = None,
        clear_details: bool = False,
    ) -> None:
        super().__init__(realm, codec, clear_details=clear_details)
        self.clock = clock
        """Whose pauses are made; it is never read here."""

    def completing(
        self, claim: Claimed, result: Any = None, details: Details = None, promised: Decoder | None = None
    ) -> PartPlan[None]:
        """The effect happened, or happens in the same write; keep what came of it, and what is noted of it.

        What is `promised` reads it later; a result that it cannot read stays plain JSON.
        """
        return lambda _mark: self._concluding(claim, lifecycle.COMPLETE, result, details, promised)

    def failing(
        self, claim: Claimed, error: BaseException | Failure, details: Details = None
    ) -> PartPlan[None]:
        """It failed, and is to stay failed."""
        failure = self._kept(error)
        change = self._noted(claim.id, {"error": self._sealed_text(claim.id, failure)}, details)
        return self._moving(claim, lifecycle.FAIL, change, partial(self._warn_of_failure, claim, failure))

    def releasing(
        self, claim: Claimed, error: BaseException | Failure | None = None, *, counted: bool = True
    ) -> PartPlan[None]:
        """It did not happen; let the next attempt run. This one counts, unless it was none at all."""
        kept = None if error is None else self._kept(error)
        notify = partial(self._emit, What.RELEASED, claim)
        return self._moving(claim, lifecycle.RELEASE, self._given_back(claim, kept, counted), notify)

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

    def ended(self, claim: Claimed, plan: PartPlan[None], until: float | None = None) -> Steps[None]:
        """End a claim by itself; retry while the store is unavailable, up to the end of the lease."""
        part = yield from part_of(plan, claim.token)
        judged(part, (yield from self._send_while_held(part.writes[0], claim.lease, until)))

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

    def renew(self, claim: Claimed) -> Steps[None]:
        """Still at work: the lease begins anew."""
        return self._move(claim, lifecycle.RENEW, {"lease_until": After(claim.lease)})

    def lapse(self, claim: Claimed) -> Steps[None]:
        """Interrupted: end the lease now, so that the next claimant's policy decides as after a crash."""
        return self._move(claim, lifecycle.LAPSE, {"lease_until": NOW})

    def doubt(self, claim: Claimed) -> Steps[None]:
        """The holder cannot tell whether the effect happened; somebody else has to."""
        notify = partial(self._warn_of_doubt, claim)
        return self._move(claim, lifecycle.DOUBT, self._found_by(), notify)

    def doubt_many(self, claims: Iterable[Claimed]) -> Steps[Answers]:
        """The holder of several claims cannot tell whether their effects happened; False for each lost."""
        moves = [(claim, self._found_by()) for claim in claims]
        return self._move_many(moves, lifecycle.DOUBT, What.HELD)

    def _found_by(self) -> Item:
        """What a doubt is listed by; a claim that was made before there was such a list has none yet."""
        return {"doubt": self.prefix, "doubt_since": NOW}

    def _concluding(
        self,
        claim: Claimed,
        move: Move,
        result: Any,
        details: Details = None,
        promised: Decoder | None = None,
        *,
        beside: Item | None = None,
    ) -> Steps[Part[None]]:
        """What ends a claim with a result, which goes into the overflow where its row cannot hold it."""
        refuse_lazy(result, f"the work on {claim.key!r}")
        encoded = self.codec.encode(result, claim.id, promised)
        if encoded.misfit:
            self.events.warn(What.RESULT_MISTYPED, claim.id, claim.attempt, f"{MISTYPED}: {encoded.misfit}")
        body = encoded.body
        if encoded.problem is not None:
            body = yield from self._overflow(claim, encoded)
        change: Item = {"result": body.data, "encoding": body.encoding} | (beside or {})
        change = self._noted(claim.id, change, details)
        return self._moving(claim, move, change, partial(self._emit, What.COMPLETED, claim))

    def _moving(self, claim: Claimed, move: Move, change: Item, notify: Notify = _no_event) -> Part[None]:
        """A holder's move as a part of an atomic write."""
        moved_on(change, move, claim, self.prefix)
        write = Update(LEDGER, claim.id, change, move.condition(claim.token))
        return Part((write,), partial(self._judge, claim, move, change), notify, True)

    def _judge(
        self, claim: Claimed, move: Move, change: Item, refusals: PartRefusals
    ) -> PartVerdict | errors.SemelError:
        """What it means that a move was refused: it was made before, or the claim is lost."""
        item = None if refusals[0] is None else refusals[0].item
        if was_made(item, claim.token, change):
            return PartVerdict.SAME
        if move is not lifecycle.RENEW:  # a late renewal of finished work is no news
            self.events.warn(What.CLAIM_LOST, claim.id, claim.attempt, f"refused to {move.name}")
        return errors.ClaimLost(claim.key, claim.attempt, move.name)

    def _move(self, claim: Claimed, move: Move, change: Item, notify: Notify = _no_event) -> Steps[None]:
        """Make a holder's move by itself."""
        part = self._moving(claim, move, change, notify)
        judged(part, (yield from write(part.writes[0])))

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


def judged(part: Part[None], reply: Applied | Refused) -> None:
    """Tell what was made by itself, now or before; raise what its refusal means where it was not."""
    verdict = part.judge((reply,)) if isinstance(reply, Refused) else None
    if isinstance(verdict, errors.SemelError):
        raise verdict
    part.result(None)
