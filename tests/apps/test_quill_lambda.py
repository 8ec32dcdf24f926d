"""Quill on Lambda: deliveries by an API, a queue for what failed, DynamoDB below and Power BI beyond."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import semel
from semel import errors
from semel.apps.quill import aws_lambda, from_environment, store_url
from semel.apps.quill.schema import FACTS
from semel.aws.sqs import Queue
from tests.apps.quill_kit import (
    ADDRESS,
    ALOWARE,
    HUBSPOT,
    SECRET,
    TOKEN,
    bearer,
    call,
    creation,
    dataset_at,
    signed,
)
from tests.apps.test_quill_dynamodb import ANYBODY, Desk
from tests.doors.lambda_events import Context, alb, batch, fifo_record, http_api, rest
from tests.doors.sqs_kit import make_queue
from tests.servers.running import until
from tests.standins import powerbi

PLENTY = Context(30)


class Function:
    """A function with its queue, its table, and Power BI beyond it."""

    def __init__(self, there: powerbi.PowerBI, queue: str, desk: Desk) -> None:
        self.there, self.queue, self.desk = there, Queue(queue), desk

    def received(self, most: int = 10) -> list[dict[str, Any]]:
        """What waits in the queue, as Lambda is given it."""
        asked = {"MaxNumberOfMessages": most, "MessageSystemAttributeNames": ["All"]}
        told = self.queue.call("ReceiveMessage", asked).get("Messages") or []
        return [
            fifo_record(one["MessageId"], one["Attributes"]["MessageGroupId"], body=one["Body"])
            for one in told
        ]

    def keys(self) -> list[str]:
        return sorted(row["event_key"] for row in self.there.rows(FACTS))


@pytest.fixture
def function(dynoxide: str, sqs: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Function]:
    for name, value in ANYBODY.items():
        monkeypatch.setenv(name, value)
    desk, queue = Desk(dynoxide), make_queue(sqs)
    with powerbi.PowerBI() as there:
        settings = dataset_at(there)
        environ = desk.environ | {
            "SEMEL_INBOX__QUILL__QUEUE": queue,
            **{f"SEMEL_APPS__QUILL__{name.upper()}": value for name, value in settings.items()},
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with cold():
            function = Function(there, queue, desk)
            yield function
            function.queue.close()
    desk.close()


class cold:  # noqa: N801 - reads as a statement
    """A new instance of the function, closed at the end."""

    def __enter__(self) -> None:
        aws_lambda.FUNCTIONS.close()

    def __exit__(self, *_: object) -> None:
        aws_lambda.FUNCTIONS.close()


def event(make: Callable[..., Any], path: str, headers: dict[str, str], body: bytes) -> Any:
    return make(body, {name: [value] for name, value in headers.items()}, path=path, caller=None)


def counts(response: dict[str, Any]) -> dict[str, int]:
    assert response["statusCode"] == 200, response
    return {name: count for name, count in json.loads(response["body"]).items() if count}


@pytest.mark.seed("Q6", "Q7")
@pytest.mark.parametrize("make", [http_api, rest, alb])
def test_a_delivery_becomes_facts(function: Function, make: Callable[..., Any]) -> None:
    """By an HTTP API, a REST API or a load balancer; delivered again, it is a duplicate."""
    delivery = event(make, ALOWARE, *bearer(call(1)))
    assert counts(aws_lambda.ingress(delivery, PLENTY)) == {"received": 1, "new": 1, "posted": 1}
    assert counts(aws_lambda.ingress(delivery, PLENTY)) == {"received": 1, "duplicates": 1}
    assert function.keys() == ["ALOWARE:1"]
    assert function.desk.item("ALOWARE:1") is not None


@pytest.mark.parametrize(
    ("make", "address"),
    [
        (http_api, f"https://id.execute-api.us-east-1.amazonaws.com{HUBSPOT}"),
        (rest, f"https://70ixmpl4fl.execute-api.us-east-2.amazonaws.com/Prod{HUBSPOT}"),
        (alb, f"https://lambda-alb-123578498.us-east-2.elb.amazonaws.com{HUBSPOT}"),
    ],
)
def test_hubspots_signature_covers_the_address_it_was_told(
    function: Function, make: Callable[..., Any], address: str
) -> None:
    """That of the API, with its stage."""
    delivery = event(make, HUBSPOT, *signed([creation(1), creation(2)], time.time(), url=address))
    assert counts(aws_lambda.ingress(delivery, PLENTY)) == {"received": 2, "new": 2, "posted": 2}
    forged = event(make, HUBSPOT, *signed([creation(3)], time.time(), url=address + "?"))
    assert aws_lambda.ingress(forged, PLENTY)["statusCode"] == 401


def test_another_address_is_told_by_a_variable(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_SERVICE__PUBLIC_URL", f"{ADDRESS}/")
    delivery = event(http_api, HUBSPOT, *signed([creation(1)], time.time(), url=ADDRESS + HUBSPOT))
    assert counts(aws_lambda.ingress(delivery, PLENTY)) == {"received": 1, "new": 1, "posted": 1}


def test_other_addresses_and_methods(function: Function) -> None:
    headers, body = bearer(call(1))
    elsewhere = event(http_api, "/webhooks/elsewhere", headers, body)
    assert aws_lambda.ingress(elsewhere, PLENTY)["statusCode"] == 404
    looked = http_api(None, {}, path=ALOWARE, method="GET", caller=None)
    assert aws_lambda.ingress(looked, PLENTY)["statusCode"] == 405
    assert function.there.posts == []


def test_what_could_not_be_posted_waits_in_the_queue_for_the_worker(function: Function) -> None:
    """Reported while it fails, and then posted once, by another instance of the function."""
    counts(aws_lambda.ingress(event(http_api, ALOWARE, *bearer(call(1))), PLENTY))
    function.there.fail(status=408)
    for number in (2, 3):
        answer = counts(aws_lambda.ingress(event(http_api, ALOWARE, *bearer(call(number))), PLENTY))
        assert answer == {"received": 1, "new": 1, "queued": 1}
    records = function.received()
    assert len(records) == 2
    with cold():
        # It is left alone for a second, by this instance too.
        assert until(lambda: not _is_away())
        assert aws_lambda.worker(batch(records[0]), PLENTY) == {"batchItemFailures": []}
        function.there.fail(status=408, path="/v1.0")
        failed = aws_lambda.worker(batch(*records), PLENTY)
        assert failed == {"batchItemFailures": [{"itemIdentifier": records[1]["messageId"]}]}
    with cold():
        assert until(lambda: not _is_away())
        assert aws_lambda.worker(batch(*records), PLENTY) == {"batchItemFailures": []}
        assert aws_lambda.worker(batch(*records), PLENTY) == {"batchItemFailures": []}
    assert function.keys() == ["ALOWARE:1", "ALOWARE:2", "ALOWARE:3"]


def test_the_worker_takes_along_what_else_is_in_the_queue(function: Function) -> None:
    """After an outage: one invocation, one request, and nothing left for the others."""
    counts(aws_lambda.ingress(event(http_api, ALOWARE, *bearer(call(0))), PLENTY))
    function.there.fail(status=429, retry_after=1, path="/v1.0")
    for number in range(1, 40):
        assert (
            counts(aws_lambda.ingress(event(http_api, ALOWARE, *bearer(call(number))), PLENTY))["queued"] == 1
        )
    assert until(lambda: not _is_away())
    [record, *_] = function.received(1)
    posts = len(function.there.posts)
    with cold():
        assert aws_lambda.worker(batch(record), PLENTY) == {"batchItemFailures": []}
    assert [len(each.json["rows"]) for each in function.there.posts[posts:]] == [39]
    assert function.keys() == sorted(f"ALOWARE:{number}" for number in range(40))
    asked = {"AttributeNames": ["ApproximateNumberOfMessages"]}
    left = function.queue.call("GetQueueAttributes", asked)["Attributes"]
    assert left == {"ApproximateNumberOfMessages": "0"}, "the one in hand is Lambda's to delete"


def _is_away() -> bool:
    try:
        aws_lambda.FUNCTIONS._app.sink.check()
    except semel.Later:
        return True
    return False


def test_what_is_in_doubt_is_left_alone_until_it_is_settled(function: Function) -> None:
    counts(aws_lambda.ingress(event(http_api, ALOWARE, *bearer(call(1))), PLENTY))
    function.there.fail(after_applying=True)
    delivery = event(http_api, ALOWARE, *bearer(call(2)))
    assert counts(aws_lambda.ingress(delivery, PLENTY)) == {"received": 1, "new": 1, "queued": 1}
    records = function.received()
    report = {"batchItemFailures": [{"itemIdentifier": records[0]["messageId"]}]}
    assert aws_lambda.worker(batch(*records), PLENTY) == report
    with semel.connect(store_url()) as s:
        s.ledger.resolve("ALOWARE:2", semel.Happened())
    assert aws_lambda.worker(batch(*records), PLENTY) == {"batchItemFailures": []}
    assert function.keys() == ["ALOWARE:1", "ALOWARE:2"]


def test_a_function_has_no_file_that_lasts(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts in a file of its own would be gone with it."""
    for name in ("TENANT", "CLIENT", "SECRET", "WORKSPACE", "DATASET"):
        monkeypatch.delenv(f"SEMEL_APPS__QUILL__POWERBI_{name}")
    with pytest.raises(errors.InvalidOption, match=r"apps\.quill\.powerbi_tenant: .* EFS"):
        aws_lambda.ingress(event(http_api, ALOWARE, *bearer(call(1), TOKEN)), PLENTY)
    assert SECRET not in repr(from_environment())
