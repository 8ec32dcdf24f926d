"""The store in a PostgreSQL database, where things go wrong, and inside a transaction of the caller's."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGINT
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import semel
from semel import errors
from semel.clock import Clock
from semel.commands import (
    ABSENT,
    PRESENT,
    Add,
    After,
    AnyOf,
    Applied,
    AtMost,
    Batch,
    Cancelled,
    Delete,
    Equals,
    Get,
    Put,
    Query,
    Refused,
    Transact,
    Update,
    Watch,
    allowed,
)
from semel.lifecycle import Status
from semel.stores.postgres import PostgresStore, ddl, housekeeper, migrate, phrases, pool, problems, schema
from semel.stores.postgres.store import WORTH_A_MARK
from semel.tables import LEDGER
from semel.testing import FakeClock, FaultProxy
from semel.testing.conformance import TABLES, THINGS
from tests.servers import postgres as servers
from tests.servers.running import Server, come_up, folder, start, stop, until

WORKER = Path(__file__).with_name("postgres_worker.py")
LONG = 10_000.0
SECRET = "correct-horse"


@pytest.fixture
def admin(postgres):
    """A connection that sees everything."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection


@pytest.fixture
def name(admin):
    """A name for a schema of the test's own."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def bare(postgres, name):
    """The URL of a schema that is not there yet."""
    return f"{postgres}{'&' if '?' in postgres else '?'}schema={name}&application_name={name}"


@pytest.fixture
def url(bare):
    """The URL of a schema that is made."""
    migrate(bare, "test", TABLES)
    return bare


@pytest.fixture
def store(url):
    with closing(PostgresStore(url, env="test", tables=TABLES)) as store:
        yield store


@pytest.fixture
def s(url):
    with semel.connect(url, env="test") as s:
        yield s


# A statement is told the server as text at first, and by a name once it was said often: here, at once.
seldom_or_often = pytest.mark.parametrize("said", ["", "&prepare_threshold=0"], ids=["seldom", "often"])


def thing(**attributes):
    return {"gone_at": After(LONG)} | attributes


def sessions(admin, name):
    """The sessions of a test."""
    return {
        pid
        for (pid,) in admin.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name])
    }


def terminate(admin, name):
    """End the sessions of a test, as an administrator does, or a failover."""
    pids = sessions(admin, name)
    assert pids
    for pid in pids:
        admin.execute("SELECT pg_terminate_backend(%s)", [pid])
    assert until(lambda: not pids & sessions(admin, name))


# The caller's own transaction


@pytest.fixture
def mine(admin, name, url, postgres):
    """A connection of the caller's, in a transaction, with a table of his own."""
    admin.execute(f"CREATE TABLE {name}.orders (id text PRIMARY KEY)")
    with psycopg.connect(postgres, options=f"-c search_path={name}") as connection:
        yield connection


def orders(admin, name):
    return [id for (id,) in admin.execute(f"SELECT id FROM {name}.orders ORDER BY id")]


def ledger_within(s, connection):
    return s.ledger.within(connection)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_completion_and_the_callers_rows_are_one_transaction(s, mine, admin, name, ends):
    claim = s.ledger.claim("order:1")
    mine.execute("INSERT INTO orders VALUES ('1')")
    ledger_within(s, mine).complete(claim, "sold")
    assert s.ledger.get("order:1").status is Status.IN_PROGRESS
    getattr(mine, ends)()
    committed = ends == "commit"
    assert orders(admin, name) == (["1"] if committed else [])
    found = s.ledger.get("order:1")
    assert found.status is (Status.COMPLETED if committed else Status.IN_PROGRESS)
    # What was rolled back is still to be done, and the claim still the caller's to complete.
    s.ledger.complete(claim, "sold")


def test_the_same_for_an_async_connection(s, admin, name, url, postgres):
    admin.execute(f"CREATE TABLE {name}.orders (id text PRIMARY KEY)")

    async def main():
        async with await psycopg.AsyncConnection.connect(postgres) as connection:
            for order in ("kept", "dropped"):
                claim: Any = await s.aio.ledger.claim(order)
                await connection.execute(f"INSERT INTO {name}.orders VALUES (%s)", [order])
                ledger = s.aio.ledger.within(connection)
                await ledger.complete(claim, "sold")
                assert (await ledger.get(order)).status is Status.COMPLETED
                await (connection.commit() if order == "kept" else connection.rollback())
        await s.store.leave()

    asyncio.run(main())
    assert orders(admin, name) == ["kept"]
    assert s.ledger.get("kept").status is Status.COMPLETED
    assert s.ledger.get("dropped").status is Status.IN_PROGRESS


