"""Numbers: which digits of a text are a phone or a tracking number, and which only look like one."""

import re
from functools import lru_cache
from string import ascii_letters
from typing import Any, Final

import msgspec

from semel.core.runtime import require
from semel.redact.patterns import (
    AND,
    BEGIN,
    DATE,
    DAY,
    DIGITS,
    GAP,
    MONTH,
    NUMBER_WORD,
    digits_of,
    is_tracking_number,
    may_end_with_word,
)
from semel.redact.text import MASK, TAKEN, Mark, TextSpan, united

# --- Phone numbers by what stands before and between their digits ----------------------------------

# ITU-T E.164: a number has at most 15 digits, and "00" may stand before them. Seven are the fewest that
# people give to strangers.
FEWEST: Final = 7
MOST: Final = 17

_PHONE_WORD: Final = (
    r"(?:(?:tele|cell|mobile)?phone|tel|mobile?|mob|cell|(?:land|hot) ?line|fax|whatsapp|wa|sms|msisdn|gsm|"
    r"call|text|ring|dial|reach|contact|handy|telefon\w{0,2}|t[eé]l[eé]phone|tel[eé]fono|telefone|celular|"
    r"m[oó]vil|portable|cellulare|puh|puhelin|тел|телефон\w{0,2}|номер|电话|電話|手机|手機|携帯|전화)"
)
_LABELLED_PHONE: Final = re.compile(
    rf"{BEGIN}{_PHONE_WORD}"
    rf"(?:{GAP}(?:{NUMBER_WORD}|me|us|him|her|them|my|your|back|at|on|is|was|via|under|to)){{0,4}}{GAP}"
    rf"(?:{TAKEN}+{AND})?[+(]*$",
    re.IGNORECASE,
)
_LABEL_LENGTH: Final = 40

EXTENSION: Final = re.compile(r"[ ,;]{0,2}(?:ext(?:ension|n)?|x|доб)\s?[.:=]?\s?\d{1,7}(?!\d)", re.IGNORECASE)

# Unmistakable by what stands between the digits, whether or not there is such a number.
PHONE_SHAPE: Final = re.compile(
    r"(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"  # (123) 456-7890
    r"|\(0?\d{2,5}\)[ -]?\d(?:[ .-]?\d){5,8}"  # (0123) 456789
    r"|0[1-9]\d{1,4}[ /-]{1,3}\d(?:[ ./-]?\d){4,8}"  # 0123/456789
    r"|00[1-9](?:[ ().\-/]{0,3}\d){8,14}"  # 0049 123 456789
)


def is_labelled(plain: str, start: int) -> bool:
    """Whether a word such as "phone" stands before this place."""
    first = max(start - _LABEL_LENGTH, 0)
    before = plain[first:start]
    if TAKEN not in before and not may_end_with_word(before):
        return False
    return _LABELLED_PHONE.search(plain, first, start) is not None


def phone_mask(digits: str) -> str:
    """The mask that shows a phone number's last four digits."""
    return f"{MASK}-{MASK}-{digits[-4:]}"


# --- Numbering plans: which digits are a phone number in which country -----------------------------

# Left out are countries whose phone numbers cannot be told from quantities: seven digits without a prefix, as
# in Iceland, Estonia and Luxembourg, or written like thousands, as in Latvia ("21 234 567").
REGIONS: Final = (
    *("US", "CA", "MX", "BR", "AR", "CL", "CO", "PE"),
    *("GB", "IE", "FR", "BE", "NL", "DE", "AT", "CH", "IT", "ES", "PT", "DK", "NO", "SE", "FI"),
    *("LT", "PL", "CZ", "SK", "HU", "RO", "BG", "GR", "HR", "SI", "RS", "UA", "RU", "TR"),
    *("IL", "AE", "SA", "EG", "ZA", "NG", "KE"),
    *("IN", "PK", "BD", "CN", "HK", "TW", "JP", "KR", "SG", "MY", "TH", "ID", "PH", "VN", "AU", "NZ"),
)

# How many questions about a region's numbers take as long as one about the whole world's.
INTERNATIONAL_PRICE: Final = 5

_LINES: Final = (
    *("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number"),
    *("voip", "pager", "uan", "voicemail"),
)


