"""Whatever a handler raises is that message's failure: every worker lives on, and handles the next one."""

import asyncio
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Protocol

import pika  # type: ignore[import-untyped,unused-ignore]
import pytest

import semel
from semel import errors
from semel.aws.sqs import Queue
from semel.doors import sqs as sqs_door
from semel.doors.inbox import Message, Runs, StoreInbox
from tests.doors.sqs_kit import make_queue
from tests.places import open_place
from tests.servers.running import until

Handle = Callable[[str], None]


class Mute(Exception):
    """An error that fails when it is asked what it is about."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Impatient(Exception):
    """An error that asks for no time that there is."""

    def __init__(self, retry_after: Any) -> None:
        super().__init__("come again")
        self.retry_after = retry_after


class Moody(Exception):
    """An error that fails when it is asked when to come again."""

    @property
    def retry_after(self) -> float:
        raise RuntimeError("never ask")


def endless() -> None:
    endless()


def _raise(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


KEPT, PATIENT = "kept", "patient"
FAILURES: dict[str, Callable[[], object]] = {
    "mute": _raise(Mute()),
    "type": _raise(TypeError("of building another error")),
    "group": _raise(ExceptionGroup("two", [ValueError("a"), ExceptionGroup("more", [Mute()])])),
    "recursion": endless,
    "never": _raise(Impatient(float("nan"))),
    "moody": _raise(Moody()),
    "stop": _raise(StopIteration("of an iterator of its own")),
    "drained": _raise(errors.ShuttingDown("of something else than this ledger")),
    "store": _raise(errors.TableMissing("of something else than this store")),
    "text": _raise(ValueError("half a \ud800, and \0")),
    # The partition of a topic waits with it: so it is the last but one, and the last is in another.
    PATIENT: _raise(Impatient(float("inf"))),
    KEPT: lambda: json.loads("{"),
}


class Work:
    """Fails at each message once, as its name says; at what is kept whenever it is asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            first = name not in self.seen
            self.seen.append(name)
        if name == KEPT or (first and name in FAILURES):
            FAILURES[name]()

    def has_done(self, name: str) -> bool:
        return name in self.seen

    def has_tried_again(self) -> bool:
        return all(self.seen.count(name) > 1 for name in FAILURES if name not in (KEPT, PATIENT))


class Bench(Protocol):
    """A queue, and what works on it."""

    def send(self, name: str, *, again: bool = False) -> None: ...

    def worker(self, s: semel.Semel, handle: Handle, **options: Any) -> Runs: ...


class InboxBench:
    def __init__(self, s: semel.Semel) -> None:
        self._inbox = StoreInbox(s, "in")

    def send(self, name: str, *, again: bool = False) -> None:
        self._inbox.put(Message(name, {}))

    def worker(self, s: semel.Semel, handle: Handle, **options: Any) -> Runs:
        return self._inbox.worker(
            lambda message: handle(message.key), workers=2, poll=0.05, backoff=_at_once, **options
        )


class SqsBench:
    def __init__(self, queue: Queue, *, is_async: bool) -> None:
        self._queue, self._is_async = queue, is_async

    def send(self, name: str, *, again: bool = False) -> None:
        self._queue.send(name, group=name, dedup=f"{name}{again}")

    def worker(self, s: semel.Semel, handle: Handle, **options: Any) -> Runs:
        async def ahandle(message: sqs_door.Message) -> None:
            await asyncio.sleep(0)
            handle(message.body)

        consumer = sqs_door.Consumer(
            s,
            self._queue,
            ahandle if self._is_async else lambda message: handle(message.body),
            key=lambda message: message.body,
            workers=2,
            poll=1,
            backoff=_at_once,
            **options,
        )
        if self._is_async:
            consumer.run = lambda: asyncio.run(consumer.arun())  # type: ignore[method-assign]
        return consumer


class AmqpBench:
    def __init__(self, producer: Any, url: str, address: str) -> None:
        self._producer, self._url, self._address = producer, url, address

    def send(self, name: str, *, again: bool = False) -> None:
        self._producer.send(self._address, "x", key=name)

    def worker(self, s: semel.Semel, handle: Handle, **options: Any) -> Runs:
        from semel.doors.amqp1 import Consumer

        return Consumer(
            s,
            self._url,
            self._address,
            lambda message: handle(message.id),
            key=lambda message: str(message.id),
            workers=2,
            backoff=_at_once,
            **options,
        )


class KafkaBench:
    def __init__(self, kafka: Any, producer: Any, servers: str) -> None:
        self._kafka, self._producer, self._servers = kafka, producer, servers
        self._topic, self._sent = f"t{uuid.uuid4().hex[:8]}", 0

    def send(self, name: str, *, again: bool = False) -> None:
        self._producer.produce(self._topic, name, partition=self._sent % 4)
        self._sent += 1
        assert self._producer.flush(30) == 0

    def worker(self, s: semel.Semel, handle: Handle, **options: Any) -> Runs:
        from semel.doors.kafka import Consumer

        config = {
            "bootstrap.servers": self._servers,
            "group.id": self._topic,
            "session.timeout.ms": 6000,
            "log_level": 0,
        }
        return Consumer(
            s,
            config,
            [self._topic],
            lambda message: handle(_text(message)),
            key=_text,
            dead_letters=lambda message, taken: None,
            **options,
        )


