"""The other transport: boto3, when the caller passes a client of its own, and while moto mocks AWS.

moto mocks botocore and nothing else, so during a mock requests go through botocore. A service that was
opened before a mock uses botocore while the mock lasts, and its own connections before and after. One opened
inside a mock belongs to mocks: between two of them it is refused, so that test data never reaches AWS.
"""

import re
import sys
import threading
from base64 import b64decode, b64encode
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any

from semel.aws.environment import Credentials, ServiceEndpoint
from semel.aws.errors import ErrorKind, NoResponse, RetryPolicy, RetryState, ServiceError, kind
from semel.aws.time import ServiceTime
from semel.aws.wire import MOTO, Transport, WireRequest, WireStep, WireSteps
from semel.core.clock import Clock, SignalSafeEvent
from semel.core.commands import Pause
from semel.core.runtime import require
from semel.errors import InvalidOption, StoreClosed

# Errors of botocore before the request was sent. Other errors of a connection may come after that.
UNSENT = ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError")
# moto's modes that mock by a server or a proxy, and not inside botocore.
ELSEWHERE = ("ServerModeMockAWS", "ProxyModeMockAWS")
CLOSED = "it was closed: open another"
ENDED = "it was opened inside moto's mock_aws, which has ended, and nothing of it goes to AWS: open another"

# moto's tables do not survive threads that write at the same time, and DynamoDB's do.
_turns = threading.Lock()


class BotoWire(Transport):
    """Sends requests through a client of boto3, which signs, sends and retries as it is configured.

    Pass a client, or a session to make one from. Tasks ask through a thread. `turns` is held while the
    client is used; while moto stands in for the service, `mock` is used instead of the client.
    """

    def __init__(
        self,
        client: Any,
        *,
        clock: Clock | None = None,
        time: ServiceTime | None = None,
        turns: AbstractContextManager[Any] | None = None,
        mock: "Mock | None" = None,
    ) -> None:
        self._client = _client(client)
        self._clock = clock or Clock()
        self._closed = False
        self._retries = _retries(self._client)
        self._turns = turns or nullcontext()
        self._mock = mock
        self.time: ServiceTime = time or ServiceTime(self._clock)

    def exchange(self, operation: str, request: WireRequest, *, write: bool) -> WireSteps[dict[str, Any]]:
        """Return the steps to the response of an operation such as `PutItem`."""
        retries: RetryState | None = None
        while True:
            reply = yield partial(self._ask, operation, request, write)
            if isinstance(reply, dict):
                return reply
            retries = retries or RetryState(RetryPolicy(), self._clock, "the boto3 client", write=write)
            yield Pause(retries.after(reply), self._clock)

    def perform(self, step: WireStep) -> Any:
        """Perform one step in this thread."""
        if isinstance(step, Pause):
            return self._clock.wait(SignalSafeEvent(), step.seconds)
        return step()  # type: ignore[operator]  # it has no bytes to send

    async def aperform(self, step: WireStep) -> Any:
        """Perform one step in a thread that this task waits for."""
        import asyncio

        return await asyncio.to_thread(self.perform, step)

    async def leave(self) -> None:
        """Do nothing: no connection belongs to an event loop."""

    def close(self) -> None:
        """Stop using the client; its owner closes it."""
        self._closed = True

    def _ask(
        self, operation: str, request: WireRequest, write: bool
    ) -> dict[str, Any] | ServiceError | NoResponse:
        if self._closed:
            raise StoreClosed(CLOSED)
        if self._mock is not None and (mocked := self._mock.wire()) is not None:
            return mocked.call(operation, request, write=write)
        values, sent = to_boto(request() if callable(request) else request), self.time.monotonic()
        try:
            with self._turns:
                response = getattr(self._client, method(operation))(**values)
        except Exception as error:
            reply = _failure(error)
            if reply is None:
                raise
            said = getattr(error, "response", None)
            self._observe(said, sent)
            # Whether botocore may have sent the request before the time that the error is about.
            resent = _metadata(said).get("RetryAttempts") if said else self._retries
            return _doubt(reply) if write and resent else reply
        self._observe(response, sent)
        return _without_metadata(response)

    def _observe(self, response: dict[str, Any] | None, sent: float) -> None:
        date = _metadata(response).get("HTTPHeaders", {}).get("date")
        self.time.observe(date, sent, self.time.monotonic())


def _client(given: Any) -> Any:
    """Return the client, or make one from a session; a mock is what it was made for."""
    bases = {f"{base.__module__}.{base.__name__}" for base in type(given).__mro__}
    if "boto3.session.Session" in bases:
        return given.client("dynamodb")
    if "botocore.session.Session" in bases:
        return given.create_client("dynamodb")
    if "boto3.resources.base.ServiceResource" in bases:
        # The client behind a resource takes and returns values in another form.
        raise InvalidOption("pass boto3.client('dynamodb') or a session, and not a resource of boto3")
    return given


