"""Tools of an MCP server, called by a client of the same process."""

import asyncio
import warnings

import pytest
from mcp.client import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

import semel
from semel.doors.mcp import explained, tool
from semel.testing import Faulty


@pytest.fixture
def s():
    return semel.connect("memory:")


@pytest.fixture
def server():
    return MCPServer("till")


def told(server, name, *many, **arguments):
    """What an agent reads of each of its calls."""

    async def calls():
        async with Client(server) as client:
            answers = [await client.call_tool(name, each) for each in many or (arguments,)]
        return [("error: " if one.is_error else "") + one.content[0].text for one in answers]

    return asyncio.run(calls())


def listed(server):
    async def tools():
        async with Client(server) as client:
            return (await client.list_tools()).tools

    return asyncio.run(tools())


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_of_one_order_charge_it_once(s, server, is_async):
    charged = []

    def charge(order_id: str, cents: int) -> str:
        """Charge an order."""
        charged.append(order_id)
        return f"receipt {len(charged)}"

    async def acharge(order_id: str, cents: int) -> str:
        """Charge an order."""
        return charge(order_id, cents)

    function = acharge if is_async else charge
    tool(server, s, "charge:{order_id}")(function)
    call = {"order_id": "o-1", "cents": 5}
    answers = told(server, function.__name__, call, call, {"order_id": "o-2", "cents": 5})
    assert answers == ["receipt 1", "receipt 1", "receipt 2"]
    assert charged == ["o-1", "o-2"]


def test_without_a_template_equal_arguments_are_one_call(s, server):
    ran = []

    @tool(server, s)
    def charge(order_id: str, cents: int = 5) -> str:
        ran.append((order_id, cents))
        return str(len(ran))

    assert told(server, "charge", {"order_id": "o"}, {"order_id": "o", "cents": 5}) == ["1", "1"]
    assert told(server, "charge", order_id="o", cents=6) == ["2"]


def test_clients_are_told_that_a_tool_may_be_called_again(s, server):
    hints = ToolAnnotations(destructive_hint=False)

    @tool(server, s, "charge:{order_id}", registered={"title": "Charge an order", "annotations": hints})
    def charge(order_id: str) -> str:
        """Charge it."""
        return order_id

    [listing] = listed(server)
    assert (listing.name, listing.title, listing.description) == ("charge", "Charge an order", "Charge it.")
    assert (listing.annotations.idempotent_hint, listing.annotations.destructive_hint) == (True, False)
    assert list(listing.input_schema["properties"]) == ["order_id"]


def test_what_mcp_injects_is_no_part_of_the_payload(s, server):
    @tool(server, s, "charge:{order_id}")
    async def charge(order_id: str, ctx: Context) -> str:
        return f"{order_id} {ctx.request_id}"

    first, again = told(server, "charge", {"order_id": "o-1"}, {"order_id": "o-1"})
    assert first == again


def charging(server, s, **options):
    @tool(server, s, "charge:{order_id}", **options)
    def charge(order_id: str, cents: int = 5) -> str:
        if cents < 0:
            raise ValueError("an amount is not negative")
        return "charged"

    return charge


def test_another_amount_is_refused_in_words_that_an_agent_can_act_on(s, server):
    charging(server, s)
    _, refused = told(server, "charge", {"order_id": "o-1"}, {"order_id": "o-1", "cents": 9})
    assert "done before, with other arguments, and nothing was done now" in refused


def test_a_busy_key_tells_when_to_call_again(s, server):
    charging(server, s, on_busy="raise")
    s.ledger.claim("charge:o-1", lease=30)
    [refused] = told(server, "charge", order_id="o-1")
    assert "Call again in 30 seconds with the same arguments, and do not try another way" in refused


def test_a_failure_that_was_kept_is_told_with_its_words(s, server):
    charging(server, s, on_error={ValueError: "keep"})
    call = {"order_id": "o-1", "cents": -1}
    _, again = told(server, "charge", call, call)
    assert "failed for good, and is not tried again: an amount is not negative" in again


def test_a_doubt_is_nothing_for_an_agent_to_settle(s, server):
    charging(server, s)
    claim = s.ledger.claim("charge:o-1")
    s.ledger.doubt(claim)
    [refused] = told(server, "charge", order_id="o-1")
    assert "a person has to find out. Do not do it again" in refused


def test_arguments_that_make_no_key_are_told(s, server):
    charging(server, s)
    [refused] = told(server, "charge", order_id="")
    assert "These arguments cannot be used" in refused


def test_a_store_that_is_down_is_told_as_something_that_passes():
    store = Faulty(semel.connect("memory:").store)
    s, server = semel.connect(store=store), MCPServer("till")
    charging(server, s)
    store.refuse()
    [refused] = told(server, "charge", order_id="o-1")
    assert "Call again in a minute with the same arguments" in refused


def test_explained_lets_other_errors_pass():
    with pytest.raises(KeyError), explained():
        raise KeyError("order")
    with pytest.raises(ToolError, match="These arguments cannot be used"), explained():
        raise semel.InvalidKey("it is empty")


@pytest.mark.parametrize("template", ["charge:{call_id}", "charge:{order}:{meta.requestId}", None])
def test_a_key_made_of_a_calls_own_id_is_warned_of(s, server, template):
    def charge(order: str, call_id: str, meta: dict[str, str]) -> None: ...

    with pytest.warns(UserWarning, match="an agent that calls again has a new one"):
        tool(server, s, template)(charge)


@pytest.mark.parametrize("options", [{"key": lambda order, call_id: order}, {}])
def test_a_key_that_leaves_the_calls_id_out_is_not(s, server, options):
    def charge(order: str, call_id: str) -> None: ...

    with warnings.catch_warnings(action="error"):
        tool(server, s, *(() if options else ("charge:{order}",)), **options)(charge)
