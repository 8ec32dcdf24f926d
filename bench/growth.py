"""What many keys cost: how long a claim takes among them, and how much room they take.

A store is filled by its own means: one record is written by semel, and multiplied inside the database.
"""

import argparse
import gc
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import semel
from bench import bare, charge, new_order
from bench.servers import ENV, provision, servers, stores, url_of
from bench.timing import Bar, Listing, Ratio, Table, compare, conclude, tabulate
from semel.core.commands import Batch, Put
from semel.core.ledger import new_record
from semel.core.policy import DAY, LEASE, ClaimTerms
from semel.tables import LEDGER

PACKAGES = ("semel", "psycopg", "redis")
MILLION = 1_000_000
MOST = 1.3
"""A claim among many keys may take so many times as long as one among few."""
BATCH = 1_000
COPIED = "charge:order-0"
NUMBER_SQLITE, NUMBER_POSTGRES = "printf('%08x', i)", "lpad(to_hex(i), 8, '0')"


def copies(columns: list[str], number: str) -> str:
    """The columns of an INSERT, and the SELECT for the copy with this number: it differs in its key alone."""
    names = [f'"{column}"' for column in columns]
    key = f"replace(id, '{COPIED}', 'charge:order-' || {number})"
    values = [key if column == "id" else f'"{column}"' for column in columns]
    return f"({', '.join(names)}) SELECT {', '.join(values)}"


def multiply_sqlite(path: str, count: int) -> int:
    """Copy the one record of a file so often; the size of the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info(semel_ledger)")]
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
        given = copies(columns, NUMBER_SQLITE)
        source = "FROM n, (SELECT * FROM semel_ledger)"
        db.execute(f"{numbers} INSERT INTO semel_ledger {given} {source}", (count - 1,))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("ANALYZE")
    return Path(path).stat().st_size


def multiply_postgres(server: str, schema: str, count: int) -> int:
    """Copy the one record of a schema so often; the size of the relation with its indexes."""
    with import_module("psycopg").connect(server, autocommit=True) as db:
        table = f"{schema}.semel_ledger"
        of = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        columns = [name for (name,) in db.execute(of, (schema, "semel_ledger"))]
        given = copies(columns, NUMBER_POSTGRES)
        db.execute(f"INSERT INTO {table} {given} FROM generate_series(1, {count - 1}) AS i, {table}")
        db.execute(f"VACUUM ANALYZE {table}")
        [(size,)] = db.execute("SELECT pg_total_relation_size(%s)", (table,))
        return int(size)


class Filled:
    """A store that holds so many keys, and a claim of one more, spread over the key space."""

    def __init__(self, url: str, count: int, multiply: Callable[[], int]) -> None:
        with semel.connect(url, env=ENV) as s:
            s.once("charge:{order[id]}")(charge)(new_order(0))
        self.size, self.count = multiply(), count
        self.s = semel.connect(url, env=ENV)
        self._numbers = itertools.count(1)

    def claim(self) -> object:
        # A multiplicative step, so that new keys fall everywhere between the old ones.
        spread = next(self._numbers) * 2654435761 % 2**32
        return self.s.ledger.claim(f"charge:order-{spread:08x}!")


@contextmanager
def on_sqlite(sizes: list[int]) -> Iterator[list[Filled]]:
    with bare.disk_folder() as folder:
        paths = {size: str(folder / f"{size}.db") for size in sizes}
        found = [
            Filled(f"sqlite:///{path}", size, partial(multiply_sqlite, path, size))
            for size, path in paths.items()
        ]
        yield found
        for each in found:
            each.s.close()


@contextmanager
def on_postgres(server: str, sizes: list[int]) -> Iterator[list[Filled]]:
    found = []
    for size in sizes:
        schema = f"n{size}"
        url = url_of("PostgreSQL", server, schema)
        provision(url)
        found.append(Filled(url, size, partial(multiply_postgres, server, schema, size)))
    yield found
    for each in found:
        each.s.close()


def claims(name: str, found: list[Filled], number: int, repeat: int) -> Table:
    """A claim among few keys and among many; few is the base."""
    subjects = {f"among {each.count:,} keys": each.claim for each in found}
    return tabulate(f"a claim on {name}", compare(subjects, number, repeat), next(iter(subjects)), {})


# Room


def fill(s: semel.Semel, count: int) -> None:
    """Write so many finished records, by semel itself."""
    item = new_record(ClaimTerms(LEASE, DAY), "0" * 32, "bench", "f" * 64)
    item |= {"status": "COMPLETED", "result": b'{"id":"ch_1","amount":4200}', "encoding": "json"}
    for start in range(0, count, BATCH):
        names = (s.ledger.steps.name(f"charge:order-{number:08x}") for number in range(start, start + BATCH))
        s.store.execute(Batch(tuple(Put(LEDGER, name, item) for name in names)))


def resident() -> int:
    """How many bytes of memory this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_memory(count: int) -> int:
    """How much memory keys take in this process."""
    with semel.connect("memory:") as s:
        before = resident()
        fill(s, count)
        return resident() - before


