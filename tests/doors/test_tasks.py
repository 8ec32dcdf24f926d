"""Celery, Dramatiq and Taskiq: real workers on a real broker, and what each refusal becomes."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack, closing
from pathlib import Path

import celery  # type: ignore[import-untyped]
import dramatiq
import pytest
from celery.app.trace import build_tracer  # type: ignore[import-untyped]
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from taskiq import Context, InMemoryBroker, NoResultError, TaskiqDepends

import semel
from semel.doors import celery as celery_door
from semel.doors import dramatiq as dramatiq_door
from semel.doors import taskiq as taskiq_door
from semel.doors.tasks import RETRY_SECONDS, retry_after
from semel.testing import FakeClock, Faulty
from tests.servers.running import IMPORTS, until

ROOT = Path(__file__).parents[2]
ORDERS = [f"o-{n}" for n in range(20)]
PYTHON = [sys.executable, "-m"]
WORKERS = {
    "celery": ["celery", "-A", "tests.doors.celery_app", "worker", "-P", "solo", "-l", "warning"],
    "dramatiq": ["dramatiq", "tests.doors.dramatiq_app", "-p", "1", "-t", "2"],
    "taskiq": ["taskiq", "worker", "tests.doors.taskiq_app:broker", "-w", "1"],
}


class Worker:
    """A worker that is started again when it ends, as whatever watches over it would."""

    def __init__(self, queue, place, env):
        self.queue, self.env = queue, env
        self.log = (place / f"{queue}.log").open("wb")
        self.starts = 0
        self.start()

    def start(self):
        self.starts += 1
        self.process = subprocess.Popen(
            [*PYTHON, *WORKERS[self.queue]],
            cwd=ROOT,
            env=self.env,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def keep_up(self):
        if self.process.poll() is not None:
            self.start()

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


def told(place, queue):
    """What each task was told, by id."""
    with closing(sqlite3.connect(place / "semel.db", timeout=60)) as rows:
        return rows.execute("SELECT id, result FROM results WHERE queue = ?", (queue,)).fetchall()


@pytest.fixture(scope="module")
def played(rabbitmq, tmp_path_factory):
    """The folder of three workers, each of which was killed once, after every task is settled."""
    place = tmp_path_factory.mktemp("tasks")
    with closing(sqlite3.connect(place / "semel.db")) as rows:
        rows.execute("PRAGMA journal_mode=WAL")
        rows.execute("CREATE TABLE effects (queue TEXT, name TEXT, receipt TEXT)")
        rows.execute("CREATE TABLE results (queue TEXT, id TEXT, result TEXT)")
    env = os.environ | {
        "SEMEL_TEST_TASKS_BROKER": rabbitmq.url,
        "SEMEL_TEST_TASKS_PLACE": str(place),
        "SEMEL_TEST_TASKS_FATAL": ORDERS[7],
        "PYTHONPATH": IMPORTS,
    }
    with ExitStack() as stack:
        workers = []
        for queue in WORKERS:
            workers.append(Worker(queue, place, env))
            stack.callback(workers[-1].end)
        senders = [
            subprocess.Popen([*PYTHON, f"tests.doors.{queue}_app", *ORDERS], cwd=ROOT, env=env)
            for queue in WORKERS
        ]
        assert [sender.wait(60) for sender in senders] == [0, 0, 0]

        def is_settled():
            for worker in workers:
                worker.keep_up()
            return all(len({id for id, _ in told(place, queue)}) == 2 * len(ORDERS) for queue in WORKERS)

        assert until(is_settled), [(place / f"{queue}.log").read_text()[-2000:] for queue in WORKERS]
    return place


def test_tasks_sent_twice_to_workers_that_are_killed_have_their_effect_once(played):
    """One test for the three, as they work side by side."""
    for queue in WORKERS:
        assert (played / f"{queue}.died").exists()
        with closing(sqlite3.connect(played / "semel.db")) as rows:
            effects = rows.execute("SELECT name, receipt FROM effects WHERE queue = ?", (queue,)).fetchall()
        assert sorted(name for name, _ in effects) == sorted(ORDERS)
        # Every task was told what came of the one that ran.
        results = defaultdict(set)
        for id, result in told(played, queue):
            results[result].add(id)
        assert results.keys() == {receipt for _, receipt in effects}
        assert {len(ids) for ids in results.values()} == {2}


# What each refusal becomes


class Till:
    """A ledger, and a function to protect that fails as often as it is told to."""

    def __init__(self):
        self.events: list[semel.Event] = []
        self.s = semel.connect("memory:", clock=FakeClock(), on_event=self.events.append)
        self.charged: list[str] = []
        self.errors: list[Exception] = []

    def charge(self, order: str, cents: int) -> str:
        if self.errors:
            raise self.errors.pop(0)
        self.charged.append(order)
        return f"receipt {len(self.charged)}"

    def hold(self, order):
        """Somebody else is at work on it."""
        claim = self.s.ledger.claim(f"charge:{order}", lease=30, fingerprint=None)
        assert isinstance(claim, semel.Claimed)
        return claim


@pytest.fixture
def till():
    till = Till()
    yield till
    till.s.close()


def test_a_refusal_that_names_no_time_has_the_task_come_again_in_a_while():
    assert retry_after(semel.InProgress("k", 2.5, 1)) == 2.5
    assert retry_after(semel.ShuttingDown("no new work is begun")) == RETRY_SECONDS
    assert retry_after(semel.OutcomeUnknown("k", 1)) == RETRY_SECONDS


# Celery


class Office:
    """A Celery app whose queue is in memory."""

    def __init__(self, till):
        self.till = till
        self.app = celery.Celery("office", broker="memory://", set_as_current=False)

    def task(self, key="charge:{order}", options=None, **task_options):
        till = self.till

        @self.app.task(name="charge", **task_options)
        @celery_door.once(till.s, key, **(options or {}))
        def charge(order: str, cents: int = 5) -> str:
            return till.charge(order, cents)

        return charge

    def deliver(self, task, *args, id="t-1", retries=0):
        """What a worker does with a message."""
        trace = build_tracer(task.name, task, app=self.app)
        done = trace(id, args, {}, {"id": id, "retries": retries, "delivery_info": {"routing_key": "celery"}})
        return (done.info.state, done.info.retval) if done.info else ("SUCCESS", done.retval)

    def sent(self):
        """The headers of what waits in the queue."""
        with self.app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
            found = []
            while queue.qsize():
                message = queue.get_nowait()
                message.ack()
                found.append(message.headers)
            return found


@pytest.fixture
def office(till):
    office = Office(till)
    office.sent()
    yield office
    office.app.close()


def test_celery_gives_a_duplicate_the_first_result_and_says_where_it_came_in(office, till):
    charge = office.task()
    assert office.deliver(charge, "o-1") == ("SUCCESS", "receipt 1")
    assert office.deliver(charge, "o-1", id="t-2") == ("SUCCESS", "receipt 1")
    assert charge.apply(["o-1"]).get() == charge("o-1") == "receipt 1"
    assert till.charged == ["o-1"]
    assert {event.door for event in till.events} == {"celery"}


def test_celery_sends_a_busy_task_again_without_counting_it_and_frees_the_worker(office, till):
    till.hold("o-1")
    state, retry = office.deliver(office.task(max_retries=0), "o-1", retries=0)
    assert state == "RETRY"
    assert isinstance(retry.exc, semel.InProgress)
    assert retry.when == 30
    [again] = office.sent()
    assert (again["id"], again["retries"]) == ("t-1", 0)
    assert again["eta"]
    assert till.charged == []


@pytest.mark.parametrize("acks_late", [True, False])
def test_celery_loses_no_task_that_comes_while_the_ledger_is_drained(office, till, acks_late):
    """A message that is acknowledged already cannot be rejected: it is sent again instead."""
    charge = office.task(acks_late=acks_late)
    till.s.drain()
    state, told = office.deliver(charge, "o-1")
    if acks_late:
        assert (state, told.requeue, office.sent()) == ("REJECTED", True, [])
    else:
        assert (state, told.when, len(office.sent())) == ("RETRY", RETRY_SECONDS, 1)


def test_celery_sends_a_task_again_while_the_store_is_down(office, till):
    store = Faulty(till.s.store)
    till.s = semel.Semel(store)
    store.refuse()
    state, told = office.deliver(office.task(), "o-1")
    assert state == "RETRY"
    assert isinstance(told.exc, semel.StoreUnavailable)
    assert len(office.sent()) == 1


def test_celery_rejects_a_task_that_cannot_be_sent_again(office, till, monkeypatch):
    till.hold("o-1")
    charge = office.task(acks_late=True)

    def unsent(*args, **options):
        raise ConnectionError("the broker is away")

    monkeypatch.setattr(charge, "apply_async", unsent)
    state, told = office.deliver(charge, "o-1")
    assert (state, told.requeue) == ("REJECTED", True)


def test_celery_raises_what_is_final_and_does_not_try_it_again(office, till):
    charge = office.task(
        options={"on_error": {PermissionError: "keep"}},
        autoretry_for=(Exception,),
        dont_autoretry_for=(PermissionError, *celery_door.FINAL),
    )
    till.errors.append(PermissionError("no"))
    assert office.deliver(charge, "o-1")[0] == "FAILURE"
    state, told = office.deliver(charge, "o-1")
    assert state == "FAILURE"
    assert isinstance(told, semel.FailedBefore)
    office.deliver(charge, "o-2", 5)
    state, told = office.deliver(charge, "o-2", 7)
    assert state == "FAILURE"
    assert isinstance(told, semel.PayloadChanged)
    assert office.sent() == []


def test_celery_releases_a_failure_so_that_its_retry_runs_and_gives_up_when_it_says_so(office, till):
    charge = office.task(autoretry_for=(TimeoutError,), max_retries=1, default_retry_delay=0)
    till.errors.append(TimeoutError("not now"))
    assert charge.apply(["o-1"]).get() == "receipt 1"
    till.errors += [TimeoutError("not now"), TimeoutError("nor now")]
    with pytest.raises(TimeoutError, match="nor now"):
        charge.apply(["o-2"]).get()
    assert till.charged == ["o-1"]


def test_celery_keeps_no_retry_of_the_tasks_own_as_a_failure(office, till):
    charge = office.task(options={"on_error": "keep"})
    till.errors.append(celery.exceptions.Retry("soon"))
    assert office.deliver(charge, "o-1")[0] == "RETRY"
    assert office.deliver(charge, "o-1") == ("SUCCESS", "receipt 1")


def test_celery_may_name_a_task_by_its_id(office, till):
    charge = office.task(key=celery_door.task_id)
    results = [office.deliver(charge, "o-1", id=id)[1] for id in ("t-1", "t-1", "t-2")]
    assert results == ["receipt 1", "receipt 1", "receipt 2"]
    with pytest.raises(semel.InvalidKey, match="no task id"):
        charge("o-1")


def test_celery_protects_a_bound_task(office, till):
    @office.app.task(bind=True)
    @celery_door.once(till.s, "charge:{order}")
    def charge(self, order: str) -> str:
        return till.charge(f"{order} {self.request.id}", 5)

    assert office.deliver(charge, "o-1", id="t-1") == office.deliver(charge, "o-1", id="t-2")
    assert till.charged == ["o-1 t-1"]


def test_called_by_hand_a_busy_task_raises_what_it_met(office, till):
    till.hold("o-1")
    charge = office.task()
    with pytest.raises(semel.InProgress):
        charge("o-1")
    with pytest.raises(semel.InProgress):
        charge.apply(["o-1"]).get()


# Dramatiq


@pytest.fixture
def stub():
    """A broker in memory, and the results of its actors."""
    broker = StubBroker(middleware=[dramatiq.middleware.Retries(max_retries=3, min_backoff=1, max_backoff=1)])
    broker.add_middleware(Results(backend=StubBackend(), store_results=True))
    broker.add_middleware(CurrentMessage())
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_timeout=10, worker_threads=2)
    worker.start()
    yield broker
    worker.stop()
    broker.close()


def result_of(broker, message):
    return message.get_result(backend=broker.get_results_backend(), block=True, timeout=60_000)


def actor_of(till, broker, key="charge:{order}", options=None, **actor_options):
    @dramatiq.actor(broker=broker, actor_name="charge", **actor_options)
    @dramatiq_door.once(till.s, key, **(options or {}))
    def charge(order: str, cents: int = 5) -> str:
        return till.charge(order, cents)

    return charge


def test_dramatiq_gives_a_duplicate_the_first_result_and_says_where_it_came_in(stub, till):
    charge = actor_of(till, stub)
    results = [result_of(stub, charge.send("o-1")) for _ in range(2)]
    assert results == ["receipt 1", "receipt 1"]
    assert till.charged == ["o-1"]
    assert {event.door for event in till.events} == {"dramatiq"}


def test_dramatiq_has_a_busy_message_come_again_when_the_lease_ends(till, stub):
    till.hold("o-1")
    with pytest.raises(dramatiq.Retry, match="is being worked on") as retry:
        actor_of(till, stub)("o-1")
    assert retry.value.delay == 30_000
    till.s.drain()
    with pytest.raises(dramatiq.Retry, match="no new work") as retry:
        actor_of(till, StubBroker())("o-2")
    assert retry.value.delay == RETRY_SECONDS * 1000


def test_dramatiq_does_the_same_for_an_async_actor(till):
    @dramatiq_door.once(till.s, "charge:{order}")
    async def charge(order: str) -> str:
        return till.charge(order, 5)

    assert asyncio.run(charge("o-1")) == asyncio.run(charge("o-1")) == "receipt 1"
    till.hold("o-2")
    with pytest.raises(dramatiq.Retry):
        asyncio.run(charge("o-2"))


def test_dramatiq_retries_a_failure_and_not_what_is_final(stub, till):
    charge = actor_of(till, stub, options={"on_error": {PermissionError: "keep"}}, throws=dramatiq_door.FINAL)
    till.errors.append(TimeoutError("not now"))
    assert result_of(stub, charge.send("o-1")) == "receipt 1"
    changed = charge.send("o-1", 7)
    with pytest.raises(dramatiq.results.ResultFailure, match="PayloadChanged"):
        result_of(stub, changed)
    assert [message.options.get("retries", 0) for message in stub.dead_letters] == [0]


def test_dramatiq_keeps_no_retry_of_the_actors_own_as_a_failure(stub, till):
    charge = actor_of(till, stub, options={"on_error": "keep"})
    till.errors.append(dramatiq.Retry("soon", delay=1))
    assert result_of(stub, charge.send("o-1")) == "receipt 1"


def test_dramatiq_may_name_a_message_by_its_id(stub, till):
    charge = actor_of(till, stub, key=dramatiq_door.message_id)
    message = charge.message("o-1")
    stub.enqueue(message)
    assert result_of(stub, message) == "receipt 1"
    stub.enqueue(message)
    stub.join(message.queue_name)
    assert till.charged == ["o-1"]
    result_of(stub, charge.send("o-1"))
    assert till.charged == ["o-1", "o-1"]
    with pytest.raises(semel.InvalidKey, match="CurrentMessage"):
        charge("o-1")


# Taskiq


def in_memory(till, key="charge:{order}", options=None, **labels):
    """A broker that runs a task when it is sent, and a task."""
    broker = InMemoryBroker(await_inplace=True).with_middlewares(taskiq_door.OnceMiddleware(default_delay=0))

    @broker.task("charge", **labels)
    @taskiq_door.once(till.s, key, **(options or {}))
    async def charge(order: str, cents: int = 5, context: Context = TaskiqDepends()) -> str:  # noqa: B008 - Taskiq's way
        assert context.message.task_name == "charge"
        return till.charge(order, cents)

    return charge


async def sent(task, *args):
    """What a client reads who waits for the result."""
    result = await (await task.kiq(*args)).wait_result(timeout=60)
    return result.error if result.is_err else result.return_value


def test_taskiq_gives_a_duplicate_the_first_result_and_says_where_it_came_in(till):
    charge = in_memory(till)
    assert [asyncio.run(sent(charge, "o-1")) for _ in range(2)] == ["receipt 1", "receipt 1"]
    assert till.charged == ["o-1"]
    assert {event.door for event in till.events} == {"taskiq"}


def test_taskiq_sends_a_busy_task_again_without_counting_it(till):
    claim = till.hold("o-1")
    seen = []

    def free(event):
        if event.what == "busy":
            seen.append(event)
            if len(seen) == 5:
                till.s.ledger.release(claim)

    till.s.events.listen(free)
    charge = in_memory(till, options={"on_busy": "raise"}, max_retries=1)
    assert asyncio.run(sent(charge, "o-1")) == "receipt 1"
    assert len(seen) == 5


def test_taskiq_retries_a_failure_where_asked_and_not_what_is_final(till):
    charge = in_memory(till, options={"on_error": {PermissionError: "keep"}}, retry_on_error=True)
    till.errors.append(TimeoutError("not now"))
    assert asyncio.run(sent(charge, "o-1")) == "receipt 1"
    assert isinstance(asyncio.run(sent(charge, "o-1", 7)), semel.PayloadChanged)
    till.errors += [PermissionError("no"), AssertionError("it ran again")]
    assert isinstance(asyncio.run(sent(charge, "o-2")), semel.FailedBefore)
    assert till.charged == ["o-1"]


def test_taskiq_keeps_no_word_to_the_broker_as_a_failure(till):
    charge = in_memory(till, options={"on_error": "keep"})
    till.errors.append(NoResultError())
    asyncio.run(charge.kiq("o-1"))
    assert asyncio.run(sent(charge, "o-1")) == "receipt 1"


def test_taskiq_may_name_a_task_by_its_id(till):
    charge = in_memory(till, key=lambda order, cents=5, *, context: context.message.task_id)
    assert asyncio.run(sent(charge, "o-1")) == "receipt 1"
    assert asyncio.run(sent(charge, "o-1")) == "receipt 2"
