"""The store in a PostgreSQL database, where things go wrong, and inside a transaction of the caller's."""

import asyncio
import contextvars
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import semel
from semel import errors
from semel.apps.tables import SUPPORT_STATE
from semel.core.clock import Clock, Waiter
from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    Add,
    After,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Get,
    Put,
    Query,
    Refused,
    Time,
    Transact,
    Update,
    Watch,
    allowed,
    outcome,
)
from semel.core.drive import leave
from semel.core.lifecycle import Status
from semel.core.running import RENEWING
from semel.stores.postgres import PostgresStore, background, ddl, migrate, problems, schema, session
from semel.stores.postgres.address import PostgresAddress, unreachable
from semel.stores.postgres.session import blocking
from semel.stores.postgres.store import WORTH_SUBSCRIBING
from semel.tables import COUNTERS, DOCUMENTS, JOURNAL, LEDGER
from semel.testing import FakeClock, FaultProxy
from semel.testing.conformance import NOTES, TABLES, THINGS
from semel.testing.linear import History, check
from tests.servers import postgres as servers
from tests.servers.durable import durable_postgres
from tests.servers.running import until

WORKER = Path(__file__).with_name("postgres_worker.py")
LONG = 10_000.0
SECRET = "correct-horse"


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


# A statement is sent as text at first, and prepared once it was executed often: here, at once.
seldom_or_often = pytest.mark.parametrize("option", ["", "&prepare_threshold=0"], ids=["seldom", "often"])


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
    both = Transact((Put(THINGS, "a", thing(), ABSENT), Add(THINGS, "b", "count", 1, thing())))
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


def test_whoever_waits_is_notified_when_the_caller_commits(s, store, mine, admin, name):
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
    assert (caught.value.found, caught.value.known) == (99, schema.SCHEMA)
    with pytest.raises(errors.SchemaTooNew):
        migrate(url, "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DROP COLUMN error", "no column error"),
        ("ALTER COLUMN attempt TYPE integer", "attempt .* is integer and not double precision"),
    ],
)
def test_a_table_that_is_otherwise_is_refused(url, name, admin, change, message):
    """One that lacks a column which every record needs, or has it with another type."""
    admin.execute(f"ALTER TABLE {name}.semel_ledger {change}")
    with closing(PostgresStore(url, env="test")) as store, pytest.raises(errors.WrongSchema, match=message):
        store.execute(Get(LEDGER, "key"))
    assert any(re.search(message, problem.what) for problem in problems(url, "test"))


def test_the_remedies_in_sql_can_be_run_as_they_stand(url, name, admin):
    migrate(url, "test", [SUPPORT_STATE])
    admin.execute(f"ALTER TABLE {name}.semel_ledger ALTER COLUMN attempt TYPE text")
    with role(admin, f"{name}_r") as poor:
        admin.execute(f"GRANT USAGE ON SCHEMA {name} TO {poor}")
        admin.execute(f"GRANT SELECT ON {name}.semel_meta TO {poor}")
        found = problems(as_role(url, poor), "test", [SUPPORT_STATE])
        assert any('"semel_support-state"' in problem.remedy for problem in found)
        for problem in found:
            assert problem.remedy.startswith(("GRANT ", "ALTER ")), problem
            admin.execute(problem.remedy)
        assert problems(as_role(url, poor), "test", [SUPPORT_STATE]) == []


@seldom_or_often
def test_what_goes_missing_later_is_told_as_such(url, name, admin, option):
    with closing(PostgresStore(url + option, env="test", tables=TABLES)) as store:
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
    ("change", "error", "message"),
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
def test_a_server_that_lets_nobody_in_is_told_by_its_reason(bare, change, error, message):
    with closing(PostgresStore(change(bare), env="test")) as store:
        for ask in (store.execute, lambda command: asyncio.run(store.aexecute(command))):
            with pytest.raises(error, match=message) as caught:
                ask(Put(LEDGER, "key", {"expires_at": After(5)}, ABSENT))
            assert type(caught.value) is error
            assert SECRET not in str(caught.value)


def test_a_server_that_has_no_connection_left_says_what_to_lower(url, name, admin):
    with role(admin, f"{name}_few") as few, closing(PostgresStore(as_role(url, few), env="test")) as store:
        admin.execute(f"ALTER ROLE {few} CONNECTION LIMIT 0")
        for ask in (store.execute, lambda command: asyncio.run(store.aexecute(command))):
            with pytest.raises(errors.StoreUnavailable, match="connections as it may: lower pool_size"):
                ask(Get(LEDGER, "key"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("FATAL:  sorry, too many clients already", "lower pool_size"),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER", "lower pool_size"),
        ("FATAL:  the database system is starting up", "starting up, or shutting down: try again"),
        ("FATAL:  the database system is in recovery mode", "starting up, or shutting down: try again"),
        ("FATAL:  the database system is not yet accepting connections", "try again in a moment"),
    ],
)
def test_a_server_that_takes_no_connection_now_is_told_by_its_words(url, words, message):
    told = unreachable(psycopg.OperationalError(words), PostgresAddress.from_url(url))
    assert type(told) is errors.StoreUnavailable
    assert message in str(told)


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
    servers.drop(admin, name)
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


@pytest.mark.parametrize("column", ["subject", "error"])
def test_migrating_leaves_a_table_alone_that_lacks_a_column(url, name, admin, column):
    """One that an index needs, or one that none does."""
    admin.execute(f"ALTER TABLE {name}.semel_ledger DROP COLUMN {column}")
    with pytest.raises(errors.WrongSchema, match=f"semel_ledger has no column {column}: .* choose another"):
        migrate(url, "test")
    there = "SELECT 1 FROM information_schema.columns WHERE table_schema = %s AND column_name = %s"
    there += " AND table_name = 'semel_ledger'"
    assert admin.execute(there, [name, column]).fetchone() is None


def test_many_may_migrate_at_the_same_time(bare):
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: migrate(bare, "test", TABLES), range(8)))
    changes = [change for several in done for change in several]
    assert len(changes) == len(set(changes)) > 0
    assert problems(bare, "test", TABLES) == []


