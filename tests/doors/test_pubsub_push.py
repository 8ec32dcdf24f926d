"""Google Pub/Sub's push requests: verified, handled once, and answered as Pub/Sub understands it."""

import asyncio
import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from google.auth import crypt, jwt

import semel
from semel.doors.pubsub import GoogleCerts, Message, PushReceiver, PushToken
from semel.errors import InvalidOption, UsageError

NAME = "projects/shop/subscriptions/orders"
AUDIENCE, EMAIL = "https://shop.example/push", "push@shop.iam.gserviceaccount.com"
CLAIMS = {"aud": AUDIENCE, "email": EMAIL, "email_verified": True, "iss": "https://accounts.google.com"}


def envelope(number: str = "1", data: bytes = b'{"order": 7}', **more: Any) -> bytes:
    """A request's body, as Google's documentation shows it: some names are there in two spellings."""
    message = {
        "attributes": {"source": "shop"},
        "data": base64.b64encode(data).decode(),
        "messageId": number,
        "message_id": number,
        "orderingKey": "ada",
        "publishTime": "2026-02-26T19:13:55.749Z",
        "publish_time": "2026-02-26T19:13:55.749Z",
    }
    return json.dumps({"message": message, "subscription": NAME, "deliveryAttempt": 5, **more}).encode()


def never(_message: Message) -> None:
    pytest.fail("it ran")


class Signer:
    """Somebody with a key, and its certificate."""

    def __init__(self, name: str) -> None:
        self.name = name
        key = rsa.generate_private_key(65537, 2048)
        self._private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        built = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now + timedelta(days=1))
        self.cert = built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def token(self, **changed: Any) -> str:
        now = int(time.time())
        claims = {**CLAIMS, "iat": now, "exp": now + 3600, **changed}
        signer = crypt.RSASigner.from_string(self._private, self.name)
        return jwt.encode(signer, {k: v for k, v in claims.items() if v is not None}).decode()

    def headers(self, **changed: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(**changed)}"}


GOOGLE, FORGER = Signer("g-1"), Signer("g-1")


def accepting(certs: Any = None) -> PushToken:
    return PushToken(AUDIENCE, EMAIL, certs={"g-1": GOOGLE.cert} if certs is None else certs)


def test_a_pushed_message_is_handled_once_and_both_deliveries_are_acknowledged(s: semel.Semel) -> None:
    seen: list[Message] = []
    receiver = PushReceiver(s, seen.append, token=accepting())
    answers = [receiver.receive(GOOGLE.headers(), envelope()) for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(204, b"")] * 2
    [message] = seen
    assert (message.json(), message.attributes, message.id) == ({"order": 7}, {"source": "shop"}, "1")
    assert (message.ordering_key, message.deliveries, message.subscription) == ("ada", 5, NAME)
    assert message.published == datetime(2026, 2, 26, 19, 13, 55, 749000, UTC)
    # The same key as when it is pulled: a subscription may change from one to the other.
    assert s.ledger.is_processed(f"pubsub::{NAME}:1")


def test_an_unwrapped_message_has_its_name_and_its_attributes_in_the_headers(s: semel.Semel) -> None:
    seen: list[Message] = []
    receiver = PushReceiver(s, seen.append, token=accepting())
    headers = [
        *GOOGLE.headers().items(),
        ("X-Goog-Pubsub-Subscription-Name", NAME),
        ("X-Goog-Pubsub-Message-Id", "1"),
        ("X-Goog-Pubsub-Publish-Time", "2026-02-26T19:13:55.749Z"),
        ("Source", "shop"),
    ]
    assert receiver.receive(headers, b"plain\xff").status == 204
    assert receiver.receive(GOOGLE.headers(), envelope("1")).status == 204
    [message] = seen
    assert (message.data, message.id, message.subscription) == (b"plain\xff", "1", NAME)
    assert message.attributes["source"] == "shop"
    assert "authorization" not in message.attributes


def test_what_fails_is_not_acknowledged_and_comes_again(s: semel.Semel) -> None:
    tried: list[int] = []

    def handle(_message: Message) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError

    receiver = PushReceiver(s, handle, token=None)
    assert [receiver.receive({}, envelope()).status for _ in range(3)] == [503, 204, 204]
    assert tried == [1, 1]


def test_what_is_being_handled_elsewhere_is_not_acknowledged(s: semel.Semel) -> None:
    assert isinstance(s.ledger.claim(f"pubsub::{NAME}:1"), semel.Claimed)
    answer = PushReceiver(s, never, token=None).receive({}, envelope())
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) > 0


def test_what_fails_for_good_is_not_acknowledged_for_the_dead_letters_to_have_it(s: semel.Semel) -> None:
    tried: list[int] = []

    def handle(_message: Message) -> None:
        tried.append(1)
        raise ValueError

    receiver = PushReceiver(s, handle, token=None, on_error={ValueError: "keep"})
    assert [receiver.receive({}, envelope()).status for _ in range(2)] == [422, 422]
    assert tried == [1]


