"""DynamoDB by a raw socket: the least that HTTP/1.1 and Signature Version 4 take, and nothing but that."""

import hmac
import os
import socket
import time
from hashlib import sha256
from urllib.parse import urlsplit

REGION = "us-east-1"


class SignedSocket:
    """A connection that signs and sends JSON requests, and reads their responses."""

    def __init__(self, endpoint: str) -> None:
        address = urlsplit(endpoint)
        self._socket = socket.create_connection((address.hostname, address.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = f"{address.hostname}:{address.port}"
        self._key_id = os.environ["AWS_ACCESS_KEY_ID"]
        self._day = ""
        self._key = b""

    def send(self, target: str, body: bytes) -> tuple[bytes, bytes]:
        """Sign a request and send it; the status and the body of its response."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        if stamp[:8] != self._day:
            self._day, self._key = stamp[:8], signing_key(stamp[:8])
        scope = f"{self._day}/{REGION}/dynamodb/aws4_request"
        names = "host;x-amz-date;x-amz-target"
        canonical = (
            f"POST\n/\n\nhost:{self._host}\nx-amz-date:{stamp}\nx-amz-target:{target}\n\n{names}\n"
            f"{sha256(body).hexdigest()}"
        )
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key, text.encode(), "sha256").hex()
        head = (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"X-Amz-Target: {target}\r\nX-Amz-Date: {stamp}\r\nContent-Length: {len(body)}\r\n"
            f"Authorization: AWS4-HMAC-SHA256 Credential={self._key_id}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        return self._response()

    def _response(self) -> tuple[bytes, bytes]:
        data = self._socket.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < size:
            body += self._socket.recv(65536)
        return head[9:12], body

    def close(self) -> None:
        self._socket.close()


def signing_key(day: str) -> bytes:
    """The key of a day, by Signature Version 4."""
    key = f"AWS4{os.environ['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in (day, REGION, "dynamodb", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
