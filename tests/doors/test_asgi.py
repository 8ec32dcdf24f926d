"""The ASGI middleware, with applications and servers that behave, and some that do not."""

import asyncio
import contextlib
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

import semel
from semel.core.heartbeat import TaskHeartbeat
from semel.core.running import Run
from semel.doors.asgi import ASGICycle, IdempotencyMiddleware
from semel.doors.http import ANYONE, Idempotency
from semel.doors.http.exchange import Exchange
from semel.once import Running
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty
from tests.unit.test_heartbeat import Hours, live, quiet, steal

App = Callable[[Any, Any, Any], Awaitable[None]]
KEY = "http:POST:/pay:k"


class Reply:
    """What a client got."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        starts = [message for message in messages if message["type"] == "http.response.start"]
        self.bodies = [message for message in messages if message["type"] == "http.response.body"]
        self.status = starts[0]["status"] if starts else None
        self.headers = [(bytes(name), bytes(value)) for name, value in starts[0]["headers"]] if starts else []
        self.body = b"".join(message.get("body", b"") for message in self.bodies)
        self.ended = bool(self.bodies) and not self.bodies[-1].get("more_body", False)

    def get(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    @property
    def kind(self) -> str:
        assert self.get(b"content-type") == [b"application/problem+json"], self.messages
        return str(json.loads(self.body)["type"]).rpartition("#")[2]

    @property
    def replayed(self) -> bool:
        return self.get(b"idempotent-replayed") == [b"true"]


def scope_of(
    key: bytes | None = b'"k"',
    *,
    path: str = "/pay",
    method: str = "POST",
    spec: str = "2.4",
    root: str = "",
    headers: tuple[tuple[bytes, bytes], ...] = (),
    extensions: dict[str, Any] | None = None,
) -> dict[str, Any]:
    told = [*headers, *([] if key is None else [(b"idempotency-key", key)])]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": spec},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": b"",
        "root_path": root,
        "scheme": "http",
        "headers": told,
        "server": ("here", 80),
        "client": ("there", 1),
    }
    if extensions is not None:
        scope["extensions"] = extensions
    return scope


class Server:
    """A server's side of one request; it does not let an application get away with what is no response."""

    def __init__(self, body: bytes = b"{}", *, gone_after: int | None = None) -> None:
        self.messages: list[dict[str, Any]] = []
        self._incoming = [{"type": "http.request", "body": body, "more_body": False}]
        self._gone_after = gone_after

    async def receive(self) -> dict[str, Any]:
        if self._incoming:
            return self._incoming.pop(0)
        if self._gone_after is None:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        if self._gone_after is not None and len(self.messages) >= self._gone_after:
            raise OSError("the client has gone")
        begun = any(one["type"] == "http.response.start" for one in self.messages)
        if message["type"] == "http.response.body" and not begun:
            raise RuntimeError("expected http.response.start")
        if message["type"] == "http.response.start" and begun:
            raise RuntimeError("the response has begun already")
        if Reply(self.messages).ended and message["type"].startswith("http.response."):
            raise RuntimeError("the response has ended already")
        self.messages.append(message)


