"""A search as the address bar has it: every field by its name, moments as people write them."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from semel.core.lifecycle import Status
from semel.core.policy import check_word
from semel.errors import InvalidOption
from semel.ops.model import Search, SortOrder

AGO: Final = re.compile(r"(\d{1,9}) *(s|min|m|h|d|w)")
UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
WORDS: Final = ("prefix", "error", "worker", "subject", "digest")
FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(Search))


def asked(query: Mapping[str, str]) -> dict[str, str]:
    """What of a query is about a search, without what was left empty."""
    return {name: query[name].strip() for name in FIELDS if query.get(name, "").strip()}


def search_of(fields: Mapping[str, str], now: float) -> Search:
    """The search that these fields ask for."""
    wanted: dict[str, Any] = {name: fields[name] for name in WORDS if name in fields}
    if "status" in fields:
        wanted["status"] = _status(fields["status"])
    for name in {"since", "until"} & fields.keys():
        wanted[name] = moment_in(fields[name], now)
    if "order" in fields:
        check_word("order", fields["order"], SortOrder)
        wanted["order"] = fields["order"]
    return Search(in_doubt="in_doubt" in fields, **wanted)


def moment_in(text: str, now: float) -> float:
    """A moment: "2h" ago, or a date with or without a time, in UTC unless it says otherwise."""
    if ago := AGO.fullmatch(text):
        return now - int(ago[1]) * UNITS[ago[2]]
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidOption(
            f"{text!r} is no moment: write 15m, 2h or 3d for so long ago, or 2026-01-31 14:00 in UTC"
        ) from error


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError as error:
        raise InvalidOption(f"{text!r} is no status: one of {', '.join(Status)}") from error
