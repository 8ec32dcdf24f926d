"""Lambda handlers: each event has its effect once, whatever Lambda delivers again, and however it ends."""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import semel
from semel import errors
from semel.apps.tables import ALCHEMISER
from semel.core.clock import Clock
from semel.core.events import Event, What
from semel.core.runtime import _stock, random_token
from semel.doors.aws_lambda import Lambda, from_environment
from semel.doors.aws_lambda.records import queued
from semel.doors.http import ANYONE, Idempotency
from semel.doors.queues.messages import DeliveryResult, Verdict
from semel.doors.sqs.message import read, usual_key
from semel.provision import ProvisionTarget as Site
from semel.provision import provision
from semel.redact import Redactor
from semel.stores.memory import MemoryStore
from semel.telemetry.emf import Emf
from semel.testing import FakeClock, Faulty
from tests.doors.lambda_events import (
    Context,
    alb,
    batch,
    dynamodb_record,
    eventbridge,
    fifo_record,
    http_api,
    kinesis_record,
    rest,
    s3_record,
    sns_record,
    sqs_record,
)
from tests.places import Place, open_place

PLENTY = Context(30)


class Work:
    """A function under test: what it was called with, and which of it is to fail how often."""

    def __init__(self, **fails: int) -> None:
        self.done: list[str] = []
        self.fails = Counter(fails)

    def __call__(self, record: dict[str, Any]) -> str:
        name = record["body"]
        if self.fails[name] > 0:
            self.fails[name] -= 1
            raise ValueError(f"{name} failed")
        self.done.append(name)
        return name.upper()


def failed(*ids: str) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": id} for id in ids]}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "dynoxide"])
def place(request, tmp_path) -> Place:
    return open_place(request.param, request, tmp_path)


@pytest.fixture
def s(clock) -> Iterator[semel.Semel]:
    with semel.connect("memory:", clock=clock) as s:
        yield s


@pytest.fixture
def on(s) -> Lambda:
    return Lambda(s)


# SQS


def test_what_failed_of_a_batch_is_reported_and_only_that_is_done_again(place) -> None:
    with semel.Semel(place.open(), env=place.env) as s:
        work = Work(two=1)
        handler = Lambda(s).sqs()(work)
        event = batch(*[sqs_record(f"id-{body}", body) for body in ("one", "two", "three")])
        assert handler(event, PLENTY) == failed("id-two")
        assert handler(event, PLENTY) == failed()
        assert work.done == ["one", "three", "two"]


@pytest.mark.seed("R10")
def test_a_group_of_a_fifo_queue_stops_at_its_first_failure_and_the_others_go_on(place) -> None:
    with semel.Semel(place.open(), env=place.env) as s:
        work = Work(a1=1)
        handler = Lambda(s).sqs()(work)
        event = batch(*[fifo_record(f"id-{n}", n[0], f"d-{n}", n) for n in ("a1", "b1", "a2", "b2", "a3")])
        assert handler(event, PLENTY) == failed("id-a1", "id-a2", "id-a3")
        assert work.done == ["b1", "b2"]
        again = batch(*[record for record in event["Records"] if record["body"][0] == "a"])
        assert handler(again, PLENTY) == failed()
        assert work.done == ["b1", "b2", "a1", "a2", "a3"]


def test_a_message_that_its_sender_names_again_is_a_duplicate_though_sqs_calls_it_otherwise(on) -> None:
    work = Work()
    handler = on.sqs()(work)
    assert handler(batch(fifo_record("id-1", "g", "order-1", "one")), PLENTY) == failed()
    assert handler(batch(fifo_record("id-2", "g", "order-1", "one")), PLENTY) == failed()
    assert work.done == ["one"]


def test_equal_bodies_without_a_name_are_two_messages(on) -> None:
    work = Work()
    handler = on.sqs()(work)
    assert handler(
        batch(fifo_record("id-1", "g", body="tick"), fifo_record("id-2", "g", body="tick")), PLENTY
    )
    assert work.done == ["tick", "tick"]


@pytest.mark.parametrize(
    "record",
    [sqs_record("id-1"), fifo_record("id-1", "g", "order:1"), fifo_record("id-1", "g", body="tick")],
    ids=["standard", "named", "hashed"],
)
def test_a_message_has_the_key_that_a_consumer_of_the_queue_gives_it(record) -> None:
    names = {"MessageId": "messageId", "Body": "body", "ReceiptHandle": "receiptHandle"}
    told = {name: record[here] for name, here in names.items()} | {"Attributes": record["attributes"]}
    queue = record["eventSourceARN"].rpartition(":")[2]
    assert queued(record) == usual_key(read(told, queue), by_group=True)


def test_what_no_delivery_can_mend_is_left_to_the_redrive_policy_and_holds_up_nobody(on) -> None:
    work = Work(a1=9)
    handler = on.sqs(max_attempts=1)(work)
    event = batch(fifo_record("id-1", "a", "1", "a1"), fifo_record("id-2", "a", "2", "a2"))
    assert handler(event, PLENTY) == failed("id-1")
    assert handler(event, PLENTY) == failed("id-1")
    assert work.done == ["a2"]
    assert work.fails["a1"] == 8


