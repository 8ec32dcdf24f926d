"""Where a long text may be cut: at no place that may be inside of what has to be masked."""

import re
from typing import Final

from semel.redact.masks import MASK
from semel.redact.page import CJK_MARKS

# No number or address goes on after a comma and a blank, nor with a word of four letters after a blank.
_PLACE: Final = re.compile(rf"[,;](?=\s)|[{CJK_MARKS}]|\s(?=[^\W\d_]{{4}})")

# But a name in quotes does, as in "ann b"@example.com.
_END_OF_QUOTED: Final = re.compile(r'(?:"|%22).{0,3}(?:[@\ufe6b\uff20]|%40)')
_QUOTED_LENGTH: Final = 3 * 130

# Most texts have such a place in their last lines, and no name in quotes there.
_NEAR: Final = 500
_MOST_TRIED: Final = 8


def beginning(text: str, most: int) -> str:
    """The beginning of a text in at most so many characters; instead of what it leaves out, a mask."""
    if len(text) <= most:
        return text
    end = most - len(MASK) - 1
    for start in (max(end - _NEAR, 0), 0):
        places = [found.end() for found in _PLACE.finditer(text, start, max(end, 0))]
        for place in reversed(places[-_MOST_TRIED:]):
            if not _is_quoted(text, place):
                return f"{text[:place].rstrip()} {MASK}"
    return MASK


def _is_quoted(text: str, place: int) -> bool:
    return _END_OF_QUOTED.search(text, place, place + _QUOTED_LENGTH) is not None
