"""What a call costs its own process when the store is across a network: `python -m bench.network [--json]`.

The servers run beside it, on this machine. The figures are processor time of the client alone, in
microseconds per call, with all its threads; how long a round trip takes is the network's affair.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import semel
from bench import Contender, Effect, Pair, apart, byhand, decisions, new_order, pair_of, prove, raw
from bench.recorded import (
    RECORDED,
    commands,
    for_boto,
    later_keys,
    recorded,
    renamed,
    watch_dynamodb,
    watch_postgres,
    watch_redis,
)
from bench.rivals import LambdaContext, absent, subject
from bench.servers import ENV, provision, servers, url_of
from bench.timing import Bar, Ratio, Table, compare, conclude, tabulate
from semel import provision as provisioning
from semel.core.clock import Clock
from semel.tables.powertools import POWERTOOLS

PACKAGES = ("semel", "boto3", "aws-lambda-powertools", "psycopg", "psycopg-pool", "redis")
WHICH = ("first", "replay")
RIVALS = {"DynamoDB": ("idemkit",), "PostgreSQL": ("idemkit", "DBOS"), "Redis": ("idemkit",)}


@contextmanager
def open_semel(effect: Effect, url: str) -> Iterator[Pair]:
    """semel, with the call that everybody makes; each opening has keys of its own."""
    with semel.connect(url, env=ENV, scope=os.urandom(4).hex()) as s:
        yield pair_of(s.once("charge:{order[id]}")(effect))


def sent_by(effect: Effect, requests: list[Any], ask: Callable[[Any, str], Any]) -> Pair:
    """The two calls, as a driver sends what semel was seen to send."""
    claim, complete, again = requests
    keys = later_keys()

    def first() -> Any:
        key = next(keys)
        ask(claim, key)
        answer = effect(new_order(0))
        ask(complete, key)
        return answer

    return Pair(first, lambda: ask(again, RECORDED))


# --- DynamoDB -------------------------------------------------------------------------------------


@contextmanager
def open_boto3(effect: Effect, url: str, endpoint: str) -> Iterator[Pair]:
    """The same requests by a boto3 client, tuned as its users tune it."""
    client = dynamodb_client(endpoint)
    requests = [(operation, for_boto(request)) for operation, request in recorded(url, watch_dynamodb)]
    failed = import_module("botocore.exceptions").ClientError
    methods = {"PutItem": client.put_item, "UpdateItem": client.update_item}

    def ask(request: Any, key: str) -> Any:
        operation, values = request
        try:
            return methods[operation](**renamed(values, key))
        except failed as refusal:
            return json.loads(refusal.response["Item"]["result"]["B"])

    yield sent_by(effect, requests, ask)
    client.close()


def dynamodb_client(endpoint: str) -> Any:
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
    client = dynamodb_client(endpoint)
    store = powertools.DynamoDBPersistenceLayer(table_name=table, boto3_client=client)
    wrap = powertools.idempotent_function(
        data_keyword_argument="order", persistence_store=store, config=config, key_prefix=os.urandom(4).hex()
    )
    wrapped = wrap(effect)
    yield pair_of(lambda order: wrapped(order=order))
    client.close()


def provision_powertools(url: str) -> str:
    """Make the table that Powertools uses; its name."""
    provisioning.provision(
        provisioning.ProvisionTarget(url=url, env=ENV, tables=(POWERTOOLS,), clock=Clock())
    )
    return "IdempotencyTable"


def on_dynamodb(endpoint: str) -> tuple[Contender, ...]:
    """Who is timed on DynamoDB; the first is the limit, and the base."""
    url = url_of("DynamoDB", endpoint)
    provision(url)
    table = provision_powertools(url)
    return (
        Contender(
            "a raw socket, signed",
            partial(raw.open_dynamodb, url=url, endpoint=endpoint),
            note="the limit: the same bytes, SigV4 for each request",
            whole=False,
        ),
        Contender("semel", partial(open_semel, url=url), note="payload checked"),
        Contender(
            "by hand, boto3",
            partial(byhand.open_dynamodb, table=table, client=partial(dynamodb_client, endpoint)),
            ("boto3",),
            "a claim, a completion, a hash, JSON",
        ),
        Contender(
            "the same requests by boto3",
            partial(open_boto3, url=url, endpoint=endpoint),
            ("boto3",),
            "a tuned client",
            whole=False,
        ),
        Contender(
            "Powertools",
            partial(open_powertools, endpoint=endpoint, table=table),
            ("aws-lambda-powertools", "boto3"),
            "payload validated",
        ),
    )


# --- PostgreSQL and Redis -------------------------------------------------------------------------


@contextmanager
def open_psycopg(effect: Effect, url: str, pooled: bool) -> Iterator[Pair]:
    """The same statements by psycopg: on connections of its pool, or on one that is nobody else's."""
    psycopg, server = import_module("psycopg"), url.partition("?")[0]
    settings = {"autocommit": True, "cursor_factory": psycopg.RawCursor}
    with ExitStack() as stack:
        if pooled:
            pools = import_module("psycopg_pool")
            take = stack.enter_context(pools.ConnectionPool(server, kwargs=settings)).connection
        else:
            take = partial(nullcontext, stack.enter_context(psycopg.connect(server, **settings)))

        def ask(statement: Any, key: str) -> Any:
            sql, values = statement
            values = [renamed(value, key) for value in values]
            with take() as connection:
                return connection.execute(sql, values, binary=True).fetchone()

        yield sent_by(effect, recorded(url, watch_postgres), ask)


