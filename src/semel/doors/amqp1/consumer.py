"""The consumer of an address: what its user says."""

import inspect
import ssl
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Unpack
from uuid import UUID

from semel import errors
from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.keys import own_key
from semel.core.policy import Options
from semel.doors.amqp1.endpoint import endpoint_of
from semel.doors.amqp1.receiver import AmqpReceiver
from semel.doors.queues.backoff import LONGEST_HOLD, broker_backoff, default_backoff
from semel.doors.queues.consuming import Consuming, QueueConsumer
from semel.doors.queues.dispatcher import Dispatcher, DispatchSettings
from semel.doors.queues.messages import Handler


def by_message_id(address: str, message: Any) -> str:
    """The usual key: where a message came from, and its `message-id`."""
    found = message.id
    if found is None or found == "":
        raise errors.InvalidKey("the message has no message-id: have its sender give it one, or pass key=")
    if isinstance(found, bytes | memoryview):
        found = found.hex()
    return own_key("amqp", address, str(found) if isinstance(found, UUID) else found)


def group_id(message: Any) -> str | None:
    """The usual group: the message's `group-id`, or none."""
    return message.group_id or None


class Consumer(QueueConsumer[Any]):
    """Takes the messages of an address, and has each handled once, in `workers` threads.

    `handle` is given proton's `Message`. `key` names a message, and `fingerprint` what must not change under
    that name. Messages of one `group` are handled in order. `prefetch` is how many messages are in hand at a
    time. `backoff` says for how many seconds a message stays away that was tried so many times and failed.
    `capability` is what the address stands for, which some brokers have to be told. A consumer runs once.
    """

    def __init__(
        self,
        s: Semel,
        url: str,
        address: str,
        handle: Callable[[Any], Any],
        *,
        key: Callable[[Any], str] | None = None,
        fingerprint: Callable[[Any], Any] | None = None,
        group: Callable[[Any], Hashable] = group_id,
        workers: int = 1,
        prefetch: int = 10,
        backoff: Callable[[int], float] = default_backoff,
        keepalive: float = 30.0,
        capability: str | None = "queue",
        tls: ssl.SSLContext | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        if inspect.iscoroutinefunction(handle):
            raise errors.InvalidOption("the handler is an async function; this consumer runs plain ones")
        if workers < 1 or prefetch < 1:
            raise errors.InvalidOption("workers and prefetch are at least 1")
        endpoint, clock = endpoint_of(url, tls), Clock()
        key = key or partial(by_message_id, address)
        handler: Handler[Any] = Handler(s, handle, key=key, fingerprint=fingerprint, door="amqp", **options)
        settings = DispatchSettings(
            workers=workers,
            capacity=max(prefetch, workers),
            backoff=backoff,
            longest_hold=LONGEST_HOLD,
            pushes=True,
        )
        self.receiver: AmqpReceiver = AmqpReceiver(
            endpoint,
            address,
            group=group,
            keepalive=keepalive,
            capability=capability,
            clock=clock,
            events=handler.s.events,
        )
        dispatcher: Dispatcher[Any] = Dispatcher(settings, broker_backoff())
        self._consuming = Consuming(self.receiver, dispatcher, handler, clock.monotonic)

    def run(self) -> None:
        """Handle messages until `stop` is called; a connection that is lost is made again.

        A broker or an address that refuses before anything came of it is an error, as is a handler's
        `SystemExit` and its like.
        """
        self._begin()
        with self.receiver:
            self._run(self._consuming)
