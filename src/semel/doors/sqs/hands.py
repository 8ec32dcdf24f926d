"""What a consumer has in hand, and what follows from it: no I/O, no clock, no thread.

Messages of a FIFO queue are begun one at a time and in order within their group, others side by side. Every
message leaves in one of three ways: deleted, given back for a while, or moved to the dead letters.
"""

from collections import deque
from collections.abc import Callable, Iterable
from math import ceil, inf

import msgspec

from semel import errors
from semel.doors.queues.messages import BEHIND, Taken, Verdict, doubling
from semel.doors.sqs.message import Message

# SQS keeps a message from other receivers for so long at most, counted from when it was received.
LONGEST = 12 * 3600
# A third leaves room for two more tries when one extension is lost, and after that one they come sooner.
EXTENSIONS = 3
RETRIES = 10
# How long to leave a queue or a store alone that does not answer: doubled each time, up to a minute.
LONGEST_REST = 60.0
# What is left undeleted comes back as a duplicate; in a FIFO queue its group waits until then.
DELETIONS = 3


# What failed stays away for a quarter of an hour at most.
patience = doubling(900)


class Held:
    """A message in hand."""

    __slots__ = ("due", "message", "received")

    def __init__(self, message: Message, received: float, due: float) -> None:
        self.message = message
        self.received = received
        self.due = due
        """When its visibility is to be extended; never, where its receipt is no longer good."""

    def bounded(self, wanted: float, now: float) -> int:
        """Whole seconds that SQS will grant this message from now on."""
        return max(0, min(ceil(wanted), LONGEST - 1 - ceil(now - self.received)))


class Delete(msgspec.Struct, frozen=True):
    """It is settled: the queue may forget it."""

    held: Held
    tries: int = 1


class GiveBack(msgspec.Struct, frozen=True):
    """Deliver it again, after so many seconds."""

    held: Held
    seconds: int


class Bury(msgspec.Struct, frozen=True):
    """Move it to the dead letters."""

    held: Held
    taken: Taken


Leaving = Delete | GiveBack | Bury


