"""Values on their way to PostgreSQL and back: types, conversions, and the parameters that carry them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from semel.core.commands import After
from semel.errors import UsageError
from semel.tables import Kind

Convert: TypeAlias = Callable[[Any], Any]

# Texts compare by their bytes. A double holds every integer up to 2^53, which is as far as a number may go.
# An object is kept as it was written: jsonb would refuse a NUL in a text, and spell numbers anew.
COLUMN_TYPES = {
    Kind.TEXT: 'text COLLATE "C"',
    Kind.NUMBER: "double precision",
    Kind.BYTES: "bytea",
    Kind.FLAG: "boolean",
    Kind.OBJECT: "json",
    Kind.SET: "text[]",
}
# Objects and sets travel as texts, so that many of them fit into one array.
SENT_AS = {
    Kind.TEXT: "text",
    Kind.NUMBER: "float8",
    Kind.BYTES: "bytea",
    Kind.FLAG: "bool",
    Kind.OBJECT: "text",
    Kind.SET: "text",
}
CASTS = {Kind.OBJECT: "::json", Kind.SET: "::text[]"}


def text(value: str) -> str:
    """A text that PostgreSQL can keep."""
    value = value if type(value) is str else str.__str__(value)  # the driver would send an enum's name
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"PostgreSQL cannot keep this text: {error}") from error
    if "\0" in value:
        raise UsageError(f"PostgreSQL cannot keep a text with a NUL in it: {value!r}")
    return value


def number(value: float) -> float:
    """A number as a double, which must hold it exactly."""
    try:
        double = float(value)
    except OverflowError:
        double = float("nan")
    if double != value:
        raise UsageError(f"{value} cannot be kept: PostgreSQL keeps what a double holds exactly, and no NaN")
    return double


def seconds(after: After) -> float:
    """How long after the server's now."""
    return number(after.seconds)


def packed(value: dict[str, Any]) -> str:
    """An object as JSON."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"not an object as JSON knows it: {error}") from error


def array(texts: set[str]) -> str | None:
    """A set of texts as PostgreSQL writes an array, in one order; an empty one is no attribute."""
    if not texts:
        return None
    escaped = [text(each).replace("\\", "\\\\").replace('"', '\\"') for each in sorted(texts)]
    return '{"' + '","'.join(escaped) + '"}'


# Whatever cannot be kept is refused here, before anything is sent: an error of the server's would end a
# transaction that may be the caller's.
CONVERSIONS: dict[Kind, Convert] = {
    Kind.TEXT: text,
    Kind.NUMBER: number,
    Kind.BYTES: bytes,
    Kind.OBJECT: packed,
    Kind.SET: array,
}
UNPACK: dict[Kind, Convert] = {Kind.OBJECT: msgspec.json.decode, Kind.SET: set}


# The parts of a command that values come from: its key and single numbers, its items, and its condition.
HEAD, ITEM, ONCE, WHEN = range(4)


class Parameters:
    """The values of a statement: each is a column `v.p0`, `v.p1`, ... of the relation `v`."""

    def __init__(self) -> None:
        self.types: list[str] = []
        self.sources: list[tuple[int, Any, Convert | None]] = []

    def value(self, kind: Kind, kept: type, part: int, place: Any) -> str:
        """The column of a value of this kind and Python type, which is found at a place of a part."""
        if kept is After:
            return f"(n.now + {self._column('float8', part, place, seconds)})"
        # Making bytes of bytes would copy them, and a result may be large.
        convert = None if kept is bytes else CONVERSIONS.get(kind)
        return self._column(SENT_AS[kind], part, place, convert) + CASTS.get(kind, "")

    def count(self, place: int) -> str:
        """A whole number of the head, for a statement of one command: as a limit it has to be a parameter."""
        self._column("bigint", HEAD, place, None)
        return f"${len(self.types) + 1}::bigint"

    def _column(self, sent_as: str, part: int, place: Any, convert: Convert | None) -> str:
        self.types.append(sent_as)
        self.sources.append((part, place, convert))
        return f"v.p{len(self.types) - 1}"

    def one(self) -> str:
        """`v` with the values of one command. The first parameter of every statement is the time."""
        parameters = [f"${place}::{kind} AS p{place - 2}" for place, kind in enumerate(self.types, 2)]
        return f"v AS NOT MATERIALIZED (SELECT {', '.join(parameters)})"

    def many(self, shared: Sequence[bool], keyed: int) -> str:
        """`v` with the values of many commands, in the order of their keys; shared ones are sent once."""
        names = [f"${place}" if alike else f"x.a{place}" for place, alike in enumerate(shared, 2)]
        typed = list(zip(names, self.types, strict=True))
        # Behind the SELECT the server cannot see how long they are, takes them for short, and uses indexes.
        lists = [f"(SELECT ${name[3:]}::{kind}[])" for name, kind in typed if name[0] == "x"]
        row = ", ".join(name[2:] for name in names if name[0] == "x")
        parameters = [f"{name}::{kind} AS p{place}" for place, (name, kind) in enumerate(typed)]
        order = [f'{name}::text COLLATE "C"' if kind == "text" else name for name, kind in typed[:keyed]]
        return (
            f"v AS MATERIALIZED (SELECT {', '.join(parameters)} "
            f"FROM unnest({', '.join(lists)}) AS x({row}) ORDER BY {', '.join(order)})"
        )
