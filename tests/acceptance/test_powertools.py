"""AWS Lambda Powertools and semel on one table: each replays what the other did, and runs it no more."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Semaphore
from typing import Any

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyPersistenceLayerError,
)

from semel import errors
from semel.connect import Semel, connect
from semel.model import Busy, Claimed, Mismatch, Replay
from semel.stores.dynamodb.items import title
from semel.tables.powertools import POWERTOOLS, powertools_key
from semel.testing import FakeClock
from semel.testing.conformance.harness import claimed
from tests.amounts import amount
from tests.conformance.dynamodb_kit import ENV, REGION, Engine, engine

RESULTS: list[Any] = [
    {"paid": True},
    0,
    [],
    None,
    "",
    False,
    {"nested": {"list": [1, 2.5, None, "é", {}], "empty": ""}},
    "text",
    -17,
]


class Context:
    """What Lambda tells a function of its own end."""

    def __init__(self, milliseconds: int = 30_000) -> None:
        self._milliseconds = milliseconds

    def get_remaining_time_in_millis(self) -> int:
        return self._milliseconds


class Theirs:
    """Work protected by Powertools."""

    def __init__(self, url: str, result: Any, **options: Any) -> None:
        self.runs = 0
        self._result = result
        self._given: Callable[[Any], Any] | None = None
        left = options.pop("left", 30_000)
        config = IdempotencyConfig(lambda_context=Context(left), **options)
        client = boto3.client(
            "dynamodb",
            region_name=REGION,
            endpoint_url=url,
            aws_access_key_id="anyone",
            aws_secret_access_key="anything",
        )
        layer = DynamoDBPersistenceLayer(table_name=title(POWERTOOLS, ENV), boto3_client=client)
        protect = idempotent_function(
            data_keyword_argument="order", persistence_store=layer, config=config, key_prefix="charge"
        )
        self.call: Callable[..., Any] = protect(self._work)

    def does(self, work: Callable[[Any], Any]) -> None:
        """From now on it does this, with the order that it is given."""
        self._given = work

    def take(self, order: Any) -> Any:
        return self.call(order=order)

    def _work(self, *, order: Any) -> Any:
        self.runs += 1
        if self._given is not None:
            return self._given(order)
        return self._result() if callable(self._result) else self._result


class Ours:
    """The same work protected by semel, under the same keys."""

    def __init__(self, s: Semel, result: Any, **options: Any) -> None:
        self.runs = 0
        self._result = result

        @s.once(key=lambda order: powertools_key(Ours, order, "charge"), returns=Any, **options)
        def call(order: Any) -> Any:
            self.runs += 1
            return self._result() if callable(self._result) else self._result

        @s.once(key=lambda order: powertools_key(Ours, order, "charge"), returns=Any, **options)
        async def acall(order: Any) -> Any:
            return call(order)

        self.call, self.acall = call, acall


@pytest.fixture
def on(dynoxide) -> Engine:
    found = engine(dynoxide)
    found.make([POWERTOOLS])
    found.empty([POWERTOOLS])
    return found


@pytest.fixture
def s(on: Engine) -> Iterator[Semel]:
    with Semel(on.store(tables=[POWERTOOLS]), env=ENV) as found:
        yield found


ORDER = {"id": 7, "items": ["é", 1.5, None]}


@pytest.mark.parametrize("result", RESULTS, ids=json.dumps)
def test_what_powertools_did_is_replayed_by_semel(on: Engine, s: Semel, result: Any) -> None:
    """Sync and async, falsy or not, whatever the payload's fingerprint would be."""
    theirs, ours = Theirs(on.url, result), Ours(s, "ran again")
    theirs.call(order=ORDER)
    for answer in (ours.call(ORDER), ours.call(ORDER), asyncio.run(ours.acall(ORDER))):
        assert answer == result
        assert type(answer) is type(result)
    assert (theirs.runs, ours.runs) == (1, 0)


@pytest.mark.parametrize("result", RESULTS, ids=json.dumps)
def test_what_semel_did_is_replayed_by_powertools(on: Engine, s: Semel, result: Any) -> None:
    """It reads what is falsy as None, from its own records too; but it does not run the work again."""
    theirs, ours = Theirs(on.url, "ran again"), Ours(s, result)
    assert ours.call(ORDER) == result
    assert theirs.call(order=ORDER) == (result or None)
    assert (theirs.runs, ours.runs) == (0, 1)


