"""The metric families that Prometheus is told: their names, what they count, and by which labels."""

from typing import Final, Literal

import msgspec


class MetricFamily(msgspec.Struct, frozen=True):
    """A metric as Prometheus knows it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()


EVENTS: Final = MetricFamily(
    "semel_events_total", "counter", "What happened to keys.", ("event", "outcome", "door")
)
HTTP_REQUESTS: Final = MetricFamily(
    "semel_http_requests_total", "counter", "Requests answered.", ("method", "route", "status")
)
HTTP_SECONDS: Final = MetricFamily(
    "semel_http_request_seconds", "histogram", "How long answers took.", ("method", "route")
)
HTTP_REFUSED: Final = MetricFamily(
    "semel_http_refused_total",
    "counter",
    "Requests refused since a budget, or a client's share of it, was used up.",
    ("budget",),
)
HTTP_IN_FLIGHT: Final = MetricFamily("semel_http_in_flight", "gauge", "Requests under way.")

OLDEST: Final = "How old the oldest of them is."
INBOX_WAITING: Final = MetricFamily("semel_inbox_waiting", "gauge", "Messages that wait.", ("app",))
INBOX_OLDEST: Final = MetricFamily("semel_inbox_oldest_seconds", "gauge", OLDEST, ("app",))
INBOX_DEAD: Final = MetricFamily("semel_inbox_dead", "gauge", "Messages that nobody could handle.", ("app",))
INBOX_DEAD_OLDEST: Final = MetricFamily("semel_inbox_dead_oldest_seconds", "gauge", OLDEST, ("app",))
LEDGER_DOUBTS: Final = MetricFamily(
    "semel_ledger_doubts", "gauge", "Keys that wait to be settled.", ("scope",)
)
LEDGER_DOUBTS_OLDEST: Final = MetricFamily("semel_ledger_doubts_oldest_seconds", "gauge", OLDEST, ("scope",))
