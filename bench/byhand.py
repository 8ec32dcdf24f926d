"""What a careful person writes by hand on each store: a claim by a conditional write, and a completion.

A payload is told from another by its hash, a result is kept as JSON, a lapsed lease may be taken over, and
only the holder of the token completes. There are no retries of lost replies, no heartbeat and no waiting.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

from bench import Effect, Order, Pair, bare, pair_of

LEASE, KEEP = 60, 86_400


class InTheWay(Exception):
    """The key is held by somebody else, or was used with another payload."""


def hashed(order: Order) -> str:
    return hashlib.sha256(json.dumps(order, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def replayed(order: Order, status: str, fingerprint: str, result: str | bytes) -> Any:
    """The stored result, if it is one of this payload."""
    if status != "done" or fingerprint != hashed(order):
        raise InTheWay(order["id"])
    return json.loads(result)


# --- SQLite ---------------------------------------------------------------------------------------

CREATE = """CREATE TABLE IF NOT EXISTS by_hand (id TEXT PRIMARY KEY, status TEXT, token TEXT,
    fingerprint TEXT, lease_until REAL, expires_at REAL, result TEXT) WITHOUT ROWID"""
CLAIM = """INSERT INTO by_hand VALUES (?, 'running', ?, ?, ?, ?, NULL) ON CONFLICT (id) DO UPDATE SET
    status = 'running', token = excluded.token, fingerprint = excluded.fingerprint,
    lease_until = excluded.lease_until, expires_at = excluded.expires_at
    WHERE by_hand.expires_at < ? OR (by_hand.status = 'running' AND by_hand.lease_until < ?)"""
COMPLETE = "UPDATE by_hand SET status = 'done', result = ? WHERE id = ? AND token = ?"
LOOK_UP = "SELECT status, fingerprint, result FROM by_hand WHERE id = ?"


def on_sqlite(db: Any, effect: Effect) -> Callable[[Order], Any]:
    """A look first, since a refused claim would take the lock that all writers share."""

    def call(order: Order) -> Any:
        key, token, now = f"charge:{order['id']}", os.urandom(16).hex(), time.time()
        found = db.execute(f"{LOOK_UP} AND expires_at > ?", (key, now)).fetchone()
        if found is not None and found[0] == "done":
            return replayed(order, *found)
        values = (key, token, hashed(order), now + LEASE, now + KEEP, now, now)
        if db.execute(CLAIM, values).rowcount != 1:
            return replayed(order, *db.execute(LOOK_UP, (key,)).fetchone())
        result = effect(order)
        if db.execute(COMPLETE, (json.dumps(result), key, token)).rowcount != 1:
            raise InTheWay(key)
        return result

    return call


@contextmanager
def open_sqlite(effect: Effect) -> Iterator[Pair]:
    with bare.connection() as db:
        db.execute(CREATE)
        yield pair_of(on_sqlite(db, effect))


# --- PostgreSQL -----------------------------------------------------------------------------------

PG_CREATE = """CREATE TABLE IF NOT EXISTS by_hand (id text PRIMARY KEY, status text, token text,
    fingerprint text, lease_until timestamptz, expires_at timestamptz, result text)"""
PG_CLAIM = """INSERT INTO by_hand
    VALUES (%s, 'running', %s, %s, now() + interval '60 s', now() + interval '1 d')
    ON CONFLICT (id) DO UPDATE SET status = 'running', token = excluded.token,
    fingerprint = excluded.fingerprint, lease_until = excluded.lease_until, expires_at = excluded.expires_at
    WHERE by_hand.expires_at < now() OR (by_hand.status = 'running' AND by_hand.lease_until < now())"""
PG_COMPLETE = "UPDATE by_hand SET status = 'done', result = %s WHERE id = %s AND token = %s"
PG_LOOK_UP = "SELECT status, fingerprint, result FROM by_hand WHERE id = %s"


@contextmanager
def open_postgres(effect: Effect, server: str) -> Iterator[Pair]:
    pools, prefix = import_module("psycopg_pool"), os.urandom(4).hex()
    with pools.ConnectionPool(server, kwargs={"autocommit": True}) as pool:
        with pool.connection() as connection:
            connection.execute(PG_CREATE)

        def call(order: Order) -> Any:
            key, token = f"{prefix}:charge:{order['id']}", os.urandom(16).hex()
            with pool.connection() as connection:
                if connection.execute(PG_CLAIM, (key, token, hashed(order))).rowcount != 1:
                    return replayed(order, *connection.execute(PG_LOOK_UP, (key,)).fetchone())
            result = effect(order)
            with pool.connection() as connection:
                if connection.execute(PG_COMPLETE, (json.dumps(result), key, token)).rowcount != 1:
                    raise InTheWay(key)
            return result

        yield pair_of(call)


# --- Redis ----------------------------------------------------------------------------------------

REDIS_COMPLETE = """if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'status', 'done', 'result', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3]) return 1"""
REDIS_CLAIM = """if redis.call('EXISTS', KEYS[1]) == 1 then
return redis.call('HMGET', KEYS[1], 'status', 'fingerprint', 'result') end
redis.call('HSET', KEYS[1], 'status', 'running', 'token', ARGV[1], 'fingerprint', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3]) return false"""


@contextmanager
def open_redis(effect: Effect, server: str) -> Iterator[Pair]:
    """A running record expires with its lease, so that no clock is asked."""
    prefix = os.urandom(4).hex()
    with closing(import_module("redis").Redis.from_url(server, decode_responses=True)) as client:
        claim, complete = client.register_script(REDIS_CLAIM), client.register_script(REDIS_COMPLETE)

        def call(order: Order) -> Any:
            key, token = f"{prefix}:charge:{order['id']}", os.urandom(16).hex()
            if found := claim([key], [token, hashed(order), LEASE]):
                return replayed(order, *found)
            result = effect(order)
            if not complete([key], [token, json.dumps(result), KEEP]):
                raise InTheWay(key)
            return result

        yield pair_of(call)


# --- DynamoDB -------------------------------------------------------------------------------------

DYNAMO_FREE = "attribute_not_exists(id) OR expires_at < :now OR (#status = :running AND lease_until < :now)"


@contextmanager
def open_dynamodb(effect: Effect, table: str, client: Callable[[], Any]) -> Iterator[Pair]:
    failed, prefix = import_module("botocore.exceptions").ClientError, os.urandom(4).hex()
    with closing(client()) as dynamodb:

        def call(order: Order) -> Any:
            key, token, now = f"{prefix}:charge:{order['id']}", os.urandom(16).hex(), time.time()
            item = {
                "id": {"S": key},
                "status": {"S": "running"},
                "token": {"S": token},
                "fingerprint": {"S": hashed(order)},
                "lease_until": {"N": str(now + LEASE)},
                "expires_at": {"N": str(int(now + KEEP))},
            }
            try:
                dynamodb.put_item(
                    TableName=table,
                    Item=item,
                    ConditionExpression=DYNAMO_FREE,
                    ExpressionAttributeNames={"#status": "status"},
                    ExpressionAttributeValues={":now": {"N": str(now)}, ":running": {"S": "running"}},
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except failed as refusal:
                found = refusal.response["Item"]
                kept = (found[name]["S"] for name in ("status", "fingerprint", "result"))
                return replayed(order, *kept)
            result = effect(order)
            dynamodb.update_item(
                TableName=table,
                Key={"id": {"S": key}},
                UpdateExpression="SET #status = :done, #result = :result",
                ConditionExpression="#token = :token",
                ExpressionAttributeNames={"#status": "status", "#result": "result", "#token": "token"},
                ExpressionAttributeValues={
                    ":done": {"S": "done"},
                    ":result": {"S": json.dumps(result)},
                    ":token": {"S": token},
                },
            )
            return result

        yield pair_of(call)
