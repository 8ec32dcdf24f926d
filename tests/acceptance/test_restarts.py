"""Servers killed and started again under load: nothing acknowledged is lost, and no attempt runs twice."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

import semel
from semel import errors
from tests.amounts import amount
from tests.places import Place
from tests.servers.durable import durable_postgres, durable_redis
from tests.servers.running import until

RESTARTS = amount(10, 2, 40)
THREADS = 4
SERVERS = {"postgres": durable_postgres, "redis": durable_redis}
AWAY = (errors.StoreError, errors.ClaimLost, errors.InProgress)


class Load:
    """Threads that want one key after the other done, and insist on each until they are told its result."""

    def __init__(self, s: semel.Semel) -> None:
        self.runs: dict[int, list[tuple[int, str]]] = defaultdict(list)
        self.told: dict[int, set[str]] = defaultdict(set)
        self.over = threading.Event()

        @s.once("work:{n}", lease=2, wait=600)
        def work(n: int) -> str:
            attempt = semel.current_run().attempt
            result = f"{n}, attempt {attempt}"
            self.runs[n].append((attempt, result))
            return result

        self._work = work

    def keep_on(self, first: int) -> None:
        n = first
        while not self.over.is_set():
            self._insist(n)
            n += THREADS // 2  # so that two want each key

    def _insist(self, n: int) -> None:
        while True:
            try:
                self.told[n].add(self._work(n))
            except AWAY:
                continue
            return


@pytest.mark.proof("servers")
@pytest.mark.parametrize("place", SERVERS)
def test_servers_that_are_killed_under_load_lose_nothing_that_they_acknowledged(place, tmp_path, tried):
    with SERVERS[place]() as (url, server):
        ledger = Place(place, url, tmp_path)
        with semel.connect(ledger.url(), env=ledger.env) as s, ThreadPoolExecutor(THREADS) as threads:
            load = Load(s)
            done = [threads.submit(load.keep_on, number % (THREADS // 2)) for number in range(THREADS)]
            for _ in range(RESTARTS):
                enough = len(load.told) + 5
                assert until(lambda: len(load.told) > enough)  # noqa: B023 - asked at once
                server.restart()
            load.over.set()
            for one in done:
                one.result()
            for n, told in load.told.items():
                record = s.ledger.get(f"work:{n}")
                assert record is not None
                result = s.ledger.result(record)
                assert told == {result}
                assert (record.attempt, result) in load.runs[n]
                attempts = [attempt for attempt, _ in load.runs[n]]
                assert len(attempts) == len(set(attempts))
    again = sum(len(runs) > 1 for runs in load.runs.values())
    tried(RESTARTS, found=f"{again} of {len(load.runs)} effects were done again, each as a new attempt")
