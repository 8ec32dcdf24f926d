"""What an operator types into a form, as values."""

from typing import Any, Final

import msgspec

from semel.core.policy import DAY
from semel.dashboard.visits import Visit
from semel.errors import InvalidOption
from semel.ops.model import LONGEST_TTL

# A moment in a form is one that a date can be written for.
LAST_MOMENT: Final = 253_402_300_799.0


def name_of(visit: Visit) -> str:
    """Who fills in the form."""
    return "" if visit.user is None else visit.user.name


def result_in(text: str) -> Any:
    """A result as an operator typed it; nothing typed is null."""
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidOption(f'the result is JSON, such as {{"id": 7}}, "text" or null: {error}') from error


def ttl_in(text: str) -> float | None:
    """How long a record is kept, from a number of days; None for the default of all actions."""
    if not text.strip():
        return None
    try:
        ttl = float(text) * DAY
    except ValueError:
        ttl = 0.0
    if not 0 < ttl <= LONGEST_TTL:
        most = f"{LONGEST_TTL / DAY:,.0f}"
        raise InvalidOption(f"a record is kept for a number of days, at most {most}, not {text!r}")
    return ttl


def moment_in(text: str) -> float:
    """The moment up to which something was shown, as the page wrote it into its form."""
    try:
        moment = float(text)
    except ValueError:
        moment = -1.0
    if not 0 <= moment <= LAST_MOMENT:
        raise InvalidOption("the form does not say what was shown: look again")
    return moment
