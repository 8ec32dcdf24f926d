"""The pure part of the webhook door: what is genuine, and what it is called."""

import base64
import hashlib
import hmac
import math
import pickle
import random
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.doors.webhooks import (
    ALOWARE,
    GITHUB,
    HUBSPOT,
    PROVIDERS,
    SLACK,
    STANDARD_WEBHOOKS,
    STRIPE,
    TELEGRAM,
    BadSignature,
    Bearer,
    GitHub,
    HubSpotV3,
    PlainHmac,
    Slack,
    StandardWebhooks,
    Stripe,
    Telegram,
    Verifier,
    aloware_key,
    github_key,
    hubspot_key,
    richpanel_key,
    slack_key,
    standard_webhooks_key,
    stripe_key,
    telegram_key,
)
from semel.errors import InvalidKey, InvalidOption, SemelError

NOW = 1_700_000_000.0
URL = "https://example.com/hooks/hubspot"

# --- Published vectors -----------------------------------------------------------------------------

SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)


def test_githubs_documented_delivery_is_genuine():
    """docs.github.com, "Validating webhook deliveries"."""
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    verifier = GitHub("It's a Secret to Everybody")
    verifier.verify({"X-Hub-Signature-256": signature}, b"Hello, World!", NOW)
    with pytest.raises(BadSignature):
        verifier.verify({"X-Hub-Signature-256": signature}, b"Hello, World?", NOW)


def test_slacks_documented_request_is_genuine():
    """docs.slack.dev, "Verifying requests from Slack"."""
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    headers = {"X-Slack-Request-Timestamp": "1531420618", "X-Slack-Signature": signature}
    verifier = Slack("8f742231b10e8888abcd99yyyzzz85a5")
    verifier.verify(headers, SLACK_BODY, 1531420618)
    with pytest.raises(BadSignature):
        verifier.verify(headers, SLACK_BODY + b"&", 1531420618)


