"""Tracking numbers: after a word for it, or in a carrier's form with the right check digit."""

import re
from typing import Final

from semel.redact.digits import DATE_ONLY, MANY_DIGITS, digits_of
from semel.redact.masks import MASK
from semel.redact.page import Mark, Span, united
from semel.redact.words import BEGIN, GAP, NUMBER_WORD, WRITTEN, holds, listed, stems_of

_TRACKING_WORDS: Final = (
    *("tracking", "track(?:[ -]?(?:&|and|n)[ -]?trace)", "waybill", "awb", "consignment", "suivi", "colis"),
    *("sendungsverfolgung", "seguimiento", "rastre(?:o|io|amento)", "tracciamento", "spedizione"),
    *("sp[aå]rning", "sporing", "seuranta", "przesy[lł]ki", "отслеживания"),
    *("运单", "運單", "快递单", "追跡", "송장"),
)
# These say it only together with a word for "number".
_SHIPPING_WORDS: Final = ("shipment", "parcel", "package", "sendung", "paket", "kolli", "трек")
_TRACKING_STEMS: Final = stems_of(_TRACKING_WORDS + _SHIPPING_WORDS)
_LABELLED_PARCEL: Final = re.compile(
    rf"{BEGIN}(?:(?:{'|'.join(_TRACKING_WORDS)})|(?:{'|'.join(_SHIPPING_WORDS)})s?{GAP}{NUMBER_WORD})s?"
    rf"(?:{GAP}(?:{NUMBER_WORD}|is)){{0,4}}{GAP}(?P<number>{WRITTEN}(?: \d{{2,}})*)",
    re.IGNORECASE,
)
_SHORTEST_LABELLED_PARCEL: Final = 6

# The forms that begin with letters: UPS; the posts' S10; Amazon, LaserShip, DHL, Cainiao, SF, YunExpress.
_LETTERED_PARCEL: Final = re.compile(
    r"(?<![0-9a-z])(?:(?P<ups>1Z(?:[ -]?[0-9A-Z]){16})|(?P<post>[A-Z]{2}(?: ?\d){9} ?[A-Z]{2})"
    r"|TBA\d{12}|1LS\d{12,15}|J(?:JD|VGL)\d{9,20}|JD\d{16,20}|GM\d{16,22}|LP\d{14,16}|SF\d{12,15}|YT\d{16})"
    r"(?![0-9a-z])",
    re.IGNORECASE,
)


def parcels(plain: str) -> list[Mark]:
    """Every tracking number with a word or with letters, to be masked whole."""
    spans: list[Span] = []
    if MANY_DIGITS.search(plain) or "1z" in plain.lower():
        spans += [found.span() for found in _LETTERED_PARCEL.finditer(plain) if _is_lettered_parcel(found)]
    if holds(plain, _TRACKING_STEMS):
        labelled = _LABELLED_PARCEL.finditer(plain)
        spans += listed(plain, [found.span("number") for found in labelled if _is_parcel(found["number"])])
    return [(start, end, MASK) for start, end in united(spans)]


def _is_parcel(labelled: str) -> bool:
    return len(labelled) >= _SHORTEST_LABELLED_PARCEL and not DATE_ONLY.fullmatch(labelled)


def _is_lettered_parcel(found: re.Match[str]) -> bool:
    number = re.sub("[ -]", "", found[0]).upper()
    spaced = len(number) < len(found[0])
    if found["ups"]:
        # Without blanks nothing else looks like this; with them, a sentence may.
        return not spaced or (_is_ups(number) and len(digits_of(number)) > len(number) // 2)
    if found["post"]:
        return _is_post(number[2:11]) and (not spaced or found[0].isupper())
    return True


def _is_ups(number: str) -> bool:
    values = [int(char) if char.isdigit() else (ord(char) - 3) % 10 for char in number[2:]]
    return (sum(values[0:15:2]) + 2 * sum(values[1:15:2]) + values[15]) % 10 == 0


def _is_post(digits: str) -> bool:
    # Universal Postal Union S10: eight digits and their check digit.
    weights = (8, 6, 4, 2, 3, 5, 9, 7)
    remainder = sum(int(digit) * weight for digit, weight in zip(digits[:8], weights, strict=True)) % 11
    return int(digits[8]) == {0: 5, 1: 0}.get(remainder, 11 - remainder)


def _is_gs1(digits: str) -> bool:
    # The check digit of GS1, which USPS, FedEx Ground and the SSCC share: 3 and 1 by turns, from the right.
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[0::2]) + 3 * sum(values[1::2])) % 10 == 0


def _is_fedex(digits: str) -> bool:
    # FedEx Express: 1, 3 and 7 by turns, from the right.
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[1::3]) + 3 * sum(values[2::3]) + 7 * sum(values[3::3])) % 11 % 10 == values[0]


def is_numbered_parcel(digits: str, bare: bool) -> bool:
    """Whether a carrier numbers its parcels so; `bare` if the digits are written in one group."""
    match len(digits):
        case 10 | 11:  # DHL Express
            return bare and digits[0] != "0" and int(digits[:-1]) % 7 == int(digits[-1])
        case 12:
            return _is_fedex(digits)
        case 15:
            return _is_gs1(digits)
        case 18:
            return digits[0] == "0" and _is_gs1(digits)
        case 20:  # USPS and SmartPost leave out the 91 or 92 that their check digit counts
            return _is_gs1(digits) or _is_gs1("91" + digits) or _is_gs1("92" + digits)
        case 22 | 26:
            return digits[0] == "9" and (_is_gs1(digits) or _is_gs1(digits[-15:]))
        case 30 | 34:
            return _is_gs1(digits[-22:]) or _is_fedex(digits[-14:])
    return False
