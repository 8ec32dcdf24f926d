"""Connections for threads: sockets that are kept open, and closed after anything unexpected."""

import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from semel.aws.endpoint import Proxy, ServiceEndpoint, find_proxy, tls
from semel.aws.errors import ErrorKind, NoResponse
from semel.aws.http1 import HttpResponse, MalformedResponse, Reader
from semel.aws.transport import WireStep
from semel.core.commands import Pause
from semel.core.connections import ANSWER_SECONDS, read_poller
from semel.core.running import RENEWING
from semel.core.runtime import FORKING
from semel.core.threads import FairSemaphore, SignalSafeEvent, Waiter
from semel.errors import StoreClosed

T = TypeVar("T")

# `HttpConnection` has a slot that is called socket as well, which a type checker sees first.
Socket: TypeAlias = socket.socket

RECEIVE = 64 * 1024
# Less than load balancers and NAT gateways wait before they forget a silent connection.
IDLE_SECONDS = 30.0


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How many connections there may be, and how long they may take; times are in seconds."""

    # They are opened as they are needed, so a high number costs nothing until then.
    connections: int = 50
    connect_timeout: float = ANSWER_SECONDS
    read_timeout: float = ANSWER_SECONDS


class AwsRoute(msgspec.Struct, frozen=True):
    """The way to a service, the same for threads and for event loops."""

    endpoint: ServiceEndpoint
    limits: ConnectionLimits
    monotonic: Callable[[], float]

    @property
    def full(self) -> NoResponse:
        """The outcome where no connection became free in time."""
        limits = self.limits
        return NoResponse(
            f"all {limits.connections} connections were in use for {limits.read_timeout:g} s: allow for more",
            ErrorKind.UNREACHED,
        )

    def proxy(self) -> Proxy | None:
        """The environment's proxy for it."""
        return find_proxy(self.endpoint)

    def unreached(self, error: Exception) -> NoResponse:
        """What a connection that could not be made means."""
        return NoResponse(
            _why(error, "no connection", self.limits.connect_timeout), ErrorKind.UNREACHED, error
        )

    def torn(self, error: Exception) -> NoResponse:
        """What a connection that broke after the request was sent means."""
        return NoResponse(_why(error, "no answer", self.limits.read_timeout), ErrorKind.FAILED, error)


def refusal(answer: HttpResponse) -> MalformedResponse | None:
    """Why a proxy did not open the tunnel."""
    return None if answer.status == 200 else MalformedResponse(f"the proxy said {answer.status} to it")


def _why(error: Exception, missing: str, limit: float) -> str:
    if isinstance(error, TimeoutError):
        return f"{missing} within {limit:g} s (timeout= in the URL of a store says how long is waited)"
    return str(error) or type(error).__name__


class PooledConnection(Protocol):
    """A connection that is kept for the next request."""

    idle_since: float

    def usable(self, now: float) -> bool:
        """Whether it can take a request."""

    def close(self) -> None:
        """Hang up."""


L = TypeVar("L", bound=PooledConnection)


class IdleConnections(Generic[L]):
    """Connections that wait for a request: the last to come goes first, so that one too many grows old."""

    def __init__(self) -> None:
        self._connections: deque[L] = deque()

    def take(self, now: float) -> L | None:
        """One that can take a request."""
        while (connection := self._if_any(self._connections.pop)) is not None:
            if connection.usable(now):
                return connection
            connection.close()
        return None

    def give(self, connection: L, now: float) -> None:
        """Keep one for later, and hang up on one that nobody wanted for long."""
        connection.idle_since = now
        self._connections.append(connection)
        oldest = self._if_any(lambda: self._connections[0])
        if (
            oldest is not None
            and now - oldest.idle_since > IDLE_SECONDS
            and (old := self._if_any(self._connections.popleft)) is not None
        ):
            old.close()

    def close(self) -> None:
        """Hang up on all of them."""
        while (connection := self._if_any(self._connections.pop)) is not None:
            connection.close()

    @staticmethod
    def _if_any(end: Callable[[], L]) -> L | None:
        try:
            return end()
        except IndexError:  # there is none, or another thread took it
            return None


