"""Every store as a test finds it: empty, its tables made, and reached through a proxy if asked."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semel.clock import Clock
from semel.connect import open_store
from semel.drive import Store
from semel.stores.memory import MemoryStore
from semel.testing import FaultProxy, Faulty
from semel.testing.conformance import TABLES

# The fixture of each store's server.
NETWORKED = {
    "dynoxide": "dynoxide",
    "ministack": "ministack",
    "postgres": "postgres",
    "redis": "redis_server",
}
NAMES = ("memory", "sqlite", *NETWORKED)

# Any will do for the local engines, and a real account has its own.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


class Place:
    """Where one store keeps its items; several may be opened on it, as several workers would."""

    def __init__(self, name: str, server: str, folder: Path) -> None:
        self.name = name
        self.env = f"t{uuid.uuid4().hex[:12]}"
        self._server = server
        self._folder = folder
        self._memory: MemoryStore | None = None
        if name in NETWORKED:
            self._provision()

    def url(self, server: str | None = None) -> str:
        """The store's URL, or that of the same store behind a proxy."""
        server = server or self._server
        match self.name:
            case "memory":
                return "memory:"
            case "sqlite":
                return f"sqlite:///{self._folder / 'semel.db'}"
            case "postgres":
                return f"{server}?schema={self.env}"
            case "redis":
                return f"{server}?prefix={self.env}"
        return f"dynamodb://us-east-1?endpoint={server}"

    def workers(self, many: int) -> int:
        """How many stores may be open here at once."""
        return 1 if self.name == "memory" else many

    def open(self, clock: Clock | None = None, server: str | None = None) -> Store:
        """One more worker's store; memory has only the one."""
        if self.name == "memory":
            if self._memory is None:
                self._memory = MemoryStore(clock)
            return self._memory
        return open_store(self.url(server), env=self.env, clock=clock or Clock())

    @contextmanager
    def lossy(self) -> "Iterator[tuple[Store, Callable[[str], object]]]":
        """A store, and what makes it lose the answer to the next request that carries a word."""
        if self.name not in NETWORKED:
            faulty = Faulty(self.open())
            yield faulty, lambda _word: faulty.lose_reply()
            faulty.close()
            return
        with FaultProxy.before(self._server) as proxy:
            store = self.open(server=proxy.url(self._server))
            yield store, lambda word: proxy.drop_answer_to(word.encode())
            store.close()

    def _provision(self) -> None:
        from semel.provision import OWN
        from semel.provision.places import Place as Site
        from semel.provision.places import opened

        site = Site(url=self.url(), env=self.env, tables=(*OWN, *TABLES), clock=Clock())
        with opened(site) as builder:
            builder.provision(lambda _: None)


def open_place(name: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    """The place of a store, whose server is started if need be."""
    for variable, value in CREDENTIALS.items():
        os.environ.setdefault(variable, value)
    server = request.getfixturevalue(NETWORKED[name]) if name in NETWORKED else ""
    return Place(name, server, folder)
