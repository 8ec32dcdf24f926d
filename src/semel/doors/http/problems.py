"""Problems by RFC 9457: how a refusal is written, and when its client may come back.

Every refusal over HTTP is made here: those of the doors, of webhooks, and of the service.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from semel import errors

MEDIA_TYPE: Final = "application/problem+json"

N = TypeVar("N", bound=str)

ProblemTypes: TypeAlias = Mapping[str, tuple[int, str]]
"""Problems by name, each with its status and title."""

# The errors of a store after which the same request may be sent again.
UNAVAILABLE: Final = (errors.StoreUnavailable, errors.StoreThrottled, errors.StoreOutcomeUnknown)


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One problem, as its client is told it; without a type it says no more than its status."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    more: dict[str, Any] = {}
    """Further members of its body."""

    def body(self) -> bytes:
        """Its body as JSON."""
        members = {"type": self.type, "title": self.title, "status": self.status}
        if self.detail is not None:
            members["detail"] = self.detail
        return msgspec.json.encode(members | self.more)

    def all_headers(self) -> list[tuple[str, str]]:
        """Its headers, and those of every problem; without the length."""
        return [("Content-Type", MEDIA_TYPE), ("Cache-Control", "no-store"), *self.headers]


def problem_details(
    types: Mapping[N, tuple[int, str]],
    name: N,
    base: str,
    detail: str,
    headers: Iterable[tuple[str, str]] = (),
    *,
    status: int | None = None,
    **more: Any,
) -> ProblemDetails:
    """A problem of one of these types, which are published at `base`."""
    usual, title = types[name]
    return ProblemDetails(
        type=f"{base}#{name}",
        title=title,
        status=usual if status is None else status,
        detail=detail,
        headers=tuple(headers),
        more=more,
    )


def retry_after(seconds: float) -> tuple[str, str]:
    """The header that asks a client to come back in so many seconds."""
    return "Retry-After", str(max(1, math.ceil(seconds)))


def problem_schema(title: str, description: str, **more: Any) -> dict[str, Any]:
    """The JSON schema of problems, with these further members."""
    return {
        "type": "object",
        "title": title,
        "description": description,
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "format": "uri-reference", "description": "Which problem it is."},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "What is wrong this time."},
            **more,
        },
    }
