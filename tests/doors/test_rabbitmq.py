"""RabbitMQ by pika and by aio-pika: what is sent twice happens once, and nothing is lost."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from uuid import uuid4

import aio_pika
import pika  # type: ignore[import-untyped,unused-ignore]
import pytest

import semel
from semel.core.events import What
from semel.core.keys import own_key
from semel.doors.aio_pika import callback
from semel.doors.rabbitmq import Consumer
from semel.errors import AddressRefused, BrokerUnavailable
from semel.testing.proxy import FaultProxy
from tests.doors.consumers import running
from tests.servers.rabbitmq import declare
from tests.servers.running import until


class Queue:
    """A queue of the test's own, and the one that its dead letters go to."""

    def __init__(self, url):
        self.url = url
        self.name = f"test-{uuid4().hex[:8]}"
        self.dead = f"{self.name}-dead"
        declare(url, self.dead)
        to_the_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead}
        declare(url, self.name, **to_the_dead)

    @contextmanager
    def channel(self):
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def send(self, *bodies, **properties):
        with self.channel() as channel:
            for body in bodies:
                said = {"message_id": str(body), **properties}
                channel.basic_publish("", self.name, json.dumps(body).encode(), pika.BasicProperties(**said))

    def depth(self, name=None):
        with self.channel() as channel:
            return channel.queue_declare(name or self.name, passive=True).method.message_count

    def remove(self):
        with self.channel() as channel:
            channel.queue_delete(self.name)
            channel.queue_delete(self.dead)


@pytest.fixture
def queue(rabbitmq):
    queue = Queue(rabbitmq.url)
    yield queue
    queue.remove()


@pytest.fixture
def s():
    with semel.connect("memory:") as s:
        yield s


@pytest.fixture
def events(s):
    seen: list[semel.Event] = []
    s.events.listen(seen.append)
    return seen


def count(events, what):
    return sum(event.what is what for event in events)


def at_once(_deliveries):
    return 0.0


def threads(s, queue, handle, *, url=None, **options):
    """A consumer in threads."""
    return running(Consumer(s, url or queue.url, queue.name, handle, **options))


@contextmanager
def in_a_loop(work):
    """An event loop in a thread of its own, which does this until the test is over."""
    over = threading.Event()
    raised = []

    async def main():
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=lambda: (over.wait(), loop.call_soon_threadsafe(stopped.set))).start()
        await work(stopped)

    def run():
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if raised:
        raise raised[0]


@contextmanager
def tasks(s, queue, handle, **options):
    """A consumer in the tasks of an event loop."""

    async def ahandle(message):
        return handle(message)

    async def work(stopped):
        consumer = Consumer(s, queue.url, queue.name, ahandle, **options)
        running = asyncio.create_task(consumer.arun())
        await stopped.wait()
        consumer.stop()
        await running

    with in_a_loop(work):
        yield


