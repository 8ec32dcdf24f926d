"""Verifiers, one for each way in which senders sign.

Each holds one secret or several: while a secret is being changed, the old one and the new one both count.
Signatures are compared as text in the one spelling their sender uses, so none has a second valid form.
"""

import base64
import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import ClassVar, Final, Literal

from semel.doors.webhooks.reading import MAX_DIGITS, Delivery, Headers
from semel.errors import BadSignature, InvalidOption

ALGORITHMS: Final = ("sha1", "sha256", "sha384", "sha512")

# The characters that HubSpot decodes in an address before it signs it; all others stay as they are.
# https://developers.hubspot.com/docs/apps/developer-platform/build-apps/authentication/request-validation
_HUBSPOT_DECODES: Final = re.compile("%(3A|2F|3F|40|21|24|27|28|29|2A|2C|3B)", re.IGNORECASE)


@dataclass(frozen=True)
class Verifier(ABC):
    """Tells a genuine delivery from any other."""

    algorithm = "sha256"
    encoding = "hex"
    secrets: InitVar[str | Sequence[str]]
    _keys: tuple[bytes, ...] = field(init=False, repr=False)

    def __post_init__(self, secrets: str | Sequence[str]) -> None:
        listed = [secrets] if isinstance(secrets, str) else list(secrets or ())
        if not listed or not all(isinstance(one, str) and one.strip() for one in listed):
            # An empty key signs as well as any other, and everybody knows it.
            raise InvalidOption(
                f"{type(self).__name__} needs a secret, and every secret some text: is it set?"
            )
        object.__setattr__(self, "_keys", tuple(self._key(one) for one in listed))

    def verify(
        self, headers: Headers, body: bytes, now: float, *, method: str = "POST", url: str = ""
    ) -> None:
        """Raise BadSignature unless the holder of a secret sent these very bytes, and just now."""
        if not isinstance(body, bytes):
            raise InvalidOption("give the body as the bytes that came: parsed or decoded, it is another text")
        given, message = self._read(Delivery(headers, body, now, method, url))
        expected = [self._expected(key, message) for key in self._keys]
        if not any(_same(one, other) for one in expected for other in given):
            raise BadSignature("no signature of it fits any secret")

    @abstractmethod
    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        # The signatures that it came with, and what they have to be signatures of.
        ...

    def _key(self, secret: str) -> bytes:
        return secret.encode("utf-8", "surrogatepass")

    def _expected(self, key: bytes, message: bytes) -> str:
        digest = hmac.digest(key, message, self.algorithm)
        return digest.hex() if self.encoding == "hex" else base64.b64encode(digest).decode()


class StandardWebhooks(Verifier):
    """Standard Webhooks, symmetric (`v1`): Svix, OpenAI and others; a secret may begin with `whsec_`."""

    # https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

    encoding = "base64"

    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        name, sent = delivery.only("webhook-id"), delivery.only("webhook-timestamp")
        if not name or "." in name:
            # With a dot in it, id and time could be cut elsewhere, and still have the same signature.
            raise BadSignature("its webhook-id is empty or has a dot in it")
        delivery.check_moment(sent)
        parts = [one.partition(",") for one in delivery.only("webhook-signature").split(" ")]
        given = [signature for version, _, signature in parts if version == "v1"]
        return given, _bytes(f"{name}.{sent}.") + delivery.body

    def _key(self, secret: str) -> bytes:
        text = secret.removeprefix("whsec_").rstrip("=")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except ValueError:
            key = b""
        if not key:
            raise InvalidOption("a Standard Webhooks secret is base64, mostly after whsec_: copy it whole")
        return key


class HubSpotV3(Verifier):
    """HubSpot's third version: method, whole address, body and time, under the app's client secret."""

    # https://developers.hubspot.com/docs/apps/developer-platform/build-apps/authentication/request-validation

    encoding = "base64"

    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        if not delivery.url:
            raise InvalidOption(
                "HubSpot signs the address too: give url=, as HubSpot was told it, with https://"
            )
        sent = delivery.only("X-HubSpot-Request-Timestamp")
        if len(sent) != MAX_DIGITS:
            # Nothing stands between body and time, so digits could wander from one to the other.
            raise BadSignature("its time of sending is not in milliseconds")
        delivery.check_moment(sent, unit=1000)
        address = _HUBSPOT_DECODES.sub(lambda found: chr(int(found[1], 16)), delivery.url)
        given = delivery.only("X-HubSpot-Signature-v3")
        return [given], _bytes(delivery.method + address) + delivery.body + _bytes(sent)


