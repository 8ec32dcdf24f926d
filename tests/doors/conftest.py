"""What the tests of a door stand on, where they need no store of their own."""

from collections.abc import Iterator

import pytest

import semel


@pytest.fixture
def s() -> Iterator[semel.Semel]:
    with semel.connect("memory:") as s:
        yield s
