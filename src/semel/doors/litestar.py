"""Litestar: `@idempotent(idempotency)` above `@post` keeps the policy for one route handler.

    @idempotent(idempotency)
    @post("/charges")
    async def charge(data: Order) -> Charge: ...

A key is claimed after the guards and dependencies have run and the request is valid, and before the handler
runs. So whoever is refused, or sends what is not valid, uses up no key. `IdempotencyPlugin` serves the
policy, and puts it into the application's OpenAPI document.
"""

import copy
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec

from semel.core.runtime import require

require("litestar", "litestar")  # which says how to install it

from litestar import Request, route
from litestar.concurrency import sync_to_thread
from litestar.config.app import AppConfig
from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.exceptions import NotFoundException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.middleware import ASGIMiddleware, DefineMiddleware
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import OpenAPI
from litestar.plugins import InitPlugin, ReceiveRoutePlugin
from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.utils.predicates import is_async_callable

from semel import errors
from semel.doors import asgi as cycles
from semel.doors.http.policy import Idempotency
from semel.doors.http.publish import apage_of, describe
from semel.doors.http.responses import HTTPResponse

__all__ = ["IdempotencyPlugin", "idempotent"]

H = TypeVar("H", bound=HTTPRouteHandler)
# As Litestar's own `Guard`, whose types are not said to the end.
LitestarGuard: TypeAlias = Callable[
    [ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None] | None
]


def idempotent(idempotency: Idempotency) -> Callable[[H], H]:
    """Keep this policy for a route handler; `identity` is given its Request, after the guards."""

    def protect(handler: H) -> H:
        if not isinstance(handler, HTTPRouteHandler):
            raise errors.UsageError("write @idempotent above the decorator of the route, such as @post")
        claiming = _claiming(handler.fn, in_thread=bool(handler.sync_to_thread))
        handler.sync_to_thread = None  # it is an async function from here on
        handler(claiming)
        # The last of them is the innermost: what authenticates has run before.
        handler.middleware = [*(handler.middleware or ()), ClaimingMiddleware(idempotency)]
        return handler

    return protect


class IdempotencyPlugin(InitPlugin, ReceiveRoutePlugin):
    """Serves the policy and the status of a key, and describes both in the application's OpenAPI document.

    `guards` are what lets in a caller who asks for a status, where `identity` relies on that.
    """

    def __init__(self, idempotency: Idempotency, *, guards: Sequence[LitestarGuard] = ()) -> None:
        self._idempotency = idempotency
        self._guards = guards
        self._protected: set[tuple[str, str]] = set()

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the policy's pages to an application, and the policy to its document."""
        path = self._idempotency.well_known
        app_config.route_handlers += [_page(self._idempotency, path, ())]
        app_config.route_handlers += [_page(self._idempotency, f"{path}/{{token:str}}", self._guards)]
        if app_config.openapi_config is not None:
            app_config.openapi_config = self._described(app_config.openapi_config)
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        """Remember for which operations of a route the policy is kept."""
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in route.route_handler_map.items():
                if any(_keeps(self._idempotency, one) for one in handler.resolve_middleware()):
                    self._protected.add((route.path_format or "/", method))

    def _described(self, config: OpenAPIConfig) -> OpenAPIConfig:
        described, make = copy.copy(config), config.to_openapi_schema

        def to_openapi_schema() -> OpenAPI:
            plain = make()
            document = plain if isinstance(plain, DescribedOpenAPI) else DescribedOpenAPI(**vars(plain))
            document.policies += ((self._idempotency, self._protected),)
            return document

        described.to_openapi_schema = to_openapi_schema  # type: ignore[method-assign]
        return described


class DescribedOpenAPI(OpenAPI):
    """An OpenAPI document of Litestar's that says what policies mean for its operations."""

    policies: tuple[tuple[Idempotency, AbstractSet[tuple[str, str]]], ...] = ()

    def to_schema(self) -> dict[str, Any]:
        """The document as plain values."""
        document = super().to_schema()
        for idempotency, operations in self.policies:
            document = describe(document, idempotency, lambda *one: one in operations)  # noqa: B023 - asked at once
        return document


