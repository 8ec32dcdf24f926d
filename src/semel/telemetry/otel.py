"""Events as OpenTelemetry's metric and span events."""

from typing import TYPE_CHECKING

from semel.core.events import Event, What
from semel.core.runtime import require
from semel.telemetry.words import outcome

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class OpenTelemetry:
    """Counts events in `semel.events`, and adds each to the span that it happened in.

    The meter is that of the provider given, else of the program's. The span is the current one, whoever made
    it; where there is none that records, nothing is added.
    """

    def __init__(self, meter_provider: "MeterProvider | None" = None) -> None:
        metrics, trace = require("opentelemetry.metrics", "otel"), require("opentelemetry.trace", "otel")
        meter = metrics.get_meter("semel", meter_provider=meter_provider)
        self._counter = meter.create_counter(
            "semel.events", unit="{event}", description="What happened to keys"
        )
        self._span = trace.get_current_span
        self._known: dict[tuple[What, str], dict[str, str]] = {}

    def __call__(self, event: Event) -> None:
        """Count an event, and add it to the current span."""
        attributes = self._known.get((event.what, event.door)) or self._meet(event)
        self._counter.add(1, attributes)
        span = self._span()
        if span.is_recording():
            key = {"semel.key_digest": event.key_digest, "semel.attempt": event.attempt}
            named = {"semel.name": event.name} if event.name else {}
            about = {**attributes, **(key if event.key_digest else {}), **named}
            span.add_event(f"semel.{event.what.value}", about)

    def _meet(self, event: Event) -> dict[str, str]:
        attributes = {"semel.event": event.what.value, "semel.outcome": outcome(event.what)}
        if event.door:
            attributes["semel.door"] = event.door
        self._known[event.what, event.door] = attributes
        return attributes
