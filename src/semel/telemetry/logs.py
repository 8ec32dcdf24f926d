"""Events as log lines."""

from logging import INFO, getLogger

from semel.core.events import Event, fields, words
from semel.telemetry.words import outcome

_logger = getLogger("semel.events")


def log_events(event: Event) -> None:
    """Log an event, with its fields as attributes of the log record.

    What semel logs by itself, as a warning of the logger `semel`, is passed over, so that nothing is said
    twice. A handler on `semel` gets both.
    """
    if event.warned or not _logger.isEnabledFor(INFO):
        return
    extra = fields(event) | {"semel_outcome": outcome(event.what)}
    text, args = words(event)
    # Not `info()`, which would spend a quarter of its time to find out that it was called from here.
    _logger.handle(_logger.makeRecord(_logger.name, INFO, __file__, 0, text, args, None, extra=extra))