def test_an_async_handler_is_awaited(s: semel.Semel) -> None:
    seen: list[str] = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.id)

    receiver = PushReceiver(s, handle, token=accepting())

    async def main() -> list[int]:
        return [(await receiver.areceive(GOOGLE.headers(), envelope())).status for _ in range(2)]

    assert (asyncio.run(main()), seen) == ([204, 204], ["1"])
    with pytest.raises(UsageError, match="areceive"):
        receiver.receive(GOOGLE.headers(), envelope())


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"message": {"data": "%%%"}}', b'{"message": null}', b"\xff"],
)
def test_a_body_that_is_no_message_is_refused_and_leaves_no_trace(s: semel.Semel, body: bytes) -> None:
    assert PushReceiver(s, never, token=None).receive({}, body).status == 400
    assert not s.ledger.list().records


def test_a_message_without_an_id_cannot_be_told_from_others_and_is_not_handled(s: semel.Semel) -> None:
    receiver = PushReceiver(s, never, token=None)
    assert receiver.receive({}, b'{"message": {"data": ""}}').status == 422


def test_a_body_that_is_too_large_is_not_read(s: semel.Semel) -> None:
    assert PushReceiver(s, never, token=None, max_bytes=10).receive({}, envelope()).status == 413


# Tokens

FORGED: dict[str, Callable[[], Any]] = {
    "none": dict,
    "another scheme": lambda: {"Authorization": f"Basic {GOOGLE.token()}"},
    "two": lambda: [*GOOGLE.headers().items(), *GOOGLE.headers().items()],
    "no token": lambda: {"Authorization": "Bearer not.a.token"},
    "of a list": lambda: {"Authorization": f"Bearer {base64.urlsafe_b64encode(b'[]').decode()}.e30.e30"},
    "another's key": FORGER.headers,
    "a key nobody knows": Signer("g-2").headers,
    "for another": lambda: GOOGLE.headers(aud="https://other.example"),
    "for nobody": lambda: GOOGLE.headers(aud=None),
    "by another issuer": lambda: GOOGLE.headers(iss="https://accounts.example"),
    "about another": lambda: GOOGLE.headers(email="mallory@shop.iam.gserviceaccount.com"),
    "not verified": lambda: GOOGLE.headers(email_verified=False),
    "verified as text": lambda: GOOGLE.headers(email_verified="true"),
    "over": lambda: GOOGLE.headers(iat=int(time.time()) - 7200, exp=int(time.time()) - 3600),
    "of tomorrow": lambda: GOOGLE.headers(iat=int(time.time()) + 86400, exp=int(time.time()) + 90000),
    "changed": lambda: {"Authorization": f"Bearer {GOOGLE.token()[:-8]}AAAAAAAA"},
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_request_that_google_did_not_sign_for_us_is_refused(s: semel.Semel, forged: str) -> None:
    receiver = PushReceiver(s, never, token=accepting())
    assert receiver.receive(FORGED[forged](), envelope()).status == 401
    assert not s.ledger.list().records


def test_an_algorithm_without_a_key_is_no_signature(s: semel.Semel) -> None:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = int(time.time())
    claims = {**CLAIMS, "iat": now, "exp": now + 3600}
    token = f"{part({'alg': 'none', 'kid': 'g-1'})}.{part(claims)}."
    receiver = PushReceiver(s, never, token=accepting())
    assert receiver.receive({"Authorization": f"Bearer {token}"}, envelope()).status == 401


def test_a_push_token_that_would_accept_anybodys_is_refused() -> None:
    for audience, email in (("", EMAIL), (AUDIENCE, "")):
        with pytest.raises(InvalidOption, match="audience and the email"):
            PushToken(audience, email)


class CertServer(HTTPServer):
    """Where certificates are to be had."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CertPage)
        self.certs: dict[str, str] = {}
        self.asked, self.age = 0, 3600

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/certs"


class CertPage(BaseHTTPRequestHandler):
    server: CertServer

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(200)
        self.send_header("Cache-Control", f"public, max-age={self.server.age}, must-revalidate")
        self.end_headers()
        self.wfile.write(json.dumps(self.server.certs).encode())

    def log_message(self, *_args: Any) -> None:
        pass


def test_certificates_are_fetched_once_and_kept_for_as_long_as_google_says(s: semel.Semel) -> None:
    seen: list[str] = []
    with CertServer() as server:
        server.certs = {"g-1": GOOGLE.cert}
        thread = Thread(target=server.serve_forever)
        thread.start()
        receiver = PushReceiver(s, lambda one: seen.append(one.id), token=accepting(GoogleCerts(server.url)))
        try:
            for number in ("1", "2"):
                assert receiver.receive(GOOGLE.headers(), envelope(number)).status == 204
            # A key nobody knows does not have them fetched each time: anybody can send one.
            for _ in range(3):
                assert receiver.receive(Signer("g-9").headers(), envelope("3")).status == 401
            assert server.asked == 1
            server.age = 0
            other = accepting(GoogleCerts(server.url))
            for _ in range(2):
                other.verify(GOOGLE.headers())
            assert server.asked == 3
        finally:
            server.shutdown()
            thread.join()
    assert seen == ["1", "2"]


def test_without_google_nobody_is_let_in_and_the_message_comes_again(s: semel.Semel) -> None:
    with CertServer() as server:
        url = server.url
    receiver = PushReceiver(s, never, token=accepting(GoogleCerts(url, timeout=1)))
    assert receiver.receive(GOOGLE.headers(), envelope()).status == 503