class Stripe(Verifier):
    """Stripe: `t=` and one or more `v1=` in one header; the secret is used whole, with its `whsec_`."""

    # https://docs.stripe.com/webhooks/signature

    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        parts = [one.partition("=") for one in delivery.only("Stripe-Signature").split(",")]
        sent = [value for name, _, value in parts if name == "t"]
        if len(sent) != 1:
            raise BadSignature("its Stripe-Signature has not one time, but none or several")
        delivery.check_moment(sent[0])
        return [value for name, _, value in parts if name == "v1"], _bytes(f"{sent[0]}.") + delivery.body


class GitHub(Verifier):
    """GitHub: the body and no time, so a delivery that somebody caught stays valid for ever."""

    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries

    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        return [_after(delivery, "X-Hub-Signature-256", "sha256=")], delivery.body


class Slack(Verifier):
    """Slack: `v0=`, over the time and the body, under the app's signing secret."""

    # https://docs.slack.dev/authentication/verifying-requests-from-slack

    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        sent = delivery.only("X-Slack-Request-Timestamp")
        delivery.check_moment(sent)
        given = _after(delivery, "X-Slack-Signature", "v0=")
        return [given], _bytes(f"v0:{sent}:") + delivery.body


@dataclass(frozen=True)
class PlainHmac(Verifier):
    """An HMAC of the body in a header, for the many that have no scheme of their own."""

    header: str
    algorithm: Literal["sha1", "sha256", "sha384", "sha512"] = field(default="sha256", kw_only=True)
    encoding: Literal["hex", "base64"] = field(default="hex", kw_only=True)
    prefix: str = field(default="", kw_only=True)

    def __post_init__(self, secrets: str | Sequence[str]) -> None:
        super().__post_init__(secrets)
        if not self.header:
            raise InvalidOption("name the header that the signature is in")
        if self.algorithm not in ALGORITHMS or self.encoding not in {"hex", "base64"}:
            raise InvalidOption(
                f"the algorithm is one of {', '.join(ALGORITHMS)}; the encoding hex or base64"
            )

    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        return [_after(delivery, self.header, self.prefix)], delivery.body


class _Token(Verifier):
    # The secret itself is in a header. It proves who sent the delivery, and nothing about body and time.

    _allowed: ClassVar[re.Pattern[str]] = re.compile(r"[!-~]+")
    _spelling = "printable ASCII without blanks, because a header cannot hold anything else safely"

    def _key(self, secret: str) -> bytes:
        if not self._allowed.fullmatch(secret):
            raise InvalidOption(f"a secret of {type(self).__name__} is {self._spelling}")
        return super()._key(secret)

    def _expected(self, key: bytes, message: bytes) -> str:
        return key.decode()


class Telegram(_Token):
    """Telegram: the `secret_token` that setWebhook was called with."""

    # https://core.telegram.org/bots/api#setwebhook

    _allowed = re.compile(r"[A-Za-z0-9_-]{1,256}")
    _spelling = "1 to 256 letters, digits, _ and -, as setWebhook asks"

    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        return [delivery.only("X-Telegram-Bot-Api-Secret-Token")], b""


class Bearer(_Token):
    """A fixed token in `Authorization: Bearer ...`, for senders that sign nothing."""

    def _read(self, delivery: Delivery) -> tuple[list[str], bytes]:
        scheme, _, token = delivery.only("Authorization").partition(" ")
        if scheme.lower() != "bearer":
            raise BadSignature("its Authorization is not a Bearer token")
        return [token], b""


def _after(delivery: Delivery, header: str, prefix: str) -> str:
    given = delivery.only(header)
    if not given.startswith(prefix):
        raise BadSignature(f"its {header} does not begin with {prefix}")
    return given.removeprefix(prefix)


def _same(expected: str, given: str) -> bool:
    # compare_digest takes no text beyond ASCII, so bytes; the time it takes tells nothing but the length.
    return hmac.compare_digest(_bytes(expected), _bytes(given))


def _bytes(text: str) -> bytes:
    # Never fails: what no encoding has becomes a text that was never signed.
    return text.encode("utf-8", "backslashreplace")