def test_migrating_adds_what_is_missing(url, name, admin):
    admin.execute(f"DROP TABLE {name}.semel_counters")
    admin.execute(f"DROP INDEX {name}.semel_ledger_status_id")
    found = {problem.what for problem in problems(url, "test")}
    assert found == {
        "table semel_counters is missing",
        "index semel_counters_expires_at is missing",
        "index semel_ledger_status_id is missing",
    }
    with closing(PostgresStore(url, env="test")) as store:
        with pytest.raises(errors.TableMissing, match=r"has no semel_counters; run: semel provision"):
            store.execute(Get(LEDGER, "old"))
        assert migrate(url, "test") == [
            "made index semel_ledger_status_id",
            "made table semel_counters",
            "made index semel_counters_expires_at",
        ]
        assert problems(url, "test") == []
        assert type(store.execute(charge(1))) is Applied


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
def test_a_write_whose_answer_is_lost_is_in_doubt_and_a_reading_is_not(url, option):
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url) + option, env="test", tables=TABLES)) as store,
    ):
        store.execute(Get(THINGS, "key"))
        proxy.drop_answer_to(b"lost-1")
        with pytest.raises(errors.StoreOutcomeUnknown):
            store.execute(Put(THINGS, "lost-1", thing(), ABSENT))
        assert store.execute(Get(THINGS, "lost-1")).item is not None
        proxy.drop_answer_to(b"lost-1")
        assert store.execute(Get(THINGS, "lost-1")).item is not None
        assert proxy.dropped == 2
        proxy.drop_answer_to(b"lost-1", times=2)
        with pytest.raises(errors.StoreUnavailable):
            store.execute(Get(THINGS, "lost-1"))
        proxy.drop_answer_to(b"lost-2")
        with pytest.raises(errors.StoreOutcomeUnknown):
            store.execute(
                Batch((Put(THINGS, "lost-2", thing(), ABSENT), Put(THINGS, "with-it", thing(), ABSENT)))
            )
        assert store.execute(Get(THINGS, "with-it")).item is not None


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
def test_a_statement_that_waits_too_long_is_given_up_and_not_made(url, mine, option):
    held = url + "&options=-c%20statement_timeout%3D200" + option
    with closing(PostgresStore(held, env="test", tables=TABLES)) as store:
        store.execute(Put(THINGS, "key", thing(text="old")))
        store.within(mine).execute(Update(THINGS, "key", {"text": "held"}))
        with pytest.raises(errors.StoreUnavailable, match="transaction left open"):
            store.execute(Update(THINGS, "key", {"text": "new"}))
        mine.rollback()
        assert store.execute(Get(THINGS, "key")).item["text"] == "old"


@seldom_or_often
def test_whoever_is_interrupted_while_he_waits_takes_his_write_back(url, mine, admin, name, option):
    with closing(PostgresStore(url + option, env="test", tables=TABLES)) as store:
        store.execute(Put(THINGS, "key", thing(text="old")))
        store.within(mine).execute(Update(THINGS, "key", {"text": "held"}))

        async def main():
            write = asyncio.create_task(store.aexecute(Update(THINGS, "key", {"text": "new"})))
            seen = await asyncio.to_thread(until, lambda: blocked(admin, name))
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            await store.leave()
            return seen

        assert asyncio.run(main())
        mine.rollback()
        assert store.execute(Get(THINGS, "key")).item["text"] == "old"


class Interrupted(BaseException):
    """Raised by a signal handler."""


@seldom_or_often
def test_the_same_for_a_signal(url, mine, admin, name, option):
    """The server would make the write once it has the lock, long after its caller is gone."""

    def interrupt(*_):
        raise Interrupted

    def signal_once_blocked():
        assert until(lambda: blocked(admin, name))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with (
            closing(PostgresStore(url + option, env="test", tables=TABLES)) as store,
            ThreadPoolExecutor(1) as threads,
        ):
            store.execute(Put(THINGS, "key", thing(text="old")))
            store.within(mine).execute(Update(THINGS, "key", {"text": "held"}))
            sent = threads.submit(signal_once_blocked)
            with pytest.raises(Interrupted):
                store.execute(Update(THINGS, "key", {"text": "new"}))
            sent.result()
            assert until(lambda: not blocked(admin, name))
            mine.rollback()
            assert store.execute(Get(THINGS, "key")).item["text"] == "old"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_session_that_was_interrupted_before_it_sent_anything_is_not_used_again(url, monkeypatch):
    """libpq calls it idle, but its pipeline is open: the server would wait for the end of the pipeline."""

    def interrupt(*_):
        raise Interrupted

    often = f"{url}&prepare_threshold=0&timeout=2"
    with closing(PostgresStore(often, env="test", tables=TABLES)) as store:
        for _ in range(2):
            assert store.execute(Get(THINGS, "key")).item is None
        with monkeypatch.context() as patch:
            patch.setattr(session.PostgresSession, "_is_frequent", interrupt)
            with pytest.raises(Interrupted):
                store.execute(Put(THINGS, "key", thing(text="new")))
        assert store.execute(Get(THINGS, "key")).item is None


@contextmanager
def session_of(store):
    """A session that a thread has taken from the pool."""
    waiter = Waiter()
    group, taken = blocking(store._pool.take(waiter))
    yield taken
    store._pool.give(group, taken, waiter)


def names(store):
    """The statements that the session of a store knows by name."""
    with session_of(store) as session:
        rows = session.connection.execute("SELECT name FROM pg_prepared_statements", prepare=False).fetchall()
    return {name for (name,) in rows}


def test_a_statement_that_is_executed_often_is_prepared(store):
    for number in range(7):
        assert len(names(store)) == (number > 5)
        assert store.execute(Put(THINGS, "key", thing(text=f"{number}"))).now
    assert store.execute(Get(THINGS, "key")).item["text"] == "6"


def test_a_session_that_has_forgotten_its_statements_prepares_again_and_writes_once(url):
    with closing(PostgresStore(url + "&prepare_threshold=0", env="test", tables=TABLES)) as store:
        added = Add(THINGS, "key", "count", 1, {"gone_at": After(LONG)})
        store.execute(added)
        known = names(store)
        with session_of(store) as session:
            session.connection.execute("DEALLOCATE ALL")
        assert store.execute(added).item["count"] == 2  # as text, for this once
        assert store.execute(added).item["count"] == 3
        assert names(store) & known


# A table that is changed under load

OFTEN = "&prepare_threshold=0"
# Of a column that no value of the tests is in: texts stay texts.
WIDER = "ALTER TABLE {}.semel_conformance_things ALTER COLUMN text TYPE {}"


