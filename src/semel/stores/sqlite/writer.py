"""The writer: writes that come at the same time share a transaction, and so one wait for the disk.

There is no thread for it. Whoever wants to write puts its command into the queue; if nobody leads, it leads:
it carries out everything that is queued in one transaction, gives each its reply once that is committed, and
wakes the next one if more has come meanwhile. The others wait for their reply. Where the next one is a task
of an event loop, a thread of the store leads in its stead.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from semel.errors import StoreClosed, StoreError, StoreOutcomeUnknown, StoreUnavailable, UsageError
from semel.stores.sqlite.clerk import Clerk
from semel.stores.sqlite.file import BUSY_SECONDS, NOT_COMMITTED, File, code_of, doubtful, translated
from semel.stores.sqlite.turns import Turns

if TYPE_CHECKING:
    import asyncio

# A transaction of this many takes a few milliseconds, which is as long as anyone should wait behind others.
SHARED = 512
# Nobody needs to wake up by himself. Should a leader be torn away by two interrupts at once, its followers
# find out after this many seconds.
PATROL_SECONDS = 1.0
# Whether the file is still there is asked by who has not written for so long: to ask takes a twentieth of a
# write, and a file that is moved away is so at some moment between two writes in any case.
SURE_SECONDS = 0.002

# What one command alone can be the cause of. Anything else that is raised came from outside, as a signal.
ITS_OWN_FAULT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, sqlite3.Error)


class Job:
    """A command on its way through a transaction, and who waits for it: a thread, or a task of a loop."""

    __slots__ = ("bell", "command", "error", "future", "loop", "reply", "settled", "taken")

    def __init__(
        self,
        command: Any,
        loop: "asyncio.AbstractEventLoop | None" = None,
        future: "asyncio.Future[None] | None" = None,
    ) -> None:
        self.command = command
        self.reply: Any = None
        self.error: Exception | None = None
        self.taken = False
        self.settled = False
        self.loop = loop
        self.future = future
        self.bell = threading.Lock()
        self.bell.acquire()

    def wake(self) -> None:
        """Wake the thread; waking it twice is waking it once."""
        try:
            self.bell.release()
        except RuntimeError:
            return

    def answer(self) -> Any:
        """What came of it."""
        if self.error is not None:
            raise self.error
        return self.reply


class Writer:
    """The one connection that writes, and the queue before it."""

    def __init__(
        self,
        file: File,
        clerk: Clerk,
        now: Callable[[], float],
        hire: Callable[[Callable[[], None]], None],
        written: Callable[[Job], None],
    ) -> None:
        self._file = file
        self._clerk = clerk
        self._now = now
        self._hire = hire
        self._written = written
        self._closed = False
        self._born: tuple[int, int] | None = None
        self._sure_until = 0.0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._queue: deque[Job] = deque()
        self._turn = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._turns = Turns(self._file.path, BUSY_SECONDS)
        self._serving = False
        self._paused = False

    # Waiting for a reply

    def submit(self, command: Any) -> Any:
        """Carry a command out, and answer it once it is durable."""
        job = Job(command)
        try:
            self._enqueue(job)
            while not job.settled:
                if not self._lead(job):
                    job.bell.acquire(timeout=PATROL_SECONDS)
        except BaseException:
            self._withdraw(job)
            raise
        return job.answer()

    async def asubmit(self, command: Any) -> Any:
        """The same for a task; a thread of the store leads for it."""
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        job = Job(command, loop, future)
        try:
            self._enqueue(job)
            self._call_server()
            await future
        except BaseException:
            self._withdraw(job)
            raise
        return job.answer()

    def _enqueue(self, job: Job) -> None:
        if self._closed:
            raise StoreClosed("the store was closed")
        self._queue.append(job)

    def _withdraw(self, job: Job) -> None:
        """Nobody waits for it any more: unless it was begun, it is not made."""
        with suppress(ValueError):
            self._queue.remove(job)
        self._pass_on()

    # Leading

    def _lead(self, job: Job | None = None) -> bool:
        """Carry out what is queued, unless somebody is doing so; whoever is will look at the queue again."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if job is None or not job.taken:
                self._transact()
            elif not job.settled:
                job.error = StoreOutcomeUnknown("the thread that was writing this was torn away")
                job.settled = True
        finally:
            self._turn.release()
            self._pass_on()
        return True

    def _pass_on(self) -> None:
        """Let the first in the queue lead, if it is not being led already."""
        if self._closed:
            self._refuse(self._take(), StoreClosed("the store was closed"))
            return
        try:
            first = self._queue[0]
        except IndexError:
            return
        if first.loop is None:
            first.wake()
        else:
            self._call_server()

    def _call_server(self) -> None:
        if self._serving:
            return
        self._serving = True
        try:
            self._hire(self._serve)
        except StoreError as error:
            self._serving = False
            self._refuse(self._take(), error)

    def _serve(self) -> None:
        """Lead for tasks, for as long as there is anything to do."""
        try:
            while self._queue and self._lead():
                pass
        except BaseException as error:
            # There is no caller here to raise it to.
            self._refuse(self._take(), StoreUnavailable(f"the store's thread failed: {error!r}"))
            raise
        finally:
            self._serving = False
            # Whoever came before that line relied on this thread.
            self._pass_on()

    def _take(self) -> list[Job]:
        batch: list[Job] = []
        queue = self._queue
        try:
            while queue and len(batch) < SHARED:
                batch.append(queue.popleft())
                batch[-1].taken = True
        except IndexError:  # the last one withdrew in this very moment
            pass
        return batch

    # One transaction

    def _transact(self) -> None:
        """Carry out what is queued and settle it, one way or the other. The turn is held."""
        batch: list[Job] = []
        committing = False
        try:
            cursor = self._begin()
            batch = self._take()
            self._carry_out(cursor, batch)
            committing = True
            cursor.execute("COMMIT")
        except (sqlite3.Error, StoreClosed, StoreUnavailable) as error:
            self._undo()
            self._fail(batch or self._take(), error, committing)
            if code_of(error) not in NOT_COMMITTED:
                self._disconnect()
            return
        except BaseException:
            # An interrupt, which is none of the others' business.
            if self._undo() or not committing:
                self._give_back(batch)
            else:
                self._settle(batch)
            raise
        self._settle(batch)

    def _begin(self) -> sqlite3.Cursor:
        if self._closed:
            raise StoreClosed("the store was closed")
        now = time.monotonic()
        if now >= self._sure_until:
            self._check_file()
            self._sure_until = now + SURE_SECONDS
        if self._connection is None:
            self._connection = self._file.writer()
            self._born = self._born or self._file.identity()
            # Who waits stands in line, and does not have SQLite ask at its own intervals.
            self._connection.execute("PRAGMA busy_timeout = 0")
        return self._turns.begin(self._connection)

    def _check_file(self) -> None:
        if self._born not in (None, self._file.identity()):
            # Whoever opened it since has another one, and both would let the same work run.
            raise StoreUnavailable(
                f"{self._file.path} is not the file that was opened: it was moved away, or replaced. Put it "
                "back, or start anew"
            )

    def _carry_out(self, cursor: sqlite3.Cursor, batch: list[Job]) -> None:
        # Read once, with the write lock held: no transaction decides by an earlier time than the one before
        # it did, and nothing in this one sees another's write come from the future.
        now = self._now()
        for job in batch:
            try:
                job.error = None
                job.reply = self._clerk.carry_out(cursor, job.command, now)
            except ITS_OWN_FAULT as error:
                job.error = translated(error, self._file.path)
                if isinstance(error, sqlite3.Error) and not isinstance(job.error, UsageError):
                    raise
        self._clerk.tidy(cursor, now)

    def _settle(self, batch: list[Job]) -> None:
        try:
            # Before the writers are told: whoever is told and then waits is not to be woken by its own write.
            for job in batch:
                self._written(job)
            settle(batch)
        except BaseException:
            settle(batch)
            raise

    def _fail(self, batch: list[Job], error: Exception, committing: bool) -> None:
        told = doubtful if committing else translated
        for job in batch:
            # Each has an error of its own: raised in two threads, one would grow two tracebacks.
            self._refuse([job], told(error, self._file.path))

    def _refuse(self, batch: list[Job], error: Exception) -> None:
        for job in batch:
            job.error = job.error or error
        settle(batch)

    def _give_back(self, batch: list[Job]) -> None:
        for job in reversed(batch):
            job.taken = False
            self._queue.appendleft(job)

    def _undo(self) -> bool:
        """Leave no transaction open; whether there was one."""
        connection = self._connection
        if connection is None or not connection.in_transaction:
            return False
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Closing ends it too, and the next one opens another.
            self._disconnect()
        return True

    # Ends

    def close(self) -> None:
        """Wait for the transaction under way, and refuse what has not begun."""
        self._closed = True
        with self._turn:
            self._disconnect()
            self._turns.close()
        self._pass_on()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def pause(self, seconds: float) -> None:
        """Before a fork: wait for the transaction under way and begin none until `resume`."""
        self._paused = self._turn.acquire(timeout=seconds)
        if self._paused:
            self._disconnect()

    def resume(self) -> None:
        """After a fork, in the parent."""
        if self._paused:
            self._turn.release()
        self._pass_on()

    def abandon(self) -> sqlite3.Connection | None:
        """After a fork, in the child: begin anew; what is still open belongs to the parent."""
        inherited = self._connection
        self._turns.close()
        self._begin_anew()
        return inherited


def settle(batch: list[Job]) -> None:
    """Tell everyone that waits; telling twice is telling once."""
    abroad: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in batch:
        job.settled = True
        if job.loop is None:
            job.wake()
        else:
            abroad.setdefault(job.loop, []).append(job)
    for loop, jobs in abroad.items():
        try:
            loop.call_soon_threadsafe(_deliver, jobs)
        except RuntimeError:  # the loop was closed, and its tasks with it
            continue


def _deliver(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future is not None and not job.future.done():
            job.future.set_result(None)
