"""How a table is laid out: its definition, its indexes, and what to do where some of it is missing."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from semel.errors import WrongSchema
from semel.stores.postgres.statements import BELL, realm
from semel.stores.postgres.values import COLUMN_TYPES
from semel.stores.sql import PREFIX, UNUSUAL, listed, literal, quoted
from semel.tables import Addition, Index, Table

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
        """What makes the table where there is none; every index of a new one is complete."""
        marks = [f"({literal(mark)}, 'yes')" for mark in self.table.marks]
        mark = (
            f"INSERT INTO {META} (name, value) SELECT * FROM (VALUES {', '.join(marks)}) AS marks\n"
            f"WHERE to_regclass({literal(quoted(self.title))}) IS NULL ON CONFLICT DO NOTHING;\n\n"
        )
        return (mark if marks else "") + self._definition()

    def _definition(self) -> str:
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

    def choice(self, index: Index) -> tuple[str, str]:
        """The name of an index that the owner may choose, and the columns that it is made of."""
        columns = [realm(quoted(index.partition)) if index.by_realm else quoted(index.partition)]
        columns += [quoted(name) for name in (index.sort, *self.table.key) if name is not None]
        return self.index_title(index.name), ", ".join(columns)

    def choice_statement(self, index: Index) -> str:
        """What makes such an index where it is missing."""
        title, columns = self.choice(index)
        return f"CREATE INDEX IF NOT EXISTS {quoted(title)} ON {quoted(self.title)} ({columns});"

    def chosen(self, found: Catalog) -> set[str]:
        """Which of the indexes that the owner may choose are there."""
        names = [each.index.name for each in self.table.choices]
        return {name for name in names if self.index_title(name) in found.indexes}

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

    def absent(self, found: Catalog) -> frozenset[str]:
        """The optional columns that are not there."""
        return frozenset(self.missing(found)) & self.table.optional.keys()

    def lacking(self, addition: Addition, found: Catalog, marks: Collection[str]) -> str:
        """What is not there of an addition, in words; nothing where it is all there."""
        missing = self.missing(found)
        columns = [f"column {name}" for name in addition.attributes if name in missing]
        index, mark = self.index_title(addition.index), self.table.mark(addition.index)
        if addition.index and index not in found.indexes:
            columns.append(f"index {index}")
        if columns:
            return f"table {self.title} has no {', no '.join(columns)}"
        return f"index {index} lacks older rows" if addition.index and mark not in marks else ""

    def mistaken(self, found: Catalog) -> dict[str, str]:
        """The columns that are there with another type than they should have, and that type."""
        there = found.columns.get(self.title, {})
        return {name: there[name] for name, kind in self.columns().items() if there.get(name, kind) != kind}

    def changes(self, found: Catalog) -> Iterator[SchemaChange]:
        """What there is to do."""
        if self.title not in found.columns:
            yield SchemaChange(f"made table {self.title}", self.definition())
        else:
            for name in self.missing(found):
                yield SchemaChange(f"added column {name} to table {self.title}", self._addition(name))
        for index, statement in self.indexes().items():
            if index not in found.indexes:
                yield SchemaChange(f"made index {index}", statement)

    def script(self) -> list[str]:
        """All of it as statements, also for a table that is there and lacks what was added later."""
        added = [self._addition(name) for name in self.table.optional]
        return [self.definition(), *added, *self.indexes().values()]

    def _addition(self, name: str) -> str:
        kind = self._types.get(name, "smallint NOT NULL DEFAULT 0")
        if name in self._needed:
            raise WrongSchema(f"table {self.title} has no column {name}: it is not a table of semel's")
        return f"ALTER TABLE {quoted(self.title)} ADD COLUMN IF NOT EXISTS {quoted(name)} {kind};"
