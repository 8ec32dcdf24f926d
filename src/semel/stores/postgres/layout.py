"""How a table is laid out: its definition, its indexes, and what to do where some of it is missing."""

from collections.abc import Iterator
from typing import NamedTuple

from semel.errors import WrongSchema
from semel.stores.postgres.conditions import UNUSUAL
from semel.stores.postgres.forms import BELL, PREFIX
from semel.stores.postgres.values import COLUMN_TYPES, quoted
from semel.tables import Table

# PostgreSQL cuts longer names.
LONGEST_NAME = 63


class Change(NamedTuple):
    """A statement, and what it does, as a sentence."""

    what: str
    sql: str


class Found(NamedTuple):
    """What of the tables is there: the types of their columns, by table and column, and the indexes."""

    columns: dict[str, dict[str, str]]
    indexes: set[str]


NOTHING = Found({}, set())


class Layout:
    """One table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.title = PREFIX + table.name
        self._types = {name: COLUMN_TYPES[kind] for name, kind in table.kinds.items()}

    def columns(self) -> dict[str, str]:
        """The columns with their types, as the catalog tells them."""
        types = {name: kind.removesuffix(' COLLATE "C"') for name, kind in self._types.items()}
        return types | {BELL: "smallint"}

    def definition(self) -> str:
        """The statement that makes the table where there is none."""
        needed = (*self.table.key, self.table.expires)
        lines = [
            f"{quoted(name)} {kind}{' NOT NULL' if name in needed else ''}"
            for name, kind in self._types.items()
        ]
        lines += [f"{BELL} smallint NOT NULL DEFAULT 0", f"PRIMARY KEY ({_listed(self.table.key)})"]
        body = ",\n    ".join(lines)
        return f"CREATE TABLE IF NOT EXISTS {quoted(self.title)} (\n    {body}\n);"

    def indexes(self) -> dict[str, str]:
        """The statements that make its indexes where they are missing, by their names."""
        table = self.table
        columns: list[tuple[str, ...]] = [(table.expires,)]
        # With the key behind them, so that a list comes in the order of its pages.
        columns += [(name, *table.key) for name in table.listed_by]
        columns += [tuple(filter(None, (index.partition, index.sort))) for index in table.indexes]
        statements: dict[str, str] = {}
        for names in columns:
            index = "_".join((self.title, *names)).encode()[:LONGEST_NAME].decode(errors="ignore")
            rest = f" WHERE {UNUSUAL[names[0]]}" if names[0] in UNUSUAL else ""
            on = f"{quoted(self.title)} ({_listed(names)}){rest}"
            statements[index] = f"CREATE INDEX IF NOT EXISTS {quoted(index)} ON {on};"
        return statements

    def missing(self, found: Found) -> list[str]:
        """The columns that are not there."""
        there = found.columns.get(self.title, {})
        return [name for name in self.columns() if name not in there]

    def mistaken(self, found: Found) -> dict[str, str]:
        """The columns that are there with another type than they should have, and that type."""
        there = found.columns.get(self.title, {})
        return {name: there[name] for name, kind in self.columns().items() if there.get(name, kind) != kind}

    def changes(self, found: Found) -> Iterator[Change]:
        """What there is to do."""
        if self.title not in found.columns:
            yield Change(f"made table {self.title}", self.definition())
        else:
            for name in self.missing(found):
                yield Change(f"added column {name} to table {self.title}", self._addition(name))
        for index, statement in self.indexes().items():
            if index not in found.indexes:
                yield Change(f"made index {index}", statement)

    def _addition(self, name: str) -> str:
        kind = self._types.get(name, "smallint NOT NULL DEFAULT 0")
        if name in (*self.table.key, self.table.expires):
            raise WrongSchema(f"table {self.title} has no column {name}: it is not a table of semel's")
        return f"ALTER TABLE {quoted(self.title)} ADD COLUMN IF NOT EXISTS {quoted(name)} {kind};"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, names))
