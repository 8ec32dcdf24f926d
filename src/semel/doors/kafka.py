"""The Kafka door: messages of a consumer group, each handled once, and in order within their partition.

consumer = Consumer(s, {"bootstrap.servers": "localhost:9092", "group.id": "billing"}, ["orders"], handle)
consumer.run()

`handler` alone serves any other client: it reads the records of kafka-python and aiokafka as well.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, Unpack

from semel import errors
from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.events import What
from semel.core.keys import own_key, step_of
from semel.core.policy import DAY, Options, seconds
from semel.core.runtime import require
from semel.doors.queues.backoff import doubling
from semel.doors.queues.lanes import LaneScheduler
from semel.doors.queues.messages import DeliveryResult, Handler, Verdict

if TYPE_CHECKING:
    from confluent_kafka import Consumer as Client
    from confluent_kafka import KafkaError, Message, Producer, TopicPartition

__all__ = ["Consumer", "DeadLetterFunction", "DeadLetterTopic", "KafkaRecord", "handler"]

Partition: TypeAlias = tuple[str, int]
DeadLetterFunction: TypeAlias = "Callable[[Message, DeliveryResult], Any]"
"""What takes a message that no further try can mend, and returns when it is kept elsewhere."""

logger: Final = getLogger("semel")

# How long a broker keeps messages where nobody said otherwise, and so can deliver one again.
RETENTION = 7 * DAY
# A partition that stands still is tried again after 0.5, 1, 2 seconds, and so on to a minute.
default_backoff: Final = doubling(60.0, 0.5)
# How soon `stop` is noticed where no messages come.
POLL_SECONDS = 0.5
# What is handled and not yet committed comes again after a crash, as a duplicate: it costs a look each.
COMMIT_SECONDS = 1.0
ANSWER_SECONDS = 30.0


class KafkaRecord(Protocol):
    """A message as kafka-python and aiokafka give it; confluent-kafka's has methods of these names."""

    topic: Any
    partition: Any
    offset: Any
    timestamp: Any
    value: Any


AnyMessage: TypeAlias = "KafkaRecord | Message"


class Position(NamedTuple):
    """Where a message stands, and since when: a topic that is made anew begins again at 0, but later."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] at offset {self.offset}"


def position_of(message: AnyMessage) -> Position:
    """Where a message stands, of whichever client."""
    timestamp = _field(message, "timestamp")
    if isinstance(timestamp, tuple):  # confluent-kafka tells its kind before it
        timestamp = timestamp[1]
    topic, partition, offset = (_field(message, name) for name in ("topic", "partition", "offset"))
    return Position(topic, partition, offset, timestamp or 0)


def content(message: AnyMessage) -> dict[str, Any]:
    """What must not change under one key: the topic and the value."""
    return {"topic": _field(message, "topic"), "value": _field(message, "value")}


def _field(message: AnyMessage, name: str) -> Any:
    value = getattr(message, name)
    return value() if callable(value) else value


def handler(
    s: Semel,
    handle: Callable[[Any], Any],
    *,
    group: str,
    cluster: str,
    key: Callable[[Any], str] | None = None,
    fingerprint: Callable[[Any], Any] | None = content,
    **options: Unpack[Options],
) -> Handler[Any]:
    """What handles each message once for a consumer group: by its position, or by what `key` calls it.

    Groups do not see each other's keys. `cluster` tells positions of two clusters apart.
    """

    def named(message: AnyMessage) -> str:
        if key is not None:
            return own_key("kafka", group, key(message))
        return own_key("kafka", group, cluster, *position_of(message))

    options["horizon"] = max(seconds(options.get("horizon", RETENTION)), s.ledger.steps.horizon)
    return Handler(s, handle, key=named, fingerprint=fingerprint, door="kafka", **options)


class DeadLetterTopic:
    """Writes dead letters to a topic, and returns when the broker has them.

    Key, value and headers are as they were; further headers tell where it stood, and why it is here.
    """

    def __init__(self, producer: "Producer", topic: str) -> None:
        self._producer = producer
        self._topic = topic

    def __call__(self, message: "Message", taken: DeliveryResult) -> None:
        """Write one."""
        refusals: list[KafkaError | None] = []
        about = {**position_of(message)._asdict(), "error": taken.error_type}
        headers = [(f"semel-{name}", str(value).encode()) for name, value in about.items()]
        self._producer.produce(
            self._topic,
            key=message.key(),
            value=message.value(),
            headers=[*(message.headers() or ()), *headers],
            on_delivery=lambda refusal, _: refusals.append(refusal),
        )
        self._producer.flush(ANSWER_SECONDS)
        # By identity: a KafkaError cannot be compared with None.
        if not refusals or refusals[0] is not None:
            reason = str(refusals[0]) if refusals else f"no answer within {ANSWER_SECONDS:g} s"
            raise errors.StoreUnavailable(f"the dead letter did not get to {self._topic}: {reason}")


class PartitionProgress:
    """How far each partition has come: no I/O, no clock, no thread."""

    def __init__(self) -> None:
        self.settled: dict[Partition, int] = {}
        """Where each partition goes on: everything before that offset is settled."""
        self._failures: dict[Partition, int] = {}
        self._stopped: dict[Partition, Position] = {}
        self._lanes: LaneScheduler[Partition] = LaneScheduler()

    def settle(self, at: Position) -> None:
        """Everything up to this message is settled."""
        self.settled[at[:2]] = at.offset + 1
        self._failures.pop(at[:2], None)

    def stop(self, at: Position, taken: DeliveryResult, now: float) -> float:
        """The partition stands still at this message for so many seconds."""
        failures = self._failures[at[:2]] = self._failures.get(at[:2], 0) + 1
        rest = default_backoff(failures)
        if taken.retry_after is not None:
            # Whoever is at work may well be done before his lease ends; what an error asks for is kept.
            rest = min(rest, taken.retry_after) if taken.verdict is Verdict.BUSY else taken.retry_after
        self._stopped[at[:2]] = at
        self._lanes.rest(at[:2], now + rest)
        return rest

    def due(self, now: float) -> list[Position]:
        """The messages that are to be tried again now; their partitions go on."""
        return self._go_on(self._lanes.wake(now))

    def rest(self, now: float) -> float:
        """How long nothing is due, as far as polling goes."""
        return min(POLL_SECONDS, max(0.0, self._lanes.next_wake - now))

    def forget(self, partitions: Iterable[Partition]) -> list[Position]:
        """These are somebody else's now; where some of them stood still."""
        gone = list(partitions)
        for partition in gone:
            self.settled.pop(partition, None)
            self._failures.pop(partition, None)
        return self._go_on(gone)

    def _go_on(self, partitions: list[Partition]) -> list[Position]:
        for partition in partitions:
            self._lanes.forget(partition)
        return [self._stopped.pop(partition) for partition in partitions if partition in self._stopped]


