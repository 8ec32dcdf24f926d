"""Libraries that are timed in a process and an environment of their own, beside the limit of the same store.

idemkit and DBOS keep threads at work after a call, which would count into everybody else's processor time;
and what idemkit needs for DynamoDB cannot be installed beside the engines of the tests. `make bench` fills
their environment, `.venv/rivals`, from `bench/rivals.txt`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import Contender, Effect, Pair, bare, charge, pair_of, prove, raw
from bench.rivals import canonical, subject
from bench.servers import url_of
from bench.timing import Ratio, Row, Subject, Table, Timing, compare, installed

ENVIRONMENT = Path(sys.prefix) / "rivals"
PACKAGES = {"idemkit": ("idemkit", "asyncpg", "aioboto3"), "DBOS": ("dbos",)}
LIMIT = "the limit"
WHICH = ("first", "replay")


# --- The libraries --------------------------------------------------------------------------------


@contextmanager
def open_idemkit(effect: Effect, backend: Callable[[], Any]) -> Iterator[Pair]:
    """idemkit, whose sync form runs on an event loop in a thread of its own."""
    idemkit = import_module("idemkit")
    scope = os.urandom(4).hex()
    config = idemkit.MethodConfig(
        key_fields=["order.id"], scope=lambda _: scope, validation_fingerprint=canonical
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = idemkit.idempotent_sync(backend=backend(), config=config)(effect)
        yield pair_of(lambda order: wrapped(order=order))


def idemkit_on(store: str, address: str) -> Any:
    """Its backend for a store."""
    backends = {"DynamoDB": "DynamoBackend", "PostgreSQL": "PostgresBackend", "Redis": "RedisBackend"}
    module = {"DynamoDB": "dynamodb", "PostgreSQL": "postgres", "Redis": "redis"}[store]
    if store == "PostgreSQL":
        import_module("idemkit.cli").main(["init-pg", address])
    return getattr(import_module(f"idemkit.backends.{module}"), backends[store]).from_url(address)


@contextmanager
def open_dbos(effect: Effect, address: str) -> Iterator[Pair]:
    """DBOS: a workflow whose id is the key; when it is started again, it gives the first result."""
    dbos = import_module("dbos")
    with bare.disk_folder() as folder:
        url = address or f"sqlite:///{folder / 'dbos.db'}"
        settings = {
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "run_admin_server": False,
        }
        dbos.DBOS(config=settings)
        workflow, scope = dbos.DBOS.workflow(name="charge")(effect), os.urandom(4).hex()
        dbos.DBOS.launch()

        def call(order: Any) -> Any:
            with dbos.SetWorkflowID(f"{scope}:charge:{order['id']}"):
                return workflow(order)

        try:
            yield pair_of(call)
        finally:
            dbos.DBOS.destroy(destroy_registry=True)


def rival(name: str, store: str, address: str) -> Contender:
    """A library on a store."""
    if name == "DBOS":
        note = "a workflow with an id; another payload is not noticed"
        return Contender("DBOS", partial(open_dbos, address=address), ("dbos",), note)
    return Contender(
        "idemkit",
        partial(open_idemkit, backend=partial(idemkit_on, store, address)),
        ("idemkit",),
        "payload checked",
    )


def limit(store: str, address: str) -> Contender:
    """The limit of a store, which the library is compared with."""
    if store == "SQLite":
        return replace(bare.SQLITE, name=LIMIT)
    url = url_of(store, address)
    opened = {
        "DynamoDB": partial(raw.open_dynamodb, url=url, endpoint=address),
        "PostgreSQL": partial(raw.open_postgres, url=url),
        "Redis": partial(raw.open_redis, url=url),
    }[store]
    return Contender(LIMIT, opened, whole=False)


# --- In the process of its own --------------------------------------------------------------------


def timed(name: str, store: str, address: str, number: int, repeat: int) -> dict[str, Any]:
    """The rounds of a library's two calls, and of the limit's."""
    contender, base = rival(name, store, address), limit(store, address)
    prove(contender)
    timer = time.perf_counter if store == "SQLite" else time.process_time
    found: dict[str, Any] = {
        "versions": {one: installed(one) for one in PACKAGES[name]},
        "note": contender.note,
    }
    for which in WHICH:
        with contender.open(charge) as pair:
            subjects: dict[str, Subject] = {LIMIT: subject(base, which), name: getattr(pair, which)}
            timings = compare(subjects, number, repeat, timer)
        found[which] = {one: list(timing.rounds) for one, timing in timings.items()}
    return found


# --- In the process that asks ---------------------------------------------------------------------


def measured(name: str, store: str, address: str, number: int, repeat: int) -> dict[str, Row]:
    """A row for the table of each call; it says why there are no figures where there are none."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        return dict.fromkeys(WHICH, Row(name, note=f"not installed: {', '.join(PACKAGES[name])}"))
    words = ["--number", str(number), "--repeat", str(repeat)]
    program = [str(python), "-W", "ignore", "-m", "bench.apart", name, store, address, *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        return dict.fromkeys(WHICH, Row(name, note=f"failed: {done.stderr.strip().rpartition(chr(10))[2]}"))
    found = json.loads(done.stdout.strip().rpartition("\n")[2])
    return {which: _row(name, found, which) for which in WHICH}


def _row(name: str, found: dict[str, Any], which: str) -> Row:
    timing, base = (Timing(tuple(found[which][one])) for one in (name, LIMIT))
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items() if version)
    return Row(name, timing, Ratio.of(timing, base), f"{found['note']}; a process of its own, {versions}")


def joined(tables: Sequence[Table], *more: dict[str, Row]) -> list[Table]:
    """The tables of the first call and of the replay, each with the rows that were measured apart."""
    return [
        replace(table, rows=(*table.rows, *(rows[which] for rows in more)))
        for which, table in zip(WHICH, tables, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.apart", description=__doc__)
    parser.add_argument("name", choices=PACKAGES)
    parser.add_argument("store")
    parser.add_argument("address")
    parser.add_argument("--number", type=int, default=300, help="calls in a round")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    options = parser.parse_args()
    print(json.dumps(timed(options.name, options.store, options.address, options.number, options.repeat)))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # their threads would keep the process
