"""Many transactions on one item: each is one request, and those that meet try again until they are made."""

import heapq
import random
from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError

from semel.aws.errors import CONTENTION, PASSING, NoResponse, RetryPolicy, RetryState, ServiceError, contended
from semel.aws.errors import ErrorKind as Trouble
from semel.core.commands import (
    ABSENT,
    NOW,
    Add,
    After,
    Applied,
    Cancelled,
    Put,
    Transact,
    Update,
)
from semel.errors import StoreThrottled
from semel.stores.dynamodb import DynamoDBStore
from semel.tables import COUNTERS, DOCUMENTS, JOURNAL, LEDGER
from semel.testing import FakeClock
from tests.conformance.dynamodb_kit import Told

DAY = 86400


def cancelled(*codes: str) -> ServiceError:
    body = {"CancellationReasons": [{"Code": code} for code in codes]}
    return ServiceError("TransactionCanceledException", "cancelled", 400, body)


MET = cancelled("None", "TransactionConflict")


# One request


def usual(key: str = "test//key") -> Transact:
    """What the rules write together: the end of a run, a charge with its total, a document, an entry."""
    end = {"expires_at": After(DAY)}
    charge = {"by": 1, "period": "2026-02-17", "token": "mark", "state": "charged", "updated_at": NOW}
    return Transact(
        (
            Update(LEDGER, key, {"status": "COMPLETED", "updated_at": NOW}, {"token": "t"}),
            Put(COUNTERS, "test//replies", charge | end, ABSENT, f"charge:{key}"),
            Add(COUNTERS, "test//replies", "count", 1, {"updated_at": NOW} | end, 3, "2026-02-17"),
            Put(DOCUMENTS, "test//talk", {"body": {}, "version": 2} | end, {"version": 1}),
            Put(JOURNAL, "test//talk", {"at": 1.0, "actor": "me", "body": {}} | end, ABSENT, "01H"),
        )
    )


def test_what_the_rules_write_together_is_one_request() -> None:
    """Each table is looked at once before; after that a transaction is one round trip."""
    clock = FakeClock()
    told = Told(clock)
    store = DynamoDBStore(told, env="test", clock=clock)
    assert type(store.execute(usual())) is Applied
    assert [operation for operation, _ in told.asked] == ["GetItem"] * 4 + ["TransactWriteItems"]
    assert type(store.execute(usual("test//another"))) is Applied
    assert len(told.asked) == 6
    actions = told.asked[-1][1]["TransactItems"]
    assert [next(iter(action)) for action in actions] == ["Update", "Put", "Update", "Put", "Put"]
    for action in actions:
        [request] = action.values()
        assert request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD", "a refusal tells what was there"
    store.close()


def test_a_refusal_that_met_others_too_is_a_refusal() -> None:
    """A full counter is full, whoever else was writing to it just then: nothing is sent again."""
    clock = FakeClock()
    total = {"counter": {"S": "test//replies"}, "entry": {"S": "2026-02-17"}, "count": {"N": "3"}}
    full = {"Code": "ConditionalCheckFailed", "Item": total}
    reasons = [{"Code": "TransactionConflict"}, {"Code": "None"}, full, {"Code": "None"}, {"Code": "None"}]
    told = Told(clock)
    store = DynamoDBStore(told, env="test", clock=clock)
    store.execute(usual())
    told.answers = [
        ServiceError("TransactionCanceledException", "", 400, {"CancellationReasons": reasons}),
    ]
    reply = store.execute(usual())
    assert type(reply) is Cancelled
    assert reply.refusals[:2] == reply.refusals[3:] == (None, None)
    counted = reply.refusals[2]
    assert counted is not None
    assert counted.item is not None
    assert counted.item["count"] == 3
    assert told.operations.count("TransactWriteItems") == 2
    store.close()


# Trying again


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (MET, True),
        (cancelled("ProvisionedThroughputExceeded", "TransactionConflict"), True),
        (cancelled("ReplicatedWriteConflict"), True),
        (ServiceError("TransactionConflictException", "", 400, {}), True),
        (ServiceError("ReplicatedWriteConflictException", "", 409, {}), True),
        (cancelled("ThrottlingError", "None"), False),
        (cancelled("ConditionalCheckFailed", "TransactionConflict"), False),
        (ServiceError("ThrottlingException", "", 400, {}), False),
        (ServiceError("ValidationException", "", 400, {}), False),
        (NoResponse("it broke", Trouble.FAILED), False),
    ],
)
def test_contention_is_told_from_throttling(trouble: ServiceError | NoResponse, expected: bool) -> None:
    assert contended(trouble) is expected