def test_a_large_result_is_left_readable(on: Engine, monkeypatch) -> None:
    """Where others read the table too, nothing is compressed."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "anyone")
    result = {"text": "x" * 100_000}
    url = f"dynamodb://{REGION}?endpoint={on.url}&layout=powertools"
    with connect(url, env=ENV) as s:
        theirs, ours = Theirs(on.url, "ran again"), Ours(s, result)
        assert ours.call(ORDER) == result
        assert theirs.call(order=ORDER) == result
        assert (theirs.runs, ours.runs) == (0, 1)


def test_what_powertools_is_doing_is_busy(on: Engine, s: Semel) -> None:
    """From inside its run, for as long as its Lambda function may live."""
    ours = Ours(s, "ran too", on_busy="raise")
    found = []

    def meanwhile() -> str:
        with pytest.raises(errors.InProgress) as caught:
            ours.call(ORDER)
        found.append(caught.value)
        return "theirs"

    theirs = Theirs(on.url, meanwhile)
    assert theirs.call(order=ORDER) == "theirs"
    assert 20 < found[0].retry_after < 35
    assert ours.call(ORDER) == "theirs"
    assert ours.runs == 0


def test_what_semel_is_doing_is_busy(on: Engine, s: Semel) -> None:
    theirs = Theirs(on.url, "ran too")

    def meanwhile() -> str:
        with pytest.raises(IdempotencyAlreadyInProgressError):
            theirs.call(order=ORDER)
        return "ours"

    ours = Ours(s, meanwhile)
    assert ours.call(ORDER) == "ours"
    assert theirs.call(order=ORDER) == "ours"
    assert theirs.runs == 0


def put(on: Engine, **more: dict[str, Any]) -> str:
    """A record as Powertools writes it."""
    id = powertools_key(put, ORDER, "charge")
    far = {"expiration": {"N": "9999999999"}, "status": {"S": "INPROGRESS"}}
    on.put(POWERTOOLS, {"id": {"S": id}} | far | more)
    return id


def test_a_run_of_powertools_that_timed_out_is_taken_over(on: Engine, s: Semel) -> None:
    """Its Lambda function is past its end, so semel runs the second attempt; its record is then ours."""
    id = put(on, in_progress_expiration={"N": "1000"})
    claim = claimed(s.ledger.claim(id))
    assert (claim.attempt, claim.lapsed) == (2, True)
    assert on.item(POWERTOOLS, id)["status"] == {"S": "INPROGRESS"}
    s.ledger.complete(claim, "second")
    assert Theirs(on.url, "third").call(order=ORDER) == "second"


def test_a_run_of_powertools_without_an_end_is_waited_for(on: Engine, s: Semel) -> None:
    """Where it did not say when it would time out, nobody is let in before the record's end."""
    id = put(on)
    busy = s.ledger.claim(id)
    assert type(busy) is Busy
    assert busy.retry_after > 1e9


def test_an_expired_record_of_powertools_is_none(on: Engine, s: Semel) -> None:
    id = put(on, expiration={"N": "1000"}, status={"S": "COMPLETED"}, data={"S": '"old"'})
    assert s.ledger.get(id) is None
    assert type(s.ledger.claim(id)) is Claimed


def test_their_hash_of_a_payload_is_no_fingerprint(on: Engine, s: Semel) -> None:
    """It is an MD5 of something else, and says nothing about ours; two of ours are compared as ever."""
    theirs = Theirs(on.url, "done", payload_validation_jmespath="id")
    theirs.call(order=ORDER)
    id = powertools_key(put, ORDER, "charge")
    assert len(on.item(POWERTOOLS, id)["validation"]["S"]) == 32
    assert type(s.ledger.claim(id, fingerprint="f" * 64)) is Replay
    s.ledger.claim("ours", fingerprint="f" * 64)
    assert type(s.ledger.claim("ours", fingerprint="e" * 64)) is Mismatch


def test_powertools_runs_nothing_that_semel_has_failed_or_given_back(on: Engine, s: Semel) -> None:
    """It does not know the words; it refuses, which is safe, until semel has run it or the record is over."""
    theirs = Theirs(on.url, "ran")
    id = powertools_key(put, ORDER, "charge")
    for settle in (s.ledger.release, lambda claim: s.ledger.fail(claim, ValueError("no"))):
        settle(claimed(s.ledger.claim(id)))
        with pytest.raises(IdempotencyPersistenceLayerError):
            theirs.call(order=ORDER)
    assert theirs.runs == 0


