"""The rules of a gate: what each reads, what an action uses up, and how that is refunded.

`RULES` has all of them by the words that settings, the HTTP API and recorded decisions use.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from math import floor
from typing import Any, ClassVar, Final

import msgspec

from semel import errors
from semel.core.commands import ABSENT, NOW, After, Delete, Get, Item, Put, Steps, Write, read
from semel.core.keys import check, compile_template, part
from semel.core.policy import Seconds, seconds
from semel.core.realm import Realm
from semel.periods import Day, Period, Window
from semel.state.counters import KEEP, CounterSteps, amount
from semel.state.journal import OWN, Book, JournalSteps
from semel.state.switches import Switch
from semel.tables import COUNTERS, Table

# The row of a cooldown, in the partition of its name.
COOLDOWN = "cooldown"

# The end of the name of a shadow's counter: no name that is made of parts ends so.
SHADOWED = ">>shadow"


class RuleResult(msgspec.Struct, frozen=True, gc=False):
    """What one rule of a gate saw: whether it allows, and why."""

    rule: str
    passed: bool
    saw: str
    not_before: float | None = None
    """When it would pass, if it can tell."""


class Taken(msgspec.Struct, frozen=True, gc=False):
    """What an allowed action has used up; a refund returns it."""

    counter: str
    entry: str
    by: int = 0
    table: str = COUNTERS.name
    kind: str = ""
    """The word of the rule that took it, and knows how to refund it."""


class RuleContext(msgspec.Struct):
    """What a rule of a gate can look at while it decides."""

    facts: dict[str, Any]
    now: float
    """The moment that is decided about: the present, unless the caller said otherwise."""
    present: float
    switches: dict[str, Switch]
    realm: Realm
    shadow: bool = False
    totals: Mapping[str, CounterSteps] = {}
    """The rules of each table in which this gate counts, by its name."""
    names: dict[str, str] = {}
    """The names that were made of templates so far."""

    def name(self, template: str) -> str:
        """Fill the facts into a template."""
        name = self.names.get(template)
        if name is None:
            name = self.names[template] = _renderer(template)({"facts": self.facts})
        return name

    def counter(self, template: str) -> str:
        """The name of a counter, from its template. A shadow counts beside it, as if it had sent."""
        name = self.name(template)
        return f"{name}{SHADOWED}" if self.shadow else name


class Rule(msgspec.Struct, frozen=True):
    """A rule of a gate: something that may refuse."""

    word: ClassVar[str] = ""
    """Its name in settings and records, with which the reason of its refusals begins."""
    looks: ClassVar[bool] = False
    """Whether it has to read something; then it is not asked once another rule has refused."""

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        """Return what it sees now, changing nothing."""
        raise NotImplementedError


class Charging(Rule, frozen=True):
    """A rule from which an allowed action takes something, in the write that records the decision."""

    looks: ClassVar[bool] = True

    @property
    def charged(self) -> Table:
        """The table that counts what was taken."""
        return COUNTERS

    def title(self, context: RuleContext) -> str:
        """The name of this rule in records."""
        raise NotImplementedError

    def prepare(self, context: RuleContext) -> Steps[None]:
        """Do what `take` needs, if the decision is about a moment in the past: most rules need nothing."""
        yield from ()

    def take(self, context: RuleContext, mark: str) -> tuple[Taken, Write]:
        """What an action uses up, and the write that takes it if there is any left."""
        raise NotImplementedError

    def refused(self, context: RuleContext, item: Item | None, now: float) -> RuleResult:
        """What the rule saw, from the item that refused its write."""
        raise NotImplementedError

    @classmethod
    def give_back(cls, taken: Taken, token: str, table: Table, realm: Realm) -> Write:
        """The write that returns what the decision of this token took, if it is still there."""
        raise NotImplementedError

    @classmethod
    def describe(cls, taken: Taken) -> str:
        """What was taken, for people."""
        counted = f"{taken.by} of {taken.counter} in {taken.entry}"
        return counted if taken.by else f"{cls.word} {taken.counter}"


class QuietHours(Rule, frozen=True):
    """Refuses between these hours of the day, in a time zone."""

    word: ClassVar[str] = "quiet_hours"

    start: str
    end: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        Window(self.start, self.end, self.zone)

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        """Look at the local time."""
        yield from ()
        return _quiet(self, floor(context.now))


# A busy gate asks it many times a second.
@functools.lru_cache(256)
def _quiet(rule: QuietHours, second: int) -> RuleResult:
    window = Window(rule.start, rule.end, rule.zone)
    hours = f"quiet from {rule.start} to {rule.end} in {rule.zone}"
    if window.holds(second):
        return RuleResult(rule.word, False, hours, window.ends(second))
    return RuleResult(rule.word, True, f"outside: {hours}")


class KillSwitch(Rule, frozen=True):
    """Refuses while a switch is on; or, with `stops_when=False`, while it is off."""

    word: ClassVar[str] = "kill_switch"

    switch: str
    stops_when: bool = True
    unset: bool | None = None
    """The state that is assumed if the switch was never turned; by default, one that lets everything pass."""

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        """Look at the switch, as it was less than a second ago."""
        yield from ()
        switch = context.switches.get(self.switch)
        unset = not self.stops_when if self.unset is None else self.unset
        on = unset if switch is None else switch.on
        saw = f"{self.switch} is {'on' if on else 'off'}"
        if switch is not None and switch.reason:
            saw += f": {switch.reason}"
        return RuleResult(f"{self.word}:{self.switch}", on is not self.stops_when, saw)


class FastConversation(Rule, frozen=True):
    """Refuses while others talk: `messages` entries of others in the last seconds, among the latest ones."""

    word: ClassVar[str] = "fast_conversation"
    looks: ClassVar[bool] = True

    owner: str
    actor: str
    messages: int = 3
    within: Seconds = 60
    look: int = 10
    book: Book = OWN

    def __post_init__(self) -> None:
        if not 0 < self.messages <= self.look:
            raise errors.InvalidOption(f"of {self.look} entries there are never {self.messages}: raise look")
        seconds(self.within)
        if not self.book.actor or not self.book.at:
            raise errors.InvalidOption(f"{self.book.table!r} does not tell who wrote an entry, and when")

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        """Read the latest entries of the conversation."""
        journal = JournalSteps(context.realm, self.book)
        seen = (yield from journal.recent(context.name(self.owner), self.look)).entries
        me, span = context.name(self.actor), seconds(self.within)
        since = context.now - span
        named = [(one.at, one.actor) for one in seen if one.at is not None and one.actor is not None]
        others = [at for at, actor in named if at >= since and not _is(actor, me)]
        saw = f"{len(others)} messages of others in {span:g} s"
        if len(others) < self.messages:
            return RuleResult(self.word, True, saw)
        # Once this one is too old, there are fewer than that.
        last = sorted(others, reverse=True)[self.messages - 1]
        return RuleResult(self.word, False, saw, last + span + 0.001)


class Cap(Charging, frozen=True):
    """A rule that allows up to a number in each period."""

    word: ClassVar[str] = "cap"

    counter: str
    cap: int
    per: Period = Day()
    by: int = 1
    keep: Seconds = KEEP
    table: Table = COUNTERS
    """Where it is counted: a table of totals by period will do, as the decision itself is the token."""

    def __post_init__(self) -> None:
        if amount(self.by) > amount(self.cap):
            raise errors.InvalidOption(f"by={self.by} is more than cap={self.cap}: nothing would ever pass")
        seconds(self.keep)

    @property
    def charged(self) -> Table:
        """The table that counts what was taken."""
        return self.table

    def title(self, context: RuleContext) -> str:
        """The name of this rule in records."""
        return f"{self.word}:{context.name(self.counter)}"

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        """Read the counter."""
        counter = context.counter(self.counter)
        tally = yield from context.totals[self.table.name].look(counter, per=self.per, at=context.now)
        saw = f"{tally.used} of {self.cap} in {tally.period}"
        passed = tally.used + self.by <= self.cap
        return RuleResult(self.title(context), passed, saw, None if passed else tally.resets_at)

    def prepare(self, context: RuleContext) -> Steps[None]:
        """Remove an expired total, if the decision is about a moment long ago."""
        name, span = context.realm.name(context.counter(self.counter)), self.per.span(context.now)
        return context.totals[self.table.name].clear(name, span, context.present, seconds(self.keep))

    def take(self, context: RuleContext, mark: str) -> tuple[Taken, Write]:
        """Count it, if there is room."""
        counter, span = context.counter(self.counter), self.per.span(context.now)
        table = self.table.name
        totals = context.totals[table]
        end = totals.end_of(span, context.present, seconds(self.keep))
        add = totals.adding(context.realm.name(counter), span.label, self.by, end, self.cap)
        return Taken(counter, span.label, self.by, table, self.word), add

    def refused(self, context: RuleContext, item: Item | None, now: float) -> RuleResult:
        """Report that there was no room."""
        span, used = self.per.span(context.now), 0 if item is None else item["count"]
        return RuleResult(self.title(context), False, f"{used} of {self.cap} in {span.label}", span.end)

    @classmethod
    def give_back(cls, taken: Taken, token: str, table: Table, realm: Realm) -> Write:  # noqa: ARG003
        """Subtract it from the total of its period; the record of the decision makes sure that it is once."""
        return CounterSteps(realm, table).adding(realm.name(taken.counter), taken.entry, -taken.by)


class Cooldown(Charging, frozen=True):
    """Refuses for a time after an allowed action; by the store's time, whatever moment is decided about."""

    word: ClassVar[str] = "cooldown"

    name: str
    span: Seconds

    def __post_init__(self) -> None:
        seconds(self.span)

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        """Read whether a cooldown is running."""
        found = yield from read(Get(COUNTERS, context.realm.name(context.counter(self.name)), COOLDOWN))
        if found.item is None:
            return RuleResult(self.title(context), True, f"none in the last {seconds(self.span):g} s")
        return self.refused(context, found.item, found.now)

    def take(self, context: RuleContext, mark: str) -> tuple[Taken, Write]:
        """Begin a new cooldown, if none is running."""
        counter = context.counter(self.name)
        item: Item = {"token": mark, "updated_at": NOW, "expires_at": After(seconds(self.span))}
        taken = Taken(counter, COOLDOWN, kind=self.word)
        return taken, Put(COUNTERS, context.realm.name(counter), item, ABSENT, COOLDOWN)

    def refused(self, context: RuleContext, item: Item | None, now: float) -> RuleResult:
        """Report that one is running."""
        end = now if item is None else item["expires_at"]
        saw = f"{max(0.0, end - now):.0f} s of {seconds(self.span):g} left"
        return RuleResult(self.title(context), False, saw, end)

    def title(self, context: RuleContext) -> str:
        """The name of this rule in records."""
        return f"{self.word}:{context.name(self.name)}"

    @classmethod
    def give_back(cls, taken: Taken, token: str, table: Table, realm: Realm) -> Write:
        """End the cooldown, if this decision began it."""
        return Delete(table, realm.name(taken.counter), {"token": token}, taken.entry)