async def ask(app: App, server: Server | None = None, **scope: Any) -> Reply:
    server = server or Server()
    await app(scope_of(**scope), server.receive, server.send)
    return Reply(server.messages)


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def piece(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Application:
    """One that answers with these messages, and counts how often it did."""

    def __init__(self, *messages: dict[str, Any], then: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.messages = messages or (start(201), piece(b"made"))
        self.then = then
        self.times = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.times += 1
        assert (await receive())["type"] == "http.request"
        for message in self.messages:
            await send(dict(message))
        if self.then is not None:
            await self.then()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Faulty:
    return Faulty(MemoryStore(clock))


@pytest.fixture
def s(store: Faulty, clock: FakeClock) -> Iterator[semel.Semel]:
    with semel.Semel(store, clock=clock) as ledger:
        yield ledger


def protected(s: semel.Semel, app: App, **options: Any) -> App:
    return IdempotencyMiddleware(app, Idempotency(s, identity=ANYONE, **options))


def status_of(s: semel.Semel, key: str = KEY) -> str | None:
    record = s.ledger.get(key)
    return None if record is None else record.status.value


async def raising(error: BaseException) -> None:
    raise error


# A response is written down, sent, and given again


@pytest.mark.draft("2.6a", "2.6b")
def test_a_request_has_its_effect_once(s: semel.Semel) -> None:
    async def main() -> None:
        app = Application(
            start(201, (b"content-type", b"text/plain"), (b"Location", b"/1"), (b"set-cookie", b"a=1")),
            piece(b"ma", more=True),
            piece(b"de"),
        )
        first, again = [await ask(protected(s, app)) for _ in range(2)]
        assert (first.status, first.body, first.replayed) == (201, b"made", False)
        assert (again.status, again.body, again.replayed) == (201, b"made", True)
        assert again.get(b"location") == [b"/1"]
        assert again.get(b"content-length") == [b"4"]
        assert first.get(b"set-cookie") == [b"a=1"]
        assert again.get(b"set-cookie") == []
        assert app.times == 1

    asyncio.run(main())


def test_a_response_in_one_piece_is_written_down_before_anything_is_sent(s: semel.Semel) -> None:
    seen: list[str | None] = []

    class Watching(Server):
        async def send(self, message: dict[str, Any]) -> None:
            seen.append(status_of(s))
            await super().send(message)

    asyncio.run(ask(protected(s, Application()), Watching()))
    assert seen == ["COMPLETED", "COMPLETED"]


def test_of_a_stream_only_the_end_waits(s: semel.Semel) -> None:
    seen: list[tuple[bytes, str | None]] = []

    class Watching(Server):
        async def send(self, message: dict[str, Any]) -> None:
            seen.append((message.get("body", b"head"), status_of(s)))
            await super().send(message)

    app = Application(start(), piece(b"a", more=True), piece(b"b", more=True), piece(b""))
    asyncio.run(ask(protected(s, app), Watching()))
    assert seen == [
        (b"head", "IN_PROGRESS"),
        (b"a", "IN_PROGRESS"),
        (b"b", "IN_PROGRESS"),
        (b"", "COMPLETED"),
    ]


def test_the_whole_request_is_read_before_anything_is_claimed(s: semel.Semel) -> None:
    class Slow(Server):
        async def receive(self) -> dict[str, Any]:
            assert status_of(s) is None
            return await super().receive()

    async def main() -> None:
        server = Slow()
        server._incoming = [
            {"type": "http.request", "body": b"a", "more_body": True},
            {"type": "http.request", "more_body": True},
            {"type": "http.request", "body": b"b"},
        ]
        got: list[bytes] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            message = await receive()
            got.append(message["body"])
            assert not message["more_body"]
            await send(start())
            await send(piece(b""))

        assert (await ask(protected(s, app), server)).status == 200
        assert got == [b"ab"]

    asyncio.run(main())


def test_a_client_that_goes_away_while_it_sends_claims_nothing(s: semel.Semel) -> None:
    async def main() -> None:
        server = Server(gone_after=0)
        server._incoming = [{"type": "http.request", "body": b"a", "more_body": True}]
        app = Application()
        assert (await ask(protected(s, app), server)).status is None
        assert (app.times, status_of(s)) == (0, None)

    asyncio.run(main())


def test_a_body_that_turns_out_too_large_is_refused(s: semel.Semel) -> None:
    reply = asyncio.run(ask(protected(s, Application(), max_body=10), Server(b"x" * 11)))
    assert (reply.status, reply.kind, status_of(s)) == (413, "body-too-large", None)


@pytest.mark.draft("2.1")
def test_two_headers_of_one_name_are_no_key(s: semel.Semel) -> None:
    for second in (b'"k"', b'"other"', b"k", b""):
        reply = asyncio.run(ask(protected(s, Application()), headers=((b"idempotency-key", second),)))
        assert (reply.status, reply.kind) == (400, "key-malformed")


HOSTILE_PATHS = [
    "",
    "*",
    "/\x00",
    "/\r\n",
    "/é€😀",
    "/\udcff",
    "/\ud800",
    "/a:b>c%2F",
    "/" + "x" * 8192,
    "/ ",
    "/\u2028",
]


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=ascii)
def test_any_path_has_its_answer_and_its_replay(s: semel.Semel, path: str) -> None:
    app = Application()
    replies = [asyncio.run(ask(protected(s, app), path=path)) for _ in range(2)]
    assert [reply.status for reply in replies] == [201, 201]
    assert app.times == 1


def test_what_is_not_protected_passes_through(s: semel.Semel) -> None:
    async def main() -> None:
        app = Application()
        for method in ("GET", "HEAD", "PUT", "OPTIONS"):
            assert (await ask(protected(s, app), method=method)).body == b"made"
        assert (await ask(protected(s, app, required=False), key=None)).body == b"made"
        ran = app.times
        for empty in (b"", b'""'):
            assert (await ask(protected(s, app, required=False), key=empty)).status == 400
        assert app.times == ran
        assert s.ledger.list().records == ()
        other: list[str] = []

        async def socket(scope: Any, _receive: Any, _send: Any) -> None:
            other.append(scope["type"])

        await protected(s, socket)({"type": "websocket"}, None, None)
        await protected(s, socket)({"type": "lifespan"}, None, None)
        assert other == ["websocket", "lifespan"]

    asyncio.run(main())


@pytest.mark.draft("2.5.2a")
def test_the_policy_and_a_status_have_pages_and_a_head_has_no_body(s: semel.Semel) -> None:
    async def main() -> None:
        app = protected(s, Application())
        await ask(app)
        page = await ask(app, method="GET", path="/.well-known/idempotency-key")
        assert json.loads(page.body)["header"] == "Idempotency-Key"
        head = await ask(app, method="HEAD", path="/.well-known/idempotency-key")
        assert (head.body, head.get(b"content-length")) == (b"", page.get(b"content-length"))
        token = "aHR0cDpQT1NUOi9wYXk6aw"
        status = await ask(app, method="GET", path=f"/.well-known/idempotency-key/{token}")
        assert json.loads(status.body)["status"] == "completed"

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/€", "/a\r\nb", "/a>b"], ids=ascii)
def test_an_application_under_a_prefix_that_clients_choose_answers_all_of_them(
    s: semel.Semel, path: str
) -> None:
    async def pay(_request: Request) -> Response:
        return JSONResponse({})

    async def main() -> None:
        inner = Starlette(
            routes=[Route("/pay", pay, methods=["POST"])],
            middleware=[Middleware(IdempotencyMiddleware, idempotency=Idempotency(s, identity=ANYONE))],
        )
        app = Starlette(routes=[Mount("/{tenant}", inner)])
        assert (await ask(app, path=f"{path}/pay")).status == 200
        reply = await ask(app, path=f"{path}/pay", key=None)
        assert (reply.status, reply.kind) == (400, "key-missing")
        assert all(b"\r" not in value and b"\n" not in value for _, value in reply.headers)

    asyncio.run(main())


# Applications that misbehave


BROKEN = {
    "raises": Application(then=lambda: raising(ValueError("oh"))),
    "raises before the end": Application(
        start(), piece(b"a", more=True), then=lambda: raising(ValueError("oh"))
    ),
    "raises after its head": Application(start(), then=lambda: raising(ValueError("oh"))),
    "ends without an answer": Application({"type": "http.response.debug", "info": {}}),
    "ends after its head": Application(start()),
    "ends in the middle": Application(start(), piece(b"a", more=True)),
    "begins with a body": Application(piece(b"a")),
    "begins with a piece": Application(piece(b"a", more=True), start(), piece(b"b")),
    "begins twice in the middle": Application(start(), piece(b"a", more=True), start(), piece(b"b")),
    "answers 500": Application(start(500), piece(b"oh")),
}


@pytest.mark.parametrize("name", [name for name in BROKEN if name != "raises"])
def test_an_application_that_gives_no_whole_answer_gives_the_key_back(s: semel.Semel, name: str) -> None:
    async def main() -> None:
        # Whatever it raises is its own error, or the server's.
        with contextlib.suppress(ValueError, RuntimeError):
            await ask(protected(s, BROKEN[name]))
        assert status_of(s) == "RELEASED"
        assert not live(s)
        with pytest.raises(LookupError):
            semel.current_run()
        assert (await ask(protected(s, Application()))).body == b"made"

    asyncio.run(main())


def test_an_application_that_begins_anew_before_anything_is_sent_is_kept_as_it_ended(s: semel.Semel) -> None:
    app = protected(s, Application(start(200, (b"x", b"1")), start(402), piece(b"no")))
    replies = [asyncio.run(ask(app)) for _ in range(2)]
    assert [reply.status for reply in replies] == [402, 402]


def test_an_error_after_the_answer_leaves_the_answer_as_it_is(s: semel.Semel) -> None:
    async def main() -> None:
        server = Server()
        with pytest.raises(ValueError, match="oh"):
            await ask(protected(s, BROKEN["raises"]), server)
        assert Reply(server.messages).body == b"made"
        assert (await ask(protected(s, BROKEN["raises"]))).replayed

    asyncio.run(main())


def test_what_is_sent_after_the_end_is_the_servers_to_refuse(s: semel.Semel) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="ended already"):
            await ask(protected(s, Application(start(), piece(b"a"), piece(b"b"))))
        assert (await ask(protected(s, Application()))).body == b"a"

    asyncio.run(main())


