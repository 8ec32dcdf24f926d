"""A store that is away for a moment: nothing is done again, and whoever waits goes on waiting."""

import asyncio
import threading

import pytest

import semel
from semel.core.clock import Clock
from semel.core.drive import leave
from semel.testing import FaultProxy
from semel.testing.conformance.harness import claimed
from tests.places import NETWORKED, open_place

# So long that no busy machine lets it run out.
LEASE = 600


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
@pytest.mark.parametrize("ending", ["a result", "a kept error", "an error"])
def test_a_short_outage_repeats_nothing(s, proxy, ending):
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
