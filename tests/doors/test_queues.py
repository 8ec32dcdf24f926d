"""What the consumers of all queues share: the decisions on paper, and the whole on a queue in memory."""

import asyncio
import threading
from collections import deque
from collections.abc import Hashable
from functools import partial
from typing import Any, ClassVar, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel import errors
from semel.doors.queues.backoff import ExponentialBackoff, doubling
from semel.doors.queues.consuming import Broker, Consuming, QueueConsumer
from semel.doors.queues.dispatcher import (
    Acknowledge,
    DeadLetter,
    Dispatcher,
    DispatchSettings,
    InFlight,
    QueueSettlement,
    Requeue,
)
from semel.doors.queues.lanes import LaneScheduler
from semel.doors.queues.messages import BEHIND, DeliveryResult, Handler, Verdict
from semel.doors.queues.steps import BlockingCall, ConsumerSteps, Wait
from tests.servers.running import until

Kept: TypeAlias = InFlight[str]

DONE = DeliveryResult(Verdict.DONE)
FAILED = DeliveryResult(Verdict.FAILED, error=ValueError())


def message(body: str, group: str | None = None, deliveries: int = 1) -> Kept:
    return InFlight(body, group=group, deliveries=deliveries)


def dispatching(*messages: Kept, **settings: Any) -> Dispatcher[str]:
    usual = {"workers": 10, "batch": 10, "visibility": 30.0, "dead_letters": False, "backoff": doubling(900)}
    agreed: dict[str, Any] = usual | settings
    agreed.setdefault("capacity", agreed["workers"] * agreed["batch"])
    dispatcher = Dispatcher[str](DispatchSettings(**agreed))
    dispatcher.receive(messages, 0.0)
    return dispatcher


def started(dispatcher: Dispatcher[str]) -> list[Kept]:
    found = []
    while (one := dispatcher.begin()) is not None:
        found.append(one)
    return found


def bodies(held: Any) -> list[str]:
    return [one.message for one in held]


def test_of_a_group_one_message_is_begun_at_a_time():
    dispatcher = dispatching(message("a1", "a"), message("a2", "a"), message("b1", "b"))
    first, other = started(dispatcher)
    assert bodies([first, other]) == ["a1", "b1"]
    dispatcher.end(first, DONE, 1.0)
    assert bodies(started(dispatcher)) == ["a2"]


def test_messages_of_no_group_are_begun_side_by_side():
    dispatcher = dispatching(message("a1"), message("a2"))
    assert bodies(started(dispatcher)) == ["a1", "a2"]


@pytest.mark.parametrize("verdict", [Verdict.BUSY, Verdict.FAILED])
def test_what_has_to_come_again_takes_the_rest_of_its_group_along(verdict):
    dispatcher = dispatching(message("a1", "a"), message("a2", "a"), message("a3", "a"), message("b1", "b"))
    first, _ = started(dispatcher)
    dispatcher.end(first, DeliveryResult(verdict), 1.0)
    assert [(one.one.message, one.seconds) for one in dispatcher.settlements] == [
        ("a1", 1),
        ("a2", 0),
        ("a3", 0),
    ]
    assert started(dispatcher) == []
    dispatcher.receive([message("a1", "a"), message("a2", "a")], 2.0)
    assert bodies(started(dispatcher)) == ["a1"]


def test_nothing_is_asked_for_while_it_is_nobodys_turn():
    dispatcher = dispatching(message("a"))
    [held] = started(dispatcher)
    later = errors.Later(40.0, everyone=True)
    dispatcher.end(held, DeliveryResult(Verdict.LATER, error=later, retry_after=40.0), 1.0)
    assert (dispatcher.wanted(40.9), dispatcher.pause(40.0)) == (None, 1.0)
    dispatcher.receive([message("b")], 40.9)
    assert dispatcher.begin() is None, "nor is anything begun"
    dispatcher.wake(41.0)
    assert dispatcher.wanted(41.0) == 10
    assert bodies(started(dispatcher)) == ["b"]


def test_what_is_dead_holds_nobody_up():
    dispatcher = dispatching(message("a1", "a"), message("a2", "a"), dead_letters=True)
    [first] = started(dispatcher)
    dead = DeliveryResult(Verdict.DEAD, error=ValueError())
    dispatcher.end(first, dead, 1.0)
    assert list(dispatcher.settlements) == [DeadLetter(first, dead)]
    assert bodies(started(dispatcher)) == ["a2"]


