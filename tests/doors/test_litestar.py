"""The Litestar door: each claim of the policy, seen through route handlers as people write them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from litestar import Controller, Litestar, Request, Response, Router, get, patch, post
from litestar.background_tasks import BackgroundTask
from litestar.connection import ASGIConnection
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency, Provide
from litestar.dto import DataclassDTO, DTOConfig
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import ASGIMiddleware, DefineMiddleware
from litestar.params import FromPath, JSONBody, MultipartBody
from litestar.response import Stream
from litestar.testing import TestClient
from litestar.types import ASGIApp, Receive, Scope, Send

import semel
from semel.doors.asgi import IdempotencyMiddleware
from semel.doors.http import ANYONE, Idempotency
from semel.doors.litestar import IdempotencyPlugin, idempotent

KEY = {"Idempotency-Key": '"k-1"'}


@dataclass
class Order:
    cents: int
    note: str = ""


def anyone(s: semel.Semel, **options: Any) -> Idempotency:
    return Idempotency(s, identity=ANYONE, **options)


def client_of(*handlers: Any, **options: Any) -> TestClient[Litestar]:
    options = {"openapi_config": None, **options}
    return TestClient(Litestar(list(handlers), **options), raise_server_exceptions=False)


def kind(response: Any) -> str:
    """The kind of a problem."""
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["type"].rpartition("#")[2])


def records(s: semel.Semel) -> int:
    return len(s.ledger.list().records)


# Once


@pytest.mark.parametrize("how", ["async", "thread", "loop"])
def test_a_request_has_its_effect_once_and_every_retry_gets_the_same_bytes(s: semel.Semel, how: str) -> None:
    ran: list[tuple[int, bool]] = []
    main: list[int] = []

    def charge(data: JSONBody[Order]) -> Response[dict[str, Any]]:
        ran.append((semel.current_run().attempt, threading.get_ident() in main))
        return Response(
            {"charged": data.cents, "in": "€"}, headers={"Location": "/p/1", "X-Trace": "of this one alone"}
        )

    async def acharge(data: JSONBody[Order]) -> Response[dict[str, Any]]:
        return charge(data)

    async def note_the_loop(_request: Request[Any, Any, Any]) -> None:
        main.append(threading.get_ident())

    made = post("/pay") if how == "async" else post("/pay", sync_to_thread=how == "thread")
    handler = idempotent(anyone(s))(made(acharge if how == "async" else charge))
    with client_of(handler, before_request=note_the_loop) as client:
        first, *others = (client.post("/pay", json={"cents": 5}, headers=KEY) for _ in range(3))
    assert ran == [(1, how != "thread")]
    assert (first.status_code, first.content) == (201, '{"charged":5,"in":"€"}'.encode())
    assert "x-trace" in first.headers
    for other in others:
        assert (other.status_code, other.content) == (201, first.content)
        assert (other.headers["location"], other.headers["idempotent-replayed"]) == ("/p/1", "true")
        assert "x-trace" not in other.headers


def test_another_payload_under_the_same_key_is_refused(s: semel.Semel) -> None:
    @idempotent(anyone(s))
    @post("/pay")
    async def pay(data: JSONBody[Order]) -> int:
        return data.cents

    with client_of(pay) as client:
        assert client.post("/pay", json={"cents": 5}, headers=KEY).json() == 5
        refused = client.post("/pay", json={"cents": 6}, headers=KEY)
        assert (refused.status_code, kind(refused)) == (422, "payload-changed")


def test_a_controllers_handlers_and_nested_routers_are_protected_too(s: semel.Semel) -> None:
    """Litestar copies the handlers of a controller, and the routers of a router."""
    policy, ran = anyone(s), []

    class Payments(Controller):
        path = "/payments"
        fee = 1

        @idempotent(policy)
        @post()
        async def pay(self, data: JSONBody[Order]) -> int:
            ran.append("pay")
            return data.cents + self.fee

        @idempotent(policy)
        @patch("/{number:int}", sync_to_thread=False)
        def change(self, number: FromPath[int]) -> int:
            ran.append("change")
            return number

    inner = Router("/inner", route_handlers=[Payments])
    with client_of(Router("/outer", route_handlers=[inner])) as client:
        for _ in range(2):
            assert client.post("/outer/inner/payments", json={"cents": 5}, headers=KEY).json() == 6
            assert client.patch("/outer/inner/payments/7", headers=KEY).json() == 7
    assert ran == ["pay", "change"]


def test_what_shapes_a_response_shapes_it_once(s: semel.Semel) -> None:
    """A DTO, a hook after the request, and headers and cookies of a layer."""

    class Told(DataclassDTO[Order]):
        config = DTOConfig(exclude={"note"})

    hooked = []

    async def wrap(response: Response[Any]) -> Response[Any]:
        hooked.append(1)
        return Response({"wrapped": response.content}, headers={"Content-Language": "en"})

    @idempotent(anyone(s))
    @post("/pay", return_dto=Told, dto=None, after_request=wrap, response_cookies={"seen": "once"})
    async def pay(data: JSONBody[Order]) -> Order:
        return data

    with client_of(pay) as client:
        first, again = (client.post("/pay", json={"cents": 5, "note": "x"}, headers=KEY) for _ in range(2))
    assert first.json() == again.json() == {"wrapped": {"cents": 5}}
    assert again.headers["content-language"] == "en"
    assert "set-cookie" in first.headers
    assert "set-cookie" not in again.headers
    assert hooked == [1]


def test_a_stream_and_a_background_task_are_made_once(s: semel.Semel) -> None:
    printed: list[int] = []
    tidied: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            printed.append(semel.current_run().attempt)
            yield f"{number}\n".encode()

    @idempotent(anyone(s))
    @post("/print")
    async def receipt() -> Stream:
        return Stream(pieces(), background=BackgroundTask(tidied.append, 1), media_type="text/plain")

    with client_of(receipt) as client:
        first, again = (client.post("/print", headers=KEY) for _ in range(2))
    assert first.content == again.content == b"0\n1\n2\n"
    assert (printed, tidied) == ([1, 1, 1], [1])


def test_an_upload_counts_as_it_was_sent(s: semel.Semel) -> None:
    @idempotent(anyone(s))
    @post("/files")
    async def keep(data: MultipartBody[UploadFile]) -> str:
        return (await data.read()).decode()

    with client_of(keep) as client:
        request = client.build_request("POST", "/files", files={"data": ("a.txt", b"hello")}, headers=KEY)
        sent = request.read(), {**KEY, "Content-Type": request.headers["content-type"]}
        first, again = (client.post("/files", content=sent[0], headers=sent[1]) for _ in range(2))
    assert first.text == again.text == "hello"
    assert again.headers["idempotent-replayed"] == "true"


def test_a_body_that_a_middleware_has_read_is_read_again(s: semel.Semel) -> None:
    class Auditing(ASGIMiddleware):
        async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
            audited.append(await Request[Any, Any, Any](scope, receive).body())
            await next_app(scope, receive, send)

    audited: list[bytes] = []

    @idempotent(anyone(s))
    @post("/pay")
    async def pay(data: JSONBody[Order]) -> int:
        return data.cents

    with client_of(pay, middleware=[Auditing()]) as client:
        answers = [client.post("/pay", json={"cents": cents}, headers=KEY) for cents in (5, 5, 6)]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert len(audited) == 3


# Who is let in


def test_a_guard_and_a_validation_refuse_before_anything_is_claimed_or_told(s: semel.Semel) -> None:
    async def only_north(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if connection.headers.get("x-token") != "north":
            raise NotAuthorizedException

    async def stock(request: Request[Any, Any, Any]) -> int:
        if "x-sold-out" in request.headers:
            raise HTTPException(status_code=410, detail="sold out")
        return 3

    @idempotent(anyone(s))
    @post("/pay", guards=[only_north], dependencies={"stock": Provide(stock)})
    async def pay(data: JSONBody[Order], stock: NamedDependency[int]) -> int:
        return data.cents + stock

    north = {"X-Token": "north", **KEY}
    with client_of(pay) as client:
        assert client.post("/pay", json={"cents": 5}, headers=KEY).status_code == 401
        assert client.post("/pay", json={"cents": "many"}, headers=north).status_code == 400
        assert client.post("/pay", json={"cents": 5}, headers={"X-Sold-Out": "1", **north}).status_code == 410
        assert records(s) == 0
        assert client.post("/pay", json={"cents": 5}, headers=north).json() == 8
        assert client.post("/pay", json={"cents": 5}, headers=KEY).status_code == 401


def test_the_identity_is_what_an_authenticating_middleware_found(s: semel.Semel) -> None:
    class Authenticating(ASGIMiddleware):
        async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
            scope["user"] = dict(scope["headers"]).get(b"x-token", b"").decode()
            await next_app(scope, receive, send)

    class ShopRequest(Request[Any, Any, Any]):
        @property
        def caller(self) -> str:
            return f"shop:{self.user}" if self.user else ""

    ran = []

    @idempotent(Idempotency(s, identity=lambda request: request.caller))
    @post("/pay", request_class=ShopRequest)
    async def pay(request: Request[Any, Any, Any]) -> str:
        ran.append(request.user)
        return str(request.user)

    with client_of(pay, middleware=[Authenticating()]) as client:
        for caller in ("north", "south", "north"):
            assert client.post("/pay", headers={"X-Token": caller, **KEY}).text == caller
        refused = client.post("/pay", headers=KEY)
    assert ran == ["north", "south"]
    assert (refused.status_code, kind(refused)) == (401, "not-authenticated")


def test_a_dependency_that_cleans_up_does_so_when_a_response_is_given_again(s: semel.Semel) -> None:
    closed: list[str] = []

    async def session() -> AsyncIterator[str]:
        try:
            yield "session"
        finally:
            closed.append("session")

    async def cursor() -> AsyncIterator[str]:
        try:
            yield "cursor"
        finally:
            closed.append("cursor")

    @idempotent(anyone(s))
    @post("/pay", dependencies={"session": Provide(session), "cursor": Provide(cursor)})
    async def pay(session: NamedDependency[str], cursor: NamedDependency[str]) -> str:
        return session + cursor

    with client_of(pay) as client:
        assert [client.post("/pay", headers=KEY).text for _ in range(2)] == ["sessioncursor"] * 2
    assert sorted(closed) == ["cursor", "cursor", "session", "session"]


# What is not protected


def test_other_methods_and_requests_that_need_no_key_go_on_as_before(s: semel.Semel) -> None:
    policy = anyone(s, required=False)

    @idempotent(policy)
    @get("/pay")
    async def show() -> str:
        return "shown"

    @idempotent(policy)
    @post("/pay")
    async def pay(data: JSONBody[Order]) -> int:
        return data.cents

    with client_of(show, pay) as client:
        assert client.get("/pay", headers=KEY).text == "shown"
        assert client.post("/pay", json={"cents": 5}).json() == 5
        assert records(s) == 0


def test_a_key_that_is_missing_and_a_body_that_is_too_long_are_told_so(s: semel.Semel) -> None:
    @idempotent(anyone(s, max_body=20))
    @post("/pay")
    async def pay(data: JSONBody[Order]) -> int:
        return data.cents

    def endless() -> Iterator[bytes]:
        yield from (b'{"cents":', b" " * 30, b"5}")

    with client_of(pay) as client:
        missing = client.post("/pay", json={"cents": 5})
        assert (missing.status_code, kind(missing)) == (400, "key-missing")
        for body in ({"json": {"cents": 5, "note": "x" * 30}}, {"content": endless()}):
            large = client.post("/pay", headers=KEY, **body)
            assert (large.status_code, kind(large)) == (413, "body-too-large")


def test_the_decorator_below_the_route_says_where_it_belongs(s: semel.Semel) -> None:
    async def pay() -> None: ...

    with pytest.raises(semel.UsageError, match="above the decorator of the route"):
        idempotent(anyone(s))(pay)  # type: ignore[type-var]


# Errors


def test_an_error_that_litestar_answers_for_is_the_runs_error(s: semel.Semel) -> None:
    """Its handlers make a response of every error, and the ledger is told the error all the same."""

    @idempotent(anyone(s, on_error={KeyError: "keep"}))
    @post("/crash")
    async def crash(data: JSONBody[Order]) -> int:
        if data.cents == 0:
            raise KeyError("final")
        if semel.current_run().attempt == 1:
            raise RuntimeError("the till is on fire")
        return data.cents

    with client_of(crash) as client:
        assert [client.post("/crash", json={"cents": 5}, headers=KEY).status_code for _ in range(3)] == [
            500,
            201,
            201,
        ]
        final = {"Idempotency-Key": "final"}
        assert client.post("/crash", json={"cents": 0}, headers=final).status_code == 500
        failed = client.post("/crash", json={"cents": 0}, headers=final)
    assert (failed.status_code, kind(failed)) == (409, "failed-before")


@pytest.mark.situation(61)
def test_an_error_that_becomes_a_429_releases_the_key_whatever_becomes_of_errors(s: semel.Semel) -> None:
    runs: list[int] = []

    @idempotent(anyone(s, on_error="keep"))
    @post("/pay")
    async def pay(data: JSONBody[Order]) -> int:
        runs.append(data.cents)
        if len(runs) == 1:
            raise HTTPException(status_code=429, headers={"Retry-After": "7"})
        return data.cents

    with client_of(pay) as client:
        first, second = (client.post("/pay", json={"cents": 5}, headers=KEY) for _ in range(2))
    assert (first.status_code, first.headers["Retry-After"]) == (429, "7")
    assert (second.status_code, runs) == (201, [5, 5])


def test_an_error_that_an_exception_handler_answers_below_500_is_kept(s: semel.Semel) -> None:
    class Poor(Exception):
        pass

    ran = []

    @idempotent(anyone(s))
    @post("/pay", exception_handlers={Poor: lambda _request, _error: Response("poor", status_code=402)})
    async def pay() -> None:
        ran.append(1)
        raise Poor

    with client_of(pay) as client:
        answers = [client.post("/pay", headers=KEY) for _ in range(2)]
    assert [(answer.status_code, answer.text) for answer in answers] == [(402, "poor")] * 2
    assert ran == [1]


def test_work_whose_claim_is_lost_is_cancelled_and_answered_with_a_conflict() -> None:
    cancelled: list[bool] = []
    with semel.connect("memory:") as local:

        @idempotent(anyone(local, lease=0.15))
        @post("/slow")
        async def slow() -> None:
            run = semel.current_run()
            local.ledger.forget(run.key)
            assert isinstance(local.ledger.claim(run.key), semel.Claimed)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(run.lost)
                raise

        with client_of(slow) as client:
            answer = client.post("/slow", headers=KEY)
    assert cancelled == [True]
    assert (answer.status_code, kind(answer)) == (409, "in-progress")


# The policy, published


def test_the_plugin_serves_the_policy_and_guards_the_status_of_a_key(s: semel.Semel) -> None:
    async def nobody(_connection: Any, _handler: BaseRouteHandler) -> None:
        raise NotAuthorizedException

    policy = anyone(s)
    with client_of(plugins=[IdempotencyPlugin(policy, guards=[nobody])]) as client:
        page = client.get("/.well-known/idempotency-key")
        assert (page.status_code, page.json()["methods"]) == (200, ["PATCH", "POST"])
        assert client.head("/.well-known/idempotency-key").content == b""
        assert client.get("/.well-known/idempotency-key/abc").status_code == 401
    with client_of(plugins=[IdempotencyPlugin(policy)]) as client:
        unknown = client.get("/.well-known/idempotency-key/abc")
        assert (unknown.status_code, kind(unknown)) == (404, "no-such-key")


def test_the_document_says_which_operations_keep_which_policy(s: semel.Semel) -> None:
    usual, other = anyone(s), anyone(s, well_known="/other/.well-known/idempotency-key", ttl=600)
    plain = anyone(s, well_known="/plain")

    @idempotent(usual)
    @post("/pay/{number:int}")
    async def pay(number: FromPath[int]) -> int:
        return number

    @post("/free")
    async def free() -> int:
        return 0

    @post("/each")
    async def each() -> int:
        return 0

    router = Router(
        "/other",
        route_handlers=[each],
        middleware=[DefineMiddleware(IdempotencyMiddleware, idempotency=other)],
    )
    plugins = [IdempotencyPlugin(policy) for policy in (usual, other, plain)]
    app = Litestar([pay, free, router], plugins=plugins)
    with TestClient(app) as client:
        told = client.get("/schema/openapi.json").json()
    assert told == app.openapi_schema.to_schema()
    operation = told["paths"]["/pay/{number}"]["post"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["number", "Idempotency-Key"]
    assert {"201", "400", "409", "413", "422", "503"} <= operation["responses"].keys()
    assert told["paths"]["/other/each"]["post"]["x-idempotency"]["retention_seconds"] == 600
    assert "x-idempotency" not in told["paths"]["/free"]["post"]
    assert "get" in told["paths"]["/.well-known/idempotency-key"]
