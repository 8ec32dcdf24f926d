"""What a decision of the gate costs beside a bare transaction of the same size.

Its record, its charge, a document and a journal entry are one write. The bare ones send what semel was seen
to send.
"""

import itertools
import json
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import semel
from bench import raw
from bench.bare import disk_folder
from bench.signed import SignedSocket
from bench.timing import Call, Fresh, Table, Timer, compare, tabulate
from semel.gate import Cap, Gate, KillSwitch, QuietHours

ENV = "bench"
# As long as every number of a later decision, so that one can stand in the other's place.
RECORDED = 1_000_000
STATE = {"last_intent": "order_status", "last_routed_team": "returns", "last_routing_confidence": 0.91}


def decider(s: semel.Semel) -> Callable[[int], None]:
    """Decides whether a reply may be sent, and writes down the decision, a charge, some state and a trace."""
    hour = datetime.now(UTC).hour
    quiet = QuietHours(f"{(hour + 6) % 24:02}:00", f"{(hour + 9) % 24:02}:00")
    gate: Gate = s.gate(quiet, KillSwitch("safe_mode"), Cap("replies:{chat}", 3), trace="chat:{chat}")

    def decide(number: int) -> None:
        def also(tx: Any, _decision: Any) -> None:
            tx.documents.put(f"state:{number}", STATE, version=0)

        assert gate.decide(f"reply:{number}", chat=number, also=also).allowed

    return decide


@contextmanager
def open_semel(url: str) -> Iterator[Call]:
    """semel; each opening has keys of its own."""
    with semel.connect(url, env=ENV, scope=os.urandom(4).hex()) as s:
        decide, numbers = decider(s), itertools.count(RECORDED)
        yield lambda: decide(next(numbers))


def recorded(url: str, watch: Callable[[Any, list[Any]], None]) -> list[Any]:
    """What semel sends for one decision, as `watch` notes it."""
    sent: list[Any] = []
    with semel.connect(url, env=ENV, scope=os.urandom(4).hex()) as s:
        decide = decider(s)
        decide(1)
        watch(s.store, sent)
        decide(RECORDED)
    return sent


