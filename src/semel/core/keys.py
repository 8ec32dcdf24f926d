"""Keys and fingerprints: what a piece of work is called, and what it was called with.

A key is parts joined by ":", each part escaped, so that no two lists of parts share a key:

    Key("charge", "o:1")  ->  "charge:o%3A1"

After a ">" comes a step inside the work on a key, such as "evt:1>reply"; in parts it is escaped too. A "::"
stands only in keys that semel makes for messages, such as "inbox::jobs:evt:1": no part is empty.

A fingerprint is the SHA-256 of a payload's canonical JSON (RFC 8785), or its HMAC under a secret.
"""

import re
from collections.abc import Callable, Mapping

# msgspec has imported these four already, so they cost nothing here.
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self
from uuid import UUID

import msgspec

from semel.core.functions import signature_of
from semel.errors import InvalidKey, InvalidPayload, TemplateError, fails_again, words_of

if TYPE_CHECKING:
    from _hashlib import HASH
    from inspect import Signature
    from types import CodeType

# DynamoDB's partition key holds 2048 bytes, and environment and scope need room in it too.
MAX_KEY_BYTES: Final = 1024

# Environment and scope are written before every key, both escaped (at most three times as long).
MAX_NAME_BYTES: Final = 128

# So many characters fit into MAX_KEY_BYTES whatever they are: UTF-8 takes at most four bytes for each.
SURELY_FITS: Final = MAX_KEY_BYTES // 4

# Beyond 2^53 - 1 other languages' numbers, and so their fingerprints, would differ from ours.
MAX_INTEGER: Final = 2**53 - 1

_TEXT: Final = frozenset({str})
_CONTROL: Final = r"[\x00-\x1f\x7f-\x9f]"


# --- Keys ------------------------------------------------------------------------------------------


class Key(str):
    """A key made of parts: `Key("charge", order_id)`."""

    __slots__ = ()

    def __new__(cls, *parts: Any) -> Self:
        """Escape the parts and join them."""
        if _TEXT.issuperset(map(type, parts)) and all(parts):
            text = ":".join(parts)
            short = len(text) <= SURELY_FITS and text.count(":") == len(parts) - 1
            if short and text.isprintable() and "%" not in text and ">" not in text:
                return str.__new__(cls, text)
        return str.__new__(cls, check(":".join([part(value) for value in parts])))

    def __repr__(self) -> str:
        """Show the rendered text, which is what the key is compared by."""
        return f"<Key {str(self)!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Through __new__, copying and unpickling would escape the text a second time.
        return str.__new__, (Key, str(self))


def part(value: Any) -> str:
    """One part of a key, escaped."""
    if type(value) is int:
        return _digits(value)
    if type(value) is not str:
        value = _read_text(value)
    short = 0 < len(value) <= SURELY_FITS
    if short and value.isprintable() and ":" not in value and "%" not in value and ">" not in value:
        return value  # type: ignore[no-any-return]  # a str by now, which mypy does not follow through Any
    return check(value).replace("%", "%25").replace(":", "%3A").replace(">", "%3E")


def check(key: str) -> str:
    """A whole key as plain text, or InvalidKey."""
    if type(key) is str and 0 < len(key) <= SURELY_FITS and key.isprintable():
        return key
    if type(key) is Key:
        return str.__str__(key)  # it was checked when it was made
    if not isinstance(key, str):
        raise InvalidKey(f"a key is text or a Key, not {_kind(key)}: build one with Key(...)")
    if not key:
        raise InvalidKey("a key, or a part of one, must not be empty: it would name nothing")
    return _checked(str.__str__(key), MAX_KEY_BYTES, "a key", InvalidKey)


def own_key(kind: str, *parts: Any) -> str:
    """The key of a message of this kind: no `Key` and no template makes the same."""
    return check(f"{kind}::{Key(*parts)}")


def message_key(inbox: str, key: str) -> str:
    """The key under which the ledger knows a message of an inbox."""
    return check(f"{_of_inbox(inbox)}{check(key)}")


def key_in_inbox(inbox: str, key: str) -> str:
    """The key of the message that a key of the ledger, or one of its steps, is about."""
    return key.removeprefix(_of_inbox(inbox)).partition(">")[0]


def refuse_message_key(key: str) -> str:
    """Refuse a key that is a message's; one of its steps is work like any other."""
    if isinstance(key, str) and key.startswith("inbox::") and ">" not in key:
        raise InvalidKey(f"{_shown(key)} is the key of a message in an inbox: give this work another key")
    return key


