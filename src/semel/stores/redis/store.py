"""The store in Redis, its listener, and provisioning.

The listener is a thread that subscribes to keys and wakes this process's waiters when others write them.
Every write is published on a channel named like the item's key. A missed message decides nothing, since
waiters also look for themselves.
"""

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from semel.core.clock import BackgroundThread, Clock, PerLoop, SignalSafeLock
from semel.core.commands import Found, Get, Stored, Time, Watch
from semel.core.drive import run_async, run_sync
from semel.core.runtime import FORKING
from semel.errors import NotPermitted, SemelError, StoreClosed, StoreError, UsageError, WrongSchema
from semel.model import PROVISION, Problem, ScanCost, TableSize
from semel.stores.redis.connection import (
    CHUNK,
    CONNECTION_ERRORS,
    AsyncRedisPool,
    RedisConnection,
    RedisPool,
    gather,
    pack,
)
from semel.stores.redis.interpreter import UNSTAMPED, Interpreter
from semel.stores.redis.router import Requests, redis_command
from semel.stores.redis.server import ErrorReply, Node, RedisAddress, parse
from semel.stores.shared import place_named, wake
from semel.stores.waiting import KeyWatchers
from semel.tables import Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow


T = TypeVar("T")

NOT_UTF8 = "not a text that UTF-8 can encode: {0!r}"

# A waiter looks again and again; between two looks the channel stays subscribed.
LINGER_SECONDS = 5.0
# A server that is down is tried again after this.
RETRY_SECONDS = 1.0
# A waiter that was woken between two looks is woken again until it has looked.
WAKE_SECONDS = 0.02
# More messages than a chunk holds.
EVERY = CHUNK


class Subscription:
    """A channel with waiters."""

    def __init__(self, place: Hashable) -> None:
        self.place = place
        self.waiters = 0
        self.until: float = 0.0
        self.news = False
        """Whether a message came after the last look."""
        self.node: Node | None = None


class RedisListener:
    """Subscribes to the channels of keys, and wakes their waiters."""

    def __init__(
        self,
        address: RedisAddress,
        owner: Callable[[bytes], Node | None],
        wake_waiters: Callable[[Hashable], None],
    ) -> None:
        self._address = address
        self._owner = owner
        self._wake_waiters = wake_waiters
        self._lock = SignalSafeLock()
        self._channels: dict[bytes, Subscription] = {}
        # The connections, and the part of a message that each has received.
        self._connections: dict[Node, tuple[RedisConnection, bytearray]] = {}
        self._background = BackgroundThread("semel-redis-listener", self._listen)
        self._waking: socket.socket | None = None
        # In a cluster only the node of the channel's slot has the message.
        self._shard = b"S" if address.cluster else b""

    @contextlib.contextmanager
    def subscribed(self, channel: bytes, place: Hashable) -> Iterator[Subscription]:
        """Stay subscribed to a channel meanwhile and a little longer; a waiter that looks clears the news."""
        with self._lock:
            if self._background.stopping.is_set():
                subscription = Subscription(place)
            else:
                subscription = self._channels.setdefault(channel, Subscription(place))
                self._background.start()
            subscription.waiters += 1
        if subscription.node is None or subscription.news:
            self._wake()
        try:
            yield subscription
        finally:
            with self._lock:
                subscription.waiters -= 1
                subscription.until = time.monotonic() + LINGER_SECONDS

    def close(self) -> None:
        """End the thread and its connections."""
        self._background.stop()
        self._wake()
        self._background.join()

    def _wake(self) -> None:
        if self._waking is not None:
            with contextlib.suppress(OSError):  # it has been woken often enough, or has ended
                self._waking.send(b"!")

    # In the thread

    def _listen(self) -> None:
        waking, woken = socket.socketpair()
        with selectors.DefaultSelector() as selector, waking, woken:
            waking.setblocking(False)
            self._waking = waking
            selector.register(woken, selectors.EVENT_READ)
            try:
                while not self._background.stopping.is_set():
                    self._update(selector)
                    for key, _ in selector.select(self._next_timeout()):
                        if key.data is None:
                            woken.recv(4096)
                        else:
                            self._receive(selector, key.data)
            finally:
                for node in list(self._connections):
                    self._disconnect(selector, node)

    def _next_timeout(self) -> float:
        """Wake again those that have not looked yet, and return when there is something to do."""
        with self._lock:
            waited_for = [each for each in self._channels.values() if each.waiters]
        news = [each.place for each in waited_for if each.news]
        for place in news:
            self._wake_waiters(place)
        if news:
            return WAKE_SECONDS
        return RETRY_SECONDS if any(each.node is None for each in waited_for) else LINGER_SECONDS

    def _update(self, selector: selectors.BaseSelector) -> None:
        """Subscribe to new channels, and unsubscribe from those without recent waiters."""
        now = time.monotonic()
        with self._lock:
            channels = list(self._channels.items())
        for channel, each in channels:
            if not each.waiters and each.until < now:
                self._send(selector, b"UNSUBSCRIBE", channel)
                each.node = None
                with self._lock:
                    if not each.waiters:
                        del self._channels[channel]
            elif each.node is None:
                each.node = self._send(selector, b"SUBSCRIBE", channel)

    def _send(self, selector: selectors.BaseSelector, verb: bytes, channel: bytes) -> Node | None:
        """Send a command about a channel, and return the node that received it."""
        node = self._owner(channel)
        if node is None:
            return None
        try:
            if node not in self._connections:
                connection = RedisConnection(self._address, node)
                self._connections[node] = connection, bytearray()
                selector.register(connection.socket, selectors.EVENT_READ, node)
            self._connections[node][0].socket.sendall(pack((self._shard + verb, channel)))
        except (*CONNECTION_ERRORS, SemelError):
            self._disconnect(selector, node)
            return None
        return node

    def _disconnect(self, selector: selectors.BaseSelector, node: Node) -> None:
        """Forget a connection that broke; its channels are subscribed to again."""
        if node in self._connections:
            connection, _ = self._connections.pop(node)
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(connection.socket)
            connection.close()
        with self._lock:
            for subscription in self._channels.values():
                if subscription.node == node:
                    subscription.node = None

    def _receive(self, selector: selectors.BaseSelector, node: Node) -> None:
        messages: list[Any] = []
        connection, received = self._connections[node]
        connection.socket.setblocking(False)
        try:
            while more := connection.socket.recv(CHUNK):
                received[:] = gather(bytes(received) + more, EVERY, messages)
            self._disconnect(selector, node)  # the server closed it
        except (BlockingIOError, ssl.SSLWantReadError):
            connection.socket.settimeout(self._address.timeout)
        except CONNECTION_ERRORS:
            self._disconnect(selector, node)
        for message in messages:
            if type(message) is not ErrorReply:  # it may not subscribe there, or the slot has moved
                self._note(message)

    def _note(self, message: list[Any]) -> None:
        verb, channel = message[0], message[1]
        with self._lock:
            subscription = self._channels.get(channel)
        if subscription is None:
            return
        if verb == b"sunsubscribe":
            subscription.node = None
        # A new subscription is news too: earlier messages were missed.
        subscription.news = True
        self._wake_waiters(subscription.place)


