"""What the environment says: region, endpoint, proxy, certificates and credentials.

botocore is asked only for what takes a file, a command or another service: profiles, roles, rare regions.
"""

import os
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from semel.core.clock import SignalSafeLock, start_thread
from semel.core.runtime import FORKING, Concealed, masked, require
from semel.errors import InvalidOption, MissingExtra, StoreUnavailable

# Regions and endpoints

_REGION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
# The regions whose hosts have a regular name; for others botocore has a table.
DOMAINS = (
    (re.compile(r"cn-\w+-\d+"), "amazonaws.com.cn"),
    (re.compile(r"us-gov-\w+-\d+"), "amazonaws.com"),
    (re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-\w+-\d+"), "amazonaws.com"),
)
PORTS = {"http": 80, "https": 443}
# Every host of AWS ends with one of these.
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
    def amazon(self) -> bool:
        """Whether it is AWS, by any of its names."""
        return self.standard or self.host.endswith(AMAZON)

    @property
    def authority(self) -> str:
        """The Host header: without the port if it is the default of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @classmethod
    def from_url(cls, url: str) -> "ServiceEndpoint":
        """Parse a URL such as `http://127.0.0.1:8000`."""
        try:
            parts = urlsplit(url.strip())
            host, port, usual = parts.hostname or "", parts.port, PORTS.get(parts.scheme)
        except ValueError as error:
            raise InvalidOption(f"{masked(url)!r} is no endpoint: {error}") from error
        more = parts.username or parts.path not in ("", "/") or parts.query or parts.fragment
        if usual is None or more or not re.fullmatch(r"[a-z0-9._:-]+", host):
            raise InvalidOption(
                f"{masked(url)!r} is no endpoint: write one like https://host or http://host:port"
            )
        return cls(parts.scheme, host, usual if port is None else port)


def find_region(region: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the given region, or the environment's, or the profile's."""
    found = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or _profile_region()
    if not found:
        raise InvalidOption("no AWS region: pass one, set AWS_REGION, or set `region` in the profile")
    if not _REGION.fullmatch(found):
        raise InvalidOption(f"{found!r} is not an AWS region; one looks like eu-north-1")
    return found


def find_endpoint(
    service: str,
    region: str,
    endpoint: str | None,
    environ: Mapping[str, str] = os.environ,
    bucket: str | None = None,
) -> ServiceEndpoint:
    """Return the given endpoint, or the environment's, or AWS's own for the region, or for a bucket there."""
    if url := endpoint or endpoint_url(service, environ):
        return ServiceEndpoint.from_url(url)
    hosts = (f"{service}.{region}.{domain}" for regions, domain in DOMAINS if regions.fullmatch(region))
    host = next(hosts, None) or _tabled_host(service, region)
    return ServiceEndpoint("https", f"{bucket}.{host}" if bucket else host, 443, standard=True)


def endpoint_url(service: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the endpoint of a service that the environment names."""
    return environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or environ.get("AWS_ENDPOINT_URL")


def _profile_region() -> str | None:
    try:
        return _botocore().get_config_variable("region")  # type: ignore[no-any-return]
    except MissingExtra:
        return None
    except Exception as error:  # a profile that is not there, a file that cannot be read
        why = f"the AWS profile has no readable region ({error}): correct it, or set AWS_REGION"
        raise InvalidOption(why) from error


def _botocore() -> Any:
    return require("botocore.session", "boto").Session()


def _tabled_host(service: str, region: str) -> str:
    try:
        session = _botocore()
    except MissingExtra as error:
        raise InvalidOption(f"finding {service} in {region} needs botocore ({error})") from error
    # botocore has it only as part of a client, which does not get to sign anything.
    nobody = {"aws_access_key_id": "-", "aws_secret_access_key": "-"}
    client = session.create_client(service, region_name=region, endpoint_url=None, **nobody)
    client.close()
    return ServiceEndpoint.from_url(client.meta.endpoint_url).host


# Proxies and certificates


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy that opens a tunnel."""

    host: str
    port: int
    authorization: str | None = None

    def request(self, to: ServiceEndpoint) -> bytes:
        """Return the request for a tunnel."""
        target = f"[{to.host}]:{to.port}" if ":" in to.host else f"{to.host}:{to.port}"
        known = f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""
        return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{known}\r\n".encode("latin-1")


def find_proxy(endpoint: ServiceEndpoint) -> Proxy | None:
    """Return the environment's proxy for a secure endpoint; others are local servers and need none."""
    url = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    if not url or endpoint.scheme != "https":
        return None
    from base64 import b64encode
    from urllib.request import proxy_bypass

    if proxy_bypass(f"{endpoint.host}:{endpoint.port}"):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidOption("semel does not speak the protocol of HTTPS_PROXY: write http://host:port")
    if parts.username is None:
        return Proxy(parts.hostname, parts.port or 80)
    plain = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(parts.hostname, parts.port or 80, f"Basic {b64encode(plain.encode()).decode()}")


def tls(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """Build the context that checks certificates, by the system's authorities or those in AWS_CA_BUNDLE."""
    bundle = environ.get("AWS_CA_BUNDLE") or None
    try:
        context = ssl.create_default_context(cafile=bundle)
    except OSError as error:
        raise InvalidOption(f"AWS_CA_BUNDLE={bundle!r} holds no certificates: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


# Credentials

# botocore itself renews what has less than a quarter of an hour left.
RENEW_AHEAD = 15 * 60.0
# A request in flight must not outlive its credentials.
LEAST_LIFE = 30.0
# Between two renewals, if the first brought nothing new and the old ones are still valid.
RETRY_AFTER = 60.0
# What moto puts into the environment while a mock lasts.
INVENTED = "FOOBARKEY"

KEY_ID, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
ADVICE = (
    f"set {KEY_ID} and {SECRET} (and {TOKEN}, if there is one), name a profile with AWS_PROFILE, or run "
    "where a role provides them; a local server takes any two words"
)


class Credentials(Concealed, msgspec.Struct, frozen=True):
    """An access key and its secret; `expires` is in seconds since the epoch."""

    access_key: str
    secret_key: str
    token: str | None = None
    expires: float | None = None

    def __post_init__(self) -> None:
        # They become part of headers, and of what is signed byte for byte.
        for value in (self.access_key, "-" if self.token is None else self.token):
            if not value or " " in value or not (value.isascii() and value.isprintable()):
                raise InvalidOption("an AWS access key or token is empty, or holds blanks or line breaks")

    def __repr__(self) -> str:
        return f"<Credentials of {self.access_key}>"


# Receives the credentials that are no longer wanted, and returns them only if there are no others.
CredentialSource = Callable[[Credentials | None], Credentials]


def from_environment(environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return the environment's own credentials, as in a Lambda function."""
    key, secret = environ.get(KEY_ID, "").strip(), environ.get(SECRET, "").strip()
    if bool(key) != bool(secret):
        missing = SECRET if key else KEY_ID
        raise StoreUnavailable(f"the environment has only half of its AWS credentials: set {missing} too")
    return Credentials(key, secret, environ.get(TOKEN, "").strip() or None) if key else None


class Chain:
    """botocore's chain: profiles, SSO, roles, web identity, containers, instance metadata."""

    def __init__(self) -> None:
        self._found: Any = None

    def __call__(self, instead_of: Credentials | None = None) -> Credentials:
        """Return the current credentials; may ask the network and take long."""
        own = from_environment() or self._frozen()
        if own == instead_of and own.expires is not None:
            # botocore goes by the machine's clock, and renews too late if that is behind.
            self._found = None
            own = self._frozen()
        return own

    def _frozen(self) -> Credentials:
        try:
            if self._found is None:
                self._found = _botocore().get_credentials()
            frozen = self._found and self._found.get_frozen_credentials()
        except MissingExtra as error:
            raise StoreUnavailable(
                f"the environment has no AWS credentials, and for profiles and roles {error}; {ADVICE}"
            ) from error
        except Exception as error:  # files, commands and services, which fail in many ways
            raise StoreUnavailable(f"AWS credentials could not be had ({error}); {ADVICE}") from error
        if frozen is None:
            raise StoreUnavailable(f"there are no AWS credentials; {ADVICE}")
        expires = getattr(self._found, "_expiry_time", None)
        ends = expires and expires.timestamp()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token, ends)


class CredentialCache:
    """The credentials in use, renewed by one thread at a time before they expire.

    `now` returns the service's time, by which they expire. `genuine` refuses those that moto invented.
    """

    def __init__(self, source: CredentialSource, now: Callable[[], float], *, genuine: bool = False) -> None:
        self._source = source
        self._now = now
        self._genuine = genuine
        self._held: Credentials | None = None
        self._not_before = 0.0
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: the parent's thread is not here to release the lock."""
        self._lock = SignalSafeLock()

    def current(self) -> Credentials | None:
        """Return valid credentials without waiting; None if there are none, and `load` is needed."""
        held = self._held
        if held is None or held.expires is None:
            return held
        left = held.expires - (now := self._now())
        if left < LEAST_LIFE:
            return None
        if left < RENEW_AHEAD and now >= self._not_before:
            self._not_before = now + RETRY_AFTER
            # If no thread can be started, they are renewed when they are no longer valid.
            start_thread(threading.Thread(target=self._renew, name="semel-credentials"))
        return held

    def load(self, instead_of: Credentials | None = None) -> Credentials:
        """Return valid credentials, however long it takes; other than those refused, if there are any."""
        with self._lock:
            # A caller that waited for the lock usually finds what the one before has loaded.
            held = self._held
            expired = held and held.expires is not None and held.expires - self._now() < LEAST_LIFE
            if held is None or held is instead_of or expired:
                held = self._fetch()
            return held

    def _fetch(self) -> Credentials:
        fetched = self._source(self._held)
        if self._genuine and fetched.access_key == INVENTED:
            raise StoreUnavailable(
                "the environment has the credentials of moto's mock_aws, and no mock is active: "
                "begin one, or set credentials that AWS knows"
            )
        self._held = fetched
        return fetched

    def _renew(self) -> None:
        # Taken here, and not before the thread starts: a signal may come between any two lines there.
        if self._lock.acquire(blocking=False):
            # If it fails, the old ones are still valid; when they are not, the next caller gets the error.
            try:
                with suppress(StoreUnavailable):
                    self._fetch()
            finally:
                self._lock.release()
