"""Redis loses its primary: what `wait_replicas` has confirmed is still there; other writes may not be."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import redis

import semel
from semel.testing import FaultProxy
from tests.amounts import amount
from tests.servers.redis import ask, node, url
from tests.servers.running import HOST, until

CLAIMS = amount(100, 20, 1_000)


class Pair(NamedTuple):
    """A primary, its replica, and the line between them."""

    primary: int
    replica: int
    between: FaultProxy

    def part(self) -> None:
        """Cut the line; the primary goes on without its replica."""
        self.between.refuse()
        self.between.cut()

    def fail_over(self) -> None:
        with redis.Redis(HOST, self.primary) as leader:
            os.kill(int(leader.info("server")["process_id"]), signal.SIGKILL)
        ask(self.replica, "REPLICAOF", "NO", "ONE")


@contextmanager
def pair() -> Iterator[Pair]:
    with (
        node("--repl-diskless-sync-delay", "0") as primary,
        FaultProxy.before(url(primary)) as between,
        node("--replicaof", HOST, str(between.port)) as replica,
    ):
        assert until(lambda: ask(replica, "INFO", "replication")["master_link_status"] == "up")
        yield Pair(primary, replica, between)


def claim(s: semel.Semel, *keys: str) -> list[str]:
    assert all(isinstance(s.ledger.claim(key), semel.Claimed) for key in keys)
    return [*keys]


def missing(servers: Pair, keys: list[str]) -> int:
    """How many of these the replica does not have, which is the primary from now on."""
    servers.fail_over()
    with semel.connect(url(servers.replica)) as s:
        return sum(s.ledger.get(key) is None for key in keys)


KEYS = [f"key:{number}" for number in range(CLAIMS)]


@pytest.mark.situation(21)
@pytest.mark.proof("failover")
def test_what_replicas_have_confirmed_outlives_the_primary(tried):
    """Which is killed as soon as the last claim is acknowledged."""
    with pair() as servers:
        with semel.connect(f"{url(servers.primary)}?wait_replicas=1&wait_timeout=60&timeout=120") as s:
            won = claim(s, *KEYS)
        assert missing(servers, won) == 0
    tried(len(won))


@pytest.mark.situation(21)
@pytest.mark.proof("failover")
def test_without_confirmation_a_failover_loses_what_had_not_arrived(tried):
    """The line to the replica is cut halfway, and the primary goes on acknowledging."""
    half = CLAIMS // 2
    with pair() as servers:
        with semel.connect(url(servers.primary)) as s:
            won = claim(s, *KEYS[:half])
            with redis.Redis(HOST, servers.replica) as replica:
                assert until(lambda: replica.dbsize() > half)  # these, and the store's stamp
            servers.part()
            won += claim(s, *KEYS[half:])
        gone = missing(servers, won)
    assert gone == half
    tried(0, found=f"without it, {gone} of {len(won)} were gone: all since the line to the replica was cut")
