"""A simulated world: workers, their luck, and a scheduler that lets one of them take a step at a time.

The steps are the real ones, `Flow.steps`, `beat` and the ledger's own; so is the store in memory. What is not
real is the network between them, the time, and the work: `scheduler` says what happens next, `network` what
befalls a command, `work` what comes of the work, and this who is there. `model` says what must hold.
"""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from semel import errors
from semel.core.clock import SignalSafeEvent
from semel.core.codecs import decoder_for
from semel.core.commands import Raised, Returned, Steps
from semel.core.flow import Flow, FlowContext
from semel.core.heartbeat import Heartbeats
from semel.core.policy import Policy
from semel.model import MISSING, Abandoned, Happened, NotHappened, Settlement
from semel.testing.simulation.network import SOON, SimulatedProcess
from semel.testing.simulation.operation import SimulatedOperation
from semel.testing.simulation.work import WORK, SimulatedWork

OPERATIONS = ("forget", "resolve", "resolve", "mark", "check", "drop", "wait")

DECODER = decoder_for(Any)


class SimulatedWorker(msgspec.Struct, eq=False):
    """A process: it makes its calls one after the other."""

    name: str
    left: int
    """How many calls it has still to make."""
    policy: Policy
    stopping: SignalSafeEvent = msgspec.field(default_factory=SignalSafeEvent)
    """It was asked to stop."""


