"""Everything that stands in a place, as its own tools show it: no rule of semel's between."""

import json
import sqlite3
from contextlib import closing

from semel.aws.environment import Credentials
from semel.aws.wire import Wire


def rows(place):
    """Every row, item and key there is, whatever it is for: plain values, in no promised order.

    Of a room in a shared place, those that name its scope, as every key does.
    """
    scope = getattr(place, "scope", "")
    there = READERS.get(place.name, dynamodb)(place)
    return [row for row in there if not scope or scope in "\n".join(spelled(row))]


def text(place):
    """All of it as one text; what is written as JSON stands in it as it reads as well."""
    return "\n".join(spelled(rows(place)))


def spelled(value):
    """Every text in a value, also in what is text or bytes of JSON."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from spelled(one)
        return
    if isinstance(value, bytes | memoryview):
        value = bytes(value).decode("utf-8", "replace")
    yield str(value)
    if isinstance(value, str) and value[:1] in ('"', "{", "["):
        try:
            yield from spelled(json.loads(value))
        except ValueError:
            return


def memory(place):
    for table in place.open()._tables.values():
        yield from table.values()


def sqlite(place):
    path = place.url().removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for name in names:
            yield from connection.execute(f'SELECT * FROM "{name}"')


def postgres(place):
    import psycopg
    from psycopg import sql

    with psycopg.connect(place.server) as connection:
        named = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [place.env])
        for (name,) in named.fetchall():
            table = sql.Identifier(place.env, name)
            yield from connection.execute(sql.SQL("SELECT * FROM {}").format(table)).fetchall()


def redis(place):
    import redis

    with redis.Redis.from_url(place.server) as client:
        for key in client.scan_iter(f"{place.env}:*", count=1000):
            yield key, contents(client, key)


def contents(client, key):
    match client.type(key):
        case b"hash":
            return client.hgetall(key)
        case b"zset":
            return client.zrange(key, 0, -1, withscores=True)
        case b"set":
            return client.smembers(key)
        case b"list":
            return client.lrange(key, 0, -1)
        case b"string":
            return client.get(key)
    raise AssertionError(f"{key!r} is of a type that nobody looks into")


def dynamodb(place):
    credentials = Credentials("test", "test")
    with closing(
        Wire("dynamodb", region="us-east-1", endpoint=place.server, credentials=credentials)
    ) as wire:
        for name in titles(wire, place):
            yield from scanned(wire, name)


def titles(wire, place):
    """The tables of this environment; those that have another name, a test gives one with it."""
    start: dict[str, str] = {}
    while True:
        page = wire.call("ListTables", start, write=False)
        yield from (name for name in page["TableNames"] if place.env in name)
        if "LastEvaluatedTableName" not in page:
            return
        start = {"ExclusiveStartTableName": page["LastEvaluatedTableName"]}


def scanned(wire, name):
    request = {"TableName": name, "ConsistentRead": True}
    while True:
        page = wire.call("Scan", request, write=False)
        yield from page["Items"]
        if "LastEvaluatedKey" not in page:
            return
        request["ExclusiveStartKey"] = page["LastEvaluatedKey"]


READERS = {"memory": memory, "sqlite": sqlite, "postgres": postgres, "redis": redis}
