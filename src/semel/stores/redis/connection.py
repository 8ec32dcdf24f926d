"""The protocol of Redis, and the connections of threads and of event loops.

redis-py connects, logs in and does TLS; requests and replies go over the socket itself. This module alone
uses private names of redis-py:

- `Connection._sock`: the socket;
- `asyncio.Connection._reader` and `._writer`: the streams, which are taken over.

A replay by redis-py's own pool and reader took some 40 % more processor time. A write is sent once, and only
the rules send it again: the driver's retries are in its clients, which are not used.
"""

import asyncio
import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import redis
import redis.asyncio

from semel.core.clock import close_after_loop, read_poller
from semel.core.running import RENEWING
from semel.errors import StoreClosed
from semel.stores.redis.server import (
    BrokenConnection,
    ErrorReply,
    Node,
    RedisAddress,
    code,
    lost,
    unreachable,
)

T = TypeVar("T")
# A reply, and where it ends; None while part of it is missing.
Parsed: TypeAlias = tuple[Any, int] | None

# What redis-py raises if a server is not there, or no longer.
CONNECTION_ERRORS = (redis.RedisError, OSError)
# The most that is received at a time; nearly every reply is shorter.
CHUNK = 16_384
# How many commands of one event loop are under way at a time; more would not be faster.
TASKS = 32


# The protocol, RESP, as far as semel needs it

BULK, ARRAY, NUMBER, TEXT = b"$*:+"


def pack(words: Sequence[bytes]) -> bytes:
    """Encode a command."""
    return b"*%d\r\n" % len(words) + bulk(words)


def bulk(words: Sequence[bytes]) -> bytes:
    """Encode words of a command."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def read(data: bytes, start: int = 0) -> Parsed:
    """Read the reply that begins here."""
    end = data.find(b"\r\n", start)
    if end < 0:
        return None
    kind, word, end = data[start], data[start + 1 : end], end + 2
    if kind == BULK:
        stop = end + int(word)
        if stop < end:
            return None, end
        return (data[end:stop], stop + 2) if len(data) >= stop + 2 else None
    if kind == ARRAY:
        return _array(data, end, int(word))
    if kind == NUMBER:
        return int(word), end
    return (word if kind == TEXT else ErrorReply(word.decode(errors="replace"))), end


def _array(data: bytes, start: int, size: int) -> Parsed:
    items: list[Any] = []
    for _ in range(size):
        if (item := read(data, start)) is None:
            return None
        start = item[1]
        items.append(item[0])
    return (items if size >= 0 else None), start


def gather(data: bytes, count: int, replies: list[Any]) -> bytes:
    """Move the replies that data begins with to the list, and return the rest."""
    start = 0
    while len(replies) < count and (parsed := read(data, start)) is not None:
        replies.append(parsed[0])
        start = parsed[1]
    return data[start:]


class RedisRequest(msgspec.Struct, frozen=True, gc=False):
    """Bytes for one server, and how many replies they have."""

    node: Node
    data: bytes
    count: int
    writes: bool = False
    """Whether the outcome is unknown if the reply is lost."""


# Connections


def _driver(package: Any, address: RedisAddress, node: Node, timeout: float | None) -> Any:
    """A connection of redis-py, or of its asynchronous half, not yet open."""
    kind = package.Connection if address.tls is None else package.SSLConnection
    return kind(
        host=node.host,
        port=node.port,
        db=address.db,
        username=address.username,
        password=address.password,
        socket_timeout=timeout,
        socket_connect_timeout=address.timeout,
        # Scripts reply alike under both protocols, and the older one needs no greeting.
        protocol=2,
        driver_info=None,
        **(address.tls or {}),
    )


class RedisConnection:
    """A connection of one thread at a time, open from the start."""

    def __init__(self, address: RedisAddress, node: Node) -> None:
        # The driver closes its socket, which it never shuts down in a forked child.
        self._driver = _driver(redis, address, node, address.timeout)
        try:
            self._driver.connect()
        except CONNECTION_ERRORS as error:
            raise unreachable(error, node, address.timeout) from error
        self.socket: socket.socket = self._driver._sock
        self._readable = read_poller(self.socket)

    def is_quiet(self) -> bool:
        """Whether nothing has come since the last reply, not even the end."""
        return not self._readable(0)

    def exchange(self, request: RedisRequest) -> list[Any]:
        """Send a request once, and collect its replies as they come."""
        self.socket.sendall(request.data)
        replies: list[Any] = []
        rest = b""
        while len(replies) < request.count:
            more = self.socket.recv(CHUNK)
            if not more:
                raise redis.ConnectionError("the server closed the connection")
            rest = gather(rest + more, request.count, replies)
        return replies

    def close(self) -> None:
        """Close the connection."""
        self._driver.disconnect()


class AsyncRedisConnection:
    """A connection of one task at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._readable = read_poller(writer.get_extra_info("socket"))

    def is_quiet(self) -> bool:
        """Whether nothing has come since the last reply, not even the end."""
        return not (self.writer.is_closing() or self._reader.at_eof() or self._readable(0))

    async def exchange(self, request: RedisRequest) -> list[Any]:
        """Send a request once, and collect its replies as they come."""
        self.writer.write(request.data)
        await self.writer.drain()
        replies: list[Any] = []
        rest = b""
        while len(replies) < request.count:
            more = await self._reader.read(CHUNK)
            if not more:
                raise redis.ConnectionError("the server closed the connection")
            rest = gather(rest + more, request.count, replies)
        return replies

    def close(self) -> None:
        """Close the connection, without waiting for the end."""
        try:
            self.writer.transport.abort()
        except RuntimeError:  # its loop was closed, perhaps with an exchange under way
            close_after_loop(self.writer.transport)

    def drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connection from another thread, or after its loop was closed."""
        try:
            # The writer has to live until then: asyncio warns about one that was never closed.
            loop.call_soon_threadsafe(self.close)
        except RuntimeError:  # the loop is closed
            self.close()


C = TypeVar("C", RedisConnection, AsyncRedisConnection)


class NodePool(Generic[C]):
    """Idle connections: an exchange takes one, or opens one."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._free: dict[Node, list[C]] = defaultdict(list)
        self._closed = False

    def _idle(self, node: Node) -> C | None:
        free = self._free[node]
        while free:
            try:
                connection = free.pop()
            except IndexError:  # another thread took it
                break
            if connection.is_quiet():
                return connection
            connection.close()
        return None

    def _drained(self) -> Iterator[C]:
        """Take every idle connection, to close it."""
        for free in list(self._free.values()):
            with suppress(IndexError):  # another thread took the last
                while free:
                    yield free.pop()

    def _settle(self, connection: C, node: Node, replies: list[Any]) -> list[Any]:
        """Make the connection idle, and return the replies."""
        if ErrorReply in map(type, replies) and any(is_error(reply, "READONLY") for reply in replies):
            # The server has become a replica: the name in the URL may lead to another one by now.
            connection.close()
            return replies
        self._free[node].append(connection)
        if self._closed:  # by another thread, perhaps before the connection was back
            for idle in self._drained():
                idle.close()
        return replies


