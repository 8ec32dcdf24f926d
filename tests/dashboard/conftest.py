"""A ledger with a clock of its own, and who comes to look at it."""

import pytest

import semel
from semel.testing import FakeClock
from tests.dashboard.kit import browser_of


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def s(clock):
    with semel.connect("memory:", clock=clock, worker="web-1") as s:
        yield s


@pytest.fixture
def stranger(s):
    return browser_of(s)


@pytest.fixture
def viewer(s):
    return browser_of(s).sign_in("vic")


@pytest.fixture
def operator(s):
    return browser_of(s).sign_in("ann")
