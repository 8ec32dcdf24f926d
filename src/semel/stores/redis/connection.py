"""One connection, for threads and for event loops: the only module that touches redis-py's private names.

- `Connection._sock`: a request is sent, and its replies are received, on the socket itself;
- `redis._parsers.BaseParser.parse_error`: which exception stands for the text of an error reply;
- `asyncio.Connection._reader` and `._writer`: they are let go of from another thread, or where the loop is
  closed already, for which redis-py has no call.

redis-py's own pool was tried for threads, with its retries off. It sends once too, and the tests of lost
replies pass: all retries are in redis-py's clients, above its connections. But it costs too much processor
time, counted in that of the same script by `Redis.execute_command` (redis-py 8.1, Python 3.11):

                                                      one exchange   a replay   a first call, of two
    the socket itself                                     0.3           1.4            1.2
    `send_packed_command`, `read_response`, our pool      0.5           1.7            1.5
    the same, by `redis.ConnectionPool`                   0.7           2.0            1.9
"""

import socket
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from redis._parsers import BaseParser
from redis.exceptions import ResponseError

from semel.core.connections import close_after_loop, read_poller
from semel.stores.redis.address import Node, RedisAddress
from semel.stores.redis.protocol import ErrorReply, RedisRequest, read

if TYPE_CHECKING:
    import asyncio

# What a driver raises where a server is not there, or no longer.
CONNECTION_ERRORS = (redis.RedisError, OSError)

# What is received at a time; nearly every reply is shorter.
CHUNK = 65_536


class RedisConnection:
    """A connection of one thread at a time, open from the start."""

    def __init__(self, address: RedisAddress, node: Node) -> None:
        self.driver: Any = _driver_connection(redis, address, node, address.timeout)
        self.driver.connect()
        self.socket: socket.socket = self.driver._sock
        self._readable = read_poller(self.socket)

    def is_quiet(self) -> bool:
        """Whether nothing came since the last reply: neither the end nor anything else."""
        return not self._readable()

    def exchange(self, request: RedisRequest, replies: list[Any]) -> None:
        """Send a request once, and gather its replies as they come."""
        link, data, start = self.socket, b"", 0
        link.sendall(request.data)
        while len(replies) < request.count:
            parsed = read(data, start) if data else None
            if parsed is None:
                more = link.recv(CHUNK)
                if not more:
                    raise redis.ConnectionError("the server hung up")
                data, start = data[start:] + more, 0
                continue
            reply, start = parsed
            replies.append(server_error(reply) if type(reply) is ErrorReply else reply)

    def close(self) -> None:
        """Let go of the connection."""
        self.driver.disconnect()


class AsyncRedisConnection:
    """A connection of one task at a time."""

    def __init__(self, address: RedisAddress, node: Node) -> None:
        # The pool limits the whole exchange: the driver's own limit makes a task for every send.
        self._driver = _driver_connection(redis.asyncio, address, node, None)

    async def open(self) -> None:
        """Connect, and log in."""
        await self._driver.connect()

    async def is_quiet(self) -> bool:
        """Whether nothing came since the last reply: neither the end nor anything else."""
        try:
            return not await self._driver.can_read()
        except CONNECTION_ERRORS:
            return False

    async def exchange(self, request: RedisRequest, replies: list[Any]) -> None:
        """Send a request once, and gather its replies as they come."""
        await self._driver.send_packed_command(request.data, check_health=False)
        for _ in range(request.count):
            try:
                replies.append(await self._driver.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(error)

    async def close(self, nowait: bool = True) -> None:
        """Let go of the connection, and wait until that is done only if asked to."""
        await self._driver.disconnect(nowait=nowait)

    def drop(self, loop: "asyncio.AbstractEventLoop") -> None:
        """Let go of the connection from elsewhere: its loop is closed, or another thread's."""
        driver = self._driver
        writer, driver._reader, driver._writer = driver._writer, None, None
        if writer is None:
            return
        try:
            loop.call_soon_threadsafe(_abort, writer)
        except RuntimeError:  # it is closed
            close_after_loop(writer.transport)


def server_error(text: str) -> Exception:
    """The exception for an error reply; one that says that nobody is let in is raised."""
    error: Exception = BaseParser.parse_error(text)  # type: ignore[no-untyped-call]
    if isinstance(error, redis.ConnectionError):
        raise error
    return error


def _driver_connection(driver: Any, address: RedisAddress, node: Node, timeout: float | None) -> Any:
    """A connection of redis-py, or of its asynchronous half, not yet open."""
    kind = driver.Connection if address.tls is None else driver.SSLConnection
    return kind(socket_timeout=timeout, **address.options(node))


def _abort(writer: Any) -> None:
    # The writer itself has to live until now, or it would complain that nobody closed it.
    writer.transport.abort()
