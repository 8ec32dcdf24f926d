"""What a month of events costs: the ledger's own requests, sized as DynamoDB sizes them, at dated prices."""

from datetime import date

import pytest

from semel.core.policy import DAY, LEASE
from semel.errors import InvalidOption
from semel.provision.cost import (
    GIGABYTE,
    OVERHEAD,
    Life,
    Units,
    Workload,
    estimate,
    index_units,
    units,
)
from semel.stores.dynamodb.items import value_size
from semel.stores.dynamodb.service import PRICES

pytestmark = pytest.mark.seed("A9")

MONTH_OF_TEN_MILLION = Workload(events=10_000_000, duplicates=0.2)


def lines(workload, region="us-east-1"):
    return {line.what: line for line in estimate(workload, region).lines}


# Units


def test_a_write_is_billed_by_the_started_kilobyte_and_a_read_by_the_started_four():
    assert [units(size, 1024) for size in (0, 1, 1024, 1025, 2049)] == [1, 1, 1, 2, 3]
    assert [units(size, 4096) for size in (0, 4096, 4097)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"S": "abc"}, 3),
        ({"S": "é"}, 2),
        ({"B": "AAAA"}, 3),
        ({"B": "AA=="}, 1),
        ({"N": "0"}, 1),
        ({"N": "7"}, 2),
        ({"N": "-1200"}, 2),
        ({"N": "1790000000.123457"}, 9),
    ],
)
def test_a_value_has_the_size_that_dynamodb_counts(value, size):
    """Text in UTF-8, bytes as they are, a number half a byte a significant digit and one more."""
    assert value_size(value) == size


# What one event takes


def test_a_first_event_takes_two_writes_and_a_duplicate_one():
    life = Life(Workload(events=1, key_bytes=60, result_bytes=200))
    assert (life.claim, life.complete, life.refused) == (Units(writes=1), Units(writes=1), Units(writes=1))
    assert (life.look, life.miss) == (Units(reads=1), Units(reads=1))


def test_a_larger_result_makes_the_completion_the_refusal_and_the_reading_dearer():
    life = Life(Workload(events=1, result_bytes=5000))
    assert life.claim == Units(writes=1), "the result is not there yet"
    assert life.complete == life.refused == Units(writes=6)
    assert life.look == Units(reads=2)


def test_the_size_of_a_record_follows_its_key_and_its_result():
    sizes = [
        Life(Workload(events=1, key_bytes=key, result_bytes=result)).bytes
        for key, result in ((60, 500), (61, 500), (60, 501))
    ]
    assert sizes[1] == sizes[2] == sizes[0] + 1


def test_an_event_that_names_a_person_costs_a_write_in_the_index_where_that_changes():
    """Its end moves with each write, and the index has that; one that names nobody costs nothing more."""
    nobody, somebody = (Life(Workload(events=1, subjects=named)) for named in (False, True))
    assert nobody.index_bytes == 0
    assert (nobody.claim, nobody.renew, nobody.complete) == (Units(writes=1),) * 3
    assert (somebody.claim, somebody.renew, somebody.complete) == (Units(writes=2),) * 3
    assert (somebody.refused, somebody.look) == (Units(writes=1), Units(reads=1))
    assert somebody.index_bytes > OVERHEAD


def test_an_index_is_billed_for_what_it_sees_of_a_change():
    before = {"id": "prod//k", "expires_at": 1.0, "status": "A"}
    named = before | {"subject": "s"}
    assert index_units(None, before) == index_units(before, before | {"expires_at": 2.0}) == 0
    assert index_units(None, named) == index_units(named, None) == index_units(named, before) == 1
    assert index_units(named, named | {"expires_at": 2.0}) == 1
    assert index_units(named, named | {"status": "B"}) == 0, "it does not carry that"


# A month


def test_a_month_of_persons_costs_their_index_in_writes_and_in_storage():
    plain, named = (lines(Workload(events=1_000_000, subjects=each)) for each in (False, True))
    assert named["claim"].dollars == 2 * plain["claim"].dollars
    assert named["storage"].dollars > plain["storage"].dollars
    assert "index of persons" in named["claim"].note + named["storage"].note
    assert "index" not in "".join(line.note for line in plain.values())


