"""One shop as an application of each framework, for real servers: `fastapi_app`, `starlette_app` and so on.

Its handlers do what the order in the request says. An effect is a line in a file, so that it can be counted
from outside; and where an order waits, its handler knocks at a gate, and goes on when somebody opens it.
"""

import asyncio
import json
import os
import socket
import uuid
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import semel
from semel.doors.http import Idempotency

Order = dict[str, Any]
Headers = dict[str, str]

TOKENS = {"token-of-north": "north", "token-of-south": "south"}

MAX_BODY, MAX_KEPT = 8 * 1024, 16 * 1024
SHORTEST, LONGEST = 120, 1200

# For what has to outlive its lease, and what has to be taken over. Renewed every third of it, it bears that a
# busy machine forgets about us for a second.
BRIEF_LEASE = 2.0


class Out(NamedTuple):
    """What a handler answers."""

    status: int
    headers: Headers
    body: bytes


class Promises(NamedTuple):
    """The shop's policies: the usual one, one that is strict, and one with a brief lease."""

    usual: Idempotency
    strict: Idempotency
    brief: Idempotency


def promises(identity: Any, *mounted: str) -> Promises:
    """The policies on the store that the environment names; what is mounted is told apart by its mount."""
    s = semel.connect(os.environ["SHOP_STORE"], env=os.environ["SHOP_ENV"])

    def promise(place: str, **options: Any) -> Idempotency:
        well_known = f"{'' if place in mounted else place}/.well-known/idempotency-key"
        return Idempotency(
            s, identity=identity, well_known=well_known, max_body=MAX_BODY, max_kept=MAX_KEPT, **options
        )

    return Promises(
        promise("", lease=60, expiry=(SHORTEST, LONGEST)),
        promise("/strict", lease=60, strict=True, payload="json"),
        promise("/brief", lease=BRIEF_LEASE),
    )


def caller(authorization: str | None) -> str | None:
    return TOKENS.get((authorization or "").removeprefix("Bearer "))


# What the handlers do


