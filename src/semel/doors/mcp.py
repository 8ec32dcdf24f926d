"""MCP: `@tool(server, s, "charge:{order_id}")` makes a tool whose calls have their effect once.

An agent that lost an answer calls again, and gets the same one. The tool tells clients that this is safe (its
`idempotentHint`), and what the ledger refuses is told to the agent in words that it can act on.
"""

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import Any, Final, ParamSpec, TypeVar, Unpack

from semel import errors
from semel.connect import Semel
from semel.core.policy import Options
from semel.core.runtime import require
from semel.doors.tasks import translated
from semel.model import MISSING
from semel.once import ALL, All, KeyMaker, PayloadNames

require("mcp", "mcp")  # which says how to install it

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

__all__ = ["explained", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

# An agent is told sooner to come again than a person would be: it is not patient, and pays for waiting.
WAIT_SECONDS: Final = 1.0

# An id that a call has, and not what it is about.
_CALL_ID: Final = re.compile(r"(?:tool_?)?(?:call|invocation|request|span|trace)_?id", re.IGNORECASE)

SAME: Final = "with the same arguments, and do not try another way"


def tool(
    server: MCPServer,
    s: Semel,
    template: str | None = None,
    /,
    *,
    key: KeyMaker | None = None,
    fingerprint: PayloadNames = ALL,
    returns: Any = MISSING,
    registered: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a tool of a server, with the key and the options of `s.once`.

    Without a key, the tool's name and arguments are the key. `registered` is what `server.tool` takes, such
    as `{"title": "Charge an order"}`. What MCP injects is no part of the payload.
    """
    options.setdefault("wait", WAIT_SECONDS)
    through = s.through("mcp")

    def register(function: Callable[P, R]) -> Callable[P, R]:
        if key is None:
            _warn_of_call_ids(template, function)
        payload = _sent(function) if isinstance(fingerprint, All) else fingerprint
        once = through.once(template, key=key, fingerprint=payload, returns=returns, **options)
        protected = translated(once(function), explained)
        server.tool(**_with_hint(registered or {}))(protected)
        return protected

    return register


@contextmanager
def explained() -> Iterator[None]:
    """What the ledger refuses, as a `ToolError` in words for an agent."""
    try:
        yield
    except errors.SemelError as error:
        raise ToolError(_words(error)) from error


def _words(error: errors.SemelError) -> str:
    match error:
        case errors.InProgress(retry_after=left):
            return f"This is being done right now. Call again in {ceil(left)} seconds {SAME}."
        case errors.PayloadChanged():
            return (
                "This was done before, with other arguments, and nothing was done now. Call with the "
                "arguments of the first time to get its result."
            )
        case errors.FailedBefore():
            return f"This failed for good, and is not tried again: {error.error_message}"
        case errors.OutcomeUnknown():
            return "Nobody knows whether this was done, and a person has to find out. Do not do it again."
        case errors.ResultNotKept() | errors.ResultUnreadable():
            return "This was done before, and its result was not kept. Do not do it again."
        case errors.UsageError():
            return f"These arguments cannot be used: {error}"
    return f"The ledger cannot be asked now. Call again in a minute {SAME}."


def _with_hint(registered: Mapping[str, Any]) -> dict[str, Any]:
    """What the server is told of a tool: that calling it again is safe, and what its owner tells."""
    given = registered.get("annotations") or ToolAnnotations()
    return {**registered, "annotations": given.model_copy(update={"idempotent_hint": True})}


def _sent(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters that come with a call."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return tuple(one.name for one in parameters if not _is_context(one.annotation))


def _is_context(annotation: Any) -> bool:
    kind = getattr(annotation, "__origin__", annotation)
    return inspect.isclass(kind) and issubclass(kind, Context)


def _warn_of_call_ids(template: str | None, function: Callable[..., Any]) -> None:
    """Warn of a key that is new with every call, which protects nothing."""
    fields = inspect.signature(function).parameters if template is None else re.findall(r"{(.*?)}", template)
    for name in re.findall(r"\w+", " ".join(fields)):
        if _CALL_ID.fullmatch(name):
            warnings.warn(
                f"{name!r} is part of the key of {function.__qualname__}, and an agent that calls again has "
                "a new one: name what is to happen once, such as the order",
                stacklevel=3,
            )
