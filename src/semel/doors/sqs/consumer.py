"""The consumer of a queue of SQS: what its user says, and what the queue says of itself."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Unpack

from semel import errors
from semel.aws.sqs import BATCH, LONGEST_POLL, Queue
from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.policy import Options, seconds
from semel.doors.queues.consuming import Consuming, QueueConsumer
from semel.doors.queues.dispatcher import Dispatcher, DispatchSettings
from semel.doors.queues.messages import Handler
from semel.doors.queues.runners import check_whole
from semel.doors.sqs.broker import SqsBroker, default_backoff
from semel.doors.sqs.message import Message, usual_key

# For a queue whose messages would be visible again at once; it is SQS's own default.
VISIBILITY = 30
ATTRIBUTES = ("GetQueueAttributes", {"AttributeNames": ["All"]})


class Consumer(QueueConsumer[Message]):
    """Takes the messages of a queue, and has each handled once.

    `key` names a message, `fingerprint` what must not change under that name, and `person` whom it is
    about. What no delivery can mend goes to `dead_letters`, or is left to the queue's own redrive
    policy. Of `batch` and `poll`, messages and seconds, more means fewer requests. `backoff` says for how
    many seconds a message stays away that was delivered so many times and failed. A consumer runs once.
    """

    def __init__(
        self,
        s: Semel,
        queue: str | Queue,
        handle: Callable[[Message], Any],
        *,
        key: Callable[[Message], str] | None = None,
        fingerprint: Callable[[Message], Any] | None = None,
        person: Callable[[Message], str | None] = lambda _: None,
        dead_letters: str | Queue | None = None,
        workers: int = 1,
        batch: int = BATCH,
        poll: int = LONGEST_POLL,
        backoff: Callable[[int], float] = default_backoff,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        check_whole("workers", workers, 1, 1000)
        check_whole("batch", batch, 1, BATCH)
        check_whole("poll", poll, 0, LONGEST_POLL)
        s.once.block(**options)  # what cannot work is refused here, and not when the queue has been asked
        self._s, self._handle, self._key, self._fingerprint = s, handle, key, fingerprint
        self._options, self._person = options, person
        self._workers, self._batch, self._poll, self._backoff = workers, batch, poll, backoff
        self._queue = Queue(queue) if isinstance(queue, str) else queue
        self._dead = Queue(dead_letters) if isinstance(dead_letters, str) else dead_letters
        given = ((queue, self._queue), (dead_letters, self._dead))
        # What was made here is closed here.
        self._own = [made for passed, made in given if made is not None and made is not passed]

    def run(self) -> None:
        """Handle messages in `workers` threads until `stop` is called, or until nothing more can be done."""
        if inspect.iscoroutinefunction(self._handle):
            raise errors.UsageError("the handler is an async function: await consumer.arun()")
        self._begin()
        try:
            self._run(self._consuming(self._queue.call(*ATTRIBUTES)))
        finally:
            self._close()

    async def arun(self) -> None:
        """Handle messages in `workers` tasks; a cancellation interrupts them, and gives everything back."""
        self._begin()
        try:
            await self._arun(self._consuming(await self._queue.acall(*ATTRIBUTES)))
        finally:
            for queue in self._own:
                await queue.leave()
            self._close()

    def stop(self) -> None:
        """Begin nothing new: what runs is finished, what has not begun is given back, and `run` returns.

        It may be called from anywhere, a signal handler included. A receive that is under way is waited for,
        so that what it brings can be given back: `poll` seconds at most.
        """
        super().stop()

    def _close(self) -> None:
        for queue in self._own:
            queue.close()

    def _consuming(self, answer: dict[str, Any]) -> Consuming[Message]:
        """What there is to do, by what the queue says of itself."""
        attributes: dict[str, str] = answer["Attributes"]
        handler = self._handler(attributes)
        visibility = int(attributes.get("VisibilityTimeout", VISIBILITY)) or VISIBILITY
        settings = DispatchSettings(
            workers=self._workers,
            capacity=self._workers * self._batch,
            batch=self._batch,
            visibility=visibility,
            backoff=self._backoff,
            dead_letters=self._dead is not None,
        )
        now = Clock().monotonic
        broker = SqsBroker(
            self._queue,
            self._dead,
            poll=self._poll,
            visibility=visibility,
            backoff=self._backoff,
            now=now,
            events=handler.s.events,
        )
        return Consuming(broker, Dispatcher(settings), handler, now)

    def _handler(self, attributes: dict[str, str]) -> Handler[Message]:
        """Who handles messages, and remembers them for as long as the queue may deliver them again."""
        options = self._options.copy()
        known = (seconds(options["horizon"]) if "horizon" in options else 0.0, self._s.ledger.steps.horizon)
        options["horizon"] = max(*known, float(attributes["MessageRetentionPeriod"]))
        by_group = attributes.get("DeduplicationScope") == "messageGroup"
        key = self._key or functools.partial(usual_key, by_group=by_group)
        return Handler(
            self._s,
            self._handle,
            key=key,
            fingerprint=self._fingerprint,
            person=self._person,
            door="sqs",
            **options,
        )