def test_a_zombie_is_refused_inside_the_transaction_and_takes_its_rows_back(url, mine, admin, name):
    clock = FakeClock()
    with semel.connect(url, env="test", clock=clock) as s:
        zombie = s.ledger.claim("order:1", lease=30)
        clock.advance(31)
        heir: Any = s.ledger.claim("order:1", lease=30)
        mine.execute("INSERT INTO orders VALUES ('twice')")
        with pytest.raises(semel.ClaimLost), mine.transaction():
            ledger_within(s, mine).complete(zombie, "sold")
        mine.rollback()
        s.ledger.complete(heir, "sold once")
    assert orders(admin, name) == []


def test_a_refusal_leaves_the_transaction_usable(s, store, mine, admin, name):
    """A condition that does not hold is data: the server has seen no error."""
    inside = store.within(mine)
    mine.execute("INSERT INTO orders VALUES ('1')")
    assert type(inside.execute(Update(THINGS, "nothing", {"text": "x"}))) is Refused
    assert type(inside.execute(Put(THINGS, "key", thing(), ABSENT))) is Applied
    assert type(inside.execute(Put(THINGS, "key", thing(), ABSENT))) is Refused
    refused = inside.execute(Transact((Put(THINGS, "new", thing(), ABSENT), Delete(THINGS, "nothing"))))
    assert [refusal is None for refusal in refused.refusals] == [True, False]
    many = inside.execute(Batch((Put(THINGS, "key", thing(), ABSENT), Put(THINGS, "other", thing(), ABSENT))))
    assert [type(each) for each in many.replies] == [Refused, Applied]
    with pytest.raises(errors.UsageError):
        inside.execute(Put(THINGS, "key", thing(text="a\0b")))
    mine.commit()
    assert orders(admin, name) == ["1"]
    found = store.execute(Query(THINGS)).items
    assert sorted(item["id"] for item in found) == ["key", "other"]


def test_several_items_within_a_transaction_stand_or_fall_with_it(store, mine):
    both = Transact((Put(THINGS, "a", thing(), ABSENT), Add(THINGS, "b", "count", 1, {}, thing())))
    for ends, expected in (("rollback", []), ("commit", ["a", "b"])):
        assert type(store.within(mine).execute(both)) is Applied
        getattr(mine, ends)()
        assert [item["id"] for item in store.execute(Query(THINGS)).items] == expected


def test_nobody_waits_for_a_completion_that_is_not_committed(s, mine):
    """Until it is, the key is busy, and a claimant is told so at once."""
    claim = s.ledger.claim("order:1")
    ledger_within(s, mine).complete(claim, "sold")
    assert type(s.ledger.claim("order:1")) is semel.Busy
    mine.commit()
    assert type(s.ledger.claim("order:1")) is semel.Replay


def test_whoever_waits_is_told_when_the_caller_commits(s, store, mine, admin, name):
    claim = s.ledger.claim("order:1")
    until_listening(store, claim.id)
    admin.execute(f"LISTEN semel_{name}")
    ledger_within(s, mine).complete(claim, "sold")
    assert list(admin.notifies(timeout=0)) == []
    mine.commit()
    [note] = admin.notifies(timeout=10, stop_after=1)
    assert json.loads(note.payload) == ["ledger", claim.id]
    admin.execute("UNLISTEN *")


def test_a_transaction_has_to_be_open(store, admin):
    with pytest.raises(errors.UsageError, match="transaction"):
        store.within(admin).execute(Get(THINGS, "key"))
    with admin.transaction():
        assert store.within(admin).execute(Get(THINGS, "key")).item is None


def test_a_connection_is_used_in_its_own_way(store, mine, postgres):
    async def main():
        with pytest.raises(errors.UsageError, match="Ledger"):
            await store.within(mine).aexecute(Get(THINGS, "key"))
        async with await psycopg.AsyncConnection.connect(postgres) as connection:
            with pytest.raises(errors.UsageError, match="AsyncLedger"):
                store.within(connection).execute(Get(THINGS, "key"))

    asyncio.run(main())


