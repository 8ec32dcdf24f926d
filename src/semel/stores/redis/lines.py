"""Connections: the thin half, once for threads and once for the tasks of an event loop.

A write is sent once, and only the rules send it again: the driver's own retries are not used.
"""

import contextlib
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import redis
import redis.asyncio
from redis.exceptions import ReadOnlyError, ResponseError

from semel.errors import SemelError, StoreClosed
from semel.sockets import ear
from semel.stores.redis.address import Address, Node
from semel.stores.redis.answers import read
from semel.stores.redis.asks import Exchange
from semel.stores.redis.faults import Broken, lost, unreachable
from semel.stores.redis.servers import Dialogue

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

# What a driver raises where a server is not there, or no longer.
BROKEN = (redis.RedisError, OSError)

# What is read at a time; nearly every answer is shorter.
CHUNK = 65_536

# So many commands of one event loop are under way at a time; with more it would not be quicker.
TASKS = 32


def converse(dialogue: Dialogue[T], exchange: Callable[[Exchange], list[Any]]) -> T:
    """Have a dialogue to its end."""
    try:
        asked = next(dialogue)
        while True:
            try:
                answers = exchange(asked)
            except SemelError as error:
                asked = dialogue.throw(error)
            else:
                asked = dialogue.send(answers)
    except StopIteration as end:
        answer: T = end.value
        return answer


async def aconverse(dialogue: Dialogue[T], exchange: Callable[[Exchange], Awaitable[list[Any]]]) -> T:
    """Have a dialogue to its end."""
    try:
        asked = next(dialogue)
        while True:
            try:
                answers = await exchange(asked)
            except SemelError as error:
                asked = dialogue.throw(error)
            else:
                asked = dialogue.send(answers)
    except StopIteration as end:
        answer: T = end.value
        return answer


class Line:
    """A connection of one thread at a time."""

    def __init__(self, address: Address, node: Node) -> None:
        self.connection = _made(redis, address, node, address.timeout)
        self.connection.connect()
        self.socket: socket.socket = self.connection._sock
        self._speaks = ear(self.socket)

    def quiet(self) -> bool:
        """Whether nothing came since the last answer: neither the end nor anything else."""
        return not self._speaks()

    def ask(self, exchange: Exchange, replies: list[Any]) -> None:
        """Send, and gather the answers."""
        line, data, start = self.socket, b"", 0
        line.sendall(exchange.data)
        while len(replies) < exchange.count:
            answer = read(data, start)
            if answer is None:
                more = line.recv(CHUNK)
                if not more:
                    raise redis.ConnectionError("the server hung up")
                data, start = data[start:] + more, 0
                continue
            reply, start = answer
            if isinstance(reply, redis.ConnectionError):  # of a server that does not let anybody in
                raise reply
            replies.append(reply)

    def hang_up(self) -> None:
        """Let go of the connection."""
        self.connection.disconnect()


