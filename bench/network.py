"""What a call costs its own process when the store is across a network: `python -m bench.network [--json]`.

The servers run beside it, on this machine. The figures are processor time of the client alone, in
microseconds per call, with all its threads; how long a round trip takes is the network's affair.
"""

import argparse
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import semel
from bench import Contender, Effect, Pair, charge, decisions, new_order, prove
from bench.rivals import LambdaContext, _canonical, _pair, absent, subject
from bench.timing import Bar, Table, Timing, compare, conclude, fresh, tabulate
from semel.core.clock import Clock
from semel.provision.places import ProvisionTarget, opened
from semel.tables import OWN
from tests.servers.dynamodb import dynoxide
from tests.servers.postgres import postgres
from tests.servers.redis import redis_server

PACKAGES = (
    "semel",
    "boto3",
    "aws-lambda-powertools",
    "psycopg",
    "psycopg-pool",
    "redis",
    "idemkit",
    "asyncpg",
    "aioboto3",
)
ENV = "bench"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}
DONE = "order-0"


def provision(url: str, chosen: tuple[str, ...] = ()) -> None:
    """Make the tables, with the indexes that are chosen."""
    with opened(ProvisionTarget(url=url, env=ENV, tables=OWN, clock=Clock(), chosen=chosen)) as builder:
        builder.provision(lambda _: None)


@contextmanager
def open_semel(effect: Effect, url: str) -> Iterator[Pair]:
    """semel, with the call that everybody makes; each opening has keys of its own."""
    with semel.connect(url, env=ENV, scope=os.urandom(4).hex()) as s:
        yield _pair(s.once("charge:{order[id]}")(effect))


# --- DynamoDB -------------------------------------------------------------------------------------


class Recorded:
    """A transport that notes what is sent through it."""

    def __init__(self, transport: Any, sent: list[tuple[str, dict[str, Any]]]) -> None:
        self._transport = transport
        self._sent = sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def exchange(self, operation: str, request: Any, *, write: bool) -> Any:
        request = request() if callable(request) else request
        self._sent.append((operation, request))
        return self._transport.exchange(operation, request, write=write)


def _watch_dynamodb(store: Any, sent: list[Any]) -> None:
    store._operations._transport = Recorded(store._transport, sent)


def recorded(url: str) -> list[tuple[str, dict[str, Any]]]:
    """The requests that semel makes for a first call and a replay of it."""
    sent: list[tuple[str, dict[str, Any]]] = []
    with semel.connect(url, env=ENV, scope=os.urandom(4).hex()) as s:
        s.ledger.get("warm")
        _watch_dynamodb(s.store, sent)
        protected = s.once("charge:{order[id]}")(charge)
        protected(new_order(0))
        protected(new_order(0))
    return sent


def _for_boto(request: Any) -> Any:
    """A request as boto3 takes it: bytes as bytes."""
    from base64 import b64decode

    if isinstance(request, list):
        return [_for_boto(one) for one in request]
    if not isinstance(request, dict):
        return request
    return {
        name: b64decode(one) if name == "B" and isinstance(one, str) else _for_boto(one)
        for name, one in request.items()
    }


@contextmanager
def open_boto3(effect: Effect, url: str, endpoint: str) -> Iterator[Pair]:
    """The same requests by a boto3 client, tuned as its users tune it."""
    client = _client(endpoint)
    steps = [(operation, _for_boto(request)) for operation, request in recorded(url)]
    (_, claim), (_, complete), (_, again) = steps
    prefix, numbers = os.urandom(4).hex(), itertools.count(1)
    failed = import_module("botocore.exceptions").ClientError

    def first() -> Any:
        key = {"S": f"{prefix}/{next(numbers)}"}
        client.put_item(**claim | {"Item": claim["Item"] | {"id": key}})
        answer = effect(new_order(0))
        client.update_item(**complete | {"Key": {"id": key}})
        return answer

    def replay() -> Any:
        try:
            client.put_item(**again)
        except failed as refusal:
            return json.loads(refusal.response["Item"]["result"]["B"])
        raise AssertionError("a replay must be refused")

    yield Pair(first, replay)
    client.close()


def _client(endpoint: str) -> Any:
    config = import_module("botocore.config").Config(
        parameter_validation=False, tcp_keepalive=True, max_pool_connections=50, retries={"max_attempts": 1}
    )
    return import_module("boto3").client("dynamodb", endpoint_url=endpoint, config=config)


