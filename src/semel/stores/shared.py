"""What stores have in common: values, places, and what was written."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from semel.core.commands import Applied, Batch, Get, Sort, Transact, Watch, Write
from semel.errors import InvalidOption, UsageError
from semel.stores.waiting import KeyWatchers
from semel.tables import Kind, Table

ItemId: TypeAlias = tuple[str, str, Sort]

PYTHON_TYPES: dict[Kind, tuple[type, ...]] = {
    Kind.TEXT: (str,),
    Kind.NUMBER: (int, float),
    Kind.BYTES: (bytes, bytearray, memoryview),
    Kind.FLAG: (bool,),
    Kind.OBJECT: (dict,),
    Kind.SET: (set, frozenset),
}


P = TypeVar("P")


class Plans(Generic[P]):
    """A store's plans, each made when a command first asks for its table."""

    def __init__(self, make: Callable[[Table], P]) -> None:
        self._make = make
        self._by_name: dict[str, tuple[Table, P]] = {}

    def of(self, table: Table) -> P:
        """The plan of a table."""
        known = self._by_name.get(table.name)
        if known is None:
            known = self._by_name.setdefault(table.name, (table, self._make(table)))
        if known[0] is not table and known[0] != table:
            raise UsageError(f"this store has another table named {table.name!r}")
        return known[1]

    def __iter__(self) -> Iterator[P]:
        return iter([plan for _, plan in list(self._by_name.values())])


# What to use instead of an optional index where a kind of store does not offer it.
INSTEAD = (
    "what failed and what is in doubt is in the order of time in every store; for all records, "
    "semel export and semel import bring them to a SQLite file, and semel provision --with recent orders "
    "them there"
)


def not_offered(index: str, why: str) -> InvalidOption:
    """Build the error for an optional index that this kind of store does not offer."""
    return InvalidOption(f"there is no index {index!r} here: {why}; {INSTEAD}")


def place_named(command: Get | Watch | Write) -> ItemId:
    """What tells an item from every other one."""
    return command.table.name, command.key, command.sort


def _parts(command: Any) -> tuple[Any, ...]:
    return command.writes if type(command) in (Transact, Batch) else (command,)


def tables_of(command: Any) -> Iterable[Table]:
    """The tables that a command is about."""
    return {each.table.name: each.table for each in _parts(command)}.values()


def wake(watchers: KeyWatchers, command: Any, reply: Any) -> None:
    """Wake whoever waits in this process for what was written."""
    if watchers.watches or watchers.async_watches:
        writes = _parts(command)
        replies = reply.replies if type(command) is Batch else [reply] * len(writes)
        for write, each in zip(writes, replies, strict=True):
            if type(each) is Applied:
                watchers.notify(place_named(write))
