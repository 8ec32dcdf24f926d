"""The main path: claim the key, do the work, store the result.

`Flow.steps` is the same for `def` and `async def`, for the decorator and the `with` block, and in the
simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from semel import errors, model
from semel.core.clock import Clock
from semel.core.codecs import ANYTHING, PLAIN, Decoder
from semel.core.commands import After, Call, Raised, Returned, Steps, Update, write
from semel.core.drive import ErrorListener, Glancing, Store, adrive, drive
from semel.core.events import What
from semel.core.functions import FINISHED, failed_before, refuse_lazy
from semel.core.ledger import UNINTERRUPTED, Ending, LedgerSteps, PendingClaim, failure_of
from semel.core.lifecycle import Status
from semel.core.policy import INFINITE, Policy
from semel.core.running import CURRENT, Run, refuse_reentry, step_of_another_attempt, subject_of_step
from semel.core.runtime import Concealed
from semel.model import MISSING, RECORD_VERSION, Busy, Claimed, Failure, Outcome
from semel.tables import LEDGER

if TYPE_CHECKING:
    from semel.core.clock import SignalSafeEvent
    from semel.core.heartbeat import Heartbeats


class Skipped(msgspec.Struct, frozen=True):
    """The type of `SKIPPED`."""

    def __bool__(self) -> bool:
        return False


SKIPPED: Final = Skipped()
"""What a call gives that found its key busy, where the policy is to skip."""


class Work(msgspec.Struct, frozen=True):
    """What is to be done under a key: `begin` is given a run, and this function or its resolver."""

    begin: Callable[[Run, Any], Any]
    function: Callable[..., Any] | None = None


class PendingCall(PendingClaim, kw_only=True):
    """What a call has to lose: the claim that it makes, and then the work under it."""

    flow: Flow
    run: Run | None = None

    def end(self) -> None:
        """The work is over, if it has begun."""
        if self.run is not None:
            self.flow.end(self.run)

    def withdrawn(self) -> Steps[None]:
        """Take the claim back, or leave it to the policy of the next one where the work had begun."""
        self.end()
        if self.run is None or not self.run.begun:
            return (yield from super().withdrawn())
        self.run.interrupted = True
        yield from self.flow.context.ledger.abandon(self.run.claim)


class FlowContext(Concealed, msgspec.Struct, frozen=True):
    """What every flow needs."""

    ledger: LedgerSteps
    store: Store
    clock: Clock
    heartbeats: Heartbeats
    secret: bytes | None
    stopping: SignalSafeEvent
    """Set once no new work may begin."""

    def about(self, name: str) -> FlowContext:
        """What a flow needs whose events name the function that they are about."""
        return msgspec.structs.replace(self, ledger=self.ledger.about(name))


class Flow:
    """One protected piece of work: its policy, and the steps of a call."""

    def __init__(self, context: FlowContext, policy: Policy, decoder: Decoder) -> None:
        self.context = context
        self.policy = policy
        self.promise(decoder)
        self._ledger = context.ledger
        self._task = context.ledger.events.name
        self.on_error: ErrorListener = context.ledger.events.failed
        self._monotonic = context.clock.monotonic
        self._stopping = context.stopping
        self._heartbeats, self._beats = context.heartbeats, policy.heartbeat
        self.replay: Callable[[str, str | None], Any] = _replayer(self)

    def promise(self, decoder: Decoder) -> None:
        """What results are read by from now on, and held against as soon as they are there."""
        self.decoder = decoder
        self.promised: Decoder | None = None if decoder is ANYTHING else decoder

    def run(self, work: Work, id: str, fingerprint: str | None, subject: str | None) -> Returned | Raised:
        """Run the steps of a call to their end."""
        steps = self.steps(id, fingerprint, work, subject)
        return drive(steps, self.context.store, self.on_error)

    async def arun(
        self, work: Work, id: str, fingerprint: str | None, subject: str | None
    ) -> Returned | Raised:
        """Run the steps of a call to their end, and await its work."""
        return await adrive(self.steps(id, fingerprint, work, subject), self.context.store, self.on_error)

    def steps(  # noqa: C901, PLR0912, PLR0915 - a frame for each part would be resumed at every command
        self, id: str, fingerprint: str | None, work: Work, subject: str | None = None
    ) -> Steps[Returned | Raised]:
        """Claim the key, do the work, store its result; or return the outcome of an earlier call.

        An interruption, at whatever line, withdraws what this call has claimed.
        """
        if CURRENT.get() is not None:
            refuse_reentry(id)
            subject = subject or subject_of_step(id)
        pending = PendingCall(fingerprint, subject, flow=self)
        try:
            if self._stopping.happened:
                return (yield from self._answer_only(id, fingerprint))
            sent = self._monotonic()
            try:
                outcome = yield from self._ledger.claim_on(id, self.policy, self.decoder, pending)
                if type(outcome) is Busy and self.policy.on_busy == "wait":
                    outcome, sent = yield from self._claim_next(id, outcome, pending)
            except (errors.StoreUnavailable, errors.StoreThrottled) as error:
                if self.policy.on_store_error == "closed":
                    raise
                return (yield from self._run_open(id, work, error))
            if type(outcome) is not Claimed:
                if CURRENT.get() is not None:
                    yield from self._remember(outcome)
                return self._answer(outcome)
            run = pending.run = Run(outcome, sent, self.context.clock)
            run.subject, run.task = subject, self._task
            obstacle = self._obstacle(run)
            if outcome.lapsed and self.policy.resolver is not None and not obstacle:
                settled = yield from self._resolve(run, work)
                if settled is not None:
                    return settled
                obstacle = self._obstacle(run)
            if obstacle:
                return (yield from self._give_back(run, Raised(obstacle, begun=False)))
            done = yield Call(partial(work.begin, run, work.function))
            if type(done) is Returned and type(done.value) not in FINISHED:
                done = self._finished(run, done)
            if type(done) is Raised:
                return (yield from self._give_back(run, done))
            return (yield from self._settle(run, done))
        except UNINTERRUPTED:
            raise
        except BaseException as error:
            yield from self._ledger.withdraw(error, pending)
            raise

    def _answer_only(self, id: str, fingerprint: str | None) -> Steps[Returned | Raised]:
        """Return the outcome of an earlier call, and begin no new work."""
        before = yield from self._ledger.peek(id, fingerprint, self.decoder)
        return self._answer(before) if before else Raised(errors.ShuttingDown(NO_NEW_WORK), begun=False)

    def _finished(self, run: Run, done: Returned | Raised) -> Returned | Raised:
        """Return what the work came to; a lazy result is an error, because its work has not run."""
        if type(done) is Returned and not (run.kept or run.promised):
            try:
                refuse_lazy(done.value, self._task or f"the work on {run.key!r}")
            except errors.LazyResult as error:
                return Raised(error)
        return done

    def _obstacle(self, run: Run) -> errors.SemelError | None:
        """Return why a claimed piece of work does not begin after all."""
        if run.lost:
            return errors.ClaimLost(run.key, run.attempt, "begin")
        return errors.ShuttingDown(NO_NEW_WORK) if self._stopping.happened else None

    def _claim_next(self, id: str, busy: Busy, pending: PendingCall) -> Steps[tuple[Outcome, float]]:
        """Claim the key when the one before has finished, or vanished; and when that was sent."""
        outcome: Outcome = busy
        patience, sent = self.policy.patience, 0.0
        while isinstance(outcome, Busy) and patience > 0:
            seen = yield from self._ledger.settled(id, patience, outcome.retry_after)
            patience -= seen.waited
            sent = self._monotonic()
            outcome = yield from self._ledger.claim_on(id, self.policy, self.decoder, pending, seen)
        return outcome, sent

    def _run_open(self, id: str, work: Work, error: errors.StoreError) -> Steps[Returned | Raised]:
        """The store is down, and the caller said beforehand that the work matters more than doing it once."""
        self._ledger.events.warn(What.RAN_OPEN, id, detail=f"{type(error).__name__}: {error}")
        run = Run(Claimed(id, "", 0, INFINITE, INFINITE), 0, self.context.clock)
        return self._finished(run, (yield Call(partial(work.begin, run, work.function))))

    def _answer(self, outcome: Outcome) -> Returned | Raised:
        """Return the answer of a call whose work does not run."""
        error: errors.SemelError
        match outcome:
            case model.Replay(record, result) if result is not MISSING:
                return Returned(result, record)
            case Busy() if self.policy.on_busy == "skip":
                return Returned(SKIPPED)
            case model.Replay(record):
                error = errors.ResultNotKept(record.key, (record.encoding or "").removeprefix("none:"))
            case Busy(record, retry_after):
                error = errors.InProgress(record.key, retry_after, record.attempt)
            case model.Failed(record, failure):
                kind = self.policy.kind_of(failure.kept_as)
                error = failed_before(kind, record.key, failure.type, failure.message, record.attempt)
            case model.Mismatch(record):
                error = errors.PayloadChanged(record.key)
            case model.Unknown(record):
                error = errors.OutcomeUnknown(record.key, record.attempt)
            case Claimed():
                raise AssertionError("a claim is no answer")
        return Raised(error, begun=False)

    def _remember(self, outcome: Outcome) -> Steps[None]:
        """A step is remembered as long as its work, whose own end is put off by every attempt at it."""
        if isinstance(outcome, model.Replay | model.Failed) and step_of_another_attempt(outcome.record.id):
            record, change = outcome.record, {"expires_at": After(self.policy.ttl)}
            yield from write(Update(LEDGER, record.id, change, {"token": record.token}))

    def _settle(self, run: Run, done: Returned) -> Steps[Returned | Raised]:
        """Store the result, unless a transaction of the work's own has completed its claim."""
        if run.kept or run.promised:
            return Returned(run.result)  # what that keeps is what every later call gives
        claim = run.claim
        try:
            ending = yield from self._ledger.completion(claim, done.value, run.details, self.promised)
            yield from self._ledger.end(claim, ending, run.deadline)
        except errors.StoreError as error:
            error.add_note(f"the work on {claim.key!r} is done, but the ledger could not be told")
            return Raised(error)
        except errors.ClaimLost as error:
            return Raised(error)
        except GeneratorExit:
            raise
        except BaseException as error:
            # As where a task is cancelled: what came of the work is kept, and the interruption goes on.
            yield from self._reported(self._complete_now(run, done.value), error)
            raise
        return done

    def _complete_now(self, run: Run, result: Any) -> Steps[None]:
        """Store the result, and wait for no store that is unavailable."""
        ending = yield from self._ledger.completion(run.claim, result, run.details, self.promised)
        yield from self._ledger.end(run.claim, ending, until=0.0)

    def _reported(self, steps: Steps[None], error: BaseException) -> Steps[None]:
        """Tell the ledger of an error; that it cannot be told matters less than the error itself."""
        try:
            yield from steps
        except errors.SemelError as problem:
            error.add_note(f"and the ledger could not be told: {problem}")

    def _give_back(self, run: Run, done: Raised) -> Steps[Raised]:
        """Keep the error, let the next attempt run, or leave it to its policy what to do."""
        if run.kept:
            return done
        if isinstance(done.error, errors.NotBegun) and not run.begun:
            done = Raised(done.error, begun=False)
        self.end(run)  # once more: it may have been interrupted there
        ending = self._ending(run, done)
        if ending is None:
            run.interrupted = True
            yield from self._reported(self._ledger.lapse(run.claim), done.error)
            return done
        yield from self._reported(self._ledger.end(run.claim, ending, run.deadline), done.error)
        return Raised(done.error, final=True) if ending.move.to is Status.FAILED else done

    def _ending(self, run: Run, done: Raised) -> Ending | None:
        """Return how a claim ends whose work raised this; None if nobody can tell whether it happened."""
        ledger, claim, error = self._ledger, run.claim, done.error
        if not done.begun:  # an earlier attempt may have had its effect
            return None if claim.lapsed else ledger.releasing(claim, counted=False)
        if isinstance(error, errors.Later):
            return ledger.releasing(claim, error, counted=False)
        lost = isinstance(error, errors.ClaimLost) and error.key == claim.key
        word, kept_as = self.policy.fate_of(error, claim.attempt)
        if lost or not isinstance(error, Exception) or word == "doubt":
            return None
        if word == "keep":
            return ledger.failure(claim, failure_of(error, kept_as), run.details)
        return ledger.releasing(claim, error)

    def _resolve(self, run: Run, work: Work) -> Steps[Returned | Raised | None]:
        """Ask the other side what became of the attempt that vanished; None when it is to run now."""
        claim, ledger = run.claim, self._ledger
        answered = self._finished(run, (yield Call(partial(work.begin, run, self.policy.resolver))))
        if type(answered) is Returned and not isinstance(answered.value, SETTLING):
            nonsense = f"a resolver gave {answered.value!r}; it must give {SETTLEMENTS}"
            answered = Raised(errors.InvalidOption(nonsense))
        if isinstance(answered, Raised):
            # Nobody is wiser than before: the next claimant may ask again at once.
            yield from self._reported(ledger.lapse(claim), answered.error)
            return answered
        match answered.value:
            case model.Happened(result):
                return (yield from self._settle(run, Returned(result)))
            case model.Undecided():
                yield from ledger.doubt(claim)
                return Raised(errors.OutcomeUnknown(claim.key, claim.attempt))
            case model.Abandoned(reason):
                failure = Failure("Abandoned", reason)
            case model.NotHappened():
                limit = self.policy.max_attempts
                if limit is None or claim.attempt <= limit:
                    return None
                failure = Failure("AttemptsExhausted", f"given up after {limit} attempts")
        yield from ledger.fail(claim, failure)
        return Raised(errors.FailedBefore(claim.key, failure.type, failure.message, claim.attempt))

    # Around the work: it is the running attempt, and its lease is kept alive.

    def attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run, function: Any) -> Any:
        """Do sync work as this attempt."""
        try:
            self.begin(run)
            return function(*args, **kwargs)
        finally:
            self.end(run)

    def begin(self, run: Run, *, in_loop: bool = False) -> None:
        """The work begins; a resolver's may have been over before."""
        run.outer = CURRENT.get()
        run.over = False
        CURRENT.set(run)
        if self._beats and run.claim.attempt:  # it is protected
            heartbeats = self._heartbeats.loops.here() if in_loop else self._heartbeats
            run.heartbeat = heartbeats.start(run, self._ledger)
        run.begun = True

    def end(self, run: Run) -> None:
        """The work is over."""
        run.over = True  # before the renewals stop: one that is under way may put the run back
        if CURRENT.get() is run:
            CURRENT.set(run.outer)
        self._heartbeats.stop(run)

    async def aattempt(self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run, function: Any) -> Any:
        """Do async work as this attempt; a lost lease cancels it. A resolver need not be async."""
        self.begin(run, in_loop=True)
        error: BaseException | None = None
        try:
            value = function(*args, **kwargs)
            return await value if hasattr(value, "__await__") else value
        except BaseException as raised:
            error = raised
            raise
        finally:
            if lost := self.aend(run, error):
                raise lost from error

    def aend(self, run: Run, error: BaseException | None) -> errors.ClaimLost | None:
        """Async work is over; what to raise instead where it was cancelled for a lost claim."""
        run.over = True
        CURRENT.set(run.outer)
        if run.heartbeat is None:
            return None
        run.heartbeat.stop()
        cancelled = type(error).__name__ == "CancelledError" and run.heartbeat.claim_lost()
        return errors.ClaimLost(run.key, run.attempt, "go on with") if cancelled else None


