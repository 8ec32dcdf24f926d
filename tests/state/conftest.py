"""Each rule about state on every store, sync and async, with a clock that the test moves."""

import asyncio
import uuid

import pytest

import semel
from semel.state.switches import KEY
from semel.testing import FakeClock
from tests.places import NAMES, open_place

SECRET = b"a secret of the tests, 32 bytes."


@pytest.fixture(params=NAMES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path)


@pytest.fixture(scope="session", params=NAMES)
def house(request, tmp_path_factory):
    """A place that many tests share, since making its tables takes longer than most of them."""
    return open_place(request.param, request, tmp_path_factory.mktemp("house"))


@pytest.fixture
def room(house):
    """What a test has of it for itself; `def place(room): return room` is all that a module needs."""
    return Room(house)


@pytest.fixture
def clock():
    return FakeClock()


class Room:
    """A scope of its own in a shared place, where no switch has been turned yet; memory is not shared."""

    def __init__(self, house):
        self._house = house
        self.scope = f"r{uuid.uuid4().hex[:12]}"
        if house.name == "memory":
            house.forget()
        else:
            with semel.Semel(house.open(), env=house.env) as s:
                s.documents.delete(KEY)

    def __getattr__(self, name):
        return getattr(self._house, name)


class Sync:
    """Does what a test asks for with `s`."""

    def __init__(self, store, **options):
        self.s = semel.Semel(store, **options)

    def __call__(self, function):
        return function(self.s)

    def together(self, functions):
        """Several at once; their results, or their errors, in order."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(functions)) as pool:
            return list(pool.map(lambda function: outcome(lambda: function(self.s)), functions))

    def transact(self, gather):
        """One transaction, gathered by this function; what it gives, after the end of the block."""
        with self.s.transaction() as tx:
            gathered = gather(tx)
        return gathered  # noqa: RET504 - after the block, which may refuse

    def close(self):
        self.s.close()


class Async(Sync):
    """Does the same with `s.aio`, in an event loop."""

    def __init__(self, store, **options):
        super().__init__(store, **options)
        self._loop = asyncio.Runner()

    def __call__(self, function):
        async def run():
            value = function(self.s.aio)
            return await value if hasattr(value, "__await__") else value

        return self._loop.run(run())

    def together(self, functions):
        async def one(function):
            try:
                return await function(self.s.aio)
            except Exception as error:  # noqa: BLE001 - for the test to look at
                return error

        async def run():
            return list(await asyncio.gather(*map(one, functions)))

        return self._loop.run(run())

    def transact(self, gather):
        async def run():
            async with self.s.aio.transaction() as tx:
                return gather(tx)

        return self._loop.run(run())

    def close(self):
        self._loop.run(self.s.aio.close())
        self._loop.close()


def outcome(work):
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - for the test to look at
        return error


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def way(request):
    """What makes a `do`, for tests that open stores of their own."""
    return request.param


@pytest.fixture
def do(way, place, clock):
    """`do(lambda s: s.documents.get("key"))`, through `s` and through `s.aio` in turn."""
    scope = getattr(place, "scope", "")
    way = way(place.open(clock), env=place.env, scope=scope, clock=clock, secret=SECRET)
    yield way
    way.close()
