"""The other libraries, each with the same call."""

import itertools
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import lru_cache, partial

# Rivals are loaded by name: one that is absent must not break this module, nor its type check.
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import Contender, Effect, Pair, bare, charge, pair_of
from bench.timing import (
    Call,
    Fresh,
    Subject,
    Table,
    Timer,
    compare,
    import_times,
    installed,
    tabulate,
)

PACKAGES = ("aws-lambda-powertools", "boto3", "idemkit", "justonce")
POWERTOOLS = ("aws-lambda-powertools", "boto3")

# idemkit's memory store scans all it holds on every claim, so how full it is has to be said.
HELD = 2_000


# --- AWS Lambda Powertools ------------------------------------------------------------------------


@lru_cache
def _assignments(expression: str) -> tuple[tuple[str, str], ...]:
    """Read `SET #a = :a, #b = :b`; cached, so that parsing is not charged to the library."""
    parts = (part.split(" = ") for part in expression.removeprefix("SET ").split(", "))
    return tuple((name, value) for name, value in parts)


class StubDynamoDB:
    """A DynamoDB client that answers at once from a dict, knowing only the requests Powertools makes."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, dict[str, str]]] = {}
        self._lock = threading.Lock()
        self.error = import_module("botocore.exceptions").ClientError

    def put_item(self, **request: Any) -> dict[str, Any]:
        key = request["Item"]["id"]["S"]
        with self._lock:
            held = self._items.get(key)
            if held is None or _lapsed(held, request["ExpressionAttributeValues"]):
                self._items[key] = request["Item"]
                return {}
        refusal = {"Code": "ConditionalCheckFailedException", "Message": "The conditional request failed"}
        old = {"Item": held} if request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" else {}
        raise self.error({"Error": refusal, **old}, "PutItem")

    def update_item(self, **request: Any) -> dict[str, Any]:
        names, values = request["ExpressionAttributeNames"], request["ExpressionAttributeValues"]
        with self._lock:
            item = self._items.setdefault(request["Key"]["id"]["S"], dict(request["Key"]))
            for name, value in _assignments(request["UpdateExpression"]):
                item[names[name]] = values[value]
        return {}

    def get_item(self, **request: Any) -> dict[str, Any]:
        item = self._items.get(request["Key"]["id"]["S"])
        return {} if item is None else {"Item": item}

    def delete_item(self, **request: Any) -> dict[str, Any]:
        self._items.pop(request["Key"]["id"]["S"], None)
        return {}


def _lapsed(item: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> bool:
    """The condition of a Powertools claim, for an item that exists."""
    if int(item["expiration"]["N"]) < int(now[":now"]["N"]):
        return True
    lease = item.get("in_progress_expiration")
    running = item["status"]["S"] == now[":inprogress"]["S"]
    return running and lease is not None and int(lease["N"]) < int(now[":now_in_millis"]["N"])


class LambdaContext:
    """A Lambda invocation with five minutes left."""

    def get_remaining_time_in_millis(self) -> int:
        return 300_000


@contextmanager
def open_powertools(effect: Effect, validation: str = "") -> Iterator[Pair]:
    powertools = import_module("aws_lambda_powertools.utilities.idempotency")
    config = powertools.IdempotencyConfig(
        event_key_jmespath="id",
        payload_validation_jmespath=validation,
        lambda_context=LambdaContext(),  # as its docs ask; without one, each call warns and has no lease
    )
    store = powertools.DynamoDBPersistenceLayer(table_name="bench", boto3_client=StubDynamoDB())
    wrap = powertools.idempotent_function(
        data_keyword_argument="order", persistence_store=store, config=config
    )
    wrapped = wrap(effect)
    yield pair_of(lambda order: wrapped(order=order))


@contextmanager
def open_stub(_: Effect) -> Iterator[Pair]:
    """The stub given the requests of a first call and of a replay: what part of the cost is its own."""
    stub, numbers = StubDynamoDB(), itertools.count(1)
    claim = {
        "ExpressionAttributeValues": {
            ":now": {"N": "1"},
            ":now_in_millis": {"N": "1000"},
            ":inprogress": {"S": "INPROGRESS"},
        },
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    complete = {
        "UpdateExpression": "SET #response_data = :response_data, #expiry = :expiry, #status = :status",
        "ExpressionAttributeNames": {"#response_data": "data", "#expiry": "expiration", "#status": "status"},
        "ExpressionAttributeValues": {
            ":response_data": {"S": "{}"},
            ":expiry": {"N": "9"},
            ":status": {"S": "D"},
        },
    }

    def first() -> None:
        key = {"id": {"S": f"order-{next(numbers)}"}}
        stub.put_item(Item={**key, "expiration": {"N": "9"}, "status": {"S": "INPROGRESS"}}, **claim)
        stub.update_item(Key=key, **complete)

    def replay() -> None:
        try:
            stub.put_item(Item={"id": {"S": "order-1"}}, **claim)
        except stub.error:
            return
        raise AssertionError("a replay must be refused")

    first()
    yield Pair(first, replay)


# --- idemkit --------------------------------------------------------------------------------------


def canonical(arguments: Any) -> bytes:
    return json.dumps(arguments["order"], sort_keys=True, separators=(",", ":")).encode()


@contextmanager
def open_idemkit(effect: Effect, held: int = 0) -> Iterator[Pair]:
    idemkit = import_module("idemkit")
    config = idemkit.MethodConfig(key_fields=["order.id"], validation_fingerprint=canonical)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns once that no scope is given, which is its default
        wrapped = idemkit.idempotent_sync(backend=idemkit.InMemoryBackend(), config=config)(effect)
    pair = pair_of(lambda order: wrapped(order=order))
    for _ in range(held):
        pair.first()
    yield pair


# --- justonce -------------------------------------------------------------------------------------


@contextmanager
def open_justonce(effect: Effect, on_disk: bool = False) -> Iterator[Pair]:
    justonce, stores = import_module("justonce"), import_module("justonce.stores")
    with bare.disk_folder() as folder:
        path = folder / "justonce.db" if on_disk else ":memory:"
        with closing(stores.SqliteStore(path)) as store:
            engine = justonce.Idempotent(store)
            wrap = justonce.idempotent(
                key=lambda order: justonce.operation_key("charge", order["id"]), engine=engine
            )
            yield pair_of(wrap(effect))


STUB = Contender(
    "stub DynamoDB client alone", open_stub, POWERTOOLS, "contained in Powertools' row", whole=False
)
IN_MEMORY = (
    Contender(
        "Powertools", partial(open_powertools, validation="@"), POWERTOOLS, "payload validated, stub client"
    ),
    Contender("idemkit", open_idemkit, ("idemkit",), "payload checked"),
    Contender(f"idemkit, {HELD:,} keys held", partial(open_idemkit, held=HELD), ("idemkit",)),
    Contender("justonce", open_justonce, ("justonce",), "SQLite :memory:"),
)
# Powertools and idemkit have no SQLite store.
ON_DISK = (Contender("justonce", partial(open_justonce, on_disk=True), ("justonce",), "WAL, FULL"),)
MODULES = {
    "semel": (),
    "aws_lambda_powertools.utilities.idempotency": POWERTOOLS,
    "idemkit": ("idemkit",),
    "justonce": ("justonce",),
    "sqlite3": (),
}


def absent(needs: Sequence[str]) -> str:
    """Which of the packages is not installed, in words for the note of a row."""
    missing = [package for package in needs if installed(package) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@contextmanager
def _only(contender: Contender, which: str) -> Iterator[Call]:
    with contender.open(charge) as pair:
        yield getattr(pair, which)


def subject(contender: Contender, which: str) -> Subject:
    """One of a contender's two calls, on a store opened anew for each round."""
    opened: Callable[[], AbstractContextManager[Call]] = partial(_only, contender, which)
    return Fresh(opened)


def table(
    title: str,
    which: str,
    contenders: Sequence[Contender],
    *,
    number: int,
    repeat: int,
    timer: Timer = time.perf_counter,
) -> Table:
    """Time one call of all contenders side by side; the first of them is the base of the ratios."""
    notes = {one.name: absent(one.needs) or one.note for one in contenders}
    present = {one.name: subject(one, which) for one in contenders if not absent(one.needs)}
    return tabulate(title, compare(present, number, repeat, timer), contenders[0].name, notes)


def import_table(repeat: int) -> Table:
    """Time the imports, in microseconds like all else."""
    present = {module: alone(module) for module, needs in MODULES.items() if not absent(needs)}
    notes = {module: "alone in its environment" for module, found in present.items() if found}
    notes |= {module: absent(needs) for module, needs in MODULES.items() if absent(needs)}
    interpreters = {module: found or sys.executable for module, found in present.items()}
    return tabulate("import", import_times(interpreters, repeat), "sqlite3", notes)


def alone(module: str) -> str | None:
    """The interpreter for which nothing is installed but this library, if `make bench` has made it."""
    interpreter = Path(sys.prefix) / "alone" / module.partition(".")[0] / "bin" / "python"
    return str(interpreter) if interpreter.exists() else None
