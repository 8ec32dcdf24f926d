"""The redactor: the rules in their order, for a text, nested data, an excerpt and a log."""

import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

import msgspec

from semel.core.runtime import require
from semel.errors import InvalidOption, UsageError
from semel.redact.numbers import CODE, FEWEST, REGIONS, WorkLimit, numbering_plans, numbers, phone_mask
from semel.redact.patterns import (
    DIGITS,
    MANY_DIGITS,
    credentials,
    digits_of,
    emails,
    is_harmless,
    links,
    order_mask,
    order_numbers,
    tracking_numbers,
)
from semel.redact.text import ANY_MASK, EMAIL_MASK, MASK, MarkedText, beginning, read

if TYPE_CHECKING:
    from semel.redact.logs import RedactingFilter

# The excerpt that may be kept for debugging.
_EXCERPT_LENGTH: Final = 80

# Ordinary text takes two rounds. What takes more was made to, and goes as a whole.
_MOST_ROUNDS: Final = 4

# An excerpt is made of so many times its own length, and not of less than this: masks are short.
_READ_FOR_EXCERPT, _LEAST_READ = 20, 2000

# What is left for the texts of the nested data that is being masked.
_left: ContextVar[WorkLimit | None] = ContextVar("semel_redact_left", default=None)


class Redactor(msgspec.Struct, frozen=True):
    """Masks e-mail addresses, phone, order and tracking numbers, links, and credentials of known forms.

    `regions` are the countries (ISO 3166) whose phone numbers are known without a "+". With fewer of them,
    more bare numbers are left alone.
    """

    regions: tuple[str, ...] = REGIONS

    def __post_init__(self) -> None:
        """Refuse a region that has no numbering plan."""
        known = require("phonenumbers", "privacy").SUPPORTED_REGIONS
        for region in self.regions:
            if region not in known:
                raise InvalidOption(
                    f"{region!r} is no region with phone numbers: use codes such as 'DE' or 'US'"
                )

    def text(self, value: str) -> str:
        """The text with everything personal masked.

        The work has an end, whatever the text holds: after 65,536 characters it is cut, with a mask for the
        rest; and of more than some hundred numbers, those that come last are masked without being looked at.
        """
        limit = _left.get() or WorkLimit()
        most = limit.read(value)
        if value and not most:
            return MASK
        if len(value) <= most and value.isascii() and is_harmless(value):
            return value
        # A mask may free a neighbour that was not read as a number before, so the outcome is read again.
        for _ in range(_MOST_ROUNDS):
            before, value = value, self._masked_once(beginning(value, most), limit)
            if value == before:
                return before
        return MASK

    def json(self, value: Any) -> Any:
        """A copy of nested data with every text in it masked, names of members included.

        A value under a name such as `phone`, `email`, `order_id` or `tracking_number` is masked whatever it
        looks like, numbers too; all other numbers stay. Bytes, and objects of other types than JSON's, dates
        and UUIDs, become a word for them, such as "<12 bytes>". Data nested more than 100 levels deep, or
        inside itself, is a UsageError. The work has the same end for all its texts together.
        """
        token = _left.set(WorkLimit())
        try:
            return masked(value, self.text)
        finally:
            _left.reset(token)

    def excerpt(self, value: str, length: int = _EXCERPT_LENGTH) -> str:
        """The beginning of the masked text, on one line, in at most so many characters."""
        if length < 1:
            raise InvalidOption(f"an excerpt has at least one character, not {length}")
        value = beginning(value, max(_READ_FOR_EXCERPT * length, _LEAST_READ))
        # Masked before the lines are joined, because a line's end separates numbers; and after, for a number
        # that was broken over two lines.
        line = self.text(" ".join(self.text(value).split()))
        if len(line) <= length:
            return line
        end = length - 1
        for mask in ANY_MASK.finditer(line):
            if mask.start() < end < mask.end():
                end = mask.start()
        return line[:end].rstrip() + "…"

    def filter(self) -> "RedactingFilter":
        """A filter for a logging handler."""
        from semel.redact.logs import RedactingFilter

        return RedactingFilter(self)

    def _masked_once(self, text: str, limit: WorkLimit) -> str:
        marked = MarkedText(text)
        if is_harmless(marked.plain):
            return text
        marked.mark(credentials, links, emails)
        if "%" in text:
            # Only now, since a link goes on after %20, and would end at a blank.
            marked = MarkedText(marked.written(), percent=True)
            marked.mark(links, emails)
        marked.mark(tracking_numbers, order_numbers)
        if MANY_DIGITS.search(marked.plain):
            marked.hide(CODE)
            known = numbering_plans(tuple(self.regions))
            marked.mark(lambda plain: numbers(plain, known, limit))
        return marked.written()


# --- Nested data: every text in it, and every value under a name such as `email` -------------------

MaskOfText: TypeAlias = Callable[[str], str]
MaskOfValue: TypeAlias = Callable[[str], str | None]


