"""PostgreSQL behind a pooler, as a standby, and with settings of the role that are not the default."""

import asyncio
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from typing import Any

import psycopg
import pytest

import semel
from semel import errors
from semel.core.clock import Waiter
from semel.core.commands import Add, After, Applied, Get, Put, Transact, Watch
from semel.core.lifecycle import Status
from semel.stores.postgres import PostgresStore, migrate
from semel.stores.postgres.session import blocking
from semel.testing.conformance import TABLES, THINGS
from tests.servers.absence import served
from tests.servers.pgbouncer import pgbouncer
from tests.servers.postgres import standby
from tests.servers.running import until

LONG = {"gone_at": After(10_000)}
NUMBERS = count(1)


@pytest.fixture
def url(postgres, name):
    url = f"{postgres}{'&' if '?' in postgres else '?'}schema={name}"
    migrate(url, "test", TABLES)
    return url


def pooled(url, **settings):
    """The URL by way of PgBouncer."""
    return served(lambda: pgbouncer(url, **settings))


# Behind a pooler


def hammer(s, ran):
    """A thread's calls and a task's, so many that every statement would be prepared."""

    @s.once("work:{n}", wait=60)
    def work(n: int) -> int:
        ran[n] += 1
        return n

    @s.once("task:{n}")
    async def task(n: int) -> int:
        ran[-n] += 1
        return n

    async def tasks():
        await asyncio.gather(*(task(n) for n in range(1, 101)))
        await s.store.leave()

    with ThreadPoolExecutor(8) as threads:
        numbers = [n for n in range(1, 101) for _ in range(2)]
        assert list(threads.map(work, numbers)) == numbers
    asyncio.run(tasks())


def test_behind_pgbouncer_nobody_listens_and_nobody_tries_to(url):
    with (
        pooled(url, pool_mode="transaction") as address,
        closing(PostgresStore(address, env="test", tables=TABLES)) as store,
    ):
        assert store.execute(Watch(THINGS, "key", 0.01)).item is None
        assert until(lambda: not store._background._hears)
        assert until(lambda: store._background._listener.thread is None)
        assert store.execute(Watch(THINGS, "key", 0.01)).item is None
        assert store._background._listener.thread is None


@pytest.mark.situation(64)
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_behind_pgbouncer_every_effect_happens_once_without_any_setting(url, mode):
    """In transaction mode each statement may meet another session of the server."""
    ran: Counter[int] = Counter()
    sessions = 20 if mode == "session" else 3
    with (
        pooled(url, pool_mode=mode, default_pool_size=sessions) as address,
        semel.connect(address, env="test") as s,
    ):
        hammer(s, ran)
        statuses = {s.ledger.get(f"work:{n}").status for n in range(1, 101)}
    assert statuses == {Status.COMPLETED}
    assert set(ran.values()) == {1}
    assert len(ran) == 200


@pytest.mark.situation(64)
def test_behind_pgbouncer_nothing_is_prepared_and_nobody_listens(url, admin, name):
    with pooled(url) as address, closing(PostgresStore(address, env="test", tables=TABLES)) as store:
        for _ in range(20):
            store.execute(Put(THINGS, "key", dict(LONG)))
            store.execute(Transact((Put(THINGS, "a", dict(LONG)), Put(THINGS, "b", dict(LONG)))))
        store.execute(Watch(THINGS, "key", 0.01))
        with psycopg.connect(address.partition("?")[0], autocommit=True, prepare_threshold=None) as other:
            for _ in range(6):  # each of the three sessions, in turn
                assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
                assert other.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)


@pytest.mark.situation(64)
@pytest.mark.parametrize("option", ["", "&prepare_threshold=none"], ids=["default", "none"])
def test_a_pooler_that_refuses_options_is_told_as_such_at_the_first_call(url, option):
    ran = []
    with (
        pooled(url, ignore_startup_parameters="") as address,
        semel.connect(address + option, env="test") as s,
    ):
        work = s.once("work:{n}")(lambda n: ran.extend([n]))
        if option:
            work(1)
            assert ran == [1]
            return
        for ask in (lambda: work(1), lambda: asyncio.run(s.aio.ledger.get("work:1"))):
            with pytest.raises(errors.NotPermitted, match=r"add options to its ignore_startup_parameters"):
                ask()
    assert ran == []


# Settings of the role


@pytest.fixture
def role(admin, name):
    role = f"{name}_r"
    admin.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    yield role
    admin.execute(f"DROP ROLE {role}")


def as_role(url, role):
    return re.sub(r"//[^@]*@", f"//{role}@", url)