@pytest.mark.parametrize("sent", ["alone", "together"])
def test_a_column_whose_type_changes_costs_no_write_and_no_connection(url, admin, name, sent):
    add = Add(THINGS, "key", "count", 1, thing(text="x"))
    other = Put(THINGS, "other", thing(text="y"))
    command: Any = add if sent == "alone" else Transact((add, other))
    with closing(PostgresStore(url + OFTEN, env="test", tables=TABLES)) as store:
        with session_of(store) as session:
            before = session.connection.pgconn.backend_pid
        for kind in ("varchar(90)", 'text COLLATE "C"', "varchar(80)"):
            store.execute(command)
            store.execute(Get(THINGS, "key"))
            admin.execute(WIDER.format(name, kind))
            for _ in range(3):
                assert type(store.execute(command)) is Applied
                assert store.execute(Get(THINGS, "key")).item["text"] == "x"
        assert store.execute(Get(THINGS, "key")).item["count"] == 12
        with session_of(store) as session:
            assert session.connection.pgconn.backend_pid == before
        assert names(store), "they are prepared again"


def test_the_same_for_tasks(url, admin, name):
    add = Add(THINGS, "key", "count", 1, thing(text="x"))

    async def main():
        with closing(PostgresStore(url + OFTEN, env="test", tables=TABLES)) as store:
            for number, kind in enumerate(("varchar(90)", "varchar(80)")):
                await store.aexecute(add)
                await store.aexecute(Transact((add, Put(THINGS, "other", thing()))))
                admin.execute(WIDER.format(name, kind))
                assert (await store.aexecute(add)).item["count"] == 4 * number + 3
                assert type(await store.aexecute(Transact((add, Put(THINGS, "other", thing()))))) is Applied
            await store.leave()

    asyncio.run(main())


@pytest.mark.parametrize("words", ["DISCARD ALL", "DEALLOCATE ALL"])
def test_a_transaction_on_a_session_that_forgot_its_statements_is_made_once(url, words):
    add = Add(THINGS, "key", "count", 1, thing())
    both = Transact((add, Put(THINGS, "other", thing())))
    with closing(PostgresStore(url + OFTEN, env="test", tables=TABLES)) as store:
        for count in (2, 4, 6):
            assert type(store.execute(both)) is Applied
            assert store.execute(add).item["count"] == count
            with session_of(store) as session:
                session.connection.execute(words.encode())


def test_in_a_transaction_of_the_callers_a_changed_column_costs_nothing(url, admin, name, postgres):
    """The driver would have prepared the statements there, after a few uses."""
    add = Add(THINGS, "key", "count", 1, thing(text="x"))
    with closing(PostgresStore(url, env="test", tables=TABLES)) as store, psycopg.connect(postgres) as mine:
        for number, kind in enumerate(("varchar(90)", "varchar(80)")):
            for _ in range(8):
                store.within(mine).execute(add)
                store.within(mine).execute(Get(THINGS, "key"))
            mine.commit()
            admin.execute(WIDER.format(name, kind))
            assert store.within(mine).execute(add).item["count"] == 9 * number + 9
            assert store.within(mine).execute(Get(THINGS, "key")).item["text"] == "x"
            mine.commit()


def test_a_session_is_given_so_many_names_and_no_more(url, monkeypatch):
    monkeypatch.setattr(session, "MOST", 4)
    with closing(PostgresStore(url + "&prepare_threshold=0", env="test", tables=TABLES)) as store:
        for attributes in ({}, {"text": "a"}, {"count": 1}, {"text": "b", "count": 2}, {"flag": True}):
            assert store.execute(Put(THINGS, "key", thing(**attributes))).now
            assert store.execute(Get(THINGS, "key")).item.items() >= attributes.items()
        ours = {name for name in names(store) if name.startswith("semel_")}
        assert len(ours) == 4


def test_connections_are_shared_and_whoever_gets_none_is_told(url, mine, monkeypatch):
    with closing(PostgresStore(url + "&pool_size=1", env="test", tables=TABLES)) as store:
        places = store._pool.callers.places
        acquire = places.acquire
        monkeypatch.setattr(places, "acquire", lambda waiter, _seconds: acquire(waiter, 0.05))
        store.execute(Put(THINGS, "key", thing()))
        store.within(mine).execute(Delete(THINGS, "key"))
        with ThreadPoolExecutor(1) as threads:
            blocked = threads.submit(store.execute, Delete(THINGS, "key"))
            assert until(lambda: not store._pool.callers.idle)
            with pytest.raises(errors.StoreThrottled, match="pool_size"):
                store.execute(Get(THINGS, "key"))
            mine.commit()
            assert type(blocked.result()) is Refused
        monkeypatch.undo()
        with ThreadPoolExecutor(8) as threads:  # each gets its turn on the one connection
            assert len(list(threads.map(store.execute, [Get(THINGS, "key")] * 100))) == 100


# Renewals of leases, whatever the callers do


@contextmanager
def waiting_for_a_row(url, admin, name, postgres, work):
    """So many callers that all connections are taken, and they wait for a row that somebody has locked."""
    with psycopg.connect(postgres) as holder, ThreadPoolExecutor(2) as threads:
        holder.execute(f"INSERT INTO {name}.semel_ledger (id, expires_at) VALUES ('row', 'Infinity')")
        callers = [
            threads.submit(work, Put(LEDGER, "row", {"expires_at": After(5)}, ABSENT)) for _ in range(2)
        ]
        assert until(lambda: len(blocked(admin, name)) == 2)
        yield
        holder.rollback()
        assert {type(caller.result()) for caller in callers} <= {Applied, Refused}


def lease_of(admin, name, id):
    return admin.execute(f"SELECT lease_until FROM {name}.semel_ledger WHERE id = %s", [id]).fetchone()


# No server gives anything up, and nobody stops to wait for a connection, before a test is over.
PATIENT = "&pool_size=2&timeout=600"


@pytest.mark.situation(55)
def test_a_lease_is_renewed_while_all_connections_wait_for_a_row(url, admin, name, postgres):
    with semel.connect(url + PATIENT, env="test") as s:
        renewed = []

        @s.once("work", lease=6)
        def work() -> None:
            id = semel.current_run().claim.id
            with waiting_for_a_row(url, admin, name, postgres, s.store.execute):
                before = lease_of(admin, name, id)
                renewed.append(until(lambda: lease_of(admin, name, id) > before))

        work()
    assert renewed == [True]


