"""The main path: claim the key, do the work, store the result.

`Flow.steps` is the same for `def` and `async def`, for the decorator and the `with` block, and in the
simulation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from semel import errors
from semel.core.clock import Clock
from semel.core.codecs import ANYTHING, PLAIN, Decoder
from semel.core.commands import After, Call, Pause, Raised, Returned, Steps, Update, write
from semel.core.drive import ErrorListener, Glancing, Store, adrive, advance, attempted
from semel.core.events import What
from semel.core.functions import describe_lazy, refuse_lazy
from semel.core.ledger import UNINTERRUPTED, LedgerSteps, PendingClaim, failure_of
from semel.core.policy import Policy
from semel.core.running import (
    CURRENT,
    Run,
    refuse_reentry,
    step_of_another_attempt,
    subject_of_step,
    unprotected,
)
from semel.core.runtime import Concealed
from semel.model import (
    MISSING,
    RECORD_VERSION,
    Abandoned,
    Busy,
    Claimed,
    Failed,
    Failure,
    Happened,
    Mismatch,
    NotHappened,
    Outcome,
    Replay,
    Undecided,
    Unknown,
)
from semel.tables import LEDGER

if TYPE_CHECKING:
    from semel.core.heartbeat import Heartbeats, TaskHeartbeat
    from semel.core.threads import SignalSafeEvent


class Skipped(msgspec.Struct, frozen=True):
    """The type of `SKIPPED`."""

    def __bool__(self) -> bool:
        return False


SKIPPED: Final = Skipped()
"""What a call gives that found its key busy, where the policy is to skip."""


class Work(msgspec.Struct, frozen=True):
    """What is to be done under a key, and how: `begin` makes of a run and a function the piece of work."""

    begin: Callable[..., Any]
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    def call(self, run: Run, function: Callable[..., Any] | None) -> Call:
        """Return the command that does it, or asks its resolver."""
        return Call(functools.partial(self.begin, run, function, self.args, self.kwargs))


class PendingCall(PendingClaim):
    """What a call has to lose: the claim that it makes, and then the work under it."""

    flow: Flow
    run: Run | None = None

    def end(self) -> None:
        """The work is over, if it has begun."""
        if self.run is not None:
            self.flow.end(self.run)

    def withdrawn(self) -> Steps[None]:
        """Take the claim back, or leave it to the policy of the next one where the work had begun."""
        run = self.run
        self.end()
        if run is None or not run.begun:
            return (yield from super().withdrawn())
        run.interrupted = True
        yield from self.flow.context.ledger.abandon(run.claim)


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

    def run(  # noqa: PLR0917 - a value made of them would take a fiftieth of a call
        self,
        id: str,
        fingerprint: str | None,
        subject: str | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Returned | Raised:
        """Claim the key, do the work and keep what came of it; or give what came of it before."""
        work = Work(self.attempt, function, args, kwargs)
        steps = self.steps(id, fingerprint, work, subject)
        done: Returned | Raised = advance(steps, self.context.store, attempted, on_error=self.on_error)
        return done

    async def arun(  # noqa: PLR0917
        self,
        id: str,
        fingerprint: str | None,
        subject: str | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Returned | Raised:
        """Claim the key, await the work and keep what came of it; or give what came of it before."""
        work = Work(self.aattempt, function, args, kwargs)
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
        pending = PendingCall(fingerprint, subject)
        pending.flow = self
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
            if outcome.lapsed and self.policy.resolver is not None and not self._stopped(run):
                settled = yield from self._resolve(run, work)
                if settled is not None:
                    return settled
            if self._stopped(run):
                return (yield from self._settle(run, Raised(self._obstacle(run), begun=False)))
            done = yield work.call(run, work.function)
            if type(done) is Returned and describe_lazy(type(done.value)):  # type: ignore[arg-type]  # it is hashable
                done = self._finished(run, done)
            return (yield from self._settle(run, done))
        except UNINTERRUPTED:
            raise
        except BaseException as error:
            yield from self._ledger.withdraw(error, pending)
            raise

    def _answer_only(self, id: str, fingerprint: str | None) -> Steps[Returned | Raised]:
        """Return the outcome of an earlier call, and begin no new work."""
        before = yield from self._ledger.peek(id, fingerprint, self.decoder)
        return self._answer(before) if before else _refused(errors.ShuttingDown("no new work is begun"))

    def _finished(self, run: Run, done: Returned | Raised) -> Returned | Raised:
        """Return what the work came to; a lazy result is an error, because its work has not run."""
        if type(done) is Returned and not (run.kept or run.promised):
            try:
                refuse_lazy(done.value, self._task or f"the work on {run.key!r}")
            except errors.LazyResult as error:
                return Raised(error)
        return done

    def _stopped(self, run: Run) -> bool:
        return self._stopping.happened or run.lost

    def _obstacle(self, run: Run) -> Exception:
        """Why a claimed piece of work does not begin after all."""
        if run.lost:
            return errors.ClaimLost(run.key, run.attempt, "begin")
        return errors.ShuttingDown("no new work is begun")

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
        run = Run(unprotected(id), 0, self.context.clock)
        return self._finished(run, (yield work.call(run, work.function)))

    def _answer(self, outcome: Outcome) -> Returned | Raised:
        """What a call gives that did not get to run."""
        if isinstance(outcome, Replay) and outcome.result is not MISSING:
            return Returned(outcome.result, outcome.record)
        match outcome:
            case Replay(record):
                reason = (record.encoding or "").removeprefix("none:")
                return _refused(errors.ResultNotKept(record.key, reason))
            case Busy(record, retry_after):
                if self.policy.on_busy == "skip":
                    return Returned(SKIPPED)
                return _refused(errors.InProgress(record.key, retry_after, record.attempt))
            case Failed(record, failure):
                from semel.core.functions import failed_before

                kind = self.policy.kind_of(failure.kept_as)
                return _refused(
                    failed_before(kind, record.key, failure.type, failure.message, record.attempt)
                )
            case Mismatch(record):
                return _refused(errors.PayloadChanged(record.key))
            case Unknown(record):
                return _refused(errors.OutcomeUnknown(record.key, record.attempt))
            case Claimed():
                raise AssertionError("a claim is no answer")

    def _remember(self, outcome: Outcome) -> Steps[None]:
        """A step is remembered as long as its work, whose own end is put off by every attempt at it."""
        if isinstance(outcome, Replay | Failed) and step_of_another_attempt(outcome.record.id):
            record, change = outcome.record, {"expires_at": After(self.policy.ttl)}
            yield from write(Update(LEDGER, record.id, change, {"token": record.token}))

    def _settle(self, run: Run, done: Returned | Raised) -> Steps[Returned | Raised]:
        """Write down what came of the work, unless a transaction of its own has completed it."""
        claim = run.claim
        if isinstance(done, Returned):
            if run.kept or run.promised:
                return Returned(run.result)  # what that keeps is what every later call gives
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
                yield from self._reported(_until_pause(self._completed(run, done.value)), error)
                raise
            return done
        if run.kept:
            return done
        if isinstance(done.error, errors.NotBegun) and not run.begun:
            done = Raised(done.error, begun=False)
        final = done.begun and not _deferred(done) and not self._doubtful(claim, done.error)
        final = final and self.policy.is_final(done.error, claim.attempt)
        yield from self._reported(self._give_back(run, done, final), done.error)
        return Raised(done.error, final=True) if final else done

    def _completed(self, run: Run, result: Any) -> Steps[None]:
        """Keep the result, and hold it against what the function promises to give."""
        ending = yield from self._ledger.completion(run.claim, result, run.details, self.promised)
        yield from self._ledger.end(run.claim, ending, run.deadline)

    def _reported(self, steps: Steps[None], error: BaseException) -> Steps[None]:
        """Tell the ledger of an error; that it cannot be told matters less than the error itself."""
        try:
            yield from steps
        except errors.SemelError as problem:
            error.add_note(f"and the ledger could not be told: {problem}")

    def _doubtful(self, claim: Claimed, error: BaseException) -> bool:
        """Whether nobody can tell if work that raised this had its effect."""
        return _interrupted(claim, error) or self.policy.doubts(error)

    def _give_back(self, run: Run, done: Raised, final: bool) -> Steps[None]:
        """Keep the error, or let the next attempt run."""
        ledger, claim, error = self._ledger, run.claim, done.error
        self.end(run)  # once more: it may have been interrupted there
        if not done.begun and not claim.lapsed:
            ending = ledger.releasing(claim, counted=False)
        elif _deferred(done):
            ending = ledger.releasing(claim, error, counted=False)
        elif not done.begun or self._doubtful(claim, error):
            # Whether it happened, or an earlier attempt of it did, is in doubt.
            run.interrupted = True
            return (yield from ledger.lapse(claim))
        elif final:
            failure = failure_of(error, self.policy.kept_as(error) or "")
            ending = ledger.failure(claim, failure, run.details)
        else:
            ending = ledger.releasing(claim, error)
        yield from ledger.end(claim, ending, run.deadline)

    def _resolve(self, run: Run, work: Work) -> Steps[Returned | Raised | None]:
        """Ask the other side what became of the attempt that vanished; None when it is to run now."""
        claim = run.claim
        answered = self._finished(run, (yield work.call(run, self.policy.resolver)))
        if isinstance(answered, Raised):
            # Nobody is wiser than before: the next claimant may ask again at once.
            yield from self._reported(self._ledger.lapse(claim), answered.error)
            return answered
        match answered.value:
            case Happened(result):
                return (yield from self._settle(run, Returned(result)))
            case NotHappened():
                return (yield from self._exhausted(claim))
            case Abandoned(reason):
                return (yield from self._fail(claim, Failure("Abandoned", reason)))
            case Undecided():
                yield from self._ledger.doubt(claim)
                return Raised(errors.OutcomeUnknown(claim.key, claim.attempt))
        nonsense = errors.InvalidOption(f"a resolver gave {answered.value!r}; it must give {SETTLEMENTS}")
        yield from self._reported(self._ledger.lapse(claim), nonsense)
        return Raised(nonsense)

    def _exhausted(self, claim: Claimed) -> Steps[Raised | None]:
        """Fail what did not happen in as many attempts as the limit allows; None when there is one left."""
        limit = self.policy.max_attempts
        if limit is None or claim.attempt <= limit:
            return None
        return (
            yield from self._fail(claim, Failure("AttemptsExhausted", f"given up after {limit} attempts"))
        )

    def _fail(self, claim: Claimed, failure: Failure) -> Steps[Raised]:
        yield from self._ledger.fail(claim, failure)
        return Raised(errors.FailedBefore(claim.key, failure.type, failure.message, claim.attempt))

    # Around the work: it is the running attempt, and its lease is kept alive.

    def attempt(self, run: Run, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do sync work as this attempt."""
        try:
            self.begin(run)
            return function(*args, **kwargs)
        finally:
            self.end(run)

    def begin(self, run: Run) -> None:
        """The work begins; a resolver's may have been over before."""
        run.outer = CURRENT.get()
        run.over = False
        CURRENT.set(run)
        if self._beats and run.claim.attempt:  # it is protected
            self._heartbeats.start(run, self._ledger)
        run.begun = True

    def end(self, run: Run) -> None:
        """The work is over."""
        run.over = True  # before the renewals stop: one that is under way may put the run back
        if CURRENT.get() is run:
            CURRENT.set(run.outer)
        self._heartbeats.stop(run)

    async def aattempt(self, run: Run, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do async work as this attempt; a lost lease cancels it. A resolver need not be async."""
        heartbeat = self.abegin(run)
        error: BaseException | None = None
        try:
            value = function(*args, **kwargs)
            return await value if hasattr(value, "__await__") else value
        except BaseException as raised:
            error = raised
            raise
        finally:
            lost = self.aend(run, heartbeat, error)
            if lost is not None:
                raise lost from error

    def abegin(self, run: Run) -> TaskHeartbeat | None:
        """Async work begins; a resolver's may have been over before."""
        run.outer = CURRENT.get()
        run.over = False
        CURRENT.set(run)
        heartbeat = None
        if self._beats and run.claim.attempt:  # it is protected
            heartbeat = self._heartbeats.loops.here().start(run, self._ledger)
        run.begun = True
        return heartbeat

    def aend(
        self, run: Run, heartbeat: TaskHeartbeat | None, error: BaseException | None
    ) -> errors.ClaimLost | None:
        """Async work is over; what to raise instead where it was cancelled for a lost claim."""
        run.over = True
        CURRENT.set(run.outer)
        if heartbeat is None:
            return None
        heartbeat.stop()
        if type(error).__name__ == "CancelledError" and heartbeat.claim_lost():
            return errors.ClaimLost(run.key, run.attempt, "go on with")
        return None


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


def _refused(error: errors.SemelError) -> Raised:
    return Raised(error, begun=False)


def _until_pause(steps: Steps[None]) -> Steps[None]:
    """Run these steps up to their first pause that takes time."""
    try:
        command = next(steps)
        while type(command) is not Pause or not command.seconds:
            try:
                reply = yield command
            except errors.SemelError as error:
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration:
        return


def _deferred(done: Raised) -> bool:
    """Whether the work has said that it is not its turn, and that it has done nothing."""
    return done.begun and isinstance(done.error, errors.Later)


def _interrupted(claim: Claimed, error: BaseException) -> bool:
    """Whether the work was stopped from outside, or stopped itself because its lease was gone."""
    if isinstance(error, errors.ClaimLost):
        return error.key == claim.key
    return not isinstance(error, Exception)


SETTLEMENTS = "Happened(result), NotHappened(), Abandoned(reason) or Undecided()"
