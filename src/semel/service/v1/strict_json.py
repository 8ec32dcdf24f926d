"""Strict JSON: a body that two readers could read differently is refused, as FastAPI would not."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from semel.service.tokens import BEARER


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
