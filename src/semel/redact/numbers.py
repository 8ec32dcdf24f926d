"""Goes through the digits of a text: phone numbers, and tracking numbers of digits alone."""

import re
from collections.abc import Iterator
from typing import Final

from semel.redact.patterns import DIGITS, digits_of, is_tracking_number
from semel.redact.phones import (
    EXTENSION,
    FEWEST,
    INTERNATIONAL_PRICE,
    MOST,
    PHONE_SHAPE,
    NumberingPlans,
    is_labelled,
    other_number_end,
    phone_mask,
)
from semel.redact.text import MASK, Mark, TextSpan, united

# Some twenty pages. Nobody reads more of a line in a log, or of an entry in an audit.
MOST_CHARACTERS: Final = 65_536

# A page of ordinary text takes fewer than fifty; an answer takes from two microseconds to fifty.
MOST_QUESTIONS: Final = 500


class WorkLimit:
    """What is left of the work that one text, or one piece of nested data, may be."""

    def __init__(self) -> None:
        self._characters = MOST_CHARACTERS
        self._questions = MOST_QUESTIONS

    def read(self, text: str) -> int:
        """How many characters of a text may be read; they are then not there for the next."""
        most = self._characters
        self._characters = max(0, most - len(text))
        return most

    @property
    def spent(self) -> bool:
        """Whether nothing more is to be asked."""
        return self._questions <= 0

    def ask(self, price: int = 1) -> None:
        """Count a question, by how long its answer takes."""
        self._questions -= price


# Nobody writes a phone number in more groups, and to try them takes long in a table of numbers.
_MOST_GROUPS: Final = 9
_LONGEST_TRACKING_NUMBER: Final = 34

# What goes on for longer is no number and no list of some, and goes as a whole.
_LONGEST_READ: Final = 1000

# Before a number may stand "+(" or "(+", and a bracket around that; further ones are not its own.
_MOST_BRACKETS: Final = 3

# Seven digits or more, and what people write between them.
_DIGITS_IN_GROUPS: Final = re.compile(r"\d(?:[ \t().\-/+]{0,4}\d){6,}")

# A word that somebody forgot to put a blank before; a hexadecimal code may look like a short one.
_GLUED_WORD: Final = re.compile(r"(?![a-f]+(?![a-z]))[a-z]{4,}(?![0-9a-z])", re.IGNORECASE)


def numbers(plain: str, plans: NumberingPlans, limit: WorkLimit) -> list[Mark]:
    """Every phone number, every tracking number of digits alone; and all digits, once that is too much."""
    marks: list[Mark] = []
    read = 0
    for run in _DIGITS_IN_GROUPS.finditer(plain):
        groups: list[TextSpan] = []
        start, end = run.span()
        long = end - start > _LONGEST_READ
        for found in DIGITS.finditer(plain, start, end):
            if found.start() < read:
                continue
            if long or limit.spent:
                marks.append(_unread(plain, groups[0][0] if groups else found.start(), end))
                groups = []
                break
            limit.ask()
            read = other_number_end(plain, found.start(), plans)
            if read == found.start():
                groups.append(found.span())
            else:
                marks += _DigitGroups(plain, groups, plans, limit).marks()
                groups = []
        marks += _DigitGroups(plain, groups, plans, limit).marks()
    # An extension may look like a number, and then goes with the one before it, and so does what it begins.
    return united(marks)


def _unread(plain: str, start: int, end: int) -> Mark:
    extension = EXTENSION.match(plain, end)
    return start, extension.end() if extension else end, MASK


