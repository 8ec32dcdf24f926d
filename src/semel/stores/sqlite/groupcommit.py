"""Group commit: writes that come at the same time share a transaction, and so one wait for the disk.

There is no thread for it. Whoever wants to write puts its command into the queue, and the first one there
leads: it carries out everything that is queued in one transaction, gives each its reply once that is
committed, and wakes the next one if more has come meanwhile. The others wait for their reply. Where tasks of
an event loop wait, a thread of the store stands in the queue for them.

A leader may be torn away at any line, by what a signal handler raises. So there is no lock that it could
leave behind: it leads for as long as it is in its `with` block, and what it had begun is undone by the next.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semel.core.threads import PATROL_SECONDS, Waiter, wake
from semel.errors import (
    StoreClosed,
    StoreError,
    StoreOutcomeUnknown,
    StoreUnavailable,
    UsageError,
    WriteUnderWay,
)
from semel.stores.sqlite.address import SQLiteFile
from semel.stores.sqlite.errors import NOT_COMMITTED, code_of, doubtful, translated
from semel.stores.sqlite.interpreter import SQLiteInterpreter
from semel.stores.sqlite.lock import FairLock

if TYPE_CHECKING:
    import asyncio

# A transaction of this many takes a few milliseconds, which is as long as anyone should wait behind others.
SHARED = 512
# Whether the file is still there is asked by who has not written for so long: to ask takes a twentieth of a
# write, and a file that is moved away is so at some moment between two writes in any case.
SURE_SECONDS = 0.002

# What one command alone can be the cause of. Anything else that is raised came from outside, as a signal.
ITS_OWN_FAULT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, sqlite3.Error)


class QueuedWrite(Waiter):
    """A command on its way through a transaction, and who waits for it: a thread, or a task of a loop."""

    __slots__ = ("command", "error", "future", "leading", "loop", "reply", "settled", "thread")

    def __init__(
        self,
        command: Any,
        loop: "asyncio.AbstractEventLoop | None" = None,
        future: "asyncio.Future[None] | None" = None,
    ) -> None:
        super().__init__()
        self.command: Any = command
        self.reply: Any = None
        self.error: Exception | None = None
        self.settled: bool = False
        self.thread: int = threading.get_ident()
        self.leading: bool = False
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.future: asyncio.Future[None] | None = future

    def answer(self) -> Any:
        """What came of it."""
        if self.error is not None:
            raise self.error
        return self.reply


class NoWrite:
    """The command of whoever stands in the queue for others, or to be alone with the file."""


class GroupCommit:
    """The one connection that writes, and the queue before it."""

    def __init__(
        self,
        file: SQLiteFile,
        interpreter: SQLiteInterpreter,
        now: Callable[[], float],
        in_thread: Callable[[Callable[[], None]], None],
        written: Callable[[QueuedWrite], None],
    ) -> None:
        self._file = file
        self._interpreter = interpreter
        self._now = now
        self._in_thread = in_thread
        self._written = written
        self._closed = False
        self._born: tuple[int, int] | None = None
        self._sure_until = 0.0
        self._reset()

    def _reset(self) -> None:
        self._queue: dict[QueuedWrite, None] = {}
        self._connection: sqlite3.Connection | None = None
        self._committing: list[QueuedWrite] | None = None
        self._fair_lock = FairLock(self._file.path, self._file.timeout)
        self._paused: QueuedWrite | None = None

    # Waiting for a reply

    def submit(self, command: Any) -> Any:
        """Carry a command out, and answer it once it is durable."""
        job = QueuedWrite(command)
        with job.held:
            try:
                self._check_open()
                self._queue[job] = None
                while not job.settled:
                    if self._leads(job):
                        self._lead(job)
                    else:
                        job.wakeup.acquire(timeout=PATROL_SECONDS)
            finally:
                self._leave(job)
        return job.answer()

    async def asubmit(self, command: Any) -> Any:
        """Carry a task's command out, by a thread of the store, and answer it once it is durable."""
        import asyncio

        loop = asyncio.get_running_loop()
        job = QueuedWrite(command, loop, loop.create_future())
        with job.held:
            try:
                self._check_open()
                self._queue[job] = None
                self._call_worker()
                await job.future  # type: ignore[misc]  # it was given above
            finally:
                self._leave(job)
        return job.answer()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store was closed")

    def _leads(self, job: QueuedWrite) -> bool:
        """Whether it is the first thread in the queue; who was torn away is no longer in it."""
        for first in list(self._queue):
            if first is job:
                return True
            if not first.held.locked():
                self._queue.pop(first, None)
            elif first.loop is None:
                if first.thread == job.thread and first.leading:
                    raise WriteUnderWay
                # The same thread twice is a signal handler, which leads for what it has interrupted.
                return first.thread == job.thread
        return True

    def _leave(self, job: QueuedWrite) -> None:
        """Nobody waits for it any more: unless it was begun, it is not made. The next one may lead."""
        self._queue.pop(job, None)
        if self._queue or job.leading:
            self._pass_on()

    def _pass_on(self) -> None:
        """Wake the first thread of the queue; where there is none, one of the store's own stands in."""
        for first in list(self._queue):
            if first.loop is None and first.held.locked():
                wake(first.wakeup)
                return
        self._call_worker()

    def _call_worker(self) -> None:
        try:
            self._in_thread(self._serve)
        except StoreError as error:
            self._refuse(self._waiting(), error)

    def _serve(self) -> None:
        """Stand in the queue for tasks, and undo what a leader had begun that was torn away."""
        if not self._waiting() and self._is_tidy():
            return
        try:
            self.submit(NoWrite())
        except StoreError as error:
            self._refuse(self._waiting(), error)
        except BaseException as error:  # noqa: BLE001 - there is no caller here to raise it to
            self._refuse(self._waiting(), StoreUnavailable(f"the store's thread failed: {error!r}"))

    def _waiting(self) -> list[QueuedWrite]:
        """Those whose commands are to be carried out, as many as share a transaction."""
        return [job for job in list(self._queue) if job.held.locked() and not job.settled][:SHARED]

    # One transaction

    def _lead(self, job: QueuedWrite) -> None:
        """Carry out what is queued and settle it, one way or the other."""
        job.leading = True
        self._mend()
        if type(job.command) is NoWrite and all(type(each.command) is NoWrite for each in self._waiting()):
            self._settle([job])
            self._end(job)
            return
        batch: list[QueuedWrite] = []
        try:
            cursor = self._begin()
            batch = self._waiting()
            now = self._carry_out(cursor, batch)
            self._committing = batch
            cursor.execute("COMMIT")
            self._interpreter.committed(now)
        except (sqlite3.Error, StoreClosed, StoreUnavailable) as error:
            self._undo()
            self._fail(batch or self._waiting(), error)
            if code_of(error) not in NOT_COMMITTED:
                self._disconnect()
        except BaseException:
            # An interrupt, which is none of the others' business: they are still in the queue.
            if not self._undo() and self._committing:
                self._settle(batch)
            self._end(job)
            raise
        else:
            self._settle(batch)
        self._end(job)

    def _end(self, job: QueuedWrite) -> None:
        self._committing = None
        job.leading = False
        if self._closed:
            self._disconnect()

    def _mend(self) -> None:
        """Undo what an interrupted leader had begun, and fail the writes that it may have made."""
        torn, self._committing = self._committing if not self._undo() else None, None
        if torn is not None:
            left = [job for job in torn if not job.settled]
            self._refuse(left, StoreOutcomeUnknown("the thread that was writing this was torn away"))

    def _is_tidy(self) -> bool:
        connection = self._connection
        return self._committing is None and (connection is None or not connection.in_transaction)

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
            # Who waits does so for the fair lock, and does not have SQLite ask at its own intervals.
            self._connection.execute("PRAGMA busy_timeout = 0")
        return self._fair_lock.begin(self._connection)

    def _check_file(self) -> None:
        if self._born not in (None, self._file.identity()):
            # Whoever opened it since has another one, and both would let the same work run.
            raise StoreUnavailable(
                f"{self._file.path} is not the file that was opened: it was moved away, or replaced. Put it "
                "back, or start anew"
            )

    def _carry_out(self, cursor: sqlite3.Cursor, batch: list[QueuedWrite]) -> float:
        """Carry the commands out; the time by which they were decided."""
        # Read once, with the write lock held: no transaction decides by an earlier time than the one before
        # it did, and nothing in this one sees another's write come from the future.
        now = self._now()
        for job in batch:
            try:
                job.error = None
                if type(job.command) is not NoWrite:
                    job.reply = self._interpreter.carry_out(cursor, job.command, now)
            except WriteUnderWay:  # of a signal handler
                raise
            except ITS_OWN_FAULT as error:
                job.error = translated(error, self._file)
                if isinstance(error, sqlite3.Error) and not isinstance(job.error, UsageError):
                    raise
        self._interpreter.finish(cursor, now)
        return now

    def _settle(self, batch: list[QueuedWrite]) -> None:
        try:
            # Before the writers are answered: who is answered and then waits is not to be woken by its own.
            for job in batch:
                if type(job.command) is not NoWrite:
                    self._written(job)
            settle(batch)
        except BaseException:
            settle(batch)
            raise

    def _fail(self, batch: list[QueuedWrite], error: Exception) -> None:
        meaning = translated if self._committing is None else doubtful
        for job in batch:
            # Each has an error of its own: raised in two threads, one would grow two tracebacks.
            self._refuse([job], meaning(error, self._file))

    def _refuse(self, batch: list[QueuedWrite], error: Exception) -> None:
        for job in batch:
            job.error = job.error or error
        settle(batch)

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

    def close(self) -> bool:
        """Wait for the transaction under way, and refuse what has not begun.

        False where that is a transaction of this very thread, which a signal handler has interrupted: it lets
        go of the file when it is over.
        """
        self._closed = True
        job = QueuedWrite(NoWrite())
        with job.held:
            try:
                self._queue[job] = None
                while not self._leads(job):
                    job.wakeup.acquire(timeout=PATROL_SECONDS)
                self._disconnect()
                self._fair_lock.close()
            except WriteUnderWay:
                return False
            finally:
                self._queue.pop(job, None)
                self._refuse(self._waiting(), StoreClosed("the store was closed"))
        return True

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def pause(self, seconds: float) -> None:
        """Before a fork: wait for the transaction under way and begin none until `resume`."""
        job = self._paused = QueuedWrite(NoWrite())
        job.held.acquire()
        self._queue[job] = None
        end = time.monotonic() + seconds
        try:
            while not self._leads(job):
                left = end - time.monotonic()
                if left <= 0:
                    return
                job.wakeup.acquire(timeout=min(left, PATROL_SECONDS))
            self._disconnect()
        except WriteUnderWay:  # the fork is a signal handler's
            return

    def resume(self) -> None:
        """After a fork, in the parent."""
        job, self._paused = self._paused, None
        if job is not None:
            job.held.release()
            self._leave(job)

    def abandon(self) -> sqlite3.Connection | None:
        """After a fork, in the child: begin anew; what is still open belongs to the parent."""
        inherited = self._connection
        self._fair_lock.close()
        self._reset()
        return inherited


def settle(batch: list[QueuedWrite]) -> None:
    """Tell everyone that waits; telling twice is telling once."""
    abroad: dict[asyncio.AbstractEventLoop, list[QueuedWrite]] = {}
    for job in batch:
        job.settled = True
        if job.loop is None:
            wake(job.wakeup)
        else:
            abroad.setdefault(job.loop, []).append(job)
    for loop, jobs in abroad.items():
        try:
            loop.call_soon_threadsafe(_deliver, jobs)
        except RuntimeError:  # the loop was closed, and its tasks with it
            continue


def _deliver(jobs: list[QueuedWrite]) -> None:
    for job in jobs:
        if job.future is not None and not job.future.done():
            job.future.set_result(None)
