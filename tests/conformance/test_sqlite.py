"""The store in a file keeps the contract."""

import pytest

from semel.clock import Clock
from semel.drive import Store
from semel.stores.sqlite import SQLiteStore
from semel.testing import StoreConformance


class TestSQLite(StoreConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "semel.db"

    def make_store(self, clock: Clock) -> Store:
        return SQLiteStore.from_url(f"sqlite:///{self.path}", env="test", clock=clock)
