"""What all the rules of one environment and scope have in common: names, hashes of persons, sealed values.

Stored data other than results is encrypted in the same way, each value bound to its place. A sealed object is
`{"semel:sealed": "json+aesgcm=KEY:BASE64"}`, and a sealed text the same in one text. What looks so by itself,
without being sealed, is written with a word that says it is clear.
"""

from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from semel.core.codecs import COMPRESS_OVER, Encryption, check_names, packed, unpacked
from semel.core.commands import Found, Item, Steps, Time
from semel.core.events import Events
from semel.core.keys import Key, check, prefix
from semel.core.runtime import Concealed, random_token
from semel.errors import InvalidOption, UsageError, fails_again, words_of

if TYPE_CHECKING:
    from semel.redact import Redactor


Moment: TypeAlias = float | datetime


SEALED: Final = "semel:sealed"
_CLEAR: Final = "clear"


class Sealing:
    """Seals texts and objects where there is an encryption; where there is none, they stay as they are.

    What is sealed anew is another text each time; what is `steady` is the same one as long as it says the
    same at the same place, so that a write which is made again is known for the same.
    """

    def __init__(self, encryption: Encryption | None = None) -> None:
        self._encryption = encryption

    def object(self, value: Item, *place: str, steady: bool = False) -> Item:
        """An object as it is kept at its place."""
        if self._encryption is not None:
            return {SEALED: self._sealed(self._encryption, value, place, steady)}
        return value if SEALED not in value else {SEALED: _CLEAR, "value": value}

    def opened(self, kept: Any, *place: str) -> Any:
        """The object that is kept there; `ValueError` says why it cannot be read."""
        if type(kept) is not dict or SEALED not in kept:
            return kept
        text = kept[SEALED]
        return kept.get("value") if text == _CLEAR else self._unsealed(text, place)

    def text(self, value: str, *place: str, steady: bool = False) -> str:
        """A text as it is kept at its place; an empty one tells nothing."""
        if self._encryption is not None and value != "":
            return f"{SEALED}:{self._sealed(self._encryption, value, place, steady)}"
        return value if not value.startswith(SEALED) else f"{SEALED}:{_CLEAR}:{value}"

    def opened_text(self, kept: str, *place: str) -> str:
        """The text that is kept there or, where it cannot be read, why."""
        if not kept.startswith(SEALED):
            return kept
        text = kept[len(SEALED) + 1 :]
        if text.startswith(f"{_CLEAR}:"):
            return text[len(_CLEAR) + 1 :]
        try:
            return str(self._unsealed(text, place))
        except ValueError as error:
            return f"<{error}>"

    @staticmethod
    def _sealed(encryption: Encryption, value: Any, place: tuple[str, ...], steady: bool) -> str:
        from binascii import b2a_base64

        # A result is bound to one name; what is bound to several is taken for no result, nor for another.
        data = msgspec.json.encode(value)
        data, encoding = packed(data, "\0".join(place), encryption, COMPRESS_OVER, steady=steady)
        return f"{encoding}:{b2a_base64(data, newline=False).decode()}"

    def _unsealed(self, text: Any, place: tuple[str, ...]) -> Any:
        from binascii import a2b_base64

        encoding, _, written = str(text).partition(":")
        data = unpacked(a2b_base64(written, strict_mode=True), encoding, "\0".join(place), self._encryption)
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise ValueError(f"it is no JSON: {error}") from error


class SubjectHash(str):
    """The keyed hash of a person, which stands for it as it is."""

    __slots__ = ()