@pytest.mark.parametrize(
    ("taken", "deliveries", "seconds"),
    [
        (DeliveryResult(Verdict.FAILED), 1, 1),
        (DeliveryResult(Verdict.FAILED), 5, 16),
        (DeliveryResult(Verdict.FAILED), 5000, 900),
        (DeliveryResult(Verdict.DEAD), 2, 2),
        (DeliveryResult(Verdict.BUSY, retry_after=17.2), 1, 17.2),
        (DeliveryResult(Verdict.BUSY, retry_after=0.0), 9, 1),
        (DeliveryResult(Verdict.FAILED, retry_after=1e9), 1, 1e9),
        (DeliveryResult(Verdict.LATER, retry_after=40.0), 3, 40),
        (DeliveryResult(Verdict.LATER, retry_after=1.0), 5, 16),
        (DeliveryResult(Verdict.FAILED, error=errors.ShuttingDown("no"), stops=True), 9, 0),
        (BEHIND, 9, 0),
    ],
)
def test_how_long_a_message_stays_away(taken, deliveries, seconds):
    dispatcher = dispatching(message("m", deliveries=deliveries))
    [held] = started(dispatcher)
    dispatcher.end(held, taken, 10.0)
    assert list(dispatcher.settlements) == [Requeue(held, seconds, taken.verdict is Verdict.FAILED)]


def test_visibility_is_extended_every_third_of_it_until_a_message_leaves():
    dispatcher = dispatching(message("a1", "a"), message("a2", "a"))
    [first] = started(dispatcher)
    assert dispatcher.until_due(0.0) == 10.0
    assert dispatcher.due(9.9) == []
    due = dispatcher.due(10.0)
    assert sorted(bodies(due)) == ["a1", "a2"]
    for held in due:
        dispatcher.renewed([held], {}, 10.0, 15.0)
    assert dispatcher.due(19.9) == []
    dispatcher.end(first, DONE, 20.0)
    assert bodies(dispatcher.due(20.0)) == ["a2"]
    [second] = started(dispatcher)
    dispatcher.renewed([second], {second: False}, 15.0, 20.0)
    assert dispatcher.until_due(20.0) == 3.0
    dispatcher.renewed([second], {second: True}, 20.0, 20.0)
    assert dispatcher.until_due(20.0) is None


def test_a_store_in_trouble_is_left_alone_for_longer_each_time():
    dispatcher = dispatching(*[message(str(n)) for n in range(3)], workers=3)
    down = DeliveryResult(Verdict.FAILED, error=errors.StoreUnavailable("down"))
    for held in started(dispatcher):
        dispatcher.end(held, down, 5.0)  # three at the same time are one trouble
    assert (dispatcher.wanted(5.9), dispatcher.pause(5.5)) == (None, 0.5)
    assert dispatcher.wanted(6.0) == 1
    now = 6.0
    for rest in (2, 4, 8, 16, 32, 60, 60):
        dispatcher.receive([message("probe")], now)
        dispatcher.end(started(dispatcher)[0], down, now)
        assert dispatcher.pause(now) == rest
        now += rest
    dispatcher.receive([message("probe")], now)
    dispatcher.end(started(dispatcher)[0], DONE, now)
    assert dispatcher.wanted(now) == 10


def test_messages_are_asked_for_when_somebody_is_free_and_nobody_has_too_many():
    dispatcher = dispatching(workers=2, batch=3)
    assert dispatcher.wanted(0.0) == 3
    dispatcher.receive([message(f"a{n}", "a") for n in range(3)], 0.0)
    started(dispatcher)
    assert dispatcher.wanted(0.0) == 3, "one group keeps one worker busy"
    dispatcher.receive([message(f"a{n}", "a") for n in range(3, 6)], 0.0)
    assert dispatcher.wanted(0.0) is None, "six are in hand"
    busy = dispatching(message("a", "a"), message("b", "b"), workers=2)
    assert busy.wanted(0.0) is None