def begin(order: Order) -> None:
    """Have the effect."""
    line = f"{order['name']} {semel.current_run().attempt}\n".encode()
    file = os.open(os.environ["SHOP_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def knock(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as gate:
        gate.connect(os.environ["SHOP_GATE"])
        gate.sendall(f"{name} {os.getpid()}\n".encode())
        gate.recv(1)


async def aknock(name: str) -> None:
    reader, writer = await asyncio.open_unix_connection(os.environ["SHOP_GATE"])
    writer.write(f"{name} {os.getpid()}\n".encode())
    await reader.read(1)
    writer.close()


def charged(order: Order) -> Out:
    """A response with everything in its head that may, or must not, be given again."""
    number = uuid.uuid4().hex
    return Out(
        201,
        {
            "Content-Type": "application/json",
            "Content-Language": "en",
            "Location": f"/charges/{number}",
            "Set-Cookie": f"session={number}; HttpOnly",
            "X-Trace": uuid.uuid4().hex,
            "X-Attempt": str(semel.current_run().attempt),
        },
        json.dumps({"id": number, "order": order["name"], "for": "Zoë"}, ensure_ascii=False).encode(),
    )


def answered(order: Order) -> Out:
    """The response that the order asks for at this run of it, the last one from then on."""
    effects = Path(os.environ["SHOP_EFFECTS"]).read_text().splitlines()
    runs = sum(line.startswith(f"{order['name']} ") for line in effects)
    status = order["statuses"][min(runs, len(order["statuses"])) - 1]
    return Out(status, order.get("headers", {}), b64decode(order.get("body", "")))


def crashed(order: Order) -> Out:
    if semel.current_run().attempt == 1:
        raise RuntimeError("the till is on fire")
    return charged(order)


def pieces(order: Order) -> Iterator[bytes]:
    for number in range(order["pieces"]):
        if order.get("waits"):
            knock(f"{order['name']}:{number}")
        yield printed(order, number)


async def apieces(order: Order) -> AsyncIterator[bytes]:
    for number in range(order["pieces"]):
        if order.get("waits"):
            await aknock(f"{order['name']}:{number}")
        yield printed(order, number)


def printed(order: Order, number: int) -> bytes:
    if number == order.get("breaks_at") and semel.current_run().attempt == 1:
        raise RuntimeError("the printer is out of paper")
    return piece(order, number)


def piece(order: Order, number: int) -> bytes:
    return f"piece {number} of {order['name']}".encode().ljust(order.get("size", 0), b".") + b"\n"


PRINTED = {"Content-Type": "text/plain", "Location": "/receipts/1"}
HANDLERS = {"charges": charged, "answers": answered, "crashes": crashed}


def handled(what: str, order: Order) -> Out:
    begin(order)
    if order.get("waits"):
        knock(order["name"])
    return HANDLERS[what](order)


async def ahandled(what: str, order: Order) -> Out:
    begin(order)
    if order.get("waits"):
        await aknock(order["name"])
    return HANDLERS[what](order)


def greeting() -> Out:
    """Not protected; it tells whose process this is."""
    return Out(200, {"Content-Type": "text/plain", "X-Trace": uuid.uuid4().hex}, str(os.getpid()).encode())


# The frameworks


def starlette_app() -> Any:
    """Three mounts, each behind the middleware."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Mount, Route

    from semel.doors.asgi import IdempotencyMiddleware

    def identity(scope: Any) -> str | None:
        return caller(Request(scope).headers.get("authorization"))

    async def handle(request: Request) -> Response:
        out = await ahandled(request.url.path.rpartition("/")[2], await request.json())
        return Response(out.body, out.status, out.headers)

    async def stream(request: Request) -> Response:
        order = await request.json()
        begin(order)
        return StreamingResponse(apieces(order), 200, PRINTED)

    async def hello(request: Request) -> Response:
        out = greeting()
        return Response(out.body, out.status, out.headers)

    def shop(idempotency: Idempotency) -> Starlette:
        routes = [Route(f"/{what}", handle, methods=["POST"]) for what in HANDLERS]
        routes += [Route("/streams", stream, methods=["POST"]), Route("/hello", hello)]
        return Starlette(
            routes=routes, middleware=[Middleware(IdempotencyMiddleware, idempotency=idempotency)]
        )

    usual, strict, brief = promises(identity, "/strict", "/brief")
    return Starlette(
        routes=[Mount("/strict", shop(strict)), Mount("/brief", shop(brief)), Mount("/", shop(usual))]
    )


def fastapi_app() -> Any:
    """Two places with a route class, and the strict one behind the middleware."""
    from fastapi import APIRouter, FastAPI
    from fastapi.responses import Response, StreamingResponse
    from starlette.requests import Request

    from semel.doors.asgi import IdempotencyMiddleware
    from semel.doors.fastapi import idempotent_route, publish

    def identity(native: Any) -> str | None:
        request = native if isinstance(native, Request) else Request(native)
        return caller(request.headers.get("authorization"))

    def response(out: Out) -> Response:
        return Response(out.body, out.status, out.headers)

    def shop(router: APIRouter) -> APIRouter:
        @router.post("/charges")
        def charge(order: Order) -> Response:
            return response(handled("charges", order))

        @router.post("/answers")
        async def answer(order: Order) -> Response:
            return response(await ahandled("answers", order))

        @router.post("/crashes")
        async def crash(order: Order) -> Response:
            return response(await ahandled("crashes", order))

        @router.post("/streams")
        def stream(order: Order) -> StreamingResponse:
            begin(order)
            return StreamingResponse(pieces(order), 200, PRINTED)

        return router

    usual, strict, brief = promises(identity, "/strict")
    app, mounted = FastAPI(), FastAPI()
    app.add_api_route("/hello", lambda: response(greeting()))
    for place, idempotency in (("", usual), ("/brief", brief)):
        app.include_router(shop(APIRouter(route_class=idempotent_route(idempotency), prefix=place)))
        publish(app, idempotency)
    mounted.include_router(shop(APIRouter()))
    mounted.add_middleware(IdempotencyMiddleware, idempotency=strict)
    app.mount("/strict", mounted)
    return app


def flask_app() -> Any:
    """Two places with the decorator, and the strict one behind the middleware."""
    from flask import Flask, Request, Response, request
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    from semel.doors.flask import idempotent, publish
    from semel.doors.wsgi import IdempotencyMiddleware

    def identity(native: Any) -> str | None:
        request = native if isinstance(native, Request) else Request(native)
        return caller(request.headers.get("Authorization"))

    def response(out: Out) -> Response:
        return Response(out.body, out.status, out.headers)

    def handle(what: str) -> Response:
        return response(handled(what, request.get_json()))

    def stream() -> Response:
        order = request.get_json()
        begin(order)
        return Response(pieces(order), 200, PRINTED)

    def add(app: Flask, place: str, keep: Any) -> None:
        app.add_url_rule(f"{place}/streams", f"{place} streams", keep(stream), methods=["POST"])
        for what in HANDLERS:
            app.add_url_rule(
                f"{place}/{what}", f"{place} {what}", keep(handle), methods=["POST"], defaults={"what": what}
            )

    usual, strict, brief = promises(identity, "/strict")
    app, mounted = Flask(__name__), Flask(__name__)
    app.add_url_rule("/hello", "hello", lambda: response(greeting()))
    for place, idempotency in (("", usual), ("/brief", brief)):
        add(app, place, idempotent(idempotency))
        publish(app, idempotency)
    add(mounted, "", lambda view: view)
    return DispatcherMiddleware(app, {"/strict": IdempotencyMiddleware(mounted, strict)})


def django_app() -> Any:
    """Two places with the decorator, and the strict one behind the middleware."""
    import sys
    from types import ModuleType

    from django.conf import settings  # type: ignore[import-untyped]
    from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped]
    from django.http import (  # type: ignore[import-untyped]
        HttpRequest,
        HttpResponse,
        StreamingHttpResponse,
    )
    from django.urls import path  # type: ignore[import-untyped]

    site: Any = ModuleType("site_of_the_shop")
    sys.modules[site.__name__] = site
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=site,
        MIDDLEWARE=[f"{site.__name__}.strict_middleware"],
        DATABASES={},
        LOGGING_CONFIG=None,
    )
    from semel.doors.django import idempotent, middleware, pages

    def identity(request: HttpRequest) -> str | None:
        return caller(request.headers.get("Authorization"))

    def response(out: Out) -> HttpResponse:
        return HttpResponse(out.body, status=out.status, headers=out.headers)

    def handle(request: HttpRequest, what: str) -> HttpResponse:
        return response(handled(what, json.loads(request.body)))

    def stream(request: HttpRequest) -> StreamingHttpResponse:
        order = json.loads(request.body)
        begin(order)
        return StreamingHttpResponse(pieces(order), headers=PRINTED)

    def routes(place: str, keep: Any) -> list[Any]:
        found = [path(f"{place}{what}", keep(handle), {"what": what}) for what in HANDLERS]
        return [*found, path(f"{place}streams", keep(stream))]

    def strict_middleware(get_response: Any) -> Any:
        keep = middleware(strict)(get_response)
        return lambda request: (keep if request.path.startswith("/strict") else get_response)(request)

    usual, strict, brief = promises(identity)
    site.strict_middleware = strict_middleware
    site.urlpatterns = [path("hello", lambda _: response(greeting())), *routes("strict/", lambda view: view)]
    for place, idempotency in (("", usual), ("brief/", brief)):
        site.urlpatterns += [*routes(place, idempotent(idempotency)), *pages(idempotency)]
    return get_wsgi_application()


def litestar_app() -> Any:
    """Two places with the decorator, and the strict one behind the middleware."""
    from litestar import Litestar, Request, Response, Router, get, post
    from litestar.middleware import DefineMiddleware
    from litestar.params import JSONBody
    from litestar.response import Stream

    from semel.doors.asgi import IdempotencyMiddleware
    from semel.doors.litestar import IdempotencyPlugin, idempotent

    def identity(native: Any) -> str | None:
        request = native if isinstance(native, Request) else Request(native)
        return caller(request.headers.get("authorization"))

    def response(out: Out) -> Response[bytes]:
        return Response(out.body, status_code=out.status, headers=out.headers)

    @get("/hello")
    async def hello() -> Response[bytes]:
        return response(greeting())

    def shop(keep: Any) -> list[Any]:
        @keep
        @post("/charges")
        async def charge(data: JSONBody[Order]) -> Response[bytes]:
            return response(await ahandled("charges", data))

        @keep
        @post("/answers", sync_to_thread=True)
        def answer(data: JSONBody[Order]) -> Response[bytes]:
            return response(handled("answers", data))

        @keep
        @post("/crashes")
        async def crash(data: JSONBody[Order]) -> Response[bytes]:
            return response(await ahandled("crashes", data))

        @keep
        @post("/streams")
        async def stream(data: JSONBody[Order]) -> Stream:
            begin(data)
            return Stream(apieces(data), status_code=200, headers=PRINTED, media_type=PRINTED["Content-Type"])

        return [charge, answer, crash, stream]

    usual, strict, brief = promises(identity)
    middleware = [DefineMiddleware(IdempotencyMiddleware, idempotency=strict)]
    return Litestar(
        [
            hello,
            *shop(idempotent(usual)),
            Router("/brief", route_handlers=shop(idempotent(brief))),
            Router("/strict", route_handlers=shop(lambda handler: handler), middleware=middleware),
        ],
        plugins=[IdempotencyPlugin(policy) for policy in (usual, strict, brief)],
        openapi_config=None,
    )
