"""The page of what semel runs on Redis: `python -m tests.redis_page > docs/reference/redis.md`.

The ledger works on a store in memory; what Redis would be sent for each of its commands is noted beside.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import semel
from semel.core.clock import Clock
from semel.core.commands import Found, Get, Item, Page, Query, Update
from semel.stores.redis import scripts
from semel.stores.redis.address import parse
from semel.stores.redis.interpreter import Interpreter
from semel.stores.redis.protocol import RedisRequest, read
from semel.stores.redis.scripts import Script
from semel.tables import LEDGER

HEADER = """\
# What runs on Redis

This page shows the calls that the ledger makes, so that you can recognise them in `MONITOR` and `SLOWLOG`. It
is generated from the code by `python -m tests.redis_page`. The key is `charge:o-1` in the environment `prod`,
and `TOKEN` is the random token of a claim.

A call is sent as `EVALSHA` with the digest of its script; if the server does not have the script yet, its
text is sent with `EVAL`. Every call takes one round trip, except a page of doubts. The arguments are shown
below each call. Those of `write.lua` are a MessagePack value, shown field by field, and bytes after it, the
first of which is referred to as `{"at": 2}`. `{"seconds": 30.0}` is this long after the server's time; an
empty time means the server's own. [keys.py](../../src/semel/stores/redis/keys.py) defines the names of keys,
and [scripts.py](../../src/semel/stores/redis/scripts.py) the fields of a write.
"""
SCRIPTS_HEADING = """
## The scripts

Each script is sent exactly as it is in its file. The server identifies it by its digest, which changes with
the file.

| script | digest | what it does |
|---|---|---|
"""
NAMES = ("write", "read", "index", "doubt", "page", "open")
BY_DIGEST: dict[bytes, str] = {getattr(scripts, name.upper()).digest: name for name in NAMES}
KEY = "charge:o-1"
KEY_ID = f"prod//{KEY}"
TOKEN = re.compile("[0-9a-f]{32}")


class Recorder:
    """Notes what Redis would be sent for the commands of a store."""

    def __init__(self, store: Any) -> None:
        self.result: Any = None
        self._execute = store.execute
        self._interpreter = Interpreter(parse("redis://localhost"), "prod", Clock())
        self._interpreter._open = True
        self._calls: list[str] | None = None

    def __call__(self, action: Callable[[], Any]) -> list[str]:
        """The calls that an action makes, without what differs from run to run."""
        calls: list[str] = []
        self._calls = calls
        self.result = action()
        self._calls = None
        return [TOKEN.sub("TOKEN", line) for line in calls]

    def execute(self, command: Any) -> Any:
        """Carry a command out, and note its requests if they are asked for."""
        before = self._execute(Get(LEDGER, KEY_ID)).item
        reply = self._execute(command)
        if self._calls is None:
            return reply
        self._interpreter.time.observe(Found(0.0, None))
        requests = self._interpreter.perform(command)
        self._calls += rendered(next(requests))
        if isinstance(command, Query):
            self._calls += rendered(requests.send([self._entries(command, reply)]))
        elif isinstance(command, Update) and self._interpreter.plan(LEDGER).indexes.touched(command):
            # The item is read first, since its places in indexes depend on it.
            self._calls += rendered(requests.send([again(before)]))
        return reply

    def _entries(self, query: Query, page: Page) -> list[Any]:
        """The reply of index.lua that leads to these items."""
        index = self._interpreter.plan(query.table).indexes.named(query.index)
        entries = [index.entry(item) for item in page.items]
        head = msgspec.msgpack.encode((page.now, []))
        return [head, [entry.member.encode() for entry in entries if entry is not None]]


def again(item: Item) -> list[bytes]:
    """The reply of write.lua that an item is in another place of an index than the write tells."""
    fields = [(name, value) for name, value in item.items() if name != LEDGER.partition]
    flat = [f"{text}".encode() for field in fields for text in field]
    return [msgspec.msgpack.encode((0.0, [[2, *map(len, flat)]])), b"".join(flat)]


@contextmanager
def recorded() -> Iterator[tuple[Any, Recorder]]:
    """A ledger, and what notes its calls."""
    with semel.connect("memory:", env="prod", worker="host:1") as s:
        recorder = Recorder(s.store)
        s.store.execute = recorder.execute  # type: ignore[method-assign]
        yield s.ledger, recorder


# The page


def text() -> str:
    """The whole page."""
    parts = [HEADER]
    for title, calls in sections():
        parts.append(f"\n## {title}\n\n```text\n" + "\n".join(calls) + "\n```\n")
    parts.append(SCRIPTS_HEADING)
    parts += [_row(name, getattr(scripts, name.upper())) for name in NAMES]
    return "".join(parts)


def _row(name: str, script: Script) -> str:
    purpose = script.text.decode().partition("\n")[0].removeprefix("-- ")
    link = f"[{name}.lua](../../src/semel/stores/redis/{name}.lua)"
    return f"| {link} | `{script.digest.decode()}` | {purpose} |\n"


def sections() -> Iterator[tuple[str, list[str]]]:
    """Each thing that the ledger does, and the calls that it makes."""
    with recorded() as (ledger, calls_of):
        terms = {"fingerprint": "FINGERPRINT", "lease": 30, "ttl": 86400}
        yield "A claim", calls_of(lambda: ledger.claim(KEY, **terms))
        claim = calls_of.result
        yield "Its renewal, by a heartbeat", calls_of(lambda: ledger.renew(claim))
        yield "Its completion", calls_of(lambda: ledger.complete(claim, {"paid": True}))
        yield "A replay: a claim that finds the result", calls_of(lambda: ledger.claim(KEY, **terms))
        yield "A read of a record", calls_of(lambda: ledger.get(KEY))
    with recorded() as (ledger, calls_of):
        claim = ledger.claim(KEY)
        yield "A failure that is kept", calls_of(lambda: ledger.fail(claim, ValueError("no such card")))
    with recorded() as (ledger, calls_of):
        claim = ledger.claim(KEY)
        yield "A release", calls_of(lambda: ledger.release(claim))
    with recorded() as (ledger, calls_of):
        ledger.doubt(ledger.claim(KEY))
        yield "A page of the doubts", calls_of(ledger.doubts)


def rendered(request: RedisRequest) -> list[str]:
    """A request as an operator reads it: each call, and its arguments below it."""
    lines, start = [], 0
    for _ in range(request.count):
        parsed = read(request.data, start)
        assert parsed is not None
        words, start = parsed
        lines += _call(words)
    return lines


def _call(words: list[bytes]) -> list[str]:
    _, digest, count, *rest = words
    name, keys, arguments = BY_DIGEST[digest], rest[: int(count)], rest[int(count) :]
    first = f"EVALSHA <{name}.lua> {int(count)} {b' '.join(keys).decode()}"
    if name != "write":
        return [first, "    " + " ".join(each.decode() or "''" for each in arguments)]
    batch, *binary = arguments
    return [first, *_batch(msgspec.msgpack.decode(batch)), *(f"    {repr(each)[1:]}" for each in binary)]


def _batch(batch: dict[str, Any]) -> Iterator[str]:
    """What write.lua is to do, a field to the line."""
    for write in batch.pop("writes"):
        for name, value in write.items():
            fields = {f"set.{each}": value[each] for each in value} if name == "set" else {name: value}
            yield from _fields(fields)
    yield from _fields(batch)


def _fields(fields: dict[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        yield f"    {name} = {json.dumps(value)}"


if __name__ == "__main__":
    sys.stdout.write(text())
