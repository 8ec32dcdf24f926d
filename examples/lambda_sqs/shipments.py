"""A Lambda function behind an SQS queue: each order is shipped once, and the ledger is in DynamoDB."""

import json
from typing import Any

import semel
from semel.apps.deployment import Deployment, DeploymentQueue, Function
from semel.doors.aws_lambda import Lambda, from_environment
from semel.tables import JOURNAL, LEDGER

# The store is opened by the first event: importing this makes no connection.
on = Lambda(from_environment)


@on.sqs(key=lambda record: f"ship:{json.loads(record['body'])['order']}")
def worker(record: dict[str, Any]) -> str:
    """Ship an order; the record of it and the journal are written together."""
    order = json.loads(record["body"])["order"]
    with on.s.transaction() as tx:
        tx.journal.append("shipments", {"order": order})
        tx.ledger.complete(semel.current_run(), f"shipped {order}")
    return f"shipped {order}"


# What it needs on AWS: python template.py > template.yaml
DEPLOYMENT = Deployment(
    app="shipments",
    ledger=LEDGER,
    tables=(LEDGER, JOURNAL),
    queue=DeploymentQueue(),
    functions={
        "Worker": Function(
            handler="shipments.worker",
            about="Ships each order, once.",
            works=True,
            may={LEDGER: ("GetItem", "PutItem", "UpdateItem"), JOURNAL: ("GetItem", "PutItem")},
        )
    },
    requires="semel",
)
