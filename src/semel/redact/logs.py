"""Logs: a filter that masks a record before it is written."""

import logging
from typing import Any, Final

from semel.core.events import WITHHELD
from semel.redact.redactor import Redactor

_RECORD_NAMES: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"asctime", "taskName"}


class RedactingFilter(logging.Filter):
    """Masks a log record: its message, exception, stack and extra attributes.

    Put it on every handler: `handler.addFilter(redactor.filter())`. A filter on a logger does not see what
    its children log. The record itself is changed, so a later handler gets the masked one. The exception's
    text is kept, and the exception object is not; extra attributes are masked as `Redactor.json` does.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record, and let it pass."""
        try:
            self._mask(record)
        except Exception:  # noqa: BLE001 - what cannot be masked must not be written, and logging must go on
            _withhold(record)
        return True

    def _mask(self, record: logging.LogRecord) -> None:
        record.msg, record.args = self._redactor.text(_message(record)), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
        if record.exc_text:
            record.exc_text = self._redactor.text(record.exc_text)
        if record.stack_info:
            record.stack_info = self._redactor.text(record.stack_info)
        for name in _extras(record):
            record.__dict__[name] = self._attribute(name, record.__dict__[name])

    def _attribute(self, name: str, value: Any) -> Any:
        try:
            return self._redactor.json({name: value}).popitem()[1]
        except Exception:  # noqa: BLE001 - one attribute that cannot be masked takes nothing else with it
            return WITHHELD


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit, or whose own text fails
        return f"{record.msg} {record.args!r}"


def _withhold(record: logging.LogRecord) -> None:
    record.msg, record.args = WITHHELD, None
    record.exc_info = record.exc_text = record.stack_info = None
    record.__dict__.update(dict.fromkeys(_extras(record), WITHHELD))


def _extras(record: logging.LogRecord) -> set[str]:
    return record.__dict__.keys() - _RECORD_NAMES
