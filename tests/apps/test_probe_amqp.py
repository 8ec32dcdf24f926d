"""The probe on a broker: nothing is lost, and what may have been sent is not sent again unheard."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import UUID, uuid4

import pika  # type: ignore[import-untyped,unused-ignore]
import pytest

import semel
from semel import errors
from semel.apps.probe import Probe, Settings
from semel.core.running import Run
from tests.apps.test_probe import Caller
from tests.servers.rabbitmq import Broker, declare
from tests.servers.running import HOST, free_port, until

if not os.environ.get("CI"):
    pytest.importorskip("proton", reason="AMQP: pip install python-qpid-proton, which needs a C compiler")

from semel.apps.probe.amqp import MessageReceiver
from tests.doors.amqp1_peer import Delivery, Message, hangs_up, peer, says


@pytest.fixture
def s(tmp_path):
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}") as s:
        yield s


@pytest.fixture
def opened(s):
    """Opens a probe of a broker, for a `with` block."""

    @contextmanager
    def open_(broker, **settings):
        probe = Probe(s, None, Settings(open=True, broker=broker, **settings))
        try:
            yield Caller(probe)
        finally:
            probe.close()

    return open_


@pytest.fixture
def caller(opened, rabbitmq):
    with opened(rabbitmq.url) as caller:
        yield caller


class Queue:
    """A queue of the test's own, seen by a client of another protocol."""

    def __init__(self, broker: Broker) -> None:
        self.url, self.name = broker.url, f"probe-{uuid4().hex[:8]}"
        self.address = f"/amq/queue/{self.name}"
        declare(broker.url, self.name)

    @contextmanager
    def channel(self):
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def depth(self) -> int:
        with self.channel() as channel:
            return channel.queue_declare(self.name, passive=True).method.message_count

    def put(self, body: bytes, **properties) -> None:
        with self.channel() as channel:
            channel.basic_publish("", self.name, body, pika.BasicProperties(**properties))

    def remove(self) -> None:
        with self.channel() as channel:
            channel.queue_delete(self.name)


@pytest.fixture
def queue(rabbitmq):
    queue = Queue(rabbitmq)
    yield queue
    queue.remove()


def consume(caller, key, queue, most=10, seconds=0.5):
    return caller.ask("consume", key, {"address": queue.address, "max": most, "seconds": seconds})


def bodies(told):
    return [message["body"] for message in told["messages"]]


@pytest.mark.seed("M5")
def test_messages_go_to_the_broker_and_come_back_from_it_each_once(caller, queue):
    order = {"address": queue.address, "messages": ["text", {"order": 7, "deep": [None, True]}, 3]}
    first, again = caller.produce("k", order), caller.produce("k", order)
    assert first[:2] == again[:2]
    assert first[1]["processedMessages"] == 3
    assert first[1]["elapsed"].startswith("PT")
    assert queue.depth() == 3
    first, again = (consume(caller, "c", queue, 3, 20) for _ in range(2))
    assert first[:2] == again[:2]
    assert bodies(first[1]) == ["text", {"order": 7, "deep": [None, True]}, 3]
    assert [message["id"].rpartition("-")[2] for message in first[1]["messages"]] == ["1", "2", "3"]
    assert queue.depth() == 0, "the broker was told that they are done with"


def test_what_is_not_taken_stays_with_the_broker(opened, rabbitmq, queue):
    with opened(rabbitmq.url, max_response=200) as caller:
        large = [f"{number}" + "x" * 90 for number in range(3)]
        caller.produce("k", {"address": queue.address, "messages": large})
        taken = [bodies(consume(caller, f"c{number}", queue, 2, 20)[1]) for number in range(2)]
        assert taken == [large[:1], large[1:2]]
        assert until(lambda: queue.depth() == 1)
        caller.produce("larger", {"address": queue.address, "messages": ["x" * 300]})
        assert bodies(consume(caller, "c", queue, 2, 20)[1]) == large[2:]
        status, told, _ = consume(caller, "d", queue, 1, 20)
        assert (status, told["type"]) == (409, "/problems#failed-before")
        assert until(lambda: queue.depth() == 1)


