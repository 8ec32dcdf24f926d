"""The listener: one thread that is notified of what others write, and wakes those who wait for it here.

Whoever writes publishes on a channel named like the item's key, and a waiter has that one subscribed to. A
message that is missed decides nothing, since waiters look for themselves too.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from redis.exceptions import ResponseError

from semel.core.threads import BackgroundThread, SignalSafeLock
from semel.errors import SemelError
from semel.stores.redis.address import Node, RedisAddress
from semel.stores.redis.connection import CONNECTION_ERRORS, RedisConnection

# Who waits for a key looks at it again and again; between two looks its channel stays subscribed to.
LINGER_SECONDS = 5.0
# A server that is down is tried again after this.
RETRY_SECONDS = 1.0
# Who was woken while it was between two looks is woken again, until it has looked.
WAKE_SECONDS = 0.02


class Subscription:
    """A channel that somebody waits for."""

    def __init__(self, place: Hashable) -> None:
        self.place = place
        self.waiters = 0
        self.until: float = 0.0
        self.news = False
        """Whether a message came that nobody has looked at yet."""
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
        self._connections: dict[Node, RedisConnection] = {}
        self._background = BackgroundThread("semel-redis-listener", self._listen)
        self._waking: socket.socket | None = None
        # In a cluster a message stays with the slot of its channel; elsewhere there are no slots.
        self._verbs = (b"SSUBSCRIBE", b"SUNSUBSCRIBE") if address.cluster else (b"SUBSCRIBE", b"UNSUBSCRIBE")

    @contextlib.contextmanager
    def subscribed(self, channel: bytes, place: Hashable) -> Iterator[Subscription]:
        """Stay subscribed to a key's channel meanwhile, and a little longer; who looks clears the news."""
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
            with contextlib.suppress(OSError):  # it has been woken often enough, or is gone
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
        """How long to wait before something is to be done; who has not looked yet is woken again."""
        with self._lock:
            waited_for = [each for each in self._channels.values() if each.waiters]
        news = [each.place for each in waited_for if each.news]
        for place in news:
            self._wake_waiters(place)
        if news:
            return WAKE_SECONDS
        return RETRY_SECONDS if any(each.node is None for each in waited_for) else LINGER_SECONDS

    def _update(self, selector: selectors.BaseSelector) -> None:
        """Subscribe to what is new, and no longer to what nobody has waited for of late."""
        with self._lock:
            new = [channel for channel, each in self._channels.items() if each.node is None]
        for channel in new:
            self._send(selector, 0, channel)
        now = time.monotonic()
        with self._lock:
            over = [name for name, each in self._channels.items() if not each.waiters and each.until < now]
        for channel in over:
            self._send(selector, 1, channel)
            with self._lock:
                if channel in self._channels and not self._channels[channel].waiters:
                    del self._channels[channel]

    def _send(self, selector: selectors.BaseSelector, verb: int, channel: bytes) -> None:
        node = self._owner(channel)
        if node is None:
            return
        try:
            connection = self._connections.get(node) or self._connect(selector, node)
            connection.driver.send_command(self._verbs[verb], channel, check_health=False)
        except (*CONNECTION_ERRORS, SemelError):
            self._disconnect(selector, node)
            return
        if verb == 0:
            self._channels[channel].node = node

    def _connect(self, selector: selectors.BaseSelector, node: Node) -> RedisConnection:
        connection = self._connections[node] = RedisConnection(self._address, node)
        selector.register(connection.socket, selectors.EVENT_READ, node)
        return connection

    def _disconnect(self, selector: selectors.BaseSelector, node: Node) -> None:
        """Forget a connection that broke; its channels are subscribed to anew."""
        connection = self._connections.pop(node, None)
        if connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(connection.socket)
            connection.close()
        with self._lock:
            for subscription in self._channels.values():
                if subscription.node == node:
                    subscription.node = None

    def _receive(self, selector: selectors.BaseSelector, node: Node) -> None:
        driver = self._connections[node].driver
        try:
            while driver.can_read(0):
                self._note(driver.read_response(disable_decoding=True))
        except ResponseError:
            # It may not subscribe there, or the slot has moved. Waiters look for themselves.
            return
        except CONNECTION_ERRORS:
            self._disconnect(selector, node)

    def _note(self, message: list[Any]) -> None:
        verb, channel = message[0], message[1]
        with self._lock:
            subscription = self._channels.get(channel)
        if subscription is None:
            return
        if verb == b"sunsubscribe":
            subscription.node = None
        # That the subscription stands is news too: what happened before was not notified.
        subscription.news = True
        self._wake_waiters(subscription.place)
