"""A message as its handler sees it, and what it is called."""

from collections.abc import Mapping
from typing import Any

import msgspec

from semel.aws.sqs import Attribute
from semel.keys import Key


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery of a message."""

    id: str
    """SQS's own name for it: the same at every delivery, another one when it is sent again."""
    body: str
    queue: str
    """The name of the queue."""
    attributes: Mapping[str, Attribute] = {}
    group: str | None = None
    dedup: str | None = None
    """The sender's name for it, or a hash of the body where the sender has none; FIFO queues only."""
    sequence: str | None = None
    deliveries: int = 1
    """How often it was received, this time included; about right."""
    sent_at: float | None = None
    """When it was sent, in seconds since the epoch."""
    receipt: str = ""

    def json(self) -> Any:
        """The body, where it is JSON."""
        return msgspec.json.decode(self.body)


def read(told: dict[str, Any], queue: str) -> Message:
    """A message as SQS tells it."""
    system: dict[str, str] = told.get("Attributes") or {}
    sent = system.get("SentTimestamp")
    attributes = told.get("MessageAttributes") or {}
    return Message(
        id=told["MessageId"],
        body=told["Body"],
        queue=queue,
        attributes={name: Attribute.read(one) for name, one in attributes.items()},
        group=system.get("MessageGroupId"),
        dedup=system.get("MessageDeduplicationId"),
        sequence=system.get("SequenceNumber"),
        deliveries=int(system.get("ApproximateReceiveCount", 1)),
        sent_at=None if sent is None else int(sent) / 1000,
        receipt=told["ReceiptHandle"],
    )


def usual_key(message: Message, *, by_group: bool = False) -> str:
    """The name that its sender gave a message, or else SQS's own.

    A hash of the body names what is said, and not that it is said: an equal message a day later is another.
    `by_group`: the queue takes equal names in two groups for two messages.
    """
    if message.dedup is None or message.dedup == _hash(message.body):
        return Key(message.queue, message.id)
    if by_group:
        return Key(message.queue, message.group, message.dedup)
    return Key(message.queue, message.dedup)


def _hash(body: str) -> str:
    from hashlib import sha256

    return sha256(body.encode()).hexdigest()
