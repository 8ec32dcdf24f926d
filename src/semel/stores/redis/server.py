"""A server: where it is, the protocol it speaks, and what its errors mean."""

import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import TimeoutError as DriverTimeout

from semel import errors
from semel.core.connections import ANSWER_SECONDS
from semel.core.runtime import Concealed
from semel.errors import InvalidOption

# The URL

EXAMPLE = "redis://:password@cache.example.com:6379/0?prefix=semel"
PORT = 6379
# Replicas in one data centre confirm within milliseconds.
WAIT_SECONDS = 1.0
# A prefix stands before the braces of every key, so it has none itself.
PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")
TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
KNOWN = ("cluster", "prefix", "timeout", "wait_replicas", "wait_timeout", *TLS)


class Node(msgspec.Struct, frozen=True):
    """One server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisAddress(Concealed, msgspec.Struct, frozen=True, kw_only=True):
    """Where Redis is, and how semel uses it."""

    home: Node
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: dict[str, Any] | None = None
    cluster: bool = False
    prefix: str = "semel"
    timeout: float = ANSWER_SECONDS
    """How many seconds to wait for a connection, and for each reply."""
    wait_replicas: int = 0
    wait_seconds: float = WAIT_SECONDS

    def __repr__(self) -> str:  # without the password
        return f"RedisAddress({self.home}/{self.db}, prefix={self.prefix!r})"

    def options(self, node: Node) -> dict[str, Any]:
        """The arguments of a driver's connection to a node."""
        return {
            "host": node.host,
            "port": node.port,
            "db": self.db,
            "username": self.username,
            "password": self.password,
            "socket_connect_timeout": self.timeout,
            # Scripts reply alike under both protocols, and the older one needs no greeting.
            "protocol": 2,
            "driver_info": None,
            **(self.tls or {}),
        }


def parse(url: str) -> RedisAddress:
    """Read a URL; a wrong one is refused, with an example of a right one."""
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
        timeout=_seconds(given, "timeout", ANSWER_SECONDS),
        wait_replicas=_count(given, "wait_replicas"),
        wait_seconds=_seconds(given, "wait_timeout", WAIT_SECONDS),
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
        _refuse("wait_timeout must be shorter than timeout, or no reply could come in time")


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
            _refuse(f"{min(options)} needs TLS: use rediss://")
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
    # The URL itself is not shown, since it may contain a password.
    raise InvalidOption(f"this is no URL of a Redis store: {reason}. A right one is {EXAMPLE}")


# The protocol, RESP, as far as semel needs it

# A reply, and where it ends; None while part of it is missing.
Parsed: TypeAlias = tuple[Any, int] | None
BULK, ARRAY, NUMBER, TEXT = b"$*:+"


class ErrorReply(str):
    """The text of an error that the server replied."""

    __slots__ = ()


class RedisRequest(msgspec.Struct, frozen=True, gc=False):
    """Bytes for one server, and how many replies they have."""

    node: Node
    data: bytes
    count: int
    writes: bool = False
    """Whether the outcome is unknown if the reply is lost."""


def pack(words: Sequence[bytes]) -> bytes:
    """Encode a command."""
    return b"".join([b"*%d\r\n" % len(words), *[b"$%d\r\n%b\r\n" % (len(word), word) for word in words]])


def read(data: bytes, start: int = 0) -> Parsed:
    """Read the reply that begins here."""
    end = data.find(b"\r\n", start)
    if end < 0:
        return None
    kind, word, end = data[start], data[start + 1 : end], end + 2
    if kind == BULK:
        stop = end + int(word)
        if stop < end:
            return None, end
        return (data[end:stop], stop + 2) if len(data) >= stop + 2 else None
    if kind == ARRAY:
        return _array(data, end, int(word))
    if kind == NUMBER:
        return int(word), end
    return (word if kind == TEXT else ErrorReply(word.decode(errors="replace"))), end


def _array(data: bytes, start: int, size: int) -> Parsed:
    items: list[Any] = []
    for _ in range(size):
        item = read(data, start)
        if item is None:
            return None
        start = item[1]
        items.append(item[0])
    return (items if size >= 0 else None), start


def gather(data: bytes, count: int, replies: list[Any]) -> bytes:
    """Move the replies that data begins with to the list, and return the rest."""
    start = 0
    while len(replies) < count and (parsed := read(data, start)) is not None:
        replies.append(parsed[0])
        start = parsed[1]
    return data[start:]


# Errors

# How Redis 6 reports that a command inside a script was refused: "... @user_script: 12: -READONLY You ...".
INSIDE = re.compile(r"@user_script: ?\d+: -?([A-Z]{2,}) ")
# How Redis 7 does, if a permission is missing.
FORBIDDEN = "user executing the script can't"
OUT_OF_RANGE = "DB index is out of range"

