"""Tokens: random names, each for one attempt or one write."""

import os
from collections import deque

# Randomness in stock: asking the system for every token takes longer than claiming a key in memory does.
_stock: deque[str] = deque()


def random_token() -> str:
    """A name for one attempt that nobody else has or can guess; never made from the time."""
    try:
        return _stock.popleft()
    except IndexError:
        first, *others = os.urandom(16 * 256).hex(" ", 16).split(" ")
        _stock.extend(others)
        return first


def forget_tokens() -> None:
    """Draw new randomness from now on: for every copy of a process, which must not have the same tokens."""
    _stock.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_tokens)
