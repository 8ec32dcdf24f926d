"""What a consumer has received, and what follows from it: no I/O, no clock, no thread.

Messages of one group are begun one at a time and in the order in which they came, others side by side. Every
message leaves in one of three ways: acknowledged, given back to the queue, or moved to the dead letters.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from semel import errors
from semel.doors.queues.backoff import ExponentialBackoff
from semel.doors.queues.lanes import LaneScheduler
from semel.doors.queues.messages import BEHIND, DeliveryResult, Verdict
from semel.doors.queues.steps import RunState

M = TypeVar("M")

# A third leaves room for two more tries when one renewal is lost, and after that one they come sooner.
RENEWALS = 3
RETRIES = 10
# What a handler waits for may be over sooner than it says.
LONGEST_PAUSE = 60.0


class InFlight(msgspec.Struct, Generic[M], eq=False):
    """A message that was received, and is not settled yet."""

    message: M
    group: Hashable = None
    """What it keeps its order in; None stands alone."""
    deliveries: int = 1
    """How often it was delivered, this time included."""
    tag: Any = None
    """What its broker knows this delivery by."""
    received: float = inf
    """When it came."""
    renew_at: float = inf
    """When its visibility is to be extended; never, where that is in vain."""
    tries: int = 0
    """How often it was tried here, and is to be again."""
    taken: DeliveryResult = BEHIND
    """What became of it when it was last tried."""

    @property
    def lane(self) -> Hashable:
        """What it is the only one of to be handled at a time."""
        return self if self.group is None else self.group


class Acknowledge(msgspec.Struct, frozen=True):
    """It is settled: the queue may forget it."""

    one: InFlight[Any]
    tries: int = 1


class Requeue(msgspec.Struct, frozen=True):
    """Deliver it again, after so many seconds."""

    one: InFlight[Any]
    seconds: float
    counted: bool = False
    """Whether it has failed, and not only waited for something."""


class DeadLetter(msgspec.Struct, frozen=True):
    """Move it to the dead letters."""

    one: InFlight[Any]
    taken: DeliveryResult


QueueSettlement: TypeAlias = Acknowledge | Requeue | DeadLetter


class DispatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What was agreed with the caller, and what the broker is able to do."""

    workers: int
    capacity: int
    """So many messages are in flight at most."""
    backoff: Callable[[int], float]
    """For how many seconds a message stays away that was tried so many times and failed."""
    batch: int = 1
    """So many are asked for at once."""
    visibility: float = inf
    """For so many seconds nobody else is given a message; then it has to be extended."""
    dead_letters: bool = True
    """There is a place for them; otherwise a dead message is given back, for the queue to put it aside."""
    longest_hold: float | None = None
    """A message that has to come again is kept here meanwhile, for so many seconds at most.

    None where the broker itself keeps it away, which then counts every delivery.
    """
    pushes: bool = False
    """The broker sends by itself over a connection; what is in flight comes again when that is lost."""


