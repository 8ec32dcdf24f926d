"""The one connection that writes, and the queue before it.

A write that is alone is one statement, which SQLite commits by itself. Writes that wait at the same time
share a transaction, and so one wait for the disk. There is no thread for it: the first in the queue leads,
executes what is queued, settles that once it is committed, and wakes the next if more has come. Where tasks
of an event loop wait, a thread of the store stands in the queue for them.

An exception from a signal handler may end a leader at any line. So there is no lock that it could leave
behind: it leads for as long as it is in its `with` block, and the next leader undoes what it had begun.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel import errors
from semel.core.clock import PATROL_SECONDS, SignalSafeEvent, wake
from semel.core.commands import Refused, allowed
from semel.stores.shared import wake as wake_waiters
from semel.stores.sqlite.commands import REAP_BATCH, WRITES, SQLiteCommands
from semel.stores.sqlite.file import DOUBTFUL, NOT_COMMITTED, SQLiteFile, code_of, translated
from semel.stores.waiting import KeyWatchers
from semel.stores.workers import WorkerThreads

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import asyncio

# A transaction of this many takes a few milliseconds, which is as long as anyone should wait behind others.
SHARED = 512
# A process may write for so long before it looks whether another one is next, and whether the file is still
# there: both together take a twentieth of a write.
TURN_SECONDS = 0.001
# So short that nobody notices, so long that it costs nothing.
LOOK_SECONDS = 0.0005
# A process that is next for longer than the first figure was stopped or frozen. For the second figure others
# do not wait for it.
COURTESY_SECONDS = 0.25
IGNORED_SECONDS = 5.0

# What one command alone can be the cause of. Anything else that is raised came from outside, as a signal.
BAD_ARGUMENTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
ITS_OWN_FAULT = (*BAD_ARGUMENTS, sqlite3.Error, errors.StoreError)

_never = SignalSafeEvent()


def _nothing(_given: Any) -> None:
    return None


class Turns:
    """The order of processes that write to one file.

    SQLite's own waiting asks at ever longer intervals, and starves beside processes that write on: four of
    them on a slow disk kept one out for three seconds. So a process that waits is next: it holds a lock on a
    file beside the database, and one that has had its turn gets behind it. That is a courtesy: SQLite's own
    lock keeps writes apart, and where there are none of these, as on Windows, writing is only less even.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._database, self._timeout = path, timeout
        self._lock: int | None = None
        self._ignored_from = 0.0
        # When this process looks again whether another one is next.
        self.ends: float = 0.0

    def take(
        self, attempt: Callable[[Any], Any], given: Any, instead: Callable[[Any], Any] = _nothing
    ) -> Any:
        """Call what takes SQLite's lock until that is free; if it is not, `instead` may have a result."""
        now = began = time.monotonic()
        is_next = False
        try:
            while True:
                if is_next or now < self.ends or (is_next := self._step_up(now)):
                    try:
                        return attempt(given)
                    except sqlite3.OperationalError as error:
                        if code_of(error) != sqlite3.SQLITE_BUSY or now > began + self._timeout:
                            raise
                        self.ends = 0.0
                if (result := instead(given)) is not None:
                    return result
                instead = _nothing
                _never.wait(LOOK_SECONDS)
                now = time.monotonic()
        finally:
            if is_next and self._lock is not None:
                try:  # noqa: SIM105 - `suppress` is three calls, and this is after every write on a slow disk
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                except (AttributeError, OSError):
                    pass

    def _step_up(self, now: float) -> bool:
        """Become the next; False while another process is and is to be waited for."""
        try:
            if self._lock is None:
                # As SQLite does with its own files: who may write to the database may to those beside it.
                mode = Path(self._database).stat().st_mode & 0o777
                self._lock = os.open(f"{self._database}-turn", os.O_RDWR | os.O_CREAT, mode)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if now > self._ignored_from + IGNORED_SECONDS:
                self._ignored_from = now + COURTESY_SECONDS
            if now < self._ignored_from:
                return False
        except (AttributeError, OSError):  # there are no such locks here, or none on this drive
            pass
        self.ends = now + TURN_SECONDS
        return True

    def close(self) -> None:
        """Leave the queue."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


class QueuedWrite:
    """A write on its way through a transaction, and its waiter: a thread, or a task of an event loop."""

    __slots__ = ("command", "error", "future", "held", "leading", "reply", "settled", "thread", "wakeup")

    def __init__(self, command: Any, future: "asyncio.Future[None] | None" = None) -> None:
        # Without a command it stands in the queue for others, or to be alone with the file.
        self.command: Any = command
        self.future: asyncio.Future[None] | None = future
        self.thread: int = threading.get_ident()
        self.held: threading.Lock = threading.Lock()
        self.wakeup: threading.Lock = threading.Lock()
        self.wakeup.acquire()
        self.reply: Any = None
        self.error: Exception | None = None
        self.settled: bool = False
        self.leading: bool = False

    def settle(self) -> None:
        """Wake its waiter; twice is once."""
        self.settled = True
        if self.future is None:
            wake(self.wakeup)
        else:
            with suppress(RuntimeError):  # the loop was closed, and its tasks with it
                self.future.get_loop().call_soon_threadsafe(_deliver, self.future)

    def result(self) -> Any:
        """Return the reply, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.reply


