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
from contextlib import suppress
from functools import lru_cache, partial
from math import isfinite
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from semel.core.functions import annotations_of
from semel.errors import InvalidOption, ResultNotKept, ResultUnreadable, UsageError, fails_again, words_of

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
    """The body of a result, and the `problem` if it is one without a result.

    Of a result that is too large, an overflow may store `oversize`: then the body to store is
    `Codec.overflowed(encoding, reference)`.
    """

    body: Body
    problem: str | None = None
    oversize: bytes | None = None
    encoding: str = ""
    misfit: str = ""
    """Why it is not of the promised type; empty if it is."""


def not_kept(reason: NotKeptReason) -> Body:
    """The body of a record that is completed without a result."""
    if reason not in get_args(NotKeptReason):
        raise InvalidOption(f"{reason!r} is no reason; the reasons are {', '.join(get_args(NotKeptReason))}")
    return Body(None, f"none:{reason}")


# --- Overflow --------------------------------------------------------------------------------------


class Overflow(Protocol):
    """Where results go that are too large for the ledger."""

    def put(self, name: str, data: bytes) -> str:
        """Store the bytes for good, and return a reference to them."""

    def get(self, ref: str) -> bytes:
        """Return the bytes; raise KeyError or FileNotFoundError if they are gone."""

    def delete(self, ref: str) -> None:
        """Remove the bytes, if they are still there."""


# --- Encryption ------------------------------------------------------------------------------------


class Encryption:
    """AES-GCM for what a ledger stores: the active key encrypts, and every key decrypts.

    To rotate, add a key, make it the active one, and drop the old one when what it encrypted has expired.
    """

    def __init__(self, keys: Mapping[str, bytes], active: str) -> None:
        if active not in keys:
            raise InvalidOption(f"the active key {active!r} is not among the keys: {', '.join(sorted(keys))}")
        for name, key in keys.items():
            _check_key(name, key)
        from hmac import digest

        from semel.core.runtime import require

        # Imported here and not at the first use, which would be after the effect has happened.
        cipher = require("cryptography.hazmat.primitives.ciphers.aead", "crypto").AESGCM
        self.active = active
        self._ciphers: dict[str, Any] = {name: cipher(key) for name, key in keys.items()}
        self._nonce_key = digest(keys[active], b"semel: nonces", "sha256")

    @classmethod
    def from_secret(cls, secret: bytes) -> "Encryption":
        """Derive the key from the ledger's secret, for an application that keeps no other."""
        from hmac import digest

        # By another hash than pseudonyms are made with: none of those, whatever its text, is this key.
        key = digest(secret, b"semel: results and messages", "sha512")[:32]
        # The name tells one key from the next, and nothing about either.
        name = f"derived-{digest(key, b'name', 'sha256').hex()[:8]}"
        return cls({name: key}, name)

    def __repr__(self) -> str:
        return f"<Encryption active={self.active!r} of {sorted(self._ciphers)}>"

    def seal(self, data: bytes, bound_to: bytes, *, steady: bool = False) -> bytes:
        """Encrypt; decrypting takes the same `bound_to`.

        If `steady`, the same data becomes the same bytes, so that a write that is sent again can be
        recognised: the nonce is a keyed hash of both, and not random.
        """
        if steady:
            from hmac import digest

            # With its length first, so that what is bound and what is sealed cannot run into each other.
            both = len(bound_to).to_bytes(4) + bound_to + data
            nonce = digest(self._nonce_key, both, "sha256")[:NONCE_BYTES]
        else:
            nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._ciphers[self.active].encrypt(nonce, data, bound_to)
        return nonce + sealed

    def unseal(self, data: bytes, bound_to: bytes, key: str) -> bytes:
        """Decrypt, or raise a ValueError that says why that is impossible."""
        if key not in self._ciphers:
            raise ValueError(f"it is encrypted with the key {key!r}, which is not among the keys given")
        from cryptography.exceptions import InvalidTag

        try:
            return self._ciphers[key].decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], bound_to)  # type: ignore[no-any-return]
        except (InvalidTag, ValueError):
            raise ValueError("it was changed, moved from another record, or encrypted otherwise") from None


def _check_key(name: str, key: bytes) -> None:
    # The name is part of an encoding, whose steps are joined by "+" and "=".
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise InvalidOption(f"{name!r} cannot name a key: use up to 64 letters, digits, '.', '_' and '-'")
    if not isinstance(key, bytes) or len(key) not in (16, 24, 32):
        raise InvalidOption(f"the key {name!r} must be 16, 24 or 32 bytes, as AES takes them")


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
    """Return JSON as it is stored, compressed if large and encrypted if asked; and its encoding."""
    if len(data) > compress_over:
        import zlib

        smaller = zlib.compress(data, ZLIB_LEVEL)
        if len(smaller) < len(data):
            data, encoding = smaller, f"{encoding}+zlib"
    if encryption is not None:
        encoding = f"{encoding}+aesgcm={encryption.active}"
        # An identity holds no control characters, so the two cannot run into each other.
        data = encryption.seal(data, f"{identity}\0{encoding}".encode(), steady=steady)
    return data, encoding


