"""Conditions as DynamoDB's expressions, each made once for its shape; a call only fills in the values.

A condition asks something of an item that is there and whose time is not up, and is plainly true or false of
one that is not. So an expression has two halves: whether it holds where there is no item, and what it asks of
one that is alive. An item without an end is alive.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from semel.core.commands import (
    Absent,
    AllOf,
    AnyOf,
    AtMost,
    Begins,
    Condition,
    Equals,
    OneOf,
    Past,
    Present,
    holds,
)
from semel.errors import UsageError
from semel.stores.dynamodb.layout import STAMP, TOKEN, DynamoLayout, Field
from semel.stores.dynamodb.time import ClockReading
from semel.stores.dynamodb.values import Encode, Value
from semel.tables import Form, Same

DynamoShape: TypeAlias = tuple[Any, ...]

Use: TypeAlias = Literal["write", "change", "add", "query", "scan"]
"""A write that may make an item, a change of one that is there, an addition, and two kinds of filter."""


# Expressions


class Expression(NamedTuple):
    """A piece of an expression, and the word that joins its parts.

    Brackets are written only where they are needed, as DynamoDB refuses superfluous ones.
    """

    text: str
    joined: Literal["", "AND", "OR"] = ""


Operand: TypeAlias = Expression | bool


def both(*parts: Operand) -> Operand:
    """All of them."""
    return _joined("AND", parts, of_none=True)


def either(*parts: Operand) -> Operand:
    """At least one of them."""
    return _joined("OR", parts, of_none=False)


def _joined(word: Literal["AND", "OR"], parts: Iterable[Operand], *, of_none: bool) -> Operand:
    kept: list[Expression] = []
    for part in parts:
        if isinstance(part, Expression):
            kept.append(part)
        elif part is not of_none:
            return part
    if len(kept) < 2:
        return kept[0] if kept else of_none
    # AND binds closer than OR.
    texts = [f"({part.text})" if word == "AND" and part.joined == "OR" else part.text for part in kept]
    return Expression(f" {word} ".join(texts), word)


NOT_THERE = Expression("attribute_not_exists(#p)")
NOT_OVER = Expression("attribute_not_exists(#x) OR #x > :now", "OR")
ALIVE = Expression("attribute_exists(#p) AND (attribute_not_exists(#x) OR #x > :now)", "AND")
GONE = Expression("attribute_not_exists(#p) OR #x <= :now", "OR")
NO_STAMP = Expression("#p <> :stamp")
NEVER = Expression("attribute_exists(#p) AND attribute_not_exists(#p)", "AND")

PLACEHOLDER = re.compile(r"[#:]\w+")


class Guard(NamedTuple):
    """A condition that is ready to be sent once its values are filled in; without a text it always holds."""

    text: str
    names: dict[str, str]
    values: tuple[tuple[str, int, Encode], ...]
    """Placeholders, the place of each one's value among those of the condition, and how it is written."""
    moments: tuple[tuple[str, Encode], ...]
    never: bool
    """Whether it holds of no item at all."""

    def filled(self, values: list[Any], reading: ClockReading) -> dict[str, Value]:
        """The values of one call."""
        filled = {name: encode(values[place]) for name, place, encode in self.values}
        for name, encode in self.moments:
            filled[name] = encode(reading.earliest)
        return filled


# Shapes: what decides the text of a condition, its values aside


