"""Several `Semel` objects and views on one store object: each is closed and heard by itself."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import semel
from semel.core.commands import Stored
from semel.periods import Day
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock

pytestmark = pytest.mark.situation(58)


class Away(MemoryStore):
    """A store that can be made unavailable."""

    away = False

    def execute(self, command: Stored) -> Any:
        if self.away:
            raise semel.StoreUnavailable("the store is away")
        return super().execute(command)

    def at_once(self, command: Stored) -> Any | None:
        return None if self.away else super().at_once(command)

    async def aexecute(self, command: Stored) -> Any:
        return self.execute(command)


class Heard(list[semel.Event]):
    def __call__(self, event: semel.Event) -> None:
        self.append(event)

    @property
    def failed(self) -> list[str]:
        """The scopes of the errors that were heard."""
        return [event.scope for event in self if event.what is semel.What.STORE_ERROR]


def by_transaction(s: semel.Semel) -> None:
    with s.transaction() as tx:
        tx.journal.append("o", {"a": 1})
        tx.journal.append("o", {"a": 2})


def by_block(s: semel.Semel) -> None:
    with s.once.running("k"):
        pass


async def by_async_block(s: semel.Semel) -> None:
    async with s.once.running("k"):
        pass


ASKING: dict[str, Callable[[semel.Semel], Any]] = {
    "once": lambda s: s.once("k")(lambda: 1)(),
    "once call": lambda s: s.once.call("k", lambda: 1),
    "block": by_block,
    "async block": lambda s: asyncio.run(by_async_block(s)),
    "ledger": lambda s: s.ledger.claim("k"),
    "async ledger": lambda s: asyncio.run(s.aio.ledger.get("k")),
    "documents": lambda s: s.documents.get("d"),
    "journal": lambda s: s.journal.append("o", {"a": 1}),
    "counters": lambda s: s.counters.charge("c", per=Day("UTC"), cap=1, token="t"),
    "mailbox": lambda s: s.mailbox("jobs").survey(),
    "ops": lambda s: s.ops.explain("k"),
    "transaction": by_transaction,
    "gate": lambda s: s.gate(trace="g").decide("k"),
    "switches": lambda s: s.switches.turn("stop", on=True, reason="test"),
    "view by door": lambda s: s.through("test").ledger.claim("k"),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=list(ASKING))
def test_each_semel_on_a_shared_store_hears_its_own_errors_under_its_own_scope(
    ask: Callable[[semel.Semel], Any],
) -> None:
    store, first, second = Away(), Heard(), Heard()
    a = semel.connect(store=store, scope="a", on_event=first)
    b = semel.connect(store=store, scope="b", on_event=second)
    store.away = True
    for s, heard, other in ((a, first, second), (b, second, first)):
        first.clear()
        second.clear()
        with pytest.raises(semel.StoreUnavailable):
            ask(s)
        assert set(heard.failed) == {s.scope}
        assert other.failed == []
        with pytest.raises(semel.StoreUnavailable):
            ask(s.scoped("tenant"))
        assert heard.failed[-1] == "tenant"
        assert other.failed == []


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_error_of_a_renewal_is_heard_by_the_semel_whose_work_it_is(is_async: bool) -> None:
    store, first, second, told = Away(), Heard(), Heard(), threading.Event()

    def listen(event: semel.Event) -> None:
        first(event)
        if event.what is semel.What.STORE_ERROR:
            store.away = False
            told.set()

    a = semel.connect(store=store, on_event=listen).scoped("tenant")
    semel.connect(store=store, scope="b", on_event=second)

    def work() -> None:
        store.away = True
        assert told.wait(20)

    async def awork() -> None:
        store.away = True
        assert await asyncio.to_thread(told.wait, 20)

    if is_async:
        asyncio.run(a.once("k", lease=3)(awork)())
    else:
        a.once("k", lease=3)(work)()
    assert first.failed == ["tenant"]
    assert second.failed == []


@pytest.mark.situation(57)
def test_a_view_that_is_closed_or_left_leaves_the_parent_and_its_views_working() -> None:
    s = semel.connect("memory:", clock=FakeClock())
    before = s.scoped("before")
    with s.scoped("left") as left:
        assert left.once.call("k", lambda: 1) == 1
    s.scoped("closed").close()
    s.through("door").close()

    async def leave() -> None:
        async with s.aio.scoped("left"):
            pass
        await s.aio.scoped("closed").close()
        assert await s.aio.ledger.get("k") is None

    asyncio.run(leave())
    for one in (s, before, left, s.scoped("after")):
        assert one.once.call("after", lambda: 2) == 2
    s.close()
    with pytest.raises(semel.StoreClosed):
        before.ledger.get("k")


@pytest.mark.situation(57)
def test_the_rates_and_switches_of_a_parent_outlast_a_view() -> None:
    s = semel.connect("memory:", clock=FakeClock())
    s.keep_rates()
    with s.scoped("tenant") as tenant:
        tenant.switches.turn("stop", on=True, reason="test")
    assert s.once.call("k", lambda: 1) == 1
    assert sum(rates.count("completed") for rates in s.counted_rates()) == 1
    s.close()