GROUPS = st.sampled_from(["a", "b", "c"])
VERDICTS = st.sampled_from(
    [
        DONE,
        FAILED,
        DeliveryResult(Verdict.DUPLICATE),
        DeliveryResult(Verdict.BUSY),
        DeliveryResult(Verdict.DEAD),
    ]
)


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("receive"), st.lists(GROUPS, max_size=5)),
            st.tuples(st.just("begin"), st.just(None)),
            st.tuples(st.just("end"), st.tuples(st.integers(0, 10), VERDICTS)),
        ),
        max_size=40,
    )
)
def test_whatever_happens_each_message_leaves_once_and_groups_keep_their_order(moves):
    dispatcher, now, number = dispatching(workers=100), 0.0, 0
    running: list[Kept] = []
    begun: list[int] = []
    for move, what in moves:
        now += 1
        if move == "receive":
            new = [message(str(number + n), group) for n, group in enumerate(what)]
            number += len(new)
            dispatcher.receive(new, now)
        elif move == "begin" and (held := dispatcher.begin()) is not None:
            assert held.group not in {one.group for one in running}
            running.append(held)
            begun.append(int(held.message))
        elif move == "end" and running:
            place, taken = what
            dispatcher.end(running.pop(place % len(running)), taken, now)
    while running:
        dispatcher.end(running.pop(), DONE, now)
    dispatcher.stopping = True
    dispatcher.clear()
    left = [int(one.one.message) for one in dispatcher.settlements]
    assert sorted(left) == list(range(number))
    dispatcher.settlements.clear()
    assert dispatcher.over
    per_group = dict(enumerate(_groups(moves)))
    for group in "abc":
        mine = [n for n in begun if per_group[n] == group]
        assert mine == sorted(mine)


def _groups(moves: list[Any]) -> list[str]:
    return [group for move, what in moves if move == "receive" for group in what]


# --- Lanes


def test_a_lane_that_rests_is_not_begun_before_and_rests_no_shorter_than_was_said():
    lanes = LaneScheduler[str]()
    lanes.add("a")
    assert lanes.begin() == "a"
    lanes.rest("a", 60)
    lanes.rest("a", 2)
    lanes.end("a", more=True)
    lanes.add("a")
    assert (lanes.begin(), lanes.wake(59), lanes.next_wake) == (None, [], 60)
    assert lanes.begin() is None
    assert lanes.wake(60) == ["a"]
    assert lanes.begin() == "a"


def test_what_is_added_while_somebody_is_in_the_lane_is_looked_at_afterwards():
    lanes = LaneScheduler[str]()
    for lane in ("a", "a", "b"):
        lanes.add(lane)
    assert [lanes.begin(), lanes.begin(), lanes.begin()] == ["a", "b", None]
    lanes.add("a")
    assert lanes.begin() is None
    lanes.end("a", more=False)
    lanes.end("b", more=False)
    assert [lanes.begin(), lanes.begin()] == ["a", None]
    lanes.end("a", more=False)
    assert len(lanes) == 0


def test_a_rest_that_is_over_before_its_lane_is_left_is_not_lost():
    lanes = LaneScheduler[str]()
    lanes.add("a")
    lanes.begin()
    lanes.rest("a", 1)
    assert lanes.wake(1) == ["a"]
    lanes.end("a", more=False)
    assert lanes.begin() == "a"


def test_nothing_is_begun_in_a_pause_and_everything_after_it():
    lanes = LaneScheduler[str]()
    lanes.add("a")
    lanes.pause(20)
    lanes.pause(10)
    assert (lanes.begin(), lanes.wake(19), lanes.next_wake) == (None, [], 20)
    assert lanes.wake(20) == ["a"]
    assert lanes.begin() == "a"


# --- A broker that sends over a connection, and cannot keep messages away


def pushed(*messages: Kept) -> Dispatcher[str]:
    sending = {"pushes": True, "longest_hold": 30.0, "visibility": float("inf"), "capacity": 5}
    return dispatching(*messages, **sending)


