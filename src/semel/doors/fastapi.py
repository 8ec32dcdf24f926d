"""FastAPI: `APIRouter(route_class=idempotent_route(idempotency))` protects the routes of a router.

A key is claimed after the dependencies have run and the request is valid, and before the endpoint runs. So
whoever is refused, or sends what is not valid, uses up no key, and a response is given again only to those
who would be let in now. `publish` puts the policy into the application's OpenAPI document.
"""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Final

import msgspec

from semel.core.runtime import require

require("fastapi", "fastapi")  # which says how to install it

from fastapi import FastAPI, HTTPException, Request, Response, params
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from fastapi.routing import APIRoute

from semel.core.running import CURRENT, Run
from semel.doors import asgi
from semel.doors.http.policy import Idempotency
from semel.doors.http.publish import EXTENSION, apage_of, describe, summary
from semel.doors.http.responses import HTTPResponse

__all__ = ["idempotent_route", "publish"]

RouteEndpoint = Callable[..., Any]
RouteHandler = Callable[[Request], Coroutine[Any, Any, Response]]

CYCLE: Final = "semel.cycle"


def idempotent_route(idempotency: Idempotency) -> type[APIRoute]:
    """A route class that keeps this policy; `identity` is given the Request, as the dependencies left it."""

    class PolicyRoute(IdempotentRoute):
        policy = idempotency

    return PolicyRoute


def publish(app: FastAPI, idempotency: Idempotency, *, dependencies: Sequence[params.Depends] = ()) -> None:
    """Serve the policy and the status of a key, and describe both in the application's OpenAPI document.

    `dependencies` are what authenticates a caller who asks for a status, where `identity` relies on that.
    """

    async def page(request: Request) -> Response:
        return await _page(idempotency, request)

    path, read = idempotency.well_known, ["GET", "HEAD"]
    app.add_api_route(path, page, methods=read, include_in_schema=False)
    app.add_api_route(
        f"{path}/{{token}}", page, methods=read, include_in_schema=False, dependencies=dependencies
    )
    app.openapi = _described(app, idempotency)  # type: ignore[method-assign]  # as FastAPI's own docs do it


