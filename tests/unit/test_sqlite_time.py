"""The time of a SQLite file, on a machine whose clock is wrong, is set, or starts behind after a reboot."""

import sqlite3
from contextlib import closing

import pytest

import semel
from semel.core.clock import Clock
from semel.errors import StoreError
from semel.stores.sqlite import SQLiteStore
from semel.stores.sqlite import file as file_times
from semel.testing.conformance.harness import claimed

NOW = 1_700_000_000.25


class Machine(Clock):
    """A machine that can be restarted, and whose clock can be set; its time passes when it is told to."""

    def __init__(self):
        self.wall, self.up, self.boots = NOW, 1000.0, 1

    def now(self):
        return self.wall

    def advance(self, seconds):
        self.wall += seconds
        self.up += seconds

    def reboot(self, clock):
        """Start again, with a clock that shows this."""
        self.wall, self.up, self.boots = clock, 10.0, self.boots + 1


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(file_times, "this_boot", lambda: f"boot {machine.boots}")
    monkeypatch.setattr(file_times, "since_boot", lambda: machine.up)
    return machine


@pytest.fixture
def open_ledger(tmp_path, machine):
    """A function that opens a ledger in the file, which is closed at the end of its block."""

    def opened():
        store = SQLiteStore(tmp_path / "ledger.db", clock=machine)
        return closing(semel.Semel(store, clock=machine))

    return opened


@pytest.mark.situation(63)
def test_a_file_never_starts_below_its_last_known_time(machine, open_ledger):
    """After a reboot with the clock an hour behind, a lease ends when it would, not an hour later."""
    with open_ledger() as s:
        machine.advance(7200)
        s.ledger.claim("key", lease=1, ttl=7200)
    machine.reboot(machine.wall - 3600)
    with open_ledger() as s:
        machine.advance(1)
        assert claimed(s.ledger.claim("key", lease=1, ttl=7200)).attempt == 2


@pytest.mark.situation(12)
def test_a_clock_that_is_set_after_a_slow_start_ends_no_lease_early_and_none_late(machine, open_ledger):
    with open_ledger() as s:
        s.ledger.claim("old", lease=10, ttl=7200)
    machine.reboot(machine.wall - 3600)
    with open_ledger() as s:
        s.ledger.claim("new", lease=10, ttl=7200)
        machine.wall += 3600
        with open_ledger() as other:
            for each in (s, other):
                assert type(each.ledger.claim("new", lease=10, ttl=7200)) is semel.Busy
            machine.advance(10)
            assert claimed(other.ledger.claim("old", lease=10, ttl=7200)).attempt == 2
            assert claimed(s.ledger.claim("new", lease=10, ttl=7200)).attempt == 2


@pytest.mark.situation(63)
def test_what_has_expired_stays_expired_after_a_reboot_with_a_slow_clock(machine, open_ledger):
    """As long as anything was written to the file since: that is how it knows the time."""
    with open_ledger() as s:
        s.ledger.mark_processed("old", ttl=60)
        machine.advance(60)
        s.ledger.mark_processed("other", ttl=7200)
        assert not s.ledger.is_processed("old")
    machine.reboot(NOW)
    with open_ledger() as s:
        assert not s.ledger.is_processed("old")
        assert s.ledger.is_processed("other")


def test_the_right_clock_counts_after_a_reboot(machine, open_ledger):
    with open_ledger() as s:
        s.ledger.claim("key", lease=60, ttl=7200)
    machine.reboot(machine.wall + 61)
    with open_ledger() as s:
        assert claimed(s.ledger.claim("key", lease=60, ttl=7200)).attempt == 2


def noted(s):
    with closing(sqlite3.connect(s.store.path)) as connection:
        [[value]] = connection.execute("SELECT value FROM semel_meta WHERE name = 'written until'").fetchall()
    return value


def test_a_transaction_of_the_callers_writes_the_time_down_too(machine, open_ledger):
    """And where it is taken back, the next write does."""
    with open_ledger() as s, closing(sqlite3.connect(s.store.path, isolation_level=None)) as connection:

        def append_and(end):
            connection.execute("BEGIN IMMEDIATE")
            with s.transaction(within=connection) as tx:
                tx.journal.append("chat", {"said": "hello"})
            connection.execute(end)

        s.ledger.mark_processed("first", ttl=7200)
        machine.advance(50)
        append_and("COMMIT")
        assert noted(s) == int(NOW) + 51
        machine.advance(50)
        append_and("ROLLBACK")
        assert noted(s) == int(NOW) + 51
        s.ledger.mark_processed("second", ttl=7200)
        assert noted(s) == int(NOW) + 101


def test_a_write_that_fails_is_no_note(machine, open_ledger, monkeypatch):
    with open_ledger() as s:
        s.ledger.mark_processed("first", ttl=7200)
        machine.advance(50)
        with monkeypatch.context() as patched:
            patched.setattr(s.store._commands, "do_chores", _fail)
            with pytest.raises(StoreError):
                s.ledger.mark_processed("second", ttl=7200)
        s.ledger.mark_processed("second", ttl=7200)
        assert noted(s) == int(NOW) + 51


def _fail(_cursor, _now):
    raise sqlite3.OperationalError("disk I/O error")


def test_the_time_is_written_once_a_second(machine, open_ledger):
    with open_ledger() as s:
        statements: list[str] = []
        s.ledger.mark_processed("first", ttl=7200)
        s.store._writer._connection.set_trace_callback(statements.append)
        for number in range(10):
            machine.advance(0.5)
            s.ledger.mark_processed(f"key:{number}", ttl=7200)
        assert sum("written until" in statement for statement in statements) == 5
