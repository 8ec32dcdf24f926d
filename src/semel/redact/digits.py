"""Digits: where there are some, and when they are a date."""

import re
from typing import Final

DIGITS: Final = re.compile(r"\d+")

# Quicker than the rules for long numbers, and finds more: where it finds none, they need not look.
MANY_DIGITS: Final = re.compile(r"\d[\d \t().\-/+]{5,}\d")

DAY: Final = r"(?:0?[1-9]|[12]\d|3[01])"
MONTH: Final = r"(?:0?[1-9]|1[0-2])"
DATE: Final = rf"(?:19|20)\d\d(?P<sep>[-./]){MONTH}(?P=sep){DAY}"
DATE_ONLY: Final = re.compile(DATE)


def digits_of(text: str) -> str:
    """The digits alone."""
    return "".join(DIGITS.findall(text))
