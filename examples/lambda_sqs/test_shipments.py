"""The function as Lambda calls it, on a local DynamoDB."""

import json
from pathlib import Path
from typing import Any

import pytest
import shipments

import semel
from semel.apps import stack
from semel.doors.aws_lambda import Lambda
from semel.provision import ProvisionTarget, provision


class Context:
    """What Lambda gives a handler beside the event, as far as it matters here."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


@pytest.fixture
def ledger(dynoxide: str, monkeypatch: pytest.MonkeyPatch) -> semel.Semel:
    """The ledger that the function opens by its environment, with its tables made."""
    url = f"dynamodb://eu-north-1?endpoint={dynoxide}"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "SEMEL_URL": url,
        "SEMEL_ENV": "shipments",
    }.items():
        monkeypatch.setenv(name, value)
    tables = shipments.DEPLOYMENT.tables
    provision(ProvisionTarget(url=url, env="shipments", tables=tables, clock=semel.Clock()))
    assert isinstance(shipments.on, Lambda)
    return shipments.on.s


def record(id: str, order: str) -> dict[str, Any]:
    return {
        "messageId": id,
        "body": json.dumps({"order": order}),
        "attributes": {"ApproximateReceiveCount": "1"},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-north-1:123456789012:shipments",
    }


def test_an_order_that_is_delivered_again_is_shipped_once(ledger: semel.Semel) -> None:
    event = {"Records": [record("m-1", "o-1"), record("m-2", "o-1"), record("m-3", "o-2")]}
    assert [shipments.worker(event, Context()) for _ in range(2)] == [{"batchItemFailures": []}] * 2
    shipped = [entry.body["order"] for entry in ledger.journal.list("shipments").entries]
    assert sorted(shipped) == ["o-1", "o-2"]


def test_the_template_is_the_one_that_the_deployment_makes() -> None:
    template = Path(__file__).with_name("template.yaml").read_text("utf-8")
    assert template == stack.text([shipments.DEPLOYMENT], "prod")
