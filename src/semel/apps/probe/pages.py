"""The probe's page in the dashboard: the operations that it was asked for."""

from collections.abc import Mapping
from typing import Final

from semel.connect import Semel
from semel.model import Record
from semel.ops.blocks import AppPage, Cell, KeyLink, PageBlock, TableBlock, TimeCell
from semel.ops.model import Search

LISTED: Final = 100
OPERATIONS: Final = {"PRODUCE#": "Messages produced", "CONSUME#": "Messages consumed"}


def pages(s: Semel) -> dict[str, AppPage]:
    """The pages of a probe."""

    async def operations(_query: Mapping[str, str]) -> list[PageBlock]:
        return [await _listed(s, prefix, title) for prefix, title in OPERATIONS.items()]

    return {"operations": AppPage("Operations", operations)}


async def _listed(s: Semel, prefix: str, title: str) -> TableBlock:
    found = await s.aio.ops.search(Search(prefix=prefix), limit=LISTED)
    records = sorted(found.records, key=lambda record: record.updated_at, reverse=True)
    columns = ("Operation", "Status", "Attempts", "Changed", "Error")
    empty = "Nobody has asked for it yet: POST to /messages/produce or /messages/consume."
    if found.after is not None:
        title += " (some of them: the ledger has more)"
    return TableBlock(title, columns, tuple(map(_row, records)), empty)


def _row(record: Record) -> tuple[Cell, ...]:
    error = None if record.failure is None else record.failure.type
    status = record.status.value.replace("_", " ").lower()
    return KeyLink(record.key), status, record.attempt, TimeCell(record.updated_at), error
