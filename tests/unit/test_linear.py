"""The check of histories: it accepts whatever some order explains, and nothing else."""

import itertools
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.core.commands import (
    ABSENT,
    ANY,
    NOW,
    Add,
    After,
    Applied,
    Delete,
    Found,
    Get,
    Put,
    Query,
    Refused,
    Stored,
    Update,
)
from semel.core.drive import Store
from semel.errors import StoreOutcomeUnknown, StoreUnavailable, UsageError
from semel.stores.memory import MemoryStore
from semel.tables import Kind, Table
from semel.testing import FakeClock, Faulty, History, Operation, check, check_items
from semel.testing.linear import UNKNOWN, Transition, item_step
from tests.amounts import amount

THINGS = Table(
    name="things",
    partition="id",
    attributes={"text": Kind.TEXT, "count": Kind.NUMBER, "at": Kind.NUMBER, "gone_at": Kind.NUMBER},
    expires="gone_at",
)
LIFE = {"gone_at": After(1e6)}


def thing(**attributes: Any) -> dict[str, Any]:
    return attributes | LIFE


# A register: the plainest model there is.


def register(state: int, call: tuple[str, int], result: Any) -> tuple[bool, int]:
    what, value = call
    if what == "write":
        return True, value
    if what == "read":
        return result in (state, UNKNOWN), state
    swapped = state == value  # "swap" puts the next number in the place of this one
    return result in (swapped, UNKNOWN), state + 1 if swapped else state


def write(value: int, begin: int, end: int | None = None) -> Operation:
    return Operation("w", ("write", value), begin, end, UNKNOWN if end is None else None)


def read(result: Any, begin: int, end: int | None = None) -> Operation:
    return Operation("r", ("read", 0), begin, end, UNKNOWN if end is None else result)


def swap(value: int, result: Any, begin: int, end: int | None = None) -> Operation:
    return Operation("s", ("swap", value), begin, end, UNKNOWN if end is None else result)


def reads(call: tuple[str, int], result: Any) -> bool:
    return call[0] == "read" or result is False


def explained(*operations: Operation) -> bool:
    plainly, shortly = check(operations, register, 0), check(operations, register, 0, idle=reads)
    assert bool(plainly) == bool(shortly)
    return not plainly


@pytest.mark.parametrize(
    "operations",
    [
        [],
        [read(0, 1, 2)],
        [write(1, 1, 2), read(1, 3, 4)],
        [write(1, 1, 4), read(0, 2, 3)],
        [write(1, 1, 4), read(1, 2, 3)],
        [write(1, 1, 10), read(0, 2, 3), read(1, 4, 5)],
        [write(1, 1, 5), write(2, 2, 6), read(2, 7, 8), read(2, 9, 10)],
        [write(1, 1, 5), write(2, 2, 6), read(1, 7, 8), read(1, 9, 10)],
        [swap(0, True, 1, 4), swap(0, False, 2, 3)],
        [swap(0, True, 1, 4), swap(1, True, 2, 3)],
    ],
)
def test_what_some_order_explains_is_accepted(operations: list[Operation]) -> None:
    assert explained(*operations)


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([read(1, 1, 2)], id="a value from nowhere"),
        pytest.param([write(1, 1, 2), read(0, 3, 4)], id="a stale read"),
        pytest.param([write(1, 1, 10), read(1, 2, 3), read(0, 4, 5)], id="time runs backwards"),
        pytest.param([read(1, 1, 2), write(1, 3, 4)], id="a read of the future"),
        pytest.param([write(1, 1, 5), write(2, 2, 6), read(1, 7, 8), read(2, 9, 10)], id="two minds"),
        pytest.param([swap(0, True, 1, 4), swap(0, True, 2, 3)], id="two winners"),
        pytest.param([swap(0, False, 1, 4), swap(0, False, 2, 3)], id="no winner"),
    ],
)
def test_what_no_order_explains_is_rejected(operations: list[Operation]) -> None:
    assert not explained(*operations)


