"""An inbox on a FIFO queue of SQS, whose messages AWS delivers."""

import base64
import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from math import ceil
from typing import Any, Unpack

import msgspec

from semel import errors
from semel.aws.sqs import LONGEST_POLL, MAX_BYTES, Outgoing, Queue, Sent
from semel.connect import Semel
from semel.core.codecs import Body
from semel.core.policy import Options
from semel.core.realm import SubjectHash
from semel.doors.inbox.others import WaitingMessage
from semel.doors.inbox.redriving import DeadFilter, Redriven, no_letter
from semel.doors.inbox.worker import MAX_ATTEMPTS, Backoff, Dead, check_handling
from semel.doors.sqs import Consumer
from semel.doors.sqs import Message as Delivery
from semel.doors.sqs.broker import default_backoff, tens
from semel.doors.sqs.message import read, receive_request
from semel.model import ProgressCallback
from semel.state.erasure import erased_key
from semel.state.mailbox import Counted, Message, Survey, checked

# What SQS takes for a group or a name for five minutes; anything else is hashed.
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
NAME = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")
HASH = re.compile(r"[0-9a-f]{64}")

# So many dead letters are received at once, and so long nobody else sees them while they are gone through. Of
# one group SQS gives no more before these are back or gone.
BATCH = 10
SIGHT_SECONDS = 60
# So many receives make up what whoever handles many together is given at once.
RECEIVES = 10
# Asked without waiting, SQS looks on some of its servers only, and may find none of a few.
WAIT_SECONDS = 1


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message as it travels: its body as the ledger's codec writes it, sealed where that seals."""

    key: str
    body: str
    """In base64."""
    encoding: str
    group: str | None = None
    subject: str | None = None
    """The keyed hash of whom it is about."""
    at: float = 0.0
    """When it was accepted."""


