"""Kill switches: one turn stops every worker within a second, and costs those who decide no look at all."""

import itertools
import os
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import semel
from semel.core.commands import Get, Time
from semel.errors import InvalidKey, InvalidOption, RecordCorrupt, StoreUnavailable
from semel.gate import Cap, KillSwitch
from semel.redact import Redactor
from semel.state import switches
from semel.state.switches import KEY, Switch, SwitchCache
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty
from tests.places import open_place
from tests.state.conftest import Async, Sync
from tests.state.crowds import crowd, opened, workers

WORKER = Path(__file__).with_name("switch_worker.py")
SAFE = KillSwitch("safe_mode")
# Longer than any busy machine takes; nothing is decided by it but that a test has failed.
PATIENCE = 60


@pytest.fixture
def place(room):
    return room


def allowed(key, *rules):
    return lambda s: s.gate(*(rules or (SAFE,))).decide(key, chat=1)


def turn(on, name="safe_mode", reason=""):
    return lambda s: s.switches.turn(name, on=on, reason=reason)


@pytest.fixture
def frozen(monkeypatch):
    """A process whose threads do not run, as one that is frozen between two calls: who decides looks."""
    monkeypatch.setattr(SwitchCache, "watch", lambda *_: None)


@pytest.fixture
def eager(monkeypatch):
    """The thread looks a hundred times a second."""
    monkeypatch.setattr(switches, "LOOK_SECONDS", 0.01)


class Watched(Faulty):
    """A store that can be down, and that tells apart who asks: whoever decides, or the thread that looks."""

    def __init__(self, store):
        super().__init__(store)
        self.down = False
        self.looked = threading.Event()

    def at_once(self, command):
        return None

    def _begin(self, command):
        mine = threading.current_thread().name != "semel-switches"
        if mine:
            self.seen.append(command)
        if self.down and not isinstance(command, Time):
            if not mine:
                self.looked.set()
            raise StoreUnavailable("the store cannot be reached")
        if not mine:
            self.looked.set()

    @property
    def gets(self):
        return [command.key for command in self.seen if isinstance(command, Get)]


# How they stand


@pytest.mark.seed("R8")
def test_switches_tell_how_they_stand_since_when_and_why(do, clock):
    assert do(lambda s: s.switches.list()) == {}
    do(turn(True, reason="they complain"))
    since = clock.now()
    clock.advance(60)
    do(turn(False, "automation_enabled"))
    assert do(lambda s: s.switches.list()) == {
        "safe_mode": Switch(on=True, since=since, reason="they complain"),
        "automation_enabled": Switch(on=False, since=since + 60),
    }
    do(turn(False))
    assert do(lambda s: s.switches.list())["safe_mode"] == Switch(on=False, since=since + 60)


def test_a_reason_is_kept_without_what_is_personal_in_it(clock):
    """It is copied into every decision that the switch refuses."""
    with semel.connect("memory:", clock=clock, redact=Redactor()) as s:
        s.switches.turn("safe_mode", on=True, reason="ann@example.com complained")
        assert s.switches.list()["safe_mode"].reason == "***@*** complained"


def test_of_many_who_turn_different_switches_none_is_forgotten(place, way, clock):
    with workers(place, way, 2, clock=clock) as ways:
        crowd(ways, [turn(True, f"switch{number}") for number in range(8)])
        assert len(ways[0](lambda s: s.switches.list())) == 8


def test_a_lost_answer_turns_a_switch_all_the_same(place, way):
    with place.forgetful() as (stores, lost), opened(way, stores[0], place) as do:
        do(turn(True))
        assert do(lambda s: s.switches.list())["safe_mode"].on is True
        assert lost() >= 1


def test_a_switch_is_the_same_in_every_scope_of_an_environment(do, clock):
    """It stops all tenants, whoever has turned it, and no other environment."""
    do(lambda s: s.scoped("tenant").switches.turn("safe_mode", on=True))
    assert not do(allowed("reply:1")).allowed
    assert not do(lambda s: s.scoped("other").gate(SAFE).decide("reply:1")).allowed


