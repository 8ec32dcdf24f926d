"""A reading on a connection that turns out to be broken is sent again, once, by a new one; a write is not."""

import asyncio
from contextlib import closing

import psycopg
import pytest
import redis

from semel import errors
from semel.core.commands import ABSENT, After, Get, Put, Query
from semel.core.drive import leave
from semel.stores.postgres import session
from semel.stores.redis import connection
from semel.tables import LEDGER
from tests.places import open_place

pytestmark = pytest.mark.situation(45)

PUT = Put(LEDGER, "key", {"expires_at": After(600)}, ABSENT)
READINGS = [Get(LEDGER, "key"), Query(LEDGER, limit=5)]


@pytest.fixture(params=["postgres", "redis"])
def place(request, tmp_path, monkeypatch):
    """A store that does not notice the end of a connection before it uses it."""
    monkeypatch.setattr(session.PostgresSession, "usable", lambda _session: True)
    monkeypatch.setattr(connection.RedisConnection, "is_quiet", lambda _connection: True)
    monkeypatch.setattr(connection.AsyncRedisConnection, "is_quiet", lambda _connection: True)
    return open_place(request.param, request, tmp_path)


def end_connections(place):
    """Have the server end all connections of this store, as its operator may."""
    if place.name == "redis":
        with redis.Redis.from_url(place.server) as client:
            for each in client.client_list(_type="normal"):
                if each["cmd"] in ("evalsha", "eval", "scan", "time"):
                    client.client_kill_filter(_id=each["id"])
        return
    with psycopg.connect(place.server, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name = 'semel' AND pid <> pg_backend_pid()"
        )


def asked(store, way, place, command):
    """What is said to a command by a connection that the server has ended since the one before."""

    async def ask():
        try:
            await store.aexecute(Get(LEDGER, "key"))
            await asyncio.to_thread(end_connections, place)
            return await store.aexecute(command)
        finally:
            await leave(store)

    if way == "async":
        return asyncio.run(ask())
    store.execute(Get(LEDGER, "key"))
    end_connections(place)
    return store.execute(command)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("reading", READINGS, ids=["get", "query"])
def test_a_reading_on_a_connection_that_the_server_has_ended_is_answered(place, way, reading):
    with closing(place.open()) as store:
        store.execute(PUT)
        found = asked(store, way, place, reading)
        items = [found.item] if hasattr(found, "item") else found.items
        assert [item["id"] for item in items] == ["key"]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_write_on_a_connection_that_the_server_has_ended_is_in_doubt(place, way):
    with closing(place.open()) as store:
        with pytest.raises(errors.StoreOutcomeUnknown):
            asked(store, way, place, PUT)
        assert store.execute(Get(LEDGER, "key")).item is None