@contextmanager
def open_powertools(effect: Effect, endpoint: str, table: str) -> Iterator[Pair]:
    powertools = import_module("aws_lambda_powertools.utilities.idempotency")
    config = powertools.IdempotencyConfig(
        event_key_jmespath="id", payload_validation_jmespath="@", lambda_context=LambdaContext()
    )
    client = _client(endpoint)
    store = powertools.DynamoDBPersistenceLayer(table_name=table, boto3_client=client)
    wrap = powertools.idempotent_function(
        data_keyword_argument="order", persistence_store=store, config=config, key_prefix=os.urandom(4).hex()
    )
    wrapped = wrap(effect)
    yield _pair(lambda order: wrapped(order=order))
    client.close()


def dynamodb(endpoint: str) -> tuple[Contender, ...]:
    """Who is timed on DynamoDB; the first is the base."""
    url = f"dynamodb://us-east-1?endpoint={endpoint}"
    provision(url)
    table = "IdempotencyTable"
    site = ProvisionTarget(
        url=url, env=ENV, tables=(import_module("semel.tables.powertools").POWERTOOLS,), clock=Clock()
    )
    with opened(site) as builder:
        builder.provision(lambda _: None)
    return (
        Contender(
            "bare boto3", partial(open_boto3, url=url, endpoint=endpoint), ("boto3",), "the same requests"
        ),
        Contender("semel DynamoDB", partial(open_semel, url=url), note="payload checked"),
        Contender(
            "Powertools",
            partial(open_powertools, endpoint=endpoint, table=table),
            ("aws-lambda-powertools", "boto3"),
            "payload validated",
        ),
        Contender(
            "idemkit DynamoDB",
            partial(open_idemkit, backend=partial(_idemkit_on_dynamodb, endpoint)),
            ("idemkit", "aioboto3"),
            "payload checked",
        ),
    )


# --- Cold start -----------------------------------------------------------------------------------

OUR_START = """
import semel
s = semel.connect("dynamodb://us-east-1?endpoint={endpoint}", env="bench")
claim = s.ledger.claim("{key}")
assert type(claim).__name__ == "Claimed"
"""
THEIR_START = """
import boto3
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function)
store = DynamoDBPersistenceLayer(
    table_name="IdempotencyTable", boto3_client=boto3.client("dynamodb", endpoint_url="{endpoint}"))
ran = []
@idempotent_function(data_keyword_argument="order", persistence_store=store, config=IdempotencyConfig())
def charge(order):
    # The claim is made; what comes after is not part of a start.
    ran.append(now())
charge(order={{"id": "{key}"}})
"""


def cold_starts(endpoint: str, repeat: int) -> Table:
    """A new process: imports, a client, the first claim; credentials are in the environment."""
    programs = {"Powertools": THEIR_START, "semel DynamoDB": OUR_START}
    rounds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(-1, repeat):
        for name, program in programs.items():
            took = _start(program.format(endpoint=endpoint, key=os.urandom(8).hex()))
            if number >= 0:  # the first writes the bytecode
                rounds[name].append(took)
    timings = {name: Timing(tuple(figures)) for name, figures in rounds.items()}
    return tabulate("cold start, wall clock", timings, "Powertools", {})


def _start(program: str) -> float:
    code = (
        "from time import perf_counter as now\nran = []\nbegan = now()\n"
        + program
        + "\nprint(((ran[0] if ran else now()) - began) * 1e6, flush=True)\nimport os\nos._exit(0)\n"
    )
    return fresh(code)


# --- PostgreSQL and Redis -------------------------------------------------------------------------

# Every new key of a bare contender is as long as the one that was recorded, so that it fits in its place.
RECORDED = "order-1000000"


def _numbered() -> Iterator[str]:
    return (f"order-{number}" for number in itertools.count(1_000_001))


def _renamed(value: Any, key: str) -> Any:
    """A recorded value, with another key in the place of the recorded one."""
    if isinstance(value, bytes):
        return value.replace(RECORDED.encode(), key.encode())
    return value.replace(RECORDED, key) if isinstance(value, str) else value


def _watched(url: str, watch: Callable[[Any, list[Any]], None]) -> list[Any]:
    """What semel sends for a first call and a replay of it, as `watch` notes it."""
    sent: list[Any] = []
    with semel.connect(url, env=ENV, scope=os.urandom(4).hex()) as s:
        s.ledger.get("warm")
        watch(s.store, sent)
        protected = s.once("charge:{order[id]}")(charge)
        order = new_order(1_000_000)
        protected(order)
        protected(order)
    return sent


def _watch_postgres(store: Any, sent: list[Any]) -> None:
    of = store._steps.of

    def noting(command: Any) -> Any:
        steps = of(command)
        trip = next(steps)
        while True:
            sent.extend(trip.statements)
            answers = yield trip
            try:
                trip = steps.send(answers)
            except StopIteration as end:
                return end.value

    store._steps.of = noting


