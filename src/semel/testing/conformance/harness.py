# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""What the tests of the contract stand on: a store, a clock, and two ways to run the same steps."""

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from semel.core.clock import Clock
from semel.core.commands import Applied, Command, Found, Get, Item, Put, Sort, Steps, Stored, read
from semel.core.drive import Store, adrive, drive, leave
from semel.core.facades import Ledger
from semel.core.flow import Work
from semel.core.ledger import LedgerSteps
from semel.core.realm import Realm
from semel.core.running import Run
from semel.model import Claimed, Failed, Failure, Listing, Outcome, Record, Replay
from semel.tables import LEDGER, Index, Kind, Table
from semel.testing.clock import FakeClock
from semel.testing.faulty import Faulty

T = TypeVar("T")

ATTRIBUTES = {
    "text": Kind.TEXT,
    "count": Kind.NUMBER,
    "data": Kind.BYTES,
    "due": Kind.NUMBER,
    "gone_at": Kind.NUMBER,
    "flag": Kind.FLAG,
    "object": Kind.OBJECT,
    "tags": Kind.SET,
}

THINGS = Table(name="conformance_things", partition="id", attributes=ATTRIBUTES, expires="gone_at")
NOTES = Table(
    name="conformance_notes", partition="owner", sort="place", attributes=ATTRIBUTES, expires="gone_at"
)
LINES = Table(
    name="conformance_lines",
    partition="owner",
    sort="number",
    attributes=ATTRIBUTES | {"number": Kind.NUMBER},
    expires="gone_at",
    forever="a table whose items may stay",
)
ENTRIES = Table(
    name="conformance_entries",
    partition="owner",
    sort="place",
    attributes=ATTRIBUTES,
    expires="gone_at",
    indexes=(
        Index(name="text-due", partition="text", sort="due"),
        Index(name="count-text", partition="count", sort="text"),
        Index(name="text", partition="text", carries=()),
    ),
)
TABLES = (THINGS, NOTES, LINES, ENTRIES)

LONG = 10_000.0
# Fake time runs as fast as threads can wait; so long it does not run out while one of them does its work.
AGES = 1e6

# What a ledger can be asked for.
METHODS = [name for name in dir(Ledger) if not name.startswith("_") and hasattr(LedgerSteps, name)]


def one(command: Command) -> Steps[Any]:
    """A single command as steps."""
    return (yield command)


class Runner:
    """Runs steps through `drive`, and many at once in threads."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run(self, steps: Steps[T]) -> T:
        """Run the steps to their end."""
        return drive(steps, self.store)

    def together(self, many: Sequence[Steps[T]]) -> list[T]:
        """Run all of them at the same time; their results in order."""
        start = threading.Barrier(len(many))

        def one_of_them(steps: Steps[T]) -> T:
            start.wait()
            return drive(steps, self.store)

        with ThreadPoolExecutor(len(many)) as pool:
            return list(pool.map(one_of_them, many))

    def work(self, function: Callable[[], Any]) -> Work:
        """A piece of work in the form that these steps call it."""
        return Work(lambda _run, function: function(), function)

    def ask(self, command: Command) -> Any:
        """The reply to one command."""
        return self.run(one(command))

    def close(self) -> None:
        """Nothing is left running."""


class AsyncRunner(Runner):
    """Runs steps through `adrive`, and many at once as tasks of one loop."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._loop = asyncio.Runner()

    def run(self, steps: Steps[T]) -> T:
        """Run the steps to their end."""
        return self._loop.run(adrive(steps, self.store))

    def together(self, many: Sequence[Steps[T]]) -> list[T]:
        """Run all of them at the same time; their results in order."""

        async def all_of_them() -> list[T]:
            return list(await asyncio.gather(*(adrive(steps, self.store) for steps in many)))

        return self._loop.run(all_of_them())

    def work(self, function: Callable[[], Any]) -> Work:
        """A piece of work in the form that these steps call it."""

        async def begin(_run: Run, function: Callable[[], Any]) -> Any:
            return function()

        return Work(begin, function)

    def close(self) -> None:
        """Close the loop, and what the store has in it."""
        self._loop.run(leave(self.store))
        self._loop.close()


