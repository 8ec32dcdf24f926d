"""Pages by key, by index, or by looking through a table: which requests are sent, and what time it is."""

import asyncio
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import msgspec
import pytest

from semel import errors
from semel.apps.tables import ACTIVITIES, MESSAGES, QUILL
from semel.aws.errors import ServiceError
from semel.aws.time import AGREEING, ServiceTime
from semel.core.clock import Clock
from semel.core.commands import (
    Found,
    Get,
    Query,
    Time,
    cursor,
)
from semel.stores.dynamodb import DynamoDBStore
from semel.tables import DOCUMENTS, JOURNAL, LEDGER, Index, Kind, Table
from semel.tables.mapping import Column, Form, TableMapping, mapped
from semel.tables.powertools import POWERTOOLS
from semel.testing import FakeClock
from semel.testing.conformance import ENTRIES, THINGS
from tests.clocks import MachineClock
from tests.conformance.dynamodb_kit import Answer, Told

Make = Callable[..., tuple[DynamoDBStore, Told]]

NOTHING: dict[str, Any] = {"Items": []}
BY_USER = "userId-timestamp-index"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Iterator[Make]:
    made: list[DynamoDBStore] = []

    def make(*answers: Answer, **options: Any) -> tuple[DynamoDBStore, Told]:
        transport = Told(clock, *answers)
        made.append(DynamoDBStore(transport, env="test", clock=clock, **options))
        return made[-1], transport

    yield make
    for each in made:
        each.close()


def read(request: dict[str, Any], name: str) -> str:
    """An expression of a request with its names filled in."""
    text = request[name]
    for placeholder, stands in sorted(request["ExpressionAttributeNames"].items(), reverse=True):
        text = text.replace(placeholder, stands)
    return text


def projected(request: dict[str, Any]) -> set[str]:
    return set(read(request, "ProjectionExpression").split(", "))


# By key


@pytest.mark.seed("H7")
def test_the_last_messages_of_a_chat_are_one_request_for_who_and_when(store: Make, clock: FakeClock) -> None:
    """The latest first, as many as are wanted and one to see whether there are more; no text of theirs."""
    it, told = store(NOTHING)
    it.execute(Query(MESSAGES, "test//chat", reverse=True, limit=10, only=("userId", "timestamp")))
    [(operation, request)] = told.asked[1:]
    assert operation == "Query"
    assert read(request, "KeyConditionExpression") == "chatId = :k"
    assert read(request, "FilterExpression") == "attribute_not_exists(ttl) OR ttl > :now"
    assert projected(request) == {"chatId", "messageId", "ttl", "userId", "timestamp"}
    assert request["ExpressionAttributeValues"] == {":k": {"S": "chat"}, ":now": {"N": f"{clock.now():.0f}"}}
    assert {name: request[name] for name in ("TableName", "ScanIndexForward", "Limit", "ConsistentRead")} == {
        "TableName": "homeops-messages-test",
        "ScanIndexForward": False,
        "Limit": 11,
        "ConsistentRead": True,
    }


def test_what_a_filter_asks_about_comes_too(store: Make) -> None:
    """As whether an item is meant is looked at again; and every name in a request is used in it."""
    it, told = store(NOTHING)
    it.execute(Query(ENTRIES, "me", equal={"text": "a", "count": 2, "flag": True}, only=("data",)))
    request = told.asked[1][1]
    assert projected(request) == {"owner", "place", "gone_at", "data", "text", "count", "flag"}
    texts = " ".join(value for name, value in request.items() if name.endswith("Expression"))
    words = set(texts.replace("(", " ").replace(")", " ").replace(",", " ").split())
    assert request["ExpressionAttributeNames"].keys() <= words
    assert len(set(request["ExpressionAttributeNames"].values())) == len(request["ExpressionAttributeNames"])


def test_without_a_wish_items_come_whole(store: Make) -> None:
    it, told = store(NOTHING)
    it.execute(Query(ENTRIES, "me"))
    assert "ProjectionExpression" not in told.asked[1][1]


# By index


