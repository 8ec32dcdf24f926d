"""A search as the address bar has it: every field by its name, moments as people write them."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from semel.core.lifecycle import Status
from semel.core.policy import check_word
from semel.errors import InvalidOption
from semel.ops.model import Search, SortOrder
from semel.ops.times import parse_time

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
        wanted[name] = parse_time(fields[name], now)
    if "order" in fields:
        check_word("order", fields["order"], SortOrder)
        wanted["order"] = fields["order"]
    return Search(in_doubt="in_doubt" in fields, **wanted)


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError as error:
        raise InvalidOption(f"{text!r} is no status: one of {', '.join(Status)}") from error
