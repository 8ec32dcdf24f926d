"""The work that the callers want done: how long it takes, what comes of it, and the heartbeat beside it."""

from collections.abc import Callable
from typing import Any

import msgspec

from semel import errors
from semel.commands import Call, Raised, Returned
from semel.flow import Work
from semel.heartbeat import beat
from semel.model import Abandoned, Happened, NotHappened, Undecided
from semel.running import Run
from semel.testing.simulation.errand import Errand
from semel.testing.simulation.model import Interrupted
from semel.testing.simulation.network import Actor, Network
from semel.testing.simulation.plan import Declined, Flaky, resolver

# What work comes to.
VALUE, EMPTY, DECLINED, FLAKY, INTERRUPTED = range(5)
ENDS = ((0.4, VALUE), (0.1, EMPTY), (0.1, DECLINED), (0.3, FLAKY), (0.1, INTERRUPTED))
# How often it is cancelled before it begins.
NOT_BEGUN = 0.04
NOTHINGS: tuple[Any, ...] = (None, 0, "", False, [], {})
# How long it takes, in leases.
LENGTHS = ((0.45, (0.02, 0.3)), (0.25, (0.3, 1.2)), (0.3, (1.2, 4.0)))


class Job:
    """The work of an attempt, which the world does in its own time."""

    __slots__ = ("asking", "over", "run")

    def __init__(self, run: Run, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.run = run
        self.asking = function is resolver
        self.over = False


WORK = Work(Job)


class Workshop(Network):
    """Where work is done."""

    def __init__(self, seed: int, listener: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, listener)
        self._values = 0

    def begin(self, actor: Actor, command: Call) -> None:
        """Set the work going, unless it is cancelled before it begins."""
        job: Job = command.work()
        errand, dice = actor.errand, self.dice
        if not errand.final and self.random() < NOT_BEGUN:
            self.note(errand.name, "is cancelled")
            errand.entered = True
            return self.resume(actor, Raised(Interrupted(), begun=False))
        self.model.began(errand, job.run, job.asking)
        actor.job = job
        self.note(errand.name, "asks" if job.asking else "works", f"as attempt {job.run.attempt}")
        self.count("resolver asked" if job.asking else "runs")
        if errand.waited and not job.asking:
            self.count("waiters took over")
        low, high = (0.02, 0.1) if errand.final else dice.weighed(LENGTHS)
        seconds = self.lease * dice.between(low, high)
        if self.random() < self.trouble / 2:
            self.later(seconds * self.random(), self._crash_at_work, actor, job)
        if dice.chance(self.plan.heartbeats):
            self._beat_later(actor, job)
        return self.later(seconds, self._finish, actor, job)

    def _crash_at_work(self, actor: Actor, job: Job) -> None:
        if not job.over and not actor.gone:
            self.crash(actor, "during", "work")

    def _finish(self, actor: Actor, job: Job, lost: errors.ClaimLost | None = None) -> None:
        """The work comes to its end, whichever."""
        if job.over or actor.gone:
            return
        job.over = True
        actor.job = None
        done = Raised(lost) if lost else self._told(actor, job) if job.asking else self._done(actor.errand)
        value = result = done.value if type(done) is Returned else None
        if type(value) is Happened:
            result = value.result
        encoded = msgspec.json.encode(result) if type(done) is Returned else None
        stopped = type(done) is Raised and (lost is not None or type(done.error) is Interrupted)
        self.note(actor.errand.name, "is done", done)
        self.model.stopped(job.run.claim.token, encoded, stopped)
        if type(value) is NotHappened:
            self.model.asked(job.run.claim.token)
        self.resume(actor, done)

    def _done(self, errand: Errand) -> Returned | Raised:
        end = VALUE if errand.final else self.dice.weighed(ENDS)
        if end == VALUE:
            return Returned(self.value())
        if end == EMPTY:
            return Returned(self.dice.among(NOTHINGS))
        if end == DECLINED:
            return Raised(Declined("no"))
        if end == FLAKY:
            return Raised(Flaky("not now"))
        return Raised(Interrupted())

    def _told(self, actor: Actor, job: Job) -> Returned | Raised:
        """What the other side says about an attempt that vanished."""
        answers: tuple[Any, ...] = (Happened(self.value()), NotHappened())
        if not actor.errand.final:
            answers += (NotHappened(), Abandoned("gone"), Undecided(), Flaky("no answer"))
        answer = self.dice.among(answers)
        self.count("resolved" if type(answer) is not Flaky else "resolver failed")
        return Raised(answer) if type(answer) is Flaky else Returned(answer)

    def value(self) -> str:
        """A result that nobody else has."""
        self._values += 1
        return f"v{self._values}"

    def _beat(self, actor: Actor, job: Job) -> None:
        """Renew the lease while the work runs."""
        if job.over or actor.gone:
            return
        run, errand = job.run, actor.errand
        if run.lost and self.dice.chance(0.5):
            # As async work is cancelled; sync work goes on, and its lease is renewed if nobody took it.
            self.count("lost while at work")
            self._finish(actor, job, errors.ClaimLost(run.key, run.attempt, "go on with"))
            return
        heart = Errand(f"{errand.name}~", "beat", errand.id, errand.policy, errand.fingerprint)
        heart.tokens = errand.tokens
        self.count("heartbeats")

        def again() -> None:
            if run.lost:
                self.count("lost while at work")
            else:
                self._beat_later(actor, job)

        self.resume(Actor(heart, beat(self.ledger, run, self.clock), again), None)

    def _beat_later(self, actor: Actor, job: Job) -> None:
        """The next beat comes when it is due, or is late: a machine may be busy, or asleep."""
        late = self.lease * self.dice.between(0, 2) if self.dice.chance(0.3) else 0.0
        self.later(max(job.run.due - self.now, 0.001) + late, self._beat, actor, job)
