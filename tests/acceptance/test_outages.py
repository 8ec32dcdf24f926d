"""A store that is away for a moment: nothing is done again, and whoever waits goes on waiting."""

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import semel
from semel.core.clock import Clock
from semel.core.drive import leave
from semel.testing import FaultProxy
from semel.testing.conformance.harness import claimed
from tests.amounts import ALL, amount
from tests.places import NETWORKED, open_place

# So long that no busy machine lets it run out.
LEASE = 600
THREADS = 4
# Lanes reach the store each in its own way, and are cut off at once: an outage takes the time that it takes.
LANES = amount(1, 1, 5)
OUTAGES, LONGEST_OUTAGE = amount(5, 1, 20), 5.0 if ALL else 0.3
SEED = 45


class Healing(Clock):
    """A clock on which pauses take no time; at the third one the store is back."""

    def __init__(self, proxy):
        self.proxy = proxy
        self.pauses = 0
        self.healed = threading.Event()

    def _count(self):
        self.pauses += 1
        if self.pauses == 3:
            self.proxy.heal()
            self.healed.set()

    def wait(self, event, seconds):
        self._count()

    async def wait_async(self, event, seconds):
        self._count()
        await asyncio.sleep(0)


@pytest.fixture(params=NETWORKED)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path)


@pytest.fixture
def proxy(place):
    with FaultProxy.before(place.server) as proxy:
        yield proxy


@pytest.fixture
def s(place, proxy):
    store = place.open(server=proxy.url(place.server))
    yield semel.Semel(store, env=place.env, clock=Healing(proxy))
    store.close()


def go_away(proxy):
    proxy.refuse()
    proxy.cut()


@pytest.mark.situation(45)
@pytest.mark.proof("outages")
@pytest.mark.parametrize("ending", ["a result", "a kept error", "an error"])
def test_a_short_outage_repeats_nothing(s, proxy, ending, tried):
    """The store is away when work ends, and back within the lease: what came of it is kept."""
    errors = {"a kept error": ValueError("declined"), "an error": KeyError("flaky")}
    runs = []

    @s.once("work:{key}", lease=LEASE, on_error={ValueError: "keep"})
    def work(key: str) -> str:
        runs.append(key)
        go_away(proxy)
        if ending in errors:
            raise errors[ending]
        return "done"

    if ending in errors:
        with pytest.raises(type(errors[ending])):
            work("a")
    else:
        assert work("a") == "done"
    assert s.clock.pauses >= 3
    assert runs == ["a"]
    record = s.ledger.get("work:a")
    statuses = {"a result": "COMPLETED", "a kept error": "FAILED", "an error": "RELEASED"}
    assert (record.status, record.attempt) == (statuses[ending], 1)
    tried(1)


def endure(place, lane):
    """Several threads end their work while the store is away, time after time: how often each key ran."""
    rng, runs = random.Random(SEED + lane), Counter[str]()
    with (
        FaultProxy.before(place.server) as proxy,
        closing(place.open(server=proxy.url(place.server))) as own,
    ):
        s, healing = semel.Semel(own, env=place.env), []

        def outage() -> None:
            """Take the store away, and bring it back a little later: never the other way round."""
            go_away(proxy)
            healing.append(threading.Timer(rng.uniform(0.1, LONGEST_OUTAGE), proxy.heal))
            healing[-1].start()

        together = threading.Barrier(THREADS, outage)

        @s.once("work:{key}", lease=LEASE)
        def work(key: str) -> str:
            runs[key] += 1
            together.wait()
            return f"done {key}"

        with ThreadPoolExecutor(THREADS) as threads:
            for number in range(OUTAGES):
                keys = [f"{lane}-{number}-{thread}" for thread in range(THREADS)]
                answers = [threads.submit(work, key) for key in keys]
                assert [answer.result() for answer in answers] == [f"done {key}" for key in keys]
                healing.pop().join()
        assert {s.ledger.get(f"work:{key}").attempt for key in runs} == {1}
    return runs


@pytest.mark.situation(45)
@pytest.mark.proof("outages")
def test_outages_of_any_length_within_the_lease_repeat_nothing(place, tried):
    """They are as long as real ones are, and the lease is so long that no length decides anything."""
    with ThreadPoolExecutor(LANES) as lanes:
        runs = sum(lanes.map(lambda lane: endure(place, lane), range(LANES)), Counter[str]())
    assert len(runs) == LANES * OUTAGES * THREADS
    assert set(runs.values()) == {1}
    tried(LANES * OUTAGES, seed=f"{SEED} to {SEED + LANES - 1}")


@pytest.mark.situation(45)
def test_a_short_outage_repeats_nothing_async(s, proxy):
    """The same for tasks."""
    runs = []

    @s.once("work:{key}", lease=LEASE)
    async def work(key: str) -> str:
        runs.append(key)
        go_away(proxy)
        return "done"

    async def main():
        answers = [await work("a"), await work("a")]
        await leave(s.store)
        return answers

    assert asyncio.run(main()) == ["done", "done"]
    assert runs == ["a"]
    assert s.clock.pauses >= 3


@pytest.mark.situation(45)
def test_a_waiter_outlives_a_bad_look(s, place, proxy):
    """While it waits the store goes away, and comes back with the answer."""
    other = place.open()
    holder = semel.Semel(other, env=place.env)
    claim = claimed(holder.ledger.claim("work:a", lease=LEASE))
    answers = []

    def gone_when_busy(event):
        if event.what == "busy" and not s.clock.pauses:
            go_away(proxy)

    s.events.listen(gone_when_busy)

    @s.once("work:{key}", lease=LEASE, wait=LEASE)
    def work(key: str) -> str:
        raise AssertionError("it was not its turn")

    waiter = threading.Thread(target=lambda: answers.append(work("a")))
    waiter.start()
    assert s.clock.healed.wait(60)
    holder.ledger.complete(claim, "done")
    waiter.join(60)
    other.close()
    assert answers == ["done"]
    assert s.clock.pauses >= 3
