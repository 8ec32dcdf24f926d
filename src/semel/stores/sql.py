"""What the stores in SQL have in common: names and texts as SQL has them, and what an item may hold."""

from typing import Any

from semel.core.commands import After, Item
from semel.core.lifecycle import Status
from semel.errors import UsageError
from semel.model import COUNTED, PROVISION, Problem, TableSize
from semel.stores.shared import PYTHON_TYPES
from semel.tables import Kind, Table

# The schema, or the file, may be the caller's own, with tables of his own.
PREFIX = "semel_"


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: tuple[str, ...]) -> str:
    """Names as SQL lists them."""
    return ", ".join(map(quoted, names))


def literal(value: str | int) -> str:
    """A value as SQL has it."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(int(value))


# Nearly every record ends with this value, and nobody lists those by it: its index leaves them out, and so
# costs nothing where it would help nobody. A query that wants to use such an index has to repeat these words.
USUAL = {"status": "COMPLETED"}
UNUSUAL = {name: f"{quoted(name)} <> {literal(value)}" for name, value in USUAL.items()}


def missing_index(table: Table, name: str) -> Problem:
    """The problem of a store that lacks an optional index, which its owner asks for."""
    return Problem(f"table {table.name} has no index {name}, which --with asks for", PROVISION)


def check(table: str, kinds: dict[str, Kind], item: Item) -> None:
    """Refuse attributes that a table does not have, and values of another kind than theirs."""
    for name, value in item.items():
        if name not in kinds:
            raise UsageError(f"table {table} has no attribute {name!r}; it has {', '.join(kinds)}")
        if value is not None and not (type(value) is After and kinds[name] is Kind.NUMBER):
            check_kind(name, kinds[name], value)


def check_kind(name: str, kind: Kind, value: Any) -> None:
    """Refuse a value of another kind."""
    if not isinstance(value, PYTHON_TYPES[kind]):
        raise UsageError(f"{name!r} holds {kind}, not {type(value).__name__}")


def lacks(table: Table, name: str) -> UsageError:
    """What is wrong with an item that has no key, or no end."""
    return UsageError(f"an item of table {table.name} needs the attribute {name!r}")


def counting(name: str, where: str) -> str:
    """The statement that counts rows by an index, up to a bound, whatever the table's size."""
    return f"SELECT count(*) FROM (SELECT 1 FROM {name} WHERE {where} LIMIT {COUNTED}) counted"


def countings(name: str, table: Table, now: str) -> dict[str, str]:
    """The statements that tell a table's size: `items`, `expired`, and how many have each status."""
    made = {"items": counting(name, "true"), "expired": counting(name, f"{quoted(table.expires)} <= {now}")}
    statuses = list(Status) if "status" in table.listed_by else []
    return made | {each.value: counting(name, f"status = '{each.value}'") for each in statuses}


def sized(table: Table, counts: dict[str, int], how: str, size: int | None, items: int = 0) -> TableSize:
    """The size of a table, by what those statements gave; `items` is the database's own figure."""
    by_status = {each.value: counts[each.value] for each in Status if counts.get(each.value)}
    return TableSize(
        table=table.name,
        items=max(items, counts["items"]),
        bytes=size,
        by_status=by_status,
        expired=counts["expired"],
        how=how,
    )
