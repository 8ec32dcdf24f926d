"""Worlds in which every piece of work is one atomic write of several parts, or a gate's decision.

Workers answer messages. An answer completes its claim, charges a counter, changes a document, replaces
another and adds entries to three journals, all in one transaction; where the counter is full, it is refused
in another. Beside them a gate decides, and some of what it allowed is given back; and visits are noted in a
document and a journal, each by itself. The steps are those of the real code, and the network does to them
what it does in every simulated world. After each write must hold:

    all or none     an answer is in every place that it belongs to, once, or in none of them
    the cap         the counter tells how many were answered, and never more than its cap
    decisions       what a gate has counted is what it allows now, and each decision was told where it belongs
    visits          a visit is noted once at most
    no phantom      nobody is told of an answer, a permission or a visit that is not recorded
    progress        when nothing goes wrong any more, every message is answered, refused or decided
    no surprise     nothing ends in an error that nothing in this world accounts for

    python -c 'from tests.simulation.transactions import run; run(1234, print)'
"""

import itertools
from collections.abc import Callable
from typing import Any

from semel import errors
from semel.apps.tables import ACTIVITIES
from semel.core.codecs import Body, decoder_for
from semel.core.commands import TRIES, Applied, Get, Query, Steps, Time, Transact
from semel.core.parts import alone
from semel.core.realm import Realm
from semel.gate import Allowed, Cap, GateDecision, GateSteps
from semel.model import Claimed
from semel.periods import Day
from semel.state.counters import CHARGED, CounterSteps
from semel.state.documents import DocumentSteps
from semel.state.journal import BOOKS, JournalSteps, Ulids, milliseconds, ulid_of
from semel.state.switches import SwitchCache, SwitchSteps
from semel.state.transaction import Parts, Rules, TransactionBuilder
from semel.tables import COUNTERS, DOCUMENTS, JOURNAL, LEDGER
from semel.testing.simulation.network import SOON, CountingEvents, Network, SimulatedProcess
from semel.testing.simulation.operation import SimulatedOperation

# Far longer than any world lasts: what expires is another simulation's business.
TTL = 1e6
# Who cannot tell whether his write was made tries it again as it was, so often.
COMMIT_TRIES = 3
# What is noted by itself.
VISIT = "visit"
# How often, of all faults of transactions, nobody answers at all though it was made.
NO_ANSWER = 0.3
# In leases: by then whoever vanished can be taken over.
LATER = 3.0

DECISION = decoder_for(GateDecision)


class SeededUlids(Ulids):
    """Ids that are the same in every run of a seed."""

    def __init__(self) -> None:
        super().__init__()
        self._made = 0

    def make(self, at: float) -> str:
        """An id for an event of this moment."""
        self._made += 1
        return ulid_of(milliseconds(at), self._made)