class NumberingPlans:
    """The phone numbers of some regions, and those of the whole world after a "+"."""

    # One pattern for all regions, made of phonenumbers' own metadata: it takes 5 microseconds for a number,
    # and asking phonenumbers itself takes 30 for each region.
    def __init__(self, regions: tuple[str, ...]) -> None:
        self._library = require("phonenumbers", "privacy")
        plans = [_NumberingPlan(self._library, region) for region in regions]
        self._known = re.compile("|".join([plan.pattern() for plan in plans]) or "(?!)")
        self.writes_thousands: bool = any(plan.writes_thousands() for plan in plans)
        self._rewriting = [rule for plan in plans if (rule := plan.rewriting()) is not None]

    def knows(self, digits: str) -> bool:
        """Whether these are a phone number in one of the regions."""
        if self._known.match(digits):
            return True
        for prefix, valid, rule in self._rewriting:
            # A prefix, once rewritten by its rule, may leave a valid number.
            found = prefix.match(digits)
            if found is None or not found.lastindex or found[found.lastindex] is None:
                continue
            if valid.fullmatch(found.expand(rule) + digits[found.end() :]):
                return True
        return False

    def is_international(self, digits: str) -> bool:
        """Whether these are a phone number after a "+"."""
        try:
            return bool(self._library.is_valid_number(self._library.parse(f"+{digits}")))
        except self._library.NumberParseException:
            return False


numbering_plans: Final = lru_cache(maxsize=8)(NumberingPlans)


class _NumberingPlan:
    def __init__(self, library: Any, region: str) -> None:
        metadata = library.PhoneMetadata.metadata_for_region(region)
        # Canada and the islands share the formats of the United States.
        main = library.region_code_for_country_code(metadata.country_code)
        lines = [getattr(metadata, line) for line in _LINES]
        self._valid = "|".join([line.national_number_pattern for line in lines if _has_numbers(line)])
        self._country_code = metadata.country_code
        self._prefix = metadata.national_prefix_for_parsing
        self._formats = (
            metadata.number_format or library.PhoneMetadata.metadata_for_region(main).number_format
        )
        self._rule = metadata.national_prefix_transform_rule

    def pattern(self) -> str:
        """Digits as they are dialled inside the country, or from outside without the plus."""
        ways = [f"{self._country_code}(?:{self._valid})"]
        if self._prefix:
            ways.append(f"(?:{self._prefix})(?:{self._valid})")
        if unprefixed := [_format_pattern(one) for one in self._formats if _needs_no_prefix(one)]:
            ways.append(f"(?=(?:{self._valid})$)(?:{'|'.join(unprefixed)})")
        return f"(?:{'|'.join(ways)})$"

    def writes_thousands(self) -> bool:
        """Whether phone numbers look like 12 345 678 there, as they do in Latvia."""
        return any(one.pattern == r"(\d{2})(\d{3})(\d{3})" and _needs_no_prefix(one) for one in self._formats)

    def rewriting(self) -> tuple[re.Pattern[str], re.Pattern[str], str] | None:
        """The prefix that the plan rewrites, its numbers without one, and the rule; None without a rule."""
        if not self._rule:
            return None
        return re.compile(self._prefix), re.compile(self._valid), self._rule


def _has_numbers(line: Any) -> bool:
    return line is not None and line.national_number_pattern is not None


def _needs_no_prefix(one: Any) -> bool:
    rule = one.national_prefix_formatting_rule
    return not rule or rule in ("\\1", "(\\1)") or bool(one.national_prefix_optional_when_formatting)


def _format_pattern(one: Any) -> str:
    leading = f"(?={one.leading_digits_pattern[-1]})" if one.leading_digits_pattern else ""
    return f"{leading}(?:{one.pattern})"


# --- Numbers that look like a phone number and are something else ----------------------------------

_YEAR: Final = r"(?:19[5-9]\d|20[0-4]\d)"
_TIME: Final = r"\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"
_CLOCK: Final = r"(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d(?:\d{3})?)?"
_EPOCH: Final = r"1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?(?![\d-])"  # 2017 to 2033, in seconds or milliseconds
_DECIMAL: Final = r"(?!\d{4}\.\d{4}(?!\d)|[2-9]\d\d\.\d{7}(?!\d))-?(?:0|[1-9]\d*)\.\d{3,}(?!\.?\d)"
_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_CURRENCY: Final = (
    r"(?:[$€£¥₹₽₩₺₴₫฿]|(?<![A-Za-z])(?:USD|EUR|GBP|CHF|SEK|NOK|DKK|PLN|CZK|HUF|RON|JPY|CNY|INR|AUD|CAD|BRL|MXN|"
    r"euros?|kr|Kč|zł|Ft|lei|Rs)(?![A-Za-z]))"
)
_SUM: Final = r"(?!0\d)(?:\d{1,3}(?:[ .,'\u2019]\d{3})*(?:[.,]\d{1,2})?|\d{1,10}(?:[.,]\d{1,4})?)"
_UNIT: Final = (
    r"(?:bytes?|octets?|(?:[KMGT]i?)?B|ms|[uµ]s|ns|s|secs?|seconds?|minutes?|hours?|days?|rows?|records?|items?|"
    r"units?|pieces?|pcs|times|lines?|words?|events?|messages?|people|users?|inhabitants|einwohner|habitants|"
    r"habitantes|invånare|km|kg)"
)
_COUNTED: Final = (
    r"(?:ids?|[ptug]id|invoice|rechnungs?|factura|facture|ticket|row|line|page|build|batch|job|task|block|"
    r"offset|seq(?:uence)?|size|count|total|port|sku|isbn|ean|upc|gtin|serial|part|article|artikel|item|"
    r"rev(?:ision)?|version|checksum|nonce|seed|length|duration|epoch|timestamp|ts|bytes)"
)

