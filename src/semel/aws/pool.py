"""Connections to one service that stay open. Threads share one pool, and each event loop has its own.

A connection is taken from its pool or opened, used for one request, and kept only if the whole response came
and nothing more. Renewals of leases wait for no other caller: they take no place, and open a connection if
none is idle.
"""

import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from semel.aws.environment import Proxy, ServiceEndpoint, find_proxy, tls
from semel.aws.errors import ErrorKind, NoResponse
from semel.aws.http1 import CLOSED, HttpResponse, MalformedResponse, Reader
from semel.core.clock import (
    ANSWER_SECONDS,
    FairSemaphore,
    PerLoop,
    SignalSafeEvent,
    Waiter,
    close_after_loop,
    read_poller,
)
from semel.core.commands import Pause
from semel.core.running import RENEWING
from semel.core.runtime import FORKING
from semel.errors import StoreClosed

if TYPE_CHECKING:
    import asyncio

    from semel.aws.wire import WireStep

# `HttpConnection` has a slot that is called socket as well, which a type checker sees first.
Socket: TypeAlias = socket.socket
# What breaks with a connection.
BROKEN = (OSError, MalformedResponse)

RECEIVE = 64 * 1024
# Less than load balancers and NAT gateways wait before they forget a silent connection.
IDLE_SECONDS = 30.0


class ConnectionLimits(msgspec.Struct, frozen=True):
    """How many requests may be in flight, and how long they may take; times are in seconds."""

    # Connections are opened as they are needed, so a high number costs nothing until then.
    connections: int = 50
    connect_timeout: float = ANSWER_SECONDS
    read_timeout: float = ANSWER_SECONDS


def _check_tunnel(response: HttpResponse) -> None:
    if response.status != 200:
        raise MalformedResponse(f"the proxy said {response.status} to it")


C = TypeVar("C", bound="HttpConnection | LoopConnection")


