"""The bell: one thread that hears what others write, and wakes those who wait for it here.

Whoever writes publishes on a channel named like the item's key, and a waiter has that one listened for. What
was not heard decides nothing, since waiters look for themselves too.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from redis.exceptions import ResponseError

from semel.errors import SemelError
from semel.stores.redis.address import Address, Node
from semel.stores.redis.lines import BROKEN, Line

# Who waits for a key looks at it again and again; between two looks it goes on being listened for.
LINGER_SECONDS = 5.0
# A server that is down is tried again after this.
RETRY_SECONDS = 1.0
# Who was rung for while it was between two looks is rung for again, until it has looked.
INSIST_SECONDS = 0.02


class Heard:
    """A channel that somebody waits for."""

    def __init__(self, place: Hashable) -> None:
        self.place = place
        self.waiters = 0
        self.until = 0.0
        self.news = False
        """Whether something was heard that nobody has looked at yet."""
        self.node: Node | None = None


class Bell:
    """Listens on channels of keys, and rings."""

    def __init__(
        self, address: Address, owner: Callable[[bytes], Node | None], ring: Callable[[Hashable], None]
    ) -> None:
        self._address = address
        self._owner = owner
        self._ring = ring
        self._lock = threading.RLock()
        self._channels: dict[bytes, Heard] = {}
        self._lines: dict[Node, Line] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        # In a cluster a message stays with the slot of its channel; elsewhere there are no slots.
        self._words = (b"SSUBSCRIBE", b"SUNSUBSCRIBE") if address.cluster else (b"SUBSCRIBE", b"UNSUBSCRIBE")

    @contextlib.contextmanager
    def listening(self, channel: bytes, place: Hashable) -> Iterator[Heard]:
        """Listen for a key meanwhile, and for a little longer; whoever looks takes note of the news."""
        with self._lock:
            if self._closed:
                heard = Heard(place)
            else:
                heard = self._channels.setdefault(channel, Heard(place))
                self._start()
            heard.waiters += 1
        if heard.node is None or heard.news:
            self._wake()
        try:
            yield heard
        finally:
            with self._lock:
                heard.waiters -= 1
                heard.until = time.monotonic() + LINGER_SECONDS

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._wake()
            thread.join()

    def _start(self) -> None:
        if self._thread is None:
            threading.Thread(target=self._run, name="semel-redis-bell", daemon=True).start()

    def _wake(self) -> None:
        if self._thread is None:
            return
        with contextlib.suppress(BlockingIOError, OSError):  # it has been woken often enough, or is gone
            self._waking.send(b"!")

    # In the thread

    def _run(self) -> None:
        # Here, and not where it is started: a signal may come between any two lines there.
        with self._lock:
            if self._thread is not None or self._closed:
                return
            self._waking, self._woken = socket.socketpair()
            self._waking.setblocking(False)
            self._thread = threading.current_thread()
        self._listen_on()

    def _listen_on(self) -> None:
        with selectors.DefaultSelector() as selector, self._waking, self._woken:
            selector.register(self._woken, selectors.EVENT_READ)
            try:
                while not self._closed:
                    self._tend(selector)
                    for key, _ in selector.select(self._patience()):
                        if key.data is None:
                            self._woken.recv(4096)
                        else:
                            self._listen(selector, key.data)
            finally:
                for line in self._lines.values():
                    line.hang_up()

    def _patience(self) -> float:
        """How long to listen before something is to be done; who has not looked yet is rung for again."""
        with self._lock:
            waited_for = [heard for heard in self._channels.values() if heard.waiters]
        news = [heard.place for heard in waited_for if heard.news]
        for place in news:
            self._ring(place)
        if news:
            return INSIST_SECONDS
        return RETRY_SECONDS if any(heard.node is None for heard in waited_for) else LINGER_SECONDS

    def _unheard(self) -> list[bytes]:
        with self._lock:
            return [channel for channel, heard in self._channels.items() if heard.node is None]

    def _tend(self, selector: selectors.BaseSelector) -> None:
        """Listen for what is new, and no longer for what nobody has waited for of late."""
        for channel in self._unheard():
            self._say(selector, 0, channel)
        now = time.monotonic()
        with self._lock:
            over = [name for name, heard in self._channels.items() if not heard.waiters and heard.until < now]
        for channel in over:
            self._say(selector, 1, channel)
            with self._lock:
                if channel in self._channels and not self._channels[channel].waiters:
                    del self._channels[channel]

    def _say(self, selector: selectors.BaseSelector, word: int, channel: bytes) -> None:
        node = self._owner(channel)
        if node is None:
            return
        try:
            line = self._lines.get(node) or self._call(selector, node)
            line.connection.send_command(self._words[word], channel, check_health=False)
        except (*BROKEN, SemelError):
            self._hang_up(selector, node)
            return
        if word == 0:
            self._channels[channel].node = node

    def _call(self, selector: selectors.BaseSelector, node: Node) -> Line:
        line = self._lines[node] = Line(self._address, node)
        selector.register(line.socket, selectors.EVENT_READ, node)
        return line

    def _hang_up(self, selector: selectors.BaseSelector, node: Node) -> None:
        """Forget a connection that broke; what it listened for is listened for anew."""
        line = self._lines.pop(node, None)
        if line is not None:
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(line.socket)
            line.hang_up()
        with self._lock:
            for heard in self._channels.values():
                if heard.node == node:
                    heard.node = None

    def _listen(self, selector: selectors.BaseSelector, node: Node) -> None:
        connection = self._lines[node].connection
        try:
            while connection.can_read(0):
                self._hear(connection.read_response(disable_decoding=True))
        except ResponseError:
            # It may not listen there, or the slot has moved. Waiters look for themselves.
            return
        except BROKEN:
            self._hang_up(selector, node)

    def _hear(self, message: list[Any]) -> None:
        word, channel = message[0], message[1]
        with self._lock:
            heard = self._channels.get(channel)
        if heard is None:
            return
        if word == b"sunsubscribe":
            heard.node = None
        # That it is listened for is news too: what happened before was not heard.
        heard.news = True
        self._ring(heard.place)
