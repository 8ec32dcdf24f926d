"""Whether the service lives, and whether it can do its work."""

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from semel import errors
from semel.service.house import House
from semel.service.problems import Trouble, later

# No caller's key begins so; what is looked for is never there.
KEY = "semel:ready"


def router(house: House) -> APIRouter:
    """The addresses for whoever watches over the service."""
    routes, pulse = APIRouter(tags=["health"]), Pulse(house)

    @routes.get("/health/live")
    async def live() -> dict[str, Any]:
        """Answer, if there is anybody to answer."""
        return {"status": "live"}

    @routes.get("/health/ready")
    async def ready() -> dict[str, Any]:
        """Ask the store, and say what is wrong with it."""
        await pulse.feel()
        return {"status": "ready", "apps": [one.name for one in house.apps]}

    return routes


class Pulse:
    """Asks the stores; while they are silent, whoever comes waits for the same answer."""

    def __init__(self, house: House) -> None:
        self._stores = house.stores()
        self._seconds = house.settings.service.ready_timeout
        self._url = house.settings.semel.url
        self._file = _identity(self._url)
        self._asking: asyncio.Task[None] | None = None

    async def feel(self) -> None:
        """Nothing, where all is well; else the problem."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        # It is not cancelled: it ends when the store's own patience does.
        done, _ = await asyncio.wait({self._asking}, timeout=self._seconds)
        if not done:
            raise Trouble(later("unavailable", f"the store has not answered for {self._seconds:g} s"))
        error = self._asking.exception()
        if error is not None:
            raise Trouble(later("unavailable", f"{type(error).__name__}: {error}")) from error

    async def _ask(self) -> None:
        for s in self._stores:
            await s.aio.ledger.get(KEY)
        # An open file can be read and written though it is gone, and nobody else sees what is written there.
        if _identity(self._url) != self._file:
            raise errors.StoreUnavailable("its file was moved or replaced: put it back, or start anew")


def _identity(url: str) -> tuple[int, int] | None:
    """Which file an SQLite database is in now; None where it is gone, or where the store is no file."""
    if not url.startswith("sqlite:"):
        return None
    from semel.stores.sqlite.file import File

    try:
        found = Path(File.from_url(url).path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
