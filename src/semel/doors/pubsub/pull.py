"""The consumer of a subscription: pulls messages, acknowledges them, and extends their deadlines.

It asks for messages one request at a time, and not over a stream: so no more are in hand than are wanted, and
of an ordering key, which Pub/Sub lends to one puller at a time, the rest comes when these are acknowledged.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from logging import getLogger
from math import ceil
from typing import Any, Final, Unpack

from semel import errors
from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.policy import Options
from semel.core.runtime import require
from semel.doors.pubsub.message import Message, by_message_id, remembered
from semel.doors.queues.backoff import broker_backoff, doubling
from semel.doors.queues.consuming import Broker, Consuming, QueueConsumer
from semel.doors.queues.dispatcher import (
    Acknowledge,
    Dispatcher,
    DispatchSettings,
    InFlight,
    QueueSettlement,
    Requeue,
)
from semel.doors.queues.messages import Handler, Verdict
from semel.doors.queues.runners import check_whole
from semel.doors.queues.steps import BlockingCall, ConsumerSteps

logger: Final = getLogger("semel")

# The deadlines, in seconds, that Pub/Sub takes; 0 gives a message back.
# https://docs.cloud.google.com/pubsub/docs/reference/rest/v1/projects.subscriptions/modifyAckDeadline
SHORTEST_DEADLINE: Final = 10
LONGEST_DEADLINE: Final = 600
LARGEST_PULL: Final = 1000
# What is not acknowledged comes again as a duplicate.
ACKNOWLEDGEMENTS: Final = 3
BEHIND_SECONDS: Final = 10.0
# A request that settles is over soon, or is sent again.
SETTLING_SECONDS: Final = 10.0
# What failed stays away for as long as a deadline can be, at most.
nack_backoff: Final = doubling(LONGEST_DEADLINE)


class Consumer(QueueConsumer[Message]):
    """Pulls the messages of a subscription, and has each handled once, in `workers` threads or tasks.

    `key` names a message, `fingerprint` what must not change under that name, and `person` whom it is about.
    Messages of one ordering key are handled in order. `batch` is how many are asked for at once, and `poll`
    how many seconds a request waits for the first. A message that is being handled is kept from others by
    deadlines of `ack_deadline` seconds, which are extended. `backoff` says for how many seconds a message
    stays away that was tried so many times and failed. `client` is a `SubscriberClient` of yours. A consumer
    runs once.
    """

    def __init__(
        self,
        s: Semel,
        subscription: str,
        handle: Callable[[Message], Any],
        *,
        client: Any = None,
        key: Callable[[Message], str] = by_message_id,
        fingerprint: Callable[[Message], Any] | None = None,
        person: Callable[[Message], str | None] = lambda _: None,
        workers: int = 1,
        batch: int = 10,
        poll: float = 10.0,
        ack_deadline: int = 60,
        backoff: Callable[[int], float] = nack_backoff,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        check_whole("workers", workers, 1, 1000)
        check_whole("batch", batch, 1, LARGEST_PULL)
        check_whole("ack_deadline", ack_deadline, SHORTEST_DEADLINE, LONGEST_DEADLINE)
        self._is_async = inspect.iscoroutinefunction(handle)
        handler = Handler(
            s,
            handle,
            key=key,
            fingerprint=fingerprint,
            person=person,
            door="pubsub",
            **remembered(options, s.ledger.steps.horizon),
        )
        settings = DispatchSettings(
            workers=workers,
            capacity=workers * batch,
            batch=batch,
            visibility=ack_deadline,
            backoff=backoff,
            dead_letters=False,  # the subscription has a policy for them, or keeps them
        )
        self._broker = SubscriptionBroker(subscription, client, poll=poll, ack_deadline=ack_deadline)
        dispatcher: Dispatcher[Message] = Dispatcher(settings, broker_backoff())
        self._consuming = Consuming(self._broker, dispatcher, handler, Clock().monotonic)

    def run(self) -> None:
        """Handle messages in threads until `stop` is called; a subscription that refuses is an error."""
        if self._is_async:
            raise errors.UsageError("the handler is an async function: await consumer.arun()")
        self._begin()
        try:
            self._run(self._consuming)
        finally:
            self._broker.hang_up()

    async def arun(self) -> None:
        """Handle messages in tasks; a cancellation interrupts them, and gives everything back."""
        self._begin()
        try:
            await self._arun(self._consuming)
        finally:
            self._broker.hang_up()

    def stop(self) -> None:
        """Begin nothing new: what runs is finished, what has not begun is given back, and `run` returns.

        It may be called from anywhere, a signal handler included. A request for messages that is under way
        is waited for: `poll` seconds at most.
        """
        super().stop()


class SubscriptionBroker(Broker[Message]):
    """A subscription as a consumer deals with it, by Google's own client."""

    passing: tuple[type[Exception], ...] = (errors.BrokerUnavailable,)

    def __init__(self, subscription: str, client: Any, *, poll: float, ack_deadline: int) -> None:
        pubsub: Any = require("google.cloud.pubsub_v1", "pubsub")
        self._api: Any = require("google.api_core.exceptions", "pubsub")
        self._auth: Any = require("google.auth.exceptions", "pubsub")
        self._subscription, self._poll, self._ack_deadline = _checked(subscription), poll, ack_deadline
        self.name: str = f"pubsub {subscription}"
        self._is_own = client is None
        with self._translated():
            self._client = pubsub.SubscriberClient() if client is None else client

    def receive(self, many: int) -> ConsumerSteps[list[InFlight[Message]] | None]:
        """So many messages at most, waiting for the first of them."""
        received: list[InFlight[Message]] = yield BlockingCall(partial(self._receive, many))
        return received

    def _receive(self, many: int) -> list[InFlight[Message]]:
        with self._translated():
            try:
                answer = self._client.pull(
                    subscription=self._subscription, max_messages=many, retry=None, timeout=self._poll
                )
            except self._api.DeadlineExceeded:
                return []  # nothing came
        received = [self._in_flight(one) for one in answer.received_messages]
        # The subscription's own deadline may be shorter than what is counted with here.
        self._change_deadlines(received, self._ack_deadline)
        return received

    def _in_flight(self, received: Any) -> InFlight[Message]:
        pulled = received.message
        message = Message(
            data=pulled.data,
            id=pulled.message_id,
            subscription=self._subscription,
            attributes=dict(pulled.attributes),
            ordering_key=pulled.ordering_key,
            published=pulled.publish_time,
            deliveries=max(1, received.delivery_attempt),
        )
        return InFlight(
            message,
            group=message.ordering_key or None,
            deliveries=message.deliveries,
            tag=received.ack_id,
        )

    def settle(self, settlements: list[QueueSettlement]) -> ConsumerSteps[list[QueueSettlement]]:
        """Acknowledge what is done, and have the rest delivered again when its time has come."""
        again: list[QueueSettlement] = yield BlockingCall(partial(self._settle, settlements))
        return again

    def _settle(self, settlements: list[QueueSettlement]) -> list[QueueSettlement]:
        for span, given_back in _spans([one for one in settlements if isinstance(one, Requeue)]).items():
            self._change_deadlines(given_back, span)
        done = [one for one in settlements if isinstance(one, Acknowledge)]
        if self._ask("acknowledge", [one.one for one in done]):
            return []
        return [Acknowledge(one.one, one.tries + 1) for one in done if one.tries < ACKNOWLEDGEMENTS]

    def renew(self, due: list[InFlight[Message]]) -> ConsumerSteps[dict[InFlight[Message], bool]]:
        """Keep messages from other subscribers."""
        done: bool = yield BlockingCall(partial(self._change_deadlines, due, self._ack_deadline))
        return {} if done else dict.fromkeys(due, False)

    def _change_deadlines(self, those: list[InFlight[Message]], span: int) -> bool:
        return self._ask("modify_ack_deadline", those, ack_deadline_seconds=span)

    def _ask(self, method: str, those: list[InFlight[Message]], **more: Any) -> bool:
        """Ask one thing of several messages; where it fails, nothing is lost: they come again."""
        try:
            for ids in _thousands(one.tag for one in those):
                with self._translated():
                    getattr(self._client, method)(
                        subscription=self._subscription,
                        ack_ids=ids,
                        retry=None,
                        timeout=SETTLING_SECONDS,
                        **more,
                    )
        except errors.BrokerError as error:
            logger.warning("%s: %s failed. %s", self.name, method, error)
            return False
        return True

    def hang_up(self) -> None:
        """Close the connection, if it was made here; messages are settled until the very end."""
        if self._is_own:
            self._client.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Google's errors as semel's; a deadline is for the caller to judge."""
        api = self._api
        try:
            yield
        except (api.NotFound, api.PermissionDenied, api.Unauthenticated, api.InvalidArgument) as error:
            raise errors.AddressRefused(self._subscription, error.message) from error
        except self._auth.DefaultCredentialsError as error:
            raise errors.AddressRefused(self._subscription, str(error)) from error
        except (api.GoogleAPIError, self._auth.GoogleAuthError) as error:
            raise errors.BrokerUnavailable(f"{self.name} cannot be reached: {error}") from error


def _spans(requeued: list[Requeue]) -> dict[int, list[InFlight[Message]]]:
    """The messages that come again, by the seconds after which they do.

    Those behind a message of their key come again with it. So they are not given back themselves, which the
    subscription would count as attempts at them: their deadline is a little later than the message's own.
    """
    firsts = {one.one.group: one.seconds for one in requeued if not _is_behind(one)}
    spans: dict[int, list[InFlight[Message]]] = {}
    for one in requeued:
        seconds = one.seconds
        if _is_behind(one) and one.one.group in firsts:
            seconds = firsts[one.one.group] + BEHIND_SECONDS
        spans.setdefault(min(LONGEST_DEADLINE, ceil(seconds)), []).append(one.one)
    return spans


def _is_behind(requeued: Requeue) -> bool:
    return requeued.one.taken.verdict is Verdict.BEHIND


def _checked(subscription: str) -> str:
    match subscription.split("/"):
        case ["projects", project, "subscriptions", name] if project and name:
            return subscription
    raise errors.InvalidOption(
        f"{subscription!r} is no subscription: its whole name is projects/PROJECT/subscriptions/NAME"
    )


def _thousands(ids: Iterable[str]) -> Iterator[list[str]]:
    """As many as one request may name: they are about 200 bytes each, and it may have 512 KiB."""
    left = list(ids)
    for start in range(0, len(left), LARGEST_PULL):
        yield left[start : start + LARGEST_PULL]
