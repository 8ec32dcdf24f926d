"""Nested data: every text in it masked, and what stands under a name that says what it is."""

from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from semel.errors import UsageError
from semel.redact.masks import ANY_MASK
from semel.redact.names import Named, named_by
from semel.redact.page import read

# Real payloads are a few levels deep; a hundred still leaves most of Python's stack to the caller.
_MAX_DEPTH: Final = 100

Text: TypeAlias = Callable[[str], str]


def masked(value: Any, text: Text, named: Named | None = None, depth: int = 0) -> Any:
    """A copy of the value with every text in it masked by `text`, or by `named` where its name tells."""
    if value is None or isinstance(value, bool | Enum | date | time | timedelta | UUID):
        return value
    if isinstance(value, str):
        return text(value) if named is None else _named_text(str.__str__(value), text, named)
    if isinstance(value, int | float | Decimal):
        told = named(_number_text(value)) if named else None
        return value if told is None else told
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    return _container(value, text, named, depth + 1)


def _named_text(value: str, text: Text, named: Named) -> str:
    if ANY_MASK.fullmatch(value.strip()):
        return value
    told = named(read(value, percent=True)[0])
    return text(value) if told is None else told


def _number_text(number: float | Decimal) -> str:
    if isinstance(number, int):
        return str(abs(number) % 10**20)  # Python refuses to write integers of thousands of digits
    if isinstance(number, float) and number.is_integer():
        return f"{number:.0f}"
    return str(number)


def _container(value: Any, text: Text, named: Named | None, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise UsageError(
            f"the data is nested more than {_MAX_DEPTH} levels deep, or contains itself: redact its parts"
        )
    if isinstance(value, dict):
        return _members(value, text, depth)
    for kind in (list, tuple, frozenset, set):
        if isinstance(value, kind):
            return kind([masked(one, text, named, depth) for one in value])
    return f"<{type(value).__name__}>"


def _members(value: dict[Any, Any], text: Text, depth: int) -> dict[Any, Any]:
    members: dict[Any, Any] = {}
    counts: dict[Any, int] = {}
    for name, one in value.items():
        written = given = _name(name, text)
        # Two names may have one mask, and neither value may be lost for it.
        while written in members:
            counts[given] = counts.get(given, 1) + 1
            written = f"{given} ({counts[given]})"
        members[written] = masked(one, text, named_by(name), depth)
    return members


def _name(name: Any, text: Text) -> Any:
    return f"<{type(name).__name__}>" if isinstance(name, bytes | tuple | frozenset) else masked(name, text)
