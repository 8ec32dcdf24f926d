"""The other end of an AMQP 1.0 connection, for what a real broker says too seldom or never."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from proton import (  # type: ignore[import-not-found,unused-ignore]
    Condition,
    Delivery,
    Message,
    symbol,
)
from proton.handlers import MessagingHandler  # type: ignore[import-not-found,unused-ignore]
from proton.reactor import (  # type: ignore[import-not-found,unused-ignore]
    ApplicationEvent,
    Container,
    EventInjector,
)

from tests.servers.running import HOST, free_port

MODIFIED = symbol("amqp:modified:list")


class Peer(MessagingHandler):  # type: ignore[misc,unused-ignore]
    """Answers what is sent to it by `answer`, and sends `messages` to whoever asks for some."""

    def __init__(
        self,
        answer: Callable[[Any], None] = lambda _: None,
        messages: tuple[Message, ...] = (),
        outcome: Any = None,
        silence: float | None = None,
    ) -> None:
        super().__init__(prefetch=10, auto_accept=False, auto_settle=False)
        self.port = free_port()
        self.url = f"amqp://{HOST}:{self.port}"
        self.received: list[Message] = []
        self.settled: list[tuple[Any, Any, bool]] = []
        self.connections = 0
        self.ready = threading.Event()
        self.injector = EventInjector()
        self._answer, self._messages, self._outcome, self._silence = (
            answer,
            list(messages),
            outcome,
            silence,
        )

    def on_start(self, event: Any) -> None:
        self._acceptor = event.container.listen(self.url)
        event.container.selectable(self.injector)
        self.ready.set()

    def on_connection_bound(self, event: Any) -> None:
        self.connections += 1
        if self._silence is not None:
            event.transport.idle_timeout = self._silence

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        if link.is_sender and self._outcome is not None:
            link.source.outcomes.put_object(self._outcome)

    def on_message(self, event: Any) -> None:
        self.received.append(event.message)
        self._answer(event.delivery)

    def on_sendable(self, event: Any) -> None:
        while self._messages and event.sender.credit:
            event.sender.send(self._messages.pop(0))

    def on_settled(self, event: Any) -> None:
        delivery = event.delivery
        self.settled.append((delivery.remote_state, delivery.remote.condition, delivery.remote.failed))

    def on_leave(self, event: Any) -> None:
        # Once its callers are gone too, there is nothing left to run for.
        self._acceptor.close()
        self.injector.close()


@contextmanager
def peer(*args: Any, **options: Any) -> Iterator[Peer]:
    one = Peer(*args, **options)
    thread = threading.Thread(target=Container(one).run)
    thread.start()
    assert one.ready.wait(60)
    try:
        yield one
    finally:
        one.injector.trigger(ApplicationEvent("leave"))
        thread.join()


def says(state: Any, reason: str = "") -> Callable[[Any], None]:
    """Settle what is sent with this outcome."""

    def answer(delivery: Any) -> None:
        if reason:
            delivery.local.condition = Condition("amqp:resource-limit-exceeded", reason)
        delivery.update(state)
        delivery.settle()

    return answer


def hangs_up(delivery: Any) -> None:
    """Be gone instead of answering."""
    delivery.connection.transport.close_tail()
    delivery.connection.transport.close_head()


__all__ = ["MODIFIED", "Delivery", "Message", "hangs_up", "peer", "says"]
