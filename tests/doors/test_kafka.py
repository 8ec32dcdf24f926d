"""The Kafka door, against the broker in librdkafka: it speaks the protocol, with groups and offsets."""

import json
import sqlite3
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka
import pytest

import semel
from semel.core.events import What
from semel.doors.kafka import (
    Consumer,
    DeadLetterTopic,
    PartitionProgress,
    Position,
    content,
    handler,
    position_of,
)
from semel.doors.queues.messages import DeliveryResult, Verdict
from semel.errors import InProgress, InvalidOption
from tests.servers.running import until

WORKER = Path(__file__).with_name("kafka_worker.py")
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster that lives in this process."""
    host = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    [broker] = host.list_topics(timeout=30).brokers.values()
    return SimpleNamespace(servers=f"{broker.host}:{broker.port}", host=host)


@pytest.fixture(scope="module")
def producer(cluster):
    return confluent_kafka.Producer({"bootstrap.servers": cluster.servers, "log_level": 0})


def send(producer, topic, messages):
    """Write (partition, key, value) each."""
    for partition, key, value in messages:
        producer.produce(topic, json.dumps(value), key, partition)
    assert producer.flush(30) == 0


# Killed in the middle


class Worker:
    """A process, and the words that its ledger told."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), *map(str, arguments)], stdout=-1, text=True
        )
        self.words: Counter[str] = Counter()
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()

    def _listen(self):
        for line in self.process.stdout:
            self.words[line.strip()] += 1

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(60)
        self._ear.join()
        self.process.stdout.close()
        return code


def is_handled(servers, topic, sent):
    """Whether the group has committed everything."""
    config = {"bootstrap.servers": servers, "group.id": "billing", "log_level": 0}
    with closing(confluent_kafka.Consumer(config)) as client:
        parts = [confluent_kafka.TopicPartition(topic, part) for part in sent]
        return {one.partition: one.offset for one in client.committed(parts, 30)} == sent


def test_each_effect_happens_once_and_in_order_though_the_consumer_is_killed(cluster, producer, tmp_path):
    path, topic = tmp_path / "semel.db", "orders"
    with closing(sqlite3.connect(path)) as rows:
        rows.execute("CREATE TABLE effects (n INTEGER PRIMARY KEY, name TEXT, part INTEGER, place INTEGER)")
    orders = [(n % PARTITIONS, f"o-{n}", {"order": f"o-{n}"}) for n in range(500)]
    # A producer that was not sure sends again, and its second message has an offset of its own.
    twice = [one for order in orders for one in [order] * (1 + order[1].endswith("7"))]
    send(producer, topic, twice)
    sent = Counter(part for part, _, _ in twice)

    first = Worker(path, cluster.servers, topic, 200)
    assert first.process.wait(60) == -9
    first.end()
    assert not is_handled(cluster.servers, topic, sent)
    second = Worker(path, cluster.servers, topic, -1)
    try:
        assert until(lambda: is_handled(cluster.servers, topic, sent))
    finally:
        assert second.end() == 0

    with closing(sqlite3.connect(path)) as rows:
        effects = rows.execute("SELECT name, part, place FROM effects ORDER BY n").fetchall()
    assert sorted(name for name, _, _ in effects) == sorted(key for _, key, _ in orders)
    places = defaultdict(list)
    for _, part, place in effects:
        places[part].append(place)
    assert all(found == sorted(found) for found in places.values())
    assert first.words[What.COMPLETED] + second.words[What.COMPLETED] >= 499
    assert second.words[What.REPLAYED] >= 1
    assert second.words[What.TAKEN_OVER] == 1


# What becomes of each message


class Running:
    """A consumer in a thread of its own."""

    def __init__(self, s, servers, topics, handle, group, **options):
        # This broker waits for as long as a session lasts before it deals the partitions anew.
        config = {"bootstrap.servers": servers, "group.id": group, "session.timeout.ms": 6000, "log_level": 0}
        self.consumer = Consumer(s, config, topics, handle, **options)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.consumer.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.consumer.stop()
        self._thread.join()

    def is_over(self):
        return not self._thread.is_alive()