@contextmanager
def open_psycopg(effect: Effect, url: str, pooled: bool) -> Iterator[Pair]:
    """The same statements by psycopg: on connections of its pool, or on one that is nobody else's."""
    psycopg = import_module("psycopg")
    (claim, complete, again) = _watched(url, _watch_postgres)
    keys = _numbered()
    settings = {"autocommit": True, "cursor_factory": psycopg.RawCursor}
    with ExitStack() as stack:
        if pooled:
            pools = import_module("psycopg_pool")
            take = stack.enter_context(
                pools.ConnectionPool(url.partition("?")[0], kwargs=settings)
            ).connection
        else:
            take = partial(
                nullcontext, stack.enter_context(psycopg.connect(url.partition("?")[0], **settings))
            )

        def ask(statement: Any, key: str) -> Any:
            sql, values = statement
            values = [_renamed(value, key) for value in values]
            with take() as connection:
                return connection.execute(sql, values, binary=True).fetchone()

        def first() -> Any:
            key = next(keys)
            ask(claim, key)
            answer = effect(new_order(0))
            ask(complete, key)
            return answer

        yield Pair(first, lambda: ask(again, RECORDED))


def _watch_redis(store: Any, sent: list[Any]) -> None:
    exchange = store._pool.exchange

    def noting(asked: Any) -> Any:
        sent.append(asked.data)
        return exchange(asked)

    store._pool.exchange = noting


def _commands(data: bytes) -> list[list[bytes]]:
    """Commands as Redis reads them, in their words."""
    commands: list[list[bytes]] = []
    while data:
        head, _, data = data.partition(b"\r\n")
        words: list[bytes] = []
        for _ in range(int(head[1:])):
            size, _, data = data.partition(b"\r\n")
            words.append(data[: int(size[1:])])
            data = data[int(size[1:]) + 2 :]
        commands.append(words)
    return commands


@contextmanager
def open_redis_py(effect: Effect, url: str) -> Iterator[Pair]:
    """The same scripts with the same arguments, by redis-py."""
    sent = [words for data in _watched(url, _watch_redis) for words in _commands(data)]
    (claim, complete, again) = [words for words in sent if words[0] == b"EVALSHA"]
    client = import_module("redis").Redis.from_url(url.partition("?")[0])
    keys = _numbered()

    def ask(words: list[bytes], key: str) -> Any:
        return client.execute_command(*[_renamed(word, key) for word in words])

    def first() -> Any:
        key = next(keys)
        ask(claim, key)
        answer = effect(new_order(0))
        ask(complete, key)
        return answer

    yield Pair(first, lambda: ask(again, RECORDED))
    client.close()