def test_a_zombie_of_powertools_leaves_a_readable_record(on: Engine) -> None:
    """It completes what semel has taken over, without asking: its result counts, and the holder is told."""
    id = powertools_key(put, ORDER, "charge")
    later = on.store(FakeClock(time.time() + 100), [POWERTOOLS])
    with Semel(later, env=ENV) as s:
        claims: list[Any] = []

        def vanish() -> str:
            claims.append(s.ledger.claim(id))
            return "late"

        assert Theirs(on.url, vanish, left=50_000).call(order=ORDER) == "late"
        assert (type(claims[0]), claims[0].attempt) == (Claimed, 2)
        with pytest.raises(errors.ClaimLost):
            s.ledger.complete(claims[0], "ours")
        assert s.ledger.claim(id).result == "late"


def test_the_key_is_theirs(monkeypatch) -> None:
    """Without a prefix it has the Lambda function's name, and the function's own."""
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    assert powertools_key(json.dumps, 1).startswith("test-func.json.dumps#")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "payments")
    assert powertools_key(json.dumps, 1).startswith("payments.json.dumps#")


def test_the_key_is_theirs_without_a_prefix_too(on: Engine, s: Semel) -> None:
    """As they make it from the function that is decorated."""
    client = boto3.client(
        "dynamodb",
        region_name=REGION,
        endpoint_url=on.url,
        aws_access_key_id="anyone",
        aws_secret_access_key="anything",
    )
    layer = DynamoDBPersistenceLayer(table_name=title(POWERTOOLS, ENV), boto3_client=client)
    config = IdempotencyConfig(lambda_context=Context())

    def work(*, order: Any) -> str:
        return "done"

    idempotent_function(work, data_keyword_argument="order", persistence_store=layer, config=config)(
        order=ORDER
    )
    assert s.ledger.claim(powertools_key(work, ORDER)).result == "done"


# Both at work at once, as while a fleet is moved from one to the other

WORKERS = 4  # of each
REFUSALS = (ConnectionError, IdempotencyAlreadyInProgressError, IdempotencyPersistenceLayerError)


class Fleet:
    """Workers of both kinds on one queue, which gives out again whatever was refused or has failed."""

    def __init__(self, deliveries: list[int]) -> None:
        self.effects: list[int] = []
        self.answers: list[tuple[int, Any]] = []
        self.sent_back: list[Exception] = []
        self._tried: set[int] = set()
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._open = len(deliveries)
        self._answered = Semaphore(0)
        for number in deliveries:
            self._queue.put(number)

    def effect(self, order: Any) -> dict[str, Any]:
        """The work: one event in ten fails at first, before it has any effect."""
        number = order["id"]
        if number % 10 == 0 and number not in self._tried:
            self._tried.add(number)
            raise ConnectionError("not this time")
        self.effects.append(number)
        return {"paid": number}

    def work(self, call: Callable[[Any], Any], refusals: tuple[type[Exception], ...]) -> None:
        """Take deliveries until there are no more, and send back what was refused."""
        while (number := self._queue.get()) is not None:
            try:
                answer = call({"id": number})
            except refusals as error:
                self.sent_back.append(error)
                self._queue.put(number)
            else:
                self.answers.append((number, answer))
                self._answered.release()

    def wait(self, workers: int) -> None:
        """Wait until every delivery was answered, and send the workers home."""
        for _ in range(self._open):
            self._answered.acquire()
        for _ in range(workers):
            self._queue.put(None)


def test_a_fleet_that_is_half_moved_does_each_event_once_and_loses_none(on: Engine, s: Semel) -> None:
    """Every event is delivered two or three times, to workers of Powertools and of semel in any order."""
    events, chance = amount(10_000, 300), random.Random(7)
    deliveries = [number for number in range(events) for _ in range(chance.choice((2, 3)))]
    chance.shuffle(deliveries)
    fleet = Fleet(deliveries)

    @s.once(key=lambda order: powertools_key(Fleet, order, "charge"), returns=Any, on_busy="raise")
    def ours(order: Any) -> Any:
        moved.add(order["id"])
        return fleet.effect(order)

    moved: set[int] = set()
    with ThreadPoolExecutor(2 * WORKERS) as pool:
        done = [pool.submit(fleet.work, ours, (ConnectionError, errors.InProgress)) for _ in range(WORKERS)]
        for _ in range(WORKERS):
            theirs = Theirs(on.url, None)
            theirs.does(fleet.effect)
            done.append(pool.submit(fleet.work, theirs.take, REFUSALS))
        fleet.wait(2 * WORKERS)
    for one in done:
        one.result()
    assert sorted(fleet.effects) == list(range(events))
    assert Counter(number for number, _ in fleet.answers) == Counter(deliveries)
    assert all(answer == {"paid": number} for number, answer in fleet.answers)
    assert events / 10 <= len(fleet.sent_back)
    assert 0 < len(moved) < events
