"""Batches: so many new keys marked as seen by one `check_and_set_many`, one by one, and with no library.

The figures are microseconds for the whole batch, by the wall clock, with the server on this machine.
"""

import argparse
import itertools
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlsplit

import semel
from bench import bare
from bench.network import provision_powertools
from bench.servers import ENV, stores
from bench.signed import SignedSocket
from bench.timing import Bar, Call, Fresh, Ratio, Table, compare, conclude, tabulate

PACKAGES = ("semel", "psycopg", "redis")
BATCH = 100
KEEP = 3600
MOST = {"SQLite": 0.05}
"""What a batch may take beside its keys one by one, where that was promised."""
LIMIT, MANY, SINGLE = "the limit", "check_and_set_many", "check_and_set, one by one"
NOTES = {
    "SQLite": "one transaction of inserts",
    "PostgreSQL": "one insert of many rows",
    "Redis": "one pipeline of SET NX",
    "DynamoDB": "conditional puts on one raw socket, signed, one after the other",
}


def names() -> Iterator[list[str]]:
    """Batches of new keys."""
    prefix, numbers = os.urandom(4).hex(), itertools.count()
    while True:
        yield [f"event:{prefix}:{next(numbers)}" for _ in range(BATCH)]


@contextmanager
def by_semel(url: str, one_by_one: bool) -> Iterator[Call]:
    with semel.connect(url, env=ENV) as s:
        batches = names()

        def single() -> None:
            for key in next(batches):
                assert s.ledger.check_and_set(key)

        def many() -> None:
            assert all(s.ledger.check_and_set_many(next(batches)))

        yield single if one_by_one else many


@contextmanager
def on_sqlite(_: str) -> Iterator[Call]:
    with bare.connection() as db:
        db.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, expires_at REAL) WITHOUT ROWID")
        yield partial(_insert, db, names())


def _insert(db: sqlite3.Connection, batches: Iterator[list[str]]) -> None:
    ends = time.time() + KEEP
    db.execute("BEGIN IMMEDIATE")
    rows = [(key, ends) for key in next(batches)]
    db.executemany("INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING", rows)
    db.execute("COMMIT")


@contextmanager
def on_postgres(url: str) -> Iterator[Call]:
    with import_module("psycopg").connect(url.partition("?")[0], autocommit=True) as db:
        db.execute("CREATE TABLE IF NOT EXISTS seen (id text PRIMARY KEY, expires_at timestamptz)")
        insert = (
            "INSERT INTO seen SELECT id, now() + interval '1 h' FROM unnest(%s::text[]) AS id "
            "ON CONFLICT DO NOTHING RETURNING id"
        )
        batches = names()
        yield lambda: db.execute(insert, (next(batches),)).fetchall()


@contextmanager
def on_redis(url: str) -> Iterator[Call]:
    with closing(import_module("redis").Redis.from_url(url.partition("?")[0])) as client:
        batches = names()

        def mark() -> None:
            pipeline = client.pipeline(transaction=False)
            for key in next(batches):
                pipeline.set(key, "1", nx=True, ex=KEEP)
            pipeline.execute()

        yield mark


@contextmanager
def on_dynamodb(url: str) -> Iterator[Call]:
    [endpoint] = parse_qs(urlsplit(url).query)["endpoint"]
    table, batches = provision_powertools(url), names()
    with closing(SignedSocket(endpoint)) as connection:

        def mark() -> None:
            for key in next(batches):
                body: Any = {"TableName": table, "Item": {"id": {"S": key}}}
                body["ConditionExpression"] = "attribute_not_exists(id)"
                status, answer = connection.send("DynamoDB_20120810.PutItem", json.dumps(body).encode())
                assert status == b"200", answer

        yield mark


BARE: dict[str, Callable[[str], Any]] = {
    "SQLite": on_sqlite,
    "PostgreSQL": on_postgres,
    "Redis": on_redis,
    "DynamoDB": on_dynamodb,
}


def table(name: str, url: str, number: int, repeat: int) -> Table:
    """All ways on one store, side by side."""
    subjects = {
        LIMIT: Fresh(partial(BARE[name], url)),
        MANY: Fresh(partial(by_semel, url, one_by_one=False)),
        SINGLE: Fresh(partial(by_semel, url, one_by_one=True)),
    }
    timings = compare(subjects, number, repeat, warm_up=2)
    return tabulate(f"a batch of {BATCH} on {name}", timings, LIMIT, {LIMIT: NOTES[name]})


def bars(done: list[Table]) -> Iterator[Bar]:
    """What was promised, against what was found."""
    for each in done:
        rows = {row.name: row.timing for row in each.rows if row.timing}
        if limit := MOST.get(each.title.rpartition(" ")[2]):
            yield Bar(
                f"{each.title}, to its keys one by one", Ratio.of(rows[MANY], rows[SINGLE]).median, limit
            )


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.batches", description=__doc__)
    parser.add_argument("--number", type=int, default=5, help="batches in a round")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    with stores(BARE) as (urls, absent):
        done = [table(name, url, options.number, options.repeat) for name, url in urls.items()]
    return conclude(done, list(bars(done)), PACKAGES, options.json, absent=absent)


if __name__ == "__main__":
    raise SystemExit(main())
