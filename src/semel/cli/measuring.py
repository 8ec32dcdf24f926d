"""What `semel bench` measures on a store, under a scope of its own, and how its records are removed again."""

import asyncio
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import msgspec

import semel
from semel.connect import AsyncSemel
from semel.core.codecs import Overflow
from semel.core.commands import Applied, Batch, Delete, Stored, Time
from semel.core.drive import Store, leave
from semel.core.policy import HOUR
from semel.gate import RECORD, Cap
from semel.periods import Hour
from semel.tables import COUNTERS, LEDGER

CallMode: TypeAlias = Literal["sync", "async"]
MODES: tuple[CallMode, ...] = ("sync", "async")
TimedCall: TypeAlias = Callable[[], Any]

BATCH = 100
CALLERS = 100
LEAST_CALLS = 3
# The first calls open connections and prepare statements.
WARM_UP_CALLS = 2
# How long the work of a hot key takes: long enough that every caller finds it running.
HOT_SECONDS = 0.05
REMOVED_AT_ONCE = 100
COUNTER = "semel-bench"
# No decision of a run is refused.
NEVER_REACHED = 10**9

FIRST, REPLAY, SEEN = "first call", "replay", "check_and_set"
MANY, DECISION, HOT = f"batch of {BATCH}", "decision of a gate", f"hot key, {CALLERS} callers"
KINDS = (FIRST, REPLAY, SEEN, MANY, DECISION, HOT)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """How long one kind of call took, in seconds, one after the other; of a hot key, all at once."""

    what: str
    mode: CallMode
    calls: int
    p50: float
    p99: float
    per_second: float
    round_trips: int | None
    """How often the store was asked for one call; None where that differs from run to run."""


class CountingStore:
    """A store around another one, which counts how often that is asked."""

    def __init__(self, store: Store, *, one_by_one: bool) -> None:
        self._inner = store
        self._one_by_one = one_by_one
        self.overflow: Overflow | None = store.overflow
        self.count: int = 0

    def execute(self, command: Stored) -> Any:
        """Carry the command out."""
        self._add(command)
        return self._inner.execute(command)

    def at_once(self, command: Stored) -> Any | None:
        """Carry the command out where that takes no waiting."""
        reply = self._inner.at_once(command)
        if reply is not None:
            self._add(command)
        return reply

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out."""
        self._add(command)
        return await self._inner.aexecute(command)

    def close(self) -> None:
        """Leave the store open: it is its owner's to close."""

    def _add(self, command: Stored) -> None:
        if isinstance(command, Batch) and self._one_by_one:
            self.count += len(command.writes)
        elif not isinstance(command, Time):  # which is known from the answers before
            self.count += 1


class Trial:
    """Records of one run, noted before they are written, so that all of them can be removed."""

    def __init__(self, s: semel.Semel) -> None:
        self.scope: str = f"semel-bench-{secrets.token_hex(4)}"
        self.s: semel.Semel = s.scoped(self.scope)
        self._ids: list[str] = []
        self._numbers = itertools.count()

    def number(self, kind: str, suffix: str = "") -> int:
        """A new number for a key of this kind; its record has that suffix."""
        number = next(self._numbers)
        self._ids.append(self.s.ledger.steps.name(f"{kind}:{number}{suffix}"))
        return number

    def key(self, kind: str, suffix: str = "") -> str:
        """A new key of this kind."""
        return f"{kind}:{self.number(kind, suffix)}"

    def remove(self) -> int:
        """Remove every record of the run; how many there were."""
        store, removed = self.s.store, 0
        while some := self._ids[-REMOVED_AT_ONCE:]:
            replies = store.execute(Batch(tuple(Delete(LEDGER, id) for id in some))).replies
            removed += sum(isinstance(reply, Applied) for reply in replies)
            del self._ids[-REMOVED_AT_ONCE:]
        name, now = self.s.counters.steps.realm.name(COUNTER), self.s.clock.now()
        # A run may go on into the next hour.
        for at in (now - HOUR, now):
            store.execute(Batch((Delete(COUNTERS, name, sort=Hour().span(at).label),)))
        return removed


def operations(
    trial: Trial, s: semel.Semel | AsyncSemel, kind: str, call: Callable[[int], Any]
) -> dict[str, TimedCall]:
    """Every kind of call but the hot key; `s` and `call` are for `def` or for `async def`."""
    gate = s.gate(Cap(COUNTER, NEVER_REACHED, per=Hour(), keep=HOUR), ttl=HOUR)
    done = trial.number(kind)
    return {
        FIRST: lambda: call(trial.number(kind)),
        REPLAY: lambda: call(done),
        SEEN: lambda: s.ledger.check_and_set(trial.key("seen"), HOUR),
        MANY: lambda: s.ledger.check_and_set_many([trial.key("seen") for _ in range(BATCH)], HOUR),
        DECISION: lambda: gate.decide(trial.key("decide", RECORD)),
    }


