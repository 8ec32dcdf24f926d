"""Watches keys: waiters for a key in this process share one read of it, and are woken by a signal."""

import random
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from semel.core.clock import Clock, SignalSafeEvent, SignalSafeLock
from semel.core.commands import Found

if TYPE_CHECKING:
    import asyncio


# A shorter wait is the end of a longer one, and is to end it.
WORTH_SPREADING = 0.05
# Numbers of its own: those of the module are the application's, which may have seeded them.
_jitter = random.Random()


class SharedWatch:
    """Several threads, or tasks of one event loop, that wait for one key: the first looks for all."""

    def __init__(self, changed: Any, done: Any) -> None:
        self.changed: Any = changed
        self.done: Any = done
        # Held by the `with` block of the thread that looks, which may be torn away.
        self.leading: threading.Lock = threading.Lock()
        self.seen: Found | None = None
        self.waiters = 1


class KeyWatchers:
    """Where `Watch` is carried out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = SignalSafeLock()
        self.watches: dict[Hashable, SharedWatch] = {}
        self.async_watches: dict[tuple[Hashable, asyncio.AbstractEventLoop], SharedWatch] = {}

    def __len__(self) -> int:
        return sum(shared.waiters for shared in (*self.watches.values(), *self.async_watches.values()))

    def notify(self, place: Hashable) -> None:
        """Wake whoever waits for this place; costs next to nothing when nobody waits at all."""
        if self.watches and (shared := self.watches.get(place)):
            shared.changed.set()
        if self.async_watches:
            for (waited_for, loop), waiting in list(self.async_watches.items()):
                if waited_for == place:
                    with suppress(RuntimeError):  # the loop was closed, and its waiters with it
                        loop.call_soon_threadsafe(waiting.changed.set)

    def watch(self, place: Hashable, seconds: float, look: Callable[[], Found]) -> Found:
        """Wait for a signal or the time, then look; or take what another waiter saw."""
        began = self._clock.monotonic()
        mine = SharedWatch(SignalSafeEvent(), SignalSafeEvent())
        with mine.leading:
            shared = self._joined(place, mine)
            if shared is not mine:
                self._clock.wait(shared.done, seconds)
                return self._timed(shared.seen or look(), began)
            try:
                self._clock.wait(mine.changed, self._spread(seconds))
                # Who comes from here on must not be given a look that may be older than its coming.
                self._end(place, mine)
                mine.seen = look()
                return self._timed(mine.seen, began)
            finally:
                self._end(place, mine)
                mine.done.set()

    def _joined(self, place: Hashable, mine: SharedWatch) -> SharedWatch:
        """The watch of those who wait for a place already; mine, where nobody does."""
        with self._lock:
            shared = self.watches.get(place)
            if shared is None or not shared.leading.locked():
                self.watches[place] = mine
                return mine
            shared.waiters += 1
            return shared

    def _end(self, place: Hashable, mine: SharedWatch) -> None:
        with self._lock:
            if self.watches.get(place) is mine:
                del self.watches[place]

    async def awatch(self, place: Hashable, seconds: float, look: Callable[[], Awaitable[Found]]) -> Found:
        """Wait in a task for a signal or the time, then look; or take what another task of its loop saw."""
        import asyncio

        # A loop runs one task at a time, so no lock is needed.
        began = self._clock.monotonic()
        loop = asyncio.get_running_loop()
        name = (place, loop)
        if shared := self.async_watches.get(name):
            shared.waiters += 1
            await self._clock.wait_async(shared.done, seconds)
            return self._timed(shared.seen or await look(), began)
        shared = self.async_watches[name] = SharedWatch(asyncio.Event(), asyncio.Event())
        try:
            await self._clock.wait_async(shared.changed, self._spread(seconds))
            self.async_watches.pop(name, None)
            shared.seen = await look()
            return self._timed(shared.seen, began)
        finally:
            if self.async_watches.get(name) is shared:
                del self.async_watches[name]
            shared.done.set()

    def _spread(self, seconds: float) -> float:
        """Somewhat less than asked, so that waiters of many processes do not all look at once."""
        return seconds if seconds < WORTH_SPREADING else seconds * _jitter.uniform(0.7, 1.0)

    def _timed(self, found: Found, began: float) -> Found:
        return msgspec.structs.replace(found, waited=self._clock.monotonic() - began)