def test_what_is_no_switch_is_refused(do):
    for wrong, error, words in [
        (turn(True, ""), InvalidKey, "must not be empty"),
        (turn("off"), InvalidOption, "on=True or on=False"),
        (turn(1), InvalidOption, "on=True or on=False"),
    ]:
        with pytest.raises(error, match=words):
            do(wrong)
    assert do(lambda s: s.switches.list()) == {}


# Other workers


@pytest.mark.seed("R8")
def test_another_worker_stops_within_a_second(place, way, clock, frozen):
    """Also one that was frozen: what it saw a second ago decides nothing, so it looks first."""
    with workers(place, way, 2, clock=clock) as ways:
        here, elsewhere = ways[0], ways[-1]
        assert elsewhere(allowed("reply:1")).allowed
        here(turn(True))
        clock.advance(1)
        assert elsewhere(allowed("reply:2")).reason == "kill_switch:safe_mode"
        here(turn(False))
        clock.advance(3600)
        assert elsewhere(allowed("reply:3")).allowed


def said(process, number):
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer in ("True\n", "False\n")
    return answer == "True\n"


@contextmanager
def another_process(place, way):
    command = [sys.executable, str(WORKER), place.url(), place.env, way]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait()


@pytest.mark.seed("R8")
@pytest.mark.parametrize(
    ("name", "way"),
    [("sqlite", "sync"), ("sqlite", "async"), ("dynoxide", "sync"), ("postgres", "sync"), ("redis", "async")],
)
def test_another_process_stops_within_a_second(request, tmp_path, name, way):
    """Whatever it is asked a second after the turn, it refuses; until then it may refuse already."""
    place = open_place(name, request, tmp_path)
    with another_process(place, way) as process, closing(place.open()) as store:
        s = semel.Semel(store, env=place.env)
        numbers = itertools.count()
        assert said(process, next(numbers))
        for on in (True, False):
            s.switches.turn("safe_mode", on=on)
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline and said(process, next(numbers)) is on:
                pass
            assert said(process, next(numbers)) is not on


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_looks_for_itself(tmp_path):
    """Threads do not survive a fork: a child starts its own, and stops when somebody turns the switch."""
    path = f"sqlite:///{tmp_path / 'semel.db'}"
    with closing(semel.connect(path)) as s:
        gate = s.gate(SAFE)
        assert gate.decide("reply:1").allowed
        turned, told = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _refused(gate, turned)
            finally:
                os._exit(code)
        s.switches.turn("safe_mode", on=True)
        os.write(told, b"!")
        _, status = os.waitpid(child, 0)
        os.close(turned)
        os.close(told)
        assert os.waitstatus_to_exitcode(status) == 0


def _refused(gate, turned):
    """0 where the child refuses within its patience, and has a thread that looks."""
    assert gate.decide("child:0").allowed in (True, False)
    looks = "semel-switches" in {thread.name for thread in threading.enumerate()}
    os.read(turned, 1)
    deadline = time.monotonic() + PATIENCE
    number = 0
    while gate.decide(f"child:{number}").allowed and time.monotonic() < deadline:
        number += 1
    return 0 if looks and time.monotonic() < deadline else 1


# What it costs


@pytest.mark.seed("R8")
@pytest.mark.parametrize("way", [Sync, Async])
def test_a_thousand_decisions_cost_no_look_each(way, frozen):
    """One look, while it is fresh; and one a second where nobody else looks."""
    clock = FakeClock()
    store = Watched(MemoryStore(clock))
    with closing(way(store, clock=clock)) as do:
        for number in range(1000):
            assert do(allowed(f"reply:{number}")).allowed
        assert store.gets == [f"dev//{KEY}"]
        for number in range(1000):
            clock.advance(0.01)
            assert do(allowed(f"later:{number}")).allowed
        assert len(store.gets) <= 1 + 10


