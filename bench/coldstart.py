"""Cold starts of Lambda handlers: `python -m bench.coldstart [--json]`.

A new process imports, makes its handler, and answers its first event, to the end: claim, effect, completion.
The engine of DynamoDB runs beside it on this machine, so a round trip costs next to nothing. semel, AWS
Lambda Powertools, and a raw socket with nothing around it take turns. Credentials are in the environment, as
in Lambda.
"""

import argparse
import os
from pathlib import Path

from bench.network import provision_powertools
from bench.servers import ENV, provision, servers, url_of
from bench.timing import Bar, Table, Timing, conclude, fresh, tabulate

PACKAGES = ("semel", "aws-lambda-powertools", "boto3")
LEAST = "a raw socket, signed"
LIMIT = 0.4

CONTEXT = """
class Context:
    function_name = "orders"
    memory_limit_in_mb = 128
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:orders"
    aws_request_id = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"
    def get_remaining_time_in_millis(self):
        return 30_000
"""

OURS = """
from semel.doors.aws_lambda import Lambda, from_environment
on = Lambda(from_environment)
"""
THEIRS = """
import boto3
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer, IdempotencyConfig, idempotent, idempotent_function)
store = DynamoDBPersistenceLayer(
    table_name="IdempotencyTable", boto3_client=boto3.client("dynamodb", endpoint_url={endpoint!r}))
"""

RAW = """
import json, sys
sys.path.insert(0, {folder!r})  # the package itself would import more than it needs
from signed import SignedSocket
dynamodb = SignedSocket({endpoint!r})
def put(**item):
    body = {{"TableName": "IdempotencyTable", "Item": {{name: {{"S": text}} for name, text in item.items()}}}}
    assert dynamodb.send("DynamoDB_20120810.PutItem", json.dumps(body).encode())[0] == b"200"
def handler(event, context):
    put(id={key!r}, status="running")
    ran.append(event)
    put(id={key!r}, status="done", result=json.dumps(expected))
    return expected
"""

EVENTS = {
    "SQS": """
event = {{"Records": [{{
    "messageId": "{key}", "receiptHandle": "r", "body": "{{}}",
    "attributes": {{"ApproximateReceiveCount": "1"}}, "messageAttributes": {{}}, "md5OfBody": "",
    "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:orders",
    "awsRegion": "us-east-1"}}]}}
expected = {{"batchItemFailures": []}}
""",
    "EventBridge": """
event = {{"version": "0", "id": "{key}", "detail-type": "order", "source": "com.example", "account": "1",
    "time": "2021-11-12T00:00:00Z", "region": "us-east-1", "resources": [], "detail": {{}}}}
expected = {{"done": True}}
""",
    "HTTP": """
event = {{"version": "2.0", "rawPath": "/orders", "rawQueryString": "",
    "headers": {{"idempotency-key": "{key}"}}, "body": "{{}}", "isBase64Encoded": False,
    "requestContext": {{"http": {{"method": "POST", "path": "/orders"}}, "stage": "$default"}}}}
expected = {{"statusCode": 201, "body": "done"}}
""",
}
HANDLERS = {
    "SQS": (
        """
@on.sqs()
def handler(record):
    ran.append(record)
""",
        """
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
processor = BatchProcessor(event_type=EventType.SQS)
config = IdempotencyConfig(event_key_jmespath="messageId")
@idempotent_function(data_keyword_argument="record", persistence_store=store, config=config)
def handle(record):
    ran.append(record)
def handler(event, context):
    config.register_lambda_context(context)
    return process_partial_response(
        event=event, record_handler=lambda record: handle(record=record.raw_event),
        processor=processor, context=context)
""",
    ),
    "EventBridge": (
        """
@on.eventbridge()
def handler(event, context):
    ran.append(event)
    return {{"done": True}}
""",
        """
@idempotent(persistence_store=store, config=IdempotencyConfig(event_key_jmespath="id"))
def handler(event, context):
    ran.append(event)
    return {{"done": True}}
""",
    ),
    "HTTP": (
        """
from semel.doors.http import ANYONE, Idempotency
@on.http(lambda s: Idempotency(s, identity=ANYONE))
def handler(event, context):
    ran.append(event)
    return {{"statusCode": 201, "body": "done"}}
""",
        """
config = IdempotencyConfig(event_key_jmespath='headers."idempotency-key"', payload_validation_jmespath="body")
@idempotent(persistence_store=store, config=config)
def handler(event, context):
    ran.append(event)
    return {{"statusCode": 201, "body": "done"}}
""",
    ),
}


def program(kind: str, name: str, endpoint: str) -> str:
    """A process that prints how many microseconds its first event took, from the first import on."""
    key = os.urandom(8).hex()
    ours, theirs = HANDLERS[kind]
    body = {"semel": OURS + ours, "Powertools": THEIRS + theirs, LEAST: RAW}[name]
    return (
        EVENTS[kind].format(key=key)
        + CONTEXT
        + "from time import perf_counter as now\nran = []\nbegan = now()\n"
        + body.format(endpoint=endpoint, key=key, folder=str(Path(__file__).parent))
        + "\nanswer = handler(event, Context())\ntook = now() - began\n"
        + "assert answer == expected, answer\nassert len(ran) == 1\n"
        + "print(took * 1e6, flush=True)\nimport os\nos._exit(0)\n"
    )


def timed(kind: str, endpoint: str, repeat: int) -> Table:
    """All of them, side by side."""
    rounds: dict[str, list[float]] = {name: [] for name in (LEAST, "semel", "Powertools")}
    for number in range(-1, repeat):
        for name, figures in rounds.items():
            took = fresh(program(kind, name, endpoint))
            if number >= 0:  # the first writes the bytecode
                figures.append(took)
    timings = {name: Timing(tuple(figures)) for name, figures in rounds.items()}
    return tabulate(f"cold start, {kind}", timings, LEAST, {LEAST: "the limit: two requests, and no library"})


def bar(table: Table) -> Bar:
    """What was promised, against what was found."""
    rows = {row.name: row.timing.median for row in table.rows if row.timing is not None}
    return Bar(f"{table.title} to Powertools'", rows["semel"] / rows["Powertools"], LIMIT)


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.coldstart", description=__doc__)
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    done: list[Table] = []
    with servers(["DynamoDB"]) as started:
        for endpoint in started.addresses.values():
            url = url_of("DynamoDB", endpoint)
            provision(url)
            provision_powertools(url)
            os.environ |= {"SEMEL_URL": url, "SEMEL_ENV": ENV}
            done = [timed(kind, endpoint, options.repeat) for kind in HANDLERS]
    found = [bar(table) for table in done]
    return conclude(done, found, PACKAGES, options.json, absent=started.absent)


if __name__ == "__main__":
    raise SystemExit(main())
