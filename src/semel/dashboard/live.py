"""Live pages: a stream of server-sent events that says when there is something new to be seen.

An event carries a version and nothing else: a page that hears of another one fetches itself, as anybody may
who is let in to it. One task of a process reads each ledger, every other second, while anybody listens.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from logging import getLogger
from typing import Any, Final

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from semel.connect import Semel
from semel.core.events import digest
from semel.dashboard.inboxes import standing_in
from semel.dashboard.views import LedgerView
from semel.dashboard.visits import Authenticator, Visit
from semel.errors import StoreError
from semel.ops.model import Search
from semel.ops.rates import MINUTE

EVERY_SECONDS: Final = 2.0
# Nobody hears whether the server is to stop, so a stream ends by itself, and the page asks for the next one.
LIFE_SECONDS: Final = 30.0
MOST_LISTENERS: Final = 32
# What a proxy would gather until there is enough of it.
STREAM_HEADERS: Final = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
# So many of the doubts are looked at: a page shows no more.
LOOKED_AT: Final = 50
TROUBLE: Final = "trouble"


class LiveFeed:
    """Reads one ledger while anybody listens, and tells all who do when it has changed."""

    def __init__(
        self,
        s: Semel,
        view: LedgerView,
        authenticator: Authenticator,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._s, self._view, self._authenticator, self._stopping = s, view, authenticator, stopping
        self._clock = s.clock
        self._listeners: set[asyncio.Event] = set()
        self._version = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def listeners(self) -> int:
        """How many streams are open."""
        return len(self._listeners)

    async def stream(self, visit: Visit) -> Response:
        """The stream for one page."""
        if len(self._listeners) >= MOST_LISTENERS:
            return PlainTextResponse("too many pages are live already", 503, {"Retry-After": "30"})
        return StreamingResponse(self._events(visit), 200, STREAM_HEADERS, "text/event-stream")

    async def _events(self, visit: Visit) -> AsyncIterator[str]:
        listener = asyncio.Event()
        self._listeners.add(listener)
        try:
            self._begin()
            sent, until = "", self._clock.monotonic() + LIFE_SECONDS
            yield f"retry: {int(EVERY_SECONDS * 1000)}\n\n"
            while self._clock.monotonic() < until and self._goes_on(visit):
                # A comment, where there is nothing new: whoever has left is found out by it.
                yield f"event: version\ndata: {self._version}\n\n" if sent != self._version else ":\n\n"
                sent = self._version
                listener.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(listener.wait(), EVERY_SECONDS / 2)
        finally:
            self._listeners.discard(listener)

    def _goes_on(self, visit: Visit) -> bool:
        return not self._stopping() and self._authenticator.is_still(visit)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while self._listeners and not self._stopping():
            version = await self._seen()
            if version != self._version:
                self._version = version
                for listener in self._listeners:
                    listener.set()
            await asyncio.sleep(EVERY_SECONDS)

    async def _seen(self) -> str:
        """The version of what there is to see."""
        try:
            return await self.version()
        except StoreError:
            return TROUBLE
        except Exception:
            getLogger("semel").exception("live pages could not be read")
            return TROUBLE

    async def version(self) -> str:
        """A name for how things stand: another one as soon as anything has changed that pages show."""
        s, now = self._s.aio, self._clock.now()
        rates = await s.ops.rates(now - MINUTE, now)
        doubts = await s.ops.search(Search(in_doubt=True), limit=LOOKED_AT)
        inboxes = await standing_in(self._view.inboxes)
        seen: list[Any] = [rates, self._s.counted_rates(), await s.switches.list(), inboxes]
        seen += [[record.id, record.attempt] for record in doubts.records]
        # Also what says how long ago something was grows old.
        return digest(msgspec.json.encode([*seen, now // MINUTE]).decode())
