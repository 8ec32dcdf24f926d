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

from semel.core.commands import ABSENT, ANY, Add, After, Delete, Item, Put, Query, ordering, place_of
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
    """What is known of all writes that name the same attributes, with values of the same types.

    After the statement: what picks its parameters out of the values, and the places of values that count from
    the store's now, that might be NaN, and that are written as JSON.
    """

    sql: str
    parameters: Callable[[list[Any]], Row]
    moments: tuple[int, ...]
    numbers: tuple[int, ...]
    packed: tuple[tuple[int, Callable[[Any], Any]], ...]


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
                # As texts: to find a member of an enumeration in a dict calls Python.
                kind, expect = "absent" if expect is ABSENT else "any", NOTHING
        values = [*item.values(), *expect.values()]
        form = (kind, len(item), *item, *expect, *map(type, values))
        values += FOREVER, command.sort, command.key
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

    def _learn(self, command: Any, item: Item, expect: Item, values: list[Any]) -> WriteShape:
        """Check a shape, and build its statement: at first `?3` in it is the value at place 3."""
        table, kinds, adds = self.table, self.kinds, isinstance(command, Add)
        check(table.name, kinds, item)
        check(table.name, kinds, {command.attribute: command.by} if adds else expect)
        given = [(place, each) for place, each in enumerate(values) if each is not None]
        packs = [PACK.get(kinds.get(name, Kind.NUMBER)) for name in (*item, *expect)]
        sql = self._statement(command, item, expect, {place for place, _ in given})
        order = [int(number) for number in re.findall(r"\?(\d+)", sql)]
        return WriteShape(
            re.sub(r"\?\d+", "?", sql),
            itemgetter(*order) if len(order) > 1 else lambda values: (values[-1],),  # a key alone
            tuple(place for place, each in given if type(each) is After),
            tuple(place for place, each in given if type(each) is float and place < len(packs)),
            tuple((place, pack) for place, pack in enumerate(packs) if pack and values[place] is not None),
        )

    def _statement(self, command: Any, item: Item, expect: Item, given: set[int]) -> str:
        table, adds = self.table, isinstance(command, Add)
        *marks, forever, sort, partition = [f"?{place}" for place in range(len(item) + len(expect) + 3)]
        key = dict(zip(table.key, (partition, sort), strict=False))
        places = {name: mark for name, mark in zip(item, marks, strict=False) if name not in key}
        expected = dict(zip(expect, marks[len(item) :], strict=True))
        ends = not self._needs_item(command) if adds else isinstance(command, Put)
        if item.get(table.expires) is None and (ends or table.expires in item):
            if not table.forever:
                raise lacks(table, table.expires)
            places[table.expires] = forever
        # What has no value is not named in a new row: half of a claim's columns, and SQLite's time with them.
        into = key | {name: mark for name, mark in places.items() if int(mark[1:]) in given}
        changes, where = places, ""
        if adds:
            query = "add" if ends else "add_to_existing"
            total = f"coalesce({self.name}.{quoted(command.attribute)}, 0) + {expected['by']}"
            # An item that exists keeps its end.
            changes = {name: mark for name, mark in places.items() if name != table.expires}
            changes[command.attribute], into[command.attribute] = total, expected["by"]
            if command.cap is not None:
                where = f"{'WHERE' if ends else 'AND'} {total} <= {expected['cap']}"
        elif isinstance(command, Delete) or isinstance(command.expect, Mapping):
            query = "delete" if isinstance(command, Delete) else "update"
            if isinstance(command, Put):
                changes = dict.fromkeys([name for name in self.columns if name not in key], "NULL") | places
            where = "".join(f" AND {quoted(name)} IS {mark}" for name, mark in expected.items())
        else:
            query = "insert" if command.expect is ABSENT else "replace"
        # A change of nothing has an expectation all the same.
        changed = _joined(changes or {table.expires: quoted(table.expires)}, ", ")
        columns, values, key_is = listed(tuple(into)), ", ".join(into.values()), _joined(key)
        return self.sql(query, columns=columns, values=values, set=changed, key_is=key_is, where=where)

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
            sql = f"({listed(beyond)}) {'<' if query.reverse else '>'} ({', '.join('?' * len(beyond))})"
            clauses.append((sql, tuple(after[name] for name in beyond)))
        clauses += [*self._bounds(query, index), *self._equal(query)]
        sql = self.sql(
            "page",
            range="".join([f" AND {text}" for text, _ in clauses]),
            order=", ".join([quoted(name) + (" DESC" if query.reverse else "") for name in names]),
            limit=query.limit + 1,
        )
        return sql, (now, *[value for _, values in clauses for value in values])

    def _bounds(self, query: Query, index: Index | None) -> Iterator[Statement]:
        column, sort = quoted(self.table.partition), (index or self.table).sort
        if query.prefix:
            yield f"{column} >= ?", (query.prefix,)
            if (end := after_prefix(query.prefix)) is not None:
                yield f"{column} < ?", (end,)
        if sort is not None:
            if index is not None and query.after is query.low is query.high is None:
                yield f"{quoted(sort)} IS NOT NULL", ()
            for operator, value in ((">=", query.low), ("<=", query.high)):
                if value is not None:
                    # SQLite begins a range at one bound: the + hides the first page's from a later one.
                    passed = query.after is not None and (operator == "<=") is query.reverse
                    yield f"{'+' if passed else ''}{quoted(sort)} {operator} ?", (value,)

    def _equal(self, query: Query) -> Iterator[Statement]:
        check(self.table.name, self.kinds, dict(query.equal))
        for name, value in query.equal.items():
            pack = PACK.get(self.kinds[name])
            # The + keeps a filter from leading away from the index that was asked for.
            packed = pack(value) if pack and value else value
            yield f"{'+' if query.index else ''}{quoted(name)} IS ?", (packed,)
            if value != USUAL.get(name, value):
                yield UNUSUAL[name], ()

    # The schema

    def definition(self) -> str:
        """Build the statement that makes the table where it is missing."""
        columns = [
            quoted(name) + COLUMN_TYPES.get(kind, " TEXT") + (" NOT NULL" if name in self.table.key else "")
            for name, kind in self.kinds.items()
        ]
        return self.sql("create_table", definitions=", ".join(columns))

    def indexes(self) -> dict[str, str]:
        """Return the names of its indexes, and the statements that make them where they are missing."""
        table = self.table
        wanted: dict[tuple[str, ...], str] = {(table.expires,): ""}
        wanted |= {(name,): UNUSUAL.get(name, "") for name in table.listed_by}
        # An item without the attribute is not in its index, and costs no second write. That a query for one
        # value of it may use the index, SQLite sees by itself; but not if the column is never empty anyway.
        present = {name: "" if name in table.key else f"{quoted(name)} IS NOT NULL" for name in self.columns}
        wanted |= {by.key: present[by.partition] for by in table.indexes}
        titles = {self.index_title("_".join(names)): names for names in wanted}
        return {title: self._index(title, listed(names), wanted[names]) for title, names in titles.items()}

    def _index(self, title: str, columns: str, where: str = "") -> str:
        where = f" WHERE {where}" if where else ""
        return self.sql("create_index", name=quoted(title), columns=columns, where=where)

    def optional_index(self, index: Index) -> str:
        """Build the statement that makes an optional index where it is missing."""
        columns = [partition_of(index), *map(quoted, index.key[1:])]
        return self._index(self.index_title(index.name), ", ".join(columns))

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
