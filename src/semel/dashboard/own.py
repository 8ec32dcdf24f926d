"""Pages of applications' own: their plain values as what a template shows, whatever they are."""

from collections.abc import Mapping, Sequence
from logging import getLogger
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response

from semel.dashboard.rendering import short
from semel.dashboard.views import LedgerView
from semel.dashboard.visits import Visit
from semel.errors import SemelError
from semel.ops.blocks import (
    FactsBlock,
    FieldBlock,
    KeyLink,
    PageBlock,
    PageLink,
    TableBlock,
    TextBlock,
    TimeCell,
    TitleBlock,
)

# What an application's own page is asked for, at most: nobody types more into a field.
LONGEST_ASKED: Final = 500
# What is shown of one page, whatever it is given.
MOST_BLOCKS, MOST_ROWS, LONGEST_CELL, LONGEST_TEXT = 50, 500, 300, 2000


class ShownCell(msgspec.Struct, frozen=True):
    """A cell as a template shows it: its text, or its time, and where it leads."""

    text: str
    href: str = ""
    at: float | None = None
    number: bool = False


class ShownBlock(msgspec.Struct, frozen=True):
    """A block as a template shows it."""

    kind: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[ShownCell, ...], ...] = ()
    name: str = ""
    hint: str = ""
    more: bool = False
    """There are more rows than are shown."""


class OwnPages:
    """Answers visits with pages that an application makes."""

    def __init__(self, view: LedgerView) -> None:
        self._pages = view.pages

    async def show(self, visit: Visit) -> Response:
        """One of them."""
        name = visit.request.path_params["page"]
        page = self._pages.get(name)
        if page is None:
            return visit.problem(404, "Nothing here", "This application has no such page.")
        query = {key: value[:LONGEST_ASKED] for key, value in visit.query.items()}
        try:
            blocks = [shown(block, visit.base) for block in (await page.make(query))[:MOST_BLOCKS]]
        except SemelError:
            raise
        except Exception:
            # Not its words: they may quote what it has read.
            getLogger("semel").exception("the page %s of an application failed", name)
            return visit.problem(500, "It failed", "The application could not make it. The log says why.")
        values: dict[str, Any] = {"name": name, "title": page.title, "blocks": blocks, "query": query}
        return visit.page("own", page=f"own-{name}", **values)


def shown(block: PageBlock, base: str) -> ShownBlock:
    """A block as it is shown."""
    match block:
        case TitleBlock(text):
            return ShownBlock("title", short(text, LONGEST_CELL))
        case TextBlock(text):
            return ShownBlock("text", short(text, LONGEST_TEXT))
        case FactsBlock(facts):
            rows = tuple((shown_cell(name, base), shown_cell(cell, base)) for name, cell in facts.items())
            return ShownBlock("facts", rows=rows)
        case FieldBlock(name, label, hint):
            return ShownBlock("field", short(label), name=name, hint=short(hint))
        case TableBlock():
            return _table(block, base)
    raise TypeError(f"a page is made of the blocks in semel.ops.blocks, not of {type(block).__name__}")


def _table(block: TableBlock, base: str) -> ShownBlock:
    rows: Sequence[tuple[Any, ...]] = block.rows
    wide = len(block.columns)
    return ShownBlock(
        "table",
        short(block.title),
        tuple(map(short, block.columns)),
        tuple(_row((*row, *[None] * wide)[:wide], base) for row in rows[:MOST_ROWS]),
        hint=short(block.empty, LONGEST_TEXT),
        more=len(rows) > MOST_ROWS,
    )


def _row(cells: Sequence[Any], base: str) -> tuple[ShownCell, ...]:
    return tuple(shown_cell(cell, base) for cell in cells)


def shown_cell(cell: Any, base: str) -> ShownCell:
    """A cell as it is shown; what is no kind of cell is shown as text."""
    match cell:
        case None:
            return ShownCell("")
        case KeyLink(key, text):
            return ShownCell(short(text or key, LONGEST_CELL), _address(f"{base}/key", {"key": key}))
        case PageLink(page, text, query):
            return ShownCell(short(text, LONGEST_CELL), _address(f"{base}/own/{quote(page, safe='')}", query))
        case TimeCell(at):
            return ShownCell("", at=at)
        case bool():
            return ShownCell("yes" if cell else "no")
        case int() | float():
            return ShownCell(f"{cell:,}", number=True)
    return ShownCell(short(cell, LONGEST_CELL))


def _address(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
