"""Where transactions are refused again and again, as by a cap that is full.

There another try would most likely be in vain, and each leaves an error in the server's log: so one looks
first.
"""

from collections.abc import Hashable, Iterable

# One refusal may be half of a race, and the next try succeed; two are most likely followed by a third.
ENOUGH = 2
# Then all are forgotten, and found out anew.
MOST = 1000


class Refusers:
    """Places, and how many transactions in a row each has refused."""

    def __init__(self) -> None:
        self._refused: dict[Hashable, int] = {}

    def expected(self, places: Iterable[Hashable]) -> bool:
        """Whether one of them will most likely refuse."""
        refused = self._refused
        return bool(refused) and any(refused.get(place, 0) >= ENOUGH for place in places)

    def note(self, places: Iterable[Hashable], refusals: Iterable[object]) -> None:
        """Remember which of them have refused; None stands for one that has not."""
        for place, refusal in zip(places, refusals, strict=True):
            if refusal is None:
                self._refused.pop(place, None)
            else:
                self._refused[place] = self._refused.get(place, 0) + 1
        if len(self._refused) > MOST:
            self._refused.clear()

    def relent(self, places: Iterable[Hashable]) -> None:
        """Remember that none of them has refused."""
        if self._refused:
            for place in places:
                self._refused.pop(place, None)
