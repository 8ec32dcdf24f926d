"""An exception at any line, as out of a signal handler: no lock is left behind, and no key is held for it."""

import contextlib
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import semel
from semel import errors
from semel.core.commands import ABSENT, After, Applied, Get, Put, Time, Transact
from semel.core.running import CURRENT
from semel.tables import DOCUMENTS, JOURNAL, LEDGER
from semel.testing.conformance.harness import claimed
from tests.amounts import amount
from tests.interrupts import Interrupt, Interrupted, TimeLimit
from tests.places import open_place
from tests.servers.running import until

pytestmark = [
    pytest.mark.situation(48),
    # A connection that is torn from its thread's hands is closed as nobody has it any more.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SIGNALS = amount(3_000, 120)
STORES = ("memory", "sqlite", "postgres", "redis", "dynoxide")
# A lease that no test outlives: a key that is held stays so.
LEASE = 600
# Nobody waits for so long who is not stuck.
STUCK_SECONDS = 60


@pytest.fixture(params=STORES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path)


@pytest.fixture(params=("memory", "sqlite"))
def near(request, tmp_path):
    return open_place(request.param, request, tmp_path)


@pytest.fixture
def other():
    """Another thread, which must not wait for what this one has left behind."""
    with ThreadPoolExecutor(1) as threads:
        yield lambda function, *args: threads.submit(function, *args).result(STUCK_SECONDS)


class Work:
    """What is called, in one of the ways there are, and how often it ran."""

    def __init__(self, s):
        self.s = s
        self.runs = {}
        self.function = s.once("work:{key}", lease=LEASE, on_busy="raise")(self.run)
        self.outer = s.once("outer:{key}", lease=LEASE, on_busy="raise")(self.within)

    def within(self, key: str) -> str:
        return self.function(key)

    def run(self, key: str) -> str:
        self.runs[key] = self.runs.get(key, 0) + 1
        return f"{key}, run {self.runs[key]}"

    def block(self, key):
        try:
            with self.s.once.running("work", key, lease=LEASE, on_busy="raise") as run:
                run.result = self.run(key)
        except semel.AlreadyDone as done:
            return done.result
        return run.result

    def claim(self, key):
        claim = self.s.ledger.claim(f"work:{key}", lease=LEASE)
        assert isinstance(claim, semel.Claimed)
        return claim

    def many(self, key):
        return self.s.ledger.claim_many([f"work:{key}", f"and:{key}"], lease=LEASE)

    def held(self, key):
        now = self.s.store.execute(Time()).now
        records = [self.s.ledger.get(f"{name}:{key}") for name in ("work", "and", "outer")]
        return [r.key for r in records if r and r.status == "IN_PROGRESS" and r.lease_until > now]


def moments(place, error):
    """Every moment of a call in memory, which is quick; elsewhere some of them, and all with `make slow`."""
    stride = {"memory": 1, "sqlite": amount(1, 7)}.get(place.name, amount(1, 23))
    return itertools.count(1 if error is Interrupt else 1 + stride // 2, stride)


@pytest.mark.parametrize("error", [Interrupt, TimeLimit])
@pytest.mark.parametrize("way", ["function", "outer", "block", "claim", "many"])
def test_an_exception_at_any_line_leaves_no_lock_and_no_claim(near, other, way, error):
    with contextlib.closing(near.open()) as store:
        interrupt_everywhere(semel.Semel(store, env=near.env), other, way, error, moments(near, error))


@pytest.mark.parametrize("name", ["postgres", "redis", "dynoxide"])
def test_an_exception_at_any_line_leaves_no_claim_on_a_server(name, request, tmp_path, other):
    place = open_place(name, request, tmp_path)
    with contextlib.closing(place.open()) as store:
        s = semel.Semel(store, env=place.env)
        interrupt_everywhere(s, other, "function", Interrupt, moments(place, Interrupt))


def free(other, work, key):
    return not other(work.held, key)


def interrupt_everywhere(s, other, way, error, moments):
    work = Work(s)
    work.function("the first")
    for moment in moments:
        key, interrupted = f"{moment}", Interrupted(error, moment)
        given = None
        with contextlib.suppress(error):
            given = interrupted.call(partial(getattr(work, way), key))
        if not interrupted.came:
            break
        # It may be told by the thread of the heartbeat, where even the giving back was torn off.
        if not (given and way in ("claim", "many")):
            assert until(partial(free, other, work, key)), interrupted.place
        assert (CURRENT.get(), s._shared.heartbeats._live) == (None, {}), interrupted.place
        again = other(work.function, key)
        assert given in (None, again) or way in ("claim", "many"), interrupted.place
        if error is Interrupt:
            # What had begun is never free: the next attempt is known to be another one.
            assert s.ledger.get(f"work:{key}").attempt - work.runs[key] in (0, 1), interrupted.place
    assert moment >= 25


# A call takes fewer frames than this on every store.
ROOM = 80


def nested(depth, function):
    return function() if depth == 0 else nested(depth - 1, function)


@pytest.mark.parametrize("way", ["function", "block"])
def test_a_call_near_the_recursion_limit_leaves_no_claim(place, other, way):
    """At every depth at which a call, or the giving back of its key, has too little room."""
    with contextlib.closing(place.open()) as store:
        work = Work(semel.Semel(store, env=place.env))
        work.function("the first")
        refused = 0
        deepest = sys.getrecursionlimit() - len(inspect.stack(0))
        for number in range(2 * ROOM):  # the second time nothing is done for the first time, which takes more
            room = 2 + number % ROOM
            try:
                nested(deepest - room, partial(getattr(work, way), f"{number}"))
            except RecursionError:
                refused += 1
            assert until(partial(free, other, work, f"{number}")), room
        assert 0 < refused < 2 * ROOM


def test_under_hold_what_had_begun_is_a_doubt_and_what_had_not_is_none(near):
    with contextlib.closing(near.open()) as store:
        s = semel.Semel(store, env=near.env)
        runs = []

        @s.once("work:{key}", lease=LEASE, on_lapsed="hold")
        def work(key: str) -> None:
            runs.append(key)

        work("the first")
        for moment in moments(near, Interrupt):
            key, interrupted = f"{moment}", Interrupted(Interrupt, moment)
            with contextlib.suppress(Interrupt):
                interrupted.call(partial(work, key))
            if not interrupted.came:
                break
            record = s.ledger.get(f"work:{key}")
            if record is None or record.status == "RELEASED":
                assert key not in runs, interrupted.place
                assert record is None or (record.doubt_since is None and record.expires_at < float("inf"))
                assert work(key) is None
            elif record.status == "IN_PROGRESS":
                with pytest.raises(semel.OutcomeUnknown):
                    work(key)
            else:
                assert record.status == "COMPLETED"
            assert runs.count(key) <= 1
        assert moment > 25


@pytest.mark.parametrize("error", [Interrupt, TimeLimit])
def test_a_transaction_that_is_interrupted_is_made_whole_or_not_at_all(near, other, error):
    end = {"expires_at": After(LEASE)}

    def both(key):
        return Transact((Put(DOCUMENTS, key, end, ABSENT), Put(JOURNAL, key, end, ABSENT, sort="1")))

    with contextlib.closing(near.open()) as store:
        store.execute(both("the first"))
        for moment in itertools.count(1):
            key, interrupted = f"{moment}", Interrupted(error, moment)
            with contextlib.suppress(error):
                interrupted.call(partial(store.execute, both(key)))
            if not interrupted.came:
                break
            found = [
                other(store.execute, get).item for get in (Get(DOCUMENTS, key), Get(JOURNAL, key, sort="1"))
            ]
            assert found.count(None) in (0, 2), interrupted.place
            assert type(other(store.execute, Put(LEDGER, key, end))) is Applied
        assert moment > 25


@contextlib.contextmanager
def handled(handler):
    """A handler for signals that this process sends itself."""
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Signalled:
    """A clock that sends a signal to its process when a store asks it for the time, as in a write."""

    def __init__(self, clock):
        self._clock = clock
        self.armed = False

    def now(self):
        if self.armed:
            self.armed = False
            os.kill(os.getpid(), signal.SIGUSR1)
        return self._clock()


@pytest.mark.parametrize("does", ["write", "read", "close"])
def test_a_handler_that_writes_or_closes_during_a_write_of_its_own_thread_does_not_hang(near, does):
    """It works, or it is told why it cannot."""
    store = near.open()
    told = []

    def handler():
        try:
            if does == "write":
                store.execute(Put(LEDGER, "by the handler", {"expires_at": After(LEASE)}, ABSENT))
            elif does == "read":
                told.append(store.execute(Get(LEDGER, "k")).item)
            else:
                store.close()
        except errors.WriteUnderWay as error:
            told.append(error)

    owner, name = (store._commands, "passed") if near.name == "sqlite" else (store, "_now")
    clock = Signalled(getattr(owner, name))
    setattr(owner, name, clock.now)
    with handled(handler):
        store.execute(Put(LEDGER, "before", {"expires_at": After(LEASE)}, ABSENT))
        clock.armed = True
        assert type(store.execute(Put(LEDGER, "k", {"expires_at": After(LEASE)}, ABSENT))) is Applied
    if does == "write":
        assert "let the handler take a note" in str(told[0])
    if does == "close":
        with pytest.raises(errors.StoreClosed):
            store.execute(Put(LEDGER, "after", {"expires_at": After(LEASE)}, ABSENT))
        return
    assert type(store.execute(Put(LEDGER, "after", {"expires_at": After(LEASE)}, ABSENT))) is Applied
    store.close()


def test_a_handler_may_write_while_its_thread_waits_for_another(near):
    """As it waits for a key, which another thread holds."""
    with contextlib.closing(near.open()) as store:
        s = semel.Semel(store, env=near.env)
        claim, waiting = claimed(s.ledger.claim("held", lease=LEASE)), threading.Event()
        with handled(lambda: s.ledger.complete(claim, "by the handler")), ThreadPoolExecutor(1) as threads:

            def signal_once_it_waits():
                assert until(lambda: len(store._watchers) > 0)
                os.kill(os.getpid(), signal.SIGUSR1)
                waiting.set()

            threads.submit(signal_once_it_waits)
            record = s.ledger.wait("held", timeout=STUCK_SECONDS)
        assert waiting.is_set()
        assert record.status == "COMPLETED"


def test_a_handler_may_write_and_close_on_a_server_too(request, tmp_path):
    """There a write is a conversation of its own."""
    for name in ("postgres", "redis", "dynoxide"):
        place = open_place(name, request, tmp_path)
        with contextlib.closing(place.open()) as store:
            s = semel.Semel(store, env=place.env)
            done: list[bool] = []

            def write(s=s, done=done):
                done.append(s.ledger.check_and_set("by the handler"))

            with handled(write):

                @s.once("work:{key}")
                def work(key: str) -> str:
                    os.kill(os.getpid(), signal.SIGUSR1)
                    return key

                assert work("a") == "a"
            with handled(s.close), contextlib.suppress(errors.StoreClosed):
                work("b")
        assert done == [True]


@pytest.mark.timeout(300)
@pytest.mark.proof("signals")
def test_signals_at_random_moments_leave_no_lock_and_no_key_and_lose_no_result(place, tried):
    """A process is hit by a signal in every call, then by a storm of them."""
    program = [sys.executable, "-m", "tests.acceptance.signal_worker"]
    child = subprocess.run(
        [*program, place.url(), place.env, "48", str(SIGNALS)], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-4000:]
    said = json.loads(child.stdout)
    assert (said["wrong"], said["beating"]) == ([], 0)
    assert said["hits"] >= SIGNALS
    assert said["stormy"] > 0
    tried(said["hits"], seed="48")