class SQSInbox:
    """Messages that wait in a FIFO queue, for consumers of any process or for Lambda functions."""

    def __init__(
        self, s: Semel, name: str, queue: str, dead_letters: str = "", *, shared: bool = False
    ) -> None:
        self.name = name
        self._s = s
        self._box = s.mailbox(name, shared=shared)
        self._queue = Queue(queue)
        if not self._queue.fifo:
            raise errors.InvalidOption(f"{queue} keeps no order: an inbox takes a queue that ends in .fifo")
        self._dead = Queue(dead_letters) if dead_letters else None

    def record_key(self, key: str) -> str:
        """The key under which the ledger knows a message."""
        return self._box.steps.record_key(key)

    def put(self, *messages: Message) -> None:
        """Accept messages: once it returns they are safe."""
        _check(self._queue.send_all([self._outgoing(message) for message in messages]))

    async def aput(self, *messages: Message) -> None:
        """Accept messages: once it is awaited they are safe."""
        _check(await self._queue.asend_all([self._outgoing(message) for message in messages]))

    def _outgoing(self, given: Message) -> Outgoing:
        message = checked(given)
        body = self._box.steps.sealed(message)
        text = base64.b64encode(body.data or b"").decode()
        person = self._s.ledger.steps.realm.subject_of(message.subject)
        envelope = Envelope(message.key, text, body.encoding, message.group, person, self._s.clock.now())
        outgoing = Outgoing(
            body=msgspec.json.encode(envelope).decode(),
            group=_named(message.key if message.group is None else message.group),
            dedup=_named(message.key),
        )
        if outgoing.size > MAX_BYTES:
            raise errors.MessageRefused(
                f"message {message.key!r} is too large: SQS takes {MAX_BYTES} bytes, in base64"
            )
        return outgoing

    def opened(self, delivery: Delivery) -> Message:
        """What a delivery says."""
        return self.unwrapped(delivery.body, delivery.deliveries)

    def unwrapped(self, body: str, deliveries: int = 1) -> Message:
        """The message in the body of a delivery, of a consumer's or of a Lambda function's."""
        envelope = msgspec.json.decode(body, type=Envelope)
        sealed = Body(base64.b64decode(envelope.body), envelope.encoding)
        content = self._box.steps.unsealed(envelope.key, sealed)
        person = None if envelope.subject is None else SubjectHash(envelope.subject)
        return Message(envelope.key, content, envelope.group, deliveries, person)

    def handled(self, handle: Callable[[Message], Any], body: str, deliveries: int = 1) -> Any:
        """Handle the message in the body of a delivery, unless whom it is about was erased since it came."""
        if self._is_erased(msgspec.json.decode(body, type=Envelope)):
            return None
        return handle(self.unwrapped(body, deliveries))

    def _is_erased(self, envelope: Envelope) -> bool:
        # A queue cannot be searched, so this is asked of each message that is about somebody.
        if envelope.subject is None:
            return False
        mark = self._s.ledger.get(erased_key(envelope.subject))
        return mark is not None and envelope.at <= mark.created_at

    def worker(
        self,
        handle: Callable[[Message], Any],
        *,
        workers: int = 1,
        poll: float | None = None,
        backoff: Backoff | None = None,
        **options: Unpack[Options],
    ) -> Consumer:
        """What handles the messages, in so many threads; a receive waits for `poll` seconds, or for 20."""
        options.setdefault("max_attempts", MAX_ATTEMPTS)
        check_handling(handle, options)
        return Consumer(
            self._s,
            self._queue,
            lambda delivery: self.handled(handle, delivery.body, delivery.deliveries),
            # Opened whole, so that one that cannot be read is dead at once, and holds nobody up.
            key=lambda delivery: self.record_key(self.opened(delivery).key),
            person=lambda delivery: self.opened(delivery).subject,
            dead_letters=self._dead,
            workers=workers,
            poll=LONGEST_POLL if poll is None else round(poll),
            backoff=backoff or default_backoff,
            **options,
        )

    def others(self, message: Message, *, seconds: float = 60.0) -> Iterator[list[WaitingMessage]]:
        """What else waits, has no group, and can be received now; in parts."""
        more = True
        while more:
            received: list[Delivery] = []
            for _ in range(RECEIVES):
                some = _received(self._queue, BATCH, wait=0, visibility=ceil(seconds))
                received += some
                more = bool(some)
                if not more:
                    break
            yield self._readable(received)

    def _readable(self, received: list[Delivery]) -> list[WaitingMessage]:
        """Those that have no group, whose order is to be kept; the rest is let go."""
        others = []
        for one in received:
            envelope = _envelope(one)
            try:
                if envelope is not None and envelope.group is None and not self._is_erased(envelope):
                    others.append(WaitingMessage(self.opened(one), one))
            except errors.MessageUnreadable:
                continue  # whoever comes to it puts it aside
        known = {other.held.receipt for other in others}
        rest = [one for one in received if one.receipt not in known]
        _call_for_each(self._queue, "ChangeMessageVisibilityBatch", rest, VisibilityTimeout=0)
        return others

    def settle(self, others: Iterable[WaitingMessage]) -> None:
        """These are done."""
        _call_for_each(self._queue, "DeleteMessageBatch", [other.held for other in others])

    def give_back(self, others: Iterable[WaitingMessage], seconds: float = 0.0) -> None:
        """These are not: they can be received again after so many seconds."""
        given = [other.held for other in others]
        _call_for_each(self._queue, "ChangeMessageVisibilityBatch", given, VisibilityTimeout=ceil(seconds))

    def survey(self) -> Survey:
        """About how many messages wait, which is all that SQS tells."""
        return Survey(self.waiting())

    def waiting(self) -> int:
        """About how many messages wait, or are being handled."""
        return _about(self._queue)

    def count(self, *, dead: bool = False, after: str | None = None) -> Counted:
        """About how many messages wait, or could be handled by nobody, which is all that SQS tells."""
        return Counted(_about(self._dead_queue if dead else self._queue))

    def dead(self, limit: int = 100, *, bodies: bool = False) -> list[Dead]:
        """Messages that nobody could handle; with `bodies`, what they say.

        Of each group these are the first ten at most.
        """
        with closing(self._dead_letters(limit)) as letters:
            found = [(self._dead_of(one), self._body(one) if bodies else msgspec.UNSET) for one in letters]
        return [msgspec.structs.replace(dead, body=body) for dead, body in found]

    def _body(self, one: Delivery) -> Any:
        try:
            return self.opened(one).body
        except (errors.MessageUnreadable, msgspec.DecodeError, ValueError):  # or it is no message of an inbox
            return msgspec.UNSET

    def _dead_of(self, one: Delivery) -> Dead:
        """What is known of a dead letter; why it died the ledger knows best."""
        envelope, why = _envelope(one), one.attributes.get("semel-error")
        error = str(why.value) if why is not None else ""
        if envelope is None:
            return Dead(one.id, "", one.group, 0, error or "it is no message of an inbox", one.sent_at or 0.0)
        record = self._s.ledger.get(self.record_key(envelope.key))
        if record is not None and record.failure is not None:
            error = f"{record.failure.type}: {record.failure.message}"
        attempts = 0 if record is None else record.attempt
        return Dead(one.id, envelope.key, envelope.group, attempts, error, one.sent_at or 0.0)

    def redrive(self, id: str | None = None, *, on_progress: ProgressCallback[int] | None = None) -> int:
        """Put one of these back, or all of them, to be handled as if they were new; gives how many."""
        done = self.redrive_where(DeadFilter(id=id or ""), on_progress=on_progress)
        if id is not None and not done.letters:
            raise no_letter(self.name, id)
        return len(done.letters)

    def redrive_where(
        self, which: DeadFilter, *, preview: bool = False, on_progress: ProgressCallback[int] | None = None
    ) -> Redriven:
        """Put those of them back that are meant, or tell which these are; both by name.

        Of each group these are the first ten at most, unless what is before them is put back.
        """
        put_back: list[Dead] = []
        with closing(self._dead_letters()) as letters:
            for one in letters:
                # What the ledger knows of it is asked only where its id does not say enough.
                if which.id not in ("", one.id):
                    continue
                dead = self._dead_of(one)
                if which.fits(dead):
                    if not preview:
                        self._put_back(one)
                    put_back.append(dead)
                    if on_progress is not None:
                        on_progress(len(put_back))
                if which.id == one.id:
                    break
        return Redriven(tuple(put_back))

    def _put_back(self, one: Delivery) -> None:
        envelope = _envelope(one)
        if envelope is not None:
            self._box.forget(envelope.key)
        # A name of its own: under the first one SQS may drop it for five minutes.
        group, dedup = one.group or one.id, f"redriven-{one.id}"
        self._queue.send(one.body, group=group, dedup=dedup)
        self._dead_queue.call("DeleteMessage", {"ReceiptHandle": one.receipt})

    @property
    def _dead_queue(self) -> Queue:
        if self._dead is None:
            raise errors.UsageError(f"inbox {self.name} was not told where its dead letters are")
        return self._dead

    def _dead_letters(self, limit: int | None = None) -> Generator[Delivery]:
        """Dead letters, each once; those that are still there afterwards can be received again at once."""
        queue, seen = self._dead_queue, dict[str, Delivery]()
        try:
            while limit is None or len(seen) < limit:
                many = BATCH if limit is None else min(BATCH, limit - len(seen))
                received = _received(queue, many, wait=WAIT_SECONDS, visibility=SIGHT_SECONDS)
                new = [one for one in received if one.id not in seen]
                if not new:
                    return
                seen |= {one.id: one for one in new}
                yield from new
        finally:
            # What is gone by now is passed over.
            _call_for_each(queue, "ChangeMessageVisibilityBatch", list(seen.values()), VisibilityTimeout=0)

    def close(self) -> None:
        """Let go of connections."""
        self._queue.close()
        if self._dead is not None:
            self._dead.close()


