"""The waiting room: waiters for a key in this process share one read of it, and are woken by a signal."""

import random
import threading
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING

import msgspec

from semel.core.clock import Clock
from semel.core.commands import Found
from semel.core.locks import SignalSafeEvent

if TYPE_CHECKING:
    import asyncio


# A shorter wait is the end of a longer one, and is to end it.
WORTH_SPREADING = 0.05


class Vigil:
    """Several threads that wait for one key: the first looks, the others get what it saw."""

    def __init__(self) -> None:
        self.led: threading.Lock = threading.Lock()
        """Held by the `with` block of the one that looks, which may be torn away."""
        self.bell: SignalSafeEvent = SignalSafeEvent()
        self.over: SignalSafeEvent = SignalSafeEvent()
        self.seen: Found | None = None
        self.waiters = 1


class AsyncVigil:
    """Several tasks of one event loop that wait for one key: the first looks, the others get what it saw."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        import asyncio

        self.loop = loop
        self.bell: asyncio.Event = asyncio.Event()
        self.over: asyncio.Event = asyncio.Event()
        self.seen: Found | None = None
        self.waiters = 1

    def ring(self) -> None:
        """Wake them, from whichever thread."""
        try:
            self.loop.call_soon_threadsafe(self.bell.set)
        except RuntimeError:  # the loop was closed, and its waiters with it
            return


class WaitingRoom:
    """Where `Watch` is carried out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.vigils: dict[Hashable, Vigil] = {}
        self.async_vigils: dict[tuple[Hashable, int], AsyncVigil] = {}
        self._jitter = random.Random()

    def __len__(self) -> int:
        """How many wait."""
        vigils: list[Vigil | AsyncVigil] = [*self.vigils.values(), *self.async_vigils.values()]
        return sum(vigil.waiters for vigil in vigils)

    def ring(self, place: Hashable) -> None:
        """Wake whoever waits for this place; costs next to nothing when nobody waits at all."""
        if self.vigils and (vigil := self.vigils.get(place)):
            vigil.bell.set()
        if self.async_vigils:
            for (waited_for, _), watch in list(self.async_vigils.items()):
                if waited_for == place:
                    watch.ring()

    def watch(self, place: Hashable, seconds: float, look: Callable[[], Found]) -> Found:
        """Wait for the bell or the time, then look; or take what another waiter saw."""
        began = self._clock.monotonic()
        mine = Vigil()
        with mine.led:
            vigil = self._joined(place, mine)
            if vigil is not mine:
                self._clock.wait(vigil.over, seconds)
                return self._timed(vigil.seen or look(), began)
            try:
                self._clock.wait(mine.bell, self._spread(seconds))
                # Who comes from here on must not be given a look that may be older than its coming.
                self._end(place, mine)
                mine.seen = look()
                return self._timed(mine.seen, began)
            finally:
                self._end(place, mine)
                mine.over.set()

    def _joined(self, place: Hashable, mine: Vigil) -> Vigil:
        """The vigil of those who wait for a place already; mine, where nobody does."""
        with self._lock:
            vigil = self.vigils.get(place)
            if vigil is None or not vigil.led.locked():
                self.vigils[place] = mine
                return mine
            vigil.waiters += 1
            return vigil

    def _end(self, place: Hashable, mine: Vigil) -> None:
        with self._lock:
            if self.vigils.get(place) is mine:
                del self.vigils[place]

    async def awatch(self, place: Hashable, seconds: float, look: Callable[[], Awaitable[Found]]) -> Found:
        """Wait in a task for the bell or the time, then look; or take what another task of its loop saw."""
        import asyncio

        # A loop runs one task at a time, so no lock is needed.
        began = self._clock.monotonic()
        loop = asyncio.get_running_loop()
        name = (place, id(loop))
        if vigil := self.async_vigils.get(name):
            vigil.waiters += 1
            await self._clock.wait_async(vigil.over, seconds)
            return self._timed(vigil.seen or await look(), began)
        vigil = self.async_vigils[name] = AsyncVigil(loop)
        try:
            await self._clock.wait_async(vigil.bell, self._spread(seconds))
            self.async_vigils.pop(name, None)
            vigil.seen = await look()
            return self._timed(vigil.seen, began)
        finally:
            if self.async_vigils.get(name) is vigil:
                del self.async_vigils[name]
            vigil.over.set()

    def _spread(self, seconds: float) -> float:
        """Somewhat less than asked, so that waiters of many processes do not all look at once."""
        return seconds if seconds < WORTH_SPREADING else seconds * self._jitter.uniform(0.7, 1.0)

    def _timed(self, found: Found, began: float) -> Found:
        return msgspec.structs.replace(found, waited=self._clock.monotonic() - began)
