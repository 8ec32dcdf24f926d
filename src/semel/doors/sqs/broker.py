"""A queue of SQS as a consumer deals with it: receiving, deleting, changing visibility, and dead letters."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from logging import getLogger
from math import ceil
from typing import Any, Final, TypeVar

import msgspec

from semel import errors
from semel.aws.sqs import BATCH, MAX_BYTES, Outgoing, Queue
from semel.core.events import Events, What
from semel.doors.queues.backoff import doubling
from semel.doors.queues.consuming import Broker
from semel.doors.queues.dispatcher import Acknowledge, DeadLetter, InFlight, QueueSettlement, Requeue
from semel.doors.queues.messages import DeliveryResult
from semel.doors.queues.steps import ConsumerSteps
from semel.doors.sqs.message import Message, read, receive_request

T = TypeVar("T")

logger: Final = getLogger("semel")

# No message has more attributes.
ATTRIBUTES = 10
# SQS keeps a message from other receivers for so long at most, counted from when it was received.
LONGEST = 12 * 3600
# What is left undeleted comes back as a duplicate; in a FIFO queue its group waits until then.
DELETIONS = 3
# What failed stays away for a quarter of an hour at most.
default_backoff: Final = doubling(900)


class QueueRequest(msgspec.Struct, frozen=True):
    """A step: ask a queue something."""

    queue: Queue
    operation: str
    request: dict[str, Any]
    write: bool = False

    def call(self) -> Any:
        """Ask in this thread."""
        return self.queue.call(self.operation, self.request, write=self.write)

    async def acall(self) -> Any:
        """Ask in this event loop."""
        return await self.queue.acall(self.operation, self.request, write=self.write)


@dataclass(eq=False)
class SqsBroker(Broker[Message]):
    """A queue, and the one that its dead letters go to."""

    queue: Queue
    dead_letters: Queue | None
    poll: int
    visibility: float
    backoff: Callable[[int], float]
    now: Callable[[], float]
    events: Events
    passing: tuple[type[Exception], ...] = (errors.StoreUnavailable, errors.StoreThrottled)

    def __post_init__(self) -> None:
        self.name: str = self.queue.url

    def receive(self, many: int) -> ConsumerSteps[list[InFlight[Message]]]:
        """So many messages at most, waiting for the first of them."""
        answer = yield QueueRequest(self.queue, "ReceiveMessage", self._request(many))
        return [self._in_flight(read(one, self.queue.name)) for one in answer.get("Messages") or ()]

    def _request(self, many: int) -> dict[str, Any]:
        request = receive_request(many, wait=self.poll, visibility=int(self.visibility))
        if self.queue.fifo:
            # A receive whose answer was lost is sent again, and by this gets the same messages.
            request["ReceiveRequestAttemptId"] = str(uuid.uuid4())
        return request

    def _in_flight(self, message: Message) -> InFlight[Message]:
        # In a standard queue a group is about fairness, not about order.
        group = message.group if self.queue.fifo else None
        return InFlight(message, group=group, deliveries=message.deliveries)

    def settle(self, settlements: list[QueueSettlement]) -> ConsumerSteps[list[QueueSettlement]]:
        """Show messages again, send dead letters, and delete what is done."""
        again: list[QueueSettlement] = []
        for requeued in tens(one for one in settlements if isinstance(one, Requeue)):
            spans = {one.one: self._granted(one.one, one.seconds) for one in requeued}
            yield from self._change_visibility(spans)
        for dead in (one for one in settlements if isinstance(one, DeadLetter)):
            again += yield from self._bury(dead)
        for deleted in tens(one for one in settlements if isinstance(one, Acknowledge)):
            again += yield from self._delete(deleted)
        return again

    def _delete(self, batch: list[Acknowledge]) -> ConsumerSteps[list[Acknowledge]]:
        """Delete these; what only the queue is to blame for is tried again, as it is a group's way on."""
        failed = yield from self._ask_of_each("DeleteMessageBatch", {one.one: {} for one in batch})
        return [
            Acknowledge(one.one, one.tries + 1)
            for one in batch
            if failed.get(one.one) is False and one.tries < DELETIONS
        ]

    def renew(self, due: list[InFlight[Message]]) -> ConsumerSteps[dict[InFlight[Message], bool]]:
        """Keep messages from other receivers, up to the time that SQS allows."""
        spans = {one: self._granted(one, self.visibility) for one in due}
        failed = dict.fromkeys((one for one, seconds in spans.items() if not seconds), True)
        for batch in tens(one for one, seconds in spans.items() if seconds):
            failed |= yield from self._change_visibility({one: spans[one] for one in batch})
        return failed

    def _granted(self, one: InFlight[Message], wanted: float) -> int:
        """Whole seconds that SQS will grant this message from now on."""
        return max(0, min(ceil(wanted), LONGEST - 1 - ceil(self.now() - one.received)))

    def _change_visibility(
        self, spans: dict[InFlight[Message], int]
    ) -> ConsumerSteps[dict[InFlight[Message], bool]]:
        entries: dict[InFlight[Message], dict[str, Any]] = {
            one: {"VisibilityTimeout": seconds} for one, seconds in spans.items()
        }
        return (yield from self._ask_of_each("ChangeMessageVisibilityBatch", entries))

    def _ask_of_each(
        self, operation: str, entries: dict[InFlight[Message], dict[str, Any]]
    ) -> ConsumerSteps[dict[InFlight[Message], bool]]:
        """Ask one thing of several messages: which of them failed, and whether the request was to blame."""
        named = [
            {"Id": str(number), "ReceiptHandle": one.message.receipt, **more}
            for number, (one, more) in enumerate(entries.items())
        ]
        try:
            answer = yield QueueRequest(self.queue, operation, {"Entries": named})
        except errors.SemelError as error:
            # Nothing is lost: what is not settled comes again, and is a duplicate then.
            logger.warning("%s: %s failed. %s", self.queue.url, operation, error)
            return dict.fromkeys(entries, False)
        asked = list(entries)
        return {asked[int(one["Id"])]: bool(one.get("SenderFault")) for one in answer.get("Failed") or ()}

    def _bury(self, dead: DeadLetter) -> ConsumerSteps[list[QueueSettlement]]:
        """Send it to the dead letters, and only then delete it."""
        queue: Queue = self.dead_letters  # type: ignore[assignment]  # nothing is buried without
        message: Message = dead.one.message
        letter = dead_letter(message, dead.taken, fifo=queue.fifo)
        try:
            yield QueueRequest(queue, "SendMessage", letter.entry(), write=True)
        except errors.SemelError as error:
            self.events.warn(
                What.REFUSED,
                "",
                detail=f"a dead letter stays in {self.queue.name}: {type(error).__name__}: {error}",
            )
            return [Requeue(dead.one, self.backoff(message.deliveries))]
        return [Acknowledge(dead.one)]


def dead_letter(message: Message, taken: DeliveryResult, *, fifo: bool) -> Outgoing:
    """A message as it goes to the dead letters: as it was, and beside it why, as far as there is room."""
    why = {"semel-error": taken.error_type, "semel-message-id": message.id, "semel-queue": message.queue}
    plain = Outgoing(
        body=message.body,
        # Of a queue without groups, every message is one.
        group=(message.group or message.id) if fifo else message.group,
        dedup=message.id if fifo else None,
        attributes=message.attributes,
    )
    room = ATTRIBUTES - len(message.attributes.keys() - why.keys())
    fitting = dict(list(why.items())[:room])
    full = msgspec.structs.replace(plain, attributes={**message.attributes, **fitting})
    return full if full.size <= MAX_BYTES else plain


def tens(things: Iterable[T]) -> Iterator[list[T]]:
    """As many as one request may name."""
    left = list(things)
    for start in range(0, len(left), BATCH):
        yield left[start : start + BATCH]
