"""Reading a delivery that may be forged: whatever is odd about it is a BadSignature, and nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from semel.errors import BadSignature

Headers: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]
"""The headers of a request, as frameworks give them; a name may come more than once."""

# HubSpot, Stripe, Slack and the Standard Webhooks library all give a delivery this long. A moment ahead of
# our clock is refused as well: else whoever once got hold of one could keep it for later.
TOLERANCE: Final = 300

# Milliseconds have 13 digits until the year 2286.
MAX_DIGITS: Final = 13


@dataclass(frozen=True, repr=False)
class Delivery:
    """One request as it came."""

    headers: Headers
    body: bytes
    now: float
    method: str
    url: str

    def only(self, name: str) -> str:
        """The one header of that name, in whatever case."""
        found = values(self.headers, name)
        if not found:
            raise BadSignature(f"it has no {name} header")
        if len(found) > 1:
            # Which of the two counts is not ours to guess: somebody before us may have taken the other.
            raise BadSignature(f"it has {len(found)} {name} headers")
        return found[0]

    def check_moment(self, text: str, unit: int = 1) -> None:
        """Refuse a time of sending that is too far from now."""
        # int() would take signs, blanks, underscores and the digits of any script, and fail on 4,301 of them.
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
            raise BadSignature("its time of sending is not a plain number")
        # Written so that a clock which answers NaN refuses too.
        if not abs(self.now - int(text) / unit) <= TOLERANCE:
            raise BadSignature(f"it was sent more than {TOLERANCE} s from now, or one of the clocks is wrong")


@dataclass(frozen=True, repr=False)
class Notice:
    """One event of a genuine delivery, and the headers that it came with."""

    payload: Any
    headers: Headers

    def header(self, name: str) -> str | None:
        """The header of that name, in whatever case; None where there is none, or more than one."""
        found = values(self.headers, name)
        return found[0] if len(found) == 1 else None


def pairs(headers: Headers) -> Iterable[tuple[str, str]]:
    """Every header, with its name as it came."""
    return headers.items() if isinstance(headers, Mapping) else headers


def values(headers: Headers, name: str) -> list[str]:
    """Every value of the header of that name."""
    wanted = name.lower()
    return [value for key, value in pairs(headers) if key.lower() == wanted]
