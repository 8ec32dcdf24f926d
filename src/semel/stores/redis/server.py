"""A server: where it is, and what its errors mean."""

import re
from typing import Annotated, Any, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import TimeoutError as DriverTimeout

from semel import errors
from semel.core.clock import ANSWER_SECONDS
from semel.core.runtime import Concealed
from semel.errors import InvalidOption

# The URL

EXAMPLE = "redis://:password@cache.example.com:6379/0?prefix=semel"
PORT = 6379


def _like(pattern: str) -> Any:
    return Annotated[str, msgspec.Meta(pattern=rf"^({pattern})\Z")]


YES_OR_NO = (bool, "yes or no")
SECONDS = (Annotated[float, msgspec.Meta(gt=0, lt=3600)], "a number of seconds")
PATH = (str, "the path of a file")
# The options of a URL: their types, and how a message describes them.
OPTIONS: dict[str, tuple[Any, str]] = {
    "cluster": YES_OR_NO,
    # A prefix stands before the braces of every key, so it has none itself.
    "prefix": (_like("[A-Za-z0-9._:-]{1,64}"), "1 to 64 letters, digits and . _ : -"),
    "timeout": SECONDS,
    "wait_replicas": (Annotated[int, msgspec.Meta(ge=1, lt=1000)], "a number of replicas, from 1 on"),
    "wait_timeout": SECONDS,
    "ssl_ca_certs": PATH,
    "ssl_certfile": PATH,
    "ssl_keyfile": PATH,
    "ssl_cert_reqs": (_like("required|optional|none"), "required, optional or none"),
    "ssl_check_hostname": YES_OR_NO,
}


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
    wait_timeout: float = 1.0
    """How many seconds to wait for replicas, which in one data centre confirm within milliseconds."""

    def __repr__(self) -> str:  # without the password
        return f"RedisAddress({self.home}/{self.db}, prefix={self.prefix!r})"


def parse(url: str) -> RedisAddress:
    """Read a URL; a wrong one is refused, with an example of a right one."""
    parts = urlsplit(url)
    given = {name: _option(name, word) for name, word in parse_qsl(parts.query, keep_blank_values=True)}
    tls = {name: given.pop(name) for name in list(given) if name.startswith("ssl_")}
    if tls and parts.scheme != "rediss":
        _refuse(f"{min(tls)} needs TLS: use rediss://")
    address = RedisAddress(
        home=_home(parts),
        db=_db(parts.path),
        username=unquote(parts.username or "") or None,
        password=unquote(parts.password or "") or None,
        tls=tls if parts.scheme == "rediss" else None,
        **given,
    )
    if address.cluster and address.db:
        _refuse("a cluster has the database 0 only")
    if "wait_timeout" in given and not address.wait_replicas:
        _refuse("wait_timeout says how long wait_replicas=N waits, which is not given")
    if address.wait_replicas and address.wait_timeout >= address.timeout:
        _refuse("wait_timeout must be shorter than timeout, or no reply could come in time")
    return address


def _option(name: str, word: str) -> Any:
    if name not in OPTIONS:
        _refuse(f"it has the unknown option {name!r}; the options are {', '.join(OPTIONS)}")
    kind, meaning = OPTIONS[name]
    if kind is bool:
        word = {"yes": "true", "no": "false"}.get(word.lower(), word)
    try:
        return msgspec.convert(word, kind, strict=False)
    except msgspec.ValidationError:
        _refuse(f"{name} is {meaning}")


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


def _refuse(reason: str) -> NoReturn:
    # The URL itself is not shown, since it may contain a password.
    raise InvalidOption(f"this is no URL of a Redis store: {reason}. A right one is {EXAMPLE}")


# Errors

# How Redis 6 reports that a command inside a script was refused: "... @user_script: 12: -READONLY You ...".
INSIDE = re.compile(r"@user_script: ?\d+: -?([A-Z]{2,}) ")
# What Redis says without a word of its own.
PHRASES = {
    "user executing the script can't": "NOPERM",  # as Redis 7 reports it
    "db index is out of range": "NODB",
    "max number of clients": "CLIENTS",
    "unknown command": "COMMAND",
    "cluster support disabled": "NOCLUSTER",
}

