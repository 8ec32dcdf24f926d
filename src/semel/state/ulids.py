"""ULIDs made from the time of an event: they sort by it, and within a millisecond as they were made."""

import os
from collections import OrderedDict
from typing import Final

from semel.core.runtime import FORKING
from semel.core.threads import SignalSafeLock

RANDOM_BITS = 80
LATEST = 2**48 - 1
# An id is 26 letters of five bits each, written two at a time.
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PAIRS = [first + second for first in LETTERS for second in LETTERS]
TENS = range(120, -1, -10)
# So many milliseconds are remembered in which an id was made: events come roughly in order.
REMEMBERED = 4096


class Ulids:
    """Makes ids. Two for the same millisecond are in order if the same object makes them."""

    def __init__(self) -> None:
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """Have made nothing: a child that counted on would make the ids that its parent makes."""
        self._lock = SignalSafeLock()
        self._last: OrderedDict[int, int] = OrderedDict()

    def make(self, at: float) -> str:
        """An id for an event of this moment."""
        moment = milliseconds(at)
        with self._lock:
            last = self._last.get(moment)
            # One bit less than there is room for: counting on from there does not run over.
            number = last + 1 if last is not None else int.from_bytes(os.urandom(10)) >> 1
            self._last[moment] = number
            if len(self._last) > REMEMBERED:
                self._last.popitem(last=False)
        return text(moment, number)


ULIDS: Final = Ulids()
"""The one source of a process: its ids are in order, whichever mailbox or journal they are for."""


def milliseconds(at: float) -> int:
    """A moment in whole milliseconds since the epoch, within what an id can hold."""
    return min(max(int(at * 1000 + 0.5), 0), LATEST)


def text(moment: int, number: int) -> str:
    """The id of a millisecond and a number under 2**80."""
    bits = moment << RANDOM_BITS | number
    return "".join([PAIRS[bits >> place & 1023] for place in TENS])


def first(at: float) -> str:
    """Where ids of this moment begin."""
    return text(milliseconds(at), 0)


def last(at: float) -> str:
    """Where ids of this moment end."""
    return text(milliseconds(at), 2**RANDOM_BITS - 1)
