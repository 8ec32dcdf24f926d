"""Real servers with the shop in them, and what a test sees of it from outside: answers, effects and gates."""

import http.client
import json
import socket
import struct
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from tests.places import CREDENTIALS, Place
from tests.servers.running import (
    HOST,
    IMPORTS,
    PATIENCE_SECONDS,
    Server,
    Unavailable,
    folder,
    serving,
    until,
)

# A worker that is stopped for a moment is not to be taken for dead, nor a quiet connection for an idle one.
ASGI = (
    "-m uvicorn --factory tests.doors.http_apps:{framework}_app --host {host} --port {port} "
    "--workers {workers} --log-level warning --no-access-log "
    "--timeout-worker-healthcheck 20 --timeout-keep-alive 120"
)
WSGI = (
    "-m gunicorn tests.doors.http_apps:{framework}_app() --bind {host}:{port} --workers {workers} "
    "-k gthread --threads 16 --log-level warning --no-control-socket --keep-alive 120"
)
SERVERS = {"fastapi": ASGI, "starlette": ASGI, "flask": WSGI, "django": WSGI, "litestar": ASGI}
FRAMEWORKS = tuple(SERVERS)


@contextmanager
def shop(framework: str, place: Place) -> "Iterator[Shop]":
    """A server with the shop of this framework in it, on this store; two workers where they can share one."""
    program = SERVERS[framework]
    for package in (framework, program.split()[1]):
        if find_spec(package) is None:
            raise Unavailable(f"{framework}: pip install {package}")
    workers = place.workers(2)

    def command(port: int) -> list[str]:
        words = program.format(framework=framework, host=HOST, port=port, workers=workers)
        return [sys.executable, *words.split()]

    with folder() as home, Gates(home / "gate") as gates:
        env = CREDENTIALS | {
            "PYTHONPATH": IMPORTS,
            "SHOP_STORE": place.url(),
            "SHOP_ENV": place.env,
            "SHOP_EFFECTS": str(home / "effects"),
            "SHOP_GATE": str(home / "gate"),
        }
        server = Server(home, command, answers, env=lambda _: env)
        with serving(server) as port:
            yield Shop(framework, place, home, gates, port, workers)


def answers(port: int) -> bool:
    with suppress(OSError, http.client.HTTPException), Connection(port) as connection:
        return connection.ask("GET", "/hello").status == 200
    return False


@dataclass
class Reply:
    """What a client gets."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def get(self, name: str) -> str:
        """The one value of this header, or "" where there is none."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} is there {len(values)} times: {values}"
        return values[0] if values else ""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def replayed(self) -> bool:
        return self.get("Idempotent-Replayed") == "true"

    @property
    def problem(self) -> str:
        """The kind of a problem, whose form is checked."""
        assert self.get("Content-Type") == "application/problem+json", self
        told = self.json
        assert {"type", "title", "status", "detail"} <= told.keys(), told
        assert told["status"] == self.status, told
        address, _, kind = told["type"].partition("#")
        assert f'<{address}>; rel="describedby"' in ", ".join(self.all("Link")), self.headers
        return str(kind)


class Connection:
    """A client's connection, which stays with one worker of the server."""

    def __init__(self, port: int) -> None:
        self._client = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def send(self, method: str, path: str, headers: Any = (), body: Any = b"") -> None:
        """Send a request; what is no bytes is sent in chunks, and its length is not told."""
        client = self._client
        client.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers:
            client.putheader(name, value)
        whole = isinstance(body, bytes)
        client.putheader(*(("Content-Length", str(len(body))) if whole else ("Transfer-Encoding", "chunked")))
        client.endheaders(body if body or not whole else None, encode_chunked=not whole)

    def send_part(self, path: str, headers: Any, body: bytes) -> None:
        """Send a request of which the second half does not come."""
        client = self._client
        client.putrequest("POST", path)
        for name, value in (*headers, ("Content-Length", str(2 * len(body)))):
            client.putheader(name, value)
        client.endheaders(body)

    def head(self) -> http.client.HTTPResponse:
        return self._client.getresponse()

    def reply(self) -> Reply:
        response = self.head()
        return Reply(response.status, response.getheaders(), response.read())

    def ask(self, method: str, path: str, headers: Any = (), body: Any = b"") -> Reply:
        """Send a request, and take the answer."""
        self.send(method, path, headers, body)
        return self.reply()

    def settled(self, path: str, headers: Any, body: bytes) -> Reply:
        """The answer to a client that comes back as long as it is told to."""
        replies: list[Reply] = []

        def answered() -> bool:
            replies.append(self.ask("POST", path, headers, body))
            return replies[-1].status != 409

        until(answered)
        return replies[-1]

    def shut(self) -> None:
        """Say that nothing more will come; an answer may."""
        assert self._client.sock is not None
        self._client.sock.shutdown(socket.SHUT_WR)

    def break_off(self) -> None:
        """Go away without a word: the server's next write fails."""
        assert self._client.sock is not None
        self._client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.close()


