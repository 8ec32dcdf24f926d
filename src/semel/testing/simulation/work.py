"""The work that the callers want done: how long it takes, what comes of it, and the heartbeat beside it."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from semel import errors
from semel.core.commands import Call, Raised, Returned
from semel.core.flow import Work
from semel.core.heartbeat import beat
from semel.core.running import Run
from semel.model import Abandoned, Happened, NotHappened, Undecided
from semel.testing.simulation.model import Interrupted
from semel.testing.simulation.network import Network, SimulatedProcess
from semel.testing.simulation.operation import SimulatedOperation
from semel.testing.simulation.settings import Declined, Flaky, resolver

# How often it is cancelled before it begins.
NOT_BEGUN = 0.04
NOTHINGS: tuple[Any, ...] = (None, 0, "", False, [], {})
# What it comes to.
ENDS: tuple[tuple[float, Callable[["SimulatedWork"], Returned | Raised]], ...] = (
    (0.4, lambda world: Returned(world.value())),
    (0.1, lambda world: Returned(world.rng.among(NOTHINGS))),
    (0.1, lambda _: Raised(Declined("no"))),
    (0.3, lambda _: Raised(Flaky("not now"))),
    (0.1, lambda _: Raised(Interrupted())),
)
# How long it takes, in leases.
LENGTHS = ((0.45, (0.02, 0.3)), (0.25, (0.3, 1.2)), (0.3, (1.2, 4.0)))


class SimulatedJob(msgspec.Struct, eq=False):
    """The work of an attempt, which the world does in its own time."""

    run: Run
    asking: bool
    over: bool = False


WORK = Work(lambda run, function: SimulatedJob(run, function is resolver))


class SimulatedWork(Network):
    """Where work is done."""

    def __init__(self, seed: int, listener: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, listener)
        self._values = itertools.count(1)

    def begin(self, process: SimulatedProcess, command: Call) -> None:
        """Set the work going, unless it is cancelled before it begins."""
        job: SimulatedJob = command.work()
        operation, rng = process.operation, self.rng
        if not operation.final and self.random() < NOT_BEGUN:
            self.note(operation.name, "is cancelled")
            operation.entered = True
            return self.resume(process, Raised(Interrupted(), begun=False))
        self.model.began(operation, job.run, job.asking)
        process.job = job
        self.note(operation.name, "asks" if job.asking else "works", f"as attempt {job.run.attempt}")
        self.count("resolver asked" if job.asking else "runs")
        if operation.waited and not job.asking:
            self.count("waiters took over")
        low, high = (0.02, 0.1) if operation.final else rng.weighed(LENGTHS)
        seconds = self.lease * rng.between(low, high)
        if self.random() < self.trouble / 2:
            self.later(seconds * self.random(), self._crash_at_work, process, job)
        if rng.chance(self.settings.heartbeats):
            self._beat_later(process, job)
        return self.later(seconds, self._finish, process, job)

    def _crash_at_work(self, process: SimulatedProcess, job: SimulatedJob) -> None:
        if not job.over and not process.gone:
            self.crash(process, "during", "work")

    def _finish(
        self, process: SimulatedProcess, job: SimulatedJob, lost: errors.ClaimLost | None = None
    ) -> None:
        """The work comes to its end, whichever."""
        if job.over or process.gone:
            return
        job.over = True
        process.job = None
        answer = self._resolver_answer if job.asking else self._done
        done = Raised(lost) if lost else answer(process.operation)
        self.note(process.operation.name, "is done", done)
        self._update_model(job.run.claim.token, done)
        self.resume(process, done)

    def _update_model(self, token: str, done: Returned | Raised) -> None:
        if isinstance(done, Raised):
            self.model.stopped(
                token, None, interrupted=isinstance(done.error, errors.ClaimLost | Interrupted)
            )
            return
        result = done.value.result if type(done.value) is Happened else done.value
        self.model.stopped(token, msgspec.json.encode(result), interrupted=False)
        if type(done.value) is NotHappened:
            self.model.asked(token)

    def _done(self, operation: SimulatedOperation) -> Returned | Raised:
        return Returned(self.value()) if operation.final else self.rng.weighed(ENDS)(self)

    def _resolver_answer(self, operation: SimulatedOperation) -> Returned | Raised:
        """What the other side says about an attempt that vanished."""
        answers: tuple[Any, ...] = (Happened(self.value()), NotHappened())
        if not operation.final:
            answers += (NotHappened(), Abandoned("gone"), Undecided(), Flaky("no answer"))
        answer = self.rng.among(answers)
        self.count("resolved" if type(answer) is not Flaky else "resolver failed")
        return Raised(answer) if type(answer) is Flaky else Returned(answer)

    def value(self) -> str:
        """A result that nobody else has."""
        return f"v{next(self._values)}"

    def _beat(self, process: SimulatedProcess, job: SimulatedJob) -> None:
        """Renew the lease while the work runs."""
        if job.over or process.gone:
            return
        run, operation = job.run, process.operation
        if run.lost and self.rng.chance(0.5):
            # As async work is cancelled; sync work goes on, and its lease is renewed if nobody took it.
            self.count("lost while at work")
            self._finish(process, job, errors.ClaimLost(run.key, run.attempt, "go on with"))
            return
        renewal = SimulatedOperation(
            f"{operation.name}~", "beat", operation.id, operation.policy, operation.fingerprint
        )
        renewal.tokens = operation.tokens
        self.count("heartbeats")

        def again() -> None:
            if run.lost:
                self.count("lost while at work")
            else:
                self._beat_later(process, job)

        self.resume(SimulatedProcess(renewal, beat(self.ledger, run, self.clock), again), None)

    def _beat_later(self, process: SimulatedProcess, job: SimulatedJob) -> None:
        """The next beat comes when it is due, or is late: a machine may be busy, or asleep."""
        late = self.lease * self.rng.between(0, 2) if self.rng.chance(0.3) else 0.0
        self.later(max(job.run.due - self.now, 0.001) + late, self._beat, process, job)