class Consumer:
    """Takes the messages of topics for a consumer group, and has each handled once.

    `config` is confluent-kafka's. A partition stops at a message that fails, and tries it again; the others
    go on. `dead_letters` takes what no further try can mend, such as a `DeadLetterTopic`; without it the
    partition stands still there, and nothing is skipped. `cluster` names the cluster, which is asked for its
    own name otherwise. A consumer runs once.
    """

    def __init__(
        self,
        s: Semel,
        config: Mapping[str, Any],
        topics: Sequence[str],
        handle: "Callable[[Message], Any]",
        *,
        key: "Callable[[Message], str] | None" = None,
        fingerprint: "Callable[[Message], Any] | None" = content,
        dead_letters: "DeadLetterFunction | None" = None,
        cluster: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._kafka = require("confluent_kafka", "kafka")
        self._config = _checked(config)
        if inspect.iscoroutinefunction(handle):
            raise errors.InvalidOption(
                "this consumer calls plain functions: use `handler`, and your own loop"
            )
        self._s = s.through("kafka")
        self._topics = list(topics)
        group = self._config["group.id"]
        self._handler_of: Callable[..., Handler[Any]] = partial(
            handler, self._s, handle, group=group, key=key, fingerprint=fingerprint, **options
        )
        self._dead_letters = dead_letters
        self._cluster = cluster
        self._progress = PartitionProgress()
        self._now = Clock().monotonic
        self._stopping = threading.Event()
        self._committed: dict[Partition, int] = {}
        self._committed_at = self._now()
        self._handler_of(cluster="the cluster")  # so that an option that cannot work is refused here

    def run(self) -> None:
        """Handle messages until `stop` is called, or `s.drain`."""
        client: Client = self._kafka.Consumer(self._config)
        try:
            self._name_cluster(client)
            client.subscribe(self._topics, on_revoke=self._revoked, on_lost=self._lost)
            while not self._stopping.is_set():
                self._once_round(client)
        finally:
            self._commit(client, self._progress.settled, wait=True)
            client.close()

    def stop(self) -> None:
        """Finish the message in hand, commit and leave the group; safe in a signal handler."""
        self._stopping.set()

    def _once_round(self, client: "Client") -> None:
        now = self._now()
        self._resume(client, self._progress.due(now))
        message = client.poll(self._progress.rest(now))
        if message is not None and self._is_message(message):
            self._take(client, message)
        if self._now() >= self._committed_at + COMMIT_SECONDS:
            self._committed_at = self._now()
            if self._committed != self._progress.settled:
                self._committed = dict(self._progress.settled)
                self._commit(client, self._committed, wait=False)

    def _take(self, client: "Client", message: "Message") -> None:
        taken, position = self._handler.take(message), position_of(message)
        if taken.verdict is Verdict.DEAD:
            taken = self._bury(message, taken)
        if taken.settled:
            self._progress.settle(position)
        elif taken.stops:
            self.stop()
        else:
            self._stop_at(client, position, taken)

    def _stop_at(self, client: "Client", position: Position, taken: DeliveryResult) -> None:
        rest = self._progress.stop(position, taken, self._now())
        # Paused first: what was fetched ahead is dropped, and comes again from the broker.
        client.pause([self._at(position)])
        client.seek(self._at(position))
        text = self._s.events.scrubbed(taken.why)
        logger.warning("%s stands still for %.1f s: %s", position, rest, text)

    # Dead letters

    def _bury(self, message: "Message", taken: DeliveryResult) -> DeliveryResult:
        """Hand on what is dead; that is done once too, and tried again like a message that fails."""
        position, letters = position_of(message), self._dead_letters
        kind = type(taken.error).__name__
        self._s.events.warn(What.REFUSED, "", detail=f"{position} is dead: {kind}")
        if letters is None:
            why = f"is dead ({kind}), is not skipped, and stays until it is handled: give dead_letters="
            return DeliveryResult(Verdict.FAILED, error=errors.Refused(str(position), why))
        key = own_key("kafka", self._config["group.id"], self._cluster, *position)
        burial = Handler[Any](
            self._s,
            lambda message: letters(message, taken),
            key=lambda _: step_of(key, "dead"),
            door="kafka",
            horizon=self._handler.policy.ttl,
        )
        return burial.take(message)

    # The client

    def _name_cluster(self, client: "Client") -> None:
        if self._cluster is None:
            self._cluster = client.list_topics(timeout=ANSWER_SECONDS).cluster_id
        if not self._cluster:
            raise errors.InvalidOption("this cluster has no name of its own: give it one with cluster=")
        self._handler = self._handler_of(cluster=self._cluster)

    def _is_message(self, message: "Message") -> bool:
        error = message.error()
        if error is None:
            return True
        codes = self._kafka.KafkaError
        # Neither is a failure: the end for now, and a pause after which the client joins its group again.
        if error.code() in (codes._PARTITION_EOF, codes._MAX_POLL_EXCEEDED):
            return False
        raise self._kafka.KafkaException(error)

    def _revoked(self, client: "Client", partitions: "list[TopicPartition]") -> None:
        settled = self._progress.settled
        self._commit(client, {at: settled[at] for at in _names(partitions) if at in settled}, wait=True)
        self._lost(client, partitions)

    def _lost(self, client: "Client", partitions: "list[TopicPartition]") -> None:
        # Nothing is committed here: somebody else has them already, and may have come further.
        # Paused partitions stay so when they come back, so none leaves like that.
        self._resume(client, self._progress.forget(_names(partitions)))

    def _resume(self, client: "Client", positions: list[Position]) -> None:
        if positions:
            client.resume([self._at(position) for position in positions])

    def _commit(self, client: "Client", offsets: dict[Partition, int], *, wait: bool) -> None:
        if not offsets:
            return
        at = [self._kafka.TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            if wait:
                client.commit(offsets=at, asynchronous=False)
            else:
                client.commit(offsets=at)
        except self._kafka.KafkaException as error:
            # Nothing is lost: what is not committed comes again, and is a duplicate then.
            logger.warning("kafka: offsets were not committed. %s", error)

    def _at(self, position: Position) -> "TopicPartition":
        at: TopicPartition = self._kafka.TopicPartition(*position[:3])
        return at


def _names(partitions: "list[TopicPartition]") -> list[Partition]:
    return [(one.topic, one.partition) for one in partitions]


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The client's configuration, as a consumer that loses nothing needs it."""
    if not config.get("group.id"):
        raise errors.InvalidOption('the configuration needs a "group.id", which is part of every key')
    if config.get("enable.auto.commit", False) not in (False, "false"):
        raise errors.InvalidOption('"enable.auto.commit" commits what is not handled: leave it out')
    # A group without an offset begins with the oldest message: the newest would pass over what is there.
    return {"auto.offset.reset": "earliest", **config, "enable.auto.commit": False}