FULL = (
    "its memory is full, and nothing was written: raise maxmemory, or let records expire sooner. Leave "
    "maxmemory-policy at noeviction, or Redis drops records to make room"
)
NO_DATABASE = (
    "it has no database of the number in the URL: leave it out, or choose one below what CONFIG GET "
    "databases says, which is usually 16"
)
NODE = (errors.InvalidOption, "it is a node of a cluster: add cluster=yes to the URL")
# A server that refuses with one of these words has written nothing.
REFUSALS: dict[str, tuple[type[errors.SemelError], str]] = {
    "ASK": NODE,
    "BUSY": (errors.StoreUnavailable, "a script runs there without end; SCRIPT KILL ends it"),
    "CLIENTS": (errors.StoreUnavailable, "it has as many clients as its maxclients allows"),
    "CLUSTERDOWN": (errors.StoreUnavailable, "part of the cluster is down; see CLUSTER INFO"),
    "COMMAND": (errors.StoreUnavailable, "it lacks a command that semel needs"),
    "CROSSSLOT": NODE,
    "DENIED": (errors.NotPermitted, "it accepts no connection without a password (protected mode)"),
    "LOADING": (errors.StoreUnavailable, "it is still reading its data; retry later"),
    "MASTERDOWN": (errors.StoreUnavailable, "it is a replica without its primary"),
    "MISCONF": (errors.StoreUnavailable, "it cannot save to its disk; see its log"),
    "MOVED": NODE,
    "NOAUTH": (errors.NotPermitted, "it wants a password: redis://user:password@host"),
    "NOCLUSTER": (errors.InvalidOption, "it is no cluster: leave cluster=yes out of the URL"),
    "NODB": (errors.InvalidOption, NO_DATABASE),
    "NOEND": (errors.UsageError, "give the item an end with set="),
    "NOPERM": (errors.NotPermitted, "its user may not do that; grant it the commands, keys and channels"),
    "NOREPLICAS": (errors.StoreUnavailable, "it has fewer replicas than min-replicas-to-write asks for"),
    "OOM": (errors.StoreUnavailable, FULL),
    "READONLY": (errors.StoreUnavailable, "it is a replica: the URL has to lead to the primary"),
    "TRYAGAIN": (errors.StoreUnavailable, "the slot of these keys is being moved; retry later"),
    "WRONGPASS": (errors.NotPermitted, "the user or the password in the URL is wrong"),
    "WRONGTYPE": (errors.WrongSchema, "other programs' keys have these names: choose another ?prefix=..."),
}


class ErrorReply(str):
    """The text of an error that the server replied."""

    __slots__ = ()


class BrokenConnection(errors.StoreUnavailable):
    """A connection broke during a read, so a new one may do."""


def code(error: Exception | str) -> str:
    """The word by which Redis tells its errors apart, or ours for a phrase."""
    text = str(error)
    if inside := INSIDE.search(text):
        return inside[1]
    phrases = [word for phrase, word in PHRASES.items() if phrase in text.lower()]
    return phrases[0] if phrases else getattr(error, "status_code", None) or text.split(" ", 1)[0]


def refusal(error: Exception | str, node: Node, *, writes: bool) -> errors.SemelError:
    """Return the error to raise for one that the server replied."""
    kind, advice = REFUSALS.get(code(error), (None, ""))
    if kind is not None:
        return kind(f"Redis at {node} refused: {error}; {advice}")
    if writes:
        return errors.StoreOutcomeUnknown(f"Redis at {node} failed during a write: {error}")
    return errors.StoreUnavailable(f"Redis at {node} failed: {error}")


def unreachable(error: Exception, node: Node, timeout: float) -> errors.SemelError:
    """Return the error to raise if no connection was made, so that nothing was sent."""
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
