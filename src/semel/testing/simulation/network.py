"""Commands on their way between the steps that ask and the store that answers, and what befalls them."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from semel import errors
from semel.core.commands import Batch, Call, Found, Get, Pause, Put, Refused, Steps, Update, Watch, alive
from semel.core.events import Events, What
from semel.core.ledger import LedgerSteps
from semel.core.realm import Realm
from semel.stores.memory import MemoryStore
from semel.tables import LEDGER
from semel.testing.simulation.model import Interrupted, Model
from semel.testing.simulation.operation import SimulatedOperation
from semel.testing.simulation.scheduler import Scheduler
from semel.testing.simulation.settings import WorldSettings, draw
from semel.testing.simulation.trace import InvariantViolation

# How long a command is under way, in seconds; leases are of 0.5 to 2.
SOON = 0.02
# A claim, a take-over of what it found, and both once more where the clock was set back in between.
TOO_OFTEN = 4

# What can happen to a command, in shares of all its faults.
FAULTS = (
    (0.10, "crash before"),
    (0.10, "crash after"),
    (0.05, "crash, applied later"),
    (0.20, "reply lost"),
    (0.05, "request lost"),
    (0.10, "slow"),
    (0.10, "refused"),
    (0.10, "duplicated"),
    (0.10, "delayed"),
    (0.10, "paused"),
)
# A reading changes nothing, so only these differ for it.
READING_FAULTS = ((0.3, "crash before"), (0.4, "refused"), (0.3, "slow"))


class CountingEvents(Events):
    """Counts what the ledger says, and logs nothing."""

    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__()
        self._count = count

    def emit(self, what: What, id: str, attempt: int = 0, detail: str = "", *, cause: str = "") -> None:
        """Count it."""
        self._count(what.value)

    warn = emit


class SimulatedProcess(msgspec.Struct, eq=False):
    """Somebody who takes steps, until they end or it crashes."""

    operation: SimulatedOperation
    steps: Steps[Any]
    done: Callable[[], None] = lambda: None
    """What comes after it."""
    gone: bool = False
    job: Any = None
    ticket: int = 0
    """Which of its waits is the one that counts."""


class Network(Scheduler):
    """One store, and everybody who sends it commands."""

    def __init__(self, seed: int, listener: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, listener)
        self.settings: WorldSettings = draw(self.rng)
        self.lease: float = self.settings.options["lease"]  # type: ignore[assignment]  # it was drawn as a number
        self.trouble: float = self.settings.trouble
        self.store: MemoryStore = MemoryStore(self.clock)
        self.model: Model = Model(self.fail, self.count)
        self.ledger: LedgerSteps = LedgerSteps(
            Realm(env="sim", worker="sim", events=CountingEvents(self.count), token=self.token)
        )
        self.ids: list[str] = [self.ledger.name(key) for key in self.settings.keys]
        self._current: SimulatedOperation | None = None
        self._tokens = itertools.count(1)
        self._watchers: dict[str, list[tuple[SimulatedProcess, int, float]]] = {id: [] for id in self.ids}

    def run(self) -> dict[str, int]:
        """Let everything happen, then see that it all comes to an end; what happened, and how often."""
        try:
            self._populate()
            self.until_quiet()
            self.trouble = 0.0
            self._last_round()
        except InvariantViolation:
            raise
        except Exception as error:
            raise self.violation("no surprise", f"{type(error).__name__}: {error}") from error
        self.tally["steps"] = self.planned
        return self.tally

    def _populate(self) -> None:
        """Plan who comes, and when."""
        raise NotImplementedError

    def _last_round(self) -> None:
        """See that what is left can be done, now that nothing goes wrong any more."""
        raise NotImplementedError

    def begin(self, process: SimulatedProcess, command: Call) -> None:
        """The steps have come to the caller's work."""
        raise NotImplementedError

    def token(self) -> str:
        """The next token, which belongs to whoever is acting."""
        token = f"t{next(self._tokens)}"
        if self._current is not None:
            self._current.tokens.append(token)
        return token

    # Steps

    def resume(self, process: SimulatedProcess, reply: Any, error: BaseException | None = None) -> None:
        """Give the steps a reply, and carry on with what they ask for next."""
        if process.gone:
            return None
        operation = self._current = process.operation
        try:
            command: Any = process.steps.send(reply) if error is None else process.steps.throw(error)
        except StopIteration as end:
            return self._over(process, end.value, raised=False)
        except InvariantViolation:
            raise
        except (Exception, Interrupted) as problem:  # noqa: BLE001 - the model says which may come
            return self._over(process, problem, raised=True)
        kind = type(command)
        if kind is Pause and operation.last is Watch:
            operation.waited += command.seconds
        operation.last = kind
        if operation.recognised:
            operation.recognised = False
            if kind is Watch or kind is Put:
                self.fail(
                    "own token", f"{operation.name} holds the key by its own token, and does not know it"
                )
        return self._dispatch(process, command, kind)

    def _dispatch(self, process: SimulatedProcess, command: Any, kind: type) -> None:
        """Let happen what the steps ask for."""
        if kind is Call:
            self.begin(process, command)
        elif kind is Watch:
            self._watch(process, command)
        elif kind is Pause:
            self.later(command.seconds, lambda: self.resume(process, self.clock.monotonic()))
        elif self.random() < self.trouble:
            self._fault(process, command, kind is Get)
        else:
            self.later(self._latency(), self._deliver, process, command)

    def _latency(self) -> float:
        """Most commands are quick; one in five takes up to half a lease, and is none the worse for it."""
        luck = self.random()
        return SOON * luck if luck < 0.8 else self.lease * 2.5 * (luck - 0.8)

    def _over(self, process: SimulatedProcess, outcome: Any, *, raised: bool) -> None:
        operation = process.operation
        process.gone = True
        operation.outcome = outcome
        self.note(operation.name, "raises" if raised else "ends with", outcome)
        check = self.failed if raised else self.ended
        check(operation, outcome)
        if operation.recognised:
            self.fail(
                "own token", f"{operation.name} held the key by its own token, and ended without its work"
            )
        process.done()

    def ended(self, operation: SimulatedOperation, value: Any) -> None:
        """See that an operation may end with this."""
        if operation.kind != "beat":
            self.model.ended(operation, value)

    def failed(self, operation: SimulatedOperation, problem: BaseException) -> None:
        """See that an operation may end with this error."""
        self.model.failed(operation, problem)

    def crash(self, process: SimulatedProcess, what: str, phase: str) -> None:
        """The process is gone; another takes its place."""
        self.note(process.operation.name, "crashes", f"{what} {phase}")
        self.count(f"crash {what} {phase}")
        process.gone = True
        if process.job is not None:
            process.job.over = True
            self.model.stopped(process.job.run.claim.token, None, interrupted=True)
        process.done()

    # Commands

    def _apply(self, operation: SimulatedOperation, command: Any) -> Any:
        """Have the store carry a command out, and see that all still holds."""
        reply = self.store.execute(command)
        self.note(operation.name, "", (command, reply))
        if type(command) is Batch:
            for write, each in zip(command.writes, reply.replies, strict=True):
                self.seen(operation, write, each)
        else:
            self.seen(operation, command, reply)
        return reply

    def seen(self, operation: SimulatedOperation, command: Any, reply: Any) -> None:
        """What a command came to is as it must be."""
        kind = type(reply)
        self.model.answered(reply)
        operation.shown = reply.item, reply.now
        if kind is Refused:
            self._recognise(operation, command, alive(LEDGER, reply.item, reply.now))
        elif kind is not Found:
            found = self.store.execute(Get(LEDGER, command.key))
            self.model.wrote(operation, command, reply.now, found.item)
            self._wake(command.key)

    def _recognise(self, operation: SimulatedOperation, command: Any, item: Any) -> None:
        """Whether a refusal is the author's own work, whose answer was lost."""
        if item is None or item["token"] not in operation.tokens:
            if type(command) is Update and operation.kind == "call":
                self.count("zombies refused")
            return
        if (
            type(command) is Put
            and item["token"] == command.item["token"]
            and item["status"] == "IN_PROGRESS"
        ):
            self.count("own claims recognised")
            operation.recognised = command.item["status"] == "IN_PROGRESS"
        elif type(command) is Update and item["status"] == command.set.get("status"):
            operation.made = item["status"] == "COMPLETED" and item.get("result") == command.set.get("result")
            self.count("own moves recognised")

    def _deliver(self, process: SimulatedProcess, command: Any) -> None:
        if not process.gone:
            reply = self._apply_first(process.operation, command)
            if type(reply) is Refused and type(command) is Put:
                self._check_refusals(process.operation, reply.item)
            self.resume(process, reply)

    def _apply_first(self, operation: SimulatedOperation, command: Any) -> Any:
        """Have the store carry a command out whose author knows of no answer yet."""
        operation.recognised = operation.made = False
        return self._apply(operation, command)

    def _check_refusals(self, operation: SimulatedOperation, item: Any) -> None:
        """Whoever is refused by the same record over and over should rather wait for it."""
        obstacle = item and (item["token"], item["status"], item["lease_until"])
        operation.refusals = operation.refusals + 1 if obstacle == operation.obstacle else 1
        operation.obstacle = obstacle
        if operation.refusals > TOO_OFTEN:
            self.fail("progress", f"{operation.name} asks over and over for what it is refused")

    def _fault(self, process: SimulatedProcess, command: Any, reading: bool) -> None:
        """Something happens to a command on its way."""
        operation, lease = process.operation, self.lease
        fault = self.rng.weighed(READING_FAULTS if reading else FAULTS)
        soon = SOON * self.random()
        phase = _phase(operation, command)
        self.note(operation.name, f"[{fault}]", command)
        operation.faults += 1
        if fault == "crash before":
            return self.crash(process, "before", phase)
        if fault == "crash after":
            self._apply_unanswered(operation, command)
            return self.crash(process, "after", phase)
        if fault == "crash, applied later":
            self.later(lease * self.rng.between(0.1, 3), self._apply_unanswered, operation, command)
            return self.crash(process, "during", phase)
        self.count(fault)
        if fault == "reply lost":
            return self.later(soon, self._lose_reply, process, command)
        if fault == "request lost":
            return self.later(soon, self.resume, process, None, errors.StoreOutcomeUnknown("lost"))
        if fault == "refused":
            return self.later(soon, self.resume, process, None, errors.StoreUnavailable("refused"))
        if fault == "slow":
            return self.later(lease * self.rng.between(0.1, 1.5), self._deliver, process, command)
        if fault == "duplicated":
            return self.later(soon, self._deliver_twice, process, command)
        if fault == "delayed":
            self.later(lease * self.rng.between(0.1, 3), self._apply_unanswered, operation, command)
            return self.later(soon, self.resume, process, None, errors.StoreOutcomeUnknown("delayed"))
        return self.later(soon, self._deliver_late, process, command)

    def _apply_unanswered(self, operation: SimulatedOperation, command: Any) -> None:
        """A command arrives, and nobody waits for its answer."""
        recognised, made = operation.recognised, operation.made
        self._apply(operation, command)
        operation.recognised, operation.made = recognised, made

    def _lose_reply(self, process: SimulatedProcess, command: Any) -> None:
        if not process.gone:
            self._apply_unanswered(process.operation, command)
            self.resume(process, None, errors.StoreOutcomeUnknown("reply lost"))

    def _deliver_twice(self, process: SimulatedProcess, command: Any) -> None:
        if process.gone:
            return
        if self.rng.chance(0.5):
            self._apply_unanswered(process.operation, command)
        else:
            self.later(SOON * 3 * self.random(), self._apply_unanswered, process.operation, command)
        self._deliver(process, command)

    def _deliver_late(self, process: SimulatedProcess, command: Any) -> None:
        """The command is carried out, and its author held up before it learns so, perhaps past its lease."""
        if not process.gone:
            reply = self._apply_first(process.operation, command)
            self.later(self.lease * self.rng.between(0.2, 2.5), self.resume, process, reply)

    # Waiting

    def _watch(self, process: SimulatedProcess, command: Watch) -> None:
        process.ticket += 1
        if self.random() < self.trouble / 2:
            process.operation.faults += 1
            if self.rng.chance(0.5):
                return self.crash(process, "during", "wait")
            self.count("refused")
            return self.later(
                SOON * self.random(), self.resume, process, None, errors.StoreUnavailable("refused")
            )
        self._watchers[command.key].append((process, process.ticket, self.now))
        # As a real store's: somewhat less than asked, and never no time at all.
        seconds = max(0.001, command.seconds * (0.7 + 0.3 * self.random()))
        return self.later(seconds, self._look, process, process.ticket, command.key, self.now)

    def _wake(self, id: str) -> None:
        """Ring the bell for who waits for a key; some do not hear it, and look when their time is up."""
        waiting = self._watchers[id]
        if waiting:
            for process, ticket, since in waiting:
                if process.ticket == ticket and self.random() < 0.7:
                    self.later(SOON * self.random(), self._look, process, ticket, id, since)
            waiting.clear()

    def _look(self, process: SimulatedProcess, ticket: int, id: str, since: float) -> None:
        if process.gone or process.ticket != ticket:
            return
        process.ticket += 1
        waited = self.now - since
        process.operation.waited += waited
        found = self._apply(process.operation, Get(LEDGER, id))
        self.resume(process, Found(found.now, found.item, waited))


def _phase(operation: SimulatedOperation, command: Any) -> str:
    """What a command is for: the part of a call's life that a crash cuts."""
    if operation.kind == "beat":
        return "renewal"
    if operation.kind != "call":
        return "operation"
    return "claim" if type(command) is Put else "end"
