"""Responses in pieces, for frameworks that are handed a response and send it later."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from semel.core.running import CURRENT, Run
from semel.doors.http.exchange import Exchange
from semel.doors.http.responses import Pairs


def begun(
    exchange: Exchange, response: object, status: int, headers: Pairs, chunks: Iterable[bytes]
) -> Iterator[bytes]:
    """The pieces of `Exchange.stream`; closing them ends the run, even if nobody has asked for the first.

    The run is the current one while a piece is made, and not in between: who knows what a server does then.
    """
    pieces = _pieces(exchange.run, exchange.stream(status, headers, chunks))
    exchange.leave()
    next(pieces)
    # A framework may drop a response that it never sends. Generators alone would die in any order, and the
    # pieces find nothing left to make.
    weakref.finalize(response, pieces.close).atexit = False  # type: ignore[attr-defined]  # a generator
    return pieces


def _pieces(run: Run | None, stream: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield b""
        while (piece := _within(run, next, stream, None)) is not None:
            yield piece
    except GeneratorExit:
        _within(run, deque, stream, 0)
        raise


def _within(run: Run | None, function: Callable[..., Any], *args: Any) -> Any:
    outer = CURRENT.get()
    CURRENT.set(run)
    try:
        return function(*args)
    finally:
        CURRENT.set(outer)