def renamed(value: Any, number: int) -> Any:
    """A recorded value, with another number in the place of the recorded one."""
    if isinstance(value, dict):
        return {name: renamed(one, number) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [renamed(one, number) for one in value]
    if isinstance(value, bytes):
        return value.replace(str(RECORDED).encode(), str(number).encode())
    return value.replace(str(RECORDED), str(number)) if isinstance(value, str) else value


@contextmanager
def open_raw_dynamodb(url: str, endpoint: str, watch: Callable[[Any, list[Any]], None]) -> Iterator[Call]:
    """The same request on a raw socket, with a signature of its own."""
    [request] = [sent for operation, sent in recorded(url, watch) if operation == "TransactWriteItems"]
    token = request["ClientRequestToken"].encode()
    body, place = json.dumps(request, separators=(",", ":")).encode(), str(RECORDED).encode()
    connection, numbers = SignedSocket(endpoint), itertools.count(RECORDED + 1)

    def transact() -> None:
        sent = body.replace(place, b"%d" % next(numbers)).replace(token, os.urandom(16).hex().encode())
        status, answer = connection.send("DynamoDB_20120810.TransactWriteItems", sent)
        assert status == b"200", answer

    yield transact
    connection.close()


@contextmanager
def open_raw_redis(url: str, watch: Callable[[Any, list[Any]], None]) -> Iterator[Call]:
    """The same bytes on a raw socket."""
    data, place = b"".join(recorded(url, watch)), str(RECORDED).encode()
    address, numbers = urlsplit(url), itertools.count(RECORDED + 1)
    with socket.create_connection((address.hostname, address.port or 6379)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def transact() -> None:
            connection.sendall(data.replace(place, b"%d" % next(numbers)))
            reply = connection.recv(65536)
            assert not reply.startswith(b"-"), reply

        yield transact


@contextmanager
def open_raw_postgres(url: str, watch: Callable[[Any, list[Any]], None]) -> Iterator[Call]:
    """The same statements in one pipeline of libpq, prepared and with values adapted beforehand."""
    psycopg, pq = import_module("psycopg"), import_module("psycopg.pq")
    numbers = itertools.count(RECORDED + 1)
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        statements, libpq = raw.prepared(connection, recorded(url, watch)), connection.pgconn

        def transact() -> None:
            number = next(numbers)
            libpq.enter_pipeline_mode()
            for name, values, formats in statements:
                libpq.send_query_prepared(name, renamed(values, number), formats, pq.Format.BINARY)
            libpq.pipeline_sync()
            libpq.flush()
            result = libpq.get_result()
            while result is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
                assert result is None or result.status in GOOD, result.error_message
                result = libpq.get_result()
            libpq.exit_pipeline_mode()

        yield transact


# Of libpq's ExecStatus: a command that is done, and one with rows.
GOOD = (1, 2)


@contextmanager
def open_boto3(
    url: str,
    client: Callable[[], Any],
    watch: Callable[[Any, list[Any]], None],
    for_boto: Callable[[Any], Any],
) -> Iterator[Call]:
    """The same request by boto3."""
    [request] = [
        for_boto(sent) for operation, sent in recorded(url, watch) if operation == "TransactWriteItems"
    ]
    dynamodb, numbers = client(), itertools.count(RECORDED + 1)

    def transact() -> None:
        items = renamed(request["TransactItems"], next(numbers))
        dynamodb.transact_write_items(TransactItems=items, ClientRequestToken=os.urandom(16).hex())

    yield transact
    dynamodb.close()


@contextmanager
def open_psycopg(url: str, watch: Callable[[Any, list[Any]], None]) -> Iterator[Call]:
    """The same statements in one pipeline of psycopg, on a connection of its pool."""
    psycopg, pools = import_module("psycopg"), import_module("psycopg_pool")
    statements, numbers = recorded(url, watch), itertools.count(RECORDED + 1)
    settings = {"autocommit": True, "cursor_factory": psycopg.RawCursor}
    with pools.ConnectionPool(url.partition("?")[0], kwargs=settings) as pool:

        def transact() -> None:
            number = next(numbers)
            with pool.connection() as connection:
                with connection.pipeline():
                    cursors = [
                        connection.execute(sql, values and renamed(values, number), binary=True)
                        for sql, values in statements
                    ]
                for cursor in cursors:
                    if cursor.description:
                        cursor.fetchone()

        yield transact


@contextmanager
def open_redis_py(
    url: str, watch: Callable[[Any, list[Any]], None], words: Callable[[bytes], list[list[bytes]]]
) -> Iterator[Call]:
    """The same commands in one pipeline of redis-py."""
    commands = [each for sent in recorded(url, watch) for each in words(sent)]
    client, numbers = (
        import_module("redis").Redis.from_url(url.partition("?")[0]),
        itertools.count(RECORDED + 1),
    )

    def transact() -> None:
        number = next(numbers)
        pipeline = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*renamed(command, number))
        pipeline.execute()

    yield transact
    client.close()


BARE = """
CREATE TABLE ledger (id TEXT PRIMARY KEY, status, token, attempt, created_at, updated_at, expires_at,
    result BLOB, encoding) WITHOUT ROWID;
CREATE TABLE counters (counter TEXT, entry TEXT, count, updated_at, expires_at, PRIMARY KEY (counter, entry))
    WITHOUT ROWID;
CREATE TABLE documents (id TEXT PRIMARY KEY, body TEXT, version, token, created_at, updated_at, expires_at)
    WITHOUT ROWID;
CREATE TABLE journal (owner TEXT, entry TEXT, at, body TEXT, token, expires_at, PRIMARY KEY (owner, entry))
    WITHOUT ROWID;
CREATE INDEX ledger_expires ON ledger (expires_at);
CREATE INDEX counters_expires ON counters (expires_at);
CREATE INDEX documents_expires ON documents (expires_at);
CREATE INDEX journal_expires ON journal (expires_at);
"""
# About as long as the decision that semel keeps.
RESULT = b"{" + b"x" * 400 + b"}"


@contextmanager
def open_sqlite3() -> Iterator[Call]:
    """Four rows in one transaction of the sqlite3 module, with the indexes on expiry that semel has too."""
    with disk_folder() as folder:
        db = sqlite3.connect(folder / "bare.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(BARE)
        numbers, body = itertools.count(RECORDED), json.dumps(STATE)

        def transact() -> None:
            number, token, now = next(numbers), os.urandom(16).hex(), 1e9
            db.execute("BEGIN IMMEDIATE")
            record = (f"reply:{number}", token, now, now, now, RESULT)
            db.execute("INSERT INTO ledger VALUES (?, 'COMPLETED', ?, 1, ?, ?, ?, ?, 'json')", record)
            total = (f"replies:{number}", "2026-11-16", now, now)
            db.execute("INSERT INTO counters VALUES (?, ?, 1, ?, ?)", total)
            db.execute(
                "INSERT INTO documents VALUES (?, ?, 1, ?, ?, ?, ?)",
                (f"state:{number}", body, token, now, now, now),
            )
            entry = (f"chat:{number}", token, now, body, token, now)
            db.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)", entry)
            db.execute("COMMIT")

        yield transact
        db.close()


@contextmanager
def open_semel_on_sqlite() -> Iterator[Call]:
    """semel on a new file."""
    with disk_folder() as folder, open_semel(f"sqlite:///{folder / 'semel.db'}") as call:
        yield call


def table(name: str, subjects: dict[str, Callable[[], Any]], number: int, repeat: int, timer: Timer) -> Table:
    """A decision beside the same transaction with nothing around it; the first subject is the limit."""
    opened = {title: Fresh(subject) for title, subject in subjects.items()}
    limit = next(iter(subjects))
    timings = compare(opened, number, repeat, timer)
    return tabulate(f"decision, {name}", timings, limit, {limit: "the limit"})


def on_sqlite(number: int, repeat: int, timer: Timer) -> Table:
    """On SQLite, with the disk."""
    subjects = {"four rows in one transaction": open_sqlite3, "semel": open_semel_on_sqlite}
    return table("SQLite", subjects, number, repeat, timer)


def semel_on(url: str) -> Callable[[], Any]:
    """semel on a store."""
    return partial(open_semel, url)