# Not after a digit or a plus, nor inside a number that is written in groups.
_ALONE: Final = r"(?<![\d+(])(?<!\d[ \t./()+-])(?<!\d[ \t./()+-]{2})(?<!\d[ \t./()+-]{3})"

# Codes that may hold groups of digits: UUIDs, and Amazon's names of resources.
CODE: Final = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9a-f])|arn:[\w:/.*-]+", re.IGNORECASE
)

# What is never a phone number.
_NEVER_PHONE: Final = re.compile(
    "|".join(
        [
            rf"(?<![\d+])(?<!\d[-./]){DATE}(?!(?P=sep)?\d)(?:[T ]{_TIME}(?: ?[+-]\d\d:?\d\d(?!\d))?)?",
            rf"(?<![\d+])(?<!\d[-./]){DAY}(?P<sep2>[-./]){DAY}(?P=sep2){_YEAR}(?!(?P=sep2)?\d)",
            rf"{_ALONE}{DAY}(?P<sep3>[./]){MONTH}(?P=sep3)\d\d(?!(?P=sep3)?\d)",
            rf"{_ALONE}{_YEAR}(?: ?[-/] ?| ){_YEAR}(?: {_YEAR})*(?! ?[-./]?\d)",
            # An Internet address; four pairs of digits are as likely to be a Danish phone number.
            rf"{_ALONE}(?!\d\d(?:\.\d\d){{3}}(?!\d))(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)",
            rf"{_ALONE}97[89]-\d{{1,5}}-\d{{1,7}}-\d{{1,7}}-[\dX](?!-?\d)",  # a book
            rf"{_ALONE}{_SUM} ?{_CURRENCY}",
        ]
    ),
    re.IGNORECASE,
)
_CURRENCY_BEFORE: Final = re.compile(rf"{_CURRENCY} ?$", re.IGNORECASE)
_AFTER_CURRENCY: Final = re.compile(rf"{_SUM}(?![\d-])(?! \d)")

# Not a phone number either, unless a word such as "phone" says so.
_QUANTITY: Final = re.compile(
    rf"{_ALONE}(?:"
    + "|".join(
        [
            rf"\d+(?:[.,]\d+)? ?{_UNIT}(?![a-z0-9])",
            r"[1-9]\d?(?: \d{3}){2}(?:,\d+)?(?![ ./-]?\d)",
            r"[1-9]\d?(?:\.\d{3}){2,}(?:,\d+)?(?![ ./-]?\d)",
            r"[1-9]\d{0,2}(?P<sep>[ .])(?:\d{3}(?P=sep))*\d00(?P=sep)000(?![ ./-]?\d)",
            r"[1-9]\d{0,3}0{5,}(?![\d-])(?! \d)",
            rf"{_DECIMAL}(?: {_DECIMAL})*",
            rf"{_EPOCH}(?: {_EPOCH})*",
            rf"{_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[T_-]?{_CLOCK})?(?![\d-])",
            r"(?:[1-9]\d{4}|(?<=[A-Z][A-Z] )\d{5})-\d{4}(?![ -]?\d)",  # ZIP+4
        ]
    )
    + ")",
    re.IGNORECASE,
)
_COUNTED_BEFORE: Final = re.compile(
    rf"{BEGIN}{_COUNTED}(?:[ _-]?{NUMBER_WORD})?[\s#:=_.\"'-]{{0,4}}$", re.IGNORECASE
)
_AFTER_COUNTED: Final = re.compile(r"\d+(?:-\d{1,3})?(?![\d-])(?! \d)")
_THOUSANDS: Final = re.compile(r"\d\d?([ .])\d{3}\1\d{3}")

# The longest of these words, with what may follow it.
_COUNTED_LENGTH: Final = 24


def other_number_end(plain: str, start: int, plans: NumberingPlans) -> int:
    """Where the date, amount or quantity ends that begins here; `start` if it is not known to be one."""
    found = _NEVER_PHONE.match(plain, start)
    if not found and _CURRENCY_BEFORE.search(plain, max(start - 6, 0), start):
        found = _AFTER_CURRENCY.match(plain, start)
    if found:
        return found.end()
    found = _QUANTITY.match(plain, start)
    if found and plans.writes_thousands and _THOUSANDS.fullmatch(found[0]):
        return start
    if not found and _is_counted(plain, start):
        found = _AFTER_COUNTED.match(plain, start)
    return start if found is None or is_labelled(plain, start) else found.end()


