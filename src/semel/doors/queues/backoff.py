"""How long to leave alone what fails: longer each time."""

import random
from collections.abc import Callable
from math import inf
from typing import Final


def doubling(longest: float, first: float = 1.0) -> Callable[[int], float]:
    """How long something stays away that was tried so many times: doubled each time, up to the longest."""
    return lambda tries: float(min(longest, first * 2 ** min(tries - 1, 20)))


# A message that is not handled now is held for so long at most before it is tried, or given back to a broker
# that would deliver it again at once.
LONGEST_HOLD = 30.0
default_backoff: Final = doubling(LONGEST_HOLD)

# How long to leave a broker alone whose connection is lost: doubled each time, up to this, and spread.
LONGEST_REST = 30.0
FIRST_REST = 0.2


class ExponentialBackoff:
    """How long to leave somebody alone who does not answer.

    `spread` shortens each pause by up to that part of it, so that many who wait do not come back together.
    """

    def __init__(self, longest: float = 60.0, *, first: float = 1.0, spread: float = 0.0) -> None:
        self.failures: int = 0
        self.until: float = -inf
        self._seconds = doubling(longest, first)
        self._spread = spread

    def failed(self, now: float) -> float:
        """It failed once more; several that fail at the same time are one failure."""
        if now < self.until:
            return self.until - now
        self.failures += 1
        seconds = self._seconds(self.failures) * random.uniform(1.0 - self._spread, 1.0)  # noqa: S311
        self.until = now + seconds
        return seconds

    def reset(self) -> None:
        """It answers."""
        self.failures, self.until = 0, -inf


def broker_backoff() -> ExponentialBackoff:
    """How long to leave a broker alone whose connection is lost."""
    return ExponentialBackoff(LONGEST_REST, first=FIRST_REST, spread=0.5)
