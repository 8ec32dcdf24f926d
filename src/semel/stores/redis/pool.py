"""The connections of a store, once for threads and once for the tasks of an event loop.

A write is sent once, and only the rules send it again: the driver's own retries are not used.
"""

from collections import defaultdict
from contextlib import nullcontext
from typing import Any

from redis.exceptions import ReadOnlyError

from semel.core.running import RENEWING
from semel.errors import StoreClosed
from semel.stores.redis.address import Node, RedisAddress
from semel.stores.redis.connection import CONNECTION_ERRORS, AsyncRedisConnection, RedisConnection
from semel.stores.redis.errors import BrokenConnection, lost, unreachable
from semel.stores.redis.protocol import RedisRequest

# So many commands of one event loop are under way at a time; with more it would not be quicker.
TASKS = 32


class RedisPool:
    """The connections of a process's threads: one is taken for each exchange, and made where none is free."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._free: dict[Node, list[RedisConnection]] = defaultdict(list)
        self._closed = False

    def exchange(self, request: RedisRequest) -> list[Any]:
        """Send a request and wait for its replies.

        What only reads is sent once more by a new connection, where one that was kept turns out to be broken.
        """
        connection = self._idle(request.node)
        if connection is not None:
            try:
                return self._replies(connection, request)
            except BrokenConnection:
                pass
        return self._replies(self._opened(request.node), request)

    def _replies(self, connection: RedisConnection, request: RedisRequest) -> list[Any]:
        replies: list[Any] = []
        try:
            connection.exchange(request, replies)
        except CONNECTION_ERRORS as error:
            connection.close()
            raise lost(error, request, self._address.timeout, answered=bool(replies)) from error
        except BaseException:  # a reply that nobody waits for would be taken for the next one's
            connection.close()
            raise
        if _demoted(replies):
            connection.close()
        else:
            self._free[request.node].append(connection)
            if self._closed:  # by another thread, which may have looked before the connection was back
                self.close()
        return replies

    def close(self) -> None:
        """Close every connection; those in use follow when they are free."""
        self._closed = True
        for free in list(self._free.values()):
            while (connection := _last(free)) is not None:
                connection.close()

    def _idle(self, node: Node) -> RedisConnection | None:
        """A connection that is free, and still good."""
        if self._closed:
            raise StoreClosed("the store was closed")
        free = self._free[node]
        while (connection := _last(free)) is not None:
            if connection.is_quiet():
                return connection
            connection.close()
        return None

    def _opened(self, node: Node) -> RedisConnection:
        try:
            return RedisConnection(self._address, node)
        except CONNECTION_ERRORS as error:
            raise unreachable(error, node, self._address.timeout) from error


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

        What only reads is sent once more by a new connection, where one that was kept turns out to be broken.
        """
        # A renewal waits for no caller: if the lease expires, its work is repeated.
        async with nullcontext() if RENEWING.get() else self._semaphore:
            connection = await self._idle(request.node)
            if connection is not None:
                try:
                    return await self._replies(connection, request)
                except BrokenConnection:
                    pass
            return await self._replies(await self._opened(request.node), request)

    async def _replies(self, connection: AsyncRedisConnection, request: RedisRequest) -> list[Any]:
        self._used.add(connection)
        replies: list[Any] = []
        try:
            async with self._timeout(self._address.timeout):
                await connection.exchange(request, replies)
        except CONNECTION_ERRORS as error:
            await connection.close()
            raise lost(error, request, self._address.timeout, answered=bool(replies)) from error
        except BaseException:  # a reply that nobody waits for would be taken for the next one's
            await connection.close()
            raise
        finally:
            self._used.discard(connection)
        if self._closed or _demoted(replies):
            await connection.close()
        else:
            self._free[request.node].append(connection)
        return replies

    async def close(self) -> None:
        """Close every connection; those in use follow when they are free."""
        self._closed = True
        for connections in list(self._free.values()):
            while connections:
                await connections.pop().close(nowait=False)

    def drop(self) -> None:
        """Let go of every connection from elsewhere: the loop is closed, or another thread's."""
        self._closed = True
        # Copied, since a loop that runs in another thread goes on returning connections.
        free = [connection for connections in list(self._free.values()) for connection in list(connections)]
        for connection in [*list(self._used), *free]:
            connection.drop(self._loop)
        self._free.clear()

    async def _idle(self, node: Node) -> AsyncRedisConnection | None:
        """A connection that is free, and still good."""
        free = self._free[node]
        while free:
            connection = free.pop()
            if await connection.is_quiet():
                return connection
            await connection.close()
        return None

    async def _opened(self, node: Node) -> AsyncRedisConnection:
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


def _last(free: list[RedisConnection]) -> RedisConnection | None:
    try:
        return free.pop()
    except IndexError:  # there is none, or another thread took it
        return None


def _demoted(replies: list[Any]) -> bool:
    """Whether the server has become a replica: the name in the URL may lead to another one by now."""
    return ReadOnlyError in map(type, replies)
