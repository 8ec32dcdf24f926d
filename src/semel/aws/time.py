"""The server's time, estimated from the Date headers of its responses and the machine's own clocks.

The rule: a response that contradicts what is known moves the clock only when two more agree with it, and none
with what is known. Until then any may be right, so the span reaches from the earliest time to the latest.
"""

import re
from typing import NamedTuple

from semel.core.clock import Clock

# A Date is cut to the second, so the server's clock is up to this much further on.
RESOLUTION = 1.0
# Some servers write the Date a little before they answer, and the hosts behind one name differ a little.
SLACK = 0.05
# How fast two clocks may drift apart; a quartz does a tenth of this.
DRIFT = 200e-6
# What is taken for the margin of the machine's own clock until an answer has come.
UNKNOWN = 1.0
# So many answers that agree are believed, whatever was known before.
AGREEING = 3
# Among so many are enough that agree, even if some are wrong.
ENOUGH = 2 * AGREEING - 1
# A server whose dates never agree is not remembered without end.
MOST_RIVALS = 8

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DATE = re.compile(
    r"[A-Z][a-z]{2}, (?P<day>[0-9]{2}) (?P<month>[A-Z][a-z]{2}) (?P<year>[0-9]{4}) "
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2}) GMT"
)


class OffsetEstimate(NamedTuple):
    """Between which two figures lies what the monotonic clock has to be given to reach the server's time."""

    lowest: float
    highest: float
    known_at: float
    answers: int = 1

    def aged(self, moment: float) -> "OffsetEstimate":
        """What is left of it at a later moment: the clocks drift apart."""
        drift = DRIFT * max(0.0, moment - self.known_at)
        return self._replace(lowest=self.lowest - drift, highest=self.highest + drift)

    def agrees(self, other: "OffsetEstimate") -> bool:
        """Whether both can be right."""
        return self.lowest <= other.highest and other.lowest <= self.highest

    def narrowed(self, answer: "OffsetEstimate") -> "OffsetEstimate":
        """What is known if both are right."""
        lowest, highest = max(self.lowest, answer.lowest), min(self.highest, answer.highest)
        return OffsetEstimate(lowest, highest, answer.known_at, self.answers + 1)


class ServiceTime:
    """What time it is for the server.

    Each answer says that the server's clock, at some moment between sending and receiving, stood within a
    certain second. What the monotonic clock has to be given to reach the server's time therefore lies
    between two bounds, which come closer with every answer. A machine's clock that lies within them is
    believed; one that does not, or no longer since somebody set it, is replaced by their middle. The first
    answer is believed where the machine's clock agrees with it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A clock that a test moves says when it is for the store, but not when a request is signed.
        self._machine = clock if clock.imposed() is None else Clock()
        # What is known, and what answers have said since that contradicts it, the latest last; replaced as
        # one, since threads share them.
        self._estimates: tuple[OffsetEstimate | None, tuple[OffsetEstimate, ...]] = (None, ())
        self._read: tuple[str, float | None] = ("", None)

    @property
    def known(self) -> bool:
        """Whether answers have told the time yet."""
        return self._estimates[0] is not None

    @property
    def contradicted(self) -> bool:
        """Whether the latest answer contradicts what is known, and has to be confirmed by others."""
        return bool(self._estimates[1])

    def span(self) -> tuple[float, float]:
        """What the server's clock has certainly reached, and what it has certainly not passed."""
        imposed = self._clock.imposed()
        if imposed is not None:
            return imposed, imposed
        elapsed, (known, rivals) = self._machine.monotonic(), self._estimates
        known = known.aged(elapsed) if known else self._own(elapsed)
        lowest, highest = known.lowest, known.highest
        for rival in rivals:
            aged = rival.aged(elapsed)
            lowest, highest = min(lowest, aged.lowest), max(highest, aged.highest)
        return elapsed + lowest, elapsed + highest

    def now(self) -> float:
        """The time to show: the best guess within the span."""
        imposed = self._clock.imposed()
        return self._guess(self._estimates[0]) if imposed is None else imposed

    @property
    def margin(self) -> float:
        """How far `now` may be off; whoever relies on it asks for the span, as answers come in between."""
        lowest, highest = self.span()
        now = self.now()
        return max(now - lowest, highest - now)

    def signing(self) -> float:
        """The server's real time, whatever clock is imposed.

        The latest answer counts even where others have to confirm it: a wrong signature does no harm.
        """
        known, rivals = self._estimates
        return self._guess(rivals[-1] if rivals else known)

    def monotonic(self) -> float:
        """What to note before a request is sent and after its answer has come."""
        return self._machine.monotonic()

    def observe(self, date: str | None, sent: float, received: float) -> None:
        """Learn from an answer's Date; one that cannot be read says nothing."""
        moment = self._parse(date) if date else None
        if moment is None:
            return
        answer = OffsetEstimate(moment - SLACK - received, moment + RESOLUTION + SLACK - sent, received)
        known, rivals = self._estimates
        before = self._own(received) if known is None else known.aged(received)
        if before.agrees(answer):
            # The machine's own clock is a witness, and no bound.
            self._estimates = (answer if known is None else before.narrowed(answer), ())
            return
        for rival in rivals:
            if (aged := rival.aged(received)).agrees(answer):
                answer, rivals = aged.narrowed(answer), tuple(one for one in rivals if one is not rival)
                break
        # When so many agree, a clock was set or the machine slept: what was known before is no longer true.
        confirmed = answer.answers >= AGREEING
        self._estimates = (answer, ()) if confirmed else (known, (*rivals[-MOST_RIVALS:], answer))

    def _own(self, elapsed: float) -> OffsetEstimate:
        """What the machine's own clock says."""
        apart = self._machine.now() - self._machine.monotonic()
        return OffsetEstimate(apart - UNKNOWN, apart + UNKNOWN, elapsed)

    def _guess(self, estimate: OffsetEstimate | None) -> float:
        local = self._machine.now()
        if estimate is None:
            return local
        elapsed = self._machine.monotonic()
        lowest, highest, *_ = estimate.aged(elapsed)
        lowest, highest = elapsed + lowest, elapsed + highest
        return local if lowest <= local <= highest else (lowest + highest) / 2

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
