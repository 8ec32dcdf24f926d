"""Whether a socket has something to say, asked without reading it."""

import select
from collections.abc import Callable
from typing import Any


def ear(line: Any) -> Callable[..., Any]:
    """A function that tells whether anything, be it the end, is to be read within so many milliseconds."""
    if not hasattr(select, "poll"):  # Windows, where select() does as well
        return lambda milliseconds=0: select.select([line], [], [], milliseconds / 1000)[0]
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return lambda milliseconds=0: poll.poll(milliseconds)
