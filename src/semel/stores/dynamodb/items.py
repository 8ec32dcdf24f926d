"""How items look in DynamoDB: each value in its JSON, such as `{"N": "1.5"}`, and each table's items."""

import os
import re
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import ceil, floor, isfinite
from typing import Any, TypeAlias

from semel.core.commands import After, Item, Sort
from semel.core.keys import prefix
from semel.errors import InvalidOption, UsageError
from semel.tables import FOREVER, Kind, Table
from semel.tables.mapping import Column, Form, Same, TableMapping, mapped

Value: TypeAlias = dict[str, Any]
Encode: TypeAlias = Callable[[Any], Value]
Decode: TypeAlias = Callable[[Any], Any]
# What the server's clock has certainly reached, and what it has certainly not passed.
ClockReading: TypeAlias = tuple[float, float]

# DynamoDB's own limits: 38 digits, and these magnitudes.
MOST_DIGITS = 38
DIGITS = 10**MOST_DIGITS
LARGEST = 9.9999999999999e125
SMALLEST = 1e-130
# Floats up to here that are whole are so to the last digit.
EXACT = 2**53

EPOCH = datetime.fromtimestamp(0, UTC)

# DynamoDB has one kind of number, which is 1 where 1.0 was written. An object that holds whole floats says in
# this field where they are, each by its JSON pointer (RFC 6901); for other programs the numbers are numbers.
FLOATS = "semel:floats"

# The item that says which environment a table belongs to; no key of a caller begins so.
STAMP = "semel:environment"
STAMP_SORT = "semel"
# The version of the layout that this release writes.
SCHEMA = 1

# Who held a record and what came before: other programs' tables have no place for it.
HISTORY = frozenset({"worker", "began_at", "history"})
# How a body was made is told by this attribute, which is written together with it.
ENCODING = "encoding"
# Powertools' hash of a payload is an MD5, which cannot be compared with a SHA-256.
FINGERPRINT, TOKEN = "fingerprint", "token"
MD5_DIGITS = 32

TITLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")


# Values


def number(value: Any) -> str:
    """Write a number as text that reads as the same number."""
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


def base64(value: bytes) -> str:
    """Write bytes as JSON can hold them."""
    return b2a_base64(value, newline=False).decode("ascii")


