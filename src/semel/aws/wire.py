"""semel's own transport for a JSON service: one request is one round trip."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from semel.aws.credentials import Credentials
from semel.aws.endpoint import ServiceEndpoint, find_endpoint, find_region
from semel.aws.errors import ErrorKind, NoResponse, ServiceError, service_error
from semel.aws.http1 import HttpResponse
from semel.aws.pool import AwsRoute, ConnectionLimits, HttpPool
from semel.aws.retry import RetryPolicy
from semel.aws.roundtrip import open_session, round_trip
from semel.aws.sign import JSON, JsonSigner
from semel.aws.time import ServiceTime
from semel.aws.transport import Transport, WireRequest, WireStep, WireSteps, made
from semel.core.clock import Clock
from semel.core.threads import SignalSafeLock
from semel.errors import InvalidOption, StoreClosed, UsageError

if TYPE_CHECKING:
    from semel.aws.async_pool import AsyncHttpPool

# What stands before the name of an operation.
TARGETS = {"dynamodb": "DynamoDB_20120810.", "sqs": "AmazonSQS."}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Wire(Transport):
    """Carries the requests of threads and tasks to one service, such as `dynamodb`."""

    def __init__(
        self,
        service: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        limits: ConnectionLimits | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        if service not in TARGETS:
            raise InvalidOption(
                f"{service!r} is no service that semel speaks to; they are {', '.join(TARGETS)}"
            )
        region = find_region(region)
        self.endpoint: ServiceEndpoint = find_endpoint(service, region, endpoint)
        clock, policy = clock or Clock(), policy or RetryPolicy()
        self._session = open_session(service, region, self.endpoint, clock, policy, credentials=credentials)
        self.time: ServiceTime = self._session.time
        self._prefix = TARGETS[service]
        self._signer = JsonSigner(service, region, self.endpoint.authority)
        self._head = (
            f"POST / HTTP/1.1\r\nHost: {self.endpoint.authority}\r\nContent-Type: {JSON}\r\n"
            "Accept-Encoding: identity\r\nUser-Agent: semel\r\n"
        )
        self._route = AwsRoute(self.endpoint, limits or ConnectionLimits(), self.time.monotonic)
        self._pool = HttpPool(self._route)
        self.perform: Callable[[WireStep], Any] = self._pool.perform
        self._async_pool: AsyncHttpPool | None = None
        self._opening = SignalSafeLock()
        self._closed = False

    def exchange(self, operation: str, request: WireRequest, *, write: bool) -> WireSteps[dict[str, Any]]:
        """The steps to the response of an operation such as `PutItem`."""
        if (mock := self._session.mock.wire()) is not None:
            return mock.exchange(operation, request, write=write)
        target = self._prefix + operation
        return round_trip(self._session, JsonRequest(self._signer, self._head, target, request, write))

    async def aperform(self, step: WireStep) -> Any:
        """Carry out one step in this task."""
        pool = self._async_pool or self._open_async_pool()
        return await pool.perform(step)

    def _open_async_pool(self) -> "AsyncHttpPool":
        from semel.aws.async_pool import AsyncHttpPool

        with self._opening:
            if self._closed:
                raise StoreClosed("it was closed: open another")
            self._async_pool = self._async_pool or AsyncHttpPool(self._route)
            return self._async_pool

    async def leave(self) -> None:
        """Let go of the running event loop's connections."""
        if self._async_pool is not None:
            await self._async_pool.leave()

    def close(self) -> None:
        """Let go of every connection; calls from here on are refused."""
        self._closed = True
        self._pool.close()
        self._session.mock.close()
        if self._async_pool is not None:
            self._async_pool.close()


class JsonRequest:
    """One request of a JSON service, and how its answer is read."""

    __slots__ = ("_body", "_head", "_request", "_signer", "_target", "write")

    def __init__(self, signer: JsonSigner, head: str, target: str, request: WireRequest, write: bool) -> None:
        self._signer = signer
        self._head = head
        self._target = target
        self._request = request
        self._body = b""
        self.write: bool = write

    def prepare(self) -> None:
        """Make the request; once more where the clock was wrong, as there may be times in it."""
        request = made(self._request)
        try:
            self._body = _encode(request)
        except (TypeError, ValueError) as error:
            raise UsageError(f"this cannot be sent as JSON: {error}") from error

    def signed(self, credentials: Credentials, moment: float) -> bytes:
        """The request as it is sent."""
        body = self._body
        headers = self._signer.headers(self._target, body, credentials, moment)
        return f"{self._head}{headers}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body

    def read(self, answer: HttpResponse) -> dict[str, Any] | ServiceError | NoResponse:
        """What the answer says."""
        checksum = answer.headers.get("x-amz-crc32")
        if checksum is not None and checksum != str(crc32(answer.body)):
            return NoResponse("the answer does not have the checksum that it says", ErrorKind.FAILED)
        if answer.status != 200:
            return service_error(answer.status, answer.body)
        try:
            return _decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return NoResponse(f"the answer is not the JSON of a service ({error})", ErrorKind.FAILED, error)
