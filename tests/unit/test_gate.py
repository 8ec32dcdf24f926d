"""Charges and decisions in whatever order their commands, their lost answers and their late copies come."""

import random
from typing import Any, ClassVar

import pytest

import semel
from semel.apps.tables import SUPPORT_AUDIT
from semel.core.commands import ABSENT, NOW, After, Delete, Put, Query, Steps, Write
from semel.core.ledger import LedgerSteps
from semel.core.parts import alone
from semel.core.realm import Realm
from semel.errors import CapReached, InvalidOption, StoreOutcomeUnknown, UsageError
from semel.gate import (
    Allowed,
    Cap,
    Charging,
    Cooldown,
    FastConversation,
    GateSteps,
    QuietHours,
    Refused,
    RuleContext,
    RuleResult,
    Taken,
)
from semel.state.journal import BOOKS
from semel.state.switches import SwitchCache, SwitchSteps
from semel.state.transaction import Rules
from semel.stores.memory import MemoryStore
from semel.tables import COUNTERS, LEDGER, Table
from semel.testing import FakeClock
from semel.testing.faulty import WRITES

SEEDS = 300
# Two of them want to send the same message, twice over.
SENDERS = 7
MESSAGES = 5
CAP = 3


class Street:
    """Senders at work, one command at a time in an order of chance, on a line that loses and repeats."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.copies = []
        self.told = {}

    def run(self, senders):
        """Until every sender is done, or gone, and every copy has come through."""
        waiting = {name: (steps, None, None) for name, steps in senders.items()}
        while waiting or self.copies:
            if self.copies and (not waiting or self.chance.random() < 0.2):
                self.store.execute(self.copies.pop(self.chance.randrange(len(self.copies))))
                continue
            name = self.chance.choice(sorted(waiting))
            steps, reply, error = waiting.pop(name)
            try:
                command = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as end:
                self.told[name] = end.value
            except (CapReached, StoreOutcomeUnknown) as refusal:
                self.told[name] = refusal
            else:
                if self.chance.random() > 0.02:  # else it is killed
                    waiting[name] = (steps, *self._answered(command))

    def _answered(self, command):
        if not isinstance(command, WRITES):
            return self.store.execute(command), None
        fate = self.chance.random()
        if fate < 0.2:
            self.copies.append(command)  # it may come late
        reply = None if fate < 0.1 else self.store.execute(command)
        return (None, StoreOutcomeUnknown("lost")) if fate < 0.4 else (reply, None)

    def certain(self, number):
        """Whether everybody who wanted to send this message was told what became of it."""
        mine = [self.told.get(f"sender{each}") for each in range(SENDERS) if each % MESSAGES == number]
        # A charge that was refused leaves no mark: if a copy of it comes late, when there is room, it counts.
        # Of the gate nobody is told so, since it writes its refusals down.
        return not any(one is None or isinstance(one, StoreOutcomeUnknown | CapReached) for one in mine)

    def items(self, table):
        return self.store.execute(Query(table, limit=1000)).items


def rules():
    from semel.state.counters import CounterSteps
    from semel.state.documents import DocumentSteps
    from semel.state.journal import JournalSteps

    realm = Realm()
    return Rules(LedgerSteps(realm), DocumentSteps(realm), JournalSteps(realm), CounterSteps(realm))


def charged(counters, token, *, fails, given_back):
    """A sender: charged under a token, which another one may have too; who fails to send gives it back."""
    made = yield from alone(counters.charge("replies", cap=CAP, token=token), counters.realm.token())
    if fails:
        given_back.add(made.id)
        yield from alone(counters.refund(made), counters.realm.token())
    return made


@pytest.mark.seed("H5")
def test_in_any_order_of_things_a_total_is_what_is_charged():
    """Never more than the cap, and exactly as many as the charges that stand; and each is somebody's."""
    granted = 0
    for seed in range(SEEDS):
        street = Street(seed)
        given_back: set[str] = set()
        counters = rules().counters
        street.run(
            {
                f"sender{number}": charged(
                    counters, f"m{number % MESSAGES}", fails=number % 3 == 0, given_back=given_back
                )
                for number in range(SENDERS)
            }
        )
        items = street.items(COUNTERS)
        standing = {item["entry"]: item["token"] for item in items if item.get("state") == "charged"}
        [total] = [item["count"] for item in items if "count" in item] or [0]
        assert total == len(standing) <= CAP, seed
        held = {made.id for made in street.told.values() if not isinstance(made, Exception)}
        assert held - given_back <= set(standing.values()), seed
        known = {standing.get(f"charge:m{number}") for number in range(MESSAGES) if street.certain(number)}
        assert known - {None} <= held - given_back, seed
        granted += len(held)
    assert granted > SEEDS


def decided(gate, key, *, fails, given_back):
    decision = yield from gate.decide(key)
    if fails and isinstance(decision, Allowed):
        given_back.add(decision.token)
        yield from gate.refund(decision)
    return decision


