"""The store in a file keeps the contract, inside a transaction of the caller's too."""

import sqlite3

import pytest

from semel.core.clock import Clock
from semel.core.commands import Query
from semel.core.drive import Store
from semel.stores.sqlite import SQLiteStore
from semel.stores.sqlite.commands import SQLiteWithin
from semel.testing import StoreConformance
from semel.testing.conformance import (
    TABLES,
    Harness,
    commands,
    faults,
    indexes,
    moves,
    queries,
    records,
    values,
)


class InFile(Harness):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "semel.db"


class TestSQLite(InFile, StoreConformance):
    def make_store(self, clock: Clock) -> Store:
        return SQLiteStore.from_url(f"sqlite:///{self.path}", env="test", clock=clock)


class Joined(SQLiteWithin):
    """A store in a transaction of a caller's, who has his own way with rows and texts, and rolls it back."""

    def __init__(self, store: SQLiteStore, path: str) -> None:
        for table in TABLES:
            store.execute(Query(table))
        connection = sqlite3.connect(path, isolation_level=None)
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        connection.execute("BEGIN")
        super().__init__(connection, store._commands, store._join, store._file)
        self._store = store

    def close(self) -> None:
        self._connection.rollback()
        self._connection.close()
        self._store.close()


class TestWithin(
    InFile,
    commands.CommandTests,
    commands.TransactTests,
    values.ValueTests,
    values.ExpiryTests,
    queries.QueryTests,
    indexes.IndexTests,
    moves.MoveTests,
    records.RecordTests,
    records.MarkTests,
    records.LimitTests,
    faults.FaultTests,
):
    """One connection is one thread's, so nobody races here."""

    def make_store(self, clock: Clock) -> Store:
        return Joined(SQLiteStore(self.path, env="test", clock=clock), str(self.path))


# Nothing changes inside a transaction, so there is no waiting in it; and nobody else writes.
ELSEWHERE = ("watch", "wait", "test_reading_does_not_find_it", "test_one_of_many_replaces_it")
for _name in dir(TestWithin):
    if _name.startswith("test_") and any(part in _name for part in ELSEWHERE):
        setattr(TestWithin, _name, None)