@pytest.mark.situation(64)
@pytest.mark.parametrize("by_pooler", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_a_stricter_isolation_by_default_costs_no_write(url, admin, role, isolation, by_pooler):
    admin.execute(f"ALTER ROLE {role} SET default_transaction_isolation = '{isolation}'")
    ran: Counter[int] = Counter()

    def use(address):
        with semel.connect(address, env="test") as s:
            hammer(s, ran)
        with (
            closing(PostgresStore(address, env="test", tables=TABLES)) as store,
            ThreadPoolExecutor(4) as threads,
        ):
            add = Add(THINGS, "hot", "count", 1, dict(LONG))
            assert {type(reply) for reply in threads.map(store.execute, [add] * 100)} == {Applied}
            assert store.execute(Get(THINGS, "hot")).item["count"] == 100

    with ExitStack() as stack:
        address = as_role(url, role)
        use(stack.enter_context(pooled(address)) if by_pooler else address)
    assert set(ran.values()) == {1}


@pytest.mark.situation(64)
@pytest.mark.parametrize("by_pooler", [False, True], ids=["direct", "pooled"])
def test_a_session_that_may_only_read_is_refused_by_the_name_of_the_setting(url, admin, role, by_pooler):
    admin.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    ran = []
    with ExitStack() as stack:
        address = as_role(url, role)
        address = stack.enter_context(pooled(address)) if by_pooler else address
        s = stack.enter_context(semel.connect(address, env="test"))
        with pytest.raises(errors.StoreUnavailable, match="default_transaction_read_only"):
            s.once("work:{n}")(lambda n: ran.extend([n]))(1)
    assert ran == []


@pytest.mark.situation(64)
@pytest.mark.parametrize("by_pooler", [False, True], ids=["direct", "pooled"])
def test_a_statement_timeout_of_the_role_is_named_where_it_ends_a_statement(
    url, admin, name, role, by_pooler
):
    """By way of a pooler; a session of semel's own has its own limit, which here is longer than the lock."""
    admin.execute(f"ALTER ROLE {role} SET statement_timeout = '50ms'")
    ran = []
    with ExitStack() as stack:
        address = as_role(url, role)
        address = stack.enter_context(pooled(address)) if by_pooler else address
        s = stack.enter_context(semel.connect(address, env="test"))
        work = s.once("work:{n}")(lambda n: ran.extend([n]))
        if by_pooler:
            with admin.transaction():
                admin.execute(f"LOCK TABLE {name}.semel_meta IN ACCESS EXCLUSIVE MODE")
                with pytest.raises(errors.StoreUnavailable, match="after statement_timeout"):
                    work(1)
            assert ran == []
        else:
            pool: Any = s.store._pool  # type: ignore[attr-defined]
            waiter = Waiter()
            group, session = blocking(pool.take(waiter))
            assert session.connection.execute("SHOW statement_timeout").fetchone() == ("8s",)
            pool.give(group, session, waiter)


# A standby


@pytest.fixture(scope="module")
def pair():
    """A primary and its standby."""
    with served(standby) as both:
        yield both


@pytest.fixture
def lagging(pair):
    """Both URLs, and the number of work that the primary knows to be done, and the standby does not."""
    primary, replica = pair
    migrate(primary, "test", TABLES)
    with (
        psycopg.connect(replica, autocommit=True) as behind,
        psycopg.connect(primary, autocommit=True) as ahead,
    ):
        migrated = ahead.execute("SELECT pg_current_wal_lsn()").fetchone()
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        assert until(lambda: behind.execute(replayed, migrated).fetchone() == (True,))
        behind.execute("SELECT pg_wal_replay_pause()")
        paused = "SELECT pg_get_wal_replay_pause_state()"
        assert until(lambda: behind.execute(paused).fetchone() == ("paused",))
        with semel.connect(primary, env="test") as s:
            s.once("work:{n}")(lambda n: n)(number := next(NUMBERS))
        yield primary, replica, number
        behind.execute("SELECT pg_wal_replay_resume()")


def both_hosts(first, second):
    """One URL with two hosts, in this order."""
    hosts = [url.partition("@")[2].partition("/")[0] for url in (first, second)]
    return f"postgresql://postgres@{','.join(hosts)}/postgres"


@pytest.mark.situation(22)
@pytest.mark.situation(64)
def test_a_standby_decides_nothing(lagging):
    """It is behind, and would say that nothing was done."""
    _, replica, number = lagging
    ran = []
    with semel.connect(replica, env="test") as s:
        asked = [
            lambda: s.ledger.get(f"work:{number}"),
            lambda: s.documents.get("case"),
            lambda: s.once("work:{n}")(lambda n: ran.extend([n]))(number),
            lambda: asyncio.run(s.aio.ledger.get(f"work:{number}")),
        ]
        for ask in asked:
            with pytest.raises(errors.StoreUnavailable, match="may only be read: name the primary"):
                ask()
    assert ran == []
    with (
        pooled(replica) as address,
        semel.connect(address, env="test") as s,
        pytest.raises(errors.StoreUnavailable, match="may only be read: name the primary"),
    ):
        s.ledger.get(f"work:{number}")


@pytest.mark.situation(22)
def test_of_several_hosts_the_primary_is_asked(lagging):
    primary, replica, number = lagging
    for hosts in (both_hosts(primary, replica), both_hosts(replica, primary)):
        with semel.connect(hosts, env="test") as s:
            assert s.ledger.get(f"work:{number}").status is Status.COMPLETED
            assert asyncio.run(s.aio.ledger.get(f"work:{number}")).status is Status.COMPLETED


@pytest.mark.situation(22)
def test_a_connection_of_the_callers_to_a_standby_decides_nothing(lagging):
    primary, replica, number = lagging
    with (
        semel.connect(primary, env="test") as s,
        psycopg.connect(replica) as mine,
        pytest.raises(errors.StoreUnavailable, match="may only be read"),
    ):
        s.ledger.within(mine).get(f"work:{number}")


@pytest.mark.situation(22)
@pytest.mark.parametrize("wanted", ["standby", "prefer-standby", "read-only", "any"])
def test_a_url_that_asks_for_a_standby_is_refused(wanted):
    with pytest.raises(errors.InvalidOption, match="target_session_attrs"):
        semel.connect(f"postgresql://h/d?target_session_attrs={wanted}", env="test")
