"""The middleware: every request has an id, keeps to the limits, is counted, and is logged in one line."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from fastapi.testclient import TestClient

from semel import errors
from semel.doors.http.problems import ProblemDetails
from semel.doors.http.responses import HTTPResponse
from semel.redact import Redactor
from semel.service import logs
from semel.service.metrics import ServiceMetrics
from semel.service.middleware import RequestMiddleware, Routes
from semel.service.problems import problem
from semel.service.runtime import Runtime
from semel.service.settings import ServiceSection
from semel.service.tokens import Tokens
from tests.service.kit import ALL_TOKENS, bearer, client_of, opened, problem_of, register


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    text = (
        "[service]\nmax_body_bytes = 1000\npublic_url = 'https://shop.example/'\n[apps.echo]\n" + ALL_TOKENS
    )
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        with opened(text, tmp_path_factory.mktemp("middleware")) as runtime:
            yield runtime


@pytest.fixture(scope="module")
def client(runtime: Runtime) -> Iterator[TestClient]:
    with client_of(runtime) as client:
        yield client


def middleware_of(app: Any, hooks: Any = None, **options: Any) -> RequestMiddleware:
    return RequestMiddleware(
        app,
        settings=ServiceSection(**options),
        metrics=ServiceMetrics(),
        hooks=hooks or {},
        routes=Routes(["/a/{b}", "/c", *(hooks or {})]),
        tokens=Words(),
        senders={},
    )


class Words(Tokens):
    """Who shows a word has it for a name."""

    def __init__(self) -> None:
        """No settings name them."""

    def name(self, authorization: str) -> str | None:
        return authorization.removeprefix("Bearer ") or None

    def unknown(self, *, sent: bool) -> ProblemDetails:
        return problem("not-authenticated", "sent" if sent else "not sent")


async def ask(
    middleware: RequestMiddleware, *chunks: bytes, path: str = "/c", headers: Any = (), **more: Any
) -> dict[str, Any]:
    """One request, in these pieces, and what came back."""
    pieces = list(chunks or (b"",))
    sent: list[Any] = []

    async def receive() -> Any:
        if not pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": list(headers)}
    await middleware(scope | more, receive, send)
    start: Any = sent[0] if sent else {"status": 0, "headers": []}
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return {"status": start["status"], "headers": dict(start["headers"]), "body": body}


# Ids


def test_a_request_keeps_its_id_if_it_has_a_sensible_one(client: TestClient) -> None:
    assert client.get("/health/live", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    odd = client.get("/health/live", headers={"X-Request-ID": "a b"}).headers["x-request-id"]
    assert odd != "a b"
    assert len(odd) == 32
    assert client.get("/nowhere").headers["x-request-id"]


# Limits


def test_a_body_that_says_it_is_too_large_is_not_read(client: TestClient) -> None:
    for path in ("/webhooks/echo", "/v1/claims"):
        answer = client.post(path, content=b"x" * 1001, headers=bearer("north"))
        assert (answer.status_code, problem_of(answer)) == (413, "body-too-large")
    assert client.post("/webhooks/echo", content=json.dumps(["x" * 990])).status_code == 200


def test_a_body_that_does_not_say_its_length_is_read_as_far_as_the_limit(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        yield from [b"[" + b" " * 600, b" " * 600 + b"]"]

    for path in ("/webhooks/echo", "/v1/claims"):
        answer = client.post(path, content=pieces(), headers=bearer("north"))
        assert (answer.status_code, problem_of(answer)) == (413, "body-too-large")


def test_more_requests_than_the_limit_are_told_to_come_back_and_health_is_still_answered() -> None:
    async def story() -> None:
        arrived, go = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            arrived.set()
            if not scope["path"].startswith("/health"):
                await go.wait()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        middleware = middleware_of(app, max_in_flight=1)
        first = asyncio.create_task(ask(middleware))
        await arrived.wait()
        assert middleware.in_flight == 1
        refused = await ask(middleware)
        assert refused["status"] == 503
        assert refused["headers"][b"retry-after"] == b"1"
        assert json.loads(refused["body"])["type"] == "/problems#overloaded"
        assert (await ask(middleware, path="/health/live"))["status"] == 204
        go.set()
        assert (await first)["status"] == 204
        assert (await ask(middleware))["status"] == 204
        assert middleware.in_flight == 0

    asyncio.run(story())


@pytest.mark.situation(54)
def test_visitors_without_a_token_take_no_places_of_those_who_have_one() -> None:
    """Such as a client that asks for a large page and does not read it, from as many peers as one likes."""

    async def story() -> None:
        go, arrived = asyncio.Event(), asyncio.Semaphore(0)

        async def app(scope: Any, _receive: Any, send: Any) -> None:
            arrived.release()
            if not scope["headers"]:
                await go.wait()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        middleware = middleware_of(app, max_in_flight=4)
        peers = [("10.0.0.1", 1), ("10.0.0.1", 2), ("10.0.0.2", 1), ("10.0.0.3", 1)]
        visits = [asyncio.create_task(ask(middleware, method="GET", client=peer)) for peer in peers]
        for _ in visits:
            await arrived.acquire()
        for peer in (peers[0], ("10.0.0.9", 1)):
            refused = await ask(middleware, method="GET", client=peer)
            assert (refused["status"], refused["headers"][b"retry-after"]) == (503, b"1")
        known = await ask(middleware, headers=[(b"authorization", b"Bearer north")], client=peers[0])
        assert known["status"] == 204
        go.set()
        assert [(await visit)["status"] for visit in visits] == [204] * 4

    asyncio.run(story())


def test_a_request_that_takes_too_long_is_given_up() -> None:
    """It is answered in time, though a write that is under way is finished first, and told to nobody."""

    async def story() -> None:
        finished, go = asyncio.Event(), asyncio.Event()

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            finished.set()

        middleware, sent = middleware_of(app, request_timeout=0.01), list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)
            go.set()

        scope = {"type": "http", "method": "POST", "path": "/c", "query_string": b"", "headers": []}
        await middleware(scope, asyncio.Event().wait, send)
        assert finished.is_set()
        assert [one.get("status") for one in sent] == [503, None]
        assert json.loads(sent[1]["body"])["type"] == "/problems#timed-out"

    asyncio.run(story())


def test_a_request_that_still_runs_when_the_time_to_stop_is_over_is_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> dict[str, Any]:
        arrived = asyncio.Event()

        async def app(_scope: Any, _receive: Any, _send: Any) -> None:
            arrived.set()
            await asyncio.Event().wait()

        asking = asyncio.create_task(ask(middleware_of(app)))
        await arrived.wait()
        asking.cancel()  # as uvicorn does
        return await asking

    with caplog.at_level(logging.INFO, "semel.access"):
        told = asyncio.run(story())
    assert (told["status"], json.loads(told["body"])["type"]) == (503, "/problems#stopping")
    assert [vars(record)["status"] for record in caplog.records] == [503]


# Hooks


def test_a_hook_gets_the_delivery_as_it_came_and_the_address_as_its_sender_knows_it(
    client: TestClient, runtime: Runtime
) -> None:
    before = runtime.apps[0].inbox.waiting()
    answer = client.post("/webhooks/echo?a=1&b=%20", content=b'["one", "two"]', headers={"X-Twice": "1"})
    assert answer.json() == {"accepted": 2}
    seen = runtime.apps[0].app.hooks["/webhooks/echo"].seen[-1]
    assert (seen["method"], seen["url"]) == ("POST", "https://shop.example/webhooks/echo?a=1&b=%20")
    assert ("x-twice", "1") in seen["headers"]
    assert runtime.apps[0].inbox.waiting() == before + 2


def test_a_hook_takes_a_delivery_in_pieces_and_answers_posts_only(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        yield from [b'["o', b'ne"', b"]"]

    assert client.post("/webhooks/echo", content=pieces()).json() == {"accepted": 1}
    refused = client.get("/webhooks/echo")
    assert (refused.status_code, problem_of(refused)) == (405, "wrong-method")
    assert refused.headers["allow"] == "POST"


class Answers:
    """A hook that answers, or fails, in one way."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def areceive(self, headers: Any, body: bytes, *, method: str = "", url: str = "") -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        (errors.StoreUnavailable("secret-host:5432 is away"), 503, "unavailable"),
        (errors.ShuttingDown("no new work is begun"), 503, "stopping"),
        (RuntimeError("secret"), 500, "internal"),
        (errors.InvalidKey("no"), 400, "key-malformed"),
    ],
)
def test_a_hook_that_fails_is_answered_with_a_problem_that_tells_no_secret(
    answer: Exception, status: int, kind: str
) -> None:
    middleware = middleware_of(None, {"/hook": Answers(answer)})
    told = asyncio.run(ask(middleware, b"{}", path="/hook"))
    assert told["status"] == status
    assert json.loads(told["body"])["type"] == f"/problems#{kind}"
    assert b"secret" not in told["body"]