class Gates:
    """Where handlers knock, and wait until somebody opens."""

    def __init__(self, path: Path) -> None:
        self._waiting: dict[str, deque[Guest]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(64)
        self._porter = threading.Thread(target=self._receive)

    def __enter__(self) -> Self:
        self._porter.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._porter.join()
        self._socket.close()
        # Whoever is left goes on, so that its server can stop.
        for guests in self._waiting.values():
            for guest in guests:
                guest.go()

    def met(self, name: str) -> "Guest":
        """A handler that has come to this gate, as soon as it has."""
        with self._changed:
            came = self._changed.wait_for(lambda: self._waiting[name], PATIENCE_SECONDS)
            assert came, f"no handler came to the gate {name!r}"
            return self._waiting[name].popleft()

    def _receive(self) -> None:
        while True:
            try:
                guest, _ = self._socket.accept()
            except OSError:
                return
            with guest.makefile() as told:
                name, _, pid = told.readline().strip().partition(" ")
            with self._changed:
                self._waiting[name].append(Guest(guest, int(pid)))
                self._changed.notify_all()


@dataclass
class Guest:
    """A handler that waits."""

    _socket: socket.socket
    pid: int

    def go(self) -> None:
        """Let it go on."""
        self._socket.close()


@dataclass
class Shop:
    """A running server, and its clients."""

    framework: str
    place: Place
    home: Path
    gates: Gates
    port: int
    workers: int
    _count: int = 0

    def name(self) -> str:
        """A new name, for an order and for its key."""
        self._count += 1
        return f"order-{self._count}"

    def effects(self, name: str) -> list[int]:
        """The attempts at an order that had their effect."""
        file = self.home / "effects"
        lines = file.read_text().splitlines() if file.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == name]

    def connect(self) -> Connection:
        return Connection(self.port)

    def get(self, path: str, **more: Any) -> Reply:
        with self.connect() as connection:
            return connection.ask("GET", path, head_of(**more))

    def post(self, path: str, order: Any, **more: Any) -> Reply:
        with self.connect() as connection:
            return connection.ask("POST", path, head_of(**more), body_of(order))

    def begin(self, path: str, order: Mapping[str, Any], **more: Any) -> Connection:
        """Send a request whose answer is not awaited."""
        connection = self.connect()
        connection.send("POST", path, head_of(**more), body_of(order))
        return connection

    def settled(self, path: str, order: Any, **more: Any) -> Reply:
        """What a client gets who comes back as long as it is told to."""
        with self.connect() as connection:
            return connection.settled(path, head_of(**more), body_of(order))

    def on_each_worker(self) -> list[Connection]:
        """A connection to each of the server's workers."""
        found: dict[bytes, Connection] = {}

        def all_found() -> bool:
            connection = self.connect()
            pid = connection.ask("GET", "/hello").body
            if found.setdefault(pid, connection) is not connection:
                connection.close()
            return len(found) == self.workers

        assert until(all_found), f"{self.workers} workers did not come up"
        return list(found.values())


def head_of(
    key: str = "", token: str = "token-of-north", more: Any = (), field: str | None = None
) -> list[tuple[str, str]]:
    """The headers of a request; `field` is what stands in the place of a quoted key."""
    headers = [("Content-Type", "application/json"), *more]
    if key or field is not None:
        headers.append(("Idempotency-Key", f'"{key}"' if field is None else field))
    if token:
        headers.append(("Authorization", f"Bearer {token}"))
    return headers


def body_of(order: Any) -> Any:
    return json.dumps(order).encode() if isinstance(order, dict) else order
