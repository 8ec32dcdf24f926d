"""What an operator's questions take as a ledger grows: `make bench-questions`.

The same questions are asked of a ledger of few records and of one of many, side by side: a table for each
store, and a bar for each question. Both have so many records of each kind that a question has as much to read
in the one as in the other. What reads a whole table is found by the store's own means: SQLite's query
plans, PostgreSQL's count of rows read in sequence, the number of Redis' SCANs. DynamoDB is asked once, with
few records, for the number of its requests.
"""

import argparse
import itertools
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import semel
from bench import bare
from bench.recorded import watch_dynamodb
from bench.servers import ENVIRONMENT, provision
from bench.timing import Bar, Ratio, Row, Table, compare, conclude
from semel.core.commands import Batch, Item, Put
from semel.core.events import digest
from semel.core.ledger import new_record
from semel.core.lifecycle import Status
from semel.core.policy import DAY, ClaimTerms
from semel.ops import Search
from semel.ops.questions import EXAMINED
from semel.tables import FOREVER, LEDGER, RECENT
from tests.servers.dynamodb import dynoxide
from tests.servers.postgres import postgres
from tests.servers.redis import redis_server

PACKAGES = ("semel", "psycopg", "redis", "jinja2", "starlette")
ENV = "bench"
# A question may take so many times as long among many records as among few.
LIMIT = 2.0
BATCH = 500
# One in so many records is not simply done; of few records more, that there are as many as a question reads.
FAILED, HELD, RUNNING, RELEASED, OF_A_PERSON = 100, 250, 250, 500, 1000
LEAST = {FAILED: EXAMINED + 100, HELD: 200}
# Each record changed so long after the one before.
APART = 0.05
# So many records are about each person, however many there are.
OF_EACH_PERSON = 10
SECRET = b"a secret for a benchmark, and for nothing else"

Question = Callable[[semel.Semel], object]

QUESTIONS: dict[str, Question] = {
    "all": lambda s: s.ops.search(Search()),
    "by prefix": lambda s: s.ops.search(Search(prefix="charge:order-7")),
    "by a prefix that nothing has": lambda s: s.ops.search(Search(prefix="refund:")),
    "completed": lambda s: s.ops.search(Search(status=Status.COMPLETED)),
    "in progress": lambda s: s.ops.search(Search(status=Status.IN_PROGRESS)),
    "failed": lambda s: s.ops.search(Search(status=Status.FAILED)),
    "failed by a type that none has": lambda s: s.ops.search(Search(status=Status.FAILED, error="Nothing")),
    "unknown": lambda s: s.ops.search(Search(status=Status.UNKNOWN)),
    "in doubt": lambda s: s.ops.search(Search(in_doubt=True)),
    "in doubt, newest first": lambda s: s.ops.search(Search(in_doubt=True, order="newest")),
    "about a person": lambda s: s.ops.search(Search(subject="person-0")),
    "by worker": lambda s: s.ops.search(Search(worker="nobody")),
    "by digest": lambda s: s.ops.search(Search(digest=digest(s.ledger.steps.name("charge:order-7")))),
    "explain": lambda s: s.ops.explain("charge:order-7"),
    "operators' journal": lambda s: s.ops.journal(),
    "rates": lambda s: s.ops.rates(time.time() - 3600, time.time()),
    "switches": lambda s: s.switches.list(),
}

# What a store is asked that has the index over all records.
BY_TIME: dict[str, Question] = {
    "all, newest first": lambda s: s.ops.search(Search(order="newest")),
    "all, oldest first": lambda s: s.ops.search(Search(order="oldest")),
    "completed, newest first": lambda s: s.ops.search(Search(status=Status.COMPLETED, order="newest")),
    "older than 100 s, newest first": lambda s: s.ops.search(Search(until=time.time() - 100, order="newest")),
    "by worker, newest first": lambda s: s.ops.search(Search(worker="nobody", order="newest")),
}


# Records


