"""Locks for threads that an exception from a signal handler leaves unlocked.

Python runs signal handlers in the main thread, between any two calls there, and what one raises goes on from
that place: from between `lock.acquire()` and its `try`, or out of the midst of `threading.Condition`, on
which the events and semaphores of the standard library stand. Two things cannot be torn: a single call of C,
and the end of a `with` block whose subject is a lock itself. All that is here is made of those two.
"""

import threading
import time

# Nobody needs to wake up by himself. Whoever should have woken him may have been torn away by two signals.
PATROL_SECONDS = 0.5


class SignalSafeEvent:
    """An event that any number of threads wait for, each with an end of its own."""

    def __init__(self) -> None:
        self._is_set = False
        self._bells: dict[threading.Lock, None] = {}

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """It has happened: wake those who wait."""
        self._is_set = True
        for bell in list(self._bells):
            ring(bell)

    def clear(self) -> None:
        """Wait for the next time."""
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Whether it happens within so many seconds."""
        if self._is_set:
            return True
        bell = silent()
        self._bells[bell] = None
        try:
            if not self._is_set:
                bell.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        finally:
            self._bells.pop(bell, None)
        return self._is_set


def silent() -> threading.Lock:
    """A bell: a lock that is taken, which whoever waits for it takes once more."""
    bell = threading.Lock()
    bell.acquire()
    return bell


def ring(bell: threading.Lock) -> None:
    """Wake whoever waits for a bell; ringing it twice is ringing it once."""
    try:
        bell.release()
    except RuntimeError:
        return


class Waiter:
    """A place in a queue. It is its holder's while `with ticket.held:` lasts, whatever ends that block."""

    __slots__ = ("bell", "held")

    def __init__(self) -> None:
        self.held: threading.Lock = threading.Lock()
        self.bell: threading.Lock = silent()


class FairSemaphore:
    """So many places, given in the order of coming to those whose tickets are held."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tickets: dict[Waiter, None] = {}

    def __len__(self) -> int:
        """How many have a place, or wait for one."""
        return len(self._tickets)

    def enter(self, ticket: Waiter, seconds: float) -> bool:
        """Wait for a place, so long at most. It is given back by `leave`, or else found free by the next."""
        self._tickets[ticket] = None
        if len(self._tickets) <= self._count:
            return True
        end = time.monotonic() + seconds
        while not self._has_place(ticket):
            left = end - time.monotonic()
            if left <= 0:
                self.leave(ticket)
                return False
            ticket.bell.acquire(timeout=min(left, PATROL_SECONDS))
        return True

    def leave(self, ticket: Waiter) -> None:
        """Give the place back, and call whoever is the next to have one."""
        self._tickets.pop(ticket, None)
        if len(self._tickets) >= self._count:
            for waiting in list(self._tickets)[self._count - 1 : self._count]:
                ring(waiting.bell)

    def _has_place(self, ticket: Waiter) -> bool:
        ahead = 0
        for other in list(self._tickets):
            if other is ticket:
                break
            if other.held.locked():
                ahead += 1
            else:  # its holder was torn away
                self._tickets.pop(other, None)
        return ahead < self._count
