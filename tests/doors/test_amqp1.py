"""AMQP 1.0: what is sent twice happens once, nothing is lost, and a group keeps its order."""

import contextlib
import os
import random
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pika  # type: ignore[import-untyped,unused-ignore]
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import semel
from semel.core.events import What
from semel.doors.amqp1 import endpoint
from semel.testing import FakeClock
from tests.servers.rabbitmq import Broker, declare
from tests.servers.running import until

if not os.environ.get("CI"):
    pytest.importorskip("proton", reason="AMQP: pip install python-qpid-proton, which needs a C compiler")

from semel.doors.amqp1 import (
    AddressRefused,
    BrokerUnavailable,
    Consumer,
    Producer,
    SendOutcomeUnknown,
    SendRefused,
    by_message_id,
)
from tests.doors import amqp1_peer
from tests.doors.amqp1_peer import Delivery, Message, hangs_up, peer, says
from tests.doors.amqp1_worker import TABLE
from tests.doors.consumers import running

ROOT = Path(__file__).parents[2]
SINGLE = {"x-single-active-consumer": True}


class Queues:
    """Queues of the test's own, and what is in them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._prefix = f"test-{uuid4().hex[:8]}"
        self._made: list[str] = []

    @contextmanager
    def channel(self) -> Iterator:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def make(self, name: str, **arguments) -> str:
        """A queue, and its address."""
        name = f"{self._prefix}-{name}"
        declare(self.url, name, **arguments)
        self._made.append(name)
        return f"/amq/queue/{name}"

    def with_dead_letters(self, name: str) -> tuple[str, str]:
        dead = self.make(f"{name}-dead")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.rpartition("/")[2]}
        return self.make(name, **arguments), dead

    def depth(self, address: str) -> int:
        """How many messages are there that nobody has in hand."""
        with self.channel() as channel:
            return channel.queue_declare(address.rpartition("/")[2], passive=True).method.message_count

    def remove(self) -> None:
        with self.channel() as channel:
            for name in self._made:
                channel.queue_delete(name)


@pytest.fixture
def queues(rabbitmq: Broker) -> Iterator[Queues]:
    queues = Queues(rabbitmq.url)
    yield queues
    queues.remove()


@pytest.fixture
def producer(rabbitmq: Broker) -> Iterator[Producer]:
    with Producer(rabbitmq.url) as producer:
        yield producer


def at_once(_: int) -> float:
    return 0.0


class Seen:
    """What happened, by its events."""

    def __init__(self, s: semel.Semel) -> None:
        self.events: list[semel.Event] = []
        s.events.listen(self.events.append)

    def count(self, what: What) -> int:
        return sum(event.what is what for event in self.events)


# What becomes of a message


def test_what_is_sent_twice_is_handled_once_and_both_are_settled(rabbitmq, queues, producer, s) -> None:
    address, seen = queues.make("orders"), Seen(s)
    handled: list[Any] = []
    for _ in range(2):
        producer.send(address, {"order": 7}, key="o-7", properties={"by": "shop"})
    with running(Consumer(s, rabbitmq.url, address, handled.append)):
        assert until(lambda: seen.count(What.REPLAYED) == 1)
    assert [(message.id, message.body, message.properties) for message in handled] == [
        ("o-7", {"order": 7}, {"by": "shop"})
    ]
    assert {event.door for event in seen.events} == {"amqp"}
    assert queues.depth(address) == 0


def test_a_message_of_another_protocol_is_handled_alike(rabbitmq, queues, s) -> None:
    address, bodies = queues.make("orders"), []
    with queues.channel() as channel:
        name = address.rpartition("/")[2]
        channel.basic_publish("", name, b"old", pika.BasicProperties(message_id="m-1"))
    with running(Consumer(s, rabbitmq.url, address, lambda message: bodies.append(bytes(message.body)))):
        assert until(lambda: bodies == [b"old"])
    assert queues.depth(address) == 0


def test_a_message_that_failed_is_given_back_and_comes_again(rabbitmq, queues, producer, s) -> None:
    address, tries = queues.make("orders"), []

    def handle(message) -> None:
        tries.append((semel.current_run().attempt, message.first_acquirer))
        if len(tries) == 1:
            raise OSError("not yet")

    producer.send(address, "x", key="o-1")
    with running(Consumer(s, rabbitmq.url, address, handle, backoff=at_once)):
        assert until(lambda: len(tries) == 2)
    # Its second delivery is known to the broker as one.
    assert tries == [(1, True), (2, False)]
    assert queues.depth(address) == 0


def test_a_busy_message_is_held_until_it_may_do_better(rabbitmq, queues, producer) -> None:
    """For as long as the lease of whoever is at it; his time passes here when the test says so."""
    address, clock = queues.make("orders"), FakeClock()
    handled: list[Any] = []
    held: list[float] = []
    with semel.connect("memory:", clock=clock) as s:
        seen = Seen(s)
        s.ledger.claim(by_message_id(address, Message(id="o-1")), lease=0.5)  # by somebody who vanishes
        producer.send(address, "x", key="o-1")
        consumer = Consumer(s, rabbitmq.url, address, handled.append)
        dispatcher = consumer._consuming.dispatcher
        hold = dispatcher._hold
        dispatcher._hold = lambda one, seconds, now: (held.append(seconds), hold(one, seconds, now))  # type: ignore[assignment,func-returns-value]
        with running(consumer):
            assert until(lambda: seen.count(What.BUSY) > 0)
            clock.advance(0.6)
            assert until(lambda: len(handled) == 1)
    # However slow the machine is: it was asked once for each time that it was held, and for as long.
    assert held.count(0.5) == seen.count(What.BUSY)
    assert queues.depth(address) == 0


@pytest.mark.parametrize("kind", ["poison", "nameless"])
def test_what_no_delivery_can_mend_goes_to_the_dead_letters(kind, rabbitmq, queues, s) -> None:
    address, dead = queues.with_dead_letters("orders")

    def handle(message) -> None:
        raise ValueError("no such order")

    with queues.channel() as channel:
        known = pika.BasicProperties(message_id="o-1" if kind == "poison" else None)
        channel.basic_publish("", address.rpartition("/")[2], b"x", known)
    with running(Consumer(s, rabbitmq.url, address, handle, max_attempts=1)):
        assert until(lambda: queues.depth(dead) == 1)
    assert queues.depth(address) == 0


def test_a_message_whose_group_cannot_be_told_is_dead_and_the_next_one_is_handled(
    rabbitmq, queues, producer, s
) -> None:
    (address, dead), handled = queues.with_dead_letters("orders"), []
    for name in ("a", "b"):
        producer.send(address, name, key=name)
    groups = {"b": "one"}
    with running(
        Consumer(s, rabbitmq.url, address, lambda m: handled.append(m.id), group=lambda m: groups[m.id])
    ):
        assert until(lambda: handled == ["b"])
        assert until(lambda: queues.depth(dead) == 1)


def test_the_key_and_the_fingerprint_are_the_callers(rabbitmq, queues, producer, s) -> None:
    (address, dead), handled = queues.with_dead_letters("orders"), []
    for name, cents in (("a", 1), ("b", 1), ("c", 2)):
        producer.send(address, {"order": 7, "cents": cents}, key=name)
    consumer = Consumer(
        s,
        rabbitmq.url,
        address,
        lambda message: handled.append(message.id),
        key=lambda message: f"order:{message.body['order']}",
        fingerprint=lambda message: message.body["cents"],
    )
    with running(consumer):
        assert until(lambda: queues.depth(dead) == 1)  # the third says something else about the same order
    assert handled == ["a"]
    assert queues.depth(address) == 0


def test_the_broker_is_told_what_a_dead_message_died_of(s) -> None:
    def handle(message) -> None:
        raise ValueError("nobody's business")

    with (
        peer(messages=(Message(id="a", body="x"),)) as broker,
        running(Consumer(s, broker.url, "orders", handle, max_attempts=1)),
    ):
        assert until(lambda: len(broker.settled) == 1)
    state, condition, _ = broker.settled[0]
    assert (state, condition.name, condition.description) == (
        Delivery.REJECTED,
        "amqp:internal-error",
        "ValueError",
    )


@pytest.mark.parametrize(
    ("outcome", "state"), [(amqp1_peer.MODIFIED, Delivery.MODIFIED), (None, Delivery.RELEASED)]
)
def test_a_failure_is_counted_only_by_a_broker_that_says_it_counts(outcome, state, s) -> None:
    def handle(message) -> None:
        raise OSError("not now")

    with (
        peer(messages=(Message(id="a", body="x"),), outcome=outcome) as broker,
        running(Consumer(s, broker.url, "orders", handle, backoff=at_once)),
    ):
        assert until(lambda: len(broker.settled) == 1)
    assert (broker.settled[0][0], broker.settled[0][2]) == (state, outcome is not None)


# Order


def test_a_group_is_handled_in_order_one_at_a_time_even_past_a_failure(rabbitmq, queues, producer, s) -> None:
    address, lock = queues.make("orders"), threading.Lock()
    order: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    failed, inside, worst = set(), dict.fromkeys(order, 0), [0]

    def handle(message) -> None:
        group, number = message.group_id, message.body
        with lock:
            inside[group] += 1
            worst[0] = max(worst[0], inside[group])
        try:
            if number % 4 == 0 and message.id not in failed:
                failed.add(message.id)
                raise OSError("not yet")
            order[group].append(number)
        finally:
            with lock:
                inside[group] -= 1

    for number in range(12):
        for group in order:
            producer.send(address, number, key=f"{group}-{number}", group=group)
    with running(Consumer(s, rabbitmq.url, address, handle, workers=4, prefetch=30, backoff=at_once)):
        assert until(lambda: sum(map(len, order.values())) == 36)
    assert order == {group: list(range(12)) for group in order}
    assert worst == [1]
    assert queues.depth(address) == 0


# The connection


def test_what_a_lost_connection_brings_again_is_not_done_again(rabbitmq, queues, producer) -> None:
    """What comes again is held for as long as the lease has; time stands still, so that it is never over."""
    s = semel.connect("memory:", clock=FakeClock())
    address, seen = queues.make("orders"), Seen(s)
    handled: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def handle(message) -> None:
        handled.append(message.id)
        if message.id == "a":
            begun.set()
            assert may_end.wait(60)

    for name in ("a", "b"):
        producer.send(address, name, key=name)
    with running(Consumer(s, rabbitmq.url, address, handle, lease=0.6, heartbeat=False)) as consumer:
        assert begun.wait(60)
        first = consumer.receiver.broker
        consumer.receiver.loop.ask(first.hang_up)
        assert until(lambda: consumer.receiver.broker is not None and consumer.receiver.broker is not first)
        may_end.set()
        assert until(lambda: seen.count(What.REPLAYED) == 1 and "b" in handled)
    s.close()
    assert sorted(handled) == ["a", "b"]
    assert queues.depth(address) == 0


def test_heartbeats_go_on_while_a_handler_runs(s) -> None:
    handled: list[str] = []

    def handle(message) -> None:
        sent = consumer.receiver.broker.transport.frames_output
        # The other end hangs up after a second of silence.
        assert until(lambda: consumer.receiver.broker.transport.frames_output >= sent + 3)
        handled.append(message.id)

    with peer(messages=(Message(id="a", body="x"),), silence=1.0) as broker:
        consumer = Consumer(s, broker.url, "orders", handle)
        with running(consumer):
            assert until(lambda: len(broker.settled) == 1)
    assert handled == ["a"]
    assert broker.connections == 1
    assert broker.settled[0][0] == Delivery.ACCEPTED


def test_stop_finishes_what_runs_and_gives_back_what_has_not_begun(rabbitmq, queues, producer, s) -> None:
    address = queues.make("orders")
    handled: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def handle(message) -> None:
        begun.set()
        assert may_end.wait(60)
        handled.append(message.id)

    for number in range(5):
        producer.send(address, number, key=f"o-{number}", group="all" if number % 2 else None)
    with running(Consumer(s, rabbitmq.url, address, handle)) as consumer:
        assert begun.wait(60)
        assert until(lambda: queues.depth(address) == 0)
        consumer.stop()
        assert until(lambda: queues.depth(address) == 4)  # others may have them before this one is done
        may_end.set()
    assert handled == ["o-0"]
    assert queues.depth(address) == 4


def test_a_ledger_that_drains_stops_its_consumer_and_nothing_is_lost(rabbitmq, queues, producer, s) -> None:
    address = queues.make("orders")
    for name in ("a", "b"):
        producer.send(address, name, key=name)
    Consumer(s, rabbitmq.url, address, lambda message: s.drain()).run()
    assert queues.depth(address) == 1


def test_a_consumer_that_was_stopped_before_it_ran_takes_nothing(rabbitmq, queues, producer, s) -> None:
    address = queues.make("orders")
    producer.send(address, "x", key="a")
    consumer = Consumer(s, rabbitmq.url, address, print)
    consumer.stop()
    consumer.run()
    assert queues.depth(address) == 1


def test_a_handler_that_wants_to_exit_ends_the_run_and_its_message_comes_again(
    rabbitmq, queues, producer, s
) -> None:
    address = queues.make("orders")

    def handle(message) -> None:
        raise SystemExit(3)

    producer.send(address, "x", key="a")
    with pytest.raises(SystemExit, match="3"):
        Consumer(s, rabbitmq.url, address, handle).run()
    assert queues.depth(address) == 1


def test_an_address_that_is_not_there_is_an_error_at_once(rabbitmq, queues, s) -> None:
    with pytest.raises(AddressRefused, match="no queue"):
        Consumer(s, rabbitmq.url, "/amq/queue/nowhere", print).run()


def test_a_broker_that_is_not_there_is_an_error_at_once(s) -> None:
    with pytest.raises(BrokerUnavailable, match="no broker answers"):
        Consumer(s, "amqp://127.0.0.1:1", "orders", print).run()


def test_something_else_that_listens_there_is_no_broker(s) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            caller, _ = server.accept()
            with caller:
                caller.recv(8)
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                caller.recv(8)

        other = threading.Thread(target=answer)
        other.start()
        with pytest.raises(BrokerUnavailable):
            Consumer(s, f"amqp://127.0.0.1:{port}", "orders", print).run()
        other.join()


def test_a_consumer_runs_once_and_runs_plain_functions(rabbitmq, queues, s) -> None:
    async def handle(message) -> None: ...

    with pytest.raises(semel.InvalidOption, match="async"):
        Consumer(s, rabbitmq.url, "orders", handle)
    with pytest.raises(semel.InvalidOption, match="at least 1"):
        Consumer(s, rabbitmq.url, "orders", print, workers=0)
    consumer = Consumer(s, rabbitmq.url, queues.make("orders"), print)
    with running(consumer):
        pass
    with pytest.raises(semel.UsageError, match="runs once"):
        consumer.run()


# Sending


def test_a_message_is_there_when_send_returns(queues, producer) -> None:
    address = queues.make("orders")
    for number in range(20):
        producer.send(address, number, key=f"o-{number}")
        assert queues.depth(address) == number + 1


async def asend(producer: Producer, address: str) -> None:
    await producer.asend(address, b"bytes", key="a")


def test_sending_can_be_awaited_and_bytes_arrive_as_they_are(queues, producer) -> None:
    import asyncio

    address = queues.make("orders")
    asyncio.run(asend(producer, address))
    with queues.channel() as channel:
        _, known, body = channel.basic_get(address.rpartition("/")[2], auto_ack=True)
    assert (known.message_id, body) == ("a", b"bytes")


@pytest.mark.parametrize("outcome", ["rejected", "released", "modified"])
def test_a_message_that_is_not_accepted_is_an_error_that_says_why(outcome) -> None:
    state = getattr(Delivery, outcome.upper())
    with (
        peer(says(state, "full" if outcome == "rejected" else "")) as broker,
        Producer(broker.url) as producer,
    ):
        with pytest.raises(SendRefused) as refusal:
            producer.send("orders", "x", key="a")
        assert (refusal.value.address, refusal.value.outcome) == ("orders", outcome)
        assert ("full" in refusal.value.reason) == (outcome == "rejected")


def test_an_answer_that_never_comes_is_no_answer() -> None:
    with peer(hangs_up) as broker, Producer(broker.url) as producer:
        for name in ("a", "b"):  # the connection is made again for the second
            with pytest.raises(SendOutcomeUnknown, match="may or may not be there"):
                producer.send("orders", "x", key=name)
        assert [message.id for message in broker.received] == ["a", "b"]
    with (
        peer() as broker,
        Producer(broker.url, timeout=0.2) as producer,
        pytest.raises(SendOutcomeUnknown, match="in time"),
    ):
        producer.send("orders", "x", key="a")


def test_what_cannot_have_been_sent_says_so(rabbitmq, producer) -> None:
    with pytest.raises(AddressRefused, match="no exchange"):
        producer.send("/exchange/nowhere/x", "x", key="a")
    with Producer("amqp://127.0.0.1:1") as lost, pytest.raises(BrokerUnavailable):
        lost.send("orders", "x", key="a")
    with pytest.raises(semel.UsageError, match="closed"):
        lost.send("orders", "x", key="a")


def test_what_amqp_has_no_type_for_is_refused_before_it_is_sent(producer) -> None:
    with pytest.raises(semel.InvalidPayload, match="no type"):
        producer.send("orders", object(), key="a")


def test_one_refused_address_leaves_the_others_alone(queues, producer) -> None:
    address = queues.make("orders")
    producer.send(address, "x", key="a")
    with pytest.raises(AddressRefused):
        producer.send("/exchange/nowhere/x", "x", key="a")
    producer.send(address, "x", key="b")
    assert queues.depth(address) == 2


# Encrypted


def certificate(folder: Path) -> Path:
    """A key and its certificate for this machine, signed by itself."""
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "broker.pem"
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(*plain) + made.public_bytes(serialization.Encoding.PEM))
    return file


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def encrypted(file: Path, port: int) -> Iterator[int]:
    """The port of one who speaks TLS in front of a broker, with one caller at a time."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)

    def serve() -> None:
        while True:
            try:
                caller, _ = server.accept()
            except ssl.SSLError:  # a caller who does not trust us
                continue
            except OSError:
                return
            with caller, socket.create_connection(("127.0.0.1", port)) as broker:
                back = threading.Thread(target=pump, args=(broker, caller))
                back.start()
                pump(caller, broker)
                back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def test_messages_go_and_come_encrypted_between_those_who_trust_each_other(
    rabbitmq, queues, s, tmp_path
) -> None:
    address, file, bodies = queues.make("orders"), certificate(tmp_path), []
    trust = ssl.create_default_context(cafile=str(file))
    parts = urlsplit(rabbitmq.url)
    large = "x" * 300_000
    with encrypted(file, parts.port) as port:
        url = f"amqps://{parts.username}:{parts.password}@localhost:{port}{parts.path}"
        with Producer(url) as stranger, pytest.raises(BrokerUnavailable, match="encryption"):
            stranger.send(address, large, key="a")
        with Producer(url, tls=trust) as friend:
            friend.send(address, large, key="a")
        with running(Consumer(s, url, address, lambda message: bodies.append(message.body), tls=trust)):
            assert until(lambda: bodies == [large])
    assert queues.depth(address) == 0


