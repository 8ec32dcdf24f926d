"""RabbitMQ by AMQP 0-9-1, on pika: a consumer that handles each message of a queue once.

Consumer(s, "amqp://user:password@host/vhost", "orders", handle).run()
"""

import inspect
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Unpack

import msgspec

from semel import errors
from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.events import Events, What
from semel.core.policy import Options
from semel.core.runtime import require
from semel.doors.queues.backoff import LONGEST_HOLD, broker_backoff, default_backoff
from semel.doors.queues.consuming import Broker, Consuming, QueueConsumer
from semel.doors.queues.dispatcher import (
    Acknowledge,
    DeadLetter,
    Dispatcher,
    DispatchSettings,
    InFlight,
    QueueSettlement,
)
from semel.doors.queues.messages import Handler
from semel.doors.queues.rabbitmq_names import deliveries_of, key_of
from semel.doors.queues.runners import check_whole
from semel.doors.queues.steps import BlockingCall, ConsumerSteps

pika: Any = require("pika", "rabbitmq")
exceptions: Any = require("pika.exceptions", "rabbitmq")

__all__ = ["Consumer", "Message", "by_message_id"]

# So long a turn waits for something to come; heartbeats are sent within it.
TURN_SECONDS = 1.0
# What RabbitMQ closes a channel with that names a queue which is not there, or not for this user.
REFUSALS = frozenset({403, 404, 405})


class Message(msgspec.Struct, frozen=True):
    """A message as RabbitMQ delivers it."""

    body: bytes
    properties: Any
    """pika's `BasicProperties`: `message_id`, `headers`, `content_type` and so on."""
    delivery: Any
    """pika's `Basic.Deliver`: `exchange`, `routing_key`, `redelivered` and so on."""

    @property
    def headers(self) -> dict[str, Any]:
        """What its sender, and RabbitMQ itself, wrote beside it."""
        return self.properties.headers or {}

    @property
    def deliveries(self) -> int:
        """How often it was delivered, as far as the queue counts."""
        return deliveries_of(self.headers, self.delivery.redelivered)

    def json(self) -> Any:
        """The body, read as JSON."""
        return msgspec.json.decode(self.body)


def by_message_id(queue: str, message: Message) -> str:
    """The usual key: the queue, and the message's `message_id`."""
    return key_of(queue, message.properties.message_id)