def sync_operations(trial: Trial, s: semel.Semel) -> dict[str, TimedCall]:
    """The calls of threads."""

    @s.once("call:{number}", ttl=HOUR)
    def work(number: int) -> int:
        return number

    return operations(trial, s, "call", work)


def async_operations(trial: Trial, s: semel.Semel) -> dict[str, TimedCall]:
    """The calls of tasks."""

    @s.once("acall:{number}", ttl=HOUR)
    async def work(number: int) -> int:
        return number

    return operations(trial, s.aio, "acall", work)


# Timing


def timed(operation: TimedCall, seconds: float) -> list[float]:
    """How long each call took, one after the other for so many seconds."""
    for _ in range(WARM_UP_CALLS):
        operation()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < LEAST_CALLS or time.perf_counter() < end:
        begun = time.perf_counter()
        operation()
        took.append(time.perf_counter() - begun)
    return took


async def atimed(operation: TimedCall, seconds: float) -> list[float]:
    """How long each awaited call took, one after the other for so many seconds."""
    for _ in range(WARM_UP_CALLS):
        await operation()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < LEAST_CALLS or time.perf_counter() < end:
        begun = time.perf_counter()
        await operation()
        took.append(time.perf_counter() - begun)
    return took


def hot(trial: Trial) -> list[float]:
    """How long each of many threads took that wanted one key at once."""

    @trial.s.once("hot:{number}", ttl=HOUR)
    def work(number: int) -> int:
        threading.Event().wait(HOT_SECONDS)
        return number

    number, begun = trial.number("hot"), time.perf_counter()
    took: list[float] = []

    def call() -> None:
        work(number)
        took.append(time.perf_counter() - begun)

    # Whoever is stopped here first sees the threads end: what they write is to be removed.
    with ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(CALLERS):
            pool.submit(call)
    return took


async def ahot(trial: Trial) -> list[float]:
    """How long each of many tasks took that wanted one key at once."""

    @trial.s.once("ahot:{number}", ttl=HOUR)
    async def work(number: int) -> int:
        await asyncio.sleep(HOT_SECONDS)
        return number

    number, begun = trial.number("ahot"), time.perf_counter()

    async def call() -> float:
        await work(number)
        return time.perf_counter() - begun

    return await asyncio.gather(*(call() for _ in range(CALLERS)))


def percentile(took: list[float], share: float) -> float:
    """So many seconds were enough for this share of all."""
    ordered = sorted(took)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def measured(what: str, mode: CallMode, took: list[float], round_trips: int | None) -> Measured:
    """What the times of calls come to."""
    whole = max(took) if what == HOT else sum(took)
    return Measured(
        what=what,
        mode=mode,
        calls=len(took),
        p50=percentile(took, 0.5),
        p99=percentile(took, 0.99),
        per_second=len(took) / whole,
        round_trips=round_trips,
    )


# All of it


def round_trips(trial: Trial, *, one_by_one: bool) -> dict[str, int]:
    """How often the store is asked for one call of each kind."""
    counting = CountingStore(trial.s.store, one_by_one=one_by_one)
    s = semel.connect(store=counting, env=trial.s.env, scope=trial.scope)
    found: dict[str, int] = {}
    for what, operation in sync_operations(trial, s).items():
        operation()  # what is looked up once is not part of a call
        before = counting.count
        operation()
        found[what] = counting.count - before
    return found


def measure(
    trial: Trial, seconds: float, *, one_by_one: bool, step: Callable[[], None]
) -> Iterator[Measured]:
    """Every kind of call, by threads and then by tasks."""
    trips = round_trips(trial, one_by_one=one_by_one)
    for what, operation in sync_operations(trial, trial.s).items():
        yield measured(what, "sync", timed(operation, seconds), trips[what])
        step()
    yield measured(HOT, "sync", hot(trial), None)
    step()
    yield from asyncio.run(_measure_async(trial, seconds, trips, step))


async def _measure_async(
    trial: Trial, seconds: float, trips: dict[str, int], step: Callable[[], None]
) -> list[Measured]:
    found = []
    for what, operation in async_operations(trial, trial.s).items():
        found.append(measured(what, "async", await atimed(operation, seconds), trips[what]))
        step()
    found.append(measured(HOT, "async", await ahot(trial), None))
    step()
    await leave(trial.s.store)
    return found
