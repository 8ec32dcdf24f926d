"""What a consumer does, as steps: the shells carry them out in threads or in tasks, and decide nothing."""

import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import msgspec

from semel import errors
from semel.aws.sqs import BATCH, MAX_BYTES, Outgoing, Queue
from semel.doors.queues.messages import Taken
from semel.doors.sqs.hands import DELETIONS, Bury, Delete, GiveBack, Hands, Held
from semel.doors.sqs.message import Message, read
from semel.events import Events, What

T = TypeVar("T")

# No message has more attributes.
ATTRIBUTES = 10


class Ask(msgspec.Struct, frozen=True):
    """Ask a queue; the reply is its answer, or the error."""

    queue: Queue
    operation: str
    request: dict[str, Any]
    write: bool = False


class Wait(msgspec.Struct, frozen=True):
    """Wait until something changes, or so many seconds."""

    seconds: float | None


class Take(msgspec.Struct, frozen=True):
    """Have a message handled; the reply is what became of it."""

    message: Message


Step: TypeAlias = Ask | Wait | Take
Steps: TypeAlias = Generator[Step, Any, T]


def asked(queue: Queue, operation: str, request: dict[str, Any], *, write: bool = False) -> Steps[Any]:
    """The answer of a queue; its error is raised."""
    reply = yield Ask(queue, operation, request, write)
    if isinstance(reply, errors.SemelError):
        raise reply
    return reply


