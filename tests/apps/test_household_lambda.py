"""The household's helper as two Lambda functions: events as AWS sends them, on DynamoDB and SQS."""

import json
import re
from contextlib import closing
from typing import Any

import pytest

import semel
from semel.apps.household import aws_lambda
from semel.apps.household.app import PATH
from semel.apps.household.settings import Settings
from semel.apps.settings import from_environment
from semel.apps.tables import ACTIVITIES, MESSAGES, RESPONSE_COUNTERS
from semel.aws.sqs import Queue
from semel.provision.formats import Role, policy
from semel.tables import OWN
from semel.testing import FaultProxy
from tests.apps.household_kit import CHAT, SECRET_TOKEN, awake, update
from tests.apps.kit import place  # noqa: F401
from tests.doors import lambda_events
from tests.doors.lambda_events import Context, alb, batch, http_api, rest
from tests.places import CREDENTIALS
from tests.standins.telegram import TOKEN, Telegram

HEADERS = {"X-Telegram-Bot-Api-Secret-Token": [SECRET_TOKEN]}
QUEUE = "SEMEL_INBOX__HOUSEHOLD__QUEUE"


class Functions:
    """Both functions, and what stands between them."""

    def __init__(self, queue: str, telegram: Telegram) -> None:
        self.telegram = telegram
        self.queue = Queue(queue)

    def deliver(self, body: Any, make: Any = http_api) -> dict[str, Any]:
        event = make(json.dumps(body), HEADERS, path=PATH, caller=None)
        response: dict[str, Any] = aws_lambda.ingress(event, Context())
        return response

    def records(self) -> list[dict[str, Any]]:
        """What Lambda is invoked with for the messages that wait."""
        asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], "VisibilityTimeout": 0}
        told = self.queue.call("ReceiveMessage", asked).get("Messages") or []
        return [
            lambda_events.sqs_record(one["MessageId"], one["Body"], self.queue.name)
            | {"attributes": one["Attributes"], "receiptHandle": one["ReceiptHandle"]}
            for one in told
        ]

    def s(self) -> semel.Semel:
        return aws_lambda.FUNCTIONS.s


@pytest.fixture
def functions(place, monkeypatch):  # noqa: F811
    with Telegram() as telegram:
        settings = {
            "BOT_TOKEN": TOKEN,
            "SECRET_TOKEN": SECRET_TOKEN,
            "TELEGRAM_URL": telegram.url,
            "CHATS": f"{CHAT}, 7",
        } | {name.upper(): value for name, value in awake().items()}
        environ = CREDENTIALS | {"SEMEL_URL": place.url, "SEMEL_ENV": place.env}
        environ |= {QUEUE: place.queues("household")[0]}
        environ |= {f"SEMEL_APPS__HOUSEHOLD__{name}": value for name, value in settings.items()}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        made = Functions(environ[QUEUE], telegram)
        with closing(made.queue):
            yield made
            aws_lambda.FUNCTIONS.close()


on_aws = pytest.mark.parametrize("place", ["dynamodb+sqs"], indirect=True)


@on_aws
@pytest.mark.parametrize("make", [http_api, rest, alb])
def test_an_update_is_accepted_from_every_front_and_waits_in_its_chats_group(functions, make):
    response = functions.deliver(update(1, "Jag har diskat"), make)
    assert response["statusCode"] == 200
    assert json.loads(response["body"])["accepted"] == 1
    [record] = functions.records()
    assert record["attributes"]["MessageGroupId"] == str(CHAT)
    assert list(functions.s().ledger.list().records) == []


@on_aws
def test_what_is_no_update_of_telegrams_is_refused(functions):
    event = http_api(json.dumps(update(1, "Hej")), {}, path=PATH)
    assert aws_lambda.ingress(event, Context())["statusCode"] == 401
    assert aws_lambda.ingress(http_api("{}", HEADERS, path="/elsewhere"), Context())["statusCode"] == 404
    assert (
        aws_lambda.ingress(http_api(None, HEADERS, path=PATH, method="GET"), Context())["statusCode"] == 405
    )
    assert functions.records() == []


