"""The redactor: the rules in their order, for a text, nested data, an excerpt and a log."""

import re
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

import msgspec

from semel.core.runtime import require
from semel.errors import InvalidOption, UsageError
from semel.redact.numbers import CODE, FEWEST, REGIONS, WorkLimit, numbering_plans, numbers, phone_mask
from semel.redact.patterns import (
    DIGITS,
    MANY_DIGITS,
    SIGN,
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
        return Masking(regions=self.regions).text(value)

    def json(self, value: Any) -> Any:
        """A copy of nested data with every text in it masked, names of members included.

        A value under a name such as `phone`, `email`, `order_id` or `tracking_number` is masked whatever it
        looks like, numbers too; all other numbers stay. Bytes, and objects of other types than JSON's, dates
        and UUIDs, become a word for them, such as "<12 bytes>". Data nested more than 100 levels deep, or
        inside itself, is a UsageError. The work has the same end for all its texts together.
        """
        return Masking(regions=self.regions).value(value)

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


# --- Nested data: every text in it, and every value under a name such as `email` -------------------

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
def _meaning_of(name: str) -> tuple[bool, MaskOfValue | None]:
    """Return whether a name may stand as it is, and what masks the values under it."""
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
    named = (mask for pattern, mask in _NAMES if re.fullmatch(f"(?:.*_)?(?:{pattern})", words))
    return Masking().text(name) == name, next(named, None)


# Real payloads are a few levels deep; a hundred still leaves most of Python's stack to the caller.
_MAX_DEPTH: Final = 100

# No rule finds anything in so few letters alone: the shortest credential of letters has twenty.
_FEW_LETTERS: Final = 20

# What stays as it is, but for texts.
_KEPT_TYPES: Final = (bool, Enum, date, time, timedelta, UUID)


class Masking(WorkLimit):
    """The masking of one text, or of one piece of nested data, with what is left of its work."""

    regions: tuple[str, ...] = REGIONS

    def text(self, value: str) -> str:
        """The text with everything personal masked."""
        most = self.characters
        self.characters: int = most - len(value) if most > len(value) else 0
        if len(value) <= most and value.isascii():
            if (len(value) < _FEW_LETTERS and value.isalpha()) or is_harmless(value):
                return value
        elif value and not most:
            return MASK
        # A mask may free a neighbour that was not read as a number before, so the outcome is read again.
        for _ in range(_MOST_ROUNDS):
            before, value = value, self._masked_once(value if len(value) <= most else beginning(value, most))
            if value == before:
                return before
        return MASK

    def _masked_once(self, text: str) -> str:
        marked = MarkedText(text)
        # A text that is read as it stands has had this look.
        if marked.plain is not text and is_harmless(marked.plain):
            return text
        if SIGN.search(marked.plain.lower()):
            marked.mark(credentials, links, emails)
        if "%" in text:
            # Only now, since a link goes on after %20, and would end at a blank.
            marked = MarkedText(marked.written(), percent=True)
            marked.mark(links, emails)
        marked.mark(tracking_numbers, order_numbers)
        if MANY_DIGITS.search(marked.plain):
            if CODE.search(marked.plain):
                marked.hide(CODE)
            marked.mark(partial(numbers, plans=numbering_plans(self.regions), limit=self))
        return marked.written()

    def value(self, value: Any, named: MaskOfValue | None = None, depth: int = 0) -> Any:
        """A copy of the value with every text in it masked, by `named` where its name says how."""
        if value is None or isinstance(value, _KEPT_TYPES):
            return value
        if isinstance(value, str):
            return self.text(value) if named is None else self._named_text(str.__str__(value), named)
        if isinstance(value, int | float | Decimal):
            result = named(_number_text(value)) if named else None
            return value if result is None else result
        if isinstance(value, bytes | bytearray | memoryview):
            return f"<{memoryview(value).nbytes} bytes>"
        if depth >= _MAX_DEPTH:
            raise UsageError(
                f"the data is nested more than {_MAX_DEPTH} levels deep, or contains itself: redact its parts"
            )
        if isinstance(value, dict):
            return self._members(value, depth + 1)
        for kind in (list, tuple, frozenset, set):
            if isinstance(value, kind):
                return kind([self.value(one, named, depth + 1) for one in value])
        return f"<{type(value).__name__}>"

    def _named_text(self, value: str, named: MaskOfValue) -> str:
        if ANY_MASK.fullmatch(value.strip()):
            return value
        result = named(read(value, percent=True)[0])
        return self.text(value) if result is None else result

    def _members(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        counts: dict[Any, int] = {}
        for name, one in value.items():
            stays, named = False, None
            if type(name) is str and len(name) <= 64 and _NAME.fullmatch(name):
                stays, named = _meaning_of(name)
            if stays and len(name) < self.characters:
                self.characters -= len(name)
                written = given = name
            else:
                written = given = self._name(name)
            # Two names may have one mask, and neither value may be lost for it.
            while written in members:
                counts[given] = counts.get(given, 1) + 1
                written = f"{given} ({counts[given]})"
            if named is None and type(one) is str:
                members[written] = self.text(one)
            else:
                members[written] = self.value(one, named, depth)
        return members

    def _name(self, name: Any) -> Any:
        return f"<{type(name).__name__}>" if isinstance(name, bytes | tuple | frozenset) else self.value(name)


def _number_text(number: float | Decimal) -> str:
    if isinstance(number, int):
        return str(abs(number) % 10**20)  # Python refuses to write integers of thousands of digits
    if isinstance(number, float) and number.is_integer():
        return f"{number:.0f}"
    return str(number)
