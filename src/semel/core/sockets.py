"""Timeouts of sockets, and whether a socket has data to read."""

import select
from collections.abc import Callable
from typing import Any

from semel.errors import InvalidOption

# How long a connection, and each answer, is waited for. A server that is well answers within milliseconds,
# and one on a machine with far too much to do within seconds: who is silent for so long will not answer.
ANSWER_SECONDS = 10.0
LONGEST_SECONDS = 3600.0


def timeout_of(given: str | None) -> float:
    """The limit that `timeout=` in a URL sets."""
    if given is None:
        return ANSWER_SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_SECONDS:
        raise InvalidOption(
            f"timeout={given!r}: it is how many seconds a connection, or an answer, is waited for, such as 10"
        )
    return seconds


def read_poller(connection: Any) -> Callable[..., Any]:
    """A function that tells whether anything, be it the end, is to be read within so many milliseconds."""
    if not hasattr(select, "poll"):  # Windows, where select() does as well
        return lambda milliseconds=0: select.select([connection], [], [], milliseconds / 1000)[0]
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return lambda milliseconds=0: poll.poll(milliseconds)