class TransactionWorld(Network):
    """Everything there is, for one seed."""

    REPLAY = "python -c 'from tests.simulation.transactions import run; run({}, print)'"

    def __init__(self, seed: int, listener: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, listener)
        rng = self.rng
        self.messages: list[str] = [f"m{number}" for number in range(rng.upto(3, 8))]
        self.questions: list[str] = [f"q{number}" for number in range(rng.upto(1, 3))]
        self.cap: int = rng.upto(1, len(self.messages))
        realm = Realm(env="sim", worker="sim", events=CountingEvents(self.count), token=self.token)
        self.realm = realm
        documents: DocumentSteps[Any] = DocumentSteps(realm)
        journal = JournalSteps(realm, ids=SeededUlids())
        self.rules: Rules = Rules(self.ledger, documents, journal, CounterSteps(realm))
        switches = SwitchSteps(realm, SwitchCache(self.store, self.clock), self.clock)
        rule = Cap("allowed", rng.upto(1, len(self.questions)))
        self.gate: GateSteps = GateSteps(self.rules, switches, (rule,), ttl=TTL, trace="trace")
        self._day = Day().span(self.clock.now()).label
        self._permissions: set[str] = set()
        self._returned: dict[str, int] = {}
        self._unanswered: dict[str, int] = {}
        """Whose transactions get no answer, and how many of them yet."""
        self._operations = itertools.count(1)

    # Who is there

    def _populate(self) -> None:
        rng, settings = self.rng, self.settings
        for number in range(settings.workers):
            self.later(rng.between(0, self.lease), self._next_call, f"w{number + 1}", rng.upto(2, 6))
        for _ in range(settings.jumps):
            self.later(rng.between(0.1, 4 * self.lease), self._jump)

    def _next_call(self, worker: str, left: int) -> None:
        if left == 0:
            return
        rng = self.rng
        what = rng.weighed(((0.5, self.messages), (0.3, self.questions), (0.2, [VISIT])))
        self._start(worker, rng.among(what), left)

    def _start(self, worker: str, what: str, left: int) -> None:
        name = f"{worker}#{next(self._operations)}"
        operation = SimulatedOperation(name, "call", what, self.settings.policy("raise", self.lease))

        def next_one() -> None:
            self.later(self.rng.between(0, self.lease), self._next_call, worker, left - 1)

        self.note(operation.name, "begins", what)
        self.count("calls")
        self.resume(SimulatedProcess(operation, self._steps(name, what), next_one), None)

    def _steps(self, who: str, what: str) -> Steps[Any]:
        if what == VISIT:
            return self._visit(who)
        return self._decide(what) if what in self.questions else self._answer(what)

    def _jump(self) -> None:
        self.jump(self.rng.between(-3, 3) * self.lease)

    # What they do: a caller's program, as he would write it

    def _answer(self, message: str) -> Steps[str]:
        claim = yield from self.ledger.claim(message, lease=self.lease, ttl=TTL)
        if not isinstance(claim, Claimed):
            return "known"
        try:
            yield from self._retrying(lambda tx: self._complete(tx, claim, message))
        except errors.CapReached as full:
            yield from self._retrying(lambda tx, full=full: self._refuse(tx, claim, message, full))  # type: ignore[misc]
            return "refused"
        return "answered"

    def _retrying(self, gather: Callable[[Parts], object]) -> Steps[None]:
        """Make a transaction; where nobody can tell whether it was made, make the whole of it again."""
        for left in reversed(range(COMMIT_TRIES)):
            parts = Parts(self.rules, TransactionBuilder(self.token))
            gather(parts)
            try:
                return (yield from parts.builder.commit())
            except errors.StoreOutcomeUnknown:
                self.count("blocks tried again")
                if not left:
                    raise
        return None

    def _complete(self, tx: Parts, claim: Claimed, message: str) -> None:
        tx.ledger.complete(claim, message)
        tx.counters.charge("answers", cap=self.cap, token=message)
        tx.documents.update("chat", lambda d: {"done": [*(d or {"done": []})["done"], message]})
        tx.documents.put("latest", {"message": message})
        tx.journal.append("keyed", {"message": message}, key=message)
        tx.journal.append("drawn", {"message": message})
        tx.journal.on(ACTIVITIES).append("house", {"message": message}, actor=7)

    def _refuse(self, tx: Parts, claim: Claimed, message: str, full: errors.CapReached) -> None:
        tx.ledger.fail(claim, full)
        tx.journal.append("refused", {"message": message})

    def _decide(self, question: str) -> Steps[GateDecision]:
        decision = yield from self.gate.decide(question, also=lambda tx, made: self._also(tx, question, made))
        if isinstance(decision, Allowed) and self.rng.chance(0.4):
            yield from self.gate.refund(decision)
        return decision

    def _also(self, tx: Parts, question: str, decision: GateDecision) -> None:
        tx.documents.update("decided", lambda d: {"on": [*(d or {"on": []})["on"], question]})
        tx.journal.append("decisions", {"message": question})

    def _visit(self, who: str) -> Steps[str]:
        noting = self.rules.documents.update("visits", lambda d: {"by": [*(d or {"by": []})["by"], who]})
        yield from alone(noting, self.token())
        yield from alone(self.rules.journal.append("visits", {"message": who}), self.token())
        return "noted"

    # What comes of it

    def ended(self, operation: SimulatedOperation, value: Any) -> None:
        """See that what an operation was told is recorded."""
        if isinstance(value, Allowed) and value.token not in self._permissions:
            self.fail(
                "no phantom", f"{operation.name} was allowed {operation.id}, and nobody has recorded that"
            )
        if isinstance(value, str):
            self.count(value)
        ends = {"answered": "COMPLETED", "refused": "FAILED"}
        if value in ends and self._status(operation.id) != ends[value]:
            self.fail("no phantom", f"{operation.name} was told that {operation.id} is {value}")
        if value == "noted" and operation.name not in self._listed("visits", "by"):
            self.fail("no phantom", f"{operation.name} was told that his visit was noted")

    def failed(self, operation: SimulatedOperation, problem: BaseException) -> None:
        """See that something in this world accounts for the error."""
        item = self._item(operation.id) or {}
        own = item.get("token") in operation.tokens and item.get("status") == "COMPLETED"
        match problem:
            case errors.ClaimLost() if own and problem.move == "complete":
                self.fail(
                    "no phantom",
                    f"{operation.name} has answered {operation.id}, and was told that it has not",
                )
            case errors.StoreOutcomeUnknown() if (
                operation.faults < TRIES and operation.name not in self._unanswered
            ):
                self.fail("no surprise", f"{operation.name} had {operation.faults} faults, and gave up")
            case errors.ClaimLost() | errors.StoreUnavailable() | errors.StoreOutcomeUnknown():
                self.count(type(problem).__name__)
            case _:
                self.fail("no surprise", f"{operation.name} ended with {problem!r}")

    def _check_refusals(self, operation: SimulatedOperation, item: Any) -> None:
        """Whoever is refused asks for another message."""

    def _fault(self, process: SimulatedProcess, command: Any, reading: bool) -> None:
        if type(command) is Time:  # no store is asked
            return self.later(0, self._deliver, process, command)
        if type(command) is Transact:
            self.count("faults of transactions")
            if self.rng.chance(NO_ANSWER):
                self._unanswered[process.operation.name] = TRIES - 1
                self.count("all answers lost")
                return self.later(SOON * self.random(), self._lose_reply, process, command)
        return super()._fault(process, command, reading)

    def _deliver(self, process: SimulatedProcess, command: Any) -> None:
        left = self._unanswered.get(process.operation.name, 0)
        if left and type(command) is Transact:
            self._unanswered[process.operation.name] = left - 1
            return self._lose_reply(process, command)
        return super()._deliver(process, command)

    def _apply(self, operation: SimulatedOperation, command: Any) -> Any:
        """Have the store carry a command out, and see that all still holds."""
        reading = type(command) in (Get, Time)
        before = {} if reading else {question: self._status(question) for question in self.questions}
        reply = self.store.execute(command)
        self.note(operation.name, "", (command, reply))
        if type(reply) is Applied:
            for question, status in before.items():
                if status == "COMPLETED" and self._status(question) == "RELEASED":
                    self._returned[question] = self._returned.get(question, 0) + 1
            self._check_answers()
            self._check_decisions()
            self._check_visits()
        return reply

    # What must hold

    def _check_answers(self) -> None:
        done = self._listed("chat", "done")
        places = {
            "charges": [message for message in self.messages if self._charged(message)],
            "the document": done,
            "keyed entries": self._entries("keyed"),
            "drawn entries": self._entries("drawn"),
            "activities": self._entries("house", ACTIVITIES),
        }
        for message in self.messages:
            status = self._status(message)
            times = 1 if status == "COMPLETED" else 0
            for place, found in places.items():
                if found.count(message) != times:
                    self.fail("all or none", f"{message} is {status}, and {found.count(message)} in {place}")
            refused = self._entries("refused").count(message)
            if refused != (status == "FAILED"):
                self.fail("all or none", f"{message} is {status}, and {refused} times refused")
        latest = self.store.execute(Get(DOCUMENTS, self.realm.name("latest"))).item
        if (0 if latest is None else latest["version"]) != len(done):
            self.fail("all or none", f"{len(done)} answers replaced the latest {latest}")
        counted = self._counted("answers")
        if not counted == len(done) <= self.cap:
            self.fail("the cap", f"{len(done)} answers of {self.cap}, and {counted} were counted")

    def _check_decisions(self) -> None:
        allowed = 0
        decided, told_of, traced = (
            self._listed("decided", "on"),
            self._entries("decisions"),
            self._entries("trace", body="action"),
        )
        for question in self.questions:
            decision = self._decision(question)
            if isinstance(decision, Allowed):
                allowed += 1
                self._permissions.add(decision.token)
            times = self._returned.get(question, 0) + (decision is not None)
            for place, found in (("document", decided), ("journal", told_of), ("trace", traced)):
                if found.count(question) != times:
                    self.fail(
                        "decisions", f"{question}: {times} decisions, {found.count(question)} in the {place}"
                    )
        counted = self._counted("allowed")
        if counted != allowed:
            self.fail("decisions", f"{allowed} are allowed, and {counted} were counted")

    def _check_visits(self) -> None:
        for noted in (self._listed("visits", "by"), self._entries("visits")):
            if len(set(noted)) < len(noted):
                self.fail("visits", f"some were noted twice: {noted}")

    def _last_round(self) -> None:
        """Everybody asks once more for everything, twice, after those who vanished have lapsed."""
        for _ in range(2):
            for place, what in enumerate((*self.messages, *self.questions)):
                self.later(self.lease * (LATER + place), self._start, "last", what, 1)
            self.until_quiet()
        for message in self.messages:
            if self._status(message) not in ("COMPLETED", "FAILED"):
                self.fail("progress", f"{message} is {self._status(message)} in the end")
        answered = len(self._listed("chat", "done"))
        if answered < min(self.cap, len(self.messages)):
            self.fail("progress", f"{answered} answers in the end, and {self.cap} were to be had")

    # What there is

    def _item(self, key: str) -> dict[str, Any] | None:
        id = self.gate._id(key) if key in self.questions else self.realm.name(key)
        item: dict[str, Any] | None = self.store.execute(Get(LEDGER, id)).item
        return item

    def _status(self, key: str) -> str | None:
        item = self._item(key)
        return None if item is None else item["status"]

    def _decision(self, question: str) -> GateDecision | None:
        item = self._item(question)
        if item is None or item["status"] != "COMPLETED":
            return None
        body = Body(item["result"], item["encoding"])
        decision: GateDecision = self.ledger.codec.decode(body, DECISION, item["id"])
        return decision

    def _charged(self, message: str) -> bool:
        item = self.store.execute(Get(COUNTERS, self.realm.name("answers"), CHARGED + message)).item
        return item is not None and item["state"] == "charged"

    def _counted(self, counter: str) -> int:
        item = self.store.execute(Get(COUNTERS, self.realm.name(counter), self._day)).item
        return 0 if item is None else item["count"]

    def _listed(self, document: str, field: str) -> list[str]:
        item = self.store.execute(Get(DOCUMENTS, self.realm.name(document))).item
        listed: list[str] = [] if item is None else item["body"][field]
        if item is not None and item["version"] != len(listed):
            self.fail("all or none", f"{document} was changed {item['version']} times, for {len(listed)}")
        return listed

    def _entries(self, owner: str, table: Any = JOURNAL, body: str = "message") -> list[str]:
        page = self.store.execute(Query(table, self.realm.name(owner), limit=1000))
        field = BOOKS[table.name].body
        # Beside an entry lies the memory of its key, which tells of nothing.
        return [item[field][body] for item in page.items if body in item[field]]


def run(seed: int, listener: Callable[[str], None] | None = None) -> dict[str, int]:
    """Run one world, and count what happened in it; the listener is told every step."""
    return TransactionWorld(seed, listener).run()
