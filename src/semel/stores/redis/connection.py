"""Connections of threads and of event loops, and their pools.

redis-py connects, logs in and does TLS; requests and replies go over the socket itself. Its private names are
used in this module only:

- `Connection._sock`: the socket;
- `asyncio.Connection._reader` and `._writer`: the streams, also to drop a connection from another thread or
  after its loop was closed.

A replay by redis-py's own pool and reader took some 40 % more processor time. A write is sent once, and only
the rules send it again: the driver's retries are in its clients, which are not used.
"""

from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio

from semel.core.connections import close_after_loop, read_poller
from semel.core.running import RENEWING
from semel.errors import StoreClosed
from semel.stores.redis.server import (
    BrokenConnection,
    ErrorReply,
    Node,
    RedisAddress,
    RedisRequest,
    code,
    gather,
    lost,
    unreachable,
)

if TYPE_CHECKING:
    import asyncio
    import socket

# What redis-py raises if a server is not there, or no longer.
CONNECTION_ERRORS = (redis.RedisError, OSError)
# The most that is received at a time; nearly every reply is shorter.
CHUNK = 16_384
# How many commands of one event loop are under way at a time; more would not be faster.
TASKS = 32


# Threads


class RedisConnection:
    """A connection of one thread at a time, open from the start."""

    def __init__(self, address: RedisAddress, node: Node) -> None:
        try:
            self.driver: Any = _driver_connection(redis, address, node, address.timeout)
            self.driver.connect()
        except CONNECTION_ERRORS as error:
            raise unreachable(error, node, address.timeout) from error
        self.socket: socket.socket = self.driver._sock
        self._readable = read_poller(self.socket)

    def is_quiet(self) -> bool:
        """Whether nothing has come since the last reply, not even the end."""
        return not self._readable()

    def exchange(self, request: RedisRequest, replies: list[Any]) -> None:
        """Send a request once, and collect its replies as they come."""
        self.socket.sendall(request.data)
        rest = b""
        while len(replies) < request.count:
            more = self.socket.recv(CHUNK)
            if not more:
                raise redis.ConnectionError("the server closed the connection")
            rest = gather(rest + more, request.count, replies)

    def close(self) -> None:
        """Close the connection."""
        self.driver.disconnect()