@contextmanager
def open_redis_py(effect: Effect, url: str) -> Iterator[Pair]:
    """The same scripts with the same arguments, by redis-py."""
    sent = [words for data in recorded(url, watch_redis) for words in commands(data)]
    client = import_module("redis").Redis.from_url(url.partition("?")[0])

    def ask(words: list[bytes], key: str) -> Any:
        return client.execute_command(*[renamed(word, key) for word in words])

    yield sent_by(effect, [words for words in sent if words[0] == b"EVALSHA"], ask)
    client.close()


def on_postgres(server: str) -> tuple[Contender, ...]:
    """Who is timed on PostgreSQL; the first is the limit, and the base."""
    url = url_of("PostgreSQL", server)
    provision(url)
    return (
        Contender(
            "libpq alone",
            partial(raw.open_postgres, url=url),
            ("psycopg",),
            "the limit: PQexecPrepared, values adapted beforehand",
            whole=False,
        ),
        Contender("semel", partial(open_semel, url=url), note="payload checked"),
        Contender(
            "by hand, psycopg",
            partial(byhand.open_postgres, server=server),
            ("psycopg", "psycopg-pool"),
            "a claim, a completion, a hash, JSON; its pool",
        ),
        Contender(
            "the same statements by psycopg",
            partial(open_psycopg, url=url, pooled=True),
            ("psycopg", "psycopg-pool"),
            "its pool",
            whole=False,
        ),
        Contender(
            "the same on one connection",
            partial(open_psycopg, url=url, pooled=False),
            ("psycopg",),
            "no pool: for one thread",
            whole=False,
        ),
    )


def on_redis(server: str) -> tuple[Contender, ...]:
    """Who is timed on Redis; the first is the limit, and the base."""
    url = url_of("Redis", server)
    provision(url)
    return (
        Contender(
            "a raw socket",
            partial(raw.open_redis, url=url),
            note="the limit: the same bytes",
            whole=False,
        ),
        Contender("semel", partial(open_semel, url=url), note="payload checked"),
        Contender(
            "by hand, redis-py",
            partial(byhand.open_redis, server=server),
            ("redis",),
            "two scripts, a hash, JSON",
        ),
        Contender("the same scripts by redis-py", partial(open_redis_py, url=url), ("redis",), whole=False),
    )


# --- All of it ------------------------------------------------------------------------------------

