"""What a fuzzer calls: each target reads bytes that anybody may send, and says what must hold of them."""

import contextlib
import hashlib
import inspect
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from semel.core import keys
from semel.core.codecs import Body, Codec, Encryption, decoder_for
from semel.doors.http.field import BadField, read_key, read_seconds
from semel.doors.webhooks import verifiers
from semel.errors import (
    BadSignature,
    InvalidKey,
    InvalidPayload,
    ResultNotKept,
    ResultUnreadable,
    TemplateError,
)
from semel.redact import Redactor

NOW = 1_700_000_000.0


class Target(NamedTuple):
    """What is called, and what the fuzzer begins with."""

    holds: Callable[[bytes], None]
    seeds: Sequence[bytes]


def text_of(data: bytes) -> str:
    """A text of the fuzzer's, which may be one that no encoding has."""
    return data.decode("utf-8", "surrogateescape")


# Keys and templates


def key_holds(data: bytes) -> None:
    """A key gives back the parts that it was made of, so no two lists of parts share one."""
    parts = [text_of(one) for one in data.split(b"\x00")]
    try:
        key = keys.Key(*parts)
    except InvalidKey:
        return
    assert [_unescaped(one) for one in key.split(":")] == parts


def _unescaped(part: str) -> str:
    return part.replace("%3A", ":").replace("%3E", ">").replace("%25", "%")


class Order:
    """An argument that templates may reach into."""

    id = "o:1"
    lines: Sequence[str] = ("a", "b>c")


def _work(order: Order, cents: int, *rest: str, **more: str) -> None: ...


def template_holds(data: bytes) -> None:
    """A template makes a key, or is refused; nothing in it is ever run."""
    arguments = {"order": Order(), "cents": 5, "rest": ("x",), "more": {"a": "y"}}
    with contextlib.suppress(InvalidKey, TemplateError):
        key = keys.compile_template(text_of(data), inspect.signature(_work))(arguments)
        assert keys.check(key) == key


def payload_holds(data: bytes) -> None:
    """A JSON payload has one canonical form, which is its own; or it is refused."""
    with contextlib.suppress(InvalidPayload):
        canonical = keys.canonical_json(data)
        assert keys.canonical_json(canonical) == canonical == keys.canonical(json.loads(canonical))


# Header fields


def field_holds(data: bytes) -> None:
    """A field is a key of printable ASCII, and is so again when it is quoted; or it is refused."""
    value = data.decode("latin-1")
    for strict in (True, False):
        with contextlib.suppress(BadField):
            key = read_key(value, strict=strict, longest=255)
            assert 0 < len(key) <= 255
            assert key.isascii()
            assert key.isprintable()
            quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
            assert read_key(quoted, strict=True, longest=255) == key
    with contextlib.suppress(BadField):
        assert 60 <= read_seconds(value, 60, 3600) <= 3600


SECRET = hashlib.sha256(b"the fuzzer does not know it").hexdigest()
"""Nobody can sign with it, so whatever the fuzzer sends is forged."""

SCHEMES: dict[str, tuple[verifiers.Verifier, tuple[str, ...]]] = {
    "standard": (
        verifiers.StandardWebhooks(SECRET),
        ("webhook-id", "webhook-timestamp", "webhook-signature"),
    ),
    "hubspot": (
        verifiers.HubSpotV3(SECRET),
        ("X-HubSpot-Request-Timestamp", "X-HubSpot-Signature-v3"),
    ),
    "stripe": (verifiers.Stripe(SECRET), ("Stripe-Signature",)),
    "github": (verifiers.GitHub(SECRET), ("X-Hub-Signature-256",)),
    "slack": (verifiers.Slack(SECRET), ("X-Slack-Request-Timestamp", "X-Slack-Signature")),
    "plain": (verifiers.PlainHmac(SECRET, "X-Signature"), ("X-Signature",)),
    "telegram": (verifiers.Telegram(SECRET), ("X-Telegram-Bot-Api-Secret-Token",)),
    "bearer": (verifiers.Bearer(SECRET), ("Authorization",)),
}


def signature_holds(data: bytes) -> None:
    """Headers and body from somebody without the secret are refused, under every scheme."""
    *values, body = data.split(b"\n")
    for verifier, names in SCHEMES.values():
        headers = [(name, value.decode("latin-1")) for name, value in zip(names, values, strict=False)]
        try:
            verifier.verify(headers, body, NOW, url="https://shop.example/hooks")
        except BadSignature:
            continue
        raise AssertionError(f"{verifier} takes {headers} for signed")


# What is stored


CODEC = Codec(encryption=Encryption({"k1": b"k" * 32}, "k1"))
ENCODINGS = ("json", "json+zlib", "json+aesgcm=k1", "json+zlib+aesgcm=k1", "json+aesgcm=k2", "none:too-large")
RESULTS = tuple(map(decoder_for, (Any, int, dict[str, list[int]], tuple[str, float])))


def body_holds(data: bytes) -> None:
    """A stored result that was damaged or made up is read or refused by name, and never unsealed."""
    encoding = ENCODINGS[data[0] % len(ENCODINGS)] if data else "json"
    decoder = RESULTS[data[1] % len(RESULTS)] if len(data) > 1 else RESULTS[0]
    with contextlib.suppress(ResultNotKept, ResultUnreadable):
        CODEC.decode(Body(data[2:], encoding), decoder, "dev//work:1")
        assert "aesgcm" not in encoding


# What is shown


REDACTOR = Redactor()
PLANTED = ("anna.berg@example.com", "+46 70 174 06 05", "sk_live_4eC39HqLyjWDarjtT1zdp7dc")


def redaction_holds(data: bytes) -> None:
    """Whatever stands before and after it, a person's address, number or credential is masked."""
    before, _, after = data.decode("utf-8", "replace").partition("\x00")
    for planted in PLANTED:
        assert planted not in REDACTOR.text(f"{before}\n{planted}\n{after}")
    REDACTOR.json({"text": before, before: [after]})


TARGETS = {
    "keys": Target(
        key_holds, [b"charge\x00o:1", b"a%3Ab\x00>", b"\xc3\xa9\x00\xf0\x9f\x98\x80", b"\xff\x00x"]
    ),
    "templates": Target(
        template_holds,
        [b"charge:{order.id}", b"{cents}:{{}}", b"{order.lines[1]}", b"{more[a]}", b"{rest[0]!r:>9}"],
    ),
    "payloads": Target(
        payload_holds, [b'{"b":[1,2.0,-0,1e3],"a":"\\u00e9"}', b'{"a":1,"a":2}', b"[NaN]", b"1e999"]
    ),
    "fields": Target(field_holds, [b'"8e03978e-40d5"', b"bare", b'"a\\"b\\\\"', b"3600", b'"a";p=1']),
    "signatures": Target(
        signature_holds,
        [
            b"msg_1\n1700000000\nv1,MTIz\n{}",
            b"1700000000000\nMTIz\n{}",
            b"t=1700000000,v1=00ff\n{}",
            b"sha256=00ff\n{}",
            b"1700000000\nv0=00ff\n{}",
            b"Bearer abc\n",
        ],
    ),
    "bodies": Target(
        body_holds, [b"\x00\x00[1]", b"\x01\x02" + zlib.compress(b"{}"), b"\x02\x00" + b"n" * 40, b"\x05\x00"]
    ),
    "redaction": Target(
        redaction_holds, [b"call \x00 now", b"1234 5678\x00@", b"n\xc3\xa4ste\x00+46", b"Bearer \x00="]
    ),
}