@pytest.mark.parametrize(
    ("operations", "verdict"),
    [
        pytest.param([write(1, 1), read(1, 2, 3)], True, id="it was made"),
        pytest.param([write(1, 1), read(0, 2, 3)], True, id="it was never made"),
        pytest.param([write(1, 1), read(0, 2, 3), read(0, 4, 5), read(1, 6, 7)], True, id="it was made late"),
        pytest.param([write(1, 1), read(1, 2, 3), read(0, 4, 5)], False, id="it is not unmade"),
        pytest.param([read(1, 1, 2), write(1, 3)], False, id="it is not made before it begins"),
        pytest.param(
            [write(1, 1), write(2, 2, 3), read(1, 4, 5), read(2, 6, 7)], False, id="it is made once"
        ),
        pytest.param([swap(0, True, 1), swap(0, False, 2, 3), read(1, 4, 5)], True, id="it has won"),
        pytest.param([swap(0, True, 1), swap(0, True, 2, 3), read(1, 4, 5)], True, id="it has lost"),
        pytest.param([swap(0, True, 1), swap(0, True, 2, 3), read(2, 4, 5)], False, id="not both have won"),
        pytest.param([read(0, 1), write(1, 2, 3), read(1, 4, 5)], True, id="a reading nobody got"),
    ],
)
def test_a_call_without_an_answer_took_effect_later_or_never(
    operations: list[Operation], verdict: bool
) -> None:
    assert explained(*operations) is verdict


def test_keys_are_looked_at_one_by_one() -> None:
    good = [Operation("p", ("a", 1), 1, 2, "old"), Operation("p", ("b", 2), 3, 4, "new")]
    bad = [Operation("p", ("c", 3), 5, 6, "wrong")]

    def step(state: str, call: tuple[str, int], result: str) -> tuple[bool, str]:
        return result != "wrong", state

    [violation] = check([*good, *bad], step, "initial", key=lambda call: call[0])
    assert violation.key == "c"
    assert violation.stuck == tuple(bad)


def test_a_violation_says_how_far_an_order_got_and_what_could_not_come_next() -> None:
    first, second, stale = write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)
    [violation] = check([stale, second, first], register, 0)
    assert violation.placed == (first, second)
    assert violation.stuck == (stale,)
    assert violation.state == 2
    assert str(violation) == (
        "no order explains the operations on None; after 2 of them\n"
        "    [1..2] w: ('write', 1) -> None\n"
        "    [3..4] w: ('write', 2) -> None\n"
        "there was 2, and none of these could come next:\n"
        "    [5..6] r: ('read', 0) -> 1"
    )


# Every verdict on a small history is the one of trying each order.


def orders(operations: list[Operation]) -> Iterator[Iterable[Operation]]:
    """Every order, with any of those that have no answer left out, that goes against no clock."""
    lost = [operation for operation in operations if operation.end is None]
    answered = [operation for operation in operations if operation.end is not None]
    for number in range(len(lost) + 1):
        for some in itertools.combinations(lost, number):
            for order in itertools.permutations([*answered, *some]):
                late = itertools.combinations(order, 2)
                if all(b.end is None or a.begin < b.end for a, b in late):
                    yield order


def fits(order: Iterable[Operation], step: Transition, state: Any) -> bool:
    for operation in order:
        possible, state = step(state, operation.call, operation.result)
        if not possible:
            return False
    return True


@st.composite
def small_histories(draw: st.DrawFn) -> list[Operation]:
    """A few calls, whose answers may be right, wrong or lost, in any order of beginnings and ends."""
    number = draw(st.integers(1, 5))
    ticks = draw(st.permutations(range(1, 2 * number + 1)))
    made = []
    for index in range(number):
        begin, end = sorted(ticks[2 * index : 2 * index + 2])
        values = st.integers(0, 2)
        make = draw(st.sampled_from([write, read, swap]))
        until = draw(st.sampled_from([end, end, end, None]))
        if make is write:
            made.append(write(draw(values), begin, until))
        elif make is read:
            made.append(read(draw(values), begin, until))
        else:
            made.append(swap(draw(values), draw(st.booleans()), begin, until))
    return made