@pytest.mark.seed("H5")
def test_in_any_order_of_things_a_total_is_what_was_allowed():
    """The same of the gate: what stands as allowed has been counted once, and nothing else has."""
    granted = 0
    for seed in range(SEEDS):
        street = Street(seed)
        given_back: set[str] = set()
        house = rules()
        cache = SwitchCache(street.store, street.clock)
        switches = SwitchSteps(house.counters.realm, cache, street.clock)
        gate = GateSteps(house, switches, [Cap("replies", CAP), Cap("all", 100)])
        street.run(
            {
                f"sender{number}": decided(
                    gate, f"reply:{number % MESSAGES}", fails=number % 3 == 0, given_back=given_back
                )
                for number in range(SENDERS)
            }
        )
        records = [item for item in street.items(LEDGER) if item["status"] == "COMPLETED"]
        standing = {item["id"]: item["token"] for item in records if b'"allowed"' in item["result"]}
        totals = {item["counter"]: item["count"] for item in street.items(COUNTERS)}
        for counter in ("dev//replies", "dev//all"):
            assert totals.get(counter, 0) == len(standing) <= CAP, seed
        held = {one.token for one in street.told.values() if isinstance(one, Allowed)}
        assert held - given_back <= set(standing.values()), seed
        ids = [f"dev//reply:{number}>>gate" for number in range(MESSAGES) if street.certain(number)]
        assert {standing.get(id) for id in ids} - {None} <= held - given_back, seed
        granted += len(held)
        assert all(isinstance(one, Allowed | Refused | Exception) for one in street.told.values())
    assert granted > SEEDS


WRONG = [
    (lambda: Cap("replies", 0), "whole numbers from 1"),
    (lambda: Cap("replies", 3, by=4), "nothing would ever pass"),
    (lambda: Cap("replies", 3, by=True), "whole numbers from 1"),
    (lambda: Cap("replies", 3, keep=-1), "positive"),
    (lambda: Cooldown("pace", 0), "positive"),
    (lambda: QuietHours("22:00", "22:00"), "never ends"),
    (lambda: QuietHours("22:00", "25:00"), "two times of day"),
    (lambda: QuietHours("22:00", "07:00", "Europe/Atlantis"), "no time zone"),
    (lambda: FastConversation("chat", "bot", messages=11), "raise look"),
    (lambda: FastConversation("chat", "bot", messages=0), "never 0"),
    (lambda: FastConversation("chat", "bot", within=-1), "positive"),
    (lambda: FastConversation("chat", "bot", book=BOOKS[SUPPORT_AUDIT.name]), "does not tell who"),
]


@pytest.mark.parametrize(("make", "words"), WRONG, ids=[words for _, words in WRONG])
def test_a_rule_that_cannot_work_is_refused_when_it_is_made(make, words):
    with pytest.raises(InvalidOption, match=words):
        make()


# A rule's whole life


class Seat(Charging, frozen=True):
    """One at a time, until it is given back."""

    word: ClassVar[str] = "seat"
    name: str

    def title(self, context: RuleContext) -> str:
        return f"seat:{context.name(self.name)}"

    def see(self, context: RuleContext) -> Steps[RuleResult]:
        yield from ()
        return RuleResult(self.title(context), True, "free")

    def take(self, context: RuleContext, mark: str) -> tuple[Taken, Write]:
        name = context.counter(self.name)
        item = {"token": mark, "updated_at": NOW, "expires_at": After(600)}
        return Taken(name, "seat", kind=self.word), Put(
            COUNTERS, context.realm.name(name), item, ABSENT, "seat"
        )

    def refused(self, context: RuleContext, item: Any, now: float) -> RuleResult:
        return RuleResult(self.title(context), False, "taken")

    @classmethod
    def give_back(cls, taken: Taken, token: str, table: Table, realm: Realm) -> Write:
        return Delete(table, realm.name(taken.counter), {"token": token}, "seat")


def test_a_rule_of_ones_own_says_how_it_takes_and_how_it_is_given_back() -> None:
    s = semel.connect(clock=FakeClock())
    gate = s.gate(Seat("table:{number}"))
    first = gate.decide("sit:1", number=7)
    assert isinstance(first, Allowed)
    assert gate.decide("sit:2", number=7).reason == "seat:table:7"
    with pytest.raises(UsageError, match="taken by a rule 'seat'"):
        s.gate(Cap("others", 3)).refund(first)
    assert gate.refund(first) is True
    assert gate.decide("sit:3", number=7).allowed


def test_a_rule_that_takes_something_has_a_word() -> None:
    class Nameless(Seat, frozen=True):
        word: ClassVar[str] = ""

    with pytest.raises(InvalidOption, match="needs a word"):
        semel.connect().gate(Nameless("table"))


def test_a_cooldown_goes_by_the_present_whatever_moment_is_decided_about() -> None:
    clock = FakeClock()
    s = semel.connect(clock=clock)
    gate = s.gate(Cooldown("pause", 60))
    assert gate.decide("reply:1", at=clock.now() - 86400).allowed
    assert not gate.decide("reply:2", at=clock.now() + 86400).allowed
    clock.advance(60)
    assert gate.decide("reply:3", at=clock.now() - 86400).allowed