def test_a_failure_in_a_group_is_tried_again_here_before_those_behind_it():
    dispatcher = pushed(message("a1", "a"), message("a2", "a"), message("b1", "b"), message("lone"))
    first, *_ = started(dispatcher)
    dispatcher.end(first, FAILED, 0.0)
    assert (dispatcher.begin(), dispatcher.until_due(0.0)) == (None, 1.0)
    dispatcher.wake(1.0)
    assert started(dispatcher) == [first]
    dispatcher.end(first, FAILED, 1.0)
    assert dispatcher.until_due(1.0) == 2.0, "longer each time"
    dispatcher.wake(3.0)
    dispatcher.end(started(dispatcher)[0], DONE, 3.0)
    assert bodies(started(dispatcher)) == ["a2"]


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.BUSY, Verdict.LATER])
def test_a_failure_alone_is_given_back_after_a_while_and_counted_if_it_is_one(verdict):
    dispatcher = pushed(message("m"))
    [held] = started(dispatcher)
    dispatcher.end(held, DeliveryResult(verdict, retry_after=1e9), 0.0)
    dispatcher.wake(29.9)
    assert not dispatcher.settlements
    dispatcher.wake(30.0)
    assert list(dispatcher.settlements) == [Requeue(held, 0.0, verdict is Verdict.FAILED)]
    assert started(dispatcher) == []


def test_what_is_kept_for_a_while_is_given_back_at_once_when_it_stops():
    dispatcher = pushed(message("a1", "a"), message("a2", "a"), message("lone"), message("runs"))
    first, lone, running = started(dispatcher)
    dispatcher.end(first, FAILED, 0.0)
    dispatcher.end(lone, FAILED, 0.0)
    dispatcher.stopping = True
    dispatcher.clear()
    assert sorted(bodies(one.one for one in dispatcher.settlements)) == ["a1", "a2", "lone"]
    assert not dispatcher.drained
    dispatcher.take_settlements()
    dispatcher.settled()
    dispatcher.end(running, FAILED, 1.0)
    assert bodies(one.one for one in dispatcher.settlements) == ["runs"]


def test_a_lost_connection_takes_along_what_is_in_flight_and_what_runs_is_settled_by_nobody():
    dispatcher = pushed(message("a1", "a"), message("a2", "a"))
    [old] = started(dispatcher)
    dispatcher.forget()
    dispatcher.receive([message("a1", "a")], 1.0)
    [new] = started(dispatcher)
    dispatcher.end(old, DONE, 2.0)
    assert not dispatcher.settlements
    assert started(dispatcher) == []
    dispatcher.end(new, DONE, 3.0)
    assert bodies(one.one for one in dispatcher.settlements) == ["a1"]


def test_a_broker_that_sends_is_given_as_much_room_as_there_is_and_listened_to_until_all_is_settled():
    dispatcher = pushed(message("a"), message("b"))
    assert dispatcher.wanted(0.0) == 3
    dispatcher.stopping = True
    assert dispatcher.wanted(0.0) == 0
    dispatcher.queue_backoff.failed(0.0)
    assert dispatcher.wanted(0.5) is None


def test_pauses_grow_and_begin_anew_when_there_is_an_answer():
    backoff = ExponentialBackoff(30.0, first=0.2)
    assert [backoff.failed(now=backoff.until if backoff.failures else 0.0) for _ in range(3)] == [
        0.2,
        0.4,
        0.8,
    ]
    backoff.reset()
    assert backoff.failed(9.0) == 0.2
    spread = ExponentialBackoff(30.0, first=0.2, spread=0.5)
    assert 0.1 <= spread.failed(0.0) <= 0.2


def test_the_wait_of_a_failed_message_doubles():
    assert [doubling(900)(n) for n in (1, 2, 3, 11, 10**9)] == [1, 2, 4, 900, 900]


# --- Another broker ----------------------------------------------------------------------------------


class Shelf:
    """A queue in memory, which delivers again what was given back; it knows no visibility and no delay."""

    def __init__(self, *messages: tuple[str, Hashable]) -> None:
        self.waiting = deque(messages)
        self.acknowledged: list[str] = []
        self.dead: list[str] = []
        self._lock = threading.Lock()

    def take(self, many: int) -> list[tuple[str, Hashable]]:
        with self._lock:
            return [self.waiting.popleft() for _ in range(min(many, len(self.waiting)))]


class ShelfBroker(Broker[str]):
    """All that a door for such a queue has to say."""

    name = "shelf"
    passing = (ConnectionError,)

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def receive(self, many: int) -> ConsumerSteps[list[Kept]]:
        received = yield BlockingCall(partial(self._shelf.take, many))
        if not received:
            yield Wait(0.01)
        return [InFlight(body, group=group) for body, group in received]

    def settle(self, settlements: list[QueueSettlement]) -> ConsumerSteps[list[QueueSettlement]]:
        for one in settlements:
            match one:
                case Acknowledge():
                    self._shelf.acknowledged.append(one.one.message)
                case DeadLetter():
                    self._shelf.dead.append(one.one.message)
                case Requeue():
                    self._shelf.waiting.append((one.one.message, one.one.group))
        return []
        yield


