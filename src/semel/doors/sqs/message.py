"""A message as its handler sees it, and what it is called."""

from collections.abc import Mapping
from typing import Any

import msgspec

from semel.aws.sqs import Attribute
from semel.doors.queues.sqs_names import sqs_key


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery of a message by SQS."""

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


def receive_request(many: int, *, wait: int, visibility: int) -> dict[str, Any]:
    """What asks for so many messages at most, with all that is known of them."""
    return {
        "MaxNumberOfMessages": many,
        "WaitTimeSeconds": wait,
        "VisibilityTimeout": visibility,
        "MessageAttributeNames": ["All"],
        "MessageSystemAttributeNames": ["All"],
    }


def read(response: dict[str, Any], queue: str) -> Message:
    """A message of a response of SQS."""
    system: dict[str, str] = response.get("Attributes") or {}
    sent = system.get("SentTimestamp")
    attributes = response.get("MessageAttributes") or {}
    return Message(
        id=response["MessageId"],
        body=response["Body"],
        queue=queue,
        attributes={name: Attribute.read(one) for name, one in attributes.items()},
        group=system.get("MessageGroupId"),
        dedup=system.get("MessageDeduplicationId"),
        sequence=system.get("SequenceNumber"),
        deliveries=int(system.get("ApproximateReceiveCount", 1)),
        sent_at=None if sent is None else int(sent) / 1000,
        receipt=response["ReceiptHandle"],
    )


def usual_key(message: Message, *, by_group: bool = False) -> str:
    """What a message is called; `by_group`: the queue takes equal names in two groups for two messages."""
    group = message.group if by_group else None
    return sqs_key(message.queue, message.id, message.body, message.dedup, group)
