"""semel as a contender, in memory and on SQLite."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import semel
from bench import Contender, Effect, Pair, bare, new_order
from bench.timing import Row, Table


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


MEMORY = Contender("semel", open_semel, note="payload checked")
MEMORY_FLAT = Contender("semel, three arguments", open_flat, note="the same order, not as one dict")
SQLITE = Contender("semel", partial(open_semel, on_disk=True), note="payload checked; WAL, FULL")
SQLITE_FLAT = Contender(
    "semel, three arguments", partial(open_flat, on_disk=True), note="the same order, not as one dict"
)


def row(tables: list[Table], title: str, name: str) -> Row:
    """A row of one of the tables."""
    table = next(table for table in tables if table.title == title)
    return next(row for row in table.rows if row.name == name)
