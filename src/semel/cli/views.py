"""Records as people and programs read them: tables, lines and JSON."""

import json
import time
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from semel import MISSING, Ledger, Record, Status, errors
from semel.tables import FOREVER

# A table is for looking over many records; `show` and --json have the whole result.
SHORT = 48

STYLES = {
    Status.IN_PROGRESS: "cyan",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.UNKNOWN: "bold yellow",
    Status.RELEASED: "",
}
SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def as_json(ledger: Ledger, record: Record) -> dict[str, Any]:
    """A record for programs; `result` is there only if there is one, since null is a result too."""
    view: dict[str, Any] = {"key": record.key, "status": record.status.value, "attempt": record.attempt}
    for name in ("created_at", "updated_at", "lease_until", "expires_at"):
        view[name] = None if getattr(record, name) == FOREVER else moment(getattr(record, name))
    view |= {"fingerprint": record.fingerprint, "encoding": record.encoding}
    if failure := record.failure:
        view["error"] = {"type": failure.type, "message": failure.message}
    return view | _result(ledger, record)


def as_table(ledger: Ledger, records: tuple[Record, ...]) -> Table:
    """Records for looking over."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    # A key that is cut cannot be copied: it is folded instead.
    table.add_column("key", overflow="fold")
    for name in ("status", "attempt", "changed"):
        table.add_column(name, no_wrap=True)
    table.add_column("what came of it", overflow="ellipsis", no_wrap=True)
    for record in records:
        status = Text(record.status.value, STYLES[record.status])
        changed = f"{span(time.time() - record.updated_at)} ago"
        table.add_row(Text(record.key), status, str(record.attempt), changed, Text(story(ledger, record)))
    return table


def as_lines(ledger: Ledger, record: Record) -> Table:
    """One record in full."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in as_json(ledger, record).items():
        if value is not None or name == "result":
            grid.add_row(name, Text(value if isinstance(value, str) and name != "result" else compact(value)))
    return grid


def story(ledger: Ledger, record: Record) -> str:
    """What came of a record so far, in a few words."""
    match record.status:
        case Status.IN_PROGRESS:
            left = record.lease_until - time.time()
            return f"its lease runs for {span(left)}" if left > 0 else f"its lease lapsed {span(-left)} ago"
        case Status.UNKNOWN:
            return "vanished: settle it with resolve"
    if failure := record.failure:
        return cut(f"{failure.type}: {failure.message}")
    if record.status is Status.RELEASED:
        return "given back: the next call runs"
    view = _result(ledger, record)
    if "result" in view:
        return cut(compact(view["result"]))
    return f"({view.get('result_problem') or (record.encoding or '').removeprefix('none:') or 'no result'})"


def _result(ledger: Ledger, record: Record) -> dict[str, Any]:
    try:
        result = ledger.result(record)
    except errors.SemelError as error:
        return {"result_problem": getattr(error, "reason", str(error))}
    return {} if result is MISSING else {"result": result}


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


def span(seconds: float) -> str:
    """A span of time in its largest unit."""
    for size, unit in SPANS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return "0 s"
