"""A TCP proxy that breaks connections on demand, in front of a real server."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import urlsplit

from semel.core.clock import Clock
from semel.errors import UsageError

Match: TypeAlias = bytes | Callable[[bytes], bool]

HOST = "127.0.0.1"
CHUNK = 65_536
# The server is near, or it is not there; an attempt to reach it does not outlast a test's patience.
CONNECT_SECONDS = 10
# To close with nothing lingering is to reset.
AT_ONCE = struct.pack("ii", 1, 0)


class FaultProxy:
    """What stands between a client and a server, passes bytes on, and fails on demand as networks do.

        with FaultProxy.before(url) as proxy:
            client = connect(proxy.url(url))
            proxy.drop_answer_to(b"INSERT")  # it is carried out, and nobody is told

    A request is what a client has sent since the server last answered it. `dropped` counts the answers that
    were kept back, `swallowed` the bytes that fell into the black hole, `stalled` the stalled connections.
    """

    def __init__(self, host: str, port: int, *, clock: Clock | None = None) -> None:
        self.dropped: int = 0
        self.swallowed: int = 0
        self.stalled: int = 0
        self._clock = clock or Clock()
        self._server = (host, port)
        self._lock = threading.Lock()
        self._drops: list[Match] = []
        self._stalls: list[Match] = []
        self._delay = 0.0
        self._hole = self._refusing = self._closed = False
        self._links: set[_Link] = set()
        self._listener = socket.create_server((HOST, 0))
        self.host: str = HOST
        self.port: int = int(self._listener.getsockname()[1])
        self._acceptor = threading.Thread(target=self._accept, name="semel-proxy", daemon=True)
        self._acceptor.start()

    @classmethod
    def before(cls, url: str, *, clock: Clock | None = None) -> "FaultProxy":
        """A proxy before the server that a URL names."""
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise UsageError(f"{url!r} names no host and port to stand before")
        return cls(parts.hostname, parts.port, clock=clock)

    def url(self, url: str) -> str:
        """The server's URL with the proxy's host and port in place of its own."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{self.host}:{self.port}").geturl()

    # Faults

    def drop_answers(self, times: int = 1) -> None:
        """Deliver the next requests, and close the connection in place of each answer."""
        self.drop_answer_to(lambda _: True, times)

    def drop_answer_to(self, match: Match, times: int = 1) -> None:
        """Close the connection instead of answering requests with these bytes, or for which this is true."""
        with self._lock:
            self._drops.extend([match] * times)

    def stall(self, match: Match, times: int = 1) -> None:
        """Swallow a request with these bytes, and whatever follows it on the same connection."""
        with self._lock:
            self._stalls.extend([match] * times)

    def delay(self, seconds: float) -> None:
        """Let every answer wait so long."""
        self._delay = seconds

    def black_hole(self) -> None:
        """Swallow whatever comes from either side, on every connection, old and new."""
        self._hole = True

    def refuse(self) -> None:
        """Reset new connections; `cut` ends those that are there."""
        self._refusing = True

    def cut(self) -> None:
        """Close every connection now."""
        for link in self._open_links():
            link.cut()

    def heal(self) -> None:
        """Be a plain proxy again; connections of which something was swallowed are closed."""
        with self._lock:
            self._drops.clear()
            self._stalls.clear()
            self._delay = 0.0
            self._hole = self._refusing = False
        for link in self._open_links():
            link.heal()

    # Life

    def close(self) -> None:
        """Close the port and every connection."""
        if self._closed:
            return
        self._closed = True
        # Not every system wakes a thread out of accept() when the socket is closed; a caller does it on all.
        socket.create_connection((self.host, self.port)).close()
        self._acceptor.join()
        self._listener.close()
        for link in self._open_links():
            link.cut()
            link.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_links(self) -> list["_Link"]:
        with self._lock:
            return list(self._links)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed:
                client.close()
                return
            server = None if self._refusing else self._reach()
            if server is None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                client.close()
            else:
                self._link(client, server)

    def _reach(self) -> socket.socket | None:
        try:
            server = socket.create_connection(self._server, CONNECT_SECONDS)
        except OSError:
            return None
        server.settimeout(None)
        return server

    def _link(self, client: socket.socket, server: socket.socket) -> None:
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(self, client, server)
        with self._lock:
            self._links.add(link)
        link.thread.start()

    # What the links ask

    def _ended(self, link: "_Link") -> None:
        with self._lock:
            self._links.discard(link)

    def _swallows(self, chunk: bytes) -> bool:
        with self._lock:
            if self._hole:
                self.swallowed += len(chunk)
            return self._hole

    def _dooms(self, request: bytes) -> bool:
        """Whether the answer to this request is one to drop; each plan is used once."""
        with self._lock:
            return _take_match(self._drops, request)

    def _stops(self, request: bytes) -> bool:
        """Whether this request stalls its connection; each plan is used once."""
        with self._lock:
            stalls = _take_match(self._stalls, request)
            self.stalled += stalls
            return stalls

    def _drop(self) -> None:
        with self._lock:
            self.dropped += 1