@settings(max_examples=amount(500, 150))
@given(small_histories())
@example([write(1, 1), write(2, 2), read(1, 3, 4), read(2, 5, 6), read(1, 7, 8)])
@example([write(0, 1, 4), write(1, 2, 3), read(0, 5, 6)])
def test_the_verdict_is_the_one_of_trying_every_order(operations: list[Operation]) -> None:
    assert explained(*operations) == any(fits(order, register, 0) for order in orders(operations))


# Items, by the reference semantics of the commands.


def commands(key: str) -> st.SearchStrategy[Stored]:
    texts = st.sampled_from(["a", "b"])
    expects = st.one_of(
        st.just(ANY),
        st.just(ABSENT),
        st.just({}),
        st.builds(lambda text: {"text": text}, texts | st.none()),
        st.builds(lambda count: {"count": count}, st.integers(0, 2)),
    )
    caps = st.none() | st.integers(0, 3)
    items = st.builds(lambda text: thing(text=text, at=NOW), texts)
    changes = st.builds(lambda text: {"text": text, "at": After(30)}, texts | st.none())
    return st.one_of(
        st.just(Get(THINGS, key)),
        st.builds(lambda item, expect: Put(THINGS, key, item, expect), items, expects),
        st.builds(lambda change, text: Update(THINGS, key, change, {"text": text}), changes, texts),
        st.builds(
            lambda by, cap: Add(THINGS, key, "count", by, {"at": NOW} | LIFE, cap),
            st.sampled_from([1, -1]),
            caps,
        ),
        st.just(Delete(THINGS, key)),
    )


@st.composite
def executions(draw: st.DrawFn) -> list[Operation]:
    """A real execution, one call after the other, in which each seemed to take longer than it did."""
    calls = draw(st.lists(st.sampled_from(["x", "y"]).flatmap(commands), min_size=1, max_size=25))
    clock = FakeClock()
    store = MemoryStore(clock)
    made = []
    for number, call in enumerate(calls):
        clock.advance(1)  # so that the store's moments are never those of the model
        reply = store.execute(call)
        point = 100 * number
        begin, end = point - draw(st.integers(1, 350)), point + draw(st.integers(1, 350))
        lost = draw(st.integers(0, 9)) == 0
        made.append(Operation(number, call, begin, None if lost else end, UNKNOWN if lost else reply))
    return made


@given(executions())
def test_a_real_execution_is_accepted_however_its_calls_overlap(operations: list[Operation]) -> None:
    assert check_items(operations) == []


@given(executions(), st.data())
def test_an_execution_with_one_answer_of_another_world_is_rejected(
    operations: list[Operation], data: st.DataObject
) -> None:
    spoilt = data.draw(st.integers(0, len(operations) - 1))
    reply = Refused(0.0, {"id": "x", "text": "never written", "gone_at": 1e9})
    operation = operations[spoilt]
    end = operation.begin + 10_000 if operation.end is None else operation.end
    operations[spoilt] = Operation("p", operation.call, operation.begin, end, reply)
    assert len(check_items(operations)) == 1


def at(number: int, call: Stored, reply: Any) -> Operation:
    """One of several operations, each after the one before."""
    return Operation("p", call, 2 * number, 2 * number + 1, reply)


def during(call: Stored, reply: Any, until: int = 100) -> Operation:
    """An operation that goes on while all the others are made."""
    return Operation("q", call, 0, until, reply)


def item(**attributes: Any) -> dict[str, Any]:
    return {"id": "k", "gone_at": 1.7e9} | attributes


def test_a_stale_read_of_an_item_is_rejected() -> None:
    puts = [
        at(1, Put(THINGS, "k", thing(text="a")), Applied(1.7e9)),
        at(2, Put(THINGS, "k", thing(text="b")), Applied(1.7e9)),
    ]
    assert check_items([*puts, at(3, Get(THINGS, "k"), Found(1.7e9, item(text="b")))]) == []
    assert check_items([*puts, at(3, Get(THINGS, "k"), Found(1.7e9, item(text="a")))])
    assert check_items([*puts, at(3, Get(THINGS, "k"), Found(1.7e9, None))])


def test_a_lost_update_is_rejected() -> None:
    add = Add(THINGS, "k", "count", 1, LIFE)
    one, two = Applied(1.7e9, item(count=1)), Applied(1.7e9, item(count=2))
    assert check_items([during(add, two), at(1, add, one)]) == []
    assert check_items([during(add, one), at(1, add, one)])


