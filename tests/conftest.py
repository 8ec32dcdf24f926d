"""How the whole suite runs: the same examples every time, and never decided by timing; and the servers."""

import shutil
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.amounts import is_tried
from tests.servers.absence import served
from tests.servers.dynamodb import dynoxide, ministack, sqs
from tests.servers.postgres import postgres
from tests.servers.rabbitmq import Broker, rabbitmq
from tests.servers.redis import Pair, redis_cluster, redis_pair, redis_server

# Hypothesis turns to "ci" by itself where CI is set, so both names mean the same settings.
for profile in ("default", "ci"):
    settings.register_profile(
        profile,
        derandomize=True,
        deadline=None,
        # This check is a stopwatch too: a busy machine would fail it.
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("default")

# A shell starts what it runs in the background deaf to Ctrl-C, and some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make slow` tries."""
    left_out = [item for item in items if not is_tried(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_tried(item)]


@pytest.fixture(scope="session", name="dynoxide")
def _dynoxide() -> Iterator[str]:
    """DynamoDB alone: the URL of an endpoint."""
    # Where there is no npm to bring it, ministack stands for both.
    with served(dynoxide, required=shutil.which("npm") is not None) as url:
        yield url


@pytest.fixture(scope="session", name="ministack")
def _ministack() -> Iterator[str]:
    """DynamoDB, SQS and S3: the URL of an endpoint."""
    with served(ministack) as url:
        yield url


@pytest.fixture(scope="session", name="sqs")
def _sqs() -> Iterator[str]:
    """SQS: the URL of an endpoint."""
    with served(sqs) as url:
        yield url


@pytest.fixture(scope="session", name="postgres")
def _postgres() -> Iterator[str]:
    """PostgreSQL: the URL of a database."""
    with served(postgres) as url:
        yield url


@pytest.fixture(scope="session", name="redis_server")
def _redis_server() -> Iterator[str]:
    """Redis: the URL of a server."""
    with served(redis_server) as url:
        yield url


@pytest.fixture(scope="session", name="redis_pair")
def _redis_pair() -> Iterator[Pair]:
    """Redis: the URLs of a server and of its replica."""
    with served(redis_pair) as pair:
        yield pair


@pytest.fixture(scope="session", name="redis_cluster")
def _redis_cluster() -> Iterator[str]:
    """Redis: the URL of one node of a cluster of three."""
    with served(redis_cluster) as url:
        yield url


@pytest.fixture(scope="session", name="rabbitmq")
def _rabbitmq() -> Iterator[Broker]:
    """RabbitMQ: a broker, whose `url` serves clients of AMQP 0.9.1 and of AMQP 1.0."""
    with served(rabbitmq) as url:
        yield Broker(url)
