"""Pages of items: by a table's key, by an index, or by looking through all of a table."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from semel.core.commands import (
    Absent,
    AllOf,
    AnyOf,
    Condition,
    Equals,
    Item,
    Present,
    Query,
    cursor,
    holds,
    ordering,
    place_of,
)
from semel.errors import UsageError
from semel.stores.dynamodb.conditions import Conditions
from semel.stores.dynamodb.layout import DynamoLayout, Field
from semel.stores.dynamodb.time import ClockReading
from semel.stores.dynamodb.values import Value
from semel.tables import Index

BOUNDED: Final[dict[tuple[str, ...], str]] = {
    (":low", ":high"): "BETWEEN :low AND :high",
    (":low",): ">= :low",
    (":high",): "<= :high",
}


class Path(NamedTuple):
    """The key that a query goes by: the table's own, or that of an index."""

    asked: Index | None
    name: str
    """The index in the table that items are kept in; "" where there is none."""
    partition: Field
    sort: Field | None

    @property
    def lacks_index(self) -> bool:
        """Whether there should be an index to go by, and there is none."""
        return self.asked is not None and not self.name

    @property
    def keys(self) -> tuple[Field, ...]:
        """The fields of the key, which no filter may name."""
        return (self.partition,) if self.sort is None else (self.partition, self.sort)


def path(layout: DynamoLayout, index: Index | None) -> Path:
    """The way that an index leads to items, or without one the table's own."""
    if index is None:
        return Path(None, "", layout.partition, layout.sort)
    partition = layout.fields[index.partition]
    sort = None if index.sort is None else layout.fields[index.sort]
    named = [each.name for each in layout.kept.indexes if _same(layout, each, index, partition, sort)]
    return Path(index, named[0] if named else "", partition, sort)


def _same(layout: DynamoLayout, there: Index, index: Index, partition: Field, sort: Field | None) -> bool:
    """Whether an index of the table that items are kept in is the one that is asked for."""
    if not layout.shared:
        return there.name == index.name
    # What its owner's items mean depends on what they lack, so that only whole ones can be read.
    keys = (partition.name, None if sort is None else sort.name)
    return (there.partition, there.sort) == keys and there.carries is None


