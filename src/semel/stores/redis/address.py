"""The pure half of connecting: what a URL says."""

import re
from typing import Any, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from semel.core.connections import ANSWER_SECONDS
from semel.core.runtime import Concealed
from semel.errors import InvalidOption

EXAMPLE = "redis://:password@cache.example.com:6379/0?prefix=semel"
PORT = 6379

# Replicas of one data centre confirm within milliseconds.
WAIT_SECONDS = 1.0

# A prefix stands before the braces of every key, so it may have none itself.
PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")
TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
KNOWN = ("cluster", "prefix", "slots", "timeout", "wait_replicas", "wait_timeout", *TLS)


class Node(msgspec.Struct, frozen=True):
    """One server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisAddress(Concealed, msgspec.Struct, frozen=True, kw_only=True):
    """Where Redis is, and how it is to be used."""

    home: Node
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: dict[str, Any] | None = None
    cluster: bool = False
    prefix: str = "semel"
    scoped: bool = False
    """Whether everything of a scope lies in one slot, and not everything of a partition."""
    timeout: float = ANSWER_SECONDS
    """How long a connection, and each answer, is waited for."""
    wait_replicas: int = 0
    wait_seconds: float = WAIT_SECONDS
    shown: str = ""
    """The URL without who may come in."""

    def __repr__(self) -> str:  # the password is nobody's business
        return f"RedisAddress({self.home}/{self.db}, prefix={self.prefix!r})"

    def options(self, node: Node) -> dict[str, Any]:
        """How a driver's connection to a node is made."""
        return {
            "host": node.host,
            "port": node.port,
            "db": self.db,
            "username": self.username,
            "password": self.password,
            "socket_connect_timeout": self.timeout,
            # Scripts answer alike under both protocols, and the older one needs no greeting.
            "protocol": 2,
            "driver_info": None,
            **(self.tls or {}),
        }


def parse(url: str) -> RedisAddress:
    """What a URL says; a wrong one is refused, with an example of a right one."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := given.keys() - set(KNOWN):
        _refuse(f"it has the unknown option {min(unknown)!r}; the options are {', '.join(KNOWN)}")
    address = RedisAddress(
        home=_home(parts),
        db=_db(parts.path),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=_tls(parts.scheme, given),
        cluster=_flag(given, "cluster"),
        prefix=given.get("prefix", "semel"),
        scoped=_scoped(given),
        timeout=_seconds(given, "timeout", ANSWER_SECONDS),
        wait_replicas=_count(given, "wait_replicas"),
        wait_seconds=_seconds(given, "wait_timeout", WAIT_SECONDS),
        shown=parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
    )
    _check(address, given)
    return address


def _check(address: RedisAddress, given: dict[str, str]) -> None:
    if not PREFIX.fullmatch(address.prefix):
        _refuse("prefix is 1 to 64 letters, digits and . _ : -")
    if address.cluster and address.db:
        _refuse("a cluster has the database 0 only")
    if "wait_timeout" in given and not address.wait_replicas:
        _refuse("wait_timeout says how long wait_replicas=N waits, which is not given")
    if address.wait_replicas and address.wait_seconds >= address.timeout:
        _refuse("wait_timeout must be shorter than timeout, or no answer could come in time")


def _home(parts: SplitResult) -> Node:
    try:
        port = parts.port
    except ValueError:
        _refuse("its port is no number from 1 to 65535")
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.fragment:
        _refuse("it has no host")
    return Node(unquote(parts.hostname), PORT if port is None else port)


def _db(path: str) -> int:
    name = path.strip("/")
    if not re.fullmatch(r"[0-9]{0,6}", name):
        _refuse(f"its path, {name!r}, is not the number of a database: leave it out, or write /0 to /15")
    return int(name or 0)


def _tls(scheme: str, given: dict[str, str]) -> dict[str, Any] | None:
    options: dict[str, Any] = {name: given[name] for name in TLS if name in given}
    if scheme != "rediss":
        if options:
            _refuse(f"{min(options)} needs TLS, which rediss:// brings")
        return None
    if "ssl_check_hostname" in options:
        options["ssl_check_hostname"] = _flag(given, "ssl_check_hostname")
    if options.get("ssl_cert_reqs", "required") not in ("required", "optional", "none"):
        _refuse("ssl_cert_reqs is required, optional or none")
    return options


def _flag(given: dict[str, str], name: str) -> bool:
    word = given.get(name, "no").lower()
    if word not in ("yes", "no", "true", "false", "1", "0"):
        _refuse(f"{name} is yes or no")
    return word in ("yes", "true", "1")


def _scoped(given: dict[str, str]) -> bool:
    word = given.get("slots", "partition")
    if word not in ("partition", "scope"):
        _refuse("slots is partition or scope: what shares a slot of a cluster")
    return word == "scope"


def _count(given: dict[str, str], name: str) -> int:
    word = given.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,3}", word) or (name in given and int(word) < 1):
        _refuse(f"{name} is a number of replicas, from 1 on")
    return int(word)


def _seconds(given: dict[str, str], name: str, default: float) -> float:
    try:
        seconds = float(given.get(name, default))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        _refuse(f"{name} is a number of seconds")
    return seconds


def _refuse(reason: str) -> NoReturn:
    # The URL itself is not shown, as it may have a password in it.
    raise InvalidOption(f"this is no URL of a Redis store: {reason}. A right one is {EXAMPLE}")
