"""The MCP server of the how-to page, as a process of its own: what agents call twice happens once."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

import semel

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "protect-an-agents-tools.md"


@pytest.fixture
def server(tmp_path):
    """How to start the page's first example, in a folder of its own."""
    example = re.search(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert example is not None
    (tmp_path / "till.py").write_text(example[1])
    return StdioServerParameters(
        command=sys.executable,
        args=["till.py"],
        cwd=tmp_path,
        env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1"},
    )


def charges(server):
    return (server.cwd / "charges.txt").read_text().splitlines()


async def told(client, **arguments):
    """What the agent reads."""
    answer = await client.call_tool("charge", arguments)
    return answer.is_error, answer.content[0].text


async def calls(server, log):
    clients = [Client(stdio_client(server, errlog=log)) for _ in range(2)]
    async with clients[0] as one, clients[1] as other:
        # At once, from two clients, which have a server process each.
        together = await asyncio.gather(*[told(each, order_id="o-1", cents=5) for each in (one, other, one)])
        again = await told(other, order_id="o-1", cents=5)
        changed = await told(other, order_id="o-1", cents=7)
        with semel.connect(f"sqlite:///{server.cwd / 'till.db'}") as s:
            claim = s.ledger.claim("charge:o-2")
            assert isinstance(claim, semel.Claimed)
            busy = await told(one, order_id="o-2", cents=5)
            s.ledger.release(claim)
        free = await told(one, order_id="o-2", cents=5)
        tools = await one.list_tools()
    return together, again, changed, busy, free, tools


def test_two_clients_at_once_and_one_that_calls_again_make_one_charge(server):
    with (server.cwd / "errors.txt").open("w") as log:
        try:
            together, again, changed, busy, free, tools = asyncio.run(calls(server, log))
        except BaseExceptionGroup as error:  # a server that has ended may have said why
            error.add_note((server.cwd / "errors.txt").read_text())
            raise
    assert {*together, again} == {(False, "receipt for o-1: 5 cents")}
    assert charges(server) == ["o-1 5", "o-2 5"]
    # What is refused is an error of the tool that says what to do, and changed nothing.
    assert changed[0]
    assert "done before, with other arguments, and nothing was done now" in changed[1]
    assert busy[0]
    assert re.search(r"being done right now. Call again in \d+ seconds with the same arguments", busy[1])
    assert free == (False, "receipt for o-2: 5 cents")
    # The decorator leaves the tool's face as it was.
    assert tools.tools[0].input_schema["properties"].keys() == {"order_id", "cents"}
