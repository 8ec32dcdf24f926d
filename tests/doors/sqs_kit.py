"""Queues on a server, for tests."""

import os
import uuid
from typing import Any

from semel.aws.sqs import Queue
from semel.aws.wire import Wire
from tests.places import CREDENTIALS


def make_queue(
    server: str, name: str | None = None, *, fifo: bool = True, region: str | None = None, **attributes: Any
) -> str:
    """A new queue on a server: its URL there."""
    for variable, value in CREDENTIALS.items():
        os.environ.setdefault(variable, value)
    name = name or f"q{uuid.uuid4().hex[:12]}{'.fifo' if fifo else ''}"
    if name.endswith(".fifo"):
        attributes |= {"FifoQueue": "true"}
    wire = Wire("sqs", region=region, endpoint=server)
    try:
        request = {"QueueName": name, "Attributes": {key: str(value) for key, value in attributes.items()}}
        made = wire.call("CreateQueue", request, write=True)["QueueUrl"]
    finally:
        wire.close()
    # By the name that the tests know the server by.
    return f"{server}/{made.split('/', 3)[3]}"


def counts(queue: Queue) -> tuple[int, int]:
    """How many messages can be received, and how many are in flight."""
    said = queue.call("GetQueueAttributes", {"AttributeNames": ["All"]})["Attributes"]
    return int(said["ApproximateNumberOfMessages"]), int(said["ApproximateNumberOfMessagesNotVisible"])