class RedisStore:
    """Items in Redis or Valkey, for every process and machine that can reach it."""

    overflow: "Overflow | None" = None

    def __init__(self, url: str, *, env: str = "dev", clock: Clock | None = None) -> None:
        self._address = parse(url)
        self._clock = clock or Clock()
        self.interpreter: Interpreter = Interpreter(self._address, env, self._clock)
        self._closed = False
        self._connect()
        FORKING.add(self)

    def _connect(self) -> None:
        self._pool = RedisPool(self._address)
        self._per_loop = PerLoop(
            lambda: AsyncRedisPool(self._address), AsyncRedisPool.close, AsyncRedisPool.drop
        )
        self._watchers = KeyWatchers(self._clock)
        self._listener = RedisListener(self._address, self.interpreter.owner, self._watchers.notify)

    def __repr__(self) -> str:
        return f"<RedisStore {self._address.home}/{self._address.db}, prefix {self._address.prefix!r}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "RedisStore":
        """`redis://:password@host:port/db`, or `rediss://` with TLS; nothing is sent yet."""
        return cls(url, env=env, clock=clock)

    def execute(self, command: Stored) -> Any:
        """Execute the command, and return its reply."""
        if type(command) is Watch:
            with self._subscribed(command) as heard:
                return self._watchers.watch(
                    place_named(command), command.seconds, lambda: self.execute(_look(command, heard))
                )
        if type(command) is Time and (known := self.at_once(command)) is not None:
            return known
        try:
            reply = run_sync(self.interpreter.perform(command), self._pool.exchange)
        except UnicodeEncodeError as error:
            raise UsageError(NOT_UTF8.format(error.object)) from error
        return self._noted(command, reply)

    def at_once(self, command: Stored) -> Found | None:
        """The time, if a recent reply told it: any other reply comes over a network."""
        return self.interpreter.time.known() if type(command) is Time and not self._closed else None

    async def aexecute(self, command: Stored) -> Any:
        """Execute the command, and return its reply."""
        if self._closed:
            raise StoreClosed("the store was closed")
        if type(command) is Watch:
            with self._subscribed(command) as heard:
                return await self._watchers.awatch(
                    place_named(command), command.seconds, lambda: self.aexecute(_look(command, heard))
                )
        try:
            reply = await run_async(self.interpreter.perform(command), self._per_loop.here().exchange)
        except UnicodeEncodeError as error:
            raise UsageError(NOT_UTF8.format(error.object)) from error
        return self._noted(command, reply)

    def _noted(self, command: Any, reply: Any) -> Any:
        if type(command) is not Time:
            self.interpreter.time.observe(reply)
        if self._watchers.watches or self._watchers.async_watches:  # the server notifies other processes
            wake(self._watchers, command, reply)
        return reply

    def run(self, requests: Requests[T]) -> T:
        """Send requests, and return what came of them."""
        return run_sync(requests, self._pool.exchange)

    def scan_cost(self, table: Table) -> ScanCost:
        """What it takes to read a whole table: SCAN goes over all keys of the server."""
        return self.run(self.interpreter.scan_cost())

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The size of the server: Redis does not count keys by prefix, and removes expired items itself."""
        return [self.run(self.interpreter.measure())] if tables else []

    async def leave(self) -> None:
        """Close the running loop's connections."""
        await self._per_loop.leave()

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._listener.close()
        self._pool.close()
        self._per_loop.drop_all()
        FORKING.discard(self)

    def _subscribed(self, command: Watch) -> contextlib.AbstractContextManager[Subscription]:
        """Subscribe to the item's channel meanwhile; with an imposed time, waiting takes none."""
        place = place_named(command)
        if self._clock.imposed() is not None:
            return contextlib.nullcontext(Subscription(place))
        return self._listener.subscribed(self.interpreter.plan(command.table).item_key(command), place)

    def reset_after_fork(self) -> Any:
        """In a forked child: connections of its own."""
        inherited = self._pool, self._per_loop, self._listener
        self._connect()
        return inherited