class HttpConnection:
    """A connection, and what it takes to see whether it is still good."""

    __slots__ = ("idle_since", "readable", "socket")

    def __init__(self, connected: Socket) -> None:
        self.socket: Socket = connected
        self.readable: Callable[..., Any] = read_poller(connected)
        self.idle_since: float = 0.0

    def usable(self, now: float) -> bool:
        """Whether it can take a request: a server that says something unasked has hung up."""
        return now - self.idle_since < IDLE_SECONDS and not self.readable()

    def ask(self, request: bytes, reader: Reader) -> HttpResponse:
        """Send a request, and read what comes back."""
        self.socket.sendall(request)
        return self.receive(reader)

    def receive(self, reader: Reader) -> HttpResponse:
        """Read a whole answer."""
        while True:
            data = self.socket.recv(RECEIVE)
            answer = reader.feed(data) if data else reader.end()
            if answer is not None:
                return answer

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self.socket.close()


class HttpPool:
    """The connections that a process's threads share."""

    def __init__(self, route: AwsRoute) -> None:
        self._route = route
        self._closed = False
        self._context: ssl.SSLContext | None = None
        self._begin()
        FORKING.add(self)

    def _begin(self) -> None:
        self._semaphore = FairSemaphore(self._route.limits.connections)
        self._idle: IdleConnections[HttpConnection] = IdleConnections()

    def reset_after_fork(self) -> None:
        """In a forked child: the connections are the parent's, and stay open when the copies are closed."""
        left = self._idle
        self._begin()
        left.close()

    def perform(self, step: WireStep) -> Any:
        """Carry out one step of a round trip in this thread."""
        if type(step) is bytes:
            return self.send(step)
        if isinstance(step, Pause):
            return step.clock.wait(SignalSafeEvent(), step.seconds)
        return step.work()  # type: ignore[union-attr]

    def send(self, request: bytes) -> HttpResponse | NoResponse:
        """Send a request; its answer, or what became of it."""
        if self._closed:
            raise StoreClosed("it was closed: open another")
        waiter = Waiter()
        with waiter.held:
            # A renewal waits for no caller: if the lease expires, its work is repeated.
            free = RENEWING.get() or self._semaphore.acquire(waiter, self._route.limits.read_timeout)
            if not free:
                return self._route.full
            try:
                connection = self._idle.take(self._route.monotonic()) or self._connect()
                return self._ask(connection, request)
            except (OSError, MalformedResponse) as error:
                return self._route.unreached(error)
            finally:
                self._semaphore.release(waiter)

    def close(self) -> None:
        """Hang up; what is under way hangs up when it is done."""
        self._closed = True
        self._idle.close()

    def _ask(self, connection: HttpConnection, request: bytes) -> HttpResponse | NoResponse:
        try:
            sent = self._route.monotonic()
            # What raises here has not sent the whole: the service cannot have acted on it.
            connection.socket.sendall(request)
            try:
                answer = connection.receive(Reader())
            except (OSError, MalformedResponse) as error:
                connection.close()
                return self._route.torn(error)
        except BaseException:
            connection.close()
            raise
        answer.sent, answer.received = sent, self._route.monotonic()
        self._keep(connection, answer)
        return answer

    def _keep(self, connection: HttpConnection, answer: HttpResponse) -> None:
        if not answer.reusable:
            connection.close()
            return
        self._idle.give(connection, answer.received)
        if self._closed:  # by another thread, which may have looked a moment too soon
            self.close()

    def _connect(self) -> HttpConnection:
        route, proxy = self._route, self._route.proxy()
        via: Any = proxy or route.endpoint
        connected = socket.create_connection((via.host, via.port), route.limits.connect_timeout)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if proxy is not None:
                self._tunnel(connected, proxy)
            if route.endpoint.secure:
                self._context = self._context or tls()
                connected = self._context.wrap_socket(connected, server_hostname=route.endpoint.host)
            connected.settimeout(route.limits.read_timeout)
        except BaseException:
            connected.close()
            raise
        return HttpConnection(connected)

    def _tunnel(self, connected: socket.socket, proxy: Proxy) -> None:
        answer = HttpConnection(connected).ask(proxy.request(self._route.endpoint), Reader(tunnel=True))
        if (problem := refusal(answer)) is not None:
            raise problem