class Shadow(Rule, frozen=True):
    """Refuses every action: decisions are made and recorded as usual, but nothing is allowed."""

    word: ClassVar[str] = "shadow"

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        """Refuse, whatever it is."""
        yield from ()
        return RuleResult(self.word, False, "decides and records, and never allows")


class VaryingFact(Rule, frozen=True):
    """A fact that may change between two calls for one action."""

    word: ClassVar[str] = "varying_fact"

    fact: str

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        """Allow, whatever the fact's value is."""
        yield from ()
        return RuleResult(f"{self.word}:{self.fact}", True, f"{self.fact} may change")


RULES: Final[dict[str, type[Rule]]] = {
    rule.word: rule for rule in (QuietHours, Cap, Cooldown, KillSwitch, FastConversation, Shadow, VaryingFact)
}
"""The rules that come with semel, by the word that a decision names them by."""


def _is(actor: str | int, name: str) -> bool:
    """Whether an actor has this name, in which facts that were filled in are escaped."""
    text = str(actor)
    try:
        return name in (text, part(text))
    except errors.InvalidKey:  # no name can be made of it
        return False


@functools.lru_cache(1024)
def _renderer(template: str) -> Callable[[dict[str, Any]], str]:
    if not {"{", "}"} & set(template):
        return lambda _: check(template)  # one for all actions
    return compile_template(template, inspect.signature(lambda **facts: facts))
