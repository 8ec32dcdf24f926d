"""What SQLite's errors mean: each is translated once, here, into one of semel's."""

import sqlite3

from semel import errors
from semel.stores.sqlite.address import SQLiteFile

LOCKED = (
    "another transaction has kept it locked for {0:g} s: is one left open? What belongs into one of yours is "
    "written by within(connection); timeout= in the URL says how long is waited"
)
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
ADVICE = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_FULL: "there is no room left on its disk",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: see to the folder and its permissions",
    sqlite3.SQLITE_READONLY: "it may not be written: see to the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "it may not be opened: see to the permissions of the file and its folder",
    sqlite3.SQLITE_IOERR: "its disk reports an error",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_PROTOCOL: "its locks cannot be had: it must not lie on a network drive",
}
DAMAGE = {
    sqlite3.SQLITE_CORRUPT: "it is damaged: restore it from a backup, or save what can be with `.recover`",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database",
}
BAD_VALUE = frozenset({sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT})
# What Python's module raises: for texts without a UTF-8 form and for huge integers, errors of Python's own.
DRIVER_ERRORS = (sqlite3.Error, UnicodeEncodeError, OverflowError)

# A commit that failed in one of these ways was certainly not made: its last page was never written.
NOT_COMMITTED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL})


def code_of(error: Exception) -> int | None:
    """SQLite's own code for an error; None where Python's module raised it by itself."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def translated(error: Exception, file: SQLiteFile) -> Exception:
    """A driver's error as one of semel's; any other as it is."""
    code, path = code_of(error), file.path
    if code in ADVICE:
        advice = ADVICE[code].format(file.timeout)
        return _because(errors.StoreUnavailable(f"{path}: {advice} ({error})"), error)
    if code in DAMAGE:
        return _because(errors.StoreError(f"{path}: {DAMAGE[code]} ({error})"), error)
    if isinstance(error, UnicodeEncodeError | OverflowError | sqlite3.DataError) or code in BAD_VALUE:
        return _because(errors.UsageError(f"SQLite cannot store this: {error}"), error)
    if isinstance(error, sqlite3.Error):
        return _because(errors.StoreError(f"{path}: {error}"), error)
    return error


def doubtful(error: Exception, file: SQLiteFile) -> Exception:
    """What a failed COMMIT means."""
    if code_of(error) in NOT_COMMITTED:
        return translated(error, file)
    message = f"{file.path}: the transaction may or may not have been made ({error})"
    return _because(errors.StoreOutcomeUnknown(message), error)


def _because(translation: errors.SemelError, cause: Exception) -> errors.SemelError:
    translation.__cause__ = cause
    return translation
