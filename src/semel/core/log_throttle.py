"""Limits log lines: those with one cause are logged once a minute, and counted in between."""

from math import inf

from semel.core.clock import Clock
from semel.core.locks import SignalSafeLock

# While a store is away, every call would say so.
THROTTLE_SECONDS = 60.0
# Causes are names of errors. Should somebody make them up as he goes, they are forgotten rather than kept.
MOST_CAUSES = 1000


class LogThrottle:
    """Lets one warning a minute pass for each cause, and counts the others."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._passed: dict[str, tuple[float, int]] = {}
        # Not a plain lock: a signal's handler may do work of its own in the midst of a call.
        self._lock = SignalSafeLock()

    def __call__(self, cause: str) -> int | None:
        """How many were left out since the last one that passed; None where this one is left out too."""
        with self._lock:
            now = self._monotonic()
            last, count = self._passed.get(cause, (-inf, 0))
            if now - last < THROTTLE_SECONDS:
                self._passed[cause] = last, count + 1
                return None
            if len(self._passed) >= MOST_CAUSES:
                self._passed.clear()
            self._passed[cause] = now, 0
            return count