@pytest.mark.situation(55)
def test_a_lease_of_a_task_is_renewed_while_all_connections_wait_for_a_row(url, admin, name, postgres):
    async def main():
        with semel.connect(url + PATIENT, env="test") as s:

            @s.once("work", lease=6)
            async def work() -> bool:
                id, loop = semel.current_run().claim.id, asyncio.get_running_loop()

                def execute(command):
                    return asyncio.run_coroutine_threadsafe(s.store.aexecute(command), loop).result()

                def look():
                    with waiting_for_a_row(url, admin, name, postgres, execute):
                        before = lease_of(admin, name, id)
                        return until(lambda: lease_of(admin, name, id) > before)

                return await asyncio.to_thread(look)

            renewed = await work()
            await leave(s.store)
            return renewed

    assert asyncio.run(main())


@pytest.mark.situation(55)
def test_a_renewal_whose_own_row_is_locked_keeps_no_other_waiting(url, admin, name, postgres):
    """It is given up after a moment, and its connection serves the next."""
    with semel.connect(url + "&pool_size=2", env="test") as s, psycopg.connect(postgres) as holder:
        held: Any = [s.ledger.claim(f"held:{n}") for n in range(3)]
        free: Any = s.ledger.claim("free")
        for claim in held:
            holder.execute(f"SELECT * FROM {name}.semel_ledger WHERE id = %s FOR UPDATE", [claim.id])
        context = contextvars.copy_context()
        context.run(RENEWING.set, True)

        def renew(claim):
            return context.copy().run(s.ledger.renew, claim)

        with ThreadPoolExecutor(3) as threads:
            blocked_ones = [threads.submit(renew, claim) for claim in held]
            renew(free)
            for each in blocked_ones:
                with pytest.raises(errors.StoreUnavailable, match="a lock could not be had"):
                    each.result()
        holder.rollback()
        for claim in held:
            renew(claim)


def test_a_renewal_does_with_a_callers_connection_where_the_server_gives_no_more(url, admin, name):
    with (
        role(admin, f"{name}_one") as few,
        semel.connect(as_role(url, few), env="test") as s,
    ):
        admin.execute(f"GRANT USAGE ON SCHEMA {name} TO {few}")
        admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {few}")
        admin.execute(f"ALTER ROLE {few} CONNECTION LIMIT 1")
        claim: Any = s.ledger.claim("work")
        context = contextvars.copy_context()
        context.run(RENEWING.set, True)
        context.run(s.ledger.renew, claim)


def test_a_closed_store_says_so(url):
    store = PostgresStore(url, env="test")
    store.execute(Get(LEDGER, "key"))
    store.close()
    with pytest.raises(errors.StoreClosed):
        store.execute(Get(LEDGER, "key"))
    with pytest.raises(errors.StoreClosed):
        asyncio.run(store.aexecute(Get(LEDGER, "key")))


@pytest.mark.skipif("SEMEL_TEST_POSTGRES_URL" in os.environ, reason="somebody else's server is not stopped")
def test_a_restart_of_the_server_is_survived():
    with durable_postgres() as (url, server):
        migrate(url, "test")
        with semel.connect(url, env="test") as s:
            work = s.once("work:{n}")(lambda n: n)
            before: Any = s.ledger.claim("held")
            assert work(1) == 1
            server.stop()
            for ask in (lambda: work(2), lambda: asyncio.run(s.aio.ledger.get("work:1"))):
                with pytest.raises(
                    errors.StoreUnavailable, match=r"127\.0\.0\.1:\d+/postgres: cannot be reached"
                ):
                    ask()
            server.start()
            assert work(2) == 2
            s.ledger.complete(before, "kept")
            assert s.ledger.get("work:1").status is Status.COMPLETED


# Several writes, all or none


def charge(n, cap=1e9, of="sends"):
    """What happens once with everything that belongs to it: five writes over four tables."""
    token, end = f"token-{n}", {"expires_at": After(LONG)}
    return Transact(
        (
            Put(LEDGER, f"work-{n}", {"status": "COMPLETED", "token": token, "result": b"{}"} | end, ABSENT),
            Add(COUNTERS, of, "count", 1, {"updated_at": NOW, "period": "day"} | end, cap, "day"),
            Put(COUNTERS, of, {"by": 1, "token": token, "state": "CHARGED"} | end, ABSENT, f"token:{n}"),
            Put(DOCUMENTS, f"case-{n}", {"body": {"n": n}, "version": 1, "token": token} | end, ABSENT),
            Put(
                JOURNAL,
                "case",
                {"actor": "clerk", "at": NOW, "body": {"n": n}, "token": token} | end,
                ABSENT,
                f"{n:04}",
            ),
        )
    )


def charged(store):
    """The total, and which of the others there are in each of the tables."""
    total = store.execute(Get(COUNTERS, "sends", "day")).item
    counters = store.execute(Query(COUNTERS, "sends", low="token:", limit=1000)).items
    entries = store.execute(Query(JOURNAL, "case", limit=1000)).items
    return (
        0 if total is None else total["count"],
        {int(item["entry"].partition(":")[2]) for item in counters},
        {item["body"]["n"] for item in entries},
        {item["body"]["n"] for item in store.execute(Query(DOCUMENTS, limit=1000)).items},
        {int(item["id"].partition("-")[2]) for item in store.execute(Query(LEDGER, limit=1000)).items},
    )


def whole(numbers):
    """What `charged` gives where these have happened, and no half of any other."""
    numbers = set(numbers)
    return (len(numbers), *[numbers] * 4)


SYNC = b"S\x00\x00\x00\x04"  # the server answers when it has read this


class Traffic:
    """What a client says to the server, one request for each round trip."""

    def __init__(self, proxy):
        self.requests = []
        proxy.drop_answer_to(self._note)

    def _note(self, request):
        """The request so far; no answer to it is dropped."""
        if self.requests and request.startswith(self.requests[-1]):
            self.requests.pop()
        self.requests.append(request)
        return False

    def taken(self):
        """The round trips since this was last asked, and how often the server was to answer."""
        requests, self.requests = self.requests, []
        # A request may come in two pieces, and the server begin to answer the first: its end is the Sync.
        ends = [request.count(SYNC) for request in requests]
        return sum(end > 0 for end in ends), sum(ends)


@seldom_or_often
def test_a_transaction_is_one_round_trip(url, option):
    """Five writes over four tables, as text, by a name that is given on the way, and by a known one."""
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url) + option, env="test", tables=TABLES)) as store,
    ):
        store.execute(Get(THINGS, "key"))
        traffic = Traffic(proxy)
        for number in range(8):
            assert type(store.execute(charge(number))) is Applied
            assert traffic.taken() == (1, 1)

        async def main():
            await store.aexecute(Get(THINGS, "key"))
            traffic.taken()
            for number in range(8, 16):
                assert type(await store.aexecute(charge(number))) is Applied
                assert traffic.taken() == (1, 1)
            await store.leave()

        asyncio.run(main())
        assert charged(store) == whole(range(16))


