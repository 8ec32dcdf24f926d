"""The limit on each store: the bytes that semel was seen to send, with nothing around them.

On DynamoDB and Redis a socket sends them, on PostgreSQL libpq does (`PQexecPrepared`, by psycopg's C module).
What has to be made anew for each request is made: its key, and on DynamoDB its signature.
"""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from bench import Effect, Pair, new_order
from bench.recorded import (
    RECORDED,
    later_keys,
    recorded,
    renamed,
    watch_dynamodb,
    watch_postgres,
    watch_redis,
)
from bench.signed import SignedSocket

PLACE = RECORDED.encode()
DONE, REFUSED = b"200", b"400"


def pair(effect: Effect, send: Callable[[Any, bytes], Any], requests: list[Any]) -> Pair:
    """The two calls: claim, effect and completion under a new key; and the claim of a key that is done."""
    claim, complete, again = requests
    keys = (key.encode() for key in later_keys())

    def first() -> Any:
        key = next(keys)
        send(claim, key)
        answer = effect(new_order(0))
        send(complete, key)
        return answer

    return Pair(first, lambda: send(again, PLACE))


# --- DynamoDB -------------------------------------------------------------------------------------


@contextmanager
def open_dynamodb(effect: Effect, url: str, endpoint: str) -> Iterator[Pair]:
    requests = [
        (f"DynamoDB_20120810.{operation}", json.dumps(body, separators=(",", ":")).encode())
        for operation, body in recorded(url, watch_dynamodb)
    ]
    connection = SignedSocket(endpoint)

    def send(request: Any, key: bytes) -> bytes:
        target, body = request
        status, answer = connection.send(target, body.replace(PLACE, key))
        assert status == (REFUSED if key is PLACE else DONE), answer
        return answer

    yield pair(effect, send, requests)
    connection.close()


# --- Redis ----------------------------------------------------------------------------------------


@contextmanager
def open_redis(effect: Effect, url: str) -> Iterator[Pair]:
    """One send and one receive for each; the replies are small, and come in one piece on this machine."""
    requests = [data for data in recorded(url, watch_redis) if b"EVALSHA" in data]
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port or 6379)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send(data: bytes, key: bytes) -> bytes:
            connection.sendall(data.replace(PLACE, key))
            reply = connection.recv(65536)
            assert not reply.startswith(b"-"), reply
            return reply

        yield pair(effect, send, requests)


# --- PostgreSQL -----------------------------------------------------------------------------------


def prepared(connection: Any, statements: list[Any]) -> list[tuple[bytes, list[bytes | None], list[Any]]]:
    """The name of each statement on this connection, and its values and their formats as they are sent."""
    adapt, found = import_module("psycopg.adapt"), []
    for number, (sql, given) in enumerate(statements):
        values, transformer = given or [], adapt.Transformer(connection)
        adapted = transformer.dump_sequence(values, [adapt.PyFormat.AUTO] * len(values))
        connection.pgconn.prepare(b"limit_%d" % number, sql, transformer.types)
        as_sent = [bytes(value) if value is not None else None for value in adapted]
        found.append((b"limit_%d" % number, as_sent, list(transformer.formats or [])))
    return found


@contextmanager
def open_postgres(effect: Effect, url: str) -> Iterator[Pair]:
    """Statements that are prepared beforehand, with values that are adapted beforehand."""
    psycopg, pq = import_module("psycopg"), import_module("psycopg.pq")
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        requests = prepared(connection, recorded(url, watch_postgres))

        def send(request: Any, key: bytes) -> Any:
            name, values, formats = request
            text = key.decode()
            result = connection.pgconn.exec_prepared(
                name, [renamed(value, text) for value in values], formats, pq.Format.BINARY
            )
            assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
            return result

        yield pair(effect, send, requests)
