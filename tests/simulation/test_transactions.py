"""Thousands of worlds in which any command may be lost, doubled or late: all of an answer, or none of it."""

import itertools
import os
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

import semel
from semel import errors
from semel.core import parts
from semel.core.commands import ANY, PRESENT, Applied, Cancelled, Refused, Update
from semel.core.parts import Part, PartVerdict
from semel.errors import StoreOutcomeUnknown, StoreUnavailable
from semel.state import counters, documents, journal
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock
from semel.testing.simulation import InvariantViolation
from tests.acceptance.crash_worker import check, deal, decide
from tests.amounts import amount
from tests.seeds import ROOT
from tests.simulation import transactions

CHUNKS, WORLDS = amount(2, 1, 20), 500
# Each guard is missed within twenty worlds; more are allowed, as every change gives every seed another world.
ENOUGH = 2000

# What so many worlds have to have seen, or they prove little: about half of what they see.
EXERCISED = {
    "ClaimLost": 3,
    "all answers lost": 130,
    "allowed": 800,
    "answered": 700,
    "blocks tried again": 40,
    "clock set back": 60,
    "clock set forward": 60,
    "crash after end": 30,
    "crash before end": 200,
    "crash during end": 15,
    "delayed": 60,
    "duplicated": 60,
    "faults of transactions": 450,
    "paused": 60,
    "refunded": 600,
    "refused": 900,
    "reply lost": 130,
    "request lost": 30,
    "taken_over": 250,
}


@pytest.mark.proof("transactions")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_answer_is_everywhere_or_nowhere_in_every_world(chunk, tried):
    """No invariant is broken, and the worlds were as bad as they are meant to be."""
    total: Counter[str] = Counter()
    for seed in range(chunk * WORLDS, (chunk + 1) * WORLDS):
        total.update(transactions.run(seed))
    missing = {what: total.get(what, 0) for what, least in EXERCISED.items() if total.get(what, 0) < least}
    assert missing == {}
    tried(WORLDS, seed=f"{chunk * WORLDS} to {(chunk + 1) * WORLDS - 1}")


class Crash(BaseException):
    """The process is gone."""


FAULTS = {
    "crash before": (False, Crash()),
    "crash after": (True, Crash()),
    "reply lost": (True, StoreOutcomeUnknown("lost")),
    "request lost": (False, StoreOutcomeUnknown("lost")),
    "store down": (False, StoreUnavailable("down")),
}


class Failing(MemoryStore):
    """A store at whose n-th command something happens."""

    def __init__(self, clock):
        super().__init__(clock)
        self.asked, self.at, self.made = 0, 0, False
        self.error: BaseException = Crash()

    def execute(self, command):
        self.asked += 1
        if self.asked != self.at:
            return super().execute(command)
        if self.made:
            super().execute(command)
        raise self.error


def test_whatever_happens_to_any_one_command_all_of_it_is_there_or_none():
    """Each command of a deal and of a decision in turn meets with each fault; then it is done again."""
    clock = FakeClock()
    store = Failing(clock)
    s = semel.Semel(store, clock=clock)
    runs: Counter[tuple[bool, bool]] = Counter()
    for fault, (made, error) in FAULTS.items():
        for at in itertools.count(1):
            store.asked, store.at, store.made, store.error = 0, at, made, error
            run = f"{fault}-{at}"
            try:
                deal(s, run)
                decide(s, run)
            except (Crash, errors.StoreError):
                assert store.asked >= at
            over, store.at = store.asked < at, 0
            runs[check(s, clock, run)] += 1
            if over:
                break
    assert set(runs) == {(False, False), (True, False), (True, True)}
    assert runs.total() > 8 * len(FAULTS)


def described(seed):
    lines: list[str] = []
    transactions.run(seed, lines.append)
    return lines


def test_a_seed_is_one_world():
    assert described(7) == described(7)
    assert described(7) != described(8)


