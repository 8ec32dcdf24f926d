"""Ordinary numbers, which look like a phone number and are something else."""

import re
from typing import Final

from semel.redact.digits import DATE, DAY, MONTH
from semel.redact.phones import is_labelled
from semel.redact.plans import Numbering
from semel.redact.words import BEGIN, NUMBER_WORD, may_end_with_word

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
_ORDINARY: Final = re.compile(
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


def ordinary_end(plain: str, start: int, numbering: Numbering) -> int:
    """Where the ordinary number ends that begins here; `start` if it is not known to be one."""
    found = _ORDINARY.match(plain, start)
    if not found and _CURRENCY_BEFORE.search(plain, max(start - 6, 0), start):
        found = _AFTER_CURRENCY.match(plain, start)
    if found:
        return found.end()
    found = _QUANTITY.match(plain, start)
    if found and numbering.writes_thousands and _THOUSANDS.fullmatch(found[0]):
        return start
    if not found and _is_counted(plain, start):
        found = _AFTER_COUNTED.match(plain, start)
    return start if found is None or is_labelled(plain, start) else found.end()


def _is_counted(plain: str, start: int) -> bool:
    first = max(start - _COUNTED_LENGTH, 0)
    return may_end_with_word(plain[first:start]) and _COUNTED_BEFORE.search(plain, first, start) is not None