def test_messages_of_other_protocols_are_told_as_json_can(caller, queue):
    queue.put(b"plain", message_id="m-1")
    queue.put(b"\xff\x00")
    status, told, _ = consume(caller, "c", queue, 2, 20)
    assert status == 200
    assert told["messages"] == [{"id": "m-1", "body": "plain"}, {"id": None, "body": {"base64": "/wA="}}]


def test_types_that_json_does_not_have_are_told_as_text(opened):
    name = UUID("5c1e0a56-4a58-4aaf-9359-83ec8f663f10")
    sent = (Message(id=name, body={1: float("nan"), "at": name}), Message(id=7, body=[b"bytes", 2**60]))
    with peer(messages=sent) as broker, opened(broker.url) as caller:
        status, told, _ = caller.ask("consume", "c", {"address": "q", "max": 2, "seconds": 20})
        assert status == 200
        assert told["messages"] == [
            {"id": str(name), "body": {"1": "nan", "at": str(name)}},
            {"id": "7", "body": ["bytes", 2**60]},
        ]
        assert until(lambda: [state for state, *_ in broker.settled] == [Delivery.ACCEPTED] * 2)


# Consuming: what nobody has reported is not lost


def test_messages_go_back_when_the_ledger_does_not_take_the_report(caller, s, queue):
    """The record is gone while the messages are in hand: nobody could ever be told of them."""
    caller.produce("k", {"address": queue.address, "count": 2})
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(consume, caller, "c", queue, 3, 20)
        assert until(lambda: queue.depth() == 0)
        s.ledger.forget("CONSUME#c")
        caller.produce("last", {"address": queue.address, "count": 1})
        status, told, _ = waiting.result()
    assert (status, told["type"]) == (409, "/problems#in-progress")
    assert until(lambda: queue.depth() == 3)
    assert len(bodies(consume(caller, "c", queue, 3, 20)[1])) == 3


def test_a_report_that_the_broker_does_not_hear_of_is_given_all_the_same(opened, monkeypatch):
    """The connection is lost before the messages are settled: they come again, and their ids tell."""
    finish = MessageReceiver.finish

    def cut_off(receiver, kept):
        receiver.broker.hang_up()
        finish(receiver, kept)

    monkeypatch.setattr(MessageReceiver, "finish", cut_off)
    with peer(messages=(Message(id="a", body="x"),)) as broker, opened(broker.url) as caller:
        answers = [caller.ask("consume", "c", {"address": "q", "seconds": 20}) for _ in range(2)]
        assert [(status, bodies(told)) for status, told, _ in answers] == [(200, ["x"])] * 2
        assert broker.settled == []


def test_closing_ends_a_request_that_waits_with_what_has_come(s, rabbitmq, queue):
    probe = Probe(s, None, Settings(open=True, broker=rabbitmq.url))
    caller, got = Caller(probe), []
    caller.produce("k", {"address": queue.address, "count": 2})
    waiting = threading.Thread(target=lambda: got.append(consume(caller, "c", queue, 3, 20)))
    waiting.start()
    assert until(lambda: queue.depth() == 0)
    probe.close()
    waiting.join()
    assert [(status, bodies(told)) for status, told, _ in got] == [(200, ["probe"] * 2)]
    assert queue.depth() == 0


# Producing: what may have been sent


def test_a_lost_answer_holds_the_request_until_somebody_settles_it(opened, s):
    order = {"address": "orders", "count": 2}
    with peer(hangs_up) as broker, opened(broker.url) as caller:
        status, told, _ = caller.produce("k", order)
        assert (status, told["type"]) == (409, "/problems#outcome-unknown")
        assert caller.produce("k", order)[:2] == (status, told)
        assert len(broker.received) == 1, "nothing is sent again"
        assert s.ledger.get("PRODUCE#k").status == "UNKNOWN"
        s.ledger.resolve("PRODUCE#k", semel.Happened({"processedMessages": 2, "elapsed": "PT1S"}))
        assert caller.produce("k", order)[:2] == (200, {"processedMessages": 2, "elapsed": "PT1S"})