FULL = (
    "its memory is full, and nothing was written: raise maxmemory, or let records expire sooner. Leave "
    "maxmemory-policy at noeviction, or Redis drops records to make room"
)
NODE = (errors.InvalidOption, "it is a node of a cluster: add cluster=yes to the URL")
# A server that refuses with one of these words has written nothing.
REFUSALS: dict[str, tuple[type[errors.SemelError], str]] = {
    "ASK": NODE,
    "BUSY": (errors.StoreUnavailable, "a script runs there without end; SCRIPT KILL ends it"),
    "CLUSTERDOWN": (errors.StoreUnavailable, "part of the cluster is down; see CLUSTER INFO"),
    "CROSSSLOT": NODE,
    "DENIED": (errors.NotPermitted, "it accepts no connection without a password (protected mode)"),
    "LOADING": (errors.StoreUnavailable, "it is still reading its data; retry later"),
    "MASTERDOWN": (errors.StoreUnavailable, "it is a replica without its primary"),
    "MISCONF": (errors.StoreUnavailable, "it cannot save to its disk; see its log"),
    "MOVED": NODE,
    "NOAUTH": (errors.NotPermitted, "it wants a password: redis://user:password@host"),
    "NOEND": (errors.UsageError, "give the item an end with set="),
    "NOPERM": (errors.NotPermitted, "its user may not do that; grant it the commands, keys and channels"),
    "NOREPLICAS": (errors.StoreUnavailable, "it has fewer replicas than min-replicas-to-write asks for"),
    "OOM": (errors.StoreUnavailable, FULL),
    "READONLY": (errors.StoreUnavailable, "it is a replica: the URL has to lead to the primary"),
    "TRYAGAIN": (errors.StoreUnavailable, "the slot of these keys is being moved; retry later"),
    "WRONGPASS": (errors.NotPermitted, "the user or the password in the URL is wrong"),
    "WRONGTYPE": (
        errors.WrongSchema,
        "keys of another program have these names: choose another prefix with ?prefix=...",
    ),
}


class BrokenConnection(errors.StoreUnavailable):
    """A connection broke during a read, so a new one may do."""


def code(error: Exception | str) -> str:
    """The word by which Redis tells its errors apart."""
    inside = INSIDE.search(str(error))
    if inside:
        return inside[1]
    if FORBIDDEN in str(error):
        return "NOPERM"
    return getattr(error, "status_code", None) or str(error).split(" ", 1)[0]


def refusal(error: Exception | str, node: Node, *, writes: bool) -> errors.SemelError:
    """Return the error to raise for one that the server replied."""
    kind, advice = REFUSALS.get(code(error), (None, ""))
    text = str(error)
    if kind is not None:
        return kind(f"Redis at {node} refused: {text}; {advice}")
    if "max number of clients" in text:  # instead of the first reply
        return errors.StoreUnavailable(f"Redis at {node} has as many clients as its maxclients allows")
    if "unknown command" in text.lower():
        return errors.StoreUnavailable(f"Redis at {node} lacks a command that semel needs: {text}")
    if "cluster support disabled" in text:
        return errors.InvalidOption(f"Redis at {node} is no cluster: leave cluster=yes out of the URL")
    if writes:
        return errors.StoreOutcomeUnknown(f"Redis at {node} failed during a write: {text}")
    return errors.StoreUnavailable(f"Redis at {node} failed: {text}")


def unreachable(error: Exception, node: Node, timeout: float) -> errors.SemelError:
    """Return the error to raise if no connection was made, so that nothing was sent."""
    if OUT_OF_RANGE in str(error):
        return errors.InvalidOption(
            f"Redis at {node} has no database of the number in the URL: leave it out, or choose one below "
            "what CONFIG GET databases says, which is usually 16"
        )
    if isinstance(error, AuthenticationError | ResponseError):
        known = refusal(error, node, writes=False)
        return known if code(error) in REFUSALS else errors.NotPermitted(f"{known}; see the URL's password")
    reason = f"no connection {_within(timeout)}" if _is_silent(error) else error
    return errors.StoreUnavailable(
        f"Redis at {node} cannot be reached ({reason}): check that it runs, that the host and port in the "
        "URL are right, and that no firewall is between"
    )


def lost(error: Exception, node: Node, timeout: float, *, writes: bool) -> errors.SemelError:
    """Return the error to raise if something was sent, and no reply came."""
    silent = _is_silent(error)
    reason = f"none came {_within(timeout)}" if silent else str(error) or type(error).__name__
    if writes:
        return errors.StoreOutcomeUnknown(f"the reply of Redis at {node} was lost: {reason}")
    kind = errors.StoreUnavailable if silent else BrokenConnection
    return kind(f"Redis at {node} did not answer: {reason}")


def _is_silent(error: Exception) -> bool:
    return isinstance(error, TimeoutError | DriverTimeout)


def _within(timeout: float) -> str:
    return f"within {timeout:g} s; timeout= in the URL sets the limit"