class Till:
    """Handles payments as they say: it refuses some for good, and fails at others once."""

    def __init__(self):
        self.booked: list[tuple[int, str]] = []
        self.failed: set[str] = set()

    def __call__(self, message):
        payment = json.loads(message.value())
        if payment.get("forged"):
            raise PermissionError("forged")
        if payment.get("flaky") and payment["id"] not in self.failed:
            self.failed.add(payment["id"])
            raise TimeoutError("not now")
        self.booked.append((message.partition(), payment["id"]))


PAYMENTS = [
    (0, {"id": "a1"}),
    (0, {"id": "a2", "flaky": True}),
    (0, {"id": "a3"}),
    (1, {"id": "b1"}),
    (1, {"id": "b2", "forged": True}),
    (1, {}),
    (1, {"id": "b4"}),
    (2, {"id": "c1"}),
]


def test_failures_wait_in_their_partition_dead_letters_leave_it_and_groups_do_not_share(
    cluster, producer, s, caplog
):
    """Four groups at once, as a group takes three seconds to form; the last one's ledger is drained."""
    send(producer, "payments", [(part, None, payment) for part, payment in PAYMENTS])
    send(producer, "late", [(0, None, {"n": 1}), (0, None, {"n": 2})])
    till, other, strict = Till(), Till(), Till()
    options = {
        "key": lambda message: json.loads(message.value())["id"],
        "on_error": {PermissionError: "keep"},
    }
    letters = DeadLetterTopic(producer, "payments.dead")
    buried = []

    def flaky_letters(message, taken):
        buried.append(position_of(message)[1:3])
        if len(buried) == 1:
            raise TimeoutError("the undertaker is out")
        letters(message, taken)

    with semel.connect("memory:") as drained, ExitStack() as stack:
        last = []

        def handle(message):
            last.append(message.offset())
            drained.drain()

        running = {
            "late": Running(drained, cluster.servers, ["late"], handle, "late"),
            "till": Running(
                s, cluster.servers, ["payments"], till, "till", dead_letters=flaky_letters, **options
            ),
            "other": Running(s, cluster.servers, ["payments"], other, "other", dead_letters=print, **options),
            "strict": Running(s, cluster.servers, ["payments"], strict, "strict", **options),
        }
        for one in running.values():
            stack.enter_context(one)
        assert until(running["late"].is_over)
        assert until(lambda: len(till.booked) == len(other.booked) == 6)
        assert until(lambda: len(strict.booked) == 5 and "payments[1] at offset 1" in caplog.text)

    # In order within each partition, and nobody waited for anybody else's failure.
    by_part = {part: [id for at, id in till.booked if at == part] for part in range(PARTITIONS)}
    assert by_part == {0: ["a1", "a2", "a3"], 1: ["b1", "b4"], 2: ["c1"]}
    assert sorted(other.booked) == sorted(till.booked)
    assert running["till"].error is running["other"].error is None
    # A dead letter that does not get away holds its partition, too, and each is sent once.
    assert buried == [(1, 1), (1, 1), (1, 2)]
    # Without a place for dead letters the partition stands still there and skips nothing; the others go on.
    assert running["strict"].error is None
    assert sorted(id for _, id in strict.booked) == ["a1", "a2", "a3", "b1", "c1"]
    assert committed(cluster, "strict", "payments", 1) == 1
    assert committed(cluster, "till", "payments", 1) == 4
    assert dead_letters(cluster, "payments.dead", 2) == [
        ("PermissionError", "1", "1"),
        ("KeyError", "1", "2"),
    ]
    # A ledger that is drained ends its consumer, which commits what it did and no more.
    assert running["late"].error is None
    assert last == [0]
    assert committed(cluster, "late", "late", 0) == 1


def committed(cluster, group, topic, partition):
    config = {"bootstrap.servers": cluster.servers, "group.id": group, "log_level": 0}
    with closing(confluent_kafka.Consumer(config)) as client:
        [at] = client.committed([confluent_kafka.TopicPartition(topic, partition)], 30)
        return at.offset


