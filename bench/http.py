"""What the HTTP middleware costs: `python -m bench.http`.

A real server has one application: uvicorn (`uvicorn[standard]`) one of FastAPI's, gunicorn one of Flask's or
Django's. A client keeps it busy over several connections. Bare and protected servers take turns, round by
round, and each ratio is of one turn. The figures are microseconds a request, so that a request rate is their
inverse. On stores that are shared, an endpoint whose handler claims and completes by hand stands beside.
"""

import argparse
import contextlib
import itertools
import json
import selectors
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import semel
from bench import http_by_hand
from bench.servers import ENV, stores
from bench.timing import Bar, Ratio, Table, Timing, conclude, tabulate
from semel.doors import asgi, wsgi
from semel.doors.http import ANYONE, Idempotency

PACKAGES = (
    "semel",
    "idemkit",
    "fastapi",
    "starlette",
    "pydantic",
    "uvicorn",
    "uvloop",
    "httptools",
    "flask",
    "django",
    "gunicorn",
)
CONNECTIONS = 8
BODY = b'{"order": "o-1", "amount": 1200, "currency": "EUR", "note": "two pieces, by post"}'
BARE, BY_HAND, SEMEL, IDEMKIT = "the application alone", "by hand in the handler", "semel", "idemkit"
NO_LEDGER = "a middleware without a ledger"

# The first three differ in the handler. It does nothing; or what most do, a row in a database (SQLite, WAL,
# no fsync); or nothing, but as a plain function, which FastAPI runs in a thread.
EMPTY, ROW = "FastAPI, an empty handler", "FastAPI, a handler that writes a row"
PLAIN, FLASK, DJANGO = "FastAPI, a plain def", "Flask", "Django"
IN_MEMORY = {EMPTY: (BARE, NO_LEDGER, SEMEL, IDEMKIT), ROW: (BARE, NO_LEDGER, SEMEL)}
IN_MEMORY |= dict.fromkeys((PLAIN, FLASK, DJANGO), (BARE, SEMEL))
ON_STORES = ("SQLite", "PostgreSQL", "Redis")
NOTES = {
    BARE: "the limit",
    NO_LEDGER: "reads the request, and holds back the response",
    BY_HAND: "a claim, a completion, a hash, JSON",
}


# The servers


def application(case: str) -> Any:
    """An application as people write them: a typed body in, JSON out."""
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Order(BaseModel):
        order: str
        amount: int
        currency: str
        note: str = ""

    app = FastAPI()
    write = writer() if case == ROW else lambda _: None

    async def charge(order: Order) -> dict[str, Any]:
        write(order)
        return charged(order.order, order.amount, order.currency)

    def plain(order: Order) -> dict[str, Any]:
        return charged(order.order, order.amount, order.currency)

    app.post("/charges", status_code=201)(plain if case == PLAIN else charge)
    return app


def charged(order: str, amount: int, currency: str, **_: Any) -> dict[str, Any]:
    return {"order": order, "charged": amount, "currency": currency}


def flask_application() -> Any:
    """The same in Flask."""
    from flask import Flask, request

    app = Flask("bench")
    app.post("/charges")(lambda: (charged(**request.get_json()), 201))
    return app


def django_application() -> Any:
    """The same in Django, with the one middleware that every site has."""
    settings = import_module("django.conf").settings
    http, path = import_module("django.http"), import_module("django.urls").path

    def charge(request: Any) -> Any:
        return http.JsonResponse(charged(**json.loads(request.body)), status=201)

    urls: Any = types.ModuleType("urls")
    urls.urlpatterns = [path("charges", charge)]
    common = ["django.middleware.common.CommonMiddleware"]
    settings.configure(ALLOWED_HOSTS=["localhost"], MIDDLEWARE=common, ROOT_URLCONF=urls)
    import_module("django").setup()
    return import_module("django.core.handlers.wsgi").WSGIHandler()


def writer() -> Callable[[Any], None]:
    """Writes a row and commits it."""
    import sqlite3
    import tempfile

    connection = sqlite3.connect(f"{tempfile.mkdtemp(prefix='semel-bench-')}/rows.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("CREATE TABLE charges (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER)")

    def write(order: Any) -> None:
        connection.execute("INSERT INTO charges (name, amount) VALUES (?, ?)", (order.order, order.amount))

    return write


class NoLedger:
    """What every such middleware has to do at least: read the request first, and hold back the response."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        held: list[Any] = []

        async def read() -> Any:
            return message

        async def hold(piece: Any) -> None:
            held.append(piece)
            if piece["type"] == "http.response.body":
                for one in held:
                    await send(one)

        await self.app(scope, read, hold)


def protected(kind: str, case: str, url: str) -> Any:
    """The same application under one of the libraries."""
    if case in (FLASK, DJANGO):
        plain = flask_application() if case == FLASK else django_application()
        return plain if kind == BARE else wsgi.IdempotencyMiddleware(plain, keeping(url))
    if kind == BY_HAND:
        return http_by_hand.application(url, charged)
    app = application(case)
    if kind == SEMEL:
        app.add_middleware(asgi.IdempotencyMiddleware, idempotency=keeping(url))
    elif kind == NO_LEDGER:
        app.add_middleware(NoLedger)
    elif kind == IDEMKIT:
        import idemkit

        # By default it takes ten thousand keys, and then none.
        backend = idemkit.InMemoryBackend(max_size=1_000_000)
        config = idemkit.HttpConfig(scope=lambda _: "anyone")
        app.add_middleware(idemkit.IdempotencyMiddleware, backend=backend, config=config)
    return app


def keeping(url: str) -> Idempotency:
    return Idempotency(semel.connect(url, env=ENV), identity=ANYONE)


def serve(kind: str, case: str, url: str) -> None:
    """Serve until killed; the port is printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    app = protected(kind, case, url)
    print(port, flush=True)
    if case in (FLASK, DJANGO):
        serve_wsgi(app, port)
    else:
        serve_asgi(app, port)


def serve_asgi(app: Any, port: int) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
    )
    uvicorn.Server(config).run()