def test_the_callers_row_factory_is_his_own(store, mine):
    mine.row_factory = dict_row
    inside = store.within(mine)
    assert type(inside.execute(Put(THINGS, "key", thing(text="here"), ABSENT))) is Applied
    assert inside.execute(Get(THINGS, "key")).item["text"] == "here"
    assert inside.execute(Watch(THINGS, "key", 0.001)).item["text"] == "here"


def test_a_failed_transaction_is_not_taken_for_a_store_that_is_down(store, mine):
    with pytest.raises(psycopg.errors.UndefinedTable):
        mine.execute("SELECT * FROM nowhere")
    with pytest.raises(errors.UsageError, match="roll it back"):
        store.within(mine).execute(Get(THINGS, "key"))


# Opening


def test_opening_makes_nothing(bare, name, admin):
    with closing(PostgresStore(bare, env="test")) as store:
        with pytest.raises(errors.TableMissing, match=r"semel provision --url .*--env test"):
            store.execute(Get(LEDGER, "key"))
        assert admin.execute("SELECT to_regnamespace(%s)", [name]).fetchone() == (None,)
        # A store that was opened too early works once it is provisioned.
        migrate(bare, "test")
        assert store.execute(Get(LEDGER, "key")).item is None


def test_another_environment_is_refused(url):
    with closing(PostgresStore(url, env="prod")) as store, pytest.raises(errors.WrongEnvironment) as caught:
        store.execute(Get(LEDGER, "key"))
    assert (caught.value.stamped, caught.value.asked) == ("test", "prod")
    with pytest.raises(errors.WrongEnvironment):
        migrate(url, "prod")


def test_a_newer_schema_is_refused_and_left_alone(url, name, admin):
    admin.execute(f"UPDATE {name}.semel_meta SET value = '99' WHERE name = 'schema'")
    with closing(PostgresStore(url, env="test")) as store, pytest.raises(errors.SchemaTooNew) as caught:
        store.execute(Get(LEDGER, "key"))
    assert (caught.value.found, caught.value.known) == (99, len(schema.MIGRATIONS))
    with pytest.raises(errors.SchemaTooNew):
        migrate(url, "test")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP COLUMN error", "no column error"),
        ("ALTER COLUMN attempt TYPE integer", "attempt .* is integer and not double precision"),
    ],
)
def test_a_table_that_is_otherwise_is_refused(url, name, admin, change, said):
    admin.execute(f"ALTER TABLE {name}.semel_ledger {change}")
    with closing(PostgresStore(url, env="test")) as store, pytest.raises(errors.WrongSchema, match=said):
        store.execute(Get(LEDGER, "key"))
    assert any(re.search(said, problem.what) for problem in problems(url, "test"))


@seldom_or_often
def test_what_goes_missing_later_is_told_as_such(url, name, admin, said):
    with closing(PostgresStore(url + said, env="test", tables=TABLES)) as store:
        assert store.execute(Get(THINGS, "key")).item is None
        admin.execute(f"ALTER TABLE {name}.semel_conformance_things DROP COLUMN text")
        with pytest.raises(errors.WrongSchema):
            store.execute(Get(THINGS, "key"))
        admin.execute(f"DROP TABLE {name}.semel_conformance_things")
        with pytest.raises(errors.TableMissing, match="semel provision"):
            store.execute(Put(THINGS, "key", thing()))


@contextmanager
def role(admin, name):
    """A role that may do nothing yet."""
    admin.execute(f"CREATE ROLE {name} LOGIN")
    try:
        yield name
    finally:
        admin.execute(f"DROP OWNED BY {name}")
        admin.execute(f"DROP ROLE {name}")


def as_role(url, role):
    return re.sub(r"//[^@]*@", f"//{role}@", url)


