"""How a decision is made, recorded and refunded."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias, cast

import msgspec

from semel import errors
from semel.core import lifecycle
from semel.core.codecs import Body, decoder_for
from semel.core.commands import (
    ABSENT,
    NOW,
    AllOf,
    Condition,
    Equals,
    Get,
    Item,
    Put,
    Steps,
    Update,
    Write,
    read,
)
from semel.core.events import What
from semel.core.keys import Key, check, fingerprint
from semel.core.ledger import ClaimTerms, opening
from semel.core.parts import Part, PartRefusals, PartVerdict, commit, nothing
from semel.core.policy import DAY, Seconds, lasting
from semel.core.realm import Moment, Realm, moment_of
from semel.gate.rules import (
    RULES,
    Charging,
    KillSwitch,
    Rule,
    RuleContext,
    RuleResult,
    Shadow,
    Taken,
    VaryingFact,
    is_shadow,
    is_switch,
)
from semel.state.switches import Switch, SwitchSteps
from semel.state.transaction import Parts, Rules
from semel.tables import COUNTERS, LEDGER

# What the record of a decision is called after its action. With two signs, so that no step is named so: a
# step "gate" may well be what asks.
RECORD = ">>gate"


class Allowed(msgspec.Struct, frozen=True, tag="allowed"):
    """It may happen, and has been counted; give it back with `refund` if it then does not."""

    key: str
    at: float
    token: str
    taken: tuple[Taken, ...] = ()
    seen: tuple[RuleResult, ...] = ()

    allowed: ClassVar[bool] = True


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It may not happen, for this reason; `not_before` says from when it might, where that is known."""

    key: str
    at: float
    reason: str
    not_before: float | None = None
    seen: tuple[RuleResult, ...] = ()
    would_allow: bool = False
    """Only the shadow refused it."""

    allowed: ClassVar[bool] = False


GateDecision: TypeAlias = Allowed | Refused
"""What a gate answers: whether something may happen now."""

_json = msgspec.json.Encoder().encode

Also: TypeAlias = Callable[[Parts, GateDecision], object]


class _Stopped(errors.SemelError):
    """A charging rule refused the write."""

    def __init__(self, result: RuleResult) -> None:
        super().__init__(result.saw)
        self.result = result


class _Decided(errors.SemelError):
    """There is a decision about this action, or there was one."""

    def __init__(self, item: Item | None) -> None:
        super().__init__()
        self.item = item