def items(s: semel.Semel, count: int) -> Iterator[tuple[str, Item]]:
    """The records of a ledger in use, each with its name; the last has just changed."""
    ledger = s.ledger.steps
    begun = new_record(ClaimTerms(30.0, 30 * DAY), "0" * 32, "host-1:4711 charge", "f" * 64)
    kinds: tuple[tuple[int, Item], ...] = (
        (FAILED, {"status": "FAILED", "failed": ledger.prefix, "error": ERROR}),
        (HELD, {"status": "UNKNOWN", "doubt": ledger.prefix, "expires_at": FOREVER}),
        (RUNNING, {"status": "IN_PROGRESS"}),
        (RELEASED, {"status": "RELEASED"}),
    )
    ended = time.time()
    for number in range(count):
        at = ended - (count - number) * APART
        item = begun | dict.fromkeys(("created_at", "updated_at", "began_at", "lease_until"), at)
        kind: Item = {"status": "COMPLETED", "result": b'{"id":"ch_1"}', "encoding": "json"}
        for place, (every, other) in enumerate(kinds):
            if number % spacing(every, count) == place:
                kind = other
        item |= kind
        item |= {since: at for name, since in SINCE.items() if name in item}
        if number % OF_A_PERSON == 0:
            person = ledger.subject(f"person-{number // OF_A_PERSON // OF_EACH_PERSON}")
            item |= {"subject": person}
        yield ledger.name(f"charge:order-{number:x}"), item


ERROR = '{"type":"TimeoutError","message":"late"}'
# Where a record has its place in an index.
SINCE = {"failed": "failed_at", "doubt": "doubt_since"}


