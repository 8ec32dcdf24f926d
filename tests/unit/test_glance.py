"""The glance of a store changes nothing but the time that a call takes."""

import asyncio
from collections.abc import Callable
from os import urandom
from typing import Any

import msgspec
import pytest

import semel
from semel.core.commands import Put, Update
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock


class Declined(Exception):
    pass


class Unclear(Exception):
    pass


def fails(error: type[BaseException]) -> Callable[..., Any]:
    def work(_s: semel.Semel, _clock: FakeClock) -> Any:
        raise error("no")

    return work


def in_a_transaction(s: semel.Semel, _clock: FakeClock) -> str:
    with s.transaction() as tx:
        tx.ledger.complete(semel.current_run(), "kept by itself")
    return "not this"


def in_a_transaction_and_then_fails(s: semel.Semel, clock: FakeClock) -> Any:
    in_a_transaction(s, clock)
    raise Declined("after all")


def with_notes(_s: semel.Semel, _clock: FakeClock) -> str:
    semel.current_run().note(by="hand")
    return "noted"


def past_its_lease(_s: semel.Semel, clock: FakeClock) -> str:
    clock.advance(31)
    return "late, and nobody else came"


def taken_over(s: semel.Semel, clock: FakeClock) -> str:
    clock.advance(31)
    other = s.ledger.claim("k")
    assert isinstance(other, semel.Claimed)
    s.ledger.complete(other, "theirs")
    return "mine"


def forgotten(s: semel.Semel, _clock: FakeClock) -> str:
    assert s.ledger.forget("k")
    return "nobody knows of it"


def calls_itself(s: semel.Semel, _clock: FakeClock) -> Any:
    return s.once("k")(lambda: 1)()


def calls_another(s: semel.Semel, _clock: FakeClock) -> Any:
    return [s.once("other")(lambda: 7)(), s.once.step("a", lambda: 8)]


def gives(value: Any) -> Callable[..., Any]:
    return lambda _s, _clock: value


WORK: dict[str, Callable[..., Any]] = {
    "a value": gives({"id": 1}),
    "nothing": gives(None),
    "no number": gives(float("nan")),
    "no JSON": gives(object()),
    "text of 5 KB": gives("x" * 5_000),
    "more than a row can hold": gives(urandom(2_000_000).hex()),
    "an error": fails(Declined),
    "an error to be kept": fails(ValueError),
    "an error in doubt": fails(Unclear),
    "an interruption": fails(KeyboardInterrupt),
    "in a transaction": in_a_transaction,
    "in a transaction, and then an error": in_a_transaction_and_then_fails,
    "with notes": with_notes,
    "past its lease": past_its_lease,
    "taken over": taken_over,
    "forgotten": forgotten,
    "calls itself": calls_itself,
    "calls another": calls_another,
}
OPTIONS: Any = {"on_error": {ValueError: "keep", Unclear: "doubt"}, "heartbeat": False}


def told(work: Callable[..., Any], *, is_async: bool) -> dict[str, Any]:
    """All that can be known of two calls: what each gave, what is kept, and what was told."""
    clock, events = FakeClock(), list[semel.Event]()
    with semel.connect("memory:", clock=clock, on_event=events.append) as s:

        def now() -> Any:
            return work(s, clock)

        async def soon() -> Any:
            return work(s, clock)

        protect = s.once("k", returns=Any, shared=True, **OPTIONS)
        asoon = protect(soon)
        call = (lambda: asyncio.run(asoon())) if is_async else protect(now)
        gave = [ended(call) for _ in range(2)]
        records = [shown(s.ledger.get(key)) for key in ("k", "other")]
    return {"gave": gave, "records": records, "events": events}


def ended(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        value = call()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the same both ways
        return type(error).__qualname__, f"{error} {getattr(error, '__notes__', '')}"
    return "gave", "an object" if type(value) is object else repr(value)


def shown(record: semel.Record | None) -> Any:
    return None if record is None else {**msgspec.structs.asdict(record), "token": ""}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", WORK)
def test_with_and_without_it_all_is_the_same(
    name: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = told(WORK[name], is_async=is_async)
    monkeypatch.delattr(MemoryStore, "glance")
    assert told(WORK[name], is_async=is_async) == short


def test_a_replay_asks_the_store_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would compare the long way with itself."""
    asked = list[type]()
    execute = MemoryStore.execute

    def counted(store: MemoryStore, command: Any) -> Any:
        if store is s.store:  # a thread of another test may still be at work
            asked.append(type(command))
        return execute(store, command)

    monkeypatch.setattr(MemoryStore, "execute", counted)
    with semel.connect("memory:") as s:
        work = s.once("k", shared=True)(lambda: 1)
        assert (work(), work()) == (1, 1)
        assert asked == [Put, Update]
        monkeypatch.delattr(MemoryStore, "glance")
        assert s.once("k", shared=True)(lambda: 1)() == 1
    assert asked == [Put, Update, Put]


def test_a_closed_store_is_not_glanced_at() -> None:
    with semel.connect("memory:") as s:
        work = s.once("k")(lambda: pytest.fail("it ran"))
    with pytest.raises(semel.StoreClosed):
        work()
    assert isinstance(s.store, MemoryStore)
    assert len(s.store) == 0
