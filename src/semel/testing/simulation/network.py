"""Commands on their way between the steps that ask and the store that answers, and what befalls them."""

from collections.abc import Callable
from typing import Any

from semel import errors
from semel.commands import Batch, Call, Found, Get, Pause, Put, Refused, Steps, Update, Watch
from semel.events import Events, What
from semel.ledger import LedgerSteps
from semel.stores.memory import MemoryStore
from semel.tables import LEDGER
from semel.testing.simulation.errand import Errand
from semel.testing.simulation.model import Interrupted, Model
from semel.testing.simulation.plan import Plan, draw
from semel.testing.simulation.scheduler import Scheduler
from semel.testing.simulation.trace import Violation

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


class Ears(Events):
    """Counts what the ledger says, and logs nothing."""

    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__()
        self._count = count

    def emit(self, what: What, id: str, attempt: int = 0, detail: str = "", *, cause: str = "") -> None:
        """Count it."""
        self._count(what.value)

    warn = emit


class Actor:
    """Somebody who takes steps, until they end or it crashes."""

    __slots__ = ("done", "errand", "gone", "job", "steps", "ticket")

    def __init__(self, errand: Errand, steps: Steps[Any], done: Callable[[], None] | None = None) -> None:
        self.errand = errand
        self.steps = steps
        self.done = done
        self.gone = False
        self.job: Any = None
        self.ticket = 0
        """Which of its waits is the one that counts."""


