"""The SQS door: on a server where what SQS does matters, and on paper where only a decision does."""

import asyncio
import logging
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from decimal import Decimal
from itertools import groupby
from signal import SIGINT, pthread_kill
from typing import Any

import pytest

import semel
from semel import errors
from semel.aws.errors import ServiceError
from semel.aws.sqs import MAX_BYTES, Queue, batches, translated
from semel.core.events import Events
from semel.core.keys import own_key
from semel.doors.queues.consuming import Consuming, Handling
from semel.doors.queues.dispatcher import Dispatcher, DispatchSettings, InFlight, Requeue
from semel.doors.queues.messages import DeliveryResult, Verdict
from semel.doors.queues.steps import Wait
from semel.doors.sqs import Attribute, Consumer, Message, Outgoing
from semel.doors.sqs.broker import LONGEST, QueueRequest, SqsBroker, dead_letter, default_backoff
from semel.doors.sqs.message import read, usual_key
from semel.errors import QueueMissing
from semel.stores.memory import MemoryStore
from semel.testing import Faulty
from tests.doors.fates import MOMENTS, WorkerProcesses
from tests.doors.sqs_kit import counts, make_queue
from tests.servers.running import until

# --- Killed again and again --------------------------------------------------------------------------

MESSAGES, CONVERSATIONS, PROCESSES = 2000, 40, 3


