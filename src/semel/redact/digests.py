"""What is kept instead of a body or a person: a hash."""

import hashlib
import hmac
from typing import Any, Final

import msgspec

from semel.core.keys import canonical
from semel.errors import InvalidOption, InvalidPayload

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
    return Digest(_hash(data, secret), len(data))


def pseudonym(value: str, secret: bytes) -> str:
    """A name that stands for a person: the same for the same value and secret, and no way back without it.

    It is keyed, because anyone can hash every phone number there is and look up a plain hash.
    """
    if not secret:
        raise InvalidOption(
            "a pseudonym needs a secret, such as secrets.token_bytes(32), kept with the others"
        )
    return _hash(_encoded(value), secret)[:PSEUDONYM_DIGITS]


def _hash(data: bytes, secret: bytes | None) -> str:
    return hashlib.sha256(data).hexdigest() if secret is None else hmac.digest(secret, data, "sha256").hex()


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidPayload("the text holds a lone surrogate: clean it where it comes in") from None
