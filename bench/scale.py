"""What each call asks of a store, for whoever plans for very many: `python -m bench.scale`.

It counts requests, and where they go; it does not time them. What goes to a partition that all calls share
ends at what one partition bears, however large the rest is. Sizes and the server's own processor time are
read from the servers, which run beside it.
"""

import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import semel
from semel.core.commands import Get, Put, Query, Transact, Write
from semel.doors.inbox import Message, StoreInbox
from semel.gate import Cap
from semel.state.mailbox import lane_of
from semel.state.shards import shard_of
from semel.stores.memory import MemoryStore
from semel.tables import Index
from semel.testing import Faulty
from tests.servers.postgres import postgres
from tests.servers.redis import redis_server

ENV = "bench"
CALLS = 200
RECORDS = 5000
LANES = 100_000
# DynamoDB bills a write in a transaction twice.
TRANSACTED = 2

# Given a ledger, what is done with one number after the other.
Operation = Callable[[semel.Semel], Callable[[int], object]]


# --- Requests ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What one call asks for, in DynamoDB's units; items are smaller than a unit."""

    what: str
    reads: float
    writes: float
    shared: float
    """Writes that go to the one partition, or the one index of a scope, that takes part in every call."""
    where: str


def asked(what: str, operation: Operation) -> Asked:
    """Count what a call asks for, over many of them with different keys."""
    store = Faulty(MemoryStore())
    with semel.Semel(store, env=ENV) as s:
        do = operation(s)
        do(CALLS)
        store.seen.clear()
        for number in range(CALLS):
            do(number)
    reads = sum(isinstance(command, Get | Query) for command in store.seen)
    writes: Counter[str] = Counter()
    for command in store.seen:
        units = TRANSACTED if isinstance(command, Transact) else 1
        for write in getattr(command, "writes", (command,)):
            if isinstance(write, Write):
                writes[f"{write.table.name} {write.key.rpartition('/')[2]}"] += units
                writes.update(f"index {index.name}" for index in entered(write))
    [(where, most)] = writes.most_common(1)
    shared = most / CALLS if most >= CALLS else 0.0
    return Asked(what, reads / CALLS, writes.total() / CALLS, shared, where if shared else "")


def handled(group: Callable[[int], str | None]) -> Operation:
    """Messages that are put in and handled."""

    def opened(s: semel.Semel) -> Callable[[int], None]:
        inbox = StoreInbox(s, "in")
        worker = inbox.worker(lambda _: None)

        def handle(number: int) -> None:
            message = Message(f"m:{number}", 0, group(number))
            inbox.put(message)
            worker.lanes.add(message.lane)
            while (lane := worker.lanes.begin()) is not None:
                worker.visit(lane)

        return handle

    return opened


OPERATIONS: dict[str, Operation] = {
    "`once`, a first call": lambda s: s.once("charge:{order}")(lambda order: order),
    "the same with `on_lapsed='hold'`": lambda s: s.once("charge:{order}", on_lapsed="hold")(
        lambda order: order
    ),
    "`check_and_set`": lambda s: lambda number: s.ledger.check_and_set(f"seen:{number}"),
    "`counters.add`, one counter for all": lambda s: lambda _: s.counters.add("all"),
    "`counters.charge`, one cap for all": lambda s: (
        lambda number: s.counters.charge("all", cap=10**9, token=f"t-{number}")
    ),
    "`gate.decide`, one cap for all": lambda s: (
        lambda number: s.gate(Cap("sends", 10**9)).decide(f"send:{number}")
    ),
    "`journal.append`, one owner for all": lambda s: lambda number: s.journal.append("all", {"n": number}),
    "a message without a group": handled(lambda _: None),
    "a message in a group of its own": handled(str),
}


def entered(write: Write) -> list[Index]:
    """The indexes that a write brings an item into or takes it from: each is one write more."""
    changed = write.item if isinstance(write, Put) else getattr(write, "set", {})
    return [index for index in write.table.indexes if index.partition in changed]


