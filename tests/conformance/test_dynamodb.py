"""The store in DynamoDB keeps the contract, on two engines that were written apart from each other."""

from typing import Any

import boto3
import pytest
from botocore.config import Config

from semel.core.clock import Clock
from semel.core.drive import Store
from semel.stores.dynamodb import DynamoDBStore
from semel.tables import LEDGER
from semel.testing import StoreConformance
from semel.testing.conformance import TABLES
from semel.testing.conformance.commands import CommandTests, TransactTests
from semel.testing.conformance.harness import Harness
from semel.testing.conformance.indexes import IndexTests
from semel.testing.conformance.races import RaceTests
from semel.testing.conformance.records import MarkTests
from semel.testing.conformance.values import ExpiryTests, ValueTests
from tests.conformance.dynamodb_kit import ENV, REGION, Engine, engine

OURS = (LEDGER, *TABLES)


class OnAnEngine(Harness):
    """The tables are made once, and emptied before each test."""

    server = ""

    @pytest.fixture(autouse=True)
    def engine(self, request):
        self.on: Engine = engine(request.getfixturevalue(self.server))
        self.on.make(OURS)
        self.on.empty(OURS)

    def make_store(self, clock: Clock) -> Store:
        return self.on.store(clock)


@pytest.mark.seed("A1")
class TestDynoxide(OnAnEngine, StoreConformance):
    server = "dynoxide"


class TestMinistack(OnAnEngine, StoreConformance):
    server = "ministack"


CLIENTS: dict[str, Any] = {}


def client(url: str) -> Any:
    if url not in CLIENTS:
        CLIENTS[url] = boto3.client(
            "dynamodb",
            region_name=REGION,
            endpoint_url=url,
            aws_access_key_id="anyone",
            aws_secret_access_key="anything",
            config=Config(max_pool_connections=50),
        )
    return CLIENTS[url]


class TestBoto3(OnAnEngine, CommandTests, TransactTests, ValueTests, RaceTests, IndexTests):
    """What of the contract depends on the transport, through a client of the caller's own."""

    server = "dynoxide"

    def make_store(self, clock: Clock) -> Store:
        return DynamoDBStore(client=client(self.on.url), env=ENV, clock=clock)


class TestReadingFirst(OnAnEngine, CommandTests, TransactTests, ExpiryTests, RaceTests, MarkTests):
    """A look before every claim changes what it costs, and nothing else."""

    server = "dynoxide"

    def make_store(self, clock: Clock) -> Store:
        return self.on.store(clock, read_first="yes")