def spacing(every: int, count: int) -> int:
    """One record in how many is of a kind, that there are as many of them as a question reads."""
    return min(every, max(4, count // LEAST.get(every, 200)))


def fill(s: semel.Semel, count: int) -> None:
    """Write so many records, in batches."""
    records = items(s, count)
    written = 0
    while batch := tuple(Put(LEDGER, name, item) for name, item in itertools.islice(records, BATCH)):
        s.store.execute(Batch(batch))
        written += len(batch)
        if sys.stderr.isatty():
            print(f"\r{written:,} of {count:,} records ", end="", file=sys.stderr, flush=True)


# Where they are, and what there reads a whole table


@contextmanager
def traced(statements: set[str]) -> Iterator[None]:
    """Note every statement of every connection to SQLite that is opened meanwhile."""
    connect = sqlite3.connect

    def noting(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(statements.add)
        return connection

    sqlite3.connect = noting  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = connect


# What a plan may read to its end: a file's own description of itself, and what is no table.
FEW_ROWS = ("sqlite_master", "semel_meta", "CONSTANT")


def whole_reads(statements: set[str], path: str) -> set[str]:
    """The parts of SQLite's plans for these statements that read a whole table."""
    with sqlite3.connect(path) as database:
        asked = [one for one in statements if one.lstrip().upper().startswith(("SELECT", "WITH"))]
        plans = [line for one in asked for *_, line in database.execute(f"EXPLAIN QUERY PLAN {one}")]
    whole = {line for line in plans if line.startswith("SCAN") and " USING " not in line}
    return {line for line in whole if not any(word in line for word in FEW_ROWS)}


@contextmanager
def sqlite_places(sizes: list[int]) -> Iterator[tuple[list[str], Callable[[], str]]]:
    """Files, and what of their plans reads a whole table."""
    statements: set[str] = set()
    with bare.disk_folder() as folder, traced(statements):
        paths = [str(folder / f"{size}.db") for size in sizes]
        yield (
            [f"sqlite:///{path}" for path in paths],
            lambda: (
                f"plans that read a whole table: {', '.join(whole_reads(statements, paths[-1])) or 'none'}"
            ),
        )


@contextmanager
def postgres_places(sizes: list[int]) -> Iterator[tuple[list[str], Callable[[], str]]]:
    """Schemas of one server, and how many rows of the ledger were read in sequence."""
    import psycopg

    with postgres() as server, psycopg.connect(server, autocommit=True) as admin:

        def statistics() -> str:
            for size in sizes:
                admin.execute(f"ANALYZE n{size}.semel_ledger")
            query = "SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname = 'semel_ledger'"
            [(rows,)] = admin.execute(query).fetchall()
            return f"rows read by sequential scans: {rows}"

        yield [f"{server}?schema=n{size}" for size in sizes], statistics


@contextmanager
def redis_places(sizes: list[int]) -> Iterator[tuple[list[str], Callable[[], str]]]:
    """Databases of one server, and how often it was asked to SCAN."""
    import redis

    with redis_server() as server, redis.Redis.from_url(server) as client:

        def statistics() -> str:
            stats: Any = client.info("commandstats")
            return f"SCANs: {stats.get('cmdstat_scan', {}).get('calls', 0)}"

        base = server.rstrip("/").rsplit("/", 1)[0] if server.count("/") > 2 else server
        yield [f"{base}/{place}" for place in range(len(sizes))], statistics


PLACES = {"SQLite": sqlite_places, "PostgreSQL": postgres_places, "Redis": redis_places}


CHOSEN = {"SQLite": (RECENT.name,), "PostgreSQL": (RECENT.name,), "Redis": ()}


def asked(name: str, sizes: list[int], number: int, repeat: int) -> tuple[Table, str]:
    """The questions on one store, among few records and among many."""
    with ExitStack() as stack:
        urls, statistics = stack.enter_context(PLACES[name](sizes))
        ledgers = []
        for url, size in zip(urls, sizes, strict=True):
            provision(url, CHOSEN[name])
            s = stack.enter_context(semel.connect(url, env=ENV, secret=SECRET))
            fill(s, size)
            ledgers.append(s)
        before = statistics()
        questions = QUESTIONS | (BY_TIME if CHOSEN[name] else {})
        rows = [
            row for title, ask in questions.items() for row in compared(title, ask, ledgers, number, repeat)
        ]
        after = statistics()
    return Table(
        f"questions on {name}, {sizes[1]:,} records", "few", tuple(rows)
    ), f"{name}: {before} -> {after}"


def compared(
    title: str, ask: Question, ledgers: list[semel.Semel], number: int, repeat: int
) -> Iterator[Row]:
    """One question, among many records, and how that compares with few."""
    few, many = compare(
        {str(place): partial(ask, s) for place, s in enumerate(ledgers)}, number, repeat
    ).values()
    yield Row(title, many, Ratio.of(many, few))


def requests(count: int) -> Iterator[str]:
    """How many requests each question makes on DynamoDB, as a line of text."""
    with dynoxide() as endpoint:
        url = f"dynamodb://us-east-1?endpoint={endpoint}"
        provision(url)
        with semel.connect(url, env=ENV, secret=SECRET) as s:
            fill(s, count)
            sent: list[Any] = []
            watch_dynamodb(s.store, sent)
            for title, ask in QUESTIONS.items():
                sent.clear()
                ask(s)
                kinds = ", ".join(
                    f"{number} {kind}" for kind, number in Counter(kind for kind, _ in sent).items()
                )
                yield f"DynamoDB, {count:,} records, {title}: {kinds or 'no request'}"


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.questions", description=__doc__)
    parser.add_argument("--few", type=int, default=10_000, help="records of the small ledger")
    parser.add_argument("--many", type=int, default=1_000_000, help="records of the large one")
    parser.add_argument("--number", type=int, default=3, help="calls in a round")
    parser.add_argument("--repeat", type=int, default=7, help="rounds")
    parser.add_argument("--stores", default=",".join(PLACES), help="some of them")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    os.environ |= {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    sizes = [options.few, options.many]
    done = [asked(name, sizes, options.number, options.repeat) for name in options.stores.split(",")]
    tables = [table for table, _ in done]
    bars = [
        Bar(f"{row.name}, {table.title}", row.ratio.median, LIMIT)
        for table in tables
        for row in table.rows
        if row.ratio is not None
    ]
    for line in (*(line for _, line in done), *requests(options.few)):
        print(line, file=sys.stderr)
    return conclude(tables, bars, PACKAGES, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
