"""Redaction: nothing personal in what is stored or logged.

    what                          becomes         such as
    credentials of known forms    ***             sk_live_..., ghp_..., AKIA..., JSON Web Tokens, Bearer ...
    links                         ***             https://..., www...., bit.ly/3xYz, anything with ://
    e-mail addresses              ***@***         ann+shop@example.com, jörg@müller.de, ann at example.com
    tracking numbers              ***             1Z999AA10123456784, RB123456785GB, DPD 15501234567890
    order numbers                 ***1234         #12345, order 12345, Bestellnr. A-10023, SO48215577
    phone numbers                 ***-***-1234    +49 171 2345678, (202) 555-0123, tel: 555-0123

They are looked for in this order, and what one kind has taken no later kind reads, so a number inside a link
goes with the link. Of phone and order numbers the last four digits stay; of an order number with four digits
or fewer nothing does. Redacting twice gives what redacting once gives.

When in doubt, mask:

- An order number follows a word for "order", in some twenty languages; or it is "#" and four digits or more;
  or it looks like ORD-..., PO-..., SO and six digits or more, or Amazon's 3-7-7 digits.
- An e-mail address may have blanks around its "@", or "at" and "dot" instead. "Look at example.com",
  "the team at example.com" and "v2.4 at example.com" name a site, and stay.
- A tracking number follows a word for "tracking"; or it has eight digits or more after a carrier's name;
  or it has a carrier's form and, where there is one, the right check digit (UPS, USPS, FedEx, DHL, the posts'
  S10, and a few that begin with letters of their own).
- A phone number follows "+" or a word such as "phone"; or it is valid in one of the redactor's regions. Most
  bare numbers of 8 to 11 digits are valid somewhere, so they go too, unless they read as something else: a
  date, a time (also ten digits from 15 to 19..., the seconds since 1970), an amount with its currency, a
  quantity with its unit or in round thousands, "invoice 48213377", a decimal fraction, a ZIP code.

Digits of any script, full-width letters, odd blanks and dashes, percent-encoding and characters that cannot
be seen are read as what they stand for. Not read: HTML entities, base64, numbers in words, addresses without
a dot (root@localhost). Names, streets and cards are not looked for.

    text        the masks, and a text that is being masked
    patterns    credentials, links, e-mail addresses, order and tracking numbers
    numbers     phone numbers by country, numbers that look like one and are none, and an end to the search
    redactor    Redactor: the rules in their order, and nested data
    logs        RedactingFilter

Here are only the hashes that are kept instead of a body or a person.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from semel.core.keys import canonical, hash_of
from semel.errors import InvalidOption, InvalidPayload

if TYPE_CHECKING:
    from semel.redact.logs import RedactingFilter
    from semel.redact.numbers import REGIONS
    from semel.redact.redactor import Redactor
    from semel.redact.text import EMAIL_MASK, MASK

__all__ = [
    "EMAIL_MASK",
    "MASK",
    "PSEUDONYM_DIGITS",
    "REGIONS",
    "Digest",
    "RedactingFilter",
    "Redactor",
    "digest",
    "pseudonym",
]

# Imported when asked for: the rules take long to compile, and logging to load; a digest waits for neither.
_LATER: Final = {
    "EMAIL_MASK": "semel.redact.text",
    "MASK": "semel.redact.text",
    "REGIONS": "semel.redact.numbers",
    "RedactingFilter": "semel.redact.logs",
    "Redactor": "semel.redact.redactor",
}

if not TYPE_CHECKING:  # or any name at all would pass as one of this module

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATER[name]), name)


# Half of a SHA-256: no two of 2^48 people share it by chance, and it fits into a key beside other parts.
PSEUDONYM_DIGITS: Final = 32


class Digest(msgspec.Struct, frozen=True):
    """What is kept of a body instead of the body: its SHA-256 in hex, and its size."""

    sha256: str
    bytes: int


def digest(payload: Any, secret: bytes | None = None) -> Digest:
    """The digest of a payload's canonical JSON; bytes and text are taken as they are.

    With a secret the hash is an HMAC: what is short or guessable, such as a phone number, can be found from
    its plain hash by trying.
    """
    if isinstance(payload, str):
        data = _encoded(payload)
    elif isinstance(payload, bytes | bytearray | memoryview):
        data = bytes(payload)
    else:
        data = canonical(payload)
    return Digest(hash_of(data, secret), len(data))


def pseudonym(value: str, secret: bytes) -> str:
    """A name that stands for a person: the same for the same value and secret, and no way back without it.

    It is keyed, because anyone can hash every phone number there is and look up a plain hash.
    """
    if not secret:
        raise InvalidOption(
            "a pseudonym needs a secret, such as secrets.token_bytes(32), kept with the others"
        )
    return hash_of(_encoded(value), secret)[:PSEUDONYM_DIGITS]


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidPayload("the text holds a lone surrogate: clean it where it comes in") from None
