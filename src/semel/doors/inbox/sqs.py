"""An inbox on a FIFO queue of SQS: the same messages, delivered by AWS."""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, Unpack

import msgspec

from semel import errors
from semel.aws.sqs import Outgoing, Queue, Sent
from semel.codecs import Body
from semel.connect import Semel
from semel.doors.inbox.worker import MAX_ATTEMPTS, Dead
from semel.doors.sqs import Consumer
from semel.doors.sqs import Message as Delivery
from semel.doors.sqs.message import read
from semel.mailbox import Message
from semel.policy import Options

# What SQS takes for a group or a name for five minutes; anything else is hashed.
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
NAME = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")

# So many dead letters are received at once, and so long they are out of others' sight while they are told of.
BATCH = 10
SIGHT_SECONDS = 5


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as it travels: its body as the ledger's codec writes it, sealed where that seals."""

    key: str
    body: str
    """In base64."""
    encoding: str
    group: str | None = None
    error: str = ""


class SQSInbox:
    """Messages that wait in a FIFO queue, for consumers of any process or for Lambda functions."""

    def __init__(self, s: Semel, name: str, queue: str, dead_letters: str = "") -> None:
        self.name = name
        self._s = s
        self._box = s.mailbox(name)
        self._queue = Queue(queue)
        if not self._queue.fifo:
            raise errors.InvalidOption(f"{queue} keeps no order: an inbox takes a queue that ends in .fifo")
        self._dead = Queue(dead_letters) if dead_letters else None

    def put(self, *messages: Message) -> None:
        """Accept messages: once it returns they are safe."""
        _check(self._queue.send_all(map(self._outgoing, messages)))

    async def aput(self, *messages: Message) -> None:
        """The same, awaitable."""
        _check(await self._queue.asend_all(map(self._outgoing, messages)))

    def _outgoing(self, message: Message) -> Outgoing:
        body = self._box.steps.sealed(message)
        text = base64.b64encode(body.data or b"").decode()
        envelope = Envelope(message.key, text, body.encoding, message.group)
        return Outgoing(
            body=msgspec.json.encode(envelope).decode(),
            group=_named(message.key if message.group is None else message.group),
            dedup=_named(message.key),
        )

    def opened(self, delivery: Delivery) -> Message:
        """What a delivery says."""
        return self.unwrapped(delivery.body, delivery.deliveries)

    def unwrapped(self, body: str, deliveries: int = 1) -> Message:
        """The message in the body of a delivery, of a consumer's or of a Lambda function's."""
        envelope = msgspec.json.decode(body, type=Envelope)
        sealed = Body(base64.b64decode(envelope.body), envelope.encoding)
        told = self._box.steps.unsealed(envelope.key, sealed)
        return Message(envelope.key, told, envelope.group, deliveries)

    def worker(
        self, handle: Callable[[Message], Any], *, workers: int = 1, **options: Unpack[Options]
    ) -> Consumer:
        """What handles the messages, in so many threads."""
        options.setdefault("max_attempts", MAX_ATTEMPTS)
        return Consumer(
            self._s,
            self._queue,
            lambda delivery: handle(self.opened(delivery)),
            key=key_of,
            dead_letters=self._dead,
            workers=workers,
            **options,
        )

    def waiting(self) -> int:
        """About how many messages wait, or are being handled."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self._queue.call("GetQueueAttributes", {"AttributeNames": names})["Attributes"]
        return sum(int(told[name]) for name in names)

    def dead(self, limit: int = 100) -> list[Dead]:
        """Messages that nobody could handle; for some seconds nobody else sees them then."""
        return [
            Dead(one.id, key_of(one), one.group, one.deliveries, "", one.sent_at or 0.0)
            for one in self._dead_letters(limit)
        ]

    def redrive(self, id: str | None = None) -> int:
        """Put one of these back, or all of them, to be handled as if they were new; gives how many."""
        put_back = 0
        for one in self._dead_letters():
            if id in (None, one.id):
                self._put_back(one)
                put_back += 1
        if id is not None and not put_back:
            raise errors.UsageError(f"inbox {self.name} has no dead letter {id!r}")
        return put_back

    def _put_back(self, one: Delivery) -> None:
        self._box.forget(key_of(one))
        # A name of its own: under the first one SQS may drop it for five minutes.
        group, dedup = one.group or one.id, f"redriven-{one.id}"
        self._queue.send(one.body, group=group, dedup=dedup)
        self._dead_queue.call("DeleteMessage", {"ReceiptHandle": one.receipt})

    @property
    def _dead_queue(self) -> Queue:
        if self._dead is None:
            raise errors.UsageError(f"inbox {self.name} was not told where its dead letters are")
        return self._dead

    def _dead_letters(self, limit: int | None = None) -> Iterable[Delivery]:
        """Dead letters, received once each."""
        seen: set[str] = set()
        while limit is None or len(seen) < limit:
            asked = {
                "MaxNumberOfMessages": BATCH,
                "VisibilityTimeout": SIGHT_SECONDS,
                "MessageSystemAttributeNames": ["All"],
                "MessageAttributeNames": ["All"],
            }
            told = self._dead_queue.call("ReceiveMessage", asked).get("Messages") or []
            new = [read(one, self._dead_queue.name) for one in told if one["MessageId"] not in seen]
            if not new:
                return
            seen.update(one.id for one in new)
            yield from new

    def close(self) -> None:
        """Let go of connections."""
        self._queue.close()
        if self._dead is not None:
            self._dead.close()


def key_of(delivery: Delivery) -> str:
    """What a delivery's message is called."""
    return msgspec.json.decode(delivery.body, type=Envelope).key


def _named(text: str) -> str:
    return text if NAME.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _check(sent: Iterable[Sent]) -> None:
    for one in sent:
        if one.error is not None:
            raise one.error
