"""Records come newest and oldest first, where a store's owner chose that; a page reads what it needs."""

import asyncio
import sqlite3
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from typer.testing import CliRunner

import semel
from semel import Status
from semel import provision as provisioning
from semel.cli.app import app
from semel.core.clock import Clock
from semel.core.commands import Get, Put, Query
from semel.core.drive import run_sync
from semel.errors import InvalidOption, NotProvisioned
from semel.ops.model import Search
from semel.ops.questions import BITE, EXAMINED
from semel.provision import ProvisionTarget
from semel.stores.postgres.schema import LOOK_SECONDS
from semel.stores.postgres.statements import PostgresPlan
from semel.stores.sqlite.statements import SQLitePlan
from semel.tables import LEDGER, OWN, RECENT
from semel.testing import FakeClock
from tests.places import NAMES, open_place

ORDERED = ("memory", "sqlite", "postgres")
IN_SQL = ("sqlite", "postgres")
WITHOUT = [name for name in NAMES if name not in ORDERED]


@pytest.fixture
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def s(place, clock):
    scope = f"o{uuid.uuid4().hex[:12]}"
    with semel.Semel(place.open(clock), env=place.env, scope=scope, clock=clock, secret=b"s" * 32) as s:
        yield s


def provision(place, **choices):
    """Provision a store as its owner chooses; what was done."""
    target = ProvisionTarget(url=place.url(), env=place.env, tables=OWN, clock=Clock(), **choices)
    return provisioning.provision(target)


def choose(place):
    if place.name in IN_SQL:
        assert provision(place, chosen=("recent",))[-1] == "made index semel_ledger_recent"


def fill(s, clock, count=6):
    """Records that change ten seconds after each other, and the first of them once more."""
    for number in range(count):
        clock.advance(10)
        s.ledger.complete(s.ledger.claim(f"order:{number}", ttl=3600), number)
    clock.advance(10)
    s.ledger.drop_result("order:0")


NEWEST = ["order:0", "order:5", "order:4", "order:3", "order:2", "order:1"]


def keys(s, limit=50, **search):
    """The keys of a search, page by page, in the order that they come in."""
    seen, after = [], None
    while True:
        page = s.ops.search(Search(**search), limit=limit, after=after)
        assert len(page.records) <= limit
        seen += [record.key for record in page.records]
        after = page.after
        if after is None:
            return seen


every_store = pytest.mark.parametrize("place", NAMES, indirect=True)
ordered = pytest.mark.parametrize("place", ORDERED, indirect=True)
in_sql = pytest.mark.parametrize("place", IN_SQL, indirect=True)
without = pytest.mark.parametrize("place", WITHOUT, indirect=True)


@ordered
def test_all_records_come_newest_or_oldest_first_in_pages_of_any_size(place, s, clock):
    choose(place)
    fill(s, clock)
    fill(s.scoped("another"), clock)
    for limit in (1, 2, 5, 6, 50):
        assert keys(s, limit, order="newest") == NEWEST
        assert keys(s, limit, order="oldest") == NEWEST[::-1]
    found = s.ops.search(Search(order="newest"))
    assert (found.how, found.scan, s.ops.cost_of(Search(order="newest")).how) == ("recent", False, "index")


@ordered
def test_what_else_is_asked_for_narrows_it(place, s, clock):
    choose(place)
    fill(s, clock)
    begun = clock.now() - 70
    clock.advance(1)
    s.ledger.complete(s.ledger.claim("mail:1", ttl=3600), "sent")
    assert keys(s, order="newest", prefix="order:") == NEWEST
    assert keys(s, order="newest", since=begun + 45) == ["mail:1", "order:0", "order:5", "order:4"]
    assert keys(s, order="oldest", until=begun + 35) == ["order:1", "order:2"]
    assert keys(s, order="newest", since=begun + 25, until=begun + 45) == ["order:3", "order:2"]
    assert keys(s, 2, order="newest", until=begun + 45, worker="w") == []
    s.ledger.release(s.ledger.claim("mail:2", ttl=3600))
    assert keys(s, order="newest", status=Status.RELEASED) == ["mail:2"]


@ordered
def test_of_records_that_changed_at_the_same_moment_each_is_on_one_page(place, s):
    choose(place)
    names = [f"order:{number}" for number in range(9)]
    s.ledger.check_and_set_many(names, ttl=3600)
    for order in ("newest", "oldest"):
        assert sorted(keys(s, 2, order=order)) == names


