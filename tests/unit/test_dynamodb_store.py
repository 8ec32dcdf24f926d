"""Which requests the store sends and what it makes of the answers, on a transport that does as it is told."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, cast

import pytest

from semel import errors
from semel.apps.tables import ACTIVITIES, MESSAGES, PROBE, QUILL
from semel.aws.errors import ServiceError
from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    ANY,
    PRESENT,
    Add,
    After,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Get,
    Put,
    Query,
    Refused,
    Transact,
    Update,
)
from semel.core.ledger import LedgerSteps
from semel.core.realm import Realm
from semel.stores.dynamodb import DynamoDBStore, steps
from semel.stores.dynamodb.address import parse
from semel.stores.dynamodb.items import SCHEMA, title
from semel.stores.dynamodb.steps import BREAK_EVEN
from semel.testing import FakeClock
from semel.testing.conformance import LINES, THINGS
from tests.conformance.dynamodb_kit import Answer, Told


def refused(item: dict[str, Any] | None = None) -> ServiceError:
    body = {"Item": item} if item else {}
    return ServiceError("ConditionalCheckFailedException", "The conditional request failed", 400, body)


def cancelled(*reasons: dict[str, Any]) -> ServiceError:
    return ServiceError(
        "TransactionCanceledException", "cancelled", 400, {"CancellationReasons": list(reasons)}
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock):
    made: list[DynamoDBStore] = []

    def make(*answers: Answer, **options: Any) -> tuple[DynamoDBStore, Told]:
        transport = Told(clock, *answers)
        made.append(DynamoDBStore(transport, env="test", clock=clock, **options))
        return made[-1], transport

    yield make
    for each in made:
        each.close()


def thing(clock: FakeClock, **more: Any) -> dict[str, Any]:
    return {"gone_at": clock.now() + 60} | more


def kept(clock: FakeClock, key: str = "key", **more: Any) -> dict[str, Any]:
    return {"id": {"S": key}, "gone_at": {"N": str(clock.now() + 60)}} | more


OVER = {"id": {"S": "key"}, "gone_at": {"N": "1"}, "count": {"N": "7"}}


# Opening


def test_a_table_is_looked_at_once(store, clock) -> None:
    """Its stamp is read before the first command, and not again."""
    it, told = store()
    for _ in range(3):
        it.execute(Get(THINGS, "key"))
    assert [operation for operation, _ in told.asked] == ["GetItem"] * 4
    assert told.asked[0][1]["Key"] == {"id": {"S": "semel:environment"}}


def test_a_table_of_another_environment_is_refused(store, clock) -> None:
    it, told = store()
    told.answers[0] = {"Item": {"environment": {"S": "prod"}}}
    with pytest.raises(errors.WrongEnvironment) as caught:
        it.execute(Put(THINGS, "key", thing(clock)))
    assert (caught.value.stamped, caught.value.asked) == ("prod", "test")
    assert len(told.asked) == 1


def test_a_table_of_a_newer_semel_is_refused(store, clock) -> None:
    it, told = store()
    told.answers[0] = {"Item": {"environment": {"S": "test"}, "schema": {"N": str(SCHEMA + 1)}}}
    with pytest.raises(errors.SchemaTooNew):
        it.execute(Put(THINGS, "key", thing(clock)))


def test_a_table_that_is_missing_says_how_to_make_it(store, clock) -> None:
    it, told = store(url="dynamodb://eu-north-1")
    told.answers[0] = ServiceError("ResourceNotFoundException", "Requested resource not found", 400, {})
    with pytest.raises(
        errors.TableMissing, match="semel provision --url dynamodb://eu-north-1 --env test"
    ) as caught:
        it.execute(Get(THINGS, "key"))
    assert "semel-test-conformance_things" in str(caught.value)


@pytest.mark.seed("H10")
def test_a_table_that_is_missing_under_this_name_may_be_there_under_another(store, monkeypatch) -> None:
    monkeypatch.delenv("MESSAGES_TABLE_NAME", raising=False)
    it, told = store()
    told.answers[0] = ServiceError("ResourceNotFoundException", "Requested resource not found", 400, {})
    with pytest.raises(errors.TableMissing) as caught:
        it.execute(Get(MESSAGES, "test//chat", 7))
    name, _, rest = str(caught.value).partition(" (yet); ")
    assert name == "there is no table homeops-messages-test"
    assert rest.startswith("name one that you have with MESSAGES_TABLE_NAME, or run: semel provision ")
    assert " --table household-messages (or, " in rest


@pytest.mark.parametrize(
    ("code", "message", "action"),
    [
        (
            "AccessDeniedException",
            "User: x is not authorized to perform: dynamodb:GetItem on resource: y",
            "dynamodb:GetItem",
        ),
        ("UnrecognizedClientException", "The security token is invalid", "dynamodb:GetItem"),
    ],
)
def test_what_is_not_allowed_is_named(store, code: str, message: str, action: str) -> None:
    it, told = store()
    told.answers[0] = ServiceError(code, message, 400, {})
    with pytest.raises(errors.NotPermitted, match=action):
        it.execute(Get(THINGS, "key"))


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("ValidationException", "The provided key element does not match the schema", errors.WrongSchema),
        (
            "ValidationException",
            "One or more parameter values were invalid: Missing the key pk in the item",
            errors.WrongSchema,
        ),
        (
            "ValidationException",
            "Type mismatch for Index Key subject Expected: N Actual: S IndexName: subject",
            errors.WrongSchema,
        ),
        (
            "ValidationException",
            "A value specified for a secondary index key is not supported. IndexName: subject",
            errors.UsageError,
        ),
        ("ValidationException", "Item size has exceeded the maximum allowed size", errors.UsageError),
        ("ItemCollectionSizeLimitExceededException", "Collection size exceeded.", errors.UsageError),
        ("ValidationException", "Nesting Levels have exceeded supported limits", errors.UsageError),
        ("SomethingNew", "that nobody knows", errors.StoreError),
    ],
)
def test_errors_are_translated(store, clock, code: str, message: str, kind: type[Exception]) -> None:
    it, _ = store(ServiceError(code, message, 400, {}))
    with pytest.raises(kind):
        it.execute(Put(THINGS, "key", thing(clock)))


def test_a_table_of_the_same_name_is_refused(store, clock) -> None:
    it, _ = store()
    it.execute(Get(THINGS, "key"))
    other = type(THINGS)(name=THINGS.name, partition="other", attributes={}, expires="end")
    with pytest.raises(errors.UsageError, match="another table"):
        it.execute(Get(other, "key"))


# One item


def test_a_refusal_is_one_request(store, clock) -> None:
    """What was in the way comes with it."""
    it, told = store(refused(kept(clock, text={"S": "theirs"})))
    reply = it.execute(Put(THINGS, "key", thing(clock), ABSENT))
    assert reply == Refused(clock.now(), {"id": "key", "gone_at": clock.now() + 60, "text": "theirs"})
    assert told.operations == ["PutItem"]


def test_a_server_that_does_not_tell_is_asked(store, clock) -> None:
    """Where a write was refused by an item that nobody showed, it is read."""
    it, told = store(refused(), {"Item": kept(clock, text={"S": "theirs"})})
    assert it.execute(Put(THINGS, "key", thing(clock), ABSENT)).item["text"] == "theirs"
    assert told.operations == ["PutItem", "GetItem"]


def test_a_server_that_tells_is_believed(store, clock) -> None:
    """Once it has told, a refusal without an item means that there is none."""
    it, told = store(refused(kept(clock)), refused())
    it.execute(Update(THINGS, "key", {"text": "x"}, {"text": "y"}))
    assert it.execute(Delete(THINGS, "key")) == Refused(clock.now(), None)
    assert told.operations == ["UpdateItem", "DeleteItem"]


@pytest.mark.parametrize("absent", [True, False])
def test_what_is_read_afterwards_may_not_be_what_refused(store, clock, absent: bool) -> None:
    """If it would have allowed the write, the write is tried again, lest the reply contradict itself."""
    it, told = store(refused(), {} if absent else {"Item": kept(clock)}, {})
    write = Put(THINGS, "key", thing(clock), ABSENT) if absent else Update(THINGS, "key", {"text": "x"})
    assert type(it.execute(write)) is Applied
    assert len(told.operations) == 3
    assert told.operations[0] == told.operations[2]


def test_a_write_that_is_always_overtaken_gives_up(store, clock) -> None:
    it, _ = store(*[refused(), {}] * steps.OVERTAKEN)
    with pytest.raises(errors.StoreThrottled):
        it.execute(Put(THINGS, "key", thing(clock), ABSENT))


def test_what_has_expired_is_shown_as_it_is(store, clock) -> None:
    """The rules decide what follows from it."""
    it, told = store(refused(OVER), {"Item": OVER})
    expired = {"id": "key", "gone_at": 1, "count": 7}
    assert it.execute(Put(THINGS, "key", thing(clock), ABSENT)) == Refused(clock.now(), expired)
    assert it.execute(Get(THINGS, "key")).item == expired
    assert told.operations == ["PutItem", "GetItem"]


def test_a_request_is_made_anew_where_the_clock_was_wrong(store, clock) -> None:
    """The times in it, and the time in the reply, are those of the request that was answered."""
    it, told = store()
    it.execute(Get(THINGS, "key"))
    made: list[dict[str, Any]] = []

    def call(_: str, request: Callable[[], dict[str, Any]], **__: Any) -> dict[str, Any]:
        made.append(request())
        clock.jump(1000)
        made.append(request())
        return {}

    told.call = call
    before = clock.now()
    reply = it.execute(Put(THINGS, "key", {"gone_at": After(60)}, ABSENT))
    assert [request["Item"]["gone_at"] for request in made] == [
        {"N": f"{before + 60:.0f}"},
        {"N": f"{before + 1060:.0f}"},
    ]
    assert reply == Applied(before + 1000)


def test_ends_are_copied_for_dynamodbs_own_deletion(store, clock) -> None:
    """In whole seconds, rounded up; an item without an end has none there either."""
    it, told = store()
    it.execute(Put(THINGS, "key", {"gone_at": clock.now() + 0.25}))
    it.execute(Update(THINGS, "key", {"gone_at": After(0.5)}))
    it.execute(Put(LINES, "key", {"text": "stays"}, ANY, 1))
    it.execute(Update(LINES, "key", {"gone_at": None}, PRESENT, 1))
    requests = [request for _, request in told.asked]
    assert requests[1]["Item"]["ttl"] == {"N": "1700000001"}
    assert requests[2]["ExpressionAttributeValues"][":u1"] == {"N": "1700000001"}
    assert requests[2]["UpdateExpression"] == "SET #u0 = :u0, #u1 = :u1"
    assert set(requests[4]["Item"]) == {"owner", "number", "text"}
    assert requests[5]["UpdateExpression"] == " REMOVE #u0, #u1"


@pytest.mark.parametrize(
    "command",
    [
        Put(THINGS, "key", {"text": "no end"}),
        Put(THINGS, "key", {"gone_at": 1, "unheard": 1}),
        Put(THINGS, "key", {"gone_at": 1, "text": 5}),
        Put(THINGS, "key", {"gone_at": float("inf")}),
        Put(LINES, "key", {"count": float("inf")}, ANY, 1),
        Update(THINGS, "key", {"gone_at": None}),
        Add(THINGS, "key", "unheard", 1, {"gone_at": 1}),
        Add(THINGS, "key", "count", 1, {"count": 5, "gone_at": 1}),
        Put(THINGS, "key", {"gone_at": 1}, {"unheard": 1}),
        Query(THINGS, equal={"unheard": 1}),
        Query(LINES, "key", low=1, high="2"),
        Query(LINES, "key", after='["other", 1]'),
        Batch((Put(THINGS, "one", {"gone_at": 1}), Put(THINGS, "two", {"unheard": 1}))),
        Transact((Put(THINGS, "one", {"gone_at": 1}), Put(THINGS, "two", {"unheard": 1}))),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_is_wrong_shows_before_anything_is_sent(store, command) -> None:
    """Of a batch and of a transaction too."""
    it, told = store()
    with pytest.raises(errors.UsageError):
        it.execute(command)
    assert told.operations == []


def test_half_a_character_cannot_be_written(store, clock) -> None:
    it, told = store()
    it.execute(Get(THINGS, "key"))

    def call(_: str, request: Callable[[], dict[str, Any]], **__: Any) -> dict[str, Any]:
        return {"Item": request()["Item"]["text"]["S"].encode()}

    told.call = call
    with pytest.raises(errors.UsageError, match="half a character"):
        it.execute(Put(THINGS, "key", thing(clock, text="\ud800")))


# Additions


def test_an_addition_is_one_request(store, clock) -> None:
    """It keeps the end of an item that exists, and is refused above its cap."""
    it, told = store({"Attributes": kept(clock, count={"N": "3"})})
    reply = it.execute(Add(THINGS, "key", "count", 2, {"text": "a", "gone_at": After(60)}, cap=5))
    assert reply.item == {"id": "key", "count": 3, "gone_at": clock.now() + 60}
    [(operation, request)] = told.asked[1:]
    assert operation == "UpdateItem"
    text, names = request["UpdateExpression"], request["ExpressionAttributeNames"]
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    assert text == (
        "SET count = if_not_exists(count, :start) + :by, text = :u0, "
        "gone_at = if_not_exists(gone_at, :u1), ttl = if_not_exists(ttl, :u2)"
    )
    assert request["ConditionExpression"] == "attribute_not_exists(#n) OR #n <= :max"
    assert request["ExpressionAttributeValues"][":max"] == {"N": "3"}


def test_an_addition_without_an_end_makes_nothing(store, clock) -> None:
    """It may add to what is there; what it would make would never go."""
    it, _ = store({"Attributes": kept(clock, count={"N": "3"})}, refused(), {})
    assert it.execute(Add(THINGS, "key", "count", 2, {})).item["count"] == 3
    with pytest.raises(errors.UsageError, match="gone_at"):
        it.execute(Add(THINGS, "key", "count", 2, {}))


@pytest.mark.parametrize("together", [False, True])
def test_an_addition_gives_no_end_to_an_item_that_stays_for_ever(store, together: bool) -> None:
    """The item refuses it; it is sent again without an end."""
    there = {"owner": {"S": "key"}, "number": {"N": "1"}, "count": {"N": "1"}}
    refusal = cancelled({"Code": "ConditionalCheckFailed", "Item": there}) if together else refused(there)
    it, told = store(refusal, {"Attributes": there})
    add = Add(LINES, "key", "count", 1, {"gone_at": After(60)}, sort=1)
    assert type(it.execute(Transact((add,)) if together else add)) is Applied
    sent = [request["TransactItems"][0]["Update"] if together else request for _, request in told.asked[1:]]
    assert sent[0]["ConditionExpression"] == "attribute_not_exists(#p) OR attribute_exists(#x)"
    assert sent[1]["UpdateExpression"] == "SET #n = if_not_exists(#n, :start) + :by"


# Batches


def test_writes_of_one_item_keep_their_order(store, clock) -> None:
    it, told = store()
    first, second = thing(clock, text="first"), thing(clock, text="second")
    it.execute(Batch((Put(THINGS, "a", first), Put(THINGS, "b", first), Put(THINGS, "a", second))))
    texts = [
        request["Item"]["text"]["S"] for _, request in told.asked[1:] if request["Item"]["id"]["S"] == "a"
    ]
    assert texts == ["first", "second"]


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([errors.StoreUnavailable("down"), errors.StoreThrottled("busy")], errors.StoreUnavailable),
        ([{}, errors.StoreUnavailable("down")], errors.StoreOutcomeUnknown),
        ([errors.StoreUnavailable("down"), errors.StoreOutcomeUnknown("lost")], errors.StoreOutcomeUnknown),
        ([refused({"id": {"S": "a"}}), errors.StoreThrottled("busy")], errors.StoreOutcomeUnknown),
        ([{}, ServiceError("AccessDeniedException", "no", 400, {})], errors.NotPermitted),
    ],
)
def test_a_batch_of_which_some_failed(store, clock, answers: list[Answer], kind: type[Exception]) -> None:
    """Only where nothing was made does it say so; else it is to be sent again."""
    it, _ = store(*answers)
    batch = Batch((Put(THINGS, "a", thing(clock), ABSENT), Put(THINGS, "b", thing(clock), ABSENT)))
    with pytest.raises(kind):
        asyncio.run(it.aexecute(batch))


# Transactions


def test_a_transaction_whose_answer_was_lost_is_sent_again_as_it_was(store, clock) -> None:
    """With the same token and the same times, so that DynamoDB knows it again."""
    it, told = store(errors.StoreOutcomeUnknown("lost"), errors.StoreUnavailable("down"), {})
    transact = Transact((Add(THINGS, "key", "count", 1, {"gone_at": After(60)}),))
    assert type(it.execute(transact)) is Applied
    sent = [request for operation, request in told.asked if operation == "TransactWriteItems"]
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]


def test_what_comes_after_a_lost_answer_does_not_settle_it(store, clock) -> None:
    """That the credentials have expired since says nothing about the first sending."""
    denied = ServiceError("AccessDeniedException", "no longer", 400, {})
    it, _ = store(errors.StoreOutcomeUnknown("lost"), denied, errors.StoreThrottled("busy"))
    with pytest.raises(errors.StoreOutcomeUnknown):
        it.execute(Transact((Put(THINGS, "key", thing(clock), ABSENT),)))


def test_a_transaction_that_nobody_knows_of_keeps_its_token(store, clock) -> None:
    """Whoever sends the same one again sends it with the same token; not another one that is equal to it."""
    it, told = store(*[errors.StoreOutcomeUnknown("lost")] * 3)
    add = Add(THINGS, "key", "count", 1, {"gone_at": After(60)})
    transact, equal = Transact((add,)), Transact((add,))
    with pytest.raises(errors.StoreOutcomeUnknown):
        it.execute(transact)
    clock.advance(5)
    it.execute(equal)
    it.execute(transact)
    it.execute(transact)
    tokens = [request["ClientRequestToken"] for _, request in told.asked[1:]]
    assert tokens[0] == tokens[1] == tokens[2] == tokens[4]
    assert len(set(tokens)) == 3


def test_a_transaction_is_not_sent_again_when_its_token_is_forgotten(store, clock) -> None:
    it, told = store(*[errors.StoreOutcomeUnknown("lost")] * 3)
    transact = Transact((Put(THINGS, "key", thing(clock), ABSENT),))
    with pytest.raises(errors.StoreOutcomeUnknown):
        it.execute(transact)
    clock.advance(steps.RESEND_SECONDS)
    it.execute(transact)
    tokens = [request["ClientRequestToken"] for _, request in told.asked[1:]]
    assert tokens[3] != tokens[0]


def test_a_transaction_that_was_not_sent_says_so(store, clock) -> None:
    it, told = store(errors.StoreUnavailable("down"))
    with pytest.raises(errors.StoreUnavailable):
        it.execute(Transact((Put(THINGS, "key", thing(clock), ABSENT),)))
    assert len(told.operations) == 1


def test_a_cancelled_transaction_tells_of_each_write(store, clock) -> None:
    """What refused one, nothing of one that would have held or only met another transaction."""
    reasons: list[dict[str, Any]] = [
        {"Code": "ConditionalCheckFailed", "Item": kept(clock, "a")},
        {"Code": "None"},
        {"Code": "TransactionConflict"},
    ]
    it, _ = store(cancelled(*reasons))
    reply = it.execute(Transact(tuple(Put(THINGS, key, thing(clock), ABSENT) for key in "abc")))
    assert type(reply) is Cancelled
    assert [refusal and refusal.item for refusal in reply.refusals] == [
        {"id": "a", "gone_at": clock.now() + 60},
        None,
        None,
    ]


def test_a_transaction_is_tried_again_where_what_refused_it_has_gone(store, clock) -> None:
    """The server did not tell of any item, and there is none that would refuse it now."""
    it, told = store(cancelled({"Code": "ConditionalCheckFailed"}), {})
    assert type(it.execute(Transact((Put(THINGS, "a", thing(clock), ABSENT),)))) is Applied
    assert told.operations == ["TransactWriteItems", "GetItem", "TransactWriteItems"]


def test_limits_of_transactions_are_known_beforehand(store, clock) -> None:
    """More writes, a larger item or more bytes than DynamoDB takes are refused with nothing sent."""
    it, told = store()
    many = tuple(Put(THINGS, str(each), thing(clock)) for each in range(101))
    large = (Put(THINGS, "a", thing(clock, data=b"x" * 410_000)),)
    heavy = tuple(Put(THINGS, str(each), thing(clock, text="x" * 390_000)) for each in range(12))
    for writes in (many, large, heavy):
        with pytest.raises(errors.UsageError, match="more than the"):
            it.execute(Transact(writes))
    assert told.operations == []
    assert type(it.execute(Transact(()))) is Applied


def test_what_dynamodb_finds_wrong_with_a_transaction(store, clock) -> None:
    it, _ = store(cancelled({"Code": "ValidationError", "Message": "An operand has an incorrect data type"}))
    with pytest.raises(errors.UsageError, match="incorrect data type"):
        it.execute(Transact((Put(THINGS, "a", thing(clock)),)))


# Reading first


def test_reading_first_saves_the_write_that_would_be_refused(store, clock) -> None:
    it, told = store({"Item": kept(clock)}, {}, {}, {"Item": kept(clock)}, read_first="yes")
    assert type(it.execute(Put(THINGS, "key", thing(clock), ABSENT))) is Refused
    assert told.operations == ["GetItem"]
    assert type(it.execute(Put(THINGS, "key", thing(clock), ABSENT))) is Applied
    assert told.operations == ["GetItem", "GetItem", "PutItem"]
    it.execute(Put(THINGS, "key", thing(clock), PRESENT))
    assert told.operations == ["GetItem", "GetItem", "PutItem", "PutItem"]


def test_reading_first_pays_above_one_refusal_in_five(store) -> None:
    """It begins there and ends there; and says so when asked for nonsense."""
    operations = store(read_first="auto")[0]._operations
    assert pytest.approx(0.2) == BREAK_EVEN
    refusals = 0
    while not operations.reads_first:
        operations.learn(refused=True)
        refusals += 1
    assert 3 <= refusals <= 10
    for turn in range(1000):
        operations.learn(refused=turn % 10 == 0)
    assert not operations.reads_first
    for turn in range(1000):
        operations.learn(refused=turn % 2 == 0)
    assert operations.reads_first
    with pytest.raises(errors.InvalidOption):
        store(read_first=cast("Any", "maybe"))


# Queries


def test_a_page_is_looked_for_until_it_is_full(store, clock) -> None:
    """A filter may leave little of what was looked at; each look takes in more than the one before."""
    more = {"LastEvaluatedKey": {"id": {"S": "z"}}}
    it, told = store({"Items": []} | more, {"Items": [kept(clock, "a", text={"S": "x"})]})
    page = it.execute(Query(THINGS, equal={"text": "x"}, limit=5))
    assert ([item["id"] for item in page.items], page.after) == (["a"], None)
    assert [request["Limit"] for _, request in told.asked[1:]] == [100, 1000]
    assert told.asked[2][1]["ExclusiveStartKey"] == {"id": {"S": "z"}}


def test_what_cannot_be_found_is_not_looked_for(store, clock) -> None:
    it, told = store()
    assert it.execute(Query(LINES, "mine", low=5, high=4)).items == ()
    assert told.operations == []


# URLs


def test_a_url_in_its_parts() -> None:
    plain = parse("dynamodb://")
    assert (plain.region, plain.endpoint, plain.tables) == (None, None, ())
    full = parse(
        "dynamodb://eu-north-1/my-table?endpoint=http://127.0.0.1:8000&layout=powertools&read_first=auto"
        "&margin=0.5&overflow=s3://bucket/there/&transport=botocore"
    )
    assert (full.region, full.endpoint) == ("eu-north-1", "http://127.0.0.1:8000")
    assert (full.tables[0].name, full.tables[0].title) == ("powertools", "my-table")
    assert (full.read_first, full.margin, full.overflow, full.botocore) == (
        "auto",
        0.5,
        ("bucket", "there/"),
        True,
    )
    assert parse("dynamodb:///my-table").tables[0].title == "my-table"
    assert parse("dynamodb://?layout=quill").tables == (QUILL,)
    assert parse("dynamodb://?profile=work").botocore
    assert parse("dynamodb://?overflow=s3://bucket").overflow == ("bucket", "semel/")


def test_the_title_of_a_url_goes_before_the_environments(monkeypatch) -> None:
    monkeypatch.setenv("DYNAMO_TABLE_NAME", "elsewhere")
    assert title(parse("dynamodb:///here?layout=quill").tables[0], "test") == "here"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("dynamodb:table", "another form"),
        ("dynamodb://eu-north-1/a/b", "cannot name a table"),
        ("dynamodb://eu-north-1/x", "cannot name a table"),
        ("dynamodb://eu-north-1#x", "another form"),
        ("dynamodb://key:secret@eu-north-1", "credentials come from"),
        ("dynamodb://?regoin=x", "no option 'regoin'"),
        ("dynamodb://?layout=support-state", "one of powertools, quill"),
        ("dynamodb://?read_first=often", "one of no, yes, auto"),
        ("dynamodb://?transport=http", "one of wire, botocore"),
        ("dynamodb://?margin=soon", "number of seconds"),
        ("dynamodb://?overflow=bucket", "s3://bucket/prefix/"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(url: str, why: str) -> None:
    with pytest.raises(errors.InvalidOption, match=why) as caught:
        parse(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["dynamodb://nowhere", "dynamodb://eu-north-1?endpoint=127.0.0.1", "dynamodb://eu-north-1?margin=-1"],
)
def test_what_a_url_says_is_checked_at_once(url: str) -> None:
    with pytest.raises(errors.InvalidOption):
        DynamoDBStore.from_url(url, env="test", clock=Clock())


# Ends


def test_a_closed_store_says_so(store) -> None:
    it, told = store()
    it.close()
    it.close()
    assert told.closed
    with pytest.raises(errors.StoreClosed):
        it.execute(Get(THINGS, "key"))
    with pytest.raises(errors.StoreClosed):
        asyncio.run(it.aexecute(Get(THINGS, "key")))


def test_results_fit_into_an_item(store) -> None:
    """A third less where they are kept as text."""
    plain, _ = store()
    as_text, _ = store(tables=[PROBE])
    assert as_text.room < plain.room < 400 * 1024
    assert as_text.room * 4 / 3 < 400 * 1024


def test_many_first_commands_look_at_a_table_once(store) -> None:
    it, told = store()

    async def at_once() -> None:
        await asyncio.gather(*(it.aexecute(Get(THINGS, str(each))) for each in range(20)))
        await it.leave()

    asyncio.run(at_once())
    assert sum(request["Key"] == {"id": {"S": "semel:environment"}} for _, request in told.asked) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_shares_no_lock(store) -> None:
    """What a thread of the parent holds at that moment is not held in the child."""
    it, _ = store()
    with it._opening:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                it.execute(Get(THINGS, "key"))
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_a_claim_is_one_request(store, clock) -> None:
    """Won or lost."""
    ledger = LedgerSteps(Realm(env="test"))
    it, told = store()
    put = next(ledger.claim("key"))
    it.execute(put)
    assert told.operations == ["PutItem"]
    assert told.asked[-1][1]["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


def test_items_of_an_own_table_may_be_numbers_and_texts(store) -> None:
    """Keys are written as their kind has it."""
    it, told = store()
    it.execute(Get(ACTIVITIES, "test//chat", "01H"))
    it.execute(Get(MESSAGES, "test//chat", 7))
    keys = [request["Key"] for _, request in told.asked]
    assert keys[0] == {"chatId": {"S": "semel:environment"}, "activityId": {"S": "semel"}}
    assert keys[2] == {"chatId": {"S": "semel:environment"}, "messageId": {"N": "0"}}
    assert keys[3] == {"chatId": {"S": "chat"}, "messageId": {"N": "7"}}
    with pytest.raises(errors.UsageError, match="messageId"):
        it.execute(Get(MESSAGES, "test//chat", "seven"))