@pytest.mark.seed("H8")
def test_activities_of_a_user_within_a_time_are_one_request_to_the_index(store: Make) -> None:
    """Its partition is a number; it is never read consistently, which no index can be."""
    it, told = store(NOTHING)
    it.execute(Query(ACTIVITIES, 7, low=1000, high=2000.5, index=BY_USER, limit=50))
    [(operation, request)] = told.asked[1:]
    assert operation == "Query"
    assert read(request, "KeyConditionExpression") == "userId = :k AND timestamp BETWEEN :low AND :high"
    values = {name: request["ExpressionAttributeValues"][name] for name in (":k", ":low", ":high")}
    assert values == {":k": {"N": "7"}, ":low": {"N": "1000"}, ":high": {"N": "2000.5"}}
    assert request["IndexName"] == BY_USER
    assert "ConsistentRead" not in request


def test_a_later_page_of_an_index_begins_at_its_key_and_the_tables(store: Make) -> None:
    """Since many items may have the same place in an index; the table's keys stand there as they are."""
    it, told = store(NOTHING)
    item = {"chatId": "test//chat", "activityId": "01H", "userId": 7, "timestamp": 30.5}
    after = cursor(ACTIVITIES, item, ACTIVITIES.index(BY_USER))
    it.execute(Query(ACTIVITIES, 7, index=BY_USER, after=after))
    assert told.asked[1][1]["ExclusiveStartKey"] == {
        "userId": {"N": "7"},
        "timestamp": {"N": "30.5"},
        "chatId": {"S": "chat"},
        "activityId": {"S": "01H"},
    }


def test_a_later_page_of_an_index_without_a_sort(store: Make) -> None:
    it, told = store(NOTHING)
    it.execute(Query(JOURNAL, "you", index="subject", after='["test//me", "01H"]'))
    assert told.asked[1][1]["ExclusiveStartKey"] == {
        "subject": {"S": "you"},
        "owner": {"S": "test//me"},
        "entry": {"S": "01H"},
    }


def test_a_filter_of_an_index_may_name_the_tables_key(store: Make) -> None:
    it, told = store(NOTHING)
    it.execute(Query(ENTRIES, "x", index="text-due", equal={"owner": "me", "due": 5}))
    request = told.asked[1][1]
    living = "(attribute_not_exists(gone_at) OR gone_at > :now)"
    assert read(request, "FilterExpression") == f"{living} AND owner = :c0"
    assert request["ExpressionAttributeValues"][":c0"] == {"S": "me"}


def test_an_index_whose_order_is_that_of_the_ends_is_not_filtered_by_them(store: Make) -> None:
    """No filter may name a key; what is over is left out after it has come."""
    ending = Table(
        name="ending",
        partition="id",
        attributes={"kind": Kind.TEXT},
        expires="end",
        indexes=(Index(name="kind-end", partition="kind", sort="end", carries=()),),
    )
    over, alive = (
        {"id": {"S": id}, "kind": {"S": "a"}, "end": {"N": end}} for id, end in (("x", "1"), ("y", "9e9"))
    )
    it, told = store({"Items": [over, alive]})
    page = it.execute(Query(ending, "a", index="kind-end"))
    assert "FilterExpression" not in told.asked[1][1]
    assert [item["id"] for item in page.items] == ["y"]


@pytest.mark.parametrize(
    "asked",
    [{"equal": {"status": "FAILED"}}, {"only": ("status",)}],
)
def test_an_index_is_not_asked_for_what_it_does_not_carry(store: Make, asked: dict[str, Any]) -> None:
    """DynamoDB would answer as if items lacked it."""
    it, told = store()
    with pytest.raises(errors.UsageError, match="index 'subject' of table ledger does not carry"):
        it.execute(Query(LEDGER, "you", index="subject", **asked))
    assert told.operations == []


def test_an_index_is_asked_for_keys_and_ends(store: Make) -> None:
    it, told = store(NOTHING)
    it.execute(Query(LEDGER, "you", index="subject", equal={"id": "test//a"}, only=("id",)))
    assert projected(told.asked[1][1]) == {"id", "expires_at"}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (Query(ENTRIES, 7, index="text-due"), "'text' holds text, not int"),
        (Query(ENTRIES, "x", low="soon", index="text-due"), "'due' holds number, not str"),
        (Query(ENTRIES, "x", low="a", high=1, index="text-due"), "not both"),
        (Query(ENTRIES, "x", only=("nonsense",)), "has no attribute 'nonsense'"),
        (Query(ENTRIES, "x", index="text-due", after='["a", "b"]'), "not a cursor"),
    ],
)
def test_what_is_wrong_with_a_query_shows_before_it_is_sent(store: Make, command: Query, why: str) -> None:
    it, told = store()
    with pytest.raises(errors.UsageError, match=why):
        it.execute(command)
    assert told.operations == []


