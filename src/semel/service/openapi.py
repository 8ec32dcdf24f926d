"""The OpenAPI document: what FastAPI makes of the routes, and what it does not know."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI, routing

from semel.doors.http.problems import MEDIA_TYPE, problem_schema
from semel.service.middleware import HEALTH
from semel.service.problems import PROBLEMS, ServiceProblemType
from semel.service.runtime import Runtime

SCHEMA: Final = problem_schema(
    "Problem",
    "A problem by RFC 9457: its type is stable, and listed at /problems with what else it has.",
    retry_after={"type": "number", "description": "In so many seconds it may be gone."},
)
PROBLEM: Final = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
# What may be said to any request, before an operation sees it or in its place.
OF_ALL: Final[tuple[ServiceProblemType, ...]] = (
    "invalid-request",
    "body-too-large",
    "internal",
    "overloaded",
    "timed-out",
    "stopping",
)
# To every operation of the ledger.
COMMON: Final[tuple[ServiceProblemType, ...]] = (*OF_ALL, "not-authenticated", "not-permitted", "unavailable")
# To one that has a body; and to whoever watches over the service, who is never turned away.
OF_BODIES: Final[tuple[ServiceProblemType, ...]] = ("body-too-slow", "not-json")
OF_HEALTH: Final[tuple[ServiceProblemType, ...]] = ("internal", "unavailable", "timed-out", "stopping")
OF_HOOKS: Final[tuple[ServiceProblemType, ...]] = (
    *OF_ALL,
    "not-authenticated",
    "body-too-slow",
    "unavailable",
)


def problems(
    *kinds: ServiceProblemType, common: tuple[ServiceProblemType, ...] = COMMON
) -> dict[int | str, dict[str, Any]]:
    """The answers of an operation that may have these problems, and those that every one may have."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in (*common, *kinds):
        status, title = PROBLEMS[kind]
        one = responses.setdefault(status, {"description": "", "content": PROBLEM})
        one["description"] = f"{one['description']}\n\n`{kind}`: {title}.".strip()
        if status == 401:
            one["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
        if status in (408, 409, 503):
            one["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return responses


def routes_of(app: FastAPI) -> Iterator[Any]:
    """The routes of an application, each with its whole path."""
    # Later versions of FastAPI keep the routers that are included apart.
    every = getattr(routing, "iter_route_contexts", iter)
    return (one for one in every(app.routes) if getattr(one, "methods", None))


def describe_service(app: FastAPI, runtime: Runtime) -> None:
    """Let the application describe its webhooks and its problems too."""
    plain, made = app.openapi, list[dict[str, Any]]()

    def openapi() -> dict[str, Any]:
        if not made:
            made.append(_described(plain(), runtime))
        return made[0]

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's own docs do it


def _described(document: dict[str, Any], runtime: Runtime) -> dict[str, Any]:
    for path, item in document["paths"].items():
        for operation in item.values():
            _without_fastapis_own(operation["responses"])
            _add(operation, OF_HEALTH if path.startswith(HEALTH) else OF_ALL)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = SCHEMA
    for mounted in runtime.apps:
        for path, hook in mounted.app.hooks.items():
            document["paths"][path] = {"post": _hook(mounted.name, path, getattr(hook, "answers", {}))}
    return document


def _add(operation: dict[str, Any], kinds: tuple[ServiceProblemType, ...]) -> None:
    """Add the problems that an operation does not name by itself."""
    if "requestBody" in operation:
        kinds = (*kinds, *OF_BODIES)
    for status, one in problems(common=kinds).items():
        operation["responses"].setdefault(str(status), one)


def _without_fastapis_own(responses: dict[str, Any]) -> None:
    """Drop the answer that FastAPI gives to what is not valid: here that is a problem, and has a 400."""
    content = responses.get("422", {}).get("content", {})
    if "HTTPValidationError" in str(content.get("application/json", "")):
        content.pop("application/json")
        if not content:
            del responses["422"]


def _hook(app: str, path: str, own: Mapping[int, str]) -> dict[str, Any]:
    """What a hook answers: `own` is what it answers beside what they all do."""
    answers: dict[str, Any] = {
        "200": {
            "description": "Accepted.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    }
    answers |= {str(status): one for status, one in problems(common=OF_HOOKS).items()}
    for status, title in own.items():
        answers.setdefault(str(status), {"description": f"{title}.", "content": PROBLEM})
    return {
        "tags": [app],
        "summary": f"Webhooks for {app}",
        "description": "Deliveries prove who sent them by their signature; what they hold is the sender's. A "
        "problem of the type `about:blank` says no more than its status: no forger learns how far he got.",
        "operationId": f"hook{path.replace('/', '_').replace('-', '_')}",
        "requestBody": {"required": True, "content": {"application/json": {"schema": {}}}},
        "responses": answers,
        "security": [],
    }
