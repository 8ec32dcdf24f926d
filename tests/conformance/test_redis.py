"""The store in Redis keeps the contract, on one server and in a cluster."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from redis.cluster import RedisCluster

from semel.core.clock import Clock
from semel.core.commands import ABSENT, Batch, Put, Query, Refused, Transact
from semel.core.drive import Store
from semel.errors import UsageError
from semel.stores.redis import RedisStore
from semel.testing import FakeClock, StoreConformance
from semel.testing.conformance import ENTRIES, THINGS, Runner
from semel.testing.conformance.harness import get, put, thing
from semel.testing.conformance.queries import pages

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


class TestRedisCluster(StoreConformance):
    """A scope is on one node, and so are items without one: the contract does not ask for more."""

    @pytest.fixture(autouse=True)
    def place(self, redis_cluster: str, on_cluster: RedisCluster) -> Iterator[None]:
        with prefix(on_cluster) as name:
            self.url = f"{redis_cluster}?cluster=yes&prefix={name}"
            yield

    def make_store(self, clock: Clock) -> Store:
        return RedisStore.from_url(self.url, env="test", clock=clock)

    def test_a_transaction_over_several_scopes_is_refused(self, runner: Runner, clock: FakeClock) -> None:
        """Before anything is sent, with the keys, the reason and what to do."""
        keys = ("dev/acme/a", "dev/bolt/a")
        writes = tuple(Put(THINGS, key, thing(clock), ABSENT) for key in keys)
        said = r"limited to one scope.*2 scopes: 'dev/acme/a' of conformance_things; .*transaction per scope"
        with pytest.raises(UsageError, match=said):
            runner.ask(Transact(writes))
        assert [get(runner, key) for key in keys] == [None, None]

    def test_a_batch_over_several_scopes_is_answered_in_order(self, runner: Runner, clock: FakeClock) -> None:
        """Whichever nodes have them."""
        keys = [f"dev/scope-{number % 9}/{number}" for number in range(60)]
        put(runner, keys[31], thing(clock))
        replies = runner.ask(Batch(tuple(Put(THINGS, key, thing(clock), ABSENT) for key in keys))).replies
        assert [place for place, reply in enumerate(replies) if type(reply) is Refused] == [31]
        found = [item["id"] for page in pages(runner, Query(THINGS, limit=7)) for item in page]
        assert sorted(found) == sorted(keys)

    def test_an_index_has_the_items_of_every_scope(self, runner: Runner, clock: FakeClock) -> None:
        """For a value that names no scope, they are on several nodes; their order is that of the index."""
        for number in range(12):
            item = thing(clock, text="x", due=number, count=7)
            put(runner, f"dev/scope-{number % 5}/a", item, ENTRIES, f"p{number}")
        for reverse in (False, True):
            query = Query(ENTRIES, "x", index="text-due", limit=5, reverse=reverse)
            found = [item["due"] for page in pages(runner, query) for item in page]
            assert found == sorted(range(12), reverse=reverse)
