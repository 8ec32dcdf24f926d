"""Phone numbers: what announces them, what they look like, and what is left of them."""

import re
from typing import Final

from semel.redact.masks import MASK
from semel.redact.page import TAKEN
from semel.redact.words import AND, BEGIN, GAP, NUMBER_WORD, may_end_with_word

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