def test_a_role_that_may_not_is_told_what_it_needs(url, name, admin):
    with role(admin, f"{name}_r") as poor, closing(PostgresStore(as_role(url, poor), env="test")) as store:
        with pytest.raises(errors.NotPermitted, match="USAGE on the schema"):
            store.execute(Get(LEDGER, "key"))
        admin.execute(f"GRANT USAGE ON SCHEMA {name} TO {poor}")
        admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {poor}")
        assert store.execute(Get(LEDGER, "key")).item is None
        with pytest.raises(errors.NotPermitted, match="INSERT"):
            store.execute(Put(LEDGER, "key", {"expires_at": After(5)}, ABSENT))
        found = [problem.what for problem in problems(as_role(url, poor), "test")]
        assert "the role may not INSERT in semel_ledger" in found
        assert not any("SELECT" in what for what in found)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda url: re.sub(r"//[^@]*@", f"//nobody-here:{SECRET}@", url), errors.NotPermitted, "role"),
        (lambda url: re.sub(r"/\w+\?", "/no_such_database?", url), errors.TableMissing, "no such database"),
        (
            lambda url: re.sub(r":\d+/", ":1/", url),
            errors.StoreUnavailable,
            r"127\.0\.0\.1:1/.*see that it runs",
        ),
    ],
)
def test_a_server_that_lets_nobody_in_is_told_by_its_reason(bare, change, error, said):
    with closing(PostgresStore(change(bare), env="test")) as store:
        for ask in (store.execute, lambda command: asyncio.run(store.aexecute(command))):
            with pytest.raises(error, match=said) as caught:
                ask(Put(LEDGER, "key", {"expires_at": After(5)}, ABSENT))
            assert type(caught.value) is error
            assert SECRET not in str(caught.value)


# Making the schema


def everything_in(admin, name):
    """A schema as the catalog describes it."""
    columns = admin.execute(
        "SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default "
        "FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2",
        [name],
    ).fetchall()
    indexes = admin.execute(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = %s ORDER BY 1", [name]
    ).fetchall()
    meta = admin.execute(f"SELECT name, value FROM {name}.semel_meta ORDER BY 1").fetchall()
    return [columns, [re.sub(rf"\b{name}\.", "", one) for (one,) in indexes], meta]


def test_the_text_makes_what_migrate_makes(url, name, admin):
    made = everything_in(admin, name)
    admin.execute(f"DROP SCHEMA {name} CASCADE")
    for _ in range(2):  # running it again changes nothing
        admin.execute(ddl(TABLES, "test", schema=name))
        assert everything_in(admin, name) == made
    assert problems(url, "test", TABLES) == []
    assert migrate(url, "test", TABLES) == []


def test_migrating_says_what_it_did_and_does_it_once(bare, name):
    done = migrate(bare, "test")
    assert done[:2] == [f"made schema {name}", "brought the schema to version 1, for environment 'test'"]
    assert "made table semel_ledger" in done
    assert migrate(bare, "test") == []


def test_many_may_migrate_at_the_same_time(bare):
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: migrate(bare, "test", TABLES), range(8)))
    said = [line for lines in done for line in lines]
    assert len(said) == len(set(said)) > 0
    assert problems(bare, "test", TABLES) == []


def test_migrating_adds_what_is_missing(url, name, admin):
    admin.execute(f"ALTER TABLE {name}.semel_ledger DROP COLUMN error")
    admin.execute(f"DROP INDEX {name}.semel_ledger_status_id")
    found = {problem.what for problem in problems(url, "test")}
    assert found == {"table semel_ledger has no column error", "index semel_ledger_status_id is missing"}
    assert migrate(url, "test") == [
        "added column error to table semel_ledger",
        "made index semel_ledger_status_id",
    ]
    assert problems(url, "test") == []


def test_migrating_on_a_connection_can_be_rolled_back(postgres, name, admin):
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT 1")  # which begins a transaction
        assert f"made schema {name}" in migrate(connection, "test", schema=name)
        connection.rollback()
    assert admin.execute("SELECT to_regnamespace(%s)", [name]).fetchone() == (None,)


def test_problems_of_a_database_without_semel(bare):
    found = problems(bare, "test")
    assert {problem.what for problem in found} >= {"table semel_ledger is missing"}
    assert all("semel provision" in problem.remedy for problem in found)


# When connections break


def test_a_session_that_was_ended_while_idle_is_replaced_unnoticed(store, admin, name):
    for number in range(3):
        write = Put(THINGS, f"key-{number}", thing(), ABSENT)
        assert type(store.execute(write)) is Applied
        terminate(admin, name)

    async def main():
        for number in range(3, 6):
            assert type(await store.aexecute(Put(THINGS, f"key-{number}", thing(), ABSENT))) is Applied
            await asyncio.to_thread(terminate, admin, name)
        await store.leave()

    asyncio.run(main())


