"""The rules of a gate: values that say what they see."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from semel import errors
from semel.commands import (
    ABSENT,
    NOW,
    After,
    AnyOf,
    AtMost,
    Get,
    Item,
    Put,
    Steps,
    Write,
    read,
)
from semel.counters import KEEP, CounterSteps, amount
from semel.journal import OWN, Book, JournalSteps
from semel.keys import check, compile_template, part
from semel.ledger import Seconds, seconds
from semel.periods import Day, Period, Window
from semel.realm import Realm
from semel.switches import Switch
from semel.tables import COUNTERS, Table

SWITCH = "kill_switch:"

# The row of a cooldown, in the partition of its name.
COOLDOWN = "cooldown"

# What a counter's name ends with that counts in the shadow: no name that is made of parts ends so.
SHADOWED = ">>shadow"


class Sight(msgspec.Struct, frozen=True):
    """What one rule saw."""

    rule: str
    passed: bool
    saw: str
    not_before: float | None = None
    """From when it would pass, as far as it can tell."""


class Taken(msgspec.Struct, frozen=True):
    """What an allowed action has used up, and a refund gives back."""

    counter: str
    entry: str
    by: int = 0
    """0 for a cooldown."""
    table: str = COUNTERS.name


class View(msgspec.Struct, frozen=True):
    """What rules look at."""

    facts: dict[str, Any]
    now: float
    """The moment that is decided about: the present, unless the caller said otherwise."""
    present: float
    switches: dict[str, Switch]
    realm: Realm
    shadow: bool = False

    def name(self, template: str) -> str:
        """A name with the facts filled in."""
        return _renderer(template)({"facts": self.facts})

    def counter(self, template: str) -> str:
        """The same for what is counted; a shadow counts beside, as if it had sent."""
        return self.name(template) + (SHADOWED if self.shadow else "")


# Rules


class Rule(msgspec.Struct, frozen=True):
    """Something that may refuse."""

    looks: ClassVar[bool] = False
    """It has to read something first, and is not asked where another one has refused already."""

    def see(self, view: View) -> Steps[Sight]:
        """What it sees now, changing nothing."""
        raise NotImplementedError


class Charging(Rule, frozen=True):
    """A rule whose condition is part of the write that records the decision."""

    looks: ClassVar[bool] = True

    def title(self, view: View) -> str:
        """Which one it is."""
        raise NotImplementedError

    def take(self, view: View, mark: str) -> tuple[Taken, Write]:
        """What an action uses up, and the write that does so if there is any left."""
        raise NotImplementedError

    def refused(self, view: View, item: Item | None, now: float) -> Sight:
        """What it saw that refused the write."""
        raise NotImplementedError


class QuietHours(Rule, frozen=True):
    """Nothing between these hours of the day, by the clocks of a time zone."""

    start: str
    end: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        Window(self.start, self.end, self.zone)

    def see(self, view: View) -> Steps[Sight]:
        """What the clock there shows."""
        yield from ()
        window = _window(self.start, self.end, self.zone)
        hours = f"quiet from {self.start} to {self.end} in {self.zone}"
        if window.holds(view.now):
            return Sight("quiet_hours", False, hours, window.ends(view.now))
        return Sight("quiet_hours", True, f"outside: {hours}")


# Making one checks its zone and its hours.
_window = functools.lru_cache(256)(Window)


class KillSwitch(Rule, frozen=True):
    """Nothing while a switch is on; or, with `stops_when=False`, while it is off."""

    switch: str
    stops_when: bool = True
    unset: bool | None = None
    """How a switch counts that was never turned; it lets everything pass unless this says otherwise."""

    def see(self, view: View) -> Steps[Sight]:
        """How it stood less than a second ago."""
        yield from ()
        switch = view.switches.get(self.switch)
        unset = not self.stops_when if self.unset is None else self.unset
        on = unset if switch is None else switch.on
        saw = f"{self.switch} is {'on' if on else 'off'}"
        if switch is not None and switch.reason:
            saw += f": {switch.reason}"
        return Sight(SWITCH + self.switch, on is not self.stops_when, saw)


class FastConversation(Rule, frozen=True):
    """Nothing while others talk: so many entries of others in the last seconds, among the latest ones."""

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

    looks: ClassVar[bool] = True

    def see(self, view: View) -> Steps[Sight]:
        """The latest entries of the conversation."""
        journal = JournalSteps(view.realm, self.book)
        signs = yield from journal.recent(view.name(self.owner), self.look)
        me, span = view.name(self.actor), seconds(self.within)
        since = view.now - span
        others = [at for actor, at in signs if actor is not None and not _is(actor, me) and at >= since]
        saw = f"{len(others)} messages of others in {span:g} s"
        if len(others) < self.messages:
            return Sight("fast_conversation", True, saw)
        # Once this one is too old, there are fewer than that.
        last = sorted(others, reverse=True)[self.messages - 1]
        return Sight("fast_conversation", False, saw, last + span + 0.001)


class Cap(Charging, frozen=True):
    """At most so many in each period."""

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

    def counters(self, realm: Realm) -> CounterSteps:
        """What counts there."""
        return CounterSteps(realm, self.table)

    def see(self, view: View) -> Steps[Sight]:
        """How the counter stands."""
        tally = yield from self.counters(view.realm).look(
            view.counter(self.counter), per=self.per, at=view.now
        )
        saw = f"{tally.used} of {self.cap} in {tally.period}"
        passed = tally.used + self.by <= self.cap
        return Sight(self.title(view), passed, saw, None if passed else tally.resets_at)

    def take(self, view: View, mark: str) -> tuple[Taken, Write]:
        """Count it, if there is room."""
        span, counter = self.per.span(view.now), view.counter(self.counter)
        room = AnyOf((ABSENT, AtMost("count", self.cap - self.by)))
        total = self.counters(view.realm).adding(counter, self.by, span, view.present, self.keep)
        taken = Taken(counter, span.label, self.by, self.table.name)
        return taken, msgspec.structs.replace(total, when=room)

    def refused(self, view: View, item: Item | None, now: float) -> Sight:
        """There was no room."""
        span = self.per.span(view.now)
        used = 0 if item is None else item["count"]
        return Sight(self.title(view), False, f"{used} of {self.cap} in {span.label}", span.end)

    def title(self, view: View) -> str:
        """Which one it is."""
        return f"cap:{view.name(self.counter)}"


class Cooldown(Charging, frozen=True):
    """At most one in so many seconds."""

    name: str
    span: Seconds

    def __post_init__(self) -> None:
        seconds(self.span)

    def see(self, view: View) -> Steps[Sight]:
        """Whether the time since the last one is over."""
        found = yield from read(Get(COUNTERS, view.realm.name(view.counter(self.name)), COOLDOWN))
        if found.item is None:
            return Sight(self.title(view), True, f"none in the last {seconds(self.span):g} s")
        return self.refused(view, found.item, found.now)

    def take(self, view: View, mark: str) -> tuple[Taken, Write]:
        """Begin a new one, if none is running."""
        counter = view.counter(self.name)
        item: Item = {"token": mark, "updated_at": NOW, "expires_at": After(seconds(self.span))}
        return Taken(counter, COOLDOWN), Put(COUNTERS, view.realm.name(counter), item, ABSENT, COOLDOWN)

    def refused(self, view: View, item: Item | None, now: float) -> Sight:
        """One was running."""
        end = now if item is None else item["expires_at"]
        saw = f"{max(0.0, end - now):.0f} s of {seconds(self.span):g} left"
        return Sight(self.title(view), False, saw, end)

    def title(self, view: View) -> str:
        """Which one it is."""
        return f"cooldown:{view.name(self.name)}"


class Shadow(Rule, frozen=True):
    """Decide and record as if it were for real, and never allow."""

    def see(self, view: View) -> Steps[Sight]:
        """Itself."""
        yield from ()
        return Sight("shadow", False, "decides and records, and never allows")


def _is(actor: str | int, name: str) -> bool:
    """Whether an actor is the one of this name, in which a fact that was filled in is escaped."""
    text = str(actor)
    try:
        return name in (text, part(text))
    except errors.InvalidKey:  # nobody can be asked for by such a name
        return False


def is_switch(reason: str) -> bool:
    """Whether a kill switch is the reason."""
    return reason.startswith(SWITCH)


@functools.lru_cache(1024)
def _renderer(template: str) -> Callable[[dict[str, Any]], str]:
    if not {"{", "}"} & set(template):
        return lambda _: check(template)  # one for all: a cap of the house, say, or the name of the assistant
    return compile_template(template, inspect.signature(_facts))


def _facts(**facts: Any) -> None:
    """What a gate is told of an action."""
