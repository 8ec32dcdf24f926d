"""The gate: may this happen now? One decision applies all rules, and is recorded with its reason.

    gate = s.gate(QuietHours("22:00", "07:00", "Europe/Stockholm"), Cap("replies:{chat}", 3))
    decision = gate.decide("reply:42:7", chat=42)

An `Allowed` has been charged already. Asked again about the same action with the same
facts, the gate gives the same answer.

The record of a decision and all its charges are the writes of one part: they are made together, or a refusal
is read and the gate decides again. The token of the record recognises a decision whose reply was lost.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from semel import errors
from semel.core import lifecycle
from semel.core.codecs import Body, decoder_for
from semel.core.commands import ABSENT, NOW, Expect, Found, Get, Item, Put, Steps, Time, Update, Write, read
from semel.core.commands import Refused as WriteRefused
from semel.core.events import What
from semel.core.facades import AsyncFacade, Driven, Facade, SyncFacade
from semel.core.keys import Key, check, fingerprint
from semel.core.ledger import new_record
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict, commit, nothing
from semel.core.policy import DAY, ClaimTerms, Seconds, lasting
from semel.core.realm import Moment, Realm, moment_of
from semel.gate.rules import (
    RULES,
    Cap,
    Charging,
    Cooldown,
    FastConversation,
    KillSwitch,
    QuietHours,
    Rule,
    RuleContext,
    RuleResult,
    Shadow,
    Taken,
    VaryingFact,
)
from semel.state.counters import CounterSteps
from semel.state.journal import Entry
from semel.state.switches import SwitchSteps
from semel.state.transaction import Parts, Rules, TransactionBuilder
from semel.tables import COUNTERS, LEDGER

__all__ = [
    "RECORD",
    "RULES",
    "Allowed",
    "AsyncGate",
    "Cap",
    "Charging",
    "Cooldown",
    "FastConversation",
    "Gate",
    "GateDecision",
    "GateSteps",
    "KillSwitch",
    "QuietHours",
    "Refused",
    "Rule",
    "RuleContext",
    "RuleResult",
    "Shadow",
    "Taken",
    "VaryingFact",
]

# What the record of a decision is called after its action. With two signs, so that no step is named so: a
# step "gate" may well be what asks.
RECORD = ">>gate"


class Allowed(msgspec.Struct, frozen=True, tag="allowed"):
    """It may happen, and has been counted; call `refund` if it then does not happen."""

    key: str
    at: float
    token: str
    taken: tuple[Taken, ...] = ()
    seen: tuple[RuleResult, ...] = ()

    allowed: ClassVar[bool] = True


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It may not happen, for this reason; `not_before` is when it might, None if that is not known."""

    key: str
    at: float
    reason: str
    not_before: float | None = None
    seen: tuple[RuleResult, ...] = ()
    would_allow: bool = False
    """Only the shadow refused it."""

    allowed: ClassVar[bool] = False


GateDecision: TypeAlias = Allowed | Refused
"""The answer of a gate: whether something may happen now."""

Also: TypeAlias = Callable[[Parts, GateDecision], object]

_json = msgspec.json.Encoder().encode
_decoder = decoder_for(GateDecision)


class _NotWritten(errors.SemelError):
    """The write of a decision, or of a refund, was refused."""

    def __init__(self, refusals: PartRefusals) -> None:
        super().__init__()
        self.refusals = refusals


class _Question(RuleContext, kw_only=True):
    """One action, while the gate decides about it."""

    key: str
    id: str
    also: Also | None = None
    subject: str | None = None
    fingerprint: str = ""
    """That of the facts that the action is bound to."""
    expect: Expect = ABSENT
    """What a decision expects of the record of the action."""
    seen: list[RuleResult] = msgspec.field(default_factory=list)
    """What the rules saw so far."""
    refusal: RuleResult | None = None
    """The first refusal; the shadow's only if there is no other."""

    @property
    def charges(self) -> bool:
        """Whether it is charged as things are: a shadow charges as if it allowed."""
        return self.refusal is None or self.refusal.rule == Shadow.word

    def refuse(self, result: RuleResult) -> None:
        """Note that a rule refuses."""
        self.seen.append(result)
        if self.charges:
            self.refusal = result

    def refused(self, refusal: RuleResult) -> Refused:
        """The decision that this refusal leads to."""
        seen, why = tuple(self.seen), refusal.rule
        return Refused(self.key, self.now, why, refusal.not_before, seen, why == Shadow.word)


