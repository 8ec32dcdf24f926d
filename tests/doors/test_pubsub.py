"""Google Pub/Sub, pulled by Google's own client from a stand-in: what is delivered twice happens once."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud import pubsub_v1

import semel
from semel.doors.pubsub import Consumer, Message
from semel.errors import AddressRefused, InvalidOption, UsageError
from tests.doors.consumers import running
from tests.servers.running import until
from tests.standins.pubsub import PubSub, Subscription

NAME = "projects/shop/subscriptions/orders"


@pytest.fixture
def pubsub(monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSub]:
    with PubSub() as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.host)
        yield server


@pytest.fixture
def orders(pubsub: PubSub) -> Subscription:
    return pubsub.subscribe(NAME)


def consumer(s: semel.Semel, handle: Any, **options: Any) -> Consumer:
    return Consumer(s, NAME, handle, **{"poll": 1.0, "backoff": lambda _deliveries: 0.0, **options})


def publish(pubsub: PubSub, *bodies: Any, **options: Any) -> list[str]:
    return [pubsub.publish(json.dumps(body).encode(), **options) for body in bodies]


def test_a_message_is_handled_once_and_acknowledged(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    seen: list[Message] = []
    [number] = publish(pubsub, {"order": 7}, source="shop")
    with running(consumer(s, seen.append)):
        until(lambda: not pubsub.waiting(NAME))
    [message] = seen
    assert (message.json(), message.attributes, message.id) == ({"order": 7}, {"source": "shop"}, number)
    assert (message.subscription, message.deliveries) == (NAME, 1)
    assert s.ledger.is_processed(f"pubsub::{NAME}:{number}")


def test_a_message_whose_acknowledgement_was_lost_is_delivered_again_and_not_handled_again(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    seen: list[Any] = []
    pubsub.fail("Acknowledge", grpc.StatusCode.UNAVAILABLE, times=3)
    publish(pubsub, 1)
    with running(consumer(s, lambda message: seen.append(message.json()))):
        until(lambda: len(pubsub.asked("Acknowledge")) == 3)
        assert pubsub.waiting(NAME) == [b"1"]
        pubsub.advance(61)
        until(lambda: not pubsub.waiting(NAME))
    assert seen == [1]


def test_a_message_whose_handler_fails_comes_again_until_it_does_not(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    tried: list[int] = []

    def handle(message: Message) -> None:
        tried.append(semel.current_run().attempt)
        if len(tried) < 3:
            raise ConnectionError("the bank is closed")

    publish(pubsub, 1)
    with running(consumer(s, handle)):
        until(lambda: not pubsub.waiting(NAME))
    assert tried == [1, 2, 3]


def test_what_failed_stays_away_by_its_deadline(s: semel.Semel, pubsub: PubSub, orders: Subscription) -> None:
    tried: list[int] = []

    def handle(message: Message) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError

    def given_back() -> list[int]:
        return [one.ack_deadline_seconds for one in pubsub.asked("ModifyAckDeadline")][1:]

    publish(pubsub, 1)
    with running(consumer(s, handle, backoff=lambda deliveries: 45 * deliveries)):
        until(lambda: bool(given_back()))
        assert (given_back(), tried) == ([45], [1])
        pubsub.advance(46)
        until(lambda: not pubsub.waiting(NAME))
    assert tried == [1, 1]


def test_a_message_that_takes_long_is_kept_from_others(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    """Its deadline is extended in time, for however long it takes."""
    go_on = threading.Event()
    publish(pubsub, 1)

    def extended() -> int:
        return sum(one.ack_deadline_seconds == 10 for one in pubsub.asked("ModifyAckDeadline"))

    with running(consumer(s, lambda _message: go_on.wait(60), ack_deadline=10)):
        until(lambda: extended() >= 2)
        go_on.set()
        until(lambda: not pubsub.waiting(NAME))
    assert orders.stored == []


def test_messages_of_an_ordering_key_are_handled_in_order_and_a_failure_holds_up_those_behind(
    s: semel.Semel, pubsub: PubSub
) -> None:
    pubsub.subscribe(NAME, ordered=True)
    publish(pubsub, *range(6), key="ada")
    publish(pubsub, *range(10, 13), key="bob")
    done: dict[str, list[int]] = {"ada": [], "bob": []}
    failed: list[int] = []

    def handle(message: Message) -> None:
        number = message.json()
        if number == 2 and len(failed) < 2:
            failed.append(number)
            raise ConnectionError
        done[message.ordering_key].append(number)

    with running(consumer(s, handle, workers=4, batch=4)):
        until(lambda: not pubsub.waiting(NAME))
    assert done == {"ada": [0, 1, 2, 3, 4, 5], "bob": [10, 11, 12]}
    assert failed == [2, 2]


def test_what_fails_for_good_goes_to_the_subscriptions_dead_letters(s: semel.Semel, pubsub: PubSub) -> None:
    orders = pubsub.subscribe(NAME, max_attempts=5)
    tried: list[int] = []

    def handle(message: Message) -> None:
        tried.append(message.deliveries)
        raise ValueError("no such order")

    publish(pubsub, 1)
    with running(consumer(s, handle, on_error={ValueError: "keep"})):
        until(lambda: bool(orders.dead))
    assert [one.data for one in orders.dead] == [b"1"]
    assert tried == [1]


def test_one_of_an_ordering_key_that_fails_for_good_is_put_aside_and_those_behind_it_are_done_once(
    s: semel.Semel, pubsub: PubSub
) -> None:
    orders = pubsub.subscribe(NAME, ordered=True, max_attempts=5)
    done: list[int] = []

    def handle(message: Message) -> None:
        if message.json() == 0:
            raise ValueError("no such order")
        done.append(message.json())

    publish(pubsub, *range(4), key="ada")
    with running(consumer(s, handle, on_error={ValueError: "keep"})):
        until(lambda: bool(orders.dead) and not pubsub.waiting(NAME))
    assert ([one.data for one in orders.dead], done) == ([b"0"], [1, 2, 3])


def test_failures_of_one_are_not_counted_as_attempts_at_those_behind_it(
    s: semel.Semel, pubsub: PubSub
) -> None:
    orders = pubsub.subscribe(NAME, ordered=True, max_attempts=5)
    done: list[int] = []
    tried: list[int] = []

    def handle(message: Message) -> None:
        tried.append(message.json())
        if tried.count(message.json()) < 4:
            raise ConnectionError
        done.append(message.json())

    publish(pubsub, *range(4), key="ada")
    with running(consumer(s, handle)):
        until(lambda: not pubsub.waiting(NAME))
    assert (done, orders.dead) == ([0, 1, 2, 3], [])
    assert tried == [number for number in range(4) for _ in range(4)]


def test_two_consumers_share_a_subscription_and_each_message_is_handled_by_one(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    seen: list[int] = []
    publish(pubsub, *range(40))
    first, second = (consumer(s, lambda one: seen.append(one.json()), workers=3) for _ in range(2))
    with running(first), running(second):
        until(lambda: not pubsub.waiting(NAME))
    assert sorted(seen) == list(range(40))


def test_a_message_that_was_published_twice_has_two_ids_and_one_key_from_its_payload(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    by_id: list[int] = []
    by_payload: list[int] = []
    publish(pubsub, 7, 7)
    with running(consumer(s, lambda one: by_id.append(one.json()))):
        until(lambda: not pubsub.waiting(NAME))
    publish(pubsub, 7, 7)
    with running(consumer(s, lambda one: by_payload.append(one.json()), key=lambda one: f"o:{one.json()}")):
        until(lambda: not pubsub.waiting(NAME))
    assert (by_id, by_payload) == ([7, 7], [7])


def test_a_consumer_that_stops_finishes_what_runs_and_gives_back_the_rest(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(message: Message) -> None:
        begun.set()
        go_on.wait(60)
        seen.append(message.json())

    publish(pubsub, *range(5))
    one = consumer(s, handle)
    with running(one):
        begun.wait(60)
        one.stop()
        until(lambda: 0 in [each.ack_deadline_seconds for each in pubsub.asked("ModifyAckDeadline")])
        go_on.set()
    assert len(seen) == 1
    assert len(pubsub.waiting(NAME)) == 4
    assert all(one.deadline is None for one in orders.stored)


KILLED = """
import os, signal, sys
import semel
from semel.doors.pubsub import Consumer

