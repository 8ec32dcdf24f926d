"""The other transport: a caller's own boto3 client, session or mock, used as it is."""

import re
import sys
from base64 import b64decode, b64encode
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.aws.errors import ErrorKind, NoResponse, ServiceError, kind
from semel.aws.retry import RetryPolicy, RetryState
from semel.aws.time import ServiceTime
from semel.aws.transport import ThreadCall, Transport, WireRequest, WireStep, WireSteps, made
from semel.core.clock import Clock
from semel.core.threads import SignalSafeEvent
from semel.errors import InvalidOption, StoreClosed

if TYPE_CHECKING:
    from semel.aws.mocked import Mock


class BotoWire(Transport):
    """Carries requests through a client of boto3, which signs, sends and retries as it was told to.

    Give it a client, or a session to make one from. Tasks ask through a thread. `turns` is held while the
    client is asked; while moto stands for the service, `mock` is asked instead of the client.
    """

    def __init__(
        self,
        client: Any,
        *,
        service: str = "dynamodb",
        clock: Clock | None = None,
        policy: RetryPolicy | None = None,
        time: ServiceTime | None = None,
        turns: AbstractContextManager[Any] | None = None,
        mock: "Mock | None" = None,
    ) -> None:
        self._client = _client(client, service)
        self._clock = clock or Clock()
        self._policy = policy or RetryPolicy()
        self._closed = False
        self._retries = _retries(self._client)
        self._turns = turns or nullcontext()
        self._mock = mock
        self.time: ServiceTime = time or ServiceTime(self._clock)

    def exchange(self, operation: str, request: WireRequest, *, write: bool) -> WireSteps[dict[str, Any]]:
        """One step to the response of an operation such as `PutItem`: the client blocks."""
        response: dict[str, Any] = yield ThreadCall(partial(self._call, operation, request, write))
        return response

    def perform(self, step: WireStep) -> Any:
        """Carry out one step in this thread."""
        return step.work()  # type: ignore[union-attr]  # it has no others

    async def aperform(self, step: WireStep) -> Any:
        """Carry out one step in a thread that this task waits for."""
        import asyncio

        return await asyncio.to_thread(self.perform, step)

    def _call(self, operation: str, request: WireRequest, write: bool) -> dict[str, Any]:
        if self._mock is not None and (mocked := self._mock.wire()) is not None:
            return mocked.call(operation, request, write=write)
        retries: RetryState | None = None
        while True:
            reply = self._ask(operation, made(request), write)
            if isinstance(reply, dict):
                return reply
            retries = retries or RetryState(self._policy, self._clock, "the boto3 client", write=write)
            self._clock.wait(SignalSafeEvent(), retries.after(reply))

    async def leave(self) -> None:
        """Nothing belongs to an event loop."""

    def close(self) -> None:
        """Use the client no more; closing it is its owner's."""
        self._closed = True
        if self._mock is not None:
            self._mock.close()

    def _ask(
        self, operation: str, request: dict[str, Any], write: bool
    ) -> dict[str, Any] | ServiceError | NoResponse:
        if self._closed:
            raise StoreClosed("it was closed: open another")
        sent = self.time.monotonic()
        try:
            with self._turns:
                answer = getattr(self._client, method(operation))(**to_boto(request))
        except Exception as error:
            reply = _failure(error)
            if reply is None:
                raise
            self._observe(getattr(error, "response", None), sent)
            return _doubted(reply) if write and self._sent_before(error) else reply
        self._observe(answer, sent)
        return {name: from_boto(value) for name, value in answer.items() if name != "ResponseMetadata"}

    def _observe(self, answer: dict[str, Any] | None, sent: float) -> None:
        headers = _metadata(answer).get("HTTPHeaders", {})
        self.time.observe(headers.get("date"), sent, self.time.monotonic())

    def _sent_before(self, error: Exception) -> bool:
        """Whether botocore may have sent the request before the time that the error is about."""
        response = getattr(error, "response", None)
        return bool(_metadata(response).get("RetryAttempts")) if response else self._retries


def _client(given: Any, service: str) -> Any:
    """The client itself, or one made by a session; a mock is what it is made for."""
    bases = {f"{base.__module__}.{base.__name__}" for base in type(given).__mro__}
    if "boto3.session.Session" in bases:
        return given.client(service)
    if "botocore.session.Session" in bases:
        return given.create_client(service)
    if "boto3.resources.base.ServiceResource" in bases:
        # The client behind a resource takes and gives values in another form.
        raise InvalidOption(f"a boto3 resource is no client: give boto3.client({service!r}), or the session")
    return given


def method(operation: str) -> str:
    """The name that boto3 has for an operation: `put_item` for `PutItem`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()


def to_boto(value: Any) -> Any:
    """A request as boto3 takes it: with bytes in place of base64 text."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((name, leaf),) = value.items()
            if name == "B" and isinstance(leaf, str):
                return {name: b64decode(leaf)}
            if name == "BS" and isinstance(leaf, list):
                return {name: [b64decode(one) if isinstance(one, str) else to_boto(one) for one in leaf]}
        if isinstance(value.get("BinaryValue"), str):  # of an SQS message's attribute
            return {**value, "BinaryValue": b64decode(value["BinaryValue"])}
        return {name: to_boto(one) for name, one in value.items()}
    return [to_boto(one) for one in value] if isinstance(value, list) else value


def from_boto(value: Any) -> Any:
    """An answer of boto3 as it was on the wire: base64 text, and moments in seconds."""
    if isinstance(value, dict):
        return {name: from_boto(one) for name, one in value.items()}
    if isinstance(value, list):
        return [from_boto(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    return value.timestamp() if isinstance(value, datetime) else value


def _retries(client: Any) -> bool:
    """Whether the client sends again by itself; a mock does not."""
    config: Any = getattr(getattr(client, "meta", None), "config", None)
    if not f"{type(config).__module__}.".startswith("botocore."):
        return False
    return (config.retries or {}).get("total_max_attempts") != 1


def _metadata(answer: dict[str, Any] | None) -> dict[str, Any]:
    return (answer or {}).get("ResponseMetadata") or {}


def _failure(error: Exception) -> ServiceError | NoResponse | None:
    """An error of botocore's in our words; None for what is none of botocore's."""
    exceptions: Any = sys.modules.get("botocore.exceptions")
    if exceptions is None:
        return None
    if isinstance(error, exceptions.ClientError):
        return _refusal(error.response)
    if not isinstance(error, exceptions.BotoCoreError):
        return None
    # What else goes wrong with a connection may do so after the request was sent.
    unsent = ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError")
    network = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
    maybe = isinstance(error, network) and type(error).__name__ not in unsent
    return NoResponse(str(error), ErrorKind.FAILED if maybe else ErrorKind.UNREACHED, error)


def _refusal(response: dict[str, Any]) -> ServiceError:
    error = response.get("Error", {})
    body = {name: from_boto(value) for name, value in response.items() if name != "ResponseMetadata"}
    status = _metadata(response).get("HTTPStatusCode", 400)
    return ServiceError(str(error.get("Code", "Unknown")), str(error.get("Message", "")), status, body)


def _doubted(reply: ServiceError | NoResponse) -> ServiceError | NoResponse:
    """What is left of an error that says "not applied" when it was not about the first sending."""
    if kind(reply) is ErrorKind.REFUSED:  # whoever finds its own write in the way knows that it was applied
        return reply
    if isinstance(reply, NoResponse):
        return NoResponse(reply.why, ErrorKind.FAILED, reply.error)
    return NoResponse(f"{reply}, after the client had sent it before", ErrorKind.FAILED, reply)