class RedisPool:
    """The connections of a process's threads: an exchange takes an idle one, or opens one."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._free: dict[Node, list[RedisConnection]] = defaultdict(list)
        self._closed = False

    def exchange(self, request: RedisRequest) -> list[Any]:
        """Send a request and wait for its replies.

        A read is sent once more, on a new connection, if the idle connection turns out to be broken.
        """
        free = self._free[request.node]
        while not self._closed:
            try:
                connection = free.pop()
            except IndexError:  # there is none, or another thread took it
                return self._replies(RedisConnection(self._address, request.node), request)
            if connection.is_quiet():
                try:
                    return self._replies(connection, request)
                except BrokenConnection:
                    return self._replies(RedisConnection(self._address, request.node), request)
            connection.close()
        raise StoreClosed("the store was closed")

    def _replies(self, connection: RedisConnection, request: RedisRequest) -> list[Any]:
        replies: list[Any] = []
        try:
            connection.exchange(request, replies)
        except CONNECTION_ERRORS as error:
            connection.close()
            raise lost(error, request.node, self._address.timeout, writes=request.writes) from error
        except BaseException:  # the next request would take this one's reply for its own
            connection.close()
            raise
        if ErrorReply in map(type, replies) and _is_demoted(replies):
            connection.close()
            return replies
        self._free[request.node].append(connection)
        if self._closed:  # by another thread, perhaps before the connection was back
            self.close()
        return replies

    def close(self) -> None:
        """Close every connection; those in use are closed when they return."""
        self._closed = True
        for free in list(self._free.values()):
            while free:
                try:
                    free.pop().close()
                except IndexError:  # another thread took it
                    break


# Event loops


class AsyncRedisConnection:
    """A connection of one task at a time."""

    def __init__(self, address: RedisAddress, node: Node) -> None:
        # The pool limits the whole exchange: the driver's own limit makes a task for every step.
        self._driver = _driver_connection(redis.asyncio, address, node, None)

    async def open(self) -> None:
        """Connect, and log in."""
        await self._driver.connect()

    async def is_quiet(self) -> bool:
        """Whether nothing has come since the last reply, not even the end."""
        try:
            return not await self._driver.can_read()
        except CONNECTION_ERRORS:
            return False

    async def exchange(self, request: RedisRequest, replies: list[Any]) -> None:
        """Send a request once, and collect its replies as they come."""
        reader, writer = self._driver._reader, self._driver._writer
        writer.write(request.data)
        await writer.drain()
        rest = b""
        while len(replies) < request.count:
            more = await reader.read(CHUNK)
            if not more:
                raise redis.ConnectionError("the server closed the connection")
            rest = gather(rest + more, request.count, replies)

    async def close(self, nowait: bool = True) -> None:
        """Close the connection, and wait for the end only if asked to."""
        await self._driver.disconnect(nowait=nowait)

    def drop(self, loop: "asyncio.AbstractEventLoop") -> None:
        """Close the connection from another thread, or after its loop was closed."""
        driver = self._driver
        writer, driver._reader, driver._writer = driver._writer, None, None
        if writer is None:
            return
        try:
            # The writer has to live until then: asyncio warns about one that was never closed.
            loop.call_soon_threadsafe(_abort, writer)
        except RuntimeError:  # the loop is closed
            close_after_loop(writer.transport)


class AsyncRedisPool:
    """The connections of one event loop's tasks."""

    def __init__(self, address: RedisAddress) -> None:
        import asyncio

        self._address = address
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout
        self._semaphore = asyncio.Semaphore(TASKS)
        self._free: dict[Node, list[AsyncRedisConnection]] = defaultdict(list)
        self._used: set[AsyncRedisConnection] = set()
        self._closed = False

    async def exchange(self, request: RedisRequest) -> list[Any]:
        """Send a request and wait for its replies.

        A read is sent once more, on a new connection, if the idle connection turns out to be broken.
        """
        # A renewal does not wait for callers: if the lease expires, the work is repeated.
        async with nullcontext() if RENEWING.get() else self._semaphore:
            connection = await self._idle(request.node)
            if connection is not None:
                try:
                    return await self._replies(connection, request)
                except BrokenConnection:
                    pass
            return await self._replies(await self._open(request.node), request)

    async def _replies(self, connection: AsyncRedisConnection, request: RedisRequest) -> list[Any]:
        self._used.add(connection)
        replies: list[Any] = []
        try:
            async with self._timeout(self._address.timeout):
                await connection.exchange(request, replies)
        except CONNECTION_ERRORS as error:
            await connection.close()
            raise lost(error, request.node, self._address.timeout, writes=request.writes) from error
        except BaseException:  # the next request would take this one's reply for its own
            await connection.close()
            raise
        finally:
            self._used.discard(connection)
        if self._closed or (ErrorReply in map(type, replies) and _is_demoted(replies)):
            await connection.close()
        else:
            self._free[request.node].append(connection)
        return replies

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for connections in list(self._free.values()):
            while connections:
                await connections.pop().close(nowait=False)

    def drop(self) -> None:
        """Close every connection from another thread, or after the loop was closed."""
        self._closed = True
        # Copied, since a loop in another thread may still return connections.
        free = [connection for connections in list(self._free.values()) for connection in list(connections)]
        for connection in [*list(self._used), *free]:
            connection.drop(self._loop)
        self._free.clear()

    async def _idle(self, node: Node) -> AsyncRedisConnection | None:
        free = self._free[node]
        while free:
            connection = free.pop()
            if await connection.is_quiet():
                return connection
            await connection.close()
        return None

    async def _open(self, node: Node) -> AsyncRedisConnection:
        connection = AsyncRedisConnection(self._address, node)
        try:
            async with self._timeout(self._address.timeout):
                await connection.open()
        except CONNECTION_ERRORS as error:
            await connection.close()
            raise unreachable(error, node, self._address.timeout) from error
        except BaseException:
            await connection.close()
            raise
        return connection


def _is_demoted(replies: list[Any]) -> bool:
    """Whether the server has become a replica: the name in the URL may lead to another server by now."""
    return "READONLY" in [code(reply) for reply in replies if type(reply) is ErrorReply]


def _abort(writer: Any) -> None:
    writer.transport.abort()


def _driver_connection(driver: Any, address: RedisAddress, node: Node, timeout: float | None) -> Any:
    """A connection of redis-py, or of its asynchronous half, not yet open."""
    kind = driver.Connection if address.tls is None else driver.SSLConnection
    return kind(socket_timeout=timeout, **address.options(node))
