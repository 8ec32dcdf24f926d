"""An address as a consumer deals with it: a link over which messages come, and by which they are settled."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Self

from semel.core.clock import Clock
from semel.core.events import Events, What
from semel.core.runtime import require
from semel.doors.amqp1.connection import CLOSE_SECONDS, BrokerConnection, ConnectionLoop, reason_of
from semel.doors.amqp1.endpoint import BrokerEndpoint
from semel.doors.queues.consuming import Broker
from semel.doors.queues.dispatcher import Acknowledge, DeadLetter, InFlight, QueueSettlement
from semel.doors.queues.steps import BlockingCall, ConsumerSteps
from semel.errors import AddressRefused, BrokerError, BrokerUnavailable

# How long a broker may take to open the link that was asked for.
ATTACH_SECONDS = 30.0
MODIFIED = "amqp:modified:list"


class AmqpReceiver(Broker[Any]):
    """A link from an address; all but `settle` and `wake` is called by the thread that receives."""

    def __init__(
        self,
        endpoint: BrokerEndpoint,
        address: str,
        *,
        group: Callable[[Any], Hashable],
        keepalive: float,
        capability: str | None,
        clock: Clock,
        events: Events,
    ) -> None:
        self.passing: tuple[type[Exception], ...] = ()
        self.name: str = f"amqp {endpoint}"
        self._proton = require("proton", "amqp")
        self._endpoint, self._address, self._group = endpoint, address, group
        self._keepalive, self._capability, self._events = keepalive, capability, events
        self.loop: ConnectionLoop = ConnectionLoop(clock)
        self.broker: BrokerConnection | None = None
        self._link: Any = None
        self._arrived: list[InFlight[Any]] = []
        self._attached = self._counts = self._leaving = False
        self._error: BrokerError | None = None

    def __enter__(self) -> Self:
        self.loop.open()
        return self

    def __exit__(self, *error: object) -> None:
        self._hang_up()
        self.loop.close()

    def receive(self, many: int) -> ConsumerSteps[list[InFlight[Any]] | None]:
        """What has come, or nothing where there was something else to do."""
        received: list[InFlight[Any]] | None = yield BlockingCall(partial(self._receive, many))
        return received

    def _receive(self, many: int) -> list[InFlight[Any]] | None:
        if self.broker is None:
            self._connect()
        if self._attached and many > self._link.credit:
            self._link.flow(many - self._link.credit)
        self.loop.turn(self)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        arrived, self._arrived = self._arrived, []
        return arrived if self._attached else None

    def settle(self, settlements: list[QueueSettlement]) -> ConsumerSteps[list[QueueSettlement]]:
        """Have the receiving thread tell the broker, as proton is not made for two."""
        yield BlockingCall(partial(self.loop.ask, partial(self._settle, settlements)))
        return []

    def _settle(self, settlements: list[QueueSettlement]) -> None:
        for one in settlements:
            broker, delivery = one.one.tag
            if broker is self.broker:  # else its connection is gone, and it comes again
                self._update(delivery, *self._outcome(one))
        self.loop.hurry()  # there is room for more

    def _outcome(self, one: QueueSettlement) -> tuple[str, str]:
        if isinstance(one, Acknowledge):
            return "ACCEPTED", ""
        if isinstance(one, DeadLetter):
            return "REJECTED", one.taken.error_type
        # Only where the broker says that it knows the word: some take it for an acknowledgement.
        return "MODIFIED" if one.counted and self._counts else "RELEASED", ""

    def _update(self, delivery: Any, outcome: str, error_type: str) -> None:
        if outcome == "REJECTED":
            delivery.local.condition = self._proton.Condition("amqp:internal-error", error_type)
        if outcome == "MODIFIED":
            delivery.local.failed = True
        delivery.update(getattr(self._proton.Delivery, outcome))
        delivery.settle()

    def wake(self) -> None:
        """Return from `receive`; from any thread."""
        self.loop.ask(self.loop.hurry)

    def close(self) -> ConsumerSteps[None]:
        """Say goodbye, after all that is to be settled."""
        yield BlockingCall(self._close)

    def _close(self) -> None:
        # The credit that is left was used up by what came and was given back. Draining the link would be the
        # protocol's way, and ends the session on RabbitMQ 3.
        self._leaving = True
        if self.broker is None or self._link is None:
            return
        # First the link: RabbitMQ closes a connection before it has read the last settlements in it.
        self.loop.ask(self._link.close)
        self.loop.later(CLOSE_SECONDS, self._end)
        while not self.loop.over and self.broker is not None:
            self.loop.turn(self)

    def _end(self) -> None:
        self.loop.over = True

    # Coming and going

    def _connect(self) -> None:
        self.broker = BrokerConnection(self._endpoint, self._keepalive)
        self.loop.later(ATTACH_SECONDS, partial(self._unless_attached, self.broker))

    def on_connection_remote_open(self, broker: BrokerConnection, connection: Any) -> None:
        """The broker lets us in; there are some that do not take more before they have said so."""
        self._link = broker.receiver(self._address, self._capability)

    def _unless_attached(self, broker: BrokerConnection) -> None:
        unopened = self._proton.Endpoint.REMOTE_UNINIT
        if broker is self.broker and (self._link is None or self._link.state & unopened):
            self._lost(BrokerUnavailable(f"{self._endpoint} has not opened {self._address!r}"))

    def on_link_remote_open(self, broker: BrokerConnection, link: Any) -> None:
        """The broker knows the address; or it says so, and refuses it with the next word."""
        if link.remote_source.address is not None:
            self._counts = MODIFIED in _symbols(link.remote_source.outcomes)
            self._attached = True
            self.passing = (BrokerError,)  # from now on it is known to be there
            self.loop.hurry()

    def on_delivery(self, broker: BrokerConnection, delivery: Any) -> None:
        """A message, or a part of one."""
        if delivery.aborted:
            delivery.settle()
            self.loop.hurry()
        elif delivery.readable and not delivery.partial:
            self._arrive(broker, delivery)
            self.loop.hurry()

    def _arrive(self, broker: BrokerConnection, delivery: Any) -> None:
        data = delivery.link.recv(delivery.pending)
        delivery.link.advance()
        try:
            message = self._proton.Message()
            message.decode(data)
            group, deliveries = self._group(message), message.delivery_count + 1
            hash(group)
        except Exception as error:  # noqa: BLE001 - it cannot be read, or its group cannot be told
            self._events.warn(What.REFUSED, "", detail=f"an unreadable message: {type(error).__name__}")
            self._update(delivery, "REJECTED", type(error).__name__)
        else:
            tag = (broker, delivery)
            self._arrived.append(InFlight(message, group=group, deliveries=deliveries, tag=tag))

    def on_session_remote_close(self, broker: BrokerConnection, session: Any) -> None:
        """RabbitMQ before 4 refuses an address by ending the session."""
        self._lost(AddressRefused(self._address, reason_of(session.remote_condition)))

    def on_link_remote_close(self, broker: BrokerConnection, link: Any) -> None:
        """The address is refused, or is there no longer; or this is the answer to our farewell."""
        if self._leaving:
            broker.connection.close()
        else:
            self._lost(AddressRefused(self._address, reason_of(link.remote_condition)))

    on_link_remote_detach = on_link_remote_close

    def on_connection_remote_close(self, broker: BrokerConnection, connection: Any) -> None:
        """The broker goes."""
        self._lost(BrokerUnavailable(f"{self._endpoint} closed: {reason_of(connection.remote_condition)}"))

    def on_transport_closed(self, broker: BrokerConnection, transport: Any) -> None:
        """The connection is lost."""
        self._lost(BrokerUnavailable(f"{self._endpoint} is lost: {reason_of(transport.condition)}"))

    def _lost(self, error: BrokerError) -> None:
        self._error = self._error or error
        self._hang_up()

    def _hang_up(self) -> None:
        if self.broker is not None:
            self.broker.close()
        self.broker = self._link = None
        self._attached = False
        self._arrived.clear()


def _symbols(data: Any) -> set[str]:
    """What an array of symbols holds."""
    data.rewind()
    found = data.get_object() if data.next() else None
    return {str(one) for one in getattr(found, "elements", (found,))}