@seldom_or_often
def test_a_write_whose_answer_is_lost_is_in_doubt_and_a_reading_is_not(url, said):
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url) + said, env="test", tables=TABLES)) as store,
    ):
        store.execute(Get(THINGS, "key"))
        proxy.drop_answer_to(b"lost-1")
        with pytest.raises(errors.StoreOutcomeUnknown):
            store.execute(Put(THINGS, "lost-1", thing(), ABSENT))
        assert store.execute(Get(THINGS, "lost-1")).item is not None
        proxy.drop_answer_to(b"lost-1")
        with pytest.raises(errors.StoreUnavailable):
            store.execute(Get(THINGS, "lost-1"))
        proxy.drop_answer_to(b"lost-2")
        with pytest.raises(errors.StoreOutcomeUnknown):
            store.execute(
                Batch((Put(THINGS, "lost-2", thing(), ABSENT), Put(THINGS, "with-it", thing(), ABSENT)))
            )
        assert store.execute(Get(THINGS, "with-it")).item is not None


@pytest.mark.parametrize(
    ("word", "error"), [(b"BEGIN", errors.StoreUnavailable), (b"COMMIT", errors.StoreOutcomeUnknown)]
)
def test_a_transaction_is_in_doubt_only_once_it_may_be_committed(url, word, error):
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url), env="test", tables=TABLES)) as store,
    ):
        store.execute(Get(THINGS, "key"))
        proxy.drop_answer_to(word)
        with pytest.raises(error) as caught:
            store.execute(Transact((Put(THINGS, "a", thing(), ABSENT), Put(THINGS, "b", thing(), ABSENT))))
        assert type(caught.value) is error
        found = store.execute(Query(THINGS)).items
        assert len(found) == (2 if word == b"COMMIT" else 0)


def test_a_lost_answer_costs_nobody_his_claim(url):
    """The rules send it again with the same token, and whoever finds his own token has won."""
    with FaultProxy.before(url) as proxy, semel.connect(proxy.url(url), env="test") as s:
        ran: list[int] = []

        @s.once("work:{n}")
        def work(n: int) -> int:
            ran.append(n)
            return n

        work(-1)
        for number in range(5):
            proxy.drop_answer_to(f"work:{number}".encode())
            assert work(number) == number
        assert ran == [-1, *range(5)]


@seldom_or_often
def test_a_statement_that_waits_too_long_is_given_up_and_not_made(url, mine, said):
    held = url + "&options=-c%20statement_timeout%3D200" + said
    with closing(PostgresStore(held, env="test", tables=TABLES)) as store:
        store.execute(Put(THINGS, "key", thing(text="old")))
        store.within(mine).execute(Update(THINGS, "key", {"text": "held"}))
        with pytest.raises(errors.StoreUnavailable, match="transaction left open"):
            store.execute(Update(THINGS, "key", {"text": "new"}))
        mine.rollback()
        assert store.execute(Get(THINGS, "key")).item["text"] == "old"


@seldom_or_often
def test_whoever_is_interrupted_while_he_waits_takes_his_write_back(url, mine, admin, name, said):
    with closing(PostgresStore(url + said, env="test", tables=TABLES)) as store:
        store.execute(Put(THINGS, "key", thing(text="old")))
        store.within(mine).execute(Update(THINGS, "key", {"text": "held"}))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"

        async def main():
            write = asyncio.create_task(store.aexecute(Update(THINGS, "key", {"text": "new"})))
            seen = await asyncio.to_thread(until, lambda: admin.execute(waiting, [name]).fetchone())
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            await store.leave()
            return seen

        assert asyncio.run(main())
        mine.rollback()
        assert store.execute(Get(THINGS, "key")).item["text"] == "old"


def names(store):
    """The statements that the session of a store knows by name."""
    line = store._pool.take()
    rows = line.connection.execute("SELECT name FROM pg_prepared_statements", prepare=False).fetchall()
    store._pool.give(line)
    return {name for (name,) in rows}


def test_a_statement_that_is_said_often_is_given_a_name(store):
    for number in range(7):
        assert len(names(store)) == (number > 5)
        assert store.execute(Put(THINGS, "key", thing(text=f"{number}"))).now
    assert store.execute(Get(THINGS, "key")).item["text"] == "6"


def test_a_session_that_has_forgotten_the_names_is_told_again_and_writes_once(url):
    with closing(PostgresStore(url + "&prepare_threshold=0", env="test", tables=TABLES)) as store:
        added = Add(THINGS, "key", "count", 1, {}, {"gone_at": After(LONG)})
        store.execute(added)
        known = names(store)
        line = store._pool.take()
        line.connection.execute("DEALLOCATE ALL")
        store._pool.give(line)
        assert store.execute(added).item["count"] == 2
        assert names(store) & known


