"""What can be set about the probe."""

from typing import Annotated, Final, Literal

import msgspec

from semel.apps.settings import CHOSEN, GIVEN, check_above_0, check_secret, wrong
from semel.core.runtime import Concealed

# A response is kept in one row, and DynamoDB's has room for 400 KB of which text in base64 takes a third.
MOST_KEPT: Final = 256 * 1024
SPANS: Final = ("broker_timeout", "lease", "record_ttl", "shortest_ttl", "longest_ttl", "max_seconds")


class Settings(Concealed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `apps.probe`."""

    token: Annotated[str, CHOSEN] = ""
    """The bearer token that every request has to show."""
    open: bool = False
    """Whether anybody may ask who has no token to show, because there is none."""
    broker: Annotated[str, GIVEN] = ""
    """`amqp://user:password@host:port/vhost`, or `amqps:`; without one the queues are on the store."""
    broker_timeout: float = 10.0
    """How long the broker may take to answer, in seconds."""
    on_lapsed: Literal["hold", "repeat"] = "hold"
    """When nobody knows whether messages were sent: wait for a person, or send all of them again."""
    lease: float = 30.0
    record_ttl: float = 86400.0
    """How long a response is remembered, in seconds, where its request does not say."""
    shortest_ttl: float = 60.0
    longest_ttl: float = 604800.0
    """Within these a request may say how long: `Idempotency-Expiry-Seconds`."""
    max_messages: int = 1000
    max_seconds: float = 20.0
    """How long a request may wait for messages."""
    max_body: int = 1024 * 1024
    max_response: int = 192 * 1024
    """How many bytes of messages a response may have; what is left over stays in its queue."""

    def __repr__(self) -> str:
        # The broker's URL and the token are nobody's to read in a log.
        return f"<settings of the probe, {'open' if self.open else 'with a token'}>"


def checked(settings: Settings) -> Settings:
    """These settings, if they can work; else the error that names the wrong one."""
    _check_token(settings)
    check_above_0("probe", settings, SPANS)
    for name in ("max_messages", "max_body", "max_response"):
        if getattr(settings, name) < 1:
            raise wrong("probe", name, "it is at least 1")
    if settings.max_response > MOST_KEPT:
        raise wrong("probe", "max_response", f"a record has room for {MOST_KEPT} bytes")
    if not settings.lease < settings.shortest_ttl <= settings.longest_ttl:
        raise wrong("probe", "shortest_ttl", "it is above the lease, and not above longest_ttl")
    if not settings.shortest_ttl <= settings.record_ttl <= settings.longest_ttl:
        raise wrong("probe", "record_ttl", "it lies between shortest_ttl and longest_ttl")
    if settings.on_lapsed not in ("hold", "repeat"):
        raise wrong("probe", "on_lapsed", "it is one of hold, repeat")
    return settings


def _check_token(settings: Settings) -> None:
    if settings.open == bool(settings.token):
        raise wrong(
            "probe", "token", "give the token that callers show, or say open = true where none is needed"
        )
    if not settings.open:
        check_secret("probe", "token", settings.token)
