"""What the statements of a table have in common.

Each begins with `n`, which reads the time, and `v`, which has the values of one command, or of many of the
same shape. `o` is always a row of the table.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

from semel.stores.postgres.values import Parameters
from semel.stores.sql import PREFIX, quoted
from semel.tables import Kind, Table

PostgresStatement: TypeAlias = tuple[bytes, list[Any] | None]

# Whether anybody waits for an item: 0 nobody, 1 somebody, 2 the last write has notified them.
BELL = "_bell"

# Read once in a statement, so that nothing in it is decided by two different times.
TIME = "coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8)"
# The same in every statement of a transaction: when it began.
TIME_OF_ALL = "coalesce($1::float8, extract(epoch FROM transaction_timestamp())::float8)"
ASK_TIME = f"SELECT {TIME}".encode()


class StatementTemplate:
    """A statement for every command of one shape."""

    def __init__(
        self, parameters: Parameters, keyed: int, body: str, body_of_many: str = "", body_or_fail: str = ""
    ) -> None:
        self._parameters = parameters
        self._keyed = keyed
        self._body_of_many = body_of_many or body
        self._body_or_fail = body_or_fail or body
        self._many: dict[tuple[bool, ...], bytes] = {}
        self.one: bytes = _whole(parameters.one(), body)

    @cached_property
    def or_fail(self) -> bytes:
        """The statement for one write of several: it fails where the write is refused, and they all do."""
        return _whole(self._parameters.one(), self._body_or_fail, TIME_OF_ALL)

    def values(self, *parts: Any) -> list[Any]:
        """The values of a command, in the order of its parameters."""
        return [
            parts[part][place] if convert is None else convert(parts[part][place])
            for part, place, convert in self._parameters.sources
        ]

    def many(self, now: float | None, rows: Sequence[Sequence[Any]]) -> PostgresStatement:
        """The statement for the values of many commands."""
        columns = list(zip(*rows, strict=True))
        # A status, a token or a span of time is mostly the same in all of them. The key is not.
        shared = [column.count(column[0]) == len(column) for column in columns]
        shared[0] = False
        sql = self._many.get(tuple(shared))
        if sql is None:
            sql = _whole(self._parameters.many(shared, self._keyed), self._body_of_many)
            self._many[tuple(shared)] = sql
        sent = [column[0] if alike else list(column) for column, alike in zip(columns, shared, strict=True)]
        return sql, [now, *sent]


def _whole(values: str, body: str, time: str = TIME) -> bytes:
    return f"WITH n AS MATERIALIZED (SELECT {time} AS now), {values}{body}".encode()


class TableSQL:
    """One table, as clauses know it."""

    def __init__(self, table: Table, schema: str | None) -> None:
        self.table = table
        self.kinds: dict[str, Kind] = table.kinds
        self.name: str = qualified(PREFIX + table.name, schema)
        self.keyed: int = len(table.key)
        self.expires: str = quoted(table.expires)
        self.here: str = " AND ".join(
            f"o.{quoted(name)} = v.p{place}" for place, name in enumerate(table.key)
        )
        self.alive: str = f"o.{self.expires} > n.now"

    def columns(self, row: str, first: str = "") -> str:
        """The columns of a row, or of another one where that is there; an object comes as its text."""
        columns: list[str] = []
        for name, kind in self.kinds.items():
            column = f"{row}.{quoted(name)}" + ("::text" if kind is Kind.OBJECT else "")
            if first:
                column = f"coalesce({first}.{quoted(name)}, {column})"
            columns.append(f"{column} AS {quoted(name)}")
        return ", ".join(columns)

    def order(self, row: str, direction: str = "", names: Sequence[str] = ()) -> str:
        """The key of a row, or these of its columns, to sort by."""
        return ", ".join(f"{row}.{quoted(name)}{direction}" for name in names or self.table.key)


def realm(column: str) -> str:
    """The environment and scope that a qualified name begins with, as an index of such has it."""
    return f"(split_part({column}, '/', 1) || '/' || split_part({column}, '/', 2) || '/')"


def qualified(title: str, schema: str | None) -> str:
    """A table's name, in its schema where one is named."""
    return quoted(title) if schema is None else f"{quoted(schema)}.{quoted(title)}"


def channel(schema: str | None) -> str:
    """The channel that waiters are notified of writes by; a longer name than 63 bytes would be cut."""
    name = "semel" if schema is None else PREFIX + schema
    return name.encode()[:63].decode(errors="ignore")
