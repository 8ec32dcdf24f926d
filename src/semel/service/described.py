"""The OpenAPI document: what FastAPI makes of the routes, and what it does not know."""

from typing import Any, Final

from fastapi import FastAPI

from semel.service.house import House
from semel.service.problems import Kind
from semel.service.v1.openapi import SCHEMA, problems

METHODS: Final = frozenset({"get", "put", "post", "delete"})
OF_HOOKS: Final[tuple[Kind, ...]] = (
    "invalid-request",
    "not-authenticated",
    "body-too-large",
    "internal",
    "unavailable",
    "overloaded",
)


def described(app: FastAPI, house: House) -> None:
    """Let the application describe its webhooks and its problems too."""
    plain, made = app.openapi, list[dict[str, Any]]()

    def openapi() -> dict[str, Any]:
        if not made:
            made.append(_described(plain(), house))
        return made[0]

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's own docs do it


def _described(document: dict[str, Any], house: House) -> dict[str, Any]:
    for path in document["paths"].values():
        for method in METHODS & path.keys():
            _without_fastapis_own(path[method]["responses"])
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = SCHEMA
    for mounted in house.apps:
        for path in mounted.app.hooks:
            document["paths"][path] = {"post": _hook(mounted.name, path)}
    return document


def _without_fastapis_own(responses: dict[str, Any]) -> None:
    """Drop the answer that FastAPI gives to what is not valid: here that is a problem, and has a 400."""
    content = responses.get("422", {}).get("content", {})
    if "HTTPValidationError" in str(content.get("application/json", "")):
        content.pop("application/json")
        if not content:
            del responses["422"]


def _hook(app: str, path: str) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "200": {
            "description": "Accepted.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    }
    answers |= {str(status): one for status, one in problems(common=OF_HOOKS).items()}
    return {
        "tags": [app],
        "summary": f"Webhooks for {app}",
        "description": "Deliveries prove who sent them by their signature; what they hold is the sender's.",
        "operationId": f"hook{path.replace('/', '_').replace('-', '_')}",
        "requestBody": {"required": True, "content": {"application/json": {"schema": {}}}},
        "responses": answers,
        "security": [],
    }
