"""Where the database is: its URL, read once; and what the errors of its driver mean, translated once."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from semel import errors
from semel.core.clock import ANSWER_SECONDS, timeout_of
from semel.core.runtime import Concealed
from semel.errors import InvalidOption
from semel.stores.postgres.interpreter import ConditionFailed, RoundTrip, TransactionConflict
from semel.stores.sql import PREFIX

SCHEMES = ("postgresql://", "postgres://")
FORM = "postgresql://user:password@host:5432/database, with options such as ?sslmode=require&pool_size=10"

# How many threads or tasks may use the server at the same moment; a claim takes less than a millisecond.
POOL_SIZE = 10
# Besides those, for renewals of leases: callers that wait for a lock may hold all others.
RENEWAL_POOL_SIZE = 4
# A renewal whose row is locked makes room for others, and is retried while the lease lasts.
RENEWAL_SESSION = "-c lock_timeout=500ms {}"
# After this many uses a statement is prepared.
PREPARE_THRESHOLD = 5

# A statement takes milliseconds: one that takes so long waits for a transaction that was left open. The
# server cancels it before the client stops waiting, so the client knows that it was not made. The server ends
# a session that vanished in the middle of a transaction after the same time. Under a stricter isolation, as
# a role may have it by default, one of two writers that meet must start over.
SESSION = (
    "-c statement_timeout={0}ms -c idle_in_transaction_session_timeout={0}ms "
    "-c default_transaction_isolation=read\\ committed"
)
SERVERS_SHARE = 0.8
# A machine that is gone sends no farewell, and would be waited for for hours.
DEFAULTS: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "fallback_application_name": "semel",
}


# A standby is behind its primary, and what it says of a key may be long out of date.
WRITABLE = ("read-write", "primary")


class PostgresAddress(Concealed, msgspec.Struct, frozen=True):
    """A database, and the schema in it."""

    conninfo: str
    place: str
    """Host, port and database, as error messages show them; never the password."""
    schema: str | None = None
    pool_size: int = POOL_SIZE
    prepare_threshold: int | None = PREPARE_THRESHOLD
    timeout: float = ANSWER_SECONDS
    """How long a connection, and each answer, is waited for."""

    def __repr__(self) -> str:
        return f"PostgresAddress({self.place!r})"

    @classmethod
    def from_url(cls, url: str) -> "PostgresAddress":
        """Return the address of a URL such as `postgresql://user:password@host/database?schema=semel`."""
        base, _, query = url.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        schema = options.pop("schema", None)
        size = options.pop("pool_size", str(POOL_SIZE))
        threshold = options.pop("prepare_threshold", str(PREPARE_THRESHOLD))
        timeout = timeout_of(options.pop("timeout", None))
        counts = size.isdecimal() and int(size) > 0
        if schema == "" or not counts or not (threshold == "none" or threshold.isdecimal()):
            raise InvalidOption(
                "in a PostgreSQL URL schema= is a name, pool_size= a number from 1 on, and "
                f"prepare_threshold= a number or none; its form is {FORM}"
            )
        given = _given(f"{base}?{urlencode(options, quote_via=quote)}")
        if given.setdefault("target_session_attrs", WRITABLE[0]) not in WRITABLE:
            raise InvalidOption(
                "semel reads and writes on the primary alone: in a PostgreSQL URL, leave out "
                f"target_session_attrs=, or make it {' or '.join(WRITABLE)}"
            )
        prepare = None if threshold == "none" else int(threshold)
        # Behind a pooler in transaction mode, nothing may be set in a session.
        session = {} if prepare is None else {"options": SESSION.format(int(timeout * SERVERS_SHARE * 1000))}
        limit = {"connect_timeout": connect_seconds(timeout)}
        return cls(
            make_conninfo("", **(DEFAULTS | limit | session | given | {"client_encoding": "utf8"})),
            f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}",
            schema,
            int(size),
            prepare,
            timeout,
        )

    @property
    def role(self) -> str:
        """The role that it names; "" where the environment does."""
        return str(conninfo_to_dict(self.conninfo).get("user") or "")

    @property
    def shown(self) -> str:
        """The URL without its password, which PGPASSWORD may say."""
        role = f"{quote(self.role, safe='')}@" if self.role else ""
        return f"postgresql://{role}{self.place}" + (f"?schema={self.schema}" if self.schema else "")

    @property
    def keeps_sessions(self) -> bool:
        """Whether a connection is always the same session of the server, so that it can listen."""
        return self.prepare_threshold is not None

    def for_renewals(self) -> "PostgresAddress":
        """Return the same database, for renewals of leases alone."""
        given = conninfo_to_dict(self.conninfo)
        if options := given.get("options"):  # else a pooler may refuse any
            given["options"] = RENEWAL_SESSION.format(options)
        size = min(self.pool_size, RENEWAL_POOL_SIZE)
        return msgspec.structs.replace(self, conninfo=make_conninfo("", **given), pool_size=size)


def connect_seconds(timeout: float) -> int:
    """Return how long to wait for a connection: the driver takes whole seconds, and at least two."""
    return max(ceil(timeout), 2)


def _given(url: str) -> dict[str, Any]:
    """What libpq reads in a URL. Its error is shortened, since it shows the URL, which has a password."""
    try:
        if url.startswith(SCHEMES):
            return conninfo_to_dict(url.removesuffix("?"))
        problem = "it begins otherwise"
    except psycopg.ProgrammingError as error:
        problem = str(error).partition(":")[0]
    raise InvalidOption(f"not a PostgreSQL URL ({problem}); its form is {FORM}")


# What the driver's errors mean

# What a connection raises.
DRIVER_ERRORS = (psycopg.Error, OSError)
NO_EFFECT = RoundTrip([], commits=False)

PROVISION = "run semel provision beside the service's semel.toml, or with its --url and its --env"
TABLE = re.compile(rf'relation "(?:\w+\.)?{PREFIX}([\w-]+)" does not exist')
STANDBY = (
    "this server may only be read: name the primary, or all hosts of which one is, or see to the setting "
    "default_transaction_read_only of the role"
)
CROWDED = (
    "lower pool_size in the URLs of all who use it, put a pooler before it, or raise max_connections or the "
    "role's limit"
)
POOLER = "behind a pooler that gives out sessions by the transaction, add prepare_threshold=none to the URL"
CANCELLED = (
    "the statement was cancelled, as after statement_timeout, which is set for the role or is most of "
    "timeout= in the URL: is a transaction left open?"
)
STARTUP = (
    "a pooler does not let the settings of a session through: add options to its ignore_startup_parameters, "
    "or prepare_threshold=none to the URL"
)

# By the server's own code; those that are not here go by their first two characters.
MEANINGS: dict[str, tuple[type[errors.SemelError], str]] = {
    "3D000": (errors.TableMissing, "there is no such database: create it, or mend the URL"),
    "3F000": (errors.TableMissing, f"there is no such schema: {PROVISION}"),
    "42P01": (errors.TableMissing, f"a table is missing: {PROVISION}"),
    "42703": (errors.WrongSchema, f"a column is missing: {PROVISION}"),
    "42804": (errors.WrongSchema, "a column has another type than semel gave it"),
    "42883": (errors.WrongSchema, "a column has another type than semel gave it, or the server is too old"),
    "42501": (
        errors.NotPermitted,
        "the role needs USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE",
    ),
    "28000": (
        errors.NotPermitted,
        "the server does not let this role in: see to its name and to pg_hba.conf",
    ),
    "28P01": (errors.NotPermitted, "the password is wrong: mend the URL, or PGPASSWORD"),
    "25006": (errors.StoreUnavailable, STANDBY),
    "25P02": (errors.UsageError, "the transaction has failed before: roll it back"),
    "26000": (errors.StoreError, POOLER),
    "42P05": (errors.StoreError, POOLER),
    "40001": (TransactionConflict, "another transaction came in between"),
    "40P01": (TransactionConflict, "two transactions were waiting for each other"),
    "55P03": (errors.StoreUnavailable, "a lock could not be had: is a transaction left open?"),
    "57014": (errors.StoreUnavailable, CANCELLED),
    "53300": (errors.StoreUnavailable, f"it has as many connections as it may: {CROWDED}"),
    "57P03": (errors.StoreUnavailable, "it is starting up, or shutting down: try again in a moment"),
}
CLASSES: dict[str, tuple[type[errors.SemelError], str]] = {
    "22": (errors.UsageError, "PostgreSQL cannot keep this value"),
    "23": (errors.UsageError, "PostgreSQL cannot keep this value"),
    "53": (errors.StoreUnavailable, "the server has run out of room, memory or connections"),
    "54": (errors.UsageError, "PostgreSQL cannot keep this value"),
}
LOST = errors.StoreUnavailable, "the connection was lost"
UNNAMED = errors.StoreError, "it answered with an error"
# After these the session is gone, and how far it came is unknown.
LOST_CLASSES = ("08", "57P", "58", "25P03", "25P04")

# What a refused write of a transaction fails with: its reply is no boolean. If another cause has this code,
# the items are read, and nothing in them refuses.
CONDITION_FAILED = "22P02"

# If the server refuses a connection, the driver has only its words.
REFUSALS = {
    r"password authentication failed|no password supplied": "28P01",
    r'pg_hba\.conf|permission denied for database|role ".*" (does not exist|is not permitted)': "28000",
    r'database ".*" does not exist': "3D000",
    r"too many (clients|connections)|remaining connection slots": "53300",
    r"the database system is|not accepting connections": "57P03",
    r"session is read-only|hot standby mode": "25006",
}
UNREACHED = "cannot be reached: see that it runs, and that host, port and firewall are right"
SILENT = "{0} within {1:g} s; timeout= in the URL says how long is waited"


class AnswerTimeout(psycopg.OperationalError):
    """The server has been silent for too long; it may have done what was sent to it."""


def unreachable(error: Exception, address: PostgresAddress) -> errors.SemelError:
    """Return why there is no connection. Nothing was sent."""
    words = str(error).strip()
    codes = [code for pattern, code in REFUSALS.items() if re.search(pattern, words)]
    code = codes[0] if codes else getattr(error, "sqlstate", None)
    kind, advice = MEANINGS.get(str(code), (errors.StoreUnavailable, UNREACHED))
    if "unsupported startup parameter" in words:
        kind, advice = errors.NotPermitted, STARTUP
    elif advice is UNREACHED and isinstance(error, psycopg.errors.ConnectionTimeout | AnswerTimeout):
        silent = SILENT.format("there was no connection", connect_seconds(address.timeout))
        advice = f"{silent}. It {UNREACHED}"
    return kind(f"PostgreSQL at {address.place}: {advice} ({words})")


def _code(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or "08000"


def broken(error: Exception) -> bool:
    """Return whether the connection is lost, and another may work: not if the server is silent."""
    return not isinstance(error, AnswerTimeout) and _code(error).startswith(LOST_CLASSES)


def translated(
    error: Exception, address: PostgresAddress, round_trip: RoundTrip = NO_EFFECT
) -> errors.SemelError:
    """Return what an error of a round trip means."""
    code, words = _code(error), str(error).strip()
    if round_trip.undone_if_refused and code == CONDITION_FAILED:
        return ConditionFailed(words)
    lost = code.startswith(LOST_CLASSES)
    kind, advice = LOST if lost else MEANINGS.get(code) or CLASSES.get(code[:2]) or UNNAMED
    if code == "42P01" and (named := TABLE.search(words)):
        advice += f" and --table {named[1]}"
    if isinstance(error, AnswerTimeout):
        advice = SILENT.format("it has not answered", address.timeout)
    doubtful = round_trip.partial and kind is errors.StoreUnavailable
    if doubtful or (lost and round_trip.commits):
        kind, advice = errors.StoreOutcomeUnknown, f"{advice}: the write may or may not be made"
    return kind(f"PostgreSQL at {address.place}: {advice} ({words})")


@contextmanager
def translating(address: PostgresAddress) -> Iterator[None]:
    """Translate the driver's errors in a block."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translated(error, address) from error
