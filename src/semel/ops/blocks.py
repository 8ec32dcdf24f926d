"""A page of an application's own in the dashboard, as plain values: none of them is markup.

Whatever an application puts into these is shown as text, so that no page of its own breaks another.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec


class KeyLink(msgspec.Struct, frozen=True):
    """A cell that leads to the page of a key in the application's ledger."""

    key: str
    text: str = ""
    """What is shown; "" for the key itself."""


class PageLink(msgspec.Struct, frozen=True):
    """A cell that leads to a page of the same application, with what its address says."""

    page: str
    text: str
    query: Mapping[str, str] = {}


class TimeCell(msgspec.Struct, frozen=True):
    """A cell with a time, in seconds since the epoch."""

    at: float


Cell: TypeAlias = str | int | float | bool | KeyLink | PageLink | TimeCell | None
"""What stands in a table; numbers stand to the right, and None is left empty."""


class TitleBlock(msgspec.Struct, frozen=True):
    """A heading over what comes after it."""

    text: str


class TextBlock(msgspec.Struct, frozen=True):
    """A paragraph."""

    text: str


class FactsBlock(msgspec.Struct, frozen=True):
    """A few facts, each with its name."""

    facts: Mapping[str, Cell]


class TableBlock(msgspec.Struct, frozen=True):
    """Rows under a heading for each column; `empty` says what to do where there is none."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()
    empty: str = "There is nothing here yet."


class FieldBlock(msgspec.Struct, frozen=True):
    """A field for the reader: what is typed comes back as a value of the page's query, by this name."""

    name: str
    label: str
    hint: str = ""


PageBlock: TypeAlias = TitleBlock | TextBlock | FactsBlock | TableBlock | FieldBlock
PageMaker: TypeAlias = Callable[[Mapping[str, str]], Awaitable["list[PageBlock]"]]
"""Makes a page of what its address asks for: `?chat=7` is {"chat": "7"}, which anybody may have written."""


class AppPage(msgspec.Struct, frozen=True):
    """A page: what the menu calls it, and what makes it."""

    title: str
    make: PageMaker
