"""The servers that examples are tried on."""

from collections.abc import Iterator

import pytest

from tests.servers import dynamodb
from tests.servers.absence import served


@pytest.fixture(scope="session")
def dynoxide() -> Iterator[str]:
    """DynamoDB alone: the URL of an endpoint."""
    with served(dynamodb.dynoxide) as url:
        yield url
