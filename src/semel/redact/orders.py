"""Order numbers: after a word for it, after "#", or in a form of their own."""

import re
from typing import Final

from semel.redact.digits import DATE_ONLY, digits_of
from semel.redact.masks import MASK
from semel.redact.page import Mark, Span, united
from semel.redact.words import BEGIN, GAP, NUMBER_WORD, WRITTEN, holds, listed, stems_of

_ORDER_WORDS: Final = (
    *("order(?:s)?", "preorder", "reorder", "bestell(?:ung(?:s|en)?)?", "auftrag(?:s)?", "pedido(?:s)?"),
    *("orden", "commande(?:s)?", "ordin[ei]", "encomenda(?:s)?", "bestel(?:ling)?", "best[aä]llning(?:s)?"),
    *("ordre", "tilaus", "zam[oó]wieni[ea]", "objedn[aá]vk[aye]", "rendel[eé]s", "comand[aă]", "sipari[sş]"),
    *("заказ(?:\\w)?", "замовлення", "订单", "訂單", "注文", "주문"),
)
_ORDER_STEMS: Final = stems_of(_ORDER_WORDS)
_LABELLED_ORDER: Final = re.compile(
    rf"{BEGIN}(?:{'|'.join(_ORDER_WORDS)})(?P<said>(?:{GAP}{NUMBER_WORD}){{1,4}})?(?P<gap>(?:{GAP}is)?{GAP})"
    rf"(?P<number>{WRITTEN})(?P<more>(?: \d{{2,}})*)",
    re.IGNORECASE,
)
# "#12345", "#A-10023"; not "&#12345;", "#covid2019" or a colour with letters in it.
_HASHED_ORDER: Final = re.compile(
    r"(?<![\w&#/])# ?(?:[A-Z]{1,6}-?|[A-Za-z]{1,12}[-_])?\d{4,}(?:[-_/]\d+)*(?![0-9A-Za-z])"
)
_HASHED_OTHERWISE: Final = re.compile(
    r"(?:issues?|pr|pull requests?|bugs?|tickets?|commits?|pages?|lines?|rooms?|items?) ?$", re.IGNORECASE
)
# "ORD-2026-000123", "PO-4711-22", and Amazon's 3-7-7 digits.
_SHAPED_ORDER: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"(?:(?:(?i:ord(?:er)?)|PO|SO)[-_#](?=[0-9A-Za-z_/-]{0,40}\d{4})|(?i:ord(?:er)?)(?=\d{4}))"
    r"[0-9A-Za-z]+(?:[-_/][0-9A-Za-z]+)*"
    r"|(?<!\d-)(?<!\+)\d{3}-\d{7}-\d{7}(?!-\d))(?![0-9A-Za-z])"
)
_FRACTION: Final = re.compile(r"[.,]\d")


def orders(plain: str) -> list[Mark]:
    """Every order number, to be masked but for its last digits."""
    spans = [found.span() for found in _SHAPED_ORDER.finditer(plain)]
    if "#" in plain:
        spans += [found.span() for found in _HASHED_ORDER.finditer(plain) if not _is_hashed_otherwise(found)]
    if holds(plain, _ORDER_STEMS):
        labelled = _LABELLED_ORDER.finditer(plain)
        spans += listed(plain, [_order_span(found) for found in labelled if _is_order(found)])
    return [(start, end, order_mask(plain[start:end])) for start, end in united(spans)]


def _is_hashed_otherwise(found: re.Match[str]) -> bool:
    return _HASHED_OTHERWISE.search(found.string, max(found.start() - 16, 0), found.start()) is not None


def _is_order(found: re.Match[str]) -> bool:
    number = found["number"]
    if found["said"]:
        return len(number) >= 3
    if DATE_ONLY.fullmatch(number) or _FRACTION.match(found.string, found.end("number")):
        return False
    pointed = not {":", "=", "#"}.isdisjoint(found["gap"] + number)
    return len(digits_of(number)) >= (4 if pointed or number[0].isalpha() else 5)


def _order_span(found: re.Match[str]) -> Span:
    return found.start("number"), found.end("more" if found["said"] else "number")


def order_mask(text: str) -> str:
    """The mask that shows an order number's last four digits, if it has more."""
    digits = digits_of(text)
    return MASK + digits[-4:] if len(digits) > 4 else MASK
