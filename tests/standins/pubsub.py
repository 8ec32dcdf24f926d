"""A stand-in for Google Pub/Sub: a gRPC server with the published rules of topics and subscriptions.

    with PubSub() as pubsub:                           # PUBSUB_EMULATOR_HOST=pubsub.host is its address
        pubsub.subscribe("projects/shop/subscriptions/orders", ordered=True)
        pubsub.publish(b"{}", key="customer-1")
        pubsub.fail("Acknowledge", grpc.StatusCode.UNAVAILABLE, times=2)
        pubsub.advance(60)                             # its own clock: deadlines pass, and nobody waits

What is not acknowledged before its deadline, or is given back by a deadline of 0, is delivered again, and of
an ordering key everything behind it too, acknowledged or not. A key has one batch in hand at a time. An
attempt at a message is counted when itself is given back, or is over its deadline.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types


@dataclass
class Stored:
    """A message in a subscription."""

    message: Any
    given_back: int = 0
    ack_id: str = ""
    deadline: float | None = None
    acked: bool = False


@dataclass
class Subscription:
    """A subscription of the one topic, and what is in it."""

    ordered: bool = False
    deadline: int = 10
    max_attempts: int = 0
    stored: list[Stored] = field(default_factory=list)
    dead: list[Any] = field(default_factory=list)


@dataclass
class Failure:
    """How the next calls of a method fail."""

    code: grpc.StatusCode
    times: int
    after_applying: bool = False


class PubSub:
    """A server on 127.0.0.1 with one topic."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.host = ""
        self._subscriptions: dict[str, Subscription] = {}
        self._failures: dict[str, Failure] = {}
        self._changed = threading.Condition()
        self._ahead = 0.0
        self._numbers = iter(range(1, 10**9))
        self._server: Any = None

    def __enter__(self) -> Self:
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        methods = {
            "Pull": (self._pull, types.PullRequest, types.PullResponse),
            "Acknowledge": (self._acknowledge, types.AcknowledgeRequest, None),
            "ModifyAckDeadline": (self._modify, types.ModifyAckDeadlineRequest, None),
        }
        handlers = {name: self._handler(name, *method) for name, method in methods.items()}
        publish = self._handler("Publish", self._publish, types.PublishRequest, types.PublishResponse)
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", handlers),
                grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", {"Publish": publish}),
            ]
        )
        self.host = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.stop(None).wait()

    # What a test does with it

    def subscribe(self, name: str, **options: Any) -> Subscription:
        with self._changed:
            self._subscriptions[name] = Subscription(**options)
            return self._subscriptions[name]

    def publish(self, data: bytes, *, key: str = "", **attributes: str) -> str:
        """Publish a message; whoever publishes it again makes another."""
        with self._changed:
            number = str(next(self._numbers))
            message = types.PubsubMessage(
                data=data, attributes=attributes, message_id=number, ordering_key=key
            )
            for subscription in self._subscriptions.values():
                subscription.stored.append(Stored(message))
            self._changed.notify_all()
            return number

    def fail(
        self, method: str, code: grpc.StatusCode, *, times: int = 1, after_applying: bool = False
    ) -> None:
        with self._changed:
            self._failures[method] = Failure(code, times, after_applying)

    def advance(self, seconds: float) -> None:
        """Let time pass: deadlines too."""
        with self._changed:
            self._ahead += seconds
            self._changed.notify_all()

    def waiting(self, name: str) -> list[bytes]:
        """What is not acknowledged."""
        with self._changed:
            return [one.message.data for one in self._subscriptions[name].stored if not one.acked]

    def asked(self, method: str) -> list[Any]:
        """The requests that came for a method."""
        with self._changed:
            return [request for name, request in self.calls if name == method]

    # The API

    def _handler(self, name: str, answer: Any, request: Any, response: Any) -> Any:
        def called(asked: Any, context: Any) -> Any:
            with self._changed:
                self.calls.append((name, asked))
                failure = self._failure(name)
                if failure is not None and not failure.after_applying:
                    context.abort(failure.code, "as the test asked for")
                answered = answer(asked, context)
                self._changed.notify_all()
                if failure is not None:
                    context.abort(failure.code, "as the test asked for")
                return answered

        serialize = Empty.SerializeToString if response is None else response.serialize
        return grpc.unary_unary_rpc_method_handler(called, request.deserialize, serialize)

    def _failure(self, name: str) -> Failure | None:
        failure = self._failures.get(name)
        if failure is None or not failure.times:
            return None
        failure.times -= 1
        return failure

    def _publish(self, request: Any, context: Any) -> Any:
        ids = [
            self.publish(one.data, key=one.ordering_key, **dict(one.attributes)) for one in request.messages
        ]
        return types.PublishResponse(message_ids=ids)

    def _pull(self, request: Any, context: Any) -> Any:
        subscription = self._named(request.subscription, context)
        while True:
            batch = self._batch(subscription, request.max_messages)
            left = context.time_remaining()
            if batch or not context.is_active() or (left is not None and left < 0.05):
                return types.PullResponse(received_messages=batch)
            self._changed.wait(0.05 if left is None else min(left / 2, 0.2))

    def _acknowledge(self, request: Any, context: Any) -> Empty:
        subscription = self._named(request.subscription, context)
        for one in subscription.stored:
            if one.ack_id and one.ack_id in request.ack_ids:
                one.acked, one.deadline, one.ack_id = True, None, ""
        self._expire(subscription)
        return Empty()

    def _modify(self, request: Any, context: Any) -> Empty:
        subscription = self._named(request.subscription, context)
        span = request.ack_deadline_seconds
        if not 0 <= span <= 600:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the deadline is from 0 to 600 seconds")
        for one in list(subscription.stored):
            if one.ack_id and one.ack_id in request.ack_ids:
                one.deadline = self._now() + span
        self._expire(subscription)
        return Empty()

    # Inside

    def _named(self, name: str, context: Any) -> Subscription:
        if name not in self._subscriptions:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={name}).")
        subscription = self._subscriptions[name]
        self._expire(subscription)
        return subscription

    def _now(self) -> float:
        return time.monotonic() + self._ahead

    def _expire(self, subscription: Subscription) -> None:
        """Give back what is over its deadline, and forget what was acknowledged for good."""
        given_back: set[str] = set()
        pending: set[str] = set()
        kept = []
        for one in subscription.stored:
            key = one.message.ordering_key if subscription.ordered else ""
            over = one.deadline is not None and one.deadline <= self._now()
            if over:
                one.given_back += 1
            if over or (key and key in given_back):
                one.deadline, one.ack_id, one.acked = None, "", False
                given_back.add(key)
            if not one.acked:
                pending.add(key)
            if not one.acked or (key and key in pending):
                kept.append(one)
        subscription.stored = kept

    def _batch(self, subscription: Subscription, most: int) -> list[Any]:
        self._expire(subscription)
        busy = {one.message.ordering_key for one in subscription.stored if one.deadline is not None}
        batch: list[Any] = []
        for one in list(subscription.stored):
            key = one.message.ordering_key if subscription.ordered else ""
            if len(batch) == most or one.acked or one.deadline is not None or (key and key in busy):
                continue
            if subscription.max_attempts and one.given_back >= subscription.max_attempts:
                subscription.stored.remove(one)
                subscription.dead.append(one.message)
                continue
            batch.append(self._delivered(one, subscription))
        return batch

    def _delivered(self, one: Stored, subscription: Subscription) -> Any:
        one.ack_id = f"ack-{next(self._numbers)}"
        one.deadline = self._now() + subscription.deadline
        counted = 1 + one.given_back if subscription.max_attempts else 0
        return types.ReceivedMessage(ack_id=one.ack_id, message=one.message, delivery_attempt=counted)
