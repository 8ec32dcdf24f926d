"""Whether to read before a write that is probably refused: a refused write costs as much as one that is made.

A claim sent outright costs one write unit, W, won or lost. A consistent reading first costs one read unit, R,
and then W only if nothing was there: with a share s of refusals, R + (1 - s) W. That is less than W where
s > R / W. On-demand prices have R : W at 1 : 5 in every region, so reading first pays above one refusal in
five; below, it costs more, and every claim that is won takes a second round trip.
"""

from typing import Literal, TypeAlias

from semel.core.commands import Condition, holds
from semel.errors import InvalidOption

ReadFirst: TypeAlias = Literal["no", "yes", "auto"]

# Dollars for a million units, on demand; only their ratio counts, and it is the same everywhere.
READ_UNIT = 0.125
WRITE_UNIT = 0.625
BREAK_EVEN = READ_UNIT / WRITE_UNIT

# What the latest answer counts for: about the last fifty decide.
WEIGHT = 0.04


class RefusalRate:
    """Remembers how often claims are refused."""

    def __init__(self, read_first: ReadFirst = "no") -> None:
        if read_first not in ("no", "yes", "auto"):
            raise InvalidOption(f"read_first={read_first!r}: it is one of no, yes, auto")
        self._word = read_first
        self.share: float = 0.0

    @property
    def reads_first(self) -> bool:
        """Whether to read first just now."""
        return self._word == "yes" or self.share > BREAK_EVEN

    def counts(self, condition: Condition | None) -> bool:
        """Whether a write under this condition asks for absence, and so counts here."""
        return self._word != "no" and condition is not None and holds(condition, None, 0.0)

    def learn(self, *, refused: bool) -> None:
        """Take note of how a claim went."""
        if self._word == "auto":
            self.share += WEIGHT * (refused - self.share)