def _of_inbox(name: str) -> str:
    return f"inbox::{part(name)}:"


def step_of(key: str, *parts: Any) -> str:
    """The key of a step inside the work on a key."""
    steps = [part(value) for value in parts]
    if not steps:
        raise InvalidKey("a step needs a name of its own")
    return check(f"{key}>{':'.join(steps)}")


def is_step_of(step: str, key: str) -> bool:
    """Whether one qualified name is a step inside the work on another."""
    return step.startswith(f"{key}>")


def prefix(env: str, scope: str) -> str:
    """What stands before every key of one environment and scope."""
    if not env:
        raise InvalidKey('an environment must have a name, such as "dev" or "prod"')
    return f"{_name(env, 'an environment')}/{_name(scope, 'a scope')}/"


def key_of(id: str) -> str:
    """The key in a qualified name, as its caller wrote it."""
    return id.split("/", 2)[2]


def owned(scope: str, owner: str) -> str:
    """Return the scope of an owner inside a scope, either of which may be empty; no two others share it.

    An owner in no scope is unchanged, unless it has what joins or escapes: it could be taken for both.
    """
    if scope:
        return f"{part(scope)}:{part(owner) if owner else ''}"
    return part(owner) if ":" in owner or "%" in owner else owner


def _name(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise InvalidKey(f"{what} is text, not {_kind(text)}")
    name = _checked(str.__str__(text), MAX_NAME_BYTES, what, InvalidKey)
    return name.replace("%", "%25").replace("/", "%2F")


def _checked(text: str, limit: int, what: str, error: type[InvalidKey] | type[TemplateError]) -> str:
    # The length in characters is known at once: a text of megabytes is never read.
    if len(text) > limit or len(text.encode("utf-8", "replace")) > limit:
        raise error(f"{what} has at most {limit} bytes; hash what is longer: {_shown(text)}")
    if re.search(_CONTROL, text):
        raise error(f"{what} must not contain control characters: {_shown(text)}")
    if re.search("[\ud800-\udfff]", text):
        raise error(f"{what} must be valid Unicode, without lone surrogates: {_shown(text)}")
    return text


def _read_text(value: Any) -> str:
    try:
        text = _text_of(value)
    except InvalidKey:
        raise
    except Exception as error:
        if not fails_again(lambda: _text_of(value)):
            raise
        raise InvalidKey(
            f"a value of type {type(value).__name__} cannot be part of a key: reading it raises "
            f"{type(error).__name__}"
        ) from error
    if type(text) is not str:
        raise InvalidKey(f"{_kind(value)} cannot be part of a key: its text is {_kind(text)}")
    return text


def _text_of(value: Any) -> str:
    # The lasting text of a value that is not exactly a str.
    if isinstance(value, Enum):
        inner = value.value
        return inner if type(inner) is str else _text_of(inner)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _digits(int(value))
    if isinstance(value, UUID) or (isinstance(value, Decimal) and value.is_finite()):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    raise InvalidKey(
        f"{_kind(value)} cannot be part of a key, because its text names nothing lasting: use text, a whole "
        "number, a UUID, an Enum, a date, a finite Decimal, or such an attribute of it, as in {order.id}"
    )


def _digits(number: int) -> str:
    if number.bit_length() > MAX_KEY_BYTES * 3:  # three bits and a third make a digit
        raise InvalidKey(f"a whole number of {number.bit_length()} bits is too long for a key: hash it")
    return str(number)


def _kind(value: Any) -> str:
    # Only harmless values are shown: an object's repr may hold what no log should.
    if value is None or type(value) in (bool, float):
        return repr(value)
    return f"a value of type {type(value).__name__}"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}... ({len(text)} characters)"


# --- Calls: binding arguments, filling templates ---------------------------------------------------


class _Code(str):
    # Source code in the place of a default value.
    __slots__ = ()
    __repr__ = str.__str__