def test_behind_a_pooler_it_is_one_round_trip_too(url):
    """Which is a transaction by its own words, for one that would end each statement's by itself."""
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url) + "&prepare_threshold=none", env="test")) as store,
    ):
        store.execute(Get(LEDGER, "key"))
        traffic = Traffic(proxy)
        assert type(store.execute(charge(1))) is Applied
        [request] = traffic.requests
        assert request.index(b"BEGIN") < request.index(b"work-1") < request.index(b"COMMIT\x00")
        assert traffic.taken() == (1, 1)


def test_a_refusal_is_known_after_two_round_trips_and_one_that_is_expected_after_one(url, admin, name):
    with FaultProxy.before(url) as proxy, closing(PostgresStore(proxy.url(url), env="test")) as store:
        store.execute(charge(1, cap=1))
        before, traffic, trips = sessions(admin, name), Traffic(proxy), []
        for _ in range(8):
            refusals = store.execute(charge(2, cap=1)).refusals
            assert [refusal and refusal.item["count"] for refusal in refusals] == [None, 1, None, None, None]
            trips.append(traffic.taken()[0])
        assert trips == [2, 2, 1, 1, 1, 1, 1, 1]
        assert charged(store) == whole([1])
        traffic.taken()
        for number, expected in ((2, 2), (3, 1)):  # the cap was raised
            assert type(store.execute(charge(number, cap=10))) is Applied
            assert traffic.taken() == (expected, expected)
        assert charged(store) == whole([1, 2, 3])
        # One that was closed before may still have been seen there, and is gone by now.
        assert sessions(admin, name), "the store has its session"
        assert sessions(admin, name) <= before, "a refusal costs nobody his session"


def test_every_write_of_a_transaction_has_the_same_time(store, admin):
    [before] = admin.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    applied = store.execute(charge(1))
    assert before <= applied.now < before + 60
    total, entry = (
        store.execute(Get(COUNTERS, "sends", "day")).item,
        store.execute(Get(JOURNAL, "case", "0001")),
    )
    assert total["updated_at"] == entry.item["at"] == applied.now
    assert total["expires_at"] == entry.item["expires_at"] == applied.now + LONG


CROWD, CAP = 200, 3


def of_crowd(replies):
    """The numbers of those who got through, after a look at what the others were told."""
    won = [number for number, reply in enumerate(replies) if type(reply) is Applied]
    for reply in replies:
        if type(reply) is Cancelled:
            refusals: Any = reply.refusals
            ledger, total, *others = refusals
            assert (ledger, *others) == (None,) * 4
            assert total.item["count"] == CAP
    assert Counter(map(type, replies)) == {Applied: CAP, Cancelled: CROWD - CAP}
    return won


@seldom_or_often
def test_of_two_hundred_threads_as_many_get_through_as_a_cap_lets(url, store, option):
    with closing(PostgresStore(url + option, env="test")) as crowded, ThreadPoolExecutor(24) as threads:
        replies = list(threads.map(lambda number: crowded.execute(charge(number, CAP)), range(CROWD)))
    won = of_crowd(replies)
    assert charged(store) == whole(won)


@seldom_or_often
def test_of_two_hundred_tasks_as_many_get_through_as_a_cap_lets(url, store, option):
    async def main():
        with closing(PostgresStore(url + option, env="test")) as crowded:
            replies = await asyncio.gather(*(crowded.aexecute(charge(n, CAP)) for n in range(CROWD)))
            await crowded.leave()
        return replies

    won = of_crowd(asyncio.run(main()))
    assert charged(store) == whole(won)


def test_nobody_ever_sees_a_half(store, admin, name):
    """What one counter gains another loses, so that their sum is nothing whenever anybody looks."""
    for key in "abcd":
        store.execute(Put(THINGS, key, thing(count=0)))
    replies = []

    def move(number):
        chance = random.Random(number)
        for _ in range(40):
            source, target = chance.sample("abcd", 2)
            less = Add(THINGS, source, "count", -1, {})
            replies.append(store.execute(Transact((less, Add(THINGS, target, "count", 1, {}, cap=3)))))

    total = f"SELECT sum(count), count(*) FROM {name}.semel_conformance_things"
    with ThreadPoolExecutor(8) as threads:
        movers = [threads.submit(move, number) for number in range(8)]
        seen = {
            admin.execute(total).fetchone() for _ in iter(lambda: all(mover.done() for mover in movers), True)
        }
        for mover in movers:
            mover.result()
    assert seen | {admin.execute(total).fetchone()} == {(0, 4)}
    assert {type(reply) for reply in replies} == {Applied, Cancelled}


def test_a_crowd_of_transactions_sees_one_order_of_things(url):
    """Some order of them, one after the other, explains every reply: what was made, and what refused."""
    history, groups = History(), 12

    def commands(chance, who):
        end = {"gone_at": After(1e6)}
        for number in range(125):
            group = chance.randrange(groups)
            writes = [
                chance.choice(
                    [
                        Put(THINGS, f"{group}-{each}", {"text": f"{who}-{number}"} | end, ABSENT),
                        Add(THINGS, f"{group}-{each}", "count", 1, end, cap=2),
                        Update(THINGS, f"{group}-{each}", {"text": f"{who}-{number}"}, {"count": 1}),
                        Delete(THINGS, f"{group}-{each}", {"count": chance.choice([None, 2])}),
                    ]
                )
                for each in chance.sample(range(3), 2)
            ]
            yield Transact(tuple(writes))

    with ExitStack() as stack:
        stores = [
            stack.enter_context(closing(PostgresStore(url, env="test", tables=TABLES))) for _ in range(2)
        ]

        def work(who):
            for command in commands(random.Random(who), who):
                with history.operation(who, command) as answered:
                    answered(stores[who % 2].execute(command))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
    operations = history.operations
    assert len(operations) == 1000
    assert {type(operation.result) for operation in operations} == {Applied, Cancelled}
    violations = check(
        history,
        transacted,
        initial=frozenset(),
        key=lambda command: command.writes[0].key.partition("-")[0],
        idle=lambda _, reply: type(reply) is Cancelled,
    )
    assert not violations, violations[0]


