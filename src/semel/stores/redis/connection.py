"""Commands as bytes, the connections of threads and of event loops, and the servers that have the keys.

redis-py connects, logs in and does TLS; requests and replies go over the socket itself. This module alone
uses private names of redis-py:

- `Connection._sock`: the socket;
- `asyncio.Connection._reader` and `._writer`: the streams, which are taken over.

A replay by redis-py's own pool and reader took some 40 % more processor time. A write is sent once, and only
the rules send it again: the driver's retries are in its clients, which are not used.
"""

import asyncio
import hashlib
import socket
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext, suppress
from importlib import resources
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
import redis
import redis.asyncio
from redis.crc import key_slot

from semel.core.clock import close_after_loop, read_poller
from semel.core.running import RENEWING
from semel.errors import SemelError, StoreClosed, StoreOutcomeUnknown, StoreUnavailable
from semel.stores.redis.server import (
    BrokenConnection,
    ErrorReply,
    Node,
    RedisAddress,
    code,
    lost,
    refusal,
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
# A slot moves seldom, and never so often within one command.
REDIRECTIONS = 5


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


class Script(NamedTuple):
    """A Lua script, which is run by its digest, and by its text if the server does not have it."""

    digest: bytes
    text: bytes
    form: bytes
    """The command that runs it with one key and two arguments: a form, since every claim is one."""

    def call(self, *words: bytes) -> bytes:
        return pack((b"EVALSHA", self.digest, *words))

    def call_on(self, key: bytes, now: bytes, argument: bytes) -> bytes:
        return self.form % (len(key), key, len(now), now, len(argument), argument)


def load(name: str) -> Script:
    """Read a script from its file."""
    text = resources.files(__package__).joinpath(name).read_bytes()
    # Redis identifies scripts by SHA-1; no secret depends on it.
    digest = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
    form = b"*6\r\n" + bulk((b"EVALSHA", digest, b"1")) + b"$%d\r\n%b\r\n" * 3
    return Script(digest, text, form)


WRITE, PAGE = SCRIPTS = load("write.lua"), load("page.lua")


class RedisCommand(msgspec.Struct, frozen=True, gc=False):
    """A command as bytes, and the key that selects the server."""

    key: bytes
    data: bytes

    def with_text(self) -> bytes:
        data = self.data
        for script in SCRIPTS:
            data = data.replace(bulk((b"EVALSHA", script.digest)), bulk((b"EVAL", script.text)), 1)
        return data


def redis_command(*words: bytes) -> RedisCommand:
    """Build a command that runs no script, whose first argument is its key."""
    return RedisCommand(words[1] if len(words) > 1 else b"", pack(words))


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
        if ErrorReply in map(type, replies) and any(_is_error(reply, "READONLY") for reply in replies):
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


def _is_error(reply: Any, *codes: str) -> bool:
    return type(reply) is ErrorReply and (not codes or code(reply) in codes)


# Servers

Requests: TypeAlias = Generator[RedisRequest, list[Any], T]


class Router:
    """Sends commands to the servers that have their keys.

    Its methods are generators, which do no I/O: each yields a `RedisRequest` and receives its replies.
    """

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self.slots: dict[int, Node] = {}
        """Which node has a slot of the cluster, as a node replied, and what redirections changed since."""
        wait = (b"WAIT", b"%d" % address.wait_replicas, b"%d" % (address.wait_timeout * 1000))
        self._wait = pack(wait) if address.wait_replicas else b""

    def send(self, commands: Sequence[RedisCommand], writes: bool = False) -> Requests[list[Any]]:
        """Return the replies to commands, from whichever servers; raise if a server refuses one."""
        if not self.address.cluster:
            return (yield from self.on(self.address.home, commands, writes))
        answers: list[Any] = [None] * len(commands)
        waiting: Sequence[int] = range(len(commands))
        try:
            for _ in range(REDIRECTIONS):
                yield from self._round(commands, writes, waiting, answers)
                waiting = [place for place in waiting if answers[place] is None]
                if not waiting:
                    return granted(answers, self.address.home, writes)
        except StoreUnavailable as error:
            raise _partly(error, answers) if writes else error from error
        raise StoreUnavailable(
            f"the cluster at {self.address.home} redirected a command {REDIRECTIONS} times"
        )

    def on(self, node: Node, commands: Sequence[RedisCommand], writes: bool = False) -> Requests[list[Any]]:
        return granted((yield from self._exchange(node, commands, writes)), node, writes)

    def _exchange(self, node: Node, commands: Sequence[RedisCommand], writes: bool) -> Requests[list[Any]]:
        replies = yield from self._request(node, [command.data for command in commands], writes)
        if ErrorReply in map(type, replies):
            replies = yield from self.completed(node, commands, writes, replies)
        return replies

    def completed(
        self, node: Node, commands: Sequence[RedisCommand], writes: bool, replies: list[Any]
    ) -> Requests[list[Any]]:
        """Send those commands again whose scripts the server does not have, and return all replies."""
        unknown = [place for place, reply in enumerate(replies) if _is_error(reply, "NOSCRIPT")]
        again = yield from self._request(node, [commands[place].with_text() for place in unknown], writes)
        for place, reply in zip(unknown, again, strict=True):
            replies[place] = reply
        return replies

    def _request(self, node: Node, encoded: list[bytes], writes: bool) -> Requests[list[Any]]:
        if not encoded:  # since Python 3.12 asyncio never finishes sending nothing
            return []
        if not (writes and self._wait):
            return (yield RedisRequest(node, b"".join(encoded), len(encoded), writes))
        data = b"".join([*encoded, self._wait])
        *replies, replicas = yield RedisRequest(node, data, len(encoded) + 1, writes)
        made = not all(map(_is_error, replies))
        if made and (not isinstance(replicas, int) or replicas < self.address.wait_replicas):
            raise StoreOutcomeUnknown(
                f"{replicas} replicas of Redis at {node} confirmed it in {self.address.wait_timeout:g} s; "
                f"wait_replicas asks for {self.address.wait_replicas}: a failover may undo it"
            )
        return replies

    # A cluster

    def _round(
        self, commands: Sequence[RedisCommand], writes: bool, waiting: Sequence[int], answers: list[Any]
    ) -> Requests[None]:
        """Send commands to the nodes of their slots; those that another node has now get no answer."""
        if not self.slots:
            yield from self.refresh()
        for node, group in self._by_node(commands, waiting).items():
            try:
                replies = yield from self._exchange(node, [commands[place] for place in group], writes)
            except StoreUnavailable:
                # It received nothing, and another node may have its slots by now.
                yield from self.refresh()
                if self.owner(commands[group[0]].key) in (node, None):
                    raise
                continue
            for place, reply in zip(group, replies, strict=True):
                answers[place] = yield from self._followed(commands[place], reply, node, writes)

    def _by_node(self, commands: Sequence[RedisCommand], waiting: Sequence[int]) -> dict[Node, list[int]]:
        groups: dict[Node, list[int]] = {}
        for place in waiting:
            node = self.owner(commands[place].key)
            if node is None:
                self.slots = {}  # the next command asks for them again
                raise StoreUnavailable(f"no node of the cluster at {self.address.home} has the slot of a key")
            groups.setdefault(node, []).append(place)
        return groups

    def owner(self, key: bytes) -> Node | None:
        """The node that has a key; None if it is not known."""
        return self.slots.get(key_slot(key)) if self.address.cluster else self.address.home

    def _followed(self, command: RedisCommand, reply: Any, node: Node, writes: bool) -> Requests[Any]:
        """Return the reply, or None if another node has the slot now."""
        if not _is_error(reply, "MOVED", "ASK"):
            return reply
        word, slot, place = reply.split()[:3]
        host, _, port = place.rpartition(":")
        other = Node(host or node.host, int(port))
        if word == "MOVED":
            self.slots[int(slot)] = other
            return None
        _, reply = yield from self._request(other, [pack((b"ASKING",)), command.with_text()], writes)
        return reply

    def refresh(self) -> Requests[None]:
        """Ask any node of the cluster which node has which slots."""
        for node in dict.fromkeys([*self.slots.values(), self.address.home]):
            try:
                [ranges] = yield from self.on(node, [redis_command(b"CLUSTER", b"SLOTS")])
            except StoreUnavailable as error:
                last = error
                continue
            self.slots = {
                # A node without a name is the one that replied.
                slot: Node((host or b"").decode() or node.host, port)
                for start, end, (host, port, *_), *_ in ranges
                for slot in range(start, end + 1)
            }
            return
        raise last

    def nodes(self) -> Requests[list[Node]]:
        """Return every server that has items, always in the same order."""
        if not self.address.cluster:
            return [self.address.home]
        if not self.slots:
            yield from self.refresh()
        return sorted(set(self.slots.values()), key=str)


def granted(replies: list[Any], node: Node, writes: bool) -> list[Any]:
    """Return the replies, if no server refused a command; it may have been one of several."""
    for reply in filter(_is_error, replies):
        raised = refusal(reply, node, writes=writes)
        raise _partly(raised, replies) if writes else raised
    return replies


def _partly(error: SemelError, answers: list[Any]) -> SemelError:
    """Return the error to raise after several writes, of which some may have been made."""
    made = any(answer is not None and not _is_error(answer) for answer in answers)
    return StoreOutcomeUnknown(f"part of it was written before this: {error}") if made else error