class Rest:
    """How long to leave somebody alone who does not answer."""

    def __init__(self) -> None:
        self.times = 0
        self.until = -inf

    def again(self, now: float) -> float:
        """It failed once more; several that fail at the same time are one failure."""
        if now < self.until:
            return self.until - now
        seconds = min(LONGEST_REST, 2.0**self.times)
        self.times = min(self.times + 1, 10)
        self.until = now + seconds
        return seconds

    def over(self) -> None:
        """It answers."""
        self.times, self.until = 0, -inf


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What was agreed, with the caller and with the queue."""

    fifo: bool
    workers: int
    batch: int
    visibility: float
    backoff: Callable[[int], float] = patience
    buries: bool = False


class Hands:
    """What is in hand; `stopping` alone may be set from anywhere at any time."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.stopping = False
        self.polling = False
        self.changed = False
        """Whether something happened that others may be waiting for."""
        self.failure: BaseException | None = None
        self.leaving: deque[Leaving] = deque()
        self.queue_rest = Rest()
        self.store_rest = Rest()
        self._still_until = -inf
        """Before this nothing is asked for, as a handler has said that it would be in vain."""
        self._held: set[Held] = set()
        self._ready: deque[Held] = deque()
        # The waiting messages of each group that has one ready or running.
        self._groups: dict[str, deque[Held]] = {}
        self._running = 0

    # Receiving

    def wanted(self, now: float) -> int:
        """How many messages to ask for now."""
        terms = self.terms
        idle = self._running + len(self._ready) < terms.workers
        if self.stopping or not idle or len(self._held) >= terms.workers * terms.batch:
            return 0
        if now < self._rest():
            return 0
        # While the store is in trouble, one message is enough to find out whether it still is.
        return 1 if self.store_rest.times else terms.batch

    def rest(self, now: float) -> float | None:
        """How long to wait before asking is wanted; None until something changes."""
        return None if now >= self._rest() else self._rest() - now

    def _rest(self) -> float:
        return max(self.queue_rest.until, self.store_rest.until, self._still_until)

    def received(self, messages: Iterable[Message], now: float) -> None:
        """These came."""
        self.queue_rest.over()
        for message in messages:
            held = Held(message, now, now + self.terms.visibility / EXTENSIONS)
            self._held.add(held)
            self._line_up(held)
        self.changed = True

    def _line_up(self, held: Held) -> None:
        group = self._group(held)
        if group is None:
            self._ready.append(held)
        elif group in self._groups:
            self._groups[group].append(held)
        else:
            self._groups[group] = deque()
            self._ready.append(held)

    def _group(self, held: Held) -> str | None:
        # In a standard queue a group is about fairness, not about order.
        return held.message.group if self.terms.fifo else None

    # Working

    def begin(self) -> Held | None:
        """The next message to work on, if there is one."""
        if self.stopping or not self._ready:
            return None
        self._running += 1
        self.changed = True
        return self._ready.popleft()

    def end(self, held: Held, taken: Taken, now: float) -> None:
        """This became of it."""
        self._running -= 1
        self.changed = True
        if isinstance(taken.error, errors.StoreError):
            self.store_rest.again(now)
        else:
            self.store_rest.over()
        if isinstance(taken.error, errors.Later) and taken.error.everyone:
            self._still_until = max(self._still_until, now + min(taken.error.retry_after, LONGEST_REST))
        if taken.stops:
            self.stopping = True
        self._leave(self._way(held, taken, now))
        self._go_on(held, taken, now)

    def interrupted(self, held: Held, error: BaseException, now: float) -> None:
        """Working on it was broken off from outside: it comes again at once, and nothing is begun here."""
        over = errors.ShuttingDown("it was interrupted")
        self.end(held, Taken(Verdict.FAILED, error=over, stops=True), now)
        self.fail(error)

    def _go_on(self, held: Held, taken: Taken, now: float) -> None:
        """Let the next of its group begin, or give the whole group back."""
        group = self._group(held)
        if group is None:
            return
        waiting = self._groups.pop(group)
        if taken.returns:
            for behind in waiting:
                self._leave(self._way(behind, BEHIND, now))
        elif waiting:
            self._ready.append(waiting.popleft())
            self._groups[group] = waiting

    def _way(self, held: Held, taken: Taken, now: float) -> Leaving:
        """How a message leaves."""
        if taken.settled:
            return Delete(held)
        if taken.verdict is Verdict.DEAD and self.terms.buries:
            return Bury(held, taken)
        return GiveBack(held, held.bounded(self._away(held, taken), now))

    def _away(self, held: Held, taken: Taken) -> float:
        """For how long a message is given back.

        One that is behind is visible at once, and still does not overtake: SQS keeps a group back while any
        message of it is away.
        """
        if taken.verdict is Verdict.BEHIND or taken.stops:
            return 0.0
        backoff = max(0.0, self.terms.backoff(held.message.deliveries))
        if taken.retry_after is None:
            return backoff
        # Less than a second would be asking again and again. And SQS counts every delivery, so that one that
        # was none of the message's doing is not to be followed by the next too soon.
        return max(backoff if taken.verdict is Verdict.LATER else 1.0, taken.retry_after)

    def _leave(self, leaving: Leaving) -> None:
        self._held.discard(leaving.held)
        self.leaving.append(leaving)

    # Tending

    def due(self, now: float) -> list[Held]:
        """The messages whose visibility is to be extended now."""
        return [held for held in self._held if held.due <= now]

    def until_due(self, now: float) -> float | None:
        """How long nothing needs to be done; None until something changes."""
        due = min((held.due for held in self._held), default=inf)
        return None if due == inf else max(0.0, due - now)

    def extended(self, held: Held, now: float) -> None:
        """Nobody else gets it for another while."""
        held.due = now + self.terms.visibility / EXTENSIONS

    def unextended(self, held: Held, now: float) -> None:
        """The queue was not reached; try again soon."""
        held.due = now + self.terms.visibility / RETRIES

    def disowned(self, held: Held) -> None:
        """It is no longer ours to keep: somebody else may get it, and the ledger knows what to do then."""
        held.due = inf

    # Stopping

    def clear(self, now: float) -> None:
        """Give back what has not begun."""
        while self._ready:
            self._give_back(self._ready.popleft(), now)
        for waiting in self._groups.values():
            while waiting:
                self._give_back(waiting.popleft(), now)

    def _give_back(self, held: Held, now: float) -> None:
        self._leave(self._way(held, BEHIND, now))

    def fail(self, error: BaseException) -> None:
        """Nothing is begun any more, and this is why."""
        self.failure = self.failure or error
        self.stopping = True
        self.changed = True

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.stopping and not (self.polling or self._held or self.leaving or self._running)