def unpacked(data: bytes, encoding: str, identity: str, encryption: Encryption | None) -> bytes:
    """Return the JSON inside, or raise a `ValueError` that says why it cannot be read."""
    inner, plus, last = encoding.rpartition("+")
    step, _, key = last.partition("=")
    if not plus and encoding in (PLAIN, UNTYPED):
        return data
    if plus and step == "zlib":
        data = _decompress(data)
    elif plus and step == "aesgcm":
        if encryption is None:
            raise ValueError(f"it is encrypted with the key {key!r}, and no encryption is set up")
        data = encryption.unseal(data, f"{identity}\0{encoding}".encode(), key)
    else:
        raise ValueError(f"its encoding {encoding!r} is unknown to this version")
    return unpacked(data, inner, identity, encryption)


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
        """Return a value as a body; a value that JSON cannot write becomes a body without a result.

        `promised` will read it: a value that it cannot read is stored as one of any type.
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
        """Return the value of a body that is not in an overflow store."""
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
        """Return the JSON inside the bytes of a body, or of what an overflow store returned."""
        try:
            return unpacked(data, encoding.removesuffix("+overflow"), identity, self.encryption)
        except ValueError as error:
            raise ResultUnreadable(identity, str(error)) from error

    @staticmethod
    def overflowed(encoding: str, ref: str) -> Body:
        """Return the body of a result that is in an overflow store."""
        return Body(ref.encode(), f"{encoding}+overflow")

    @staticmethod
    def reference(body: Body) -> str | None:
        """Return the reference into the overflow store; None if the result is in the body itself."""
        if body.data is None or not body.encoding.endswith("+overflow"):
            return None
        return body.data.decode("utf-8", "replace")

    @staticmethod
    def fetched(body: Body, data: bytes) -> Body:
        """Return the body with the data from the overflow store."""
        return Body(data, body.encoding.removesuffix("+overflow"))

    def pack(self, data: bytes, identity: str, encoding: str = PLAIN, misfit: str = "") -> Encoded:
        """Return a value that is JSON already as a body."""
        size = len(data)
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
    for kind, plain in _PLAIN_TYPES.items():
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


# Of their subclasses, such as numpy's float64, what comes back is equal to them.
_PLAIN_TYPES: Final[dict[type, Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}
_encode: Final = msgspec.json.Encoder(enc_hook=_enc_hook).encode


def _json(value: Any) -> bytes:
    data = _encode(value)
    if b"null" in data and value is not None:
        _refuse_nan(value)
    if type(value) not in _WITHOUT_DICTS:
        check_names(value)
    return data


_SCALARS: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None), msgspec.UnsetType})
_TEXT: Final = frozenset({str})
_WITHOUT_DICTS: Final[set[type]] = set(_SCALARS)


def holds_no_dict(kind: type[T]) -> type[T]:
    """Declare that no value of a type holds a dict, which could have two names that are one in JSON."""
    _WITHOUT_DICTS.add(kind)
    return kind


_BYTES: Final = (bytes, bytearray, memoryview)


def check_names(value: Any) -> None:
    """Refuse a dict of which two names are one in JSON, such as `{1: "a", "1": "b"}`, wherever it stands."""
    kind = type(value)
    inner: Iterable[Any]
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            _refuse_merged(value)
        inner = value.values()
    elif kind is list or kind is tuple:
        inner = value
    elif isinstance(value, msgspec.Struct):
        inner = msgspec.structs.astuple(value)  # no two of its fields have one name
    else:
        made = msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=_enc_hook)
        inner = () if type(made) is kind else (made,)
    for one in inner:
        kind = type(one)
        # Pairs of texts, such as headers, need no call of their own.
        if kind not in _SCALARS and not (kind is tuple and _SCALARS.issuperset(map(type, one))):
            check_names(one)


def check_details(details: dict[str, Any]) -> None:
    """Refuse details that JSON cannot write, or in which two names are one in JSON."""
    if _SCALARS.issuperset(map(type, details.values())) and _TEXT.issuperset(map(type, details)):
        return
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
    if type(value) is dict and _NEVER_NAN.issuperset(map(type, value.values())):
        return
    left = [msgspec.to_builtins(value, enc_hook=_enc_hook)]
    for one in left:
        if isinstance(one, float) and not isfinite(one):
            raise ValueError(f"{one} cannot be written as JSON: return None, or text")
        if isinstance(one, dict | list | tuple):
            left += one.values() if isinstance(one, dict) else one


def _dec_hook(kind: Any, value: Any) -> Any:
    if kind is object:
        return value
    if not hasattr(kind, "model_validate_json"):
        raise NotImplementedError(f"a {kind} cannot be made from JSON: pass a type that can with returns=")
    # As JSON and not as Python values, so that a strict model takes a date that was written as text; by
    # the fields' own names, because that is how it was dumped, also where a field has an alias.
    return kind.model_validate_json(msgspec.json.encode(value), by_alias=False, by_name=True)


UNRESOLVED: Final = object()
"""The type of a function whose annotation names what is not defined yet."""


def decoder_for(annotation: Any) -> Decoder:
    """Return the decoder of results of a type; `Any`, `object` and no annotation leave JSON's own types."""
    try:
        return _decoder(annotation)
    except TypeError:  # an annotation that cannot be hashed, such as Annotated[int, []]
        return _decoder.__wrapped__(annotation)


@lru_cache(maxsize=256)
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


ANYTHING: Final = decoder_for(Any)
"""Reads JSON as what JSON has."""


def returns_of(function: Callable[..., Any]) -> Any:
    """Return a function's return annotation: `Any` if it has none, UNRESOLVED if it is not defined yet.

    The class may be defined further down, so UNRESOLVED is worth a second try at the first call.
    """
    from types import SimpleNamespace
    from typing import get_type_hints

    function = _written(function)
    try:
        annotation = annotations_of(function).get("return", Any)
        if annotation is not None and not isinstance(annotation, type):
            # By itself: parameters may name what is only imported for type checking.
            alone = SimpleNamespace(__annotations__={"return": annotation})
            annotation = get_type_hints(alone, _names(function), include_extras=True)["return"]
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
    if code is not None:
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            with suppress(ValueError):  # not assigned yet
                names[name] = cell.cell_contents
    return names