def _look(command: Watch, heard: Subscription) -> Get:
    heard.news = False
    return Get(command.table, command.key, command.sort)


# Provisioning


def provision(url: str, env: str) -> list[str]:
    """Stamp a Redis for an environment, as the first command of a store does; return what was done."""
    with contextlib.closing(RedisStore(url, env=env)) as store:
        interpreter = store.interpreter
        before = store.run(interpreter.stamped())
        store.run(interpreter.open())
        prefix = interpreter.address.prefix
        return [f"stamped prefix {prefix!r} for environment {env!r}"] if before == UNSTAMPED else []


def problems(url: str, env: str) -> list[Problem]:
    """Return what is wrong with a Redis, as far as its servers tell."""
    with contextlib.closing(RedisStore(url, env=env)) as store:
        interpreter = store.interpreter
        found = list(_misstamped(interpreter, store.run(interpreter.stamped())))
        for node in store.run(interpreter.nodes()):
            try:
                [flat] = store.run(interpreter.on(node, [redis_command(b"CONFIG", b"GET", b"*")]))
            except (NotPermitted, StoreError):  # as most hosted ones
                flat = []
            found += _unsafe(node, dict(zip(flat[::2], flat[1::2], strict=True)))
        return found


def _misstamped(interpreter: Interpreter, stamped: list[bytes | None]) -> Iterator[Problem]:
    prefix = interpreter.address.prefix
    if stamped == UNSTAMPED:
        yield Problem(
            f"prefix {prefix!r} is not stamped for any environment yet",
            f"{PROVISION} (or let the first command do it)",
        )
        return
    try:
        interpreter.check(stamped)
    except WrongSchema as error:
        yield Problem(str(error), "open it as it was made, or choose a prefix that no other program uses")
    except StoreError as error:
        yield Problem(str(error), f"open it for its own environment, or use ?prefix=, not {prefix!r}")


def _unsafe(node: Node, settings: dict[bytes, bytes]) -> Iterator[Problem]:
    if not settings:
        yield Problem(
            f"whether {node} evicts or loses records could not be checked: it refuses CONFIG GET",
            "check in its console: maxmemory-policy noeviction, and persistence on",
        )
        return
    policy = settings.get(b"maxmemory-policy", b"noeviction").decode()
    if policy != "noeviction":
        yield Problem(
            f"{node} has maxmemory-policy {policy}: short of memory it forgets records, which then run again",
            "set maxmemory-policy to noeviction, or give semel a Redis of its own",
        )
    if settings.get(b"appendonly") == b"no" and not settings.get(b"save"):
        yield Problem(
            f"{node} keeps nothing on disk (appendonly no, save ''): after a restart everything runs again",
            "set appendonly to yes",
        )
