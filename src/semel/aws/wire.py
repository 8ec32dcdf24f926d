"""One call to AWS: sign the request, send it, read the response, and retry what may be retried.

    Transport    what a store needs of either way to its service; the other one is `boto.BotoWire`
    Signer       AWS Signature Version 4
    AwsSession   what all calls to one service share, and the steps of one call
    Wire         DynamoDB's and SQS's protocol, JSON

A call is a generator of steps, which `pool` performs for threads and for tasks.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from hashlib import sha256
from hmac import digest
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar
from zlib import crc32

import msgspec

from semel.aws.environment import (
    Chain,
    CredentialCache,
    Credentials,
    ServiceEndpoint,
    find_endpoint,
    find_region,
)
from semel.aws.errors import (
    FAILURES,
    ErrorKind,
    NoResponse,
    RetryPolicy,
    RetryState,
    ServiceError,
    kind,
    service_error,
)
from semel.aws.http1 import HttpResponse
from semel.aws.pool import ConnectionLimits, HttpPool
from semel.aws.time import ServiceTime
from semel.core.clock import Clock
from semel.core.commands import Pause
from semel.core.drive import run_async, run_sync
from semel.errors import InvalidOption, UsageError

if TYPE_CHECKING:
    from semel.aws.boto import BotoWire, Mock

T = TypeVar("T")

# The services, and the prefix of an operation's name.
TARGETS = {"dynamodb": "DynamoDB_20120810.", "sqs": "AmazonSQS.", "s3": ""}
JSON = "application/x-amz-json-1.0"
# Loaded by everything that mocks AWS with moto.
MOTO = "moto.core.models"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

# A request in the form of its JSON: `{"B": ...}` holds base64 text. A function is called again if the service
# says that the clock was wrong, since its request may hold times.
WireRequest: TypeAlias = dict[str, Any] | Callable[[], dict[str, Any]]


# Bytes are a request to send; the reply is an HttpResponse or a NoResponse. A function may block, so a task
# leaves it to a thread.
WireStep: TypeAlias = bytes | Pause | Callable[[], Any]
WireSteps: TypeAlias = Generator[WireStep, Any, T]


class Transport(Protocol):
    """Sends requests to one service and returns its responses."""

    time: ServiceTime
    perform: Callable[[WireStep], Any]
    """Perform one step in this thread."""
    aperform: Callable[[WireStep], Awaitable[Any]]
    """Perform one step in this task."""

    def exchange(self, operation: str, request: WireRequest, *, write: bool) -> WireSteps[dict[str, Any]]:
        """Return the steps to the response of an operation such as `PutItem`.

        They retry for a while what was certainly not applied; what may have been applied only if it is no
        `write`. A ServiceError is for the caller to decide on.
        """
        ...

    def call(self, operation: str, request: WireRequest, *, write: bool) -> dict[str, Any]:
        """Return the response to an operation, in this thread."""
        return run_sync(self.exchange(operation, request, write=write), self.perform)

    async def acall(self, operation: str, request: WireRequest, *, write: bool) -> dict[str, Any]:
        """Return the response to an operation, in this task."""
        return await run_async(self.exchange(operation, request, write=write), self.aperform)

    async def leave(self) -> None:
        """Close what belongs to the running event loop."""
        ...

    def close(self) -> None:
        """Close everything; later calls are refused."""
        ...


# Signatures

ALGORITHM = "AWS4-HMAC-SHA256"
DAY = len("20230101")
# Stands for the time in a canonical request that is split there.
MARK = "\0"

# Returns the whole request with this time and body, and the hash of that.
BodySigner: TypeAlias = Callable[[str, bytes, str], bytes]


class Signer:
    """Signs requests to one host with AWS Signature Version 4. Threads share it."""

    def __init__(self, service: str, region: str, host: str) -> None:
        self.scope: tuple[str, str, str] = (region, service, "aws4_request")
        self._host = host
        self._stamped: tuple[int, str] = (-1, "")
        # For each target, as long as the credentials and the day are the same.
        self._signs: dict[str, tuple[Credentials, str, BodySigner]] = {}

    def stamp(self, moment: float) -> str:
        """Return a moment as `20230101T000000Z`."""
        second, stamped = int(moment), self._stamped
        if stamped[0] != second:
            stamped = self._stamped = (second, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second)))
        return stamped[1]

    def sign_json(self, target: str, body: bytes, credentials: Credentials, moment: float) -> bytes:
        """Return a signed request of a JSON service."""
        stamp, known = self.stamp(moment), self._signs.get(target)
        if known is None or known[0] is not credentials or known[1] != stamp[:DAY]:
            headers = {"content-type": JSON, "x-amz-target": target}
            sign = self._prepare("POST", "/", headers, credentials, stamp[:DAY])
            known = self._signs[target] = (credentials, stamp[:DAY], sign)
        return known[2](stamp, body, sha256(body).hexdigest())

    def sign_object(
        self, method: str, path: str, body: bytes, credentials: Credentials, moment: float
    ) -> bytes:
        """Return a signed request for an S3 object, whose path is encoded already."""
        stamp, hashed = self.stamp(moment), sha256(body).hexdigest()
        sign = self._prepare(method, path, {"x-amz-content-sha256": hashed}, credentials, stamp[:DAY])
        return sign(stamp, body, hashed)

    def _prepare(
        self, method: str, path: str, headers: Mapping[str, str], credentials: Credentials, day: str
    ) -> BodySigner:
        """Prepare what requests with these headers have in common for one day; the headers are signed."""
        token = {"x-amz-security-token": credentials.token} if credentials.token else {}
        sent = {"host": self._host, **headers, **token}
        lines = sorted([*sent.items(), ("x-amz-date", MARK)])
        names = ";".join(name for name, _ in lines)
        canonical = "".join(f"{name}:{value}\n" for name, value in lines)
        before, after = f"{method}\n{path}\n\n{canonical}\n{names}\n".split(MARK)
        key = f"AWS4{credentials.secret_key}".encode()
        for part in (day, *self.scope):
            key = digest(key, part.encode(), "sha256")
        scope = "/".join((day, *self.scope))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{n.title()}: {sent[n]}\r\n" for n in sent)
        proof = f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature="
        head += f"Accept-Encoding: identity\r\nUser-Agent: semel\r\nAuthorization: {proof}"

        # Hashes that have begun, HMAC's two with the key: a copy takes half the time of a new one.
        asked, block = sha256(before.encode()), key.ljust(sha256().block_size, b"\0")
        inner, outer = (sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))

        def sign(stamp: str, body: bytes, hashed: str) -> bytes:
            (request := asked.copy()).update(f"{stamp}{after}{hashed}".encode())
            text = f"{ALGORITHM}\n{stamp}\n{scope}\n{request.hexdigest()}"
            (keyed := inner.copy()).update(text.encode())
            (signature := outer.copy()).update(keyed.digest())
            date = f"\r\nX-Amz-Date: {stamp}\r\nContent-Length: {len(body)}\r\n\r\n"
            return f"{head}{signature.hexdigest()}{date}".encode("latin-1") + body

        return sign


# One call


class AwsSession:
    """What all calls to one service share, and the steps of one call."""

    def __init__(
        self,
        service: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        bucket: str | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        limits: ConnectionLimits | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        if service not in TARGETS:
            raise InvalidOption(f"semel does not speak to {service!r}, only to {', '.join(TARGETS)}")
        region = find_region(region)
        self.endpoint: ServiceEndpoint = find_endpoint(service, region, endpoint, bucket=bucket)
        found = self.endpoint
        self._prefix = TARGETS[service]
        self._clock = clock or Clock()
        self.time: ServiceTime = ServiceTime(self._clock)
        source = Chain() if credentials is None else lambda _: credentials
        credential_cache = CredentialCache(source, self.time.signing, genuine=found.amazon)
        self.credential_cache: CredentialCache = credential_cache
        self.signer: Signer = Signer(service, region, found.authority)
        self.pool: HttpPool = HttpPool(found, limits or ConnectionLimits(), self.time.monotonic)
        self.perform: Callable[[WireStep], Any] = self.pool.perform
        self.aperform: Callable[[WireStep], Awaitable[Any]] = self.pool.aperform
        self._policy = policy or RetryPolicy()
        self._place = f"{service} at {found.host}:{found.port}"
        named = {"clock": self._clock, "time": self.time, "credentials": credentials}
        self._new_mock = partial(_new_mock, service, region, found, **named)
        self._mock = self._new_mock() if MOTO in sys.modules else None

    def mock(self) -> "BotoWire | None":
        """Return the transport to moto, if moto stands in for this service now."""
        if MOTO not in sys.modules:
            return None
        self._mock = self._mock or self._new_mock(inside=False)  # opened before moto was imported
        return self._mock.wire()

    async def leave(self) -> None:
        """Close the running event loop's connections."""
        await self.pool.leave()

    def close(self) -> None:
        """Close every connection; later calls are refused."""
        self.pool.close()
        if self._mock is not None:
            self._mock.close()

    def round_trip(
        self,
        sign: Callable[[bytes, Credentials, float], bytes],
        body: Callable[[], bytes],
        read: Callable[[HttpResponse], T | ServiceError | NoResponse],
        write: bool,
    ) -> WireSteps[T]:
        """Send a request until there is a response, or a failure for the caller to handle.

        The body is built again if the clock was wrong, since there may be times in it.
        """
        credentials = self.credential_cache.current()
        if credentials is None:
            credentials = yield self.credential_cache.load
        content = body()
        retries: RetryState | None = None
        while True:
            reply: Any = yield sign(content, credentials, self.time.signing())
            if type(reply) is HttpResponse:
                response, reply = reply, read(reply)
                failed = isinstance(reply, FAILURES)
                # A proxy on the way has a clock of its own, and does not write the service's responses.
                if not failed or getattr(reply, "body", None):
                    self.time.observe(response.headers.get("date"), response.sent, response.received)
                if not failed:
                    return reply  # type: ignore[no-any-return]
            what = kind(reply)
            if what is ErrorKind.REFUSED and isinstance(reply, ServiceError):
                raise reply
            retries = retries or RetryState(self._policy, self._clock, self._place, write=write)
            if wait := retries.after(reply):
                yield Pause(wait, self._clock)
            if what is ErrorKind.CLOCK:
                content = body()
            elif what is ErrorKind.EXPIRED:
                credentials = yield partial(self.credential_cache.load, credentials)


