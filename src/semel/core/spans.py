"""Durations: leases, times to live, and how long a doubt may wait."""

from datetime import timedelta
from typing import TypeAlias

from semel import errors
from semel.model import OnLapsed

Seconds: TypeAlias = float | timedelta

INFINITE = float("inf")

LEASE = 30.0
DAY = 86400.0
"""A day in seconds: how long a result is kept unless you say otherwise."""
HOUR = 3600.0
"""An hour in seconds: enough for a result where events are frequent and their retries quick."""
# What somebody has settled or put right is kept for so long at least: forgotten early, it would happen again.
SETTLED = 30 * DAY


def seconds(span: Seconds) -> float:
    """A span of time as seconds; it must be more than none."""
    if type(span) is float and 0 < span < INFINITE:  # as nearly every one
        return span
    value = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < INFINITE:
        raise errors.InvalidOption(f"a span of time must be positive and finite, not {span!r}")
    return float(value)


def lease_and_ttl(lease: Seconds, ttl: Seconds, horizon: float = 0) -> tuple[float, float]:
    """A lease and a time to live that fit together."""
    held, kept = seconds(lease), lasting(ttl, horizon)
    if kept <= held:
        raise errors.InvalidOption(
            f"ttl ({kept:g} s) must be longer than lease ({held:g} s): a record outlives its lease"
        )
    return held, kept


def lasting(ttl: Seconds, horizon: float) -> float:
    """A time to live that is no shorter than the other side goes on retrying."""
    kept = seconds(ttl)
    if kept < horizon:
        raise errors.InvalidOption(
            f"ttl ({kept:g} s) is shorter than horizon ({horizon:g} s), for which the other side retries: "
            f"its last retries would run again. Use a ttl of at least {horizon:g}"
        )
    return kept


def doubt_span(span: Seconds | None, on_lapsed: OnLapsed, lease: float, horizon: float) -> float | None:
    """How long a doubt waits for somebody to settle it, if not for ever."""
    if span is None:
        return None
    if on_lapsed == "rerun":
        raise errors.InvalidOption(
            'doubt_ttl goes with on_lapsed="hold" or "resolve": else nothing is in doubt'
        )
    held = lasting(span, horizon)
    if held <= lease:
        raise errors.InvalidOption(
            f"doubt_ttl ({held:g} s) must be longer than lease ({lease:g} s), at whose end a doubt begins"
        )
    return held
