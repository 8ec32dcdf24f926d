"""The request's own words: `Idempotency-Key` and `Idempotency-Expiry-Seconds`.

The key is a structured field of type String (RFC 9651), as in `Idempotency-Key: "8e03978e-40d5"`. Many
clients leave the quotes out, and mean the same key.
"""

import re
from typing import Final

KEY: Final = "Idempotency-Key"
EXPIRY: Final = "Idempotency-Expiry-Seconds"

# A String, and the parameters that any item may have: they are read over, as the draft gives them no meaning.
_STRING: Final = r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"'
_PARAMETERS: Final = (
    r'(?: *; *[a-z*][a-z0-9_.*-]*(?:=(?:%?"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"|[^\s";,]+))?)*'
)
_QUOTED: Final = re.compile(_STRING + _PARAMETERS)

# What nobody can take for anything else: no quote, comma, semicolon, backslash or blank.
_BARE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+")

# More bytes than anybody has, and fewer digits than take long to read.
MOST_DIGITS: Final = 18

_SECONDS: Final = re.compile(r"[0-9]{1,10}")


class BadField(ValueError):
    """A header field that cannot be taken for what it should be; its text says why."""


def read_key(value: str, *, strict: bool, longest: int) -> str:
    """The key inside a field's value."""
    value = value.strip(" \t")
    # Before anything is matched: a field of megabytes is not worth reading.
    if len(value) > 4 * longest + 64:
        raise BadField(f"it has at most {longest} characters")
    key = _bare(value) if not value.startswith('"') else _quoted(value)
    if strict and not value.startswith('"'):
        raise BadField('it stands in double quotes, as in Idempotency-Key: "8e03978e-40d5"')
    if not key:
        raise BadField("it has at least one character")
    if len(key) > longest:
        raise BadField(f"it has at most {longest} characters")
    return key


def _quoted(value: str) -> str:
    found = _QUOTED.fullmatch(value)
    if found is None:
        raise BadField("it is one string of printable ASCII characters in double quotes")
    key: str = found[1]
    return re.sub(r'\\(["\\])', r"\1", key) if "\\" in key else key


def _bare(value: str) -> str:
    if value and not _BARE.fullmatch(value):
        raise BadField("without quotes it is printable ASCII without blanks, commas, semicolons and quotes")
    return value


def read_length(value: str | None) -> int | None:
    """A Content-Length; None where there is none that could be meant. Past any room it is merely large."""
    if value is None or not (value.isascii() and value.isdigit()):
        return None
    if len(value) <= MOST_DIGITS:
        return int(value)
    value = value.lstrip("0")
    return int(value or 0) if len(value) <= MOST_DIGITS else 10**MOST_DIGITS


def read_seconds(value: str, shortest: float, longest: float) -> float:
    """How long the client asks to be remembered, within what the server allows."""
    value = value.strip(" \t")
    if not _SECONDS.fullmatch(value) or not shortest <= int(value) <= longest:
        raise BadField(f"it is a whole number from {shortest:.0f} to {longest:.0f}")
    return float(value)