PLACES = {"DynamoDB": on_dynamodb, "PostgreSQL": on_postgres, "Redis": on_redis}


def timed(title: str, which: str, contenders: Sequence[Contender], number: int, repeat: int) -> Table:
    """Processor time of one call of all contenders, side by side; the first of them is the base."""
    notes = {one.name: absent(one.needs) or one.note for one in contenders}
    present = {one.name: subject(one, which) for one in contenders if not absent(one.needs)}
    timings = compare(present, number, repeat, time.process_time)
    return tabulate(title, timings, contenders[0].name, notes)


def calls(name: str, server: str, number: int, repeat: int) -> list[Table]:
    """The first call and the replay on one store; who does the whole job is proven first."""
    contenders = PLACES[name](server)
    for one in contenders:
        if one.whole and not absent(one.needs):
            prove(one)
    tables = [timed(f"{which}, {name}", which, contenders, number, repeat) for which in WHICH]
    # A library that is ten times as slow needs fewer calls for as good a figure.
    return apart.joined(
        tables, *(apart.measured(rival, name, server, number // 3, repeat) for rival in RIVALS[name])
    )


def decided(name: str, server: str, number: int, repeat: int) -> Table:
    """Decisions of the gate beside bare transactions of the same size."""
    url = url_of(name, server)
    bare: dict[str, dict[str, Callable[[], Any]]] = {
        "DynamoDB": {
            "a raw socket, signed": partial(decisions.open_raw_dynamodb, url, server, watch_dynamodb),
            "the same request by boto3": partial(
                decisions.open_boto3, url, partial(dynamodb_client, server), watch_dynamodb, for_boto
            ),
        },
        "PostgreSQL": {
            "libpq alone": partial(decisions.open_raw_postgres, url, watch_postgres),
            "the same statements by psycopg": partial(decisions.open_psycopg, url, watch_postgres),
        },
        "Redis": {
            "a raw socket": partial(decisions.open_raw_redis, url, watch_redis),
            "the same scripts by redis-py": partial(decisions.open_redis_py, url, watch_redis, commands),
        },
    }
    subjects = bare[name] | {"semel": decisions.semel_on(url)}
    return decisions.table(name, subjects, number, repeat, time.process_time)


def tables(started: dict[str, str], number: int, repeat: int) -> list[Table]:
    """Prove every contender that can be proven, and time them all."""
    done = [table for name, server in started.items() for table in calls(name, server, number, repeat)]
    return done + [decided(name, server, number, repeat) for name, server in started.items()]


# What semel may take beside another row of the same table.
LIMITS = {
    "first, DynamoDB": (("a raw socket, signed", 2.2), ("Powertools", 0.25)),
    "replay, DynamoDB": (("a raw socket, signed", 2.8), ("Powertools", 0.25)),
    "first, PostgreSQL": (("by hand, psycopg", 1.0),),
    "replay, PostgreSQL": (("by hand, psycopg", 1.0),),
    "first, Redis": (("by hand, redis-py", 0.8),),
    "replay, Redis": (("by hand, redis-py", 0.75),),
    "decision, PostgreSQL": (("the same statements by psycopg", 1.5),),
    "decision, Redis": (("the same scripts by redis-py", 1.5),),
}


def bars(done: list[Table]) -> list[Bar]:
    """What was promised, against what was found."""
    found = []
    for table in done:
        which, _, name = table.title.partition(", ")
        timings = {row.name: row.timing for row in table.rows if row.timing}
        for base, limit in LIMITS.get(table.title, ()):
            if base in timings:
                ratio = Ratio.of(timings["semel"], timings[base]).median
                found.append(Bar(f"{which} on {name} to {base}", ratio, limit))
    return found


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.network", description=__doc__)
    parser.add_argument("--number", type=int, default=300, help="calls in a round")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    with servers() as started:
        done = tables(started.addresses, options.number, options.repeat)
    return conclude(done, bars(done), PACKAGES, options.json, absent=started.absent)


if __name__ == "__main__":
    raise SystemExit(main())