class GateSteps:
    """The rules of one gate, as generators of commands."""

    def __init__(
        self,
        rules: Rules,
        switches: SwitchSteps,
        weighed: Sequence[Rule],
        *,
        ttl: Seconds = DAY,
        trace: str | None = None,
    ) -> None:
        for rule in weighed:
            if not isinstance(rule, Rule):
                raise errors.InvalidOption(f"{rule!r} is no rule of a gate")
            if isinstance(rule, Charging) and not rule.word:
                raise errors.InvalidOption(f"{rule!r} needs a word, by which it is known what it has taken")
        self.realm: Realm = rules.counters.realm
        self._rules, self._ledger, self._switches = rules, rules.ledger, switches
        self._weighed, self._trace = tuple(weighed), trace
        self._charging = [rule for rule in weighed if isinstance(rule, Charging)]
        # Those that must read come last.
        free = [rule for rule in weighed if not isinstance(rule, Charging)]
        self._free = sorted(free, key=lambda rule: rule.looks)
        self._kinds = RULES | {rule.word: type(rule) for rule in self._charging}
        self._tables = {table.name: table for table in (COUNTERS, *[rule.charged for rule in self._charging])}
        capped = {rule.charged for rule in self._charging if isinstance(rule, Cap)}
        self._totals = {table.name: CounterSteps(self.realm, table) for table in capped}
        self._switched = any(isinstance(rule, KillSwitch) for rule in weighed)
        self._shadow = any(isinstance(rule, Shadow) for rule in weighed)
        self._varying = {rule.fact for rule in weighed if isinstance(rule, VaryingFact)}
        self._terms = ClaimTerms(0, lasting(ttl, self.realm.horizon))

    def decide(
        self,
        key: str | Key,
        /,
        *,
        also: Also | None = None,
        at: Moment | None = None,
        subject: str | None = None,
        **facts: Any,
    ) -> Steps[GateDecision]:
        """Whether this action may happen: the answer, its reason, its charges and its trace in one write.

        `facts` fill in the names in the rules. Other facts for the same key raise `PayloadChanged`, unless a
        `VaryingFact` names the ones that changed. `at` is the moment that is decided about, where that is not
        the present; a `Cooldown` goes by the present all the same. `also(tx, decision)` adds to the same
        write what is to be written along with the decision; it may be called more than once, with what the
        decision becomes.
        """
        return self._decide(self._ask(key, facts, also, subject), at)

    def reconsider(
        self,
        key: str | Key,
        /,
        *,
        also: Also | None = None,
        at: Moment | None = None,
        subject: str | None = None,
        **facts: Any,
    ) -> Steps[GateDecision]:
        """Whether this action may happen, where a refusal counts only until its `not_before`.

        After that it is decided again; a refusal by a kill switch at every call.
        """
        return self._decide(self._ask(key, facts, also, subject), at, reconsidering=True)

    def recorded(self, key: str | Key, /) -> Steps[GateDecision | None]:
        """The decision about an action; None if there is none, or if it was refunded."""
        found = yield from read(Get(LEDGER, self._id(key)))
        return self._read(str(key), found.item, found.now)

    def explain(
        self, key: str | Key, /, *, at: Moment | None = None, **facts: Any
    ) -> Steps[tuple[RuleResult, ...]]:
        """Each rule with what it saw when this was decided; or, before it is, with what it sees now."""
        before = yield from self.recorded(key)
        if before is not None:
            return before.seen
        question = self._ask(key, facts)
        yield from self._look(question, at)
        for rule in self._weighed:
            question.seen.append((yield from rule.see(question)))
        return tuple(question.seen)

    def refund(self, decision: Allowed) -> Steps[bool]:
        """What was allowed did not happen: refund what it used up, once. It is then decided again."""
        if not isinstance(decision, Allowed):
            raise errors.UsageError("only what was allowed has been charged, and can be given back")
        id, token, move = self._id(decision.key), decision.token, lifecycle.TAKE_BACK
        change: Item = {"status": move.status, "result": None, "encoding": None, "updated_at": NOW}
        record = Part((Update(LEDGER, id, change, move.expects(token)),), _NotWritten, nothing)
        try:
            yield from commit([record, *[self._returning(token, taken) for taken in decision.taken]], token)
        except _NotWritten as refused:
            # It was refunded before, or the decision is another one by now.
            there = refused.refusals[0]
            return there is not None and (there.item or {}).get("token") == token
        self.realm.events.emit(What.REFUNDED, id)
        return True

    # How a decision is made

    def _ask(
        self, key: str | Key, facts: dict[str, Any], also: Also | None = None, subject: str | None = None
    ) -> _Question:
        own = self.realm, self._shadow, self._totals
        id = self._id(key)
        return _Question(facts, 0.0, 0.0, {}, *own, key=str(key), id=id, also=also, subject=subject)

    def _look(self, question: _Question, at: Moment | None) -> Steps[None]:
        """See what time it is, and how the switches are."""
        time: Found = yield Time()
        question.present = time.now
        question.now = time.now if at is None else moment_of(at)
        if self._switched:
            seen = self._switches.fresh()
            question.switches = (yield from self._switches.look()) if seen is None else seen

    def _decide(
        self, question: _Question, at: Moment | None, *, reconsidering: bool = False
    ) -> Steps[GateDecision]:
        yield from self._look(question, at)
        question.fingerprint = self._fingerprint(question.facts)
        if reconsidering and (before := (yield from self._lasting_refusal(question))):
            return before
        for rule in self._free:
            # After a refusal nothing is read.
            if rule.looks and not question.charges:
                break
            result = yield from rule.see(question)
            question.seen.append(result) if result.passed else question.refuse(result)
        if question.now < question.present:
            for charging in self._charging:
                yield from charging.prepare(question)
        while True:
            mark = self.realm.token()
            decision, builder = self._plan(question, mark)
            try:
                yield from builder.commit(mark)
            except _NotWritten as refused:
                known = self._learn(question, *refused.refusals)
                if known is not None:
                    return known
                continue
            what, reason = What.ALLOWED, ""
            if isinstance(decision, Refused):
                what, reason = What.REFUSED, decision.reason
            self.realm.events.emit(what, question.id, detail=reason)
            return decision

    def _fingerprint(self, facts: dict[str, Any]) -> str:
        """The fingerprint of the facts that an action is bound to."""
        if self._varying:
            facts = {name: value for name, value in facts.items() if name not in self._varying}
        try:
            return fingerprint(facts, self.realm.secret)
        except errors.InvalidPayload as error:
            error.add_note("for a gate, VaryingFact(name) leaves a fact out of the fingerprint")
            raise

    def _lasting_refusal(self, question: _Question) -> Steps[Refused | None]:
        """The recorded refusal of an action, unless it may be decided again."""
        found = yield from read(Get(LEDGER, question.id))
        before = self._decision(question, found.item)
        if not isinstance(before, Refused):
            return None
        # A refusal by a kill switch is decided again at every call.
        over = before.not_before is not None and before.not_before <= question.now
        if not over and not _is_switch(before.reason):
            return before
        question.expect = _replacing(found.item)
        return None

    def _plan(self, question: _Question, mark: str) -> tuple[GateDecision, TransactionBuilder]:
        """Make the decision that the rules lead to, and the transaction that records and charges it."""
        taken: list[Taken] = []
        room: list[RuleResult] = []
        writes: list[Write] = []
        for rule in self._charging if question.charges else ():
            each, write = rule.take(question, mark)
            taken.append(each)
            writes.append(write)
            room.append(RuleResult(rule.title(question), True, "had room"))
        decision: GateDecision
        if question.refusal is None:
            decision = Allowed(question.key, question.now, mark, tuple(taken), (*question.seen, *room))
        else:
            decision = question.refused(question.refusal)
        record = Put(LEDGER, question.id, self._record(question, decision, mark), question.expect)
        plans: list[PartPlan[Any]] = [
            Part((record, *writes), partial(_on_refused, mark), nothing, marked=True)
        ]
        if self._trace is not None:
            plans.append(self._traced(self._trace, question, decision))
        builder = TransactionBuilder(self.realm.token, plans=plans)
        if question.also is not None:
            question.also(Parts(self._rules, builder), decision)
        return decision, builder

    def _record(self, question: _Question, decision: GateDecision, mark: str) -> Item:
        body = self._ledger.codec.pack(_json(decision), question.id).body
        hashed = self.realm.subject_of(question.subject)
        item = new_record(self._terms, mark, self._ledger.worker(), question.fingerprint, hashed)
        item |= {"status": "COMPLETED", "result": body.data, "encoding": body.encoding}
        return item

    def _traced(self, owner: str, question: _Question, decision: GateDecision) -> PartPlan[Any]:
        trace: dict[str, Any] = {"action": question.key, "allowed": decision.allowed}
        if isinstance(decision, Refused):
            trace |= {"reason": decision.reason, "not_before": decision.not_before}
        entry = Entry(question.name(owner), "", question.now, trace)
        return self._rules.journal.append_entry(entry, subject=question.subject)

    def _learn(
        self, question: _Question, record: WriteRefused | None, *charges: WriteRefused | None
    ) -> GateDecision | None:
        """Read why the write of a decision was refused: the decision that is there, None for another try."""
        if record is None:
            pairs = zip(self._charging, charges, strict=True)
            rule, found = next((rule, refused) for rule, refused in pairs if refused is not None)
            question.refuse(rule.refused(question, found.item, found.now))
            return None
        before, refusal = self._decision(question, record.item), question.refusal
        if before is None:
            question.expect = _replacing(record.item)
        elif before.allowed and refusal is not None and _is_switch(refusal.rule):
            # What is switched off stays off, whatever was allowed before.
            return question.refused(refusal)
        return before

    def _id(self, key: str | Key) -> str:
        return self.realm.name(check(key) + RECORD)

    def _decision(self, question: _Question, item: Item | None) -> GateDecision | None:
        """The decision that is recorded, if it was made with the same facts; None for a refunded one."""
        # A mark has no fingerprint.
        if item is not None and item.get("fingerprint") not in (None, question.fingerprint):
            raise errors.PayloadChanged(question.key)
        return self._read(question.key, item, question.now)

    def _read(self, key: str, item: Item | None, now: float) -> GateDecision | None:
        """A recorded decision; one whose text was dropped is no permission any more."""
        if item is None or _is_refunded(item):
            return None
        data, encoding = item.get("result"), item.get("encoding")
        if data is None or encoding is None:
            return Refused(key, now, "forgotten")
        decision: GateDecision = self._ledger.codec.decode(Body(data, encoding), _decoder, self._id(key))
        return decision

    def _returning(self, token: str, taken: Taken) -> Part[None]:
        """Return what was taken, if it is still there."""
        kind = self._kinds.get(taken.kind)
        if kind is None or not issubclass(kind, Charging):
            raise errors.UsageError(
                f"this was taken by a rule {taken.kind!r}: give it back by a gate that has such a rule"
            )
        if taken.table not in self._tables:
            raise errors.UsageError(
                f"this was counted in {taken.table}: give it back by a gate whose cap counts there"
            )
        write = kind.give_back(taken, token, self._tables[taken.table], self.realm)
        return Part((write,), lambda _: PartVerdict.STANDS, nothing)


