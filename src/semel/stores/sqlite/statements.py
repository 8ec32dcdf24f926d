"""The pure half: a table as SQL, items as rows, and every command as a statement with its parameters.

The statements stand in `queries.sql`. Writes come in few shapes: the attributes that are named, and the types
of their values. Each shape is checked and made into a statement once.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from semel.core.commands import ABSENT, ANY, Add, After, Delete, Item, Put, Query, Write, ordering, place_of
from semel.errors import UsageError
from semel.stores.sql import PREFIX, UNUSUAL, USUAL, check, lacks, listed, literal, quoted
from semel.tables import FOREVER, Index, Kind, Table

Row: TypeAlias = tuple[Any, ...]
Statement: TypeAlias = tuple[str, Row]

# Numbers are declared without a type: any type that SQLite knows would turn 1.0 into 1 or 1 into 1.0.
COLUMN_TYPES = {Kind.NUMBER: "", Kind.BYTES: " BLOB", Kind.FLAG: " INTEGER"}
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
NOTHING: dict[str, Any] = {}


@cache
def queries() -> dict[str, str]:
    """Read the statements of `queries.sql`, by their names."""
    text = Path(__file__).with_name("queries.sql").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("-- name: ") or not line.startswith("--")]
    parts = " ".join(lines).split("-- name: ")[1:]
    return {name: " ".join(sql.split()) for name, sql in (part.split(" ", 1) for part in parts)}


class WriteShape(NamedTuple):
    """What is known of all writes that name the same attributes, with values of the same types."""

    sql: str
    parameters: Callable[[list[Any]], Row]
    """Picks the parameters of the statement out of the values."""
    moments: tuple[int, ...]
    """The values that count from the store's now."""
    numbers: tuple[int, ...]
    """The values that might be NaN."""
    packed: tuple[tuple[int, Callable[[Any], Any]], ...]
    """The values that are written as JSON."""


