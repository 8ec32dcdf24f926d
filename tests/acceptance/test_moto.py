"""Inside moto's `mock_aws` every request goes to moto, and none to the network."""

import asyncio
import socket
import threading
import unittest
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.handlers
import pytest
from moto import mock_aws

import semel
from semel import errors
from semel.apps.tables import ALCHEMISER
from semel.aws.environment import INVENTED
from semel.aws.s3 import S3Overflow
from semel.aws.sqs import Attributable, Queue
from semel.provision import ProvisionTarget, problems, provision
from semel.provision.shape import create_request
from semel.tables import OWN
from tests.conformance.dynamodb_kit import engine

pytestmark = pytest.mark.seed("A10")

REGION = "eu-north-1"
URL = f"dynamodb://{REGION}"
ENV = "test"


class Reached(BaseException):
    """Somebody asked for the network; no `except Exception` hides it."""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says no more than the region."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


@pytest.fixture
def offline(bare: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whom somebody tried to reach."""
    reached: list[Any] = []

    def refuse(*asked: Any, **_: Any) -> None:
        reached.append(asked)
        raise Reached(asked)

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", refuse)
    return reached


@pytest.fixture
def mocked(offline: list[Any]) -> Iterator[None]:
    """AWS as moto has it, with semel's own tables."""
    with mock_aws():
        make_tables()
        yield
    assert offline == []


def make_tables() -> None:
    client = boto3.client("dynamodb", region_name=REGION)
    for table in (*OWN, ALCHEMISER):
        client.create_table(**create_request(table, ENV))


def counted(s: semel.Semel) -> tuple[list[int], list[int]]:
    """What two calls of one function gave, and how often it ran."""
    ran: list[int] = []

    @s.once("order:{number}")
    def order(number: int) -> int:
        ran.append(number)
        return number * 2

    return [order(21), order(21)], ran


ONCE = ([42, 42], [21])


# The ways to mock


def test_a_store_works_in_a_fixtures_mock(mocked: None) -> None:
    with semel.connect(URL, env=ENV) as s:
        assert counted(s) == ONCE


@mock_aws
def test_a_store_works_under_the_decorator(offline: list[Any]) -> None:
    make_tables()
    with semel.connect(URL, env=ENV) as s:
        assert counted(s) == ONCE
    assert offline == []


def test_a_store_that_setup_opened_works_in_the_tests_of_a_decorated_class(offline: list[Any]) -> None:
    """moto begins a mock for `setUp` and another for the test, on the same data."""

    @mock_aws
    class Case(unittest.TestCase):
        def setUp(self) -> None:
            make_tables()
            self.s = semel.connect(URL, env=ENV)
            self.addCleanup(self.s.close)

        def test_it(self) -> None:
            assert counted(self.s) == ONCE

    result = Case("test_it").run()
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])
    assert offline == []


def test_a_store_opened_before_the_mock_asks_moto_while_it_lasts(offline: list[Any]) -> None:
    with semel.connect(URL, env=ENV) as s:
        with mock_aws():
            make_tables()
            assert counted(s) == ONCE
        with mock_aws(), pytest.raises(errors.TableMissing):  # another mock has nothing of the first
            s.ledger.is_processed("order:21")
    assert offline == []


@pytest.mark.parametrize("url", [URL, f"{URL}?transport=botocore"])
def test_a_store_opened_inside_a_mock_is_refused_after_it(offline: list[Any], url: str) -> None:
    with mock_aws():
        make_tables()
        s = semel.connect(url, env=ENV)
        assert counted(s) == ONCE
    with pytest.raises(errors.StoreClosed, match="mock_aws, which has ended"):
        s.ledger.is_processed("order:21")
    with pytest.raises(errors.StoreClosed, match="mock_aws, which has ended"):
        asyncio.run(s.aio.ledger.is_processed("order:21"))
    s.close()
    assert offline == []


