"""How the whole suite runs: the same examples every time, and never decided by timing; and the servers."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.amounts import is_tried
from tests.servers.absence import served
from tests.servers.dynamodb import dynoxide, ministack, sqs
from tests.servers.postgres import postgres
from tests.servers.rabbitmq import Broker, rabbitmq
from tests.servers.redis import redis_cluster, redis_pair, redis_server

T = TypeVar("T")

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


# Where a file system in memory has room, the tests' files are there: only a power cut tells it from a disk.
MEMORY, ROOM = Path("/dev/shm"), 2 * 2**30
if MEMORY.is_dir():
    there = os.statvfs(MEMORY)
    # Some tests write programs, which a container's may refuse to run.
    if not there.f_flag & os.ST_NOEXEC and there.f_bavail * there.f_frsize > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without looking for garbage, then or later, among what is there for the whole run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make slow` tries."""
    left_out = [item for item in items if not is_tried(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_tried(item)]


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Note how often a test has tried what its line of the proof counts, from which seed, and what came."""

    def note(count: int, *, seed: str = "", found: str = "") -> None:
        record_property("tried", count)
        record_property("seed", seed)
        record_property("found", found)

    return note


@pytest.fixture(scope="session", name="dynoxide")
def _dynoxide() -> Iterator[str]:
    """DynamoDB alone: the URL of an endpoint."""
    # Where there is no npm to bring it, ministack stands for both.
    with served(dynoxide, required=shutil.which("npm") is not None) as url:
        yield url


def server_fixture(server: Callable[[], AbstractContextManager[T]], what: str) -> Any:
    """The fixture of a server, which every test of a run shares."""

    def fixture() -> Iterator[T]:
        with served(server) as place:
            yield place

    fixture.__doc__ = what
    return pytest.fixture(scope="session", name=server.__name__)(fixture)


_ministack = server_fixture(ministack, "DynamoDB, SQS and S3: the URL of an endpoint.")
_sqs = server_fixture(sqs, "SQS: the URL of an endpoint.")
_postgres = server_fixture(postgres, "PostgreSQL: the URL of a database.")
_redis_server = server_fixture(redis_server, "Redis: the URL of a server.")
_redis_pair = server_fixture(redis_pair, "Redis: the URLs of a server and of its replica.")
_redis_cluster = server_fixture(redis_cluster, "Redis: the URL of one node of a cluster of three.")


@pytest.fixture(scope="session", name="rabbitmq")
def _rabbitmq() -> Iterator[Broker]:
    """RabbitMQ: a broker, whose `url` serves clients of AMQP 0.9.1 and of AMQP 1.0."""
    with served(rabbitmq) as url:
        yield Broker(url)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Type a command of `semel`: its exit code, and what it wrote on stdout and stderr."""
    from semel.cli import main

    def run(*words: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["semel", *words])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def typed_on(typed: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Type commands in a shell that names this store and this secret, on 120 columns."""

    def on(url: str, secret: str) -> Any:
        for name in ("SEMEL_ENV", "SEMEL_SCOPE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("SEMEL_URL", url)
        monkeypatch.setenv("SEMEL_SECRET", secret)
        monkeypatch.setenv("COLUMNS", "120")
        return typed

    return on
