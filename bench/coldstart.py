"""Cold starts of Lambda handlers: `python -m bench.coldstart [--json]`.

A new process imports, makes its handler, and answers its first event, to the end: claim, effect, completion.
The engine of DynamoDB runs beside it on this machine, so a round trip costs next to nothing. semel and AWS
Lambda Powertools take turns. Credentials are in the environment, as in Lambda.
"""

import argparse
import os

from bench.network import ENV, ENVIRONMENT, dynamodb
from bench.timing import Bar, Table, Timing, conclude, fresh, tabulate
from tests.servers.dynamodb import dynoxide

PACKAGES = ("semel", "aws-lambda-powertools", "boto3")
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


def program(kind: str, ours: bool, endpoint: str) -> str:
    """A process that prints how many microseconds its first event took, from the first import on."""
    key = os.urandom(8).hex()
    body = (OURS if ours else THEIRS) + HANDLERS[kind][0 if ours else 1]
    return (
        EVENTS[kind].format(key=key)
        + CONTEXT
        + "from time import perf_counter as now\nran = []\nbegan = now()\n"
        + body.format(endpoint=endpoint)
        + "\nanswer = handler(event, Context())\ntook = now() - began\n"
        + "assert answer == expected, answer\nassert len(ran) == 1\n"
        + "print(took * 1e6, flush=True)\nimport os\nos._exit(0)\n"
    )


def timed(kind: str, endpoint: str, repeat: int) -> Table:
    """Both, side by side."""
    contenders = {"Powertools": False, "semel": True}
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-1, repeat):
        for name, ours in contenders.items():
            took = fresh(program(kind, ours, endpoint))
            if number >= 0:  # the first writes the bytecode
                rounds[name].append(took)
    timings = {name: Timing(tuple(figures)) for name, figures in rounds.items()}
    return tabulate(f"cold start, {kind}", timings, "Powertools", {})


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
    os.environ |= {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    with dynoxide() as endpoint:
        dynamodb(endpoint)
        os.environ |= {"SEMEL_URL": f"dynamodb://us-east-1?endpoint={endpoint}", "SEMEL_ENV": ENV}
        done = [timed(kind, endpoint, options.repeat) for kind in HANDLERS]
    return conclude(done, [bar(table) for table in done], PACKAGES, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