def _replayer(flow: Flow) -> Callable[[str, str | None], Any]:
    """What gives the result of work that is done, where the store can tell at a glance; else `MISSING`.

    It is the short cut of `Flow.steps` for the most common answer, and decides nothing else: what it passes
    over, the steps see.
    """
    store = flow.context.store
    if not hasattr(store, "glance"):
        return lambda _id, _fingerprint: MISSING
    glance = cast("Glancing", store).glance(LEDGER, ("fingerprint", "result"), REPLAYABLE)
    events = flow.context.ledger.events
    emit, listeners = events.emit, events.listeners

    def replay(id: str, fingerprint: str | None) -> Any:
        try:
            seen = glance(id)
        except errors.SemelError:  # the steps meet it too, and say it properly
            return MISSING
        if seen is None:
            return MISSING
        known, result = seen
        if fingerprint != known and fingerprint is not None and known is not None:
            return MISSING
        try:
            value = flow.decoder.decode(result)
        except Exception:  # noqa: BLE001 - a class's own checks may raise anything, and do so in the steps too
            return MISSING
        if listeners:
            emit(What.REPLAYED, id)
        return value

    return replay


REPLAYABLE: dict[str, str | int] = {"status": "COMPLETED", "encoding": PLAIN, "version": RECORD_VERSION}


SETTLING = (model.Happened, model.NotHappened, model.Abandoned, model.Undecided)
SETTLEMENTS = "Happened(result), NotHappened(), Abandoned(reason) or Undecided()"
NO_NEW_WORK = "no new work is begun"
