"""Values in DynamoDB's JSON, and back: `{"S": "text"}`, `{"N": "1.5"}`, `{"B": "base64"}` and their kin."""

from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from math import ceil, floor, isfinite
from typing import Any, TypeAlias

from semel.errors import UsageError
from semel.tables import Form, Kind

Value: TypeAlias = dict[str, Any]
Encode: TypeAlias = Callable[[Any], Value]

# DynamoDB's own limits: 38 digits, and these magnitudes.
MOST_DIGITS = 38
DIGITS = 10**MOST_DIGITS
LARGEST = 9.9999999999999e125
SMALLEST = 1e-130
# Floats up to here that are whole are so to the last digit.
EXACT = 2**53

EPOCH = datetime.fromtimestamp(0, UTC)

# DynamoDB has one kind of number, which is 1 where 1.0 was written. An object that holds whole floats says in
# this field where they are, each by its JSON pointer (RFC 6901); for everybody else the numbers are numbers.
FLOATS = "semel:floats"


# Python to DynamoDB


def number(value: Any) -> str:
    """A number as text that gives the same number back."""
    if isinstance(value, float):
        if not isfinite(value) or abs(value) > LARGEST or 0 < abs(value) < SMALLEST:
            raise UsageError(f"{value} is no number that DynamoDB can hold")
        # A whole one as DynamoDB writes it: an engine that compares texts takes a resent one for the same.
        whole = value.is_integer() and abs(value) < EXACT
        return int.__repr__(int(value)) if whole else float.__repr__(value)
    if not isinstance(value, int):
        raise TypeError(value)
    if not -DIGITS < value < DIGITS:
        raise UsageError(f"{value} has more than the 38 digits that DynamoDB keeps")
    return int.__repr__(value)


def text_value(value: Any) -> Value:
    """Text."""
    if not isinstance(value, str):
        raise TypeError(value)
    return {"S": value}


def number_value(value: Any) -> Value:
    """A number."""
    return {"N": number(value)}


def base64(value: bytes) -> str:
    """Bytes as JSON can hold them."""
    return b2a_base64(value, newline=False).decode("ascii")


