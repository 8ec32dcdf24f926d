"""What the driver's errors mean: each is translated once, here, into one of semel's."""

import re

import psycopg

from semel import errors
from semel.stores.postgres.address import PostgresAddress, connect_seconds
from semel.stores.postgres.connection import AnswerTimeout
from semel.stores.postgres.interpreter import ConditionFailed, RoundTrip, TransactionConflict
from semel.stores.sql import PREFIX

# What reaches the server by way of a connection.
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
    "57014": (
        errors.StoreUnavailable,
        CANCELLED,
    ),
    "53300": (
        errors.StoreUnavailable,
        f"it has as many connections as it may: {CROWDED}",
    ),
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
# After these the session is gone: nobody can tell how far it came.
LOST_CLASSES = ("08", "57P", "58", "25P03", "25P04")

# What `writes.MADE` fails with. Anything else that does is found when the refusals are looked up.
CONDITION_FAILED = "22P02"

# Of a connection that the server refuses, the driver has only the words.
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


def unreachable(error: Exception, address: PostgresAddress) -> errors.SemelError:
    """Why there is no connection. Nothing was sent."""
    words = str(error).strip()
    if "unsupported startup parameter" in words:
        return _error(errors.NotPermitted, STARTUP, words, address)
    codes = [code for pattern, code in REFUSALS.items() if re.search(pattern, words)]
    code = codes[0] if codes else getattr(error, "sqlstate", None)
    if code in MEANINGS:
        return _error(*MEANINGS[code], words, address)
    if isinstance(error, psycopg.errors.ConnectionTimeout | AnswerTimeout):
        silent = SILENT.format("there was no connection", connect_seconds(address.timeout))
        return _error(errors.StoreUnavailable, f"{silent}. It {UNREACHED}", words, address)
    return _error(errors.StoreUnavailable, UNREACHED, words, address)


def broken(error: Exception) -> bool:
    """Whether the connection is gone, and another may do: not where the server is silent."""
    code = getattr(error, "sqlstate", None) or "08000"
    return not isinstance(error, AnswerTimeout) and code.startswith(LOST_CLASSES)


def translated(
    error: Exception, address: PostgresAddress, round_trip: RoundTrip = NO_EFFECT
) -> errors.SemelError:
    """What an error on a round trip means."""
    code: str = getattr(error, "sqlstate", None) or "08000"
    words = str(error).strip()
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
        return _error(
            errors.StoreOutcomeUnknown, f"{advice}: the write may or may not be made", words, address
        )
    return _error(kind, advice, words, address)


def _error(
    kind: type[errors.SemelError], advice: str, words: str, address: PostgresAddress
) -> errors.SemelError:
    return kind(f"PostgreSQL at {address.place}: {advice} ({words})")