def _of_kind(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(value)
    return value


def _object_value(value: Any) -> Value:
    if FLOATS in _of_kind(value, dict):
        raise UsageError(f"an object has no field {FLOATS!r}: semel keeps one of that name itself")
    floats: list[Value] = []
    encoded = _plain_value(value, "", floats)
    if floats:
        encoded["M"][FLOATS] = {"L": floats}
    return encoded


def _plain_value(value: Any, place: str, floats: list[Value]) -> Value:
    """Write what JSON knows, and note the places of whole floats."""
    match value:
        case str():
            return {"S": value}
        case bool():
            return {"BOOL": value}
        case int() | float():
            if isinstance(value, float) and value.is_integer():
                floats.append({"S": place})
            return {"N": number(value)}
        case None:
            return {"NULL": True}
        case list() | tuple():
            return {"L": [_plain_value(each, f"{place}/{at}", floats) for at, each in enumerate(value)]}
        case dict() if all(isinstance(name, str) for name in value):
            within = {name: f"{place}/{name.replace('~', '~0').replace('/', '~1')}" for name in value}
            return {"M": {name: _plain_value(each, within[name], floats) for name, each in value.items()}}
    raise UsageError(f"an object holds what JSON knows, and not a {type(value).__name__}")


def restore_floats(content: Any) -> Any:
    """Return an object with its floats as they were."""
    if isinstance(content, dict) and FLOATS in content:
        for place in content.pop(FLOATS):
            way = [name.replace("~1", "/").replace("~0", "~") for name in place.split("/")]
            # Where another program has changed the object since, there may be no such place.
            with suppress(KeyError, IndexError, TypeError, ValueError):
                _restore_float(content, way[1:])
    return content


def _restore_float(content: Any, way: list[str]) -> None:
    at = int(way[0]) if isinstance(content, list) else way[0]
    if way[1:]:
        _restore_float(content[at], way[1:])
    elif isinstance(content[at], int):
        content[at] = float(content[at])


def _set_value(value: Any) -> Value:
    # In one order, so that equal sets make equal requests.
    return {"SS": sorted(_of_kind(each, str) for each in _of_kind(value, set, frozenset))}


ENCODE: dict[Kind, Encode] = {
    Kind.TEXT: lambda value: {"S": _of_kind(value, str)},
    Kind.NUMBER: lambda value: {"N": number(value)},
    Kind.BYTES: lambda value: {"B": base64(_of_kind(value, bytes, bytearray, memoryview))},
    Kind.FLAG: lambda value: {"BOOL": _of_kind(value, bool)},
    Kind.OBJECT: _object_value,
    Kind.SET: _set_value,
}


def parse_number(text: str) -> int | float:
    """Read a number: whole where it was written whole, with as many digits as a whole one may have."""
    digits = text.removeprefix("-")
    return int(text) if digits.isdigit() and len(digits) <= MOST_DIGITS else float(text)


def plain(value: Value) -> Any:
    """Read a value of any type."""
    [(tag, content)] = value.items()
    return DECODE[tag](content)


DECODE: dict[str, Callable[[Any], Any]] = {
    "S": str,
    "N": parse_number,
    "B": a2b_base64,
    "BOOL": bool,
    "NULL": lambda _: None,
    "M": lambda content: {name: plain(each) for name, each in content.items()},
    "L": lambda content: [plain(each) for each in content],
    "SS": set,
    "NS": lambda content: {parse_number(each) for each in content},
    "BS": lambda content: {a2b_base64(each) for each in content},
}


# Moments in other forms; what is no number raises TypeError. Ends are rounded up, and what they are compared
# with is rounded down, so that nothing ends before its time.


def milliseconds(moment: float) -> float:
    """Return a moment in milliseconds, without the noise of the multiplication."""
    return round(moment * 1000, 3)


def iso(moment: float) -> str:
    """Write a moment as ISO 8601 text in UTC, to the millisecond."""
    text = (EPOCH + timedelta(milliseconds=ceil(milliseconds(moment)))).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def from_iso(text: str) -> float:
    """Read ISO 8601 text; without a zone it is UTC's."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _iso_spellings(moment: float) -> Iterator[Value]:
    """Yield the texts that other programs may have written for a moment that was read."""
    exact = EPOCH + timedelta(microseconds=round(moment * 1e6))
    for detail in ("auto", "milliseconds", "microseconds"):
        text = exact.isoformat(timespec=detail).removesuffix("+00:00")
        if from_iso(text) == moment:
            yield from ({"S": text + zone} for zone in ("Z", "+00:00", ""))


FORMED: dict[Form, Encode] = {
    Form.SECONDS: lambda value: {"N": str(ceil(value))},
    Form.MILLISECONDS: lambda value: {"N": str(ceil(milliseconds(value)))},
    Form.ISO: lambda value: {"S": iso(value)},
}
READ: dict[Form, Decode] = {
    Form.MILLISECONDS: lambda content: content / 1000,
    Form.ISO: from_iso,
}
# How a moment may have been written by another program, beside how semel writes it.
SPELLINGS: dict[Form, Callable[[float], Iterable[Value]]] = {
    Form.SECONDS: lambda moment: [{"N": number(moment)}],
    Form.MILLISECONDS: lambda moment: [{"N": number(milliseconds(moment))}],
    Form.ISO: _iso_spellings,
}
# The present, as it is compared with ends of a form.
PRESENT: dict[Form, Encode] = {
    Form.PLAIN: lambda now: {"N": number(now)},
    Form.SECONDS: lambda now: {"N": str(floor(now))},
    Form.MILLISECONDS: lambda now: {"N": str(floor(milliseconds(now)))},
}


# A body in JSON: as text where it is plain, so that other programs can read it.


def body_value(data: Any, encoding: str | None) -> Value:
    """Write bytes that are JSON as their text, and others in base64."""
    return {"S": _of_kind(data, bytes).decode() if encoding == "json" else base64(data)}


def body(text: Any, encoding: str | None) -> Any:
    """Read the bytes of a body; anything else stays as it is, for the reader to report."""
    if isinstance(text, str):
        with suppress(NotBase64):
            return text.encode() if encoding == "json" else a2b_base64(text)
    return text


def size(item: dict[str, Value]) -> int:
    """Return how large an item is for DynamoDB: its names and values."""
    return sum(len(name.encode()) + value_size(value) for name, value in item.items())


def value_size(value: Value) -> int:
    """Return the size of text in UTF-8, of bytes, or of a number by its significant digits."""
    [(tag, content)] = value.items()
    match tag:
        case "S":
            return len(content.encode())
        case "N":
            return ceil(len(content.lstrip("-").replace(".", "").strip("0")) / 2) + 1
        case "B":
            return len(content.rstrip("=")) * 3 // 4
        case "SS":
            return sum(len(each.encode()) for each in content)
        case "M":
            return 3 + len(content) + size(content)
        case "L":
            return 3 + sum(1 + value_size(each) for each in content)
    return 1


# Tables


def is_title(text: str) -> bool:
    """Return whether a text can name a table in DynamoDB; `{env}` in it stands for the environment."""
    return TITLE.fullmatch(text.replace("{env}", "env")) is not None


def title(table: Table, env: str) -> str:
    """Return a table's name in DynamoDB."""
    titled_by = mapped(table).titled_by
    name = (os.environ.get(titled_by) if titled_by else None) or table.title.format(env=env, name=table.name)
    if not TITLE.fullmatch(name):
        raise InvalidOption(
            f"{name!r} cannot name a table in DynamoDB: it takes 3 to 255 of A-Z a-z 0-9 _ . -; "
            f"choose another environment than {env!r}, or another {titled_by or 'title'}"
        )
    return name


class Field:
    """One attribute: its name in DynamoDB, and how its values are written there."""

    __slots__ = ("attribute", "decode", "default", "encode", "form", "kind", "name", "repeats")

    def __init__(self, attribute: str, kind: Kind, column: Column) -> None:
        self.attribute: str = attribute
        self.name: str = column.name
        self.kind: Kind = kind
        self.form: Form = column.form
        self.default: Any = column.default
        self.encode: Encode = FORMED.get(column.form) or ENCODE[kind]
        self.decode: Decode | None = READ.get(column.form)
        if kind is Kind.OBJECT and self.decode is None:
            self.decode = restore_floats
        if column.spelled:
            there, back = column.spelled, {there: here for here, there in column.spelled.items()}
            self.encode = lambda value: {"S": _of_kind(there.get(value, value), str)}
            self.decode = lambda content: back.get(content, content)
        self.repeats: tuple[tuple[str, Encode], ...] = ()
        """Attributes that repeat this one: DynamoDB's own end of an item, and copies in other forms."""

    def write(self, value: Any) -> Value:
        """Write a value."""
        try:
            return self.encode(value)
        except TypeError:
            raise UsageError(f"{self.attribute!r} holds {self.kind}, not {type(value).__name__}") from None

    def read(self, content: Any) -> Any:
        """Read a value in its form; one that has another form stays as it is, for the reader to report."""
        try:
            return content if self.decode is None else self.decode(content)
        except (TypeError, ValueError):
            return content


# Kinds that are written without a call.
QUICK = {Kind.TEXT: "S", Kind.NUMBER: "N", Kind.BYTES: "B"}
# An end that is repeated for DynamoDB's own deletion, and for nothing else.
END = "end"
NUMBERS = frozenset({"N", END})
# Numbers between these are as Python writes them.
LEAST, MOST = 1e-100, 1e18
OTHER = ("", "")


class ItemFormat:
    """How a table of the rules, `asked`, is kept in DynamoDB: as it is, or in the table `kept` of another."""

    def __init__(self, asked: Table, kept: Table, env: str) -> None:
        mapping = mapped(kept)
        self.asked = asked
        self.kept: TableMapping = mapping
        self.title: str = title(kept, env)
        self.env = env
        # Its owner asks for a table as it is, though it stands for another one.
        direct = mapping.holds is not None and asked.name == kept.name
        self.shared: bool = mapping.holds is not None and not direct
        """Whether programs write in it that do not know the table that is asked for."""
        self._prefix = prefix(env, "") if mapping.bare_keys and not direct else ""
        columns = mapping.columns
        if direct:  # and then it tells only of its end how that is written
            columns = {one.name: one for one in columns.values() if one.name == kept.expires}
        keys = zip(asked.key, kept.key, strict=False)
        self._columns = {**columns, **{ours: Column(name=theirs) for ours, theirs in keys}}
        self.fields: dict[str, Field] = {
            attribute: Field(attribute, kind, self._column(attribute))
            for attribute, kind in asked.kinds.items()
        }
        self.partition: Field = self.fields[asked.partition]
        self.sort: Field | None = None if asked.sort is None else self.fields[asked.sort]
        self.expires: Field = self.fields[asked.expires]
        for field in self.fields.values():
            field.repeats = tuple(self._repeats(field))
        self.spread: dict[str, dict[str, Field]] = {
            attribute: {name: Field(name, mapping.attributes[name], Column(name=name)) for name in names}
            for attribute, names in mapping.spread.items()
            if not direct
        }
        """Attributes whose fields are attributes of their own."""
        self._gathered = {
            name: (whole, part) for whole, parts in self.spread.items() for name, part in parts.items()
        }
        # The command says where an item is; and its owners do not find in it what they have no use for.
        self._left_out = {*asked.key, *(HISTORY - mapping.columns.keys() if self.shared else ())}
        self._ttl = mapping.ttl
        self._quick = {field.attribute: tag for field in self.fields.values() if (tag := self._tag(field))}
        self._read = {field.name: field for field in self.fields.values() if field.attribute not in asked.key}
        self._defaults = [field for field in self._read.values() if field.default is not None]
        self.bodies: list[Field] = [field for field in self._read.values() if field.form is Form.JSON]
        self.is_plain: bool = not mapping.columns and not mapping.spread
        """Whether every attribute is as the rules have it."""

    def _column(self, attribute: str) -> Column:
        return self._columns.get(attribute) or Column(name=attribute)

    def _repeats(self, field: Field) -> Iterator[tuple[str, Encode]]:
        if field is self.expires and self.kept.ttl not in ("", field.name):
            yield self.kept.ttl, FORMED[Form.SECONDS]
        for name, (repeated, form) in self.kept.copies.items():
            if repeated == field.attribute:
                yield name, FORMED[form]

    def _tag(self, field: Field) -> tuple[str, str] | None:
        """Return how values of a field are written without a call, and its name; None if they are not."""
        if field.kind not in QUICK or field.form is not Form.PLAIN or field.decode is not None:
            return None
        if field is self.expires:
            return (END, field.name) if [name for name, _ in field.repeats] == [self._ttl] else None
        calls = field.repeats or field.attribute in self._left_out or field.attribute in self.spread
        return None if calls else (QUICK[field.kind], field.name)

    def field(self, attribute: str) -> Field:
        """Return the field of an attribute; one that the table lacks is refused."""
        field = self.fields.get(attribute)
        if field is None:
            raise self._unknown(attribute)
        return field

    def _unknown(self, attribute: str) -> UsageError:
        return UsageError(
            f"table {self.asked.name} has no attribute {attribute!r}; it has {', '.join(self.fields)}"
        )

    # Keys

    def key(self, key: str, sort: Sort) -> dict[str, Value]:
        """Return the key of an item."""
        named = {self.partition.name: {"S": self.bare(key) if self._prefix else key}}
        if self.sort is not None:
            named[self.sort.name] = self.sort.write(sort)
        return named

    def bare(self, key: Any) -> Any:
        """Return a key as it stands in the table."""
        if not self._prefix:
            return key
        if not isinstance(key, str) or not key.startswith(self._prefix):
            raise UsageError(
                f"{self.title} keeps keys as they stand, so it serves environment {self.env!r} without a "
                f"scope, and not {key!r}: give other environments and scopes a table of their own"
            )
        return key.removeprefix(self._prefix)

    def bare_prefix(self, beginning: str) -> str:
        """Return the beginning of keys as they stand in the table."""
        return "" if self._prefix.startswith(beginning) else self.bare(beginning)

    def stamp_key(self) -> dict[str, Value]:
        """Return the key of the stamp, which says which environment the table belongs to."""
        named: dict[str, Value] = {self.partition.name: {"S": STAMP}}
        if self.sort is not None:
            named[self.sort.name] = {"N": "0"} if self.sort.kind is Kind.NUMBER else {"S": STAMP_SORT}
        return named

    # Writing

    def item(self, key: str, sort: Sort, item: Item, now: ClockReading) -> dict[str, Value]:
        """Write a whole item."""
        if item.get(self.asked.expires) is None and not self.asked.forever:
            raise self.endless()
        written = self.encode(item, [], now)
        written |= self.key(key, sort)
        return written | self.pieces(key) if self.kept.parts else written

    def pieces(self, key: str) -> dict[str, Value]:
        """Write the pieces of its key that an item repeats for its owner."""
        names, pieces = self.kept.parts, self.bare(key).split(self.kept.separator, len(self.kept.parts) - 1)
        if not names or len(pieces) != len(names):
            return {}
        return {name: {"S": piece} for name, piece in zip(names, pieces, strict=True) if name}

    def encode(self, item: Mapping[str, Any], gone: list[str], now: ClockReading | None) -> dict[str, Value]:
        """Write attributes, and add the names of those that are missing to `gone`.

        Values that are only compared have no `now`, and are not repeated.
        """
        written: dict[str, Value] = {}
        quick = self._quick
        for attribute, value in item.items():
            tag, name = quick.get(attribute, OTHER)
            kind = type(value)
            if kind is After and now is not None:
                # What ends later is counted from the latest that it may be now.
                value = now[value.seconds > 0] + value.seconds  # noqa: PLW2901 - what it stands for
                kind = float
            if tag == "S" and kind is str:
                written[name] = {"S": value}
            elif tag in NUMBERS and (kind is float or kind is int) and LEAST < value < MOST:
                written[name] = {"N": repr(value).removesuffix(".0")}
                if tag == END and now is not None:
                    written[self._ttl] = {"N": repr(ceil(value))}
            elif value is None and tag and tag != END:
                gone.append(name)
            elif tag == "B" and kind is bytes:
                written[name] = {"B": b2a_base64(value, newline=False).decode("ascii")}
            else:
                for name, encoded in self._others(attribute, value, item, now):
                    if encoded is None:
                        gone.append(name)
                    else:
                        written[name] = encoded
        return written

    def _others(
        self, attribute: str, value: Any, item: Mapping[str, Any], now: ClockReading | None
    ) -> Iterator[tuple[str, Value | None]]:
        """Yield what DynamoDB has for an attribute, by its names there; None for what is missing."""
        field = self.field(attribute)
        if attribute in self._left_out:
            return
        if attribute in self.spread:
            yield from self._parts(self.spread[attribute], value or {})
            return
        ends = field is self.expires and bool(self.asked.forever) and value in (None, FOREVER)
        if ends and now is not None and self.kept.longest is not None:
            value, ends = now[1] + self.kept.longest, False  # its owner's code looks for an end
        gone = value is None or ends or (field.kind is Kind.SET and not value)
        if field.form is Form.JSON and not gone:
            yield field.name, self._body(value, field, item)
        else:
            yield field.name, None if gone else field.write(value)
        for name, encode in () if now is None else field.repeats:
            yield name, None if gone else encode(value)

    def _parts(self, fields: dict[str, Field], value: Item) -> Iterator[tuple[str, Value | None]]:
        """Yield the fields of a value, which are attributes of their own; one without is refused."""
        for name, part in value.items():
            if name not in fields:
                raise self._unknown(name)
            yield name, None if part is None else fields[name].write(part)

    def _body(self, value: Any, field: Field, item: Mapping[str, Any]) -> Value:
        if ENCODING not in item:
            raise UsageError(f"{field.attribute!r} is written together with its {ENCODING!r} in {self.title}")
        try:
            return body_value(value, item[ENCODING])
        except TypeError:
            raise UsageError(f"{field.attribute!r} holds bytes, not {type(value).__name__}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{field.attribute!r} is no JSON, though its {ENCODING!r} says so") from None

    def endless(self) -> UsageError:
        """Return the error for an item that would never go."""
        return UsageError(f"an item of table {self.asked.name} needs the attribute {self.asked.expires!r}")

    def present(self, now: ClockReading) -> Value:
        """Write the present, to compare ends with it."""
        if self.expires.form not in PRESENT:
            raise UsageError(f"{self.expires.attribute!r} is written as text here, and ends nothing")
        return PRESENT[self.expires.form](now[0])

    # Reading

    def decode(self, item: Mapping[str, Value]) -> Item:
        """Read an item as the rules know it; what else stands in it is its owner's."""
        known: Item = {self.partition.attribute: self._prefix + item[self.partition.name]["S"]}
        if self.sort is not None:
            known[self.sort.attribute] = plain(item[self.sort.name])
        fields = self._read
        for name, value in item.items():
            field = fields.get(name)
            if field is not None:
                if "S" in value:
                    content = value["S"]
                elif "N" in value:
                    text = value["N"]
                    short = text.isdigit() and len(text) <= MOST_DIGITS
                    content = int(text) if short else float(text) if "." in text else parse_number(text)
                else:
                    content = plain(value)
                known[field.attribute] = content if field.decode is None else field.read(content)
            elif name in self._gathered:
                whole, part = self._gathered[name]
                known.setdefault(whole, {})[name] = part.read(plain(value))
        # An item without an end has none, whoever wrote it.
        known.setdefault(self.expires.attribute, FOREVER)
        if self.shared:
            self._adopt(known)
        return known

    def _adopt(self, known: Item) -> None:
        """Make a record of what another program may have written, which knows nothing of records."""
        bodies = [field.attribute for field in self.bodies if field.attribute in known]
        foreign = TOKEN not in known
        theirs = foreign or len(str(known.get(FINGERPRINT))) == MD5_DIGITS
        if theirs and not self._column(FINGERPRINT).comparable:
            known.pop(FINGERPRINT, None)
        if foreign or bodies:
            for field in self._defaults:
                if field.attribute not in known:
                    same = isinstance(field.default, Same)
                    known[field.attribute] = known.get(field.default.attribute) if same else field.default
        for attribute in bodies:
            known[attribute] = body(known[attribute], known[ENCODING])