def test_the_requests_of_a_month_are_those_of_first_events_and_duplicates():
    found = lines(MONTH_OF_TEN_MILLION)
    assert {what: line.requests for what, line in found.items() if line.requests} == {
        "claim": 8_000_000,
        "complete": 8_000_000,
        "replay": 2_000_000,
        "expire": 8_000_000,
    }


def test_the_dollars_are_units_times_prices():
    found = estimate(MONTH_OF_TEN_MILLION)
    priced = {line.what: line.dollars for line in found.lines}
    assert priced["claim"] == priced["complete"] == pytest.approx(8 * 0.625)
    assert priced["replay"] == pytest.approx(2 * 0.625)
    assert priced["expire"] == 0, "TTL deletes for nothing"
    assert found.dollars == pytest.approx(sum(priced.values()))
    assert found.per_million(found.dollars) == pytest.approx(found.dollars / 10)


def test_reading_first_trades_a_duplicates_write_for_everybodys_read():
    found = lines(Workload(events=10_000_000, duplicates=0.2, read_first=True))
    assert found["look"].requests == 8_000_000
    assert found["replay"].requests == 2_000_000
    assert found["replay"].each == Units(reads=1)
    assert found["look"].dollars + found["replay"].dollars == pytest.approx(10 * 0.125)
    assert found["claim"].requests == found["complete"].requests == 8_000_000


@pytest.mark.parametrize(("duplicates", "pays"), [(0.1, False), (0.3, True)])
def test_reading_first_pays_where_more_than_a_fifth_are_duplicates(duplicates, pays):
    """A read costs a fifth of a write, and every event pays for one."""
    claimed = estimate(Workload(events=1_000_000, duplicates=duplicates)).dollars
    read = estimate(Workload(events=1_000_000, duplicates=duplicates, read_first=True)).dollars
    assert (read < claimed) is pays


def test_work_that_outlasts_a_third_of_its_lease_pays_for_renewals():
    assert lines(Workload(events=1000, seconds=LEASE / 3 - 0.1))["renew"].requests == 0
    assert lines(Workload(events=1000, seconds=45))["renew"].requests == 4000


def test_storage_is_paid_for_as_long_as_records_live():
    one, thirty = (lines(Workload(events=1_000_000, ttl=days * DAY))["storage"] for days in (1, 30))
    assert thirty.dollars == pytest.approx(30 * one.dollars)
    size = Life(Workload(events=1)).bytes + OVERHEAD
    assert thirty.dollars == pytest.approx(1_000_000 * size / GIGABYTE * 0.25)
    half = lines(Workload(events=1_000_000, ttl=30 * DAY, duplicates=0.5))["storage"]
    assert half.dollars == pytest.approx(thirty.dollars / 2), "a duplicate leaves no record of its own"


def test_the_price_of_the_seeds_own_example_has_halved_since_it_was_written():
    """A million writes cost $1.25 when the service was designed, and half of it since late 2024."""
    assert PRICES["us-east-1"].writes == 1.25 / 2
    assert PRICES["us-east-1"].reads == 0.25 / 2


@pytest.mark.parametrize("region", PRICES)
def test_every_price_is_dated_and_says_where_it_stands(region):
    prices = PRICES[region]
    assert prices.published >= date(2026, 8, 1)
    assert f"/AmazonDynamoDB/current/{region}/" in prices.source
    assert 0 < prices.reads < prices.storage < prices.writes


@pytest.mark.parametrize(
    "wrong",
    [
        {"events": 0},
        {"duplicates": 1.0},
        {"duplicates": -0.1},
        {"key_bytes": 0},
        {"result_bytes": 1},
        {"ttl": LEASE},
    ],
)
def test_a_workload_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidOption):
        Workload(**({"events": 1} | wrong))


def test_a_region_without_prices_is_refused_with_the_known_ones():
    with pytest.raises(InvalidOption, match="no prices are known for 'mars-1'; known are us-east-1"):
        estimate(MONTH_OF_TEN_MILLION, "mars-1")
