"""Results to bytes and back: JSON, compressed where it helps, encrypted where asked. No pickle.

How a body was made is written beside it, as the steps in their order:

    json    json+zlib    json+zlib+aesgcm=KEYID    json+zlib+overflow    none:too-large

A body with `overflow` last is a reference into an overflow store; one with `none` says why there is no
result. One that begins with `any` in place of `json` is a value that its function's annotation does not
describe; it is given back as JSON has it. Nothing here makes a completed effect run again: what cannot be
written is completed without a body, and what cannot be read is an error.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from math import isfinite
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from semel.core.functions import annotations_of
from semel.errors import (
    InvalidOption,
    ResultNotKept,
    ResultUnreadable,
    UsageError,
    fails_again,
    words_of,
)

T = TypeVar("T")

# A ledger's row should stay a row: what is larger belongs into an overflow store. A store whose rows hold
# less (DynamoDB: 400 KB) asks for less.
MAX_BYTES: Final = 1024 * 1024

# Below a memory page, compression saves no storage and costs more time than the write of what it saves.
COMPRESS_OVER: Final = 4096

# A few kilobytes of zlib can unfold into gigabytes; no result that was ever written unfolds into more.
MAX_UNPACKED: Final = 256 * 1024 * 1024

# The usual balance of size and time, and zlib's own choice.
ZLIB_LEVEL: Final = 6

# 96 bits, the length that AES-GCM is made for. They are random, so a key is good for 2^32 results.
NONCE_BYTES: Final = 12

# Why a completed record has no body. "mark": it was only marked as done; "dropped" and "erased": its result
# was removed, by itself or with all else about a person.
NotKeptReason: TypeAlias = Literal[
    "too-large", "not-serialisable", "overflow-failed", "dropped", "erased", "mark"
]

PLAIN: Final = "json"
"""The encoding of a body that is JSON and nothing else."""
UNTYPED: Final = "any"
"""The encoding of a body that is JSON of a value which is not of the type that was promised."""

Decoder: TypeAlias = msgspec.json.Decoder[Any]


class Body(msgspec.Struct, frozen=True, gc=False):
    """A result as it is stored, and how it was made."""

    data: bytes | None
    encoding: str


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """What became of a result: the body to store and, where it has none, why.

    When a result is too large, `oversize` is what an overflow store may take, and `encoding` is how that
    was made: `Codec.overflowed(encoding, reference)` is then the body to store instead.
    """

    body: Body
    problem: str | None = None
    oversize: bytes | None = None
    encoding: str = ""
    misfit: str = ""
    """Why it is not of the type that was promised, where it is not."""


def not_kept(reason: NotKeptReason) -> Body:
    """The body of a record that is completed without a result."""
    if reason not in get_args(NotKeptReason):
        raise InvalidOption(f"{reason!r} is no reason; the reasons are {', '.join(get_args(NotKeptReason))}")
    return Body(None, f"none:{reason}")


# --- Overflow --------------------------------------------------------------------------------------


class Overflow(Protocol):
    """Where results go that are too large for the ledger."""

    def put(self, name: str, data: bytes) -> str:
        """Keep the bytes for good, and return a reference to them."""

    def get(self, ref: str) -> bytes:
        """The bytes; KeyError or FileNotFoundError when they are gone."""

    def delete(self, ref: str) -> None:
        """Remove the bytes; nothing happens when they are gone already."""


# --- Encryption ------------------------------------------------------------------------------------


class Encryption:
    """AES-GCM for what a ledger keeps: the active key encrypts, and every key named decrypts.

    To rotate, add a key, make it the active one, and drop the old one when what it encrypted has expired.
    """

    def __init__(self, keys: Mapping[str, bytes], active: str) -> None:
        if active not in keys:
            raise InvalidOption(f"the active key {active!r} is not among the keys: {', '.join(sorted(keys))}")
        for name, key in keys.items():
            _check_key(name, key)
        from semel.core.runtime import require

        # Imported here and not at the first use, which would be after the effect has happened.
        cipher = require("cryptography.hazmat.primitives.ciphers.aead", "crypto").AESGCM
        self.active = active
        self._ciphers: dict[str, Any] = {name: cipher(key) for name, key in keys.items()}
        self._nonce_key = _hmac(keys[active], b"semel: nonces")

    @classmethod
    def from_secret(cls, secret: bytes) -> "Encryption":
        """A key made from the ledger's secret, for who has that and nothing else to keep."""
        import hmac

        # By another hash than pseudonyms are made with: none of those, whatever its text, is this key.
        key = hmac.digest(secret, b"semel: results and messages", "sha512")[:32]
        # The name tells one key from the next, and nothing about either.
        name = f"derived-{hmac.digest(key, b'name', 'sha256').hex()[:8]}"
        return cls({name: key}, name)

    def __repr__(self) -> str:
        return f"<Encryption active={self.active!r} of {sorted(self._ciphers)}>"

    def seal(self, data: bytes, bound_to: bytes, *, steady: bool = False) -> bytes:
        """Encrypt; only who names the same `bound_to` can decrypt.

        Where it is to be `steady` the same data gives the same bytes there, so that a write which is made
        again is known for the same: its nonce is a keyed hash of both, and not drawn.
        """
        nonce = self._nonce_of(data, bound_to) if steady else os.urandom(NONCE_BYTES)
        sealed: bytes = self._ciphers[self.active].encrypt(nonce, data, bound_to)
        return nonce + sealed

    def _nonce_of(self, data: bytes, bound_to: bytes) -> bytes:
        # With its length first, so that what is bound and what is sealed cannot run into each other.
        return _hmac(self._nonce_key, len(bound_to).to_bytes(4) + bound_to + data)[:NONCE_BYTES]

    def unseal(self, data: bytes, bound_to: bytes, key: str) -> bytes:
        """Decrypt; ValueError says why that cannot be done."""
        if key not in self._ciphers:
            raise ValueError(f"it is encrypted with the key {key!r}, which is not among the keys given")
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = self._ciphers[key].decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError):
            raise ValueError("it was changed, moved from another record, or encrypted otherwise") from None
        return plain


