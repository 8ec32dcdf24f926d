"""The redactor: the rules in their order, for a text, nested data, an excerpt and a log."""

import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import msgspec

from semel.core.extras import require
from semel.errors import InvalidOption
from semel.redact.data import masked
from semel.redact.numbers import WorkLimit, numbers
from semel.redact.patterns import MANY_DIGITS, credentials, emails, links, order_numbers, tracking_numbers
from semel.redact.phones import CODE, REGIONS, numbering_plans
from semel.redact.text import ANY_MASK, MASK, MarkedText, beginning

if TYPE_CHECKING:
    from semel.redact.logs import RedactingFilter

# The excerpt that may be kept for debugging.
_EXCERPT_LENGTH: Final = 80

# Ordinary text takes two rounds. What takes more was made to, and goes as a whole.
_MOST_ROUNDS: Final = 4

# Without one of these there is nothing to find, and most short texts have none of them.
_SUSPECT: Final = re.compile(r"[\d@]|://|www|\.[a-z]{2,6}[/?]", re.IGNORECASE)

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
        if not _SUSPECT.search(marked.plain):
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
