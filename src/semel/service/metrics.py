"""Metrics for Prometheus: semel's events, the requests of this process, and what waits in each inbox."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from semel.clock import Clock
from semel.doors.inbox import Inbox
from semel.telemetry.prometheus import Prometheus

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

# A webhook takes milliseconds, a wait on the ledger up to half a minute.
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """All of them, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Prometheus(self.registry)
        labels = ["method", "route", "status"]
        self._requests = Counter("semel_http_requests", "Requests answered.", labels, registry=self.registry)
        self._seconds = Histogram(
            "semel_http_request_seconds",
            "How long answers took.",
            ["method", "route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._refused = Counter(
            "semel_http_refused",
            "Requests refused since a budget, or a client's share of it, was used up.",
            ["budget"],
            registry=self.registry,
        )
        self._in_flight = Gauge("semel_http_in_flight", "Requests under way.", registry=self.registry)
        # Finding a child by its labels takes longer than counting.
        self._known: dict[tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        known = self._known.get((method, route, status))
        if known is None:
            inc = self._requests.labels(method, route, str(status)).inc
            known = self._known[method, route, status] = inc, self._seconds.labels(method, route).observe
        known[0]()
        known[1](seconds)

    def refused(self, budget: str) -> None:
        """Count a request for which this budget had no place."""
        self._refused.labels(budget).inc()

    def watch(self, in_flight: Callable[[], int], inboxes: Mapping[str, Inbox]) -> None:
        """Ask these whenever somebody looks."""
        self._in_flight.set_function(in_flight)
        self.registry.register(Depths(inboxes))

    def text(self) -> bytes:
        """Everything, as Prometheus reads it; the inboxes are asked now."""
        return generate_latest(self.registry)


class Depths(Collector):
    """How much waits in each inbox, and for how long."""

    def __init__(self, inboxes: Mapping[str, Inbox], clock: Clock | None = None) -> None:
        self._inboxes = inboxes
        self._clock = clock or Clock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Ask each inbox; one that cannot tell is left out."""
        waiting = GaugeMetricFamily("semel_inbox_waiting", "Messages that wait.", labels=["app"])
        oldest = GaugeMetricFamily(
            "semel_inbox_oldest_seconds", "For how long the oldest of them has waited.", labels=["app"]
        )
        for name, inbox in self._inboxes.items():
            with suppress(Exception):  # whatever is wrong with one inbox, the rest is told
                survey = inbox.survey()
                waiting.add_metric([name], survey.waiting)
                if survey.oldest is not None:
                    oldest.add_metric([name], max(0.0, self._clock.now() - survey.oldest))
        yield from (waiting, oldest)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing, so that registering asks no inbox."""
        return ()
