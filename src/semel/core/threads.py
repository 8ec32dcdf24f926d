"""Background threads, and locks that an exception from a signal handler leaves unlocked.

Every thread that the library starts for itself is a `BackgroundThread`, or is started by `start_thread`. None
keeps a process alive. Once the interpreter is finalizing, other threads no longer run: so none is started
then, and none is waited for.

Python runs signal handlers in the main thread, between any two calls there, and what one raises goes on from
that place: from between `lock.acquire()` and its `try`, or out of the midst of `threading.Condition`, on
which the events and semaphores of the standard library stand. Two things cannot be torn: a single call of C,
and the end of a `with` block whose subject is a lock itself. All that is here is made of those two.

From Python 3.14 on, the beginning of such a block can: a signal may come when its lock is taken and the block
has not begun, and then nothing gives the lock back. So what several threads share is a `SignalSafeLock`. A
plain lock will do where nobody else knows of it before its block has begun.
"""

import _thread
import sys
import threading
import time
from collections.abc import Callable

from semel.core.runtime import FORKING

# Nobody needs to wake up by himself. Whoever should have woken him may have been torn away by two signals.
PATROL_SECONDS = 0.5


class SignalSafeLock(_thread.RLock):  # type: ignore[misc]  # it is final in the stubs alone
    """A lock that its own thread may take again, and that is given back wherever its `with` block is torn."""

    if sys.version_info >= (3, 14):

        def __enter__(self) -> bool:
            # After a call from Python to Python it does not look for signals: who returns from here is in the
            # block. The end of the block is that of C's lock.
            try:
                self.acquire()
            except BaseException:
                try:  # noqa: SIM105 - to make a `suppress` is a call, after which the next signal may come
                    self.release()
                except RuntimeError:  # it was waited for, and not taken
                    pass
                raise
            return True


class SignalSafeEvent:
    """An event that any number of threads wait for, each with an end of its own."""

    def __init__(self) -> None:
        self.happened = False
        self._wakeups: dict[threading.Lock, None] = {}

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self.happened

    def set(self) -> None:
        """It has happened: wake those who wait."""
        self.happened = True
        for wakeup in list(self._wakeups):
            wake(wakeup)

    def clear(self) -> None:
        """Wait for the next time."""
        self.happened = False

    def wait(self, seconds: float) -> bool:
        """Whether it happens within so many seconds."""
        if self.happened:
            return True
        wakeup = acquired_lock()
        self._wakeups[wakeup] = None
        try:
            if not self.happened:
                wakeup.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        finally:
            self._wakeups.pop(wakeup, None)
        return self.happened


def acquired_lock() -> threading.Lock:
    """A lock that is taken, so that whoever takes it once more waits until he is woken."""
    wakeup = threading.Lock()
    wakeup.acquire()
    return wakeup


def wake(wakeup: threading.Lock) -> None:
    """Wake whoever waits for such a lock; twice is once."""
    try:
        wakeup.release()
    except RuntimeError:
        return


class Waiter:
    """A place in a queue. It is its holder's while `with waiter.held:` lasts, whatever ends that block."""

    __slots__ = ("held", "wakeup")

    def __init__(self) -> None:
        self.held: threading.Lock = threading.Lock()
        self.wakeup: threading.Lock = acquired_lock()


class FairSemaphore:
    """So many places, given in the order of coming to the waiters that are held."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiters: dict[Waiter, None] = {}

    def __len__(self) -> int:
        """How many have a place, or wait for one."""
        return len(self._waiters)

    def acquire(self, waiter: Waiter, seconds: float) -> bool:
        """Wait for a place, so long at most. It is given back by `release`, or found free by the next."""
        self._waiters[waiter] = None
        if len(self._waiters) <= self._count:
            return True
        end = time.monotonic() + seconds
        while not self._has_place(waiter):
            left = end - time.monotonic()
            if left <= 0:
                self.release(waiter)
                return False
            waiter.wakeup.acquire(timeout=min(left, PATROL_SECONDS))
        return True

    def release(self, waiter: Waiter) -> None:
        """Give the place back, and call whoever is the next to have one."""
        self._waiters.pop(waiter, None)
        if len(self._waiters) >= self._count:
            for waiting in list(self._waiters)[self._count - 1 : self._count]:
                wake(waiting.wakeup)

    def _has_place(self, waiter: Waiter) -> bool:
        ahead = 0
        for other in list(self._waiters):
            if other is waiter:
                break
            if other.held.locked():
                ahead += 1
            else:  # its holder was torn away
                self._waiters.pop(other, None)
        return ahead < self._count


def start_thread(thread: threading.Thread) -> bool:
    """Start a thread as a daemon; False if this process can have no more of them, or is ending."""
    if sys.is_finalizing():
        return False
    thread.daemon = True
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def join_thread(thread: threading.Thread | None, seconds: float | None = None) -> None:
    """Wait until a thread has ended, if it was started and this process is not ending."""
    if thread is not None and not sys.is_finalizing():
        thread.join(seconds)


class BackgroundThread:
    """A thread that starts when it is first needed, and again when it is needed after a failure or a fork.

    `work` returns when it has nothing to do, or after `stopping` is set. If it is `wanted`, it starts again.
    """

    def __init__(
        self, name: str, work: Callable[[], None], wanted: Callable[[], bool] = lambda: False
    ) -> None:
        self.stopping: SignalSafeEvent = SignalSafeEvent()
        self._name = name
        self._work = work
        self._wanted = wanted
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: the parent's thread is not here."""
        self._lock = SignalSafeLock()
        self.thread: threading.Thread | None = None

    def start(self) -> bool:
        """Start it unless it runs or was stopped; False if no thread can be started."""
        if self.thread is not None or self.stopping.happened:
            return True
        return start_thread(threading.Thread(target=self._run, name=self._name))

    def stop(self) -> None:
        """Ask it to end, and start it no more."""
        with self._lock:
            self.stopping.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait until it has ended."""
        join_thread(self.thread, seconds)

    def _run(self) -> None:
        while self._begin():
            try:
                self._work()
            except BaseException:
                if self._end():
                    self.start()
                raise
            if not self._end():
                return

    def _begin(self) -> bool:
        # In the thread, and not where it is started: a signal may come between any two lines there.
        with self._lock:
            if self.thread is not None or self.stopping.happened:
                return False
            self.thread = threading.current_thread()
            return True

    def _end(self) -> bool:
        # In this order: work that is added before this line is seen by the next, and work that is added later
        # starts another thread.
        self.thread = None
        return self._wanted()
