"""A server that accepts and never answers: a typed error within the client's own limit, on every store."""

import asyncio
import socket
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from typing import Any

import pytest

import semel
from semel import errors
from semel.core.clock import ANSWER_SECONDS, timeout_of
from semel.core.commands import ABSENT, After, Applied, Get, Put
from semel.core.drive import leave
from semel.tables import LEDGER
from semel.testing import FaultProxy
from tests.places import NETWORKED, open_place

pytestmark = pytest.mark.situation(53)

# The driver of PostgreSQL connects within whole seconds, two at least; answers have the limit as it is said.
LIMIT = 0.5
SAID = r"within (0\.5|2) s.*timeout= in the URL"
# A test that waits for so long has found that there is no limit: the default of every store is far below it.
FOR_EVER = 100.0
STORES = [name for name in NETWORKED if name != "ministack"]

ways = pytest.mark.parametrize("way", ["sync", "async"])


@contextmanager
def listening():
    """A port where everybody is let in, and nobody is answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        kept, over = [], threading.Event()

        def accept():
            while not over.is_set():
                kept.append(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        yield port
        over.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()
        for each in kept:
            each.close()


def url_of(name, port, limit=LIMIT):
    return {
        "postgres": f"postgresql://me:secret@127.0.0.1:{port}/db?timeout={limit}",
        "redis": f"redis://:secret@127.0.0.1:{port}/1?timeout={limit}",
        "dynoxide": f"dynamodb://us-east-1?endpoint=http://127.0.0.1:{port}&timeout={limit}",
    }[name]


def asked(s, way, *commands):
    """What a store says to commands, one after the other; a function is called in between."""

    async def ask():
        try:
            return [c() if callable(c) else await s.store.aexecute(c) for c in commands]
        finally:
            await leave(s.store)

    began = time.monotonic()
    try:
        if way == "async":
            return asyncio.run(ask())
        return [c() if callable(c) else s.store.execute(c) for c in commands]
    finally:
        assert time.monotonic() - began < FOR_EVER


@ways
@pytest.mark.parametrize("name", STORES)
def test_a_server_that_accepts_and_never_answers_is_given_up_within_the_limit(name, way, monkeypatch):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "test")
    with listening() as port, semel.connect(url_of(name, port)) as s:
        with pytest.raises(errors.StoreUnavailable, match=SAID) as caught:
            asked(s, way, Get(LEDGER, "key"))
        assert f"127.0.0.1:{port}" in str(caught.value)


@pytest.mark.parametrize("name", STORES)
def test_a_claim_on_a_silent_server_says_so_and_runs_nothing(name, monkeypatch):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "test")
    ran = []
    with listening() as port, semel.connect(url_of(name, port)) as s:

        @s.once("work:{key}")
        def work(key: str) -> None:
            ran.append(key)

        with pytest.raises(errors.StoreUnavailable, match="timeout="):
            work("a")
    assert ran == []


@ways
@pytest.mark.parametrize("name", STORES)
def test_a_server_that_falls_silent_is_given_up_within_the_limit(name, way, request, tmp_path):
    place = open_place(name, request, tmp_path)
    put = Put(LEDGER, "key", {"expires_at": After(600)}, ABSENT)
    with FaultProxy.before(place.server) as proxy:
        url = place.url(proxy.url(place.server)) + f"&timeout={LIMIT}"
        with semel.connect(url, env=place.env) as s:
            look = Get(LEDGER, "key")
            with pytest.raises(errors.StoreOutcomeUnknown, match=SAID):
                asked(s, way, look, proxy.black_hole, put)
            proxy.heal()
            with pytest.raises(errors.StoreUnavailable, match=SAID):
                asked(s, way, look, proxy.black_hole, look)
            proxy.heal()
            assert type(asked(s, way, Get(LEDGER, "key"), put)[1]) is Applied


def test_a_file_that_is_locked_is_given_up_within_the_limit(tmp_path):
    path = tmp_path / "semel.db"
    with semel.connect(f"sqlite:///{path}?timeout=0.2") as s, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.StoreUnavailable, match=r"locked for 0\.2 s.*timeout= in the URL"):
            asked(s, "sync", Put(LEDGER, "key", {"expires_at": After(600)}, ABSENT))


@pytest.mark.parametrize("url", ["sqlite:///a.db", "postgresql://h/db", "redis://h", "dynamodb://us-east-1"])
@pytest.mark.parametrize("wrong", ["", "soon", "0", "-1", "nan", "1e9"])
def test_a_limit_that_is_none_is_refused_on_every_store(url, wrong):
    with pytest.raises(errors.InvalidOption, match="timeout"):
        semel.connect(f"{url}?timeout={wrong}")


def test_the_limit_is_ten_seconds_where_nobody_says_otherwise():
    from semel.aws.pool import ConnectionLimits
    from semel.stores.dynamodb.address import parse as dynamodb
    from semel.stores.postgres.address import PostgresAddress
    from semel.stores.redis.server import parse as redis
    from semel.stores.sqlite.file import SQLiteFile

    postgres = PostgresAddress.from_url("postgresql://h/db")
    limits = (dynamodb("dynamodb://"), redis("redis://h"), postgres, SQLiteFile.from_url("sqlite:///a.db"))
    assert {ANSWER_SECONDS, timeout_of(None), *(each.timeout for each in limits)} == {10.0}
    assert ConnectionLimits() == ConnectionLimits(connect_timeout=10.0, read_timeout=10.0)
    # The server gives a statement up before its answer is given up here.
    assert "statement_timeout=8000ms" in postgres.conninfo


@pytest.mark.parametrize("name", STORES)
def test_a_completion_on_a_silent_server_is_given_up_at_the_end_of_its_lease(
    name, request, tmp_path, monkeypatch
):
    """Its first try takes longer than the lease: one more tells whether it was applied, and that is all."""
    place = open_place(name, request, tmp_path)
    sent: list[Any] = []
    with FaultProxy.before(place.server) as proxy:
        url = place.url(proxy.url(place.server)) + f"&timeout={LIMIT}"
        with semel.connect(url, env=place.env) as s:
            monkeypatch.setattr(s.store, "execute", noting(s.store.execute, sent))

            @s.once("work", lease=0.4, heartbeat=False)
            def work() -> str:
                proxy.black_hole()
                sent.clear()
                return "done"

            with pytest.raises(errors.StoreOutcomeUnknown, match=SAID):
                work()
            proxy.heal()
    assert len(sent) == 2


def noting(execute, sent):
    """Execute commands, and note them in a list."""

    def note(command):
        sent.append(command)
        return execute(command)

    return note
