"""Logs: one line for each thing, as JSON or as text, with nothing personal and nothing secret in it."""

import logging
import re
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec

from semel.redact import Redactor

access: Final = logging.getLogger("semel.access")

# What these say is made of routes, numbers and digests, and has been redacted where it was not.
CLEAN: Final = frozenset({"semel.access", "semel.events"})
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"asctime", "message", "taskName"}
_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode
# What a line has as it is; an object is written as its repr, which has no secrets.
PLAIN: Final = (str, int, float, bool, type(None))
# What would begin a new line, move the cursor, or turn the direction of reading.
CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")

DELETE: Final = "\x7f"


class JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Its line."""
        line: dict[str, Any] = {
            "at": _moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _extra(record)
        if text := _trace(self, record):
            line["trace"] = text
        text = _encode(line).decode()
        if text.isascii() and DELETE not in text:  # JSON has escaped the rest
            return text
        return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TextLines(logging.Formatter):
    """A record as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Its line; a trace, if there is one, is below it and indented, so that it is no line of its own."""
        extra = {name: value for name, value in _extra(record).items() if not name.startswith("semel_")}
        words = [f"{_moment(record.created)} {record.levelname:<7} {record.name}: {record.getMessage()}"]
        line = " ".join(words + [f"{name}={value}" for name, value in extra.items()]).rstrip()
        trace = _trace(self, record)
        below = [f"  {_escaped(one)}" for one in trace.split("\n")] if trace else []
        return "\n".join([_escaped(line), *below])


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: _plain(value) for name, value in record.__dict__.items() if name not in _STANDARD}


def _plain(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else repr(value)


def _escaped(text: str) -> str:
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_text:
        return record.exc_text
    return formatter.formatException(record.exc_info) if record.exc_info else ""


class Scrubbing(logging.Filter):
    """Masks what is personal in what anybody logs; the service's own lines have nothing of it."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._filter = redactor.filter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record, and let it pass."""
        return True if record.name in CLEAN else self._filter.filter(record)


# Where so many lines wait, what they go to is stuck, and whoever has one more waits too.
MOST_WAITING: Final = 1000


class LineHandler(logging.Handler):
    """Writes lines to a stream; a thread whose line another one is about to write does not wait for that.

    With the lock of `logging`, eight workers took a seventh of their time for waiting until the others' lines
    were on the disk.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._writing = threading.Lock()

    def handle(self, record: logging.LogRecord) -> bool:
        """Write the record's line, unless a filter holds it back."""
        passed: bool | logging.LogRecord = self.filter(record)
        if passed:
            self.emit(record if passed is True else passed)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's line, and those of others that have come meanwhile; or leave it to them."""
        try:
            self._lines.append(self.format(record) + "\n")
            while self._lines and self._writing.acquire(blocking=len(self._lines) > MOST_WAITING):
                try:
                    self._write()
                finally:
                    self._writing.release()
        except Exception:  # noqa: BLE001 - a log that cannot be written stops no work
            self.handleError(record)

    def flush(self) -> None:
        """Write what is left."""
        with self._writing:
            self._write()

    def _write(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        self._stream.write("".join(lines))
        self._stream.flush()


# Those who log each request themselves.
DRIVERS: Final = ("uvicorn", "uvicorn.error", "httpx", "httpcore", "boto3", "botocore", "urllib3")


def set_up(form: str, level: str, redactor: Redactor) -> None:
    """Write every line of this process to stderr, in this form."""
    handler = LineHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(Scrubbing(redactor))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # No line tells them, and to find them out is a third of what a record takes.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # What they say of each request is said here, without addresses and query strings.
    for name in DRIVERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("uvicorn.access").disabled = True


def log_request(method: str, route: str, status: int, seconds: float, id: str, *, user: str = "") -> None:
    """Log a request that was answered, with the user of the dashboard who sent it."""
    if not access.isEnabledFor(logging.INFO):
        return
    extra = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 2), "id": id}
    if user:
        extra["user"] = user
    # Not `info()`, which would spend a quarter of its time to find out that it was called from here.
    record = access.makeRecord(access.name, logging.INFO, __file__, 0, "request", (), None, extra=extra)
    access.handle(record)