@contextmanager
def open_idemkit(effect: Effect, backend: Callable[[], Any]) -> Iterator[Pair]:
    """idemkit, whose sync form runs on an event loop in a thread of its own."""
    idemkit = import_module("idemkit")
    scope = os.urandom(4).hex()
    config = idemkit.MethodConfig(
        key_fields=["order.id"], scope=lambda _: scope, validation_fingerprint=_canonical
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = idemkit.idempotent_sync(backend=backend(), config=config)(effect)
        yield _pair(lambda order: wrapped(order=order))


def _idemkit_on_dynamodb(endpoint: str) -> Any:
    return import_module("idemkit.backends.dynamodb").DynamoBackend.from_url(endpoint)


def _idemkit_on_redis(server: str) -> Any:
    return import_module("idemkit.backends.redis").RedisBackend.from_url(server)


def _idemkit_on_postgres(server: str) -> Any:
    run_idemkit = import_module("idemkit.cli").main
    run_idemkit(["init-pg", server])
    return import_module("idemkit.backends.postgres").PostgresBackend.from_url(server)


def on_postgres(server: str) -> tuple[Contender, ...]:
    """Who is timed on PostgreSQL; the first is the base."""
    url = f"{server}?schema=bench"
    provision(url)
    return (
        Contender(
            "bare psycopg",
            partial(open_psycopg, url=url, pooled=True),
            ("psycopg", "psycopg-pool"),
            "the same statements, its pool",
        ),
        Contender(
            "psycopg, one connection",
            partial(open_psycopg, url=url, pooled=False),
            ("psycopg",),
            "the same statements, no pool: for one thread",
        ),
        Contender("semel PostgreSQL", partial(open_semel, url=url), note="payload checked"),
        Contender(
            "idemkit PostgreSQL",
            partial(open_idemkit, backend=partial(_idemkit_on_postgres, server)),
            ("idemkit", "asyncpg"),
            "asyncpg, payload checked",
        ),
    )


def on_redis(server: str) -> tuple[Contender, ...]:
    """Who is timed on Redis; the first is the base."""
    url = f"{server}?prefix=bench"
    provision(url)
    return (
        Contender("bare redis-py", partial(open_redis_py, url=url), ("redis",), "the same scripts"),
        Contender("semel Redis", partial(open_semel, url=url), note="payload checked"),
        Contender(
            "idemkit Redis",
            partial(open_idemkit, backend=partial(_idemkit_on_redis, server)),
            ("idemkit", "redis"),
            "payload checked",
        ),
    )


# --- All of it ------------------------------------------------------------------------------------


WHICH = ("first", "replay")


def timed(title: str, which: str, contenders: Sequence[Contender], number: int, repeat: int) -> Table:
    """Processor time of one call of all contenders, side by side; who does the whole job is proven first."""
    for one in contenders:
        if one.name.startswith(("semel", "Powertools", "idemkit")) and not absent(one.needs):
            prove(one)
    notes = {one.name: absent(one.needs) or one.note for one in contenders}
    present = {one.name: subject(one, which) for one in contenders if not absent(one.needs)}
    timings = compare(present, number, repeat, time.process_time)
    return tabulate(title, timings, contenders[0].name, notes)


def decided(servers: dict[str, str], number: int, repeat: int) -> list[Table]:
    """Decisions of the gate beside bare transactions of the same size."""
    dynamo, sql = (
        f"dynamodb://us-east-1?endpoint={servers['DynamoDB']}",
        f"{servers['PostgreSQL']}?schema=bench",
    )
    fast = f"{servers['Redis']}?prefix=bench"
    client = partial(_client, servers["DynamoDB"])
    bare = {
        "DynamoDB": (dynamo, partial(decisions.open_boto3, dynamo, client, _watch_dynamodb, _for_boto)),
        "PostgreSQL": (sql, partial(decisions.open_psycopg, sql, _watch_postgres)),
        "Redis": (fast, partial(decisions.open_redis_py, fast, _watch_redis, _commands)),
    }
    return [
        decisions.table(
            f"{name}, CPU",
            one,
            decisions.semel_on(url),
            number=number,
            repeat=repeat,
            timer=time.process_time,
        )
        for name, (url, one) in bare.items()
    ]


def tables(number: int, repeat: int) -> list[Table]:
    """Start the servers, prove every contender that can be proven, and time them all."""
    os.environ |= {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    done: list[Table] = []
    with ExitStack() as servers:
        started = {
            "DynamoDB": (endpoint := servers.enter_context(dynoxide())),
            "PostgreSQL": servers.enter_context(postgres()),
            "Redis": servers.enter_context(redis_server()),
        }
        places = {
            "DynamoDB": dynamodb(endpoint),
            "PostgreSQL": on_postgres(started["PostgreSQL"]),
            "Redis": on_redis(started["Redis"]),
        }
        alone = [one for several in places.values() for one in several if one.name.startswith("idemkit")]
        for name, contenders in places.items():
            quiet = [one for one in contenders if one not in alone]
            done += [timed(f"{which}, {name}, CPU", which, quiet, number, repeat) for which in WHICH]
        done += decided(started, number, repeat)
        done.append(cold_starts(endpoint, repeat))
        # Its threads go on after its rounds, and would count into everybody else's.
        for name, contenders in places.items():
            pair = [contenders[0], *(one for one in contenders if one in alone)]
            done += [timed(f"{which}, {name}, CPU, idemkit", which, pair, number, repeat) for which in WHICH]
    return done


def bars(done: list[Table]) -> list[Bar]:
    """What was promised, against what was found."""

    def ratio(title: str, name: str, base: str) -> float:
        rows = {row.name: row.timing for row in next(t for t in done if t.title == title).rows}
        mine, theirs = rows.get(name), rows.get(base)
        return mine.median / theirs.median if mine and theirs else float("nan")

    found = []
    for which in ("first", "replay"):
        title = f"{which}, DynamoDB, CPU"
        found += [
            Bar(f"{which} on DynamoDB to bare boto3", ratio(title, "semel DynamoDB", "bare boto3"), 0.4),
            Bar(f"{which} on DynamoDB to Powertools", ratio(title, "semel DynamoDB", "Powertools"), 0.25),
        ]
        for name, bare in (("PostgreSQL", "bare psycopg"), ("Redis", "bare redis-py")):
            what = f"{which} on {name} to {bare}"
            found.append(Bar(what, ratio(f"{which}, {name}, CPU", f"semel {name}", bare), 1.15))
    found.append(
        Bar("cold start to Powertools'", ratio("cold start, wall clock", "semel DynamoDB", "Powertools"), 0.3)
    )
    return found


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.network", description=__doc__)
    parser.add_argument("--number", type=int, default=300, help="calls in a round")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    done = tables(options.number, options.repeat)
    return conclude(done, bars(done), PACKAGES, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
