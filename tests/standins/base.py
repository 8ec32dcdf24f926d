"""A stand-in for another system: a real HTTP server that fails on command and remembers what reached it.

A subclass says in `answer(request)` what the other side would answer, and keeps its published limits there:

    class Till(StandIn):
        def answer(self, request: Request) -> Reply:
            return Reply(201, {"charged": request.json["amount"]})

    with Till() as till:                              # a thread of this process, on a free port
        httpx.post(till.url + "/charges", json={"amount": 5})
        till.fail(next=2, status=429, retry_after=1)  # the next two are refused, and nothing is applied
        till.fail(hang=30, after_applying=True)       # the next one is applied, and its answer never comes
        till.fail(status=500, after_applying=True)    # the next one is applied, and answered with 500
        till.fail(status=200, cut=True, body={})      # the connection ends in the middle of the answer
        assert [each.path for each in till.received] == ["/charges"]

Another process is told the same over HTTP: `POST /_control/fail` with those words as JSON,
`GET /_control/received`, `POST /_control/reset`. `python -m tests.standins.<name> [port]` is `serve(Till)`.
"""

import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec


class Request(msgspec.Struct):
    """One request as it reached the stand-in, and what was done with it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    text: str
    applied: bool = False  # answer() was called and did not refuse (4xx, 5xx)
    status: int | None = None  # None: not answered (yet)

    @property
    def json(self) -> Any:
        return json.loads(self.text) if self.text else None

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")


class Reply(msgspec.Struct, frozen=True):
    """What the stand-in answers; a body that is not None goes out as JSON."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = {}
    cut: bool = False  # the connection closes in the middle of the body


class Failure(msgspec.Struct):
    """How the next requests fail: with `status`, or without one by a connection that closes unanswered."""

    next: int = 1
    status: int | None = None
    retry_after: float | str | None = None
    hang: float = 0.0  # seconds before the failure shows; the caller's own time-out is meant to be shorter
    after_applying: bool = False
    path: str = ""  # only requests whose path begins so
    method: str = ""
    body: Any = None
    headers: dict[str, str] = {}
    cut: bool = False

    def hits(self, request: Request) -> bool:
        return request.path.startswith(self.path) and self.method in ("", request.method)

    def reply(self) -> Reply | None:
        if self.status is None:
            return None
        waits = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return Reply(self.status, self.body, {**waits, **self.headers}, self.cut)


class StandIn:
    """Another system on 127.0.0.1; subclasses say what it answers."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[Request] = []
        self.lock = threading.RLock()  # answer() runs under it: a stand-in's own state needs no other
        self._failures: list[Failure] = []
        self._port = port
        self._server: _Server | None = None

    def answer(self, request: Request) -> Reply:
        """Say what the other side answers; called under `self.lock`."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget what was received and which failures were still to come."""
        with self.lock:
            self.received.clear()
            self._failures.clear()

    def fail(
        self,
        next: int = 1,  # noqa: A002
        status: int | None = None,
        retry_after: float | str | None = None,
        hang: float = 0.0,
        after_applying: bool = False,
        path: str = "",
        method: str = "",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        cut: bool = False,
    ) -> None:
        """Let the next requests fail; several calls queue up, and `next=0` takes back all of them."""
        failure = self.told(
            Failure(
                next, status, retry_after, hang, after_applying, path, method, body, dict(headers or {}), cut
            )
        )
        with self.lock:
            self._failures = [*self._failures, failure] if next else []

    def told(self, failure: Failure) -> Failure:
        """Say how this system tells of a failure, where it has a way of its own."""
        return failure

    @property
    def applied(self) -> list[Request]:
        """Return the requests that were carried out."""
        return [each for each in self.received if each.applied]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Listen, on the same port again after a stop."""
        self._server = _Server(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening, drop every connection and wake whoever hangs."""
        if self._server is not None:
            self._server.end()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _failure(self, request: Request) -> Failure | None:
        failure = next((each for each in self._failures if each.hits(request)), None)
        if failure is not None:
            failure.next -= 1
            self._failures = [each for each in self._failures if each.next > 0]
        return failure

    def _apply(self, request: Request) -> Reply:
        reply = self.answer(request)
        request.applied = reply.status < 400
        return reply

    def _take(self, request: Request, ended: threading.Event) -> Reply | None:
        with self.lock:
            self.received.append(request)
            failure = self._failure(request)
            if failure is None:
                return self._apply(request)
            if failure.after_applying:
                self._apply(request)
        ended.wait(failure.hang)
        return failure.reply()

    def _control(self, request: Request) -> Reply:
        match request.path.removeprefix("/_control/"):
            case "received":
                with self.lock:
                    return Reply(200, [msgspec.to_builtins(each) for each in self.received])
            case "fail":
                self.fail(**request.json)
            case "reset":
                self.reset()
            case other:
                return self.control(other, request)
        return Reply(204)

    def control(self, word: str, request: Request) -> Reply:
        """Answer a control word of the subclass's own; called without the lock."""
        return Reply(404, {"error": f"no control word {word!r}"})

    def respond(self, request: Request, ended: threading.Event) -> Reply | None:
        """Answer a request, or None where the connection is to close without an answer."""
        control = request.path.startswith("/_control/")
        reply = self._control(request) if control else self._take(request, ended)
        request.status = None if reply is None else reply.status
        return reply


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close joins them: a thread left behind would be a leak
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], side: StandIn) -> None:
        self.side = side
        self.ended = threading.Event()
        self.open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def end(self) -> None:
        self.ended.set()
        self.shutdown()
        for each in list(self.open):
            # A keep-alive connection's thread sits in a read; shutting its socket wakes it.
            _hang_up(each)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent about clients that went away; a stand-in's own mistakes are answered with 500."""


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: two would meet Nagle and the delayed ACK, 40 ms a request
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        super().finish()

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self._answer(self._request())
        self.wfile.flush()

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        text = self.rfile.read(int(headers.get("content-length", 0))).decode()
        return Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, text)

    def _answer(self, request: Request) -> None:
        try:
            reply = self.server.side.respond(request, self.server.ended)
        except Exception as error:  # noqa: BLE001 - whatever it is, its caller is to read it
            reply = Reply(500, {"error": f"the stand-in itself failed: {error!r}"})
        if reply is None:
            self.close_connection = True
            return
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        body = b"" if reply.body is None else msgspec.json.encode(reply.body)
        self.send_response_only(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        if reply.status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if reply.cut else body)
        self.close_connection = self.close_connection or reply.cut


def serve(make: Callable[[int], StandIn]) -> None:
    """Run a stand-in as a process until SIGTERM or SIGINT, having said where it listens."""
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ended.set())
    with make(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as side:
        sys.stdout.write(f"{side.url}\n")
        sys.stdout.flush()
        ended.wait()
