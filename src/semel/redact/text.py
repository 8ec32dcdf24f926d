"""A text that is being masked: the masks, the text as the rules read it, and where it may be cut."""

import re
import string
import unicodedata
from collections.abc import Callable
from typing import Final, TypeAlias

MASK: Final = "***"
"""What stands in place of a credential, a link or a tracking number."""
EMAIL_MASK: Final = "***@***"
"""What stands in place of an e-mail address."""

# Masks that must not be read as numbers or addresses again.
KEPT: Final = re.compile(r"\*{3}(?:(?:-\*{3}-)?\d{4}(?!\d)|@\*{3})")

ANY_MASK: Final = re.compile(rf"{KEPT.pattern}|\*{{3}}")

TextSpan: TypeAlias = tuple[int, int]
Mark: TypeAlias = tuple[int, int, str]
MaskRule: TypeAlias = Callable[[str], list[Mark]]

# What has been masked or set aside reads as this: no letter, no digit, and nothing that joins two.
TAKEN: Final = "\0"

# Unicode's default-ignorable characters, and the key cap of an emoji digit.
_UNSEEN: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20e3"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff"
)
_UNSEEN_ONLY: Final = re.compile(f"[{_UNSEEN}]")
_UNSEEN_OR_PERCENT: Final = re.compile(rf"[{_UNSEEN}]|%[2-7][0-9A-Fa-f]")

# Neither a link nor an address goes on after these.
CJK_MARKS: Final = "。\uff0c、\uff1b\uff01\uff1f\uff08\uff09【】「」『』《》"
QUOTE_MARKS: Final = "“”„\u2018«»\u2039\u203a…"

# What rules give a meaning to, and other forms of it are read as. Other punctuation stays what it is.
_FOLDED: Final = frozenset(f"@.+-#_/:()=%&{string.ascii_letters}{string.digits}")


class _Folding(dict[int, str]):
    # Characters one by one, so that places stay the same.
    def __missing__(self, code: int) -> str:
        char = chr(code)
        folded = self[code] = _folded(char) if code > 0x7F else char
        return folded


def _folded(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category == "Zs":
        return " "
    if category == "Pd" or char == "\u2212":
        return "-"
    plain = unicodedata.normalize("NFKC", char)
    return plain if plain in _FOLDED else char


_FOLDING: Final = _Folding()


def read(text: str, percent: bool) -> tuple[str, list[int] | None]:
    """The text as the rules read it and, where characters were dropped, the place of each that is left."""
    if text.isascii() and not percent:
        return text, None
    text = text.translate(_FOLDING)
    rewritten = _UNSEEN_OR_PERCENT if percent else _UNSEEN_ONLY
    if not rewritten.search(text):
        return text, None
    chars: list[str] = []
    places: list[int] = []
    end = 0
    for found in rewritten.finditer(text):
        chars.append(text[end : found.start()])
        places.extend(range(end, found.start()))
        end = found.end()
        if found[0][0] == "%":
            chars.append(chr(int(found[0][1:], 16)))
            places.append(found.start())
    chars.append(text[end:])
    places.extend(range(end, len(text) + 1))
    return "".join(chars), places


class MarkedText:
    """A text, and `plain`: what the rules still have to read of it."""

    def __init__(self, text: str, percent: bool = False) -> None:
        self._text = text
        self._marks: list[Mark] = []
        self._places: list[int] | None = None
        self.plain: str = text
        if percent or not text.isascii():
            self.plain, self._places = read(text, percent)
        if "*" in self.plain:
            self.hide(KEPT)

    def mark(self, *rules: MaskRule) -> None:
        """Take out what each rule finds, one rule after another."""
        for rule in rules:
            if marks := rule(self.plain):
                self._marks += marks
                taken = [(start, end, TAKEN * (end - start)) for start, end, _ in marks]
                self.plain = _put(self.plain, taken)

    def hide(self, pattern: re.Pattern[str]) -> None:
        """Set aside what stays as it is, and is not to be read."""
        self.plain = pattern.sub(lambda found: TAKEN * len(found[0]), self.plain)

    def written(self) -> str:
        """The text with its masks."""
        if not self._marks:
            return self._text
        marks = sorted(self._marks)
        if self._places is not None:
            marks = [(self._places[start], self._places[end], mask) for start, end, mask in marks]
        return _put(self._text, marks)


def united(marks: list[Mark]) -> list[Mark]:
    """The marks in order, with those that overlap made one, which has the mask of the first."""
    if len(marks) < 2:
        return marks
    apart: list[Mark] = []
    for start, end, mask in sorted(marks):
        if apart and start < apart[-1][1]:
            first, before, kept = apart[-1]
            apart[-1] = first, max(before, end), kept
        else:
            apart.append((start, end, mask))
    return apart


def _put(text: str, marks: list[Mark]) -> str:
    pieces, done = [], 0
    for start, end, mask in marks:
        pieces += [text[done:start], mask]
        done = end
    return "".join([*pieces, text[done:]])


# No number or address goes on after a comma and a blank, nor with a word of four letters after a blank; but a
# domain does, after "at", "@" or "dot", perhaps in brackets.
_PLACE: Final = re.compile(
    rf"[,;](?=\s)|[{CJK_MARKS}]|(?<![@)\]}}\s])(?<!\bat)(?<!\bdot)\s(?=[^\W\d_]{{4}})", re.IGNORECASE
)

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
