"""The pure half: commands as statements with their parameters, rows as items and replies."""

from collections.abc import Callable
from typing import Any, TypeAlias

from semel.core.commands import (
    Add,
    Applied,
    Delete,
    Get,
    Item,
    Page,
    Put,
    Query,
    Refused,
    Update,
    Watch,
    Write,
    allowed,
    cursor,
    place_of,
)
from semel.stores.postgres.conditions import StatementShape, Values, shape_of
from semel.stores.postgres.reads import ReadStatements
from semel.stores.postgres.statements import PostgresStatement, StatementTemplate
from semel.stores.postgres.values import UNPACK
from semel.stores.postgres.writes import WriteStatements
from semel.stores.sql import check_kind, lacks
from semel.tables import Kind, Table

PostgresRow: TypeAlias = tuple[Any, ...]
PostgresRows: TypeAlias = list[PostgresRow]

NOTHING: Item = {}
# A write answers with the time, whether it was made, and whether it rang, before the columns of an item.
BEFORE = 3


class PostgresPlan:
    """Everything about one table that does not change from command to command."""

    def __init__(self, table: Table, schema: str | None = None) -> None:
        self.table = table
        self._reads = reads = ReadStatements(table, schema)
        self._kinds = reads.kinds
        self._columns = tuple(self._kinds)
        self._numbers = tuple(name for name, kind in self._kinds.items() if kind is Kind.NUMBER)
        self._unpacked = tuple((name, UNPACK[kind]) for name, kind in self._kinds.items() if kind in UNPACK)
        self._get, self._subscribe = reads.get(), reads.subscribe()
        self._rows, self._lock = reads.rows(), reads.lock()
        self._reap = reads.reap()
        writes = WriteStatements(table, schema)
        self._make: dict[type, Callable[[Any, StatementShape], StatementTemplate]] = {
            Put: writes.put,
            Update: writes.update,
            Add: writes.add,
            Delete: writes.delete,
        }
        self._templates: dict[StatementShape, StatementTemplate] = {}

    # Items

    def item(self, row: PostgresRow) -> Item | None:
        """The columns of a row as an item; None where there is no row. What has no value is no attribute."""
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

    def place(self, row: PostgresRow) -> PostgresRow:
        """The key of an item, from the columns of its row."""
        return row[: len(self.table.key)]

    # Writing

    def write(self, command: Write) -> tuple[StatementTemplate, list[Any]]:
        """The statement of a write, and its values."""
        when: Values = []
        condition = () if command.when is None else shape_of(command.when, when)
        kind = type(command)
        item, once, by, sum_of = _PARTS[kind](command)
        shape = (
            kind,
            sum_of,
            type(command.key),
            type(command.sort),
            tuple(item),
            tuple(map(type, item.values())),
            tuple(once),
            tuple(map(type, once.values())),
            condition,
        )
        template = self._templates.get(shape)
        if template is None:
            template = self._templates[shape] = self._make[kind](command, condition)
        return template, template.values((command.key, command.sort, by), item, once, when)

    def reply(self, command: Write, row: PostgresRow) -> Applied | Refused | None:
        """The reply to a write; None where what was read is older than what refused it, and it is sent again.

        A statement reads rows as they were when it began, and may have waited for somebody's write since.
        """
        now = row[0]
        if row[1] is not None:
            return Applied(now, self.item(row[BEFORE:]) if type(command) is Add else None)
        return self.refusal(command, self.item(row[BEFORE:]), now)

    def refusal(self, command: Write, item: Item | None, now: float) -> Refused | None:
        """The refusal of a write by an item that is alive or None; None where it is allowed."""
        if not allowed(command, item, now):
            return Refused(now, item)
        if type(command) is Add and item is None and not self._ends(command):
            raise lacks(self.table, self.table.expires)
        return None

    def answers(self, writes: list[Write], rows: list[PostgresRow]) -> list[PostgresRow]:
        """The row of each of many writes, whose statement tells apart what was made and what was there."""
        nothing: PostgresRow = ()
        there: dict[PostgresRow, PostgresRow] = {}
        made: dict[PostgresRow, PostgresRow] = {}
        for row in rows:
            if row[BEFORE] is None:
                nothing = row
            else:
                (there if row[1] is None else made)[self.place(row[BEFORE:])] = row
        keys = [self._named(write) for write in writes]
        return [made.get(key) or there.get(key) or nothing for key in keys]

    def _ends(self, command: Add) -> bool:
        """Whether an item that this begins has an end."""
        given = (command.set.get(self.table.expires), command.once.get(self.table.expires))
        return bool(self.table.forever) or given != (None, None)

    # Reading

    def get(self, command: Get | Watch, now: float | None) -> PostgresStatement:
        """The statement that reads one item."""
        return self._get.one, [now, *self._get.values(self._named(command))]

    def subscribe(self, command: Watch, now: float | None) -> PostgresStatement:
        """The statement that reads one item, and asks to be notified of the next write to it."""
        return self._subscribe.one, [now, *self._subscribe.values(self._named(command))]

    def rows(self, writes: list[Write]) -> PostgresStatement:
        """The statement that reads the rows of several writes."""
        return self._rows.many(None, [self._rows.values(self._named(write)) for write in writes])

    def lock(self, writes: list[Write]) -> PostgresStatement:
        """The statement that reads the rows of several writes, and keeps others from changing them."""
        return self._lock.many(None, [self._lock.values(self._named(write)) for write in writes])

    def reap(self, limit: int, now: float | None) -> PostgresStatement:
        """The statement that deletes up to so many expired rows."""
        return self._reap.one, [now, limit]

    def query(self, query: Query, now: float | None) -> PostgresStatement:
        """The statement that reads a page, and one item more."""
        index = self.table.index(query.index)
        place = [] if query.after is None else place_of(self.table, query.after, index)
        when: Values = []
        where = () if query.where is None else shape_of(query.where, when)
        asked = tuple(map(type, (query.key, query.low, query.high)))
        shape = (Query, query.index, *asked, bool(place), query.reverse, where)
        template = self._templates.get(shape)
        if template is None:
            template = self._templates[shape] = self._reads.query(query, place, where)
        head = (query.key, query.low, query.high, query.limit + 1, *place)
        return template.one, [now, *template.values(head, NOTHING, NOTHING, when)]

    def page(self, query: Query, rows: list[PostgresRow]) -> Page:
        """The page of a query's rows."""
        items = [item for row in rows if (item := self.item(row[1:])) is not None]
        page, index = tuple(items[: query.limit]), self.table.index(query.index)
        return Page(rows[0][0], page, cursor(self.table, page[-1], index) if len(items) > len(page) else None)

    def _named(self, command: Get | Watch | Write) -> PostgresRow:
        named = (command.key, command.sort)[: len(self.table.key)]
        for name, value in zip(self.table.key, named, strict=True):
            check_kind(name, self._kinds[name], value)
        return named


_PARTS: dict[type, Callable[[Any], tuple[Item, Item, float | None, str]]] = {
    Put: lambda command: (command.item, NOTHING, None, ""),
    Update: lambda command: (command.set, NOTHING, None, ""),
    Add: lambda command: (command.set, command.once, command.by, command.attribute),
    Delete: lambda _command: (NOTHING, NOTHING, None, ""),
}
