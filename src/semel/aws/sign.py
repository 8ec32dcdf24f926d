"""AWS Signature Version 4 in request headers, for JSON services and for S3 objects.

What stays the same is put together once: for an endpoint its headers, for a day its key, for a second its
stamp. What is left for each request are three hashes.
"""

import time
from hashlib import sha256
from hmac import digest

from semel.aws.credentials import Credentials

ALGORITHM = "AWS4-HMAC-SHA256"
JSON = "application/x-amz-json-1.0"
EMPTY_HASH = sha256(b"").hexdigest()
DAY = len("20230101")


class Signer:
    """Signs for one service, in one region."""

    def __init__(self, service: str, region: str) -> None:
        self._scope = f"{region}/{service}/aws4_request"
        self._steps = (region.encode(), service.encode(), b"aws4_request")
        # The last second and its stamp; whose key it is, for which day, and the key. Each is replaced as one,
        # since threads share a signer.
        self._stamped: tuple[int, str] = (-1, "")
        self._key: tuple[Credentials | None, str, bytes] = (None, "", b"")

    def stamp(self, moment: float) -> str:
        """A moment as `20230101T000000Z`."""
        second = int(moment)
        stamped = self._stamped
        if stamped[0] != second:
            stamped = (second, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second)))
            self._stamped = stamped
        return stamped[1]

    def authorization(self, credentials: Credentials, stamp: str, canonical: str, signed: str) -> str:
        """The Authorization header of a request in canonical form."""
        day = stamp[:DAY]
        owner, of_day, key = self._key
        if owner is not credentials or of_day != day:
            key = self._derive(credentials, day)
            self._key = (credentials, day, key)
        hashed = sha256(canonical.encode()).hexdigest()
        text = f"{ALGORITHM}\n{stamp}\n{day}/{self._scope}\n{hashed}"
        signature = digest(key, text.encode(), "sha256").hex()
        who = f"{credentials.access_key}/{day}/{self._scope}"
        return f"{ALGORITHM} Credential={who}, SignedHeaders={signed}, Signature={signature}"

    def _derive(self, credentials: Credentials, day: str) -> bytes:
        key = digest(f"AWS4{credentials.secret_key}".encode(), day.encode(), "sha256")
        for step in self._steps:
            key = digest(key, step, "sha256")
        return key


def token_headers(credentials: Credentials) -> tuple[str, str, str]:
    """The header of a session's token: its name among those signed, and it as signed and as sent."""
    if not credentials.token:
        return "", "", ""
    name = "x-amz-security-token"
    return f";{name}", f"{name}:{credentials.token}\n", f"X-Amz-Security-Token: {credentials.token}\r\n"


class JsonSigner(Signer):
    """Signs the POST requests of a JSON service at one host."""

    def __init__(self, service: str, region: str, host: str) -> None:
        super().__init__(service, region)
        self._canonical = f"POST\n/\n\ncontent-type:{JSON}\nhost:{host}\nx-amz-date:"

    def headers(self, target: str, body: bytes, credentials: Credentials, moment: float) -> str:
        """The header lines that depend on the request and on the time, the signature among them."""
        stamp = self.stamp(moment)
        also, token, sent = token_headers(credentials)
        signed = f"content-type;host;x-amz-date{also};x-amz-target"
        hashed = sha256(body).hexdigest()
        canonical = f"{self._canonical}{stamp}\n{token}x-amz-target:{target}\n\n{signed}\n{hashed}"
        proof = self.authorization(credentials, stamp, canonical, signed)
        return f"X-Amz-Target: {target}\r\nX-Amz-Date: {stamp}\r\n{sent}Authorization: {proof}\r\n"


class ObjectSigner(Signer):
    """Signs requests for S3 objects at one host."""

    def __init__(self, region: str, host: str) -> None:
        super().__init__("s3", region)
        self._host = host

    def headers(self, method: str, path: str, body: bytes, credentials: Credentials, moment: float) -> str:
        """The header lines that depend on the request and on the time; the path is encoded already."""
        stamp = self.stamp(moment)
        hashed = sha256(body).hexdigest() if body else EMPTY_HASH
        also, token, sent = token_headers(credentials)
        signed = f"host;x-amz-content-sha256;x-amz-date{also}"
        canonical = (
            f"{method}\n{path}\n\nhost:{self._host}\nx-amz-content-sha256:{hashed}\nx-amz-date:{stamp}\n"
            f"{token}\n{signed}\n{hashed}"
        )
        proof = self.authorization(credentials, stamp, canonical, signed)
        return f"X-Amz-Date: {stamp}\r\nX-Amz-Content-SHA256: {hashed}\r\n{sent}Authorization: {proof}\r\n"
