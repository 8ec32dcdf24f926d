"""What a Redis has to be for a ledger: stamped, and kept from forgetting."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

from semel.core.clock import Clock
from semel.core.drive import run_sync
from semel.errors import NotPermitted, StoreError, WrongSchema
from semel.model import PROVISION, Problem
from semel.stores.redis.address import Node, parse
from semel.stores.redis.cluster import Requests
from semel.stores.redis.interpreter import Interpreter
from semel.stores.redis.pool import RedisPool
from semel.stores.redis.protocol import RedisCommand

RunRequests: TypeAlias = Callable[[Requests[Any]], Any]

UNSTAMPED = [None, None, None]


def provision(url: str, env: str) -> list[str]:
    """Stamp a Redis for an environment, as the first command of a store does; what was done."""
    with _connected(url, env) as (interpreter, run):
        before = run(_stamp(interpreter))
        run(interpreter.open())
        prefix = interpreter.address.prefix
        return [f"stamped prefix {prefix!r} for environment {env!r}"] if before == UNSTAMPED else []


def problems(url: str, env: str) -> list[Problem]:
    """What is wrong with a Redis, as far as its servers tell."""

    def requests(interpreter: Interpreter) -> Requests[list[Problem]]:
        found = list(_misstamped(interpreter, (yield from _stamp(interpreter))))
        for node in (yield from interpreter.nodes()):
            found += _unsafe(node, (yield from _settings(interpreter, node)))
        return found

    with _connected(url, env) as (interpreter, run):
        found: list[Problem] = run(requests(interpreter))
        return found


@contextmanager
def _connected(url: str, env: str) -> Iterator[tuple[Interpreter, RunRequests]]:
    interpreter = Interpreter(parse(url), env, Clock())
    with closing(RedisPool(interpreter.address)) as pool:
        yield interpreter, lambda requests: run_sync(requests, pool.exchange)


def _stamp(interpreter: Interpreter) -> Requests[list[bytes | None]]:
    words = (b"HMGET", interpreter.stamp, b"environment", b"schema", b"slots")
    [stamped] = yield from interpreter.send([RedisCommand(interpreter.stamp, words)])
    return list(stamped)


def _misstamped(interpreter: Interpreter, stamped: list[bytes | None]) -> Iterator[Problem]:
    prefix = interpreter.address.prefix
    if stamped == UNSTAMPED:
        yield Problem(
            f"prefix {prefix!r} is not stamped for any environment yet",
            f"{PROVISION} (or let the first command do it)",
        )
        return
    try:
        interpreter.check(stamped)
    except WrongSchema as error:
        yield Problem(str(error), "open it as it was made, or choose a prefix that nobody else uses")
    except StoreError as error:
        yield Problem(
            str(error), f"open it for the environment that it belongs to, or use ?prefix=, not {prefix!r}"
        )


def _settings(interpreter: Interpreter, node: Node) -> Requests[dict[bytes, bytes] | None]:
    """A server's configuration; None where it is not to be asked, as with most that are rented."""
    try:
        [flat] = yield from interpreter.on(node, [RedisCommand(b"", (b"CONFIG", b"GET", b"*"))])
    except (NotPermitted, StoreError):
        return None
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _unsafe(node: Node, settings: dict[bytes, bytes] | None) -> Iterator[Problem]:
    if settings is None:
        yield Problem(
            f"whether {node} evicts or loses records could not be checked: it does not let CONFIG be asked",
            "see to it in its console: maxmemory-policy noeviction, and persistence on",
        )
        return
    policy = settings.get(b"maxmemory-policy", b"noeviction").decode()
    if policy != "noeviction":
        yield Problem(
            f"{node} has maxmemory-policy {policy}: short of memory it forgets records, which then run again",
            "set maxmemory-policy to noeviction, or give semel a Redis of its own",
        )
    if settings.get(b"appendonly") == b"no" and not settings.get(b"save"):
        yield Problem(
            f"{node} keeps nothing on disk (appendonly no, save ''): after a restart everything runs again",
            "set appendonly to yes",
        )
