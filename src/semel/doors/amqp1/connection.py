"""One connection and the loop of the thread that serves it: bytes are moved, and listeners are called.

The protocol is proton's; its socket is ours. proton's objects are touched by the one thread that runs the
loop, since they are not made for two; other threads ask it to call them.
"""

import heapq
import itertools
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from semel.core.clock import Clock
from semel.core.runtime import require
from semel.doors.amqp1.endpoint import BrokerEndpoint
from semel.errors import BrokerUnavailable

# How long a broker may take to let us connect.
CONNECT_SECONDS = 10.0
# How long to wait for its end of the connection to close, after ours.
CLOSE_SECONDS = 5.0
CHUNK = 65536
# poll() where there is one, since select() knows no more than a thousand files.
Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


def open_socket(endpoint: BrokerEndpoint) -> socket.socket:
    """A socket to the broker, encrypted where its URL says so."""
    try:
        opened = socket.create_connection((endpoint.host, endpoint.port), timeout=CONNECT_SECONDS)
    except (OSError, UnicodeError) as error:  # the second for a host name that cannot be one
        raise BrokerUnavailable(f"no broker answers at {endpoint}: {error}") from error
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.tls is not None:
            opened = endpoint.tls.wrap_socket(opened, server_hostname=endpoint.host)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise BrokerUnavailable(f"{endpoint} and this side agree on no encryption: {error}") from error
    return opened


class BrokerConnection:
    """A connection to a broker."""

    def __init__(self, endpoint: BrokerEndpoint, keepalive: float) -> None:
        proton = require("proton", "amqp")
        self.proton: Any = proton
        self._socket = open_socket(endpoint)
        connection = proton.Connection()
        self.connection: Any = connection
        connection.container = str(uuid4())
        connection.hostname = endpoint.hostname
        transport = proton.Transport()
        self.transport: Any = transport
        self._collector = proton.Collector()
        connection.collect(self._collector)
        transport.idle_timeout = keepalive
        sasl = transport.sasl()
        sasl.allow_insecure_mechs = True  # whether there is TLS was said in the URL, and is ours to add
        sasl.allowed_mechs("ANONYMOUS" if endpoint.user is None else "PLAIN")
        if endpoint.user is not None:
            connection.user = endpoint.user
            connection.password = endpoint.password or ""
        transport.bind(connection)
        connection.open()
        self._unread = False
        self.closed: bool = False

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def events(self) -> "list[Any]":
        """What has happened since it was last asked."""
        found = []
        while (event := self._collector.peek()) is not None:
            found.append((event.type.method, event.context))
            self._collector.pop()
        return found

    def tick(self, now: float) -> float | None:
        """Heartbeats: sent where they are due, and missed where none came. When to ask again."""
        return self.transport.tick(now) or None

    def wants(self) -> tuple[bool, bool, bool]:
        """Whether it has to read, to write, and to do so before anything else happens."""
        reads = self._amount(self.transport.capacity) > 0
        return reads, self._amount(self.transport.pending) > 0, self._unread and reads

    def read(self) -> None:
        """Take in what the socket has."""
        self._unread = False
        while (room := self._amount(self.transport.capacity)) > 0:
            try:
                data = self._socket.recv(min(room, CHUNK))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                data = b""
            if not data or not self._understood(data):
                self.hang_up()
                return
        self._unread = True  # what TLS has decrypted already, select() does not see

    def _understood(self, data: bytes) -> bool:
        try:
            self.transport.push(data)
        except self.proton.ProtonException:  # whatever speaks there, it is not AMQP
            return False
        return True

    def write(self) -> None:
        """Send what the socket takes."""
        while (pending := self._amount(self.transport.pending)) > 0:
            try:
                sent = self._socket.send(self.transport.peek(min(pending, CHUNK)))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                self.hang_up()
                return
            self.transport.pop(sent)

    def sender(self, address: str, capability: str | None) -> Any:
        """A link to an address, in a session of its own: one that is refused may take its session along."""
        link = self._session().sender(address)
        return self._opened(link, link.target, address, capability)

    def receiver(self, address: str, capability: str | None) -> Any:
        """A link from an address, in a session of its own."""
        link = self._session().receiver(address)
        return self._opened(link, link.source, address, capability)

    def _session(self) -> Any:
        session = self.connection.session()
        session.open()
        return session

    def _opened(self, link: Any, terminus: Any, address: str, capability: str | None) -> Any:
        terminus.address = address
        if capability is not None:
            terminus.capabilities.put_object(self.proton.symbol(capability))
        link.snd_settle_mode = self.proton.Link.SND_UNSETTLED
        link.open()
        return link

    def hang_up(self) -> None:
        """Nothing more comes and nothing more goes."""
        self.transport.close_tail()
        self.transport.close_head()

    def close(self) -> None:
        """Let go of the socket."""
        self.closed = True
        self._socket.close()

    def _amount(self, ask: Callable[[], int]) -> int:
        try:
            return ask()
        except self.proton.ProtonException:  # that half of the transport is closed
            return 0


