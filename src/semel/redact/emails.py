"""E-mail addresses."""

import re
from typing import Final

from semel.redact.masks import EMAIL_MASK
from semel.redact.page import CJK_MARKS, QUOTE_MARKS, TAKEN, Mark

_LOCAL: Final = rf"[^\s@<>()\[\],;:\"\\{QUOTE_MARKS}{CJK_MARKS}{TAKEN}]"
_LABEL: Final = rf"[^\s!-,./:-@\[-^`{{-\x7f\u2019{QUOTE_MARKS}{CJK_MARKS}{TAKEN}]"
_EMAIL: Final = re.compile(
    rf'(?:"(?:[^"\\\r\n{TAKEN}]|\\.){{1,128}}"|(?<!{_LOCAL}){_LOCAL}++)@'
    rf"(?:\[[0-9A-Za-z:.]+\]|{_LABEL}++(?P<top>(?:\.{_LABEL}++)+))(?:@{_LABEL}++(?:\.{_LABEL}++)*)*"
)
# A top-level domain begins with a letter, and the version in "react@18.2.0" does not.
_TOP_LEVEL: Final = re.compile(r"\.[^\W\d_][^.]")

# What stands before an address without being part of it: a quote, or a form's "email=".
_BEFORE_EMAIL: Final = re.compile(
    r"['*`]+|(?:.*&)?(?:\w+[_.-])?(?:e-?mail|from|to|cc|user(?:name)?|login|recipient|sender|address)=",
    re.IGNORECASE,
)
_BEFORE_EMAIL_LENGTH: Final = 100
_QUERY: Final = re.compile(rf'\?[^\s<>"{TAKEN}]*')


def emails(plain: str) -> list[Mark]:
    """Every e-mail address, to be masked whole."""
    if "@" not in plain:
        return []
    marks: list[Mark] = []
    for found in _EMAIL.finditer(plain):
        start, end = found.span()
        # The query of a link to write to somebody may hold more addresses.
        if marks and start < marks[-1][1]:
            continue
        if found["top"] is not None and not _TOP_LEVEL.search(found["top"]):
            continue
        at = plain.index("@", start)
        if before := _BEFORE_EMAIL.match(plain, start, min(at, start + _BEFORE_EMAIL_LENGTH)):
            start = before.end()
        if plain[max(start - 7, 0) : start].lower() == "mailto:" and (query := _QUERY.match(plain, end)):
            end = query.end()
        marks.append((start, end, EMAIL_MASK))
    return marks