def _is_counted(plain: str, start: int) -> bool:
    first = max(start - _COUNTED_LENGTH, 0)
    return may_end_with_word(plain[first:start]) and _COUNTED_BEFORE.search(plain, first, start) is not None


# --- Going through the digits of a text, with an end to the work -----------------------------------

# Some twenty pages. Nobody reads more of a line in a log, or of an entry in an audit.
MOST_CHARACTERS: Final = 65_536

# A page of ordinary text takes fewer than fifty; an answer takes from two microseconds to fifty.
MOST_QUESTIONS: Final = 500


class WorkLimit(msgspec.Struct):
    """What is left of the work that one text, or one piece of nested data, may be."""

    characters: int = MOST_CHARACTERS
    """How many characters may still be read."""
    questions: int = MOST_QUESTIONS
    """How many questions may still be asked of the rules."""


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
            if long or limit.questions <= 0:
                marks.append(_unread(plain, groups[0][0] if groups else found.start(), end))
                groups = []
                break
            limit.questions -= 1
            read = other_number_end(plain, found.start(), plans)
            if read == found.start():
                groups.append(found.span())
            elif groups:
                marks += _DigitGroups(plain, groups, plans, limit).marks()
                groups = []
        if groups:
            marks += _DigitGroups(plain, groups, plans, limit).marks()
    # An extension may look like a number, and then goes with the one before it, and so does what it begins.
    return united(marks) if marks else marks


def _unread(plain: str, start: int, end: int) -> Mark:
    extension = EXTENSION.match(plain, end)
    return start, extension.end() if extension else end, MASK


class _DigitGroups:
    # Groups of digits that may be one number, several, or a number and something beside it.
    def __init__(self, plain: str, groups: list[TextSpan], plans: NumberingPlans, limit: WorkLimit) -> None:
        self._plain = plain
        self._has_plus = "+" in plain
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
        plus = self._has_plus and self._follows_plus(at)
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
                if start < end:
                    marks += self._marked(start, end, is_phone)
                start, longest = at, 0
            end = found[0]
            length = self._groups[end - 1][1] - self._groups[at][0]
            if length > longest:
                longest, is_phone = length, found[1]
        return marks + self._marked(start, end, is_phone) if start < end else marks

    def _marked(self, at: int, end: int, is_phone: bool) -> list[Mark]:
        return [self._phone(at, end) if is_phone else (*self._span(at, end), MASK)]

    def _longest_from(self, at: int, stop: int, beyond: int) -> tuple[int, bool] | None:
        for end, digits in reversed(self._numbers_from(at, stop)):
            if end <= beyond:
                return None
            if self._is_phone(at, end, digits):
                return end, True
            if is_tracking_number(digits, end == at + 1):
                return end, False
        return None

    def _numbers_from(self, at: int, stop: int) -> list[tuple[int, str]]:
        # Every number of seven digits or more that begins with this group. A dot alone does not part two.
        found: list[tuple[int, str]] = []
        groups, digits = self._groups, ""
        if 0 < at < len(groups) and _between(self._plain, groups, at) == ".":
            return found
        for end in range(at + 1, stop + 1):
            start, stops = groups[end - 1]
            digits += self._plain[start:stops]
            if len(digits) > _LONGEST_TRACKING_NUMBER:
                break
            few = end - at <= _MOST_GROUPS or end - at == len(groups)
            parted = end == len(groups) or _between(self._plain, groups, end) != "."
            if few and parted and len(digits) >= FEWEST:
                found.append((end, digits))
        return found

    def _is_phone(self, at: int, end: int, digits: str) -> bool:
        if len(digits) > MOST:
            return False
        start, stop = self._span(at, end)
        return PHONE_SHAPE.fullmatch(self._plain, start, stop) is not None or self._knows(digits)

    def _knows(self, digits: str) -> bool:
        self._limit.questions -= 1
        return self._limit.questions <= 0 or self._plans.knows(digits)

    def _is_international(self, digits: str) -> bool:
        self._limit.questions -= INTERNATIONAL_PRICE
        return self._limit.questions <= 0 or self._plans.is_international(digits)

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
    first, last = 0, len(groups)
    start, end = groups[0][0], groups[-1][1]
    starts_word = start > 0 and plain[start - 1] in ascii_letters
    ends_word = end < len(plain) and plain[end] in ascii_letters
    if not starts_word and not ends_word:
        return groups
    blanks = [at for at in range(1, last) if " " in _between(plain, groups, at)]
    if starts_word and not is_labelled(plain, start):
        first = blanks[0] if blanks else last
    if ends_word and not EXTENSION.match(plain, end) and not _GLUED_WORD.match(plain, end):
        last = blanks[-1] if blanks else 0
    return groups[first:last]