def reason_of(condition: Any) -> str:
    """A condition in words."""
    if condition is None:
        return "no reason given"
    return f"{condition.name}: {condition.description}" if condition.description else str(condition.name)


class ConnectionLoop:
    """What a connection's thread does: it waits for bytes, for a time to come, and for other threads."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._asked: deque[Callable[[], None]] = deque()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._waker: socket.socket | None = None
        self._hurried = False
        self.over = False

    def open(self) -> None:
        """Be ready to be called from other threads; what was asked before is not forgotten."""
        waker, self._woken = socket.socketpair()
        waker.setblocking(False)
        self._woken.setblocking(False)
        self._waker = waker

    def ask(self, call: Callable[[], None]) -> None:
        """Have this called by the loop's thread; from any other, or from a signal handler."""
        self._asked.append(call)
        if self._waker is None:
            return
        try:
            self._waker.send(b"!")
        except OSError:  # full, so it rings already; or closed, so nobody is there any more
            return

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Have this called after so many seconds."""
        heapq.heappush(self._due, (self._now() + seconds, next(self._count), call))

    def hurry(self) -> None:
        """Wait for nothing more in this turn; from the loop's own thread."""
        self._hurried = True

    def turn(self, listener: Any) -> None:
        """One round: whatever is due and whatever has happened, then a wait for more of it."""
        self._call_what_is_due()
        broker: BrokerConnection | None = listener.broker
        if broker is None:
            if not self.over:
                self._wait(None, self._until(None))
            return
        self._dispatch(broker, listener)
        next_tick = None if broker.closed else broker.tick(self._now())
        if not broker.closed:
            broker.write()
        self._dispatch(broker, listener)
        if not (broker.closed or self.over):
            self._wait(broker, 0.0 if self._hurried else self._until(next_tick))
        self._hurried = False

    def close(self) -> None:
        """Let go of the sockets."""
        if self._waker is not None:
            self._waker.close()
            self._woken.close()

    def _call_what_is_due(self) -> None:
        while self._asked:
            self._asked.popleft()()
        while self._due and self._due[0][0] <= self._now():
            heapq.heappop(self._due)[2]()

    def _dispatch(self, broker: BrokerConnection, listener: Any) -> None:
        for name, about in broker.events():
            callback = getattr(listener, name, None)
            if callback is not None and not broker.closed:
                callback(broker, about)

    def _until(self, tick: float | None) -> float | None:
        """How long to wait at most."""
        moments = [moment for moment in (tick, self._due[0][0] if self._due else None) if moment is not None]
        return max(0.0, min(moments) - self._now()) if moments else None

    def _wait(self, broker: BrokerConnection | None, seconds: float | None) -> None:
        reads, writes, at_once = broker.wants() if broker is not None else (False, False, False)
        if self._asked or at_once:
            seconds = 0.0
        with Selector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if broker is not None and (reads or writes):
                selector.register(broker, reads * selectors.EVENT_READ | writes * selectors.EVENT_WRITE)
            found = [key.fileobj for key, _ in selector.select(seconds)]
        if self._woken in found:
            self._woken.recv(CHUNK)
        if broker is not None and (at_once or broker in found):
            broker.read()
