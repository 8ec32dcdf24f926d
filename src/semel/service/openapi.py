"""The OpenAPI document: what FastAPI makes of the routes, and what it does not know."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from fastapi import FastAPI, routing

from semel.doors.http.problems import MEDIA_TYPE, problem_schema
from semel.service.middleware import HEALTH
from semel.service.problems import PROBLEMS, RETRY_AFTER, ServiceProblemType, problem
from semel.service.runtime import Runtime

TAGS: Final = [
    {"name": "claims", "description": "Claim a key, do its work, and say what came of it."},
    {"name": "records", "description": "What is known about a key."},
    {"name": "marks", "description": "Was this seen before?"},
    {"name": "counters", "description": "So many in a period, each counted once."},
    {"name": "gates", "description": "May this happen now?"},
    {"name": "switches", "description": "What stops work at once, for every tenant."},
    {"name": "operators", "description": "For whoever is on call: search, explain, and put right."},
    {"name": "health", "description": "For whoever watches over the service."},
    {"name": "service", "description": "What the service tells about itself."},
]
# What some problems tell besides, and which.
MEMBERS: Final[dict[str, dict[str, Any]]] = {
    "retry_after": {"type": "number", "description": "With Retry-After: in so many seconds it may be gone."},
    "attempt": {"type": "integer", "description": "Of a claim that is refused: the attempt in its way."},
    "error": {
        "$ref": "#/components/schemas/RecordedError",
        "description": "Of `failed-before`: the stored error.",
    },
    "errors": {
        "type": "array",
        "description": "Of `invalid-request`: what is wrong, and where.",
        "items": {"$ref": "#/components/schemas/FieldProblem"},
    },
    "used": {"type": "integer", "description": "Of `cap-reached`: how much was counted."},
    "cap": {"type": "integer", "description": "Of `cap-reached`: how much there is room for."},
    "resets_at": {
        "type": "string",
        "format": "date-time",
        "description": "Of `cap-reached`: when the next period begins.",
    },
    "before": {"type": "string", "description": "Of `action-refused`: how the record stands."},
    "scope": {"type": "string", "description": "Of `not-permitted`: the scope that the token lacks."},
}
SCHEMA: Final = problem_schema(
    "Problem",
    "A problem by RFC 9457: its type is stable, and listed at /problems. Later versions have more types.",
    **MEMBERS,
)
HOOK_SCHEMA: Final[dict[str, Any]] = SCHEMA | {
    "description": "A problem by RFC 9457, which may tell a stranger no more than its status.",
    "required": ["type", "title", "status"],
}
FIELD_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "What is wrong with a request in one place.",
    "required": ["at", "problem"],
    "properties": {
        "at": {"type": "string", "description": "Where it is.", "examples": ["body.lease"]},
        "problem": {"type": "string", "description": "What is wrong there."},
    },
}
PROBLEM: Final = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
CHALLENGE: Final[dict[str, Any]] = {"description": "Which token is asked for.", "schema": {"type": "string"}}
COME_BACK: Final[dict[str, Any]] = {
    "description": "In how many seconds to send the same request again; of a 409 only with `in-progress`.",
    "schema": {"type": "integer", "minimum": 1},
}
# What generators are told of a number's width, since they take all for 32 bits.
WIDTHS: Final = {"integer": "int64", "number": "double"}
FASTAPIS_OWN: Final = "Successful Response"
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
        one = responses.setdefault(status, {"description": "", "content": _problem_content()})
        one["description"] = f"{one['description']}\n\n`{kind}`: {title}.".strip()
        one["content"][MEDIA_TYPE]["examples"][kind] = {"$ref": f"#/components/examples/{kind}"}
        if status in (401, 403):
            one["headers"] = {"WWW-Authenticate": CHALLENGE}
        if status in (408, 409, 503):
            one["headers"] = {"Retry-After": COME_BACK}
    return responses


def _problem_content() -> dict[str, dict[str, Any]]:
    return {MEDIA_TYPE: PROBLEM[MEDIA_TYPE] | {"examples": {}}}


def _example(kind: ServiceProblemType) -> dict[str, Any]:
    """A problem as a client is told it."""
    more: dict[str, Any] = {"retry_after": RETRY_AFTER} if PROBLEMS[kind][0] == 503 else {}
    example = problem(kind, "what is wrong this time", **more)
    return {"summary": example.title, "value": msgspec.json.decode(example.body())}


def operation_id(route: Any) -> str:
    """The name of an operation that has none of its own, as an application's: its method and its path."""
    return "_".join([min(route.methods).lower(), *re.findall(r"\w+", route.path_format)])


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
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= {"Problem": SCHEMA, "FieldProblem": FIELD_SCHEMA}
    document["components"]["examples"] = {kind: _example(kind) for kind in PROBLEMS}
    for path, item in document["paths"].items():
        for operation in item.values():
            _without_fastapis_own(operation["responses"])
            _add(operation, OF_HEALTH if path.startswith(HEALTH) else OF_ALL)
            _name(operation, schemas)
            for one in _inline(operation):
                one["schema"] = _plain(one["schema"])
            for one in operation.get("parameters", []):
                one.setdefault("description", one["schema"].get("description", ""))
    for mounted in runtime.apps:
        document["tags"].append({"name": mounted.name, "description": f"The application {mounted.name}."})
        for path, hook in mounted.app.hooks.items():
            schemas["HookProblem"] = HOOK_SCHEMA
            document["paths"][path] = {"post": _hook(mounted.name, path, getattr(hook, "answers", {}))}
    for name, schema in schemas.items():
        schemas[name] = _plain(schema) | {"title": name}
    return document