@in_sql
def test_who_has_not_chosen_it_is_told_how_and_older_records_are_in_it_from_then_on(place, s, clock):
    fill(s, clock)
    for _ in range(2):
        assert not s.ops.lists_by_time()
        with pytest.raises(NotProvisioned, match=f"provision --url .* --env {place.env} --with recent"):
            s.ops.search(Search(order="newest"))
        with pytest.raises(NotProvisioned):
            asyncio.run(s.aio.ops.search(Search(order="oldest")))
        choose(place)
        assert provision(place, chosen=("recent",)) == []
        assert provision(place) == []
        assert s.ops.lists_by_time()
        assert keys(s, order="newest") == NEWEST
        assert provision(place, dropped=("recent",)) == ["dropped index semel_ledger_recent"]
        assert provision(place, dropped=("recent",)) == []
        clock.advance(LOOK_SECONDS)


@without
def test_a_store_that_does_not_offer_it_says_why_and_what_to_do(place, s):
    why = "leave their records out" if place.name == "redis" else r"5 write units instead of 2, \$1.88 more"
    for order in ("newest", "oldest"):
        with pytest.raises(InvalidOption, match=f"{why}.*semel export"):
            s.ops.search(Search(order=order))
    assert not s.ops.lists_by_time()
    for choices in ({"chosen": ("recent",)}, {"dropped": ("recent",)}):
        with pytest.raises(InvalidOption, match=why):
            provision(place, **choices)


@every_store
def test_what_failed_and_what_is_in_doubt_has_both_orders_in_every_store(s, clock):
    for number in range(3):
        clock.advance(1)
        s.ledger.doubt(s.ledger.claim(f"doubt:{number}", ttl=3600))
        s.ledger.fail(s.ledger.claim(f"fail:{number}", ttl=3600), ValueError("no"))
    doubts, failures = [f"doubt:{number}" for number in range(3)], [f"fail:{number}" for number in range(3)]
    for limit in (1, 2, 50):
        assert keys(s, limit, in_doubt=True, order="oldest") == keys(s, limit, in_doubt=True) == doubts
        assert keys(s, limit, in_doubt=True, order="newest") == doubts[::-1]
        failed = {"status": Status.FAILED, "limit": limit}
        assert keys(s, **failed, order="newest") == keys(s, **failed) == failures[::-1]
        assert keys(s, **failed, order="oldest") == failures


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_an_order_that_there_is_none_of_is_refused(s):
    with pytest.raises(InvalidOption, match="newest, oldest"):
        s.ops.search(Search(order="fastest"))  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="about a person"):
        s.ops.search(Search(order="newest", subject="ann"))
    for choices in ({"chosen": ("fastest",)}, {"dropped": ("fastest",)}):
        with pytest.raises(InvalidOption, match="there is recent"):
            ProvisionTarget(url="sqlite:///unused.db", env="dev", tables=OWN, clock=Clock(), **choices)


# Making it


postgres = pytest.mark.parametrize("place", ["postgres"], indirect=True)


def chosen(place):
    return ProvisionTarget(url=place.url(), env=place.env, tables=OWN, clock=Clock(), chosen=(RECENT.name,))


@postgres
def test_all_that_is_written_while_the_index_is_made_is_in_it(place):
    provision(place)
    over = threading.Event()

    def work(name):
        with closing(semel.connect(place.url(), env=place.env)) as s:
            done = 0
            while not over.is_set():
                claim = s.ledger.claim(f"{name}-{done}")
                assert isinstance(claim, semel.Claimed)
                s.ledger.complete(claim, done)
                done += 1
            return done

    with ThreadPoolExecutor(3) as workers:
        done = [workers.submit(work, name) for name in "abc"]
        assert provision(place, chosen=("recent",)) == ["made index semel_ledger_recent"]
        over.set()
        written = sum(each.result() for each in done)
    with closing(semel.connect(place.url(), env=place.env)) as s:
        found = s.ops.search(Search(order="newest"), limit=2000)
        assert len(found.records) == min(written, 2000)
        moments = [record.updated_at for record in found.records]
        assert moments == sorted(moments, reverse=True)


@postgres
def test_an_index_that_was_left_unfinished_is_made_anew(place, s, clock):
    choose(place)
    fill(s, clock)
    with psycopg.connect(place.server, autocommit=True) as connection:
        name = f"{place.env}.semel_ledger_recent"
        unfinished = f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{name}'::regclass"
        connection.execute(unfinished.encode())
    assert not s.ops.lists_by_time()
    assert provision(place, chosen=("recent",)) == ["made index semel_ledger_recent"]
    assert keys(s, order="newest") == NEWEST


