"""A hot key: many callers of one process want one key at once, as threads and as tasks.

One runs, for a fifth of a second, and the others wait for its result. Requests are counted at the wire, by a
proxy before the server, with those that open a connection; on SQLite they are the commands that the store was
given.
"""

import argparse
import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import semel
from bench import bare
from bench.servers import ENV, provision, servers, url_of
from bench.timing import Bar, Listing, conclude
from semel.testing import FaultProxy

PACKAGES = ("semel", "psycopg", "redis")
WORK_SECONDS = 0.2


class Counting:
    """Counts what comes by, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0

    def __call__(self, *_: object) -> bool:
        with self._lock:
            self.total += 1
        return False


@contextmanager
def counted_server(name: str, address: str) -> Iterator[tuple[str, Counting]]:
    """A store behind a proxy that counts what is sent to it."""
    provision(url_of(name, address))
    count = Counting()
    with FaultProxy.before(address) as proxy:
        proxy.drop_answer_to(
            count
        )  # it asks about each request whether this is the one, and never is told so
        yield url_of(name, proxy.url(address)), count


@contextmanager
def counted_file() -> Iterator[tuple[str, Counting]]:
    """A file; its commands are counted by `watched`."""
    with bare.disk_folder() as folder:
        yield f"sqlite:///{folder / 'semel.db'}", Counting()


def watched(s: semel.Semel, count: Counting) -> None:
    """Count the commands that a store is given."""
    store: Any = s.store
    execute, aexecute = store.execute, store.aexecute

    def noting(command: Any) -> Any:
        count()
        return execute(command)

    async def anoting(command: Any) -> Any:
        count()
        return await aexecute(command)

    store.execute, store.aexecute = noting, anoting


@dataclass(frozen=True)
class Found:
    """What came of it."""

    effects: int
    answers: int
    requests: int
    seconds: float


def by_threads(s: semel.Semel, waiters: int) -> tuple[int, int]:
    """How often the effect ran, and how many got its result."""
    effects, answers = Counting(), Counting()

    @s.once("hot:{name}")
    def work(name: str) -> str:  # noqa: ARG001 - the key has it
        effects()
        time.sleep(WORK_SECONDS)
        return "done"

    def call(name: str) -> None:
        if work(name) == "done":
            answers()

    name = os.urandom(4).hex()
    threads = [threading.Thread(target=call, args=(name,)) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return effects.total, answers.total


def by_tasks(s: semel.Semel, waiters: int) -> tuple[int, int]:
    """The same with tasks of one event loop."""
    effects = Counting()

    @s.once("hot:{name}")
    async def work(name: str) -> str:  # noqa: ARG001 - the key has it
        effects()
        await asyncio.sleep(WORK_SECONDS)
        return "done"

    async def all_of_them(name: str) -> list[str]:
        async with s.aio:
            return await asyncio.gather(*(work(name) for _ in range(waiters)))

    answers = asyncio.run(all_of_them(os.urandom(4).hex()))
    return effects.total, answers.count("done")


WAYS: dict[str, Callable[[semel.Semel, int], tuple[int, int]]] = {"threads": by_threads, "tasks": by_tasks}


def tried(url: str, count: Counting, way: str, waiters: int) -> Found:
    """One crowd on a store of its own connections."""
    with semel.connect(url, env=ENV) as s:
        s.ledger.get("warm")
        if url.startswith("sqlite"):
            watched(s, count)
        before, begun = count.total, time.perf_counter()
        effects, answers = WAYS[way](s, waiters)
        return Found(effects, answers, count.total - before, time.perf_counter() - begun)


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.hotkey", description=__doc__)
    parser.add_argument("--waiters", type=int, default=1_000, help="callers of one key")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    found: dict[tuple[str, str], Found] = {}
    with servers() as started:
        places = {"SQLite": counted_file()}
        places |= {name: counted_server(name, address) for name, address in started.addresses.items()}
        for name, place in places.items():
            with place as (url, count):
                found |= {(name, way): tried(url, count, way, options.waiters) for way in WAYS}
    listing = listed(found, options.waiters)
    return conclude(
        [], bars(found, options.waiters), PACKAGES, options.json, listings=[listing], absent=started.absent
    )


def listed(found: dict[tuple[str, str], Found], waiters: int) -> Listing:
    columns = ("store", "callers", "effects", "results", "requests", "requests a caller", "seconds")
    rows = [
        (
            f"{name}, {way}",
            waiters,
            one.effects,
            one.answers,
            one.requests,
            one.requests / waiters,
            one.seconds,
        )
        for (name, way), one in found.items()
    ]
    return Listing("a hot key", columns, tuple(rows))


def bars(found: dict[tuple[str, str], Found], waiters: int) -> list[Bar]:
    """What was promised, against what was found."""
    wrong = sum(abs(one.effects - 1) + waiters - one.answers for one in found.values())
    return [Bar("a hot key: effects but one, and callers without its result", wrong, 0, "of them")]


if __name__ == "__main__":
    raise SystemExit(main())