def _add(operation: dict[str, Any], kinds: tuple[ServiceProblemType, ...]) -> None:
    """Add the problems that an operation does not name by itself."""
    if "requestBody" in operation:
        kinds = (*kinds, *OF_BODIES)
    for status, one in problems(common=kinds).items():
        operation["responses"].setdefault(str(status), one)


def _name(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Let docstrings say what an operation does and what it answers, where FastAPI has made something up."""
    # Its own summary is the function's name, in title case.
    if operation.get("description") and operation["summary"].istitle():
        operation["summary"], _, rest = operation.pop("description").partition("\n\n")
        if rest:
            operation["description"] = rest
    for one in operation["responses"].values():
        schema = one.get("content", {}).get("application/json", {}).get("schema", {})
        if one["description"] == FASTAPIS_OWN:
            kind = schema.get("$ref", "").rpartition("/")[2]
            one["description"] = schemas.get(kind, {}).get("description", "The answer.")
    operation["responses"] = dict(sorted(operation["responses"].items()))


def _inline(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Whatever has a schema in an operation."""
    yield from operation.get("parameters", [])
    for body in (operation.get("requestBody", {}), *operation["responses"].values()):
        for kind, one in body.get("content", {}).items():
            # All problems share one.
            if kind != MEDIA_TYPE and "schema" in one:
                yield one


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema as generators of clients need it: with the width of numbers, which they take for 32 bits."""
    plain = {name: value for name, value in schema.items() if name != "title"}
    width = WIDTHS.get(plain.get("type", ""))
    if width is not None:
        plain.setdefault("format", width)
    if "properties" in plain:
        plain["properties"] = {name: _plain(one) for name, one in plain["properties"].items()}
    for name in ("items", "additionalProperties"):
        if isinstance(plain.get(name), dict):
            plain[name] = _plain(plain[name])
    for name in ("anyOf", "oneOf", "allOf"):
        if name in plain:
            plain[name] = [_plain(one) for one in plain[name]]
    for option in plain.get("anyOf", []):
        if "description" in option:
            plain.setdefault("description", option.pop("description"))
    return plain


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
    for one in answers.values():
        if MEDIA_TYPE in one["content"]:
            one["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/HookProblem"}}}
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