# Names and places


@pytest.mark.parametrize(
    ("id", "key"),
    [
        ("o:1", "amqp::orders:o%3A1"),
        (7, "amqp::orders:7"),
        (b"\x01\xff", "amqp::orders:01ff"),
        (UUID(int=1), "amqp::orders:00000000-0000-0000-0000-000000000001"),
    ],
)
def test_a_message_id_of_any_type_makes_a_key(id, key) -> None:
    assert by_message_id("orders", Message(id=id)) == key


def test_a_message_without_an_id_has_no_key() -> None:
    with pytest.raises(semel.InvalidKey, match="message-id"):
        by_message_id("orders", Message())


def test_a_url_names_an_endpoint() -> None:
    found = endpoint.endpoint_of("amqp://us%40er:p%2Fw@broker/%2F")
    assert (found.host, found.port, found.user, found.password) == ("broker", 5672, "us@er", "p/w")
    assert found.hostname == "vhost:/"
    assert found.tls is None
    safe = endpoint.endpoint_of("amqps://broker")
    assert (safe.port, safe.user, safe.hostname) == (5671, None, "broker")
    assert safe.tls is not None


@pytest.mark.parametrize("url", ["broker:5672", "http://broker", "amqp:///vhost", "amqp://broker:port"])
def test_a_url_that_names_no_broker_is_refused_without_being_shown(url) -> None:
    with pytest.raises(semel.InvalidOption, match="a broker's URL is") as refusal:
        endpoint.endpoint_of(url)
    assert url not in str(refusal.value)