def _mask_email(plain: str) -> str | None:
    return EMAIL_MASK if plain.strip() else None


def _mask_phone(plain: str) -> str | None:
    digits = digits_of(plain)
    if not digits:
        return None
    return phone_mask(digits) if len(digits) >= FEWEST else MASK


def _mask_order(plain: str) -> str | None:
    return order_mask(plain) if DIGITS.search(plain) else None


def _mask_bare_order(plain: str) -> str | None:
    # Under "order" alone there may be a place in a list, or a sentence.
    return order_mask(plain) if len(digits_of(plain)) > 3 and " " not in plain.strip() else None


def _mask_tracking(plain: str) -> str | None:
    return MASK if DIGITS.search(plain) else None


_ID: Final = r"_?(?:ids?|numbers?|num|nos?|nr|nummer|ref|reference|name|codes?)(?:_?\d+)?"
_ORDER_NAME: Final = r"(?:orders?|bestell(?:ungs?)?|auftrags?|pedido|commande|ordine|ordre|encomenda|po)"
_PHONE_NAME: Final = (
    r"(?:(?:tele|cell|mobile)?_?phones?|tel|mobile|fax|msisdn|whatsapp|wa_id|handy|telefon[oe]?|gsm)"
    r"(?:_?(?:numbers?|num|nos?|nr|nummer|e164))?(?:_?\d+)?"
)
_NAMES: Final[tuple[tuple[str, MaskOfValue], ...]] = (
    (r"(?:e_?)?mails?(?:_?address(?:es)?)?(?:_?\d+)?", _mask_email),
    (_PHONE_NAME, _mask_phone),
    (_ORDER_NAME + _ID, _mask_order),
    (r"orders?", _mask_bare_order),
    (rf"(?:tracking|waybill|awb)(?:{_ID})?", _mask_tracking),
    (rf"(?:shipment|parcel|consignment|sendungs?|paket){_ID}", _mask_tracking),
)

# What programs use for names. Anything else is itself data, and is not to be kept in memory.
_NAME: Final = re.compile(r"[A-Za-z](?!.*\d.*\d.*\d.*\d)[\w .-]{0,63}")


@lru_cache(maxsize=1024)
def _mask_for_text(name: str) -> MaskOfValue | None:
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
    return next((named for pattern, named in _NAMES if re.fullmatch(f"(?:.*_)?(?:{pattern})", words)), None)


def mask_for_name(name: Any) -> MaskOfValue | None:
    """What masks the value under this name, if the name says what it is."""
    return _mask_for_text(name) if type(name) is str and len(name) <= 64 and _NAME.fullmatch(name) else None


# Real payloads are a few levels deep; a hundred still leaves most of Python's stack to the caller.
_MAX_DEPTH: Final = 100


def masked(value: Any, mask: MaskOfText, named: MaskOfValue | None = None, depth: int = 0) -> Any:
    """A copy of the value with every text in it masked by `mask`, or by `named` where its name tells."""
    if value is None or isinstance(value, bool | Enum | date | time | timedelta | UUID):
        return value
    if isinstance(value, str):
        return mask(value) if named is None else _named_text(str.__str__(value), mask, named)
    if isinstance(value, int | float | Decimal):
        result = named(_number_text(value)) if named else None
        return value if result is None else result
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    return _container(value, mask, named, depth + 1)


def _named_text(value: str, mask: MaskOfText, named: MaskOfValue) -> str:
    if ANY_MASK.fullmatch(value.strip()):
        return value
    result = named(read(value, percent=True)[0])
    return mask(value) if result is None else result


def _number_text(number: float | Decimal) -> str:
    if isinstance(number, int):
        return str(abs(number) % 10**20)  # Python refuses to write integers of thousands of digits
    if isinstance(number, float) and number.is_integer():
        return f"{number:.0f}"
    return str(number)


def _container(value: Any, mask: MaskOfText, named: MaskOfValue | None, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise UsageError(
            f"the data is nested more than {_MAX_DEPTH} levels deep, or contains itself: redact its parts"
        )
    if isinstance(value, dict):
        return _members(value, mask, depth)
    for kind in (list, tuple, frozenset, set):
        if isinstance(value, kind):
            return kind([masked(one, mask, named, depth) for one in value])
    return f"<{type(value).__name__}>"


def _members(value: dict[Any, Any], mask: MaskOfText, depth: int) -> dict[Any, Any]:
    members: dict[Any, Any] = {}
    counts: dict[Any, int] = {}
    for name, one in value.items():
        written = given = _name(name, mask)
        # Two names may have one mask, and neither value may be lost for it.
        while written in members:
            counts[given] = counts.get(given, 1) + 1
            written = f"{given} ({counts[given]})"
        members[written] = masked(one, mask, mask_for_name(name), depth)
    return members


def _name(name: Any, mask: MaskOfText) -> Any:
    return f"<{type(name).__name__}>" if isinstance(name, bytes | tuple | frozenset) else masked(name, mask)
