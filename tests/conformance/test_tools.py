"""The tools themselves: a clock that a test moves, a store that fails on demand."""

import asyncio
import subprocess
import sys
import threading

import pytest

from semel import errors
from semel.core.commands import ABSENT, Get, Put
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty
from semel.testing.conformance import THINGS


def test_time_passes_only_when_it_is_let():
    clock = FakeClock(now=1000.0)
    clock.advance(5)
    assert (clock.now(), clock.monotonic()) == (1005.0, 5.0)
    with pytest.raises(ValueError, match="jump"):
        clock.advance(-1)


def test_a_jump_moves_the_wall_clock_only():
    clock = FakeClock(now=1000.0)
    clock.jump(-300)
    assert (clock.now(), clock.monotonic()) == (700.0, 0.0)


def test_plans_are_carried_out_at_their_time():
    clock = FakeClock()
    seen: list[tuple[str, float]] = []
    clock.schedule(3, lambda: seen.append(("second", clock.monotonic())))
    clock.schedule(1, lambda: seen.append(("first", clock.monotonic())))
    clock.schedule(9, lambda: seen.append(("never", clock.monotonic())))
    clock.advance(5)
    assert seen == [("first", 1.0), ("second", 3.0)]
    assert clock.monotonic() == 5.0


def test_waiting_takes_fake_time_until_the_event_is_set():
    clock = FakeClock()
    event = threading.Event()
    clock.wait(event, 2)
    assert clock.monotonic() == 2.0
    clock.schedule(1, event.set)
    clock.wait(event, 10)
    assert clock.monotonic() == 3.0
    clock.wait(event, 10)
    assert clock.monotonic() == 3.0


def test_waiting_tasks_let_others_run_first():
    clock = FakeClock()

    async def main():
        event = asyncio.Event()
        setter = asyncio.ensure_future(set_soon(event))
        await clock.wait_async(event, 10)
        await setter
        moment = clock.monotonic()
        event.clear()
        await clock.wait_async(event, 10)
        return moment

    async def set_soon(event):
        event.set()

    assert asyncio.run(main()) == 0.0
    assert clock.monotonic() == 10.0


def test_threads_may_share_a_clock():
    clock = FakeClock()

    def advance():
        for _ in range(200):
            clock.advance(1)

    threads = [threading.Thread(target=advance) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 200 <= clock.monotonic() <= 800
    assert clock.now() - FakeClock().now() == clock.monotonic()


@pytest.mark.parametrize(
    ("plan", "error", "written"),
    [
        (Faulty.lose_reply, errors.StoreOutcomeUnknown, True),
        (Faulty.lose_request, errors.StoreOutcomeUnknown, False),
        (Faulty.refuse, errors.StoreUnavailable, False),
    ],
)
@pytest.mark.parametrize("through", ["execute", "aexecute"])
def test_a_planned_fault_comes_once_and_only_to_a_write(plan, error, written, through):
    store = Faulty(MemoryStore(FakeClock()))
    write = Put(THINGS, "key", {"gone_at": 2e9}, ABSENT)

    def send(command):
        if through == "execute":
            return store.execute(command)
        assert store.at_once(command) is None
        return asyncio.run(store.aexecute(command))

    plan(store)
    assert store.execute(Get(THINGS, "key")).item is None
    with pytest.raises(error):
        send(write)
    assert (store.execute(Get(THINGS, "key")).item is not None) is written
    assert write in store.seen


def test_only_the_contract_needs_pytest():
    program = "import sys, semel.testing, semel.testing.simulate; print('pytest' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program]).strip() == b"False"