class Consumer(QueueConsumer[Message]):
    """Takes the messages of a queue, and has each handled once, in `workers` threads or tasks.

    `key` names a message, `fingerprint` what must not change under that name, and `person` whom it is about.
    Messages of one `group` are handled in order, among several consumers only where the queue has a single
    active one. `prefetch` is how many messages are in hand at a time. `backoff` says for how many seconds a
    message stays away that was tried so many times and failed. A consumer runs once.
    """

    def __init__(
        self,
        s: Semel,
        url: str,
        queue: str,
        handle: Callable[[Message], Any],
        *,
        key: Callable[[Message], str] | None = None,
        fingerprint: Callable[[Message], Any] | None = None,
        person: Callable[[Message], str | None] = lambda _: None,
        group: Callable[[Message], Hashable] = lambda _: None,
        workers: int = 1,
        prefetch: int = 10,
        backoff: Callable[[int], float] = default_backoff,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        check_whole("workers", workers, 1, 1000)
        check_whole("prefetch", prefetch, 1, 65_535)
        self._is_async = inspect.iscoroutinefunction(handle)
        handler = Handler(
            s,
            handle,
            key=key or partial(by_message_id, queue),
            fingerprint=fingerprint,
            person=person,
            door="rabbitmq",
            **options,
        )
        prefetch = max(prefetch, workers)
        settings = DispatchSettings(
            workers=workers,
            capacity=prefetch + 1,  # more than ever come: no room is only there when it stops
            backoff=backoff,
            longest_hold=LONGEST_HOLD,
            pushes=True,
        )
        receiver = QueueReceiver(url, queue, prefetch=prefetch, group=group, events=handler.s.events)
        dispatcher: Dispatcher[Message] = Dispatcher(settings, broker_backoff())
        self._consuming = Consuming(receiver, dispatcher, handler, Clock().monotonic)

    def run(self) -> None:
        """Handle messages in threads until `stop` is called; a connection that is lost is made again.

        A broker or a queue that refuses before anything came of it is an error.
        """
        if self._is_async:
            raise errors.UsageError("the handler is an async function: await consumer.arun()")
        self._begin()
        self._run(self._consuming)

    async def arun(self) -> None:
        """Handle messages in tasks; a cancellation interrupts them, and gives everything back."""
        self._begin()
        await self._arun(self._consuming)


class QueueReceiver(Broker[Message]):
    """A queue as a consumer deals with it; all but `settle` and `wake` is called by who receives."""

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        prefetch: int,
        group: Callable[[Message], Hashable],
        events: Events,
    ) -> None:
        self._parameters = _parameters(url)
        self._queue, self._prefetch, self._group, self._events = queue, prefetch, group, events
        self._place = f"{self._parameters.host}:{self._parameters.port}"
        self.name: str = f"rabbitmq {self._place} {queue}"
        self._connection: Any = None
        self._channel: Any = None
        self._consumer = ""
        self._arrived: list[InFlight[Message]] = []
        self._settlements: deque[QueueSettlement] = deque()

    def receive(self, many: int) -> ConsumerSteps[list[InFlight[Message]] | None]:
        """What has come; where no more is wanted, nothing more will."""
        received: list[InFlight[Message]] = yield BlockingCall(partial(self._receive, many))
        return received

    def _receive(self, many: int) -> list[InFlight[Message]]:
        with self._translated():
            if self._connection is None:
                self._connect()
            if not many and self._consumer:
                self._channel.basic_cancel(self._consumer)
                self._consumer = ""
            self._turn(TURN_SECONDS)
        arrived, self._arrived = self._arrived, []
        return arrived

    def _connect(self) -> None:
        self._connection = pika.BlockingConnection(self._parameters)
        self._channel = channel = self._connection.channel()
        channel.basic_qos(prefetch_count=self._prefetch)
        channel.add_on_cancel_callback(self._cancelled)
        self._consumer = channel.basic_consume(self._queue, self._arrive)
        # From now on it is known to be there.
        self.passing: tuple[type[Exception], ...] = (errors.BrokerError,)

    def _arrive(self, channel: Any, delivery: Any, properties: Any, body: bytes) -> None:
        message = Message(body, properties, delivery)
        try:
            group = self._group(message)
            hash(group)
        except Exception as error:  # noqa: BLE001 - it is somebody else's code, and may do anything
            self._events.warn(What.REFUSED, "", detail=f"a message without a group: {type(error).__name__}")
            channel.basic_nack(delivery.delivery_tag, requeue=False)
        else:
            tag = (channel, delivery.delivery_tag)
            self._arrived.append(InFlight(message, group=group, deliveries=message.deliveries, tag=tag))

    def _cancelled(self, _method: Any) -> None:
        raise errors.AddressRefused(self._queue, "the queue is gone")

    def settle(self, settlements: list[QueueSettlement]) -> ConsumerSteps[list[QueueSettlement]]:
        """Have whoever receives tell the broker: pika is not made for two threads."""
        self._settlements.extend(settlements)
        self.wake()
        return []
        yield

    def _turn(self, seconds: float) -> None:
        """Tell the broker what is settled, and hear what it has to say."""
        self._settle()
        self._connection.process_data_events(time_limit=seconds)
        self._settle()

    def _settle(self) -> None:
        while self._settlements:
            one = self._settlements.popleft()
            channel, tag = one.one.tag
            if channel is not self._channel:
                continue  # its connection is gone, and it comes again
            if isinstance(one, Acknowledge):
                channel.basic_ack(tag)
            else:
                channel.basic_nack(tag, requeue=not isinstance(one, DeadLetter))

    def wake(self) -> None:
        """Return from `receive`; from any thread."""
        connection = self._connection
        if connection is not None:
            with suppress(exceptions.AMQPError):
                connection.add_callback_threadsafe(lambda: None)

    def close(self) -> ConsumerSteps[None]:
        """Say goodbye, after all that is to be settled."""
        yield BlockingCall(self._close)

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(errors.BrokerError), self._translated():
                self._turn(0)
                self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """pika's errors as semel's; the connection is let go of."""
        try:
            yield
        except errors.BrokerError:
            self._hang_up()
            raise
        except exceptions.ChannelClosedByBroker as error:
            self._hang_up()
            if error.reply_code in REFUSALS:
                raise errors.AddressRefused(self._queue, error.reply_text) from error
            raise errors.BrokerUnavailable(f"{self._place} closed the channel: {error.reply_text}") from error
        except (exceptions.AMQPError, OSError) as error:
            self._hang_up()
            why = str(error) or type(error).__name__
            raise errors.BrokerUnavailable(
                f"{self._place} cannot be reached, or let nobody in: {why}"
            ) from error

    def _hang_up(self) -> None:
        connection, self._connection, self._channel, self._consumer = self._connection, None, None, ""
        self._arrived.clear()
        if connection is not None:
            with suppress(exceptions.AMQPError, OSError):
                connection.close()


def _parameters(url: str) -> Any:
    form = "RabbitMQ's URL is amqp://user:password@host:port/vhost, or begins with amqps:"
    if not url.startswith(("amqp://", "amqps://")):
        raise errors.InvalidOption(form)
    try:
        return pika.URLParameters(url)
    except (TypeError, ValueError) as error:
        raise errors.InvalidOption(form) from error
