"""Connections for event loops: asyncio's transports that are kept open; each loop has its own."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

from semel.aws.endpoint import Proxy, tls
from semel.aws.errors import NoResponse
from semel.aws.http1 import CLOSED, HttpResponse, MalformedResponse, Reader
from semel.aws.pool import IDLE_SECONDS, AwsRoute, IdleConnections, refusal
from semel.aws.transport import WireStep
from semel.core.commands import Pause
from semel.core.connections import PerLoop, close_after_loop, read_poller
from semel.core.running import RENEWING
from semel.core.runtime import FORKING
from semel.errors import StoreClosed


class AsyncHttpConnection(asyncio.Protocol):
    """A connection of an event loop, with one request on it at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence: float) -> None:
        self._loop = loop
        self._silence = silence
        self._reader = Reader()
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._readable: Callable[[], object] = bool
        self.gone: asyncio.Future[None] = loop.create_future()
        self.transport: Any = None
        self.idle_since: float = 0.0

    async def ask(self, request: bytes, reader: Reader) -> HttpResponse:
        """Send a request, and read what comes back."""
        self._reader = reader
        answer: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._answer = answer
        self._timer = self._loop.call_later(self._silence, self._timed_out)
        try:
            self.transport.write(request)
            return await answer
        finally:
            self._timer.cancel()
            self._answer = None

    def usable(self, now: float) -> bool:
        """Whether it can take a request: a server that says something unasked has hung up.

        What it said may not have come to the loop's notice yet, so the socket is asked too.
        """
        return (
            now - self.idle_since < IDLE_SECONDS and not self.transport.is_closing() and not self._readable()
        )

    def close(self) -> None:
        """Hang up; `gone` is done when that is done."""
        self.transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = transport
        handle = transport.get_extra_info("socket")
        if handle is not None:
            self._readable = read_poller(handle)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._answer is None or self._answer.done():
            self.close()
            return
        try:
            answer = self._reader.feed(data)
        except MalformedResponse as error:
            self._settle(error)
            return
        if answer is not None:
            self._answer.set_result(answer)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._silence, self._timed_out)

    def eof_received(self) -> None:
        """Read to the end, which may be where the answer ends."""
        if self._answer is None or self._answer.done():
            return
        try:
            self._answer.set_result(self._reader.end())
        except MalformedResponse as error:
            self._settle(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits."""
        self._settle(error or MalformedResponse(CLOSED))
        if not self.gone.done():
            self.gone.set_result(None)

    def _timed_out(self) -> None:
        self._settle(TimeoutError(f"nothing came for {self._silence:g} s"))

    def _settle(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class LoopPool:
    """The connections of one event loop."""

    def __init__(self, route: AwsRoute) -> None:
        self._route = route
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(route.limits.connections)
        self._idle: IdleConnections[AsyncHttpConnection] = IdleConnections()
        self._connections: set[AsyncHttpConnection] = set()
        self._context: ssl.SSLContext | None = None
        self._guard: AsyncGenerator[None, None] | None = None

    async def send(self, request: bytes) -> HttpResponse | NoResponse:
        """Send a request; its answer, or what became of it."""
        if RENEWING.get():  # it waits for no caller: if the lease expires, its work is repeated
            return await self._exchange(request)
        if not await self._slot():
            return self._route.full
        try:
            return await self._exchange(request)
        finally:
            self._slots.release()

    async def _exchange(self, request: bytes) -> HttpResponse | NoResponse:
        try:
            connection = self._idle.take(self._route.monotonic()) or await self._connect()
        except (OSError, MalformedResponse) as error:
            return self._route.unreached(error)
        return await self._ask(connection, request)

    async def close(self) -> None:
        """Hang up, and wait until that is done."""
        if self._guard is not None:
            await self._guard.aclose()

    def drop(self) -> None:
        """Hang up from outside the loop, in whatever state it is."""
        if self._loop.is_closed():
            for connection in self._connections:
                close_after_loop(connection.transport)
            return
        closing = self.close()
        try:
            self._loop.run_until_complete(closing)
        except RuntimeError:  # it runs, or another one does in this thread
            closing.close()
            with suppress(RuntimeError):  # it was closed a moment ago
                self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        for connection in list(self._connections):
            connection.close()

    async def _slot(self) -> bool:
        if not self._slots.locked():
            return await self._slots.acquire()
        try:
            async with asyncio.timeout(self._route.limits.read_timeout):
                return await self._slots.acquire()
        except TimeoutError:
            return False

    async def _ask(self, connection: AsyncHttpConnection, request: bytes) -> HttpResponse | NoResponse:
        sent = self._route.monotonic()
        try:
            answer = await connection.ask(request, Reader())
        except (OSError, MalformedResponse) as error:
            connection.close()
            return self._route.torn(error)
        except BaseException:  # a cancellation: the answer may still come, and must not be another's
            connection.close()
            raise
        answer.sent, answer.received = sent, self._route.monotonic()
        if answer.reusable:
            self._idle.give(connection, answer.received)
        else:
            connection.close()
        return answer

    async def _connect(self) -> AsyncHttpConnection:
        if self._guard is None:
            self._guard = self._until_the_end()
            await anext(self._guard)
        async with asyncio.timeout(self._route.limits.connect_timeout):
            connection = await self._connected()
        self._connections.add(connection)
        connection.gone.add_done_callback(lambda _: self._connections.discard(connection))
        return connection

    async def _connected(self) -> AsyncHttpConnection:
        route, proxy = self._route, self._route.proxy()
        if route.endpoint.secure:
            self._context = self._context or tls()
        if proxy is not None:
            return await self._tunnelled(proxy)
        host = route.endpoint.host
        _, connection = await self._loop.create_connection(
            self._protocol,
            host,
            route.endpoint.port,
            ssl=self._context,
            server_hostname=host if self._context else None,
        )
        return connection

    async def _tunnelled(self, proxy: Proxy) -> AsyncHttpConnection:
        endpoint = self._route.endpoint
        transport, connection = await self._loop.create_connection(self._protocol, proxy.host, proxy.port)
        try:
            answer = await connection.ask(proxy.request(endpoint), Reader(tunnel=True))
            if (problem := refusal(answer)) is not None:
                raise problem
            context: ssl.SSLContext = self._context  # type: ignore[assignment]  # only secure endpoints have a proxy
            connection.transport = await self._loop.start_tls(
                transport, connection, context, server_hostname=endpoint.host
            )
        except BaseException:
            transport.abort()
            raise
        return connection

    def _protocol(self) -> AsyncHttpConnection:
        return AsyncHttpConnection(self._loop, self._route.limits.read_timeout)

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        """Hang up when the loop ends: `asyncio.run` closes the generators that are still open."""
        try:
            yield
        finally:
            self._guard = None
            self._hang_up()
            if self._connections:
                await asyncio.wait([connection.gone for connection in self._connections])


class AsyncHttpPool:
    """The connections of every event loop."""

    def __init__(self, route: AwsRoute) -> None:
        self._route = route
        self._closed = False
        self._begin()
        FORKING.add(self)

    def _begin(self) -> None:
        self._loops = PerLoop(lambda: LoopPool(self._route), LoopPool.close, LoopPool.drop)

    def reset_after_fork(self) -> PerLoop[LoopPool]:
        """In a forked child: touching the parent's transports would meddle with the parent's event loop."""
        inherited = self._loops
        self._begin()
        return inherited

    async def perform(self, step: WireStep) -> Any:
        """Carry out one step of a round trip in this task."""
        if type(step) is bytes:
            return await self.send(step)
        if isinstance(step, Pause):
            return await step.clock.wait_async(asyncio.Event(), step.seconds)
        return await asyncio.to_thread(step.work)  # type: ignore[union-attr]

    async def send(self, request: bytes) -> HttpResponse | NoResponse:
        """Send a request on the running loop; its answer, or what became of it."""
        if self._closed:
            raise StoreClosed("it was closed: open another")
        return await self._loops.here().send(request)

    async def leave(self) -> None:
        """Hang up the running loop's connections."""
        await self._loops.leave()

    def close(self) -> None:
        """Hang up every connection there still is."""
        self._closed = True
        self._loops.drop_all()