class IdempotentRoute(APIRoute):
    """What `idempotent_route` makes a route class of."""

    policy: ClassVar[Idempotency]

    def __init__(self, path: str, endpoint: RouteEndpoint, **options: Any) -> None:
        if any(self.policy.protects(method.upper()) for method in options.get("methods") or ()):
            # It comes with the operation wherever the route is included, and tells `publish` which they are.
            options["openapi_extra"] = {
                EXTENSION: summary(self.policy),
                **(options.get("openapi_extra") or {}),
            }
        super().__init__(path, _claiming(endpoint), **options)

    def get_route_handler(self) -> RouteHandler:
        """The handler of a request, which knows its cycle."""
        handler, streams = super().get_route_handler(), _is_generator(self.endpoint)

        async def handle(request: Request) -> Response:
            cycle = request.scope.get(CYCLE)
            arrival = None if cycle is None else PendingRequest(cycle, request)
            # Even where it is None: an endpoint may ask another one of this very process.
            token = ARRIVAL.set(arrival)
            try:
                response = await handler(request)
                if arrival is None or not streams:
                    return response
                # FastAPI makes the response of a generator before it runs.
                return await arrival.begin() or response
            finally:
                ARRIVAL.reset(token)

        return handle

    async def handle(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answer one request, exceptions and all."""
        if not asgi.concerns(self.policy, scope):
            return await super().handle(scope, receive, send)
        cycle = await asgi.open_cycle(self.policy, scope, receive, send)
        if cycle is None:
            return None
        scope[CYCLE] = cycle
        return await cycle.run(super().handle, scope)


class PendingRequest(msgspec.Struct, eq=False):
    """A request that is on its way to its endpoint."""

    _cycle: asgi.ASGICycle
    _request: Request
    admitted: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    run: Run | None = None

    async def begin(self) -> Response | None:
        """Claim the key; a response says that the endpoint does not run."""
        request = self._request
        answer = await self._cycle.begin(asgi.request_of(request.scope, request))
        if answer is not None:
            return _response(answer)
        self.run = CURRENT.get()
        self.admitted.set()
        return None


ARRIVAL: ContextVar[PendingRequest | None] = ContextVar("semel_fastapi_arrival", default=None)


def _claiming(endpoint: RouteEndpoint) -> RouteEndpoint:
    """An endpoint that runs when its key is claimed."""
    if hasattr(endpoint, "__semel_claims__"):
        return endpoint  # an older FastAPI makes a route again when its router is included
    make = _claiming_stream if _is_generator(endpoint) else _claiming_call
    claiming = functools.wraps(endpoint)(make(endpoint))
    claiming.__name__ = getattr(endpoint, "__name__", type(endpoint).__name__)
    claiming.__semel_claims__ = True  # type: ignore[attr-defined]
    return claiming


def _claiming_call(endpoint: RouteEndpoint) -> Callable[..., Awaitable[Any]]:
    call = endpoint if _is_async(endpoint) else functools.partial(run_in_threadpool, endpoint)

    async def claiming(*args: Any, **kwargs: Any) -> Any:
        arrival = ARRIVAL.get()
        refused = None if arrival is None else await arrival.begin()
        return await call(*args, **kwargs) if refused is None else refused

    return claiming


def _claiming_stream(endpoint: RouteEndpoint) -> Callable[..., AsyncIterator[Any]]:
    async def claiming(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        arrival = ARRIVAL.get()
        if arrival is not None:
            # Server-sent events are made by a task of their own, which is started before the key is claimed.
            await arrival.admitted.wait()
            CURRENT.set(arrival.run)
        items = endpoint(*args, **kwargs)
        async for item in items if hasattr(items, "__aiter__") else iterate_in_threadpool(items):
            yield item

    return claiming


def _is_async(endpoint: RouteEndpoint) -> bool:
    return any(map(inspect.iscoroutinefunction, _faces(endpoint)))


def _is_generator(endpoint: RouteEndpoint) -> bool:
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(kind(face) for face in _faces(endpoint) for kind in kinds)


def _faces(endpoint: RouteEndpoint) -> tuple[Any, ...]:
    """What FastAPI looks at to tell what kind of function an endpoint is."""
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    plain = inspect.unwrap(endpoint)
    return endpoint, plain, getattr(plain, "__call__", None)  # noqa: B004 - its kind matters, not its presence


def _response(answer: HTTPResponse, *, head: bool = False) -> Response:
    response = Response(b"" if head else answer.body, answer.status)
    # All of them as they are: a name may be there twice.
    response.raw_headers = asgi.raw_headers(answer)
    return response


async def _page(idempotency: Idempotency, request: Request) -> Response:
    page = await apage_of(idempotency, asgi.request_of(request.scope, request))
    if page is None:
        raise HTTPException(404)
    return _response(page, head=request.method == "HEAD")


def _described(app: FastAPI, idempotency: Idempotency) -> Callable[[], dict[str, Any]]:
    """The application's `openapi` with the policy in its document, made again when that has changed."""
    plain_openapi = app.openapi
    plain: dict[str, Any] = {}
    document: dict[str, Any] = {}

    def protected(path: str, method: str) -> bool:
        mark = plain["paths"][path][method.lower()].get(EXTENSION, {})
        return mark.get("policy") == idempotency.well_known or _is_everywhere(app, idempotency)

    def openapi() -> dict[str, Any]:
        nonlocal plain, document
        before, plain = plain, plain_openapi()
        if plain is not before:
            document = describe(plain, idempotency, protected)
        return document

    return openapi


def _is_everywhere(app: FastAPI, idempotency: Idempotency) -> bool:
    """Whether a middleware of the application keeps the policy for all of it."""
    return any(
        middleware.cls is asgi.IdempotencyMiddleware  # type: ignore[comparison-overlap]  # a factory can be it
        and idempotency in (*middleware.args, *middleware.kwargs.values())
        for middleware in app.user_middleware
    )
