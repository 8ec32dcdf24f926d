"""A simulated world: workers, their luck, and a scheduler that lets one of them take a step at a time.

The steps are the real ones, `Flow.steps`, `beat` and the ledger's own; so is the store in memory. What is not
real is the network between them, the time, and the work: `scheduler` says what happens next, `network` what
befalls a command, `workshop` what comes of the work, and this who is there. `model` says what must hold.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from semel import errors
from semel.codecs import decoder_for
from semel.commands import Raised, Returned, Steps
from semel.flow import Flow, Service
from semel.heartbeat import Heart
from semel.model import MISSING, Abandoned, Happened, NotHappened, Settlement
from semel.policy import Policy
from semel.testing.simulation.errand import Errand
from semel.testing.simulation.network import SOON, Actor
from semel.testing.simulation.workshop import WORK, Workshop

OPERATIONS = ("forget", "resolve", "resolve", "mark", "check", "drop", "wait")

DECODER = decoder_for(Any)


class Worker:
    """A process: it makes its calls one after the other."""

    __slots__ = ("draining", "flow", "left", "name", "policy")

    def __init__(self, name: str, calls: int, policy: Policy) -> None:
        self.name = name
        self.left = calls
        self.policy = policy
        self.draining = False
        self.flow: Flow

    def is_draining(self) -> bool:
        """Whether it was asked to stop."""
        return self.draining


class World(Workshop):
    """Everything there is, for one seed."""

    def __init__(self, seed: int, listener: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, listener)
        self._heart = Heart(self.store, self.clock)
        self._errands = 0

    # Who is there

    def _populate(self) -> None:
        plan, dice = self.plan, self.dice
        for number in range(plan.workers):
            worker = Worker(f"w{number + 1}", dice.upto(1, plan.calls), plan.worker_policy(dice))
            service = Service(self.ledger, self.store, self.clock, self._heart, None, worker.is_draining)
            worker.flow = Flow(service, worker.policy, DECODER)
            self.later(dice.between(0, 0.5) * self.lease, self._next_call, worker)
        for _ in range(plan.operations):
            self.later(dice.between(0.1, 6 * self.lease), self._operate, dice.among(OPERATIONS))
        for _ in range(plan.jumps):
            self.later(dice.between(0.1, 4 * self.lease), self._jump)

    def _next_call(self, worker: Worker) -> None:
        if worker.left == 0:
            return
        worker.left -= 1
        dice = self.dice
        if dice.chance(self.plan.drains):
            self.count("drained")
            # It stops somewhere in the middle of its call, and begins none after it.
            worker.left = 0
            self.later(dice.between(0, self.lease), setattr, worker, "draining", True)
        payload = "p" if dice.chance(0.85) else "q"
        errand = self._errand(worker.name, "call", dice.among(self.ids), worker.policy, payload)
        # As `once` does: what a glance can tell needs no steps.
        before = worker.flow.replay(errand.id, payload) if dice.chance(0.3) else MISSING
        if before is not MISSING:
            steps: Steps[Any] = _glanced(before)
        else:
            steps = worker.flow.steps(errand.id, payload, WORK)

        def next_one() -> None:
            self.later(dice.between(0, 0.5) * self.lease, self._next_call, worker)

        if before is not MISSING:
            self.count("glances")
        self._start(Actor(errand, steps, next_one))

    def _errand(self, who: str, kind: Any, id: str, policy: Policy, payload: str | None = None) -> Errand:
        self._errands += 1
        errand = Errand(f"{who}#{self._errands}", kind, id, policy, payload)
        errand.started = self.model.step
        return errand

    def _operate(self, kind: str, id: str | None = None) -> Actor:
        """Somebody uses the ledger directly."""
        policy = self.plan.policy("wait", self.lease)
        errand = self._errand("op", kind, id or self.dice.among(self.ids), policy)
        key = errand.id.rpartition("/")[2]
        actor = Actor(errand, getattr(self, f"_{kind}")(errand, key))
        self._start(actor)
        return actor

    def _forget(self, errand: Errand, key: str) -> Steps[Any]:
        return self.ledger.forget(key)

    def _resolve(self, errand: Errand, key: str) -> Steps[Any]:
        value = self.value()
        errand.settlement = msgspec.json.encode(value)
        settlements: tuple[Settlement, ...] = (Happened(value), NotHappened(), Abandoned("no use"))
        return self.ledger.resolve(key, self.dice.among(settlements))

    def _mark(self, errand: Errand, key: str) -> Steps[Any]:
        return self.ledger.mark_processed(key)

    def _check(self, errand: Errand, key: str) -> Steps[Any]:
        if self.dice.chance(0.5):
            errand.ids = tuple(self.ids)
            return self.ledger.check_and_set_many(self.plan.keys)
        return self._check_one(key)

    def _check_one(self, key: str) -> Steps[Any]:
        new = yield from self.ledger.check_and_set(key)
        return [new]

    def _drop(self, errand: Errand, key: str) -> Steps[Any]:
        return self.ledger.drop_result(key)

    def _wait(self, errand: Errand, key: str) -> Steps[Any]:
        return self.ledger.wait(key, self.lease)

    def _jump(self) -> None:
        seconds = self.dice.between(0.3, 4) * self.lease
        if self.dice.chance(0.5):
            seconds = -seconds
        else:
            self.model.jumped = True
        self.note("clock", f"jumps {seconds:+.3f}")
        self.count("clock set forward" if seconds > 0 else "clock set back")
        self.clock.jump(seconds)

    def _start(self, actor: Actor) -> None:
        self.note(actor.errand.name, f"begins {actor.errand.kind}", actor.errand.id.rpartition("/")[2])
        self.count(f"{actor.errand.kind}s")
        self.resume(actor, None)

    # The last round: nothing goes wrong any more

    def _last_round(self) -> None:
        """Several callers for every key, all patient: each gets an answer, and at most one of them runs."""
        for id in self.ids:
            first = self._ask(id, self.dice.upto(2, 3))
            if any(isinstance(_error(errand), errors.OutcomeUnknown) for errand in first):
                self._operate("resolve", id)
                self.until_quiet()
                self._ask(id, 1)

    def _ask(self, id: str, callers: int) -> list[Errand]:
        life = self.model.current(id)
        payload = life.fingerprint if life is not None and life.fingerprint else "p"
        policy = self.plan.policy("wait", 1000.0)
        service = Service(self.ledger, self.store, self.clock, self._heart, None, lambda: False)
        flow = Flow(service, policy, DECODER)
        errands = [self._errand("last", "call", id, policy, payload) for _ in range(callers)]
        for errand in errands:
            errand.final = True
            actor = Actor(errand, flow.steps(id, payload, WORK))
            self.later(SOON * self.random(), self._start, actor)
        self.until_quiet()
        self._check_last(errands)
        return errands

    def _check_last(self, errands: list[Errand]) -> None:
        # Where a record's time was up meanwhile, the callers belong to different lives.
        if len(self.model.during(errands[0])) <= 1:
            if sum(errand.begun is not None for errand in errands) > 1:
                self.fail("progress", "of several waiters more than one ran")
            answers = [_answer(errand) for errand in errands]
            if answers.count(answers[0]) != len(answers):
                self.fail("same answer", f"the last callers got {answers}")
        for errand in errands:
            error = _error(errand)
            if error is not None and not isinstance(error, LAST_ERRORS):
                self.fail("progress", f"with nothing in the way, {errand.name} ended with {error!r}")


def _glanced(value: Any) -> Steps[Returned]:
    """The steps of a call that was answered by a glance: none."""
    yield from ()
    return Returned(value)


LAST_ERRORS = (errors.FailedBefore, errors.OutcomeUnknown, errors.ResultNotKept)


def _error(errand: Errand) -> BaseException | None:
    outcome = errand.outcome
    if outcome is None:
        return AssertionError("no end at all")
    return outcome.error if type(outcome) is Raised else None


def _answer(errand: Errand) -> str:
    error = _error(errand)
    return repr(errand.outcome.value) if error is None else type(error).__name__
