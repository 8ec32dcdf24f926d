"""The producer: a message is sent, and is there when `send` returns."""

import os
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, Self

import msgspec

from semel import errors
from semel.core.clock import Clock, SignalSafeLock
from semel.core.runtime import require
from semel.doors.amqp1.connection import CLOSE_SECONDS, BrokerConnection, ConnectionLoop, reason_of
from semel.doors.amqp1.endpoint import endpoint_of
from semel.errors import (
    AddressRefused,
    BrokerError,
    BrokerUnavailable,
    SendOutcomeUnknown,
    SendRefused,
)

OUTCOMES = ("ACCEPTED", "REJECTED", "RELEASED", "MODIFIED")


class Sending(msgspec.Struct, eq=False):
    """A message on its way."""

    address: str
    data: bytes
    answer: Future[None] = msgspec.field(default_factory=Future)

    def end(self, error: BrokerError | None = None) -> None:
        """What came of it, said once."""
        self.data = b""
        try:
            if error is None:
                self.answer.set_result(None)
            else:
                self.answer.set_exception(error)
        except InvalidStateError:  # whoever asked has gone, or was told before
            return


class SenderLink(msgspec.Struct, eq=False):
    """A link to one address."""

    address: str
    link: Any = None
    """There once the broker has let us in."""
    waiting: deque[Sending] = msgspec.field(default_factory=deque)
    unanswered: dict[Any, Sending] = {}

    def push(self) -> None:
        """Send as much as the broker takes."""
        while self.waiting and self.link is not None and self.link.credit > 0:
            sending = self.waiting.popleft()
            if not sending.answer.done():  # whoever asked may have gone
                delivery = self.link.delivery(self.link.delivery_tag())
                self.unanswered[delivery.tag] = sending
                self.link.stream(sending.data)
                self.link.advance()

    def fail(self, unsent: BrokerError, reason: str) -> None:
        """Nothing more can be sent here, and no answer comes."""
        for sending in self.waiting:
            sending.end(unsent)
        for sending in self.unanswered.values():
            sending.end(SendOutcomeUnknown(self.address, reason))