def _check_key(name: str, key: bytes) -> None:
    # The name is part of an encoding, whose steps are joined by "+" and "=".
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise InvalidOption(f"{name!r} cannot name a key: use up to 64 letters, digits, '.', '_' and '-'")
    if not isinstance(key, bytes) or len(key) not in (16, 24, 32):
        raise InvalidOption(f"the key {name!r} must be 16, 24 or 32 bytes, as AES takes them")


def _hmac(key: bytes, data: bytes) -> bytes:
    import hmac

    return hmac.digest(key, data, "sha256")


def _bound_to(identity: str, encoding: str) -> bytes:
    # An identity holds no control characters, so the two cannot run into each other.
    return f"{identity}\0{encoding}".encode()


# --- Steps and their undoing -----------------------------------------------------------------------


def packed(
    data: bytes,
    identity: str,
    encryption: Encryption | None,
    compress_over: int,
    encoding: str = PLAIN,
    *,
    steady: bool = False,
) -> tuple[bytes, str]:
    """JSON as it is stored, compressed where it is large and encrypted where asked; and how that was made."""
    if len(data) > compress_over:
        data, encoding = _compress(data, encoding)
    if encryption is not None:
        encoding = f"{encoding}+aesgcm={encryption.active}"
        data = encryption.seal(data, _bound_to(identity, encoding), steady=steady)
    return data, encoding


def unpacked(data: bytes, encoding: str, identity: str, encryption: Encryption | None) -> bytes:
    """The JSON inside; `ValueError` says why it cannot be read."""
    steps = encoding.split("+")
    while len(steps) > 1:
        data = _undone(data, steps, identity, encryption)
    if steps not in ([PLAIN], [UNTYPED]):
        raise ValueError(f"its encoding {encoding!r} is unknown to this version")
    return data


