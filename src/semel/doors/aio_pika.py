"""RabbitMQ by aio-pika: a callback for a queue that you consume yourself, which handles each message once.

await queue.consume(callback(s, "orders", handle))
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, Unpack

from semel import errors
from semel.connect import Semel
from semel.core.policy import Options
from semel.core.runtime import require
from semel.doors.queues.backoff import LONGEST_HOLD, default_backoff
from semel.doors.queues.messages import DeliveryResult, Handler, Verdict
from semel.doors.queues.rabbitmq_names import deliveries_of, key_of

require("aio_pika", "aiopika")  # which says how to install it

from aio_pika.abc import AbstractIncomingMessage

__all__ = ["callback"]

AsyncHandler: TypeAlias = Callable[[AbstractIncomingMessage], Awaitable[Any]]


def callback(
    s: Semel,
    queue: str,
    handle: AsyncHandler,
    *,
    key: Callable[[AbstractIncomingMessage], str] | None = None,
    fingerprint: Callable[[AbstractIncomingMessage], Any] | None = None,
    person: Callable[[AbstractIncomingMessage], str | None] = lambda _: None,
    backoff: Callable[[int], float] = default_backoff,
    **options: Unpack[Options],
) -> Callable[[AbstractIncomingMessage], Awaitable[None]]:
    """A callback that has a message of this queue handled once, and settles it by what became of it.

    `key` names a message, by its `message_id` unless it says otherwise; `fingerprint` is what must not change
    under that name, and `person` whom it is about. A message that has to come again is held for `backoff`
    seconds, by the number of its deliveries, and given back; a dead one goes to the queue's dead letters.
    """
    if not inspect.iscoroutinefunction(handle):
        raise errors.InvalidOption("aio-pika awaits its callbacks: the handler has to be an async function")
    handler: Handler[AbstractIncomingMessage] = Handler(
        s,
        handle,
        key=key or (lambda message: key_of(queue, message.message_id)),
        fingerprint=fingerprint,
        person=person,
        door="rabbitmq",
        **options,
    )

    async def on_message(message: AbstractIncomingMessage) -> None:
        taken = await handler.atake(message)
        if taken.settled:
            await message.ack()
        elif taken.verdict is Verdict.DEAD:
            await message.reject(requeue=False)
        else:
            await asyncio.sleep(_delay(message, taken, backoff))
            await message.nack(requeue=True)

    return on_message


def _delay(message: AbstractIncomingMessage, taken: DeliveryResult, backoff: Callable[[int], float]) -> float:
    """How long a message stays away, which RabbitMQ would deliver again at once."""
    deliveries = deliveries_of(message.headers, message.redelivered)
    wanted = backoff(deliveries) if taken.retry_after is None else taken.retry_after
    return 0.0 if taken.stops else min(max(0.0, wanted), LONGEST_HOLD)
