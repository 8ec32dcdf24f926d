"""Where a broker is, by its URL."""

import ssl
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from semel.core.runtime import Concealed
from semel.errors import InvalidOption

PORTS = {"amqp": 5672, "amqps": 5671}
FORM = "a broker's URL is amqp://user:password@host:port/vhost, or begins with amqps:"


class BrokerEndpoint(Concealed, msgspec.Struct, frozen=True):
    """A broker, as whoever calls on it needs it."""

    host: str
    port: int
    user: str | None
    password: str | None
    hostname: str
    """What is asked for on arrival: the host, or on RabbitMQ the virtual host that the URL's path names."""
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def endpoint_of(url: str, tls: ssl.SSLContext | None = None) -> BrokerEndpoint:
    """The endpoint that a URL names: `amqp://user:password@host:port/vhost`, or `amqps:` with TLS."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidOption(FORM) from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise InvalidOption(FORM)
    if tls is not None and parts.scheme == "amqp":
        raise InvalidOption("tls= is given and the URL begins with amqp:, which has none; use amqps:")
    path = unquote(parts.path.removeprefix("/"))
    return BrokerEndpoint(
        host=parts.hostname,
        port=port or PORTS[parts.scheme],
        user=_plain(parts.username),
        password=_plain(parts.password),
        hostname=f"vhost:{path}" if path else parts.hostname,
        tls=(tls or ssl.create_default_context()) if parts.scheme == "amqps" else None,
    )


def _plain(text: Any) -> str | None:
    return None if text is None else unquote(text)