def _received(queue: Queue, many: int, *, wait: int, visibility: int) -> list[Delivery]:
    response = queue.call("ReceiveMessage", receive_request(many, wait=wait, visibility=visibility))
    return [read(one, queue.name) for one in response.get("Messages") or []]


def _call_for_each(queue: Queue, operation: str, deliveries: list[Delivery], **more: Any) -> None:
    """Ask one thing of several deliveries, ten in a request."""
    for batch in tens(enumerate(deliveries)):
        entries = [{"Id": str(number), "ReceiptHandle": one.receipt, **more} for number, one in batch]
        queue.call(operation, {"Entries": entries})


def _about(queue: Queue) -> int:
    """About how many messages are in a queue, those that somebody has in hand included."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = queue.call("GetQueueAttributes", {"AttributeNames": names})["Attributes"]
    return sum(int(attributes[name]) for name in names)


def _envelope(delivery: Delivery) -> Envelope | None:
    """A delivery's envelope; None where it has none, as somebody else has sent it."""
    try:
        return msgspec.json.decode(delivery.body, type=Envelope)
    except msgspec.DecodeError:
        return None


def _named(text: str) -> str:
    # What looks like a hash is hashed too: SQS would drop one message as the duplicate of another.
    plain = NAME.fullmatch(text) and not HASH.fullmatch(text)
    return text if plain else hashlib.sha256(text.encode()).hexdigest()


def _check(sent: Iterable[Sent]) -> None:
    for one in sent:
        if one.error is not None:
            raise one.error
