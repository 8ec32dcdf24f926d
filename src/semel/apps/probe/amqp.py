"""Queues of a broker that speaks AMQP 1.0."""

import math
import threading
from base64 import b64encode
from functools import partial
from logging import getLogger
from typing import Any

from semel.apps.probe.orders import OrderFailed, ProbeJob, ProbeReport, ReportedMessage, fitting
from semel.apps.probe.settings import Settings
from semel.core.clock import Clock
from semel.doors.amqp1 import AddressRefused, BrokerError, BrokerUnavailable, Producer, SendOutcomeUnknown
from semel.doors.amqp1.connection import CLOSE_SECONDS, BrokerConnection, ConnectionLoop, reason_of
from semel.doors.amqp1.endpoint import endpoint_of

KEEPALIVE = 30.0


class Amqp:
    """Queues of a broker."""

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._endpoint = endpoint_of(settings.broker)
        self._timeout = settings.broker_timeout
        self._room = settings.max_response
        self._repeats = settings.on_lapsed == "repeat"
        self._producer = Producer(settings.broker, timeout=settings.broker_timeout, keepalive=KEEPALIVE)
        self._receivers: set[MessageReceiver] = set()
        self._lock = threading.Lock()
        self._closed = False

    def produce(self, job: ProbeJob) -> ProbeReport:
        """Send the messages one after the other, each confirmed by the broker."""
        bodies = job.order.bodies
        for number, body in enumerate(bodies, 1):
            job.run.check()
            try:
                self._producer.send(job.order.address, body, key=job.name(number))
            except SendOutcomeUnknown:
                raise
            except Exception as error:
                # Where it may be sent again, all of it is, under the same ids.
                if number == 1 or (self._repeats and isinstance(error, BrokerUnavailable)):
                    raise
                partly = f"{number - 1} of {len(bodies)} messages were sent, and then: {error}"
                raise OrderFailed(partly) from error
        return job.report(len(bodies))

    def consume(self, job: ProbeJob) -> ProbeReport:
        """Take messages into hand; the broker is told that they are done with when the ledger has them."""
        order = job.order
        receiver = MessageReceiver(self._clock, order.address, order.max)
        self._watch(receiver)
        job.settle = partial(self._settle, receiver)
        receiver.receive(BrokerConnection(self._endpoint, KEEPALIVE), order.seconds, self._timeout)
        taken = fitting(receiver.messages, self._room)
        receiver.kept = len(taken)
        job.run.check()
        return job.report(len(taken), taken)

    def _watch(self, receiver: "MessageReceiver") -> None:
        with self._lock:
            if self._closed:
                receiver.stop()
            self._receivers.add(receiver)

    def _settle(self, receiver: "MessageReceiver", kept: bool) -> None:
        with self._lock:
            self._receivers.discard(receiver)
        try:
            receiver.finish(kept)
        except Exception as error:  # noqa: BLE001 - they come again to somebody, which is all that is lost
            getLogger("semel").warning("probe: the broker was not told: %s", type(error).__name__)

    def close(self) -> None:
        """Wait for no more messages, and let go of the connections."""
        with self._lock:
            self._closed = True
            for receiver in self._receivers:
                receiver.stop()
        self._producer.close()


