"""Commands as statements with their values, rows as items and replies. Nothing here does I/O.

The text of a statement is in `queries.sql`. It depends on the table, the kind of write and the names in it;
values travel as parameters. What PostgreSQL cannot store is refused here, before anything is sent: an error
from the server would end a transaction that may be the caller's.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from semel.core.commands import (
    ABSENT,
    Add,
    After,
    Applied,
    Delete,
    Get,
    Item,
    Page,
    Presence,
    Put,
    Query,
    Refused,
    Watch,
    Write,
    allowed,
    cursor,
    ordering,
    place_of,
)
from semel.errors import UsageError
from semel.stores.sql import PREFIX, UNUSUAL, USUAL, check, check_kind, lacks, literal, quoted
from semel.tables import Index, Kind, Table

PostgresStatement: TypeAlias = tuple[bytes, list[Any] | None]
PostgresRow: TypeAlias = tuple[Any, ...]
PostgresRows: TypeAlias = list[PostgresRow]
Convert: TypeAlias = Callable[[Any], Any]
# What is written to each column, as SQL.
Changes: TypeAlias = dict[str, str]

# Texts compare by their bytes. A double holds every integer up to 2^53, which is as far as a number may go.
# An object is kept as it was written: jsonb would refuse a NUL in a text, and write numbers in another form.
COLUMN_TYPES = {
    Kind.TEXT: 'text COLLATE "C"',
    Kind.NUMBER: "double precision",
    Kind.BYTES: "bytea",
    Kind.FLAG: "boolean",
    Kind.OBJECT: "json",
    Kind.SET: "text[]",
}
# Objects and sets travel as texts.
SENT_AS = {
    Kind.TEXT: "text",
    Kind.NUMBER: "float8",
    Kind.BYTES: "bytea",
    Kind.FLAG: "bool",
    Kind.OBJECT: "text::json",
    Kind.SET: "text::text[]",
}
FOREVER = "'Infinity'::float8"
EXACT = 2.0**53
NOTHING: Item = {}
# The column that says whether a waiter is to be notified.
BELL = "_bell"
# Every write of a transaction fails with these words if it is refused; they are in the server's log.
REFUSED = "semel rolls this transaction back: a write in it was refused"


def _read_queries() -> dict[str, str]:
    text = (files(__package__) / "queries.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: query.strip() for name, query in zip(parts[1::2], parts[2::2], strict=True)}


QUERIES = _read_queries()
"""The queries of `queries.sql` by their names, each after its description."""


def filled(query: str, **names: str) -> str:
    """Fill in a query of `queries.sql`, without its description."""
    return QUERIES[query].partition("\n")[2].format(**names)


THE_TIME = filled("now")
RUNG = filled("rung")
ASK_TIME = filled("time", now=THE_TIME).encode()


# Values


def text(value: str) -> str:
    """Return a text as PostgreSQL can store it."""
    value = value if type(value) is str else str.__str__(value)  # the driver would send an enum's name
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"PostgreSQL cannot keep this text: {error}") from error
    if "\0" in value:
        raise UsageError(f"PostgreSQL cannot keep a text with a NUL in it: {value!r}")
    return value


def number(value: float) -> float:
    """Return a number as a double, which must hold it exactly."""
    try:
        double = float(value)
    except OverflowError:
        double = float("nan")
    if double != value:
        raise UsageError(f"{value} cannot be kept: PostgreSQL keeps what a double holds exactly, and no NaN")
    return double


def seconds(after: After) -> float:
    """Return how long after the server's now a moment is."""
    return number(after.seconds)