def test_a_session_is_given_so_many_names_and_no_more(url, monkeypatch):
    monkeypatch.setattr(phrases, "MOST", 4)
    with closing(PostgresStore(url + "&prepare_threshold=0", env="test", tables=TABLES)) as store:
        for attributes in ({}, {"text": "a"}, {"count": 1}, {"text": "b", "count": 2}, {"flag": True}):
            assert store.execute(Put(THINGS, "key", thing(**attributes))).now
            assert store.execute(Get(THINGS, "key")).item.items() >= attributes.items()
        ours = {name for name in names(store) if name.startswith("semel_")}
        assert len(ours) == 4


def test_connections_are_shared_and_whoever_gets_none_is_told(url, mine, monkeypatch):
    monkeypatch.setattr(pool, "PATIENCE_SECONDS", 0.05)
    with closing(PostgresStore(url + "&pool_size=1", env="test", tables=TABLES)) as store:
        store.execute(Put(THINGS, "key", thing()))
        store.within(mine).execute(Delete(THINGS, "key"))
        with ThreadPoolExecutor(1) as threads:
            blocked = threads.submit(store.execute, Delete(THINGS, "key"))
            assert until(lambda: not store._pool._idle)
            with pytest.raises(errors.StoreThrottled, match="pool_size"):
                store.execute(Get(THINGS, "key"))
            mine.commit()
            assert type(blocked.result()) is Refused
        monkeypatch.undo()
        with ThreadPoolExecutor(8) as threads:  # each gets its turn on the one connection
            assert len(list(threads.map(store.execute, [Get(THINGS, "key")] * 100))) == 100


def test_a_closed_store_says_so(url):
    store = PostgresStore(url, env="test")
    store.execute(Get(LEDGER, "key"))
    store.close()
    with pytest.raises(errors.StoreClosed):
        store.execute(Get(LEDGER, "key"))
    with pytest.raises(errors.StoreClosed):
        asyncio.run(store.aexecute(Get(LEDGER, "key")))


@contextmanager
def own_server():
    """A server that may be stopped: gives its URL, and functions to stop and to start it."""
    with folder() as place:
        user, programs, data = servers.servant(place), servers.binaries(place), place / "data"
        servers.once(servers.initdb(programs, data), place, user)
        server = Server(
            place,
            lambda port: [programs / "postgres", "-D", data, *servers.options(port)],
            servers.answers,
            user=user,
            signal=SIGINT,
        )
        process, port = come_up(server)

        def again():
            nonlocal process
            process = start(server, port)
            assert until(lambda: servers.answers(port))

        try:
            yield servers.url(port), lambda: stop(process, SIGINT), again
        finally:
            stop(process, SIGINT)


@pytest.mark.skipif("SEMEL_TEST_POSTGRES_URL" in os.environ, reason="somebody else's server is not stopped")
def test_a_restart_of_the_server_is_survived():
    with own_server() as (url, down, up):
        migrate(url, "test")
        with semel.connect(url, env="test") as s:
            work = s.once("work:{n}")(lambda n: n)
            before: Any = s.ledger.claim("held")
            assert work(1) == 1
            down()
            for ask in (lambda: work(2), lambda: asyncio.run(s.aio.ledger.get("work:1"))):
                with pytest.raises(
                    errors.StoreUnavailable, match=r"127\.0\.0\.1:\d+/postgres: cannot be reached"
                ):
                    ask()
            up()
            assert work(2) == 2
            s.ledger.complete(before, "kept")
            assert s.ledger.get("work:1").status is Status.COMPLETED


# Many at once, and other processes


def test_a_refusal_never_shows_an_item_that_does_not_refuse(url):
    """Though a statement may have read what somebody has changed since."""
    shown: list[Any] = []

    def hammer(number):
        chance = random.Random(number)
        for _ in range(120):
            command = draw(chance)
            reply = crowded.execute(command)
            pairs: Any = [(command, reply)]
            if isinstance(reply, Cancelled):
                pairs = zip(command.writes, reply.refusals, strict=True)
            elif isinstance(command, Batch):
                pairs = zip(command.writes, reply.replies, strict=True)
            shown.extend((write, each) for write, each in pairs if type(each) is Refused)

    with closing(PostgresStore(url, env="test", tables=TABLES)) as crowded, ThreadPoolExecutor(8) as threads:
        list(threads.map(hammer, range(8)))
    assert shown
    assert [pair for pair in shown if allowed(pair[0], pair[1].item, pair[1].now)] == []