class Realm(Concealed, msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Where keys are named, persons are hidden, bodies are sealed and tokens are drawn."""

    env: str = "dev"
    scope: str = ""
    events: Events = msgspec.field(default_factory=Events)
    horizon: float = 0.0
    secret: bytes | None = None
    redactor: "Redactor | None" = None
    sealing: Sealing = Sealing()
    token: Callable[[], str] = random_token
    worker: str = ""
    """The name that the caller gave to whoever is at work here; "" for the host and the process."""

    @cached_property
    def prefix(self) -> str:
        """What stands before every key."""
        return prefix(self.env, self.scope)

    def name(self, key: str | Key) -> str:
        """The key's qualified name: environment, scope, key."""
        return self.prefix + check(key)

    def subject(self, person: str) -> str:
        """What stands for a person in rows that are to be found again when he asks to be forgotten."""
        if isinstance(person, SubjectHash):
            return str.__str__(person)
        if not isinstance(person, str) or not person.strip():
            # Whatever it is, it is not shown: it may well be somebody's.
            kind = "blank one" if isinstance(person, str) else type(person).__name__
            raise UsageError(f"a person is named by a text that says something, not by a {kind}")
        # Scopes share the index of all subjects, and do not find each other's in it.
        return self.pseudonym(self.prefix + person)

    def subject_of(self, person: str | None) -> str | None:
        """What stands for a person, where there may be none."""
        return None if person is None else self.subject(person)

    def pseudonym(self, value: str) -> str:
        """A keyed hash in place of a text that tells too much."""
        from semel.redact import pseudonym

        if self.secret is None:
            raise UsageError(
                "a person is named by a hash that nobody else can make, and for that the ledger needs a "
                "secret: connect(..., secret=b'...')"
            )
        return pseudonym(value, self.secret)

    def redacted(self, value: Any) -> Any:
        """A value as it may be kept for people to read."""
        return value if self.redactor is None else self.redactor.json(value)

    def now(self, at: Moment | None = None) -> Steps[float]:
        """The moment that is meant: the caller's, or the store's now."""
        if at is not None:
            return moment_of(at)
        found: Found = yield Time()
        return found.now


def moment_of(at: Any) -> float:
    """A moment as seconds since the epoch, from those or from a datetime that knows its zone."""
    if hasattr(at, "timestamp"):
        if getattr(at, "tzinfo", None) is None:
            raise InvalidOption(f"{at!r} has no time zone, so it is no moment: give it one")
        return float(at.timestamp())
    if isinstance(at, bool) or not isinstance(at, int | float) or not abs(at) < float("inf"):
        raise InvalidOption(f"a moment is seconds since the epoch or a datetime, not {at!r}")
    return float(at)


# Numbers up to here come back from every store as they went in.
LARGEST, SMALLEST = 2**64 - 1, -(2**63)
BYTES = (bytes, bytearray, memoryview)
# What JSON has as it is.
PLAIN = frozenset({str, int, float, bool, type(None)})


def plain(name: str, value: Any, *, typed: bool = False) -> Any:
    """A copy of a value in the types that JSON has; refused is what would come back as something else.

    Bytes would come back as text. That is as it should be where they are `typed`: their reader knows.
    """
    made = value
    if type(value) not in PLAIN:
        try:
            made = _builtins(value, typed)
        except Exception as error:
            if not fails_again(lambda: _builtins(value, typed)):
                raise
            raise UsageError(f"{name!r} cannot be kept: {words_of(error)}") from error
    left = [made]
    for one in left:  # which grows meanwhile
        kind = type(one)
        if kind is dict:
            left += one
            left += one.values()
        elif kind is list or kind is tuple:
            left += one
        elif not (one.isascii() if kind is str else kind is bool or one is None):
            _check(name, one)
    return made


def _builtins(value: Any, typed: bool) -> Any:
    check_names(value)
    return msgspec.to_builtins(
        value, builtin_types=() if typed else BYTES, str_keys=True, order="deterministic"
    )


def _check(name: str, value: Any) -> None:
    if isinstance(value, BYTES):
        raise UsageError(f"{name!r} holds bytes, which JSON has not: write them as text, in base64 say")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{name!r} holds text with half a character in it: {error}") from error
    elif isinstance(value, float):
        if not isfinite(value):
            raise UsageError(f"{name!r} holds {value}, which JSON cannot write: use None or text")
    elif not SMALLEST <= value <= LARGEST:
        raise UsageError(f"{name!r} holds a number of more than 64 bits: write it as text")


def copied(value: Any) -> Any:
    """A copy of what a store gave, so that whoever changes it changes nothing else."""
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    if isinstance(value, list):
        return [copied(one) for one in value]
    return set(value) if isinstance(value, set) else value