def handle(message):
    print(message.json(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

s = semel.connect(sys.argv[1])
Consumer(s, "projects/shop/subscriptions/orders", handle, lease=1).run()
"""


def test_a_message_of_a_worker_that_was_killed_is_taken_over_by_another(
    pubsub: PubSub, orders: Subscription, tmp_path: Path
) -> None:
    url, seen = f"sqlite:///{tmp_path}/orders.db", []
    publish(pubsub, 7)
    command = [sys.executable, "-c", KILLED, url]
    killed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "7\n"), killed.stderr
    assert pubsub.waiting(NAME) == [b"7"]
    pubsub.advance(61)

    def handle(message: Message) -> None:
        seen.append((message.json(), semel.current_run().attempt))

    with semel.connect(url) as s, running(consumer(s, handle)):
        until(lambda: not pubsub.waiting(NAME))
    assert seen == [(7, 2)]


def test_an_async_handler_works_in_tasks(s: semel.Semel, pubsub: PubSub, orders: Subscription) -> None:
    seen: list[int] = []
    publish(pubsub, *range(10))

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.json())
        if len(seen) == 10:
            one.stop()

    one = consumer(s, handle, workers=4)
    asyncio.run(one.arun())
    assert sorted(seen) == list(range(10))
    assert pubsub.waiting(NAME) == []
    with pytest.raises(UsageError, match="arun"):
        consumer(s, handle).run()


def test_a_server_that_is_away_is_asked_again(s: semel.Semel, pubsub: PubSub, orders: Subscription) -> None:
    seen: list[int] = []
    pubsub.fail("Pull", grpc.StatusCode.UNAVAILABLE, times=2)
    publish(pubsub, 1)
    with running(consumer(s, lambda one: seen.append(one.json()))):
        until(lambda: not pubsub.waiting(NAME))
    assert seen == [1]
    assert len(pubsub.asked("Pull")) >= 3


def test_a_pull_whose_answer_was_lost_loses_nothing(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    seen: list[int] = []
    pubsub.fail("Pull", grpc.StatusCode.INTERNAL, after_applying=True)
    publish(pubsub, 1)
    with running(consumer(s, lambda one: seen.append(one.json()))):
        until(lambda: len(pubsub.asked("Pull")) >= 2)
        pubsub.advance(11)
        until(lambda: not pubsub.waiting(NAME))
    assert seen == [1]


@pytest.mark.parametrize(
    ("code", "said"),
    [(None, "not found"), (grpc.StatusCode.PERMISSION_DENIED, "as the test asked")],
)
def test_a_subscription_that_is_not_there_or_not_for_us_is_an_error(
    s: semel.Semel, pubsub: PubSub, code: grpc.StatusCode | None, said: str
) -> None:
    if code is not None:
        pubsub.subscribe(NAME)
        pubsub.fail("Pull", code)
    with pytest.raises(AddressRefused, match=said):
        consumer(s, print).run()


def test_a_client_of_the_callers_own_is_used_and_left_open(
    s: semel.Semel, pubsub: PubSub, orders: Subscription
) -> None:
    seen: list[int] = []
    publish(pubsub, 1)
    with pubsub_v1.SubscriberClient() as client:
        with running(consumer(s, lambda one: seen.append(one.json()), client=client)):
            until(lambda: not pubsub.waiting(NAME))
        assert seen == [1]
        publish(pubsub, 2)
        assert len(client.pull(subscription=NAME, max_messages=1, timeout=30).received_messages) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [({"ack_deadline": 9}, "ack_deadline"), ({"ack_deadline": 601}, "ack_deadline"), ({"batch": 0}, "batch")],
)
def test_options_that_pubsub_would_refuse_are_refused_here(
    s: semel.Semel, pubsub: PubSub, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        consumer(s, print, **options)


def test_a_name_without_its_project_says_what_a_whole_name_is(s: semel.Semel, pubsub: PubSub) -> None:
    with pytest.raises(InvalidOption, match="projects/PROJECT/subscriptions/NAME"):
        Consumer(s, "orders", print)


def test_a_message_is_remembered_for_as_long_as_a_subscription_keeps_it(
    s: semel.Semel, pubsub: PubSub
) -> None:
    with pytest.raises(InvalidOption, match="ttl"):
        consumer(s, print, ttl=3600)
    consumer(s, print, ttl=3600, horizon=1800)