@pytest.mark.parametrize(
    ("table", "command"),
    [(LEDGER, "--env test$"), (ACTIVITIES, "--env test --table household-activities$")],
)
def test_a_missing_index_says_how_to_make_it(store: Make, table: Table, command: str) -> None:
    """Of a table that was made before it had one, say; semel's own tables are mended unasked."""
    missing = "The table does not have the specified index: it"
    it, _ = store(ServiceError("ValidationException", missing, 400, {}), url="dynamodb://eu-north-1")
    key: str | int = "you" if table is LEDGER else 7
    with pytest.raises(errors.WrongSchema, match=f"specified index: it; run: semel provision .*{command}"):
        it.execute(Query(table, key, index=table.indexes[0].name))


def test_an_index_that_is_still_being_made_can_be_read_later(store: Make) -> None:
    filling = "Cannot read from backfilling global secondary index: subject"
    it, _ = store(ServiceError("ValidationException", filling, 400, {}))
    with pytest.raises(errors.StoreUnavailable, match="once it is ACTIVE"):
        it.execute(Query(LEDGER, "you", index="subject"))


# In a table that somebody else made


def theirs(key: str, **more: Any) -> dict[str, Any]:
    return {"pk": {"S": key}, "token": {"S": "t"}, "subject": {"S": "you"}} | more


def test_a_table_without_the_index_is_looked_through(store: Make) -> None:
    """With a filter for what the index would have led to; more of the table with each look."""
    more = {"LastEvaluatedKey": {"pk": {"S": "b"}}}
    it, told = store({"Items": [theirs("b")]} | more, {"Items": [theirs("a")]}, tables=[QUILL])
    page = it.execute(Query(LEDGER, "you", index="subject", limit=5))
    assert [item["id"] for item in page.items] == ["test//a", "test//b"]
    assert page.after is None
    assert told.operations == ["Scan", "Scan"]
    request = told.asked[1][1]
    assert "subject = :c0" in read(request, "FilterExpression")
    assert request["ExpressionAttributeValues"][":c0"] == {"S": "you"}
    assert not request.keys() & {"IndexName", "KeyConditionExpression", "ScanIndexForward"}
    assert [asked["Limit"] for _, asked in told.asked[1:]] == [100, 1000]


@pytest.mark.parametrize(("reverse", "order"), [(True, "ca"), (False, "ac")])
def test_its_pages_go_on_in_the_tables_own_order(store: Make, reverse: bool, order: str) -> None:
    """Each item comes once; it is in order within its page."""
    more = {"LastEvaluatedKey": {"pk": {"S": "a"}}}
    it, told = store({"Items": [theirs("c"), theirs("a")]} | more, NOTHING, tables=[QUILL])
    page = it.execute(Query(LEDGER, "you", index="subject", limit=2, reverse=reverse))
    assert [item["id"] for item in page.items] == [f"test//{key}" for key in order]
    it.execute(Query(LEDGER, "you", index="subject", after=page.after))
    assert told.asked[2][1]["ExclusiveStartKey"] == {"pk": {"S": "a"}}


ORDERED = Table(
    name="ordered",
    partition="id",
    attributes={"kind": Kind.TEXT, "at": Kind.NUMBER},
    expires="end",
    indexes=(Index(name="kind-at", partition="kind", sort="at"),),
)


def test_bounds_hold_and_items_without_a_place_are_left_out(store: Make) -> None:
    """Where the order of an index that is missing is by a moment."""
    bare = msgspec.structs.replace(mapped(ORDERED), name="theirs", holds=ORDERED, indexes=())
    rows = [("a", "3"), ("b", "1"), ("c", "2"), ("d", None), ("e", "9")]
    items = [
        {"id": {"S": id}, "kind": {"S": "x"}, "end": {"N": "9e9"}} | ({"at": {"N": at}} if at else {})
        for id, at in rows
    ]
    it, _ = store({"Items": items}, tables=[bare])
    page = it.execute(Query(ORDERED, "x", low=1, high=3, index="kind-at"))
    assert [item["id"] for item in page.items] == ["b", "c", "a"]


