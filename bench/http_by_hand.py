"""An endpoint that claims and completes by hand in its handler, as people write it who have no middleware."""

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

from bench.byhand import (
    CLAIM,
    COMPLETE,
    CREATE,
    KEEP,
    LEASE,
    LOOK_UP,
    PG_CLAIM,
    PG_COMPLETE,
    PG_CREATE,
    PG_LOOK_UP,
    REDIS_CLAIM,
    REDIS_COMPLETE,
)

Charge = Callable[..., dict[str, Any]]
Key = Annotated[str, Header(alias="Idempotency-Key")]


class Order(BaseModel):
    """What is posted."""

    order: str
    amount: int
    currency: str
    note: str = ""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def application(url: str, charge: Charge) -> FastAPI:
    """The application for a store."""
    app, server = FastAPI(), url.partition("?")[0]
    if url.startswith("sqlite"):
        handler: Any = on_sqlite(server.removeprefix("sqlite:///"), charge)
    else:
        handler = on_postgres(server, charge) if url.startswith("postgres") else on_redis(server, charge)
    app.post("/charges", status_code=201)(handler)
    return app


def replayed(order: Order, status: str, fingerprint: str, result: str) -> Any:
    """The stored answer, or why there is none."""
    if fingerprint != order.fingerprint:
        raise HTTPException(422)
    if status != "done":
        raise HTTPException(409)
    return json.loads(result)


def charged(order: Order, charge: Charge) -> dict[str, Any]:
    return charge(order.order, order.amount, order.currency)


def lost(key: str) -> HTTPException:
    return HTTPException(500, f"{key} was taken over")


def on_sqlite(path: str, charge: Charge) -> Any:
    """A plain function, which runs in a thread: a commit waits for the disk."""
    own = threading.local()

    def connection() -> sqlite3.Connection:
        if not hasattr(own, "db"):
            own.db = sqlite3.connect(path, isolation_level=None, timeout=30)
            own.db.execute("PRAGMA journal_mode = WAL")
            own.db.execute("PRAGMA synchronous = FULL")
            own.db.execute(CREATE)
        db: sqlite3.Connection = own.db
        return db

    def handler(order: Order, key: Key) -> Any:
        db, token, now = connection(), os.urandom(16).hex(), time.time()
        found = db.execute(f"{LOOK_UP} AND expires_at > ?", (key, now)).fetchone()
        if found is not None and found[0] == "done":
            return replayed(order, *found)
        values = (key, token, order.fingerprint, now + LEASE, now + KEEP, now, now)
        if db.execute(CLAIM, values).rowcount != 1:
            return replayed(order, *db.execute(LOOK_UP, (key,)).fetchone())
        answer = charged(order, charge)
        if db.execute(COMPLETE, (json.dumps(answer), key, token)).rowcount != 1:
            raise lost(key)
        return answer

    return handler


def on_postgres(server: str, charge: Charge) -> Any:
    """On connections of psycopg's pool."""
    pools = import_module("psycopg_pool")
    pool = pools.AsyncConnectionPool(server, kwargs={"autocommit": True}, open=False, min_size=8, max_size=8)
    import_module("psycopg").connect(server, autocommit=True).execute(PG_CREATE)

    async def handler(order: Order, key: Key) -> Any:
        token = os.urandom(16).hex()
        await pool.open()
        async with pool.connection() as connection:
            claimed = await connection.execute(PG_CLAIM, (key, token, order.fingerprint))
            if claimed.rowcount != 1:
                found = await (await connection.execute(PG_LOOK_UP, (key,))).fetchone()
                return replayed(order, *found)
        answer = charged(order, charge)
        async with pool.connection() as connection:
            completed = await connection.execute(PG_COMPLETE, (json.dumps(answer), key, token))
        if completed.rowcount != 1:
            raise lost(key)
        return answer

    return handler


def on_redis(server: str, charge: Charge) -> Any:
    """By two scripts."""
    client = import_module("redis.asyncio").Redis.from_url(server, decode_responses=True)
    claim, complete = client.register_script(REDIS_CLAIM), client.register_script(REDIS_COMPLETE)

    async def handler(order: Order, key: Key) -> Any:
        name, token = f"by-hand:{key}", os.urandom(16).hex()
        if found := await claim([name], [token, order.fingerprint, LEASE]):
            return replayed(order, *found)
        answer = charged(order, charge)
        if not await complete([name], [token, json.dumps(answer), KEEP]):
            raise lost(key)
        return answer

    return handler