def _on_refused(mark: str, refusals: PartRefusals) -> PartVerdict | errors.SemelError:
    """Recognise a decision that was recorded under this mark, though its reply was lost."""
    there = None if refusals[0] is None else refusals[0].item
    # One that another worker has refunded meanwhile is no decision any more.
    mine = there is not None and there.get("token") == mark and not _is_refunded(there)
    return PartVerdict.MADE if mine else _NotWritten(refusals)


def _is_refunded(item: Item) -> bool:
    return bool(item.get("status") == lifecycle.TAKE_BACK.status)


def _is_switch(reason: str) -> bool:
    return reason.startswith(f"{KillSwitch.word}:")


def _replacing(item: Item | None) -> Expect:
    """Return what a decision expects that replaces this one: no late copy of an older one then fits."""
    return ABSENT if item is None else {"token": item["token"], "status": item["status"]}


class _GateMethods(Facade[GateSteps]):
    decide: Final = Driven(GateSteps.decide)
    reconsider: Final = Driven(GateSteps.reconsider)
    explain: Final = Driven(GateSteps.explain)
    recorded: Final = Driven(GateSteps.recorded)
    refund: Final = Driven(GateSteps.refund)


class Gate(_GateMethods, SyncFacade):
    """Decides by its rules whether something may happen now."""


class AsyncGate(_GateMethods, AsyncFacade):
    """Decides by its rules whether something may happen now, by methods that are awaited."""