def test_an_index_of_theirs_is_used_under_its_name(store: Make) -> None:
    """It goes by the attributes that the table has for these, in the form that it has for them."""
    there = TableMapping(
        name="there",
        holds=ORDERED,
        partition="pk",
        attributes={"sort": Kind.TEXT, "seenAt": Kind.TEXT},
        expires="expiresAt",
        columns={
            "kind": Column(name="sort"),
            "at": Column(name="seenAt", form=Form.ISO),
            "end": Column(name="expiresAt", form=Form.SECONDS),
        },
        indexes=(Index(name="their-index", partition="sort", sort="seenAt"),),
    )
    it, told = store(NOTHING, tables=[there])
    it.execute(Query(ORDERED, "x", low=1_700_000_000, index="kind-at", only=("at",)))
    request = told.asked[1][1]
    assert request["IndexName"] == "their-index"
    assert read(request, "KeyConditionExpression") == "sort = :k AND seenAt >= :low"
    assert request["ExpressionAttributeValues"][":low"] == {"S": "2023-11-14T22:13:20.000Z"}
    assert "ProjectionExpression" not in request, "what their items mean depends on what they lack"


def test_an_index_of_theirs_that_does_not_carry_everything_is_none(store: Make) -> None:
    """What their items mean depends on what they lack, so that half of one means something else."""
    keys = Index(name="subject", partition="subject", carries=())
    there = msgspec.structs.replace(
        POWERTOOLS, attributes=POWERTOOLS.attributes | {"subject": Kind.TEXT}, indexes=(keys,)
    )
    it, told = store(NOTHING, tables=[there])
    it.execute(Query(LEDGER, "you", index="subject"))
    assert told.operations == ["Scan"]


# The time


def test_the_time_is_told_without_a_request(store: Make, clock: FakeClock) -> None:
    it, told = store()
    assert it.execute(Time()) == Found(clock.now(), None)
    clock.advance(5)
    assert it.at_once(Time()) == asyncio.run(it.aexecute(Time())) == Found(clock.now(), None)
    assert told.asked == []
    assert it.at_once(Get(THINGS, "key")) is None


class Dating(Told):
    """A transport whose answers are dated by another clock than the machine's."""

    def __init__(self, clock: Clock, off: float, *answers: Answer) -> None:
        super().__init__(clock, *answers)
        self.time = ServiceTime(clock)
        self._clock = clock
        self._off = off

    def call(self, operation: str, request: Any, *, write: bool) -> dict[str, Any]:
        date = formatdate(self._clock.now() + self._off, usegmt=True)
        self.time.observe(date, self.time.monotonic(), self.time.monotonic())
        return super().call(operation, request, write=write)


@pytest.mark.parametrize("run", ["sync", "async"])
@pytest.mark.parametrize(
    "answer",
    [{}, ServiceError("ResourceNotFoundException", "no", 400, {}), ServiceError("AccessDenied", "", 400, {})],
)
@pytest.mark.parametrize(("off", "looks"), [(0, 1), (3600, AGREEING), (-3600, AGREEING)])
def test_before_the_first_command_the_server_is_asked_until_the_time_is_sure(
    answer: Answer, run: str, off: float, looks: int
) -> None:
    """Any answer tells the time: whoever has no ledger, or may not read it, has a clock all the same."""
    clock = MachineClock()
    told = Dating(clock, off)
    told.answers[0] = answer
    it = DynamoDBStore(told, env="test", clock=clock)
    assert it.at_once(Time()) is None
    found = it.execute(Time()) if run == "sync" else asyncio.run(it.aexecute(Time()))
    assert abs(found.now - clock.now() - off) < 2
    assert it.at_once(Time()) is not None
    it.execute(Time())
    assert told.asked == [("GetItem", told.asked[0][1])] * looks
    assert told.asked[0][1]["TableName"] == "semel-test-ledger"
    it.close()


def test_the_time_is_heard_from_a_table_that_is_in_use() -> None:
    """After a jump of the machine's clock it is heard again; there a table is known that may be read."""
    clock = MachineClock()
    told = Dating(clock, 0)
    it = DynamoDBStore(told, env="test", clock=clock)
    it.execute(Get(DOCUMENTS, "key"))
    clock.jump(1000)
    it.execute(Time())
    assert [request["TableName"] for _, request in told.asked] == ["semel-test-documents"] * (2 + AGREEING)
    it.close()


def test_a_closed_store_tells_no_time(store: Make) -> None:
    it, _ = store()
    it.close()
    assert it.at_once(Time()) is None
    with pytest.raises(errors.StoreClosed):
        it.execute(Time())
