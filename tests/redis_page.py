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
from semel.core.commands import Found
from semel.stores.redis.connection import RedisRequest, read
from semel.stores.redis.interpreter import Interpreter
from semel.stores.redis.router import PAGE, WRITE, Script
from semel.stores.redis.server import parse

HEADER = """\
# What runs on Redis

This page shows the calls that the ledger makes, so that you can recognise them in `MONITOR` and `SLOWLOG`. It
is generated from the code by `python -m tests.redis_page`. The key is `charge:o-1` in the environment `prod`,
and `TOKEN` is the random token of a claim.

A call is sent as `EVALSHA` with the digest of its script; if the server does not have the script, its text
is sent with `EVAL`. Every call takes one round trip. The arguments are shown below each call: an empty time
means the server's own, and those of `write.lua` are a MessagePack value, shown field by field.
`{"seconds": 30.0}` is this long after the server's time. [plan.py](../../src/semel/stores/redis/plan.py)
defines the names of keys, and [write.lua](../../src/semel/stores/redis/write.lua) the fields of a write.
"""
SCRIPTS_HEADING = """
## The scripts

Each script is sent exactly as it is in its file. The server identifies it by its digest, which changes with
the file.

| script | digest | what it does |
|---|---|---|
"""
SCRIPTS = {"write": WRITE, "page": PAGE}
BY_DIGEST = {script.digest: name for name, script in SCRIPTS.items()}
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
        """Execute a command, and note its request if it is asked for."""
        reply = self._execute(command)
        if self._calls is not None:
            self._interpreter.time.observe(Found(0.0, None))
            self._calls += rendered(next(self._interpreter.perform(command)))
        return reply


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
    parts += [_row(name, script) for name, script in SCRIPTS.items()]
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
    now, writes = arguments
    return [f"{first} {now.decode() or repr('')}", *_batch(msgspec.msgpack.decode(writes))]


def _batch(batch: dict[str, Any]) -> Iterator[str]:
    """What write.lua is to do, a field to the line."""
    for write in batch.pop("writes"):
        for name, value in write.items():
            fields = (
                {f"{name}.{each}": value[each] for each in value}
                if isinstance(value, dict)
                else {name: value}
            )
            yield from _fields(fields)
    yield from _fields(batch)


def _fields(fields: dict[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        yield f"    {name} = {json.dumps(value)}"


if __name__ == "__main__":
    sys.stdout.write(text())
