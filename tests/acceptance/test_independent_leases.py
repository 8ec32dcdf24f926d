"""One holder's renewal hangs, and every other holder keeps its lease."""

import asyncio
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import psycopg
import pytest

import semel
from semel.aws.pool import ConnectionLimits
from semel.testing import FaultProxy
from tests.places import NETWORKED, open_place

pytestmark = pytest.mark.situation(55)

# A renewal is due after 2 seconds, and sent again after 4 if it has no answer.
LEASE = 6
HOLDERS = 5
PLACES = 2
STORES = [name for name in NETWORKED if name != "ministack"]
PATIENCE = 60

ways = pytest.mark.parametrize("way", ["sync", "async"])


class Holders:
    """Work that holds its keys until all of them were renewed."""

    def __init__(self, s, observer):
        self.s = s
        self.ledger = observer.ledger
        self.over = threading.Event()
        self.runs = []
        self.crowded = threading.Event()
        """Callers come, as many as there are connections."""

    def hold(self, way, keys, renewed, meanwhile=lambda: None, afterwards=lambda: None):
        """Hold these keys until the leases of those in `renewed` were renewed; which were still held then."""
        hold = self._hold_async if way == "async" else self._hold
        done = {}
        thread = threading.Thread(target=lambda: done.update(hold(keys)))
        thread.start()
        try:
            self._wait(lambda: len(self.runs) == len(keys), "begun")
            until = {key: self.ledger.get(key).lease_until for key in renewed}
            meanwhile()
            self._wait(
                lambda: all(self.ledger.get(key).lease_until > until[key] for key in renewed), "renewed"
            )
        finally:
            afterwards()
            self.crowded.set()
            self.over.set()
            thread.join()
        return done

    def _wait(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"not all of them are {what}"
            threading.Event().wait(0.05)

    def _hold(self, keys):
        def one(key):
            @self.s.once(key, lease=LEASE)
            def work() -> bool:
                self.runs.append(semel.current_run())
                self.over.wait()
                return not semel.current_run().lost

            results[key] = work()

        def call(number):
            self.crowded.wait()
            with suppress(semel.StoreError):
                self.s.ledger.get(f"caller-{number}")

        results: dict[str, bool] = {}
        threads = [threading.Thread(target=one, args=(key,)) for key in keys]
        threads += [threading.Thread(target=call, args=(number,)) for number in range(PLACES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def _hold_async(self, keys):
        async def one(key):
            @self.s.once(key, lease=LEASE)
            async def work() -> bool:
                self.runs.append(semel.current_run())
                await asyncio.to_thread(self.over.wait)
                return not semel.current_run().lost

            return key, await work()

        async def call(number):
            await asyncio.to_thread(self.crowded.wait)
            with suppress(semel.StoreError):
                await self.s.aio.ledger.get(f"caller-{number}")

        async def main():
            try:
                calls = asyncio.gather(*map(call, range(PLACES)))
                done = await asyncio.gather(*map(one, keys))
                await calls
                return dict(done)
            finally:
                await self.s.aio.close()

        return asyncio.run(main())


def keys(count=HOLDERS):
    return [f"holder-{number}" for number in range(count)]


@ways
@pytest.mark.parametrize("name", STORES)
def test_a_stalled_connection_costs_no_holder_its_lease(name, way, request, tmp_path):
    """Not even the one whose renewal stalls: it is sent again by another connection."""
    place = open_place(name, request, tmp_path)
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy.before(place.server))
        s = stack.enter_context(semel.connect(place.url(proxy.url(place.server)), env=place.env))
        observer = stack.enter_context(semel.connect(place.url(), env=place.env))
        holders = Holders(s, observer)
        held = holders.hold(way, keys(), keys(), meanwhile=lambda: proxy.stall(b"holder-0"))
        assert proxy.stalled == 1
        assert held == dict.fromkeys(keys(), True)
        assert [observer.ledger.get(key).attempt for key in keys()] == [1] * HOLDERS
        proxy.heal()


@ways
def test_a_locked_row_costs_no_other_holder_its_lease(way, request, tmp_path):
    place = open_place("postgres", request, tmp_path)
    with ExitStack() as stack:
        s = stack.enter_context(semel.connect(place.url(), env=place.env))
        locker = stack.enter_context(psycopg.connect(place.server))
        holders = Holders(s, s)

        def lock():
            found = locker.execute(
                f"SELECT id FROM {place.env}.semel_ledger WHERE id LIKE '%holder-0' FOR UPDATE"
            ).fetchall()
            assert len(found) == 1

        _locked, *others = keys()
        held = holders.hold(way, keys(), others, meanwhile=lock, afterwards=locker.rollback)
        assert held | {"holder-0": True} == dict.fromkeys(keys(), True)


def test_a_slow_commit_of_the_callers_transaction_costs_no_other_holder_its_lease(request, tmp_path):
    """The row of a claim that is completed in a transaction is locked until that commits."""
    place = open_place("postgres", request, tmp_path)
    with ExitStack() as stack:
        s = stack.enter_context(semel.connect(place.url(), env=place.env))
        mine = stack.enter_context(psycopg.connect(place.server))
        holders = Holders(s, s)

        @s.once("slow", lease=LEASE)
        def work() -> Any:
            with mine.transaction():
                with s.transaction(within=mine) as tx:
                    tx.ledger.complete(semel.current_run(), "kept")
                held.update(holders.hold("sync", keys(), keys()))
            return held

        held: dict[str, bool] = {}
        assert work() == "kept"
        assert held == dict.fromkeys(keys(), True)
        assert s.ledger.get("slow").status is semel.Status.COMPLETED


@pytest.mark.parametrize(("name", "way"), [("dynoxide", "sync"), ("dynoxide", "async"), ("redis", "async")])
def test_callers_that_hold_every_connection_delay_no_renewal(name, way, request, tmp_path, monkeypatch):
    """PostgreSQL keeps connections for renewals; on these stores a renewal opens one if none is idle."""
    place = open_place(name, request, tmp_path)
    monkeypatch.setattr("semel.stores.redis.connection.TASKS", PLACES)
    monkeypatch.setattr("semel.aws.pool.ConnectionLimits", partial(ConnectionLimits, connections=PLACES))
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy.before(place.server))
        s = stack.enter_context(semel.connect(place.url(proxy.url(place.server)), env=place.env))
        observer = stack.enter_context(semel.connect(place.url(), env=place.env))
        holders = Holders(s, observer)

        def crowd():
            proxy.stall(b"caller-", PLACES)
            holders.crowded.set()
            holders._wait(lambda: proxy.stalled == PLACES, "stalled")

        held = holders.hold(way, keys(), keys(), meanwhile=crowd, afterwards=proxy.heal)
        assert held == dict.fromkeys(keys(), True)
