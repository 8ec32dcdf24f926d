"""The store in a PostgreSQL database keeps the contract."""

import os
from collections.abc import Iterator

import psycopg
import pytest

from semel.core.clock import Clock
from semel.core.drive import Store
from semel.stores.postgres import PostgresStore, migrate
from semel.tables import OWN
from semel.testing import StoreConformance
from semel.testing.conformance import TABLES
from tests.servers.postgres import drop

SCHEMA = f"conformance_{os.getpid()}"
EMPTY = ";".join(f"DELETE FROM {SCHEMA}.semel_{table.name}" for table in (*OWN, *TABLES))


@pytest.fixture(scope="module", name="prepared")
def _prepared(postgres: str) -> Iterator[tuple[str, psycopg.Connection]]:
    """A schema that is made once, as that takes longer than a test, and a connection to empty it."""
    url = f"{postgres}{'&' if '?' in postgres else '?'}schema={SCHEMA}"
    migrate(url, "test", TABLES)
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield url, connection
        drop(connection, SCHEMA)


class TestPostgres(StoreConformance):
    @pytest.fixture(autouse=True)
    def empty(self, prepared: tuple[str, psycopg.Connection]) -> None:
        self.url, connection = prepared
        connection.execute(EMPTY)

    def make_store(self, clock: Clock) -> Store:
        return PostgresStore(self.url, env="test", clock=clock, tables=TABLES)


class TestPostgresPrepared(TestPostgres):
    """Every statement is prepared, as those are which are used often."""

    def make_store(self, clock: Clock) -> Store:
        return PostgresStore(f"{self.url}&prepare_threshold=0", env="test", clock=clock, tables=TABLES)
