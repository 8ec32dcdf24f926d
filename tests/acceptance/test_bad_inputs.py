"""Thousands of inputs that nobody should send: each is answered, or refused by name."""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

import semel
from semel import errors
from semel.core.keys import fingerprint
from semel.doors.asgi import IdempotencyMiddleware
from semel.doors.http import ANYONE, Idempotency
from tests.amounts import amount

INPUTS = amount(34_000, 5_000)
SEED = 54

PIECES = [
    "",
    "a",
    '"',
    "\\",
    "\x00",
    "\n",
    "\u202e",
    "\ud800",
    "😀",
    "%00",
    "../",
    "{}",
    "[",
    "1e999",
    "é",
    "é",
]
NUMBERS = [0, -0.0, 1e308, float("nan"), float("inf"), 2**53, 2**53 + 1, -(2**64), True, None]


class Generator:
    """Draws what is odd: texts, bytes, values that no JSON has, and JSON that is none."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def text(self, most: int = 6) -> str:
        text = "".join(self.rng.choices(PIECES, k=self.rng.randrange(most)))
        return text * (self.rng.choice([1, 1, 1, 40, 700]))

    def raw(self) -> bytes:
        if self.rng.random() < 0.5:
            return self.rng.randbytes(self.rng.randrange(300))
        return self.text().encode("utf-8", "surrogatepass")

    def value(self, depth: int = 0) -> Any:
        kinds: list[Callable[[], Any]] = [
            self.text,
            self.raw,
            object,
            lambda: self.rng.choice(NUMBERS),
            lambda: {self.text(3), self.rng.randrange(9)},
        ]
        if depth < 4:
            several = range(self.rng.randrange(4))
            kinds += [
                lambda: [self.value(depth + 1) for _ in several],
                lambda: {
                    self.rng.choice([self.text(3), 1, None, 2.5]): self.value(depth + 1) for _ in several
                },
            ]
        return self.rng.choice(kinds)()

    def body(self) -> bytes:
        whole = json.dumps(self.value(), default=str, skipkeys=True).encode("utf-8", "replace")
        cut = whole[: self.rng.randrange(len(whole) + 1)]
        return self.rng.choice([whole, cut, self.raw(), b'{"a":1,"a":2}', b"[" * 3000, b"NaN", b"\xff\xfe"])


async def accepted(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"made"})


def request(draw: Generator) -> tuple[dict[str, Any], bytes]:
    headers = [(b"idempotency-key", draw.raw()) for _ in range(draw.rng.choice([0, 1, 1, 1, 2]))]
    headers += [(b"content-type", draw.raw()), (b"idempotency-expiry-seconds", draw.raw())]
    path = "/" + draw.text()
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": draw.rng.choice(["POST", "PATCH", "GET", "PURGE"]),
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": draw.raw(),
        "root_path": "",
        "scheme": "http",
        "headers": draw.rng.sample(headers, len(headers)),
        "client": None,
        "server": None,
    }, draw.body()


async def answered(app: Any, scope: dict[str, Any], body: bytes) -> list[Any]:
    """What the application sends to whoever asks so."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


@pytest.mark.situation(26, 33)
@pytest.mark.proof("inputs")
@pytest.mark.parametrize("payload", ["bytes", "json"])
def test_no_request_however_odd_is_an_error_of_the_server(payload, tried):
    draw, statuses = Generator(SEED), set()
    s = semel.connect("memory:")
    app = IdempotencyMiddleware(accepted, Idempotency(s, identity=ANYONE, payload=payload, expiry=(60, 3600)))

    async def main() -> None:
        for _ in range(INPUTS):
            scope, body = request(draw)
            messages = await answered(app, scope, body)
            statuses.add(messages[0]["status"])
            assert messages[0]["status"] < 500, (scope, body)
            assert messages[-1].get("more_body", False) is False

    asyncio.run(main())
    assert {201, 400} <= statuses, "some are right, and some are not"
    s.close()
    tried(INPUTS, seed=str(SEED))


@pytest.mark.situation(26, 33)
@pytest.mark.proof("inputs")
def test_no_key_payload_or_result_however_odd_is_anything_but_taken_or_refused(tried):
    """A key or a payload is refused before anything runs; a result never makes the effect run again."""
    draw = Generator(SEED + 1)
    runs: list[str] = []
    with semel.connect("memory:") as s:

        @s.once(key=lambda key, payload, result: key, fingerprint=("payload",))
        def work(key: str, payload: Any, result: Any) -> Any:
            runs.append(key)
            return result

        for n in range(INPUTS):
            given, before = (f"{n}{draw.text()}", draw.value(), draw.value()), len(runs)
            for _ in range(2):
                with contextlib.suppress(errors.UsageError, errors.ResultNotKept):
                    work(*given)
            assert len(runs) <= before + 1, given
    assert INPUTS / 10 < len(runs) < INPUTS * 9 / 10, "some are right, and some are not"
    tried(INPUTS, seed=str(SEED + 1))


@pytest.mark.situation(25, 26)
@pytest.mark.proof("inputs")
def test_a_fingerprint_is_a_digest_or_a_refusal(tried):
    draw = Generator(SEED + 2)
    for _ in range(INPUTS):
        value = draw.value()
        try:
            assert len(fingerprint(value)) == 64
        except errors.UsageError:
            continue
    tried(INPUTS, seed=str(SEED + 2))
