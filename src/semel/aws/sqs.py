"""One SQS queue: its requests and their responses."""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias, TypedDict, Unpack
from urllib.parse import urlsplit

import msgspec

from semel import errors
from semel.aws.credentials import Credentials
from semel.aws.endpoint import endpoint_url
from semel.aws.errors import DENIED, ServiceError
from semel.aws.pool import ConnectionLimits
from semel.aws.wire import Wire
from semel.core.runtime import masked

# SQS keeps a receive open for so long at most; who is silent for longer will not answer any more.
LONGEST_POLL = 20
POLL_LIMITS = ConnectionLimits(read_timeout=LONGEST_POLL + 10.0)

# What one request may hold, attributes and all. One message may be as large as the whole.
BATCH = 10
MAX_BYTES = 1024 * 1024

# Where AWS keeps queues: `sqs.eu-north-1.amazonaws.com`, a VPC endpoint before that, and the name of old.
REGION = re.compile(r"(?:^|\.)(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.(?:vpce\.)?amazonaws\.com")

GONE = frozenset({"NonExistentQueue", "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})
# Too many messages are in flight: it passes when some of them are deleted.
CROWDED = "OverLimit"
WRONG = frozenset(
    {
        "BatchRequestTooLong",
        "InvalidAddress",
        "InvalidAttributeName",
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "MissingParameter",
        "MissingRequiredParameterException",
        "UnsupportedOperation",
        "ValidationException",
    }
)


class Attribute(msgspec.Struct, frozen=True):
    """What stands beside a body: a text, a number as text, or bytes, with the type that SQS knows."""

    type: str
    value: str | bytes

    @classmethod
    def of(cls, value: "Attributable") -> "Attribute":
        """A value of Python's as an attribute."""
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
        """An attribute as it comes on the wire."""
        from base64 import b64decode

        kind = written["DataType"]
        if kind.startswith("Binary"):
            return cls(kind, b64decode(written["BinaryValue"]))
        return cls(kind, written["StringValue"])

    def written(self) -> dict[str, Any]:
        """The attribute as it goes on the wire."""
        from base64 import b64encode

        if isinstance(self.value, bytes):
            return {"DataType": self.type, "BinaryValue": b64encode(self.value).decode()}
        return {"DataType": self.type, "StringValue": self.value}

    @property
    def size(self) -> int:
        """How much of a message's size it takes, beside its name."""
        value = self.value if isinstance(self.value, bytes) else self.value.encode()
        return len(self.type) + len(value)


Attributable: TypeAlias = str | int | float | Decimal | bytes | Attribute


class More(TypedDict, total=False):
    """What a message may have beside its body."""

    group: str | None
    """The messages of one group are handled in their order; a FIFO queue wants one."""
    dedup: str | None
    """A FIFO queue takes one message under this name in five minutes, and drops the others."""
    attributes: Mapping[str, Attributable]
    delay: int | None
    """After how many seconds it can be received; not for a message of a FIFO queue."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be sent; `More` says what its parts mean."""

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
        """The message as a request says it."""
        entry: dict[str, Any] = {
            "MessageBody": self.body,
            "MessageGroupId": self.group,
            "MessageDeduplicationId": self.dedup,
            "DelaySeconds": self.delay,
        }
        if self.attributes:
            named = self.attributes.items()
            entry["MessageAttributes"] = {name: Attribute.of(value).written() for name, value in named}
        return {name: value for name, value in entry.items() if value is not None}


class Sent(msgspec.Struct, frozen=True):
    """What became of a message that was to be sent: it has an id, or there is an error."""

    id: str | None = None
    sequence: str | None = None
    error: ServiceError | None = None


class Queue:
    """A queue by its URL.

    It is asked where the URL says, unless `endpoint`, or AWS_ENDPOINT_URL_SQS or AWS_ENDPOINT_URL, says
    otherwise.
    """

    def __init__(
        self,
        url: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        origin, host, name = _parted(url)
        self.name: str = name
        self.url = url
        self.fifo: bool = self.name.endswith(".fifo")
        region = region or _region(host)
        where: dict[str, Any] = {
            "region": region,
            "endpoint": endpoint or endpoint_url("sqs") or origin,
            "credentials": credentials,
        }
        self._wire = Wire("sqs", **where)
        # Receiving waits long, and everything else must not: two ways with patience of their own.
        self._long = Wire("sqs", **where, limits=POLL_LIMITS)

    # What the consumer asks

    def call(self, operation: str, request: dict[str, Any], *, write: bool = False) -> dict[str, Any]:
        """The answer to an operation on this queue; `write` is what must not be repeated."""
        try:
            return self._way(operation).call(operation, {"QueueUrl": self.url, **request}, write=write)
        except ServiceError as error:
            self._refuse(error, operation)

    async def acall(self, operation: str, request: dict[str, Any], *, write: bool = False) -> dict[str, Any]:
        """The answer to an operation, which a task awaits; `write` is what must not be repeated."""
        try:
            way = self._way(operation)
            return await way.acall(operation, {"QueueUrl": self.url, **request}, write=write)
        except ServiceError as error:
            self._refuse(error, operation)

    def _way(self, operation: str) -> Wire:
        return self._long if operation == "ReceiveMessage" else self._wire

    def _refuse(self, error: ServiceError, operation: str) -> NoReturn:
        raise translated(error, operation, self.url) from error

    # What is sent

    def send(self, body: str, **more: Unpack[More]) -> str:
        """Send a message, and give its id.

        `StoreOutcomeUnknown` says that it may have been sent: in a FIFO queue send it again with the same
        `dedup`, within five minutes, and there will be one.
        """
        message = Outgoing(body=body, **more)
        id: str = self.call("SendMessage", message.entry(), write=True)["MessageId"]
        return id

    async def asend(self, body: str, **more: Unpack[More]) -> str:
        """Send a message from a task, and give its id; for `StoreOutcomeUnknown` see `send`."""
        message = Outgoing(body=body, **more)
        id: str = (await self.acall("SendMessage", message.entry(), write=True))["MessageId"]
        return id

    def send_all(self, messages: Iterable[Outgoing]) -> list[Sent]:
        """Send messages in as few requests as there can be, and tell for each what became of it."""
        sent: list[Sent] = []
        for batch in batches(messages):
            sent += _each(batch, self.call("SendMessageBatch", _entries(batch), write=True))
        return sent

    async def asend_all(self, messages: Iterable[Outgoing]) -> list[Sent]:
        """Send messages from a task in as few requests as can be, and tell for each what became of it."""
        sent: list[Sent] = []
        for batch in batches(messages):
            sent += _each(batch, await self.acall("SendMessageBatch", _entries(batch), write=True))
        return sent

    async def leave(self) -> None:
        """Let go of the running event loop's connections."""
        await self._wire.leave()
        await self._long.leave()

    def close(self) -> None:
        """Let go of every connection."""
        self._wire.close()
        self._long.close()


def _parted(url: str) -> tuple[str, str, str]:
    """Where a queue is, its host, and its name."""
    parts = urlsplit(url)
    name = parts.path.rstrip("/").rpartition("/")[2]
    if not parts.scheme or not parts.hostname or not name:
        raise errors.InvalidOption(
            f"{masked(url)!r} is no URL of a queue; one looks like https://sqs.eu-north-1.amazonaws.com/123456789012/orders"
        )
    return f"{parts.scheme}://{parts.netloc}", parts.hostname, name


def _region(host: str) -> str | None:
    found = REGION.search(host)
    return (found[1] or found[2]) if found else None


def batches(messages: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """As many as one request may hold, by their number and by their size, in their order."""
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


def _entries(batch: list[Outgoing]) -> dict[str, Any]:
    return {"Entries": [{"Id": str(number), **one.entry()} for number, one in enumerate(batch)]}


def _each(batch: list[Outgoing], answer: dict[str, Any]) -> Iterator[Sent]:
    done = {one["Id"]: one for one in answer.get("Successful") or ()}
    failed = {one["Id"]: one for one in answer.get("Failed") or ()}
    for number in map(str, range(len(batch))):
        if number in done:
            yield Sent(done[number]["MessageId"], done[number].get("SequenceNumber"))
        else:
            error = failed.get(number, {})
            code, message = error.get("Code", "Unknown"), error.get("Message", "the answer does not say")
            yield Sent(error=ServiceError(code, message, 400 if error.get("SenderFault") else 500, error))


def translated(error: ServiceError, operation: str, url: str) -> errors.SemelError:
    """An error of SQS as everybody else knows it."""
    code, reason = error.code, f"({error.code}: {error.message})"
    if code in GONE:
        return errors.QueueMissing(
            f"there is no queue {url} {reason}; look for its account, region and name in the console, or "
            "with `aws sqs get-queue-url`"
        )
    if code in DENIED:
        action = operation.removesuffix("Batch")
        return errors.NotPermitted(f"these credentials may not do sqs:{action} on {url} {reason}; allow it")
    if code == CROWDED:
        return errors.StoreThrottled(
            f"too many messages of {url} are in flight {reason}; it passes by itself"
        )
    if code in WRONG:
        return errors.UsageError(f"SQS refuses this {operation} on {url} {reason}")
    return error
