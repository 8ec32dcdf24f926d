"""Keeping another system's limits: who comes too early waits, and those who wait go out together."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from semel.clock import Clock

T = TypeVar("T")


class Bucket:
    """At most so much in any span of that many seconds, with a share of it at once and the rest evenly.

    A bucket of `burst` that is filled up at an even rate lets through `burst` and what the rate brings in a
    span: together that is the limit, wherever the span begins.
    """

    def __init__(self, most: float, span: float, burst: float, clock: Clock) -> None:
        self._burst, self._rate, self._clock = burst, (most - burst) / span, clock
        self._left, self._at = burst, clock.monotonic()

    def wait(self, amount: float) -> float:
        """How many seconds there are until so much may go."""
        now = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (amount - self._left) / self._rate)

    def take(self, amount: float) -> None:
        """So much goes now, or as soon as it may: whoever comes next waits for that too."""
        self._left -= amount


class Group(Generic[T]):
    """What several callers send in one request."""

    def __init__(self, error: Exception) -> None:
        self.items: list[T] = []
        self.callers = 0
        self.done = threading.Event()
        self.error: Exception | None = error
        """Until it is known to have gone well."""


class Together(Generic[T]):
    """Sends what callers bring; those who come while a request waits for its turn send theirs with it.

    `turn` is entered before a request, and waits until it may go. Each caller is told what became of its own:
    all that went out together went well, or ended in the same error; `lost` where a request was broken off.
    `apart` is what may be the doing of one of them: then nothing went, and each sends its own alone.
    """

    def __init__(
        self,
        send: Callable[[Sequence[T]], Any],
        turn: Callable[[], AbstractContextManager[Any]],
        most: int,
        lost: Callable[[], Exception],
        apart: tuple[type[Exception], ...] = (),
    ) -> None:
        self._send, self._turn, self._most, self._lost, self._apart = send, turn, most, lost, apart
        self._lock = threading.Lock()
        self._open: Group[T] | None = None

    def send(self, items: Sequence[T]) -> None:
        """Send these, with others or alone; at most as many as one request takes."""
        with self._lock:
            group = self._open
            leads = group is None or len(group.items) + len(items) > self._most
            if group is None or leads:
                group = self._open = Group(self._lost())
            group.items += items
            group.callers += 1
        if leads:
            self._lead(group)
        else:
            group.done.wait()
        if group.callers > 1 and isinstance(group.error, self._apart):
            with self._turn():
                self._send(items)
        elif group.error is not None:
            raise group.error

    def _lead(self, group: Group[T]) -> None:
        try:
            with self._turn():
                self._close(group)
                self._send(group.items)
            group.error = None
        except Exception as error:  # noqa: BLE001 - whatever it is, everybody in the group is told
            group.error = error
        finally:
            self._close(group)
            group.done.set()

    def _close(self, group: Group[T]) -> None:
        """Nobody joins it any more."""
        with self._lock:
            if self._open is group:
                self._open = None
