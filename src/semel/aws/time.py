"""The server's time, estimated from the Date headers of its responses and the machine's own clocks.

The rule: a response that contradicts the estimate moves it only after two more agree with that response and
none with the estimate. Until then either may be right, so the span covers both.
"""

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from semel.core.clock import Clock

# A Date is cut to the second, so the server's clock is up to this much further on.
RESOLUTION = 1.0
# Some servers write the Date a little before they respond, and the hosts behind one name differ a little.
SLACK = 0.05
# How fast two clocks may drift apart; a quartz does a tenth of this.
DRIFT = 200e-6
# The assumed margin of the machine's own clock until the first response.
UNKNOWN = 1.0
# This many responses that agree are believed, whatever the estimate was before.
AGREEING = 3
# Of this many responses, AGREEING agree even if some are wrong.
ENOUGH = 2 * AGREEING - 1
# The most contradicting estimates that are kept of a server whose dates never agree.
MOST_RIVALS = 8

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DATE = re.compile(
    r"[A-Z][a-z]{2}, (?P<day>[0-9]{2}) (?P<month>[A-Z][a-z]{2}) (?P<year>[0-9]{4}) "
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2}) GMT"
)


class OffsetEstimate(msgspec.Struct, frozen=True):
    """Bounds of the difference between the server's time and the monotonic clock."""

    lowest: float
    highest: float
    known_at: float
    responses: int = 1

    def bounds(self, elapsed: float) -> tuple[float, float]:
        """Return the bounds at a later moment: the clocks drift apart."""
        drift = DRIFT * max(0.0, elapsed - self.known_at)
        return self.lowest - drift, self.highest + drift


class ServiceTime:
    """The server's time, as a span that it certainly lies in.

    Each response says that the server's clock, at some moment between sending and receiving, stood within a
    certain second. The difference between the server's time and the monotonic clock therefore lies between
    two bounds, which come closer with every response. The machine's clock is believed while it lies within
    them, and otherwise replaced by their middle. The first response is believed if that clock agrees with it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A clock that a test moves is the store's time, but does not date signatures.
        self._machine = clock if clock.imposed() is None else Clock()
        # The estimate, and those of later responses that contradict it, the latest last. Replaced as one
        # value, since threads share them.
        self._estimates: tuple[OffsetEstimate | None, tuple[OffsetEstimate, ...]] = (None, ())
        self.monotonic: Callable[[], float] = self._machine.monotonic
        """Read it before a request is sent and after its response has arrived."""

    @property
    def known(self) -> bool:
        """Whether responses have told the time yet."""
        return self._estimates[0] is not None

    @property
    def contradicted(self) -> bool:
        """Whether the latest response contradicts the estimate, and needs others to confirm it."""
        return bool(self._estimates[1])

    def span(self) -> tuple[float, float]:
        """Return the time that the server's clock has certainly reached, and one it has not passed."""
        imposed = self._clock.imposed()
        if imposed is not None:
            return imposed, imposed
        elapsed, (known, rivals) = self.monotonic(), self._estimates
        lowest, highest = known.bounds(elapsed) if known else self._own_bounds()
        for rival in rivals:
            low, high = rival.bounds(elapsed)
            lowest, highest = min(lowest, low), max(highest, high)
        return elapsed + lowest, elapsed + highest

    def signing(self) -> float:
        """Return the best guess of the server's real time, whatever clock is imposed.

        The latest response counts even before others confirm it: a wrong signature does no harm.
        """
        local, (known, rivals) = self._machine.now(), self._estimates
        estimate = rivals[-1] if rivals else known
        if estimate is None:
            return local
        elapsed = self.monotonic()
        lowest, highest = estimate.bounds(elapsed)
        own = local - elapsed
        return local if lowest <= own <= highest else elapsed + (lowest + highest) / 2

    def observe(self, date: str | None, sent: float, received: float) -> None:
        """Learn from the Date header of a response; one that cannot be parsed is ignored."""
        if date is None or (moment := parse_date(date)) is None:
            return
        known = self._estimates[0]
        low, high = known.bounds(received) if known else self._own_bounds()
        lowest, highest = moment - SLACK - received, moment + RESOLUTION + SLACK - sent
        if low > highest or lowest > high:
            self._contradict(OffsetEstimate(lowest, highest, received))
            return
        if known is not None:  # until then the machine's own clock confirms a response, and is no bound
            lowest, highest = max(low, lowest), min(high, highest)
        self._estimates = (OffsetEstimate(lowest, highest, received), ())

    def _contradict(self, response: OffsetEstimate) -> None:
        (known, rivals), received = self._estimates, response.known_at
        for rival in rivals:
            low, high = rival.bounds(received)
            if low <= response.highest and response.lowest <= high:
                low, high = max(low, response.lowest), min(high, response.highest)
                response = OffsetEstimate(low, high, received, rival.responses + 1)
                rivals = tuple(one for one in rivals if one is not rival)
                break
        # If this many agree, a clock was set or the machine slept: the estimate is no longer true.
        confirmed = response.responses >= AGREEING
        self._estimates = (response, ()) if confirmed else (known, (*rivals[-MOST_RIVALS:], response))

    def _own_bounds(self) -> tuple[float, float]:
        apart = self._machine.now() - self.monotonic()
        return apart - UNKNOWN, apart + UNKNOWN


@lru_cache(maxsize=16)  # most responses have the date of the one before
def parse_date(text: str) -> float | None:
    """Parse a date such as `Tue, 14 Nov 2023 22:13:20 GMT`; None if it is not of that form."""
    from datetime import UTC, datetime

    found = DATE.fullmatch(text)
    if found is None or found["month"] not in MONTHS:
        return None
    year, day, hour, minute, second = map(int, found.group("year", "day", "hour", "minute", "second"))
    month = MONTHS.index(found["month"]) + 1
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