def packed(value: dict[str, Any]) -> str:
    """Return an object as JSON."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"not an object as JSON knows it: {error}") from error


def array(texts: set[str]) -> str | None:
    """Return a set of texts as PostgreSQL writes an array, in one order; an empty one is no attribute."""
    if not texts:
        return None
    escaped = [text(each).replace("\\", "\\\\").replace('"', '\\"') for each in sorted(texts)]
    return '{"' + '","'.join(escaped) + '"}'


CONVERSIONS: dict[Kind, Convert] = {
    Kind.TEXT: text,
    Kind.NUMBER: number,
    Kind.BYTES: bytes,
    Kind.OBJECT: packed,
    Kind.SET: array,
}
# To make bytes of bytes would copy them, and a result may be large.
AS_THEY_ARE = (bytes, type(None))
UNPACK: dict[Kind, Convert] = {Kind.OBJECT: msgspec.json.decode, Kind.SET: set}


class WriteForm:
    """What writes of one shape have in common: the statement, and how each value is made ready to send."""

    def __init__(self) -> None:
        self.sql: bytes = b""
        self._given = 2
        self._left_out: list[int] = []
        self._texts: list[int] = []
        self._texts_of: Callable[[list[Any]], Any] = itemgetter(slice(0))
        self._converted: list[tuple[int, Convert]] = []

    def add(self, kind: Kind, kept: type) -> str:
        """Send the next value, and return it as SQL: `$3`, `$4`, ..."""
        if kept is str and kind is Kind.TEXT:
            self._texts.append(self._given)
            self._texts_of = itemgetter(*self._texts)
        elif kept is After or (kind in CONVERSIONS and kept not in AS_THEY_ARE):
            self._converted.append((self._given, seconds if kept is After else CONVERSIONS[kind]))
        self._given += 1
        value = f"${self._given - len(self._left_out)}::{SENT_AS[kind]}"
        return f"(n.now + {value})" if kept is After else value

    def leave_out(self) -> None:
        """Do not send the next value."""
        self._left_out.append(self._given)
        self._given += 1

    def convert(self, values: list[Any]) -> None:
        """Make values ready to send. The usual ones are checked here: a call for each would take longer."""
        texts = "".join(self._texts_of(values))
        if not texts.isascii() or "\0" in texts:
            for place in self._texts:
                text(values[place])
        for place, convert in self._converted:
            value = values[place]
            if convert is seconds:
                value = value.seconds
            elif convert is not number:
                values[place] = convert(value)
                continue
            values[place] = float(value) if abs(value) <= EXACT else number(value)
        for place in reversed(self._left_out):
            del values[place]


# Statements


def qualified(title: str, schema: str | None) -> str:
    """Return a table's name, in its schema if one is given."""
    return quoted(title) if schema is None else f"{quoted(schema)}.{quoted(title)}"


def channel(schema: str | None) -> str:
    """Return the channel that waiters are notified on. PostgreSQL cuts names longer than 63 bytes."""
    name = "semel" if schema is None else PREFIX + schema
    return name.encode()[:63].decode(errors="ignore")


def realm(column: str) -> str:
    """Return the environment and scope that a qualified name begins with, as an index by these has it."""
    return f"(split_part({column}, '/', 1) || '/' || split_part({column}, '/', 2) || '/')"


