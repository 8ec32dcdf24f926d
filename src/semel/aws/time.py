"""The server's time, estimated from the Date headers of its responses and the machine's own clocks."""

import re

from semel.core.clock import Clock

# A Date is cut to the second, so the server's clock is up to this much further on.
RESOLUTION = 1.0
# Some servers write the Date a little before they answer, and the hosts behind one name differ a little.
SLACK = 0.05
# How fast two clocks may drift apart; a quartz does a tenth of this.
DRIFT = 200e-6
# What is taken for the margin until an answer has come.
UNKNOWN = 1.0

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DATE = re.compile(
    r"[A-Z][a-z]{2}, (?P<day>[0-9]{2}) (?P<month>[A-Z][a-z]{2}) (?P<year>[0-9]{4}) "
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2}) GMT"
)


class ServiceTime:
    """What time it is for the server.

    Each answer says that the server's clock, at some moment between sending and receiving, stood within a
    certain second. What the monotonic clock has to be given to reach the server's time therefore lies
    between two bounds, which come closer with every answer. A machine's clock that lies within them is
    believed; one that does not, or no longer since somebody set it, is replaced by their middle. A machine
    that slept is told by its first answer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A clock that a test moves says when it is for the store, but not when a request is signed.
        self._machine = clock if clock.imposed() is None else Clock()
        # Lowest, highest, and when that was known; replaced as one, since threads share it.
        self._bounds: tuple[float, float, float] | None = None
        self._read: tuple[str, float | None] = ("", None)

    @property
    def known(self) -> bool:
        """Whether an answer has told the time yet."""
        return self._bounds is not None

    def span(self) -> tuple[float, float]:
        """What the server's clock has certainly reached, and what it has certainly not passed."""
        imposed = self._clock.imposed()
        return self._span(self._machine.now()) if imposed is None else (imposed, imposed)

    def now(self) -> float:
        """The time to show: the best guess within the span."""
        imposed = self._clock.imposed()
        return self.signing() if imposed is None else imposed

    @property
    def margin(self) -> float:
        """How far `now` may be off; whoever relies on it asks for the span, as answers come in between."""
        lowest, highest = self.span()
        now = self.now()
        return max(now - lowest, highest - now)

    def signing(self) -> float:
        """The server's real time, whatever clock is imposed."""
        local = self._machine.now()
        lowest, highest = self._span(local)
        return local if lowest <= local <= highest else (lowest + highest) / 2

    def monotonic(self) -> float:
        """What to note before a request is sent and after its answer has come."""
        return self._machine.monotonic()

    def observe(self, date: str | None, sent: float, received: float) -> None:
        """Learn from an answer's Date; one that cannot be read says nothing."""
        moment = self._parse(date) if date else None
        if moment is None:
            return
        lowest = moment - SLACK - received
        highest = moment + RESOLUTION + SLACK - sent
        known = self._aged(received)
        if known is not None and lowest <= known[1] and known[0] <= highest:
            lowest, highest = max(lowest, known[0]), min(highest, known[1])
        # Otherwise one of the clocks was set: what was known is no longer true.
        self._bounds = (lowest, highest, received)

    def _span(self, local: float) -> tuple[float, float]:
        elapsed = self._machine.monotonic()
        bounds = self._aged(elapsed)
        if bounds is None:
            return local - UNKNOWN, local + UNKNOWN
        return elapsed + bounds[0], elapsed + bounds[1]

    def _aged(self, moment: float) -> tuple[float, float] | None:
        if self._bounds is None:
            return None
        lowest, highest, known_at = self._bounds
        drift = DRIFT * max(0.0, moment - known_at)
        return lowest - drift, highest + drift

    def _parse(self, date: str) -> float | None:
        # Most answers have the Date of the one before.
        read = self._read
        if read[0] != date:
            read = self._read = (date, parse_date(date))
        return read[1]


def parse_date(text: str) -> float | None:
    """The moment of a Date such as `Tue, 14 Nov 2023 22:13:20 GMT`; None when it is not of that form."""
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
