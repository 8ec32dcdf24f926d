"""The consumer: messages come in by one thread, are handled by others, and are settled by the first."""

import inspect
import itertools
import queue
import random
import ssl
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Unpack
from uuid import UUID

from semel import errors
from semel.clock import Clock
from semel.connect import Semel
from semel.doors.amqp1.lanes import Item, Lanes
from semel.doors.amqp1.place import place_of
from semel.doors.amqp1.wire import FAREWELL_SECONDS, Loop, Wire, reason_of
from semel.doors.queues.messages import Handler, Taken, Verdict, doubling
from semel.errors import AddressRefused, BrokerError, BrokerUnavailable
from semel.events import What
from semel.extras import require
from semel.keys import Key
from semel.policy import Options

# A message that is not handled now is held for so long at most before it is tried, or given back.
LONGEST_HOLD = 30.0
# How long to leave a broker alone that does not answer: doubled each time, up to this, and spread.
LONGEST_REST = 30.0
FIRST_REST = 0.2
# How long a broker may take to open the link that was asked for.
ATTACH_SECONDS = 30.0
MODIFIED = "amqp:modified:list"


patience = doubling(LONGEST_HOLD)


def by_message_id(address: str, message: Any) -> str:
    """The usual key: where a message came from, and its `message-id`."""
    found = message.id
    if found is None or found == "":
        raise errors.InvalidKey("the message has no message-id: have its sender give it one, or pass key=")
    if isinstance(found, bytes | memoryview):
        found = found.hex()
    return Key("amqp", address, str(found) if isinstance(found, UUID) else found)


def group_id(message: Any) -> str | None:
    """The usual group: the message's `group-id`, or none."""
    return message.group_id or None