@on_aws
@pytest.mark.seed("H1", "H5", "H8")
def test_a_batch_is_handled_once_however_often_it_comes(functions):
    """Five things were done, of which three are replied to; on the tables that the household has."""
    for number in range(1, 6):
        functions.deliver(update(number, "Jag har diskat", chat=7))
    records = sorted(functions.records(), key=lambda record: record["attributes"]["SequenceNumber"])
    assert len(records) == 5
    for _ in range(2):
        assert aws_lambda.worker(batch(*records), Context()) == {"batchItemFailures": []}
    s = functions.s()
    assert [entry.body["messageId"] for entry in s.journal.on(ACTIVITIES).list("7").entries] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert [sent["reply_to"] for sent in functions.telegram.sent] == [1, 2, 3]
    told = [entry.body for entry in s.journal.list("household:7").entries]
    assert [one["reason"] for one in told if one.get("reason")] == ["cap:7"] * 2


@on_aws
def test_what_has_to_come_again_is_reported_and_stops_its_chat(functions):
    functions.deliver(update(1, "Jag har diskat"))
    functions.deliver(update(2, "Hej"))
    functions.deliver(update(3, "Jag har diskat", chat=7))
    functions.telegram.fail(status=429)
    records = sorted(functions.records(), key=lambda record: record["attributes"]["SequenceNumber"])
    failed = aws_lambda.worker(batch(*records), Context())["batchItemFailures"]
    here = [one["messageId"] for one in records if one["attributes"]["MessageGroupId"] == str(CHAT)]
    assert [one["itemIdentifier"] for one in failed] == here
    assert [sent["chat_id"] for sent in functions.telegram.sent] == [7]
    again = [one for one in records if one["messageId"] in here]
    assert aws_lambda.worker(batch(*again), Context()) == {"batchItemFailures": []}
    assert sorted(sent["reply_to"] for sent in functions.telegram.sent) == [1, 3]


def asked_for(request: bytes) -> set[tuple[str, str]]:
    """What a request needs the permission for: actions, and what they are done to."""
    head, _, body = request.partition(b"\r\n\r\n")
    [operation] = re.findall(r"(?i)x-amz-target: DynamoDB_20120810\.(\w+)", head.decode())
    told = json.loads(body)
    if operation == "TransactWriteItems":
        parts = [(f"{kind}Item", one) for each in told["TransactItems"] for kind, one in each.items()]
    elif "RequestItems" in told:
        return {(operation, table) for table in told["RequestItems"]}
    else:
        parts = [(operation, told)]
    index = "/index/"
    return {
        (action, one["TableName"] + (index + one["IndexName"] if "IndexName" in one else ""))
        for action, one in parts
    }


@on_aws
@pytest.mark.seed("H9")
def test_the_worker_asks_for_nothing_that_its_policy_does_not_allow(functions, place, monkeypatch):  # noqa: F811
    server = place.url.partition("endpoint=")[2]
    requests: list[bytes] = []
    with FaultProxy.before(server) as proxy:

        def seen(request: bytes) -> bool:
            requests.append(request)
            return False  # none is dropped

        proxy.drop_answer_to(seen)
        monkeypatch.setenv("SEMEL_URL", place.url.replace(server, proxy.url(server)))
        functions.telegram.fail(status=429)
        functions.deliver(update(1, "Jag har diskat"))
        functions.deliver(update(2, "Hej", chat=7))
        records = functions.records()
        for _ in range(2):
            aws_lambda.worker(batch(*records), Context())
        aws_lambda.FUNCTIONS.s.close()
    assert len(functions.telegram.sent) == 1
    needed = set().union(*map(asked_for, requests))
    tables = (*OWN, ACTIVITIES, MESSAGES, RESPONSE_COUNTERS)
    statements = policy(tables, place.env, Role.WORKER)["Statement"]
    allowed = {
        (action.removeprefix("dynamodb:"), resource.partition(":table/")[2])
        for statement in statements
        for action in statement["Action"]
        for resource in statement["Resource"]
    }
    assert ("PutItem", f"homeops-activities-{place.env}") in needed
    assert needed - allowed == set()


def test_settings_are_read_from_the_environment():
    given = {"SEMEL_APPS__HOUSEHOLD__CHATS": "-42, 7", "SEMEL_APPS__HOUSEHOLD__CAP": "5", "OTHER": "x"}
    settings = from_environment(Settings, "household", given)
    assert (settings.chats, settings.cap, settings.zone) == ((-42, 7), 5, "Europe/Stockholm")
    with pytest.raises(semel.InvalidOption, match=r"apps\.household"):
        from_environment(Settings, "household", {"SEMEL_APPS__HOUSEHOLD__CAP": "many"})
