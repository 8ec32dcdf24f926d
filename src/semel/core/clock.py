"""What waits: the clock, threads, locks that signals leave unlocked, event loops, connections.

Every thread that the library starts for itself is a `BackgroundThread`, or is started by `start_thread`. None
keeps a process alive. Once the interpreter is finalizing, other threads no longer run: so none is started
then, and none is waited for. Only what starts threads imports `threading`, which `import semel` does without.

Python runs signal handlers in the main thread, between any two calls there, and what one raises goes on from
that place: from between `lock.acquire()` and its `try`, or out of the midst of `threading.Condition`, on
which the events and semaphores of the standard library stand. Two things cannot be torn: a single call of C,
and the end of a `with` block whose subject is a lock itself. All that is here is made of those two.

From Python 3.14 on, the beginning of such a block can: if a signal comes between the lock and the block,
nothing releases the lock. So what several threads share is a `SignalSafeLock`. A plain lock will do if no
other code knows of it before its block has begun.
"""

import _thread
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from semel.core.runtime import FORKING
from semel.errors import InvalidOption, UsageError

if TYPE_CHECKING:
    import asyncio
    import threading

T = TypeVar("T")

# A waiter that nothing wakes looks by itself this often: two signals may have torn away what should wake it.
PATROL_SECONDS = 0.5

# How long a connection, and each answer, is waited for. A server that is well answers within milliseconds,
# and one on a machine with far too much to do within seconds: one that is silent for longer will not answer.
ANSWER_SECONDS = 10.0
LONGEST_SECONDS = 3600.0


# Locks, events and places in a queue


class SignalSafeLock(_thread.RLock):  # type: ignore[misc]  # it is final in the stubs alone
    """A lock that its own thread may take again, and that is released wherever its `with` block is torn."""

    if sys.version_info >= (3, 14):

        def __enter__(self) -> bool:
            # After a call from Python to Python, Python does not look for signals: a thread that returns from
            # here is in the block. The end of the block is that of C's lock.
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
    """An event that any number of threads wait for, each with its own timeout."""

    def __init__(self) -> None:
        self.happened: bool = False
        self._wakeups: dict[threading.Lock, None] = {}

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self.happened

    def set(self) -> None:
        """Set it, and wake those who wait."""
        self.happened = True
        for wakeup in list(self._wakeups):
            wake(wakeup)

    def wait(self, seconds: float) -> bool:
        """Wait until it happens, at most `seconds`; return whether it has."""
        if self.happened:
            return True
        wakeup = _thread.allocate_lock()  # one that is taken: whoever acquires it again waits to be woken
        wakeup.acquire()
        self._wakeups[wakeup] = None
        try:
            if not self.happened:
                wakeup.acquire(timeout=min(max(seconds, 0.0), _thread.TIMEOUT_MAX))
        finally:
            self._wakeups.pop(wakeup, None)
        return self.happened


def wake(wakeup: "threading.Lock") -> None:
    """Wake the thread that waits for such a lock; twice is once."""
    try:
        wakeup.release()
    except RuntimeError:
        return


class Waiter:
    """A place in a queue. It is its holder's while `with waiter.held:` lasts, whatever ends that block."""

    __slots__ = ("held", "wakeup")

    def __init__(self) -> None:
        self.held: threading.Lock = _thread.allocate_lock()
        self.wakeup: threading.Lock = _thread.allocate_lock()
        self.wakeup.acquire()


class FairSemaphore:
    """A limited number of places, given to the waiters that are held in the order in which they came."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiters: dict[Waiter, None] = {}

    def acquire(self, waiter: Waiter, seconds: float) -> bool:
        """Wait for a place, at most `seconds`; `release` frees it, or the next waiter finds it free."""
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
        """Free the place, and wake the next waiter."""
        self._waiters.pop(waiter, None)
        if len(self._waiters) >= self._count:
            for waiting in list(self._waiters)[self._count - 1 : self._count]:
                wake(waiting.wakeup)

    def _has_place(self, waiter: Waiter) -> bool:
        for other in list(self._waiters):
            if other is waiter:
                break
            if not other.held.locked():  # its holder was torn away
                self._waiters.pop(other, None)
        return waiter in list(self._waiters)[: self._count]


# The clock

Awaited: TypeAlias = "SignalSafeEvent | threading.Event"

# A lease goes on while the machine sleeps, and `time.monotonic` of Linux and macOS does not.
if sys.platform == "linux":
    _monotonic = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
elif sys.platform == "darwin":
    _monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
else:
    _monotonic = time.monotonic


class Clock:
    """The machine's clock; a test uses a `FakeClock` in its place."""

    _start: float | None = None

    now: "staticmethod[[], float]" = staticmethod(time.time)
    """Seconds since the epoch; may jump."""
    monotonic: "staticmethod[[], float]" = staticmethod(_monotonic)
    """Seconds since some moment; never jumps, and goes on during sleep. Deadlines are counted on it."""

    def steady(self) -> float:
        """Seconds since the epoch when first asked, plus what has passed since; never jumps."""
        if self._start is None:
            self._start = self.now() - self.monotonic()
        return self.monotonic() + self._start

    def imposed(self) -> float | None:
        """The time that a store has to use as its own; None leaves it to the server's clock."""
        return None

    def wait(self, event: Awaited, seconds: float) -> None:
        """Return when the event is set, or after so many seconds."""
        event.wait(seconds)

    async def wait_async(self, event: "asyncio.Event", seconds: float) -> None:
        """Return when the event is set, or after so many seconds."""
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