class World(SimulatedWork):
    """Everything there is, for one seed."""

    def __init__(self, seed: int, listener: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, listener)
        self._heartbeats = Heartbeats(self.store, self.clock)
        self._operations = itertools.count(1)

    # Who is there

    def _populate(self) -> None:
        settings, rng = self.settings, self.rng
        for number in range(settings.workers):
            self._add_worker(f"w{number + 1}")
        for _ in range(settings.operations):
            self.later(rng.between(0.1, 6 * self.lease), self._operate, rng.among(OPERATIONS))
        for _ in range(settings.jumps):
            self.later(rng.between(0.1, 4 * self.lease), self._jump)

    def _add_worker(self, name: str) -> None:
        calls = self.rng.upto(1, self.settings.calls)
        worker = SimulatedWorker(name, calls, self.settings.worker_policy(self.rng))
        flow = self._flow(worker.policy, worker.stopping)
        self.later(self.rng.between(0, 0.5) * self.lease, self._next_call, worker, flow)

    def _flow(self, policy: Policy, stopping: SignalSafeEvent) -> Flow:
        context = FlowContext(self.ledger, self.store, self.clock, self._heartbeats, None, stopping)
        return Flow(context, policy, DECODER)

    def _next_call(self, worker: SimulatedWorker, flow: Flow) -> None:
        if worker.left == 0:
            return
        worker.left -= 1
        rng = self.rng
        if rng.chance(self.settings.drains):
            self.count("drained")
            # It stops somewhere in the middle of its call, and begins none after it.
            worker.left = 0
            self.later(rng.between(0, self.lease), worker.stopping.set)
        payload = "p" if rng.chance(0.85) else "q"
        operation = self._operation(worker.name, "call", rng.among(self.ids), worker.policy, payload)
        # As `once` does: what a glance can tell needs no steps.
        before = flow.replay(operation.id, payload) if rng.chance(0.3) else MISSING
        if before is MISSING:
            steps: Steps[Any] = flow.steps(operation.id, payload, WORK)
        else:
            self.count("glances")
            steps = _glanced(before)

        def next_one() -> None:
            self.later(rng.between(0, 0.5) * self.lease, self._next_call, worker, flow)

        self._start(SimulatedProcess(operation, steps, next_one))

    def _operation(
        self, who: str, kind: Any, id: str, policy: Policy, payload: str | None = None
    ) -> SimulatedOperation:
        name = f"{who}#{next(self._operations)}"
        return SimulatedOperation(name, kind, id, policy, payload, started=self.model.step)

    def _operate(self, kind: str, id: str | None = None) -> None:
        """Somebody uses the ledger directly."""
        policy = self.settings.policy("wait", self.lease)
        operation = self._operation("op", kind, id or self.rng.among(self.ids), policy)
        key = operation.id.rpartition("/")[2]
        self._start(SimulatedProcess(operation, self._steps(operation, key)))

    def _steps(self, operation: SimulatedOperation, key: str) -> Steps[Any]:
        match operation.kind:
            case "forget":
                return self.ledger.forget(key)
            case "mark":
                return self.ledger.mark_processed(key)
            case "drop":
                return self.ledger.drop_result(key)
            case "wait":
                return self.ledger.wait(key, self.lease)
            case "resolve":
                return self._resolve(operation, key)
        return self._check(operation, key)

    def _resolve(self, operation: SimulatedOperation, key: str) -> Steps[Any]:
        value = self.value()
        operation.settlement = msgspec.json.encode(value)
        settlements: tuple[Settlement, ...] = (Happened(value), NotHappened(), Abandoned("no use"))
        return self.ledger.resolve(key, self.rng.among(settlements))

    def _check(self, operation: SimulatedOperation, key: str) -> Steps[Any]:
        if self.rng.chance(0.5):
            operation.ids = tuple(self.ids)
            return self.ledger.check_and_set_many(self.settings.keys)
        return self._check_one(key)

    def _check_one(self, key: str) -> Steps[Any]:
        new = yield from self.ledger.check_and_set(key)
        return [new]

    def _jump(self) -> None:
        seconds = self.rng.between(0.3, 4) * self.lease
        if self.rng.chance(0.5):
            seconds = -seconds
        else:
            self.model.jumped = True
        self.jump(seconds)

    def _start(self, process: SimulatedProcess) -> None:
        self.note(
            process.operation.name,
            f"begins {process.operation.kind}",
            process.operation.id.rpartition("/")[2],
        )
        self.count(f"{process.operation.kind}s")
        self.resume(process, None)

    # The last round: nothing goes wrong any more

    def _last_round(self) -> None:
        """Several callers for every key, all patient: each gets an answer, and at most one of them runs."""
        for id in self.ids:
            first = self._ask(id, self.rng.upto(2, 3))
            if any(isinstance(_error(operation), errors.OutcomeUnknown) for operation in first):
                self._operate("resolve", id)
                self.until_quiet()
                self._ask(id, 1)

    def _ask(self, id: str, callers: int) -> list[SimulatedOperation]:
        life = self.model.current(id)
        payload = life.fingerprint if life is not None and life.fingerprint else "p"
        policy = self.settings.policy("wait", 1000.0)
        flow = self._flow(policy, SignalSafeEvent())
        operations = [self._operation("last", "call", id, policy, payload) for _ in range(callers)]
        for operation in operations:
            operation.final = True
            process = SimulatedProcess(operation, flow.steps(id, payload, WORK))
            self.later(SOON * self.random(), self._start, process)
        self.until_quiet()
        self._check_last(operations)
        return operations

    def _check_last(self, operations: list[SimulatedOperation]) -> None:
        # Where a record's time was up meanwhile, the callers belong to different lives.
        if len(self.model.during(operations[0])) <= 1:
            if sum(operation.begun is not None for operation in operations) > 1:
                self.fail("progress", "of several waiters more than one ran")
            answers = [_answer(operation) for operation in operations]
            if answers.count(answers[0]) != len(answers):
                self.fail("same answer", f"the last callers got {answers}")
        for operation in operations:
            error = _error(operation)
            if error is not None and not isinstance(error, LAST_ERRORS):
                self.fail("progress", f"with nothing in the way, {operation.name} ended with {error!r}")


def _glanced(value: Any) -> Steps[Returned]:
    """The steps of a call that was answered by a glance: none."""
    yield from ()
    return Returned(value)


LAST_ERRORS = (errors.FailedBefore, errors.OutcomeUnknown, errors.ResultNotKept)


def _error(operation: SimulatedOperation) -> BaseException | None:
    outcome = operation.outcome
    if outcome is None:
        return AssertionError("no end at all")
    return outcome.error if type(outcome) is Raised else None


def _answer(operation: SimulatedOperation) -> str:
    error = _error(operation)
    return repr(operation.outcome.value) if error is None else type(error).__name__