def in_redis(server: str, count: int) -> int:
    """How much more memory Redis uses for keys."""
    client = import_module("redis").Redis.from_url(server)
    with closing(client), semel.connect(url_of("Redis", server, "room"), env=ENV) as s:
        before = int(client.info("memory")["used_memory"])
        fill(s, count)
        return int(client.info("memory")["used_memory"]) - before


def room(what: str, count: int, size: int) -> tuple[Any, ...]:
    """A row of the listing."""
    return what, count, size / count, size / count * MILLION / 2**20


def grown(url: str, calls: int) -> int:
    """By how much calls make this process grow that leave their records in a store."""
    with semel.connect(url, env=ENV) as s:
        protected, numbers = s.once("grown:{order[id]}")(charge), itertools.count()
        for _ in range(calls // 10):
            protected(new_order(next(numbers)))
        before = resident()
        for _ in range(calls):
            protected(new_order(next(numbers)))
        return resident() - before


def process(calls: int) -> tuple[Listing, list[str]]:
    """The memory that this process takes for calls whose records are in a store: it keeps nothing of them."""
    with stores(("SQLite", "PostgreSQL", "Redis", "DynamoDB")) as (urls, absent):
        rows = tuple((f"{name}", calls, grown(url, calls) / 2**20) for name, url in urls.items())
    return Listing("memory of the process", ("store", "first calls", "grown by, MiB"), rows), absent


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--few", type=int, default=10_000, help="keys of the small store")
    parser.add_argument("--sqlite", type=int, default=10_000_000, help="keys of the large file")
    parser.add_argument("--postgres", type=int, default=10_000_000, help="keys of the large table")
    parser.add_argument("--room", type=int, default=200_000, help="keys whose room in memory is measured")
    parser.add_argument("--calls", type=int, default=5_000, help="first calls that may not grow the process")
    parser.add_argument("--number", type=int, default=200, help="calls in a round")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    rounds = options.number, options.repeat
    done, rows = [], [room("memory:, in the process", options.room, in_memory(options.room))]
    with on_sqlite([options.few, options.sqlite]) as found:
        done.append(claims("SQLite", found, *rounds))
        rows.append(room("SQLite, the file", found[-1].count, found[-1].size))
    with servers(["PostgreSQL", "Redis"]) as started:
        if server := started.addresses.get("PostgreSQL"):
            with on_postgres(server, [options.few, options.postgres]) as found:
                done.append(claims("PostgreSQL", found, *rounds))
                rows.append(room("PostgreSQL, the relation", found[-1].count, found[-1].size))
        if server := started.addresses.get("Redis"):
            rows.append(room("Redis, used_memory", options.room, in_redis(server, options.room)))
    own, absent = process(options.calls)
    columns = ("where", "keys", "bytes a key", "MiB a million keys")
    listings = [Listing("room for keys", columns, tuple(rows)), own]
    return conclude(done, bars(done), PACKAGES, options.json, listings=listings, absent=absent)


def bars(done: list[Table]) -> list[Bar]:
    """What was promised, against what was found."""
    found = []
    for table in done:
        few, many = table.rows
        if few.timing and many.timing:
            ratio = Ratio.of(many.timing, few.timing).median
            found.append(Bar(f"{table.title} {many.name}, to {few.name.removeprefix('among ')}", ratio, MOST))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