def test_a_broken_world_tells_how_to_replay_it(monkeypatch):
    monkeypatch.setattr(
        transactions.TransactionWorld, "until_quiet", lambda world: world.fail("progress", "stuck on purpose")
    )
    with pytest.raises(InvariantViolation) as broken:
        transactions.run(7)
    assert str(broken.value).startswith("progress: stuck on purpose")
    assert str(broken.value).endswith("transactions import run; run(7, print)'")


def test_nothing_hangs_on_the_hash_seed():
    program = "from tests.simulation.transactions import run; [run(seed, print) for seed in range(5)]"

    def output(hash_seed):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        return subprocess.check_output([sys.executable, "-c", program], env=environment, cwd=ROOT)

    first, second = output("1"), output("2")
    assert first == second
    assert first.count(b"\n") > 300


# Take any one guard away, and some world finds out


def torn(self, command):
    """A transaction whose writes are made one after the other, up to the first that is refused."""
    now, refusals = self._now(), []
    for write in command.writes:
        reply = self.execute(write)
        refusals.append(reply if type(reply) is Refused else None)
    return Cancelled(now, tuple(refusals)) if any(refusals) else Applied(now)


def not_sent_again(command, unknown):
    yield from ()
    raise unknown


def without_mark(original):
    """The parts of a rule, of which none recognises what it made."""

    def made(self, *args, **kwargs):
        part = original(self, *args, **kwargs)

        def judge(refusals):
            verdict = part.judge(refusals)
            return PartVerdict.STALE if verdict is PartVerdict.MADE else verdict

        return Part(part.writes, judge, part.result, part.marked)

    return made


def unguarded(original):
    """The parts of a rule, whose writes expect nothing."""

    def made(self, *args, **kwargs):
        part = original(self, *args, **kwargs)
        return Part(tuple(map(always, part.writes)), part.judge, part.result, part.marked)

    def always(write):
        return msgspec.structs.replace(write, expect=PRESENT if type(write) is Update else ANY)

    return made


def uncapped(original):
    """The writes that count, without their cap."""
    return lambda *args, **kwargs: msgspec.structs.replace(original(*args, **kwargs), cap=None)


def replaced(where, name, stand_in):
    return lambda patch: patch.setattr(where, name, stand_in)


def wrapped(where, name, wrap):
    return lambda patch: patch.setattr(where, name, wrap(getattr(where, name)))


# Each: what is taken away, and the invariants of which one is then broken.
GUARDS = {
    "all or nothing of a transaction": (
        replaced(MemoryStore, "_transact", torn),
        {"all or none", "decisions", "the cap"},
    ),
    "version of a document": (
        wrapped(documents.DocumentSteps, "_rewrite_part", unguarded),
        {"all or none", "decisions", "visits"},
    ),
    "own mark on a document": (wrapped(documents.DocumentSteps, "_rewrite_part", without_mark), {"visits"}),
    "own mark on an entry": (wrapped(journal.JournalSteps, "_entry_part", without_mark), {"visits"}),
    "room under the cap": (wrapped(counters.CounterSteps, "adding", uncapped), {"the cap"}),
    "an ended claim tells of the rest": (
        replaced(parts, "_was_made", lambda chosen, verdicts: PartVerdict.MADE in verdicts.values()),
        {"all or none"},
    ),
    "what was made is recognised": (
        replaced(parts, "_was_made", lambda chosen, verdicts: False),
        {"all or none"},
    ),
    "writes are sent again": (replaced(parts, "resend", not_sent_again), {"no surprise"}),
}


def first_broken(seeds):
    for seed in seeds:
        try:
            transactions.run(seed)
        except InvariantViolation as violation:
            return violation
    return None


@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_is_needed(name, monkeypatch):
    remove, invariants = GUARDS[name]
    with monkeypatch.context() as patch:
        remove(patch)
        violation = first_broken(range(ENOUGH))
    assert violation is not None, "nobody misses it"
    print(f"{name}: seed {violation.seed}, {violation.invariant}: {violation.what}")  # noqa: T201 - for -rP
    assert violation.invariant in invariants
    assert transactions.run(violation.seed)["steps"] > 0
