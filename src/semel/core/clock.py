"""The clock: one small object, so that tests can move the time instead of sleeping."""

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


class Awaited(Protocol):
    """What a thread can wait for, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it has happened."""
        ...

    def wait(self, seconds: float, /) -> object:
        """Wait until it happens, or for so many seconds."""
        ...


# A lease goes on while the machine sleeps, and `time.monotonic` of Linux and macOS does not.
if sys.platform == "linux":
    _monotonic = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
elif sys.platform == "darwin":
    _monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
else:
    _monotonic = time.monotonic


class Clock:
    """The machine's clock; a test gives a `FakeClock` in its place."""

    _start: float | None = None

    now: "staticmethod[[], float]" = staticmethod(time.time)
    """Seconds since the epoch; may jump."""

    def steady(self) -> float:
        """Seconds since the epoch as first told, plus what has passed since; never jumps."""
        if self._start is None:
            self._start = self.now() - self.monotonic()
        return self.monotonic() + self._start

    def imposed(self) -> float | None:
        """The time that a store is to take for its own; None leaves it to the server's clock."""
        return None

    monotonic: "staticmethod[[], float]" = staticmethod(_monotonic)
    """Seconds since some moment; never jumps, and goes on during sleep. Deadlines are counted on it."""

    def wait(self, event: Awaited, seconds: float) -> None:
        """Return when the event is set, or after so many seconds."""
        event.wait(seconds)

    async def wait_async(self, event: "asyncio.Event", seconds: float) -> None:
        """Return when the event is set, or after so many seconds."""
        import asyncio

        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return
