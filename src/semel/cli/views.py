"""Records and other data as tables, lines and JSON.

A key or an id that is cut or broken in two cannot be copied. So they stay whole, on a narrow terminal and in
a pipe alike, and everything else gives way to them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from semel import Record, Status
from semel.model import ProgressCallback
from semel.tables import FOREVER

T = TypeVar("T")

TableCell: TypeAlias = Text | str
TableRow: TypeAlias = Sequence[TableCell]

GAP = "  "
# In less room than this the last column tells nothing; its rows then stand below what they are about.
LEAST = 20

# A table is for looking over many records; `show` and --json have the whole result.
SHORT = 48

STYLES = {
    Status.IN_PROGRESS: "cyan",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.UNKNOWN: "bold yellow",
    Status.RELEASED: "",
}
# The fields that are moments, of whatever is shown to programs.
MOMENTS = frozenset(
    {"at", "until", "not_before", "began", "changed", "since", "oldest", "updated_at", "resets_at"}
)
SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def facts(record: Record) -> dict[str, Any]:
    """A record for programs, without its result, which may be personal."""
    view: dict[str, Any] = {"key": record.key, "id": record.id}
    view |= {"status": record.status.value, "attempt": record.attempt}
    for name in ("created_at", "updated_at", "lease_until", "expires_at"):
        view[name] = None if getattr(record, name) == FOREVER else moment(getattr(record, name))
    view |= {"fingerprint": record.fingerprint, "encoding": record.encoding}
    view |= {"subject": record.subject, "details": record.details}
    if failure := record.failure:
        view["error"] = {"type": failure.type, "message": failure.message}
    return view


def compact(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def cut(text: str) -> str:
    """A text on one line of sensible length."""
    text = " ".join(text.split())
    return text if len(text) <= SHORT else f"{text[: SHORT - 3]}..."


def moment(seconds: float) -> str:
    """A moment as ISO 8601 in UTC; one beyond the calendar stays seconds, and is still shown."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s"


def moment_or_none(seconds: float | None) -> str | None:
    """A moment as ISO 8601 in UTC, where there is one."""
    return None if seconds is None else moment(seconds)


def readable(value: Any) -> Any:
    """A value, or several, as JSON, with moments as people write them."""
    return _with_moments(msgspec.to_builtins(value))


def _with_moments(document: Any) -> Any:
    if isinstance(document, list | tuple):
        return [_with_moments(each) for each in document]
    if not isinstance(document, dict):
        return document
    dated = MOMENTS & {name for name, value in document.items() if isinstance(value, int | float)}
    return {
        name: moment(value) if name in dated else _with_moments(value) for name, value in document.items()
    }


def span(seconds: float) -> str:
    """A span of time in its largest unit."""
    for size, unit in SPANS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return "0 s"


# Printing


def print_table(names: Sequence[str], rows: Sequence[TableRow], *, whole: int = 1, cut: bool = False) -> None:
    """Print rows below their names. The first `whole` columns are never cut, and nothing is in a pipe.

    On a terminal the last column has the room that the others leave: it is `cut` there, or goes on below.
    Where they leave too little, each row takes two lines: what it is about, and what there is to say of it.
    """
    console = Console(highlight=False)
    for line in table_lines(console, names, rows, whole=whole, cut=cut):
        console.print(line, soft_wrap=True)


def table_lines(
    console: Console, names: Sequence[str], rows: Sequence[TableRow], *, whole: int = 1, cut: bool = False
) -> list[Text]:
    """The lines of such a table, as wide as a console."""
    table = [[Text(name, "dim") for name in names], *[[_text(cell) for cell in row] for row in rows]]
    widths = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    before = sum(widths[:-1]) + len(GAP) * (len(names) - 1)
    room = console.width - before if console.is_terminal else widths[-1]
    if room >= min(widths[-1], LEAST):
        lines = [line for row in table for line in _in_columns(console, row, widths, room, cut)]
    else:
        lines = [line for row in table for line in _stacked(console, row, widths, whole, cut)]
    for line in lines:
        line.rstrip()
    return lines


def print_pairs(pairs: Iterable[tuple[str, TableCell]]) -> None:
    """Print names, and beside each its value; a terminal breaks what is longer than it is wide."""
    console, listed = Console(highlight=False), list(pairs)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        console.print(Text.assemble((name.ljust(width) + GAP, "dim"), _text(value)), soft_wrap=True)


@contextmanager
def progress(doing: str, words: Callable[[T], str], begun: T) -> Iterator[ProgressCallback[T]]:
    """Show on a terminal how far something has come: call what this gives with what is done so far."""
    console, text = Console(stderr=True), TextColumn(f"{doing}: {{task.description}}")
    quiet = not console.is_terminal
    with Progress(SpinnerColumn(), text, console=console, transient=True, disable=quiet) as shown:
        task = shown.add_task(words(begun), total=None)
        yield lambda done: shown.update(task, description=words(done))


@contextmanager
def progress_bar(doing: str, total: int) -> Iterator[Callable[[], None]]:
    """Show on a terminal how many of so many are done: call what this gives after each."""
    console = Console(stderr=True)
    columns = TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=total)
        yield lambda: shown.advance(task)


def _text(cell: TableCell) -> Text:
    """A cell, on one line."""
    return cell if isinstance(cell, Text) else Text(" ".join(cell.splitlines()))


def _in_columns(console: Console, row: list[Text], widths: list[int], room: int, cut: bool) -> list[Text]:
    head, last = _padded(row[:-1], widths), row[-1].copy()
    if last.cell_len <= room:
        return [head + last]
    if cut:
        last.truncate(room, overflow="ellipsis")
        return [head + last]
    first, *more = last.wrap(console, room)
    return [head + first, *[Text(" " * head.cell_len) + line for line in more]]


def _padded(cells: list[Text], widths: list[int]) -> Text:
    line = Text()
    for cell, width in zip(cells, widths, strict=False):
        line += Text.assemble(cell, " " * (width - cell.cell_len) + GAP)
    return line


def _stacked(console: Console, row: list[Text], widths: list[int], whole: int, cut: bool) -> list[Text]:
    """What a row is about on lines of its own, and the rest below it."""
    rest, room = _padded(row[whole:-1], widths[whole:]) + row[-1], console.width - len(GAP)
    if cut:
        rest.truncate(room, overflow="ellipsis")
    below = [rest] if rest.cell_len <= room else rest.wrap(console, room)
    return [Text(GAP).join(row[:whole]), *[Text(GAP) + line for line in below]]
