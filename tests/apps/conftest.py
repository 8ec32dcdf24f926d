"""What the tests of an application stand on, where they need no store of their own."""

from collections.abc import Iterator

import pytest

import semel
from semel.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s(clock: FakeClock) -> Iterator[semel.Semel]:
    with semel.connect("memory:", clock=clock) as s:
        yield s