def transacted(state, command, reply):
    """What `semel.core.commands` says of a transaction on the items of a group, but for their ends."""
    items: dict[str, Any] = {key: dict(item) for key, item in state}
    refusals = [
        None if allowed(write, items.get(write.key)) else (items.get(write.key) or {})
        for write in command.writes
    ]
    if any(refusal is not None for refusal in refusals):
        return type(reply) is Cancelled and refusals == list(map(refused_by, reply.refusals)), state
    for write in command.writes:
        items[write.key] = outcome(write, items.get(write.key), 0)
    after = {(key, frozenset(endless(item).items())) for key, item in items.items() if item is not None}
    return type(reply) is Applied, frozenset(after)


def endless(item):
    return {name: value for name, value in item.items() if name != "gone_at"}


def refused_by(refusal):
    return None if refusal is None else endless(refusal.item or {})


@seldom_or_often
def test_a_transaction_whose_answer_is_lost_is_in_doubt_and_was_made_whole(url, option):
    """Sent again it is refused by what it has written itself."""
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url) + option, env="test")) as store,
    ):
        store.execute(Get(LEDGER, "key"))
        for number in range(20):
            command = charge(number)
            proxy.drop_answer_to(f"work-{number}".encode())
            with pytest.raises(errors.StoreOutcomeUnknown):
                store.execute(command)
            again = store.execute(command)
            tokens = [refusal and refusal.item["token"] for refusal in again.refusals]
            assert tokens == [f"token-{number}", None, *[f"token-{number}"] * 3]
        assert charged(store) == whole(range(20))


def test_a_transaction_of_which_the_server_got_a_part_is_in_doubt_and_was_not_made(url):
    """It commits when it has read the end, and what was begun is undone when its client is gone."""
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url), env="test", tables=TABLES)) as store,
        ThreadPoolExecutor(1) as threads,
    ):
        store.execute(Get(THINGS, "key"))

        def swallow_the_rest(request):
            proxy.black_hole()
            return False

        large = thing(data=os.urandom(2_000_000))
        proxy.drop_answer_to(swallow_the_rest)
        torn = threads.submit(store.execute, Transact((Put(THINGS, "a", thing()), Put(THINGS, "b", large))))
        assert until(lambda: proxy.swallowed > 1_000_000)
        proxy.cut()
        with pytest.raises(errors.StoreOutcomeUnknown):
            torn.result()
        proxy.heal()
        assert store.execute(Query(THINGS)).items == ()


def test_what_refused_a_transaction_is_looked_up_without_a_doubt(url):
    """The answer that is lost is that of the second trip, and the first has written nothing."""
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url), env="test")) as store,
    ):
        store.execute(charge(1))
        proxy.drop_answer_to(b"READ ONLY", times=2)
        with pytest.raises(errors.StoreUnavailable):
            store.execute(charge(1))
        assert charged(store) == whole([1])


def test_transactions_that_wait_for_each_other_both_get_through(url, store, mine, admin, name, postgres):
    """Somebody else's locks come in another order: the server ends ours, and it begins anew."""
    for key in "abc":
        store.execute(Put(THINGS, key, thing(text="old")))
    ours = Transact(tuple(Update(THINGS, key, {"text": "ours"}) for key in "abc"))
    theirs = f"UPDATE {name}.semel_conformance_things SET data = 'x' WHERE id = %s"
    # Whoever waits last finds out that they wait for each other, and is the one to be ended.
    mine.execute(f"SET application_name = '{name}'; SET deadlock_timeout = '1h'")
    mine.execute(theirs, ["c"])
    hasty = url + "&options=-c%20deadlock_timeout%3D10ms%20-c%20statement_timeout%3D30s"
    with (
        psycopg.connect(postgres) as gate,
        closing(PostgresStore(hasty, env="test", tables=TABLES)) as late,
        ThreadPoolExecutor(2) as threads,
    ):
        gate.execute(theirs, ["b"])
        waiting = threads.submit(late.execute, ours)
        assert until(lambda: len(blocked(admin, name)) == 1)
        other = threads.submit(mine.execute, theirs, ["a"])
        assert until(lambda: len(blocked(admin, name)) == 2)
        gate.rollback()
        other.result()
        assert until(lambda: blocked(admin, name))  # ours again, which now waits as anybody would
        mine.commit()
        assert type(waiting.result()) is Applied
    found = store.execute(Query(THINGS)).items
    assert [(item["text"], item.get("data")) for item in found] == [
        ("ours", b"x"),
        ("ours", None),
        ("ours", b"x"),
    ]


def blocked(admin, name):
    """The sessions of the test that wait for a lock."""
    waiting = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    return admin.execute(waiting, [name]).fetchall()


@seldom_or_often
def test_a_transaction_that_is_interrupted_or_waits_too_long_is_taken_back_whole(
    url, store, mine, admin, name, option
):
    store.execute(Put(THINGS, "b", thing(text="old")))
    store.within(mine).execute(Update(THINGS, "b", {"text": "held"}))
    both = Transact((Put(THINGS, "a", thing()), Update(THINGS, "b", {"text": "new"})))

    async def interrupted(waits):
        write = asyncio.create_task(waits.aexecute(both))
        seen = await asyncio.to_thread(until, lambda: blocked(admin, name))
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        assert type(await waits.aexecute(Put(THINGS, "c", thing()))) is Applied
        await waits.leave()
        return seen

    with closing(PostgresStore(url + option, env="test", tables=TABLES)) as waits:
        assert asyncio.run(interrupted(waits))
    hasty = url + "&options=-c%20statement_timeout%3D200" + option
    with closing(PostgresStore(hasty, env="test", tables=TABLES)) as waits:
        with pytest.raises(errors.StoreUnavailable, match="transaction left open"):
            waits.execute(both)
        mine.rollback()
        assert [item["id"] for item in waits.execute(Query(THINGS)).items] == ["b", "c"]
        assert type(waits.execute(both)) is Applied


def test_a_server_that_ends_the_session_leaves_no_half(url, store, mine, admin, name):
    store.execute(Put(THINGS, "b", thing(text="old")))
    store.within(mine).execute(Update(THINGS, "b", {"text": "held"}))
    both = Transact((Put(THINGS, "a", thing()), Update(THINGS, "b", {"text": "new"})))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.execute, both)
        assert until(lambda: blocked(admin, name))
        terminate(admin, name)
        with pytest.raises(errors.StoreOutcomeUnknown):
            waiting.result()
    mine.rollback()
    assert [item["id"] for item in store.execute(Query(THINGS)).items] == ["b"]


class Silent:
    """A connection of libpq's that has nothing more to say."""

    def __init__(self, pgconn):
        self._pgconn = pgconn

    def __getattr__(self, name):
        return getattr(self._pgconn, name)

    def get_result(self):
        return None