def test_headers_that_can_be_read_once_alone_still_reach_the_client(s: semel.Semel) -> None:
    """The standard says that they are an iterable, and no more."""

    async def main() -> None:
        message = {**start(), "headers": iter([(b"location", b"/1"), (b"x-trace", b"1")])}
        first = await ask(protected(s, Application(message, piece(b"a"))))
        assert first.get(b"x-trace") == [b"1"]
        assert (await ask(protected(s, Application()))).get(b"location") == [b"/1"]

    asyncio.run(main())


def test_a_head_without_headers_and_a_body_without_bytes_are_an_answer(s: semel.Semel) -> None:
    app = Application({"type": "http.response.start", "status": 204}, {"type": "http.response.body"})

    class Plain(Server):
        async def send(self, message: dict[str, Any]) -> None:
            await super().send({"headers": [], **message})

    replies = [asyncio.run(ask(protected(s, app), Plain())) for _ in range(2)]
    assert [(reply.status, reply.body) for reply in replies] == [(204, b"")] * 2
    assert replies[1].get(b"content-length") == []


def test_what_would_send_a_response_past_the_ledger_is_not_offered(s: semel.Semel) -> None:
    seen: list[Any] = []
    offered: dict[str, Any] = {
        "http.response.pathsend": {},
        "http.response.zerocopysend": {},
        "http.response.trailers": {},
        "http.response.early_hint": {},
        "tls": {},
    }

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(set(scope["extensions"]))
        await send({"type": "http.response.early_hint", "links": []})
        await send(start())
        await send(piece(b""))

    reply = asyncio.run(ask(protected(s, app), extensions=offered))
    assert seen == [{"http.response.early_hint", "tls"}]
    assert reply.messages[0]["type"] == "http.response.early_hint"
    assert len(offered) == 5


