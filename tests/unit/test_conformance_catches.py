"""Bugs that the contract has to catch: each is planted into the store in memory, and a named test fails."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.core.commands import (
    Applied,
    Batch,
    Get,
    Many,
    Page,
    Put,
    Query,
    Refused,
    Stored,
    Transact,
    Watch,
    alive,
    allowed,
    cursor,
)
from semel.errors import SemelError, StoreUnavailable
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty, StoreConformance
from semel.testing.conformance.harness import AsyncRunner, Runner, RunnerLedger


class Altered(MemoryStore):
    """The store in memory, whose answers go through a function."""

    def answer(self, command: Stored, reply: Any) -> Any:
        return reply

    def execute(self, command: Stored) -> Any:
        return self.answer(command, super().execute(command))

    at_once = execute


class Watchful(Altered):
    """An asynchronous way that is the synchronous one."""

    async def aexecute(self, command: Stored) -> Any:
        return self.execute(command)


class BlindBatch(Altered):
    """Every write of a batch is judged by what was there before the batch."""

    def execute(self, command: Stored) -> Any:
        if not isinstance(command, Batch):
            return super().execute(command)
        finds = [super(BlindBatch, self).execute(Get(w.table, w.key, w.sort)) for w in command.writes]
        replies: list[Applied | Refused] = []
        for write, found in zip(command.writes, finds, strict=True):
            if allowed(write, alive(write.table, found.item, found.now)):
                super().execute(write)
                replies.append(Applied(found.now, found.item or {}))
            else:
                replies.append(Refused(found.now, found.item))
        return Many(tuple(replies))

    at_once = execute


class EndlessPages(Altered):
    """A cursor on every page that has an item."""

    def answer(self, command: Stored, reply: Any) -> Any:
        if not isinstance(reply, Page) or not isinstance(command, Query) or not reply.items:
            return reply
        after = cursor(command.table, reply.items[-1], command.table.index(command.index))
        return Page(reply.now, reply.items, after)


class NoOverflow(Altered):
    """The attribute is forgotten."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        del self.overflow


class ClosedWrongly(Altered):
    """What comes after `close` looks like a store that is down."""

    shut = False

    def execute(self, command: Stored) -> Any:
        if self.shut:
            raise StoreUnavailable("the connection is gone")
        return super().execute(command)

    at_once = execute

    def close(self) -> None:
        self.shut = True


class NeverClosed(Altered):
    """It goes on after `close`."""

    def close(self) -> None:
        pass


class ForgetfulRefusal(Altered):
    """A refusal does not tell what stood in the way: whoever claims would ask for ever."""

    def answer(self, command: Stored, reply: Any) -> Any:
        return Refused(reply.now, None) if isinstance(reply, Refused) else reply


class AnyAttribute(Altered):
    """Attributes that the table lacks are kept."""

    def execute(self, command: Stored) -> Any:
        if isinstance(command, Put) and "colour" in command.item:
            return Applied(self._clock.now())
        return super().execute(command)

    at_once = execute


class Immortal(Altered):
    """A query finds what has expired."""

    def answer(self, command: Stored, reply: Any) -> Any:
        if isinstance(command, Query):
            return Page(reply.now, tuple(self._tables[command.table.name].values()), None)
        return reply


class HalfTransaction(Altered):
    """A transaction makes what it can."""

    def execute(self, command: Stored) -> Any:
        reply = super().execute(command)
        if isinstance(command, Transact) and not isinstance(reply, Applied):
            super().execute(Batch(command.writes))
        return reply

    at_once = execute


class Impatient(Altered):
    """A `Watch` does not wait."""

    def execute(self, command: Stored) -> Any:
        if isinstance(command, Watch):
            return super().execute(Get(command.table, command.key, command.sort))
        return super().execute(command)

    async def aexecute(self, command: Stored) -> Any:
        return self.execute(command)


PLANTED: dict[type[MemoryStore], tuple[str, dict[str, Any]]] = {
    BlindBatch: ("test_writes_of_a_batch_see_each_other", {}),
    EndlessPages: ("test_the_last_page_has_no_cursor", {"more": 0, "reverse": False}),
    Watchful: ("test_waiting_leaves_the_event_loop_to_other_tasks", {}),
    NoOverflow: ("test_it_has_a_place_for_an_overflow", {}),
    ClosedWrongly: ("test_a_closed_store_says_so", {}),
    NeverClosed: ("test_a_closed_store_says_so", {}),
    ForgetfulRefusal: ("test_add_stops_at_its_cap", {}),
    AnyAttribute: ("test_an_attribute_that_the_table_lacks_is_refused", {"kind": Put}),
    Immortal: ("test_query_leaves_it_out", {}),
    HalfTransaction: ("test_transact_makes_all_writes_or_none", {}),
    Impatient: ("test_watch_takes_as_long_as_it_was_given", {}),
}
FAILED = (AssertionError, SemelError, pytest.fail.Exception)


def conform(make: Callable[[FakeClock], MemoryStore], test: str, run: type[Runner], **given: Any) -> None:
    """Run one test of the contract as pytest would."""
    suite, clock = StoreConformance(), FakeClock()
    store = Faulty(make(clock))
    runner = run(store)
    fixtures = {
        "runner": runner,
        "clock": clock,
        "store": store,
        "ledger": RunnerLedger(runner, clock),
    }
    function = getattr(suite, test)
    asked = inspect.signature(function).parameters
    if "notes" in asked:
        given["notes"] = inspect.unwrap(type(suite).notes)(suite, runner, clock)
    try:
        function(**{name: given[name] if name in given else fixtures[name] for name in asked})
    finally:
        runner.close()


@pytest.mark.parametrize("run", [Runner, AsyncRunner])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_caught(planted: type[MemoryStore], run: type[Runner]) -> None:
    test, given = PLANTED[planted]
    conform(MemoryStore, test, run, **given)
    with pytest.raises(FAILED):
        conform(planted, test, run, **given)


def test_a_claim_of_a_forgetful_store_ends() -> None:
    with pytest.raises(SemelError, match="answered Put on ledger"):
        conform(ForgetfulRefusal, "test_a_claim_is_recognised", Runner, lost=1)


def test_the_contract_goes_from_the_simplest_to_the_whole(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from semel.stores.memory import MemoryStore\n"
        "from semel.testing import StoreConformance\n"
        "class TestMine(StoreConformance):\n"
        "    def make_store(self, clock):\n"
        "        return MemoryStore(clock)\n"
    )
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, tmp_path], capture_output=True, text=True, check=True, cwd=tmp_path)
    names = [line.rpartition("::")[2].partition("[")[0] for line in done.stdout.splitlines() if "::" in line]
    homes = {name: kind.__name__ for kind in StoreConformance.__mro__ for name in vars(kind)}
    found = list(dict.fromkeys(homes[name] for name in names))
    declared = [kind.__name__ for kind in reversed(StoreConformance.__mro__)]
    assert found == [name for name in declared if name in found]
    assert found[:4] == ["BasicTests", "CommandTests", "ValueTests", "TransactTests"]
    assert found[-1] == "FlowTests"