class Conditions:
    """The conditions of one table."""

    def __init__(self, layout: DynamoLayout) -> None:
        self._layout = layout
        self._known: dict[DynamoShape, Guard] = {}

    def guard(
        self, condition: Condition | None, use: Use, reading: ClockReading, keys: tuple[Field, ...] = ()
    ) -> tuple[Guard, list[Any]]:
        """The guard of a condition, and the values to fill in; `keys` are those that a query goes by."""
        values: list[Any] = []
        shape: DynamoShape = () if condition is None else self._shape(condition, reading, values)
        guard = self._known.get((use, keys, shape))
        if guard is None:
            made = ExpressionBuilder(self._layout, use, keys).guard(condition, shape)
            guard = self._known[use, keys, shape] = made
        return guard, values

    def _shape(self, condition: Condition, reading: ClockReading, values: list[Any]) -> DynamoShape:
        return SHAPES[type(condition)](self, condition, reading, values)

    def _field(self, attribute: str) -> Field:
        field = self._layout.fields.get(attribute)
        if field is None:
            raise self._layout.unknown(attribute)
        return field

    def _equals(self, asked: Equals, _: ClockReading, values: list[Any]) -> DynamoShape:
        field = self._field(asked.attribute)
        values.append(self._layout.bare(asked.value) if field is self._layout.partition else asked.value)
        return "equals", asked.attribute, _lacking(field, lambda default: default == asked.value)

    def _one_of(self, asked: OneOf, _: ClockReading, values: list[Any]) -> DynamoShape:
        field = self._field(asked.attribute)
        values += map(self._layout.bare, asked.values) if field is self._layout.partition else asked.values
        lacking = _lacking(field, lambda default: default in asked.values)
        return "one of", asked.attribute, lacking, len(asked.values)

    def _at_most(self, asked: AtMost, _: ClockReading, values: list[Any]) -> DynamoShape:
        field = self._field(asked.attribute)
        values.append(asked.value)
        missing = asked.value >= 0 if field.default is None else None
        return "at most", asked.attribute, missing or _lacking(field, lambda default: default <= asked.value)

    def _past(self, asked: Past, reading: ClockReading, _: list[Any]) -> DynamoShape:
        field = self._field(asked.attribute)
        return "past", asked.attribute, _lacking(field, lambda default: default <= reading.earliest)

    def _begins(self, asked: Begins, _: ClockReading, values: list[Any]) -> DynamoShape:
        field = self._field(asked.attribute)
        value = asked.value
        if field is self._layout.partition:
            value = self._layout.bare_beginning(value)
        values.append(value)
        lacking = _lacking(field, lambda default: default.startswith(asked.value))
        return "begins", asked.attribute, lacking, not value

    def _all_of(self, asked: AllOf, reading: ClockReading, values: list[Any]) -> DynamoShape:
        return "all of", *[self._shape(each, reading, values) for each in asked.conditions]

    def _any_of(self, asked: AnyOf, reading: ClockReading, values: list[Any]) -> DynamoShape:
        return "any of", *[self._shape(each, reading, values) for each in asked.conditions]


def _lacking(field: Field, holds: Callable[[Any], bool]) -> bool | str:
    """Whether a condition holds of an item that lacks the attribute, or the attribute that decides it."""
    default = field.default
    if default is None:
        return False
    return default.attribute if isinstance(default, Same) else holds(default)


SHAPES: dict[type, Callable[[Conditions, Any, ClockReading, list[Any]], DynamoShape]] = {
    Absent: lambda *_: ("absent",),
    Present: lambda *_: ("present",),
    Equals: Conditions._equals,
    OneOf: Conditions._one_of,
    AtMost: Conditions._at_most,
    Past: Conditions._past,
    Begins: Conditions._begins,
    AllOf: Conditions._all_of,
    AnyOf: Conditions._any_of,
}


# Making a guard of a shape


