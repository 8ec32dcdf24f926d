"""The pure half: a `Table` as SQL text, items as rows and rows as items, a `Query` as a SELECT."""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from semel.core.commands import (
    After,
    AllOf,
    Begins,
    Condition,
    Equals,
    Get,
    Item,
    OneOf,
    Query,
    Watch,
    Write,
    ordering,
    place_of,
)
from semel.errors import UsageError
from semel.stores.sql import PREFIX, UNUSUAL, USUAL, check, lacks, listed, literal, quoted
from semel.tables import Index, Kind, Table

SQLiteRow: TypeAlias = tuple[Any, ...]
SQLClause: TypeAlias = tuple[str, tuple[Any, ...]]

# Numbers are declared without a type: any type that SQLite knows would turn 1.0 into 1 or 1 into 1.0.
COLUMN_TYPES = {
    Kind.TEXT: " TEXT",
    Kind.NUMBER: "",
    Kind.BYTES: " BLOB",
    Kind.FLAG: " INTEGER",
    Kind.OBJECT: " TEXT",
    Kind.SET: " TEXT",
}
# What SQLite has no type for is written as JSON, a set in one order so that equal sets are equal texts.
PACK: dict[Kind, Callable[[Any], Any]] = {
    Kind.OBJECT: lambda value: msgspec.json.encode(value).decode(),
    Kind.SET: lambda value: msgspec.json.encode(sorted(value)).decode() if value else None,
}
UNPACK: dict[Kind, Callable[[Any], Any]] = {
    Kind.FLAG: bool,
    Kind.OBJECT: msgspec.json.decode,
    Kind.SET: lambda text: set(msgspec.json.decode(text)),
}


class RowShape(NamedTuple):
    """What is known of all items whose attributes have the same types."""

    moments: tuple[int, ...]
    """The columns that are still to be told what time it is."""
    numbers: tuple[int, ...]
    """The columns that might be NaN."""
    packed: tuple[tuple[int, Callable[[Any], Any]], ...]
    insert: str
    """The statement for a new row. What has no value is not named: half of a claim's columns, for which
    SQLite would take as long again."""
    given: Callable[[list[Any]], SQLiteRow]
    """The parameters of that statement, out of a row."""