@pytest.mark.parametrize("way", [Sync, Async])
def test_while_the_thread_looks_nobody_who_decides_does(way, eager):
    """It goes on looking while the process decides, and what it sees is what decides."""
    clock = FakeClock()
    store = Watched(MemoryStore(clock))
    with closing(way(store, clock=clock)) as do:
        do(allowed("reply:0"))
        assert len(store.gets) == 1
        for number in range(5):
            clock.advance(0.9)
            store.looked.clear()
            assert store.looked.wait(PATIENCE)
            store.looked.clear()
            assert store.looked.wait(PATIENCE)  # the one before it has been noted by now
            do(allowed(f"reply:{number}"))
        assert len(store.gets) == 1
        do(turn(True))
        gets = len(store.gets)
        for _ in range(2):
            store.looked.clear()
            assert store.looked.wait(PATIENCE)
        assert not do(allowed("reply:last")).allowed
        assert len(store.gets) == gets


# When the store is down


@pytest.mark.seed("R8")
def test_while_the_store_is_down_nothing_is_allowed(place, way, clock, frozen):
    """Neither while what was seen is fresh nor after that; and all is well when it is back."""
    store = Watched(place.open(clock))
    cap = Cap("replies:{chat}", 5)
    with opened(way, store, place, clock=clock) as do:
        assert do(allowed("reply:1", SAFE, cap)).allowed
        store.down = True
        with pytest.raises(StoreUnavailable):
            do(allowed("reply:2", SAFE, cap))
        clock.advance(2)
        for key in ("reply:1", "reply:2"):
            with pytest.raises(StoreUnavailable):
                do(allowed(key, SAFE, cap))
        store.down = False
        assert do(lambda s: s.counters.look("replies:1")).used == 1
        assert do(allowed("reply:2", SAFE, cap)).allowed


def test_the_thread_looks_on_after_an_outage(eager):
    clock = FakeClock()
    store = Watched(MemoryStore(clock))
    with closing(semel.Semel(store, clock=clock)) as s:
        s.gate(SAFE).decide("reply:1")
        for down in (True, False):
            store.down = down
            for _ in range(2):
                store.looked.clear()
                assert store.looked.wait(PATIENCE)


def test_what_cannot_be_read_stops_everything(do, clock):
    """A document in the place of the switches that has none in it is no permission."""
    do(lambda s: s.scoped("").documents.put(KEY, {"safe_mode": "perhaps"}))
    with pytest.raises(RecordCorrupt, match="it has no switches"):
        do(allowed("reply:1"))
    assert do(lambda s: s.ledger.get("reply:1>>gate")) is None


# The thread


def looking():
    return [thread for thread in threading.enumerate() if thread.name == "semel-switches"]


def begun(before):
    """Those that look since then; others, which another test has left, may end at any time."""
    return [thread for thread in looking() if thread not in before]


def ended(before):
    """Wait for the threads that look to end, those aside that others have left."""
    for thread in looking():
        if thread not in before:
            thread.join(PATIENCE)
    return [thread for thread in looking() if thread not in before]


@pytest.mark.parametrize("way", [Sync, Async])
def test_the_thread_ends_when_nobody_decides_any_more_and_when_all_is_closed(way, eager):
    """It begins with the first decision that asks for a switch, and again with one after a rest."""
    before, clock = looking(), FakeClock()
    with closing(way(MemoryStore(clock), clock=clock)) as do:
        do(allowed("reply:0", Cap("replies:{chat}", 5)))
        assert begun(before) == []
        for number in range(2):
            do(allowed(f"reply:{number}"))
            do.together([allowed(f"more:{number}:{each}") for each in range(10)])
            assert len(begun(before)) == 1
            clock.advance(switches.IDLE_SECONDS + 1)
            assert ended(before) == []
        do(allowed("reply:2"))
        assert len(begun(before)) == 1
    assert ended(before) == []


def test_what_was_seen_earlier_replaces_nothing_that_was_seen_later():
    """A look that took long tells nothing new."""
    clock = FakeClock()
    cache = SwitchCache(MemoryStore(clock), clock)
    new, old = {"a": Switch(on=True, since=2)}, {"a": Switch(on=False, since=1)}
    clock.advance(10)
    cache.note(new, 9.5)
    cache.note(old, 9.4)
    assert cache.fresh() == new
    clock.advance(0.5)
    assert cache.fresh() is None