class SQLitePlan:
    """Everything about one table that does not change from command to command."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.kinds: dict[str, Kind] = table.kinds
        self.columns: tuple[str, ...] = tuple(self.kinds)
        self.name: str = quoted(PREFIX + table.name)
        self._unpacked = {name: UNPACK[kind] for name, kind in self.kinds.items() if kind in UNPACK}
        self._shapes: dict[tuple[Any, ...], WriteShape] = {}
        self._names = {
            "table": self.name,
            "key": listed(table.key),
            "key_is": _joined(dict.fromkeys(table.key, "?")),
            "expires": quoted(table.expires),
            "all": listed(self.columns),
        }
        self.select: str = self.sql("select")
        self.reap: str = self.sql("reap")

    def sql(self, query: str, **names: Any) -> str:
        """Build a statement of this table."""
        return queries()[query].format_map(self._names | names)

    def place(self, command: Any) -> Row:
        """Return the parameters that name an item."""
        return (command.key,) if self.table.sort is None else (command.key, command.sort)

    def item(self, row: Row) -> Item:
        """Return a row as an item: an attribute without a value is no attribute."""
        # Every refusal comes through here, and strict=True would cost it a tenth of a microsecond.
        item = {name: value for name, value in zip(self.columns, row) if value is not None}  # noqa: B905
        for name, unpack in self._unpacked.items():
            if name in item:
                item[name] = unpack(item[name])
        return item

    # Writes

    def write(self, command: Any, now: float) -> Statement:
        """Return the one statement that makes a write, or makes none if the item is not as expected."""
        kind: Any = type(command)
        if kind is Add:
            item, expect = command.set, {"by": command.by, "cap": command.cap}
            kind = command.attribute, self._needs_item(command)
        else:
            item = command.item if kind is Put else NOTHING if kind is Delete else command.set
            expect = command.expect
            if expect is ABSENT or expect is ANY:
                kind, expect = expect, NOTHING
        values = [*item.values(), *expect.values(), FOREVER, command.sort, command.key]
        form = (kind, len(item), *item, *expect, *map(type, values))
        shape = self._shapes.get(form)
        if shape is None:
            shape = self._shapes[form] = self._learn(command, item, expect, values)
        for place in shape.moments:
            values[place] = now + values[place].seconds
        for place in shape.numbers:
            if values[place] != values[place]:  # only NaN is not itself
                raise UsageError(f"a number of {command.key!r} is NaN, and SQLite would make it NULL")
        for place, pack in shape.packed:
            values[place] = pack(values[place])
        return shape.sql, shape.parameters(values)

    def _learn(self, command: Write, item: Item, expect: Item, values: list[Any]) -> WriteShape:
        """Check a shape, and build its statement: at first `?3` in it is the third of the values."""
        table, kinds = self.table, self.kinds
        check(table.name, kinds, item)
        check(table.name, kinds, {command.attribute: command.by} if isinstance(command, Add) else expect)
        marks = [f"?{number}" for number in range(1, len(values) + 1)]
        places = {name: mark for name, mark in zip(item, marks, strict=False) if name not in table.key}
        ends = isinstance(command, Put) or (isinstance(command, Add) and not self._needs_item(command))
        if item.get(table.expires) is None and (ends or table.expires in item):
            if not table.forever:
                raise lacks(table, table.expires)
            places[table.expires] = marks[-3]
        key = dict(zip(table.key, (marks[-1], marks[-2]), strict=False))
        expected = dict(zip(expect, marks[len(item) :], strict=False))
        given = [(place, each) for place, each in enumerate(values) if each is not None]
        packs = [PACK.get(kinds.get(name, Kind.NUMBER)) for name in (*item, *expect)]
        sql = self._statement(command, key, places, expected, values)
        order = [int(number) - 1 for number in re.findall(r"\?(\d+)", sql)]
        return WriteShape(
            re.sub(r"\?\d+", "?", sql),
            itemgetter(*order) if len(order) > 1 else lambda values: (values[-1],),  # a key alone
            tuple(place for place, each in given if type(each) is After),
            tuple(place for place, each in given if type(each) is float),
            tuple((place, pack) for place, pack in enumerate(packs) if pack and values[place] is not None),
        )

    def _statement(
        self,
        command: Any,
        key: dict[str, str],
        places: dict[str, str],
        expected: dict[str, str],
        values: list[Any],
    ) -> str:
        # What has no value is not named in a new row: half of a claim's columns, and SQLite's time with them.
        into = key | {name: mark for name, mark in places.items() if values[int(mark[1:]) - 1] is not None}
        names = {"key_is": _joined(key), "expected": "", "cap": ""}
        if isinstance(command, Add):
            total = f"coalesce({self.name}.{quoted(command.attribute)}, 0) + {expected['by']}"
            # An item that exists keeps its end.
            changes = {name: mark for name, mark in places.items() if name != self.table.expires}
            changes[command.attribute], into[command.attribute] = total, expected["by"]
            query = "add_to_existing" if self._needs_item(command) else "add"
            if command.cap is not None:
                names["cap"] = f"{'AND' if query != 'add' else 'WHERE'} {total} <= {expected['cap']}"
        elif isinstance(command, Delete) or isinstance(command.expect, Mapping):
            rest = [name for name in self.columns if name not in key] if isinstance(command, Put) else ()
            # A change of nothing has an expectation all the same.
            changes = dict.fromkeys(rest, "NULL") | places or {self.table.expires: quoted(self.table.expires)}
            names["expected"] = "".join(f" AND {quoted(name)} IS {mark}" for name, mark in expected.items())
            query = "delete" if isinstance(command, Delete) else "update"
        else:
            changes, query = {}, "insert" if command.expect is ABSENT else "replace"
        columns, marks = listed(tuple(into)), ", ".join(into.values())
        return self.sql(query, columns=columns, values=marks, set=_joined(changes, ", "), **names)

    def _needs_item(self, command: Add) -> bool:
        """Return whether an addition cannot make the item: it subtracts, exceeds its cap, or has no end."""
        cap, table = command.cap, self.table
        lasts = table.forever or command.set.get(table.expires) is not None
        return command.by < 0 or not lasts or (cap is not None and command.by > cap)

    # Reading

    def glance(self, attributes: tuple[str, ...], where: dict[str, str | int]) -> str:
        """Build the statement that reads some attributes of an item, if it has not expired and is so."""
        # In the text and not as parameters: a column that is only compared is quicker than one that is read.
        equal = "".join(f" AND {quoted(name)} = {literal(value)}" for name, value in where.items())
        return self.sql("glance", columns=listed(attributes), equal=equal)

    def page(self, query: Query, now: float) -> Statement:
        """Return the statement that reads a page and one item more, in order."""
        index = self.table.index(query.index)
        by = index or self.table
        order, whole = ordering(self.table, index), partition_of(by) == quoted(by.partition)
        # In one partition its attribute orders nothing, and only without it SQLite sees the index's order.
        rest = [name for name in order if query.key is None or name != by.partition or not whole]
        names = tuple(dict.fromkeys(rest or order))
        clauses: list[Statement] = [] if query.key is None else [(f"{partition_of(by)} = ?", (query.key,))]
        if query.after is not None:
            after = dict(zip(order, place_of(self.table, query.after, index), strict=True))
            # A cursor of another partition is beyond all of this one, or before it.
            beyond = names if after.get(by.partition, query.key) == query.key else tuple(dict.fromkeys(order))
            marks = ", ".join("?" * len(beyond))
            sql = f"({listed(beyond)}) {'<' if query.reverse else '>'} ({marks})"
            clauses.append((sql, tuple(after[name] for name in beyond)))
        clauses += [*self._bounds(query, index), *self._equal(query)]
        sql = self.sql(
            "page",
            range="".join(f" AND {text}" for text, _ in clauses),
            order=", ".join(quoted(name) + (" DESC" if query.reverse else "") for name in names),
            limit=query.limit + 1,
        )
        return sql, (now, *(value for _, values in clauses for value in values))

    def _bounds(self, query: Query, index: Index | None) -> Iterator[Statement]:
        column, by = quoted(self.table.partition), index or self.table
        if query.prefix:
            yield f"{column} >= ?", (query.prefix,)
            if (end := after_prefix(query.prefix)) is not None:
                yield f"{column} < ?", (end,)
        if by.sort is not None:
            if index is not None and query.after is query.low is query.high is None:
                yield f"{quoted(by.sort)} IS NOT NULL", ()
            for operator, value in ((">=", query.low), ("<=", query.high)):
                if value is not None:
                    # SQLite begins a range at one bound: the + hides the first page's from a later one.
                    passed = query.after is not None and (operator == "<=") is query.reverse
                    yield f"{'+' if passed else ''}{quoted(by.sort)} {operator} ?", (value,)

    def _equal(self, query: Query) -> Iterator[Statement]:
        check(self.table.name, self.kinds, dict(query.equal))
        for name, value in query.equal.items():
            pack = PACK.get(self.kinds[name])
            # The + keeps a filter from leading away from the index that was asked for.
            yield (
                f"{'+' if query.index else ''}{quoted(name)} IS ?",
                (pack(value) if pack and value else value,),
            )
            if value != USUAL.get(name, value):
                yield UNUSUAL[name], ()

    # The schema

    def definition(self) -> str:
        """Build the statement that makes the table where it is missing."""
        return self.sql("create_table", definitions=", ".join(map(self._column, self.columns)))

    def _column(self, name: str) -> str:
        required = " NOT NULL" if name in self.table.key else ""
        return quoted(name) + COLUMN_TYPES.get(self.kinds[name], " TEXT") + required

    def indexes(self) -> dict[str, str]:
        """Return the names of its indexes, and the statements that make them where they are missing."""
        table = self.table
        made = [self._index("", table.expires)]
        made += [self._index(UNUSUAL.get(name, ""), name) for name in table.listed_by]
        # An item without the attribute is not in its index, and costs no second write. That a query for one
        # value of it may use the index, SQLite sees by itself; but not if the column is never empty anyway.
        present = {name: "" if name in table.key else f"{quoted(name)} IS NOT NULL" for name in self.columns}
        made += [self._index(present[by.partition], *by.key) for by in table.indexes]
        return dict(made)

    def _index(self, where: str, *names: str) -> tuple[str, str]:
        name = "_".join((PREFIX + self.table.name, *names))
        where = f" WHERE {where}" if where else ""
        return name, self.sql("create_index", name=quoted(name), columns=listed(names), where=where)

    def optional_index(self, index: Index) -> str:
        """Build the statement that makes an optional index where it is missing."""
        columns = ", ".join([partition_of(index), *([] if index.sort is None else [quoted(index.sort)])])
        name = quoted(self.index_title(index.name))
        return self.sql("create_index", name=name, columns=columns, where="")

    def index_title(self, name: str) -> str:
        """Return what an optional index of this name is called in the file."""
        return f"{PREFIX}{self.table.name}_{name}"


def _joined(values: Mapping[str, str], separator: str = " AND ") -> str:
    return separator.join(f"{quoted(name)} = {value}" for name, value in values.items())


def partition_of(by: Table | Index) -> str:
    """Return what the items of one partition have in common, as SQL has it."""
    column = quoted(by.partition)
    if not isinstance(by, Index) or not by.by_realm:
        return column
    slash = f"instr({column}, '/')"
    return f"substr({column}, 1, {slash} + instr(substr({column}, {slash} + 1), '/'))"


def after_prefix(prefix: str) -> str | None:
    """Return the first text after all those that begin so; None where there is none."""
    for place in reversed(range(len(prefix))):
        code = ord(prefix[place])
        if code < 0x10FFFF:
            # Between the two lie the surrogates, which are no characters.
            return prefix[:place] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None
