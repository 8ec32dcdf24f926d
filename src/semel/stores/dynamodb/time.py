"""What time it is, of which DynamoDB says only which second it is by its own clock.

From the dates of its answers (`semel.aws.time`) it is known between which two moments the server's time
T lies: `earliest` and `latest`. With a `margin` given they are also at most that far from the machine's own
clock; a clock that is certainly further off has no say. Three rules follow:

- What is compared is compared with `earliest`: nothing is taken for over before it is.
- What ends later is counted from `latest`: a lease of thirty seconds written at T ends at T + 30 or after.
- Replies tell `earliest`, so that the rules decide by the very time that the store compares with.

Why two workers never both hold a lease: A notes its own clock, then sends its claim, and counts its lease L
from that note; so it has stopped by T0 + L, where T0 is the server's time at the note. What it wrote is
`latest` + L, read at T0 or after, so at least T0 + L. B takes over only when its own `earliest` has reached
what is written, and so not before T0 + L. This holds however far the two corrected clocks are apart, as long
as T lies where each of them says. One answer with a wrong Date does not change that: others have to confirm
it, and until then the span reaches from the one time to the other. The price is that a lease that nobody
gives back is taken over late, by as much as A's and B's spans together. A span is about a second at first,
since a Date is cut to the second, and shrinks with every answer to about the time that an answer takes.
"""

from typing import NamedTuple

from semel.aws.time import ServiceTime
from semel.core.clock import Clock
from semel.errors import InvalidOption

# The machine's two clocks drift apart by less than this between two answers, unless the machine slept or
# somebody set its clock.
STEP = 1.0


class ClockReading(NamedTuple):
    """What the server's clock has certainly reached, and what it has certainly not passed."""

    earliest: float
    latest: float


class Timekeeper:
    """Reads the corrected clock, or the one that is imposed."""

    def __init__(self, time: ServiceTime, clock: Clock, margin: float | None = None) -> None:
        if margin is not None and not 0 <= margin < float("inf"):
            raise InvalidOption(f"margin={margin!r}: it is a number of seconds, such as 0.5")
        self._time = time
        self._clock = clock
        self._margin = margin
        self._apart: float | None = None

    def read(self) -> ClockReading:
        """The time as far as it can be told."""
        imposed = self._clock.imposed()
        if imposed is not None:
            return ClockReading(imposed, imposed)
        lowest, highest = self._time.span()
        if self._margin is None:
            return ClockReading(lowest, highest)
        now = self._clock.now()
        own = ClockReading(now - self._margin, now + self._margin)
        if not self._time.known:
            return own
        both = ClockReading(max(lowest, own.earliest), min(highest, own.latest))
        return both if both.earliest <= both.latest else ClockReading(lowest, highest)

    def doubtful(self) -> bool:
        """Whether a reading should come first: no answer has told the time yet, or not since a clock jumped.

        A machine that slept would go on from where it stopped, and write a lease that is over already. An
        answer that contradicts those before it has to be confirmed by others.
        """
        if self._apart is None:
            return self._clock.imposed() is None
        return self._time.contradicted or abs(self._now_apart() - self._apart) > STEP

    def settle(self) -> None:
        """An answer has just come, and told the time if it ever does."""
        if self._clock.imposed() is None:
            self._apart = self._now_apart()

    def _now_apart(self) -> float:
        return self._clock.now() - self._clock.monotonic()
