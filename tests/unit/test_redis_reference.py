"""Whatever is asked of Redis, its scripts answer as the store in memory does."""

import itertools
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.core.commands import (
    ABSENT,
    ANY,
    NOW,
    Add,
    After,
    Batch,
    Delete,
    Get,
    Put,
    Query,
    Transact,
    Update,
)
from semel.errors import UsageError
from semel.stores.memory import MemoryStore
from semel.stores.redis import RedisStore
from semel.tables import Table
from semel.testing import FakeClock
from semel.testing.conformance import ENTRIES, LINES, NOTES, THINGS
from semel.testing.conformance.harness import shown
from tests.amounts import amount

NUMBERS = itertools.count()
# Few of each, so that commands meet.
KEYS = ["k", "k}%7D{"]
SORTS: dict[str, st.SearchStrategy[Any]] = {
    THINGS.name: st.none(),
    NOTES.name: st.sampled_from(["", "b}:a"]),
    LINES.name: st.sampled_from([-1, 10]),
    ENTRIES.name: st.sampled_from(["", "b}:a"]),
}

TEXTS = ["", "a", "ab", "1", "1.0", "\0", "\u00e9"]
texts = st.sampled_from(TEXTS)
# So many additions as a test makes leave no number that only Python has.
numbers = st.integers(-1, 1) | st.sampled_from([0.5, -0.25, 2**53 - 100, 1e300, 1.1])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": texts,
    "count": numbers,
    "data": st.sampled_from([b"", b"\xff", b"\0"]),
    "due": numbers | st.sampled_from([NOW, After(1), After(-1)]),
    "flag": st.booleans(),
    "object": st.dictionaries(texts, st.none() | numbers | st.lists(texts, max_size=2), max_size=2),
    "tags": st.sets(texts, max_size=2),
}
COUNTED = "count"
ends = st.sampled_from([After(5), After(10_000), After(-1), After(0), After(200_000)])


def attributes(without: str = "") -> st.SearchStrategy[dict[str, Any]]:
    some = {name: st.none() | value for name, value in VALUES.items() if name != without}
    return st.fixed_dictionaries({}, optional=some)


def items(without: str = "") -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda some, end: some | {"gone_at": end}, attributes(without), ends)


# What a write may expect of an item: any of these, or that it is missing.
expectations = st.fixed_dictionaries(
    {},
    optional={name: st.none() | VALUES[name] for name in ("text", "count", "data", "flag")}
    | {"due": st.none() | numbers},
)


def writes(table: Table) -> st.SearchStrategy[Any]:
    here, keys, sorts = st.just(table), st.sampled_from(KEYS), SORTS[table.name]
    expects = st.sampled_from([ANY, ABSENT]) | expectations
    steps = st.integers(-1, 1) | st.sampled_from([0.5, -0.25])
    # What Add counts is none of what it sets, and it has an end in case there is no item.
    return (
        st.builds(Put, here, keys, items(), expects, sorts)
        | st.builds(Update, here, keys, attributes() | items(), expectations, sorts)
        | st.builds(Add, here, keys, st.just(COUNTED), steps, items(COUNTED), st.none() | numbers, sorts)
        | st.builds(Delete, here, keys, expectations, sorts)
    )


def commands(table: Table) -> st.SearchStrategy[Any]:
    """Commands, and seconds to let pass."""
    each = writes(table)
    apart = st.lists(each, max_size=4, unique_by=lambda write: (write.key, write.sort))
    return (
        each
        | st.builds(Get, st.just(table), st.sampled_from(KEYS), SORTS[table.name])
        | st.builds(Batch, st.lists(each, max_size=4).map(tuple))
        | st.builds(Transact, apart.map(tuple))
        | st.floats(0, 6)
    )


def plain(reply: Any) -> Any:
    """A reply without what is None in its items, nor empty sets, which are no attribute."""
    match reply:
        case list() | tuple():
            return [plain(each) for each in reply]
        case dict():
            return {name: value for name, value in shown(reply).items() if value != set()}
    if not hasattr(reply, "__struct_fields__"):
        return reply
    return type(reply).__name__, *(plain(getattr(reply, name)) for name in reply.__struct_fields__)