class PostgresPlan:
    """The statements of one table."""

    def __init__(self, table: Table, schema: str | None = None) -> None:
        self.table = table
        self.name: str = qualified(PREFIX + table.name, schema)
        self._kinds = kinds = table.kinds
        self._columns = tuple(kinds)
        self._others = [name for name in kinds if name not in table.key]
        self._nothing: Changes = dict.fromkeys(self._others, "NULL")
        self._numbers = tuple(name for name, kind in kinds.items() if kind is Kind.NUMBER)
        self._unpacked = tuple((name, UNPACK[kind]) for name, kind in kinds.items() if kind in UNPACK)
        self._forms: dict[tuple[Any, ...], WriteForm] = {}
        key = [f"${place}::{SENT_AS[kinds[name]]}" for place, name in enumerate(table.key, 3)]
        self._key_values = key
        compared = zip(table.key, key, strict=True)
        self._names = {
            "now": THE_TIME,
            "table": self.name,
            "key": " AND ".join(f"o.{quoted(name)} = {value}" for name, value in compared),
            "key_columns": ", ".join(map(quoted, table.key)),
            "expires": quoted(table.expires),
            "refused": REFUSED,
            "note": f"json_build_array({literal(table.name)}, {', '.join(key)})::text",
            "channel": literal(channel(schema)),
        }
        self._get = self._filled("get", item=self._item())
        self._subscribe = self._filled("subscribe", item=self._item("w"))
        self._reap = self._filled("reap")

    def _filled(self, query: str, **names: str) -> bytes:
        return filled(query, **self._names, **names).encode()

    def _item(self, first: str = "", named: bool = True) -> str:
        """The columns of `o`, or of another row if that is there; an object comes as its text."""
        columns: list[str] = []
        for name, kind in self._kinds.items():
            column = f"o.{quoted(name)}"
            if first:
                column = f"coalesce({first}.{quoted(name)}, {column})"
            if kind is Kind.OBJECT:
                column += f"::text AS {quoted(name)}" if named else "::text"
            columns.append(column)
        return ", ".join(columns)

    def item(self, row: PostgresRow) -> Item | None:
        """Return the columns of a row as an item, without those that are NULL; None if there is no row."""
        if row[0] is None:
            return None
        item = {name: value for name, value in zip(self._columns, row) if value is not None}  # noqa: B905 - quicker
        for name in self._numbers:
            value = item.get(name)
            if value is not None and value.is_integer():
                item[name] = int(value)
        for name, unpack in self._unpacked:
            if name in item:
                item[name] = unpack(item[name])
        return item

    # Writing

    def write(self, command: Write, now: float | None, together: bool = False) -> PostgresStatement:
        """Return the statement of a write, which may be one of several in a transaction."""
        kind, sort = type(command), command.sort
        changes: Item = command.item if kind is Put else NOTHING if kind is Delete else command.set  # type: ignore[union-attr]
        how: Any = None
        asked: Any
        if kind is Add:
            how = (command.attribute, self._creates(command))  # type: ignore[arg-type, union-attr]
            cap: float | None = command.cap  # type: ignore[union-attr]
            asked = {"by": command.by} if cap is None else {"by": command.by, "cap": cap}  # type: ignore[union-attr]
        else:
            asked = command.expect  # type: ignore[union-attr]
            if type(asked) is Presence:
                how, asked = asked is ABSENT, NOTHING
        given = (command.key, sort, *changes.values(), *asked.values())
        shape = (kind, how, len(changes), *changes, *asked, *map(type, given))
        form = self._forms.get(shape)
        if form is None:
            form = self._forms[shape] = self._form(command, changes, asked, how)
        values = [now, together, *given]
        if self.table.sort is None:
            del values[3]
        form.convert(values)
        return form.sql, values

    def _creates(self, command: Add) -> bool:
        """Whether an addition may create an item, which needs an end."""
        ends = bool(self.table.forever) or command.set.get(self.table.expires) is not None
        return ends and command.by >= 0 and (command.cap is None or command.by <= command.cap)

    def _form(self, command: Write, changes: Item, asked: Mapping[str, Any], how: Any) -> WriteForm:
        """Fill in the statement of writes of this shape: what is inserted, set and expected."""
        form, kind = WriteForm(), type(command)
        for name, value in zip(self.table.key, (command.key, command.sort), strict=False):
            check_kind(name, self._kinds[name], value)
            form.add(self._kinds[name], type(value))
        inserted = set_ = self._written(form, changes, kind is not Add or how[1])
        if kind is Add:
            query = "put" if how[1] else "update"
            added: str = command.attribute  # type: ignore[union-attr]
            if self._kinds.get(added) is not Kind.NUMBER or added in inserted:
                raise UsageError(f"table {self.table.name} has no number {added!r} to add to")
            by, *cap = [form.add(Kind.NUMBER, float) for _ in asked]
            total = f"coalesce(o.{quoted(added)}, 0) + {by}"
            expected = f"{total} <= {cap[0]}" if cap else "TRUE"
            if how[1]:  # the end of an existing item stays
                inserted = self._ending(inserted)
                set_ = self._excluded(name for name in set_ if name != self.table.expires)
            inserted, set_ = inserted | {added: by}, set_ | {added: total}
        else:
            query = kind.__name__.lower()
            expected = self._expected(form, asked)
            if kind is Put:
                query = "update" if how is None else "insert" if how else "put"
                inserted = self._ending(inserted)
                set_ = self._excluded(self._others) if query == "put" else self._nothing | inserted
        # One value and not many columns, since most replies have none.
        found = f"ROW({self._item('w' if kind is Add else '', named=False)})"
        found = found if kind is Add else f"CASE WHEN w._bell IS NULL THEN {found} END"
        form.sql = self._filled(
            query,
            columns=", ".join(map(quoted, (*self.table.key, *inserted))),
            values=", ".join((*self._key_values, *inserted.values())),
            set="".join(f"{quoted(name)} = {value}, " for name, value in set_.items()) + RUNG,
            expected=expected,
            written="o.*" if kind is Add else "o._bell",
            reply=self._filled("reply", found=found).decode(),
        )
        return form

    def _written(self, form: WriteForm, changes: Item, ends: bool) -> Changes:
        """Return what a command writes to each column. The key is its own, and so may be the item's end."""
        check(self.table.name, self._kinds, changes)
        written: Changes = {}
        for name, value in changes.items():
            if name in self.table.key or (name == self.table.expires and (value is None or not ends)):
                form.leave_out()
                if name == self.table.expires and ends:
                    written = self._ending(written)
            else:
                written[name] = form.add(self._kinds[name], type(value))
        return written

    def _ending(self, written: Changes) -> Changes:
        """Give an item an end if it has none."""
        if self.table.expires in written:
            return written
        if not self.table.forever:
            raise lacks(self.table, self.table.expires)
        return written | {self.table.expires: FOREVER}

    def _excluded(self, names: Iterable[str]) -> Changes:
        return {name: f"EXCLUDED.{quoted(name)}" for name in names}

    def _expected(self, form: WriteForm, asked: Mapping[str, Any]) -> str:
        clauses = []
        for name, value in asked.items():
            kind = self._kind(name)
            if kind in (Kind.OBJECT, Kind.SET):
                raise UsageError(f"{name!r} holds {kind}, which no write compares")
            if value is not None:
                check_kind(name, kind, value)
            clauses.append(f"o.{quoted(name)} IS NOT DISTINCT FROM {form.add(kind, type(value))}")
        return " AND ".join(clauses) or "TRUE"

    def _kind(self, name: str) -> Kind:
        check(self.table.name, self._kinds, {name: None})
        return self._kinds[name]

    # Replies

    def reply(self, command: Write, row: PostgresRow) -> Applied | Refused | None:
        """Return the reply to a write; None if it must be sent again.

        A statement reads rows as they were when it began, and may have waited for another write since. So it
        may have been refused by a row that it did not read.
        """
        if row[1]:
            return Applied(row[0], self.item(row[3]) if type(command) is Add else None)
        item = self.item(row[3])
        return self.refusal(command, item, row[0]) if allowed(command, item) else Refused(row[0], item)

    def refusal(self, command: Write, item: Item | None, now: float) -> Refused | None:
        """Return the refusal of a write by an item, or by none; None if it is allowed."""
        if not allowed(command, item):
            return Refused(now, item)
        if type(command) is Add and item is None and not self._creates(command):
            raise lacks(self.table, self.table.expires)
        return None

    # Reading

    def get(
        self,
        command: Get | Watch | Write,
        now: float | None,
        together: bool = False,
        subscribes: bool = False,
    ) -> PostgresStatement:
        """Return the statement that reads one item, and perhaps asks to be notified of the next write."""
        values: list[Any] = [now, together]
        for name, value in zip(self.table.key, (command.key, command.sort), strict=False):
            check_kind(name, self._kinds[name], value)
            values.append(CONVERSIONS[self._kinds[name]](value))
        return self._subscribe if subscribes else self._get, values

    def reap(self, limit: int, now: float | None) -> PostgresStatement:
        """Return the statement that removes up to `limit` expired items."""
        return self._reap, [now, False, str(limit)]

    def query(self, query: Query, now: float | None) -> PostgresStatement:
        """Return the statement that reads a page, and one item more."""
        form = WriteForm()
        values: list[Any] = [now, False]
        index = self.table.index(query.index)
        order = ordering(self.table, index)

        def sent(name: str, value: Any) -> str:
            kind = self._kind(name)
            check_kind(name, kind, value)
            values.append(value)
            return form.add(kind, type(value))

        asked = [f"o.{quoted(self.table.expires)} > n.now", *self._bounds(query, index, sent)]
        if query.after is not None:
            place = zip(order, place_of(self.table, query.after, index), strict=True)
            bound = ", ".join(sent(name, value) for name, value in place)
            asked.append(f"({_listed('o', order)}) {'<' if query.reverse else '>'} ({bound})")
        for name, value in query.equal.items():
            asked.append(f"o.{quoted(name)} = {sent(name, value)}")
            if value != USUAL.get(name, value):
                asked.append(f"o.{UNUSUAL[name]}")
        form.convert(values)
        values.append(str(query.limit + 1))
        direction = " DESC" if query.reverse else ""
        sql = self._filled(
            "page",
            item=self._item(),
            asked=" AND ".join(asked),
            order=_listed("o", order, direction),
            limit=f"${len(values)}::bigint",
            order_again=_listed("r", order, direction),
        )
        return sql, values

    def _bounds(self, query: Query, index: Index | None, sent: Callable[[str, Any], str]) -> list[str]:
        """Return which partition of the table or of an index is asked for, and what part of it."""
        by = self.table if index is None else index
        bounds: list[str] = []
        if query.key is not None:
            column = f"o.{quoted(by.partition)}"
            column = realm(column) if index is not None and index.by_realm else column
            bounds.append(f"{column} = {sent(by.partition, query.key)}")
        if query.prefix:
            column, prefix = f"o.{quoted(by.partition)}", sent(by.partition, query.prefix)
            # The first half is for the index; the server does not use one for the second.
            bounds.append(f"{column} >= {prefix} AND starts_with({column}, {prefix})")
        if by.sort is not None:
            column = f"o.{quoted(by.sort)}"
            if index is not None:
                bounds.append(f"{column} IS NOT NULL")
            for operator, value in ((">=", query.low), ("<=", query.high)):
                if value is not None:
                    bounds.append(f"{column} {operator} {sent(by.sort, value)}")
        return bounds

    def page(self, query: Query, rows: PostgresRows) -> Page:
        """Return the page of a query's rows."""
        items = [item for row in rows if (item := self.item(row[1:])) is not None]
        page, index = tuple(items[: query.limit]), self.table.index(query.index)
        return Page(rows[0][0], page, cursor(self.table, page[-1], index) if len(items) > len(page) else None)


def _listed(row: str, names: Sequence[str], direction: str = "") -> str:
    return ", ".join(f"{row}.{quoted(name)}{direction}" for name in names)
