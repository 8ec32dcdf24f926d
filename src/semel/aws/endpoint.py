"""Where a service is: its region, its endpoint, and the proxy on the way there."""

import os
import re
import ssl
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from semel.core.runtime import masked, require
from semel.errors import InvalidOption, MissingExtra

_REGION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
# The regions that need no table to find their host; for others botocore has one.
DOMAINS = (
    (re.compile(r"cn-\w+-\d+"), "amazonaws.com.cn"),
    (re.compile(r"us-gov-\w+-\d+"), "amazonaws.com"),
    (re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-\w+-\d+"), "amazonaws.com"),
)
PORTS = {"http": 80, "https": 443}
# Where AWS has its hosts, whatever stands before.
AMAZON = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")


class ServiceEndpoint(msgspec.Struct, frozen=True):
    """Scheme, host and port of a service."""

    scheme: str
    host: str
    port: int
    # Whether it is AWS itself, by its public name.
    standard: bool = False

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def secure(self) -> bool:
        """Whether it is reached over TLS."""
        return self.scheme == "https"

    @property
    def amazon(self) -> bool:
        """Whether it is AWS, by whichever of its names."""
        return self.standard or self.host.endswith(AMAZON)

    @property
    def authority(self) -> str:
        """The Host header: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @classmethod
    def from_url(cls, url: str) -> "ServiceEndpoint":
        """The endpoint of a URL such as `http://127.0.0.1:8000`."""
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidOption(f"{masked(url)!r} is no endpoint: {error}") from error
        if parts.scheme not in PORTS or not host or not re.fullmatch(r"[a-z0-9._:-]+", host):
            raise InvalidOption(
                f"{masked(url)!r} is no endpoint: write one like https://host or http://host:port"
            )
        if parts.username or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise InvalidOption(
                f"{masked(url)!r} is no endpoint: nothing but scheme, host and port may be in it"
            )
        return cls(parts.scheme, host, PORTS[parts.scheme] if port is None else port)


def find_region(region: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The region: as given, or the environment's, or the profile's."""
    found = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or _profile_region()
    if not found:
        raise InvalidOption("no AWS region: give one, set AWS_REGION, or set `region` in the profile")
    if not _REGION.fullmatch(found):
        raise InvalidOption(f"{found!r} is no AWS region; one looks like eu-north-1")
    return found


def find_endpoint(
    service: str, region: str, endpoint: str | None, environ: Mapping[str, str] = os.environ
) -> ServiceEndpoint:
    """The endpoint: as given, or the environment's, or AWS's own for the region."""
    if url := endpoint or endpoint_url(service, environ):
        return ServiceEndpoint.from_url(url)
    for regions, domain in DOMAINS:
        if regions.fullmatch(region):
            return ServiceEndpoint("https", f"{service}.{region}.{domain}", 443, standard=True)
    return ServiceEndpoint("https", _tabled_host(service, region), 443, standard=True)


def endpoint_url(service: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Where the environment says that a service is."""
    return environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or environ.get("AWS_ENDPOINT_URL")


def _profile_region() -> str | None:
    try:
        session = require("botocore.session", "boto").Session()
    except MissingExtra:
        return None
    try:
        region: str | None = session.get_config_variable("region")
    except Exception as error:  # a profile that is not there, a file that cannot be read
        raise InvalidOption(
            f"the AWS profile tells no region ({error}): mend it, or set AWS_REGION"
        ) from error
    return region


def _tabled_host(service: str, region: str) -> str:
    try:
        session = require("botocore.session", "boto").Session()
    except MissingExtra as error:
        raise InvalidOption(f"where {service} is in {region} takes botocore to find ({error})") from error
    # botocore tells it only as part of a client, which does not get to sign anything.
    nobody = {"aws_access_key_id": "-", "aws_secret_access_key": "-"}
    client = session.create_client(service, region_name=region, endpoint_url=None, **nobody)
    client.close()
    return ServiceEndpoint.from_url(client.meta.endpoint_url).host


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy that is asked for a tunnel."""

    host: str
    port: int
    authorization: str | None = None

    def request(self, to: ServiceEndpoint) -> bytes:
        """What to ask it."""
        target = f"[{to.host}]:{to.port}" if ":" in to.host else f"{to.host}:{to.port}"
        known = f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""
        return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{known}\r\n".encode("latin-1")


def find_proxy(endpoint: ServiceEndpoint) -> Proxy | None:
    """The environment's proxy for a secure endpoint; others are local servers, and reached directly."""
    url = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    if not url or not endpoint.secure or _without_proxy(endpoint):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidOption("HTTPS_PROXY is of a kind that semel does not speak: write http://host:port")
    return Proxy(parts.hostname, parts.port or 80, _basic(parts.username, parts.password))


def _without_proxy(endpoint: ServiceEndpoint) -> bool:
    from urllib.request import proxy_bypass

    return bool(proxy_bypass(f"{endpoint.host}:{endpoint.port}"))


def _basic(user: str | None, password: str | None) -> str | None:
    from base64 import b64encode

    if user is None:
        return None
    known = f"{unquote(user)}:{unquote(password or '')}"
    return f"Basic {b64encode(known.encode()).decode()}"


def tls(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """How servers prove who they are: by the system's authorities, or by those in AWS_CA_BUNDLE."""
    bundle = environ.get("AWS_CA_BUNDLE") or None
    try:
        context = ssl.create_default_context(cafile=bundle)
    except OSError as error:
        raise InvalidOption(f"AWS_CA_BUNDLE={bundle!r} holds no certificates: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context
