"""The names of events in telemetry: one vocabulary for logs, traces and metrics."""

from typing import Final

from semel.core.events import What

# A call finds its key new, a duplicate, busy, taken over, unknown or a mismatch; an attempt completes, fails,
# is released or loses its claim. A kind of event that is not here is its own word.
OUTCOMES: Final = {
    What.CLAIMED: "new",
    What.REPLAYED: "duplicate",
    What.FAILED_BEFORE: "duplicate",
    What.EXHAUSTED: "failed",
}

# CloudWatch has words of its own for what a cache does.
METRICS: Final = {"new": "Misses", "duplicate": "Hits"}


def outcome(what: What) -> str:
    """The word for a kind of event."""
    return OUTCOMES.get(what, what.value)


def metric(what: What) -> str:
    """The name of the metric that counts it in CloudWatch, such as `Hits` or `TakenOver`."""
    word = outcome(what)
    return METRICS.get(word) or word.title().replace("_", "")
