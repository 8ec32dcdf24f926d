"""Conditions as SQL. What decides the text of a clause is its shape; its values travel as parameters."""

from collections.abc import Callable
from typing import Any, TypeAlias

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
)
from semel.errors import UsageError
from semel.stores.postgres.values import WHEN, Parameters
from semel.stores.shared import PYTHON_TYPES
from semel.stores.sql import UNUSUAL, USUAL, quoted
from semel.tables import Kind

StatementShape: TypeAlias = tuple[Any, ...]
Values: TypeAlias = list[Any]


def shape_of(condition: Condition, values: Values) -> StatementShape:
    """What decides the text of a condition; its values are added to the list."""
    return _SHAPES[type(condition)](condition, values)


def _equals(condition: Equals, values: Values) -> StatementShape:
    values.append(condition.value)
    return Equals, condition.attribute, type(condition.value), _unusual(condition)


def _unusual(condition: Equals) -> bool:
    return condition.value != USUAL.get(condition.attribute, condition.value)


def _one_of(condition: OneOf, values: Values) -> StatementShape:
    values.extend(condition.values)
    return OneOf, condition.attribute, tuple(map(type, condition.values))


def _valued(condition: AtMost | Begins, values: Values) -> StatementShape:
    values.append(condition.value)
    return type(condition), condition.attribute, type(condition.value)


def _several(condition: AllOf | AnyOf, values: Values) -> StatementShape:
    return type(condition), tuple([_SHAPES[type(each)](each, values) for each in condition.conditions])


_SHAPES: dict[type, Callable[[Any, Values], StatementShape]] = {
    Absent: lambda _condition, _values: (Absent,),
    Present: lambda _condition, _values: (Present,),
    Equals: _equals,
    OneOf: _one_of,
    AtMost: _valued,
    Past: lambda condition, _values: (Past, condition.attribute),
    Begins: _valued,
    AllOf: _several,
    AnyOf: _several,
}


class Clauses:
    """Writes a shape as a clause on the row `o`, of an item that is there; its time is `n.now`."""

    def __init__(self, kinds: dict[str, Kind], parameters: Parameters) -> None:
        self._kinds = kinds
        self._parameters = parameters
        self._place = 0

    def write(self, shape: StatementShape) -> str:
        """The clause; it takes its values in the order in which `shape_of` has listed them."""
        match shape:
            case (kind,) if kind is Absent:
                return "FALSE"
            case (kind,) if kind is Present:
                return "TRUE"
            case (kind, attribute, kept, unusual) if kind is Equals:
                equal = self._equal(attribute, kept)
                return f"({equal} AND o.{UNUSUAL[attribute]})" if unusual and equal != "FALSE" else equal
            case (kind, attribute, types) if kind is OneOf:
                return _joined(" OR ", "FALSE", [self._equal(attribute, each) for each in types])
            case (kind, attribute, _) if kind is AtMost:
                return self._at_most(attribute)
            case (kind, attribute) if kind is Past:
                return f"o.{quoted(attribute)} <= n.now" if self._is(attribute, Kind.NUMBER) else "FALSE"
            case (kind, attribute, kept) if kind is Begins:
                return self._begins(attribute, kept)
            case (kind, shapes) if kind is AllOf:
                return _joined(" AND ", "TRUE", [self.write(each) for each in shapes])
            case (_, shapes):
                return _joined(" OR ", "FALSE", [self.write(each) for each in shapes])
        raise AssertionError(f"no such shape: {shape}")

    def _is(self, attribute: str, kind: Kind) -> bool:
        return self._kinds.get(attribute) is kind

    def _equal(self, attribute: str, kept: type) -> str:
        kind = self._kinds.get(attribute)
        if kind in (Kind.OBJECT, Kind.SET) and issubclass(kept, PYTHON_TYPES[kind]):
            raise UsageError(f"{attribute!r} holds {kind}, which no condition compares")
        value = self._value(kind, kept)
        if value is None:  # values of two kinds are never equal
            return "FALSE"
        return f"o.{quoted(attribute)} = {value}"

    def _at_most(self, attribute: str) -> str:
        value = self._value(Kind.NUMBER, float)
        if self._is(attribute, Kind.NUMBER):
            return f"coalesce(o.{quoted(attribute)}, 0) <= {value}"
        return f"0 <= {value}"

    def _begins(self, attribute: str, kept: type) -> str:
        value = self._value(self._kinds.get(attribute), kept)
        if value is None or not self._is(attribute, Kind.TEXT):
            return "FALSE"
        # The first half is for the index, where the server cannot make anything of the second.
        return f"(o.{quoted(attribute)} >= {value} AND starts_with(o.{quoted(attribute)}, {value}))"

    def _value(self, kind: Kind | None, kept: type) -> str | None:
        """The next value as SQL has it; None where an attribute of this kind never has such a value."""
        place, self._place = self._place, self._place + 1
        if kind is None or not issubclass(kept, PYTHON_TYPES[kind]):
            return None
        return self._parameters.value(kind, kept, WHEN, place)


def _joined(word: str, nothing: str, clauses: list[str]) -> str:
    return f"({word.join(clauses)})" if clauses else nothing
