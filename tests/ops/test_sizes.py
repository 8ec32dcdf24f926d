"""How large a ledger is, as each store tells it, without reading it to its end."""

import asyncio

import pytest

from semel.model import COUNTED
from semel.stores import sql
from semel.tables import LEDGER


@pytest.fixture
def filled(s, clock):
    for number in range(3):
        s.ledger.complete(s.ledger.claim(f"order:{number}", ttl=3600), number)
    s.ledger.fail(s.ledger.claim("order:3", ttl=3600), ValueError("no"))
    s.ledger.claim("order:4", lease=1, ttl=2)
    clock.advance(10)
    return s


def test_each_store_tells_its_size_as_it_can(filled, house):
    sizes = {size.table: size for size in filled.ops.sizes()}
    assert all(size.how for size in sizes.values())
    if house.name in ("memory", "sqlite", "postgres"):
        ledger = sizes["ledger"]
        assert ledger.items >= 5
        assert ledger.by_status["COMPLETED"] >= 3
        assert ledger.by_status["FAILED"] >= 1
        assert ledger.expired >= 1
        assert (ledger.bytes is None) is (house.name != "postgres")
        assert (house.name == "sqlite") is ("" in sizes and sizes[""].bytes > 0)
    elif "" in sizes:  # Redis has no figure of a table
        assert sizes[""].items >= 4
        assert sizes[""].bytes > 0
    else:
        # Amazon's count is hours behind, and an emulator's may be so too.
        assert {"doubts", "failures", "subject"} <= sizes["ledger"].indexes.keys()


def test_the_size_is_told_to_tasks_too(filled):
    async def ask():
        found = await filled.aio.ops.sizes()
        await filled.aio.close()
        return found

    assert [size.table for size in asyncio.run(ask())]


def test_no_count_goes_beyond_its_bound():
    statements = sql.countings('"semel_ledger"', LEDGER, "0").values()
    assert len(statements) == 7
    assert all(statement.endswith(f"LIMIT {COUNTED}) counted") for statement in statements)
