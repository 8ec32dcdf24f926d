"""What a test does without its server: it is skipped on a laptop, and fails in CI."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import pytest

from tests.servers.running import Unavailable

T = TypeVar("T")


@contextmanager
def served(start: Callable[[], AbstractContextManager[T]], *, required: bool = True) -> Iterator[T]:
    """The server; or, where it cannot be had, the verdict of the test that asked for it."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(start())
        except Unavailable as absence:
            reason = str(absence)
        else:
            yield server
            return
    if required and os.environ.get("CI"):
        pytest.fail(f"CI must have this server; {reason}", pytrace=False)
    pytest.skip(reason)
