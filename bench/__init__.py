"""The call that every contender makes, and the shape in which each is handed to the clock."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

Order = dict[str, Any]
Effect = Callable[[Order], Any]

CHARGE = {"id": "ch_1", "amount": 4200}


def new_order(number: int) -> Order:
    """An order with a key of its own; building one is part of the cost of every first call."""
    return {"id": f"order-{number}", "amount": 4200, "currency": "EUR"}


def charge(order: Order) -> Any:
    """The effect: the least that a function can do."""
    return {"id": "ch_1", "amount": order["amount"]}


@dataclass(frozen=True)
class Pair:
    """The two calls that are timed: `first` brings a new key each time, `replay` one that is done."""

    first: Callable[[], object]
    replay: Callable[[], object]


def pair_of(call: Callable[[Order], object]) -> Pair:
    """Make the two timed calls from a wrapped effect, with order 0 already done."""
    numbers = itertools.count(1)
    done = new_order(0)
    call(done)
    return Pair(lambda: call(new_order(next(numbers))), lambda: call(done))


@dataclass(frozen=True)
class Contender:
    """A way to do it: `open` gives a fresh store, wraps the effect with it, and cleans up after."""

    name: str
    open: Callable[[Effect], AbstractContextManager[Pair]]
    needs: tuple[str, ...] = ()
    note: str = ""
    whole: bool = True
    """Whether it does the whole job, which is then proven; a limit sends the bytes and no more."""


class NotOnce(AssertionError):
    """A contender that does not do what is being timed."""


def prove(contender: Contender) -> None:
    """Refuse to time a contender that skips a first call, repeats a replay or answers wrongly."""
    runs: list[str] = []

    def counted(order: Order) -> Any:
        runs.append(order["id"])
        return charge(order)

    with contender.open(counted) as pair:
        done_before = len(runs)
        answers = [pair.first(), pair.first(), pair.replay(), pair.replay()]
    if len(runs) - done_before != 2 or len(set(runs)) != len(runs):
        raise NotOnce(f"{contender.name}: two new keys and two replays ran {runs[done_before:]}")
    if answers != [CHARGE] * 4:
        raise NotOnce(f"{contender.name}: answered {answers}")
