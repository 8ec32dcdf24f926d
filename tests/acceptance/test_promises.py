"""The promise, on every store: at most one accepted result per key, and never two live holders of a claim."""

import asyncio
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

import semel
from semel.core.clock import Clock
from semel.core.commands import ABSENT, Add, After, Delete, Get, Put, Update
from semel.core.drive import leave
from semel.testing import FakeClock
from semel.testing.conformance import THINGS
from semel.testing.conformance.harness import claimed
from semel.testing.linear import History, check_items
from tests.amounts import amount
from tests.places import NAMES, open_place

LOST = amount(300, 60, 500)
ZOMBIES = amount(100, 40, 500)
WORKERS, OPERATIONS, KEYS = 8, amount(5_000, 1_600, 20_000), 40
CALLERS = amount(300, 100, 1_000)
CLOCKS, CLOCK_SEED = amount(30, 6, 100), 11


@pytest.fixture(params=NAMES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path)


class Effect:
    """Work that counts its runs by key."""

    def __init__(self):
        self.runs = {}

    def __call__(self, key):
        self.runs[key] = self.runs.get(key, 0) + 1
        return f"result of {key}"


@pytest.mark.situation(8, 9)
@pytest.mark.proof("lost")
@pytest.mark.parametrize("lost", ["claim", "completion"])
def test_a_lost_answer_makes_nothing_run_twice_and_locks_nobody_out(place, lost, tried):
    """The answer to a claim, or to a completion, is lost after the store has carried it out."""
    effect = Effect()
    with place.lossy() as (store, lose):
        s = semel.Semel(store, env=place.env)

        @s.once("work:{key}", on_busy="raise")
        def work(key: str) -> str:
            if lost == "completion":
                lose(f"work:{key}")
            return effect(key)

        for number in range(LOST):
            key = f"{number:04}x"
            if lost == "claim":
                lose(f"work:{key}")
            assert work(key) == f"result of {key}"
            assert work(key) == f"result of {key}"
        assert list(effect.runs.values()) == [1] * LOST
        records = {s.ledger.get(f"work:{key}").attempt for key in effect.runs}
        assert records == {1}
    tried(LOST)


@pytest.mark.proof("lost")
@pytest.mark.parametrize("lost", ["claim", "completion"])
def test_a_lost_answer_is_the_same_for_tasks(place, lost, tried):
    """The same through asyncio, several keys at a time."""
    effect = Effect()

    async def main(s, lose):
        @s.once("work:{key}", on_busy="raise")
        async def work(key: str) -> str:
            if lost == "completion":
                lose(f"work:{key}")
            return effect(key)

        async def one(key):
            if lost == "claim":
                lose(f"work:{key}")
            return [await work(key), await work(key)]

        for start in range(0, LOST, 10):
            keys = [f"{number:04}x" for number in range(start, start + 10)]
            answers = await asyncio.gather(*map(one, keys))
            assert answers == [[f"result of {key}"] * 2 for key in keys]
        await leave(s.store)

    with place.lossy() as (store, lose):
        asyncio.run(main(semel.Semel(store, env=place.env), lose))
    assert list(effect.runs.values()) == [1] * LOST
    tried(LOST)


@pytest.mark.situation(5, 6)
@pytest.mark.proof("zombies")
@pytest.mark.parametrize("move", ["complete", "fail", "renew"])
def test_a_zombie_is_refused(place, move, tried):
    """Many holders wake up after their lease has lapsed and somebody else has the key."""
    clock = FakeClock()
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(place.open(clock))) for _ in range(2)]
        dead, heir = (semel.Semel(store, env=place.env, clock=clock).ledger for store in stores)
        claims = [claimed(dead.claim(f"key:{number}", lease=30)) for number in range(ZOMBIES)]
        clock.advance(31)
        heirs = [claimed(heir.claim(f"key:{number}", lease=300)) for number in range(ZOMBIES)]
        assert {claim.attempt for claim in heirs} == {2}
        arguments = {"complete": ("zombie's",), "fail": (ValueError("zombie's"),), "renew": ()}[move]
        for claim in claims:
            with pytest.raises(semel.ClaimLost):
                getattr(dead, move)(claim, *arguments)
        for claim in heirs:
            heir.complete(claim, "heir's")
        for number in range(ZOMBIES):
            assert dead.claim(f"key:{number}").result == "heir's"
    tried(ZOMBIES)


def commands(rng, who):
    """One worker's share of commands on a few keys, all of which race."""
    end = {"gone_at": After(1e6)}
    for number in itertools.count():
        key, mine = f"key-{rng.randrange(KEYS)}", f"{who}-{number}"
        yield rng.choice(
            [
                Get(THINGS, key),
                Get(THINGS, key),
                Put(THINGS, key, {"text": mine, "count": 0} | end, ABSENT),
                Put(THINGS, key, {"text": mine} | end, {"count": None}),
                Update(THINGS, key, {"text": mine}, {"count": 2, "data": None}),
                Update(THINGS, key, {"text": mine, "data": mine.encode()}, {"count": 1}),
                Add(THINGS, key, "count", 1, {"text": mine} | end, cap=6),
                Add(THINGS, key, "count", -1, {"text": mine}),
                Delete(THINGS, key, {"count": 4}),
                Delete(THINGS, key),
            ]
        )


@pytest.mark.proof("order")
def test_a_crowd_sees_one_order_of_things(place, tried):
    """Thousands of commands of eight workers on forty items: some order of them explains every reply."""
    history = History()
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(place.open())) for _ in range(place.workers(2))]

        def work(who):
            store, script = stores[who % len(stores)], commands(random.Random(who), who)
            for command in itertools.islice(script, OPERATIONS // WORKERS):
                with history.operation(who, command) as answered:
                    answered(store.execute(command))

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(work, range(WORKERS)))
    assert len(history.operations) == OPERATIONS
    assert not check_items(history)
    tried(OPERATIONS, seed="0 to 7")