class _Link:
    """A client's connection and its twin to the server: a thread for each direction."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._lock = threading.Lock()
        self._request = b""
        self._doomed = self._dropped = self._torn = self._stalled = False
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._run, name="semel-proxy-answers", daemon=True)

    def cut(self) -> None:
        """End both connections; the link's own thread closes them."""
        self._over.set()
        _shut(self._client, socket.SHUT_RDWR)
        _shut(self._server, socket.SHUT_RDWR)

    def heal(self) -> None:
        """Forget what was planned; end where bytes are missing, since nobody could make sense of the rest."""
        with self._lock:
            self._doomed = self._dropped
        if self._torn:
            self.cut()

    def _run(self) -> None:
        requests = threading.Thread(
            target=self._pass, args=(self._client, self._server, self._ask), name="semel-proxy-requests"
        )
        requests.daemon = True
        requests.start()
        self._pass(self._server, self._client, self._answer)
        requests.join()
        self._client.close()
        self._server.close()
        self._proxy._ended(self)

    def _pass(self, source: socket.socket, sink: socket.socket, on: Callable[[bytes], None]) -> None:
        try:
            while chunk := source.recv(CHUNK):
                on(chunk)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            self.cut()
        except BaseException:  # a caller's match that failed: nobody is left waiting for it
            self.cut()
            raise

    def _ask(self, chunk: bytes) -> None:
        if self._stalled or self._proxy._swallows(chunk):
            self._torn = True
            return
        with self._lock:
            self._request += chunk
            if self._proxy._stops(self._request):
                self._stalled = self._torn = True
                return
            # Before it is sent: the answer may be back before the next line runs.
            self._doomed = self._doomed or self._proxy._dooms(self._request)
        self._server.sendall(chunk)

    def _answer(self, chunk: bytes) -> None:
        with self._lock:
            begins, self._request = bool(self._request), b""
            doomed = self._doomed
        if doomed:
            self._drop()
        elif self._proxy._swallows(chunk):
            self._torn = True
        else:
            if begins and self._proxy._delay:
                self._proxy._clock.wait(self._over, self._proxy._delay)
            if not self._over.is_set():
                self._client.sendall(chunk)

    def _drop(self) -> None:
        """Hang up on the client; the server is let finish, and sees the end of its client."""
        if not self._dropped:
            self._dropped = True
            self._proxy._drop()
            _shut(self._client, socket.SHUT_RDWR)
            _shut(self._server, socket.SHUT_WR)


def _take_match(plans: list[Match], request: bytes) -> bool:
    for match in plans:
        if match(request) if callable(match) else match in request:
            plans.remove(match)
            return True
    return False


def _shut(side: socket.socket, how: int) -> None:
    with suppress(OSError):  # it is closed already
        side.shutdown(how)
