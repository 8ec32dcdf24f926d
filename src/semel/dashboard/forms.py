"""What an operator types into a form, as values."""

from typing import Any, Final

import msgspec

from semel.dashboard.visits import Visit
from semel.errors import InvalidOption

# Longer than anybody asks a ledger to remember.
MOST_DAYS: Final = 3650
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


def days_in(text: str) -> float:
    """A number of days for which a record is kept."""
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= MOST_DAYS:
        raise InvalidOption(f"a record is kept for a number of days, at most {MOST_DAYS:,}, not {text!r}")
    return days


def moment_in(text: str) -> float:
    """The moment up to which something was shown, as the page wrote it into its form."""
    try:
        moment = float(text)
    except ValueError:
        moment = -1.0
    if not 0 <= moment <= LAST_MOMENT:
        raise InvalidOption("the form does not say what was shown: look again")
    return moment