class Skewed(Clock):
    """A machine's clock that is wrong by so many seconds, and can be set."""

    def __init__(self, off):
        self.off = off

    def now(self):
        return time.time() + self.off


class Workers:
    """Two workers on one store: the clock of one is wrong, and may be set before anything that they do."""

    def __init__(self, stores, env, clock, jumps):
        self.mistaken, self.other = (semel.Semel(store, env=env).ledger for store in stores)
        self.clock, self.jumps = clock, jumps

    def jumped(self, ledger):
        self.clock.off += next(self.jumps)
        return ledger

    def neither_takes_a_live_key_nor_loses_its_own(self, n):
        mistaken, other = (lambda: self.jumped(self.mistaken)), (lambda: self.jumped(self.other))
        theirs = claimed(other().claim(f"theirs-{n}", lease=60, ttl=1800))
        mine = claimed(mistaken().claim(f"mine-{n}", lease=60, ttl=1800))
        done = claimed(other().claim(f"done-{n}", lease=60, ttl=1800))
        other().complete(done, "kept")
        for asked, key in ((mistaken, f"theirs-{n}"), (other, f"mine-{n}")):
            busy = asked().claim(key, lease=60, ttl=1800)
            assert type(busy) is semel.Busy
            assert 0 < busy.retry_after <= 65
        assert mistaken().claim(f"done-{n}", ttl=1800).result == "kept"
        mistaken().renew(mine)
        mistaken().complete(mine, "mine")
        other().complete(theirs, "theirs")
        assert other().claim(f"mine-{n}").result == "mine"
        assert mistaken().claim(f"theirs-{n}").result == "theirs"


def at_random(rng):
    """By how much a clock is set at each moment: mostly not, sometimes back or forth by up to two hours."""
    while True:
        yield rng.choice([0, 0, 0, rng.randint(-7200, 7200)])


@pytest.mark.situation(11, 12)
@pytest.mark.proof("clocks")
def test_no_clock_lets_two_hold_a_key(place, tried):
    """A worker whose clock is an hour off, or is set, neither takes a live key nor loses its own."""
    rng, right = random.Random(CLOCK_SEED), Clock()
    for n in range(CLOCKS):
        wrong = Skewed(rng.choice([-3600, 3600]))
        with ExitStack() as stack:
            stores = [stack.enter_context(closing(place.open(clock))) for clock in (wrong, right)]
            workers = Workers(stores, place.env, wrong, at_random(rng))
            workers.neither_takes_a_live_key_nor_loses_its_own(n)
        place.forget()
    tried(CLOCKS, seed=str(CLOCK_SEED))


@pytest.mark.situation(63)
def test_what_has_expired_stays_expired_when_the_clock_is_set_back(place):
    """On every path: a look at the record, and the calls of a function and a coroutine, which replay fast."""
    clock, effect = Skewed(0), Effect()
    with closing(place.open(clock)) as store:
        s = semel.Semel(store, env=place.env, clock=clock)

        @s.once("work:{key}", lease=1, ttl=2)
        def work(key: str) -> str:
            return effect(f"work:{key}")

        @s.once("task:{key}", lease=1, ttl=2)
        async def task(key: str) -> str:
            return effect(f"task:{key}")

        async def awaited():
            await task("1")
            await leave(store)

        work("1")
        asyncio.run(awaited())
        keys = ["work:1", "task:1"]
        deadline = time.monotonic() + 60
        while any(map(s.ledger.is_processed, keys)) and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        clock.off = -7200
        assert [s.ledger.get(key) for key in keys] == [None, None]
        work("1")
        asyncio.run(awaited())
        assert effect.runs == {"work:1": 2, "task:1": 2}


def test_one_of_many_workers_runs(place):
    """Threads of several workers, each with its own store on the same place, all want the same keys."""
    effect, lock = Effect(), threading.Lock()
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(place.open())) for _ in range(place.workers(4))]

        def work(who):
            s = semel.Semel(stores[who % len(stores)], env=place.env)

            @s.once("work:{key}")
            def do(key: str) -> str:
                with lock:
                    return effect(key)

            return [do(f"{number}") for number in range(10)]

        with ThreadPoolExecutor(WORKERS) as pool:
            answers = list(pool.map(work, range(WORKERS)))
    assert answers == [[f"result of {number}" for number in range(10)]] * WORKERS
    assert effect.runs == {f"{number}": 1 for number in range(10)}


@pytest.mark.situation(41)
@pytest.mark.proof("waiters")
def test_of_many_callers_of_one_key_one_runs_and_all_get_its_result(place, tried):
    """Tasks of two workers want it while its one run waits for the last of them to have asked."""
    runs, asked = [], []

    async def main(sides):
        everybody = asyncio.Event()

        async def work(key: str) -> str:
            runs.append(key)
            await everybody.wait()
            return f"result of {key}"

        works = [side.once("work:{key}", wait=600, shared=True)(work) for side in sides]

        async def call(number):
            asked.append(number)
            if len(asked) == CALLERS:
                everybody.set()
            return await works[number % len(works)]("hot")

        answers = await asyncio.gather(*map(call, range(CALLERS)))
        for side in sides:
            await leave(side.store)
        return answers

    with ExitStack() as stack:
        stores = [stack.enter_context(closing(place.open())) for _ in range(place.workers(2))]
        answers = asyncio.run(main([semel.Semel(store, env=place.env) for store in stores]))
    assert runs == ["hot"]
    assert set(answers) == {"result of hot"}
    tried(CALLERS)