class Consumer:
    """Takes the messages of an address, and has each handled once, in `workers` threads.

    `handle` is given proton's `Message`. `key` names a message, and `fingerprint` what must not change under
    that name. Messages of one `group` are handled in order. `prefetch` is how many messages are in hand at a
    time. `backoff` says for how many seconds a message stays away that was tried so many times and failed.
    `capability` is what the address stands for, which some brokers have to be told. A consumer runs once.
    """

    def __init__(
        self,
        s: Semel,
        url: str,
        address: str,
        handle: Callable[[Any], Any],
        *,
        key: Callable[[Any], str] | None = None,
        fingerprint: Callable[[Any], Any] | None = None,
        group: Callable[[Any], Hashable] = group_id,
        workers: int = 1,
        prefetch: int = 10,
        backoff: Callable[[int], float] = patience,
        keepalive: float = 30.0,
        capability: str | None = "queue",
        tls: ssl.SSLContext | None = None,
        **options: Unpack[Options],
    ) -> None:
        if inspect.iscoroutinefunction(handle):
            raise errors.InvalidOption("the handler is an async function; this consumer runs plain ones")
        if workers < 1 or prefetch < 1:
            raise errors.InvalidOption("workers and prefetch are at least 1")
        self._place = place_of(url, tls)
        self._address, self._keepalive, self._capability = address, keepalive, capability
        self._group, self._backoff, self._workers = group, backoff, workers
        self._prefetch = max(prefetch, workers)
        self._handler: Handler[Any] = Handler(
            s,
            handle,
            key=key or partial(by_message_id, address),
            fingerprint=fingerprint,
            door="amqp",
            **options,
        )
        self._proton = require("proton", "amqp")
        self._loop = Loop(Clock())
        self._lanes = Lanes()
        self._inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._unsettled: dict[int, Any] = {}  # proton's delivery of every message in hand
        self.wire: Wire | None = None
        self._receiver: Any = None
        self._under_way: set[int] = set()
        self._failures = 0
        self._attached = self._stopping = self._begun = self._counts = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Handle messages until `stop` is called; a connection that is lost is made again.

        A broker or an address that refuses before anything came of it is an error, as is a handler's
        `SystemExit` and its like.
        """
        if self._begun:
            raise errors.UsageError("a consumer runs once: make another")
        self._begun = True
        self._loop.open()
        crew = [threading.Thread(target=self._work, daemon=True) for _ in range(self._workers)]
        try:
            for worker in crew:
                worker.start()
            self._connect()
            while not self._loop.over:
                self._loop.turn(self)
        finally:
            self._forget()
            for _ in crew:
                self._inbox.put(None)
            for worker in crew:
                worker.join()
            self._loop.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin nothing new: what runs is finished, what has not begun is given back, and `run` returns.

        It may be called from anywhere, a signal handler included. `s.drain()` has the same effect, once there
        is a message that could have been begun.
        """
        self._loop.ask(self._stop)

    # Handling, in threads of its own

    def _work(self) -> None:
        while (item := self._inbox.get()) is not None:
            try:
                taken = self._handler.take(item.message)
            except BaseException as error:  # noqa: BLE001 - raised again by run()
                self._loop.ask(partial(self._fail, item, error))
            else:
                self._loop.ask(partial(self._handled, item, taken))

    # All that follows is called by the thread of run()

    def _handled(self, item: Item, taken: Taken) -> None:
        self._under_way.discard(item.number)
        if taken.stops:
            self._stop()
        if item.number in self._unsettled:  # else its connection is gone, and it comes again
            self._settle(item, taken)
        self._dispatch()

    def _fail(self, item: Item, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stop()
        self._handled(item, Taken(Verdict.FAILED))

    def _settle(self, item: Item, taken: Taken) -> None:
        if taken.settled:
            self._leave(item, "ACCEPTED")
        elif taken.verdict is Verdict.DEAD:
            self._leave(item, "REJECTED", taken.error)
        elif self._stopping:
            self._give_back(item, taken.verdict)
        else:
            self._hold(item, taken)

    def _hold(self, item: Item, taken: Taken) -> None:
        """Keep it for a while, so that it does not come back at once and for nothing.

        One of a group is tried again here: given back, it would come after those that are on their way.
        """
        item.tries += 1
        before = item.tries if item.group is not None else item.message.delivery_count + 1
        wanted = self._backoff(before) if taken.retry_after is None else taken.retry_after
        seconds = min(LONGEST_HOLD, max(0.0, wanted))
        then = (
            partial(self._give_back, item, taken.verdict)
            if item.group is None
            else partial(self._again, item)
        )
        self._loop.later(seconds, then)

    def _again(self, item: Item) -> None:
        if item.number in self._unsettled:
            self._lanes.again(item)
            self._dispatch()

    def _give_back(self, item: Item, verdict: Verdict) -> None:
        if item.number not in self._unsettled:
            return
        # Only where the broker says that it knows the word: some take it for an acknowledgement.
        counted = verdict is Verdict.FAILED and self._counts
        self._leave(item, "MODIFIED" if counted else "RELEASED")
        self._dispatch()

    def _leave(self, item: Item, outcome: str, error: BaseException | None = None) -> None:
        self._update(self._unsettled.pop(item.number), outcome, error)
        if not self._stopping:
            self._lanes.leave(item)

    def _update(self, delivery: Any, outcome: str, error: BaseException | None = None) -> None:
        proton = self._proton
        if outcome == "REJECTED":
            delivery.local.condition = proton.Condition("amqp:internal-error", type(error).__name__)
        if outcome == "MODIFIED":
            delivery.local.failed = True
        delivery.update(getattr(proton.Delivery, outcome))
        delivery.settle()
        if not self._stopping:
            self._receiver.flow(1)

    def _dispatch(self) -> None:
        """Let the next ones begin, as many as there are hands."""
        while len(self._under_way) < self._workers and not self._stopping:
            item = self._lanes.next()
            if item is None:
                return
            self._under_way.add(item.number)
            self._inbox.put(item)
        if self._stopping and not self._under_way:
            self._say_farewell()

    # Coming and going

    def _connect(self) -> None:
        if self._stopping:
            return
        try:
            self.wire = Wire(self._place, self._keepalive)
        except BrokerUnavailable as error:
            self._lost(error)
            return
        self._loop.later(ATTACH_SECONDS, partial(self._unless_attached, self.wire))

    def on_connection_remote_open(self, wire: Wire, connection: Any) -> None:
        """The broker lets us in; there are some that do not take more before they have said so."""
        session = connection.session()
        session.open()
        self._receiver = receiver = session.receiver(self._address)
        receiver.source.address = self._address
        if self._capability is not None:
            receiver.source.capabilities.put_object(self._proton.symbol(self._capability))
        receiver.snd_settle_mode = self._proton.Link.SND_UNSETTLED
        receiver.open()

    def _unless_attached(self, wire: Wire) -> None:
        receiver, unopened = self._receiver, self._proton.Endpoint.REMOTE_UNINIT
        if wire is self.wire and (receiver is None or receiver.state & unopened):
            self._lost(BrokerUnavailable(f"{self._place} has not opened {self._address!r}"))

    def on_link_remote_open(self, wire: Wire, link: Any) -> None:
        """The broker knows the address; or it says so, and refuses it with the next word."""
        if link.remote_source.address is None:
            return
        self._counts = MODIFIED in _symbols(link.remote_source.outcomes)
        self._attached, self._failures = True, 0
        if not self._stopping:
            link.flow(self._prefetch)

    def on_delivery(self, wire: Wire, delivery: Any) -> None:
        """A message, or a part of one."""
        if delivery.aborted:
            delivery.settle()
            self._receiver.flow(1)
        elif delivery.readable and not delivery.partial:
            self._arrive(delivery)

    def _arrive(self, delivery: Any) -> None:
        link = delivery.link
        data = link.recv(delivery.pending)
        link.advance()
        if self._stopping:
            self._update(delivery, "RELEASED")
            return
        try:
            message = self._proton.Message()
            message.decode(data)
            item = Item(next(self._numbers), message, self._group(message))
            self._unsettled[item.number] = delivery
            self._lanes.arrive(item)
        except Exception as error:  # noqa: BLE001 - it cannot be read, or its group cannot be told
            self._handler.s.events.warn(
                What.REFUSED, "", detail=f"an unreadable message: {type(error).__name__}"
            )
            self._update(delivery, "REJECTED", error)
        self._dispatch()

    def on_session_remote_close(self, wire: Wire, session: Any) -> None:
        """RabbitMQ before 4 refuses an address by ending the session."""
        self._refused(reason_of(session.remote_condition))

    def on_link_remote_close(self, wire: Wire, link: Any) -> None:
        """The address is refused, or is there no longer; or this is the answer to our farewell."""
        if self._stopping:
            wire.connection.close()
        else:
            self._refused(reason_of(link.remote_condition))

    on_link_remote_detach = on_link_remote_close

    def on_connection_remote_close(self, wire: Wire, connection: Any) -> None:
        """The broker goes."""
        if self._stopping:
            self._loop.over = True
        else:
            self._lost(BrokerUnavailable(f"{self._place} closed: {reason_of(connection.remote_condition)}"))

    def on_transport_closed(self, wire: Wire, transport: Any) -> None:
        """The connection is lost."""
        self._lost(BrokerUnavailable(f"{self._place} is lost: {reason_of(transport.condition)}"))

    def _refused(self, reason: str) -> None:
        self._lost(AddressRefused(self._address, reason))

    def _lost(self, error: BrokerError) -> None:
        """Everything in hand comes again; what runs is found done, or under way, when it does."""
        self._forget()
        if self._stopping:
            self._dispatch()
        elif not self._attached:
            self._failure, self._loop.over = error, True
        else:
            rest = min(LONGEST_REST, FIRST_REST * 2**self._failures) * random.uniform(0.5, 1.0)  # noqa: S311
            self._failures = min(self._failures + 1, 10)
            _warn(f"{error}; trying again in {rest:.1f} s")
            self._loop.later(rest, self._connect)

    def _forget(self) -> None:
        if self.wire is not None:
            self.wire.close()
        self.wire = self._receiver = None
        self._unsettled.clear()
        self._lanes.clear()

    def _stop(self) -> None:
        if self._stopping:
            return
        # The credit that is left is used up by what comes and is given back. Draining the link would be the
        # protocol's way, and ends the session on RabbitMQ 3.
        self._stopping = True
        for number in self._unsettled.keys() - self._under_way:
            self._update(self._unsettled.pop(number), "RELEASED")
        self._lanes.clear()
        self._dispatch()

    def _say_farewell(self) -> None:
        if self.wire is None or self._receiver is None:
            self._end()
        elif not self._receiver.state & self._proton.Endpoint.LOCAL_CLOSED:
            # First the link: RabbitMQ closes a connection before it has read the last settlements in it.
            self._receiver.close()
            self._loop.later(FAREWELL_SECONDS, self._end)

    def _end(self) -> None:
        self._loop.over = True


def _symbols(data: Any) -> set[str]:
    """What an array of symbols holds."""
    data.rewind()
    found = data.get_object() if data.next() else None
    return {str(one) for one in getattr(found, "elements", (found,))}


def _warn(text: str) -> None:
    from logging import getLogger

    getLogger("semel").warning("amqp: %s", text)
