"""How a table is laid out: its definition, its indexes, and what to do where some of it is missing."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from semel.stores.postgres.statements import BELL, realm
from semel.stores.postgres.values import COLUMN_TYPES
from semel.stores.sql import PREFIX, UNUSUAL, listed, quoted
from semel.tables import Index, Table

META = PREFIX + "meta"
# PostgreSQL cuts longer names.
LONGEST_NAME = 63


class SchemaChange(NamedTuple):
    """A statement, and what it does, as a sentence."""

    what: str
    sql: str


class Catalog(NamedTuple):
    """What of the tables is there: the types of their columns, by table and column, and the indexes."""

    columns: dict[str, dict[str, str]]
    indexes: set[str]


class PostgresLayout:
    """One table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.title: str = PREFIX + table.name
        self._needed = (*table.key, table.expires)
        self._types = {name: COLUMN_TYPES[kind] for name, kind in table.kinds.items()}

    def columns(self) -> dict[str, str]:
        """The columns with their types, as the catalog tells them."""
        types = {name: kind.removesuffix(' COLLATE "C"') for name, kind in self._types.items()}
        return types | {BELL: "smallint"}

    def definition(self) -> str:
        """What makes the table where there is none."""
        lines = [
            f"{quoted(name)} {kind}{' NOT NULL' if name in self._needed else ''}"
            for name, kind in self._types.items()
        ]
        lines += [f"{BELL} smallint NOT NULL DEFAULT 0", f"PRIMARY KEY ({listed(self.table.key)})"]
        body = ",\n    ".join(lines)
        return f"CREATE TABLE IF NOT EXISTS {quoted(self.title)} (\n    {body}\n);"

    def indexes(self) -> dict[str, str]:
        """The statements that make its indexes where they are missing, by their names."""
        table = self.table
        made = [self._index(table.expires, (table.expires,))]
        for name in table.listed_by:
            unusual = [UNUSUAL[name]] if name in UNUSUAL else []
            made.append(self._index("_".join((name, *table.key)), (name, *table.key), unusual))
        for index in table.indexes:
            # Who lacks one of them is not in it: such a row costs nothing.
            there = [f"{quoted(name)} IS NOT NULL" for name in index.key if name not in self._needed]
            made.append(self._index(index.name, (*index.key, *table.key), there))
        return dict(made)

    def optional_index(self, index: Index, on: str, make: str = "CREATE INDEX") -> str:
        """What makes an optional index where it is missing."""
        columns = [realm(quoted(index.partition)) if index.by_realm else quoted(index.partition)]
        columns += [quoted(name) for name in (index.sort, *self.table.key) if name is not None]
        return f"{make} IF NOT EXISTS {quoted(self.index_title(index.name))} ON {on} ({', '.join(columns)})"

    def index_title(self, name: str) -> str:
        """What an index of this name is called in the database."""
        return f"{self.title}_{name}".encode()[:LONGEST_NAME].decode(errors="ignore")

    def _index(self, name: str, columns: tuple[str, ...], only: Sequence[str] = ()) -> tuple[str, str]:
        """The name of an index, and its statement. With the key at its end it has the order of pages."""
        title = self.index_title(name)
        where = f" WHERE {' AND '.join(only)}" if only else ""
        on = f"{quoted(self.title)} ({listed(tuple(dict.fromkeys(columns)))}){where}"
        return title, f"CREATE INDEX IF NOT EXISTS {quoted(title)} ON {on};"

    def missing(self, found: Catalog) -> list[str]:
        """The columns that are not there."""
        there = found.columns.get(self.title, {})
        return [name for name in self.columns() if name not in there]

    def mistaken(self, found: Catalog) -> dict[str, str]:
        """The columns that are there with another type than they should have, and that type."""
        there = found.columns.get(self.title, {})
        return {name: there[name] for name, kind in self.columns().items() if there.get(name, kind) != kind}

    def changes(self, found: Catalog) -> Iterator[SchemaChange]:
        """What there is to do."""
        if self.title not in found.columns:
            yield SchemaChange(f"made table {self.title}", self.definition())
        for index, statement in self.indexes().items():
            if index not in found.indexes:
                yield SchemaChange(f"made index {index}", statement)

    def script(self) -> list[str]:
        """All of it as statements."""
        return [self.definition(), *self.indexes().values()]
