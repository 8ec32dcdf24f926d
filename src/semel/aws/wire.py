"""Our own wire to a JSON service: one request, one round trip, and little else."""

import threading
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from semel.aws.credentials import Credentials
from semel.aws.errors import Kind, Lost, ServiceError, service_error
from semel.aws.exchange import Steps, desk_for, exchange
from semel.aws.http1 import Answer
from semel.aws.mocked import Mock
from semel.aws.places import find_endpoint, find_region
from semel.aws.pool import Limits, Pool, Route, run
from semel.aws.retry import Policy
from semel.aws.sign import JSON, JsonSigner
from semel.aws.transport import Request, made
from semel.clock import Clock
from semel.errors import InvalidOption, StoreClosed, UsageError

if TYPE_CHECKING:
    from semel.aws.apool import AsyncPool

# What stands before the name of an operation.
TARGETS = {"dynamodb": "DynamoDB_20120810.", "sqs": "AmazonSQS."}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Wire:
    """Carries the requests of threads and tasks to one service, such as `dynamodb`."""

    def __init__(
        self,
        service: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> None:
        if service not in TARGETS:
            raise InvalidOption(
                f"{service!r} is no service that semel speaks to; they are {', '.join(TARGETS)}"
            )
        region = find_region(region)
        self.endpoint = find_endpoint(service, region, endpoint)
        self._desk = desk_for(service, self.endpoint, credentials, clock or Clock(), policy or Policy())
        self.time = self._desk.time
        self._mock = Mock(
            service, region, self.endpoint, clock=self._desk.clock, time=self.time, credentials=credentials
        )
        self._prefix = TARGETS[service]
        self._signer = JsonSigner(service, region, self.endpoint.authority)
        self._head = (
            f"POST / HTTP/1.1\r\nHost: {self.endpoint.authority}\r\nContent-Type: {JSON}\r\n"
            "Accept-Encoding: identity\r\nUser-Agent: semel\r\n"
        )
        self._route = Route(self.endpoint, limits or Limits(), self.time.monotonic)
        self._pool = Pool(self._route)
        self._apool: AsyncPool | None = None
        self._opening = threading.RLock()
        self._closed = False

    def call(self, operation: str, request: Request, *, write: bool) -> dict[str, Any]:
        """The answer to an operation such as `PutItem`."""
        if (mock := self._mock.wire()) is not None:
            return mock.call(operation, request, write=write)
        return run(self._steps(operation, request, write), self._pool, self._desk)

    async def acall(self, operation: str, request: Request, *, write: bool) -> dict[str, Any]:
        """The same for a task."""
        if (mock := self._mock.wire()) is not None:
            return await mock.acall(operation, request, write=write)
        from semel.aws import apool

        with self._opening:
            if self._apool is None:
                if self._closed:
                    raise StoreClosed("it was closed: open another")
                self._apool = apool.AsyncPool(self._route)
        return await apool.run(self._steps(operation, request, write), self._apool, self._desk)

    def _steps(self, operation: str, request: Request, write: bool) -> Steps[dict[str, Any]]:
        return exchange(self._desk, Post(self._signer, self._head, self._prefix + operation, request, write))

    async def leave(self) -> None:
        """Let go of the running event loop's connections."""
        if self._apool is not None:
            await self._apool.leave()

    def close(self) -> None:
        """Let go of every connection; calls from here on are refused."""
        self._closed = True
        self._pool.close()
        self._mock.close()
        if self._apool is not None:
            self._apool.close()


class Post:
    """One request of a JSON service, and how its answer is read."""

    __slots__ = ("_body", "_head", "_request", "_signer", "_target", "write")

    def __init__(self, signer: JsonSigner, head: str, target: str, request: Request, write: bool) -> None:
        self._signer = signer
        self._head = head
        self._target = target
        self._request = request
        self._body = b""
        self.write = write

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

    def read(self, answer: Answer) -> dict[str, Any] | ServiceError | Lost:
        """What the answer says."""
        checksum = answer.headers.get("x-amz-crc32")
        if checksum is not None and checksum != str(crc32(answer.body)):
            return Lost("the answer does not have the checksum that it says", Kind.FAILED)
        if answer.status != 200:
            return service_error(answer.status, answer.body)
        try:
            return _decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Lost(f"the answer is not the JSON of a service ({error})", Kind.FAILED, error)