class Network(Scheduler):
    """One store, and everybody who sends it commands."""

    def __init__(self, seed: int, listener: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, listener)
        self.plan: Plan = draw(self.dice)
        self.lease: float = self.plan.options["lease"]  # type: ignore[assignment]  # it was drawn as a number
        self.trouble = self.plan.trouble
        self.store = MemoryStore(self.clock)
        self.model = Model(self.fail, self.count)
        self.ledger = LedgerSteps(env="sim", events=Ears(self.count), tokens=self.token)
        self.ids = [self.ledger.name(key) for key in self.plan.keys]
        self._acting: Errand | None = None
        self._tokens = 0
        self._watchers: dict[str, list[tuple[Actor, int, float]]] = {id: [] for id in self.ids}

    def run(self) -> None:
        """Let everything happen, then see that it all comes to an end."""
        try:
            self._populate()
            self.until_quiet()
            self.trouble = 0.0
            self._last_round()
        except Violation:
            raise
        except Exception as error:
            raise self.violation("no surprise", f"{type(error).__name__}: {error}") from error
        self.tally["steps"] = self.planned

    def _populate(self) -> None:
        """Plan who comes, and when."""
        raise NotImplementedError

    def _last_round(self) -> None:
        """See that what is left can be done, now that nothing goes wrong any more."""
        raise NotImplementedError

    def begin(self, actor: Actor, command: Call) -> None:
        """The steps have come to the caller's work."""
        raise NotImplementedError

    def token(self) -> str:
        """The next token, which belongs to whoever is acting."""
        self._tokens += 1
        token = f"t{self._tokens}"
        if self._acting is not None:
            self._acting.tokens.append(token)
        return token

    # Steps

    def resume(self, actor: Actor, reply: Any, error: BaseException | None = None) -> None:
        """Give the steps a reply, and carry on with what they ask for next."""
        if actor.gone:
            return
        errand = self._acting = actor.errand
        try:
            command: Any = actor.steps.send(reply) if error is None else actor.steps.throw(error)
        except StopIteration as end:
            self._ended(actor, end.value)
            return
        except Violation:
            raise
        except (Exception, Interrupted) as problem:  # noqa: BLE001 - the model says which may come
            self._failed(actor, problem)
            return
        kind = type(command)
        if kind is Pause and errand.last is Watch:
            errand.waited += command.seconds
        errand.last = kind
        if errand.recognised:
            errand.recognised = False
            if kind is Watch or kind is Put:
                self.fail("own token", f"{errand.name} holds the key by its own token, and does not know it")
        self._go(actor, command, kind)

    def _go(self, actor: Actor, command: Any, kind: type) -> None:
        """Let happen what the steps ask for."""
        if kind is Call:
            self.begin(actor, command)
        elif kind is Watch:
            self._watch(actor, command)
        elif kind is Pause:
            self.later(command.seconds, self._go_on, actor)
        elif self.random() < self.trouble:
            self._fault(actor, command, kind is Get)
        else:
            self.later(self._latency(), self._deliver, actor, command)

    def _go_on(self, actor: Actor) -> None:
        """A pause is over."""
        self.resume(actor, self.clock.monotonic())

    def _latency(self) -> float:
        """Most commands are quick; one in five takes up to half a lease, and is none the worse for it."""
        luck = self.random()
        return SOON * luck if luck < 0.8 else self.lease * 2.5 * (luck - 0.8)

    def _ended(self, actor: Actor, value: Any) -> None:
        errand = actor.errand
        actor.gone = True
        errand.outcome = value
        self.note(errand.name, "ends with", value)
        if errand.kind != "beat":
            self.model.ended(errand, value)
        self._after(actor)

    def _failed(self, actor: Actor, problem: BaseException) -> None:
        actor.gone = True
        actor.errand.outcome = problem
        self.note(actor.errand.name, "raises", problem)
        self.model.failed(actor.errand, problem)
        self._after(actor)

    def _after(self, actor: Actor) -> None:
        if actor.errand.recognised:
            self.fail(
                "own token", f"{actor.errand.name} held the key by its own token, and ended without its work"
            )
        if actor.done is not None:
            actor.done()

    def crash(self, actor: Actor, what: str, phase: str) -> None:
        """The process is gone; another takes its place."""
        self.note(actor.errand.name, "crashes", f"{what} {phase}")
        self.count(f"crash {what} {phase}")
        actor.gone = True
        if actor.job is not None:
            actor.job.over = True
            self.model.stopped(actor.job.run.claim.token, None, interrupted=True)
        if actor.done is not None:
            actor.done()

    # Commands

    def _apply(self, errand: Errand, command: Any) -> Any:
        """Have the store carry a command out, and see that all still holds."""
        reply = self.store.execute(command)
        self.note(errand.name, "", (command, reply))
        if type(command) is Batch:
            for write, each in zip(command.writes, reply.replies, strict=True):
                self.seen(errand, write, each)
        else:
            self.seen(errand, command, reply)
        return reply

    def seen(self, errand: Errand, command: Any, reply: Any) -> None:
        """What a command came to is as it must be."""
        kind = type(reply)
        self.model.answered(reply)
        if kind is Refused:
            self._own(errand, command, reply.item)
        elif kind is not Found:
            found = self.store.execute(Get(LEDGER, command.key))
            self.model.wrote(errand, command, reply.now, found.item)
            self._wake(command.key)

    def _own(self, errand: Errand, command: Any, item: Any) -> None:
        """Whether a refusal is the author's own work, whose answer was lost."""
        if item is None or item["token"] not in errand.tokens:
            if type(command) is Update and errand.kind == "call":
                self.count("zombies refused")
            return
        if (
            type(command) is Put
            and item["token"] == command.item["token"]
            and item["status"] == "IN_PROGRESS"
        ):
            self.count("own claims recognised")
            errand.recognised = command.item["status"] == "IN_PROGRESS"
        elif type(command) is Update and item["status"] == command.set.get("status"):
            errand.made = item["status"] == "COMPLETED" and item.get("result") == command.set.get("result")
            self.count("own moves recognised")

    def _deliver(self, actor: Actor, command: Any) -> None:
        if actor.gone:
            return
        errand = actor.errand
        errand.recognised = errand.made = False
        reply = self._apply(errand, command)
        if type(reply) is Refused and type(command) is Put:
            self._insists(errand, reply.item)
        self.resume(actor, reply)

    def _insists(self, errand: Errand, item: Any) -> None:
        """Whoever is refused by the same record over and over should rather wait for it."""
        obstacle = item and (item["token"], item["status"], item["lease_until"])
        errand.refusals = errand.refusals + 1 if obstacle == errand.obstacle else 1
        errand.obstacle = obstacle
        if errand.refusals > TOO_OFTEN:
            self.fail("progress", f"{errand.name} asks over and over for what it is refused")

    def _fault(self, actor: Actor, command: Any, reading: bool) -> None:
        """Something happens to a command on its way."""
        errand, lease = actor.errand, self.lease
        fault = self.dice.weighed(READING_FAULTS if reading else FAULTS)
        soon = SOON * self.random()
        phase = _phase(errand, command)
        self.note(errand.name, f"[{fault}]", command)
        errand.faults += 1
        if fault == "crash before":
            return self.crash(actor, "before", phase)
        if fault == "crash after":
            self._ghost(errand, command)
            return self.crash(actor, "after", phase)
        if fault == "crash, applied later":
            self.later(lease * self.dice.between(0.1, 3), self._ghost, errand, command)
            return self.crash(actor, "during", phase)
        self.count(fault)
        if fault == "reply lost":
            return self.later(soon, self._lose_reply, actor, command)
        if fault == "request lost":
            return self.later(soon, self.resume, actor, None, errors.StoreOutcomeUnknown("lost"))
        if fault == "refused":
            return self.later(soon, self.resume, actor, None, errors.StoreUnavailable("refused"))
        if fault == "slow":
            return self.later(lease * self.dice.between(0.1, 1.5), self._deliver, actor, command)
        if fault == "duplicated":
            return self.later(soon, self._deliver_twice, actor, command)
        if fault == "delayed":
            self.later(lease * self.dice.between(0.1, 3), self._ghost, errand, command)
            return self.later(soon, self.resume, actor, None, errors.StoreOutcomeUnknown("delayed"))
        return self.later(soon, self._deliver_late, actor, command)

    def _ghost(self, errand: Errand, command: Any) -> None:
        """A command arrives, and nobody waits for its answer."""
        recognised, made = errand.recognised, errand.made
        self._apply(errand, command)
        errand.recognised, errand.made = recognised, made

    def _lose_reply(self, actor: Actor, command: Any) -> None:
        if not actor.gone:
            self._ghost(actor.errand, command)
            self.resume(actor, None, errors.StoreOutcomeUnknown("reply lost"))

    def _deliver_twice(self, actor: Actor, command: Any) -> None:
        if actor.gone:
            return
        if self.dice.chance(0.5):
            self._ghost(actor.errand, command)
            self._deliver(actor, command)
        else:
            self.later(SOON * 3 * self.random(), self._ghost, actor.errand, command)
            self._deliver(actor, command)

    def _deliver_late(self, actor: Actor, command: Any) -> None:
        """The command is carried out, and its author held up before it learns so, perhaps past its lease."""
        if actor.gone:
            return
        errand = actor.errand
        errand.recognised = errand.made = False
        reply = self._apply(errand, command)
        self.later(self.lease * self.dice.between(0.2, 2.5), self.resume, actor, reply)

    # Waiting

    def _watch(self, actor: Actor, command: Watch) -> None:
        actor.ticket += 1
        if self.random() < self.trouble / 2:
            actor.errand.faults += 1
            if self.dice.chance(0.5):
                return self.crash(actor, "during", "wait")
            self.count("refused")
            return self.later(
                SOON * self.random(), self.resume, actor, None, errors.StoreUnavailable("refused")
            )
        self._watchers[command.key].append((actor, actor.ticket, self.now))
        # As a real store's: somewhat less than asked, and never no time at all.
        seconds = max(0.001, command.seconds * (0.7 + 0.3 * self.random()))
        return self.later(seconds, self._look, actor, actor.ticket, command.key, self.now)

    def _wake(self, id: str) -> None:
        """Ring the bell for who waits for a key; some do not hear it, and look when their time is up."""
        waiting = self._watchers[id]
        if waiting:
            for actor, ticket, since in waiting:
                if actor.ticket == ticket and self.random() < 0.7:
                    self.later(SOON * self.random(), self._look, actor, ticket, id, since)
            waiting.clear()

    def _look(self, actor: Actor, ticket: int, id: str, since: float) -> None:
        if actor.gone or actor.ticket != ticket:
            return
        actor.ticket += 1
        waited = self.now - since
        actor.errand.waited += waited
        found = self._apply(actor.errand, Get(LEDGER, id))
        self.resume(actor, Found(found.now, found.item, waited))


def _phase(errand: Errand, command: Any) -> str:
    """What a command is for: the part of a call's life that a crash cuts."""
    if errand.kind == "beat":
        return "renewal"
    if errand.kind != "call":
        return "operation"
    return "claim" if type(command) is Put else "end"