class Producer:
    """Sends messages to a broker over one connection, which is made when it is first needed.

    Any number of threads may send. `timeout` is how long the broker may take to answer, in seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        keepalive: float = 30.0,
        capability: str | None = "queue",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        endpoint = endpoint_of(url, tls)
        self._proton = require("proton", "amqp")
        self._timeout = timeout
        self._start = partial(SenderThread, partial(BrokerConnection, endpoint, keepalive), capability)
        self._lock = SignalSafeLock()
        self._sender: SenderThread | None = None
        self._closed = False

    def send(
        self,
        address: str,
        body: Any,
        *,
        key: str,
        group: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a message, and return when the broker has confirmed that it has it.

        `key` becomes its `message-id`, by which whoever handles messages once knows a second one. `body` is
        a text, bytes, or anything AMQP has a type for; or a `proton.Message` of your own.
        """
        self._submit(address, self._encoded(body, key, group, properties)).result()

    async def asend(
        self,
        address: str,
        body: Any,
        *,
        key: str,
        group: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a message, and return to whoever awaits it when the broker has confirmed that it has it."""
        import asyncio

        await asyncio.wrap_future(self._submit(address, self._encoded(body, key, group, properties)))

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._closed = True
            thread, self._sender = self._sender, None
        if thread is not None and thread.pid == os.getpid():
            thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _encoded(self, body: Any, key: str, group: str | None, properties: Mapping[str, Any] | None) -> bytes:
        message = body
        if not isinstance(body, self._proton.Message):
            # Bytes go as they are, so that clients of other protocols can read them.
            message = self._proton.Message(body=body, inferred=isinstance(body, bytes), durable=True)
        message.id = key
        if group is not None:
            message.group_id = group
        if properties is not None:
            message.properties = dict(properties)
        try:
            data: bytes = message.encode()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise errors.InvalidPayload(
                f"AMQP has no type for something in this message: {reason}"
            ) from error
        return data

    def _submit(self, address: str, data: bytes) -> "Future[None]":
        sending = Sending(address, data)
        with self._lock:
            if self._closed:
                raise errors.UsageError("this producer is closed: make another")
            # A child of a fork has no thread, and must not use its parent's connection.
            if self._sender is None or self._sender.pid != os.getpid():
                self._sender = self._start()
            self._sender.take(sending, self._timeout)
        return sending.answer


class SenderThread:
    """The thread that sends, and what it knows; everything but `take` and `close` is called by it."""

    def __init__(self, connect: Callable[[], BrokerConnection], capability: str | None) -> None:
        self.pid: int = os.getpid()
        self._connect, self._capability = connect, capability
        self._loop = ConnectionLoop(Clock())
        self._loop.open()
        self.broker: BrokerConnection | None = None
        self._links: dict[str, SenderLink] = {}
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="semel-amqp", daemon=True)
        self._thread.start()

    def take(self, sending: Sending, timeout: float) -> None:
        """Send this; from any thread."""
        self._loop.ask(partial(self._send, sending, timeout))

    def close(self) -> None:
        """Say goodbye; from any thread but its own."""
        self._loop.ask(self._leave)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._loop.over:
                try:
                    self._loop.turn(self)
                except Exception as error:  # noqa: BLE001 - whoever waits for an answer has to get one
                    self._lost(f"{type(error).__name__}: {error}")
        finally:
            self._lost("the connection is closed")
            self._loop.close()

    def _send(self, sending: Sending, timeout: float) -> None:
        try:
            sender = self._link_to(sending.address)
        except BrokerError as error:
            sending.end(error)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            sending.end(BrokerUnavailable(f"nothing was sent: {type(error).__name__}: {error}"))
            return
        sender.waiting.append(sending)
        sender.push()
        self._loop.later(timeout, partial(self._expire, sender, sending))

    def _link_to(self, address: str) -> SenderLink:
        if self.broker is None:
            self.broker = self._connect()
        if address not in self._links:
            self._links[address] = SenderLink(address)
            self._attach(self.broker)
        return self._links[address]

    def on_connection_remote_open(self, broker: BrokerConnection, connection: Any) -> None:
        """The broker lets us in; there are some that do not take more before they have said so."""
        self._attach(broker)

    def _attach(self, broker: BrokerConnection) -> None:
        if broker.connection.state & broker.proton.Endpoint.REMOTE_ACTIVE:
            for sender in self._links.values():
                sender.link = sender.link or broker.sender(sender.address, self._capability)

    def _expire(self, sender: SenderLink, sending: Sending) -> None:
        if sending.answer.done():
            return
        if sending in sender.waiting:
            sender.waiting.remove(sending)
            sending.end(
                BrokerUnavailable(f"the broker takes no message for {sending.address!r}; none was sent")
            )
        else:
            sending.end(SendOutcomeUnknown(sending.address, "the broker has not answered in time"))

    def on_link_flow(self, broker: BrokerConnection, link: Any) -> None:
        """The broker takes more."""
        if (sender := self._links.get(link.name)) is not None:
            sender.push()

    def on_delivery(self, broker: BrokerConnection, delivery: Any) -> None:
        """The broker's answer."""
        sender = self._links.get(delivery.link.name)
        if sender is None or not delivery.remote_state:
            return
        kinds = broker.proton.Delivery
        outcome = next((name for name in OUTCOMES if delivery.remote_state == getattr(kinds, name)), None)
        if outcome is None and not delivery.settled:
            return
        sending = sender.unanswered.pop(delivery.tag, None)
        if sending is not None:
            sending.end(_verdict(sending.address, outcome, delivery))
        delivery.settle()

    def on_link_remote_close(self, broker: BrokerConnection, link: Any) -> None:
        """The address is refused, or is there no longer."""
        self._refused(link.name, reason_of(link.remote_condition))
        link.close()

    on_link_remote_detach = on_link_remote_close

    def on_session_remote_close(self, broker: BrokerConnection, session: Any) -> None:
        """RabbitMQ before 4 refuses an address by ending the session."""
        for address in [
            name for name, sender in self._links.items() if sender.link and sender.link.session == session
        ]:
            self._refused(address, reason_of(session.remote_condition))
        session.close()

    def _refused(self, address: str, reason: str) -> None:
        sender = self._links.pop(address, None)
        if sender is not None:
            sender.fail(AddressRefused(address, reason), reason)

    def on_connection_remote_close(self, broker: BrokerConnection, connection: Any) -> None:
        """The broker goes."""
        self._lost(reason_of(connection.remote_condition))

    def on_transport_closed(self, broker: BrokerConnection, transport: Any) -> None:
        """The connection is lost."""
        self._lost(reason_of(transport.condition))

    def _lost(self, reason: str) -> None:
        links, self._links = self._links, {}
        for sender in links.values():
            sender.fail(BrokerUnavailable(f"the broker is lost: {reason}; nothing was sent"), reason)
        if self.broker is not None:
            self.broker.close()
            self.broker = None
        self._loop.over = self._loop.over or self._leaving

    def _leave(self) -> None:
        self._leaving = True
        if self.broker is None:
            self._loop.over = True
            return
        self.broker.connection.close()
        self._loop.later(CLOSE_SECONDS, partial(self._lost, "it said no farewell"))


def _verdict(address: str, outcome: str | None, delivery: Any) -> BrokerError | None:
    if outcome == "ACCEPTED":
        return None
    if outcome is None:
        return SendOutcomeUnknown(address, "the broker settled it without an outcome")
    condition = delivery.remote.condition
    return SendRefused(address, outcome.lower(), reason_of(condition) if condition is not None else "")