# The bar


MESSAGES, GROUPS, WORKERS = 2000, 12, 3


class WorkerProcesses:
    """Worker processes, each replaced as soon as it is gone."""

    def __init__(self, url: str, file: Path, queues: list[str]) -> None:
        self._command = [sys.executable, "-m", "tests.doors.amqp1_worker", url, str(file)]
        self._queues = queues
        self.killed = 0
        self._processes = [self._start(number) for number in range(WORKERS)]

    def _start(self, number: int) -> subprocess.Popen:
        # Each begins with another queue, so that each is the active one of some.
        mine = self._queues[number:] + self._queues[:number]
        return subprocess.Popen([*self._command, *mine], cwd=ROOT)

    def look_after(self) -> None:
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL
                self.killed += 1
                self._processes[number] = self._start(number)

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].wait()

    def stop(self) -> list[int]:
        for process in self._processes:
            process.terminate()
        return [process.wait(60) for process in self._processes]

    def abandon(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def fill(producer: Producer, addresses: list[str], dies: dict[int, str]) -> None:
    """Every group's messages in order, each group in one queue; every tenth message twice."""
    for number in range(MESSAGES):
        group = number % GROUPS
        body = {"seq": number // GROUPS, "dies": dies.get(number, "")}
        for _ in range(2 if number % 10 == 0 else 1):
            producer.send(addresses[group % WORKERS], body, key=f"m-{number}", group=f"g-{group}")


@pytest.mark.seed("R10")
def test_workers_are_killed_and_every_effect_is_there_once_and_in_order(
    rabbitmq, queues, producer, tmp_path
) -> None:
    draw = random.Random(1867)
    addresses = [queues.make(f"part-{number}", **SINGLE) for number in range(WORKERS)]
    deaths = draw.sample(range(MESSAGES), 8)
    fill(producer, addresses, {number: draw.choice(["before", "after"]) for number in deaths})
    file = tmp_path / "shop.db"
    moments = sorted(draw.sample(range(100, MESSAGES - 100), 6))
    with sqlite3.connect(file, timeout=60) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(TABLE)
    processes = WorkerProcesses(rabbitmq.url, file, [address.rpartition("/")[2] for address in addresses])

    def done() -> int:
        processes.look_after()
        return db.execute("SELECT count(*) FROM effects").fetchone()[0]

    try:
        for moment in moments:
            assert until(lambda: done() >= moment)  # noqa: B023 - used now
            processes.kill(draw.randrange(WORKERS))
        assert until(lambda: done() >= MESSAGES)
        # One that is just being started anew may not listen to the signal yet.
        assert set(processes.stop()) <= {0, -signal.SIGTERM}
    finally:
        processes.abandon()
    assert processes.killed >= 12
    with semel.connect(f"sqlite:///{file}") as s:
        for address in addresses:
            while queues.depth(address):
                with running(Consumer(s, rabbitmq.url, address, print)):
                    assert until(lambda: queues.depth(address) == 0)  # noqa: B023 - used now
    effects = db.execute("SELECT grp, seq, id FROM effects ORDER BY rowid").fetchall()
    db.close()
    assert sorted(id for _, _, id in effects) == sorted(f"m-{number}" for number in range(MESSAGES))
    for group in range(GROUPS):
        order = [seq for name, seq, _ in effects if name == f"g-{group}"]
        assert order == sorted(order)
