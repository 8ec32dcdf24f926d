"""An MCP server with tools that an agent may call again: each order is charged and refunded once.

SEMEL_URL=sqlite:///till.db python till.py
"""

import os

from mcp.server.mcpserver import MCPServer

import semel
from semel.doors.mcp import tool


def create_server(s: semel.Semel) -> MCPServer:
    """The server, with its tools on this ledger."""
    server = MCPServer("till")

    @tool(server, s, "charge:{order_id}", ttl=30 * semel.DAY)
    def charge(order_id: str, cents: int) -> str:
        """Charge an order, once: calling it again with the same arguments gives the same receipt."""
        # Your bank goes here, with semel.current_run().key_for("bank") as the Idempotency-Key.
        receipt = f"receipt for {order_id}: {cents} cents"
        with s.transaction() as tx:
            tx.journal.append("till", {"charge": order_id, "cents": cents})
            tx.ledger.complete(semel.current_run(), receipt)
        return receipt

    @tool(server, s, "refund:{order_id}", ttl=30 * semel.DAY)
    def refund(order_id: str) -> str:
        """Refund an order, once."""
        with s.transaction() as tx:
            tx.journal.append("till", {"refund": order_id})
            tx.ledger.complete(semel.current_run(), f"refunded {order_id}")
        return f"refunded {order_id}"

    return server


if __name__ == "__main__":
    with semel.connect(os.environ.get("SEMEL_URL", "sqlite:///till.db")) as ledger:
        create_server(ledger).run()