def draw(chance):
    """A write, or several, on few keys and few values."""
    key, text, other = f"k{chance.randrange(3)}", str(chance.randrange(3)), str(chance.randrange(3))
    free = AnyOf((ABSENT, Equals("text", other)))
    short = {"text": text, "gone_at": After(chance.choice([LONG, 0.001]))}
    return chance.choice(
        [
            Put(THINGS, key, short, chance.choice([ABSENT, free])),
            Update(THINGS, key, {"text": text}, Equals("text", other)),
            Delete(THINGS, key, Equals("text", other)),
            Add(THINGS, key, "count", 1, {"text": text}, thing(), AnyOf((ABSENT, AtMost("count", 3)))),
            Batch(tuple(Put(THINGS, f"k{n}", short, free) for n in chance.sample(range(3), 3))),
            Transact((Put(THINGS, "k0", short, ABSENT), Update(THINGS, "k1", {"text": text}, PRESENT))),
        ]
    )


def test_writes_to_one_key_in_a_batch_are_made_in_order(store):
    many = store.execute(
        Batch(
            (
                Put(THINGS, "key", thing(text="1"), ABSENT),
                Update(THINGS, "key", {"text": "2"}, Equals("text", "1")),
                Put(THINGS, "key", thing(text="3"), ABSENT),
                Add(THINGS, "key", "count", 1, {}, {}, Equals("text", "2")),
                Delete(THINGS, "key", Equals("text", "2")),
                Put(THINGS, "key", thing(text="4"), ABSENT),
            )
        )
    )
    assert [type(each) for each in many.replies] == [Applied, Applied, Refused, Applied, Applied, Applied]
    assert many.replies[2].item["text"] == "2"
    assert store.execute(Get(THINGS, "key")).item["text"] == "4"


@contextmanager
def worker(*words):
    process = subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, words)], stdin=-1, stdout=-1, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def heard(process):
    return json.loads(process.stdout.readline())


@pytest.mark.seed("A8")
def test_workers_that_are_killed_leave_no_key_behind_and_nothing_accepted_twice(url, tmp_path):
    """Killed in the middle of a claim, an effect or a completion: another one does it, as its record says."""
    jobs, effects, chance = 6, tmp_path / "effects.txt", random.Random(1)
    for _ in range(6):
        with worker("work", url, effects, jobs) as process:
            for _ in range(chance.randint(1, 8)):
                heard(process)
            process.kill()
    with worker("work", url, effects, jobs) as process:
        lines = [json.loads(line) for line in process.stdout]
        assert process.wait() == 0
    told = {n: value for what, n, value in lines if what == "told"}
    happened = defaultdict(list)
    for n, attempt, value in map(json.loads, effects.read_text().splitlines()):
        happened[n].append((attempt, value))
    with semel.connect(url, env="test") as s:
        for n in range(jobs):
            record: Any = s.ledger.get(f"job:{n}")
            assert record.status is Status.COMPLETED
            assert s.ledger.result(record) == told[n]
            assert (record.attempt, told[n]) in happened[n]
            assert len({attempt for attempt, _ in happened[n]}) == len(happened[n])


def until_listening(store, id):
    """Look until the row says that somebody waits for it."""

    def awaited():
        store.execute(Watch(LEDGER, id, WORTH_A_MARK))
        return store._housekeeper.listening and awaited_by(store, id)

    assert until(awaited)


def awaited_by(store, id):
    with psycopg.connect(store._address.conninfo, application_name="a test") as connection:
        name = store._clerk.plan(LEDGER)._readings.name
        return connection.execute(f"SELECT _bell FROM {name} WHERE id = %s", [id]).fetchone() == (1,)


@pytest.mark.parametrize("way", ["wait", "await"])
def test_a_waiter_in_another_process_is_woken_by_the_completion(url, s, name, admin, way):
    """It would have looked by itself in an hour."""
    claim = s.ledger.claim("work")
    with worker(way, url, claim.id) as process:
        marked = f"SELECT _bell FROM {name}.semel_ledger WHERE id = %s"
        assert until(lambda: admin.execute(marked, [claim.id]).fetchone() == (1,))
        process.stdin.write("wait now\n")
        process.stdin.flush()
        assert heard(process) == ["waiting"]
        s.ledger.complete(claim, "done")
        assert heard(process) == ["woken", "COMPLETED"]
        assert process.wait() == 0
    # It was told once, and nobody is told of what nobody waits for.
    assert admin.execute(marked, [claim.id]).fetchone() == (2,)
    s.ledger.drop_result("work")
    assert admin.execute(marked, [claim.id]).fetchone() == (0,)