def bytes_value(value: Any) -> Value:
    """Bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(value)
    return {"B": base64(value)}  # type: ignore[arg-type]  # binascii takes them all


def flag_value(value: Any) -> Value:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(value)
    return {"BOOL": value}


def object_value(value: Any) -> Value:
    """A dict, as JSON knows it."""
    if not isinstance(value, dict):
        raise TypeError(value)
    if FLOATS in value:
        raise UsageError(f"an object has no field {FLOATS!r}: semel keeps one of that name itself")
    made = plain_value(value)
    if floats := list(_whole_floats(value, "")):
        made["M"][FLOATS] = {"L": [{"S": place} for place in floats]}
    return made


def _whole_floats(value: Any, place: str) -> Iterator[str]:
    """Where in an object the floats are that DynamoDB would give back as whole numbers."""
    match value:
        case float() if value.is_integer():
            yield place
        case dict():
            for name, each in value.items():
                yield from _whole_floats(each, f"{place}/{name.replace('~', '~0').replace('/', '~1')}")
        case list() | tuple():
            for number, each in enumerate(value):
                yield from _whole_floats(each, f"{place}/{number}")


def restored(content: Any) -> Any:
    """An object with its floats as they were."""
    if isinstance(content, dict) and FLOATS in content:
        for place in content.pop(FLOATS):
            _make_float(content, place)
    return content


def _make_float(content: Any, place: str) -> None:
    *way, last = [name.replace("~1", "/").replace("~0", "~") for name in place.split("/")]
    try:
        for name in way[1:]:
            content = content[int(name) if isinstance(content, list) else name]
        at = int(last) if isinstance(content, list) else last
        if isinstance(content[at], int):
            content[at] = float(content[at])
    except (KeyError, IndexError, TypeError, ValueError):
        return  # somebody else has changed the object since


def set_value(value: Any) -> Value:
    """A set of texts, in one order so that equal sets make equal requests."""
    if not isinstance(value, set | frozenset) or not all(isinstance(each, str) for each in value):
        raise TypeError(value)
    return {"SS": sorted(value)}


def plain_value(value: Any) -> Value:
    """Whatever JSON knows."""
    match value:
        case str():
            return {"S": value}
        case bool():
            return {"BOOL": value}
        case int() | float():
            return {"N": number(value)}
        case None:
            return {"NULL": True}
        case list() | tuple():
            return {"L": [plain_value(each) for each in value]}
        case dict() if all(isinstance(name, str) for name in value):
            return {"M": {name: plain_value(each) for name, each in value.items()}}
    raise UsageError(f"an object holds what JSON knows, and not a {type(value).__name__}")


ENCODE: dict[Kind, Encode] = {
    Kind.TEXT: text_value,
    Kind.NUMBER: number_value,
    Kind.BYTES: bytes_value,
    Kind.FLAG: flag_value,
    Kind.OBJECT: object_value,
    Kind.SET: set_value,
}


# DynamoDB to Python


def parsed(text: str) -> int | float:
    """A number from its text: whole where it was written whole, in as many digits as a whole one may have."""
    digits = text[1:] if text[0] == "-" else text
    return int(text) if digits.isdigit() and len(digits) <= MOST_DIGITS else float(text)


def plain(value: Value) -> Any:
    """What a value of any type is in Python."""
    for tag, content in value.items():
        return DECODE[tag](content)
    raise UsageError("a value of DynamoDB has a type")


def _identity(content: Any) -> Any:
    return content


DECODE: dict[str, Callable[[Any], Any]] = {
    "S": _identity,
    "N": parsed,
    "B": a2b_base64,
    "BOOL": _identity,
    "NULL": lambda _: None,
    "M": lambda content: {name: plain(each) for name, each in content.items()},
    "L": lambda content: [plain(each) for each in content],
    "SS": set,
    "NS": lambda content: {parsed(each) for each in content},
    "BS": lambda content: {a2b_base64(each) for each in content},
}


# Moments, where a table's owner writes them otherwise. Ends are rounded up, and what they are compared with
# is rounded down, so that nothing ends before its time.


def milliseconds(moment: float) -> float:
    """A moment in milliseconds, without the noise of the multiplication."""
    return round(moment * 1000, 3)


def iso(moment: float) -> str:
    """A moment as ISO 8601 text in UTC, to the millisecond."""
    text = (EPOCH + timedelta(milliseconds=ceil(milliseconds(moment)))).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def from_iso(text: str) -> float:
    """The moment of an ISO 8601 text; without a zone it is UTC's."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _moment(value: Any) -> float:
    if not isinstance(value, int | float):
        raise TypeError(value)
    return value


FORMED: dict[Form, Encode] = {
    Form.SECONDS: lambda value: {"N": str(ceil(_moment(value)))},
    Form.MILLISECONDS: lambda value: {"N": str(ceil(milliseconds(_moment(value))))},
    Form.ISO: lambda value: {"S": iso(_moment(value))},
}
READ: dict[Form, Callable[[Any], Any]] = {
    Form.MILLISECONDS: lambda content: content / 1000,
    Form.ISO: from_iso,
}
# A moment as it is compared with values of a form; text in ISO is not compared.
COMPARED: dict[Form, Encode] = {
    Form.PLAIN: number_value,
    Form.SECONDS: lambda value: {"N": str(floor(_moment(value)))},
    Form.MILLISECONDS: lambda value: {"N": str(floor(milliseconds(_moment(value))))},
}


# A body in JSON: as text where it is plain, so that everybody can read it.


def body_value(data: Any, encoding: str | None) -> Value:
    """Bytes that are JSON as their text, and others in base64."""
    if not isinstance(data, bytes):
        raise TypeError(data)
    return {"S": data.decode() if encoding == "json" else base64(data)}


def body(text: Any, encoding: str | None) -> Any:
    """The bytes of a body; what is none is given as it is, for the reader to find fault with."""
    if not isinstance(text, str):
        return text
    if encoding == "json":
        return text.encode()
    try:
        return a2b_base64(text)
    except NotBase64:
        return text


# Sizes


def size(item: dict[str, Value]) -> int:
    """How large an item is for DynamoDB: names and values in UTF-8, numbers at their most."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _size(value: Value) -> int:
    for tag, content in value.items():
        match tag:
            case "S":
                return len(content.encode())
            case "N":
                return 21
            case "B":
                return len(content) * 3 // 4
            case "SS":
                return sum(len(each.encode()) for each in content)
            case "M":
                return 3 + len(content) + size(content)
            case "L":
                return 3 + sum(1 + _size(each) for each in content)
    return 1
