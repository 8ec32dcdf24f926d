"""What operators ask and do, on every store."""

import uuid

import pytest

import semel
from semel.testing import FakeClock
from tests.places import NAMES, open_place


@pytest.fixture(scope="session", params=NAMES)
def house(request, tmp_path_factory):
    return open_place(request.param, request, tmp_path_factory.mktemp("ops"))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def s(house, clock):
    """A ledger in a scope of its own, whose workers are called by one name."""
    if house.name == "memory":
        house.forget()
    scope = f"o{uuid.uuid4().hex[:12]}"
    store = house.open(clock)
    with semel.Semel(
        store, env=house.env, scope=scope, clock=clock, worker="worker-1", secret=b"s" * 32
    ) as s:
        yield s


# Between two stores


@pytest.fixture
def env():
    return f"e{uuid.uuid4().hex[:12]}"


@pytest.fixture
def open_one(request, tmp_path_factory):
    """A store of a kind, empty for the environment of this test."""
    opened = []

    def open_one(name, clock=None):
        store = open_place(name, request, tmp_path_factory.mktemp("moved")).open(clock)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