class ShelfConsumer(QueueConsumer[str]):
    def __init__(self, s: semel.Semel, shelf: Shelf, handle: Any, **options: Any) -> None:
        super().__init__()
        settings = DispatchSettings(workers=3, capacity=9, batch=3, backoff=lambda _: 0.01, longest_hold=1.0)
        handler = Handler[str](s, handle, key=str, door="shelf", **options)
        self._consuming = Consuming(ShelfBroker(shelf), Dispatcher(settings), handler, s.clock.monotonic)

    def run(self) -> None:
        self._begin()
        self._run(self._consuming)

    async def arun(self) -> None:
        self._begin()
        await self._arun(self._consuming)


CONVERSATIONS = [(f"{group}{n}", group) for n in range(4) for group in "ab"]


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
def test_a_door_for_another_broker_only_receives_and_settles(is_async):
    """Order within groups, retries, dead letters and a stop in good order are there."""
    shelf = Shelf(*CONVERSATIONS, ("lone", None), ("poison", None))
    seen: list[str] = []
    failed: set[str] = set()

    def handle(message: str) -> None:
        seen.append(message)
        if message == "poison":
            raise ValueError("no such order")
        if message in ("a1", "lone") and message not in failed:
            failed.add(message)
            raise OSError("not yet")

    async def ahandle(message: str) -> None:
        await asyncio.sleep(0)
        handle(message)

    with semel.connect("memory:") as s:
        consumer = ShelfConsumer(s, shelf, ahandle if is_async else handle, on_error={ValueError: "keep"})
        stopper = threading.Thread(target=partial(_stop_when_done, consumer, shelf))
        stopper.start()
        if is_async:
            asyncio.run(consumer.arun())
        else:
            consumer.run()
        stopper.join()
        with pytest.raises(semel.UsageError, match="runs once"):
            consumer.run()
    for group, order in {"a": "01123", "b": "0123"}.items():
        assert [body[1] for body in seen if body[0] == group] == list(order)
    assert seen.count("lone") == 2
    assert sorted(shelf.acknowledged) == sorted([*(body for body, _ in CONVERSATIONS), "lone"])
    assert (shelf.dead, list(shelf.waiting)) == (["poison"], [])


def _stop_when_done(consumer: ShelfConsumer, shelf: Shelf) -> None:
    until(lambda: len(shelf.acknowledged) + len(shelf.dead) == len(CONVERSATIONS) + 2)
    consumer.stop()


def test_a_broker_that_is_away_is_asked_again_and_what_waiting_cannot_mend_ends_the_run():
    class Away(ShelfBroker):
        turns: ClassVar = [ConnectionError("away"), ConnectionError("away"), KeyError("gone")]

        def receive(self, many: int) -> ConsumerSteps[list[Kept]]:
            raise self.turns.pop(0)
            yield

    dispatcher = dispatching()
    receiving = Consuming(Away(Shelf()), dispatcher, None, lambda: now).receiving()  # type: ignore[arg-type]
    now = 0.0
    assert next(receiving) == Wait(1.0)
    now = 1.0
    assert next(receiving) == Wait(2.0)
    now = 3.0
    with pytest.raises(KeyError, match="gone"):
        next(receiving)


@pytest.mark.parametrize("broken", ["settle", "renew"])
def test_a_broker_that_fails_at_settling_ends_the_run_with_its_error(broken):
    def fail(self: Any, _: Any) -> Any:
        raise LookupError(broken)

    def handle(_: str) -> None:
        if broken == "renew":  # whoever is quick needs no renewal
            assert until(lambda: dispatcher.failure is not None)

    shelf = Shelf(("a", None), ("b", None))
    broker = type("Broken", (ShelfBroker,), {broken: fail})(shelf)
    dispatcher = dispatching(workers=1, visibility=0.001)
    with semel.connect("memory:") as s:
        consumer = ShelfConsumer(s, shelf, handle)
        handler = Handler[str](s, handle, key=str, door="shelf")
        consumer._consuming = Consuming(broker, dispatcher, handler, s.clock.monotonic)
        with pytest.raises(LookupError, match=broken):
            consumer.run()
