"""Indexes that were added later: older items are brought into them, and until then nobody may ask them."""

from collections.abc import Callable, Collection
from typing import TypeAlias

from semel.core.commands import AllOf, Applied, Batch, Equals, Item, Many, Page, Query, Steps, Update
from semel.errors import NotProvisioned
from semel.model import PROVISION, Problem
from semel.tables import Addition, Table

# A page is read, and what belongs into the index is written, at a time: a second's work, and little memory.
PAGE_ITEMS = 1000

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many items were looked at so far, and how many of them were entered."""


def unmarked(table: Table, marks: Collection[str]) -> list[Addition]:
    """What was added with an index that is not complete, by the marks that a store has."""
    return [each for each in table.later if each.index and table.mark(each.index) not in marks]


def incomplete(query: Query, marks: Collection[str]) -> Addition | None:
    """What was added with the index that a query asks, where that lacks older items."""
    return next((each for each in unmarked(query.table, marks) if each.index == query.index), None)


def refuse_incomplete(query: Query, marks: Collection[str], command: str) -> None:
    """Refuse to ask an index that lacks older items; `command` is what completes it."""
    if addition := incomplete(query, marks):
        raise NotProvisioned(addition.serves, query.table.name, query.index, command)


def optional(what: str, addition: Addition) -> Problem:
    """What a store lacks of an addition, as a problem that nobody has to mend at once."""
    return Problem(
        f"{what}: optional, until then {addition.serves} is not available", PROVISION, optional=True
    )


def progress_of(name: str, say: Callable[[str], None]) -> Progress:
    """Says how far the back-filling of an index is, wherever it takes more than a page."""

    def progress(looked: int, filled: int) -> None:
        if looked >= PAGE_ITEMS:
            say(f"Looked at {looked:,} items for {name}; {filled:,} were entered ...")

    return progress


def backfill(table: Table, addition: Addition, progress: Progress, *, scans: bool = False) -> Steps[int]:
    """Bring older items into an index, while others write; how many there were.

    A store that scans for them is asked for every item, and so tells how far it is.
    """
    attribute, values = addition.among
    looked = filled = 0
    for where in [None] if scans else [Equals(attribute, value) for value in values]:
        after: str | None = None
        while True:
            page: Page = yield Query(table, where=where, limit=PAGE_ITEMS, after=after)
            filled += yield from _entered(table, addition, list(page.items))
            looked += len(page.items)
            progress(looked, filled)
            after = page.after
            if after is None:
                break
    return filled


def _entered(table: Table, addition: Addition, items: list[Item]) -> Steps[int]:
    """Enter items; what was changed meanwhile is judged anew by what it is now."""
    filled = 0
    while updates := [each for item in items if (each := _update(table, addition, item)) is not None]:
        many: Many = yield Batch(tuple(updates))
        filled += sum(type(reply) is Applied for reply in many.replies)
        refused = [reply.item for reply in many.replies if type(reply) is not Applied]
        items = [item for item in refused if item is not None]
    return filled


def _update(table: Table, addition: Addition, item: Item) -> Update | None:
    attribute, values = addition.among
    change = addition.older(item) if item.get(attribute) in values else {}
    if not change:
        return None
    seen = AllOf(tuple(Equals(name, item[name]) for name in addition.decided_by if name in item))
    sort = None if table.sort is None else item[table.sort]
    return Update(table, item[table.partition], change, seen, sort)