@contextmanager
def own_loop(s, queue, handle, **options):
    """A queue that is consumed with aio-pika, by the door's callback."""

    async def ahandle(message):
        return handle(message)

    async def work(stopped):
        async with await aio_pika.connect_robust(queue.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            consumed = await channel.get_queue(queue.name)
            tag = await consumed.consume(callback(s, queue.name, ahandle, **options))
            await stopped.wait()
            await consumed.cancel(tag)

    with in_a_loop(work):
        yield


WAYS = pytest.mark.parametrize("consuming", [threads, tasks, own_loop])


@WAYS
def test_what_is_sent_twice_is_handled_once_and_both_are_settled(queue, s, events, consuming):
    handled = []
    queue.send("o-1", "o-1")
    with consuming(s, queue, lambda message: handled.append(json.loads(message.body))):
        assert until(lambda: count(events, What.REPLAYED) == 1)
    assert handled == ["o-1"]
    assert {event.door for event in events} == {"rabbitmq"}
    assert queue.depth() == 0


@WAYS
def test_a_message_that_failed_comes_again(queue, s, events, consuming):
    attempts = []

    def handle(message):
        attempts.append(semel.current_run().attempt)
        if len(attempts) < 3:
            raise OSError("the bank is away")

    queue.send("o-1")
    with consuming(s, queue, handle, backoff=at_once):
        assert until(lambda: count(events, What.COMPLETED) == 1)
    assert attempts == [1, 2, 3]
    assert queue.depth() == 0


@WAYS
def test_what_cannot_be_mended_goes_to_the_dead_letters(queue, s, consuming):
    def handle(message):
        raise ValueError("no such order")

    queue.send("o-1", message_id="")  # nothing names it
    queue.send("o-2")
    with consuming(s, queue, handle, on_error={ValueError: "keep"}):
        assert until(lambda: queue.depth(queue.dead) == 2)
    assert queue.depth() == 0


@WAYS
def test_a_busy_message_is_given_back(queue, s, events, consuming):
    handled: list[object] = []
    claim = s.ledger.claim(own_key("rabbitmq", queue.name, "o-1"), lease=0.001)
    queue.send("o-1")
    with consuming(s, queue, handled.append):
        assert until(lambda: len(handled) == 1)
    assert isinstance(claim, semel.Claimed)
    assert count(events, What.TAKEN_OVER) == 1
    assert queue.depth() == 0


def test_a_group_keeps_its_order_though_its_first_fails(queue, s):
    handled, failed = [], set()

    def handle(message):
        body = message.json()
        if body % 7 == 0 and body not in failed:
            failed.add(body)
            raise OSError("once more")
        handled.append(body)

    queue.send(*range(40))
    with threads(s, queue, handle, workers=4, group=lambda message: message.json() % 2, backoff=at_once):
        assert until(lambda: len(handled) == 40)
    assert [body for body in handled if body % 2] == list(range(1, 40, 2))
    assert [body for body in handled if not body % 2] == list(range(0, 40, 2))


def test_a_message_whose_group_cannot_be_told_is_dead(queue, s, events):
    queue.send("o-1")
    with threads(s, queue, lambda message: None, group=lambda message: message.headers["customer"]):
        assert until(lambda: queue.depth(queue.dead) == 1)
    assert [event.detail for event in events] == ["a message without a group: KeyError"]


def test_what_has_not_begun_is_given_back_when_a_consumer_stops(queue, s):
    handled = []

    def handle(message):
        handled.append(message.json())
        consumer.stop()

    queue.send(*range(8))
    consumer = Consumer(s, queue.url, queue.name, handle)
    consumer.run()
    assert handled == [0]
    assert until(lambda: queue.depth() == 7)


def test_a_lost_connection_is_made_again_and_nothing_happens_twice(queue, s, events):
    handled = []
    with FaultProxy.before(queue.url) as proxy:

        def handle(message):
            handled.append(message.json())
            if len(handled) == 3:
                proxy.cut()

        queue.send(*range(10))
        with threads(s, queue, handle, url=proxy.url(queue.url)):
            assert until(lambda: len(handled) == 10 and queue.depth() == 0)
    assert sorted(handled) == list(range(10))
    assert count(events, What.COMPLETED) == 10


WORKER = """
import os, sys
import semel
from semel.doors.rabbitmq import Consumer

url, queue, folder = sys.argv[1:]
s = semel.connect(f"sqlite:///{folder}/ledger.db")


def handle(message):
    with open(f"{folder}/effects", "a") as effects:
        effects.write(f"{message.json()}\\n")
    if message.json() % 5 == 4 and semel.current_run().attempt == 1:
        os.kill(os.getpid(), 9)  # after the effect, and before its record
    return None


Consumer(s, url, queue, handle, lease=0.5, on_lapsed="hold").run()
"""


def test_of_a_worker_that_is_killed_nothing_is_lost_and_what_is_in_doubt_is_held(queue, tmp_path):
    queue.send(*range(10))
    with semel.connect(f"sqlite:///{tmp_path}/ledger.db") as s:
        for _ in range(2):
            worker = subprocess.run(
                [sys.executable, "-c", WORKER, queue.url, queue.name, tmp_path], check=False, timeout=60
            )
            assert worker.returncode == -signal.SIGKILL
        with subprocess.Popen([sys.executable, "-c", WORKER, queue.url, queue.name, tmp_path]) as last:
            try:
                assert until(lambda: len((tmp_path / "effects").read_text().split()) == 10)
                assert until(lambda: len(s.ledger.doubts().records) == 2)
            finally:
                last.kill()
    assert sorted(map(int, (tmp_path / "effects").read_text().split())) == list(range(10))


def test_a_queue_that_is_not_there_is_an_error(rabbitmq, s):
    with pytest.raises(AddressRefused, match="no queue 'nowhere'"):
        Consumer(s, rabbitmq.url, "nowhere", print).run()


def test_a_broker_that_is_not_there_is_an_error(s):
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        Consumer(s, "amqp://127.0.0.1:1/?connection_attempts=1&retry_delay=0", "orders", print).run()


async def acknowledge(_message):
    pass


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda s: Consumer(s, "http://host", "orders", print), "RabbitMQ's URL is"),
        (lambda s: Consumer(s, "amqp://host:port", "orders", print), "RabbitMQ's URL is"),
        (lambda s: Consumer(s, "amqp://host", "orders", print, workers=0), "workers"),
        (lambda s: Consumer(s, "amqp://host", "orders", print, prefetch="many"), "prefetch"),  # type: ignore[arg-type]
        (lambda s: callback(s, "orders", print), "async function"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused_at_once(s, make, told):
    with pytest.raises(semel.InvalidOption, match=told):
        make(s)


def test_an_async_handler_is_awaited(s):
    consumer = Consumer(s, "amqp://host", "orders", acknowledge)
    with pytest.raises(semel.UsageError, match=r"await consumer\.arun"):
        consumer.run()