# --- Shards ------------------------------------------------------------------------------------------


def fullest(number: int) -> float:
    """How much the fullest of so many shards has, by its fair share, of very many groups."""
    sizes = Counter(shard_of(lane_of("", f"customer:{n}"), number) for n in range(LANES))
    return max(sizes.values()) * number / LANES


# --- Servers -----------------------------------------------------------------------------------------


def fill(s: semel.Semel) -> None:
    """Make calls that each leave a record."""
    protected = s.once("pay:{order}")(lambda order: {"order": order, "cents": 4200})
    for number in range(RECORDS):
        protected(number)


@contextmanager
def filled(url: str, read: Callable[[], dict[str, float]]) -> Iterator[dict[str, float]]:
    """What a server tells of itself, after so many calls beyond what it told before; for each call."""
    with semel.connect(url, env=ENV, scope=os.urandom(4).hex()) as s:
        s.ledger.get("warm")
        before = read()
        fill(s)
        yield {name: (value - before[name]) / RECORDS for name, value in read().items()}


def redis_facts(url: str) -> Callable[[], dict[str, float]]:
    """Redis's memory, and the processor time of its one thread."""
    import redis

    client: Any = redis.Redis.from_url(url)

    def read() -> dict[str, float]:
        info = client.info()
        used = info["used_cpu_user"] + info["used_cpu_sys"]
        return {"bytes of memory": info["used_memory"], "microseconds of the server": used * 1e6}

    return read


def postgres_facts(url: str) -> Callable[[], dict[str, float]]:
    """The size of PostgreSQL's database, and how much it has written to its log."""
    import psycopg

    connection = psycopg.connect(url, autocommit=True)

    def read() -> dict[str, float]:
        found = connection.execute(
            "SELECT pg_database_size(current_database()), pg_current_wal_lsn() - '0/0'"
        )
        size, log = found.fetchone() or (0, 0)
        return {"bytes on disk": float(size), "bytes of log": float(log)}

    return read


def sqlite_facts(path: Path) -> Callable[[], dict[str, float]]:
    """The size of the file, once its log is part of it."""

    def read() -> dict[str, float]:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return {"bytes on disk": float(path.stat().st_size)}

    return read


def servers(stack: ExitStack) -> Iterator[tuple[str, str, Callable[[], dict[str, float]]]]:
    """Each store with its URL and what it tells of itself."""
    from bench.servers import provision

    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "semel.db"
    yield "SQLite", f"sqlite:///{path}", sqlite_facts(path)
    url = stack.enter_context(postgres())
    provision(url)
    yield "PostgreSQL", url, postgres_facts(url)
    url = stack.enter_context(redis_server())
    yield "Redis", url, redis_facts(url)


def request_rows() -> Iterator[str]:
    """A table of what each operation asks for."""
    yield "| one call | read units | write units | of these to one partition | which |"
    yield "|---|---|---|---|---|"
    for what, operation in OPERATIONS.items():
        one = asked(what, operation)
        yield f"| {one.what} | {one.reads:g} | {one.writes:g} | {one.shared:g} | {one.where} |"


def shard_rows() -> Iterator[str]:
    """A table of how evenly groups spread over shards."""
    yield "| shards | the fullest, by its fair share |"
    yield "|---|---|"
    for number in (16, 64, 256, 512):
        yield f"| {number} | {fullest(number):.2f} |"


def server_rows() -> Iterator[str]:
    """A table of what a call leaves in each server."""
    yield f"| a first call, {RECORDS:,} of them | |"
    yield "|---|---|"
    with ExitStack() as stack:
        for name, url, read in servers(stack):
            with filled(url, read) as facts:
                yield from (f"| {name}, {fact} | {value:,.0f} |" for fact, value in facts.items())


def main() -> None:
    for rows in (request_rows(), shard_rows(), server_rows()):
        print(*rows, "", sep="\n")


if __name__ == "__main__":
    main()