def test_a_listener_that_lost_its_connection_comes_back(store, admin, name, monkeypatch):
    monkeypatch.setattr(housekeeper, "RETRY_SECONDS", 0.01)
    store.execute(Put(LEDGER, "key", {"expires_at": After(LONG)}))
    until_listening(store, "key")
    terminate(admin, name)
    listening = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN%%'"
    assert until(lambda: admin.execute(listening, [name]).fetchone() is not None)


def test_a_store_that_is_closed_leaves_no_session(url, admin, name):
    assert until(lambda: not sessions(admin, name))
    store = PostgresStore(url, env="test")
    store.execute(Put(LEDGER, "key", {"expires_at": After(LONG)}))
    until_listening(store, "key")
    assert len(sessions(admin, name)) == 2
    store.close()
    assert until(lambda: not sessions(admin, name))


def test_behind_a_pooler_nothing_is_asked_of_a_session(url, admin):
    with closing(PostgresStore(url + "&prepare_threshold=none", env="test", tables=TABLES)) as store:
        for _ in range(20):
            assert store.execute(Put(THINGS, "key", thing(text="old"))).now
        with ThreadPoolExecutor(1) as threads:
            seen = threads.submit(store.execute, Watch(THINGS, "key", 0.01))
            assert seen.result().item["text"] == "old"
        assert not store._housekeeper.listening
        line = store._pool.take()
        assert line.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
        assert line.connection.execute("SHOW statement_timeout").fetchone() == ("0",)
        store._pool.give(line)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_has_connections_of_its_own(store):
    store.execute(Put(THINGS, "key", thing(text="parent"), ABSENT))
    child = os.fork()
    if child == 0:
        try:
            made = store.execute(Put(THINGS, "child", thing(text="child"), ABSENT))
            seen = store.execute(Get(THINGS, "key")).item["text"]
            os._exit(0 if type(made) is Applied and seen == "parent" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.execute(Get(THINGS, "child")).item["text"] == "child"
    assert len(store._pool._open) == 1


# Time, and what has expired


class Wrong(Clock):
    """The clock of a machine that is an hour late."""

    def now(self):
        return super().now() - 3600


def test_time_is_the_servers(url, admin):
    with closing(PostgresStore(url, env="test", clock=Wrong(), tables=TABLES)) as store:
        [now] = admin.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        applied = store.execute(Put(THINGS, "key", {"due": After(5), "gone_at": After(LONG)}))
        assert now <= applied.now < now + 60
        assert store.execute(Get(THINGS, "key")).item["due"] == applied.now + 5


def test_reaping_removes_what_has_expired_and_nothing_that_is_being_written(store, mine):
    for number in range(10):
        store.execute(Put(THINGS, str(number), {"gone_at": After(-1)}))
    store.execute(Put(THINGS, "alive", thing()))
    store.within(mine).execute(Put(THINGS, "9", thing(text="again"), ABSENT))
    assert store.reap(limit=4) == 4
    assert store.reap() == 5  # the one that is being written is passed over, and not waited for
    mine.commit()
    assert sorted(item["id"] for item in store.execute(Query(THINGS)).items) == ["9", "alive"]
    assert store.reap() == 0


def test_what_has_expired_goes_as_more_is_written(store, name, admin):
    store.execute(Batch(tuple(Put(THINGS, f"old-{n}", {"gone_at": After(-1)}) for n in range(300))))
    store.execute(Batch(tuple(Put(THINGS, f"new-{n}", thing()) for n in range(300))))
    count = f"SELECT count(*) FROM {name}.semel_conformance_things"
    assert until(lambda: admin.execute(count).fetchone() == (300,))


def test_a_threads_work_is_not_kept_up_by_another_loop(store):
    """Each event loop has connections of its own, and lets go of them when it leaves."""

    def in_a_loop(number):
        async def main():
            for _ in range(5):
                await store.aexecute(Put(THINGS, str(number), thing()))
            await store.leave()

        asyncio.run(main())

    threads = [threading.Thread(target=in_a_loop, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.execute(Query(THINGS)).items) == 4
    assert not store._pools._made
