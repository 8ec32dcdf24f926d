"""Large results as S3 objects."""

import os
import re
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from semel.aws.environment import Credentials
from semel.aws.errors import RetryPolicy, ServiceError, object_error
from semel.aws.http1 import HttpResponse
from semel.aws.pool import ConnectionLimits
from semel.aws.wire import AwsSession
from semel.core.clock import Clock
from semel.core.drive import run_sync
from semel.errors import InvalidOption, UsageError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# With any prefix.
_REFERENCE = re.compile(r".*[0-9a-f]{32}-[0-9a-f]{32}", re.DOTALL)
# botocore's names.
OPERATIONS = {"PUT": "PutObject", "GET": "GetObject", "DELETE": "DeleteObject"}
# An object of some megabytes over a slow line takes longer than a row.
LIMITS = ConnectionLimits(read_timeout=30.0)
# S3's own advice is to begin with a larger step than DynamoDB's.
POLICY = RetryPolicy(base=0.1, longest=5.0, patience=30.0)


class S3Overflow(AwsSession):
    """One object for each result, in a bucket that exists.

    A reference is the object's key: a hash of the record's name, which shows nothing of it, and randomness.
    A record that expires leaves its object behind, so give the bucket a lifecycle rule for the prefix. S3
    does not say what is missing to a caller that may not list the bucket, so allow `s3:ListBucket` too.
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
    ) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise InvalidOption(f"{bucket!r} is not the name of an S3 bucket")
        # At AWS a bucket has a host of its own. A wildcard certificate covers one label, so a name with dots
        # has to be in the path, as it is elsewhere.
        own = None if "." in bucket else bucket
        super().__init__(
            "s3",
            region=region,
            endpoint=endpoint,
            bucket=own,
            credentials=credentials,
            clock=clock,
            limits=LIMITS,
            policy=POLICY,
        )
        self._root = "/" if own and self.endpoint.standard else f"/{bucket}/"
        self._bucket = bucket
        self._prefix = prefix

    def put(self, name: str, data: bytes) -> str:
        """Write the bytes to a new object, and return its reference."""
        ref = f"{self._prefix}{sha256(name.encode()).hexdigest()[:32]}-{os.urandom(16).hex()}"
        self._call("PUT", ref, data)
        return ref

    def get(self, ref: str) -> bytes:
        """Read the bytes of an object; raise KeyError if it is gone."""
        try:
            return self._call("GET", ref)
        except ServiceError as error:
            if error.code == "NoSuchKey":
                raise KeyError(ref) from error
            raise

    def delete(self, ref: str) -> None:
        """Remove an object, if it is still there."""
        self._call("DELETE", ref)

    def _call(self, method: str, ref: str, data: bytes = b"") -> bytes:
        if not _REFERENCE.fullmatch(ref):
            raise UsageError(f"{ref[:80]!r} is not a reference of this overflow store")
        if (mock := self.mock()) is not None:
            named = {"Bucket": self._bucket, "Key": ref} | ({"Body": data} if method == "PUT" else {})
            response: Any = mock.call(OPERATIONS[method], named, write=False)
            return response["Body"].read() if method == "GET" else b""
        sign = partial(self.signer.sign_object, method, self._root + quote(ref, safe="/~"))
        # Every request may be repeated: a key is written once, with one content.
        return run_sync(self.round_trip(sign, lambda: data, read_object, write=False), self.perform)


def read_object(response: HttpResponse) -> bytes | ServiceError:
    """Return the body, or the failure, that a response holds."""
    if 200 <= response.status < 300:
        return response.body
    return object_error(response.status, response.body)
