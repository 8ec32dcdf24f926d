"""Events as AWS sends them, field by field as its guides show them.

The Lambda Developer Guide: "Using Lambda with Amazon SQS", and with Kinesis, DynamoDB and SNS; "Invoking
Lambda function URLs". The API Gateway Developer Guide: "Create AWS Lambda proxy integrations for HTTP APIs"
(payload formats 1.0 and 2.0), "Input format of a Lambda function for proxy integration". The S3 User Guide:
"Event message structure". The EventBridge User Guide: "Structure of events". The User Guide for Application
Load Balancers: "Use Lambda functions as targets".
"""

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qs

ACCOUNT = "123456789012"
REGION = "us-east-2"


class Context:
    """An invocation of a function, and how much time it has left; one that is given spends it."""

    function_name = "my-function"
    aws_request_id = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"

    def __init__(self, *left: float) -> None:
        self.left = list(left) or [30.0]

    def get_remaining_time_in_millis(self) -> int:
        left = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return int(left * 1000)


# Queues


def sqs_record(id: str, body: str = "Test message.", queue: str = "my-queue") -> dict[str, Any]:
    return {
        "messageId": id,
        "receiptHandle": "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a...",
        "body": body,
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": "1545082649183",
            "SenderId": "AIDAIENQZJOLO23YVJ4VO",
            "ApproximateFirstReceiveTimestamp": "1545082649185",
        },
        "messageAttributes": {
            "myAttribute": {
                "stringValue": "myValue",
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": "String",
            }
        },
        "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}",
        "awsRegion": REGION,
    }


def fifo_record(id: str, group: str, dedup: str = "", body: str = "Test message.") -> dict[str, Any]:
    """Without a name from its sender, a message has the hash of its body for one."""
    record = sqs_record(id, body, "fifo.fifo")
    record["attributes"] |= {
        "SequenceNumber": "18849496460467696128",
        "MessageGroupId": group,
        "MessageDeduplicationId": dedup or hashlib.sha256(body.encode()).hexdigest(),
    }
    return record


def batch(*records: dict[str, Any]) -> dict[str, Any]:
    return {"Records": list(records)}


# Streams


def kinesis_record(number: int, data: bytes = b"Hello, this is a test.") -> dict[str, Any]:
    sequence = f"4959033827149025660869257831425{number:025d}"
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": "1",
            "sequenceNumber": sequence,
            "data": base64.b64encode(data).decode(),
            "approximateArrivalTimestamp": 1545084650.987,
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"shardId-000000000006:{sequence}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": f"arn:aws:iam::{ACCOUNT}:role/lambda-role",
        "awsRegion": REGION,
        "eventSourceARN": f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/lambda-stream",
    }


def dynamodb_record(number: int) -> dict[str, Any]:
    return {
        "eventID": f"c4ca4238a0b923820dcc509a6f75849{number}",
        "eventName": "INSERT",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": REGION,
        "dynamodb": {
            "Keys": {"Id": {"N": str(number)}},
            "NewImage": {"Message": {"S": "New item!"}, "Id": {"N": str(number)}},
            "ApproximateCreationDateTime": 1428537600,
            "SequenceNumber": f"442158400000000258456{number:05d}",
            "SizeBytes": 26,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
        "eventSourceARN": f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/Example/stream/2015-06-27T00:48:05.899",
    }


# What Lambda is handed


def sns_record(id: str, message: str = "Hello from SNS!") -> dict[str, Any]:
    topic = f"arn:aws:sns:{REGION}:{ACCOUNT}:sns-lambda"
    return {
        "EventVersion": "1.0",
        "EventSubscriptionArn": f"{topic}:21be56ed-a058-49f5-8c98-aedd2564c486",
        "EventSource": "aws:sns",
        "Sns": {
            "SignatureVersion": "1",
            "Timestamp": "2019-01-02T12:45:07.000Z",
            "Signature": "tcc6faL2yUC6dgZdmrwh1Y4cGa/ebXEkAi6RibDsvpi+tE/1+82j...65r==",
            "SigningCertUrl": f"https://sns.{REGION}.amazonaws.com/SimpleNotificationService.pem",
            "MessageId": id,
            "Message": message,
            "MessageAttributes": {"Test": {"Type": "String", "Value": "TestString"}},
            "Type": "Notification",
            "UnsubscribeUrl": f"https://sns.{REGION}.amazonaws.com/?Action=Unsubscribe",
            "TopicArn": topic,
            "Subject": "TestInvoke",
        },
    }


def s3_record(
    key: str = "b21b84d653bb07b05b1e6b33684dc11b", sequencer: str | None = "0C0F6F405D6ED209E1"
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": REGION,
        "eventTime": "2019-09-03T19:37:27.192Z",
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "AWS:AIDAINPONIXQXHT3IKHL2"},
        "requestParameters": {"sourceIPAddress": "205.255.255.255"},
        "responseElements": {
            "x-amz-request-id": "D82B88E5F771F645",
            "x-amz-id-2": "vlR7PnpV2Ce81l0PRw6jlUpck7Jo5ZsQjryTjKlc5aLWGVHPZLj5NeC6qMa0emYBDXOo6QBU0Wo=",
        },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "828aa6fc-f7b5-4305-8584-487c791949c1",
            "bucket": {
                "name": "amzn-s3-demo-bucket",
                "ownerIdentity": {"principalId": "A3I5XTEXAMAI3E"},
                "arn": "arn:aws:s3:::amzn-s3-demo-bucket",
            },
            "object": {"key": key, "size": 1305107, "eTag": "b21b84d653bb07b05b1e6b33684dc11b"},
        },
    }
    if sequencer is not None:
        record["s3"]["object"]["sequencer"] = sequencer
    return record