def test_two_winners_of_a_claim_are_rejected() -> None:
    def claim(token: str) -> Put:
        return Put(THINGS, "k", thing(text=token), ABSENT)

    won = Applied(1.7e9)
    assert check_items([during(claim("a"), Refused(1.7e9, item(text="b"))), at(1, claim("b"), won)]) == []
    assert check_items([during(claim("a"), Refused(1.7e9, item(text="a"))), at(1, claim("b"), won)])
    assert check_items([during(claim("a"), Refused(1.7e9, None)), at(1, claim("b"), won)])
    assert check_items([during(claim("a"), won), at(1, claim("b"), won)])


def test_a_zombie_whose_late_write_was_taken_is_rejected() -> None:
    """It holds the token of a claim that another has taken over."""
    history = [
        at(1, Put(THINGS, "k", thing(text="a"), ABSENT), Applied(1.7e9)),
        at(2, Update(THINGS, "k", {"text": "b"}, {"text": "a"}), Applied(1.7e9)),
    ]
    late = Update(THINGS, "k", {"count": 1}, {"text": "a"})
    assert check_items([*history, at(3, late, Refused(1.7e9, item(text="b")))]) == []
    assert check_items([*history, at(3, late, Applied(1.7e9))])


def test_moments_of_the_stores_clock_are_there_and_not_compared() -> None:
    put = at(1, Put(THINGS, "k", thing(at=NOW)), Applied(5.0))
    assert check_items([put, at(2, Get(THINGS, "k"), Found(6.0, item(at=5.0)))]) == []
    assert check_items([put, at(2, Get(THINGS, "k"), Found(6.0, item()))])
    fixed = at(1, Put(THINGS, "k", thing(at=5.0)), Applied(5.0))
    assert check_items([fixed, at(2, Get(THINGS, "k"), Found(6.0, item(at=7.0)))])


def test_a_moment_that_was_written_over_is_compared_again() -> None:
    put = at(1, Put(THINGS, "k", thing(at=NOW)), Applied(5.0))
    update = at(2, Update(THINGS, "k", {"at": 9.0}), Applied(5.0))
    assert check_items([put, update, at(3, Get(THINGS, "k"), Found(6.0, item(at=9.0)))]) == []
    assert check_items([put, update, at(3, Get(THINGS, "k"), Found(6.0, item(at=8.0)))])


def test_a_command_on_several_items_has_no_place_here() -> None:
    with pytest.raises(UsageError, match="Query"):
        item_step(None, Query(THINGS), UNKNOWN)


# The history of real threads.


def recorded(history: History, process: int, store: Store, command: Stored) -> Any:
    with history.operation(process, command) as answered:
        reply = store.execute(command)
        answered(reply)
        return reply


def test_an_operation_ends_with_its_answer() -> None:
    history, store = History(), MemoryStore()
    recorded(history, 1, store, Put(THINGS, "k", thing(text="a")))
    recorded(history, 2, store, Get(THINGS, "k"))
    put, get = history.operations
    assert (put.process, put.begin, put.end, get.begin, get.end) == (1, 1, 2, 3, 4)
    assert get.result.item["text"] == "a"
    assert check_items(history) == []


def test_an_operation_whose_outcome_is_unknown_stays_open_and_one_that_was_refused_never_was() -> None:
    history, store = History(), Faulty(MemoryStore())
    put = Put(THINGS, "k", thing(text="a"), ABSENT)
    store.refuse()
    with pytest.raises(StoreUnavailable):
        recorded(history, 1, store, put)
    assert history.operations == []
    store.lose_reply()
    with pytest.raises(StoreOutcomeUnknown):
        recorded(history, 1, store, put)
    assert history.operations == [Operation(1, put, 2)]
    assert isinstance(recorded(history, 1, store, put), Refused)
    assert check_items(history) == []


def test_an_operation_ends_once() -> None:
    history = History()
    number = history.begin(1, "call")
    history.end(number, "result")
    with pytest.raises(UsageError, match="ended already"):
        history.end(number, "another")


