"""What the store in a file promises beyond the contract that every store keeps."""

import asyncio
import fcntl
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semel
from semel import Replay, Semel, errors
from semel.apps.tables import TABLES as SEEDS
from semel.core import runtime
from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    ANY,
    Add,
    After,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Found,
    Get,
    Page,
    Put,
    Query,
    Refused,
    Transact,
    Update,
    Watch,
    cursor,
)
from semel.core.commands import Time as TellTime
from semel.core.lifecycle import Status
from semel.stores.memory import MemoryStore
from semel.stores.sqlite import SQLiteStore, writer
from semel.stores.sqlite.file import SQLiteConnection, SQLiteFile
from semel.stores.sqlite.statements import SQLitePlan, after_prefix
from semel.tables import COUNTERS, JOURNAL, LEDGER, OWN, Index, Kind, Table
from tests.amounts import amount

NOTES = Table(
    name="notes",
    partition="owner",
    sort="at",
    attributes={"n": Kind.NUMBER, "text": Kind.TEXT, "body": Kind.BYTES, "until": Kind.NUMBER},
    expires="until",
    listed_by=("text",),
    indexes=(
        Index(name="text-n", partition="text", sort="n"),
        Index(name="n", partition="n"),
        Index(name="owner-n", partition="owner", sort="n"),
        Index(name="text-at", partition="text", sort="at"),
    ),
)


class Time(Clock):
    """A clock that stands still, and can stop whoever reads it."""

    def __init__(self):
        self.moment = 1000.0
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.interrupts = []

    def now(self):
        self.asked.set()
        self.gate.wait()
        if self.interrupts:
            raise self.interrupts.pop()
        return self.moment

    def imposed(self):
        return self.moment

    def steady(self):
        return self.now()


@pytest.fixture(autouse=True)
def nobody_wakes_up_by_himself(monkeypatch):
    """Whoever is not woken waits until the test's time is up."""
    monkeypatch.setattr("semel.stores.sqlite.writer.PATROL_SECONDS", 3600)


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "semel.db"


@pytest.fixture
def store(path, clock):
    with closing(SQLiteStore(path, clock=clock)) as store:
        yield store


def mark(key, **more):
    """A claim as the ledger writes it, cut short."""
    item = {"status": "IN_PROGRESS", "token": "t", "attempt": 1, "expires_at": After(100)}
    return Put(LEDGER, key, item | more, ABSENT)


def note(owner, at, **more):
    return Put(NOTES, owner, {"until": After(100)} | more, sort=at)


def until(true):
    """Wait until something is so; the test's time limit is the only one."""
    while not true():
        threading.Event().wait(0.001)


def bare(path):
    return sqlite3.connect(path, isolation_level=None, timeout=0)


def ids(path):
    with closing(bare(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM semel_ledger ORDER BY id")]


def statements(store):
    """What the writing connection is told from here on."""
    store.reap(0)
    told: list[str] = []
    store._writer._connection.set_trace_callback(told.append)
    return told


def queued(store):
    """How many wait for their reply, or for the lead."""
    return sum(not job.leading and job.command is not None for job in list(store._writer._queue))


@contextmanager
def leading(store):
    """Be the one who leads, and lead nobody."""
    job = writer.QueuedWrite(None)
    job.thread = 0
    with job.held:
        store._writer._queue = {job: None} | store._writer._queue
        yield
    store._writer._queue.pop(job)
    store._writer._pass_on()


# Where the file is


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite://host/x.db",
        "sqlite:x.db",
        "sqlite:///:memory:",
    ],
)
def test_a_url_that_names_no_file_is_refused_with_the_right_form(url):
    with pytest.raises(errors.InvalidOption, match=r"sqlite:///relative/path\.db.*memory:"):
        SQLiteFile.from_url(url)


def test_a_url_is_relative_with_three_slashes_and_absolute_with_four(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert SQLiteFile.from_url("sqlite:///a/b.db").path == str(tmp_path / "a/b.db")
    assert SQLiteFile.from_url("sqlite:////a/b%20c.db").path == "/a/b c.db"


@pytest.mark.parametrize("query", ["synchronous=off", "mode=ro", "synchronous=full&x=1", "synchronous="])
def test_an_unknown_option_is_refused(query):
    with pytest.raises(errors.InvalidOption, match="synchronous=normal"):
        SQLiteFile.from_url("sqlite:///a.db?" + query)


@pytest.mark.parametrize(("query", "level"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
def test_writes_are_durable_unless_asked_otherwise(path, clock, query, level):
    with closing(SQLiteStore.from_url(f"sqlite:///{path}{query}", env="dev", clock=clock)) as store:
        store.reap()
        connection = store._writer._connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def is_next(path):
    """Whether somebody is the next to write."""
    with open(f"{path}-turn", "rb") as turn:  # noqa: PTH123 - it is only locked
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_who_has_just_written_gets_behind_who_waits(path, monkeypatch):
    monkeypatch.setattr(writer, "COURTESY_SECONDS", 60.0)
    monkeypatch.setattr(writer, "TURN_SECONDS", 0.0)
    with semel.connect(f"sqlite:///{path}") as one, semel.connect(f"sqlite:///{path}") as other:
        assert one.ledger.check_and_set("a")
        with closing(sqlite3.connect(path, isolation_level=None)) as busy, ThreadPoolExecutor(2) as pool:
            busy.execute("BEGIN IMMEDIATE")
            waits = pool.submit(other.ledger.check_and_set, "b")
            until(lambda: is_next(path))
            again = pool.submit(one.ledger.check_and_set, "c")
            busy.execute("COMMIT")
            assert (waits.result(), again.result()) == (True, True)
        assert one.ledger.get("b").created_at < one.ledger.get("c").created_at


def test_a_process_that_is_frozen_when_it_is_next_holds_up_nobody(path):
    with semel.connect(f"sqlite:///{path}") as s, open(f"{path}-turn", "wb") as frozen:  # noqa: PTH123
        fcntl.flock(frozen, fcntl.LOCK_EX)
        assert [s.ledger.check_and_set(f"{number}") for number in range(100)] == [True] * 100


def test_a_file_that_was_moved_away_is_written_no_more_until_it_is_back(tmp_path, monkeypatch):
    """Else a second process would make another file, and both would let the same work run."""
    monkeypatch.setattr(writer, "TURN_SECONDS", 0.0)
    here, away = tmp_path / "semel.db", tmp_path / "away.db"
    with semel.connect(f"sqlite:///{here}") as s:
        assert s.ledger.check_and_set("a") is True
        here.rename(away)
        for replace in (lambda: None, lambda: here.write_bytes(b"")):
            replace()
            with pytest.raises(errors.StoreUnavailable, match="moved away, or replaced"):
                s.ledger.check_and_set("b")
            with pytest.raises(errors.StoreUnavailable, match="moved away, or replaced"):
                asyncio.run(s.aio.ledger.check_and_set("b"))
        away.rename(here)
        # One that joins writes which are just being refused is refused with them; nothing was written.
        until(lambda: _marks(s, "b"))
        assert s.ledger.check_and_set("a") is False


def _marks(s, key):
    try:
        return s.ledger.check_and_set(key)
    except errors.StoreUnavailable:
        return False


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_a_stores_files_are_its_owners_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        with closing(SQLiteStore(tmp_path / "semel.db")) as store:
            store.execute(mark("k"))
            modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["semel.db", "semel.db-wal", "semel.db-shm", "semel.db-turn"], 0o600)


def test_a_file_that_was_there_keeps_its_mode(path):
    path.touch()
    path.chmod(0o640)
    with closing(SQLiteStore(path)) as store:
        store.execute(mark("k"))
        modes = {each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert modes == {0o640}


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(errors.StoreUnavailable, match=r"no folder .*/nowhere"):
        SQLiteStore(tmp_path / "nowhere" / "semel.db")


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path):
    with pytest.raises(errors.StoreUnavailable, match="cannot be opened"):
        SQLiteStore(tmp_path)


def test_a_file_that_is_no_database_is_left_alone(path):
    path.write_bytes(b"my diary, " * 1000)
    with pytest.raises(errors.StoreError, match="no SQLite database"):
        SQLiteStore(path)
    assert path.read_bytes() == b"my diary, " * 1000


def test_a_damaged_file_is_reported_and_never_taken_for_empty(path, clock):
    with closing(SQLiteStore(path, clock=clock)) as store:
        store.execute(Batch(tuple(mark(f"k{number}", token="t" * 500) for number in range(200))))
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)
    with (
        pytest.raises(errors.StoreError, match=r"damaged.*backup"),
        closing(SQLiteStore(path, clock=clock)) as store,
    ):
        store.execute(Get(LEDGER, "k77"))


# Environment and schema


def test_a_file_belongs_to_the_environment_that_made_it(path):
    SQLiteStore(path, env="prod").close()
    with pytest.raises(errors.WrongEnvironment) as caught:
        SQLiteStore(path, env="dev")
    assert (caught.value.stamped, caught.value.asked) == ("prod", "dev")
    SQLiteStore(path, env="prod").close()


@pytest.mark.situation(43)
def test_a_file_of_a_newer_schema_is_refused(path):
    SQLiteStore(path).close()
    with closing(bare(path)) as connection:
        connection.execute("UPDATE semel_meta SET value = 7 WHERE name = 'schema'")
    with pytest.raises(errors.SchemaTooNew) as caught:
        SQLiteStore(path)
    assert (caught.value.found, caught.value.known) == (7, 1)


def test_two_environments_that_open_a_new_file_at_once_do_not_share_it(path, monkeypatch):
    submit = writer.Writer.submit

    def overtaken(self, command):
        monkeypatch.setattr(writer.Writer, "submit", submit)
        SQLiteStore(path, env="prod").close()
        return submit(self, command)

    monkeypatch.setattr(writer.Writer, "submit", overtaken)
    with pytest.raises(errors.WrongEnvironment):
        SQLiteStore(path, env="dev")
    SQLiteStore(path, env="prod").close()


def test_a_table_that_lacks_a_column_is_refused_and_left_alone(path):
    with closing(bare(path)) as connection:
        connection.execute("CREATE TABLE semel_ledger (id TEXT PRIMARY KEY, status TEXT)")
    with pytest.raises(errors.WrongSchema, match="has no column attempt, "):
        SQLiteStore(path)
    with closing(bare(path)) as connection:
        assert [row[1] for row in connection.execute("PRAGMA table_info(semel_ledger)")] == ["id", "status"]


def test_an_index_that_is_missing_is_made_though_no_column_is(path, store, clock):
    with closing(bare(path)) as connection:
        connection.execute("DROP INDEX semel_ledger_subject")
    SQLiteStore(path, clock=clock).close()
    assert "USING INDEX semel_ledger_subject" in explained(path, Query(LEDGER, "a", index="subject"))


def test_the_change_to_wal_is_tried_again_where_two_processes_make_it_at_once(path, monkeypatch):
    refusals = 2

    class Contested(SQLiteConnection):
        def execute(self, sql, *values):
            nonlocal refusals
            if sql == "PRAGMA journal_mode = WAL" and refusals:
                refusals -= 1
                raise failure("SQLITE_BUSY")
            return super().execute(sql, *values)

    monkeypatch.setattr(SQLiteFile, "factory", Contested)
    with closing(SQLiteStore(path)) as store:
        assert refusals == 0
        assert store._writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def run(code, *args):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=-1, stdin=-1, text=True)


