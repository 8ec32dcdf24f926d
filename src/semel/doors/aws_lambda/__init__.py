"""AWS Lambda: handlers whose requests, messages and events have their effect once.

    on = Lambda(from_environment)

    @on.sqs()
    def handler(message): ...

`http` serves API Gateway, function URLs and load balancers. `sqs`, `kinesis` and `dynamodb` report what
failed in a batch. `eventbridge`, `sns`, `s3` and `event` raise what went wrong, and Lambda invokes again.
`durable` is for durable functions.
"""

from semel.doors.aws_lambda.environment import from_environment
from semel.doors.aws_lambda.function import Lambda

__all__ = ["Lambda", "from_environment"]