def _new_mock(*given: Any, **named: Any) -> "Mock":
    from semel.aws.boto import Mock

    return Mock(*given, **named)


class Wire(AwsSession, Transport):
    """The transport of threads and tasks to a JSON service, `dynamodb` or `sqs`."""

    def exchange(self, operation: str, request: WireRequest, *, write: bool) -> WireSteps[dict[str, Any]]:
        """Return the steps to the response of an operation such as `PutItem`."""
        if MOTO in sys.modules and (mock := self.mock()) is not None:
            return mock.exchange(operation, request, write=write)
        sign = partial(self.signer.sign_json, self._prefix + operation)
        return self.round_trip(sign, partial(encode_json, request), read_json, write)


def encode_json(request: WireRequest) -> bytes:
    """Return the body of a request."""
    if callable(request):
        request = request()
    try:
        return _encode(request)
    except (TypeError, ValueError) as error:
        raise UsageError(f"this cannot be sent as JSON: {error}") from error


def read_json(response: HttpResponse) -> dict[str, Any] | ServiceError | NoResponse:
    """Return the result, or the failure, that a response of a JSON service holds."""
    checksum = response.headers.get("x-amz-crc32")
    if checksum is not None and checksum != str(crc32(response.body)):
        return NoResponse("the response does not have the checksum that it says", ErrorKind.FAILED)
    if response.status != 200:
        return service_error(response.status, response.body)
    try:
        return _decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return NoResponse(f"the response is not the JSON of a service ({error})", ErrorKind.FAILED, error)
