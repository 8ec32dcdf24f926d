"""The store in Redis keeps the contract: on one server, and on a cluster, by partition and by scope."""

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from redis.cluster import RedisCluster

from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    Add,
    After,
    Applied,
    Cancelled,
    Delete,
    Equals,
    Put,
    Refused,
    Transact,
    Update,
)
from semel.core.drive import Store
from semel.errors import UsageError
from semel.stores.redis import RedisStore
from semel.testing import FakeClock, StoreConformance
from semel.testing.conformance import NOTES, THINGS, Runner
from semel.testing.conformance.commands import TransactTests
from semel.testing.conformance.harness import LONG, get, one, put, shown, there, thing
from semel.testing.conformance.indexes import IndexTests
from semel.testing.conformance.queries import QueryTests
from semel.testing.conformance.races import RaceTests

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def on_server(redis_server: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server) as client:
        yield client


@pytest.fixture(scope="module")
def on_cluster(redis_cluster: str) -> Iterator[RedisCluster]:
    with RedisCluster.from_url(redis_cluster) as client:
        yield client


@contextmanager
def prefix(client: redis.Redis | RedisCluster) -> Iterator[str]:
    """Keys of one test, which finds the server empty and leaves it so."""
    name = f"test-{os.getpid()}-{next(NUMBERS)}"
    yield name
    for key in list(client.scan_iter(f"{name}:*", count=1000)):
        client.unlink(key)


@pytest.mark.seed("A1")
class TestRedis(StoreConformance):
    @pytest.fixture(autouse=True)
    def place(self, redis_server: str, on_server: redis.Redis) -> Iterator[None]:
        with prefix(on_server) as name:
            self.url = f"{redis_server}?prefix={name}"
            yield

    def make_store(self, clock: Clock) -> Store:
        return RedisStore.from_url(self.url, env="test", clock=clock)


class TestRedisClusterByScope(TransactTests, QueryTests, IndexTests, RaceTests):
    """With `slots=scope` transactions are as on one server; the rest does not ask where keys lie."""

    @pytest.fixture(autouse=True)
    def place(self, redis_cluster: str, on_cluster: RedisCluster) -> Iterator[None]:
        with prefix(on_cluster) as name:
            self.url = f"{redis_cluster}?cluster=yes&slots=scope&prefix={name}"
            yield

    def make_store(self, clock: Clock) -> Store:
        return RedisStore.from_url(self.url, env="test", clock=clock)


class TestRedisCluster(StoreConformance):
    """A transaction is one node's affair: items that lie apart cannot change together."""

    @pytest.fixture(autouse=True)
    def place(self, redis_cluster: str, on_cluster: RedisCluster) -> Iterator[None]:
        with prefix(on_cluster) as name:
            self.url = f"{redis_cluster}?cluster=yes&prefix={name}"
            yield

    def make_store(self, clock: Clock) -> Store:
        return RedisStore.from_url(self.url, env="test", clock=clock)

    def test_transact_of_items_that_lie_apart_is_refused(self, runner: Runner, clock: FakeClock) -> None:
        """Before anything is sent, with the keys and what to do about it."""
        writes = (Put(THINGS, "a", thing(clock), ABSENT), Put(THINGS, "b", thing(clock), ABSENT))
        with pytest.raises(UsageError, match=r"'a' of conformance_things.*'b' .*slots=scope"):
            runner.ask(Transact(writes))
        assert [get(runner, "a"), get(runner, "b")] == [None, None]

    # The contract's own transactions are of items that lie apart; these are of one partition.

    def test_transact_makes_every_write(self, runner: Runner, clock: FakeClock) -> None:
        """All four kinds, on two tables."""
        put(runner, "{mine}", thing(clock, text="old"))
        put(runner, "{mine}", thing(clock), NOTES, "gone")
        reply = runner.ask(
            Transact(
                (
                    Put(NOTES, "{mine}", thing(clock, text="new"), ABSENT, "new"),
                    Update(THINGS, "{mine}", {"text": "new"}, Equals("text", "old")),
                    Add(NOTES, "{mine}", "count", 1, {}, {"gone_at": After(LONG)}, None, "1"),
                    Delete(NOTES, "{mine}", sort="gone"),
                )
            )
        )
        assert type(reply) is Applied
        assert there(runner, "{mine}")["text"] == "new"
        assert there(runner, "{mine}", NOTES, "new")["text"] == "new"
        assert there(runner, "{mine}", NOTES, "1")["count"] == 1
        assert get(runner, "{mine}", NOTES, "gone") is None

    def test_transact_makes_all_writes_or_none(self, runner: Runner, clock: FakeClock) -> None:
        """One refusal cancels the rest, and each entry says how its write would have fared."""
        put(runner, "mine", thing(clock, text="here"))
        reply = runner.ask(
            Transact(
                (
                    Put(NOTES, "mine", thing(clock), ABSENT, "new"),
                    Put(THINGS, "mine", thing(clock, text="mine"), ABSENT),
                    Update(NOTES, "mine", {"text": "x"}, sort="nowhere"),
                )
            )
        )
        assert type(reply) is Cancelled
        fine, taken, nowhere = reply.refusals
        assert fine is None
        assert shown(taken.item) == thing(clock, text="here") | {"id": "mine"}
        assert nowhere == Refused(reply.now, None)
        assert get(runner, "mine", NOTES, "new") is None
        assert there(runner, "mine")["text"] == "here"

    def test_transact_does_not_count_expired_items(self, runner: Runner, clock: FakeClock) -> None:
        """An item whose time is up is absent for a transaction too."""
        put(runner, "mine", {"gone_at": clock.now() + 5}, NOTES, "over")
        clock.advance(5)
        update = Update(NOTES, "mine", {"text": "x"}, sort="over")
        reply = runner.ask(Transact((update, Put(THINGS, "mine", thing(clock)))))
        assert reply.refusals == (Refused(clock.now(), None), None)

    def test_one_of_many_transactions_wins(self, runner: Runner, clock: FakeClock) -> None:
        """Whoever gets one of two items gets both, whatever order they were named in."""

        def both(each: int) -> Transact:
            writes = [Put(NOTES, "mine", thing(clock, text=str(each)), ABSENT, place) for place in "ab"]
            return Transact(tuple(writes[:: 1 if each % 2 else -1]))

        replies = runner.together([one(both(each)) for each in range(12)])
        assert Counter(type(reply) for reply in replies) == {Applied: 1, Cancelled: 11}
        first, second = (there(runner, "mine", NOTES, place) for place in "ab")
        assert first["text"] == second["text"]