class ExpressionBuilder:
    """Writes one expression."""

    def __init__(self, layout: DynamoLayout, use: Use, keys: tuple[Field, ...] = ()) -> None:
        self._layout = layout
        self._use = use
        # A filter may not name the keys of what is queried, and whoever asked looks again.
        self._tacit = keys if use == "query" else ()
        self._taken = 0
        self._names = {"#p": layout.partition.name, "#x": layout.expires.name}
        self._values: dict[str, tuple[int, Encode]] = {}
        self._moments: dict[str, Encode] = {
            ":now": layout.expires.compared(),
            ":stamp": lambda _: {"S": STAMP},
        }

    def guard(self, condition: Condition | None, shape: DynamoShape) -> Guard:
        """The guard of a condition of this shape."""
        absent = self._use in ("write", "add") and (condition is None or holds(condition, None, 0.0))
        whole = self._whole(absent, self._asked(shape) if shape else True)
        text = whole.text if isinstance(whole, Expression) else "" if whole else NEVER.text
        # DynamoDB refuses names and values that the text does not mention.
        used = set(PLACEHOLDER.findall(text))
        return Guard(
            text,
            {name: stands for name, stands in self._names.items() if name in used},
            tuple((name, *value) for name, value in self._values.items() if name in used),
            tuple(moment for moment in self._moments.items() if moment[0] in used),
            whole is False,
        )

    def _whole(self, absent: bool, asked: Operand) -> Operand:
        match self._use:
            case "query":
                return asked if self._layout.expires in self._tacit else both(NOT_OVER, asked)
            case "scan":
                return both(NOT_OVER, NO_STAMP, asked)
            case "add" if absent:
                # An item that is over counts as absent, and an addition to it would count on from there: that
                # one is refused, and written anew by another request.
                return NOT_OVER if asked is True else either(NOT_THERE, both(NOT_OVER, asked))
        if absent:
            return either(GONE, asked)
        return ALIVE if asked is True else both(ALIVE, asked)

    def _asked(self, shape: DynamoShape) -> Operand:
        """What is asked of an item that is alive."""
        match shape:
            case ("absent",):
                return False
            case ("present",):
                return True
            case ("all of", *parts):
                return both(*[self._asked(part) for part in parts])
            case ("any of", *parts):
                return either(*[self._asked(part) for part in parts])
            case (word, attribute, lacking, *more):
                field = self._layout.fields[attribute]
                make = getattr(self, f"_{word.replace(' ', '_')}")(*more)
                if field in self._tacit:
                    return True
                return self._or_lacking(field, lacking, make)
        raise AssertionError(shape)

    def _or_lacking(self, field: Field, lacking: bool | str, make: Callable[[Field], Operand]) -> Operand:
        if not lacking:
            return make(field)
        missing = both(Expression(f"attribute_not_exists({self._name(field)})"), self._adopted(field))
        if lacking is True:
            return either(make(field), missing)
        return either(make(field), both(missing, make(self._layout.fields[lacking])))

    def _adopted(self, lacked: Field) -> Operand:
        """Of which items a default stands for what they lack, as `DynamoLayout.read` has it."""
        if lacked.default is None or lacked.attribute == TOKEN:
            return True
        token = self._layout.fields[TOKEN]
        bodies = [Expression(f"attribute_exists({self._name(body)})") for body in self._layout.bodies]
        return either(Expression(f"attribute_not_exists({self._name(token)})"), *bodies)

    # Each takes its values' places at once, and writes when it is told the field.

    def _equals(self) -> Callable[[Field], Operand]:
        place = self._take()
        return lambda field: Expression(f"{self._name(field)} = {self._value(place, _written(field))}")

    def _one_of(self, count: int) -> Callable[[Field], Operand]:
        places = [self._take() for _ in range(count)]

        def make(field: Field) -> Operand:
            values = ", ".join(self._value(place, _written(field)) for place in places)
            return Expression(f"{self._name(field)} IN ({values})") if places else False

        return make

    def _at_most(self) -> Callable[[Field], Operand]:
        place = self._take()
        return lambda field: Expression(f"{self._name(field)} <= {self._value(place, field.compared())}")

    def _past(self) -> Callable[[Field], Operand]:
        def make(field: Field) -> Operand:
            moment = ":now" if field.form is self._layout.expires.form else f":{field.form}"
            self._moments[moment] = field.compared()
            return Expression(f"{self._name(field)} <= {moment}")

        return make

    def _begins(self, empty: bool) -> Callable[[Field], Operand]:
        place = self._take()

        def make(field: Field) -> Operand:
            if empty:
                return Expression(f"attribute_exists({self._name(field)})")
            return Expression(f"begins_with({self._name(field)}, {self._value(place, _beginning(field))})")

        return make

    def _take(self) -> int:
        self._taken += 1
        return self._taken - 1

    def _name(self, field: Field) -> str:
        for name, stands in self._names.items():
            if stands == field.name:
                return name
        name = f"#c{len(self._names)}"
        self._names[name] = field.name
        return name

    def _value(self, place: int, encode: Encode) -> str:
        name = f":c{len(self._values)}"
        self._values[name] = (place, encode)
        return name


def _written(field: Field) -> Encode:
    if field.form is Form.JSON:
        raise UsageError(f"{field.attribute!r} is a body here, and is not compared")
    return field.write


def _beginning(field: Field) -> Encode:
    if field.spelled or field.form is not Form.PLAIN:
        raise UsageError(
            f"{field.attribute!r} is spelled otherwise here, and is not compared by its beginning"
        )
    return field.write
