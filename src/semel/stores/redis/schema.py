"""What a Redis has to be for a ledger: stamped, and kept from forgetting."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

from semel.clock import Clock
from semel.errors import NotPermitted, StoreError, WrongSchema
from semel.model import PROVISION, Problem
from semel.stores.redis.address import Node, parse
from semel.stores.redis.asks import Ask
from semel.stores.redis.lines import Lines, converse
from semel.stores.redis.servers import Dialogue
from semel.stores.redis.talk import Talk

T = TypeVar("T")

UNSTAMPED = [None, None, None]


def provision(url: str, env: str) -> list[str]:
    """Stamp a Redis for an environment, as the first command of a store does; what was done."""

    def steps(talk: Talk) -> Dialogue[list[str]]:
        before = yield from _stamp(talk)
        yield from talk.open()
        prefix = talk.address.prefix
        return [f"stamped prefix {prefix!r} for environment {env!r}"] if before == UNSTAMPED else []

    return _talked(url, env, steps)


def problems(url: str, env: str) -> list[Problem]:
    """What is wrong with a Redis, as far as its servers tell."""

    def steps(talk: Talk) -> Dialogue[list[Problem]]:
        found = list(_misstamped(talk, (yield from _stamp(talk))))
        for node in (yield from talk.nodes()):
            found += _unsafe(node, (yield from _settings(talk, node)))
        return found

    return _talked(url, env, steps)


def _talked(url: str, env: str, steps: Callable[[Talk], Dialogue[T]]) -> T:
    talk = Talk(parse(url), env, Clock())
    with closing(Lines(talk.address)) as lines:
        return converse(steps(talk), lines.exchange)


def _stamp(talk: Talk) -> Dialogue[list[bytes | None]]:
    words = (b"HMGET", talk.stamp, b"environment", b"schema", b"slots")
    [stamped] = yield from talk.send([Ask(talk.stamp, words)])
    return list(stamped)


def _misstamped(talk: Talk, stamped: list[bytes | None]) -> Iterator[Problem]:
    prefix = talk.address.prefix
    if stamped == UNSTAMPED:
        yield Problem(
            f"prefix {prefix!r} is not stamped for any environment yet",
            f"{PROVISION} (or let the first command do it)",
        )
        return
    try:
        talk.check(stamped)
    except WrongSchema as error:
        yield Problem(str(error), "open it as it was made, or choose a prefix that nobody else uses")
    except StoreError as error:
        yield Problem(
            str(error), f"open it for the environment that it belongs to, or use ?prefix=, not {prefix!r}"
        )


def _settings(talk: Talk, node: Node) -> Dialogue[dict[bytes, bytes] | None]:
    """A server's configuration; None where it is not to be asked, as with most that are rented."""
    try:
        [flat] = yield from talk.on(node, [Ask(b"", (b"CONFIG", b"GET", b"*"))])
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