def test_every_reason_of_contention_is_one_that_passes() -> None:
    assert CONTENTION < PASSING


def test_contention_is_met_for_as_long_as_there_is_patience() -> None:
    """Its pauses are spread and grow up to a second; then the caller is told that nothing was written."""
    clock = FakeClock()
    tries, pauses = RetryState(RetryPolicy(), clock, "dynamodb at h:1", write=True), []

    def meet() -> None:
        while True:
            pauses.append(tries.after(MET))
            clock.advance(pauses[-1])

    with pytest.raises(StoreThrottled, match=r"still too busy at try \d+: TransactionCanceledException"):
        meet()
    assert len(pauses) > RetryPolicy().tries
    assert max(pauses) <= RetryPolicy().longest
    assert len(set(pauses)) == len(pauses)
    assert RetryPolicy().patience - 1 <= clock.monotonic() <= RetryPolicy().patience


def test_contention_leaves_throttling_its_own_tries() -> None:
    clock = FakeClock()
    tries = RetryState(RetryPolicy(patience=1e6), clock, "dynamodb at h:1", write=True)
    for _ in range(20):
        tries.after(MET)
    throttled = ServiceError("ThrottlingException", "", 400, {})
    for _ in range(RetryPolicy().tries - 1):
        tries.after(throttled)
    with pytest.raises(StoreThrottled, match="at try 28"):
        tries.after(throttled)


class Crowded:
    """A boto3 client that turns a transaction away so often."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.tokens: list[str] = []

    def get_item(self, **_: Any) -> dict[str, Any]:
        return {}

    def transact_write_items(self, **request: Any) -> dict[str, Any]:
        self.tokens.append(request["ClientRequestToken"])
        self.left -= 1
        if self.left >= 0:
            raise ClientError(
                {
                    "Error": {"Code": MET.code, "Message": MET.message},
                    "CancellationReasons": MET.body["CancellationReasons"],
                },
                "TransactWriteItems",
            )
        return {}


def test_a_transaction_that_meets_others_a_dozen_times_is_made_in_the_end() -> None:
    """It is the same one each time; its caller hears nothing of it."""
    clock, client = FakeClock(), Crowded(12)
    store = DynamoDBStore(client=client, env="test", clock=clock)
    assert type(store.execute(usual())) is Applied
    assert len(client.tokens) == 13
    assert len(set(client.tokens)) == 1
    store.close()


class Contention:
    """An item that one transaction has at a time, as in DynamoDB; whoever comes meanwhile is turned away."""

    def __init__(self, crowd: int, held: float, way: float = 0.005) -> None:
        self.clock = FakeClock()
        self.made = 0
        self.given_up = 0
        self._held = held
        self._way = way
        self._free = 0.0
        self._coming = [(0.0, each) for each in range(crowd)]
        self._tries: dict[int, RetryState] = {}
        self.met: Counter[int] = Counter()

    def run(self) -> None:
        while self._coming:
            moment, who = heapq.heappop(self._coming)
            self.clock.advance(max(0.0, moment - self.clock.monotonic()))
            if moment >= self._free:
                self._free = moment + self._held
                self.made += 1
            else:
                self._turn_away(moment, who)

    def _turn_away(self, moment: float, who: int) -> None:
        self.met[who] += 1
        tries = self._tries.setdefault(
            who, RetryState(RetryPolicy(), self.clock, "dynamodb at h:1", write=True)
        )
        try:
            pause = tries.after(MET)
        except StoreThrottled:
            self.given_up += 1
        else:
            heapq.heappush(self._coming, (moment + pause + self._way, who))


@pytest.mark.parametrize("held", [0.01, 0.03])
def test_two_hundred_at_once_on_one_item_all_get_through(monkeypatch: Any, held: float) -> None:
    """In virtual time: a transaction keeps an item to itself for ten to thirty milliseconds."""
    monkeypatch.setattr(random, "random", random.Random(7).random)
    contention = Contention(200, held)
    contention.run()
    assert (contention.made, contention.given_up) == (200, 0)
    assert max(contention.met.values()) > RetryPolicy().tries, "a handful of tries would not have done"