def content(store: Any, table: Table) -> list[Any]:
    """Every item, in one order."""
    page = store.execute(Query(table))
    assert page.after is None
    return sorted(map(plain, page.items), key=lambda item: [item[name] for name in table.key])


def found(store: Any, query: Query) -> tuple[list[Any], list[Any]]:
    """What an index leads to, in the order of its sort attribute and then in one order, page by page."""
    index, items = query.table.index(query.index), []
    while True:
        page = store.execute(query)
        items += [plain(item) for item in page.items]
        if page.after is None:
            break
        query = msgspec.structs.replace(query, after=page.after)
    by_key = sorted(items, key=lambda item: [item[name] for name in query.table.key])
    return [item[index.sort] for item in items if index and index.sort], by_key


@pytest.fixture(scope="module")
def client(redis_server: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server) as client:
        yield client


@pytest.mark.parametrize("table", [THINGS, NOTES, LINES], ids=lambda table: table.name)
def test_every_command_is_answered_as_in_memory(redis_server: str, client: redis.Redis, table: Table) -> None:
    """Expectations, changes, additions, ends, transactions: in whatever order they come."""

    @settings(max_examples=amount(100, 40))
    @given(st.lists(commands(table), max_size=12))
    def same(asked: list[Any]) -> None:
        prefix, clock = f"reference-{os.getpid()}-{next(NUMBERS)}", FakeClock()
        memory = MemoryStore(clock)
        with closing(RedisStore(f"{redis_server}?prefix={prefix}", clock=clock)) as store:
            for command in asked:
                if isinstance(command, float):
                    clock.advance(command)
                else:
                    assert plain(store.execute(command)) == plain(memory.execute(command))
            for key in KEYS:
                assert plain(store.execute(Query(table, key))) == plain(memory.execute(Query(table, key)))
            assert content(store, table) == content(memory, table)
        client.unlink(prefix, *client.scan_iter(f"{prefix}:*", count=1000))

    same()


@pytest.mark.parametrize("where", ["server", "cluster"])
def test_every_index_leads_where_it_does_in_memory(request: pytest.FixtureRequest, where: str) -> None:
    """To the items that have its value, and to no others, in its order, whatever was written how."""
    server = request.getfixturevalue(f"redis_{where}")
    option = "" if where == "server" else "&cluster=yes"

    @settings(max_examples=amount(100 if where == "server" else 50, 30))
    @given(st.lists(commands(ENTRIES), max_size=12), st.booleans(), st.integers(1, 3))
    def same(asked: list[Any], reverse: bool, limit: int) -> None:
        prefix, clock = f"reference-{os.getpid()}-{next(NUMBERS)}", FakeClock()
        memory = MemoryStore(clock)
        with closing(RedisStore(f"{server}?prefix={prefix}{option}", clock=clock)) as store:
            for command in asked:
                if isinstance(command, float):
                    clock.advance(command)
                else:
                    assert plain(store.execute(command)) == plain(memory.execute(command))
            written = [plain(item) for item in memory.execute(Query(ENTRIES)).items]
            for index in ENTRIES.indexes:
                for value in [*{item[index.partition] for item in written if index.partition in item}, *MORE]:
                    if isinstance(value, str) is (index.partition == "text"):
                        query = Query(ENTRIES, value, reverse=reverse, limit=limit, index=index.name)
                        assert found(store, query) == found(memory, query)

    same()


# Values that nothing may have, or no longer.
MORE = ["", "a", 1, 0.5]


def test_an_addition_without_an_end_is_refused_before_it_is_made(redis_server: str) -> None:
    url = f"{redis_server}?prefix=reference-{os.getpid()}-{next(NUMBERS)}"
    with closing(RedisStore(url, clock=FakeClock())) as store:
        with pytest.raises(UsageError, match="no end"):
            store.execute(Add(THINGS, "key", "count", 1, {}))
        assert store.execute(Get(THINGS, "key")).item is None
