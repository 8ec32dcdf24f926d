"""Metrics for Prometheus: semel's events, the requests of this process, and what waits for a person."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from semel.connect import Semel
from semel.doors.inbox import Counted, Inbox
from semel.telemetry.families import (
    HTTP_IN_FLIGHT,
    HTTP_REFUSED,
    HTTP_REQUESTS,
    HTTP_SECONDS,
    INBOX_DEAD,
    INBOX_DEAD_OLDEST,
    INBOX_OLDEST,
    INBOX_WAITING,
    LEDGER_DOUBTS,
    LEDGER_DOUBTS_OLDEST,
    MetricFamily,
)
from semel.telemetry.prometheus import Prometheus

Look: TypeAlias = Callable[[str | None], Counted]
"""Counts on from a place."""
Looks: TypeAlias = Mapping[str, Mapping[str, Look]]
"""Those of each kind in `DEPTHS`, by the value of its label."""

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

# A webhook takes milliseconds, a wait on the ledger up to half a minute.
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class ServiceMetrics:
    """All of them, in a registry of their own."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        self.events: Prometheus = Prometheus(self.registry)
        self._requests = Counter(*_family(HTTP_REQUESTS), registry=self.registry)
        self._seconds = Histogram(*_family(HTTP_SECONDS), buckets=BUCKETS, registry=self.registry)
        self._refused = Counter(*_family(HTTP_REFUSED), registry=self.registry)
        self._in_flight = Gauge(*_family(HTTP_IN_FLIGHT), registry=self.registry)
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

    def watch(self, in_flight: Callable[[], int], looks: Looks) -> None:
        """Ask these whenever somebody looks."""
        self._in_flight.set_function(in_flight)
        self.registry.register(Depths(looks))

    def text(self) -> bytes:
        """Everything, as Prometheus reads it; inboxes and ledgers are asked now."""
        return generate_latest(self.registry)


def _family(family: MetricFamily) -> tuple[str, str, tuple[str, ...]]:
    return family.name, family.about, family.labels


class Depths(Collector):
    """How much there is of what somebody may have to look at, and how old the oldest of it is."""

    def __init__(self, looks: Looks) -> None:
        self._counts = {
            kind: {name: RunningCount(look) for name, look in each.items()} for kind, each in looks.items()
        }

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Ask each; one that cannot tell is left out."""
        for kind, counts in self._counts.items():
            depth = DEPTHS[kind]
            number = GaugeMetricFamily(depth.number.name, depth.number.about, labels=depth.number.labels)
            oldest = GaugeMetricFamily(depth.oldest.name, depth.oldest.about, labels=depth.oldest.labels)
            for name, count in counts.items():
                with suppress(Exception):  # whatever is wrong with one of them, the rest is told
                    found = count.look()
                    number.add_metric([name], found.number)
                    if found.oldest is not None:
                        oldest.add_metric([name], max(0.0, found.now - found.oldest))
            yield from (number, oldest)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing, so that registering asks nobody."""
        return ()


class RunningCount:
    """A count that goes on from one look to the next, so that each costs little however much there is.

    While there is more than one look can count, the last whole count stands, unless it is already surpassed.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._whole = self._part = NOTHING

    def look(self) -> Counted:
        """Count on, and tell what is known."""
        with self._lock:
            self._part = part = _added(self._part, self._look(self._part.after))
            if part.after is None:
                self._whole, self._part = part, NOTHING
                return part
            return part if part.number > self._whole.number else self._whole


NOTHING: Final = Counted(0)


def _added(one: Counted, other: Counted) -> Counted:
    moments = [moment for moment in (one.oldest, other.oldest) if moment is not None]
    return Counted(one.number + other.number, min(moments, default=None), other.now, other.after)


# What is counted


class Depth(msgspec.Struct, frozen=True):
    """The gauges of what somebody may have to look at."""

    number: MetricFamily
    oldest: MetricFamily


DEPTHS: Final = {
    "waiting": Depth(INBOX_WAITING, INBOX_OLDEST),
    "dead": Depth(INBOX_DEAD, INBOX_DEAD_OLDEST),
    "doubts": Depth(LEDGER_DOUBTS, LEDGER_DOUBTS_OLDEST),
}


def in_inbox(inbox: Inbox, *, dead: bool) -> Look:
    """Counts the messages of an inbox."""
    return lambda after: inbox.count(dead=dead, after=after)


def in_doubt(s: Semel) -> Look:
    """Counts what is UNKNOWN, or lapsed where it is to be held; it comes from an index, oldest first."""

    def look(after: str | None) -> Counted:
        found = s.ledger.doubts(after=after)
        since = [one.doubt_since for one in found.records if one.doubt_since is not None]
        return Counted(len(found.records), min(since, default=None), found.now, found.after)

    return look