def test_what_no_delivery_can_mend_goes_to_the_dead_letters_that_are_given(on, caplog) -> None:
    letters: list[tuple[str, DeliveryResult]] = []

    def bury(record: dict[str, Any], taken: DeliveryResult) -> None:
        if record["body"] == "heavy":
            raise OSError("no room")
        letters.append((record["body"], taken))

    handler = on.sqs(dead=bury, on_error="keep")(Work(one=9, heavy=9))
    event = batch(sqs_record("id-1", "one"), sqs_record("id-2", "heavy"))
    assert handler(event, PLENTY) == failed("id-2")
    [(body, taken)] = letters
    assert (body, taken.verdict, str(taken.error)) == ("one", Verdict.DEAD, "one failed")
    assert "did not take it" in caplog.text


def test_a_message_of_which_nothing_can_be_told_is_dead_and_the_others_are_handled(on) -> None:
    work = Work()
    handler = on.sqs(key=lambda record: json.loads(record["body"])["id"])(work)
    event = batch(sqs_record("id-1", "no JSON"), sqs_record("id-2", '{"id": "o-1"}'))
    assert handler(event, PLENTY) == failed("id-1")
    assert work.done == ['{"id": "o-1"}']


def test_a_changed_payload_under_one_key_is_not_handled(on) -> None:
    work = Work()
    handler = on.sqs(key=lambda record: "order", fingerprint=lambda record: record["body"])(work)
    assert handler(batch(sqs_record("id-1", "one"), sqs_record("id-2", "two")), PLENTY) == failed("id-2")
    assert work.done == ["one"]


def test_a_failure_is_in_the_log_without_what_is_personal(clock, caplog) -> None:
    def fail(record: dict[str, Any]) -> None:
        raise ValueError("no such customer: ada@example.com")

    with semel.connect("memory:", clock=clock, redact=Redactor()) as s:
        handler = Lambda(s).sqs()(fail)
        assert handler(batch(sqs_record("id-1")), PLENTY) == failed("id-1")
    assert "sqs record id-1: failed" in caplog.text
    assert "ValueError: no such customer: ***@***" in caplog.text
    assert "ada" not in caplog.text


def test_a_store_that_is_down_makes_every_message_come_again(clock) -> None:
    faulty = Faulty(MemoryStore(clock))
    with semel.Semel(faulty, clock=clock) as s:
        work = Work()
        handler = Lambda(s).sqs()(work)
        faulty.refuse()
        assert handler(batch(sqs_record("id-1", "one")), PLENTY) == failed("id-1")
        assert work.done == []
        assert handler(batch(sqs_record("id-1", "one")), PLENTY) == failed()


