"""Times as operators write them, on the command line and in the dashboard alike."""

import re
from datetime import UTC, datetime
from typing import Final

from semel.errors import InvalidOption

UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
AGO: Final = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?) *({'|'.join(UNITS)})(?: *ago)?")


def parse_time(text: str, now: float) -> float:
    """Parse a time: "1.5h" is that long before `now`, and a date is in UTC unless it names a zone."""
    text = text.strip()
    if ago := AGO.fullmatch(text):
        return now - float(ago[1]) * UNITS[ago[2]]
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidOption(
            f'cannot parse "{text}" as a time: write 30min, 1.5h or 1w for that long ago, '
            "or 2026-01-31 or 2026-01-31T14:00Z"
        ) from error