class SQLitePlan:
    """Everything about one table that does not change from command to command."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.kinds: dict[str, Kind] = table.kinds
        self.columns: tuple[str, ...] = tuple(self.kinds)
        self.expires: int = self.columns.index(table.expires)
        self._unpacked = {name: UNPACK[kind] for name, kind in self.kinds.items() if kind in UNPACK}
        self._shapes: dict[tuple[type, ...], RowShape] = {}
        self.sorted: bool = table.sort is not None
        self.name: str = quoted(PREFIX + table.name)
        here = " AND ".join(f"{quoted(name)} = ?" for name in table.key)
        key = listed(table.key)
        self.select: str = f"SELECT {listed(self.columns)} FROM {self.name} WHERE {here}"
        self.delete: str = f"DELETE FROM {self.name} WHERE {here}"
        self.replace: str = f"REPLACE {self._into(self.columns)}"
        self._here = here
        self._updates: dict[tuple[str, ...], tuple[str, list[int]]] = {}
        self.reap: str = (
            f"DELETE FROM {self.name} WHERE ({key}) IN (SELECT {key} FROM {self.name} "
            f"WHERE {quoted(table.expires)} <= ? ORDER BY {quoted(table.expires)} LIMIT ?)"
        )

    def place(self, command: Get | Watch | Write) -> SQLiteRow:
        """The parameters that name an item."""
        return (command.key, command.sort) if self.sorted else (command.key,)

    def item(self, row: SQLiteRow) -> Item:
        """A row as an item: an attribute without a value is no attribute."""
        # Every replay comes through here, and strict=True would cost it a tenth of a microsecond.
        item = {name: value for name, value in zip(self.columns, row) if value is not None}  # noqa: B905
        for name, unpacked in self._unpacked.items():
            if name in item:
                item[name] = unpacked(item[name])
        return item

    def insertion(self, item: Item, now: float) -> tuple[str, SQLiteRow]:
        """The statement that adds an item where there is none, and its parameters."""
        row, shape = self._shaped(item, now)
        return shape.insert, shape.given(row)

    def row(self, item: Item, now: float) -> list[Any]:
        """An item as a row that will come back as it is; what SQLite refuses by itself is left to it."""
        return self._shaped(item, now)[0]

    def _shaped(self, item: Item, now: float) -> "tuple[list[Any], RowShape]":
        row = list(map(item.get, self.columns))
        # Items come in few shapes, and each shape is checked once.
        kinds = tuple(map(type, row))
        shape = self._shapes.get(kinds)
        if shape is None:
            shape = self._shapes[kinds] = self._learn(item, row)
        for place in shape.moments:
            row[place] = now + row[place].seconds  # type: ignore[union-attr]  # it is an After
        for place in shape.numbers:
            if row[place] != row[place]:  # only NaN is not itself
                raise UsageError(f"{self.columns[place]!r} is not a number, and SQLite would make it NULL")
        for place, pack in shape.packed:
            row[place] = pack(row[place])
        return row, shape

    def _learn(self, item: Item, row: list[Any]) -> "RowShape":
        self._check(item)
        named = [place for place, value in enumerate(row) if value is not None]
        kinds = list(self.kinds.values())
        free = f"ON CONFLICT ({listed(self.table.key)}) DO NOTHING"
        return RowShape(
            tuple(place for place in named if type(row[place]) is After),
            tuple(place for place in named if type(row[place]) is float),
            tuple((place, PACK[kinds[place]]) for place in named if kinds[place] in PACK),
            f"INSERT {self._into(tuple(self.columns[place] for place in named))} {free}",
            itemgetter(*named),
        )

    def _into(self, columns: tuple[str, ...]) -> str:
        return f"INTO {self.name} ({listed(columns)}) VALUES ({', '.join('?' * len(columns))})"

    def update(self, names: tuple[str, ...]) -> tuple[str, list[int]]:
        """The statement that changes these attributes of an item, and where their values are in a row."""
        known = self._updates.get(names)
        if known is None:
            changes = ", ".join(f"{quoted(name)} = ?" for name in names)
            sql = f"UPDATE {self.name} SET {changes} WHERE {self._here}"
            known = self._updates[names] = sql, [self.columns.index(name) for name in names]
        return known

    def _check(self, item: Item) -> None:
        check(self.table.name, self.kinds, item)
        for name in (*self.table.key, self.table.expires):
            if item.get(name) is None:
                raise lacks(self.table, name)

    def glance(self, attributes: tuple[str, ...], where: dict[str, str | int]) -> str:
        """The statement that reads some attributes of an item whose time is not up, and which is so."""
        clauses = [f"{quoted(self.table.partition)} = ?", f"{quoted(self.table.expires)} > ?"]
        # In the text and not as parameters: a column that is only compared is quicker than one that is read.
        clauses += [f"{quoted(name)} = {literal(value)}" for name, value in where.items()]
        return f"SELECT {listed(attributes)} FROM {self.name} WHERE {' AND '.join(clauses)}"

    def definition(self) -> str:
        """The statement that makes the table where it is missing."""
        columns = [self.column(name) for name in self.columns]
        columns.append(f"PRIMARY KEY ({listed(self.table.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(columns)}) WITHOUT ROWID"

    def indexes(self) -> dict[str, str]:
        """The names of its indexes, and the statements that make them where they are missing."""
        table = self.table
        made = [self._index("", table.expires)]
        made += [self._index(UNUSUAL.get(name, ""), name) for name in table.listed_by]
        made += [self._index(self._present(by.partition), *by.key) for by in table.indexes]
        return dict(made)

    def optional_index(self, index: Index) -> str:
        """The statement that makes an optional index where it is missing."""
        columns = ", ".join([partition_of(index), *([] if index.sort is None else [quoted(index.sort)])])
        name = quoted(self.index_title(index.name))
        return f"CREATE INDEX IF NOT EXISTS {name} ON {self.name} ({columns})"

    def index_title(self, name: str) -> str:
        """What an optional index of this name is called in the file."""
        return f"{PREFIX}{self.table.name}_{name}"

    def _present(self, name: str) -> str:
        """An item without the attribute is not in its index, and costs no second write."""
        # That a query for one value of it may use the index, SQLite sees by itself; but not if the column is
        # never empty anyway.
        return "" if name in self.table.key else f"{quoted(name)} IS NOT NULL"

    def _index(self, where: str, *names: str) -> tuple[str, str]:
        name = "_".join((PREFIX + self.table.name, *names))
        partial = f" WHERE {where}" if where else ""
        return name, f"CREATE INDEX IF NOT EXISTS {quoted(name)} ON {self.name} ({listed(names)}){partial}"

    def column(self, name: str) -> str:
        """A column's definition."""
        required = " NOT NULL" if name in self.table.key else ""
        return quoted(name) + COLUMN_TYPES[self.kinds[name]] + required