def _retries(client: Any) -> bool:
    """Return whether the client retries by itself; a mock does not."""
    config: Any = getattr(getattr(client, "meta", None), "config", None)
    if not f"{type(config).__module__}.".startswith("botocore."):
        return False
    return (config.retries or {}).get("total_max_attempts") != 1


# Names and values


def method(operation: str) -> str:
    """Return boto3's name of an operation: `put_item` for `PutItem`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()


def to_boto(value: Any) -> Any:
    """Convert a request to boto3's form: with bytes in place of base64 text."""
    if isinstance(value, list):
        return [to_boto(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, leaf),) = value.items()
        if name == "B" and isinstance(leaf, str):
            return {name: b64decode(leaf)}
        if name == "BS" and isinstance(leaf, list):
            return {name: [b64decode(one) if isinstance(one, str) else to_boto(one) for one in leaf]}
    if isinstance(value.get("BinaryValue"), str):  # of an SQS message's attribute
        return {**value, "BinaryValue": b64decode(value["BinaryValue"])}
    return {name: to_boto(one) for name, one in value.items()}


def from_boto(value: Any) -> Any:
    """Convert a response of boto3 to its form on the wire: base64 text, and moments in seconds."""
    if isinstance(value, dict):
        return {name: from_boto(one) for name, one in value.items()}
    if isinstance(value, list):
        return [from_boto(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    return value.timestamp() if isinstance(value, datetime) else value


def _without_metadata(response: dict[str, Any]) -> dict[str, Any]:
    return {name: from_boto(value) for name, value in response.items() if name != "ResponseMetadata"}


def _metadata(response: dict[str, Any] | None) -> dict[str, Any]:
    return (response or {}).get("ResponseMetadata") or {}


# Errors


def _failure(error: Exception) -> ServiceError | NoResponse | None:
    """Translate an error of botocore; None for any other."""
    exceptions: Any = sys.modules.get("botocore.exceptions")
    if exceptions is None:
        return None
    if isinstance(error, exceptions.ClientError):
        response: dict[str, Any] = error.response
        said, status = response.get("Error", {}), _metadata(response).get("HTTPStatusCode", 400)
        code, message = str(said.get("Code", "Unknown")), str(said.get("Message", ""))
        return ServiceError(code, message, status, _without_metadata(response))
    if not isinstance(error, exceptions.BotoCoreError):
        return None
    network = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
    maybe = isinstance(error, network) and type(error).__name__ not in UNSENT
    return NoResponse(str(error), ErrorKind.FAILED if maybe else ErrorKind.UNREACHED, error)


def _doubt(reply: ServiceError | NoResponse) -> ServiceError | NoResponse:
    """Weaken an error that says "not applied" if the request had been sent before."""
    if kind(reply) is ErrorKind.REFUSED:  # a caller that finds its own write knows that it was applied
        return reply
    if isinstance(reply, NoResponse):
        return NoResponse(reply.why, ErrorKind.FAILED, reply.error)
    return NoResponse(f"{reply}, after the client had sent it before", ErrorKind.FAILED, reply)


# moto


def mocked() -> bool:
    """Return whether moto stands in for AWS in this process now."""
    moto = sys.modules.get(MOTO)
    if getattr(getattr(moto, "botocore_stubber", None), "enabled", False):
        return True
    return any(getattr(getattr(moto, mode, None), "_nested_count", 0) for mode in ELSEWHERE)


class Mock:
    """The way to one service while moto stands in for it. `inside` says whether it was opened in a mock."""

    def __init__(
        self,
        service: str,
        region: str,
        endpoint: ServiceEndpoint,
        *,
        clock: Clock,
        time: ServiceTime,
        credentials: Credentials | None = None,
        inside: bool | None = None,
    ) -> None:
        self._open = partial(_open_mocked, service, region, credentials, clock, time)
        # A local server is asked itself, as botocore does inside a mock.
        self._possible = endpoint.amazon
        self._inside = self._possible and (mocked() if inside is None else inside)
        self._opening = threading.Lock()
        self._wire: BotoWire | None = None
        self._closed = False

    def wire(self) -> BotoWire | None:
        """Return botocore during a mock; None if the service itself is to be asked."""
        if not self._possible or not mocked():
            if self._inside:
                raise StoreClosed(ENDED)
            return None
        with self._opening:
            if self._closed:
                raise StoreClosed(CLOSED)
            self._wire = self._wire or self._open()
            return self._wire

    def close(self) -> None:
        """Refuse later calls."""
        self._closed = True


def _open_mocked(
    service: str, region: str, own: Credentials | None, clock: Clock, time: ServiceTime
) -> BotoWire:
    keys: dict[str, Any] = {}
    if own is not None:
        keys = {"aws_access_key_id": own.access_key, "aws_secret_access_key": own.secret_key}
        keys["aws_session_token"] = own.token
    config = require("botocore.config", "boto").Config(retries={"total_max_attempts": 1})
    # moto's server stands behind boto3.client, and nowhere else.
    client = require("boto3", "boto").client(service, region_name=region, config=config, **keys)
    turns = _turns if service == "dynamodb" else None
    return BotoWire(client, clock=clock, time=time, turns=turns)