class Pool(Generic[C]):
    """The idle connections: the last one used is the first one taken, so that unneeded ones grow old."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._idle: deque[C] = deque()
        self._closed = False

    def take(self, now: float) -> C | None:
        """Take a connection that can take a request."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if now - connection.idle_since < IDLE_SECONDS and not connection.readable(0):
                return connection
            connection.close()

    def keep(self, connection: C, response: HttpResponse, sent: float) -> HttpResponse:
        """Keep a connection for the next request if it can take one, and close one that grew too old."""
        response.sent, response.received = sent, self.monotonic()
        if not response.reusable:
            connection.close()
            return response
        idle, connection.idle_since = self._idle, response.received
        idle.append(connection)
        try:
            if response.received - idle[0].idle_since > IDLE_SECONDS:
                idle.popleft().close()
        except IndexError:  # another thread took it
            pass
        if self._closed:  # by another thread, which may have looked just before
            self.close_idle()
        return response

    def close_idle(self) -> None:
        """Close every idle connection."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


# Threads


class HttpConnection:
    """A socket that is kept open."""

    __slots__ = ("idle_since", "readable", "socket")

    def __init__(self, connected: Socket) -> None:
        self.socket: Socket = connected
        self.readable: Callable[[int], Any] = read_poller(connected)
        """Whether it cannot take a request: a server that speaks unasked has hung up."""
        self.idle_since: float = 0.0

    def receive(self, reader: Reader) -> HttpResponse:
        """Read a whole response."""
        while (response := reader.feed(self.socket.recv(RECEIVE))) is None:
            pass
        return response

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self.socket.close()


class HttpPool(Pool[HttpConnection]):
    """The connections of a process: those that its threads share, and those of each event loop."""

    def __init__(
        self, endpoint: ServiceEndpoint, limits: ConnectionLimits, monotonic: Callable[[], float]
    ) -> None:
        super().__init__(monotonic)
        self.endpoint = endpoint
        self.limits = limits
        self._context: ssl.SSLContext | None = None
        self._begin()
        FORKING.add(self)

    def _begin(self) -> None:
        self._idle = deque()
        self._places = FairSemaphore(self.limits.connections)
        self._loops = PerLoop(partial(LoopPool, self), LoopPool.close, LoopPool.drop)

    def reset_after_fork(self) -> Any:
        """In a forked child: close copies of sockets, and leave the parent's event loops alone."""
        idle, loops = self._idle, self._loops
        self._begin()
        for connection in idle:
            connection.close()
        return loops

    def perform(self, step: "WireStep") -> Any:
        """Perform one step of a round trip in this thread."""
        if not isinstance(step, bytes):
            if isinstance(step, Pause):
                return step.clock.wait(SignalSafeEvent(), step.seconds)
            return step()
        if self._closed:
            raise StoreClosed("it was closed: open another")
        waiter = Waiter()
        with waiter.held:
            try:
                # A renewal waits for no caller: if the lease expires, its work is repeated.
                if not (RENEWING.get() or self._places.acquire(waiter, self.limits.read_timeout)):
                    raise self.full()
                sent = self.monotonic()
                connection = self.take(sent)
                if connection is None:
                    connection = self._connect()
                    sent = self.monotonic()
                return self._ask(connection, step, sent)
            except BROKEN as error:
                return self.failure(error, ErrorKind.UNREACHED)
            finally:
                self._places.release(waiter)

    def _ask(self, connection: HttpConnection, request: bytes, sent: float) -> HttpResponse | NoResponse:
        kind = ErrorKind.UNREACHED  # until the whole was sent: the service cannot act on a part
        try:
            connection.socket.sendall(request)
            kind = ErrorKind.FAILED
            response = connection.receive(Reader())
        except BaseException as error:
            connection.close()
            if isinstance(error, BROKEN):
                return self.failure(error, kind)
            raise
        return self.keep(connection, response, sent)

    def _connect(self) -> HttpConnection:
        endpoint, proxy, context = self.endpoint, find_proxy(self.endpoint), self.tls()
        via: Proxy | ServiceEndpoint = proxy or endpoint
        connected = socket.create_connection((via.host, via.port), self.limits.connect_timeout)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if proxy is not None:
                connected.sendall(proxy.request(endpoint))
                _check_tunnel(HttpConnection(connected).receive(Reader(tunnel=True)))
            if context is not None:
                connected = context.wrap_socket(connected, server_hostname=endpoint.host)
            connected.settimeout(self.limits.read_timeout)
        except BaseException:
            connected.close()
            raise
        return HttpConnection(connected)

    def tls(self) -> ssl.SSLContext | None:
        """Return the context of a secure endpoint."""
        if self._context is None and self.endpoint.scheme == "https":
            self._context = tls()
        return self._context

    def full(self) -> OSError:
        """Describe that no place became free in time."""
        places, seconds = self.limits.connections, self.limits.read_timeout
        return OSError(f"all {places} connections were in use for {seconds:g} s: allow for more")

    def failure(self, error: Exception, kind: ErrorKind) -> NoResponse:
        """Describe an error: UNREACHED before the whole request was sent, and FAILED after that."""
        missing, limit = "no answer", self.limits.read_timeout
        if kind is ErrorKind.UNREACHED:
            missing, limit = "no connection", self.limits.connect_timeout
        why = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            why = f"{missing} within {limit:g} s (timeout= in the URL of a store sets the limit)"
        return NoResponse(why, kind, error)

    async def aperform(self, step: "WireStep") -> Any:
        """Perform one step of a round trip in this task."""
        if isinstance(step, bytes):
            if self._closed:
                raise StoreClosed("it was closed: open another")
            return await self._loops.here().send(step)
        import asyncio

        if isinstance(step, Pause):
            return await step.clock.wait_async(asyncio.Event(), step.seconds)
        return await asyncio.to_thread(self.perform, step)

    async def leave(self) -> None:
        """Close the running loop's connections."""
        await self._loops.leave()

    def close(self) -> None:
        """Close every connection; those that are in use follow when they are free."""
        self._closed = True
        self.close_idle()
        self._loops.drop_all()


# Event loops