class ClaimingMiddleware(ASGIMiddleware):
    """Gives a request its cycle, so that its handler can claim its key; `idempotent` adds it to a handler."""

    scopes: tuple[ScopeType, ...] = (ScopeType.HTTP,)

    def __init__(self, idempotency: Idempotency) -> None:
        self.policy = idempotency

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Answer one request."""
        if not cycles.concerns(self.policy, scope):
            # A handler may ask another one of this very process.
            with _arriving(None):
                return await next_app(scope, receive, send)
        cycle = await cycles.open_cycle(self.policy, scope, await _receiving(scope, receive), send)
        if cycle is None:
            return None
        try:
            with _arriving(ArrivedRequest(cycle, scope)):
                return await cycle.run(next_app, scope)
        except Answered as answered:
            return await cycles.respond(answered.answer, send)


class Answered(BaseException):
    """The handler does not run: as with a cancellation, nobody on the way is to make an answer of it."""

    def __init__(self, answer: HTTPResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


class ArrivedRequest(msgspec.Struct, eq=False, frozen=True):
    """A request that is on its way to its handler."""

    cycle: cycles.ASGICycle
    scope: cycles.Scope

    async def begin(self) -> None:
        """Claim the key; Answered says that the handler does not run."""
        request = self.scope["route_handler"].resolve_request_class()(self.scope)
        answer = await self.cycle.begin(cycles.request_of(self.scope, request))
        if answer is not None:
            raise Answered(answer)


ARRIVAL: ContextVar[ArrivedRequest | None] = ContextVar("semel_litestar_arrival", default=None)


@contextmanager
def _arriving(arrival: ArrivedRequest | None) -> Iterator[None]:
    token = ARRIVAL.set(arrival)
    try:
        yield
    finally:
        ARRIVAL.reset(token)


def _claiming(fn: Callable[..., Any], *, in_thread: bool) -> Callable[..., Awaitable[Any]]:
    """A handler's function that runs when its key is claimed."""
    call = _awaitable(fn, in_thread=in_thread)

    @functools.wraps(fn)
    async def claiming(*args: Any, **kwargs: Any) -> Any:
        arrival = ARRIVAL.get()
        if arrival is None:
            return await call(*args, **kwargs)
        await arrival.begin()
        try:
            return await call(*args, **kwargs)
        except Exception as error:
            arrival.cycle.blame(error)
            raise

    return claiming


def _awaitable(fn: Callable[..., Any], *, in_thread: bool) -> Callable[..., Awaitable[Any]]:
    if is_async_callable(fn):
        return fn
    if in_thread:
        return functools.partial(sync_to_thread, fn)

    async def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call


class _Unread(Exception):
    """Nobody has read the body of a request."""


async def _unread() -> NoReturn:
    raise _Unread


async def _receiving(scope: Scope, receive: Receive) -> Receive:
    """What gives the body of a request, also where a middleware has read it, which Litestar then keeps."""
    try:
        body = await Request[Any, Any, Any](scope, _unread).body()
    except _Unread:
        return receive
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return messages.pop() if messages else await receive()

    return again


def _page(idempotency: Idempotency, path: str, guards: Sequence[LitestarGuard]) -> HTTPRouteHandler:
    """One of the policy's own pages."""

    @route(path, http_method=["GET", "HEAD"], guards=guards, include_in_schema=False, cache=False)
    async def page(request: Request[Any, Any, Any]) -> ASGIApp:
        answer = await apage_of(idempotency, cycles.request_of(request.scope, request))
        if answer is None:
            raise NotFoundException

        async def response(_scope: Scope, _receive: Receive, send: Send) -> None:
            await cycles.respond(answer, send, head=request.method == "HEAD")

        return response

    return page


def _keeps(idempotency: Idempotency, middleware: object) -> bool:
    """Whether a middleware is one that keeps this policy."""
    if isinstance(middleware, ClaimingMiddleware):
        return middleware.policy is idempotency
    return (
        isinstance(middleware, DefineMiddleware)
        and middleware.middleware is cycles.IdempotencyMiddleware
        and idempotency in (*middleware.args, *middleware.kwargs.values())
    )