@pytest.mark.seed("A8")
def test_of_a_hundred_concurrent_invocations_one_does_the_work(place) -> None:
    done: list[str] = []
    start = threading.Barrier(100)
    answers: list[Any] = []
    with semel.Semel(place.open(), env=place.env) as s:
        on = Lambda(lambda: s)

        @on.sqs()
        def handler(record: dict[str, Any]) -> None:
            done.append(record["messageId"])

        def invoke() -> None:
            start.wait()
            answers.append(handler(batch(sqs_record("id-1")), Context(30)))

        threads = [threading.Thread(target=invoke) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == ["id-1"]
        assert len(answers) == 100
        assert all(answer in (failed(), failed("id-1")) for answer in answers)
        assert failed() in answers


# Time


@pytest.mark.parametrize(("left", "lease"), [(30, 31), (29.2, 31), (0.9, 2)])
def test_a_lease_is_what_is_left_of_the_invocation_in_whole_seconds_and_one_more(s, left, lease) -> None:
    claims: list[Any] = []
    on = Lambda(s, min_remaining=0.5)

    @on.sqs()
    def handler(record: dict[str, Any]) -> None:
        claims.append(semel.current_run().claim)

    handler(batch(sqs_record("id-1")), Context(left))
    assert [claim.lease for claim in claims] == [lease]


def test_each_message_of_a_batch_has_the_time_that_is_left_for_it(on) -> None:
    leases: list[float] = []

    @on.sqs()
    def handler(record: dict[str, Any]) -> None:
        leases.append(semel.current_run().claim.lease)

    handler(batch(*[sqs_record(f"id-{n}") for n in range(3)]), Context(30, 20, 10))
    assert leases == [31, 21, 11]


def test_nothing_is_begun_for_which_there_is_too_little_time(s) -> None:
    work = Work()
    handler = Lambda(s, min_remaining=5).sqs()(work)
    event = batch(*[sqs_record(f"id-{n}", str(n)) for n in range(3)])
    assert handler(event, Context(9, 5, 4.9)) == failed("id-2")
    assert work.done == ["0", "1"]
    assert s.ledger.get("my-queue:id-2") is None


def test_without_a_context_the_lease_is_the_usual_one(on) -> None:
    leases: list[float] = []
    handler = on.sqs()(lambda record: leases.append(semel.current_run().claim.lease))
    handler(batch(sqs_record("id-1")), None)
    assert leases == [30]


def test_no_thread_renews_a_lease_that_ends_with_its_invocation(on, s) -> None:
    renewed: list[int] = []
    handler = on.sqs()(lambda record: renewed.append(len(s._shared.heartbeats._live)))
    handler(batch(sqs_record("id-1")), PLENTY)
    handler(batch(sqs_record("id-2")), None)
    assert renewed == [0, 1]


KILLED = """
import os, signal, sys
import semel
from semel.doors.aws_lambda import Lambda
from semel.testing import FakeClock
from tests.doors.lambda_events import Context, batch, sqs_record

on = Lambda(lambda: semel.connect(sys.argv[1], clock=FakeClock()))

@on.sqs()
def handler(record):
    os.kill(os.getpid(), signal.SIGKILL)

handler(batch(sqs_record("id-1", "one")), Context(7.3))
"""


def test_what_a_killed_invocation_had_begun_is_taken_over_when_its_time_is_up_and_not_before(
    tmp_path, clock
) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    root = Path(__file__).parents[2]
    child = subprocess.run([sys.executable, "-c", KILLED, url], cwd=root, check=False)
    assert child.returncode == -signal.SIGKILL
    attempts: list[int] = []
    with semel.connect(url, clock=clock) as s:
        handler = Lambda(s).sqs()(lambda record: attempts.append(semel.current_run().attempt))
        event = batch(sqs_record("id-1", "one"))
        assert handler(event, PLENTY) == failed("id-1")
        clock.advance(8.999)
        assert handler(event, PLENTY) == failed("id-1")
        assert attempts == []
        clock.advance(0.002)
        assert handler(event, PLENTY) == failed()
    assert attempts == [2]


@pytest.mark.parametrize("option", [{"lease": 30}, {"heartbeat": False}], ids=str)
def test_a_lease_of_ones_own_is_refused_at_once(on, option) -> None:
    with pytest.raises(errors.InvalidOption, match="as long as its invocation"):
        on.sqs(**option)(Work())


def test_a_record_that_would_end_before_its_invocation_is_refused(on) -> None:
    handler = on.event(lambda event: "k", ttl=60, horizon=60)(lambda event, context: None)
    with pytest.raises(errors.InvalidOption, match="longer than lease"):
        handler({}, Context(900))


def test_a_time_to_live_shorter_than_the_queue_keeps_its_messages_is_refused_at_once(on) -> None:
    with pytest.raises(errors.InvalidOption, match="horizon"):
        on.sqs(ttl=3 * semel.DAY)(Work())
    assert on.sqs(ttl=3 * semel.DAY, horizon=semel.DAY)(Work())(batch(), PLENTY) == failed()


def test_messages_are_remembered_as_long_as_they_may_come_again(on, s, clock) -> None:
    work = Work()
    handler = on.sqs()(work)
    event = batch(sqs_record("id-1", "one"))
    handler(event, PLENTY)
    clock.advance(4 * semel.DAY - 1)
    handler(event, PLENTY)
    assert work.done == ["one"]


# Streams


@pytest.mark.parametrize(
    ("kind", "make", "number"),
    [
        ("kinesis", kinesis_record, lambda record: record["kinesis"]["sequenceNumber"]),
        ("dynamodb", dynamodb_record, lambda record: record["dynamodb"]["SequenceNumber"]),
    ],
)
def test_a_shard_stops_at_its_first_failure_which_is_where_lambda_goes_on(place, kind, make, number) -> None:
    records = [make(n) for n in range(1, 5)]
    broken = {number(records[1])}
    done: list[str] = []

    def handle(record: dict[str, Any]) -> None:
        if number(record) in broken:
            raise ValueError("broken")
        done.append(number(record))

    with semel.Semel(place.open(), env=place.env) as s:
        handler = getattr(Lambda(s), kind)()(handle)
        assert handler(batch(*records), PLENTY) == failed(number(records[1]))
        assert done == [number(records[0])]
        broken.clear()
        # Lambda may begin before the checkpoint, and the rest comes in order.
        assert handler(batch(*records), PLENTY) == failed()
        assert done == [number(record) for record in records]


def test_a_record_that_cannot_be_helped_does_not_keep_those_after_it_from_being_done(on) -> None:
    done: list[str] = []

    def handle(record: dict[str, Any]) -> None:
        if record["eventID"].endswith("1"):
            raise ValueError("broken")
        done.append(record["eventID"][-1])

    handler = on.dynamodb(on_error="keep")(handle)
    records = [dynamodb_record(n) for n in (1, 2)]
    first = records[0]["dynamodb"]["SequenceNumber"]
    assert handler(batch(*records), PLENTY) == failed(first)
    assert handler(batch(*records), PLENTY) == failed(first)
    assert done == ["2"]


def test_two_functions_on_one_stream_each_handle_a_record(s, monkeypatch) -> None:
    done: list[str] = []
    for name in ("mails", "invoices"):
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", name)
        handler = Lambda(s).kinesis()(lambda record: done.append(os.environ["AWS_LAMBDA_FUNCTION_NAME"]))
        handler(batch(kinesis_record(1)), PLENTY)
        handler(batch(kinesis_record(1)), PLENTY)
    assert done == ["mails", "invoices"]


# What Lambda was handed and will try again


def test_an_event_of_a_bus_is_handled_once_and_its_result_is_given_again(place) -> None:
    done: list[str] = []
    with semel.Semel(place.open(), env=place.env) as s:
        on = Lambda(s)

        @on.eventbridge()
        def handler(event: dict[str, Any], context: Any) -> dict[str, str]:
            done.append(context.aws_request_id)
            return {"order": event["detail"]["order"]}

        assert handler(eventbridge(), PLENTY) == handler(eventbridge(), PLENTY) == {"order": "o-1"}
        assert done == [Context.aws_request_id]
        assert handler.__name__ == "handler"


def test_an_error_is_raised_so_that_lambda_tries_again_and_then_it_runs(on) -> None:
    tries: list[int] = []

    @on.eventbridge()
    def handler(event: dict[str, Any], context: Any) -> int:
        tries.append(semel.current_run().attempt)
        if len(tries) == 1:
            raise ConnectionError("no route")
        return len(tries)

    with pytest.raises(ConnectionError, match="no route"):
        handler(eventbridge(), PLENTY)
    assert handler(eventbridge(), PLENTY) == 2
    assert handler(eventbridge(), PLENTY) == 2
    assert tries == [1, 2]


def test_an_event_that_another_invocation_is_at_work_on_is_raised_as_in_progress(on) -> None:
    @on.eventbridge()
    def handler(event: dict[str, Any], context: Any) -> None:
        other = threading.Thread(target=again)
        other.start()
        other.join()

    raised: list[BaseException] = []

    def again() -> None:
        try:
            handler(eventbridge(), PLENTY)
        except errors.InProgress as error:
            raised.append(error)

    handler(eventbridge(), PLENTY)
    assert len(raised) == 1


def test_an_event_for_which_there_is_too_little_time_is_raised_as_late(on) -> None:
    handler = on.eventbridge()(lambda event, context: None)
    with pytest.raises(TimeoutError, match="too little"):
        handler(eventbridge(), Context(0.5))


def test_messages_of_a_topic_are_handled_once_and_an_error_makes_the_whole_event_come_again(on) -> None:
    work = Work(two=1)
    handler = on.sns()(lambda record: work({"body": record["Sns"]["Message"]}))
    event = batch(sns_record("m-1", "one"), sns_record("m-2", "two"), sns_record("m-3", "three"))
    with pytest.raises(ValueError, match="two failed"):
        handler(event, PLENTY)
    assert handler(event, PLENTY) == ["ONE", "TWO", "THREE"]
    assert work.done == ["one", "three", "two"]


def test_of_several_errors_the_first_is_raised_and_the_others_are_in_the_log(on, caplog) -> None:
    work = Work(one=1, two=1)
    handler = on.sns()(lambda record: work({"body": record["Sns"]["Message"]}))
    with pytest.raises(ValueError, match="one failed"):
        handler(batch(sns_record("m-1", "one"), sns_record("m-2", "two")), PLENTY)
    assert "sns record m-2: failed" in caplog.text


def test_a_change_of_an_object_is_handled_once_however_long_its_name_is(on) -> None:
    done: list[str] = []
    handler = on.s3()(lambda record: done.append(record["s3"]["object"].get("sequencer", "none")))
    long = "%20".join(["name"] * 200)
    first, second, plain = s3_record(long, "01"), s3_record(long, "02"), s3_record(long, None)
    for record in (first, first, second, plain, plain):
        handler(batch(record), PLENTY)
    assert done == ["01", "02", "none"]


def test_any_event_with_a_key_is_handled_once_and_must_not_change(on) -> None:
    done: list[str] = []

    @on.event(lambda event: semel.Key("charge", event["order"]), fingerprint=lambda event: event["cents"])
    def handler(event: dict[str, Any], context: Any) -> str:
        done.append(event["order"])
        return f"charged {event['cents']}"

    assert handler({"order": "o-1", "cents": 42, "at": 1}, PLENTY) == "charged 42"
    assert handler({"order": "o-1", "cents": 42, "at": 2}, PLENTY) == "charged 42"
    with pytest.raises(errors.PayloadChanged):
        handler({"order": "o-1", "cents": 43, "at": 2}, PLENTY)
    assert done == ["o-1"]


def test_an_event_that_cannot_be_helped_may_be_taken_by_the_dead_letters(on) -> None:
    letters: list[str] = []
    dead = lambda event, taken: letters.append(event["id"])  # noqa: E731 - it is what is given

    @on.eventbridge(dead=dead, on_error="keep")
    def handler(event: dict[str, Any], context: Any) -> None:
        raise ValueError("never")

    assert handler(eventbridge("e-1"), PLENTY) is None
    assert letters == ["e-1"]


def test_an_async_function_is_refused_at_once(on) -> None:
    async def handle(record: dict[str, Any]) -> None: ...

    with pytest.raises(errors.InvalidOption, match=r"asyncio\.run"):
        on.sqs()(handle)


# HTTP

KEY = {"Idempotency-Key": ['"8e03978e-40d5"']}

Shape = Callable[..., dict[str, Any]]


def alb_many(*args: Any, **more: Any) -> dict[str, Any]:
    return alb(*args, **more, many_values=True)


@pytest.fixture(params=[rest, http_api, alb, alb_many], ids=lambda shape: shape.__name__)
def shape(request) -> Shape:
    return request.param


def caller(event: dict[str, Any]) -> str | None:
    around = event["requestContext"]
    if "elb" in around:
        headers = event.get("headers") or {n: v[0] for n, v in event["multiValueHeaders"].items()}
        return headers["x-amzn-oidc-identity"] or None
    authorizer = around["authorizer"]
    claims = authorizer.get("claims") or authorizer.get("jwt", {}).get("claims", {})
    return claims.get("sub")


class Shop:
    """A handler of requests, and what it is to answer."""

    def __init__(self, s: semel.Semel, response: Any, **policy: Any) -> None:
        self.calls = 0
        self.response = response
        policy = {"identity": caller} | policy
        self.handler = Lambda(s).http(lambda s: Idempotency(s, **policy))(self.answer)

    def answer(self, event: dict[str, Any], context: Any) -> Any:
        self.calls += 1
        if isinstance(self.response, Exception):
            raise self.response
        return self.response

    def __call__(self, event: dict[str, Any]) -> Any:
        return self.handler(event, PLENTY)


def header(response: dict[str, Any], name: str) -> list[str]:
    """The values of a header, whichever way a response has them."""
    found = {n.lower(): [v] for n, v in (response.get("headers") or {}).items()}
    found |= {n.lower(): list(v) for n, v in (response.get("multiValueHeaders") or {}).items()}
    return found.get(name.lower(), [])


def content(response: dict[str, Any]) -> bytes:
    body = response["body"]
    return base64.b64decode(body) if response["isBase64Encoded"] else body.encode()


CREATED = {
    "statusCode": 201,
    "headers": {"Content-Type": "application/json", "X-Trace": "t-1", "Set-Cookie": "session=secret"},
    "cookies": ["session=secret"],
    "multiValueHeaders": {"Vary": ["Accept", "Accept-Language"]},
    "body": '{"id":  "o-1"}',
}


def test_a_replay_is_the_first_response_byte_for_byte_without_what_was_personal(s, shape) -> None:
    shop = Shop(s, CREATED)
    assert shop(shape('{"n": 1}', KEY)) is CREATED
    again = shop(shape('{"n": 1}', KEY))
    assert shop.calls == 1
    assert again["statusCode"] == 201
    assert content(again) == b'{"id":  "o-1"}'
    assert header(again, "content-type") == ["application/json"]
    assert ", ".join(header(again, "vary")) == "Accept, Accept-Language"
    assert header(again, "idempotent-replayed") == ["true"]
    assert header(again, "idempotency-expires")
    assert "cookies" not in again
    assert "secret" not in json.dumps(again)
    assert header(again, "x-trace") == header(again, "content-length") == []
    json.dumps(again)


def test_each_sender_is_answered_in_its_own_shape(s) -> None:
    shop = Shop(s, CREATED)
    for one in (rest, http_api, alb, alb_many):
        shop(one("{}", KEY, path=f"/{one.__name__}"))
    answers = {one: shop(one("{}", KEY, path=f"/{one.__name__}")) for one in (rest, http_api, alb, alb_many)}
    many, single = (
        {"statusCode", "body", "isBase64Encoded", "multiValueHeaders"},
        {
            "statusCode",
            "body",
            "isBase64Encoded",
            "headers",
        },
    )
    assert answers[rest].keys() == many
    assert answers[http_api].keys() == single
    assert answers[alb].keys() == single | {"statusDescription"}
    assert answers[alb_many].keys() == many | {"statusDescription"}
    assert answers[alb]["statusDescription"] == "201 Created"


def test_a_plain_value_is_a_json_body_the_first_time_and_every_time(s, shape) -> None:
    shop = Shop(s, {"message": "Hejsan, Åsa"})
    first = shop(shape("{}", KEY))
    again = shop(shape("{}", KEY))
    assert first["statusCode"] == again["statusCode"] == 200
    assert content(first) == content(again) == '{"message":"Hejsan, Åsa"}'.encode()
    assert header(first, "content-type") == header(again, "content-type") == ["application/json"]


def test_a_plain_text_is_the_body_itself_and_a_body_that_is_no_text_is_made_one(s) -> None:
    assert Shop(s, "Hello from Lambda!")(http_api("", KEY, path="/a"))["body"] == "Hello from Lambda!"
    assert Shop(s, None)(http_api("", KEY, path="/b"))["body"] == "null"
    assert Shop(s, {"statusCode": "200", "body": {"a": 1}})(rest("", KEY, path="/c"))["body"] == '{"a":1}'
    empty = Shop(s, {"statusCode": 204})
    assert empty(http_api("", KEY, path="/d")) == {"statusCode": 204}
    assert empty(http_api("", KEY, path="/d"))["statusCode"] == 204


def test_bodies_that_are_no_text_come_and_go_in_base64(s, shape) -> None:
    picture = bytes(range(256))
    seen: list[bytes] = []
    said = {
        "statusCode": 200,
        "headers": {"Content-Type": "image/png"},
        "body": base64.b64encode(picture).decode(),
        "isBase64Encoded": True,
    }

    def payload(event: dict[str, Any], body: bytes) -> str:
        seen.append(body)
        return body.hex()

    shop = Shop(s, said, payload=payload)
    assert shop(shape(b"\xff\xfe", KEY)) == said
    again = shop(shape(b"\xff\xfe", KEY))
    assert content(again) == picture
    assert again["isBase64Encoded"] is True
    assert seen == [b"\xff\xfe"] * 2
    assert shop(shape(b"\xff\xff", KEY))["statusCode"] == 422


def problem(response: dict[str, Any]) -> tuple[int, str]:
    assert header(response, "content-type") == ["application/problem+json"]
    told = json.loads(content(response))
    assert told["status"] == response["statusCode"]
    return told["status"], told["type"].partition("#")[2]


def test_a_request_without_a_key_or_with_two_is_refused(s, shape) -> None:
    shop = Shop(s, CREATED)
    assert problem(shop(shape("{}"))) == (400, "key-missing")
    assert problem(shop(shape("{}", {"Idempotency-Key": ["a", "b"]}))) == (400, "key-malformed")
    assert shop.calls == 0


def test_a_key_may_be_left_out_where_it_is_not_required_and_of_a_get(s, shape) -> None:
    shop = Shop(s, CREATED, required=False)
    assert [shop(shape("{}")) for _ in range(2)] == [CREATED, CREATED]
    assert shop(shape(None, method="GET")) is CREATED
    assert shop.calls == 3
    assert problem(shop(shape("{}", {"Idempotency-Key": [""]}))) == (400, "key-malformed")
    assert shop.calls == 3


def test_another_payload_or_another_query_under_one_key_is_refused(s, shape) -> None:
    shop = Shop(s, CREATED)
    shop(shape('{"n": 1}', KEY, query="a=1&b=2"))
    assert problem(shop(shape('{"n": 2}', KEY, query="a=1&b=2"))) == (422, "payload-changed")
    assert problem(shop(shape('{"n": 1}', KEY, query="a=1&b=3"))) == (422, "payload-changed")
    assert header(shop(shape('{"n": 1}', KEY, query="a=1&b=2")), "idempotent-replayed") == ["true"]


def test_keys_belong_to_the_caller_that_the_authorizer_names(s, shape) -> None:
    shop = Shop(s, CREATED)
    shop(shape("{}", KEY, caller="alice"))
    assert shop(shape("{}", KEY, caller="bob")) is CREATED
    assert problem(shop(shape("{}", KEY, caller=None))) == (401, "not-authenticated")
    assert shop.calls == 2


def test_a_retry_during_the_work_is_told_where_to_ask_for_its_status(s, shape) -> None:
    shop = Shop(s, CREATED)
    found: list[Any] = []

    def retry(event: dict[str, Any], context: Any) -> Any:
        other = threading.Thread(target=lambda: found.append(shop(shape("{}", KEY))))
        other.start()
        other.join()
        return CREATED

    shop.handler = Lambda(s).http(lambda s: Idempotency(s, identity=caller))(retry)
    assert shop(shape("{}", KEY)) is CREATED
    [busy] = found
    assert problem(busy) == (409, "in-progress")
    assert header(busy, "retry-after") == ["5"]
    asked = json.loads(content(busy))["status_url"].removeprefix("/Prod")
    page = shop(shape(None, method="GET", path=asked))
    assert json.loads(content(page)) | {"expires_at": 0} == {
        "status": "completed",
        "attempt": 1,
        "expires_at": 0,
    }


def test_the_address_of_a_status_has_the_stage_before_it(s) -> None:
    on = Lambda(s)
    inside: list[str] = []

    def see(event: dict[str, Any], context: Any) -> Any:
        inside.append(json.loads(handler(event, PLENTY)["body"])["status_url"])
        return CREATED

    handler = on.http(Idempotency(s, identity=ANYONE))(see)
    staged = http_api("{}", KEY, path="/live/orders")
    staged["requestContext"]["stage"] = "live"
    for event in (rest("{}", KEY), staged, http_api("{}", KEY)):
        handler(event, PLENTY)
    assert [url.partition("/.well-known/")[0] for url in inside] == ["/Prod", "/live", ""]


def test_the_policy_is_published(s, shape) -> None:
    shop = Shop(s, CREATED)
    page = shop(shape(None, method="GET", path="/.well-known/idempotency-key"))
    assert json.loads(content(page))["header"] == "Idempotency-Key"
    assert content(shop(shape(None, method="HEAD", path="/.well-known/idempotency-key"))) == b""
    unknown = shop(shape(None, method="GET", path="/.well-known/idempotency-key/eA"))
    assert problem(unknown) == (404, "no-such-key")
    assert shop.calls == 0


def test_a_body_over_the_limit_is_refused(s, shape) -> None:
    shop = Shop(s, CREATED, max_body=10)
    assert problem(shop(shape("x" * 11, KEY))) == (413, "body-too-large")
    assert shop(shape("x" * 10, KEY)) is CREATED


def test_an_error_of_the_handlers_own_is_raised_and_a_retry_runs(s, shape) -> None:
    shop = Shop(s, KeyError("no stock"))
    with pytest.raises(KeyError, match="no stock"):
        shop(shape("{}", KEY))
    shop.response = {"statusCode": 503, "body": "later"}
    assert shop(shape("{}", KEY))["statusCode"] == 503
    shop.response = CREATED
    assert shop(shape("{}", KEY)) is CREATED
    assert shop.calls == 3


@pytest.mark.situation(61)
@pytest.mark.parametrize("status", [408, 423, 425, 429, 503])
def test_an_answer_that_asks_for_a_retry_is_passed_on_whole_and_a_retry_runs(s, shape, status) -> None:
    shop = Shop(s, {"statusCode": status, "headers": {"Retry-After": "7"}, "body": "later"})
    for _ in range(2):
        assert header(shop(shape("{}", KEY)), "retry-after") == ["7"]
    shop.response = CREATED
    assert shop(shape("{}", KEY)) is CREATED
    assert shop.calls == 3


def test_a_store_that_is_down_answers_503_and_nothing_runs(clock, shape) -> None:
    faulty = Faulty(MemoryStore(clock))
    with semel.Semel(faulty, clock=clock) as s:
        shop = Shop(s, CREATED)
        faulty.refuse()
        assert problem(shop(shape("{}", KEY))) == (503, "unavailable")
        assert shop.calls == 0


def test_a_request_that_was_taken_over_is_answered_with_409(s, clock) -> None:
    shop = Shop(s, CREATED)
    shops = [shop]

    def slow(event: dict[str, Any], context: Any) -> Any:
        clock.advance(40)
        shops[0](http_api("{}", KEY))
        return {"statusCode": 200, "body": "too late"}

    late = Lambda(s).http(lambda s: Idempotency(s, identity=caller))(slow)
    found: list[Any] = []
    # In a thread of its own, as the same key inside its own run would be refused for that.
    shops[0].handler = _elsewhere(shop.handler)
    found.append(late(http_api("{}", KEY), PLENTY))
    assert problem(found[0]) == (409, "in-progress")
    assert header(shop(http_api("{}", KEY)), "idempotent-replayed") == ["true"]
    assert shop.calls == 1


def _elsewhere(handler: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(handler(*args)))
        thread.start()
        thread.join()
        return found[0]

    return call


def test_the_lease_of_a_request_is_what_is_left_of_its_invocation(s, shape) -> None:
    leases: list[float] = []

    def handle(event: dict[str, Any], context: Any) -> Any:
        leases.append(semel.current_run().claim.lease)
        return CREATED

    handler = Lambda(s).http(Idempotency(s, identity=caller))(handle)
    handler(shape("{}", KEY), Context(12.4))
    assert leases == [14]


def test_requests_have_their_effect_once_on_dynamodb(dynoxide, request, tmp_path) -> None:
    place = open_place("dynoxide", request, tmp_path)
    with semel.Semel(place.open(), env=place.env) as s:
        shop = Shop(s, CREATED)
        assert shop(rest("{}", KEY)) is CREATED
        assert content(shop(rest("{}", KEY))) == content({**CREATED, "isBase64Encoded": False})
        assert shop.calls == 1


# The function itself


def test_a_ledger_is_opened_once_and_not_before_the_first_event(clock) -> None:
    opened: list[semel.Semel] = []

    def make() -> semel.Semel:
        opened.append(semel.connect("memory:", clock=clock))
        return opened[-1]

    on = Lambda(make)
    handler = on.sqs()(Work())
    requests = on.http(lambda s: Idempotency(s, identity=ANYONE))(lambda event, context: CREATED)
    assert opened == []
    handler(batch(sqs_record("id-1")), PLENTY)
    requests(rest("{}", KEY), PLENTY)
    assert len(opened) == 1
    opened[0].close()


@pytest.mark.seed("A5")
def test_a_function_is_set_up_from_its_environment(dynoxide, request, tmp_path, monkeypatch) -> None:
    table = f"idempotency-{os.urandom(4).hex()}"
    open_place("memory", request, tmp_path)  # credentials that any engine takes
    for name, value in {
        "IDEMPOTENCY_TABLE_NAME": table,
        "AWS_ENDPOINT_URL_DYNAMODB": dynoxide,
        "AWS_REGION": "us-east-1",
        "AWS_LAMBDA_FUNCTION_NAME": "orders",
        "SEMEL_ENV": "prod",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SEMEL_URL", raising=False)
    site = Site(
        url=f"dynamodb://us-east-1?endpoint={dynoxide}", env="prod", tables=(ALCHEMISER,), clock=Clock()
    )
    provision(site)
    on = Lambda(from_environment)
    done: list[str] = []
    handler = on.eventbridge()(lambda event, context: done.append(event["id"]))
    handler(eventbridge("e-1"), PLENTY)
    handler(eventbridge("e-1"), PLENTY)
    assert done == ["e-1"]
    import boto3

    client = boto3.client("dynamodb", endpoint_url=dynoxide, region_name="us-east-1")
    item = client.get_item(TableName=table, Key={"idempotency_key": {"S": "eventbridge::orders:e-1"}})["Item"]
    client.close()
    assert int(item["expiry_time"]["N"]) > int(item["created_at"]["N"])
    on.s.close()


@pytest.mark.parametrize(
    ("environ", "store", "env", "scope"),
    [
        ({"SEMEL_URL": "memory:"}, "MemoryStore", "dev", ""),
        ({"SEMEL_URL": "memory:", "SEMEL_ENV": "prod", "SEMEL_SCOPE": "acme"}, "MemoryStore", "prod", "acme"),
        ({"SEMEL_URL": "memory:", "IDEMPOTENCY_TABLE_NAME": "keys"}, "MemoryStore", "dev", ""),
        ({}, "DynamoDBStore", "dev", ""),
    ],
)
def test_the_environment_says_which_store_it_is(environ, store, env, scope, monkeypatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with from_environment(environ) as s:
        assert (type(s.store).__name__, s.env, s.scope) == (store, env, scope)


def test_copies_of_a_snapshot_draw_tokens_of_their_own(s, monkeypatch) -> None:
    hooks: list[Callable[[], None]] = []
    runtime = ModuleType("snapshot_restore_py")
    monkeypatch.setattr(runtime, "register_after_restore", hooks.append, raising=False)
    monkeypatch.setitem(sys.modules, runtime.__name__, runtime)
    Lambda(s)
    assert hooks == []
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "snap-start")
    Lambda(s)
    random_token()
    before = list(_stock)
    [restore] = hooks
    restore()
    assert before
    assert random_token() not in before


COLD = """
import sys
from semel.doors.aws_lambda import Lambda, from_environment
on = Lambda(from_environment)
handler = on.sqs()(lambda record: None)
loaded = set(sys.modules)
assert not {name for name in loaded if name.startswith(("semel.stores", "semel.doors.http", "asyncio"))}
from tests.doors.lambda_events import Context, batch, sqs_record
assert handler(batch(sqs_record("id-1")), Context(30)) == {"batchItemFailures": []}
heavy = {"asyncio", "botocore", "boto3", "semel.doors.http", "semel.doors.sqs", "logging", "email", "http"}
assert not (set(sys.modules) & heavy), set(sys.modules) & heavy
"""


@pytest.mark.seed("A5")
def test_a_cold_start_loads_what_its_events_need_and_nothing_else() -> None:
    root = Path(__file__).parents[2]
    environ = os.environ | {"SEMEL_URL": "memory:"}
    subprocess.run([sys.executable, "-c", COLD], cwd=root, env=environ, check=True)


@pytest.mark.seed("A6")
def test_metrics_are_written_once_for_each_invocation(s, capsys) -> None:
    emf = Emf(service="orders", env="prod")
    on = Lambda(s, metrics=emf)
    handler = on.sqs()(Work(bad=1))
    handler(batch(sqs_record("id-1", "one"), sqs_record("id-2", "bad")), PLENTY)
    handler(batch(sqs_record("id-1", "one")), PLENTY)
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["door"], first["Misses"], first["Completed"], first["Released"]) == ("sqs", 2, 1, 1)
    assert second["Hits"] == 1


def test_metrics_listen_to_a_policy_that_was_made_beforehand(s, capsys) -> None:
    on = Lambda(s, metrics=Emf(service="orders", env="prod"))
    on.http(Idempotency(s, identity=ANYONE))(lambda event, context: CREATED)(rest("{}", KEY), PLENTY)
    assert json.loads(capsys.readouterr().out)["Completed"] == 1


def test_metrics_are_written_when_an_invocation_fails_and_counted_once(capsys, clock) -> None:
    emf = Emf(service="orders", env="prod")
    with semel.connect("memory:", clock=clock, on_event=emf) as s:
        handler = Lambda(s, metrics=emf).eventbridge()(lambda event, context: event["absent"])
        with pytest.raises(KeyError):
            handler(eventbridge(), PLENTY)
    [told] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (told["door"], told["Misses"], told["Released"]) == ("eventbridge", 1, 1)


def test_events_say_by_which_door_they_came(clock) -> None:
    heard: list[Event] = []
    with semel.connect("memory:", clock=clock, on_event=heard.append) as s:
        on = Lambda(s)
        on.sqs()(Work())(batch(sqs_record("id-1")), PLENTY)
        on.kinesis()(lambda record: None)(batch(kinesis_record(1)), PLENTY)
        on.http(Idempotency(s, identity=ANYONE))(lambda event, context: CREATED)(rest("{}", KEY), PLENTY)
    assert [event.door for event in heard if event.what is What.COMPLETED] == ["sqs", "kinesis", "http"]


@pytest.mark.situation(37)
def test_on_sigterm_what_has_not_begun_is_given_back_to_the_queue(s) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        on = Lambda(s)
        on.drain_on_sigterm()
        done: list[str] = []

        @on.sqs()
        def handler(record: dict[str, Any]) -> None:
            done.append(record["messageId"])
            signal.raise_signal(signal.SIGTERM)

        assert handler(batch(sqs_record("id-1"), sqs_record("id-2")), PLENTY) == failed("id-2")
        assert done == ["id-1"]
        assert s.ledger.get("my-queue:id-2") is None
        assert heard == [signal.SIGTERM]
        assert handler(batch(sqs_record("id-1"), sqs_record("id-2")), PLENTY) == failed("id-2")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_before_the_first_event_opens_nothing() -> None:
    def make() -> semel.Semel:
        raise AssertionError("nobody asked for it")

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Lambda(make).drain_on_sigterm()
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