class Lines:
    """The connections of a process's threads: one is taken for each exchange, and made where none is free."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._free: dict[Node, list[Line]] = defaultdict(list)
        self._closed = False

    def exchange(self, exchange: Exchange) -> list[Any]:
        """Send these bytes and wait for the answers.

        What only reads is sent once more by a new connection, where one that was kept turns out to be broken.
        """
        line = self._idle(exchange.node)
        if line is not None:
            try:
                return self._answers(line, exchange)
            except Broken:
                pass
        return self._answers(self._opened(exchange.node), exchange)

    def _answers(self, line: Line, exchange: Exchange) -> list[Any]:
        replies: list[Any] = []
        try:
            line.ask(exchange, replies)
        except BROKEN as error:
            line.hang_up()
            raise lost(error, exchange, self._address.timeout, answered=bool(replies)) from error
        except BaseException:  # an answer that nobody waits for would be taken for the next one's
            line.hang_up()
            raise
        if self._closed or _demoted(replies):
            line.hang_up()
        else:
            self._free[exchange.node].append(line)
        return replies

    def close(self) -> None:
        """Let go of every connection; those in use follow when they are free."""
        self._closed = True
        for lines in list(self._free.values()):
            while lines:
                lines.pop().hang_up()

    def _idle(self, node: Node) -> Line | None:
        """A connection that is free, and still good."""
        if self._closed:
            raise StoreClosed("the store was closed")
        free = self._free[node]
        while free:
            try:
                line = free.pop()
            except IndexError:  # another thread was quicker
                break
            if line.quiet():
                return line
            line.hang_up()
        return None

    def _opened(self, node: Node) -> Line:
        try:
            return Line(self._address, node)
        except BROKEN as error:
            raise unreachable(error, node, self._address.timeout) from error


class AsyncLines:
    """The connections of one event loop's tasks."""

    def __init__(self, address: Address) -> None:
        import asyncio

        self._address = address
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout
        self._room = asyncio.Semaphore(TASKS)
        self._free: dict[Node, list[Any]] = defaultdict(list)
        self._used: set[Any] = set()
        self._closed = False

    async def exchange(self, exchange: Exchange) -> list[Any]:
        """Send these bytes and wait for the answers.

        What only reads is sent once more by a new connection, where one that was kept turns out to be broken.
        """
        async with self._room:
            line = await self._idle(exchange.node)
            if line is not None:
                try:
                    return await self._answers(line, exchange)
                except Broken:
                    pass
            return await self._answers(await self._opened(exchange.node), exchange)

    async def _answers(self, line: Any, exchange: Exchange) -> list[Any]:
        self._used.add(line)
        replies: list[Any] = []
        try:
            async with self._timeout(self._address.timeout):
                await _ask(line, exchange, replies)
        except BROKEN as error:
            await line.disconnect(nowait=True)
            raise lost(error, exchange, self._address.timeout, answered=bool(replies)) from error
        except BaseException:  # an answer that nobody waits for would be taken for the next one's
            await line.disconnect(nowait=True)
            raise
        finally:
            self._used.discard(line)
        if self._closed or _demoted(replies):
            await line.disconnect(nowait=True)
        else:
            self._free[exchange.node].append(line)
        return replies

    async def close(self) -> None:
        """Let go of every connection; those in use follow when they are free."""
        self._closed = True
        for lines in self._free.values():
            while lines:
                await lines.pop().disconnect()

    def drop(self) -> None:
        """Let go of them from elsewhere: the loop is closed, or another thread's."""
        self._closed = True
        for line in [*self._used, *(line for lines in self._free.values() for line in lines)]:
            _drop(line, self._loop)
        self._free.clear()

    async def _idle(self, node: Node) -> Any | None:
        """A connection that is free, and still good."""
        free = self._free[node]
        while free:
            line = free.pop()
            if not await _noisy(line):
                return line
            await line.disconnect(nowait=True)
        return None

    async def _opened(self, node: Node) -> Any:
        # The timeout of the whole exchange takes its place: the driver's own makes a task for every send.
        line = _made(redis.asyncio, self._address, node, None)
        try:
            async with self._timeout(self._address.timeout):
                await line.connect()
        except BROKEN as error:
            await line.disconnect(nowait=True)
            raise unreachable(error, node, self._address.timeout) from error
        except BaseException:
            await line.disconnect(nowait=True)
            raise
        return line


def _made(driver: Any, address: Address, node: Node, timeout: float | None) -> Any:
    """A connection of the driver's, or of its asynchronous half."""
    kind = driver.Connection if address.tls is None else driver.SSLConnection
    return kind(socket_timeout=timeout, **address.options(node))


async def _ask(line: Any, exchange: Exchange, replies: list[Any]) -> None:
    await line.send_packed_command(exchange.data, check_health=False)
    for _ in range(exchange.count):
        try:
            replies.append(await line.read_response(disable_decoding=True))
        except ResponseError as error:
            replies.append(error)


async def _noisy(line: Any) -> bool:
    """Whether something came since the last answer: the end, or what nobody asked for."""
    try:
        return bool(await line.can_read())
    except BROKEN:
        return True


def _drop(line: Any, loop: "asyncio.AbstractEventLoop") -> None:
    writer, line._reader, line._writer = line._writer, None, None
    if writer is None:
        return
    try:
        loop.call_soon_threadsafe(_abort, writer)
    except RuntimeError:  # it is closed
        _bury(writer.transport)


def _abort(writer: Any) -> None:
    # The writer itself has to live until now, or it would complain that nobody closed it.
    writer.transport.abort()


def _bury(transport: Any) -> None:
    """Close what a closed loop has left open, for which asyncio has no other way."""
    with contextlib.suppress(RuntimeError):
        transport.abort()
    beneath = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport
    # The socket is closed whatever else fails; another kind of loop has its own ways.
    with contextlib.suppress(AttributeError, RuntimeError):
        beneath._call_connection_lost(None)


def _demoted(replies: list[Any]) -> bool:
    """Whether the server has become a replica: the name in the URL may lead to another one by now."""
    return any(type(reply) is ReadOnlyError for reply in replies)
