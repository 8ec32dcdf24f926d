"""RabbitMQ's messages, the same by pika and by aio-pika: how they are named, and how often they came."""

from collections.abc import Mapping
from typing import Any

from semel.core.keys import own_key
from semel.errors import InvalidKey

# RabbitMQ counts a message's failed deliveries in this header, in quorum queues.
COUNT = "x-delivery-count"


def key_of(queue: str, message_id: str | None) -> str:
    """The usual key of a message: its queue, and its `message_id`."""
    if not message_id:
        raise InvalidKey("the message has no message_id: have its sender give it one, or pass key=")
    return own_key("rabbitmq", queue, message_id)


def deliveries_of(headers: Mapping[str, Any], redelivered: bool | None) -> int:
    """How often a message was delivered, as far as the queue counts."""
    counted = headers.get(COUNT)
    return counted + 1 if isinstance(counted, int) else 1 + bool(redelivered)