class _TakenBack(errors.SemelError):
    """There is nothing to give back: it was before, or the decision is another one by now."""

    def __init__(self, *, given: bool) -> None:
        super().__init__()
        self.given = given


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
        self.realm: Realm = rules.counters.realm
        self._rules = rules
        self._switches = switches
        self._weighed = tuple(weighed)
        for rule in self._weighed:
            if not isinstance(rule, Rule):
                raise errors.InvalidOption(f"{rule!r} is no rule of a gate")
            if isinstance(rule, Charging) and not rule.word:
                raise errors.InvalidOption(f"{rule!r} needs a word, by which it is known what it has taken")
        self._charging = [rule for rule in self._weighed if isinstance(rule, Charging)]
        # Those that must read come last.
        self._free = sorted(
            (rule for rule in self._weighed if not isinstance(rule, Charging)), key=lambda rule: rule.looks
        )
        self._kinds = RULES | {rule.word: type(rule) for rule in self._charging}
        charged = (rule.charged for rule in self._charging)
        self._tables = {table.name: table for table in (COUNTERS, *charged)}
        self._switched = any(isinstance(rule, KillSwitch) for rule in self._weighed)
        self._shadow = any(isinstance(rule, Shadow) for rule in self._weighed)
        self._varying = {rule.fact for rule in self._weighed if isinstance(rule, VaryingFact)}
        self._ttl = lasting(ttl, self.realm.horizon)
        self._trace = trace
        self._decoder = decoder_for(GateDecision)

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
        context = yield from self._context(facts, at)
        return (yield from self._decided(str(key), context, ABSENT, also, subject))

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

        After that it is decided anew; a refusal by a kill switch whenever it is asked for.
        """
        context = yield from self._context(facts, at)
        found = yield from read(Get(LEDGER, self._id(key)))
        self._check_facts(str(key), found.item, self._fingerprint(facts))
        when: Condition = ABSENT
        if found.item is not None and not _taken_back(found.item):
            before = self._read(str(key), found.item, context.now)
            if isinstance(before, Refused):
                over = before.not_before is not None and before.not_before <= context.now
                if not over and not is_switch(before.reason):
                    return before
                when = Equals("token", found.item["token"])
        return (yield from self._decided(str(key), context, when, also, subject))

    def recorded(self, key: str | Key, /) -> Steps[GateDecision | None]:
        """The decision about an action; None where there is none, or where it was given back."""
        found = yield from read(Get(LEDGER, self._id(key)))
        if found.item is None or _taken_back(found.item):
            return None
        return self._read(str(key), found.item, found.now)

    def explain(
        self, key: str | Key, /, *, at: Moment | None = None, **facts: Any
    ) -> Steps[tuple[RuleResult, ...]]:
        """Each rule with what it saw when this was decided; or, before it is, with what it sees now."""
        before = yield from self.recorded(key)
        if before is not None:
            return before.seen
        context = yield from self._context(facts, at)
        results = []
        for rule in self._weighed:
            results.append((yield from rule.see(context)))  # noqa: PERF401 - no comprehension can yield from
        return tuple(results)

    def refund(self, decision: Allowed) -> Steps[bool]:
        """What was allowed did not happen: give back what it used up, once. It is then decided anew."""
        if not isinstance(decision, Allowed):
            raise errors.UsageError("only what was allowed has been charged, and can be given back")
        giving = [self._giving(taken, decision) for taken in decision.taken]
        try:
            yield from commit([self._taking_back(decision), *giving], decision.token)
        except _TakenBack as already:
            return already.given
        self.realm.events.emit(What.REFUNDED, self._id(decision.key))
        return True

    # How a decision is come by

    def _context(self, facts: dict[str, Any], at: Moment | None) -> Steps[RuleContext]:
        present = yield from self.realm.now()
        now = present if at is None else moment_of(at)
        switches: dict[str, Switch] = {}
        if self._switched:
            switches = yield from self._switches.seen()
        return RuleContext(facts, now, present, switches, self.realm, self._shadow)

    def _decided(
        self, key: str, context: RuleContext, when: Condition, also: Also | None, subject: str | None
    ) -> Steps[GateDecision]:
        facts = self._fingerprint(context.facts)
        seen, refusal = yield from self._seen(context)
        while True:
            try:
                return (
                    yield from self._record(
                        key, context, seen, refusal, facts=facts, when=when, also=also, subject=subject
                    )
                )
            except _Stopped as stopped:
                seen, refusal = [*seen, stopped.result], stopped.result
            except _Decided as decided:
                self._check_facts(key, decided.item, facts)
                if decided.item is None or _taken_back(decided.item):
                    when = _over(decided.item)
                    continue
                before = self._read(key, decided.item, context.now)
                # What is switched off stays off, whatever was allowed before.
                if refusal is not None and is_switch(refusal.rule) and isinstance(before, Allowed):
                    return _refused(key, context.now, seen, refusal)
                return before

    def _fingerprint(self, facts: dict[str, Any]) -> str:
        """The fingerprint of the facts that an action is bound to."""
        bound = {name: value for name, value in facts.items() if name not in self._varying}
        try:
            return fingerprint(bound, self.realm.secret)
        except errors.InvalidPayload as error:
            error.add_note("for a gate, VaryingFact(name) leaves a fact out of the fingerprint")
            raise

    def _check_facts(self, key: str, item: Item | None, facts: str) -> None:
        """Raise `PayloadChanged` if the action was decided with other facts."""
        known = None if item is None else item.get("fingerprint")
        if known is not None and known != facts:  # earlier versions recorded none
            raise errors.PayloadChanged(key)

    def _seen(self, context: RuleContext) -> Steps[tuple[list[RuleResult], RuleResult | None]]:
        """What the rules see that charge nothing, and the first refusal; after one nothing is read."""
        seen: list[RuleResult] = []
        for rule in self._free:
            if rule.looks and (refusal := _refusal(seen)) is not None and not is_shadow(refusal):
                break
            seen.append((yield from rule.see(context)))
        return seen, _refusal(seen)

    def _record(
        self,
        key: str,
        context: RuleContext,
        seen: list[RuleResult],
        refusal: RuleResult | None,
        *,
        facts: str,
        when: Condition,
        also: Also | None,
        subject: str | None,
    ) -> Steps[GateDecision]:
        mark, takes = self.realm.token(), []
        if refusal is None or is_shadow(refusal):
            takes = [(rule, *rule.take(context, mark)) for rule in self._charging]
        decision: GateDecision
        if refusal is None:
            room = [RuleResult(rule.title(context), True, "had room") for rule, _, _ in takes]
            decision = Allowed(
                key, context.now, mark, tuple([taken for _, taken, _ in takes]), (*seen, *room)
            )
        else:
            decision = _refused(key, context.now, seen, refusal)
        id, parts = self._id(key), Parts(self._rules)
        terms = ClaimTerms(0, self._ttl, facts, subject=self.realm.subject_of(subject))
        parts.gathered.add(self._recording(id, decision, mark, when, terms))
        for rule, _, taking in takes:
            parts.gathered.add(_charging(rule, context, taking))
        self._journal(parts, decision, context, subject)
        if also is not None:
            also(parts, decision)
        yield from parts.gathered.commit(mark)
        what = What.ALLOWED if decision.allowed else What.REFUSED
        reason = decision.reason if isinstance(decision, Refused) else ""
        self.realm.events.emit(what, id, detail=reason)
        return decision

    def _journal(
        self, parts: Parts, decision: GateDecision, context: RuleContext, subject: str | None
    ) -> None:
        if self._trace is None:
            return
        body: dict[str, Any] = {"action": decision.key, "allowed": decision.allowed}
        if isinstance(decision, Refused):
            body |= {"reason": decision.reason, "not_before": decision.not_before}
        parts.journal.append(context.name(self._trace), body, at=context.now, subject=subject)

    def _id(self, key: str | Key) -> str:
        return self.realm.name(check(key) + RECORD)

    def _recording(
        self, id: str, decision: GateDecision, mark: str, when: Condition, terms: ClaimTerms
    ) -> Part[None]:
        """The decision as the outcome of its action's key."""
        body = self._rules.ledger.codec.pack(_json(decision), id).body
        item = opening(terms, mark, self._rules.ledger.worker())
        item |= {"status": "COMPLETED", "result": body.data, "encoding": body.encoding}

        def judge(refusals: PartRefusals) -> "PartVerdict | errors.SemelError":
            there = None if refusals[0] is None else refusals[0].item
            # One of mine that somebody else has given back meanwhile is no decision any more.
            if there is None or there.get("token") != mark or _taken_back(there):
                return _Decided(there)
            return PartVerdict.MADE

        return Part((Put(LEDGER, id, item, when),), judge, nothing, marked=True)

    def _read(self, key: str, item: Item, now: float) -> GateDecision:
        """A recorded decision; one whose text was dropped is no permission any more."""
        data, encoding = item.get("result"), item.get("encoding")
        if data is None or encoding is None:
            return Refused(key, now, "forgotten")
        body = Body(data, encoding)
        return cast("GateDecision", self._rules.ledger.codec.decode(body, self._decoder, self._id(key)))

    # Taking back

    def _taking_back(self, decision: Allowed) -> Part[None]:
        """The record of the decision is given back, so that it is decided anew."""
        move = lifecycle.TAKE_BACK
        change: Item = {"status": move.status, "result": None, "encoding": None, "updated_at": NOW}
        write = Update(LEDGER, self._id(decision.key), change, move.condition(decision.token))

        def judge(refusals: PartRefusals) -> "PartVerdict | errors.SemelError":
            there = (None if refusals[0] is None else refusals[0].item) or {}
            return _TakenBack(given=there.get("token") == decision.token)

        return Part((write,), judge, nothing)

    def _giving(self, taken: Taken, decision: Allowed) -> Part[None]:
        """What was taken is given back, if it is still there."""
        kind = self._kinds.get(taken.kind)
        if kind is None or not issubclass(kind, Charging):
            raise errors.UsageError(
                f"this was taken by a rule {taken.kind!r}: give it back by a gate that has such a rule"
            )
        if taken.table not in self._tables:
            raise errors.UsageError(
                f"this was counted in {taken.table}: give it back by a gate whose cap counts there"
            )
        write = kind.give_back(taken, decision.token, self._tables[taken.table], self.realm)
        return Part((write,), lambda _: PartVerdict.STANDS, nothing)


def _charging(rule: Charging, context: RuleContext, write: Write) -> Part[None]:
    def judge(refusals: PartRefusals) -> "PartVerdict | errors.SemelError":
        [refused] = refusals
        item, now = (None, context.now) if refused is None else (refused.item, refused.now)
        return _Stopped(rule.refused(context, item, now))

    return Part((write,), judge, nothing)


def _taken_back(item: Item) -> bool:
    return bool(item.get("status") == lifecycle.TAKE_BACK.status)


def _over(item: Item | None) -> Condition:
    """When a decision may be written where this one was: no copy of an older one then comes through late."""
    if item is None:
        return ABSENT
    return AllOf((Equals("token", item["token"]), Equals("status", item["status"])))


def _refused(key: str, now: float, seen: list[RuleResult], refusal: RuleResult) -> Refused:
    return Refused(key, now, refusal.rule, refusal.not_before, tuple(seen), is_shadow(refusal))


def _refusal(seen: Sequence[RuleResult]) -> RuleResult | None:
    """The first refusal; the shadow's only where there is no other."""
    refusals = [result for result in seen if not result.passed]
    return min(refusals, key=is_shadow, default=None)