def partition_of(by: Table | Index) -> str:
    """What the items of one partition have in common, as SQL has it."""
    column = quoted(by.partition)
    if not isinstance(by, Index) or not by.by_realm:
        return column
    slash = f"instr({column}, '/')"
    return f"substr({column}, 1, {slash} + instr(substr({column}, {slash} + 1), '/'))"


class AccessPath:
    """How a query gets at its rows: by the primary key, or by an index."""

    def __init__(self, table: Table, query: Query) -> None:
        self.index: Index | None = table.index(query.index)
        by = self.index or table
        self.partition: str = by.partition
        self.sort: str | None = by.sort
        self.partition_sql: str = partition_of(by)
        self.order: tuple[str, ...] = tuple(dict.fromkeys(ordering(table, self.index)))
        self.after: dict[str, Any] | None = None if query.after is None else self._place(table, query.after)
        # In one partition its attribute orders nothing, and only without it SQLite sees the index's order.
        whole = self.partition_sql == quoted(self.partition)
        self.rest: tuple[str, ...] = (
            tuple(name for name in self.order if name != self.partition or not whole) or self.order
        )

    def _place(self, table: Table, after: str) -> dict[str, Any]:
        return dict(zip(ordering(table, self.index), place_of(table, after, self.index), strict=True))


def select(plan: SQLitePlan, query: Query, now: float) -> tuple[str, list[Any]]:
    """A SELECT of at least the rows asked for, in order; what it cannot say is for `holds` to check."""
    path = AccessPath(plan.table, query)
    # The + keeps SQLite from choosing the index on expiry, which would find nearly every row.
    clauses: list[SQLClause] = [(f"+{quoted(plan.table.expires)} > ?", (now,)), *_range(path, query)]
    if query.where is not None:
        # Nor does a filter lead away from the index that was asked for.
        clauses += _narrowed(query.where, plan.columns, "" if path.index is None else "+")
    direction = " DESC" if query.reverse else ""
    order = ", ".join(quoted(name) + direction for name in (path.order if query.key is None else path.rest))
    where = " AND ".join(text for text, _ in clauses)
    sql = f"SELECT {listed(plan.columns)} FROM {plan.name} WHERE {where} ORDER BY {order}"
    return sql, [value for _, values in clauses for value in values]


def _range(path: AccessPath, query: Query) -> Iterator[SQLClause]:
    """The range of the primary key, or of an index, that a page can come from."""
    if query.key is not None:
        yield f"{path.partition_sql} = ?", (query.key,)
    if path.after is not None:
        yield _beyond(path, path.after, query)
    if path.sort is None:
        return
    if path.index is not None and query.after is query.low is query.high is None:
        yield f"{quoted(path.sort)} IS NOT NULL", ()
    for operator, value in ((">=", query.low), ("<=", query.high)):
        if value is not None:
            # SQLite begins a range at one bound: the + hides the first page's from a later one.
            passed = path.after is not None and (operator == "<=") is query.reverse
            yield f"{'+' if passed else ''}{quoted(path.sort)} {operator} ?", (value,)


def _beyond(path: AccessPath, after: dict[str, Any], query: Query) -> SQLClause:
    """What comes after the last item of the page before."""
    names = path.rest if after.get(path.partition, query.key) == query.key else path.order
    operator = "<" if query.reverse else ">"
    values = tuple(after[name] for name in names)
    return f"({listed(names)}) {operator} ({', '.join('?' * len(values))})", values


def _narrowed(condition: Condition, columns: tuple[str, ...], hidden: str) -> Iterator[SQLClause]:
    """What of a condition an index can be asked, or is not to be; the rest is left out."""
    match condition:
        case AllOf(conditions):
            for each in conditions:
                yield from _narrowed(each, columns, hidden)
        case Equals(attribute, value) if attribute in columns:
            yield f"{hidden}{quoted(attribute)} = ?", (value,)
            if value != USUAL.get(attribute, value):
                yield UNUSUAL[attribute], ()
        case OneOf(attribute, values) if attribute in columns:
            yield f"{hidden}{quoted(attribute)} IN ({', '.join('?' * len(values))})", tuple(values)
            if attribute in USUAL and USUAL[attribute] not in values:
                yield UNUSUAL[attribute], ()
        case Begins(attribute, value) if attribute in columns:
            yield f"{hidden}{quoted(attribute)} >= ?", (value,)
            if (end := after_prefix(value)) is not None:
                yield f"{hidden}{quoted(attribute)} < ?", (end,)


def after_prefix(prefix: str) -> str | None:
    """The first text after all those that begin so; None where there is none."""
    for place in reversed(range(len(prefix))):
        code = ord(prefix[place])
        if code < 0x10FFFF:
            # Between the two lie the surrogates, which are no characters.
            return prefix[:place] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None
