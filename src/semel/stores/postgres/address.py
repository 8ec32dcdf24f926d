"""Where the database is, and how it is connected to: the URL as its user wrote it, read once."""

from math import ceil
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from semel.core.connections import ANSWER_SECONDS, timeout_of
from semel.core.runtime import Concealed
from semel.errors import InvalidOption
from semel.stores.postgres.connection import AsyncPostgresConnection, PostgresConnection

SCHEMES = ("postgresql://", "postgres://")
FORM = "postgresql://user:password@host:5432/database, with options such as ?sslmode=require&pool_size=10"

# As many threads or tasks as may be at the server at the same moment; a claim takes less than a millisecond.
POOL_SIZE = 10
# Besides those, so many are kept for renewals of leases: callers that wait for a lock may hold all others.
RENEWAL_POOL_SIZE = 4
# A renewal whose row is locked gives way to those of others, and is tried again while there is lease left.
RENEWAL_SESSION = "-c lock_timeout=500ms {}"
# After so many uses a statement is prepared.
PREPARE_THRESHOLD = 5

# A statement takes milliseconds: one that takes so long waits for a transaction that was left open. The
# server gives it up before its answer is given up here, so that it is known not to be made. A session of ours
# that has vanished in the middle of a transaction it ends after the same time. Under a stricter isolation, as
# a role may have it by default, each of two writers who meet would begin anew.
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
# A pooler makes up a number for the session, and the server has another one.
INSPECT = b"SELECT pg_backend_pid(), pg_is_in_recovery()"

# The driver prepares nothing by itself. What it has prepared it has the session forget after a ROLLBACK, and
# in a pipeline that may come after it has prepared the next, which is then forgotten too. See `prepared`.
NEVER = None


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
        """The address of a URL such as `postgresql://user:password@host/database?schema=semel`."""
        base, _, query = url.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        schema = options.pop("schema", None)
        size = options.pop("pool_size", str(POOL_SIZE))
        threshold = options.pop("prepare_threshold", str(PREPARE_THRESHOLD))
        timeout = timeout_of(options.pop("timeout", None))
        if schema == "" or not _counts(size) or not (threshold == "none" or threshold.isdecimal()):
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
        # Behind a pooler that gives out sessions by the transaction nothing may be asked of a session.
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
        """The same database, for renewals of leases alone."""
        given = conninfo_to_dict(self.conninfo)
        if options := given.get("options"):  # else a pooler may refuse any
            given["options"] = RENEWAL_SESSION.format(options)
        size = min(self.pool_size, RENEWAL_POOL_SIZE)
        return msgspec.structs.replace(self, conninfo=make_conninfo("", **given), pool_size=size)

    def connect(self) -> PostgresConnection:
        """A connection on which every statement is a transaction of its own."""
        connection = PostgresConnection.connect(self.conninfo, autocommit=True, prepare_threshold=NEVER)
        connection.limit = self.timeout
        try:
            self._inspect(connection, connection.execute(INSPECT).fetchone())
        except BaseException:
            connection.close()
            raise
        return connection

    async def aconnect(self) -> AsyncPostgresConnection:
        """A connection for the running loop, on which every statement is a transaction of its own."""
        connection = await AsyncPostgresConnection.connect(
            self.conninfo, autocommit=True, prepare_threshold=NEVER
        )
        connection.limit = self.timeout
        try:
            self._inspect(connection, await (await connection.execute(INSPECT)).fetchone())
        except BaseException:
            await connection.close()
            raise
        return connection

    def _inspect(
        self, connection: PostgresConnection | AsyncPostgresConnection, row: tuple[int, bool] | None
    ) -> None:
        """Refuse a standby that stands behind a pooler, and note whether there is a pooler."""
        pid, in_recovery = row or (0, False)
        if in_recovery:
            raise psycopg.errors.ReadOnlySqlTransaction("the server is in recovery")
        connection.pooled = pid != connection.pgconn.backend_pid


def connect_seconds(timeout: float) -> int:
    """How long a connection is waited for under a limit: the driver takes whole seconds, and at least two."""
    return max(ceil(timeout), 2)


def _counts(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _given(url: str) -> dict[str, Any]:
    """What libpq reads in a URL. It says what is wrong with one, and shows the URL, which has a password."""
    try:
        if url.startswith(SCHEMES):
            return conninfo_to_dict(url.removesuffix("?"))
        problem = "it begins otherwise"
    except psycopg.ProgrammingError as error:
        problem = str(error).partition(":")[0]
    raise InvalidOption(f"not a PostgreSQL URL ({problem}); its form is {FORM}")