def test_a_hook_may_answer_with_headers_in_pairs() -> None:
    middleware = middleware_of(None, {"/hook": Answers(HTTPResponse(201, [("Location", "/x")], b"ok"))})
    told = asyncio.run(ask(middleware, b"{}", path="/hook"))
    assert (told["status"], told["headers"][b"location"], told["body"]) == (201, b"/x", b"ok")


def test_a_client_that_goes_away_in_the_middle_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> dict[str, Any]:
        middleware = middleware_of(None, {"/hook": Answers(None)})

        async def gone() -> Any:
            return {"type": "http.disconnect"}

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/hook", "query_string": b"", "headers": []}
        await middleware(scope, gone, send)
        return {"sent": sent}

    with caplog.at_level(logging.INFO):
        assert asyncio.run(story()) == {"sent": []}
    assert [(record.name, vars(record)["status"]) for record in caplog.records] == [("semel.access", 499)]


# Logs and metrics


def test_a_request_is_one_line_without_what_is_in_it(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "semel.access"):
        client.get("/v1/records?key=planted-key", headers=bearer("north") | {"X-Planted": "planted-header"})
        client.post("/v1/claims", json={"key": "planted-key", "payload": "planted"}, headers=bearer("north"))
        client.post("/v1/gates/planted-gate/decide", json={"key": "planted-key"}, headers=bearer("north"))
        client.get("/planted-path")
    # Another test's library may have the client of this one log its requests too.
    ours = [record for record in caplog.records if record.name.startswith("semel")]
    written = [json.loads(logs.JsonLines().format(record)) for record in ours]
    assert "planted" not in json.dumps(written)
    lines = [line for line in written if line["logger"] == "semel.access"]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("GET", "/v1/records", 404),
        ("POST", "/v1/claims", 201),
        ("POST", "/v1/gates/{name}/decide", 404),
        ("GET", "(none)", 404),
    ]
    assert set(lines[0]) == {"at", "level", "logger", "message", "method", "route", "status", "ms", "id"}