# Threads


def start_thread(thread: "threading.Thread") -> bool:
    """Start a thread as a daemon; False if this process can have no more of them, or is ending."""
    if sys.is_finalizing():
        return False
    thread.daemon = True
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def join_thread(thread: "threading.Thread | None", seconds: float | None = None) -> None:
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
        import threading

        self._work = work
        self._wanted = wanted
        # When it is needed, Python may be ending, and import nothing any more.
        self._thread: Callable[[], threading.Thread] = partial(threading.Thread, target=self._run, name=name)
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
        return start_thread(self._thread())

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
        import threading

        # In the thread, and not where it is started: a signal may come between any two lines there.
        with self._lock:
            begins = self.thread is None and not self.stopping.happened
            if begins:
                self.thread = threading.current_thread()
            return begins

    def _end(self) -> bool:
        # In this order: work that is added before this line is seen by the next, and work that is added later
        # starts another thread.
        self.thread = None
        return self._wanted()


# Event loops


def running_loop() -> "asyncio.AbstractEventLoop":
    """Return the running event loop of asyncio, or raise a `UsageError` that names what runs instead."""
    asyncio = sys.modules.get("asyncio")  # whose loop runs, if one does
    loop = None if asyncio is None else asyncio._get_running_loop()
    if loop is not None:
        return loop  # type: ignore[no-any-return]  # sys.modules knows no types
    library = _async_library()
    where = f"this code runs under {library}" if library else "no event loop of asyncio runs here"
    remedy = f"{library}.to_thread.run_sync" if library == "trio" else "a thread"
    raise UsageError(
        f"async calls of semel need asyncio, and {where}: call the sync methods in {remedy}, or run this "
        "code with asyncio"
    )


def _async_library() -> str:
    """The name of the async library that runs this code, such as "trio"; "" where that is unknown."""
    sniffio: Any = sys.modules.get("sniffio")
    try:
        name: str = sniffio.current_async_library()
    except Exception:  # noqa: BLE001 - there is no sniffio, or it does not know
        return ""
    return "" if name == "asyncio" else name


class PerLoop(Generic[T]):
    """Makes a thing when a loop first asks for it, and closes it when that loop leaves.

    `drop` closes a thing whose loop is closed or in another thread, and so may not wait for anything.
    """

    def __init__(
        self,
        make: Callable[[], T],
        close: Callable[[T], Awaitable[None]] | None = None,
        drop: Callable[[T], None] = lambda _: None,
    ) -> None:
        self._make = make
        self._close = close
        self._drop = drop
        self._made: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """Return the running loop's."""
        asyncio = sys.modules.get("asyncio")
        made = None if asyncio is None else self._made.get(asyncio._get_running_loop())
        return self._make_here() if made is None else made

    def _make_here(self) -> T:
        loop = running_loop()
        self._forget(lambda other: other.is_closed())
        made = self._made[loop] = self._make()
        return made

    async def leave(self) -> None:
        """Close the running loop's, if it has one."""
        made = self._made.pop(running_loop(), None)
        if made is not None and self._close is not None:
            await self._close(made)

    def drop_all(self) -> None:
        """Drop all of them, whatever their loops are doing."""
        self._forget(lambda _: True)

    def _forget(self, unwanted: "Callable[[asyncio.AbstractEventLoop], bool]") -> None:
        for loop in [loop for loop in list(self._made) if unwanted(loop)]:
            made = self._made.pop(loop, None)
            if made is not None:
                self._drop(made)


def close_after_loop(transport: Any) -> None:
    """Close a transport whose event loop was closed before it.

    A closed loop no longer closes what belongs to it, and asyncio warns for ever after. It has no public way
    to do so: this is the only place that uses asyncio's private names for it.
    """
    with suppress(RuntimeError):
        transport.abort()
    wrapped = getattr(transport, "_ssl_protocol", None)
    raw = transport if wrapped is None else wrapped._transport
    if getattr(raw, "_sock", None) is not None:
        raw._sock.close()
        raw._sock = None


# Connections to servers


def timeout_of(given: str | None) -> float:
    """Return the limit that `timeout=` in a URL sets."""
    if given is None:
        return ANSWER_SECONDS
    with suppress(ValueError):
        if 0 < float(given) <= LONGEST_SECONDS:
            return float(given)
    raise InvalidOption(
        f"timeout={given!r}: it is how many seconds a connection, or an answer, is waited for, such as 10"
    )


def read_poller(connection: Any) -> Callable[..., Any]:
    """Return a function that tells whether there is data, or the end, to read within so many milliseconds."""
    import select

    if not hasattr(select, "poll"):  # Windows, where select() does as well
        return lambda milliseconds: select.select([connection], [], [], milliseconds / 1000)[0]
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return poll.poll