@postgres
def test_the_statements_that_are_printed_have_what_is_chosen(place):
    words = ["provision", "--url", place.url(), "--env", place.env, "--print", "sql", "--with", "recent"]
    printed = CliRunner().invoke(app, words).output
    with psycopg.connect(place.server, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(printed.encode())
    assert provisioning.problems(chosen(place)) == []
    assert provisioning.provision(chosen(place)) == []


@in_sql
def test_an_owner_chooses_the_index_checks_it_and_drops_it(place):
    place.open().close()

    def typed(*words):
        found = CliRunner().invoke(app, ["provision", "--url", place.url(), "--env", place.env, *words])
        return found.exit_code, found.output

    code, said = typed("--check", "--with", "recent")
    assert code == 1
    assert "table ledger has no index recent, which --with asks for" in said
    assert typed("--with", "recent")[1].splitlines()[-1] == "Made index semel_ledger_recent."
    assert typed("--check", "--with", "recent")[0] == typed("--check")[0] == 0
    assert typed("--without", "recent") == (0, "Dropped index semel_ledger_recent.\n")
    assert typed("--check", "--with", "recent")[0] == 1


# Plans


def item(number):
    """A record as a claim leaves it."""
    moments = {"created_at": number, "updated_at": number, "lease_until": number, "expires_at": 9e9}
    return {"status": "COMPLETED", "token": "t", "attempt": 1, "version": 1} | moments


QUERIES = [
    Query(LEDGER, "e/b/", index=RECENT.name, reverse=True, limit=50),
    Query(LEDGER, "e/b/", index=RECENT.name, low=10.5, high=90, limit=50),
    Query(LEDGER, "e/b/", index=RECENT.name, reverse=True, high=90, limit=50, after='[80,"e/b/80"]'),
]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("query", QUERIES)
def test_sqlite_begins_at_the_place_in_the_index_and_sorts_nothing(place, query):
    place.open().close()
    choose(place)
    sql, values = SQLitePlan(LEDGER).page(query, 1.0)
    with closing(sqlite3.connect(place.url().removeprefix("sqlite:///"))) as file:
        [plan] = [line for *_, line in file.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    assert plan.startswith("SEARCH semel_ledger USING INDEX semel_ledger_recent (<expr>=?")
    assert "AND updated_at" in plan or "AND (updated_at" in plan


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("query", QUERIES)
def test_postgres_begins_at_the_place_in_the_index(place, query):
    with closing(place.open()) as store:
        for number in range(3000):
            store.execute(Put(LEDGER, f"e/{'abc'[number % 3]}/{number}", item(number)))
    choose(place)
    sql, values = PostgresPlan(LEDGER, place.env).query(query, None)
    with psycopg.connect(place.server) as connection:
        rows = psycopg.RawCursor(connection).execute(b"EXPLAIN " + sql, values).fetchall()
    plan = "\n".join(line for (line,) in rows)
    assert "semel_ledger_recent" in plan
    [condition] = [line for line in plan.splitlines() if "Index Cond" in line]
    assert "split_part" in condition
    assert "updated_at" in condition
    assert "Seq Scan" not in plan


# How much is read


def commands(s, search, **options):
    """The commands that a search sends."""
    sent = []

    def execute(command):
        sent.append(command)
        return s.store.execute(command)

    run_sync(s.ops.steps.search(search, **options), execute)
    return sent


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_page_reads_as_many_records_as_are_wanted(s):
    for number in range(60):
        s.ledger.fail(s.ledger.claim(f"order:{number}", ttl=3600), ValueError("no"))
    failed = Search(status=Status.FAILED)
    sent = commands(s, failed, limit=7)
    assert [type(each) for each in sent] == [Query, *[Get] * 7]
    following = commands(s, failed, limit=7, after=s.ops.search(failed, limit=7).after)
    assert [type(each) for each in following] == [Query, *[Get] * 7]


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_where_few_are_wanted_twice_as_many_are_read_each_time_up_to_a_bound(s):
    s.ledger.check_and_set_many([f"order:{number}" for number in range(EXAMINED + 1)], ttl=3600)
    limits = [each.limit for each in commands(s, Search(worker="nobody"), limit=30)]
    assert limits[:5] == [30, 60, 120, BITE, BITE]
    assert sum(limits) == EXAMINED