class ItemSearch:
    """One query: its request, where it begins, and which of the items that are found are meant."""

    def __init__(self, layout: DynamoLayout, conditions: Conditions, path: Path, command: Query) -> None:
        self._layout = layout
        self._conditions = conditions
        self._path = path
        self._command = command
        self._scans = command.key is None or path.lacks_index
        self.operation = "Scan" if self._scans else "Query"
        self._check()

    @property
    def filters(self) -> bool:
        """Whether many items may have to be looked at to find one."""
        return self._command.where is not None or self._path.lacks_index

    @property
    def bounded(self) -> bool:
        """Whether a page ends after so many items were read; where an index is missing, none does."""
        return self._command.most > 0 and not self._path.lacks_index

    def _check(self) -> None:
        """Refuse to ask an index for what it does not carry: items would seem to lack it."""
        index, table = self._path.asked, self._layout.asked
        if index is None or index.carries is None:
            return
        carried = {*table.key, table.expires, index.partition, index.sort, *index.carries}
        for name in (*self._command.only, *mentioned(self._command.where)):
            if name in self._layout.fields and name not in carried:
                raise UsageError(
                    f"index {index.name!r} of table {table.name} does not carry {name!r}; "
                    "it leads to keys, by which the items can be read"
                )

    # The request

    def request(self, reading: ClockReading) -> dict[str, Any] | None:
        """Query or Scan, without where it begins and how far it looks; None where nothing is to be found."""
        use: Any = "scan" if self._scans else "query"
        guard, values = self._conditions.guard(self._where(), use, reading, self._path.keys)
        low, high = self._command.low, self._command.high
        if guard.never or (low is not None and high is not None and _beyond(low, high)):
            return None
        names, filled = dict(guard.names), guard.filled(values, reading)
        # An index is never read consistently.
        source = {"IndexName": self._path.name} if self._path.name else {"ConsistentRead": True}
        request: dict[str, Any] = {"TableName": self._layout.title, **source}
        if guard.text:
            request["FilterExpression"] = guard.text
        if not self._scans:
            request["KeyConditionExpression"] = self._range(names, filled)
            request["ScanIndexForward"] = not self._command.reverse
        if self._command.only and not self._layout.shared:
            request["ProjectionExpression"] = ", ".join(self._projected(names))
        return request | {"ExpressionAttributeNames": names, "ExpressionAttributeValues": filled}

    def _where(self) -> Condition | None:
        """What a filter asks: where there is no index to go by, also for what it would have led to."""
        where, index, key = self._command.where, self._path.asked, self._command.key
        if index is None or key is None or not self._path.lacks_index:
            return where
        there = Equals(index.partition, key)
        return there if where is None else AllOf((there, where))

    def _range(self, names: dict[str, str], filled: dict[str, Value]) -> str:
        sort = self._path.sort
        names["#k"] = self._path.partition.name
        filled[":k"] = self._written(self._path.partition, self._command.key)
        bounds = {":low": self._command.low, ":high": self._command.high}
        bounds = {name: bound for name, bound in bounds.items() if bound is not None}
        if sort is None or not bounds:
            return "#k = :k"
        names["#s"] = sort.name
        filled |= {name: self._written(sort, bound) for name, bound in bounds.items()}
        return f"#k = :k AND #s {BOUNDED[tuple(bounds)]}"

    def _written(self, field: Field, value: Any) -> Value:
        return field.write(self._layout.bare(value) if field is self._layout.partition else value)

    def _projected(self, names: dict[str, str]) -> Iterator[str]:
        """What is wanted, with the key, the end, and whatever else decides whether the item is meant."""
        layout, command = self._layout, self._command
        table = layout.asked
        needed = (*ordering(table, self._path.asked), table.expires, *command.only)
        known = {stands: name for name, stands in names.items()}
        for attribute in dict.fromkeys((*needed, *mentioned(command.where))):
            field = layout.fields.get(attribute)
            if field is None:
                raise layout.unknown(attribute)
            yield known.setdefault(field.name, f"#o{len(names)}")
            names[known[field.name]] = field.name

    # Pages

    def start(self) -> dict[str, Value] | None:
        """Where a later page begins."""
        command, table = self._command, self._layout.asked
        if command.after is None:
            return None
        place = place_of(table, command.after, self._path.asked)
        key, *sort = place[-len(table.key) :]
        if self._path.asked is None and command.key not in (None, key):
            raise UsageError(f"not a cursor of this partition: {command.after!r}")
        own = self._layout.key(str(key), sort[0] if sort else None)  # type: ignore[arg-type]  # as its kind is
        if not self._path.name:
            return own
        entry = zip(self._path.keys, (command.key, *place), strict=False)
        return {field.name: self._written(field, value) for field, value in entry} | own

    def wants(self, item: Item, reading: ClockReading) -> bool:
        """Whether an item is what was asked for, also in what a filter could not say."""
        command, sort = self._command, self._path.sort
        if self._scans and sort is not None and not _between(command, item.get(sort.attribute)):
            return False
        return command.where is None or holds(command.where, item, reading.earliest)

    def page(self, found: list[Item]) -> tuple[Item, ...]:
        """Items of a page in the order that they have; where an index is missing, within their page only."""
        if not self._path.lacks_index:
            return tuple(found)
        names = ordering(self._layout.asked, self._path.asked)
        return tuple(
            sorted(found, key=lambda item: [item[name] for name in names], reverse=self._command.reverse)
        )

    def cursor(self, item: Item) -> str:
        """Where the page after this item begins."""
        return cursor(self._layout.asked, item, self._path.asked)

    def after(self, key: dict[str, Value]) -> str:
        """Where the page after the item of this key begins, whether or not that one was wanted."""
        return self.cursor(self._layout.read(key))


def mentioned(condition: Condition | None) -> Iterator[str]:
    """The attributes that a condition asks about."""
    match condition:
        case None | Absent() | Present():
            return
        case AllOf() | AnyOf():
            for each in condition.conditions:
                yield from mentioned(each)
        case _:
            yield condition.attribute


def _beyond(one: Any, other: Any) -> bool:
    try:
        return bool(one > other)
    except TypeError:
        raise UsageError(f"a sort key of this table is not both {one!r} and {other!r}") from None


def _between(command: Query, sort: str | float | None) -> bool:
    """Whether a place in the order is within the bounds; what has none is nowhere."""
    if sort is None or (command.low is not None and _beyond(command.low, sort)):
        return False
    return command.high is None or not _beyond(sort, command.high)
