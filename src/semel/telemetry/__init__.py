"""Listeners that report events: to logs, OpenTelemetry, Prometheus and CloudWatch.

Each is called with an `Event`, counts or writes it, and is quick about it. `words` says how events are called
in all of them. A key is named by its digest or not at all, and `detail` goes to logs only: it may quote an
error, and metrics travel far.
"""

from semel.telemetry.logs import log_events

__all__ = ["log_events"]
