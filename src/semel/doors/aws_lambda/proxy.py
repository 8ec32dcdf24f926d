"""HTTP by way of API Gateway, function URLs and load balancers: requests and responses as values of JSON.

The shapes are in the API Gateway Developer Guide ("Create AWS Lambda proxy integrations for HTTP APIs", for
the payload formats 1.0 and 2.0), in the Lambda Developer Guide ("Invoking Lambda function URLs") and in the
User Guide for Application Load Balancers ("Use Lambda functions as targets").
"""

import base64
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from semel.doors.aws_lambda.attempts import LambdaEvent, remaining, within
from semel.doors.http.exchange import Exchange, admit
from semel.doors.http.policy import Idempotency, RequestHead
from semel.doors.http.publish import page_of
from semel.doors.http.responses import HTTPResponse, Pairs

LambdaResponse: TypeAlias = dict[str, Any]

WANTED: Final = ("idempotency-key", "idempotency-expiry-seconds", "content-length")
JSON: Final = {"Content-Type": "application/json"}
# The gateway counts by itself what it sends.
COUNTED: Final = "content-length"


def answer(
    idempotency: Idempotency, handle: Callable[[LambdaEvent, Any], Any], event: LambdaEvent, context: Any
) -> Any:
    """Answer one request."""
    request = request_of(event)
    if not idempotency.protects(request.method):
        page = page_of(idempotency, request)
        if page is None:
            return handle(event, context)
        return respond(
            page if request.method != "HEAD" else HTTPResponse(page.status, page.headers, b""), event
        )
    exchange = admit(idempotency, request, partial(_read, event))
    if exchange is None:
        return handle(event, context)
    if isinstance(exchange, HTTPResponse):
        return respond(exchange, event)
    exchange.block = within(exchange.block, remaining(context))
    known = exchange.begin()
    return respond(known, event) if known is not None else _run(exchange, handle, event, context)


def _run(
    exchange: Exchange, handle: Callable[[LambdaEvent, Any], Any], event: LambdaEvent, context: Any
) -> Any:
    """Let the handler answer, and write down what it answers."""
    made = exchange.attempt(lambda: _parts(explicit(handle(event, context))))
    if isinstance(made, HTTPResponse):
        return respond(made, event)
    response, status, headers, body = made
    instead = exchange.keep(status, headers, body)
    return response if instead is None else respond(instead, event)


def _parts(response: LambdaResponse) -> tuple[LambdaResponse, int, Pairs, bytes]:
    return response, int(response["statusCode"]), pairs_of(response), body_of(response)


# Requests in


def request_of(event: LambdaEvent) -> RequestHead:
    """A request as the policy reads it."""
    around = event["requestContext"]
    if "http" in around:
        path, query = event["rawPath"], event["rawQueryString"]
        return RequestHead(around["http"]["method"], path, query, _wanted(event), event, _stage(path, around))
    path = event["path"]
    # With the stage before it, where there is one.
    full = around.get("path") or path
    root = full.removesuffix(path) if full.endswith(path) else ""
    return RequestHead(event["httpMethod"], full, _query(event), _wanted(event), event, root)


def _stage(path: str, around: Mapping[str, Any]) -> str:
    root = f"/{around.get('stage', '')}"
    return root if path.startswith(f"{root}/") else ""


def _query(event: LambdaEvent) -> str:
    from urllib.parse import urlencode

    several = event.get("multiValueQueryStringParameters") or event.get("queryStringParameters") or {}
    return urlencode(sorted(several.items()), doseq=True)


def _wanted(event: LambdaEvent) -> dict[str, str]:
    """The headers that matter here; a repeated one is joined, as any server would."""
    several = event.get("multiValueHeaders") or {}
    found = several or event.get("headers") or {}
    return {
        name.lower(): ", ".join(value) if several else value
        for name, value in found.items()
        if name.lower() in WANTED
    }


def body_of(message: Mapping[str, Any]) -> bytes:
    """The bytes of a request's body, or of a response's."""
    body = message.get("body") or ""
    return base64.b64decode(body) if message.get("isBase64Encoded") else body.encode()


def _read(event: LambdaEvent, max_bytes: int) -> bytes | None:
    body = body_of(event)
    return None if len(body) > max_bytes else body


# Responses out


def explicit(response: Any) -> LambdaResponse:
    """A response with what API Gateway would infer, so that the first answer and every replay are one."""
    if not isinstance(response, dict) or "statusCode" not in response:
        return {"statusCode": 200, "headers": JSON, "body": _text(response), "isBase64Encoded": False}
    body = response.get("body")
    return response if body is None or isinstance(body, str) else {**response, "body": _text(body)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def pairs_of(response: LambdaResponse) -> Pairs:
    """The headers of a response; cookies that stand apart from them are not among them."""
    several = response.get("multiValueHeaders") or {}
    alone = response.get("headers") or {}
    pairs = [(name, str(value)) for name, value in alone.items() if name not in several]
    return pairs + [(name, str(value)) for name, values in several.items() for value in values]


def respond(answer: HTTPResponse, event: LambdaEvent) -> LambdaResponse:
    """An answer in the shape that whoever sent this event understands."""
    around = event["requestContext"]
    response: LambdaResponse = {"statusCode": answer.status, **_body(answer.body)}
    several: dict[str, list[str]] = {}
    for name, value in answer.headers:
        if name.lower() != COUNTED:
            several.setdefault(name, []).append(value)
    if "http" in around or ("elb" in around and "multiValueHeaders" not in event):
        response["headers"] = {name: ", ".join(values) for name, values in several.items()}
    else:
        response["multiValueHeaders"] = several
    if "elb" in around:
        response["statusDescription"] = _described(answer.status)
    return response


def _body(body: bytes) -> LambdaResponse:
    try:
        return {"body": body.decode(), "isBase64Encoded": False}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}


def _described(status: int) -> str:
    from http import HTTPStatus

    known = status in HTTPStatus._value2member_map_
    return f"{status} {HTTPStatus(status).phrase if known else 'Unknown'}"
