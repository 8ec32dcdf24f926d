"""A doubt never ends in silence, on any store: it stays until somebody settles it."""

from contextlib import closing

import pytest

import semel
from semel.testing import FakeClock
from tests.places import NAMES, open_place

pytestmark = pytest.mark.situation(44)

LONG = 10 * 365 * 86400


@pytest.fixture(params=NAMES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def s(place, clock):
    with closing(place.open(clock)) as store:
        yield semel.Semel(store, env=place.env, clock=clock)


@pytest.mark.parametrize("looked", [True, False], ids=["held", "not looked at"])
def test_a_payment_that_was_held_on_friday_is_held_on_monday(s, clock, looked):
    """And years later; it is not run again as if nothing had been."""
    runs = []

    @s.once("pay:{order}", on_lapsed="hold", lease=30, ttl=3600, heartbeat=False)
    def pay(order: str) -> str:
        runs.append(order)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pay("o-1")
    clock.advance(60)
    if looked:
        with pytest.raises(semel.OutcomeUnknown):
            pay("o-1")
    for later in (3 * 86400, LONG):
        clock.advance(later)
        with pytest.raises(semel.OutcomeUnknown):
            pay("o-1")
    [doubt] = s.ledger.doubts().records
    assert (doubt.key, doubt.attempt) == ("pay:o-1", 1)
    s.ledger.resolve("pay:o-1", semel.Happened("paid"))
    assert pay("o-1") == "paid"
    assert s.ledger.doubts().records == ()
    assert runs == ["o-1"]


def test_what_a_resolver_cannot_tell_stays(s, clock):
    @s.once("pay:{order}", on_lapsed="resolve", resolver=lambda order: semel.Undecided(), lease=30, ttl=3600)
    def pay(order: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pay("o-1")
    with pytest.raises(semel.OutcomeUnknown):
        pay("o-1")
    clock.advance(LONG)
    with pytest.raises(semel.OutcomeUnknown):
        pay("o-1")


def test_a_janitor_leaves_doubts_alone(place, s, clock):
    claim = s.ledger.claim("pay:o-1", lease=30, ttl=60, on_lapsed="hold")
    assert isinstance(claim, semel.Claimed)
    s.ledger.check_and_set("seen", ttl=60)
    clock.advance(LONG)
    if hasattr(s.store, "reap"):
        s.store.reap()
    assert s.ledger.get("seen") is None
    assert [one.key for one in s.ledger.doubts().records] == ["pay:o-1"]