def test_the_standard_webhooks_libraries_message_is_genuine():
    """The signature that the tests of the Standard Webhooks libraries expect."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    for secret in ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"):
        StandardWebhooks(secret).verify(headers, b'{"test": 2432232314}', 1614265330)
    with pytest.raises(BadSignature):
        StandardWebhooks(secret).verify(headers, b'{"test": 2432232315}', 1614265330)


@pytest.mark.parametrize(
    ("sent", "signature"),
    [
        # HubSpot/hubspot-api-python, tests/spec/utils/test_signature.py
        ("1693657560000", "K36dawei4A+QBNolUOqo7s91KQDWQ5MXZ/QufNYuk/Y="),
        # HubSpot/hubspot-api-ruby, spec/helpers/signature_spec.rb
        ("1700000300000", "RnbPH7+UMKVkbV32P8bz450N4M56aPmcru1+D3kSDtw="),
    ],
)
def test_the_requests_of_hubspots_own_libraries_are_genuine(sent, signature):
    headers = {"X-HubSpot-Request-Timestamp": sent, "X-HubSpot-Signature-v3": signature}
    verifier = HubSpotV3("yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy")
    body, url = b"{'example_field':'example_value'}", "https://www.example.com/webhook_uri"
    verifier.verify(headers, body, int(sent) / 1000, url=url)
    for change in ({"url": url.replace("https", "http")}, {"url": url + "/"}, {"url": url, "method": "PUT"}):
        with pytest.raises(BadSignature):
            verifier.verify(headers, body, int(sent) / 1000, **change)


def test_we_agree_with_the_standard_webhooks_library():
    library = pytest.importorskip("standardwebhooks.webhooks")
    from datetime import UTC, datetime

    signature = library.Webhook(WHSEC).sign("msg_1", datetime.fromtimestamp(NOW, UTC), '{"ä": 1}')
    headers = {"Webhook-Id": "msg_1", "Webhook-Timestamp": f"{NOW:.0f}", "Webhook-Signature": signature}
    StandardWebhooks(WHSEC).verify(headers, '{"ä": 1}'.encode(), NOW)


# --- One signer for each scheme, written apart from the code under test -----------------------------

WHSEC = "whsec_" + base64.b64encode(b"a key of twenty-four byte").decode()
OTHER = "whsec_" + base64.b64encode(b"and one of as many bytes").decode()


@dataclass(frozen=True)
class Sent:
    """A request as a sender makes it."""

    headers: tuple[tuple[str, str], ...]
    body: bytes
    method: str = "POST"
    url: str = URL

    def verify(self, verifier: Verifier, now: float) -> None:
        verifier.verify(self.headers, self.body, now, method=self.method, url=self.url)


Sign = Callable[[str, bytes, float | str], Sent]


def mac(secret: str, message: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.new(secret.encode(), message, algorithm).digest()


def stamp(now: float | str, unit: int = 1) -> str:
    return now if isinstance(now, str) else str(int(now * unit))


def b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def by_standard_webhooks(secret: str, body: bytes, now: float | str) -> Sent:
    key, sent = base64.b64decode(secret[6:]), stamp(now)
    digest = hmac.new(key, f"msg_1.{sent}.".encode() + body, "sha256").digest()
    signature = ("webhook-signature", f"v1,{b64(digest)}")
    return Sent((("webhook-id", "msg_1"), ("webhook-timestamp", sent), signature), body)


def by_hubspot(secret: str, body: bytes, now: float | str) -> Sent:
    sent = stamp(now, 1000)
    signature = b64(mac(secret, b"POST" + URL.encode() + body + sent.encode()))
    return Sent((("X-HubSpot-Request-Timestamp", sent), ("X-HubSpot-Signature-v3", signature)), body)


def by_stripe(secret: str, body: bytes, now: float | str) -> Sent:
    sent = stamp(now)
    signature = mac(secret, f"{sent}.".encode() + body).hex()
    return Sent((("Stripe-Signature", f"t={sent},v1={signature}"),), body)


def by_github(secret: str, body: bytes, now: float | str) -> Sent:
    return Sent((("X-Hub-Signature-256", f"sha256={mac(secret, body).hex()}"),), body)


def by_slack(secret: str, body: bytes, now: float | str) -> Sent:
    sent = stamp(now)
    signature = f"v0={mac(secret, f'v0:{sent}:'.encode() + body).hex()}"
    return Sent((("X-Slack-Request-Timestamp", sent), ("X-Slack-Signature", signature)), body)


def by_telegram(secret: str, body: bytes, now: float | str) -> Sent:
    return Sent((("X-Telegram-Bot-Api-Secret-Token", secret),), body)


def by_bearer(secret: str, body: bytes, now: float | str) -> Sent:
    return Sent((("Authorization", f"Bearer {secret}"),), body)


def by_hmac(encode: Callable[[bytes], str], algorithm: str, prefix: str) -> Sign:
    def by(secret: str, body: bytes, now: float | str) -> Sent:
        return Sent((("X-Signature", prefix + encode(mac(secret, body, algorithm))),), body)

    return by


@dataclass(frozen=True)
class Scheme:
    name: str
    make: Callable[[Any], Verifier]
    sign: Sign
    secrets: tuple[str, str] = ("correct-horse-battery", "another-horse-battery")
    signs_body: bool = True
    signs_time: bool = False


SCHEMES = [
    Scheme("standard", StandardWebhooks, by_standard_webhooks, (WHSEC, OTHER), signs_time=True),
    Scheme("hubspot", HubSpotV3, by_hubspot, signs_time=True),
    Scheme("stripe", Stripe, by_stripe, signs_time=True),
    Scheme("github", GitHub, by_github),
    Scheme("slack", Slack, by_slack, signs_time=True),
    Scheme("telegram", Telegram, by_telegram, signs_body=False),
    Scheme("bearer", Bearer, by_bearer, signs_body=False),
    Scheme("hex", lambda s: PlainHmac(s, "X-Signature"), by_hmac(bytes.hex, "sha256", "")),
    Scheme(
        "base64",
        lambda s: PlainHmac(s, "X-Signature", algorithm="sha512", encoding="base64", prefix="h="),
        by_hmac(b64, "sha512", "h="),
    ),
]
TIMED = [scheme for scheme in SCHEMES if scheme.signs_time]
every = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
every_timed = pytest.mark.parametrize("scheme", TIMED, ids=lambda scheme: scheme.name)


def refused(verifier: Verifier, sent: Sent, now: float) -> bool:
    """Whether it is refused as it should be; any other error goes through and fails the test."""
    try:
        sent.verify(verifier, now)
    except BadSignature:
        return True
    return False


# --- Forgeries -------------------------------------------------------------------------------------


def edited(sent: Sent, place: int, value: str) -> Sent:
    headers = list(sent.headers)
    headers[place] = (headers[place][0], value)
    return replace(sent, headers=tuple(headers))


def forge_bits(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    place = draw.randrange(len(sent.headers))
    value = sent.headers[place][1]
    # "Bearer" is the same in any case, as HTTP has it; the token after it is not.
    at = draw.randrange(7 if value.startswith("Bearer ") else 0, len(value))
    # Bit 5 of a letter is its case, and bit 7 takes it out of ASCII: neither may be overlooked.
    return edited(
        sent, place, value[:at] + chr(ord(value[at]) ^ 1 << draw.randrange(8)) + value[at + 1 :]
    ), now


def forge_truncated(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    place = draw.randrange(len(sent.headers))
    value = sent.headers[place][1]
    return edited(sent, place, value[: draw.randrange(len(value))]), now


def forge_appended(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    place = draw.randrange(len(sent.headers))
    value = sent.headers[place][1]
    # A comma or a blank after a list of signatures would begin another one, which harms nobody.
    return edited(sent, place, value + draw.choice(["=", "0", "\n", "\x00", "ä", "\ud800", "AA=="])), now


def forge_secret(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    wrong = b64(draw.randbytes(24)) if scheme.make is StandardWebhooks else draw.randbytes(12).hex()
    wrong = f"whsec_{wrong}" if scheme.make is StandardWebhooks else wrong
    return scheme.sign(wrong, sent.body, now), now


def forge_noise(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    noise = "".join(chr(draw.randrange(0x11_0000)) for _ in range(draw.randrange(90)))
    return edited(sent, len(sent.headers) - 1, noise), now


def forge_twice(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    name, value = draw.choice(sent.headers)
    again = (draw.choice([name, name.lower(), name.upper()]), draw.choice([value, "", "x"]))
    return replace(
        sent, headers=(again, *sent.headers) if draw.random() < 0.5 else (*sent.headers, again)
    ), now


def forge_missing(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    place = draw.randrange(len(sent.headers))
    return replace(sent, headers=sent.headers[:place] + sent.headers[place + 1 :]), now


def forge_body(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    at = draw.randrange(len(sent.body))
    flipped = bytes([sent.body[at] ^ 1 << draw.randrange(8)])
    return replace(sent, body=sent.body[:at] + flipped + sent.body[at + 1 :]), now


def forge_cut_body(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    return replace(sent, body=sent.body[: draw.randrange(len(sent.body))]), now


def forge_replay(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    return sent, now + draw.choice([-1, 1]) * draw.uniform(301, 10**9)


def forge_restamped(draw: random.Random, scheme: Scheme, sent: Sent, now: float) -> tuple[Sent, float]:
    # An old delivery under the time of today.
    later = now + draw.randrange(301, 10**6)
    old, new = str(int(now)), str(int(later))
    headers = tuple((name, value.replace(old, new)) for name, value in sent.headers)
    return replace(sent, headers=headers), later


ANYWHERE = [
    forge_bits,
    forge_truncated,
    forge_appended,
    forge_secret,
    forge_noise,
    forge_twice,
    forge_missing,
]
FORGERIES = {
    scheme.name: ANYWHERE
    + [forge_body, forge_cut_body] * scheme.signs_body
    + [forge_replay, forge_restamped] * scheme.signs_time
    for scheme in SCHEMES
}


@pytest.mark.proof("forgeries")
def test_of_ten_thousand_forgeries_none_is_accepted_and_every_original_is(tried):
    draw = random.Random(5)
    accepted = []
    for number in range(10_000):
        scheme = SCHEMES[number % len(SCHEMES)]
        verifier = scheme.make(scheme.secrets)
        now = NOW + draw.randrange(10**6)
        sent = scheme.sign(draw.choice(scheme.secrets), draw.randbytes(draw.randrange(1, 200)), now)
        assert not refused(verifier, sent, now + draw.uniform(-299, 299))
        forge = draw.choice(FORGERIES[scheme.name])
        forged, then = forge(draw, scheme, sent, now)
        if not refused(verifier, forged, then):
            accepted.append((scheme.name, forge.__name__, sent, forged))
    assert accepted == []
    tried(10_000, seed="5")


@every
@given(value=st.text(st.characters(exclude_categories=())), name=st.text())
def test_no_text_in_a_header_raises_anything_but_a_refusal(scheme, value, name):
    sent = scheme.sign(scheme.secrets[0], b"{}", NOW)
    verifier = scheme.make(scheme.secrets[1])
    for place in range(len(sent.headers)):
        assert refused(verifier, edited(sent, place, value), NOW)
    assert refused(verifier, Sent(((name, value),), b"{}"), NOW)


@every
@given(body=st.binary())
def test_a_genuine_delivery_is_accepted_whatever_its_bytes(scheme, body):
    scheme.sign(scheme.secrets[0], body, NOW).verify(scheme.make(scheme.secrets[0]), NOW)


@every
def test_each_of_several_secrets_counts_and_no_other(scheme):
    old, new = (scheme.sign(secret, b"{}", NOW) for secret in scheme.secrets)
    both, one = scheme.make(scheme.secrets), scheme.make([scheme.secrets[1]])
    assert not refused(both, old, NOW)
    assert not refused(both, new, NOW)
    assert not refused(one, new, NOW)
    assert refused(one, old, NOW)


@every
def test_the_case_of_header_names_does_not_matter(scheme):
    sent = scheme.sign(scheme.secrets[0], b"{}", NOW)
    verifier = scheme.make(scheme.secrets[0])
    for spelt in (str.lower, str.upper):
        headers = {spelt(name): value for name, value in sent.headers}
        verifier.verify(headers, b"{}", NOW, url=URL)


@every_timed
def test_five_minutes_either_way_are_allowed_and_no_more(scheme):
    sent, verifier = scheme.sign(scheme.secrets[0], b"{}", NOW), scheme.make(scheme.secrets[0])
    for off in (-300, 300):
        assert not refused(verifier, sent, NOW + off)
        assert refused(verifier, sent, NOW + off * 1.001)
    for broken in (math.nan, math.inf, -math.inf):
        assert refused(verifier, sent, broken)


ODD_TIMES = {
    "empty": lambda plain: "",
    "signed": lambda plain: f"+{plain}",
    "negative": lambda plain: f"-{plain}",
    "blank": lambda plain: f" {plain}",
    "grouped": lambda plain: f"{plain[:1]}_{plain[1:]}",
    "fraction": lambda plain: f"{plain}.0",
    "exponent": lambda plain: f"{plain}e0",
    "nan": lambda plain: "nan",
    "arabic": lambda plain: plain.translate({ord("0") + digit: 0x660 + digit for digit in range(10)}),
    "superscript": lambda plain: f"{plain}\u00b2",
    "endless": lambda plain: "9" * 5000,
}


@every_timed
@pytest.mark.parametrize("spell", ODD_TIMES.values(), ids=ODD_TIMES)
def test_a_time_that_is_no_plain_number_is_refused_even_when_it_is_signed(scheme, spell):
    unit = 1000 if scheme.make is HubSpotV3 else 1
    verifier = scheme.make(scheme.secrets[0])
    assert not refused(verifier, scheme.sign(scheme.secrets[0], b"{}", stamp(NOW, unit)), NOW)
    assert refused(verifier, scheme.sign(scheme.secrets[0], b"{}", spell(stamp(NOW, unit))), NOW)


# --- Secrets ---------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "nothing", ["", "  ", "\n", (), [], [""], ["correct-horse", ""], None, [None], b"bytes"]
)
def test_a_verifier_without_a_secret_cannot_be_made(scheme, nothing):
    with pytest.raises(InvalidOption, match="secret"):
        scheme.make(nothing)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_====", "whsec_not base64", "whpk_AAAA", "whsec_ä", "A"])
def test_a_standard_webhooks_secret_that_is_no_base64_is_refused_unseen(secret):
    with pytest.raises(InvalidOption) as caught:
        StandardWebhooks(secret)
    assert secret.removeprefix("whsec_") not in str(caught.value) or secret in {"whsec_", "A"}
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("make", "secret"),
    [
        (Telegram, "a b"),
        (Telegram, "a" * 257),
        (Telegram, "ä"),
        (Bearer, "a b"),
        (Bearer, "ä"),
        (Bearer, "a\n"),
    ],
)
def test_a_token_that_no_header_can_carry_is_refused(make, secret):
    with pytest.raises(InvalidOption):
        make(secret)


@every
def test_a_secret_is_in_no_repr_and_in_no_error(scheme):
    verifier = scheme.make(scheme.secrets)
    shown = [repr(verifier), str(verifier)]
    sent = scheme.sign(scheme.secrets[0], b"{}", NOW)
    for forged in (
        edited(sent, len(sent.headers) - 1, "x"),
        replace(sent, headers=()),
        forged_by_other(scheme),
    ):
        with pytest.raises(BadSignature) as caught:
            forged.verify(verifier, NOW)
        shown += [str(caught.value), repr(caught.value), caught.value.reason]
        assert caught.value.__context__ is None
    for secret in scheme.secrets:
        assert not any(secret.removeprefix("whsec_") in text for text in shown)
    signature = sent.headers[-1][1]
    assert not any(signature in text for text in shown)


def forged_by_other(scheme: Scheme) -> Sent:
    wrong = "whsec_AAAA" if scheme.make is StandardWebhooks else "wrong"
    return scheme.sign(wrong, b"{}", NOW)


@every
def test_a_verifier_is_a_frozen_value(scheme):
    one, same = scheme.make(scheme.secrets), scheme.make(list(scheme.secrets))
    assert one == same
    assert hash(one) == hash(same)
    assert one != scheme.make(scheme.secrets[0])
    assert pickle.loads(pickle.dumps(one)) == one
    for field in fields(one):
        with pytest.raises(FrozenInstanceError):
            setattr(one, field.name, ())


def test_two_schemes_with_one_secret_are_not_equal():
    schemes: list[Verifier] = [GitHub("s"), Slack("s"), Stripe("s"), HubSpotV3("s")]
    assert len(set(schemes)) == len(schemes)


def test_a_refusal_is_of_semels_tree_and_survives_pickling():
    assert issubclass(BadSignature, SemelError)
    error = pickle.loads(pickle.dumps(BadSignature("it is odd")))
    assert isinstance(error, BadSignature)
    assert error.reason == "it is odd"
    assert "401" in str(error)


# --- What is peculiar to one scheme ----------------------------------------------------------------


@every
def test_a_body_that_was_decoded_is_a_mistake_of_the_caller(scheme):
    with pytest.raises(InvalidOption, match="bytes"):
        scheme.make(scheme.secrets).verify({}, "{}", NOW)


def test_one_good_signature_among_several_is_enough():
    good = by_standard_webhooks(WHSEC, b"{}", NOW)
    signature = good.headers[2][1]
    for several in (f"v1,bad {signature}", f"{signature} v1a,AAAA", f"v2 {signature} "):
        assert not refused(StandardWebhooks(WHSEC), edited(good, 2, several), NOW)
    good = by_stripe("whsec_test_secret", b"{}", NOW)
    for more in (",v1=bad_signature", ",v0=6ffb"):  # the first as in stripe-python's tests/test_webhook.py
        assert not refused(Stripe("whsec_test_secret"), edited(good, 0, good.headers[0][1] + more), NOW)


def test_a_signature_under_another_versions_name_does_not_count():
    good = by_standard_webhooks(WHSEC, b"{}", NOW)
    assert refused(StandardWebhooks(WHSEC), edited(good, 2, good.headers[2][1].replace("v1,", "v1a,")), NOW)
    good = by_stripe("s", b"{}", NOW)
    assert refused(Stripe("s"), edited(good, 0, good.headers[0][1].replace("v1=", "v0=")), NOW)


def test_stripe_may_name_one_time_only():
    good = by_stripe("s", b"{}", NOW)
    old, (name, value) = f"t={NOW - 999:.0f}", good.headers[0]
    for several in (f"{value},{old}", f"{old},{value}", f"{value},{value}", value.partition(",")[2]):
        assert refused(Stripe("s"), Sent(((name, several),), b"{}"), NOW)


def test_a_standard_webhooks_id_cannot_take_over_the_time():
    """`id.time.body` could be cut elsewhere, if an id might have a dot in it."""
    old = by_standard_webhooks(WHSEC, f"{NOW:.0f}.evil".encode(), NOW - 10_000)
    moved = (("webhook-id", f"msg_1.{NOW - 10_000:.0f}"), ("webhook-timestamp", f"{NOW:.0f}"), old.headers[2])
    assert refused(StandardWebhooks(WHSEC), Sent(moved, b"evil"), NOW)


def test_digits_cannot_wander_between_hubspots_body_and_time():
    secret, sent = "s", f"{NOW * 1000:.0f}"
    good = by_hubspot(secret, b"[1]7", NOW)
    shorter = (("X-HubSpot-Request-Timestamp", "7" + sent), good.headers[1])
    assert refused(HubSpotV3(secret), Sent(shorter, b"[1]"), float("7" + sent) / 1000)
    longer = (("X-HubSpot-Request-Timestamp", sent[1:]), good.headers[1])
    assert refused(HubSpotV3(secret), Sent(longer, b"[1]71"), float(sent[1:]) / 1000)


def test_hubspot_decodes_twelve_characters_of_the_address_and_no_others():
    came = "https://example.com/h?a=x%3Ay%2fz%3F%40%21%24%27%28%29%2A%2C%3B&b=%20%26%3D%25"
    signed = "https://example.com/h?a=x:y/z?@!$'()*,;&b=%20%26%3D%25"
    sent = f"{NOW * 1000:.0f}"
    signature = b64(mac("s", f"POST{signed}[]{sent}".encode()))
    headers = {"X-HubSpot-Request-Timestamp": sent, "X-HubSpot-Signature-v3": signature}
    HubSpotV3("s").verify(headers, b"[]", NOW, url=came)


def test_hubspot_without_an_address_is_a_mistake_of_the_caller():
    with pytest.raises(InvalidOption, match="url="):
        HubSpotV3("s").verify(dict(by_hubspot("s", b"{}", NOW).headers), b"{}", NOW)


@pytest.mark.parametrize("options", [{"algorithm": "md5"}, {"encoding": "base32"}, {"header": ""}])
def test_a_plain_hmac_knows_what_it_can_do(options):
    with pytest.raises(InvalidOption):
        PlainHmac("s", **{"header": "X-Signature"} | options)


@pytest.mark.parametrize("name", ["github", "slack", "base64"])
def test_a_signature_without_its_prefix_is_refused(name):
    scheme = next(one for one in SCHEMES if one.name == name)
    sent, verifier = scheme.sign(scheme.secrets[0], b"{}", NOW), scheme.make(scheme.secrets[0])
    bare = sent.headers[-1][1].partition("=")[2]
    for value in (bare, f"x={bare}", f"={bare}"):
        assert refused(verifier, edited(sent, len(sent.headers) - 1, value), NOW)


def test_a_bearer_token_needs_its_scheme():
    assert not refused(Bearer("t"), Sent((("Authorization", "bearer t"),), b""), NOW)
    for value in ("t", "Basic t", "Bearer", "Bearer  t", "Bearer t t", "Bearert"):
        assert refused(Bearer("t"), Sent((("Authorization", value),), b""), NOW)


# --- Keys ------------------------------------------------------------------------------------------

EVENT = {
    "eventId": 1,
    "subscriptionId": 12345,
    "portalId": 62515,
    "occurredAt": 1564113600000,
    "subscriptionType": "object.propertyChange",
    "attemptNumber": 0,
    "objectId": 123,
    "objectTypeId": "0-1",
    "propertyName": "phone",
}


@pytest.mark.seed("Q5")
def test_a_hubspot_event_is_named_by_what_happened_to_what_and_when():
    assert hubspot_key(EVENT) == "HUBSPOT:0-1:123:object.propertyChange:1564113600000"
    timeless = {name: value for name, value in EVENT.items() if name != "occurredAt"}
    assert hubspot_key(timeless) == "HUBSPOT:0-1:123:object.propertyChange"


@pytest.mark.seed("Q5")
@given(attempt=st.integers(0, 10), event_id=st.integers(1))
def test_a_retry_by_hubspot_has_the_key_of_the_first_attempt(attempt, event_id):
    assert hubspot_key(EVENT | {"attemptNumber": attempt, "eventId": event_id}) == hubspot_key(EVENT)


@pytest.mark.seed("Q5")
def test_two_properties_that_changed_at_once_are_told_apart_when_asked():
    other = EVENT | {"propertyName": "city"}
    assert hubspot_key(EVENT) == hubspot_key(other)
    assert hubspot_key(EVENT, "propertyName") != hubspot_key(other, "propertyName")
    with pytest.raises(InvalidKey, match="attemptNumber"):
        hubspot_key(EVENT, "attemptNumber")


@pytest.mark.seed("Q5")
def test_an_aloware_body_is_named_by_its_id():
    assert aloware_key({"id": 719285063}) == aloware_key({"id": "719285063"}) == "ALOWARE:719285063"


@pytest.mark.seed("Q5")
@pytest.mark.parametrize("bad", [None, "", True, 1.5, [1], {}])
@pytest.mark.parametrize(
    ("make", "source", "name"),
    [
        (hubspot_key, EVENT, "objectTypeId"),
        (hubspot_key, EVENT, "objectId"),
        (hubspot_key, EVENT, "subscriptionType"),
        (aloware_key, {}, "id"),
        (stripe_key, {}, "id"),
        (slack_key, {}, "event_id"),
        (telegram_key, {}, "update_id"),
    ],
)
def test_an_event_that_lacks_a_part_of_its_name_has_no_key(make, source, name, bad):
    with pytest.raises(InvalidKey, match=name):
        make(source | {name: bad})
    with pytest.raises(InvalidKey, match=name):
        make({key: value for key, value in source.items() if key != name})


def test_other_senders_events_are_named_by_their_ids():
    assert stripe_key({"id": "evt_1", "created": 5}) == "STRIPE:evt_1"
    assert slack_key({"event_id": "Ev08MFMKH6", "event_time": 5}) == "SLACK:Ev08MFMKH6"
    assert telegram_key({"update_id": 7}) == "TELEGRAM:7"
    assert github_key({"x-github-delivery": "72d3162e"}) == "GITHUB:72d3162e"
    assert standard_webhooks_key([("Webhook-Id", "msg_1")]) == "WEBHOOK:msg_1"


@pytest.mark.parametrize(
    ("make", "name"), [(github_key, "X-GitHub-Delivery"), (standard_webhooks_key, "webhook-id")]
)
def test_a_key_from_a_header_needs_just_one(make, name):
    for headers in ({}, {name: ""}, [(name, "a"), (name.lower(), "b")]):
        with pytest.raises(InvalidKey, match=name):
            make(headers)


@pytest.mark.seed("R4")
def test_a_richpanel_message_is_named_by_conversation_and_id():
    assert richpanel_key("c1", "m1") == "evt:rp:c1:m1"
    assert richpanel_key("c1", "m1", text="hello", created_at=NOW) == "evt:rp:c1:m1"
    assert richpanel_key("c:1", "m") != richpanel_key("c", "1:m")


@pytest.mark.seed("R4")
def test_without_an_id_a_message_is_named_by_its_words_and_minute():
    key = richpanel_key("c1", text="Where is\tmy  order?\n", created_at=1_700_000_045)
    expected = hashlib.sha256(f"Where is my order?\n{1_700_000_045 // 60}".encode()).hexdigest()
    assert key == f"evt:rp:c1:{expected}"
    assert key == richpanel_key("c1", "", text=" Where is my order?", created_at=1_700_000_050.5)
    composed = hashlib.sha256("é\n0".encode()).hexdigest()
    for spelt in ("é", "e\u0301"):
        assert richpanel_key("c1", text=spelt, created_at=0) == f"evt:rp:c1:{composed}"


@pytest.mark.seed("R4")
def test_other_words_another_minute_or_another_conversation_are_another_message():
    keys = {
        richpanel_key(conversation, text=text, created_at=at)
        for conversation in ("c1", "c2")
        for text in ("yes", "Yes", "yes 1")
        for at in (0, 59, 60)
    }
    assert len(keys) == 2 * 3 * 2


@pytest.mark.seed("R4")
@pytest.mark.parametrize(
    "given_with",
    [
        {},
        {"text": "hi"},
        {"created_at": 1.0},
        {"text": " \n", "created_at": 1},
        {"text": "hi", "created_at": math.nan},
    ],
)
def test_a_message_that_nothing_tells_apart_has_no_key(given_with):
    with pytest.raises(InvalidKey, match="created_at"):
        richpanel_key("c1", None, **given_with)


# --- Providers -------------------------------------------------------------------------------------


def test_what_is_known_of_each_sender():
    known = {one.name: (one.verifier, one.retry_horizon, one.answer_within) for one in PROVIDERS.values()}
    assert known == {
        "hubspot": (HubSpotV3, 86_400, 5),
        "standard-webhooks": (StandardWebhooks, 272_105, 15),
        "stripe": (Stripe, 259_200, None),
        "github": (GitHub, 259_200, 10),
        "slack": (Slack, 86_760, 3),
        "telegram": (Telegram, 86_400, None),
        "aloware": (Bearer, None, None),
    }
    assert set(PROVIDERS.values()) == {HUBSPOT, STANDARD_WEBHOOKS, STRIPE, GITHUB, SLACK, TELEGRAM, ALOWARE}
    assert {one.name: one.max_bytes for one in PROVIDERS.values() if one.max_bytes > 10**6} == {
        "github": 26_000_000
    }