class RunnerLedger(Ledger):
    """A ledger as its callers know it, whose steps a runner runs: sync and async in turn."""

    def __init__(
        self, runner: Runner, clock: Clock | None = None, *, env: str = "test", scope: str = ""
    ) -> None:
        super().__init__(LedgerSteps(Realm(env=env, scope=scope), clock=clock), runner.store)
        self._runner = runner
        for name in METHODS:
            setattr(self, name, functools.partial(self._run, getattr(self.steps, name)))

    def _run(self, method: Callable[..., Steps[Any]], *args: Any, **kwargs: Any) -> Any:
        return self._runner.run(method(*args, **kwargs))

    @property
    def direct(self) -> Ledger:
        """This ledger without the runner: for what happens while the runner is at work."""
        return Ledger(self.steps, self._store)

    def record(self, key: str) -> Record:
        """The record, which has to be there."""
        return present(self.get(key))

    def write(self, key: str, item: Item) -> None:
        """Put a record there, as another process may have left it."""
        put(self._runner, self.steps.name(key), item, LEDGER)

    def raw(self, key: str) -> Any:
        """The record's item as the store has it, or None."""
        return shown(get(self._runner, self.steps.name(key), LEDGER))


class Harness:
    """The fixtures. `store` is wrapped in `Faulty`, which does nothing until a test asks it to."""

    def make_store(self, clock: Clock) -> Store:
        """A new, empty store that takes its time from this clock."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The store's clock, which only the test moves."""
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> Iterator[Faulty]:
        """The store under test."""
        store = Faulty(self.make_store(clock))
        yield store
        store.close()

    @pytest.fixture(params=[Runner, AsyncRunner], ids=["sync", "async"])
    def runner(self, request: pytest.FixtureRequest, store: Faulty) -> Iterator[Runner]:
        """Sync and async in turn."""
        runner: Runner = request.param(store)
        yield runner
        runner.close()

    @pytest.fixture
    def ledger(self, runner: Runner, clock: FakeClock) -> RunnerLedger:
        """A ledger on the store, sync and async in turn."""
        return RunnerLedger(runner, clock)


# Small steps that many tests take.


def named(value: Any) -> str:
    """A parameter as the name of a test shows it."""
    return ascii(sorted(value) if isinstance(value, set) else value)[:80]


def thing(clock: FakeClock, **attributes: Any) -> Item:
    """An item of either table that lives long."""
    return {"gone_at": clock.now() + LONG} | attributes


def put(runner: Runner, key: str, item: Item, table: Table = THINGS, sort: Sort = None) -> None:
    """Put an item there, whatever was there before."""
    reply = runner.ask(Put(table, key, item, sort=sort))
    assert type(reply) is Applied


def get(runner: Runner, key: str, table: Table = THINGS, sort: Sort = None) -> Item | None:
    """The item as a reader finds it."""
    found = runner.run(read(Get(table, key, sort)))
    assert type(found) is Found
    return found.item


def there(runner: Runner, key: str, table: Table = THINGS, sort: Sort = None) -> Item:
    """The item as a reader finds it, which has to be there."""
    return present(get(runner, key, table, sort))


def shown(item: Item | None) -> Item | None:
    """An item without what is None: a store may keep it or leave it out."""
    return None if item is None else {name: value for name, value in item.items() if value is not None}


def present(found: T | None) -> T:
    """What was found, which has to be something."""
    assert found is not None
    return found


def claimed(outcome: Outcome) -> Claimed:
    """The outcome, which must be a claim."""
    assert type(outcome) is Claimed, f"expected a claim, found {outcome}"
    return outcome


def replayed(outcome: Outcome) -> Any:
    """The result of an outcome that has to be a replay."""
    assert isinstance(outcome, Replay), outcome
    return outcome.result


def failure(outcome: Outcome) -> Failure:
    """The failure of an outcome that has to be one that was kept."""
    assert type(outcome) is Failed, outcome
    return outcome.failure


def keys(listing: Callable[..., Listing], **asked: Any) -> list[str]:
    """The keys of the records of all pages."""
    found: list[str] = []
    after = None
    for _ in range(50):
        page = listing(**asked, after=after)
        found += [record.key for record in page.records]
        after = page.after
        if after is None:
            return found
    raise AssertionError("the pages have no end")


def writes(seen: Sequence[Stored]) -> int:
    """How many of the commands were not readings."""
    return sum(type(command).__name__ not in {"Get", "Query", "Time", "Watch"} for command in seen)
