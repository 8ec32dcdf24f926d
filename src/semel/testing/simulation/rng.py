"""Every choice in a simulated world, drawn from its seed.

Only `Random.random` is used: it gives the same numbers on every version of Python.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class SeededRandom:
    """A seed's luck."""

    def __init__(self, seed: int) -> None:
        self.random: Callable[[], float] = Random(seed).random

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random() < probability

    def between(self, low: float, high: float) -> float:
        """A number in this range."""
        return low + (high - low) * self.random()

    def upto(self, low: int, high: int) -> int:
        """A whole number in this range, both ends included."""
        return low + int(self.random() * (high - low + 1))

    def among(self, choices: Sequence[T]) -> T:
        """One of these."""
        return choices[int(self.random() * len(choices))]

    def weighed(self, choices: Sequence[tuple[float, T]]) -> T:
        """One of these, each as likely as its weight says; the weights add up to 1."""
        left = self.random()
        for weight, choice in choices:
            left -= weight
            if left < 0:
                return choice
        return choices[-1][1]