def _deliver(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Writer:
    """The one connection that writes, and the queue before it."""

    def __init__(
        self,
        file: SQLiteFile,
        commands: SQLiteCommands,
        refused: Callable[[Any], Refused | None],
        watchers: KeyWatchers,
    ) -> None:
        self._file, self._commands, self._refused = file, commands, refused
        self.watchers: KeyWatchers = watchers
        self.closed: bool = False
        self._born: tuple[int, int] | None = None
        self._reset()

    def _reset(self) -> None:
        self._queue: dict[QueuedWrite, None] = {}
        self._connection: sqlite3.Connection | None = None
        self._cursor: Any = None
        self._committing: list[QueuedWrite] = []
        self._turns = Turns(self._file.path, self._file.timeout)
        self._worker = WorkerThreads(1, "semel-sqlite")
        self._paused = ExitStack()

    # Waiting for a reply

    def submit(self, command: Any) -> Any:
        """Execute a command, and return its reply once it is durable."""
        job = QueuedWrite(command)
        with job.held:
            try:
                self._queue[job] = None
                while not job.settled:
                    if len(self._queue) == 1 or self._leads(job):
                        self._lead(job)
                    else:
                        job.wakeup.acquire(timeout=PATROL_SECONDS)
            finally:
                self._queue.pop(job, None)
                if self._queue or job.leading:
                    self._pass_on(torn=job.leading)
        return job.reply if job.error is None else job.result()

    async def asubmit(self, command: Any) -> Any:
        """Execute a task's command by a thread of the store, and return its reply once it is durable."""
        import asyncio

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        job = QueuedWrite(command, future)
        with job.held:
            try:
                self._queue[job] = None
                self._call_worker()
                await future
            finally:
                # Unless it was begun, it is not made.
                self._queue.pop(job, None)
        return job.result()

    def _leads(self, job: QueuedWrite) -> bool:
        """Return whether it is the first thread in the queue; one that an exception ended is not in it."""
        for first in list(self._queue):
            if first is job:
                break
            if not first.held.locked():
                self._queue.pop(first, None)
            elif first.future is None:
                if first.thread == job.thread and first.leading:
                    raise errors.WriteUnderWay
                # The same thread twice is a signal handler, which leads for what it has interrupted.
                return first.thread == job.thread
        return True

    def _pass_on(self, torn: bool = False) -> None:
        """Wake the first thread of the queue; where there is none, one of the store's own stands in."""
        for first in list(self._queue):
            if first.future is None and first.held.locked():
                wake(first.wakeup)
                return
        # Tasks that are settled stay in the queue until their loop goes on.
        if torn or self._waiting():
            self._call_worker()

    def _call_worker(self) -> None:
        try:
            if self.closed:
                raise errors.StoreClosed("the store was closed")
            if not self._worker.has_work:  # one call that has not begun is enough for all who wait
                self._worker.do(self._serve)
        except errors.StoreError as error:
            self._refuse(self._waiting(), error)

    def _serve(self) -> None:
        """Lead for tasks, or undo what a leader had begun that an exception ended."""
        try:
            self.submit(None)
        except BaseException as error:  # noqa: BLE001 - there is no caller here to raise it to
            self._refuse(self._waiting(), errors.StoreUnavailable(f"the store's thread failed: {error!r}"))

    def _waiting(self) -> list[QueuedWrite]:
        """Return the next writes to execute, as many as share a transaction."""
        queue = list(self._queue)
        return [job for job in queue if job.command and job.held.locked() and not job.settled][:SHARED]

    # One transaction

    def _lead(self, job: QueuedWrite) -> None:
        job.leading = True
        batch: list[QueuedWrite] = []
        connection, turns = self._connection, self._turns
        try:
            is_sure = not self._committing and time.monotonic() < turns.ends
            if not is_sure or connection is None or connection.in_transaction:
                self._prepare()
            # Alone in the queue it need not look who else waits.
            batch = [job] if job.command and len(self._queue) == 1 else self._waiting()
            alone = len(batch) == 1 and type(batch[0].command) in WRITES
            if batch and not (alone and turns.take(self._write_alone, batch[0], self._refused_early)):
                self._write_together(batch)
        except (sqlite3.Error, errors.StoreClosed, errors.StoreUnavailable) as error:
            self._undo()
            self._fail(batch or self._waiting(), error)
            batch = []
            if code_of(error) not in NOT_COMMITTED:
                self._disconnect()
        except BaseException:
            # An interrupt, which does not concern the others: they are still in the queue.
            committed = batch if not self._undo() and self._committing else []
            self._finish(committed, job)
            raise
        self._finish(batch, job)

    def _write_alone(self, job: QueuedWrite) -> bool:
        """Write without a BEGIN, and return True; or begin a transaction in the same turn."""
        commands = self._commands
        now = commands.passed() + commands.began
        if commands.due < REAP_BATCH and now < commands.noted:
            self._execute(job, now)
            # If the item was changed between the refusal and the reading of it, the two may be at odds.
            reply = job.reply
            if type(reply) is not Refused or job.error or not allowed(job.command, reply.item):
                return True
        self._cursor.execute("BEGIN IMMEDIATE")
        return False

    def _refused_early(self, job: QueuedWrite) -> bool | None:
        """Refuse a write by a read, rather than have it wait for the lock; None if it is not refused."""
        job.reply, job.error = self._refused(job.command), None
        return None if job.reply is None else True

    def _write_together(self, batch: list[QueuedWrite]) -> None:
        """Make several writes, and what is to be done beside them, in one transaction."""
        cursor = self._cursor
        if not self._connection.in_transaction:  # type: ignore[union-attr]
            self._turns.take(cursor.execute, "BEGIN IMMEDIATE")
        if batch != list(self._queue):
            batch[:] = self._waiting()
        # Read once, with the write lock held: no transaction decides by an earlier time than the one before
        # it did, and nothing in this one sees another's write come from the future.
        now = self._commands.now()
        for job in batch:
            self._execute(job, now)
        self._commands.do_chores(cursor, now)
        self._committing = batch
        cursor.execute("COMMIT")
        self._commands.noted = max(self._commands.noted, int(now) + 1)

    def _execute(self, job: QueuedWrite, now: float) -> None:
        try:
            job.error = None
            job.reply = self._commands.ways[type(job.command)](self._cursor, job.command, now)
        except errors.WriteUnderWay:  # of a signal handler
            raise
        except ITS_OWN_FAULT as error:
            job.error = translated(error, self._file)
            if isinstance(error, sqlite3.Error) and not isinstance(job.error, errors.UsageError):
                raise

    def _prepare(self) -> None:
        """Undo what an interrupted leader had begun, fail the writes that it may have made, and connect."""
        connection = self._connection
        if self._committing or (connection is not None and connection.in_transaction):
            torn, self._committing = [] if self._undo() else self._committing, []
            left = [job for job in torn if not job.settled]
            self._refuse(left, errors.StoreOutcomeUnknown("the thread that was writing this was interrupted"))
        if self.closed:
            raise errors.StoreClosed("the store was closed")
        if self._born not in (None, self._file.identity()):
            # Another process that opened it since has another one, and both would let the same work run.
            raise errors.StoreUnavailable(
                f"{self._file.path} is not the file that was opened: it was moved away, or replaced. Put it "
                "back, or restart"
            )
        if self._connection is None:
            self._connection = self._turns.take(SQLiteFile.writer, self._file)
            self._cursor = self._connection.cursor()
            self._born = self._born or self._file.identity()
            # Waiting is for `Turns`: SQLite would ask at its own intervals.
            self._cursor.execute("PRAGMA busy_timeout = 0")

    def _finish(self, batch: list[QueuedWrite], leader: QueuedWrite) -> None:
        """Settle what was executed, and lead no more."""
        watchers = self.watchers
        try:
            # Before the writers have their replies: one that then waits is not to be woken by its own write.
            if watchers.watches or watchers.async_watches:
                for job in batch:
                    if job.error is None:
                        wake_waiters(watchers, job.command, job.reply)
        finally:
            for job in batch:
                if job is not leader:
                    job.settle()
        self._committing = []
        leader.leading, leader.settled = False, leader in batch or leader.settled or leader.command is None
        if self.closed:
            self._disconnect()

    def _fail(self, batch: list[QueuedWrite], error: Exception) -> None:
        code = code_of(error)
        doubtful = code not in NOT_COMMITTED if self._committing else code in DOUBTFUL and len(batch) == 1
        for job in batch:
            # Each has an error of its own: raised in two threads, one would grow two tracebacks.
            if doubtful or job.error is None:
                job.error = translated(error, self._file, doubtful)
            job.settle()

    def _refuse(self, batch: list[QueuedWrite], error: Exception) -> None:
        for job in batch:
            job.error = job.error or error
            job.settle()

    def _undo(self) -> bool:
        """Leave no statement and no transaction open, and return whether there was a transaction."""
        connection = self._connection
        if connection is None:
            return False
        begun = connection.in_transaction
        try:
            cursor, self._cursor = self._cursor, connection.cursor()
            if cursor is not None:
                cursor.close()
            if begun:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Closing ends it too, and the next one opens another.
            self._disconnect()
        return begun

    # Ends

    def close(self) -> bool:
        """Wait for the transaction under way, and refuse what has not begun.

        If that is a transaction of this very thread, which a signal handler has interrupted, the file is
        closed when it is over. Return False then: threads may wait for it, and must not be waited for.
        """
        self.closed, waited = True, False
        with suppress(errors.WriteUnderWay), self._first(threading.TIMEOUT_MAX):
            self._disconnect()
            self._turns.close()
            waited = True
        self._refuse(self._waiting(), errors.StoreClosed("the store was closed"))
        self._worker.stop(waited)
        return waited

    @contextmanager
    def _first(self, seconds: float) -> Iterator[bool]:
        """Stand in the queue, and wait to be the first; False if that takes too long."""
        job, end = QueuedWrite(None), time.monotonic() + seconds
        with job.held:
            try:
                self._queue[job] = None
                while not (leads := self._leads(job)) and (left := end - time.monotonic()) > 0:
                    job.wakeup.acquire(timeout=min(left, PATROL_SECONDS))
                yield leads
            finally:
                self._queue.pop(job, None)
                self._pass_on()

    def _disconnect(self) -> None:
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            connection.close()

    def pause(self, seconds: float) -> None:
        """Before a fork: wait for the transaction under way and begin none until `resume`."""
        with suppress(errors.WriteUnderWay):  # the fork is a signal handler's
            if self._paused.enter_context(self._first(seconds)):
                self._disconnect()

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._paused.close()

    def abandon(self) -> sqlite3.Connection | None:
        """After a fork, in the child: begin with nothing, and return what is still open of the parent's."""
        inherited = self._connection
        self._turns.close()
        self._reset()
        return inherited