def eventbridge(id: str = "17793124-05d4-b198-2fde-7ededc63b103") -> dict[str, Any]:
    return {
        "version": "0",
        "id": id,
        "detail-type": "Object Created",
        "source": "com.example.orders",
        "account": ACCOUNT,
        "time": "2021-11-12T00:00:00Z",
        "region": REGION,
        "resources": ["arn:aws:s3:::amzn-s3-demo-bucket"],
        "detail": {"order": "o-1"},
    }


# HTTP


def _coded(body: bytes | str | None) -> dict[str, Any]:
    if isinstance(body, bytes):
        return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
    return {"body": body, "isBase64Encoded": False}


def rest(
    body: bytes | str | None,
    headers: dict[str, list[str]] | None = None,
    *,
    method: str = "POST",
    path: str = "/orders",
    query: str = "",
    caller: str | None = "alice",
) -> dict[str, Any]:
    """A REST API's: payload format 1.0, whose headers are as the client wrote them."""
    many = {"Accept": ["*/*"], "Host": ["70ixmpl4fl.execute-api.us-east-2.amazonaws.com"], **(headers or {})}
    asked = parse_qs(query)
    return {
        "resource": path,
        "path": path,
        "httpMethod": method,
        "headers": {name: values[-1] for name, values in many.items()},
        "multiValueHeaders": many,
        "queryStringParameters": {name: values[-1] for name, values in asked.items()} or None,
        "multiValueQueryStringParameters": asked or None,
        "pathParameters": None,
        "stageVariables": None,
        "requestContext": {
            "resourceId": "2gxmpl",
            "resourcePath": path,
            "httpMethod": method,
            "extendedRequestId": "JJbxmplHYosFVYQ=",
            "requestTime": "10/Mar/2020:00:03:59 +0000",
            "path": f"/Prod{path}",
            "accountId": ACCOUNT,
            "protocol": "HTTP/1.1",
            "stage": "Prod",
            "requestTimeEpoch": 1583798639428,
            "requestId": "77375676-xmpl-4b79-853a-f982474efe18",
            "authorizer": {"claims": {"sub": caller, "iss": "https://cognito-idp.example"}} if caller else {},
            "identity": {"sourceIp": "52.255.255.12", "userAgent": "curl/7.68.0", "userArn": None},
            "domainName": "70ixmpl4fl.execute-api.us-east-2.amazonaws.com",
            "apiId": "70ixmpl4fl",
        },
        **_coded(body),
    }


def http_api(
    body: bytes | str | None,
    headers: dict[str, list[str]] | None = None,
    *,
    method: str = "POST",
    path: str = "/orders",
    query: str = "",
    caller: str | None = "alice",
) -> dict[str, Any]:
    """An HTTP API's, and a function URL's: payload format 2.0, whose header names are in lower case."""
    many = {"accept": ["*/*"], **{name.lower(): values for name, values in (headers or {}).items()}}
    authorizer = {"jwt": {"claims": {"sub": caller}, "scopes": ["orders"]}} if caller else {}
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "cookies": ["session=s1"],
        "headers": {name: ",".join(values) for name, values in many.items()},
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": "api-id",
            "authorizer": authorizer,
            "domainName": "id.execute-api.us-east-1.amazonaws.com",
            "domainPrefix": "id",
            "http": {
                "method": method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": "192.168.0.1/32",
                "userAgent": "agent",
            },
            "requestId": "id",
            "routeKey": "$default",
            "stage": "$default",
            "time": "12/Mar/2020:19:03:58 +0000",
            "timeEpoch": 1583348638390,
        },
        **_coded(body),
    }


def alb(
    body: bytes | str | None,
    headers: dict[str, list[str]] | None = None,
    *,
    method: str = "POST",
    path: str = "/orders",
    query: str = "",
    caller: str | None = "alice",
    many_values: bool = False,
) -> dict[str, Any]:
    """A load balancer's: one kind of headers or the other, as its target group is set up."""
    many = {
        "host": ["lambda-alb-123578498.us-east-2.elb.amazonaws.com"],
        "x-amzn-oidc-identity": [caller or ""],
        **{name.lower(): values for name, values in (headers or {}).items()},
    }
    asked = parse_qs(query)
    event: dict[str, Any] = {
        "requestContext": {
            "elb": {
                "targetGroupArn": f"arn:aws:elasticloadbalancing:{REGION}:{ACCOUNT}:targetgroup/l/49e9d65c"
            }
        },
        "httpMethod": method,
        "path": path,
        **_coded(body),
    }
    if many_values:
        return event | {"multiValueHeaders": many, "multiValueQueryStringParameters": asked}
    single = {name: values[-1] for name, values in asked.items()}
    headers_of = {name: ",".join(values) for name, values in many.items()}
    return event | {"headers": headers_of, "queryStringParameters": single}