class LoopConnection:
    """A connection of an event loop, with one request on it at a time. asyncio calls it as its protocol."""

    def __init__(self, loop: "asyncio.AbstractEventLoop", silence: float) -> None:
        self._loop = loop
        self._silence = silence
        self._reader = Reader()
        self._response: asyncio.Future[HttpResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._poll: Callable[[int], object] = bool
        self.transport: Any = None
        self.idle_since: float = 0.0

    async def ask(self, request: bytes, reader: Reader) -> HttpResponse:
        """Send a request and return its response."""
        self._reader, self._response = reader, self._loop.create_future()
        self._wait()
        try:
            self.transport.write(request)
            return await self._response
        finally:
            self._wait(over=True)
            self._response = None

    def readable(self, milliseconds: int) -> bool:
        """Whether it cannot take a request; the loop may not have noticed yet that the server hung up."""
        return self.transport.is_closing() or bool(self._poll(milliseconds))

    def close(self) -> None:
        """Hang up, in the thread of the loop or when that is closed."""
        close_after_loop(self.transport) if self._loop.is_closed() else self.transport.abort()

    def connection_made(self, transport: "asyncio.BaseTransport") -> None:
        """Keep the transport."""
        self.transport = transport
        handle = transport.get_extra_info("socket")
        if handle is not None:
            self._poll = read_poller(handle)

    def data_received(self, data: bytes) -> None:
        """Read on, and wait for the rest."""
        if self._response is None or self._response.done():
            self.close()
            return
        try:
            response = self._reader.feed(data)
        except MalformedResponse as error:
            self.connection_lost(error)
            return
        if response is None:
            self._wait()
        else:
            self._response.set_result(response)

    def eof_received(self) -> None:
        """Read to the end, which may be where the response ends."""
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request."""
        if self._response is not None and not self._response.done():
            self._response.set_exception(error or MalformedResponse(CLOSED))

    def pause_writing(self) -> None:
        """Do nothing: there is one request at a time, and it is written whole."""

    resume_writing = pause_writing

    def _wait(self, *, over: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
        lost, silence = self.connection_lost, self._silence
        self._timer = None if over else self._loop.call_later(silence, lost, TimeoutError())


class LoopPool(Pool[LoopConnection]):
    """The connections of one event loop."""

    def __init__(self, process: HttpPool) -> None:
        import asyncio

        super().__init__(process.monotonic)
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(process.limits.connections)
        self._timeout, self._turn = asyncio.timeout, partial(asyncio.sleep, 0)
        self._guard: AsyncGenerator[None, None] | None = None

    async def send(self, request: bytes) -> HttpResponse | NoResponse:
        """Send a request and return its response, or why there is none."""
        placed = False
        try:
            if not RENEWING.get():  # it waits for no caller: if the lease expires, its work is repeated
                placed = await self._wait_for_place()
            connection = self.take(self.monotonic()) or await self._connect()
            sent = self.monotonic()
            try:
                response = await connection.ask(request, Reader())
            except BaseException as error:  # a cancellation too: the response must not be another's
                connection.close()
                if isinstance(error, BROKEN):
                    return self._process.failure(error, ErrorKind.FAILED)
                raise
            return self.keep(connection, response, sent)
        except BROKEN as error:
            return self._process.failure(error, ErrorKind.UNREACHED)
        finally:
            if placed:
                self._places.release()

    async def _wait_for_place(self) -> bool:
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with self._timeout(self._process.limits.read_timeout):
                return await self._places.acquire()
        except TimeoutError:
            raise self._process.full() from None

    async def _connect(self) -> LoopConnection:
        if self._guard is None:
            self._guard = self._until_the_end()
            await anext(self._guard)
        loop: Any = self._loop
        endpoint, proxy, context = (
            self._process.endpoint,
            find_proxy(self._process.endpoint),
            self._process.tls(),
        )
        via: Proxy | ServiceEndpoint = proxy or endpoint
        connection = LoopConnection(loop, self._process.limits.read_timeout)
        async with self._timeout(self._process.limits.connect_timeout):
            raw, _ = await loop.create_connection(lambda: connection, via.host, via.port)
            try:
                if proxy is not None:
                    _check_tunnel(await connection.ask(proxy.request(endpoint), Reader(tunnel=True)))
                if context is not None:
                    secure = loop.start_tls(raw, connection, context, server_hostname=endpoint.host)
                    connection.transport = await secure
            except BaseException:
                raw.abort()
                raise
        return connection

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        """Hang up when the loop ends: `asyncio.run` closes the generators that are still open."""
        try:
            yield
        finally:
            self.close_idle()
            await self._turn()  # in which transports close their sockets

    async def close(self) -> None:
        """Hang up, and wait until that is done; what is in use follows when it is free."""
        self._closed = True
        if self._guard is not None:
            await self._guard.aclose()

    def drop(self) -> None:
        """Hang up from outside the loop, whatever its state."""
        if self._loop.is_closed():
            self.close_idle()
            return
        closing = self.close()
        try:
            self._loop.run_until_complete(closing)
        except RuntimeError:  # it runs, or another one does in this thread
            closing.close()
            self._closed = True
            with suppress(RuntimeError):  # it was closed a moment ago
                self._loop.call_soon_threadsafe(self.close_idle)