class RedisPool(NodePool[RedisConnection]):
    """The connections of a process's threads."""

    def exchange(self, request: RedisRequest) -> list[Any]:
        """Send a request and wait for its replies.

        A read is sent once more, on a new connection, if the idle connection turns out to be broken.
        """
        if self._closed:
            raise StoreClosed("the store was closed")
        connection = self._idle(request.node)
        if connection is not None:
            try:
                return self._replies(connection, request)
            except BrokenConnection:
                pass
        return self._replies(RedisConnection(self._address, request.node), request)

    def _replies(self, connection: RedisConnection, request: RedisRequest) -> list[Any]:
        try:
            replies = connection.exchange(request)
        except CONNECTION_ERRORS as error:
            connection.close()
            raise lost(error, request.node, self._address.timeout, writes=request.writes) from error
        except BaseException:  # the next request would take this one's reply for its own
            connection.close()
            raise
        return self._settle(connection, request.node, replies)

    def close(self) -> None:
        """Close every connection; those in use are closed when they return."""
        self._closed = True
        for connection in self._drained():
            connection.close()


class AsyncRedisPool(NodePool[AsyncRedisConnection]):
    """The connections of one event loop's tasks."""

    def __init__(self, address: RedisAddress) -> None:
        super().__init__(address)
        self._loop = asyncio.get_running_loop()
        self._semaphore = asyncio.Semaphore(TASKS)
        self._used: set[AsyncRedisConnection] = set()

    async def exchange(self, request: RedisRequest) -> list[Any]:
        """Send a request and wait for its replies, as `RedisPool` does."""
        # A renewal does not wait for callers: if the lease expires, the work is repeated.
        async with nullcontext() if RENEWING.get() else self._semaphore:
            connection = self._idle(request.node)
            if connection is not None:
                try:
                    return await self._replies(connection, request)
                except BrokenConnection:
                    pass
            return await self._replies(await self._open(request.node), request)

    async def _open(self, node: Node) -> AsyncRedisConnection:
        # The pool limits the whole exchange: the driver's own limit makes a task for every step.
        driver = _driver(redis.asyncio, self._address, node, None)
        try:
            async with asyncio.timeout(self._address.timeout):
                await driver.connect()
            connection = AsyncRedisConnection(driver._reader, driver._writer)
            driver._reader = driver._writer = None  # or it warns that it was not closed
        except CONNECTION_ERRORS as error:
            raise unreachable(error, node, self._address.timeout) from error
        finally:
            await driver.disconnect(nowait=True)
        return connection

    async def _replies(self, connection: AsyncRedisConnection, request: RedisRequest) -> list[Any]:
        self._used.add(connection)
        try:
            async with asyncio.timeout(self._address.timeout):
                replies = await connection.exchange(request)
        except CONNECTION_ERRORS as error:
            connection.close()
            raise lost(error, request.node, self._address.timeout, writes=request.writes) from error
        except BaseException:  # the next request would take this one's reply for its own
            connection.close()
            raise
        finally:
            self._used.discard(connection)
        return self._settle(connection, request.node, replies)

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for connection in self._drained():
            connection.close()
            with suppress(*CONNECTION_ERRORS):
                await connection.writer.wait_closed()

    def drop(self) -> None:
        """Close every connection from another thread, or after the loop was closed."""
        self._closed = True
        for connection in [*list(self._used), *self._drained()]:
            connection.drop(self._loop)


def is_error(reply: Any, *codes: str) -> bool:
    """Whether it is an error, or one with one of these codes."""
    return type(reply) is ErrorReply and (not codes or code(reply) in codes)
