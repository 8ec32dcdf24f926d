"""Encrypts stored data other than results in the same way, each value bound to its place.

A sealed object is `{"semel:sealed": "json+aesgcm=KEY:BASE64"}`, and a sealed text the same in one text. What
looks so by itself, without being sealed, is written with a word that says it is clear.
"""

from typing import Any, Final

import msgspec

from semel.core.codecs import COMPRESS_OVER, Encryption, packed, unpacked
from semel.core.commands import Item

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

        data = msgspec.json.encode(value)
        data, encoding = packed(data, _identity(place), encryption, COMPRESS_OVER, steady=steady)
        return f"{encoding}:{b2a_base64(data, newline=False).decode()}"

    def _unsealed(self, text: Any, place: tuple[str, ...]) -> Any:
        from binascii import a2b_base64

        encoding, _, written = str(text).partition(":")
        data = unpacked(a2b_base64(written, strict_mode=True), encoding, _identity(place), self._encryption)
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise ValueError(f"it is no JSON: {error}") from error


def _identity(place: tuple[str, ...]) -> str:
    # A result is bound to one name; what is bound to several is never taken for a result, nor for another.
    return "\0".join(place)