def serve_wsgi(app: Any, port: int) -> None:
    options = {
        "bind": f"127.0.0.1:{port}",
        "worker_class": "gthread",
        "threads": CONNECTIONS,
        "keepalive": 60,
        "loglevel": "error",
    }
    base: Any = import_module("gunicorn.app.base").BaseApplication

    class Served(base):
        def load_config(self) -> None:
            for name, value in options.items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            return app

    Served().run()


@contextlib.contextmanager
def serving(kind: str, case: str, url: str) -> Iterator[int]:
    """A server process, and its port."""
    command = [sys.executable, "-m", "bench.http", "--serve", kind, case, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            wait_for(port)
            yield port
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    """Wait until somebody listens there."""
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)


# The client


@dataclass
class Line:
    """A connection that always has one request under way."""

    connection: socket.socket
    answer: bytes = b""


def request(key: str) -> bytes:
    """One request."""
    return (
        b"POST /charges HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n"
        b'Content-Type: application/json\r\nContent-Length: %d\r\nIdempotency-Key: "%s"\r\n\r\n%s'
        % (len(BODY), key.encode(), BODY)
    )


def hammer(port: int, keys: list[str]) -> float:
    """Send every key's request over several connections, and give the seconds that took."""
    waiting = iter([request(key) for key in keys])
    begun = time.perf_counter()
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, Line(connection))
            connection.sendall(next(waiting))
        left = len(keys)
        while left:
            for found, _ in selector.select():
                line: Line = found.data
                line.answer += line.connection.recv(65536)
                if is_whole(line.answer):
                    assert line.answer.startswith(b"HTTP/1.1 201"), line.answer
                    line.answer = b""
                    left -= 1
                    if following := next(waiting, b""):
                        line.connection.sendall(following)
    return time.perf_counter() - begun


def is_whole(answer: bytes) -> bool:
    """Whether a response has come to its end."""
    head, blank, body = answer.partition(b"\r\n\r\n")
    if not blank:
        return False
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if b"content-length" in fields:
        return len(body) >= int(fields[b"content-length"])
    return body.endswith(b"0\r\n\r\n")


# The tables


def tables(
    case: str, kinds: tuple[str, ...], place: str, url: str, *, number: int, repeat: int
) -> list[Table]:
    """Every kind in every round: first requests with keys of their own, and then the same again."""
    rounds: dict[str, dict[str, list[float]]] = {"first": {}, "replay": {}}
    with contextlib.ExitStack() as stack:
        ports = {kind: stack.enter_context(serving(kind, case, url)) for kind in kinds}
        for kind, port in ports.items():
            hammer(port, [f"warm-{kind[:2]}-{number}" for number in range(500)])
        for turn in range(repeat):
            # Two kinds may share a store, and no keys.
            for (kind, port), figures in itertools.product(ports.items(), rounds.values()):
                keys = [f"{kind[:2]}-{turn}-{number}" for number in range(number)]
                figures.setdefault(kind, []).append(hammer(port, keys) / number * 1e6)
    return [
        tabulate(
            f"{which}, {case}, {place}",
            _timings(figures),
            BARE,
            {kind: NOTES.get(kind, "") for kind in kinds},
        )
        for which, figures in rounds.items()
    ]


def _timings(figures: dict[str, list[float]]) -> dict[str, Timing]:
    return {kind: Timing(tuple(each)) for kind, each in figures.items()}


def bars(done: list[Table]) -> list[Bar]:
    """What was promised, against what was found."""
    found = []
    for each in done:
        rows = {row.name: row.timing for row in each.rows if row.timing}
        which, _, case = each.title.partition(", ")
        if which != "first":
            continue
        for base, limit in ((BY_HAND, 1.05), (IDEMKIT, 0.5)):
            if base in rows:
                found.append(Bar(f"{case}: a request to one {base}", _ratio(rows, SEMEL, base), limit))
        if case.endswith("in memory") and not case.startswith(ROW):
            found.append(Bar(f"{case}: a request to {BARE}", _ratio(rows, SEMEL, BARE), 1.45))
    return found


def _ratio(rows: dict[str, Timing], one: str, other: str) -> float:
    return Ratio.of(rows[one], rows[other]).median


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.http", description=__doc__)
    parser.add_argument("--number", type=int, default=2000, help="requests in a round")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return 0
    done: list[Table] = []
    for case, kinds in IN_MEMORY.items():
        done += tables(case, kinds, "in memory", "memory:", number=options.number, repeat=options.repeat)
    with stores(ON_STORES) as (urls, absent):
        for name, url in urls.items():
            kinds = (BARE, BY_HAND, SEMEL)
            done += tables(EMPTY, kinds, f"on {name}", url, number=options.number, repeat=options.repeat)
    return conclude(done, bars(done), PACKAGES, options.json, absent=absent)


if __name__ == "__main__":
    raise SystemExit(main())
