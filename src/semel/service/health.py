"""Whether the service is alive, and whether it is ready to work."""

import asyncio
import shlex
from collections.abc import Callable
from contextlib import closing
from logging import getLogger
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from semel import errors
from semel.connect import Semel
from semel.core.commands import After, Get, Put, read, write
from semel.core.drive import adrive
from semel.core.keys import prefix
from semel.model import PROVISION, Problem
from semel.service.problems import ProblemError, later
from semel.service.runtime import Runtime
from semel.tables import LEDGER, Kind, Table
from semel.tables.mapping import asked

# No caller's key begins so; what is looked for is never there.
KEY = "semel:ready"
# The stores whose tables somebody has to make; the others make theirs as they need them.
PROVISIONED = ("dynamodb:", "postgres")
# The TTL of tables in DynamoDB is asked for once in so many seconds, as few such requests are allowed.
TTL_SECONDS = 600.0
# Whether an SQLite file can be written is tried once in so many seconds, however often anybody asks.
TRY_SECONDS = 1.0


def router(runtime: Runtime, failing: Callable[[], str] | None = None) -> APIRouter:
    """The addresses for whoever watches over the service; `failing` says what is wrong with its workers."""
    routes, readiness = APIRouter(tags=["health"]), ReadinessCheck(runtime)

    @routes.get("/health/live", operation_id="live")
    async def live() -> dict[str, Any]:
        """Answer, if there is anybody to answer."""
        return {"status": "live"}

    @routes.get("/health/ready", operation_id="ready")
    async def ready() -> dict[str, Any]:
        """Ask the store for every table that is needed, and say what is wrong with it."""
        await readiness.check()
        if failing is not None and (wrong := failing()):
            raise ProblemError(later("unavailable", wrong))
        found: dict[str, Any] = {"status": "ready", "apps": [one.name for one in runtime.apps]}
        return found | ({"warnings": readiness.warnings} if readiness.warnings else {})

    return routes


class ReadinessCheck:
    """Asks the stores whether they answer; while they are silent, whoever comes waits for the same answer."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._asks = _asks(runtime)
        self._written = float("-inf")
        self._ttl_asked = float("-inf")
        self.warnings: list[str] = []
        """What is wrong with the tables, though they can be used."""
        self._seconds = runtime.settings.service.ready_timeout
        self._url = runtime.settings.semel.url
        self._file = _identity(self._url)
        self._asking: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Nothing, where all is well; else the problem."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        # It is not cancelled: it ends when the store's own patience does.
        done, _ = await asyncio.wait({self._asking}, timeout=self._seconds)
        if not done:
            raise ProblemError(later("unavailable", f"the store has not answered for {self._seconds:g} s"))
        error = self._asking.exception()
        if error is not None:
            raise ProblemError(later("unavailable", f"{type(error).__name__}: {error}")) from error

    async def _ask(self) -> None:
        asked = [adrive(read(nothing(s, table)), s.store, s.events.failed) for s, table in self._asks]
        found = await asyncio.gather(*asked, return_exceptions=True)
        self._check(found)
        if self._url.startswith("sqlite:"):
            await self._check_file()
        if self._url.startswith("dynamodb:"):
            await self._check_ttl()

    def _check(self, found: list[Any]) -> None:
        """Raise what went wrong; of tables that are missing, all at once."""
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, errors.TableMissing):
                raise error
        asked = zip(self._asks, found, strict=True)
        missing = [(table.name, error) for (_, table), error in asked if isinstance(error, Exception)]
        if missing:
            names = ", ".join(dict.fromkeys(name for name, _ in missing))
            raise errors.TableMissing(f"not every table is there ({names}): {self._provision}")

    @property
    def _provision(self) -> str:
        """What makes the tables as they should be."""
        file = self._runtime.configuration.file
        config = f" --config {shlex.quote(file)}" if file not in ("", "semel.toml") else ""
        return f"run: semel provision{config}"

    async def _check_ttl(self) -> None:
        """Note which tables delete nothing that has expired, and which cannot be asked."""
        monotonic = self._runtime.s.clock.monotonic
        if monotonic() - self._ttl_asked < TTL_SECONDS:
            return
        try:
            problems = await asyncio.to_thread(_ttl_problems, self._runtime)
            found = [f"{one.what}: {one.remedy.replace(PROVISION, self._provision)}" for one in problems]
        except errors.StoreError as error:
            found = [f"TTL is not known: {error}"]
        for warning in found:
            if warning not in self.warnings:
                getLogger("semel").warning("tables: %s", warning)
        self.warnings, self._ttl_asked = found, monotonic()

    async def _check_file(self) -> None:
        from semel.stores.sqlite.file import LEAST_ROOM, SQLiteFile

        # An open file can be read and written though it is gone, and nobody else sees what is written there.
        if _identity(self._url) != self._file:
            raise errors.StoreUnavailable("its file was moved or replaced: put it back, or start anew")
        room = SQLiteFile.from_url(self._url).room()
        if room < LEAST_ROOM:
            raise errors.StoreUnavailable(f"its disk is full, but for {room:,} bytes: make room there")
        s = self._runtime.s
        if s.clock.monotonic() - self._written >= TRY_SECONDS:
            trial = {"status": "COMPLETED", "expires_at": After(60)}
            await adrive(write(Put(LEDGER, KEY, trial)), s.store, s.events.failed)
            self._written = s.clock.monotonic()


def _asks(runtime: Runtime) -> list[tuple[Semel, Table]]:
    """Every table that has to be there, and in which store."""
    if not runtime.settings.semel.url.startswith(PROVISIONED):
        return [(s, LEDGER) for s in runtime.stores()]
    return [(s, table) for s, tables in runtime.tables() for table in tables]


def _ttl_problems(runtime: Runtime) -> list[Problem]:
    from semel.provision.dynamodb import expiry_problems
    from semel.stores.dynamodb.address import parse
    from semel.stores.dynamodb.store import transport_of

    chosen = runtime.settings.semel
    tables = dict.fromkeys(table for _, tables in runtime.tables() for table in tables)
    with closing(transport_of(parse(chosen.url), runtime.s.clock)) as client:
        return expiry_problems(client, tables, chosen.env)


def nothing(s: Semel, table: Table) -> Get:
    """A read of something that is not there, by which it shows whether the table is."""
    held = asked(table)
    sort = None if held.sort is None else 0 if held.kinds[held.sort] is Kind.NUMBER else KEY
    return Get(held, prefix(s.env, "") + KEY, sort)


def _identity(url: str) -> tuple[int, int] | None:
    """Which file an SQLite database is in now; None where it is gone, or where the store is no file."""
    if not url.startswith("sqlite:"):
        return None
    from semel.stores.sqlite.file import SQLiteFile

    try:
        found = Path(SQLiteFile.from_url(url).path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
