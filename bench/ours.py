"""semel as a contender, and what only its SQLite store is asked: batches, and ten million keys."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import semel
from bench import Contender, Effect, Pair, bare, new_order
from bench.timing import Fresh, Row, Table, compare, tabulate
from semel.core.commands import Batch, Put
from semel.core.records import ClaimTerms, opening
from semel.core.spans import DAY, LEASE
from semel.tables import LEDGER

BATCH = 1_000
# Rows are written this many at a time when a store is filled: large enough that fsync does not count.
FILL = 50_000


@contextmanager
def ledger(on_disk: bool) -> Iterator[semel.Semel]:
    with bare.disk_folder() as folder, semel.connect(_url(folder) if on_disk else "memory:") as s:
        yield s


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / 'semel.db'}"


@contextmanager
def open_semel(effect: Effect, on_disk: bool = False) -> Iterator[Pair]:
    """The call that every other contender makes: one argument, the order."""
    with ledger(on_disk) as s:
        charge = s.once("charge:{order[id]}")(effect)
        numbers = itertools.count(1)
        done = new_order(0)
        charge(done)
        yield Pair(lambda: charge(new_order(next(numbers))), lambda: charge(done))


@contextmanager
def open_flat(effect: Effect, on_disk: bool = False) -> Iterator[Pair]:
    """The same order as three arguments, which is cheaper to fingerprint than a dict in a dict."""
    with ledger(on_disk) as s:

        @s.once("charge:{id}")
        def charge(id: str, amount: int, currency: str) -> Any:
            return effect({"id": id, "amount": amount, "currency": currency})

        numbers = itertools.count(1)
        done = tuple(new_order(0).values())
        charge(*done)
        yield Pair(lambda: charge(*new_order(next(numbers)).values()), lambda: charge(*done))


MEMORY = Contender("semel memory", open_semel, note="payload checked, SHA-256 of RFC 8785")
MEMORY_FLAT = Contender("semel memory, three arguments", open_flat, note="the same order, not as one dict")
SQLITE = Contender("semel SQLite", partial(open_semel, on_disk=True), note="payload checked; WAL, FULL")
SQLITE_FLAT = Contender(
    "semel SQLite, three arguments", partial(open_flat, on_disk=True), note="the same order, not as one dict"
)


@contextmanager
def marks(how: str) -> Iterator[Callable[[], object]]:
    """Mark a thousand new keys as seen, one by one or in a batch."""
    with ledger(on_disk=True) as s:
        numbers = itertools.count()

        def keys() -> list[str]:
            return [f"event:{next(numbers)}" for _ in range(BATCH)]

        def one_by_one() -> None:
            for key in keys():
                s.ledger.check_and_set(key)

        def many() -> None:
            s.ledger.check_and_set_many(keys())

        yield many if how == "batch" else one_by_one


def batch_table(repeat: int) -> Table:
    """A thousand keys in one round trip, and one by one."""
    subjects = {
        f"check_and_set_many, {BATCH} keys": Fresh(partial(marks, "batch")),
        f"check_and_set, {BATCH} times": Fresh(partial(marks, "single")),
    }
    timings = compare(subjects, 1, repeat)
    return tabulate("a batch on SQLite", timings, next(iter(subjects)), {})


def fill(s: semel.Semel, count: int, progress: Callable[[int], None]) -> None:
    """Write `count` finished records, in batches."""
    ledger = s.ledger.steps
    item = opening(ClaimTerms(LEASE, DAY * 30, "f" * 64), "0" * 32, "bench")
    item |= {"status": "COMPLETED", "result": b'{"id":"ch_1"}', "encoding": "json"}
    for start in range(0, count, FILL):
        names = (ledger.name(f"charge:order-{number:x}") for number in range(start, min(start + FILL, count)))
        s.store.execute(Batch(tuple(Put(LEDGER, name, item) for name in names)))
        progress(min(FILL, count - start))


class Filled:
    """A store that holds so many keys, and a claim of one more, spread over the key space."""

    def __init__(self, folder: Path, count: int, progress: Callable[[int], None]) -> None:
        self.s = semel.connect(f"sqlite:///{folder / f'{count}.db'}")
        fill(self.s, count, progress)
        self._numbers = itertools.count(1)

    def claim(self) -> object:
        # A multiplicative step, so that new keys fall everywhere between the old ones.
        spread = next(self._numbers) * 2654435761 % 2**32
        return self.s.ledger.claim(f"charge:order-{spread:x}!")


def scale_table(small: int, large: int, number: int, repeat: int, progress: Callable[[int], None]) -> Table:
    """A claim on a store of few keys and on one of many."""
    with bare.disk_folder() as folder:
        stores = {f"claim at {count:,} keys": Filled(folder, count, progress) for count in (small, large)}
        try:
            timings = compare({name: store.claim for name, store in stores.items()}, number, repeat)
        finally:
            for store in stores.values():
                store.s.close()
    return tabulate("a claim on SQLite", timings, next(iter(stores)), {})


def row(tables: list[Table], title: str, name: str) -> Row:
    """A row of one of the tables."""
    table = next(table for table in tables if table.title == title)
    return next(row for row in table.rows if row.name == name)