class Dispatcher(RunState, Generic[M]):
    """What is in flight, and what may begin; `stopping` alone may be set from anywhere at any time."""

    def __init__(self, settings: DispatchSettings, queue_backoff: ExponentialBackoff | None = None) -> None:
        super().__init__()
        self.changed: bool = False
        self.settings = settings
        self.queue_backoff: ExponentialBackoff = queue_backoff or ExponentialBackoff()
        self.store_backoff: ExponentialBackoff = ExponentialBackoff()
        self.settlements: deque[QueueSettlement] = deque()
        self._settling = False
        self._in_flight: set[InFlight[M]] = set()
        self._lanes: LaneScheduler[Hashable] = LaneScheduler()
        self._waiting: dict[Hashable, deque[InFlight[M]]] = {}
        """The messages of each lane; the first of them is ready, being handled, or kept for a while."""
        self._running = 0

    # Receiving

    def wanted(self, now: float) -> int | None:
        """How many messages to ask for now; None where nobody is to be asked."""
        settings = self.settings
        if settings.pushes:
            room = 0 if self.stopping else max(0, settings.capacity - len(self._in_flight))
            return None if now < self.queue_backoff.until else room
        idle = self._running + self._lanes.ready < settings.workers
        if self.stopping or not idle or len(self._in_flight) >= settings.capacity or now < self._paused_until:
            return None
        # While the store is in trouble, one message is enough to find out whether it still is.
        return 1 if self.store_backoff.failures else settings.batch

    def pause(self, now: float) -> float | None:
        """How long to wait before asking is wanted; None until something changes."""
        return None if now >= self._paused_until else self._paused_until - now

    @property
    def _paused_until(self) -> float:
        if self.settings.pushes:
            return self.queue_backoff.until
        return max(self.queue_backoff.until, self.store_backoff.until, self._lanes.paused_until)

    def receive(self, received: Iterable[InFlight[M]], now: float) -> None:
        """These came."""
        self.queue_backoff.reset()
        for one in received:
            one.received, one.renew_at = now, now + self.settings.visibility / RENEWALS
            self._in_flight.add(one)
            self._waiting.setdefault(one.lane, deque()).append(one)
            if self._waiting[one.lane][0] is one:
                self._lanes.add(one.lane)
            self.changed = True

    def forget(self) -> None:
        """All of them are lost, and come again; what runs is found done, or under way, when it does."""
        self._in_flight.clear()
        self.settlements.clear()
        self._waiting.clear()
        self._lanes, before = LaneScheduler(), self._lanes
        self._lanes.pause(before.paused_until)
        self.changed = True

    # Handling

    def begin(self) -> InFlight[M] | None:
        """The next message to work on, if there is one."""
        lane = None if self.stopping else self._lanes.begin()
        if lane is None:
            return None
        self._running += 1
        self.changed = True
        return self._waiting[lane][0]

    def end(self, one: InFlight[M], taken: DeliveryResult, now: float) -> None:
        """This became of it."""
        self._running -= 1
        self.changed = True
        self._learn(taken, now)
        if one not in self._in_flight:
            return
        one.taken = taken
        if not taken.returns:
            self._leave(one, taken)
            self._go_on(one.lane)
        elif self.settings.longest_hold is None or self.stopping:
            self._leave(one, taken)
            self._give_back(one.lane)
        else:
            self._hold(one, min(self.settings.longest_hold, self._delay(one, taken)), now)

    def interrupt(self, one: InFlight[M], error: BaseException, now: float) -> None:
        """Working on it was broken off from outside: it comes again at once, and nothing is begun here."""
        over = errors.ShuttingDown("it was interrupted")
        self.end(one, DeliveryResult(Verdict.FAILED, error=over, stops=True), now)
        self.fail(error)

    def _learn(self, taken: DeliveryResult, now: float) -> None:
        """Whether to begin more, and when, by what became of one."""
        if isinstance(taken.error, errors.StoreError):
            self.store_backoff.failed(now)
        else:
            self.store_backoff.reset()
        if isinstance(taken.error, errors.Later) and taken.error.everyone:
            self._lanes.pause(now + min(taken.error.retry_after, LONGEST_PAUSE))
        if taken.stops:
            self.stopping = True

    def _go_on(self, lane: Hashable) -> None:
        """Let the next of a lane begin."""
        waiting = self._waiting[lane]
        waiting.popleft()
        if not waiting:
            del self._waiting[lane]
        self._lanes.end(lane, more=bool(waiting))

    def _give_back(self, lane: Hashable) -> None:
        """Give all back that waits in a lane; what has left already is not among them."""
        for behind in self._waiting.pop(lane):
            if behind in self._in_flight:
                self._leave(behind, BEHIND)
        self._lanes.forget(lane)

    def _hold(self, one: InFlight[M], seconds: float, now: float) -> None:
        """Keep it for a while, so that it does not come back at once and for nothing."""
        one.tries += 1
        self._lanes.rest(one.lane, now + seconds)
        self._lanes.end(one.lane, more=True)

    def wake(self, now: float) -> None:
        """Go on with what was kept for long enough.

        One of a group is tried again here: given back, it would come after those that are on their way.
        """
        for lane in self._lanes.wake(now):
            self.changed = True
            if isinstance(lane, InFlight) and lane.tries:
                self.settlements.append(Requeue(lane, 0.0, lane.taken.verdict is Verdict.FAILED))
                self._in_flight.discard(lane)
                self._give_back(lane)

    # Leaving

    def _leave(self, one: InFlight[M], taken: DeliveryResult) -> None:
        self._in_flight.discard(one)
        self.settlements.append(self._settlement(one, taken))

    def _settlement(self, one: InFlight[M], taken: DeliveryResult) -> QueueSettlement:
        if taken.settled:
            return Acknowledge(one)
        if taken.verdict is Verdict.DEAD and self.settings.dead_letters:
            return DeadLetter(one, taken)
        return Requeue(one, self._delay(one, taken), taken.verdict is Verdict.FAILED)

    def _delay(self, one: InFlight[M], taken: DeliveryResult) -> float:
        """For how long a message stays away.

        One that is behind may come at once: no queue lets it overtake one of its group that is away.
        """
        if taken.verdict is Verdict.BEHIND or taken.stops:
            return 0.0
        backoff = max(0.0, self.settings.backoff(one.deliveries + one.tries))
        if taken.retry_after is None:
            return backoff
        if self.settings.longest_hold is not None:
            return taken.retry_after
        # Less than a second would be asking again and again. And where every delivery is counted, one that
        # was none of the message's doing is not to be followed by the next too soon.
        return max(backoff if taken.verdict is Verdict.LATER else 1.0, taken.retry_after)

    def take_settlements(self) -> list[QueueSettlement]:
        """What is to be told to the queue now; `settled` says that it was."""
        settlements = list(self.settlements)
        self.settlements.clear()
        self._settling = self.changed = True
        return settlements

    def settled(self, again: Iterable[QueueSettlement] = ()) -> None:
        """The queue was told, but for what has to be said again."""
        self._settling = False
        self.settlements.extend(again)

    # Renewing

    def due(self, now: float) -> list[InFlight[M]]:
        """The messages whose visibility is to be extended now."""
        return [one for one in self._in_flight if one.renew_at <= now]

    def until_due(self, now: float) -> float | None:
        """How long nothing needs to be done; None until something changes."""
        due = min((one.renew_at for one in self._in_flight), default=inf)
        due = min(due, self._lanes.next_wake)
        return None if due == inf else max(0.0, due - now)

    def renewed(
        self, due: list[InFlight[M]], failed: dict[InFlight[M], bool], sent: float, now: float
    ) -> None:
        """Nobody else gets these for another while, counted from when that was asked for.

        Where it failed it is asked for again soon; of what is lost for good, never: somebody else may get
        it, and the ledger knows what to do then.
        """
        visibility = self.settings.visibility
        moments = {None: sent + visibility / RENEWALS, False: now + visibility / RETRIES, True: inf}
        for one in due:
            one.renew_at = moments[failed.get(one)]

    # Stopping

    def clear(self) -> None:
        """Give back what has not begun."""
        for lane, waiting in list(self._waiting.items()):
            if self._lanes.is_entered(lane):
                first, *behind = waiting
                self._waiting[lane] = deque([first])
            else:
                behind = list(self._waiting.pop(lane))
                self._lanes.forget(lane)
            for one in behind:
                self._leave(one, BEHIND)

    @property
    def drained(self) -> bool:
        """Whether there is nothing left to tell the queue."""
        return self.stopping and not (self._in_flight or self.settlements or self._settling)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.drained and not (self.receiving or self._running)