def test_an_error_is_logged_with_its_request_and_without_what_is_personal(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    scrub = logs.Scrubbing(Redactor())
    with caplog.at_level(logging.INFO):
        answer = client.post("/webhooks/echo", content=b'["!"]')
    assert problem_of(answer) == "internal"
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert scrub.filter(record)
    line = json.loads(logs.JsonLines().format(record))
    assert line["id"] == answer.headers["x-request-id"]
    assert "RuntimeError: ***@***" in line["trace"]
    assert "planted-in-an-exception" not in logs.TextLines().format(record)


def test_what_drivers_say_of_each_request_is_not_logged_at_any_level() -> None:
    root, quiet = logging.getLogger(), logging.getLogger("uvicorn.access")
    before = root.handlers[:]
    # Other tests of this process look at what these say.
    levels = {name: logging.getLogger(name).level for name in [*root.manager.loggerDict, *logs.DRIVERS]}
    levels[""] = root.level
    try:
        logs.set_up("json", "debug", Redactor())
        for name in ("botocore.endpoint", "urllib3.connectionpool", "httpx"):
            assert not logging.getLogger(name).isEnabledFor(logging.INFO), name
    finally:
        root.handlers[:], quiet.disabled = before, False
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def test_a_line_for_people_has_the_same_in_words(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "semel.access"):
        logs.log_request("GET", "/c", 200, 0.0123, "i-1")
    [record] = caplog.records
    line = logs.TextLines().format(record)
    assert line.endswith("INFO    semel.access: request method=GET route=/c status=200 ms=12.3 id=i-1")


def test_requests_are_counted_by_route_and_invented_methods_are_one(client: TestClient) -> None:
    client.request("BREW", "/planted-path")
    client.get("/v1/gates/x/decide")
    text = client.get("/metrics", headers=bearer("chief")).text
    assert 'semel_http_requests_total{method="OTHER",route="(none)",status="404"} 1.0' in text
    assert 'semel_http_requests_total{method="GET",route="/v1/gates/{name}/decide",status="405"} 1.0' in text
    assert "semel_http_in_flight 1.0" in text
    assert (
        'semel_http_request_seconds_bucket{le="+Inf",method="GET",route="/v1/gates/{name}/decide"} 1.0'
        in text
    )
    assert "planted" not in text