class MessageReceiver:
    """Messages in hand, over a connection of their own: whatever happens to it, the broker has them back."""

    def __init__(self, clock: Clock, address: str, most: int) -> None:
        self.broker: BrokerConnection | None = None
        self.messages: list[ReportedMessage] = []
        self._address, self._most = address, most
        self._loop = ConnectionLoop(clock)
        self._deliveries: list[Any] = []
        self.kept = 0
        """So many of the first ones will have been reported; the others go back."""
        self._link: Any = None
        self._error: BrokerError | None = None
        self._seconds = 0.0
        self._attached = False

    def receive(self, broker: BrokerConnection, seconds: float, timeout: float) -> None:
        """Receive until there are enough messages, or the time is up."""
        self.broker, self._seconds = broker, seconds
        self._loop.open()
        self._loop.later(timeout, self._unless_attached)
        while not self._loop.over:
            self._loop.turn(self)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Wait for no more; from any thread."""
        self._loop.ask(self._enough)

    def finish(self, kept: bool) -> None:
        """Settle what is in hand, and let go of the connection."""
        broker = self.broker
        if broker is None:
            return
        try:
            if self._error is None:
                self._settle(broker, kept)
        finally:
            broker.close()
            self._loop.close()

    def _settle(self, broker: BrokerConnection, kept: bool) -> None:
        kinds = broker.proton.Delivery
        for number, delivery in enumerate(self._deliveries):
            delivery.update(kinds.ACCEPTED if kept and number < self.kept else kinds.RELEASED)
            delivery.settle()
        # First the link: RabbitMQ closes a connection before it has read the last settlements in it.
        self._link.close()
        self._loop.over = False
        self._loop.later(CLOSE_SECONDS, self._enough)
        while not self._loop.over:
            self._loop.turn(self)

    # Told by the loop

    def on_connection_remote_open(self, broker: BrokerConnection, connection: Any) -> None:
        """The broker lets us in."""
        self._link = broker.receiver(self._address, "queue")

    def on_link_remote_open(self, broker: BrokerConnection, link: Any) -> None:
        """The broker knows the address; or it says so, and refuses it with the next word."""
        if link.remote_source.address is not None:
            self._attached = True
            link.flow(self._most)
            self._loop.later(self._seconds, self._enough)

    def on_delivery(self, broker: BrokerConnection, delivery: Any) -> None:
        """A message, or a part of one."""
        if not delivery.readable or delivery.partial or delivery.aborted:
            return
        data = delivery.link.recv(delivery.pending)
        delivery.link.advance()
        if len(self._deliveries) < self._most and not self._loop.over:
            self._deliveries.append(delivery)
            self.messages.append(_read(broker.proton, data))
        if len(self._deliveries) >= self._most:
            self._enough()

    def on_link_remote_close(self, broker: BrokerConnection, link: Any) -> None:
        """The address is refused; or this is the answer to our farewell."""
        self._refused(link.remote_condition)

    on_link_remote_detach = on_link_remote_close

    def on_session_remote_close(self, broker: BrokerConnection, session: Any) -> None:
        """RabbitMQ before 4 refuses an address by ending the session."""
        self._refused(session.remote_condition)

    def on_connection_remote_close(self, broker: BrokerConnection, connection: Any) -> None:
        """The broker goes."""
        self._lost(reason_of(connection.remote_condition))

    def on_transport_closed(self, broker: BrokerConnection, transport: Any) -> None:
        """The connection is lost."""
        self._lost(reason_of(transport.condition))

    def _unless_attached(self) -> None:
        if not self._attached:
            self._lost("it has not opened the address in time")

    def _refused(self, condition: Any) -> None:
        self._fail(AddressRefused(self._address, reason_of(condition)))

    def _lost(self, reason: str) -> None:
        self._fail(BrokerUnavailable(f"the broker is lost: {reason}"))

    def _fail(self, error: BrokerError) -> None:
        self._error = self._error or error
        self._enough()

    def _enough(self) -> None:
        self._loop.over = True


# Messages as JSON has them


def _read(proton: Any, data: bytes) -> ReportedMessage:
    message = proton.Message()
    try:
        message.decode(data)
    except proton.ProtonException:  # whatever it is, it is reported, and holds up none behind it
        return ReportedMessage(None, _bytes(data))
    return ReportedMessage(None if message.id is None else str(_plain(message.id)), _plain(message.body))


def _plain(value: Any) -> Any:
    """A value of AMQP as JSON can tell it; bytes that are no text stand in base64."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else str(value)
        case bytes() | memoryview():
            return _bytes(bytes(value))
        case dict():
            return {str(_plain(name)): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return str(value)


def _bytes(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}