def conversations() -> Iterator[Outgoing]:
    """What happens in each conversation, in order; every tenth is said twice, and not at once."""
    for n in range(MESSAGES // CONVERSATIONS):
        for who in range(CONVERSATIONS):
            yield Outgoing(body=f'{{"n": {n}}}', group=f"c{who}", dedup=f"{who}-{n}")
        for who in range(n % 10, CONVERSATIONS, 10):
            yield Outgoing(body=f'{{"n": {n}}}', group=f"c{who}", dedup=f"{who}-{n}-again")


@pytest.mark.situation(4)
@pytest.mark.seed("R8")
@pytest.mark.seed("R10")
def test_killed_consumers_handle_every_message_once_and_in_order(sqs, tmp_path):
    """2,000 messages, 200 of them sent twice, dozens delivered twice at once, and processes that die."""
    path = tmp_path / "effects.db"
    with ExitStack() as stack:
        rows = stack.enter_context(closing(sqlite3.connect(path, timeout=60)))
        with rows:
            rows.execute("PRAGMA journal_mode=WAL")
            rows.execute("CREATE TABLE effects (id INTEGER PRIMARY KEY, conversation TEXT, n INTEGER)")
        queue = stack.enter_context(closing(Queue(make_queue(sqs, VisibilityTimeout=2))))
        assert all(sent.error is None for sent in queue.send_all(conversations()))
        assert counts(queue) == (MESSAGES + MESSAGES // 10, 0)

        def done() -> int:
            return rows.execute("SELECT count(*) FROM effects").fetchone()[0]

        rng = random.Random(7)
        fates = [(rng.randint(5, 60), moment) for moment in MOMENTS * 2]
        processes = WorkerProcesses(
            stack, ["tests.doors.sqs_worker", str(path), queue.url], fates, rng, PROCESSES
        )
        killings = list(range(250, 1900, 300))

        def all_done() -> bool:
            processes.replace_the_dead()
            if killings and done() >= killings[0]:
                killings.pop(0)
                processes.kill_one()
            return counts(queue) == (0, 0)

        assert until(all_done)
        assert processes.dismiss() == [0] * PROCESSES, (
            "all of them end by themselves, without a word of complaint"
        )
        told = rows.execute("SELECT conversation, n FROM effects ORDER BY id").fetchall()
    assert processes.killed >= 6
    assert len(told) == MESSAGES
    for who in range(CONVERSATIONS):
        assert [n for c, n in told if c == f"c{who}"] == list(range(MESSAGES // CONVERSATIONS))


# --- On a server -------------------------------------------------------------------------------------


class Recorded(Queue):
    """A queue that notes what it is asked, and tells whoever waits for that."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.noted = threading.Condition()

    def call(self, operation, request, *, write=False):
        answer = super().call(operation, request, write=write)
        with self.noted:
            self.asked.append((operation, request))
            self.noted.notify_all()
        return answer

    def of(self, operation: str) -> list[dict[str, Any]]:
        return [request for asked, request in self.asked if asked == operation]

    def entries(self, operation: str) -> list[dict[str, Any]]:
        return [entry for request in self.of(operation) for entry in request["Entries"]]

    def wait_for(self, operation: str, times: int = 1) -> None:
        with self.noted:
            assert self.noted.wait_for(lambda: len(self.of(operation)) >= times, 60), operation


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def s(stack: ExitStack) -> semel.Semel:
    return stack.enter_context(semel.connect("memory:"))


@pytest.fixture
def queue_of(sqs: str, stack: ExitStack) -> Callable[..., Recorded]:
    """What makes new queues."""

    def make(**attributes: Any) -> Recorded:
        return stack.enter_context(closing(Recorded(make_queue(sqs, **attributes))))

    return make


def quick(_deliveries: int) -> float:
    return 0.0


class Diary:
    """A handler that notes every message, does what it is told with it, and stops after so many calls."""

    def __init__(self, calls: int, what: Callable[[Message], Any] = lambda _: None) -> None:
        self.messages: list[Message] = []
        self.consumer: Consumer | None = None
        self._calls, self._what = calls, what
        self._lock = threading.Lock()

    @property
    def bodies(self) -> list[str]:
        return [message.body for message in self.messages]

    def __call__(self, message: Message) -> Any:
        with self._lock:
            self.messages.append(message)
            if len(self.messages) == self._calls:
                self.consumer.stop()
        return self._what(message)

    def run(self, s: semel.Semel, queue: Queue, **more: Any) -> None:
        options: dict[str, Any] = {"poll": 1, "backoff": quick} | more
        self.consumer = Consumer(s, queue, self, **options)
        self.consumer.run()


def failing_once(body: str) -> Callable[[Message], None]:
    """What raises the first time it sees this body."""
    left = [body]

    def fail(message: Message) -> None:
        if message.body in left:
            left.remove(message.body)
            raise ConnectionError("the bank does not answer")

    return fail


@pytest.mark.situation(20)
def test_a_failure_in_the_middle_of_a_group_holds_up_what_follows_it_and_nothing_else(s, queue_of):
    queue = queue_of()
    queue.send_all(
        Outgoing(body=f"{group}{n}", group=group, dedup=f"{group}{n}") for n in range(4) for group in "ab"
    )
    diary = Diary(9, failing_once("a1"))
    diary.run(s, queue)
    assert [body for body in diary.bodies if body[0] == "a"] == ["a0", "a1", "a1", "a2", "a3"]
    assert [body for body in diary.bodies if body[0] == "b"] == ["b0", "b1", "b2", "b3"]
    assert counts(queue) == (0, 0)


def test_another_consumer_gets_nothing_of_a_group_whose_first_message_stays_away(s, queue_of):
    """What is behind is given back at once, and SQS keeps it until the one before it is there again."""
    queue = queue_of()
    queue.send_all(Outgoing(body=str(n), group="g", dedup=str(n)) for n in range(3))
    diary = Diary(1, failing_once("0"))
    diary.run(s, queue, backoff=lambda _: 600)
    given_back = queue.entries("ChangeMessageVisibilityBatch")
    assert [entry["VisibilityTimeout"] for entry in given_back] == [600, 0, 0]
    assert counts(queue) == (2, 1)
    assert queue.call("ReceiveMessage", {"WaitTimeSeconds": 0}) == {}


def test_messages_of_a_standard_queue_are_handled_side_by_side(s, queue_of):
    queue = queue_of(fifo=False)
    queue.send_all(Outgoing(body=str(n)) for n in range(4))
    together = threading.Barrier(4, timeout=60)
    diary = Diary(4, lambda _: together.wait())
    diary.run(s, queue, workers=4)
    assert sorted(diary.bodies) == ["0", "1", "2", "3"]
    assert counts(queue) == (0, 0)


def test_groups_are_handled_side_by_side(s, queue_of):
    queue = queue_of()
    queue.send_all(Outgoing(body=str(n), group=f"g{n % 3}", dedup=str(n)) for n in range(6))
    together = threading.Barrier(3, timeout=60)
    diary = Diary(6, lambda _: together.wait())
    diary.run(s, queue, workers=3)
    assert counts(queue) == (0, 0)


def test_what_was_sent_twice_is_handled_once(s, queue_of):
    queue = queue_of(fifo=False)
    queue.send_all(Outgoing(body=body) for body in ("o-1", "o-2", "o-1", "end"))
    diary = Diary(3)
    diary.run(s, queue, key=lambda message: semel.Key("order", message.body))
    assert diary.bodies == ["o-1", "o-2", "end"]
    assert counts(queue) == (0, 0)


def test_equal_names_in_two_groups_are_two_messages_where_the_queue_takes_them_so(s, queue_of):
    queue = queue_of(DeduplicationScope="messageGroup")
    queue.send_all(Outgoing(body=group, group=group, dedup="1") for group in "ab")
    diary = Diary(2)
    diary.run(s, queue)
    assert diary.bodies == ["a", "b"]


def test_visibility_is_extended_while_work_runs_and_for_what_waits_behind_it(s, queue_of):
    """The work ends when it has seen two extensions."""
    queue = queue_of(VisibilityTimeout=1)
    queue.send_all(Outgoing(body=str(n), group="g", dedup=str(n)) for n in range(2))

    def work(message: Message) -> None:
        if message.body == "0":
            queue.wait_for("ChangeMessageVisibilityBatch", 2)

    diary = Diary(2, work)
    diary.run(s, queue)
    first, second, *_ = queue.of("ChangeMessageVisibilityBatch")
    for extension in (first, second):
        assert {entry["VisibilityTimeout"] for entry in extension["Entries"]} == {1}
        kept = {entry["ReceiptHandle"] for entry in extension["Entries"]}
        assert kept == {message.receipt for message in diary.messages}
    assert counts(queue) == (0, 0)


def test_a_message_that_was_lost_to_somebody_else_is_still_handled_once(s, queue_of):
    """Its receipt is no longer good, so that neither extending nor deleting works: the ledger knows."""
    queue = queue_of(VisibilityTimeout=1)
    queue.send("x", group="g", dedup="x")

    def lose(message: Message) -> None:
        queue.call("ChangeMessageVisibility", {"ReceiptHandle": message.receipt, "VisibilityTimeout": 0})
        queue.call("ReceiveMessage", {"VisibilityTimeout": 0, "WaitTimeSeconds": 5})
        queue.wait_for("ChangeMessageVisibilityBatch")

    diary = Diary(1, lose)
    diary.run(s, queue)
    again = Diary(1)
    again.consumer = Consumer(s, queue, again, poll=1)
    running = threading.Thread(target=again.consumer.run)
    running.start()
    assert until(lambda: counts(queue) == (0, 0))
    again.consumer.stop()
    running.join()
    assert (len(diary.messages), len(again.messages)) == (1, 0)


def test_a_message_that_somebody_else_works_on_stays_away_until_that_lease_is_over(s, queue_of):
    queue = queue_of(fifo=False)
    id = queue.send("x")
    s.ledger.claim(own_key("sqs", queue.name, id), lease=50, ttl=semel.DAY * 4)
    consumer = Consumer(s, queue, lambda _: pytest.fail("it is not ours"), poll=1)
    queue.asked.clear()
    running = threading.Thread(target=consumer.run)
    running.start()
    queue.wait_for("ChangeMessageVisibilityBatch")
    consumer.stop()
    running.join()
    [entry] = queue.entries("ChangeMessageVisibilityBatch")
    assert 1 <= entry["VisibilityTimeout"] <= 50
    assert counts(queue) == (0, 1)


@pytest.mark.parametrize("fifo", [True, False])
def test_what_fails_three_times_goes_to_the_dead_letters_and_says_why(s, queue_of, fifo):
    queue, dead = queue_of(fifo=fifo), queue_of(fifo=fifo)
    named = {"group": "g", "dedup": "bad"} if fifo else {}
    queue.send("bad", **named, attributes={"kind": "order", "raw": b"\x00\xff", "cents": 42})
    queue.send("good", **({"group": "g", "dedup": "good"} if fifo else {}))

    def work(message: Message) -> None:
        if message.body == "bad":
            raise ValueError("no date in 'call me: +46 70 123 45 67'")

    diary = Diary(4, work)
    diary.run(s, queue, max_attempts=3, dead_letters=dead)
    assert Counter(diary.bodies) == {"bad": 3, "good": 1}
    if fifo:
        assert diary.bodies[-1] == "good"
    assert (counts(queue), counts(dead)) == ((0, 0), (1, 0))
    [told] = dead.call("ReceiveMessage", EVERYTHING)["Messages"]
    letter = read(told, dead.name)
    assert (letter.body, letter.group) == ("bad", named.get("group"))
    assert letter.attributes == {
        "kind": Attribute("String", "order"),
        "raw": Attribute("Binary", b"\x00\xff"),
        "cents": Attribute("Number", "42"),
        "semel-error": Attribute("String", "ValueError"),
        "semel-message-id": Attribute("String", diary.messages[0].id),
        "semel-queue": Attribute("String", queue.name),
    }
    assert "+46" not in str(told)


EVERYTHING = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}


def test_what_is_dead_stays_in_the_queue_where_nothing_else_was_said(s, queue_of):
    """The queue's own redrive policy decides what becomes of it then."""
    dead = queue_of()
    arn = dead.call("GetQueueAttributes", {"AttributeNames": ["All"]})["Attributes"]["QueueArn"]
    queue = queue_of(RedrivePolicy=f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": "2"}}')
    queue.send_all(Outgoing(body=body, group="g", dedup=body) for body in ("bad", "good"))

    def work(message: Message) -> None:
        if message.body == "bad":
            raise ValueError

    diary = Diary(2, work)
    diary.run(s, queue, on_error="keep")
    assert diary.bodies == ["bad", "good"]
    [told] = dead_after(queue, dead)
    assert told["Body"] == "bad"


def dead_after(queue: Queue, dead: Queue) -> list[dict[str, Any]]:
    """What is among the dead letters once the queue has been asked as often as it allows."""
    assert until(lambda: "Messages" not in queue.call("ReceiveMessage", {"VisibilityTimeout": 0}))
    found: list[dict[str, Any]] = dead.call("ReceiveMessage", {})["Messages"]
    return found


def test_a_dead_letter_that_cannot_be_sent_is_not_deleted(s, queue_of, sqs, stack):
    queue = queue_of(fifo=False)
    nowhere = stack.enter_context(closing(Queue(f"{sqs}/000000000000/nowhere")))
    queue.send("bad")
    told: list[semel.Event] = []
    s.events.listen(told.append)

    def work(_: Message) -> None:
        raise ValueError

    diary = Diary(1, work)
    diary.run(s, queue, on_error="keep", dead_letters=nowhere, backoff=lambda _: 600)
    assert counts(queue) == (0, 1)
    [refused] = [event for event in told if event.what is semel.What.REFUSED]
    assert refused.door == "sqs"
    assert "QueueMissing" in refused.detail


def test_stop_finishes_what_runs_and_gives_back_what_has_not_begun(s, queue_of):
    queue = queue_of()
    queue.send_all(Outgoing(body=str(n), group=f"g{n // 5}", dedup=str(n)) for n in range(10))
    diary = Diary(1)
    diary.run(s, queue)
    assert diary.bodies == ["0"]
    assert counts(queue) == (9, 0)
    assert len(queue.of("ReceiveMessage")) == 1


def test_what_a_receive_brings_after_stop_is_given_back_at_once(s, queue_of):
    queue = queue_of(fifo=False)
    consumer: Consumer

    class Late(Recorded):
        """Its receive is answered after the consumer was told to stop."""

        def call(self, operation, request, *, write=False):
            if operation == "ReceiveMessage":
                consumer.stop()
                self.send("late")
            return super().call(operation, request, write=write)

    with closing(Late(queue.url)) as late:
        consumer = Consumer(s, late, lambda _: pytest.fail("too late"), poll=1)
        consumer.run()
        assert [entry["VisibilityTimeout"] for entry in late.entries("ChangeMessageVisibilityBatch")] == [0]
    assert counts(queue) == (1, 0)


def test_stop_before_run_begins_nothing(s, queue_of):
    queue = queue_of()
    consumer = Consumer(s, queue, lambda _: None)
    consumer.stop()
    consumer.run()
    assert queue.of("ReceiveMessage") == []


def test_draining_the_ledger_stops_the_consumer_too(s, queue_of):
    queue = queue_of(fifo=False)
    queue.send_all(Outgoing(body=str(n)) for n in range(3))
    diary = Diary(0, lambda _: s.drain())
    diary.run(s, queue)
    assert len(diary.messages) == 1
    assert counts(queue) == (2, 0)


def test_an_interruption_gives_its_message_back_and_ends_the_run(s, queue_of):
    queue = queue_of(fifo=False)
    queue.send("x")

    def work(_: Message) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        Diary(0, work).run(s, queue)
    assert counts(queue) == (1, 0)


def test_control_c_finishes_what_runs_and_ends_the_run(s, queue_of):
    queue = queue_of()
    queue.send_all(Outgoing(body=str(n), group="g", dedup=str(n)) for n in range(2))
    diary = Diary(0, lambda _: pthread_kill(threading.main_thread().ident or 0, SIGINT))
    with pytest.raises(KeyboardInterrupt):
        diary.run(s, queue)
    assert s.ledger.get(own_key("sqs", queue.name, "0")).status is semel.Status.COMPLETED
    assert sum(counts(queue)) == 2 - len(diary.messages)


def test_while_the_store_is_down_messages_come_back_and_the_queue_is_left_alone(queue_of, stack):
    store = Faulty(MemoryStore())
    s = stack.enter_context(semel.Semel(store))
    queue = queue_of()
    queue.send_all(Outgoing(body=str(n), group="g", dedup=str(n)) for n in range(3))
    store.refuse(2)
    diary = Diary(3)
    diary.run(s, queue)
    assert diary.bodies == ["0", "1", "2"]
    asked = [request["MaxNumberOfMessages"] for request in queue.of("ReceiveMessage")]
    assert [many for many, _ in groupby(asked)] == [10, 1, 10], "one message finds out whether it is up again"
    assert counts(queue) == (0, 0)


def test_the_ledger_remembers_for_as_long_as_the_queue_does(s, queue_of):
    retention = int(10 * semel.DAY)
    queue = queue_of(MessageRetentionPeriod=retention)
    queue.send("x", group="g", dedup="x-1")
    Diary(1).run(s, queue)
    record = s.ledger.get(own_key("sqs", queue.name, "x-1"))
    assert record.expires_at - record.created_at >= retention
    with pytest.raises(semel.InvalidOption, match=f"shorter than horizon \\({retention} s\\)"):
        Diary(1).run(s, queue, ttl=retention - 1)
    with pytest.raises(semel.InvalidOption, match="shorter than horizon"):
        Diary(1).run(s, queue, ttl=retention, horizon=retention + 1)


def test_texts_bytes_and_numbers_arrive_as_they_were_sent(s, queue_of):
    queue = queue_of()
    attributes: dict[str, Any] = {
        "påse": "å\U0001f600",
        "raw": bytes(range(256)),
        "n": 3,
        "price": Decimal("0.10"),
    }
    attributes["typed"] = Attribute("String.json", "{}")
    queue.send('{"text": "smörgås \U0001f96a\\n"}', group="g:1/å"[:4], dedup="d", attributes=attributes)
    diary = Diary(1)
    diary.run(s, queue)
    [message] = diary.messages
    assert message.json() == {"text": "smörgås \U0001f96a\n"}
    assert message.attributes == {
        "påse": Attribute("String", "å\U0001f600"),
        "raw": Attribute("Binary", bytes(range(256))),
        "n": Attribute("Number", "3"),
        "price": Attribute("Number", "0.10"),
        "typed": Attribute("String.json", "{}"),
    }
    assert (message.group, message.dedup, message.queue) == ("g:1/", "d", queue.name)
    assert message.sent_at is not None
    assert message.sequence is not None


def test_the_largest_message_that_sqs_takes_goes_through_and_a_larger_one_is_refused(s, queue_of):
    queue = queue_of(fifo=False)
    queue.send("x" * MAX_BYTES)
    with pytest.raises(semel.UsageError, match="SQS refuses this SendMessage"):
        queue.send("x" * (MAX_BYTES + 1))
    diary = Diary(1)
    diary.run(s, queue)
    assert len(diary.messages[0].body) == MAX_BYTES


def test_what_a_handler_sends_under_its_own_key_is_sent_once(s, queue_of):
    """It fails after sending, and sends again at the next attempt."""
    queue, next_queue = queue_of(), queue_of()
    queue.send("x", group="g", dedup="x")
    fail = failing_once("x")

    def work(message: Message) -> None:
        next_queue.send("y", group="g", dedup=semel.current_run().key_for("sqs"))
        fail(message)

    diary = Diary(2, work)
    diary.run(s, queue)
    assert len(next_queue.of("SendMessage")) == 2
    assert counts(next_queue) == (1, 0)


def test_a_queue_that_is_not_there_is_named(s, sqs, queue_of):
    queue_of()  # sets the credentials
    url = f"{sqs}/000000000000/nowhere"
    with pytest.raises(QueueMissing, match=f"there is no queue {url} .*aws sqs get-queue-url"):
        Consumer(s, url, lambda _: None).run()


def test_a_queue_that_is_deleted_meanwhile_ends_the_run_with_an_error(s, queue_of):
    queue = queue_of(fifo=False)
    queue.send("x")
    diary = Diary(0, lambda _: queue.call("DeleteQueue", {}))
    with pytest.raises(QueueMissing):
        diary.run(s, queue)
    assert len(diary.messages) == 1


def test_a_consumer_runs_once_and_a_handler_of_the_wrong_kind_is_refused(s, queue_of):
    queue = queue_of()
    consumer = Consumer(s, queue, lambda _: None)
    consumer.stop()
    consumer.run()
    with pytest.raises(semel.UsageError, match="make another"):
        consumer.run()

    async def handle(_: Message) -> None: ...

    with pytest.raises(semel.UsageError, match="arun"):
        Consumer(s, queue, handle).run()


# --- In an event loop


def test_tasks_do_as_threads_do(s, queue_of):
    queue, dead = queue_of(), queue_of()
    queue.send_all(
        Outgoing(body=f"{group}{n}", group=group, dedup=f"{group}{n}") for n in range(5) for group in "abc"
    )
    fail, seen, running = failing_once("a1"), [], Counter[str | None]()

    async def handle(message: Message) -> None:
        seen.append(message.body)
        running[message.group] += 1
        assert running[message.group] == 1
        await asyncio.sleep(0)
        running[message.group] -= 1
        if len(seen) == 18:
            consumer.stop()
        fail(message)
        if message.body == "b2":
            raise ValueError

    consumer = Consumer(
        s, queue.url, handle, workers=3, poll=1, backoff=quick, max_attempts=3, dead_letters=dead.url
    )
    asyncio.run(consumer.arun())
    for group, order in {"a": "011234", "b": "0122234", "c": "01234"}.items():
        assert [body[1] for body in seen if body[0] == group] == list(order)
    assert (counts(queue), counts(dead)) == ((0, 0), (1, 0))


def test_a_cancelled_consumer_gives_everything_back(s, queue_of):
    queue = queue_of()
    queue.send_all(Outgoing(body=str(n), group="g", dedup=str(n)) for n in range(3))

    async def main() -> None:
        begun = asyncio.Event()

        async def handle(_: Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(Consumer(s, queue.url, handle).arun())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert counts(queue) == (3, 0)


def test_a_send_can_be_awaited(queue_of):
    queue = queue_of()

    async def main() -> None:
        await queue.asend("a", group="g", dedup="a")
        sent = await queue.asend_all([Outgoing(body="b", group="g", dedup="b"), Outgoing(body="c")])
        assert [one.error and one.error.code for one in sent] == [None, "MissingParameter"]
        await queue.leave()

    asyncio.run(main())
    assert counts(queue) == (2, 0)


# --- On paper ----------------------------------------------------------------------------------------

DONE = DeliveryResult(Verdict.DONE)


def message(body: str, group: str | None = None, **more: Any) -> Message:
    return Message(**{"id": body, "body": body, "queue": "q", "group": group, "receipt": f"r-{body}"} | more)


OFFLINE: Any = type("Offline", (), {"url": "https://q", "name": "q.fifo", "fifo": True})()


class Play:
    """A consumer's loops whose replies are given."""

    def __init__(self, *messages: Message) -> None:
        self.now = 0.0
        settings = DispatchSettings(
            workers=10, capacity=100, batch=10, visibility=30.0, backoff=default_backoff
        )
        broker = SqsBroker(
            OFFLINE,
            None,
            poll=20,
            visibility=30.0,
            backoff=default_backoff,
            now=lambda: self.now,
            events=Events(),
        )
        self.dispatcher: Dispatcher[Message] = Dispatcher(settings)
        self.loops: Any = Consuming(broker, self.dispatcher, None, lambda: self.now)  # type: ignore[arg-type]
        self.dispatcher.receive([InFlight(one, group=one.group) for one in messages], 0.0)

    def end(self, taken: DeliveryResult) -> None:
        """Let all that may begin end like this."""
        while (one := self.dispatcher.begin()) is not None:
            self.dispatcher.end(one, taken, self.now)

    def tend(self, *replies: Any) -> list[tuple[str, Any]]:
        """What was asked; it ends when it would wait, or with the last reply."""
        steps, asked, left = self.loops.settling(), [], list(replies)
        step = next(steps, None)
        while isinstance(step, QueueRequest):
            asked.append((step.operation, step.request.get("Entries", step.request)))
            step = answered(steps, left.pop(0) if left else {})
        assert step is None or isinstance(step, Wait)
        return asked


def answered(steps: Any, reply: Any) -> Any:
    """The next step after a reply, or an error."""
    return steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)


def failed(*blamed: bool) -> dict[str, Any]:
    """An answer that says so of the first entries, and whether the request is to blame."""
    return {"Failed": [{"Id": str(n), "Code": "X", "SenderFault": one} for n, one in enumerate(blamed)]}


def test_a_deletion_that_the_queue_failed_is_tried_again_and_one_that_it_refused_is_not():
    play = Play(message("0"), message("1"), message("2"))
    play.end(DONE)
    asked = play.tend(failed(False, True), failed(False), failed(False), failed(False))
    assert [operation for operation, _ in asked] == ["DeleteMessageBatch"] * 3
    assert [[one["ReceiptHandle"] for one in entries] for _, entries in asked] == [
        ["r-0", "r-1", "r-2"],
        ["r-0"],
        ["r-0"],
    ]


def test_deletions_go_ten_at_a_time():
    play = Play(*[message(str(n)) for n in range(23)])
    play.end(DONE)
    assert [len(entries) for _, entries in play.tend()] == [10, 10, 3]


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [(17.2, 18), (1e9, LONGEST - 11)],
)
def test_a_message_stays_away_for_whole_seconds_and_no_longer_than_sqs_allows(asked, seconds):
    play = Play(message("0"))
    play.now = 10.0
    play.end(DeliveryResult(Verdict.FAILED, retry_after=asked))
    [(operation, [entry])] = play.tend()
    assert (operation, entry["VisibilityTimeout"]) == ("ChangeMessageVisibilityBatch", seconds)


def test_in_a_standard_queue_a_group_is_no_order():
    queue: Any = type("Standard", (), {"url": "https://q", "name": "q", "fifo": False})()
    broker = SqsBroker(
        queue, None, poll=0, visibility=30, backoff=default_backoff, now=float, events=Events()
    )
    steps: Any = broker.receive(10)
    next(steps)
    told = {"MessageId": "1", "Body": "x", "ReceiptHandle": "r", "Attributes": {"MessageGroupId": "g"}}
    with pytest.raises(StopIteration) as received:
        steps.send({"Messages": [told]})
    assert [(one.message.group, one.group) for one in received.value.value] == [("g", None)]


def test_what_could_not_be_settled_is_left_to_come_again(caplog):
    play = Play(message("0"))
    play.end(DONE)
    with caplog.at_level(logging.WARNING, "semel"):
        play.tend(*[errors.StoreUnavailable("gone")] * 3)
    assert not play.dispatcher.settlements
    assert "DeleteMessageBatch failed. gone" in caplog.text


def test_an_extension_is_tried_again_soon_where_the_queue_was_not_reached_and_given_up_where_it_refused():
    play = Play(message("0"), message("1"))
    play.now = 10.0
    [(operation, entries)] = play.tend(errors.StoreUnavailable("gone"))
    assert operation == "ChangeMessageVisibilityBatch"
    assert [entry["VisibilityTimeout"] for entry in entries] == [30, 30]
    assert play.dispatcher.until_due(10.0) == 3.0
    play.now = 13.0
    play.tend(failed(True, True))
    assert play.dispatcher.until_due(13.0) is None


def test_nothing_is_extended_beyond_the_twelve_hours_that_sqs_allows():
    play = Play(message("0"))
    play.now = LONGEST - 6.0
    [(_, [entry])] = play.tend()
    assert entry["VisibilityTimeout"] == 5
    play.now = LONGEST + 4.0
    assert play.tend() == []
    assert play.dispatcher.until_due(play.now) is None


def test_a_receive_that_is_sent_again_asks_for_the_same_messages_and_each_receive_for_others():
    steps = Play().loops.receiving()
    tokens: list[str] = []
    for _ in range(2):
        ask = steps.send({} if tokens else None)
        assert isinstance(ask, QueueRequest)
        assert not ask.write
        tokens.append(ask.request["ReceiveRequestAttemptId"])
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize("error", [errors.StoreUnavailable("gone"), errors.StoreThrottled("busy")])
def test_a_queue_that_gives_nothing_is_asked_again_after_a_while(error):
    play = Play()
    steps = play.loops.receiving()
    assert isinstance(next(steps), QueueRequest)
    assert steps.throw(error) == Wait(1.0)
    play.now = 1.0
    assert isinstance(next(steps), QueueRequest)
    assert steps.throw(error) == Wait(2.0)


def test_a_queue_that_refuses_is_not_asked_again():
    steps = Play().loops.receiving()
    next(steps)
    with pytest.raises(semel.NotPermitted):
        steps.throw(errors.NotPermitted("no"))


def test_an_interrupted_worker_ends_and_says_why():
    play = Play(message("0"))
    steps, dispatcher = play.loops.handling(), play.dispatcher
    assert isinstance(next(steps), Handling)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert dispatcher.stopping
    assert isinstance(dispatcher.failure, KeyboardInterrupt)
    [left] = dispatcher.settlements
    assert left == Requeue(left.one, 0, counted=True)


# --- Names, errors, dead letters


def test_the_usual_key_is_the_senders_name_or_else_the_queues():
    plain = message("m")
    assert usual_key(plain) == "sqs::q:m"
    named = message("m", "g", dedup="order:7")
    assert usual_key(named) == "sqs::q:order%3A7"
    assert usual_key(named, by_group=True) == "sqs::q:g:order%3A7"


def test_equal_bodies_on_two_days_are_two_messages():
    """Where SQS makes the name of the body, equal bodies would be one for ever."""
    hashed = "62c66a7a5dd70c3146618063c344e531e6d4b59e379808443ce962b3abd63c5a"
    assert usual_key(message("m", dedup=hashed)) == "sqs::q:m"
    assert usual_key(message("other", dedup=hashed)) == f"sqs::q:{hashed}"


def test_a_dead_letter_says_as_much_as_there_is_room_for():
    taken = DeliveryResult(Verdict.DEAD, error=errors.FailedBefore("k", "Declined", "no funds for Ada", 3))
    attributes = {f"a{n}": Attribute("String", "x") for n in range(9)}
    letter = dead_letter(message("m", "g", attributes=attributes), taken, fifo=True)
    assert letter.attributes.keys() - attributes.keys() == {"semel-error"}
    assert letter.attributes["semel-error"] == "Declined"
    assert (letter.group, letter.dedup) == ("g", "m")
    full = message("m" * MAX_BYTES, id="m")
    assert dead_letter(full, taken, fifo=True) == Outgoing(body=full.body, group="m", dedup="m")
    again = {"semel-error": Attribute("String", "Old")}
    told = dead_letter(message("m", attributes=again), taken, fifo=False)
    assert told.attributes["semel-error"] == "Declined"
    assert (told.group, told.dedup) == (None, None)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("QueueDoesNotExist", QueueMissing, "there is no queue"),
        ("AWS.SimpleQueueService.NonExistentQueue", QueueMissing, "there is no queue"),
        ("AccessDenied", errors.NotPermitted, "lack sqs:DeleteMessage on"),
        ("KmsAccessDenied", errors.NotPermitted, "allow it"),
        ("OverLimit", errors.StoreThrottled, "in flight"),
        ("InvalidMessageContents", errors.UsageError, "SQS refuses"),
    ],
)
def test_errors_of_sqs_have_names_and_say_what_to_do(code, kind, words):
    error = translated(ServiceError(code, "said SQS", 400, {}), "DeleteMessageBatch", "https://q")
    assert type(error) is kind
    assert words in str(error)
    assert "said SQS" in str(error)


def test_other_errors_of_sqs_stay_as_they_are():
    error = ServiceError("KmsDisabled", "off", 400, {})
    assert translated(error, "SendMessage", "https://q") is error


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-north-1.amazonaws.com/1/q", "eu-north-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "cn-north-1"),
        ("https://eu-west-1.queue.amazonaws.com/1/q", "eu-west-1"),
        ("https://vpce-1-2.sqs.us-east-2.vpce.amazonaws.com/1/q", "us-east-2"),
        ("http://127.0.0.1:4566/1/q", "sa-east-1"),
    ],
)
def test_a_queue_is_where_its_url_says(url, region, monkeypatch):
    for name in ("AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "sa-east-1")
    queue = Queue(url)
    assert queue._wire.signer.scope == (region, "sqs", "aws4_request")
    assert str(queue._wire.endpoint) == url.removesuffix("/1/q")
    assert (queue.name, queue.fifo) == ("q", False)


def test_another_endpoint_goes_before_that_of_the_url(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    queue = Queue("https://sqs.eu-north-1.amazonaws.com/1/q")
    assert str(queue._wire.endpoint) == "http://127.0.0.1:1"


@pytest.mark.parametrize("url", ["orders.fifo", "https://sqs.eu-north-1.amazonaws.com", ""])
def test_what_is_no_url_of_a_queue_is_refused(url):
    with pytest.raises(semel.InvalidOption, match="one looks like https://sqs"):
        Queue(url)


@pytest.mark.parametrize(
    "option", [{"workers": 0}, {"batch": 11}, {"poll": 21}, {"poll": True}, {"lease": 0}]
)
def test_options_that_cannot_work_are_refused_before_anything_is_asked(s, option):
    with pytest.raises(semel.InvalidOption):
        Consumer(s, "https://sqs.eu-north-1.amazonaws.com/1/q", lambda _: None, **option)


def test_an_attribute_that_sqs_does_not_know_is_refused():
    with pytest.raises(semel.UsageError, match="not bool"):
        Outgoing(body="x", attributes={"yes": True}).entry()


def test_a_batch_holds_what_one_request_may_hold():
    small = [Outgoing(body="x")] * 23
    assert [len(batch) for batch in batches(small)] == [10, 10, 3]
    large = [Outgoing(body="ö" * (MAX_BYTES // 4), attributes={"a": b"1"})] * 3
    assert [len(batch) for batch in batches(large)] == [1, 1, 1]
    assert [len(batch) for batch in batches([Outgoing(body="x" * (MAX_BYTES // 2))] * 3)] == [2, 1]
    assert list(batches([])) == []