def test_a_store_opened_before_the_mock_asks_aws_after_it_and_not_with_motos_credentials(
    offline: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with semel.connect(URL, env=ENV) as s:
        with mock_aws():
            make_tables()
            assert counted(s) == ONCE
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", INVENTED)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "left behind")
        with pytest.raises(errors.StoreUnavailable, match="credentials of moto"):
            s.ledger.is_processed("order:21")
        assert offline == []
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAREAL")
        with pytest.raises(Reached):
            s.ledger.is_processed("order:21")
    assert offline[0][0][0] == f"dynamodb.{REGION}.amazonaws.com"


def test_a_client_of_before_moto_was_imported_is_not_asked_inside_a_mock(
    offline: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unmocked = [
        each for each in botocore.handlers.BUILTIN_HANDLERS if "Stubber" not in type(each[1]).__name__
    ]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody's")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    with monkeypatch.context() as patch:
        patch.setattr(botocore.handlers, "BUILTIN_HANDLERS", unmocked)
        s = semel.connect(f"{URL}?transport=botocore", env=ENV)
    with s, mock_aws():
        make_tables()
        assert counted(s) == ONCE
    assert offline == []


def test_an_endpoint_of_ones_own_is_asked_inside_a_mock_too(bare: None, dynoxide: str) -> None:
    on = engine(dynoxide)
    on.make(OWN)
    on.empty(OWN)
    with mock_aws(), semel.connect(f"{URL}?endpoint={dynoxide}", env=ENV) as s:
        assert counted(s) == ONCE


# What is asked


def test_a_tasks_requests_go_to_moto(mocked: None) -> None:
    async def ask() -> list[int]:
        s = semel.connect(URL, env=ENV).aio

        @s.once("order:{number}")
        async def order(number: int) -> int:
            return number * 2

        answers = [await order(21), await order(21)]
        await s.close()
        return answers

    assert asyncio.run(ask()) == [42, 42]


def test_all_that_a_store_keeps_goes_to_moto(mocked: None) -> None:
    with semel.connect(URL, env=ENV) as s:
        with s.transaction() as tx:
            tx.documents.put("chat", {"open": True})
            tx.journal.append("chat", {"did": "open"})
        assert s.documents.get("chat").value == {"open": True}
        assert [entry.body for entry in s.journal.list("chat").entries] == [{"did": "open"}]
        assert s.counters.add("replies", 2).used == 2
        assert s.ledger.check_and_set_many(["a", "b", "a"]) == [True, True, False]


@pytest.mark.seed("A8")
def test_of_many_threads_one_wins_inside_a_mock(mocked: None) -> None:
    with semel.connect(URL, env=ENV) as s:
        begin = threading.Barrier(8)
        won: list[bool] = []

        def claim() -> None:
            begin.wait()
            won.append(s.ledger.check_and_set("event"))

        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False] * 7 + [True]


@pytest.mark.seed("A3")
def test_a_table_that_a_test_made_by_itself_is_used(mocked: None) -> None:
    with semel.connect(f"{URL}/alchemiser-idempotency-keys?layout=alchemiser", env=ENV) as s:
        assert s.ledger.check_and_set("event-1", 3600)
        assert not s.ledger.check_and_set("event-1", 3600)
        assert s.ledger.is_processed("event-1")
    table = boto3.resource("dynamodb", region_name=REGION).Table("alchemiser-idempotency-keys")
    assert [item["idempotency_key"] for item in table.scan()["Items"]] == ["event-1"]


def test_tables_are_made_and_checked_in_moto(offline: list[Any]) -> None:
    with mock_aws():
        place = ProvisionTarget(url=URL, env=ENV, tables=OWN, clock=semel.Clock())
        provision(place)
        assert problems(place) == []
        with semel.connect(URL, env=ENV) as s:
            assert counted(s) == ONCE
    assert offline == []


def test_messages_go_to_motos_queues_and_come_back_with_their_attributes(mocked: None) -> None:
    url = boto3.client("sqs", region_name=REGION).create_queue(QueueName="orders")["QueueUrl"]
    queue = Queue(url)
    attributes: dict[str, Attributable] = {"of": "ada", "raw": b"\x00\xff", "cents": 4200}
    id = queue.send("hello", attributes=attributes)
    answer = queue.call("ReceiveMessage", {"MessageAttributeNames": ["All"], "MaxNumberOfMessages": 1})
    [message] = answer["Messages"]
    assert (message["MessageId"], message["Body"]) == (id, "hello")
    assert message["MessageAttributes"]["raw"]["BinaryValue"] == "AP8="
    queue.call("DeleteMessage", {"ReceiptHandle": message["ReceiptHandle"]})
    assert asyncio.run(queue.asend("again"))
    queue.close()


def test_a_queue_that_is_not_in_moto_is_missing(mocked: None) -> None:
    queue = Queue(f"https://sqs.{REGION}.amazonaws.com/123456789012/nowhere")
    with pytest.raises(errors.QueueMissing):
        queue.send("hello")
    queue.close()


def test_large_results_go_to_motos_buckets(mocked: None) -> None:
    where = {"LocationConstraint": REGION}
    boto3.client("s3", region_name=REGION).create_bucket(Bucket="results", CreateBucketConfiguration=where)
    overflow = S3Overflow("results", region=REGION)
    ref = overflow.put("order:21", b"\x00" * 1000)
    assert overflow.get(ref) == b"\x00" * 1000
    overflow.delete(ref)
    with pytest.raises(KeyError):
        overflow.get(ref)
    overflow.close()
    with pytest.raises(errors.StoreClosed):
        overflow.get(ref)