def test_a_connection_that_says_no_more_is_lost(store):
    store.execute(Get(LEDGER, "key"))
    with session_of(store) as session:
        session.pgconn = Silent(session.pgconn)
    with pytest.raises(errors.StoreOutcomeUnknown):
        store.execute(charge(1))
    assert type(store.execute(Transact(()))) is Applied


def test_a_commit_that_fails_is_no_success(url, store, admin, name):
    """As a constraint of the caller's own does, that is checked at the end."""
    admin.execute(
        f"CREATE FUNCTION {name}.never() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not on a Sunday' USING ERRCODE = '23514'; END $$"
    )
    admin.execute(
        f"CREATE CONSTRAINT TRIGGER never AFTER INSERT ON {name}.semel_conformance_notes "
        f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {name}.never()"
    )
    put = Put(NOTES, "o", thing(), ABSENT, "1")
    for _ in range(2):
        with pytest.raises(errors.UsageError, match="not on a Sunday"):
            store.execute(Transact((Put(THINGS, "a", thing(), ABSENT), put)))
        with pytest.raises(errors.UsageError, match="not on a Sunday"):
            store.execute(Batch((Put(THINGS, "a", thing(), ABSENT), put)))
    assert store.execute(Query(THINGS)).items == store.execute(Query(NOTES)).items == ()


def test_whoever_meets_another_waits_and_goes_on_from_there(url, store, mine, admin, name):
    """In the same round trip, also where the database would rather have him begin anew."""
    strict = url + "&options=-c%20default_transaction_isolation%3Dserializable"
    store.execute(charge(1))
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(strict), env="test")) as late,
        ThreadPoolExecutor(1) as threads,
    ):
        late.execute(Get(LEDGER, "key"))
        store.within(mine).execute(charge(2))
        traffic = Traffic(proxy)
        waiting = threads.submit(late.execute, charge(3))
        assert until(lambda: blocked(admin, name))
        mine.commit()
        assert type(waiting.result()) is Applied
        assert traffic.taken() == (1, 1)
    assert charged(store) == whole([1, 2, 3])


@pytest.fixture
def named(url):
    """A store that gives every statement a name at once, and what it says to the server."""
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url) + "&prepare_threshold=0", env="test")) as store,
    ):
        store.execute(Get(LEDGER, "key"))
        yield store, Traffic(proxy)


def trips_of(named, command):
    store, traffic = named
    traffic.taken()
    assert type(store.execute(command)) is Applied
    return traffic.taken()[0]


def test_names_that_a_session_has_forgotten_are_given_again_and_nothing_is_written_twice(named):
    store, _ = named
    assert trips_of(named, charge(0)) == 1
    with session_of(store) as session:
        session.connection.execute("DEALLOCATE ALL")
    # Told that it is unknown, then as text, and the next time by its name again.
    assert [trips_of(named, charge(number)) for number in range(1, 4)] == [2, 1, 1]
    assert charged(store) == whole(range(4))


def test_names_that_a_session_was_given_by_somebody_else_are_given_again(named):
    """It forgets all of them with the first that is there already."""
    store, _ = named
    assert trips_of(named, charge(0)) == 1
    with session_of(store) as session:
        session.names.clear()
    trips = [trips_of(named, charge(number)) for number in range(1, 10)]
    assert trips == [2] + [1] * 8
    assert charged(store) == whole(range(10))


def test_a_name_that_was_not_given_because_of_a_refusal_is_given_later(named):
    """The server skips what follows the write that is refused, and its name with it."""
    store, _ = named
    store.execute(Put(COUNTERS, "sends", {"count": 5, "expires_at": After(LONG)}, sort="day"))
    assert type(store.execute(charge(0, cap=5))) is Cancelled
    store.execute(Delete(COUNTERS, "sends", sort="day"))
    assert [trips_of(named, charge(number, cap=5)) for number in range(3)] == [1, 1, 1]
    assert charged(store) == whole(range(3))


def test_whoever_waits_is_notified_of_a_transaction_and_of_none_that_is_refused(store, admin, name):
    store.execute(Put(LEDGER, "key", {"expires_at": After(LONG)}))
    until_listening(store, "key")
    admin.execute(f"LISTEN semel_{name}")
    done = Update(LEDGER, "key", {"status": "COMPLETED"})
    assert type(store.execute(Transact((done, Delete(LEDGER, "nothing"))))) is Cancelled
    assert list(admin.notifies(timeout=0)) == []
    assert type(store.execute(Transact((done, Put(LEDGER, "other", {"expires_at": After(LONG)}))))) is Applied
    [note] = admin.notifies(timeout=10, stop_after=1)
    assert json.loads(note.payload) == ["ledger", "key"]
    admin.execute("UNLISTEN *")


def test_an_addition_without_an_end_is_refused_in_a_transaction_too(store):
    endless_one = Transact((Put(THINGS, "a", thing()), Add(THINGS, "b", "count", 1, {})))
    with pytest.raises(errors.UsageError, match="gone_at"):
        store.execute(endless_one)
    assert store.execute(Query(THINGS)).items == ()


# By other attributes than the key


def explained(admin, name, statement, values, mode):
    """How the server goes about a statement, planned for these values or once for all."""
    sql, given = statement.decode(), [None, *values]
    literals = ", ".join("NULL" if value is None else f"'{value}'" for value in given)
    admin.execute(f"SET plan_cache_mode = force_{mode}_plan")
    admin.execute(f"PREPARE asked AS {sql}".encode(), prepare=False)
    try:
        rows = admin.execute(f"EXPLAIN EXECUTE asked({literals})".encode(), prepare=False).fetchall()
    finally:
        admin.execute("DEALLOCATE asked")
        admin.execute("RESET plan_cache_mode")
    return "\n".join(line for (line,) in rows)


