"""The till as an agent sees it, by MCP."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.client import Client
from till import create_server

import semel


@pytest.fixture
def s() -> Iterator[semel.Semel]:
    with semel.connect("memory:") as s:
        yield s


def call(s: semel.Semel, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    async def ask() -> list[str]:
        async with Client(create_server(s)) as client:
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
        return [str(getattr(answer.content[0], "text", "")) for answer in answers]

    return asyncio.run(ask())


def entries(s: semel.Semel) -> list[Any]:
    return [entry.body for entry in s.journal.list("till").entries]


def test_an_agent_that_lost_the_receipt_gets_the_same_one(s: semel.Semel) -> None:
    order = {"order_id": "o-1", "cents": 4200}
    assert call(s, ("charge", order), ("charge", order)) == ["receipt for o-1: 4200 cents"] * 2
    assert entries(s) == [{"charge": "o-1", "cents": 4200}]


def test_another_amount_is_refused_in_words_and_nothing_is_charged(s: semel.Semel) -> None:
    first, second = ({"order_id": "o-1", "cents": cents} for cents in (4200, 9900))
    assert "with other arguments" in call(s, ("charge", first), ("charge", second))[1]
    assert len(entries(s)) == 1


def test_a_charge_and_its_refund_are_two_things(s: semel.Semel) -> None:
    call(s, ("charge", {"order_id": "o-1", "cents": 4200}), ("refund", {"order_id": "o-1"}))
    assert len(entries(s)) == 2