def _undone(data: bytes, steps: list[str], identity: str, encryption: Encryption | None) -> bytes:
    # Undo the last step, and take it off the list.
    encoding = "+".join(steps)
    step, _, argument = steps.pop().partition("=")
    if step == "zlib":
        return _decompress(data)
    if step == "aesgcm":
        if encryption is None:
            raise ValueError(f"it is encrypted with the key {argument!r}, and no encryption is set up")
        return encryption.unseal(data, _bound_to(identity, encoding), argument)
    raise ValueError(f"its encoding {encoding!r} is unknown to this version")


# --- The codec -------------------------------------------------------------------------------------


class Codec:
    """Makes bodies of results, and results of bodies."""

    def __init__(
        self,
        *,
        compress_over: int = COMPRESS_OVER,
        max_bytes: int = MAX_BYTES,
        encryption: Encryption | None = None,
    ) -> None:
        if compress_over < 0 or max_bytes < 0:
            raise InvalidOption("compress_over and max_bytes are sizes in bytes, and cannot be negative")
        self.compress_over = compress_over
        self.max_bytes = max_bytes
        self.encryption = encryption

    def encode(self, value: Any, identity: str, promised: Decoder | None = None) -> Encoded:
        """A value as a body; a value that cannot be kept gives a body without a result, not an error.

        `promised` is what will read it: a value that it cannot read is kept as one of any type.
        """
        try:
            data = _json(value)
        except Exception as error:  # the effect has happened: whatever it is, say so
            if not fails_again(lambda: _json(value)):
                raise
            return Encoded(not_kept("not-serialisable"), f"{type(error).__name__}: {words_of(error)}")
        misfit = ""
        if promised is not None:
            try:
                promised.decode(data)
            except Exception as error:  # noqa: BLE001 - a class's own checks may raise anything
                # The first line: those after it may show the value.
                misfit = words_of(error).partition("\n")[0] or type(error).__name__
        size = len(data)
        if size <= self.compress_over and size <= self.max_bytes and self.encryption is None:
            return Encoded(Body(data, UNTYPED if misfit else PLAIN), misfit=misfit)
        return self.pack(data, identity, UNTYPED if misfit else PLAIN, misfit)

    def decode(self, body: Body, decoder: Decoder, identity: str) -> Any:
        """The value of a body that is not in an overflow store."""
        data = body.data
        if data is None or body.encoding != PLAIN:
            data = self._plain(body, identity)
            if body.encoding.partition("+")[0] == UNTYPED:
                decoder = ANYTHING
        try:
            return decoder.decode(data)
        except Exception as error:  # a class's own checks may raise anything
            raise ResultUnreadable(identity, words_of(error) or type(error).__name__) from error

    def unpack(self, data: bytes, encoding: str, identity: str) -> bytes:
        """The JSON inside the bytes of a body, or of what an overflow store gave back."""
        try:
            return unpacked(data, encoding.removesuffix("+overflow"), identity, self.encryption)
        except ValueError as error:
            raise ResultUnreadable(identity, str(error)) from error

    @staticmethod
    def overflowed(encoding: str, ref: str) -> Body:
        """The body of a result that an overflow store keeps."""
        return Body(ref.encode(), f"{encoding}+overflow")

    @staticmethod
    def reference(body: Body) -> str | None:
        """Where the result is in the overflow store; None when it is in the body itself."""
        if body.data is None or not body.encoding.endswith("+overflow"):
            return None
        return body.data.decode("utf-8", "replace")

    @staticmethod
    def fetched(body: Body, data: bytes) -> Body:
        """The body as it would be had it not been in the overflow store."""
        return Body(data, body.encoding.removesuffix("+overflow"))

    def pack(self, data: bytes, identity: str, encoding: str = PLAIN, misfit: str = "") -> Encoded:
        """A value that is JSON already as a body."""
        size = len(data)
        if size <= self.compress_over and size <= self.max_bytes and self.encryption is None:
            return Encoded(Body(data, encoding), misfit=misfit)
        if size > MAX_UNPACKED:
            return Encoded(not_kept("too-large"), f"{size} bytes are more than could be read again")
        data, encoding = packed(data, identity, self.encryption, self.compress_over, encoding)
        if len(data) <= self.max_bytes:
            return Encoded(Body(data, encoding), misfit=misfit)
        problem = f"{len(data)} bytes ({size} as JSON) are more than max_bytes={self.max_bytes}"
        return Encoded(not_kept("too-large"), problem, data, encoding, misfit)

    def _plain(self, body: Body, identity: str) -> bytes:
        if body.data is None:
            if body.encoding.startswith("none:"):
                raise ResultNotKept(identity, body.encoding.removeprefix("none:"))
            raise ResultUnreadable(identity, f"its body is missing, and its encoding is {body.encoding!r}")
        if body.encoding.endswith("+overflow"):
            raise ResultUnreadable(identity, "it is in an overflow store, which was not asked")
        return self.unpack(body.data, body.encoding, identity)