class _DigitGroups:
    # Groups of digits that may be one number, several, or a number and something beside it.
    def __init__(self, plain: str, groups: list[TextSpan], plans: NumberingPlans, limit: WorkLimit) -> None:
        self._plain = plain
        self._groups = _unlettered(plain, groups)
        self._plans = plans
        self._limit = limit

    def marks(self) -> list[Mark]:
        marks: list[Mark] = []
        at = begin = 0
        while at < len(self._groups):
            end = self._announced_end(at)
            if end is None:
                at += 1
                continue
            end = self._overlapping_end(at, end)
            marks += [*self._loose_marks(begin, at), self._phone(at, end)]
            at = begin = end
        return marks + self._loose_marks(begin, at)

    def _announced_end(self, at: int) -> int | None:
        # Where the number ends that a "+" or a word announces: the longest valid one, or else the longest.
        plus = self._follows_plus(at)
        if not plus and (at > 0 or not is_labelled(self._plain, self._groups[0][0])):
            return None
        possible = [found for found in self._numbers_from(at, len(self._groups)) if len(found[1]) <= MOST]
        is_valid = self._is_international if plus else self._knows
        longest = possible[-1][0] if possible else None
        return next((end for end, digits in reversed(possible) if is_valid(digits)), longest)

    def _overlapping_end(self, at: int, end: int) -> int:
        # Some of its digits may belong to a number that goes on after it: then that one goes too.
        inner = at + 1
        while inner < end:
            found = self._longest_from(inner, len(self._groups), end)
            end = end if found is None else found[0]
            inner += 1
        return end

    def _follows_plus(self, at: int) -> bool:
        start = self._groups[at][0]
        before = self._plain[max(start - 3, 0) : start].rstrip(" (")
        # Between two digits, as in a form's "0171+2345678", it stands for a blank.
        return before.endswith("+") and not before[-2:-1].isdigit()

    def _loose_marks(self, begin: int, stop: int) -> list[Mark]:
        # Where numbers overlap, nobody can tell which of them is meant: then all of it goes, as the longest.
        marks: list[Mark] = []
        start, end, longest, is_phone = begin, begin, 0, False
        for at in range(begin, stop):
            found = self._longest_from(at, stop, end)
            if found is None:
                continue
            if at >= end:
                marks += self._marked(start, end, is_phone)
                start, longest = at, 0
            end = found[0]
            length = self._groups[end - 1][1] - self._groups[at][0]
            if length > longest:
                longest, is_phone = length, found[1]
        return marks + self._marked(start, end, is_phone)

    def _marked(self, at: int, end: int, is_phone: bool) -> list[Mark]:
        if at == end:
            return []
        return [self._phone(at, end) if is_phone else (*self._span(at, end), MASK)]

    def _longest_from(self, at: int, stop: int, beyond: int) -> tuple[int, bool] | None:
        for end, digits in reversed([*self._numbers_from(at, stop)]):
            if end <= beyond:
                return None
            if self._is_phone(at, end, digits):
                return end, True
            if is_tracking_number(digits, end == at + 1):
                return end, False
        return None

    def _numbers_from(self, at: int, stop: int) -> Iterator[tuple[int, str]]:
        # Every number of seven digits or more that begins with this group. A dot alone does not part two.
        if not self._parts(at):
            return
        digits = ""
        for end in range(at + 1, stop + 1):
            digits += self._plain[slice(*self._groups[end - 1])]
            if len(digits) > _LONGEST_TRACKING_NUMBER:
                return
            few = end - at <= _MOST_GROUPS or end - at == len(self._groups)
            if few and len(digits) >= FEWEST and self._parts(end):
                yield end, digits

    def _parts(self, at: int) -> bool:
        return not 0 < at < len(self._groups) or _between(self._plain, self._groups, at) != "."

    def _is_phone(self, at: int, end: int, digits: str) -> bool:
        if len(digits) > MOST:
            return False
        start, stop = self._span(at, end)
        return PHONE_SHAPE.fullmatch(self._plain, start, stop) is not None or self._knows(digits)

    def _knows(self, digits: str) -> bool:
        self._limit.ask()
        return self._limit.spent or self._plans.knows(digits)

    def _is_international(self, digits: str) -> bool:
        self._limit.ask(INTERNATIONAL_PRICE)
        return self._limit.spent or self._plans.is_international(digits)

    def _span(self, at: int, end: int) -> TextSpan:
        first, stop = self._groups[at][0], self._groups[end - 1][1]
        start = first
        while start > max(first - _MOST_BRACKETS, 0) and self._plain[start - 1] in "+(":
            start -= 1
        # An opening bracket belongs to the number if its closing one does; a plus always does.
        closed = self._plain.count(")", first, stop)
        while start < first and self._plain[start] == "(" and self._plain.count("(", start, stop) > closed:
            start += 1
        return start, stop

    def _phone(self, at: int, end: int) -> Mark:
        start, stop = self._span(at, end)
        extension = EXTENSION.match(self._plain, stop)
        return start, extension.end() if extension else stop, phone_mask(digits_of(self._plain[start:stop]))


def _between(plain: str, groups: list[TextSpan], at: int) -> str:
    return plain[groups[at - 1][1] : groups[at][0]]


def _unlettered(plain: str, groups: list[TextSpan]) -> list[TextSpan]:
    # Without the words at either end that a letter touches: those are codes, such as a hash or "12345678x9".
    if not groups:
        return []
    first, last = 0, len(groups)
    blanks = [at for at in range(1, last) if " " in _between(plain, groups, at)]
    start, end = groups[0][0], groups[-1][1]
    if _is_letter(plain, start - 1) and not is_labelled(plain, start):
        first = blanks[0] if blanks else last
    if _is_letter(plain, end) and not EXTENSION.match(plain, end) and not _GLUED_WORD.match(plain, end):
        last = blanks[-1] if blanks else 0
    return groups[first:last]


def _is_letter(plain: str, place: int) -> bool:
    return 0 <= place < len(plain) and plain[place].isascii() and plain[place].isalpha()
