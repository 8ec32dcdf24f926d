"""A worker: it looks into the mailbox, and has threads handle what it finds.

Nobody owns a message while it waits. A thread that begins one claims its key in the ledger; whoever comes
second is told that it is busy, and leaves its whole group alone. Nobody begins a message before it has seen
those before it in its group settled. That is all there is to the order, and it holds across processes.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from semel import errors
from semel.connect import Semel
from semel.doors.messages import Handler, Taken, Verdict
from semel.events import What
from semel.mailbox import PAGE, Letter, Message
from semel.policy import Options

if TYPE_CHECKING:
    from semel.state import Mailbox

# How long a worker is idle at most before it looks whether another process has put something in.
POLL = 0.5
# A message is tried so often before it is put aside.
MAX_ATTEMPTS = 5
# Somebody else is at work on a message: its group is looked at again after this, though its lease be longer.
BUSY_SECONDS = 1.0
# While the store is away, it is asked again after this.
AWAY_SECONDS = 2.0


class Dead(msgspec.Struct, frozen=True):
    """A message that nobody could handle; what it says is not shown."""

    id: str
    key: str
    group: str | None
    attempts: int
    error: str
    at: float
    """When it was put aside."""


class Bell:
    """Wakes the workers of this process when something was put in."""

    def __init__(self) -> None:
        self._ears: list[Callable[[], None]] = []

    def ring(self) -> None:
        """Something is there."""
        for ear in self._ears:
            ear()

    def listen(self, ear: Callable[[], None]) -> None:
        """Call this from now on."""
        self._ears = [*self._ears, ear]

    def leave(self, ear: Callable[[], None]) -> None:
        """Call it no more."""
        self._ears = [one for one in self._ears if one != ear]


class Run(msgspec.Struct, frozen=True):
    """Letters of one group in their order, for one thread."""

    group: str
    letters: list[Letter]


class Worker:
    """Handles the messages of a mailbox, each once; a worker runs once."""

    def __init__(
        self,
        s: Semel,
        box: "Mailbox",
        handle: Callable[[Message], Any],
        *,
        bell: Bell,
        workers: int,
        poll: float,
        backoff: Callable[[int], float],
        **options: Unpack[Options],
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= 1000:
            raise errors.InvalidOption(f"workers is a whole number from 1 to 1000, not {workers!r}")
        if not 0 < poll < float("inf"):
            raise errors.InvalidOption(f"poll is a positive number of seconds, not {poll!r}")
        options.setdefault("max_attempts", MAX_ATTEMPTS)
        # What was done may be delivered again for as long as a message can wait.
        options.setdefault("horizon", max(box.steps.ttl, s.ledger.steps.horizon))
        self._box = box
        self._handle = handle
        self._handler: Handler[Letter] = Handler(
            s, self._opened, key=lambda letter: letter.key, door="inbox", **options
        )
        self._bell, self._workers, self._poll, self._backoff = bell, workers, poll, backoff
        self._monotonic, self._events = s.clock.monotonic, self._handler.s.events
        self._state = threading.Condition()
        self._runs: deque[Run] = deque()
        self._taken: set[str] = set()
        """Groups that are in `_runs`, or that a thread is at work on."""
        self._resting: dict[str, float] = {}
        """Groups that are left alone, and until when."""
        self._rang = self._idle = self._stopping = self._begun = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Handle messages until `stop` is called, or until something is wrong that waiting cannot mend."""
        if self._begun:
            raise errors.UsageError("a worker runs once: make another")
        self._begun = True
        threads = [
            threading.Thread(target=self._work, name=f"semel-inbox-{number}", daemon=True)
            for number in range(self._workers)
        ]
        self._bell.listen(self._ring)
        try:
            for thread in threads:
                thread.start()
            self._serve()
        finally:
            self.stop()
            for thread in threads:
                thread.join()
            self._bell.leave(self._ring)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin nothing new: what runs is finished, what has not begun is left where it is.

        It may be called from anywhere, a signal handler included.
        """
        self._stopping = True
        # A signal may have come while this very thread holds the lock: then it looks by itself soon.
        if self._state.acquire(blocking=False):
            try:
                self._state.notify_all()
            finally:
                self._state.release()

    def _ring(self) -> None:
        # Who is about to be idle says so before he looks at this; so one of the two sees the other.
        self._rang = True
        if self._idle:
            with self._state:
                self._state.notify_all()

    # Looking

    def _serve(self) -> None:
        while not self._stopping:
            with self._state:
                if not self._state.wait_for(self._needs_more, timeout=self._poll):
                    continue
            self._rang = False
            try:
                found = self._look()
            except errors.StoreError as error:
                self._events.warn(What.STORE_ERROR, "", detail=f"{type(error).__name__}: {error}")
                found, pause = 0, AWAY_SECONDS
            else:
                pause = self._pause()
            if not found:
                self._rest_until_rung(pause)

    def _rest_until_rung(self, pause: float) -> None:
        self._idle = True
        with self._state:
            self._state.wait_for(lambda: self._stopping or self._rang, timeout=pause)
        self._idle = False

    def _needs_more(self) -> bool:
        return self._stopping or len(self._runs) < self._workers

    def _look(self) -> int:
        """Find runs that nobody here has begun, from the oldest on; how many there are."""
        seen: set[str] = set()
        after, found = None, 0
        while not self._stopping:
            page = self._box.look(after)
            runs = self._sorted(page.letters, page.now, seen)
            found += len(runs)
            with self._state:
                self._runs.extend(runs)
                self._taken.update(run.group for run in runs)
                self._state.notify_all()
            after = page.after
            if found >= self._workers or after is None:
                break
        return found

    def _sorted(self, letters: Iterable[Letter], now: float, seen: set[str]) -> list[Run]:
        """Letters as runs by group; a group whose first letter has to wait is left alone as a whole.

        `seen` has the groups of earlier pages, whose letters come before these.
        """
        groups: dict[str, list[Letter]] = {}
        with self._state:
            closed = seen | self._taken | self._rests()
        for letter in letters:
            group = _group(letter)
            if group in closed:
                continue
            if group not in groups and letter.not_before > now:
                closed.add(group)
                self._rest(group, letter.not_before - now)
                continue
            groups.setdefault(group, []).append(letter)
        seen.update(_group(letter) for letter in letters)
        runs = [Run(group, each) for group, each in groups.items()]
        # Other processes see the same letters: who begins elsewhere is in nobody's way.
        random.shuffle(runs)
        return runs

    def _rests(self) -> set[str]:
        now = self._monotonic()
        self._resting = {group: until for group, until in self._resting.items() if until > now}
        return set(self._resting)

    def _rest(self, group: str, seconds: float) -> None:
        with self._state:
            self._resting[group] = self._monotonic() + seconds

    def _pause(self) -> float:
        with self._state:
            now = self._monotonic()
            soonest = min((until - now for until in self._resting.values()), default=self._poll)
        return max(0.001, min(self._poll, soonest))

    # Handling

    def _work(self) -> None:
        try:
            while (run := self._next()) is not None:
                self._handled(run)
        except BaseException as error:  # noqa: BLE001 - whatever ends a thread ends the worker, which tells it
            self._failure = self._failure or error
            self.stop()

    def _next(self) -> Run | None:
        with self._state:
            while not self._stopping and not self._runs:
                self._state.wait(timeout=self._poll)
            if self._stopping:
                return None
            run = self._runs.popleft()
            if self._needs_more():
                self._state.notify_all()
            return run

    def _handled(self, run: Run) -> None:
        """Handle letters one after the other, until one has to come again."""
        settled: list[str] = []
        try:
            for letter in run.letters:
                if self._stopping:
                    break
                taken = self._handler.take(letter)
                if taken.settled:
                    settled.append(letter.id)
                elif taken.verdict is Verdict.DEAD:
                    self._tell(self._box.bury, letter, _why(taken))
                else:
                    self._come_again(run.group, letter, taken)
                    break
        finally:
            if settled:
                self._tell(self._box.take_away, settled)
            with self._state:
                self._taken.discard(run.group)
            self._ring()

    def _come_again(self, group: str, letter: Letter, taken: Taken) -> None:
        if isinstance(taken.error, errors.ShuttingDown):
            return
        if taken.verdict is Verdict.BUSY:
            self._rest(group, min(BUSY_SECONDS, taken.retry_after or BUSY_SECONDS))
            return
        told = taken.retry_after
        span = self._backoff(letter.attempts + 1) if told is None else max(0.0, told)
        self._rest(group, span)
        self._tell(self._box.put_off, letter, span, _why(taken))

    def _tell(self, say: Callable[..., object], *what: object) -> None:
        """Tell the mailbox; if that fails the letter is found again, and the ledger knows about it."""
        try:
            say(*what)
        except errors.StoreError as error:
            self._events.warn(What.STORE_ERROR, "", detail=f"{type(error).__name__}: {error}")

    def _opened(self, letter: Letter) -> Any:
        return self._handle(self._box.steps.open(letter))


def _group(letter: Letter) -> str:
    # An id has no colon, so that no group is taken for a letter of none.
    return letter.id if letter.group is None else f"group:{letter.group}"


def _why(taken: Taken) -> str:
    return f"{type(taken.error).__name__}: {taken.error}"


__all__ = ["MAX_ATTEMPTS", "PAGE", "POLL", "Bell", "Dead", "Worker"]
