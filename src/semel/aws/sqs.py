"""One SQS queue: its requests and their responses."""

import re
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias, TypedDict, Unpack
from urllib.parse import urlsplit

import msgspec

from semel import errors
from semel.aws.environment import Credentials, endpoint_url
from semel.aws.errors import DENIED, ServiceError
from semel.aws.pool import ConnectionLimits
from semel.aws.wire import Wire
from semel.core.drive import run_async, run_sync
from semel.core.runtime import masked

# SQS keeps a receive open for 20 seconds at most; after that no response is to be expected.
LONGEST_POLL = 20
POLL_LIMITS = ConnectionLimits(read_timeout=LONGEST_POLL + 10.0)

# What one request may hold, attributes included. One message may be as large as the whole.
BATCH = 10
MAX_BYTES = 1024 * 1024

# Hosts of queues at AWS: `sqs.eu-north-1.amazonaws.com`, a VPC endpoint before that, and the legacy name.
REGION = re.compile(r"(?:^|\.)(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.(?:vpce\.)?amazonaws\.com")

GONE = frozenset({"NonExistentQueue", "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})
# Too many messages are in flight, until some of them are deleted.
CROWDED = "OverLimit"
WRONG = frozenset(
    {
        *("BatchRequestTooLong", "InvalidAddress", "InvalidAttributeName", "InvalidMessageContents"),
        *("InvalidParameterValue", "InvalidParameterValueException", "MissingParameter"),
        *("MissingRequiredParameterException", "UnsupportedOperation", "ValidationException"),
    }
)


class Attribute(msgspec.Struct, frozen=True):
    """An attribute of a message: a text, a number as text, or bytes, with SQS's name of its type."""

    type: str
    value: str | bytes

    @classmethod
    def of(cls, value: "Attributable") -> "Attribute":
        """Convert a Python value."""
        if isinstance(value, Attribute):
            return value
        if isinstance(value, bytes):
            return cls("Binary", value)
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return cls("Number", str(value))
        if isinstance(value, str):
            return cls("String", value)
        raise errors.UsageError(f"an attribute is a text, a number or bytes, not {type(value).__name__}")

    @classmethod
    def read(cls, written: dict[str, Any]) -> "Attribute":
        """Parse an attribute from its form on the wire."""
        kind = written["DataType"]
        if kind.startswith("Binary"):
            return cls(kind, b64decode(written["BinaryValue"]))
        return cls(kind, written["StringValue"])

    def written(self) -> dict[str, Any]:
        """Return the attribute in its form on the wire."""
        if isinstance(self.value, bytes):
            return {"DataType": self.type, "BinaryValue": b64encode(self.value).decode()}
        return {"DataType": self.type, "StringValue": self.value}

    @property
    def size(self) -> int:
        """How many bytes SQS counts, besides its name."""
        value = self.value if isinstance(self.value, bytes) else self.value.encode()
        return len(self.type) + len(value)


Attributable: TypeAlias = str | int | float | Decimal | bytes | Attribute


class More(TypedDict, total=False):
    """What a message may have besides its body."""

    group: str | None
    """The messages of one group are handled in order; a FIFO queue requires it."""
    dedup: str | None
    """A FIFO queue accepts one message with this id in five minutes, and drops the others."""
    attributes: Mapping[str, Attributable]
    delay: int | None
    """In how many seconds it can be received; not for a FIFO queue."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send; `More` describes its fields."""

    body: str
    group: str | None = None
    dedup: str | None = None
    attributes: Mapping[str, Attributable] = {}
    delay: int | None = None

    @property
    def size(self) -> int:
        """How many bytes SQS counts."""
        attributes = sum(len(name.encode()) + Attribute.of(one).size for name, one in self.attributes.items())
        return len(self.body.encode()) + attributes

    def entry(self) -> dict[str, Any]:
        """Return the message in its form in a request."""
        entry = {
            "MessageBody": self.body,
            "MessageGroupId": self.group,
            "MessageDeduplicationId": self.dedup,
            "DelaySeconds": self.delay,
            "MessageAttributes": {n: Attribute.of(value).written() for n, value in self.attributes.items()},
        }
        return {name: value for name, value in entry.items() if value not in (None, {})}


class Sent(msgspec.Struct, frozen=True):
    """The outcome of sending a message: it has an id, or there is an error."""

    id: str | None = None
    sequence: str | None = None
    error: ServiceError | None = None


class Queue:
    """A queue by its URL, which also names its host.

    `endpoint`, or else AWS_ENDPOINT_URL_SQS or AWS_ENDPOINT_URL, takes precedence over that host.
    """

    def __init__(
        self,
        url: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self.name: str = parts.path.rstrip("/").rpartition("/")[2]
        self.fifo: bool = self.name.endswith(".fifo")
        if not parts.scheme or not parts.hostname or not self.name:
            raise errors.InvalidOption(
                f"{masked(url)!r} is not the URL of a queue; one looks like "
                "https://sqs.eu-north-1.amazonaws.com/123456789012/orders"
            )
        found = REGION.search(parts.hostname)
        where: dict[str, Any] = {
            "region": region or (found and (found[1] or found[2])),
            "endpoint": endpoint or endpoint_url("sqs") or f"{parts.scheme}://{parts.netloc}",
            "credentials": credentials,
        }
        self._wire = Wire("sqs", **where)
        # Receiving waits long, and nothing else may: so each has its own timeouts and connections.
        self._long = Wire("sqs", **where, limits=POLL_LIMITS)

    def call(self, operation: str, request: dict[str, Any], *, write: bool = False) -> dict[str, Any]:
        """Return the response to an operation on this queue; a `write` is not repeated in doubt."""
        try:
            return self._way(operation).call(operation, {"QueueUrl": self.url, **request}, write=write)
        except ServiceError as error:
            raise translated(error, operation, self.url) from error

    async def acall(self, operation: str, request: dict[str, Any], *, write: bool = False) -> dict[str, Any]:
        """Return the response to an operation, for a task; a `write` is not repeated in doubt."""
        way = self._way(operation)
        try:
            return await way.acall(operation, {"QueueUrl": self.url, **request}, write=write)
        except ServiceError as error:
            raise translated(error, operation, self.url) from error

    def _way(self, operation: str) -> Wire:
        return self._long if operation == "ReceiveMessage" else self._wire

    def send(self, body: str, **more: Unpack[More]) -> str:
        """Send a message, and return its id.

        After `StoreOutcomeUnknown` it may have been sent: send it again with the same `dedup`, within five
        minutes, and a FIFO queue will have one.
        """
        id: str = self.call("SendMessage", Outgoing(body=body, **more).entry(), write=True)["MessageId"]
        return id

    async def asend(self, body: str, **more: Unpack[More]) -> str:
        """Send a message from a task, and return its id; for `StoreOutcomeUnknown` see `send`."""
        entry = Outgoing(body=body, **more).entry()
        id: str = (await self.acall("SendMessage", entry, write=True))["MessageId"]
        return id

    def send_all(self, messages: Iterable[Outgoing]) -> list[Sent]:
        """Send messages in as few requests as possible, and return the outcome of each."""
        return run_sync(_sending(messages), partial(self.call, "SendMessageBatch", write=True))

    async def asend_all(self, messages: Iterable[Outgoing]) -> list[Sent]:
        """Send messages from a task in as few requests as possible, and return the outcome of each."""
        return await run_async(_sending(messages), partial(self.acall, "SendMessageBatch", write=True))

    async def leave(self) -> None:
        """Close the running event loop's connections."""
        await self._wire.leave()
        await self._long.leave()

    def close(self) -> None:
        """Close every connection."""
        self._wire.close()
        self._long.close()


def batches(messages: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Split messages, in order, into batches that one request may hold."""
    batch: list[Outgoing] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == BATCH or size + message.size > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += message.size
    if batch:
        yield batch


def _sending(messages: Iterable[Outgoing]) -> Generator[dict[str, Any], dict[str, Any], list[Sent]]:
    """Return the outcomes of messages: each step is a request, and its reply the response."""
    sent: list[Sent] = []
    for batch in batches(messages):
        answer = yield {"Entries": [{"Id": str(number), **one.entry()} for number, one in enumerate(batch)]}
        found = {one["Id"]: one for one in (answer.get("Failed") or []) + (answer.get("Successful") or [])}
        sent += [_outcome(found.get(str(number), {})) for number in range(len(batch))]
    return sent


def _outcome(found: dict[str, Any]) -> Sent:
    if "MessageId" in found:
        return Sent(found["MessageId"], found.get("SequenceNumber"))
    code, message = found.get("Code", "Unknown"), found.get("Message", "the response does not say")
    return Sent(error=ServiceError(code, message, 400 if found.get("SenderFault") else 500, found))


def translated(error: ServiceError, operation: str, url: str) -> errors.SemelError:
    """Return semel's error for an error of SQS."""
    code, reason = error.code, f"({error.code}: {error.message})"
    if code in GONE:
        return errors.QueueMissing(
            f"there is no queue {url} {reason}: check its account, region and name in the console, or with "
            "`aws sqs get-queue-url`"
        )
    if code in DENIED:
        action = operation.removesuffix("Batch")
        return errors.NotPermitted(f"these credentials lack sqs:{action} on {url} {reason}: allow it")
    if code == CROWDED:
        return errors.StoreThrottled(
            f"too many messages of {url} are in flight {reason}; retry when some are deleted"
        )
    if code in WRONG:
        return errors.UsageError(f"SQS refuses this {operation} on {url} {reason}")
    return error