class Answers:
    """What a broker says to each message, in turn; the last of them to all that follow."""

    def __init__(self, *answers):
        self._answers = list(answers)

    def __call__(self, delivery):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        answer(delivery)


def test_a_lost_answer_may_be_set_to_be_repeated_under_the_same_ids(opened):
    order = {"address": "orders", "messages": ["a", "b"]}
    answers = Answers(hangs_up, says(Delivery.ACCEPTED))
    with peer(answers) as broker, opened(broker.url, on_lapsed="repeat") as caller:
        status, told, headers = caller.produce("k", order)
        assert (status, told["type"], headers["Retry-After"]) == (409, "/problems#outcome-unknown", "5")
        status, told, _ = caller.produce("k", order)
        assert (status, told["processedMessages"]) == (200, 2)
        names = [(message.id, message.body) for message in broker.received]
    assert names[0] == names[1], "whoever handles messages once knows the double"
    assert [body for _, body in names] == ["a", "a", "b"]


def test_what_the_broker_refuses_has_failed_with_how_far_it_came(opened, s):
    order, accepts = {"address": "orders", "count": 5}, says(Delivery.ACCEPTED)
    answers = Answers(accepts, accepts, says(Delivery.REJECTED, "full"))
    with peer(answers) as broker, opened(broker.url) as caller:
        status, told, _ = caller.produce("k", order)
        assert (status, told["type"]) == (409, "/problems#failed-before")
        assert told["detail"].startswith("2 of 5 messages were sent, and then: ")
        assert s.ledger.get("PRODUCE#k").status == "FAILED"
        assert caller.produce("k", order)[:2] == (status, told)
        assert len(broker.received) == 3


@pytest.mark.parametrize("operation", ["produce", "consume"])
def test_a_broker_that_is_not_there_leaves_the_key_to_be_used_again(opened, operation, caller, queue):
    order = {"address": queue.address} | ({"count": 1} if operation == "produce" else {"seconds": 0})
    with opened(f"amqp://{HOST}:{free_port()}") as lost:
        status, told, headers = lost.ask(operation, "k", order)
        assert (status, told["type"], headers["Retry-After"]) == (503, "/problems#broker-unavailable", "5")
    assert caller.ask(operation, "k", order)[0] == 200


@pytest.mark.parametrize("operation", ["produce", "consume"])
def test_an_address_that_the_broker_does_not_have_has_failed(caller, operation):
    address = "/exchange/nowhere" if operation == "produce" else "/amq/queue/nowhere"
    order = {"address": address} | ({"count": 1} if operation == "produce" else {"seconds": 1})
    answers = [caller.ask(operation, "k", order)[:2] for _ in range(2)]
    assert answers[0] == answers[1]
    assert (answers[0][0], answers[0][1]["type"]) == (409, "/problems#failed-before")
    assert "nowhere" in answers[0][1]["detail"]


def test_what_amqp_has_no_type_for_has_failed(caller, queue):
    status, told, _ = caller.produce("k", {"address": queue.address, "messages": [2**70]})
    assert (status, told["type"]) == (409, "/problems#failed-before")
    assert queue.depth() == 0


def test_who_has_lost_the_claim_sends_no_more(opened, monkeypatch):
    """Somebody else is at it from then on, and sends the same messages."""
    checks: list[Run] = []

    def lost(run):
        checks.append(run)
        if len(checks) == 3:
            raise errors.ClaimLost(run.key, run.attempt, "go on with")

    monkeypatch.setattr(Run, "check", lost)
    with peer(says(Delivery.ACCEPTED)) as broker, opened(broker.url) as caller:
        status, told, _ = caller.produce("k", {"address": "orders", "count": 5})
        assert (status, told["type"]) == (409, "/problems#in-progress")
        assert len(broker.received) == 2