def test_what_follows_the_answer_runs_after_it_and_outside_the_run(s: semel.Semel) -> None:
    ran: list[Any] = []

    async def after() -> None:
        with pytest.raises(LookupError):
            semel.current_run()
        ran.append(status_of(s))

    async def pay(_request: Request) -> Response:
        return JSONResponse({}, background=BackgroundTask(after))

    app = protected(s, Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    for _ in range(2):
        assert asyncio.run(ask(app)).status == 200
    assert ran == ["COMPLETED"]


def test_a_task_of_the_applications_own_may_send_the_answer(s: semel.Semel) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def answer() -> None:
            await send(start())
            await send(piece(b"from a task"))

        await asyncio.create_task(answer())

    async def main() -> None:
        assert (await ask(protected(s, app))).body == b"from a task"
        with pytest.raises(LookupError):
            semel.current_run()
        assert (await ask(protected(s, app))).replayed

    asyncio.run(main())


class Through(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


async def chunks(count: int = 3) -> AsyncIterator[bytes]:
    for number in range(count):
        await asyncio.sleep(0)
        yield str(number).encode()


async def stream(_request: Request) -> Response:
    return StreamingResponse(chunks(), headers={"x-by": str(semel.current_run().attempt)})


@pytest.mark.parametrize("spec", ["2.0", "2.3", "2.4"])
@pytest.mark.parametrize("between", [[], [Middleware(Through)], [Middleware(Through)] * 3], ids=len)
@pytest.mark.parametrize("gone_after", [None, 0, 1, 2, 3])
def test_a_stream_is_given_again_whole_whoever_is_between_and_whenever_the_client_leaves(
    s: semel.Semel, spec: str, between: list[Middleware], gone_after: int | None
) -> None:
    async def main() -> None:
        app = protected(s, Starlette(routes=[Route("/pay", stream, methods=["POST"])], middleware=between))
        await ask(app, Server(gone_after=gone_after), spec=spec)
        again = await ask(app, spec=spec)
        assert (again.status, again.body, again.replayed) == (200, b"012", True)
        assert not live(s)

    asyncio.run(main())


def test_an_application_that_waits_for_its_client_to_leave_is_let_go_when_it_has_answered(
    s: semel.Semel,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        left = asyncio.create_task(receive())
        await send(start())
        await send(piece(b""))
        assert (await receive())["type"] == "http.disconnect"
        left.add_done_callback(lambda task: ended.append(task.result()["type"]))

    ended: list[str] = []

    async def main() -> None:
        await ask(protected(s, app))
        await quiet()

    asyncio.run(main())
    assert ended == ["http.disconnect"]


def test_an_application_that_ends_when_its_client_leaves_ends_when_it_has_answered(s: semel.Semel) -> None:
    """As Litestar's streams do: a server says that the client is gone once the response is complete."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        answering = asyncio.create_task(answer(send))
        while (await receive())["type"] != "http.disconnect":
            pass
        await answering

    async def answer(send: Any) -> None:
        await send(start())
        for number in range(3):
            await send(piece(b"%d" % number, more=True))
        await send(piece(b""))

    async def main() -> list[Reply]:
        return [await asyncio.wait_for(ask(protected(s, app)), 30) for _ in range(2)]

    first, again = asyncio.run(main())
    assert (first.body, again.body, again.replayed) == (b"012", b"012", True)


# Runs: what is current, inside and after


def test_the_run_is_current_inside_and_nothing_is_after(s: semel.Semel) -> None:
    inner: list[str] = []

    @s.once("charge:{order}")
    async def charge(order: str) -> str:
        inner.append(semel.current_run().key)
        return order

    async def app(scope: Any, receive: Any, send: Any) -> None:
        run = semel.current_run()
        assert await charge("o1") == "o1"
        assert await s.once.step("mail", charge, "o2") == "o2"
        assert semel.current_run() is run
        await send(start())
        await send(piece(run.key.encode()))

    async def main() -> None:
        for key in (b"1", b"2"):  # two requests in one task
            assert (await ask(protected(s, app), key=key)).body == b"http:POST:/pay:" + key
            with pytest.raises(LookupError):
                semel.current_run()
        assert inner == ["charge:o1", "http:POST:/pay:1>mail", "http:POST:/pay:2>mail"]

    asyncio.run(main())


def test_an_application_may_ask_itself_but_not_the_same_thing(s: semel.Semel) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        replies = []
        if scope["path"] == "/pay":
            replies = [await ask(whole, path="/other"), await ask(whole)]
            assert [reply.status for reply in replies] == [200, 409]
        await send(start())
        await send(piece(b""))

    whole = protected(s, app)

    async def main() -> None:
        assert (await ask(whole)).status == 200
        with pytest.raises(LookupError):
            semel.current_run()

    asyncio.run(main())


def test_a_task_that_outlives_its_request_may_ask_the_same_thing_again(s: semel.Semel) -> None:
    """The run that it was started in is over, and there is nothing left to wait for itself."""
    later: list[asyncio.Task[Reply]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def ask_again() -> Reply:
            await over.wait()
            return await ask(whole)

        later.append(asyncio.create_task(ask_again()))
        await send(start())
        await send(piece(b"made"))

    whole = protected(s, app)
    over: asyncio.Event

    async def main() -> None:
        nonlocal over
        over = asyncio.Event()
        await ask(whole)
        over.set()
        again = await later[0]
        assert (again.status, again.body) == (200, b"made")

    asyncio.run(main())


# The store is down


def test_without_its_store_nothing_runs(s: semel.Semel, store: Faulty) -> None:
    async def main() -> None:
        app = Application()
        store.refuse()
        reply = await ask(protected(s, app))
        assert (reply.status, reply.kind, app.times) == (503, "unavailable", 0)
        store.refuse()
        assert (await ask(protected(s, app, on_store_error="open"))).body == b"made"
        assert (app.times, status_of(s)) == (1, None)

    asyncio.run(main())


@pytest.mark.parametrize("lost", [1, 2])
def test_an_answer_of_the_store_that_was_lost_changes_nothing(
    s: semel.Semel, store: Faulty, lost: int
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        store.lose_reply(lost)
        await send(start())
        await send(piece(b"made"))

    async def main() -> None:
        store.lose_reply(lost)
        assert (await ask(protected(s, app))).body == b"made"
        assert status_of(s) == "COMPLETED"

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fault", "then"),
    [("refuse", "IN_PROGRESS"), ("lose_request", "IN_PROGRESS"), ("lose_reply", "COMPLETED")],
)
def test_a_success_that_could_not_be_written_down_is_not_told(
    s: semel.Semel, store: Faulty, clock: FakeClock, fault: str, then: str, streamed: bool
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        if streamed:
            await send(piece(b"ha", more=True))
        getattr(store, fault)(1000)
        await send(piece(b"lf"))

    async def main() -> None:
        server = Server()
        if streamed:
            with pytest.raises(semel.StoreError):
                await ask(protected(s, app), server)
            assert not Reply(server.messages).ended
        else:
            reply = await ask(protected(s, app), server)
            assert (reply.status, reply.kind, reply.ended) == (503, "unavailable", True)
        store.recover()
        assert status_of(s) == then
        clock.advance(31)
        again = Application()
        assert (await ask(protected(s, again))).status == (200 if then == "COMPLETED" else 201)
        assert again.times == (then != "COMPLETED")

    asyncio.run(main())


# The lease is lost


@pytest.mark.parametrize("between", [[], [Middleware(Through)]], ids=["alone", "something between"])
def test_work_whose_lease_is_lost_is_cancelled_and_answered_with_a_conflict(
    between: list[Middleware],
) -> None:
    async def main() -> None:
        hours = Hours()
        s = semel.connect("memory:", clock=hours.clock)
        cancelled = []

        async def pay(_request: Request) -> Response:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise
            raise AssertionError

        app = protected(s, Starlette(routes=[Route("/pay", pay, methods=["POST"])], middleware=between))
        task = asyncio.create_task(ask(app))
        await quiet(40)
        steal(s, KEY)
        await hours.go_by(12)
        reply = await task
        assert (reply.status, reply.kind, cancelled) == (409, "in-progress", [1])
        assert not task.cancelling()
        assert not live(s)

    asyncio.run(main())


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_lease_lost_at_any_point_never_ends_in_a_success(s: semel.Semel, sent: int) -> None:
    messages = [start(), piece(b"a", more=True), piece(b"b")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for number, message in enumerate(messages):
            if number == sent:
                steal(s, KEY)
            await send(message)

    async def main() -> None:
        server = Server()
        with pytest.raises(semel.ClaimLost):  # what was sent of it breaks off
            await ask(protected(s, app), server)
        assert not Reply(server.messages).ended
        assert status_of(s) == "IN_PROGRESS"

    asyncio.run(main())


def test_a_whole_answer_whose_lease_is_lost_is_a_conflict(s: semel.Semel) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        steal(s, KEY)
        await send(piece(b"mine"))
        await send(piece(b"and more"))

    reply = asyncio.run(ask(protected(s, app)))
    assert (reply.status, reply.kind) == (409, "in-progress")


# Cancellation, at every point where there is one


class Slow:
    """A store whose every answer takes a few turns of the loop."""

    overflow: semel.Overflow | None = None

    def __init__(self, store: Any) -> None:
        self.store = store

    def execute(self, command: Any) -> Any:
        return self.store.execute(command)

    def at_once(self, _command: Any) -> None:
        return None

    async def aexecute(self, command: Any) -> Any:
        for _ in range(2):
            await asyncio.sleep(0)
        reply = await self.store.aexecute(command)
        await asyncio.sleep(0)
        return reply

    def close(self) -> None:
        self.store.close()


def effect(app: list[int]) -> App:
    async def run(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0)
        app.append(semel.current_run().attempt)
        await send(start(201, (b"location", b"/1")))
        await asyncio.sleep(0)
        await send(piece(b"ma", more=True))
        await asyncio.sleep(0)
        await send(piece(b"de"))
        await asyncio.sleep(0)

    return run


@pytest.mark.parametrize("slow", [True, False], ids=["a store that waits", "a store that does not"])
@pytest.mark.parametrize("on_lapsed", ["rerun", "hold"])
def test_cancelled_at_any_point_the_next_request_finds_out_what_holds(slow: bool, on_lapsed: str) -> None:
    """Done is done, what did not begin is given back, and only what was interrupted is in doubt."""
    seen: set[str] = set()

    async def cancelled_after(turns: int) -> bool:
        inner = MemoryStore(FakeClock())
        s = semel.Semel(Slow(inner) if slow else inner, clock=FakeClock())
        ran: list[int] = []
        app = protected(s, effect(ran), on_lapsed=on_lapsed)
        server = Server()
        task = asyncio.create_task(ask(app, server))
        await quiet(turns)
        if task.done():
            return False
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        status = status_of(s)
        assert not live(s)
        before = list(ran)
        again = await ask(app)
        seen.add(f"{status}, {len(before)} runs: {again.status}")
        if status == "COMPLETED":
            assert (again.status, again.replayed, ran) == (201, True, before)
        elif status in (None, "RELEASED"):
            assert (again.status, len(before)) == (201, 0)
        elif on_lapsed == "hold":
            assert (again.status, again.kind, ran) == (409, "outcome-unknown", before)
        else:
            assert (status, again.status) == ("IN_PROGRESS", 201)
        assert not (Reply(server.messages).ended and status != "COMPLETED")
        return True

    async def main() -> None:
        turns = 0
        while await cancelled_after(turns):
            turns += 1
        assert turns > 6

    asyncio.run(main())
    assert {"COMPLETED, 1 runs: 201"} < seen


def test_a_second_cancellation_does_not_tear_what_the_first_one_began() -> None:
    async def cancelled_after(turns: int, more: int) -> bool:
        s = semel.Semel(Slow(MemoryStore(FakeClock())), clock=FakeClock())
        ran: list[int] = []
        app = protected(s, effect(ran))
        task = asyncio.create_task(ask(app))
        await quiet(turns)
        if task.done():
            return False
        task.cancel()
        await quiet(more)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not live(s)
        assert (await ask(app)).status == 201
        return True

    async def main() -> None:
        for more in (1, 2, 3):
            turns = 0
            while await cancelled_after(turns, more):
                turns += 1

    asyncio.run(main())


# A hot key


@pytest.mark.draft("2.6c")
def test_of_many_at_once_one_runs_and_the_others_are_told_or_wait(s: semel.Semel) -> None:
    async def main() -> None:
        go = asyncio.Event()
        ran: list[int] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            ran.append(1)
            await go.wait()
            await send(start())
            await send(piece(b"made"))

        told = [asyncio.create_task(ask(protected(s, app))) for _ in range(20)]
        await quiet()
        waiting = [
            asyncio.create_task(ask(protected(s, app, on_busy="wait", wait=1e6, lease=1e5, ttl=1e7)))
            for _ in range(20)
        ]
        await quiet(3)
        go.set()
        statuses = [reply.status for reply in await asyncio.gather(*told)]
        assert (statuses.count(200), statuses.count(409)) == (1, 19)
        assert [reply.body for reply in await asyncio.gather(*waiting)] == [b"made"] * 20
        assert ran == [1]

    asyncio.run(main())


# Nothing is left behind


def test_no_request_leaves_anything_behind() -> None:
    kinds = (ASGICycle, Exchange, Run, Running, TaskHeartbeat)

    def left() -> Counter[str]:
        gc.collect()
        return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in kinds)

    async def main() -> None:
        s = semel.connect("memory:", clock=FakeClock())
        for number, app in enumerate([Application(), *BROKEN.values()] * 5):
            with contextlib.suppress(ValueError, RuntimeError, AttributeError, OSError):
                await ask(protected(s, app), Server(gone_after=number % 3 or None), key=b"k%d" % number)
            await ask(protected(s, Application()), key=b"k%d" % number)
        task = asyncio.create_task(ask(protected(s, Application(then=asyncio.Event().wait)), key=b"c"))
        await quiet()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task, app
        assert not live(s)

    before = left()
    asyncio.run(main())
    # What earlier tests left may have gone meanwhile.
    assert not left() - before