def compile_binder(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Compile a function with the same signature, which returns its arguments by name, defaults included."""
    signature = signature_of(function)
    names, parameters, scope = [], [], dict[str, Any]()
    for place, one in enumerate(signature.parameters.values()):
        names.append(f"{one.name!r}: {one.name}")
        given = one.default is not one.empty
        scope[f"default_{place}"] = one.default
        default = _Code(f"default_{place}") if given else one.empty
        parameters.append(one.replace(annotation=one.empty, default=default))
    bare = signature.replace(parameters=parameters, return_annotation=signature.empty)
    # Ten times as fast as Signature.bind. Every name is an identifier: inspect.Parameter sees to it.
    exec(_compiled(f"def bind{bare}: return {{{', '.join(names)}}}"), scope)  # noqa: S102
    bind: Callable[..., dict[str, Any]] = scope["bind"]
    # Python names the function in the TypeError of a wrong call by this.
    bind.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)
    return bind


# A step's function is often made anew for each call, and is the same but for what it closes over.
@lru_cache(maxsize=256)
def _compiled(source: str) -> "CodeType":
    return compile(source, "<semel>", "exec")


# What reads one field of a template. All but its first statement is the fast half of part(), written in line.
_READ_FIELD: Final = f"""
 try: {{v}} = {{source}}
 except Exception as error:
  if not fails_again(lambda: {{source}}): raise
  raise missing({{field!r}}, error) from error
 if type({{v}}) is int and -{MAX_INTEGER} <= {{v}} <= {MAX_INTEGER}: {{v}} = str({{v}})
 elif (type({{v}}) is not str or not 0 < len({{v}}) <= {SURELY_FITS} or not {{v}}.isprintable()
   or ':' in {{v}} or '%' in {{v}} or '>' in {{v}}): {{v}} = escape({{field!r}}, {{v}})"""


def compile_template(template: str, signature: "Signature") -> Callable[[Mapping[str, Any]], str]:
    """Compile a function from bound arguments to the key that the template makes of them."""

    def escape(field: str, value: Any) -> str:
        try:
            return part(value)
        except InvalidKey as error:
            raise InvalidKey(f"{{{field}}} of {template!r}: {error}") from None

    def missing(field: str, error: Exception) -> TemplateError:
        absent = isinstance(error, AttributeError | LookupError | TypeError)
        problem = f"{'was not found' if absent else 'cannot be read'}: {type(error).__name__}"
        return TemplateError(f"{{{field}}} of {template!r} {problem}: {words_of(error)}")

    scope: dict[str, Any] = {"escape": escape, "missing": missing, "check": check, "fails_again": fails_again}
    exec(_compiled(_render_source(template, signature)), scope)  # noqa: S102
    render: Callable[[Mapping[str, Any]], str] = scope["render"]
    return render


def skeleton(template: str) -> str:
    """Return a template without the names of its fields: two that are equal then make equal keys."""
    pieces = [(text.replace("{", "{{"), "" if name is None else "{}") for text, name in _parsed(template)]
    return "".join(["".join(piece) for piece in pieces])


def _render_source(template: str, signature: "Signature") -> str:
    # Every text of the template goes in by repr, so nothing in it can become code.
    lines, joined = ["def render(bound):"], list[str]()
    for place, (literal, field) in enumerate(_pieces(template)):
        if literal:
            joined.append(repr(literal))
        if field is not None:
            joined.append(f"v{place}")
            source = _source(field, template, signature)
            lines.append(_READ_FIELD.format(v=f"v{place}", source=source, field=field))
    names = list(signature.parameters)
    if len(lines) == 1 and names not in ([], ["self"], ["cls"]):
        raise TemplateError(
            f"{template!r} names no parameter, so every call would share one key: "
            f"add a field, such as {{{names[-1]}}}"
        )
    lines += [f" key = {' + '.join(joined)}", f" return key if 0 < len(key) <= {SURELY_FITS} else check(key)"]
    return "\n".join(lines)


def _pieces(template: str) -> list[tuple[str, str | None]]:
    between, parsed = ":", _parsed(template)
    for literal, name in parsed:
        if "::" in literal:
            raise TemplateError(
                f"{template!r} has an empty part, as only keys of messages have: remove a ':'"
            )
        between += literal
        if name is None:
            continue
        if ":" not in between:
            raise TemplateError(
                f"{template!r} needs a ':' before {{{name}}}: values have it escaped, so it keeps two fields "
                f"apart, as {between!r} does not"
            )
        between = ""
    if not parsed:
        raise TemplateError("a template must not be empty")
    return parsed


def _parsed(template: str) -> list[tuple[str, str | None]]:
    # The template's literal texts, each with the name of the field behind it.
    from string import Formatter

    _checked(template, MAX_KEY_BYTES, "a template", TemplateError)
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise TemplateError(f"{template!r} is not a template: {error}") from error
    for _, name, spec, conversion in parsed:
        if spec or conversion:
            raise TemplateError(
                f"{{{name}}} of {template!r} has a conversion or a format, which could give two values "
                "one key: format the value before the call, or pass a function as the key"
            )
    return [(literal, name) for literal, name, _, _ in parsed]


def _source(field: str, template: str, signature: "Signature") -> str:
    # The expression that finds a field in the bound arguments.
    match = re.fullmatch(r"([^.\[\]]+)((?:\.[^.\[\]]+|\[[^\[\]]+\])*)", field)
    if match is None:
        raise TemplateError(
            f"{{{field}}} of {template!r} is no field: write {{order}}, {{order.id}} or {{items[0]}}"
        )
    root, steps = match.groups()
    found = f"bound[{root!r}]"
    if root not in signature.parameters:
        found = f"bound[{_others(field, template, signature)!r}][{root!r}]"
    for attribute, item in re.findall(r"\.([^.\[\]]+)|\[([^\[\]]+)\]", steps):
        if attribute:
            found = f"getattr({found}, {attribute!r})"
        else:
            found = f"{found}[{int(item) if item.isdecimal() else item!r}]"
    return found


def _others(field: str, template: str, signature: "Signature") -> str:
    # The parameter with two stars, which takes what is not named.
    for one in signature.parameters.values():
        if one.kind == one.VAR_KEYWORD:
            return one.name
    names = ", ".join(signature.parameters) or "none at all"
    raise TemplateError(f"{{{field}}} of {template!r} names no parameter of the function, which has: {names}")


# --- Fingerprints ----------------------------------------------------------------------------------

_sorted_json: Final = msgspec.json.Encoder(order="sorted").encode


def _load_sha256(data: bytes) -> "HASH":
    # hashlib loads OpenSSL, which takes a tenth of semel's import: that can wait for the first fingerprint.
    global _sha256  # noqa: PLW0603 - it replaces itself, so that later ones pay nothing
    from hashlib import sha256

    _sha256 = sha256
    return sha256(data)


_sha256: "Callable[[bytes], HASH]" = _load_sha256


def fingerprint(payload: Any, secret: bytes | None = None) -> str:
    """Return the SHA-256 of a payload's canonical form, in hex; with a secret, the HMAC."""
    if secret is None:
        try:
            if _is_plain(payload):
                return _sha256(_sorted_json(payload)).hexdigest()
        except (RecursionError, UnicodeEncodeError):
            pass  # canonical() says what is wrong with it
    return hash_of(canonical(payload), secret)


def hash_of(data: bytes, secret: bytes | None = None) -> str:
    """Return the SHA-256 of bytes, in hex; with a secret, the HMAC."""
    if secret is None:
        return _sha256(data).hexdigest()
    from hmac import digest

    return digest(secret, data, "sha256").hex()


def canonical(payload: Any) -> bytes:
    """Return a payload as canonical JSON (RFC 8785); the payload is only read."""
    try:
        if _is_plain(payload):
            return _sorted_json(payload)
        return _canonical_of(_builtin(payload, ()))
    except RecursionError:
        raise InvalidPayload(
            "the payload contains itself, or is nested too deeply: pass what identifies it"
        ) from None
    except UnicodeEncodeError:
        _builtin(payload, ())  # says which text it is
        raise


def canonical_json(text: bytes | str) -> bytes:
    """Return JSON text in its canonical form; refuse a name that occurs twice in one object."""
    import json

    try:
        if not isinstance(text, str):
            text = text.decode("utf-8")
        return canonical(json.loads(text, object_pairs_hook=_object))
    except RecursionError:
        raise InvalidPayload("the payload is nested too deeply") from None
    except InvalidPayload:
        raise
    except ValueError as error:  # not JSON, not UTF-8, or a number too long to read
        raise InvalidPayload(f"the payload is not valid JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise InvalidPayload(f"{_shown(twice)} occurs twice in one object of the payload: keep one of them")


def _is_plain(value: Any) -> bool:
    # Whether msgspec's sorted JSON is RFC 8785 to the byte: no floats, no large integers, and names in
    # ASCII, because the RFC sorts by UTF-16 and msgspec by UTF-8.
    kind = type(value)
    if kind is dict:
        for name, one in value.items():
            if type(name) is not str or not name.isascii():
                return False
            kind = type(one)  # most values are one of these two, and a call costs as much as the rest
            if kind is str or (kind is int and -MAX_INTEGER <= one <= MAX_INTEGER):
                continue
            if not _is_plain(one):
                return False
        return True
    if kind is int:
        return bool(-MAX_INTEGER <= value <= MAX_INTEGER)
    if kind is list or kind is tuple:
        return all([_is_plain(one) for one in value])  # noqa: C419 - a list is quicker for few
    return kind is str or kind is bool or value is None


def _canonical_of(builtin: Any) -> bytes:
    if _is_plain(builtin):
        return _sorted_json(builtin)
    from rfc8785 import dumps

    return dumps(builtin)


_Path = tuple[str | int, ...]


def _builtin(value: Any, path: _Path) -> Any:
    # A payload in JSON's own types, copied; what has no canonical form is refused here, with its place.
    try:
        return _copied(value, path)
    except (InvalidPayload, RecursionError):
        raise
    except Exception as error:
        if not fails_again(lambda: _copied(value, path)):
            raise
        raise InvalidPayload(
            f"{_place(path)} is of type {type(value).__name__}, and reading it raises "
            f"{type(error).__name__}: name the parameters that make up the payload with fingerprint=(...)"
        ) from error


def _copied(value: Any, path: _Path) -> Any:
    if value is None or type(value) is bool:
        return value
    if isinstance(value, dict):
        return {_member(name, path): _builtin(one, (*path, name)) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_builtin(one, (*path, place)) for place, one in enumerate(value)]
    if isinstance(value, set | frozenset):
        # Sorted by what they become, since members of several types have no order of their own.
        return sorted([_builtin(one, (*path, "{}")) for one in value], key=_canonical_of)
    if isinstance(value, Enum):
        return _builtin(value.value, path)
    if isinstance(value, str):
        return _text(str.__str__(value), path)
    if isinstance(value, int | float):
        return _number(value, path)
    return _builtin_object(value, path)


def _builtin_object(value: Any, path: _Path) -> Any:
    if isinstance(value, Decimal) and not value.is_finite():
        _refuse(f"is {value}, which has no canonical form: pass None or text", path)
    if isinstance(value, date | time | timedelta | Decimal | UUID | bytes | bytearray | memoryview):
        return msgspec.to_builtins(value)
    fields = _fields(value)
    if fields is None:
        _refuse(
            f"is of type {type(value).__name__}, which has no canonical form: name the parameters "
            "that make up the payload with fingerprint=(...)",
            path,
        )
    return _builtin(fields, path)


def _fields(value: Any) -> Any:
    # What an object holds, or None where that is unknown; private fields are left out, as msgspec does.
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        tag = {} if config.tag_field is None else {config.tag_field: config.tag}
        return tag | {encoded: getattr(value, name) for encoded, name in names}
    declared: Any = getattr(kind, "__attrs_attrs__", None)
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses

        declared = dataclasses.fields(value)
    if declared is not None:
        return {one.name: getattr(value, one.name) for one in declared if not one.name.startswith("_")}
    # Not mode="json": there a set becomes a list in no order, and a secret becomes "**********".
    return value.model_dump() if hasattr(kind, "model_dump") else None


def _member(name: Any, path: _Path) -> str:
    if not isinstance(name, str):
        _refuse(f"has a key of type {type(name).__name__}: JSON's names are text, so pass a str", path)
    return _text(str.__str__(name), path)


def _text(text: str, path: _Path) -> str:
    if not text.isascii() and re.search("[\ud800-\udfff]", text):
        _refuse("holds a lone surrogate, which is no character: clean the text where it comes in", path)
    return text


def _number(number: float, path: _Path) -> int | float:
    if isinstance(number, int):
        if not -MAX_INTEGER <= number <= MAX_INTEGER:
            _refuse("is an integer beyond 2^53, which other languages round: pass it as a string", path)
        return int(number)
    if not isfinite(number):
        _refuse(f"is {float(number)}, which JSON cannot write: pass None or text", path)
    return float(number)


def _refuse(problem: str, path: _Path) -> NoReturn:
    raise InvalidPayload(f"{_place(path)} {problem}")


def _place(path: _Path) -> str:
    return "payload" + "".join([f"[{_shown(step) if isinstance(step, str) else step}]" for step in path])
