"""Every store as a test finds it: empty, its tables made, and reached through a proxy if asked."""

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.connect import open_store
from semel.core.clock import Clock
from semel.core.commands import Stored
from semel.core.drive import Store
from semel.stores.memory import MemoryStore
from semel.tables import Table
from semel.testing import FaultProxy, Faulty
from semel.testing.conformance import TABLES
from semel.testing.faulty import WRITES, Fault

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

    def __init__(self, name: str, server: str, folder: Path, more: tuple[Table, ...] = ()) -> None:
        self.name = name
        self._more = more
        self.env = f"t{uuid.uuid4().hex[:12]}"
        self.server = server
        """The URL of its server; "" where it has none."""
        self._folder = folder
        self._memory: MemoryStore | None = None
        if name in NETWORKED:
            self._provision()

    def url(self, server: str | None = None) -> str:
        """The store's URL, or that of the same store behind a proxy."""
        server = server or self.server
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

    def forget(self) -> None:
        """Begin anew, where items live no longer than the store that has them."""
        self._memory = None

    @contextmanager
    def forgetful(self, many: int = 1) -> "Iterator[tuple[list[Store], Callable[[], int]]]":
        """Several workers' stores that lose the first answer to every write; and how many were lost."""
        with ExitStack() as stack:
            # ministack takes a transaction that is sent again with its token for another one, if it puts a
            # whole number that was written as 1.0: there they are lost on this side of the wire.
            if self.name not in NETWORKED or self.name == "ministack":
                local = [Forgetful(self.open()) for _ in range(self.workers(many))]
                for each in local:
                    stack.callback(each.close)
                yield [*local], lambda: sum(len(store.known) for store in local)
                return
            proxy = stack.enter_context(ForgetfulProxy.before(self.server))
            stores = [self.open(server=proxy.url(self.server)) for _ in range(many)]
            for store in stores:
                stack.callback(store.close)
            yield stores, lambda: proxy.dropped

    @contextmanager
    def lossy(self) -> "Iterator[tuple[Store, Callable[[str], object]]]":
        """A store, and what makes it lose the answer to the next request that carries a word."""
        if self.name not in NETWORKED:
            faulty = Faulty(self.open())
            yield faulty, lambda _word: faulty.lose_reply()
            faulty.close()
            return
        with FaultProxy.before(self.server) as proxy:
            store = self.open(server=proxy.url(self.server))
            yield store, lambda word: proxy.drop_answer_to(word.encode())
            store.close()

    def _provision(self) -> None:
        from semel.provision import ProvisionTarget, provision
        from semel.tables import OWN

        tables = {table.name: table for table in (*OWN, *TABLES, *self._more)}
        target = ProvisionTarget(url=self.url(), env=self.env, tables=tuple(tables.values()), clock=Clock())
        provision(target)


class Forgetful(Faulty):
    """A store that makes every write at once, and says so only to whoever sends it again."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.known: dict[int, Stored] = {}

    def at_once(self, command: Stored) -> Any | None:
        return None if isinstance(command, WRITES) else super().at_once(command)

    def _begin(self, command: Stored) -> Fault | None:
        super()._begin(command)
        # By identity: the rules send the very same command again, and two callers may send equal ones.
        if not isinstance(command, WRITES) or id(command) in self.known:
            return None
        self.known[id(command)] = command
        return "lose reply"


class ForgetfulProxy(FaultProxy):
    """Drops the first answer to every write that carries a token: what is sent again carries the same one."""

    TOKEN = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")

    def __init__(self, host: str, port: int, *, clock: Clock | None = None) -> None:
        self._known: set[tuple[frozenset[bytes], bool]] = set()
        super().__init__(host, port, clock=clock)

    def _dooms(self, request: bytes) -> bool:
        # What is given back carries the token that it was taken under.
        what = (
            frozenset(self.TOKEN.findall(request)),
            b"refunded" in request or b"RELEASED" in request,
        )
        with self._lock:
            new = bool(what[0]) and what not in self._known
            self._known.add(what)
        return new


def open_place(
    name: str, request: pytest.FixtureRequest, folder: Path, more: tuple[Table, ...] = ()
) -> Place:
    """The place of a store, whose server is started if need be; `more` are tables beside the usual ones."""
    for variable, value in CREDENTIALS.items():
        os.environ.setdefault(variable, value)
    server = request.getfixturevalue(NETWORKED[name]) if name in NETWORKED else ""
    return Place(name, server, folder, more)
