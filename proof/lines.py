"""The lines of the scoreboard: what is tried, and what one try is.

A test that tries a line says so with `@pytest.mark.proof("kills")`, and tells the fixture `tried` how often;
or it says both with the mark, `@pytest.mark.proof("restarts", 1)`. `make test` runs the same tests with fewer
tries.
"""

from typing import NamedTuple


class Line(NamedTuple):
    """One line of the scoreboard."""

    title: str
    one: str
    """What is counted."""


LINES = {
    "worlds": Line("Simulated worlds in which everything goes wrong", "worlds"),
    "transactions": Line("Simulated worlds of transactions, counters and documents", "worlds"),
    "guards": Line("Guards taken away, each of which the simulation has to miss", "guards"),
    "kills": Line("Workers killed with -9 at their work", "kills"),
    "lost": Line("Answers lost after the store had made the write", "answers"),
    "zombies": Line("Holders that wake up after somebody else has taken over", "writes"),
    "order": Line("Commands of a crowd, whose replies one order of them explains", "commands"),
    "clocks": Line("Clocks that are an hour off, or are set while work runs", "clocks"),
    "signals": Line("Signals at random moments", "signals"),
    "outages": Line("Short outages while work ends", "outages"),
    "servers": Line("Servers killed under load and started again", "restarts"),
    "failover": Line("Claims confirmed with `wait_replicas` by a Redis primary that was lost", "claims"),
    "inbox": Line(
        "Messages of an inbox whose workers fail or are killed: once each, and in order", "messages"
    ),
    "waiters": Line("Callers that want one key at once", "callers"),
    "inputs": Line("Bad inputs: keys, headers, bodies and results", "inputs"),
    "forgeries": Line("Forged signatures of webhooks", "forgeries"),
    "tenants": Line("Keys of a tenant, asked for under names that could be joined into its own", "requests"),
    "restarts": Line("Services killed and started again with events under way", "restarts"),
    "planted": Line("Personal values planted, and looked for in every row and log line", "values"),
}