class Rounds:
    """The three rounds of a consumer: receiving, working, and tending what is in hand."""

    def __init__(
        self,
        queue: Queue,
        dead_letters: Queue | None,
        hands: Hands,
        *,
        poll: int,
        now: Callable[[], float],
        events: Events,
    ) -> None:
        self._queue = queue
        self._dead = dead_letters
        self._hands = hands
        self._poll = poll
        self._now = now
        self._events = events

    # Receiving

    def polling(self) -> Steps[None]:
        """Ask for messages whenever somebody is free to take them."""
        hands = self._hands
        while not hands.stopping:
            many = hands.wanted(self._now())
            if not many:
                yield Wait(hands.rest(self._now()))
                continue
            try:
                answer = yield from asked(self._queue, "ReceiveMessage", self._request(many))
            except (errors.StoreUnavailable, errors.StoreThrottled) as error:
                self._puzzled(error)
                continue
            messages = answer.get("Messages") or ()
            hands.received([read(one, self._queue.name) for one in messages], self._now())

    def _request(self, many: int) -> dict[str, Any]:
        request = {
            "MaxNumberOfMessages": many,
            "WaitTimeSeconds": self._poll,
            "VisibilityTimeout": int(self._hands.terms.visibility),
            "MessageAttributeNames": ["All"],
            "MessageSystemAttributeNames": ["All"],
        }
        if self._queue.fifo:
            # A receive whose answer was lost is sent again, and by this gets the same messages.
            request["ReceiveRequestAttemptId"] = str(uuid.uuid4())
        return request

    def _puzzled(self, error: errors.SemelError) -> None:
        seconds = self._hands.queue_rest.again(self._now())
        _logger().warning("%s gives no messages; next try in %.0f s. %s", self._queue.url, seconds, error)

    # Working

    def working(self) -> Steps[None]:
        """Have one message handled after the other."""
        hands = self._hands
        while not hands.stopping:
            held = hands.begin()
            if held is None:
                yield Wait(None)
                continue
            try:
                taken = yield Take(held.message)
            except BaseException as error:
                hands.interrupted(held, error, self._now())
                raise
            hands.end(held, taken, self._now())

    # Tending

    def tending(self) -> Steps[None]:
        """Settle what is settled, and keep everybody else from what is in hand."""
        hands = self._hands
        while True:
            if hands.stopping:
                hands.clear(self._now())
            if hands.over:
                return
            # Extending first: what is settled late costs nothing, what is extended late is delivered again.
            if due := hands.due(self._now()):
                yield from self._extend(due)
            elif hands.leaving:
                yield from self._settle()
            else:
                yield Wait(hands.until_due(self._now()))

    def _settle(self) -> Steps[None]:
        leaving = list(self._hands.leaving)
        self._hands.leaving.clear()
        self._hands.changed = True
        for batch in _tens(one for one in leaving if isinstance(one, GiveBack)):
            entries = [(one.held, {"VisibilityTimeout": one.seconds}) for one in batch]
            yield from self._ask_of_each("ChangeMessageVisibilityBatch", entries)
        for buried in leaving:
            if isinstance(buried, Bury):
                yield from self._bury(buried)
        for deletes in _tens(one for one in leaving if isinstance(one, Delete)):
            yield from self._delete(deletes)

    def _delete(self, batch: list[Delete]) -> Steps[None]:
        """Delete these; what only the queue is to blame for is tried again, as it is a group's way on."""
        failed = yield from self._ask_of_each("DeleteMessageBatch", [(one.held, {}) for one in batch])
        for number, mine in failed.items():
            one = batch[number]
            if not mine and one.tries < DELETIONS:
                self._hands.leaving.append(Delete(one.held, one.tries + 1))

    def _extend(self, due: list[Held]) -> Steps[None]:
        hands, now = self._hands, self._now()
        spans = {held: held.bounded(hands.terms.visibility, now) for held in due}
        for held in due:
            if not spans[held]:
                hands.disowned(held)
        for batch in _tens(held for held in due if spans[held]):
            entries = [(held, {"VisibilityTimeout": spans[held]}) for held in batch]
            failed = yield from self._ask_of_each("ChangeMessageVisibilityBatch", entries)
            for number, held in enumerate(batch):
                if failed.get(number):
                    hands.disowned(held)
                elif number in failed:
                    hands.unextended(held, self._now())
                else:
                    hands.extended(held, now)

    def _ask_of_each(
        self, operation: str, entries: list[tuple[Held, dict[str, Any]]]
    ) -> Steps[dict[int, bool]]:
        """Ask one thing of several messages: which of them failed, and whether the request was to blame."""
        named = [
            {"Id": str(number), "ReceiptHandle": held.message.receipt, **more}
            for number, (held, more) in enumerate(entries)
        ]
        try:
            answer = yield from asked(self._queue, operation, {"Entries": named})
        except errors.SemelError as error:
            # Nothing is lost: what is not settled comes again, and is a duplicate then.
            _logger().warning("%s: %s failed. %s", self._queue.url, operation, error)
            return dict.fromkeys(range(len(entries)), False)
        return {int(one["Id"]): bool(one.get("SenderFault")) for one in answer.get("Failed") or ()}

    # Dead letters

    def _bury(self, one: Bury) -> Steps[None]:
        """Send it to the dead letters, and only then delete it."""
        dead: Queue = self._dead  # type: ignore[assignment]  # nothing is buried without
        letter = dead_letter(one.held.message, one.taken, fifo=dead.fifo)
        try:
            yield from asked(dead, "SendMessage", letter.entry(), write=True)
        except errors.SemelError as error:
            self._events.warn(
                What.REFUSED,
                "",
                detail=f"a dead letter stays in {self._queue.name}: {type(error).__name__}: {error}",
            )
            away = self._hands.terms.backoff(one.held.message.deliveries)
            self._hands.leaving.append(GiveBack(one.held, one.held.bounded(away, self._now())))
        else:
            self._hands.leaving.append(Delete(one.held))


def dead_letter(message: Message, taken: Taken, *, fifo: bool) -> Outgoing:
    """A message as it goes to the dead letters: as it was, and beside it why, as far as there is room."""
    why = {"semel-error": why_dead(taken), "semel-message-id": message.id, "semel-queue": message.queue}
    plain = Outgoing(
        body=message.body,
        # Of a queue without groups, every message is one.
        group=(message.group or message.id) if fifo else message.group,
        dedup=message.id if fifo else None,
        attributes=message.attributes,
    )
    room = ATTRIBUTES - len(message.attributes.keys() - why.keys())
    told = dict(list(why.items())[:room])
    full = msgspec.structs.replace(plain, attributes={**message.attributes, **told})
    return full if full.size <= MAX_BYTES else plain


def why_dead(taken: Taken) -> str:
    """The type of the error that a message died of; its words may tell too much."""
    error = taken.error
    told = error.error_type if isinstance(error, errors.FailedBefore) else type(error).__name__
    return told or "Unknown"


def _tens(things: Iterable[T]) -> Iterator[list[T]]:
    tens: list[T] = []
    for thing in things:
        tens.append(thing)
        if len(tens) == BATCH:
            yield tens
            tens = []
    if tens:
        yield tens


def _logger() -> Any:
    from logging import getLogger

    return getLogger("semel")
