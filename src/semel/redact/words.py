"""Words that say what a number is, and numbers as they are written after such a word."""

import re
from collections.abc import Iterable
from string import digits
from typing import Final

from semel.redact.digits import DATE_ONLY, digits_of
from semel.redact.page import Span

# A word begins after anything but a letter, or with its capital inside camelCase.
BEGIN: Final = r"(?:(?<![a-z])|(?-i:(?<=[a-z])(?=[A-Z])))"

# What may stand between such a word and its number, JSON's punctuation included.
GAP: Final = r"[\s_.:=\\\"'*`\[(>-]{0,7}"
NUMBER_WORD: Final = (
    r"(?:numbers?|num|nos?|nr|ids?|code|ref(?:erence)?|name|nummer|num[eé]ro|n[uú]mero|numer|n[°º]|№|"
    r"#(?=\s?[:=])|номер\w{0,2}|号码?|號碼?|番号|번호)"
)

# These end no word that announces a number, nor what stands between the two.
_NO_END_OF_WORD: Final = frozenset(" \t().-/+,;")

# Letters, digits and hyphens, with a digit among them; perhaps "#" before it.
WRITTEN: Final = r"#? ?(?=[a-z/_-]{0,40}\d)[0-9a-z]+(?:[/_-]+[0-9a-z]+)*(?![0-9a-z])"

# A list goes on: ", 12346 and 12347".
AND: Final = r"(?:\s?[,;&/+]\s?|\s(?:and|or|und|oder|et|ou|y|o|e|och|eller|og|en|of|i|и|или)\s)"
_ANOTHER: Final = re.compile(rf"{AND}(?P<number>{WRITTEN})", re.IGNORECASE)
_FEWEST_DIGITS_IN_A_LIST: Final = 5


def listed(plain: str, firsts: Iterable[Span]) -> list[Span]:
    """Numbers that a word announces, each with those that follow it in a list."""
    spans: list[Span] = []
    for first in firsts:
        if spans and first[0] < spans[-1][1]:
            continue
        spans.append(first)
        while found := _ANOTHER.match(plain, spans[-1][1]):
            if not _is_another(found["number"]):
                break
            spans.append(found.span("number"))
    return spans


def _is_another(number: str) -> bool:
    return len(digits_of(number)) >= _FEWEST_DIGITS_IN_A_LIST and not DATE_ONLY.fullmatch(number)


def may_end_with_word(before: str) -> bool:
    """Whether a word that announces a number may stand before it; in a list of numbers that is quickly told.

    A digit or two may be part of such a word.
    """
    end = before.rstrip(" \t\n_.:=\\\"'*`[(>-#+").rstrip(digits)
    return end != "" and end[-1] not in _NO_END_OF_WORD


def stems_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """Each word's beginning, which has to be in a text that holds the word: to look for that is quick."""
    return tuple({re.split(r"\W", word)[0] for word in words})


def holds(plain: str, stems: tuple[str, ...]) -> bool:
    """Whether one of the words may be in the text."""
    lower = plain.lower()
    return any(stem in lower for stem in stems)
