"""What a later semel adds to a store is optional until provisioned, and an index complete once it is read."""

import asyncio
import itertools
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
import redis
from typer.testing import CliRunner

import semel
from semel.cli.app import app
from semel.core.clock import Clock
from semel.core.commands import Get, Put, Update
from semel.ops.model import Search
from semel.provision.builders import ProvisionTarget, opened
from semel.provision.shape import stamp_key
from semel.stores.backfill import PAGE_ITEMS
from semel.stores.dynamodb.address import parse
from semel.stores.dynamodb.store import transport_of
from semel.stores.postgres import PostgresStore, ddl, schema
from semel.tables import LEDGER, OWN, RECENT
from semel.testing import FakeClock
from tests.places import NETWORKED, open_place
from tests.servers.postgres import drop

NOT_YET = "the list of what is in doubt is not available"


@pytest.fixture(params=["sqlite", *NETWORKED])
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nobody else is at work on these stores."""
    monkeypatch.setattr(schema, "LOOK_SECONDS", 0.0)


def record(status, updated_at, **more):
    """A record as an earlier semel wrote it."""
    item = {"status": status, "token": "t", "attempt": 1, "created_at": 1, "updated_at": updated_at}
    return item | {"lease_until": 2, "expires_at": None, "version": 1} | more


OLDER = {
    "unknown-2": record("UNKNOWN", 20.0),
    "unknown-1": record("UNKNOWN", 10.0),
    # It was to be held, or asked after: else it would have an end.
    "lapsed": record("IN_PROGRESS", 15.0),
    "rerun": record("IN_PROGRESS", 16.0, expires_at=9e9),
    "done": record("COMPLETED", 5.0, expires_at=9e9, encoding="none:mark"),
    "failed": record("FAILED", 6.0, expires_at=9e9, error='{"type":"E","message":"m"}'),
}
LISTED = ["unknown-1", "lapsed", "unknown-2"]


def age(place, older=OLDER):
    """Make a place what an earlier semel has left: with its records, and without what was added since."""
    with closing(place.open()) as store:
        for key, item in older.items():
            store.execute(Put(LEDGER, f"{place.env}//{key}", item))
    AGED[place.name](place)


def sqlite_aged(place):
    with closing(sqlite3.connect(place.url().removeprefix("sqlite:///"))) as file, file:
        file.execute("DROP INDEX semel_ledger_doubt_doubt_since")
        file.execute("DROP INDEX semel_ledger_failed_failed_at")
        for name in LEDGER.optional:
            file.execute(f"ALTER TABLE semel_ledger DROP COLUMN {name}")
        file.execute("DELETE FROM semel_meta WHERE name LIKE 'complete %'")


def postgres_aged(place):
    with psycopg.connect(place.server, autocommit=True) as database:
        for name in LEDGER.optional:
            database.execute(f"ALTER TABLE {place.env}.semel_ledger DROP COLUMN {name}")
        database.execute(f"DELETE FROM {place.env}.semel_meta WHERE name LIKE 'complete %'")


def redis_aged(place):
    with closing(redis.Redis.from_url(place.server)) as server:
        assert server.hdel(f"{place.env}:meta", *LEDGER.marks) == len(LEDGER.marks)


def dynamodb_aged(place):
    title = {"TableName": f"semel-{place.env}-ledger"}
    with closing(transport_of(parse(place.url()), Clock())) as service:
        change = {"UpdateExpression": "REMOVE complete"}
        service.call("UpdateItem", title | change | {"Key": stamp_key(LEDGER, place.env)}, write=True)
        for each in LEDGER.later:
            if each.index:
                gone = {"GlobalSecondaryIndexUpdates": [{"Delete": {"IndexName": each.index}}]}
                service.call("UpdateTable", title | gone, write=True)


AGED = {
    "sqlite": sqlite_aged,
    "postgres": postgres_aged,
    "redis": redis_aged,
    "dynoxide": dynamodb_aged,
    "ministack": dynamodb_aged,
}


def target(place):
    return ProvisionTarget(url=place.url(), env=place.env, tables=OWN, clock=Clock())


def provision(place, said=None):
    with opened(target(place)) as builder:
        return builder.provision((said if said is not None else []).append)


def problems(place):
    with opened(target(place)) as builder:
        # A Redis for tests keeps nothing on disk.
        return [each for each in builder.problems() if "on disk" not in each.what]


def claimed(s, key, **terms):
    claim = s.ledger.claim(key, **terms)
    assert isinstance(claim, semel.Claimed)
    return claim


def failures(s):
    return [one.key for one in s.ledger.failures().records]


def keys(s):
    return [one.key for one in s.ledger.doubts().records]


def test_a_store_of_an_earlier_semel_works_and_lists_its_doubts_once_it_is_provisioned(place):
    age(place)
    with closing(semel.connect(place.url(), env=place.env)) as s:
        claim = claimed(s, "new", on_lapsed="hold")
        s.ledger.renew(claim)
        s.ledger.complete(claim, "result")
        assert all(isinstance(s.ledger.claim(key), semel.Replay) for key in ("new", "done"))
        s.ledger.doubt(claimed(s, "held"))
        assert isinstance(s.ledger.claim("held"), semel.Unknown)
        s.ledger.fail(claimed(s, "fails"), ValueError("no"))
        if place.name == "sqlite":
            assert keys(s) == [*LISTED, "held"]
            assert failures(s) == ["failed", "fails"]
            return
        with pytest.raises(semel.NotProvisioned, match=f"semel provision --url .* --env {place.env}"):
            s.ledger.doubts()
        with pytest.raises(semel.NotProvisioned):
            asyncio.run(s.aio.ledger.doubts())
        with pytest.raises(semel.NotProvisioned, match="what failed"):
            s.ledger.failures()
        lacks = problems(place)
        assert all(lack.optional for lack in lacks)
        assert sum(NOT_YET in lack.what for lack in lacks) == 1
        said: list[str] = []
        assert any("completed index" in did for did in provision(place, said))
        assert place.name == "postgres" or any(line.startswith("Scanning") for line in said)
        assert keys(s) == [*LISTED, "held"]
        assert failures(s) == ["failed", "fails"]
        assert provision(place) == problems(place) == []
        s.ledger.resolve("unknown-1", semel.NotHappened())
        assert keys(s) == [*LISTED[1:], "held"]


def test_nobody_is_told_that_a_person_is_erased_where_rows_cannot_name_one(request, tmp_path):
    """PostgreSQL gets the column by provisioning; without it erasing would find nothing."""
    place = open_place("postgres", request, tmp_path)
    with psycopg.connect(place.server, autocommit=True) as database:
        database.execute(f"ALTER TABLE {place.env}.semel_inbox DROP COLUMN subject")
    with closing(semel.connect(place.url(), env=place.env, secret=b"s" * 32)) as s:
        with pytest.raises(semel.NotProvisioned, match="erasing a person from it is not available"):
            s.forget_subject("ann@example.com")
        provision(place)
        assert s.forget_subject("ann@example.com").messages == 0


def test_who_works_meanwhile_is_not_overwritten(place):
    """A record that changes between the look at it and the write is judged by what it has become."""
    age(place)
    if place.name == "sqlite":
        pytest.skip("nobody else writes to a file while it is brought up to date")
    with closing(semel.connect(place.url(), env=place.env)) as s:
        s.ledger.resolve("unknown-1", semel.Happened("paid"))
        s.ledger.resolve("lapsed", semel.NotHappened())
        again = claimed(s, "lapsed", on_lapsed="hold")
        provision(place)
        assert keys(s) == ["unknown-2"]
        s.ledger.doubt(again)
        assert keys(s) == ["unknown-2", "lapsed"]
        assert isinstance(s.ledger.claim("unknown-1"), semel.Replay)


def test_no_doubt_is_lost_that_arises_while_the_index_is_completed(place, monkeypatch):
    """Workers give up claims before, while and after it; in the end every one of these is listed."""
    monkeypatch.setattr(schema, "LOOK_SECONDS", 0.2)
    age(place)
    over = threading.Event()

    def work(name):
        with closing(semel.connect(place.url(), env=place.env)) as s:
            for number in itertools.count():
                terms = {"on_lapsed": "hold"} if number % 2 else {}
                claim = claimed(s, f"{name}-{number}", **terms)
                (s.ledger.complete if number % 3 else s.ledger.doubt)(claim)
                if over.is_set():
                    return

    with ThreadPoolExecutor(3) as workers:
        done = [workers.submit(work, name) for name in "abc"]
        provision(place)
        over.set()
        assert [each.result() for each in done] == [None] * 3
    with closing(semel.connect(place.url(), env=place.env)) as s:
        unknown = {one.key for one in s.ledger.list(status="UNKNOWN", limit=10_000).records}
        listed = {one.key for one in s.ledger.doubts(limit=10_000).records}
        assert len(unknown) >= 5
        assert listed == unknown | {"lapsed"}


def test_of_several_who_open_an_older_file_at_once_each_finds_it_complete(request, tmp_path):
    place = open_place("sqlite", request, tmp_path)
    age(place)

    def look(_):
        with closing(semel.connect(place.url(), env=place.env)) as s:
            return keys(s)

    with ThreadPoolExecutor(4) as openers:
        assert list(openers.map(look, range(4))) == [LISTED] * 4


def test_a_new_store_is_complete_from_the_start(place):
    with closing(semel.connect(place.url(), env=place.env)) as s:
        assert keys(s) == []
        s.ledger.doubt(claimed(s, "one"))
        assert keys(s) == ["one"]
    assert [each for each in problems(place) if each.optional] == []
    assert provision(place) == []


def test_a_check_tells_what_is_missing_and_leaves_with_0(place):
    age(place)
    found = CliRunner().invoke(app, ["provision", "--url", place.url(), "--env", place.env, "--check"])
    assert f"optional, until then {NOT_YET}" in found.output
    if place.name != "redis":
        assert "All is well" in found.output
        assert found.exit_code == 0


# PostgreSQL


@pytest.fixture
def database(request, tmp_path):
    place = open_place("postgres", request, tmp_path)
    age(place)
    return place


def test_a_worker_begins_to_use_new_columns_within_a_while(database, monkeypatch):
    monkeypatch.setattr(schema, "LOOK_SECONDS", 5.0)
    clock = FakeClock()
    with closing(PostgresStore(database.url(), env=database.env, clock=clock)) as store:
        change = Update(LEDGER, f"{database.env}//done", {"doubt": "a", "doubt_since": 1})
        store.execute(change)
        monkeypatch.setattr(schema, "LOOK_SECONDS", 0.0)
        provision(database)
        for seconds, known in ((4, None), (1, "a")):
            clock.advance(seconds)
            store.execute(change)
            assert store.execute(Get(LEDGER, change.key)).item.get("doubt") == known


def test_a_claim_that_was_made_without_them_is_listed_when_its_holder_gives_it_up(database):
    """Though nothing told before that it was to be held: it had an end, as others have."""
    with closing(semel.connect(database.url(), env=database.env)) as s:
        claim = claimed(s, "held", on_lapsed="hold", doubt_ttl=86400)
        provision(database)
        s.ledger.doubt(claim)
        assert keys(s) == [*LISTED, "held"]


def test_the_statements_that_are_printed_add_what_is_missing_and_complete_nothing(database):
    with psycopg.connect(database.server, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(ddl(OWN, database.env, database.env).encode())
    doubts, failed = problems(database)
    assert "index semel_ledger_doubts lacks older rows" in doubts.what
    assert "index semel_ledger_failures lacks older rows" in failed.what
    assert provision(database) == [
        "completed index semel_ledger_doubts, with 3 older rows",
        "completed index semel_ledger_failures, with 1 older rows",
    ]


def test_the_statements_that_are_printed_make_a_new_store_complete(request, tmp_path):
    place = open_place("postgres", request, tmp_path)
    with psycopg.connect(place.server, autocommit=True) as connection:
        drop(connection, place.env)
        connection.execute(ddl(OWN, place.env, place.env).encode())
    assert problems(place) == []
    assert provision(place) == []


def test_a_worker_in_the_callers_transaction_does_without_new_columns_too(database):
    with closing(PostgresStore(database.url(), env=database.env)) as store:
        with psycopg.connect(database.server) as mine:
            s = semel.Semel(store.within(mine), env=database.env)
            claim = claimed(s, "inside", on_lapsed="hold")
            with pytest.raises(semel.NotProvisioned):
                s.ledger.doubts()
            s.ledger.complete(claim, 1)
        assert semel.Semel(store, env=database.env).ledger.is_processed("inside")


# Many


def test_a_large_store_is_completed_by_pages_and_tells_how_far_it_is(place):
    many = {f"k{number:05}": record("UNKNOWN", 1000.0 + number) for number in range(PAGE_ITEMS + 50)}
    age(place, many)
    said: list[str] = []
    provision(place, said)
    if place.name != "sqlite":
        assert any(line.startswith(f"Looked at {PAGE_ITEMS:,}") for line in said)
    with closing(semel.connect(place.url(), env=place.env)) as s:
        first = s.ledger.doubts(limit=2)
        assert [one.key for one in first.records] == ["k00000", "k00001"]
        last = s.ledger.doubts(limit=1, after=s.ledger.doubts(limit=PAGE_ITEMS + 49).after)
        assert [one.key for one in last.records] == [f"k{PAGE_ITEMS + 49:05}"]


# What an owner chooses


def test_all_that_is_written_while_a_chosen_index_is_made_is_in_it(database):
    over = threading.Event()

    def work(name):
        with closing(semel.connect(database.url(), env=database.env)) as s:
            done = 0
            while not over.is_set():
                s.ledger.complete(claimed(s, f"{name}-{done}"), done)
                done += 1
            return done

    with ThreadPoolExecutor(3) as workers:
        done = [workers.submit(work, name) for name in "abc"]
        with opened(chosen(database)) as builder:
            assert "made index semel_ledger_recent" in builder.provision(lambda _: None)
        over.set()
        written = sum(each.result() for each in done)
    with closing(semel.connect(database.url(), env=database.env)) as s:
        found = s.ops.search(Search(order="newest"), limit=2000)
        assert len(found.records) == min(written + len(OLDER), 2000)
        moments = [record.updated_at for record in found.records]
        assert moments == sorted(moments, reverse=True)


def chosen(place):
    return ProvisionTarget(url=place.url(), env=place.env, tables=OWN, clock=Clock(), chosen=(RECENT.name,))


def test_an_index_that_was_left_unfinished_is_made_anew(database):
    with opened(chosen(database)) as builder:
        builder.provision(lambda _: None)
    with psycopg.connect(database.server, autocommit=True) as connection:
        name = f"{database.env}.semel_ledger_recent"
        unfinished = f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{name}'::regclass"
        connection.execute(unfinished.encode())
    with closing(semel.connect(database.url(), env=database.env)) as s:
        assert not s.ops.lists_by_time()
        with opened(chosen(database)) as builder:
            assert builder.provision(lambda _: None) == ["made index semel_ledger_recent"]
        assert [record.key for record in s.ops.search(Search(order="newest"), limit=2).records] == LATEST


LATEST = ["unknown-2", "rerun"]


def test_the_statements_that_are_printed_have_what_is_chosen(request, tmp_path):
    place = open_place("postgres", request, tmp_path)
    words = ["provision", "--url", place.url(), "--env", place.env, "--print", "sql", "--with", "recent"]
    printed = CliRunner().invoke(app, words).output
    with psycopg.connect(place.server, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(printed.encode())
    with opened(chosen(place)) as builder:
        assert builder.problems() == []
        assert builder.provision(lambda _: None) == []


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_an_owner_chooses_an_index_checks_it_and_drops_it(name, request, tmp_path):
    place = open_place(name, request, tmp_path)
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