def _compress(data: bytes, encoding: str) -> tuple[bytes, str]:
    import zlib

    smaller = zlib.compress(data, ZLIB_LEVEL)
    return (smaller, f"{encoding}+zlib") if len(smaller) < len(data) else (data, encoding)


def _decompress(data: bytes) -> bytes:
    import zlib

    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, MAX_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"its compressed form is damaged: {error}") from error
    if stream.unconsumed_tail:
        raise ValueError(f"it unfolds into more than {MAX_UNPACKED} bytes, which was never written here")
    if not stream.eof or stream.unused_data:
        raise ValueError("its compressed form is cut off, or has something after its end")
    return plain


# --- JSON ------------------------------------------------------------------------------------------


def _enc_hook(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):
        # round_trip leaves out computed fields, which the model would not take back.
        return value.model_dump(mode="json", round_trip=True)
    # Subclasses, such as numpy's float64: what comes back is equal to them.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


_encode: Final = msgspec.json.Encoder(enc_hook=_enc_hook).encode


def _json(value: Any) -> bytes:
    data = _encode(value)
    if b"null" in data and value is not None:
        _refuse_nan(value)
    if type(value) not in _WITHOUT_DICTS:
        check_names(value)
    return data


_SCALARS: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None), msgspec.UnsetType})
_WITHOUT_DICTS: Final[set[type]] = set(_SCALARS)


def holds_no_dict(kind: type[T]) -> type[T]:
    """Declare that no value of a type holds a dict, which could have two names that are one in JSON."""
    _WITHOUT_DICTS.add(kind)
    return kind


_BYTES: Final = (bytes, bytearray, memoryview)


def check_names(value: Any) -> None:
    """Refuse a dict of which two names are one in JSON, such as `{1: "a", "1": "b"}`, wherever it stands."""
    kind = type(value)
    if kind is dict:
        texts = True
        for name, one in value.items():
            if type(name) is not str:
                texts = False
            if type(one) not in _SCALARS:
                check_names(one)
        if not texts:
            _refuse_merged(value)
    elif kind is list or kind is tuple:
        _check_each(value)
    elif isinstance(value, msgspec.Struct):
        _check_each(msgspec.structs.astuple(value))  # no two of its fields have one name
    else:
        made = msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=_enc_hook)
        if type(made) is not kind:
            check_names(made)


def _check_each(values: Iterable[Any]) -> None:
    for one in values:
        kind = type(one)
        # Pairs of texts, such as headers, need no call of their own.
        if kind not in _SCALARS and not (kind is tuple and _SCALARS.issuperset(map(type, one))):
            check_names(one)


def check_details(details: dict[str, Any]) -> None:
    """Refuse details that JSON cannot write, or in which two names are one in JSON."""
    try:
        check_names(details)
    except Exception as error:
        if not fails_again(lambda: check_names(details)):
            raise
        raise UsageError(f"these details cannot be kept: {words_of(error)}") from error


def _refuse_merged(value: dict[Any, Any]) -> None:
    seen: dict[str, Any] = {}
    for name in value:
        [text] = msgspec.to_builtins({name: None}, enc_hook=_enc_hook, str_keys=True)
        if text in seen:
            raise ValueError(f"{seen[text]!r} and {name!r} are one name in JSON: give one of them another")
        seen[text] = name


# What a dict may hold at no risk of NaN; most results are such, and need no second look.
_NEVER_NAN: Final = frozenset({str, int, bool, type(None)})


