"""The ASGI application: every address of the service."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from ipaddress import ip_network
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException

from semel import errors
from semel.apps import Shows
from semel.core.drive import leave
from semel.doors.http.problems import ProblemDetails
from semel.service import health, pages, v1
from semel.service.dashboards import has_dashboard, mount_dashboard
from semel.service.metrics import CONTENT_TYPE
from semel.service.middleware import (
    FORMS,
    ID,
    INTERNAL,
    RequestMiddleware,
    Routes,
    logged_problem,
)
from semel.service.openapi import PROBLEM, TAGS, describe_service, operation_id, problems, routes_of
from semel.service.problems import HOME, ProblemError, ServiceProblemType, problem, published
from semel.service.runtime import Runtime
from semel.service.tokens import Tokens, asking

ABOUT: Final = (
    "A ledger for things that must happen once, over HTTP. Every refusal is a problem by RFC 9457, of a type "
    "that is listed at /problems."
)
PUBLIC: Final = re.compile(r"https?://[^\s/?#]+/?")


# An app's own routes may find nothing, and refuse what has the right form and cannot be.
OF_APPS: Final[dict[int | str, dict[str, Any]]] = problems("no-such-page") | {
    422: {"description": "The request cannot be.", "content": PROBLEM}
}


def create_app(runtime: Runtime, failing: Callable[[], str] | None = None) -> RequestMiddleware:
    """The application of a runtime; where only workers run, `failing` says what is wrong with them."""
    _check_public_url(runtime)
    _check_proxies(runtime)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        for s in runtime.stores():
            await leave(s.store)

    app = FastAPI(
        title="semel",
        version=version("semel"),
        description=ABOUT,
        lifespan=lifespan,
        # FastAPI's own page loads its scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # It would name this address as http: behind TLS, the client would send its token again in clear.
        redirect_slashes=False,
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        openapi_tags=TAGS,
        generate_unique_id_function=operation_id,
    )
    visited = set[str]()
    tokens = app.state.tokens = Tokens(runtime)
    _answer_with_problems(app)
    app.include_router(health.router(runtime, failing))
    app.include_router(_about(runtime))
    if failing is None:
        app.include_router(_pages(app, runtime))
        app.include_router(v1.router(runtime))
        _mount_apps(app, runtime)
        visited = mount_dashboard(app, runtime, tokens)
        describe_service(app, runtime)
    hooks = runtime.hooks() if failing is None else {}
    middleware = RequestMiddleware(
        app,
        settings=runtime.settings.service,
        metrics=runtime.metrics,
        hooks=hooks,
        routes=Routes({*visited, *hooks, *(one.path_format for one in routes_of(app))}),
        tokens=tokens,
        senders={path: one.name for one in runtime.apps for path in one.app.hooks},
    )
    runtime.metrics.watch(lambda: middleware.in_flight, runtime.looks())
    return middleware


def _check_public_url(runtime: Runtime) -> None:
    """Refuse a public address that is none: every signature over it would be taken for a forged one."""
    url = runtime.settings.service.public_url
    if url and not PUBLIC.fullmatch(url):
        problem = "write https:// and the host, and no path"
        raise runtime.configuration.wrong(("service", "public_url"), problem)


def _check_proxies(runtime: Runtime) -> None:
    """Refuse a trusted proxy that is no address: the headers of none would be believed."""
    for one in runtime.settings.service.trusted_proxies:
        try:
            ip_network(one)
        except ValueError as error:
            raise runtime.configuration.wrong(("service", "trusted_proxies"), str(error)) from error


def _about(runtime: Runtime) -> APIRouter:
    """What the service tells about itself."""
    routes = APIRouter(tags=["service"])
    allowed = [] if runtime.settings.service.open_metrics else [Depends(asking("metrics"))]

    @routes.get(
        "/metrics",
        operation_id="metrics",
        response_class=Response,
        dependencies=allowed,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()},
    )
    async def metrics() -> Response:
        """Events, requests and inboxes, for Prometheus."""
        # An inbox is asked how much waits in it, which may take a moment.
        return Response(await asyncio.to_thread(runtime.metrics.text), media_type=CONTENT_TYPE)

    @routes.get(HOME, operation_id="list_problems")
    async def every_problem() -> dict[str, dict[str, Any]]:
        """Every problem that an answer may name as its type."""
        return published(*(one.problem_types for one in runtime.apps))

    return routes


def _pages(app: FastAPI, runtime: Runtime) -> APIRouter:
    """For whoever comes with a browser, or does not know where to begin."""
    routes = APIRouter(tags=["service"])
    html: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/html": {"schema": {"type": "string"}}}},
        303: {"description": "To the dashboard."},
    }
    reference = cache(lambda: pages.reference(app.openapi()))

    @routes.get("/", operation_id="home", responses=html)
    async def home(request: Request) -> Response:
        """What this is, and where to go from here, as JSON; a browser is led to the dashboard."""
        vary = {"Vary": "Accept"}
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse(_public_facts(runtime), headers=vary)
        if has_dashboard(runtime):
            return RedirectResponse(FORMS, 303, vary)
        return HTMLResponse(pages.home(_public_facts(runtime)), headers=pages.HEADERS | vary)

    @routes.get("/about", include_in_schema=False)
    async def about() -> Response:
        """What this is, and where to go from here, as a page."""
        return HTMLResponse(pages.home(_public_facts(runtime)), headers=pages.HEADERS)

    @routes.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """Every operation."""
        return HTMLResponse(reference(), headers=pages.HEADERS)

    return routes


def _public_facts(runtime: Runtime) -> dict[str, Any]:
    """What anybody may know: nothing that is set, and nothing that is kept."""
    return {
        "name": "semel",
        "version": version("semel"),
        "what": ABOUT,
        "links": {
            "reference": "/docs",
            "openapi": "/openapi.json",
            "live": "/health/live",
            "ready": "/health/ready",
            "problems": HOME,
            **({"dashboard": FORMS} if has_dashboard(runtime) else {}),
        },
        "apps": {one.name: list(one.app.hooks) for one in runtime.apps},
    }


def _mount_apps(app: FastAPI, runtime: Runtime) -> None:
    for mounted in runtime.apps:
        if isinstance(mounted.app, Shows):
            app.include_router(
                mounted.app.router(),
                prefix=f"/apps/{mounted.name}",
                tags=[mounted.name],
                dependencies=[Depends(asking("apps:read"))],
                responses=OF_APPS,
            )


# Problems


def _answer_with_problems(app: FastAPI) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        details = _problem(error, request)
        return Response(details.body(), details.status, dict(details.all_headers()))

    # The last is raised again after it was answered, and so is logged by the middleware.
    for kind in (ProblemError, errors.SemelError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


STATUS: Final[dict[int, ServiceProblemType]] = {404: "no-such-page", 405: "wrong-method"}


def _problem(error: Any, request: Request) -> ProblemDetails:
    match error:
        case ProblemError():
            return error.problem
        case errors.SemelError():
            return logged_problem(error, request.scope.get(ID, ""))
        case RequestValidationError() if _is_unread(error, request):
            return problem("not-json", "send it with the header -H 'Content-Type: application/json'")
        case RequestValidationError():
            return problem("invalid-request", "see errors", errors=[*map(_wrong, error.errors())])
        case HTTPException(__cause__=ProblemError() as cause):
            # FastAPI's word for whatever goes wrong while it reads a body.
            return cause.problem
        case HTTPException():
            return _of_an_app(error)
    return INTERNAL


def _is_unread(error: RequestValidationError, request: Request) -> bool:
    """Whether a body was not even looked into, since it does not say that it is JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    says = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    whole = [one for one in error.errors() if one["loc"] == ("body",) and one["type"] != "missing"]
    return bool(whole) and not says


def _of_an_app(error: HTTPException) -> ProblemDetails:
    """What an app's own routes refuse keeps its status."""
    kind = STATUS.get(error.status_code, "invalid-request" if error.status_code < 500 else "internal")
    headers = (error.headers or {}).items()
    return problem(kind, str(error.detail), headers, status=error.status_code)


def _wrong(one: dict[str, Any]) -> dict[str, str]:
    """What is wrong with a request; never what was sent, which may be anything."""
    reason = one["ctx"]["error"] if one["type"] == "json_invalid" else one["msg"]
    return {"at": ".".join(map(str, one["loc"])), "problem": str(reason)}
