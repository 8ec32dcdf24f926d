"""Support as two Lambda functions: events as AWS sends them, on DynamoDB and a FIFO queue of SQS."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import stamina

import semel
from semel.apps.payloads import seconds_of
from semel.apps.support import aws_lambda
from semel.apps.support.app import PATH
from semel.apps.tables import SUPPORT_AUDIT, SUPPORT_EVENTS, SUPPORT_STATE
from semel.aws.sqs import Queue
from semel.doors.inbox import open_inbox
from semel.doors.inbox.worker import MAX_ATTEMPTS
from semel.errors import InvalidOption
from tests.doors.lambda_events import Context, alb, batch, http_api, rest, sqs_record
from tests.doors.sqs_kit import make_queue
from tests.places import CREDENTIALS, Place, open_place
from tests.standins.richpanel import API_KEY, SHOP_TOKEN, Richpanel, Shop
from tests.state.raw import rows, text

TOKEN = "hook-token-of-the-tests"
PLANTED = {
    "e-mail": "ann.planted@example.com",
    "phone": "070 123 45 67",
    "order": "9087654",
    "parcel": "1Z999AA10123456784",
}
ASKS = "Where is my order #{order}? Parcel {parcel}, {e-mail}, call {phone}".format(**PLANTED)
DAY = 86400

QUEUE, DEAD = "SEMEL_INBOX__SUPPORT__QUEUE", "SEMEL_INBOX__SUPPORT__DEAD_LETTERS"


class Functions:
    """Both functions, and what stands between them."""

    def __init__(self, place: Place, queue: str, richpanel: Richpanel) -> None:
        self.place, self.queue, self.richpanel = place, Queue(queue), richpanel

    def deliver(
        self, make: Callable[..., Any] = http_api, token: str = TOKEN, **payload: Any
    ) -> dict[str, Any]:
        body = {
            "ticket_id": "c-1",
            "message_id": "m-1",
            "message": ASKS,
            "email": PLANTED["e-mail"],
        } | payload
        headers = {"Authorization": [f"Bearer {token}"]}
        response: dict[str, Any] = aws_lambda.ingress(
            make(json.dumps(body), headers, path=PATH, caller=None), Context()
        )
        return response

    def records(self) -> list[dict[str, Any]]:
        """What Lambda is invoked with for the messages that wait."""
        asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], "VisibilityTimeout": 0}
        told = self.queue.call("ReceiveMessage", asked).get("Messages") or []
        return [
            sqs_record(one["MessageId"], one["Body"], self.queue.name)
            | {"attributes": one["Attributes"], "receiptHandle": one["ReceiptHandle"]}
            for one in told
        ]

    def work(self) -> dict[str, Any]:
        """An invocation of the worker with what waits; what is not reported as failed leaves the queue."""
        records = self.records()
        told: dict[str, Any] = aws_lambda.worker(batch(*records), Context())
        failed = {one["itemIdentifier"] for one in told["batchItemFailures"]}
        for record in records:
            if record["messageId"] not in failed:
                self.queue.call("DeleteMessage", {"ReceiptHandle": record["receiptHandle"]})
        return told


@pytest.fixture
def functions(
    request: pytest.FixtureRequest, tmp_path: Path, sqs: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Functions]:
    place = open_place("dynoxide", request, tmp_path, (SUPPORT_EVENTS, SUPPORT_STATE, SUPPORT_AUDIT))
    with Richpanel() as richpanel, Shop() as shop, stamina.set_testing(True, attempts=3, cap=True):
        shop.add(PLANTED["order"], PLANTED["e-mail"])
        settings = {
            "WEBHOOK_TOKEN": TOKEN,
            "AUTOMATION_ENABLED": "true",
            "RICHPANEL_KEY": API_KEY,
            "RICHPANEL_URL": richpanel.url,
            "SHOPIFY_URL": shop.url,
            "SHOPIFY_TOKEN": SHOP_TOKEN,
            "ASSIGNEES": '{"orders": "team-7"}',
        }
        environ = CREDENTIALS | {"SEMEL_ENV": place.env, "SEMEL_SECRET": "a secret of the tests"}
        environ |= {"SEMEL_URL": f"{place.url()}&layout=support-events"}
        environ |= {QUEUE: make_queue(sqs, VisibilityTimeout=30), DEAD: make_queue(sqs)}
        environ |= {f"SEMEL_APPS__SUPPORT__{name}": value for name, value in settings.items()}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        made = Functions(place, environ[QUEUE], richpanel)
        with closing(made.queue):
            yield made
            aws_lambda.FUNCTIONS.close()


@pytest.mark.seed("R8")
@pytest.mark.parametrize("make", [http_api, rest, alb])
def test_ingress_puts_a_message_into_the_queue_and_writes_nothing(functions: Functions, make: Any) -> None:
    response = functions.deliver(make)
    assert response["statusCode"] == 200
    assert json.loads(response["body"])["accepted"] == 1
    (record,) = functions.records()
    assert record["attributes"]["MessageGroupId"] == "c-1"
    assert record["attributes"]["MessageDeduplicationId"] == "evt:rp:c-1:m-1"
    assert not [row for row in rows(functions.place) if "c-1" in str(row)]


def test_ingress_refuses_what_is_not_richpanels(functions: Functions) -> None:
    assert functions.deliver(token="another")["statusCode"] == 401
    assert (
        functions.deliver(lambda *args, **more: http_api(*args, **more | {"method": "GET"}))["statusCode"]
        == 405
    )
    assert (
        functions.deliver(lambda *args, **more: http_api(*args, **more | {"path": "/x"}))["statusCode"] == 404
    )
    assert functions.records() == []


@pytest.mark.seed("R11")
def test_where_there_is_no_audit_nothing_is_written_to_its_table(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_APPS__SUPPORT__AUDIT", "false")
    functions.deliver()
    assert functions.work() == {"batchItemFailures": []}
    assert len(functions.richpanel.replies) == 1
    items = [row for row in rows(functions.place) if "semel:environment" not in str(row)]
    assert items
    assert not [row for row in items if "ts_action_id" in row]


@pytest.mark.seed("R1", "R2", "R3", "R5", "R7", "R8", "R11")
def test_the_worker_handles_a_message_once_and_fills_the_three_tables(
    functions: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    functions.deliver()
    record = functions.records()
    assert aws_lambda.worker(batch(*record), Context()) == {"batchItemFailures": []}
    assert functions.work() == {"batchItemFailures": []}
    assert functions.richpanel.replies == [("c-1", "Your order ending in 7654 has been shipped.")]
    assert functions.richpanel.assigned == [("c-1", "team-7")]

    items = [row for row in rows(functions.place) if "semel:environment" not in str(row)]
    (event,) = [row for row in items if row.get("event_id") == {"S": "evt:rp:c-1:m-1"}]
    assert event["status"] == {"S": "processed"}
    assert event["mode"] == {"S": "automation_candidate"}
    assert event["conversation_id"] == {"S": "c-1"}
    assert event["source_message_id"] == {"S": "m-1"}
    assert (event["safe_mode"], event["automation_enabled"]) == ({"BOOL": False}, {"BOOL": True})
    assert event["intent"] == {"S": "order_status"}
    assert len(event["payload_sha256"]["S"]) == 64
    assert int(event["payload_bytes"]["N"]) > len(ASKS)
    created = seconds_of(event["created_at"]["S"])
    assert seconds_of(event["received_at"]["S"]) == pytest.approx(created, abs=30)
    assert seconds_of(event["last_processed_at"]["S"]) >= created
    assert int(event["expires_at"]["N"]) == pytest.approx(created + 30 * DAY, abs=30)

    records = [row for row in items if "event_id" in row]
    assert len(records) == 6, "the event, its decision, a look-up, a tag, a team and a reply"
    assert {(row["conversation_id"]["S"], row["mode"]["S"]) for row in records} == {
        ("c-1", "automation_candidate")
    }

    (state,) = [row for row in items if "last_intent" in row]
    assert state["conversation_id"] == {"S": "c-1"}
    assert state["last_auto_reply"]["M"]["type"] == {"S": "order_status"}
    assert state["version"] == {"N": "1"}
    assert int(state["expires_at"]["N"]) == pytest.approx(created + 90 * DAY, abs=30)

    audit = [row for row in items if "ts_action_id" in row]
    assert sorted(row["action_type"]["S"] for row in audit) == ["auto_reply", "order_lookup", "route", "tag"]
    for row in audit:
        assert row["ts_action_id"]["S"].endswith(f"Z#{row['idempotency_key']['S']}")
        assert row["result"] == {"S": "success"}
        assert int(row["expires_at"]["N"]) == pytest.approx(created + 60 * DAY, abs=30)
    assert all({"expires_at", "ttl"} & row.keys() for row in items)
    for what, planted in PLANTED.items():
        assert planted not in text(functions.place), what
        assert planted not in str([vars(one) for one in caplog.records]), what


@pytest.mark.seed("R9")
def test_a_message_that_failed_is_reported_and_comes_again(functions: Functions) -> None:
    functions.richpanel.fail(next=3, status=503)
    functions.deliver()
    functions.deliver(message_id="m-2", message="thank you")
    functions.deliver(message_id="m-3", message="thank you", ticket_id="c-2")
    records = functions.records()
    told = aws_lambda.worker(batch(*records), Context())
    failed = {one["itemIdentifier"] for one in told["batchItemFailures"]}
    # The first of c-1 failed, so the second was not begun; c-2 is none of their business.
    assert failed == {one["messageId"] for one in records if one["attributes"]["MessageGroupId"] == "c-1"}
    assert len(failed) == 2
    assert functions.work() == {"batchItemFailures": []}
    assert functions.richpanel.assigned == [("c-2", "support"), ("c-1", "team-7"), ("c-1", "support")]


@pytest.mark.seed("R9", "R10")
def test_a_message_that_is_failed_for_good_goes_to_the_dead_letters_and_holds_up_none(
    functions: Functions,
) -> None:
    """At once, and not when the queue gives it up: the rest of its conversation goes on in the same batch."""
    functions.richpanel.fail(status=404)
    functions.deliver()
    functions.deliver(message_id="m-2", message="thank you")
    assert functions.work() == {"batchItemFailures": []}
    assert functions.records() == []
    assert functions.richpanel.assigned == [("c-1", "support")]
    s = semel.connect(os.environ["SEMEL_URL"], env=functions.place.env)
    inbox = open_inbox(s, "support", queue=os.environ[QUEUE], dead_letters=os.environ[DEAD], shared=True)
    with s, closing(inbox):
        (dead,) = inbox.dead()
        assert (dead.key, dead.group) == ("evt:rp:c-1:m-1", "c-1")
        assert "Refused" in dead.error
        assert inbox.redrive() == 1
        assert inbox.dead() == []
    assert functions.work() == {"batchItemFailures": []}
    assert functions.richpanel.replies == [("c-1", "Your order ending in 7654 has been shipped.")]


def test_nothing_is_begun_that_could_not_end_with_its_invocation(functions: Functions) -> None:
    """Killed while the other side is asked, a reply would be in doubt."""
    functions.deliver()
    functions.deliver(ticket_id="c-2")
    records = functions.records()
    told = aws_lambda.worker(batch(*records), Context(30, 30, 9))
    assert told == {"batchItemFailures": [{"itemIdentifier": records[1]["messageId"]}]}
    assert len(functions.richpanel.replies) == 1
    with pytest.raises(InvalidOption, match="a time-out of 30 seconds"):
        aws_lambda.worker(batch(records[1]), Context(9))


@pytest.mark.seed("R9")
def test_a_message_is_tried_as_often_as_an_inbox_tries_it(functions: Functions) -> None:
    functions.richpanel.fail(next=99, status=503)
    functions.deliver()
    (record,) = functions.records()
    failed = {"batchItemFailures": [{"itemIdentifier": record["messageId"]}]}
    told = [aws_lambda.worker(batch(record), Context()) for _ in range(MAX_ATTEMPTS)]
    assert told == [*[failed] * (MAX_ATTEMPTS - 1), {"batchItemFailures": []}]


@pytest.mark.parametrize("missing", ["SEMEL_SECRET", QUEUE, "SEMEL_APPS__SUPPORT__WEBHOOK_TOKEN"])
def test_what_is_not_set_is_named(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(
        InvalidOption, match=missing.rpartition("__")[2].lower() if "APPS" in missing else missing
    ):
        functions.deliver()


def test_a_setting_of_the_environment_that_cannot_be_read_is_named(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_APPS__SUPPORT__REPLY_EVERY", "often")
    with pytest.raises(InvalidOption, match="reply_every"):
        functions.deliver()