def _refuse_nan(value: Any) -> None:
    # msgspec writes NaN and the infinities as null, which would come back as None.
    if type(value) is not dict or not _NEVER_NAN.issuperset(map(type, value.values())):
        _look_for_nan(msgspec.to_builtins(value, enc_hook=_enc_hook))


def _look_for_nan(value: Any) -> None:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        value = (value,)
    for one in value:
        if isinstance(one, float):
            if not isfinite(one):
                raise ValueError(f"{one} cannot be written as JSON: return None, or text")
        elif isinstance(one, dict | list | tuple):
            _look_for_nan(one)


def _dec_hook(kind: Any, value: Any) -> Any:
    if kind is object:
        return value
    if not hasattr(kind, "model_validate_json"):
        raise NotImplementedError(f"a {kind} cannot be made from JSON: pass a type that can with returns=")
    # As JSON and not as Python values, so that a strict model takes a date that was written as text; by
    # the fields' own names, because that is how it was dumped, also where a field has an alias.
    return kind.model_validate_json(msgspec.json.encode(value), by_alias=False, by_name=True)


class _Unresolved:
    # An annotation names what is not defined yet.
    def __repr__(self) -> str:
        return "<unresolved return annotation>"


UNRESOLVED: Final = _Unresolved()


def decoder_for(annotation: Any) -> Decoder:
    """The decoder of results of a type; `Any`, `object` and no annotation leave JSON's own types."""
    try:
        return _cached_decoder(annotation)
    except TypeError:  # an annotation that cannot be hashed, such as Annotated[int, []]
        return _decoder(annotation)


def _decoder(annotation: Any) -> Decoder:
    from inspect import Signature
    from typing import Never

    if annotation is UNRESOLVED:
        raise InvalidOption("the return annotation names what is not defined there: pass returns=...")
    if annotation in (Any, object, NoReturn, Never, Signature.empty):
        annotation = Any
    try:
        return msgspec.json.Decoder(annotation, dec_hook=_dec_hook)
    except Exception as error:  # a user's annotation may fail in any way
        raise InvalidOption(
            f"results of type {annotation} cannot be read back as what they were: pass a type that can with "
            f"returns=..., or returns=Any for plain JSON ({error})"
        ) from error


_cached_decoder = lru_cache(maxsize=256)(_decoder)
ANYTHING: Final = decoder_for(Any)
"""Reads JSON as what JSON has."""


def returns_of(function: Callable[..., Any]) -> Any:
    """What a function says it returns: `Any` if nothing, UNRESOLVED if it names what is not defined yet.

    The class may be defined further down, so UNRESOLVED is worth a second try at the first call.
    """
    from typing import get_type_hints

    function = _written(function)
    try:
        annotation = annotations_of(function).get("return", Any)
        if annotation is not None and not isinstance(annotation, type):
            hints = get_type_hints(_Returns(annotation), _names(function), include_extras=True)
            annotation = hints["return"]
    except (NameError, AttributeError):  # the second where a module is still being imported
        return UNRESOLVED
    except (TypeError, SyntaxError) as error:
        raise InvalidOption(f"what {function} says it returns is no type: pass returns=...") from error
    return annotation if _is_defined(annotation) else UNRESOLVED


def _is_defined(annotation: Any) -> bool:
    # A class that exists may have fields whose own classes do not exist yet.
    try:
        decoder_for(annotation)
    except InvalidOption as error:
        return not isinstance(error.__cause__, NameError)
    return True


class _Returns:
    # The return annotation by itself: parameters may name what is only imported for type checking.
    def __init__(self, annotation: Any) -> None:
        self.__annotations__ = {"return": annotation}


def _written(function: Any) -> Any:
    # The function as somebody wrote it: under decorators and partials, or behind an object's __call__.
    while True:
        if hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, partial):
            function = function.func
        else:
            return function if hasattr(function, "__code__") else type(function).__call__


def _names(function: Any) -> dict[str, Any]:
    names = dict(getattr(function, "__globals__", {}))
    code = getattr(function, "__code__", None)
    if code is None:
        return names
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names