def said(process):
    """What a process has said at its end; it is not left behind."""
    try:
        return process.communicate(timeout=60)[0]
    finally:
        process.kill()


OPEN = """
import sys
from semel.stores.sqlite import SQLiteStore
from semel.core.commands import *
from semel.tables import LEDGER
print("ready", flush=True)
sys.stdin.readline()
store = SQLiteStore(sys.argv[1])
for number in range(50):
    store.execute(Add(LEDGER, "shared", "attempt", 1, {"expires_at": After(60)}))
store.close()
print("done")
"""


def test_several_processes_may_open_a_new_file_at_once(path, clock):
    workers = [run(OPEN, path) for _ in range(6)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    assert [said(worker) for worker in workers] == ["done\n"] * 6
    with closing(SQLiteStore(path)) as store:
        assert store.execute(Get(LEDGER, "shared")).item["attempt"] == 300


# Tables


def test_a_table_is_made_at_its_first_use_and_known_ever_after(path, clock, store):
    assert store.at_once(Get(NOTES, "a", "1")) is None
    assert store.execute(Get(NOTES, "a", "1")) == Found(1000.0, None)
    store.execute(note("a", "1", n=1))
    with closing(SQLiteStore(path, clock=clock)) as again:
        assert again.execute(Get(NOTES, "a", "1")).item == {"owner": "a", "at": "1", "n": 1, "until": 1100.0}


def test_the_callers_own_tables_may_live_in_the_same_file(path, clock):
    with closing(bare(path)) as connection:
        connection.executescript("CREATE TABLE ledger (mine); INSERT INTO ledger VALUES (1)")
    with closing(SQLiteStore(path, clock=clock)) as store:
        assert type(store.execute(mark("k"))) is Applied
    with closing(bare(path)) as connection:
        assert connection.execute("SELECT mine FROM ledger").fetchall() == [(1,)]


def explained(path, query):
    """How SQLite says that it will find the rows."""
    sql, values = SQLitePlan(query.table).page(query, 0.0)
    with closing(bare(path)) as connection:
        return "; ".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values))


def test_a_listing_by_status_uses_the_index_that_leaves_the_completed_out(path, store):
    failed: dict[str, Any] = {"status": "FAILED"}
    plan = explained(path, Query(LEDGER, prefix="dev/", equal=failed))
    assert "USING INDEX semel_ledger_status (status=? AND id>? AND id<?)" in plan
    assert "USING INDEX semel_ledger_status (status=?)" in explained(path, Query(LEDGER, equal=failed))


def test_a_query_of_a_partition_is_a_range_of_the_primary_key_and_no_sort(path, store):
    store.execute(note("a", "1"))
    query = Query(NOTES, "a", low="1", high="8", after='["a","3"]')
    assert explained(path, query) == "SEARCH semel_notes USING PRIMARY KEY (owner=? AND at>? AND at<?)"
    sql, _ = SQLitePlan(NOTES).page(query, 0.0)
    assert ' AND ("at") > (?) AND +"at" >= ? AND "at" <= ? ORDER BY "at"' in sql


INDEXES = [(table, index) for table in (*OWN, *SEEDS, NOTES) for index in table.indexes]
RANGES = {"all": (), "some": ("low", "high"), "next": ("after",), "next of some": ("low", "high", "after")}


@pytest.mark.parametrize("asked", RANGES.values(), ids=RANGES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("table", "index"), INDEXES, ids=lambda one: one.name)
def test_a_query_of_an_index_is_a_range_of_it_and_no_sort(path, store, table, index, reverse, asked):
    store.execute(Query(table))
    item = {name: 1 if kind is Kind.NUMBER else "x" for name, kind in table.kinds.items()}
    bound = item.get(index.sort)
    given = {"low": bound, "high": bound, "after": cursor(table, item, index)}
    more: dict[str, Any] = {name: given[name] for name in asked}
    query = Query(table, item[index.partition], index=index.name, reverse=reverse, **more)
    plan = explained(path, query)
    name = "_".join(filter(None, ("semel", table.name, index.partition, index.sort))).replace("-", "[-]")
    assert re.search(rf"USING INDEX {name} \({index.partition}=\?", plan)
    assert "TEMP B-TREE" not in plan
    if "after" in asked:
        assert re.search(r"=\? AND (\(.*\)|\w+)[<>]", plan)


def test_a_filter_does_not_lead_away_from_the_index_that_was_asked_for(path, store):
    plan = explained(path, Query(LEDGER, "ada", index="subject", equal={"status": "FAILED"}))
    assert plan == "SEARCH semel_ledger USING INDEX semel_ledger_subject (subject=?)"


def log_growth(path, clock, *, indexed, **more):
    """By how many bytes the log grows with thirty claims."""
    log = Path(f"{path}-wal")
    with closing(SQLiteStore(path, clock=clock)) as store:
        if not indexed:
            with closing(bare(path)) as connection:
                connection.execute("DROP INDEX semel_ledger_subject")
        before = log.stat().st_size
        for number in range(30):
            store.execute(mark(f"k{number}", **more))
        return log.stat().st_size - before


