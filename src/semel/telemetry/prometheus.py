"""Events as a Prometheus counter."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.core.events import Event, What
from semel.core.runtime import require
from semel.telemetry.families import EVENTS
from semel.telemetry.words import outcome

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Prometheus:
    """Counts events in `semel_events_total`, by event, outcome and door.

    It goes into the registry given, else into the program's. A registry holds one.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        client = require("prometheus_client", "prometheus")
        self._counter = client.Counter(
            EVENTS.name,
            EVENTS.about,
            EVENTS.labels,
            registry=client.REGISTRY if registry is None else registry,
        )
        self._doors: dict[str, dict[What, Callable[[], None]]] = {"": self._meet("")}

    def __call__(self, event: Event) -> None:
        """Count an event."""
        door = self._doors.get(event.door)
        if door is None:
            door = self._doors[event.door] = self._meet(event.door)
        door[event.what]()

    def _meet(self, door: str) -> dict[What, Callable[[], None]]:
        # Each kind of event begins at zero: an alert on an increase does not see a series that begins at one.
        return {what: self._counter.labels(what.value, outcome(what), door).inc for what in What}
