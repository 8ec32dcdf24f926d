"""The servers that examples are tried on."""

from collections.abc import Iterator

import pytest

from tests.servers import dynamodb
from tests.servers import postgres as postgresql
from tests.servers.absence import served


@pytest.fixture(scope="session")
def dynoxide() -> Iterator[str]:
    """DynamoDB alone: the URL of an endpoint."""
    with served(dynamodb.dynoxide) as url:
        yield url


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """PostgreSQL: the URL of a database."""
    with served(postgresql.postgres) as url:
        yield url