def dead_letters(cluster, topic, many):
    """What the headers of dead letters say: the error, the partition and the offset."""
    config = {"bootstrap.servers": cluster.servers, "group.id": "nobody", "log_level": 0}
    with closing(confluent_kafka.Consumer(config)) as client:
        parts = client.list_topics(topic, 30).topics[topic].partitions
        client.assign([confluent_kafka.TopicPartition(topic, part, 0) for part in parts])
        found = [dict(one.headers() or ()) for one in client.consume(many, 30)]
    told = [
        tuple(headers[f"semel-{name}"].decode() for name in ("error", "partition", "offset"))
        for headers in found
    ]
    return sorted(told, key=lambda one: one[2])


class NotToday(Exception):
    retry_after = 86400


def test_a_partition_that_stood_still_goes_on_when_it_is_assigned_anew(cluster, producer, s):
    """librdkafka leaves a paused partition paused when it comes back after a rebalance."""
    send(producer, "moved", [(part, None, {"part": part}) for part in range(4)])
    refused: set[int] = set()
    handled: list[tuple[str, int]] = []

    def first(message):
        if message.partition() not in refused:
            refused.add(message.partition())
            raise NotToday
        handled.append(("first", message.partition()))

    def second(message):
        handled.append(("second", message.partition()))

    with Running(s, cluster.servers, ["moved"], first, "movers") as one:
        assert until(lambda: len(refused) == 4)
        with Running(s, cluster.servers, ["moved"], second, "movers") as other:
            assert until(lambda: len(handled) == 4)
            one.consumer.stop()
    assert one.error is other.error is None
    assert {part for _, part in handled} == {0, 1, 2, 3}
    assert {who for who, _ in handled} == {"first", "second"}


# Names


def message_at(offset, timestamp=5, topic="orders", value=b"{}"):
    return confluent_kafka.Message(topic, 2, offset, b"k", value, timestamp=(1, timestamp))


def test_every_clients_message_has_the_same_place_and_key(s):
    """kafka-python and aiokafka have attributes where confluent-kafka has methods."""
    record = SimpleNamespace(topic="orders", partition=2, offset=7, timestamp=5, value=b"{}")
    assert position_of(record) == position_of(message_at(7)) == Position("orders", 2, 7, 5)
    assert content(record) == content(message_at(7)) == {"topic": "orders", "value": b"{}"}
    handled: list[object] = []
    taking = handler(s, handled.append, group="g", cluster="c")
    assert [taking.take(one).verdict for one in (record, message_at(7))] == [Verdict.DONE, Verdict.DUPLICATE]
    assert handled == [record]
    assert s.ledger.is_processed("kafka::g:c:orders:2:7:5")


def test_another_place_group_cluster_or_time_is_another_message(s):
    """A topic that is deleted and made again begins at offset 0: what is there now was never handled."""
    handled: list[object] = []
    takers = [
        handler(s, handled.append, group=group, cluster=cluster)
        for group in ("g", "h")
        for cluster in ("c", "d")
    ]
    messages = [message_at(7), message_at(8), message_at(7, timestamp=6), message_at(7, topic="refunds")]
    assert {taker.take(one).verdict for taker in takers for one in messages} == {Verdict.DONE}
    assert len(handled) == len(takers) * len(messages)


def test_a_business_key_makes_two_offsets_one_message_and_refuses_another_content(s):
    taker = handler(s, print, group="g", cluster="c", key=lambda message: message.key().decode())
    assert taker.take(message_at(7)).verdict is Verdict.DONE
    assert taker.take(message_at(9, timestamp=8)).verdict is Verdict.DUPLICATE
    changed = taker.take(message_at(10, value=b"[]"))
    assert changed.verdict is Verdict.DEAD
    assert isinstance(changed.error, semel.PayloadChanged)
    assert taker.take(message_at(7, topic="refunds")).verdict is Verdict.DEAD
    lenient = handler(
        s, print, group="g", cluster="c", key=lambda message: message.key().decode(), fingerprint=None
    )
    assert lenient.take(message_at(11, value=b"[]")).verdict is Verdict.DUPLICATE