@pytest.mark.parametrize("mode", ["custom", "generic"])
@pytest.mark.parametrize(
    ("query", "index"),
    [
        (Query(LEDGER, "s-1", index="subject", limit=10), "semel_ledger_subject"),
        (Query(DOCUMENTS, "s-1", index="subject", limit=10), "semel_documents_subject"),
        (Query(JOURNAL, "s-1", index="subject", limit=10, reverse=True), "semel_journal_subject"),
        (Query(JOURNAL, "a-1", index="actor-at", limit=10, low=5), "semel_journal_actor-at"),
        (Query(JOURNAL, "a-1", index="actor-at", limit=10, reverse=True), "semel_journal_actor-at"),
        (Query(JOURNAL, "a-1", index="actor-at", limit=10, after='[9,"o","e0"]'), "semel_journal_actor-at"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_query_by_an_index_uses_it(store, admin, name, query, index, mode):
    """And reads no more of it than its page: the order of the index is that of the pages."""
    many = "generate_series(1, 4000) AS n"
    person, end = "CASE WHEN n % 5 = 0 THEN 's-' || n % 2 END", "extract(epoch FROM now()) + 1000"
    if query.table is JOURNAL:
        given, values = "owner, entry, actor, at", "'o', 'e' || n, 'a-' || n % 4, n"
    else:
        given, values = "id", "'k' || n"
    admin.execute(
        f"INSERT INTO {name}.semel_{query.table.name} ({given}, expires_at, subject) "
        f"SELECT {values}, {end}, {person} FROM {many}"
    )
    admin.execute(f"ANALYZE {name}.semel_{query.table.name}")
    statement, [_, *values] = store._steps.plan(query.table).query(query, None)
    plan = explained(admin, name, statement, values, mode)
    assert re.search(rf'Index Scan( Backward)? using "?{index}"? ', plan), plan
    assert "Seq Scan" not in plan
    assert plan.count("Sort Key") == 1, "that of the page itself"


def test_rows_that_name_nobody_are_in_no_index_of_names(store, admin, name):
    store.execute(Batch(tuple(Put(LEDGER, f"k{n}", {"expires_at": After(LONG)}) for n in range(100))))
    store.execute(Put(LEDGER, "named", {"expires_at": After(LONG), "subject": "somebody"}))
    admin.execute(f"VACUUM ANALYZE {name}.semel_ledger")
    entries = "SELECT reltuples FROM pg_class WHERE oid = %s::regclass"
    assert admin.execute(entries, [f"{name}.semel_ledger_subject"]).fetchone() == (1,)
    assert [item["id"] for item in store.execute(Query(LEDGER, "somebody", index="subject")).items] == [
        "named"
    ]


def test_an_index_serves_inside_a_transaction_of_the_callers(store, mine):
    inside = store.within(mine)
    inside.execute(Put(LEDGER, "mine", {"expires_at": After(LONG), "subject": "somebody"}))
    asked = Query(LEDGER, "somebody", index="subject")
    assert [item["id"] for item in inside.execute(asked).items] == ["mine"]
    assert store.execute(asked).items == ()


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
    assert [pair for pair in shown if allowed(pair[0], pair[1].item)] == []


def draw(chance):
    """A write, or several, on few keys and few values."""
    key, text, other = f"k{chance.randrange(3)}", str(chance.randrange(3)), str(chance.randrange(3))
    short = {"text": text, "gone_at": After(chance.choice([LONG, 0.001]))}
    return chance.choice(
        [
            Put(THINGS, key, short, chance.choice([ABSENT, {"text": other}])),
            Update(THINGS, key, {"text": text}, {"text": other}),
            Delete(THINGS, key, {"text": other}),
            Add(THINGS, key, "count", 1, thing(text=text), cap=4),
            Batch(
                tuple(
                    Put(THINGS, f"k{n}", short, chance.choice([ABSENT, {"text": other}]))
                    for n in chance.sample(range(3), 3)
                )
            ),
            Transact((Put(THINGS, "k0", short, ABSENT), Update(THINGS, "k1", {"text": text}, PRESENT))),
        ]
    )


def test_writes_to_one_key_in_a_batch_are_made_in_order(store):
    many = store.execute(
        Batch(
            (
                Put(THINGS, "key", thing(text="1"), ABSENT),
                Update(THINGS, "key", {"text": "2"}, {"text": "1"}),
                Put(THINGS, "key", thing(text="3"), ABSENT),
                Add(THINGS, "key", "count", 1, {}, cap=1),
                Delete(THINGS, "key", {"text": "2"}),
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
                process.stdout.readline()  # or its end: one that is killed late has done more
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
        store.execute(Watch(LEDGER, id, WORTH_SUBSCRIBING))
        return store._background.listening and awaited_by(store, id)

    assert until(awaited)


def awaited_by(store, id):
    with psycopg.connect(store._address.conninfo, application_name="a test") as connection:
        name = store._steps.plan(LEDGER).name
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
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)
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
        assert not store._background.listening
        with session_of(store) as session:
            assert session.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (
                0,
            )
            assert session.connection.execute("SHOW statement_timeout").fetchone() == ("0",)


@pytest.mark.situation(35)
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


def test_the_time_is_told_without_a_round_trip_once_it_was_heard(url, admin):
    with (
        FaultProxy.before(url) as proxy,
        closing(PostgresStore(proxy.url(url), env="test", clock=Wrong(), tables=TABLES)) as store,
    ):
        traffic = Traffic(proxy)
        assert store.at_once(Time()) is None
        told = store.execute(Time())
        assert traffic.taken()[0] > 0
        assert told.item is None
        for now in (store.execute(Time()).now, store.at_once(Time()).now, asyncio.run(atime(store))):
            assert told.now <= now < told.now + 60
        assert traffic.taken() == (0, 0)
    [now] = admin.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert told.now <= now < told.now + 60


async def atime(store):
    return (await store.aexecute(Time())).now


def test_every_answer_tells_the_time(url):
    for command in (Get(THINGS, "key"), Put(THINGS, "key", thing()), Query(THINGS), Transact(()), charge(1)):
        with closing(PostgresStore(url, env="test", tables=TABLES)) as store:
            reply = store.execute(command)
            assert store.at_once(Time()).now == pytest.approx(reply.now, abs=60)


def test_the_time_inside_a_transaction_of_the_callers(store, mine, postgres):
    inside = store.within(mine)
    assert inside.at_once(Time()) is None
    asked = inside.execute(Time()).now
    assert inside.execute(Time()).now == pytest.approx(asked, abs=60)
    assert inside.at_once(Time()) is not None

    async def main():
        async with await psycopg.AsyncConnection.connect(postgres) as connection:
            with closing(PostgresStore(store._address, env="test", tables=TABLES)) as other:
                return (await other.within(connection).aexecute(Time())).now

    assert asyncio.run(main()) == pytest.approx(asked, abs=60)


def test_reaping_removes_what_has_expired_and_nothing_that_is_being_written(store, mine):
    for number in range(10):
        store.execute(Put(THINGS, str(number), {"gone_at": After(-1)}))
    store.execute(Put(THINGS, "alive", thing()))
    store.within(mine).execute(Put(THINGS, "9", thing(text="again")))
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