def test_a_claim_without_a_subject_writes_nothing_for_the_index_of_subjects(tmp_path, clock):
    without = log_growth(tmp_path / "without.db", clock, indexed=False)
    assert log_growth(tmp_path / "indexed.db", clock, indexed=True) == without
    assert log_growth(tmp_path / "named.db", clock, indexed=True, subject="ada") > without


def test_the_time_is_told_without_a_lock_and_not_by_a_closed_store(path, store, clock):
    with closing(bare(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        clock.moment += 5
        told = [store.execute(TellTime()), store.at_once(TellTime()), asyncio.run(store.aexecute(TellTime()))]
        assert told == [Found(1005.0, None)] * 3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("low", "high"), [(None, None), ("02", "07"), ("02", None), (None, "07")])
def test_the_pages_of_a_partition_follow_each_other_without_gap_or_overlap(store, low, high, reverse):
    numbers = [f"{number:02}" for number in range(10)]
    store.execute(Batch(tuple(note(owner, at) for owner in "abc" for at in numbers)))
    query = Query(NOTES, "b", low, high, reverse, limit=3)
    found = [item[2]["at"] for page in pages(store, query) for item in page[1]]
    within = [number for number in numbers if (low or "") <= number <= (high or "99")]
    assert found == (within[::-1] if reverse else within)


def test_a_cursor_of_another_table_is_refused(store):
    with pytest.raises(errors.UsageError, match="not a cursor"):
        store.execute(Query(NOTES, after='["a"]'))


@pytest.mark.parametrize("prefix", ["a", "ab\U0010ffff", "\ud7ff", "\U0010ffff", "", "z\U0010ffff\U0010ffff"])
def test_everything_that_begins_so_lies_before_the_end_of_the_prefix(prefix):
    end = after_prefix(prefix)
    for rest in ("", "a", "\U0010ffff" * 3, "\ue000"):
        assert end is None or prefix <= prefix + rest < end
    assert end is None or (end.encode() and not end.startswith(prefix))


# Values


VALUES = [0, 1, -(2**63), 2**63 - 1, 0.0, 1.0, 1e300, float("inf"), True]


@pytest.mark.parametrize("value", VALUES)
def test_a_number_comes_back_as_the_number_it_was(store, value):
    store.execute(note("a", "1", n=value))
    found = store.execute(Get(NOTES, "a", "1")).item["n"]
    assert found == value
    assert isinstance(found, float) is isinstance(value, float)


@pytest.mark.parametrize("text", ["", "5", "1e3", "a\0b", "é\U0010ffff", "k" * 2_000_000])
def test_a_text_comes_back_as_it_was_as_a_key_too(store, text):
    store.execute(note("k" + text, text, text=text, body=text.encode()))
    item = store.execute(Get(NOTES, "k" + text, text)).item
    assert (item["owner"], item["at"], item["text"], item["body"]) == ("k" + text, text, text, text.encode())


BAD = {
    "surrogate": {"text": "\ud800"},
    "large": {"n": 2**63},
    "nan": {"n": float("nan")},
    "wrong kind": {"text": 5},
    "wrong bytes": {"body": "text"},
    "unknown": {"colour": "red"},
    "no end": {"until": None},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_value_that_would_not_come_back_is_refused_and_nothing_is_lost(store, bad):
    store.execute(note("a", "1", n=1))
    with pytest.raises(errors.UsageError):
        store.execute(note("a", "1", **bad))
    with pytest.raises(errors.UsageError):
        store.execute(Transact((note("a", "1", n=2), note("a", "2", **bad))))
    with pytest.raises(errors.UsageError):
        store.execute(Batch((note("a", "1", n=2), note("a", "2", **bad))))
    assert store.execute(Query(NOTES)).items == ({"owner": "a", "at": "1", "n": 1, "until": 1100.0},)


def test_an_unknown_attribute_is_named(store):
    with pytest.raises(
        errors.UsageError, match="notes has no attribute 'colour'; it has owner, at, until, n"
    ):
        store.execute(note("a", "1", colour="red"))


def test_a_key_that_has_no_utf8_form_is_refused_in_reading_and_writing(store):
    for command in (Get(LEDGER, "\ud800"), mark("\ud800"), Delete(LEDGER, "\ud800")):
        with pytest.raises(errors.UsageError, match="surrogates"):
            store.execute(command)
    assert type(store.execute(mark("k"))) is Applied


# Reading takes no lock


def test_readings_and_refusals_are_answered_while_another_process_writes(path, store):
    store.execute(mark("k"))
    with closing(bare(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM semel_ledger")
        assert store.execute(Get(LEDGER, "k")).item["status"] == "IN_PROGRESS"
        assert type(store.execute(mark("k"))) is Refused
        assert type(store.at_once(mark("k"))) is Refused
        assert len(store.execute(Query(LEDGER)).items) == 1
        other.execute("ROLLBACK")


def told_by(store, command):
    """The first words of the statements by which a command is executed, and its reply."""
    told = statements(store)
    reply = store.execute(command)
    store._writer._connection.set_trace_callback(None)
    return [sql.split()[0] for sql in told], type(reply)


def test_a_write_is_one_statement_without_a_transaction_around_it(store):
    held = {"token": "t", "status": "IN_PROGRESS"}
    done = {"status": "COMPLETED", "result": b"1"}
    assert told_by(store, mark("k")) == (["INSERT"], Applied)
    assert told_by(store, Update(LEDGER, "k", done, held)) == (["UPDATE"], Applied)
    assert told_by(store, Put(LEDGER, "k", mark("k").item)) == (["REPLACE"], Applied)
    assert told_by(store, Put(LEDGER, "k", mark("k").item, held)) == (["UPDATE"], Applied)
    assert told_by(store, Delete(LEDGER, "k", held)) == (["DELETE"], Applied)
    add = Add(LEDGER, "k", "attempt", 1, {"expires_at": After(60)}, cap=2)
    assert told_by(store, add) == (["INSERT"], Applied)
    assert told_by(store, msgspec.structs.replace(add, by=-1)) == (["UPDATE"], Applied)


def test_a_refused_write_is_one_statement_and_the_reading_of_what_is_there(store):
    store.execute(mark("k"))
    before = store.execute(Get(LEDGER, "k"))
    for refused in (
        mark("k"),
        Put(LEDGER, "k", mark("k").item, {"token": "other"}),
        Update(LEDGER, "k", {"status": "COMPLETED"}, {"token": "other"}),
        Delete(LEDGER, "k", {"token": "other"}),
        Add(LEDGER, "k", "attempt", 1, {"expires_at": After(60)}, cap=1),
    ):
        words, reply = told_by(store, refused)
        assert (words[1:], reply) == (["SELECT"], Refused)
        assert store.execute(Get(LEDGER, "k")) == before


def test_a_first_call_takes_three_statements_and_a_replay_one(path, clock, monkeypatch):
    told: list[str] = []

    class Traced(SQLiteConnection):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.set_trace_callback(lambda sql: told.append(sql.split()[0]))

    monkeypatch.setattr(SQLiteFile, "factory", Traced)
    with closing(SQLiteStore(path, clock=clock)) as store:
        work = Semel(store).once("work:{n}")(lambda n: n)
        work(1)
        told.clear()
        work(2)
        assert told == ["SELECT", "INSERT", "UPDATE"]
        told.clear()
        work(2)
        assert told == ["SELECT"]


def test_a_refusal_that_what_is_there_contradicts_is_decided_in_a_transaction(store, monkeypatch):
    """As where the item is removed between the refusal and the reading."""
    store.execute(mark("k"))
    get = store._commands.get

    def removed_meanwhile(cursor, command, now):
        monkeypatch.setattr(store._commands, "get", get)
        cursor.execute("DELETE FROM semel_ledger")
        return get(cursor, command, now)

    monkeypatch.setattr(store._commands, "get", removed_meanwhile)
    assert told_by(store, mark("k")) == (["INSERT", "DELETE", "SELECT", "BEGIN", "INSERT", "COMMIT"], Applied)


def test_a_reading_leaves_no_lock_behind(path, store):
    for number in range(5):
        store.execute(mark(f"k{number}"))
    store.execute(Get(LEDGER, "k1"))
    store.execute(Query(LEDGER, limit=2))
    with closing(bare(path)) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


def test_what_needs_a_lock_is_not_answered_at_once(store):
    store.execute(mark("k"))
    for command in (mark("new"), Put(LEDGER, "k", {}), Update(LEDGER, "k", {}), Query(LEDGER), Batch(())):
        assert store.at_once(command) is None
    assert store.at_once(Get(LEDGER, "k")) == store.execute(Get(LEDGER, "k"))


def reading(store, work):
    """Do something while a reader of the store is in use."""
    reader = store._readers._another()
    reader.connection.create_function("work", 0, work)
    store._readers._idle.append(reader)
    store._readers.execute("SELECT work()")


def test_readers_beyond_the_usual_are_closed_again(store, monkeypatch):
    monkeypatch.setattr(store._readers, "_kept", 2)
    reading(store, lambda: reading(store, lambda: reading(store, lambda: None)))
    assert len(store._readers._open) == len(store._readers._idle) == 2


def test_a_reader_that_is_one_too_many_is_closed_after_a_single_reading(store, monkeypatch):
    monkeypatch.setattr(store._readers, "_kept", 0)
    store.execute(Get(LEDGER, "k"))
    assert len(store._readers._open) == 0


# Writes share transactions


def commits(told):
    return sum(text == "COMMIT" for text in told)


def together(store, clock, commands):
    """Carry commands out by a thread each, in one transaction; what each gave or raised."""

    def attempt(command):
        try:
            return store.execute(command)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(len(commands)) as threads:
        with leading(store):
            futures = []
            for command in commands:
                futures.append(threads.submit(attempt, command))
                until(lambda: queued(store) == len(futures))
        return [future.result() for future in futures]


def test_writes_that_come_during_a_commit_share_the_next_one(store, clock):
    told = statements(store)
    clock.gate.clear()
    clock.asked.clear()
    with ThreadPoolExecutor(20) as threads:
        first = threads.submit(store.execute, mark("first"))
        clock.asked.wait()
        rest = [threads.submit(store.execute, mark(f"k{number}")) for number in range(19)]
        until(lambda: queued(store) == 19)
        clock.gate.set()
        assert {type(future.result()) for future in (first, *rest)} == {Applied}
    # The first was alone, and needed none of its own.
    assert commits(told) == 1


def test_of_many_threads_that_claim_a_key_exactly_one_wins(store, clock):
    told = statements(store)
    replies = together(store, clock, [mark("k", token=str(number)) for number in range(16)])
    assert [type(reply) for reply in replies].count(Applied) == 1
    winner = store.execute(Get(LEDGER, "k")).item
    assert all(reply.item == winner for reply in replies if type(reply) is Refused)
    assert commits(told) == 1


def test_a_command_that_cannot_be_carried_out_fails_alone(store, clock):
    told = statements(store)
    bad = [
        mark("bad", token="\ud800"),
        mark("bad", colour="red"),
        Add(LEDGER, "bad", "attempt", 2**63, {"expires_at": After(9)}),
        Batch((mark("half"), mark("bad", attempt=2**64))),
        Transact((mark("half"), mark("bad", colour="red"))),
        Put(LEDGER, "bad", None),  # type: ignore[arg-type]  # that is the point
    ]
    replies = together(store, clock, [mark("a"), *bad, mark("b")])
    assert [type(reply) for reply in replies] == [Applied] + [errors.UsageError] * 5 + [
        AttributeError,
        Applied,
    ]
    assert commits(told) == 1
    assert [item["id"] for item in store.execute(Query(LEDGER)).items] == ["a", "b"]


def test_a_value_that_only_sqlite_finds_too_large_fails_alone(path, store, clock):
    store.reap(0)
    store._writer._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    replies = together(store, clock, [mark("a"), mark("fat", token="t" * 20_000), mark("b")])
    assert [type(reply) for reply in replies] == [Applied, errors.UsageError, Applied]
    assert ids(path) == ["a", "b"]


def test_a_transaction_takes_no_more_than_its_share(store, clock, monkeypatch):
    monkeypatch.setattr("semel.stores.sqlite.writer.SHARED", 4)
    told = statements(store)
    replies = together(store, clock, [mark(f"k{number}") for number in range(10)])
    assert {type(reply) for reply in replies} == {Applied}
    assert commits(told) == 3


def test_a_batch_is_one_transaction_and_each_write_has_its_own_outcome(store):
    store.execute(mark("k1"))
    told = statements(store)
    reply = store.execute(Batch(tuple(mark(f"k{number}") for number in range(1000))))
    assert [number for number, each in enumerate(reply.replies) if type(each) is Refused] == [1]
    assert commits(told) == 1


def test_a_transaction_that_is_cancelled_says_for_each_write_what_was_in_the_way(store):
    store.execute(mark("k"))
    item = store.execute(Get(LEDGER, "k")).item
    reply = store.execute(Transact((mark("new"), mark("k"), Delete(LEDGER, "gone"))))
    assert reply == Cancelled(1000.0, (None, Refused(1000.0, item), Refused(1000.0, None)))
    assert store.execute(Get(LEDGER, "new")).item is None


# When it fails


def test_a_file_locked_for_too_long_is_unavailable_to_all_who_wait(path, clock, monkeypatch):
    with (
        closing(SQLiteStore(SQLiteFile(str(path), timeout=0), clock=clock)) as store,
        closing(bare(path)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        replies = together(store, clock, [mark("a"), mark("b")])
        assert [type(reply) for reply in replies] == [errors.StoreUnavailable] * 2
        assert "kept it locked" in str(replies[0])
        assert replies[0] is not replies[1]
        other.execute("ROLLBACK")
        assert type(store.execute(mark("a"))) is Applied


def test_a_full_disk_is_unavailable_and_nothing_is_half_written(path, store, clock):
    store.execute(mark("before"))
    pages = store._writer._connection.execute("PRAGMA page_count").fetchone()[0]
    store._writer._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    replies = together(store, clock, [mark("a"), mark("fat", token="t" * 50_000), mark("b")])
    assert [type(reply) for reply in replies] == [errors.StoreUnavailable] * 3
    assert "no room left" in str(replies[0])
    assert ids(path) == ["before"]
    store._writer._connection.execute("PRAGMA max_page_count = 100000")
    assert type(store.execute(mark("fat", token="t" * 50_000))) is Applied


class Torn:
    """A cursor that does something else where it is told to commit."""

    def __init__(self, cursor, commit):
        self.cursor, self.commit = cursor, commit

    def __getattr__(self, name):
        return getattr(self.cursor, name)

    def execute(self, sql, values=()):
        return self.commit() if sql == "COMMIT" and self.commit else self.cursor.execute(sql, values)


def failure(name):
    error = sqlite3.OperationalError(name)
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error


def tear(store, commit):
    store.reap(0)
    cursor = store._writer._cursor
    store._writer._cursor = Torn(cursor, lambda: commit(cursor))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("SQLITE_FULL", errors.StoreUnavailable),
        ("SQLITE_BUSY", errors.StoreUnavailable),
        ("SQLITE_IOERR_FSYNC", errors.StoreOutcomeUnknown),
    ],
)
def test_a_commit_that_fails_is_rolled_back_and_says_what_is_certain(path, store, clock, code, expected):
    def commit(connection):
        raise failure(code)

    tear(store, commit)
    replies = together(store, clock, [mark("a"), mark("b")])
    assert [type(reply) for reply in replies] == [expected] * 2
    assert ids(path) == []
    store._writer._disconnect()
    assert type(store.execute(mark("a"))) is Applied


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("SQLITE_FULL", errors.StoreUnavailable),
        ("SQLITE_CORRUPT", errors.StoreError),
        ("SQLITE_TOOBIG", errors.UsageError),
        ("SQLITE_IOERR_FSYNC", errors.StoreOutcomeUnknown),
        ("SQLITE_NOMEM", errors.StoreOutcomeUnknown),
    ],
)
def test_a_write_that_fails_alone_says_what_is_certain(store, code, expected):
    class Failing(Torn):
        def execute(self, sql, values=()):
            raise failure(code)

    store.reap(0)
    store._writer._cursor = Failing(store._writer._cursor, None)
    with pytest.raises(expected) as caught:
        store.execute(mark("a"))
    assert type(caught.value) is expected
    if code == "SQLITE_TOOBIG":
        store._writer._disconnect()
    assert type(store.execute(mark("a"))) is Applied


def test_an_addition_that_is_interrupted_halfway_leaves_no_lock(path, store):
    """Its row was read by nobody, so that SQLite has not committed it yet."""

    class Interrupted(Torn):
        def fetchone(self):
            raise KeyboardInterrupt

    store.execute(mark("k"))
    store._writer._cursor = Interrupted(store._writer._cursor, None)
    with pytest.raises(KeyboardInterrupt):
        store.execute(Add(LEDGER, "k", "attempt", 1, {}))
    with closing(bare(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    assert store.execute(Add(LEDGER, "k", "attempt", 1, {})).item["attempt"] == 3


def test_an_interrupted_leader_rolls_back_and_the_others_go_on_without_it(path, store, clock):
    clock.interrupts.append(KeyboardInterrupt())
    replies = together(store, clock, [mark("a"), mark("b"), mark("c")])
    assert [type(reply) for reply in replies] == [KeyboardInterrupt, Applied, Applied]
    assert ids(path) == ["b", "c"]


def test_a_leader_interrupted_after_the_commit_still_tells_the_others(path, store, clock):
    def commit(connection):
        connection.execute("COMMIT")
        raise KeyboardInterrupt

    tear(store, commit)
    replies = together(store, clock, [mark("a"), mark("b")])
    assert [type(reply) for reply in replies] == [KeyboardInterrupt, Applied]
    assert ids(path) == ["a", "b"]


def test_an_interrupted_follower_takes_its_command_back(path, store, clock, monkeypatch):
    # A signal that comes just before the wait begins is met at the next look.
    monkeypatch.setattr("semel.stores.sqlite.writer.PATROL_SECONDS", 0.01)
    clock.gate.clear()
    clock.asked.clear()

    def interrupt():
        until(lambda: queued(store) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(store.execute, mark("leader"))
        clock.asked.wait()
        with pytest.raises(KeyboardInterrupt):
            threads.submit(interrupt)
            store.execute(mark("follower"))
        clock.gate.set()
        assert type(leader.result()) is Applied
    assert ids(path) == ["leader"]


def test_a_follower_whose_leader_vanished_does_not_wait_for_ever(path, store, monkeypatch):
    monkeypatch.setattr("semel.stores.sqlite.writer.PATROL_SECONDS", 0.001)
    store.execute(mark("a"))
    with ThreadPoolExecutor(1) as threads:
        gone = writer.QueuedWrite(mark("gone"))
        with gone.held:
            store._writer._queue[gone] = None
            follower = threads.submit(store.execute, mark("k"))
            until(lambda: queued(store) == 2)
            store._writer._cursor.execute("BEGIN IMMEDIATE")
        assert type(follower.result()) is Applied
    assert ids(path) == ["a", "k"]


def test_who_may_have_been_written_by_a_leader_that_vanished_is_told_so(path, store):
    store.execute(mark("a"))
    others = writer.QueuedWrite(mark("k"))
    with others.held:
        store._writer._committing = [others]
        assert type(store.execute(mark("b"))) is Applied
        with pytest.raises(errors.StoreOutcomeUnknown):
            others.result()


# Tasks


def test_writes_of_tasks_and_threads_share_transactions(store, clock):
    told = statements(store)
    clock.gate.clear()
    clock.asked.clear()

    async def claim_all(name):
        return await asyncio.gather(*(store.aexecute(mark(f"{name}{number}")) for number in range(10)))

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(store.execute, mark("first"))
        clock.asked.wait()
        loops = [threads.submit(asyncio.run, claim_all(name)) for name in "ab"]
        thread = threads.submit(store.execute, mark("thread"))
        until(lambda: queued(store) == 21)
        clock.gate.set()
        replies = [first.result(), thread.result(), *(reply for loop in loops for reply in loop.result())]
    assert {type(reply) for reply in replies} == {Applied}
    assert commits(told) == 1


def test_a_cancelled_task_takes_back_what_has_not_begun_and_harms_no_other(path, store, clock):
    async def main():
        with leading(store):
            tasks = [asyncio.create_task(store.aexecute(mark(key))) for key in "abc"]
            await asyncio.to_thread(until, lambda: queued(store) == 3)
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(reply) for reply in asyncio.run(main())] == [Applied, asyncio.CancelledError, Applied]
    assert ids(path) == ["a", "c"]


def test_a_task_cancelled_during_the_transaction_harms_no_other(path, store, clock):
    async def main():
        clock.gate.clear()
        clock.asked.clear()
        tasks = [asyncio.create_task(store.aexecute(mark(key))) for key in "abc"]
        await asyncio.to_thread(clock.asked.wait)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.wait(tasks[:2])
        clock.gate.set()
        return await tasks[2]

    assert type(asyncio.run(main())) is Applied
    assert "c" in ids(path)
    assert type(store.execute(mark("d"))) is Applied


def test_a_crowd_of_tasks_calls_the_stores_thread_at_most_once_each(store, monkeypatch):
    """Were it called again for everyone who still waits, it would have nothing to do most of the time."""
    calls: list[int] = []
    serve = store._writer._serve

    def counted() -> object:
        calls.append(1)
        return serve()

    monkeypatch.setattr(store._writer, "_serve", counted)

    async def write_on(name):
        for number in range(10):
            assert type(await store.aexecute(mark(f"{name}{number}"))) is Applied

    async def main():
        await asyncio.gather(*(write_on(f"{task}-") for task in range(40)))

    asyncio.run(main())
    assert len(calls) <= 40 * 10


def test_a_write_whatever_is_there_reads_nothing_first(store):
    whatever = msgspec.structs.replace(mark("l"), expect=ANY)
    store.execute(whatever)
    read: list[object] = []
    store._get = read.append
    assert (store.at_once(whatever), read) == (None, [])


def test_a_loop_that_ended_before_its_reply_came_harms_nobody(store, clock):
    clock.gate.clear()
    clock.asked.clear()

    async def leave():
        asyncio.ensure_future(store.aexecute(mark("a")))  # noqa: RUF006 - left behind on purpose
        await asyncio.to_thread(clock.asked.wait)

    asyncio.run(leave())
    clock.gate.set()
    assert type(store.execute(mark("b"))) is Applied
    assert type(store.execute(mark("a"))) is Refused


def test_an_error_reaches_the_task_that_caused_it(store):
    async def main():
        return await asyncio.gather(
            store.aexecute(mark("a", colour="red")), store.aexecute(mark("b")), return_exceptions=True
        )

    assert [type(reply) for reply in asyncio.run(main())] == [errors.UsageError, Applied]


def test_an_interrupt_in_the_stores_own_thread_is_told_to_the_tasks(store, clock):
    async def main():
        clock.interrupts.append(SystemExit())
        with pytest.raises(errors.StoreUnavailable, match="SystemExit"):
            await store.aexecute(mark("a"))
        return await store.aexecute(mark("a"))

    assert type(asyncio.run(main())) is Applied


def test_every_command_can_be_awaited_on_a_table_not_used_before(store):
    async def main():
        await store.aexecute(note("a", "1"))
        page = await store.aexecute(Query(NOTES, "a"))
        found = await store.aexecute(Get(NOTES, "a", "1"))
        watched = await store.aexecute(Watch(NOTES, "a", 0.0, "1"))
        return page.items[0], found.item, watched.item

    assert asyncio.run(main()) == ({"owner": "a", "at": "1", "until": 1100.0},) * 3


# Waiting


def test_whoever_waits_for_a_key_is_woken_by_its_commit(store, clock):
    store.execute(mark("k"))
    change = Update(LEDGER, "k", {"status": "COMPLETED"})
    for write in (change, Batch((change,)), Transact((change,))):
        with ThreadPoolExecutor(1) as threads:
            waiter = threads.submit(store.execute, Watch(LEDGER, "k", 3600.0))
            until(lambda: store._watchers.watches)
            store.execute(write)
            assert waiter.result().item["status"] == "COMPLETED"


def test_waiters_are_woken_before_the_writer_goes_on_so_that_nobody_is_woken_by_his_own_write(
    store, monkeypatch
):
    settled: list[bool] = []

    def note(_watchers, command, _reply):
        settled.extend(job.settled for job in store._writer._queue if job.command is command)

    monkeypatch.setattr(writer, "wake_waiters", note)
    monkeypatch.setattr(store._watchers, "watches", {"another": None})
    store.execute(mark("k"))
    asyncio.run(store.aexecute(mark("l")))
    assert settled == [False, False]


def test_a_waiting_task_is_woken_by_a_commit_of_another_thread(store):
    store.execute(mark("k"))

    async def main():
        waiter = asyncio.create_task(store.aexecute(Watch(LEDGER, "k", 3600.0)))
        await asyncio.to_thread(until, lambda: store._watchers.async_watches)
        await asyncio.to_thread(store.execute, Delete(LEDGER, "k"))
        return await waiter

    assert asyncio.run(main()).item is None


# Forks


FORK = """
import json, os, sys, threading
from semel.stores.sqlite import SQLiteStore
from semel.core.commands import *
from semel.tables import LEDGER

def add(): return store.execute(Add(LEDGER, "k", "attempt", 1, {"expires_at": After(60)})).item["attempt"]

store = SQLiteStore(sys.argv[1])
add()
busy = threading.Event()
def keep_reading():
    while not busy.is_set():
        store.execute(Get(LEDGER, "k"))
        store.execute(Query(LEDGER))
threads = [threading.Thread(target=keep_reading, daemon=True) for _ in range(2)]
for thread in threads: thread.start()
child_in, parent_out = os.pipe()
parent_in, child_out = os.pipe()
if os.fork() == 0:
    add()
    os.write(child_out, b"x")
    os.read(child_in, 1)
    # The parent has closed by now. What is written here must be in the file that everybody else sees.
    add()
    os._exit(0)
os.read(parent_in, 1)
add()
busy.set()
for thread in threads: thread.join()
store.close()
os.write(parent_out, b"x")
os.wait()
print(SQLiteStore(sys.argv[1]).execute(Get(LEDGER, "k")).item["attempt"])
"""


@pytest.mark.situation(35)
def test_a_forked_child_writes_into_the_same_file_even_after_its_parent_has_closed(path):
    assert said(run(FORK, path)) == "4\n"


def test_nothing_is_open_while_a_process_forks_and_all_goes_on_afterwards(store):
    store.execute(mark("k"))
    runtime._before_fork()
    assert (store._writer._connection, list(store._readers._open)) == (None, [])
    runtime._after_fork_in_parent()
    assert type(store.execute(mark("k"))) is Refused
    assert type(store.execute(mark("l"))) is Applied


def test_a_fork_waits_for_the_transaction_under_way(store, clock):
    clock.gate.clear()
    clock.asked.clear()

    def around_a_fork():
        runtime._before_fork()
        runtime._after_fork_in_parent()

    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(store.execute, mark("k"))
        clock.asked.wait()
        fork = threads.submit(around_a_fork)
        until(lambda: store in runtime._paused)
        assert not fork.done()
        clock.gate.set()
        assert type(leader.result()) is Applied
        fork.result()
    assert type(store.execute(mark("k"))) is Refused


# Expiry


def test_reaping_takes_a_bite_of_what_has_expired_and_nothing_else(path, store, clock):
    store.execute(Batch(tuple(mark(f"k{number}", expires_at=After(number)) for number in range(1, 11))))
    clock.moment += 6
    assert store.reap(limit=4) == 4
    assert len(ids(path)) == 6
    assert store.reap() == 2
    assert ids(path) == ["k10", "k7", "k8", "k9"]
    assert store.reap() == 0


def test_a_store_that_is_only_ever_written_stays_bounded(path, store, clock):
    for number in range(300):
        store.execute(Put(LEDGER, f"k{number}", {"expires_at": After(10)}))
        clock.moment += 1
    assert len(ids(path)) < 10 + 64
    store.execute(Batch(tuple(mark(f"b{number}") for number in range(1000))))
    clock.moment += 1000
    store.execute(Batch(tuple(mark(f"c{number}") for number in range(1000))))
    assert len(ids(path)) == 1000


def test_reaping_covers_every_table(store, clock):
    store.execute(note("a", "1"))
    store.execute(mark("k"))
    clock.moment += 100
    assert store.reap() == 2


# Within a transaction of the caller's


@pytest.fixture
def mine(path, store):
    """A connection of the caller's to the same file, with a table of his own."""
    with closing(bare(path)) as connection:
        connection.execute("CREATE TABLE orders (id)")
        yield connection


@pytest.fixture
def s(store):
    return Semel(store, env="dev")


def orders(path):
    with closing(bare(path)) as connection:
        return [id for (id,) in connection.execute("SELECT id FROM orders ORDER BY id")]


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_a_completion_and_the_callers_rows_are_one_transaction(s, path, mine, ends):
    claim = s.ledger.claim("order:1")
    mine.execute("BEGIN IMMEDIATE")
    mine.execute("INSERT INTO orders VALUES (1)")
    inside = s.ledger.within(mine)
    inside.complete(claim, "sold")
    assert inside.get("order:1").status is Status.COMPLETED
    assert s.ledger.get("order:1").status is Status.IN_PROGRESS
    mine.execute(ends)
    committed = ends == "COMMIT"
    assert orders(path) == ([1] if committed else [])
    assert s.ledger.get("order:1").status is (Status.COMPLETED if committed else Status.IN_PROGRESS)
    # What was rolled back is still to be done, and the claim still the caller's to complete.
    s.ledger.complete(claim, "sold")


def test_the_same_for_tasks_which_are_answered_at_once(s, path, mine):
    async def main():
        for order, ends in (("kept", "COMMIT"), ("dropped", "ROLLBACK")):
            claim = await s.aio.ledger.claim(order)
            mine.execute("BEGIN IMMEDIATE")
            mine.execute("INSERT INTO orders VALUES (?)", (order,))
            ledger = s.aio.ledger.within(mine)
            await ledger.complete(claim, "sold")
            assert (await ledger.get(order)).status is Status.COMPLETED
            mine.execute(ends)
        assert type(await s.aio.ledger.claim("kept")) is Replay
        inside = s.store.within(mine)
        mine.execute("BEGIN")
        assert inside.at_once(Get(LEDGER, "none")) == await inside.aexecute(Get(LEDGER, "none"))
        assert inside.at_once(TellTime()) == Found(1000.0, None)

    asyncio.run(main())
    assert orders(path) == ["kept"]
    assert s.ledger.get("dropped").status is Status.IN_PROGRESS


def test_a_zombie_is_refused_and_takes_its_rows_back(s, path, mine, clock):
    zombie = s.ledger.claim("order:1", lease=30)
    clock.moment += 31
    heir = s.ledger.claim("order:1", lease=30)
    mine.execute("BEGIN IMMEDIATE")
    mine.execute("INSERT INTO orders VALUES (2)")
    with pytest.raises(errors.ClaimLost):
        s.ledger.within(mine).complete(zombie, "sold twice")
    mine.execute("ROLLBACK")
    s.ledger.complete(heir, "sold once")
    assert orders(path) == []


def test_a_connection_that_begins_by_itself_is_joined_after_its_first_row(s, path, mine):
    """As Python's connections do unless they are told otherwise."""
    claim = s.ledger.claim("order:1")
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        inside = s.ledger.within(connection)
        with pytest.raises(errors.UsageError, match="BEGIN IMMEDIATE"):
            inside.complete(claim, "sold")
        with connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            inside.complete(claim, "sold")
        with pytest.raises(errors.UsageError, match="no transaction is open"):
            inside.get("order:1")
    assert orders(path) == [1]
    assert type(s.ledger.claim("order:1")) is Replay


@pytest.mark.skipif(sys.version_info < (3, 12), reason="connections had no autocommit before Python 3.12")
def test_a_connection_that_is_always_in_a_transaction_is_joined_as_it_is(s, path, mine):
    claim = s.ledger.claim("order:1")
    always: dict[str, Any] = {"autocommit": False}
    with closing(sqlite3.connect(path, timeout=0, **always)) as connection:
        s.ledger.within(connection).complete(claim, "sold")
        connection.execute("INSERT INTO orders VALUES (1)")
        connection.rollback()
        assert s.ledger.get("order:1").status is Status.IN_PROGRESS
        connection.execute("INSERT INTO orders VALUES (2)")
        s.ledger.within(connection).complete(claim, "sold")
        connection.commit()
    assert orders(path) == [2]
    assert type(s.ledger.claim("order:1")) is Replay


def test_a_refusal_or_a_bad_value_leaves_the_transaction_as_it_was(store, path, mine):
    mine.execute("BEGIN IMMEDIATE")
    mine.execute("INSERT INTO orders VALUES (1)")
    inside = store.within(mine)
    assert type(inside.execute(Update(LEDGER, "nothing", {"token": "x"}))) is Refused
    assert type(inside.execute(mark("k"))) is Applied
    assert type(inside.execute(mark("k"))) is Refused
    cancelled = inside.execute(Transact((mark("new"), Delete(LEDGER, "nothing"))))
    assert [refusal is None for refusal in cancelled.refusals] == [True, False]
    many = inside.execute(Batch((mark("k"), mark("other"))))
    assert [type(each) for each in many.replies] == [Refused, Applied]
    for bad in ({"colour": "red"}, {"token": "\ud800"}, {"attempt": 2**63}):
        with pytest.raises(errors.UsageError):
            inside.execute(Transact((mark("half"), mark("bad", **bad))))
        with pytest.raises(errors.UsageError):
            inside.execute(mark("bad", **bad))
    mine.execute("COMMIT")
    assert orders(path) == [1]
    assert ids(path) == ["k", "other"]


def test_several_writes_stand_or_fall_with_the_callers_transaction(store, path, mine):
    spent = Add(COUNTERS, "c", "count", 1, {"expires_at": After(100)}, sort="2024")
    said = Put(JOURNAL, "o", {"expires_at": After(100)}, ABSENT, "1")
    for ends, count in (("ROLLBACK", 0), ("COMMIT", 1)):
        mine.execute("BEGIN IMMEDIATE")
        assert type(store.within(mine).execute(Transact((mark("k"), spent, said)))) is Applied
        mine.execute(ends)
        for table in (LEDGER, COUNTERS, JOURNAL):
            assert len(store.execute(Query(table)).items) == count


def test_writes_that_sqlite_itself_refuses_leave_nothing_of_theirs(store, path, mine):
    mine.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    mine.execute("BEGIN IMMEDIATE")
    mine.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(errors.UsageError):
        store.within(mine).execute(Transact((mark("a"), mark("fat", token="t" * 20_000))))
    mine.execute("COMMIT")
    assert (ids(path), orders(path)) == ([], [1])


def test_a_query_sees_the_callers_uncommitted_rows_and_nobody_elses_does(store, mine):
    store.execute(mark("before", subject="ada"))
    mine.execute("BEGIN IMMEDIATE")
    inside = store.within(mine)
    inside.execute(mark("within", subject="ada"))
    query = Query(LEDGER, "ada", index="subject", limit=1)
    first = inside.execute(query)
    rest = inside.execute(msgspec.structs.replace(query, after=first.after))
    assert [item["id"] for item in (*first.items, *rest.items)] == ["before", "within"]
    assert len(store.execute(Query(LEDGER)).items) == 1
    # A page that was left in the middle holds nothing open.
    mine.execute("COMMIT")


def test_only_a_connection_to_the_very_file_is_joined(store, path, tmp_path):
    with (
        closing(bare(tmp_path / "another.db")) as another,
        pytest.raises(errors.UsageError, match="one file"),
    ):
        store.within(another)
    with closing(bare(":memory:")) as memory, pytest.raises(errors.UsageError, match="in memory"):
        store.within(memory)
    with pytest.raises(errors.UsageError, match=r"sqlite3\.Connection, not object"):
        store.within(object())
    os.link(path, tmp_path / "hard.db")
    with closing(bare(tmp_path / "hard.db")) as hard, pytest.raises(errors.UsageError, match="one file"):
        store.within(hard)
    (tmp_path / "soft.db").symlink_to(path)
    with closing(bare(tmp_path / "soft.db")) as soft:
        soft.execute("BEGIN")
        assert type(store.within(soft).execute(mark("k"))) is Applied


def test_rows_and_texts_stay_as_the_caller_wants_them(store, mine):
    mine.row_factory = lambda cursor, row: {
        name[0]: each for name, each in zip(cursor.description, row, strict=True)
    }
    mine.text_factory = bytes
    mine.execute("BEGIN IMMEDIATE")
    inside = store.within(mine)
    inside.execute(mark("k"))
    assert inside.execute(Get(LEDGER, "k")).item["token"] == "t"
    row = mine.execute("SELECT token FROM semel_ledger").fetchone()
    assert (row["token"], mine.text_factory) == (b"t", bytes)


def test_there_is_no_waiting_within_a_transaction(store, mine):
    mine.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.UsageError, match="wait before you begin"):
        store.within(mine).execute(Watch(LEDGER, "k", 3600.0))


def test_a_connection_of_another_thread_or_a_closed_one_is_the_callers_mistake(store, path, mine):
    mine.execute("BEGIN IMMEDIATE")
    inside = store.within(mine)
    with ThreadPoolExecutor(1) as threads:
        for use in (lambda: inside.execute(mark("k")), lambda: store.within(mine)):
            with pytest.raises(errors.UsageError, match="thread"):
                threads.submit(use).result()
    mine.close()
    with pytest.raises(errors.UsageError, match="closed"):
        inside.execute(mark("k"))
    with pytest.raises(errors.UsageError, match="closed"):
        store.within(mine)


def test_a_transaction_that_has_read_what_is_past_is_unavailable_and_told_how_to_begin(store, mine):
    mine.execute("BEGIN")
    mine.execute("SELECT * FROM orders").fetchall()
    store.execute(mark("k"))
    inside = store.within(mine)
    assert inside.execute(Get(LEDGER, "k")).item is None
    with pytest.raises(errors.StoreUnavailable, match="BEGIN IMMEDIATE"):
        inside.execute(mark("l"))
    mine.execute("ROLLBACK")
    mine.execute("BEGIN IMMEDIATE")
    assert type(inside.execute(mark("l"))) is Applied


def test_the_time_is_read_once_the_lock_is_held(store, path, mine, clock):
    with closing(bare(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        mine.execute("BEGIN")
        clock.asked.clear()
        with pytest.raises(errors.StoreUnavailable):
            store.within(mine).execute(mark("k"))
        assert not clock.asked.is_set()
        other.execute("ROLLBACK")
    assert type(store.within(mine).execute(mark("k"))) is Applied
    assert clock.asked.is_set()


def test_the_stores_own_writes_wait_for_the_caller_and_hold_nothing_that_he_needs(store, path, mine):
    mine.execute("BEGIN IMMEDIATE")
    inside = store.within(mine)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(store.execute, mark("other"))
        until(lambda: any(job.leading for job in list(store._writer._queue)))
        assert type(inside.execute(mark("k"))) is Applied
        said = Put(JOURNAL, "o", {"expires_at": After(100)}, ABSENT, "1")
        assert type(inside.execute(Transact((mark("l"), said)))) is Applied
        assert len(inside.execute(Query(LEDGER)).items) == 2
        assert store.execute(Get(LEDGER, "k")).item is None
        assert not other.done()
        mine.execute("COMMIT")
        assert type(other.result()) is Applied
    assert ids(path) == ["k", "l", "other"]


def test_who_writes_past_his_own_transaction_is_told_of_within(path, clock, monkeypatch):
    with (
        closing(SQLiteStore(SQLiteFile(str(path), timeout=0), clock=clock)) as store,
        closing(bare(path)) as connection,
    ):
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.StoreUnavailable, match=r"within\(connection\)"):
            store.execute(mark("k"))
        assert type(store.within(connection).execute(mark("k"))) is Applied


def test_no_table_is_made_within_a_transaction(store, path, mine, clock):
    mine.execute("BEGIN IMMEDIATE")
    inside = store.within(mine)
    with pytest.raises(errors.TableMissing, match="has no table notes yet"):
        inside.execute(note("a", "1"))
    mine.execute("ROLLBACK")
    with closing(SQLiteStore(path, clock=clock)) as other:
        other.execute(Query(NOTES))
    mine.execute("BEGIN IMMEDIATE")
    assert type(inside.execute(note("a", "1"))) is Applied


def test_whoever_waits_is_not_told_before_the_commit(store, mine):
    store.execute(mark("k"))
    mine.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(store.execute, Watch(LEDGER, "k", 3600.0))
        until(lambda: store._watchers.watches)
        [shared] = store._watchers.watches.values()
        store.within(mine).execute(Update(LEDGER, "k", {"status": "COMPLETED"}))
        assert not shared.changed.is_set()
        mine.execute("COMMIT")
        # Nor by it: he looks again when his time is up.
        assert not shared.changed.is_set()
        shared.changed.set()
        assert waiter.result().item["status"] == "COMPLETED"


def test_a_file_that_is_only_written_within_transactions_stays_bounded(store, path, mine, clock):
    inside = store.within(mine)
    for number in range(300):
        mine.execute("BEGIN IMMEDIATE")
        inside.execute(Put(LEDGER, f"k{number}", {"expires_at": After(10)}))
        mine.execute("COMMIT")
        clock.moment += 1
    assert len(ids(path)) < 10 + 64


def test_a_closed_store_cannot_be_joined_and_closing_what_joined_it_closes_nothing(store, mine):
    mine.execute("BEGIN IMMEDIATE")
    inside = store.within(mine)
    inside.close()
    inside.execute(mark("k"))
    store.close()
    with pytest.raises(errors.StoreClosed):
        inside.execute(mark("l"))
    mine.execute("COMMIT")


def test_what_is_too_large_for_a_row_goes_to_the_stores_own_overflow(store, mine):
    store.overflow = object()
    assert store.within(mine).overflow is store.overflow
    store.overflow = None


# The end


def test_a_closed_store_says_so_and_closing_twice_is_closing_once(store):
    store.execute(mark("k"))
    store.close()
    store.close()
    readings = (Get(LEDGER, "k"), Query(LEDGER), TellTime())
    for command in (*readings, mark("k"), mark("new"), Delete(LEDGER, "k"), Batch(())):
        with pytest.raises(errors.StoreClosed):
            store.execute(command)
        with pytest.raises(errors.StoreClosed):
            asyncio.run(store.aexecute(command))
    with pytest.raises(errors.StoreClosed):
        store.reap()


def test_closing_waits_for_the_transaction_under_way_and_refuses_the_next(path, store, clock):
    clock.gate.clear()
    clock.asked.clear()
    with ThreadPoolExecutor(3) as threads:
        leader = threads.submit(store.execute, mark("leader"))
        clock.asked.wait()
        follower = threads.submit(store.execute, mark("follower"))
        until(lambda: queued(store) == 1)
        closer = threads.submit(store.close)
        until(lambda: store._writer.closed)
        assert not closer.done()
        clock.gate.set()
        assert type(leader.result()) is Applied
        with pytest.raises(errors.StoreClosed):
            follower.result()
        closer.result()
    assert ids(path) == ["leader"]


def test_a_reader_in_use_is_closed_when_it_comes_back(store):
    def close():
        store.close()
        assert len(store._readers._open) == 1

    reading(store, close)
    assert len(store._readers._open) == 0


# The same as in memory


KEYS = st.sampled_from(["b", "b\0", "\U0001f600"])
SORTS = st.sampled_from(["1", "10", "2", "ÿ"])
MOMENTS = st.one_of(
    st.builds(After, st.sampled_from([-1.0, 0.0, 5.0, 30.0])), st.sampled_from([990.0, 1010.0])
)
NUMBERS = st.sampled_from([0, 1, -3, 0.5, 2.0, 2**60])
TEXTS = st.sampled_from(["", "x", "xy", "y"])


def items(least):
    optional = {
        "n": st.none() | NUMBERS,
        "text": st.none() | TEXTS,
        "body": st.none() | st.sampled_from([b"", b"\xff"]),
    }
    return st.fixed_dictionaries(least, optional=optional)


WHOLE = items({"until": MOMENTS})
PART = items({}) | WHOLE
ADDED = st.fixed_dictionaries({"until": MOMENTS}, optional={"text": TEXTS})
EXPECTED = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | NUMBERS,
        "text": st.none() | TEXTS,
        "until": MOMENTS.filter(lambda each: type(each) is float),
    },
)
EQUAL = st.fixed_dictionaries({}, optional={"n": NUMBERS, "text": st.none() | TEXTS})
WRITES = st.one_of(
    st.builds(Put, st.just(NOTES), KEYS, WHOLE, st.sampled_from([ABSENT, ANY]) | EXPECTED, SORTS),
    st.builds(Update, st.just(NOTES), KEYS, PART, EXPECTED, SORTS),
    st.builds(Add, st.just(NOTES), KEYS, st.just("n"), NUMBERS, ADDED, st.none() | NUMBERS, SORTS),
    st.builds(Delete, st.just(NOTES), KEYS, EXPECTED, SORTS),
)
SEVERAL = st.lists(WRITES, max_size=4, unique_by=lambda write: (write.key, write.sort)).map(tuple)
LIMITS = st.integers(1, 3)
BOUNDS = (st.none() | SORTS, st.none() | SORTS, st.booleans())
QUERIES = st.one_of(
    st.builds(Query, st.just(NOTES), KEYS, *BOUNDS, equal=EQUAL, limit=LIMITS),
    st.builds(
        Query, st.just(NOTES), st.none(), *BOUNDS, st.sampled_from(["", "b", "\U0001f600"]), EQUAL, LIMITS
    ),
)


def by_index(name, keys, bounds):
    bound = st.none() | bounds
    return st.builds(
        Query,
        st.just(NOTES),
        keys,
        bound,
        bound,
        st.booleans(),
        equal=EQUAL,
        limit=LIMITS,
        index=st.just(name),
    )


INDEX_QUERIES = st.one_of(
    by_index("text-n", TEXTS, NUMBERS),
    by_index("n", NUMBERS, st.none()),
    by_index("owner-n", KEYS, NUMBERS),
    by_index("text-at", TEXTS, SORTS),
)
COMMANDS = st.one_of(
    WRITES,
    WRITES,
    st.builds(Get, st.just(NOTES), KEYS, SORTS),
    st.builds(Transact, SEVERAL),
    st.builds(Batch, SEVERAL),
    QUERIES,
    INDEX_QUERIES,
)


def plain(reply):
    """A reply with nothing said about attributes that have no value."""
    match reply:
        case Found() | Applied() | Refused():
            item = reply.item and {name: value for name, value in reply.item.items() if value is not None}
            return type(reply), reply.now, item
        case Page():
            return reply.now, [plain(Found(reply.now, item)) for item in reply.items], reply.after
        case Cancelled():
            return reply.now, [plain(each) for each in reply.refusals]
        case None:
            return None
    return [plain(each) for each in reply.replies]


def pages(store, query):
    """Every page of a query."""
    reply = store.execute(query)
    yield plain(reply)
    while reply.after is not None:
        reply = store.execute(msgspec.structs.replace(query, after=reply.after))
        yield plain(reply)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """A store for many examples, since making a file takes longer than most of them."""
    place = SQLiteFile(str(tmp_path_factory.mktemp("lasting") / "semel.db"), "normal")
    with closing(SQLiteStore(place, clock=Time())) as store:
        yield store


@settings(max_examples=amount(300, 100))
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.0, 1.0, 10.0]), COMMANDS), max_size=30))
def test_every_reply_is_the_one_that_the_store_in_memory_gives(lasting, steps):
    lasting.execute(Get(NOTES, "a", "1"))
    with closing(bare(lasting._file.path)) as connection:
        connection.execute("DELETE FROM semel_notes")
    clock = lasting._clock
    memory = MemoryStore(clock)
    clock.moment = 1000.0
    for seconds, command in steps:
        clock.moment += seconds
        if isinstance(command, Query):
            assert list(pages(lasting, command)) == list(pages(memory, command))
        else:
            assert plain(lasting.execute(command)) == plain(memory.execute(command))