def test_a_message_is_remembered_for_as_long_as_the_broker_may_deliver_it_again(s):
    assert handler(s, print, group="g", cluster="c").policy.ttl == 7 * semel.DAY
    assert handler(s, print, group="g", cluster="c", horizon=30 * semel.DAY).policy.ttl == 30 * semel.DAY
    with pytest.raises(InvalidOption, match="shorter than horizon"):
        handler(s, print, group="g", cluster="c", ttl=semel.DAY)
    assert handler(s, print, group="g", cluster="c", horizon=60, ttl=semel.DAY).policy.ttl == semel.DAY


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "needs a .group.id."),
        ({"group.id": "g", "enable.auto.commit": True}, "commits what is not handled"),
    ],
)
def test_a_configuration_that_would_lose_messages_is_refused(s, config, says):
    with pytest.raises(InvalidOption, match=says):
        Consumer(s, config, ["orders"], print)


def test_an_async_function_and_a_bad_option_are_refused_before_anything_is_consumed(s):
    async def handle(message): ...

    with pytest.raises(InvalidOption, match="plain functions"):
        Consumer(s, {"group.id": "g"}, ["orders"], handle)
    with pytest.raises(InvalidOption, match="must be positive"):
        Consumer(s, {"group.id": "g"}, ["orders"], print, lease=0)


class Undelivered:
    """A producer whose broker says no, or nothing at all."""

    def __init__(self, refusal):
        self._refusal = refusal
        self._report = lambda refusal, message: None

    def produce(self, topic, *, on_delivery, **message):
        self._report = on_delivery

    def flush(self, seconds):
        if self._refusal is not None:
            self._report(self._refusal, None)


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (confluent_kafka.KafkaError(confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED), "uthoriz"),
        (None, "no answer within 30 s"),
    ],
)
def test_a_dead_letter_counts_as_sent_only_when_the_broker_has_it(refusal, says):
    letters = DeadLetterTopic(Undelivered(refusal), "orders.dead")  # type: ignore[arg-type]
    with pytest.raises(semel.StoreUnavailable, match=says):
        letters(message_at(7), DeliveryResult(Verdict.DEAD, error=ValueError()))


# Progress


def at(offset, partition=0):
    return Position("orders", partition, offset, 0)


FAILED = DeliveryResult(Verdict.FAILED, error=TimeoutError())


def test_a_partition_that_fails_rests_longer_each_time_until_it_goes_on():
    progress = PartitionProgress()
    rests = [progress.stop(at(3), FAILED, now=0) for _ in range(9)]
    assert rests == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert progress.due(now=59) == []
    assert progress.due(now=60) == [at(3)]
    assert progress.due(now=60) == []
    progress.settle(at(3))
    assert progress.stop(at(4), FAILED, now=0) == 0.5


def test_whoever_is_busy_is_asked_soon_and_an_error_is_given_the_time_it_asks_for():
    busy = DeliveryResult(Verdict.BUSY, error=InProgress("k", 30, 1), retry_after=30)
    almost = DeliveryResult(Verdict.BUSY, error=InProgress("k", 0.1, 1), retry_after=0.1)
    throttled = DeliveryResult(Verdict.FAILED, error=TimeoutError(), retry_after=300)
    assert [PartitionProgress().stop(at(3), taken, now=0) for taken in (busy, almost, throttled)] == [
        0.5,
        0.1,
        300,
    ]


def test_polling_never_outlasts_the_next_try():
    progress = PartitionProgress()
    assert progress.rest(now=0) == 0.5
    progress.stop(at(3), DeliveryResult(Verdict.BUSY, retry_after=0.2), now=0)
    assert progress.rest(now=0) == 0.2
    assert progress.rest(now=9) == 0


def test_what_is_revoked_is_not_committed_any_more_and_does_not_stand_still():
    progress = PartitionProgress()
    progress.settle(at(3))
    progress.settle(at(8, partition=1))
    progress.stop(at(4), FAILED, now=0)
    assert progress.settled == {("orders", 0): 4, ("orders", 1): 9}
    assert progress.forget([("orders", 0), ("orders", 2)]) == [at(4)]
    assert progress.settled == {("orders", 1): 9}
    assert progress.due(now=99) == []
    # It comes back, and its failures of before are nobody's now.
    assert progress.stop(at(4), FAILED, now=0) == 0.5
