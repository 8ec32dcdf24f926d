"""What FastAPI does not know by itself: strict JSON, and what an operation's problems look like."""

import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute

from semel.doors.http.problems import MEDIA_TYPE, problem_schema
from semel.service.problems import PROBLEMS, ServiceProblemType
from semel.service.tokens import BEARER

SCHEMA: Final = problem_schema(
    "Problem",
    "A problem by RFC 9457: its type is stable, and listed at /problems with what else it has.",
    retry_after={"type": "number", "description": "In so many seconds it may be gone."},
)
PROBLEM: Final = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
COMMON: Final[tuple[ServiceProblemType, ...]] = (
    "invalid-request",
    "not-authenticated",
    "not-permitted",
    "body-too-large",
    "internal",
    "unavailable",
    "overloaded",
    "timed-out",
    "stopping",
)


def problems(
    *kinds: ServiceProblemType, common: tuple[ServiceProblemType, ...] = COMMON
) -> dict[int | str, dict[str, Any]]:
    """The answers of an operation that may have these problems, and those that every one may have."""
    told: dict[int | str, dict[str, Any]] = {}
    for kind in (*common, *kinds):
        status, title = PROBLEMS[kind]
        one = told.setdefault(status, {"description": "", "content": PROBLEM})
        one["description"] = f"{one['description']}\n\n`{kind}`: {title}.".strip()
        if status == 401:
            one["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
        if status in (408, 409, 503):
            one["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return told


class StrictRequest(Request):
    """A request whose JSON is refused where two readers could read it differently."""

    async def json(self) -> Any:
        """The body."""
        if not hasattr(self, "_json"):
            try:
                self._json = json.loads(
                    await self.body(), object_pairs_hook=_object, parse_constant=_constant
                )
            except (RecursionError, UnicodeDecodeError) as error:
                raise json.JSONDecodeError(type(error).__name__, "", 0) from error
        return self._json


class StrictRoute(APIRoute):
    """A route whose requests are strict."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of a request."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            # FastAPI reads the body before it asks for the right to send one.
            request.app.state.tokens.recognise(await BEARER(request))
            return await handler(StrictRequest(request.scope, request.receive))

        return handle


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise json.JSONDecodeError("a name occurs twice in one object", "", 0)
    return made


def _constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is no number of JSON", "", 0)