KEYS = 40
THREADS = 8
CALLS = 625  # for each thread: five thousand in all


def some_command(rng: random.Random, mark: str) -> Stored:
    key = f"k{rng.randrange(KEYS)}"
    several: list[Stored] = [
        Get(THINGS, key),
        Put(THINGS, key, thing(text=mark, at=NOW), ABSENT),
        Put(THINGS, key, thing(text=mark)),
        Update(THINGS, key, {"text": mark}, {"count": rng.randrange(3)}),
        Add(THINGS, key, "count", 1, LIFE, cap=2),
        Add(THINGS, key, "count", 1, {"at": NOW} | LIFE),
        Delete(THINGS, key),
    ]
    return rng.choice(several)


def crowded(number: int) -> list[Operation]:
    """An execution in which each call overlaps a dozen others on its key, and one answer in fifty is lost."""
    rng, store, made = random.Random(number), MemoryStore(FakeClock()), []
    for tick in range(number):
        call = some_command(rng, f"m{tick}")
        begin, end = tick - rng.uniform(0, 6 * KEYS), tick + rng.uniform(0, 6 * KEYS)
        reply, lost = store.execute(call), rng.randrange(50) == 0
        ticks = (int(1000 * begin), None if lost else int(1000 * end))
        made.append(Operation("p", call, *ticks, UNKNOWN if lost else reply))
    return made


def test_five_thousand_operations_in_a_crowd_are_explained_and_a_wrong_answer_is_found() -> None:
    operations = crowded(5000)
    assert check_items(operations) == []
    wrong = next(number for number in range(3000, 5000) if operations[number].end is not None)
    right = operations[wrong]
    reply = Refused(0.0, {"id": right.call.key, "text": "never written", "gone_at": 1e9})
    operations[wrong] = Operation("p", right.call, right.begin, right.end, reply)
    assert [violation.key[1] for violation in check_items(operations)] == [right.call.key]


def stormed(store: Store) -> History:
    """Five thousand operations of threads that all want the same few keys."""
    history, start = History(), threading.Barrier(THREADS)

    def work(process: int) -> None:
        rng = random.Random(process)
        start.wait()
        for number in range(CALLS):
            with suppress(StoreOutcomeUnknown):
                recorded(history, process, store, some_command(rng, f"{process}.{number}"))

    threads = [threading.Thread(target=work, args=(process,)) for process in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return history


def test_five_thousand_operations_of_eight_threads_are_explained() -> None:
    history = stormed(MemoryStore())
    assert len(history.operations) == THREADS * CALLS
    assert check_items(history) == []


class Leaky(MemoryStore):
    """A store that loses some answers, of writes that it has made or not."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = itertools.count()

    def execute(self, command: Stored) -> Any:
        number = next(self.calls)
        if number % 50 == 7:
            raise StoreOutcomeUnknown("lost on the way")
        reply = super().execute(command)
        if number % 50 == 31:
            raise StoreOutcomeUnknown("made, and lost on the way back")
        return reply


def test_five_thousand_operations_are_explained_though_answers_were_lost() -> None:
    history = stormed(Leaky())
    assert sum(operation.end is None for operation in history.operations) == THREADS * CALLS // 25
    assert check_items(history) == []


class Careless(MemoryStore):
    """A store that looks first and writes afterwards, and where two may look before either writes."""

    def __init__(self) -> None:
        super().__init__()
        self.both_have_looked = threading.Barrier(2)

    def execute(self, command: Any) -> Any:
        found = super().execute(Get(command.table, command.key))
        self.both_have_looked.wait()
        if found.item is not None:
            return Refused(found.now, found.item)
        return super().execute(Put(command.table, command.key, command.item))


def test_a_store_that_looks_before_it_writes_is_found_out() -> None:
    history, store = History(), Careless()

    def claim(process: int) -> None:
        recorded(history, process, store, Put(THINGS, "k", thing(text=str(process)), ABSENT))

    threads = [threading.Thread(target=claim, args=(process,)) for process in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [violation] = check_items(history)
    assert violation.key == ("things", "k", None)
    assert len(violation.placed) == 1
