"""Spin: what searches the model of the ledger, and the compiler that it needs."""

from collections.abc import Iterator
from contextlib import contextmanager

from proof.model.check import Absent, need
from tests.servers.running import Unavailable


def binary() -> str:
    """Where both are."""
    try:
        return need("spin", "gcc")
    except Absent as absence:
        raise Unavailable(str(absence)) from absence


@contextmanager
def spin() -> Iterator[str]:
    yield binary()
