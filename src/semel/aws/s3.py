"""Large results as S3 objects."""

import os
import re
from hashlib import sha256
from urllib.parse import quote

import msgspec

from semel.aws.credentials import Credentials
from semel.aws.endpoint import ServiceEndpoint, find_endpoint, find_region
from semel.aws.errors import ServiceError, object_error
from semel.aws.http1 import HttpResponse
from semel.aws.pool import AwsRoute, ConnectionLimits, HttpPool
from semel.aws.retry import RetryPolicy
from semel.aws.roundtrip import open_session, round_trip
from semel.aws.sign import ObjectSigner
from semel.core.clock import Clock
from semel.core.drive import run_sync
from semel.errors import InvalidOption, UsageError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Under whatever prefix it was written.
_REFERENCE = re.compile(r".*[0-9a-f]{32}-[0-9a-f]{32}", re.DOTALL)
# What botocore calls it.
OPERATIONS = {"PUT": "PutObject", "GET": "GetObject", "DELETE": "DeleteObject"}
# An object of some megabytes over a thin line takes longer than a row.
LIMITS = ConnectionLimits(read_timeout=30.0)
# S3's own advice is to begin with a larger step than DynamoDB's.
POLICY = RetryPolicy(base=0.1, longest=5.0, patience=30.0)


class S3Overflow:
    """One object for each result, in a bucket that exists.

    A reference is the object's key: a hash of the record's name, which shows nothing of it, and randomness.
    A record that expires leaves its object behind, so give the bucket a lifecycle rule for the prefix. S3
    hides what is missing from whoever may not list the bucket, so allow `s3:ListBucket` too.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "semel/",
        region: str | None = None,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        limits: ConnectionLimits = LIMITS,
        policy: RetryPolicy = POLICY,
    ) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise InvalidOption(f"{bucket!r} is no name of an S3 bucket")
        region = find_region(region)
        place, self._root = addressed(bucket, find_endpoint("s3", region, endpoint))
        self._bucket = bucket
        self._prefix = prefix
        self._host = place.authority
        self._signer = ObjectSigner(region, place.authority)
        self._session = open_session("s3", region, place, clock or Clock(), policy, credentials=credentials)
        self._pool = HttpPool(AwsRoute(place, limits, self._session.time.monotonic))

    def put(self, name: str, data: bytes) -> str:
        """Write the bytes to a new object."""
        ref = f"{self._prefix}{sha256(name.encode()).hexdigest()[:32]}-{os.urandom(16).hex()}"
        self._ask("PUT", ref, data)
        return ref

    def get(self, ref: str) -> bytes:
        """Read the bytes of an object; KeyError when it is gone."""
        try:
            return self._ask("GET", ref)
        except ServiceError as error:
            if error.code == "NoSuchKey":
                raise KeyError(ref) from error
            raise

    def delete(self, ref: str) -> None:
        """Remove an object; nothing happens when it is gone already."""
        self._ask("DELETE", ref)

    def close(self) -> None:
        """Let go of every connection; calls from here on are refused."""
        self._pool.close()
        self._session.mock.close()

    def _ask(self, method: str, ref: str, data: bytes = b"") -> bytes:
        if not _REFERENCE.fullmatch(ref):
            raise UsageError(f"{ref[:80]!r} is not a reference that this overflow store gave out")
        if (mock := self._session.mock.wire()) is not None:
            named = {"Bucket": self._bucket, "Key": ref} | ({"Body": data} if method == "PUT" else {})
            answer = mock.call(OPERATIONS[method], named, write=False)
            return answer["Body"].read() if method == "GET" else b""
        path = self._root + quote(ref, safe="/~")
        request = ObjectRequest(self._signer, self._host, method, path, data)
        return run_sync(round_trip(self._session, request), self._pool.perform)


def addressed(bucket: str, endpoint: ServiceEndpoint) -> tuple[ServiceEndpoint, str]:
    """The host of a bucket, and what stands before its keys: at AWS a bucket has a host of its own."""
    # A wildcard certificate covers one label, so a name with dots has to be in the path.
    if not endpoint.standard or "." in bucket:
        return endpoint, f"/{bucket}/"
    return msgspec.structs.replace(endpoint, host=f"{bucket}.{endpoint.host}"), "/"


class ObjectRequest:
    """One request for an object, and how its answer is read."""

    # Whatever is asked may be repeated: a key is written once, with one content.
    write = False

    def __init__(self, signer: ObjectSigner, host: str, method: str, path: str, data: bytes) -> None:
        self._signer = signer
        self._head = (
            f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\nUser-Agent: semel\r\n"
        )
        self._method = method
        self._path = path
        self._data = data

    def prepare(self) -> None:
        """There are no times in it."""

    def signed(self, credentials: Credentials, moment: float) -> bytes:
        """The request as it is sent."""
        headers = self._signer.headers(self._method, self._path, self._data, credentials, moment)
        head = f"{self._head}{headers}Content-Length: {len(self._data)}\r\n\r\n"
        return head.encode("latin-1") + self._data

    def read(self, answer: HttpResponse) -> bytes | ServiceError:
        """What the answer says."""
        if 200 <= answer.status < 300:
            return answer.body
        return object_error(answer.status, answer.body)