class PubSubBench:
    NAME = "projects/shop/subscriptions/orders"

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub
        pubsub.subscribe(self.NAME)

    def send(self, name: str, *, again: bool = False) -> None:
        self._pubsub.publish(name.encode())

    def worker(self, s: semel.Semel, handle: Handle, **options: Any) -> Runs:
        from semel.doors.pubsub import Consumer

        return Consumer(
            s,
            self.NAME,
            lambda message: handle(message.data.decode()),
            key=lambda message: message.data.decode(),
            workers=2,
            poll=1,
            backoff=_at_once,
            **options,
        )


def _text(message: Any) -> str:
    return str(message.value().decode())


def _at_once(_: int) -> float:
    return 0.0


@contextmanager
def _amqp(url: str) -> Iterator[Bench]:
    if not os.environ.get("CI"):
        pytest.importorskip("proton")
    from semel.doors.amqp1 import Producer
    from tests.servers.rabbitmq import declare

    name = f"workers-{uuid.uuid4().hex[:8]}"
    declare(url, name)
    try:
        with Producer(url) as producer:
            yield AmqpBench(producer, url, f"/amq/queue/{name}")
    finally:
        with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
            connection.channel().queue_delete(name)


@contextmanager
def _kafka() -> Iterator[Bench]:
    kafka = pytest.importorskip("confluent_kafka")
    host = kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    [broker] = host.list_topics(timeout=30).brokers.values()
    servers = f"{broker.host}:{broker.port}"
    yield KafkaBench(kafka, kafka.Producer({"bootstrap.servers": servers, "log_level": 0}), servers)


@contextmanager
def _pubsub() -> Iterator[Bench]:
    from tests.standins.pubsub import PubSub

    with PubSub() as pubsub, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PUBSUB_EMULATOR_HOST", pubsub.host)
        yield PubSubBench(pubsub)


STORES = {"inbox on sqlite": "sqlite", "inbox on postgres": "postgres", "inbox on redis": "redis"}


@pytest.fixture(params=[*STORES, "inbox", "sqs", "sqs async", "amqp", "kafka", "pubsub"])
def bench(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[tuple[semel.Semel, Bench]]:
    kind = request.param
    if kind in STORES:
        place = open_place(STORES[kind], request, tmp_path)
        with semel.Semel(place.open(semel.core.clock.Clock()), env=place.env, scope=uuid.uuid4().hex) as s:
            yield s, InboxBench(s)
        return
    with semel.connect("memory:") as s:
        if kind == "inbox":
            yield s, InboxBench(s)
        elif kind == "amqp":
            with _amqp(request.getfixturevalue("rabbitmq").url) as made:
                yield s, made
        elif kind == "kafka":
            with _kafka() as made:
                yield s, made
        elif kind == "pubsub":
            with _pubsub() as made:
                yield s, made
        else:
            with closing(Queue(make_queue(request.getfixturevalue("sqs")))) as queue:
                yield s, SqsBench(queue, is_async=kind == "sqs async")


@pytest.mark.situation(46)
def test_no_handlers_error_ends_a_worker(bench: tuple[semel.Semel, Bench]) -> None:
    """Of whatever kind, also as the duplicate of a failure that was kept: the next message is handled."""
    s, queue = bench
    work, ended = Work(), []
    worker = queue.worker(s, work, on_error={json.JSONDecodeError: "keep"})

    def run() -> None:
        try:
            worker.run()
            ended.append("by itself")
        except BaseException as error:  # noqa: BLE001 - for the test to see
            ended.append(repr(type(error)))

    thread = threading.Thread(target=run)
    for name in FAILURES:
        queue.send(name)
    thread.start()
    try:
        assert until(work.has_tried_again, still=thread.is_alive), (ended, work.seen)
        assert until(lambda: work.has_done(KEPT), still=thread.is_alive), (ended, work.seen)
        assert until(lambda: _is_kept(s), still=thread.is_alive), (ended, work.seen)
        queue.send(KEPT, again=True)
        queue.send("the next")
        assert until(lambda: work.has_done("the next"), still=thread.is_alive), (ended, work.seen)
        assert ended == []
    finally:
        worker.stop()
        thread.join()
    assert ended == ["by itself"]
    assert work.seen.count(KEPT) == work.seen.count("the next") == 1


def _is_kept(s: semel.Semel) -> bool:
    return any(record.failure is not None for record in s.ledger.list(status="FAILED").records)
