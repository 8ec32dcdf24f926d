"""The server's time without a request: that of the last response, plus the time passed since."""

from typing import Any

from semel.core.clock import Clock
from semel.core.commands import Found, Many

# So long two clocks drift apart by less than an answer is late.
FRESH_SECONDS = 60.0


class ServerTime:
    """What the server's clock says now, as far as its answers tell."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # How far its clock is ahead of ours that never jumps, and when that was heard.
        self._sample = (float("-inf"), float("-inf"))

    def observe(self, reply: Any) -> None:
        """Note the time of a reply that has just come.

        It is the time when its statement began, which may then have waited for a lock. So of those that were
        heard lately the one counts that was least late.
        """
        if type(reply) is Many:
            if not reply.replies:
                return
            reply = reply.replies[-1]
        came = self._clock.monotonic()
        sample = (reply.now - came, came)
        if sample > self._sample or came - self._sample[1] > FRESH_SECONDS:
            self._sample = sample

    def known(self) -> Found | None:
        """The time; None where the server has to be asked."""
        imposed = self._clock.imposed()
        if imposed is not None:
            return Found(imposed, None)
        (ahead, heard), monotonic = self._sample, self._clock.monotonic()
        return Found(monotonic + ahead, None) if monotonic - heard <= FRESH_SECONDS else None
