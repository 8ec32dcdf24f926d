# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""The simplest that is asked of a store: it has what every store has, keeps an item, waits, and closes."""

import asyncio
from typing import Any

import pytest

from semel.core.commands import ABSENT, Applied, Batch, Found, Get, Put, Query, Stored, Time, Transact, Watch
from semel.core.drive import Store
from semel.errors import StoreClosed
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import THINGS, Harness, Runner, get, put, shown, thing
from semel.testing.faulty import Faulty


def _commands(clock: FakeClock) -> list[Stored]:
    write = Put(THINGS, "key", thing(clock), ABSENT)
    return [
        Get(THINGS, "key"),
        write,
        Query(THINGS, "key"),
        Transact((write,)),
        Batch((write,)),
        Watch(THINGS, "key", 1.0),
    ]


async def _turns(store: Store, command: Stored) -> int:
    """How often other tasks of the loop had a turn while a command was carried out."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    try:
        await store.aexecute(command)
        return turns
    finally:
        task.cancel()


async def _gives_way(store: Store, command: Stored) -> bool:
    """Whether other tasks have a turn in one of ten tries, or what was learned in these spares the waiting.

    From Python 3.14 on, nobody waits for a thread that is done before it is waited for.
    """
    for _ in range(10):
        if await _turns(store, command):
            return True
    return type(command) is not Watch and store.at_once(command) is not None


class BasicTests(Harness):
    """Whoever begins to write a store begins here."""

    def test_it_tells_the_time(self, runner: Runner, clock: FakeClock) -> None:
        """It is the time of the clock that the store was given."""
        reply = runner.ask(Time())
        assert type(reply) is Found
        assert reply.item is None
        assert reply.now == pytest.approx(clock.now(), abs=1e-3)

    def test_it_keeps_an_item(self, runner: Runner, clock: FakeClock) -> None:
        """Nothing is there; then what was put there is, with its key."""
        assert get(runner, "key") is None
        reply = runner.ask(Put(THINGS, "key", thing(clock, text="here"), ABSENT))
        assert type(reply) is Applied
        assert shown(get(runner, "key")) == thing(clock, text="here") | {"id": "key"}
        put(runner, "key", thing(clock, text="new"))
        assert shown(get(runner, "key")) == thing(clock, text="new") | {"id": "key"}

    def test_it_has_a_place_for_an_overflow(self, store: Faulty) -> None:
        """The attribute is there from the beginning, and may be set."""
        assert hasattr(store.inner, "overflow"), "a store has the attribute `overflow`, None at first"
        before: Any = store.inner.overflow
        store.inner.overflow = before
        assert store.inner.overflow is before

    def test_waiting_leaves_the_event_loop_to_other_tasks(self, store: Faulty, clock: FakeClock) -> None:
        """A `Watch` waits in turns with them; so does every command that `at_once` does not answer."""

        async def held_up() -> list[str]:
            asked = [one for one in _commands(clock) if type(one) is Watch or store.at_once(one) is None]
            found = [type(one).__name__ for one in asked if not await _gives_way(store, one)]
            await store.leave()
            return found

        assert asyncio.run(held_up()) == []

    def test_a_closed_store_says_so(self, runner: Runner, store: Faulty, clock: FakeClock) -> None:
        """Every command is answered with `StoreClosed`; to close it again changes nothing."""
        put(runner, "key", thing(clock))
        store.close()
        store.close()
        for command in _commands(clock):
            with pytest.raises(StoreClosed):
                runner.ask(command)
