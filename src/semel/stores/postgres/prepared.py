"""Prepared statements, executed below the driver's cursor.

A cursor decides anew each time whether to prepare, and sets itself up for results of every kind. In three
runs of 31 rounds, timed as `bench.network` does, a first call cost the client 1.08 to 1.10 times what it cost
bare psycopg with its pool, and by a cursor, with `prepare=True`, 1.14 to 1.28 times; a replay 1.04 to 1.15,
and by a cursor 1.07 to 1.21. The bar is 1.15. Values are adapted, results are loaded and answers are waited
for by the driver here too. The cursor takes what is executed seldom, or in a transaction of the caller's.

Several statements are sent together and answered together, in one round trip, and prepared on the way. If one
fails, the server carries out none that follow.
"""

from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import (
    DuplicatePreparedStatement,
    FeatureNotSupported,
    InvalidSqlStatementName,
    error_from_result,
)
from psycopg.generators import execute, fetch_many, send
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from semel.stores.postgres.plan import PostgresRows
from semel.stores.postgres.statements import PostgresStatement

GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
SYNC = ExecStatus.PIPELINE_SYNC
# Each takes memory of the server's, in every session. A table has a few; the rest is sent as text.
MOST = 100

ROLLBACK: PostgresStatement = b"ROLLBACK", None
DEALLOCATE: PostgresStatement = b"DEALLOCATE ALL", None

# A name that does not stand for its statement: the session was told to forget its names, as by DISCARD ALL,
# or knows one already, or a column has another type than when it was prepared. Nothing was done.
MISNAMED = (InvalidSqlStatementName, DuplicatePreparedStatement, FeatureNotSupported)

# A statement, and the types of its values as they are sent.
StatementKey: TypeAlias = tuple[bytes, Any]


class AdaptedStatement(NamedTuple):
    """A statement with its values as they are sent."""

    key: StatementKey
    values: Any
    formats: Any


class PreparedStatements:
    """The statements that one session has prepared. It is in no transaction when one is executed."""

    def __init__(
        self, connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]", threshold: int | None
    ) -> None:
        self._pgconn = connection.pgconn
        self._threshold = threshold
        self._transformer = Transformer(connection)
        self._uses: dict[bytes, int] = {}
        self._names: dict[StatementKey, bytes] = {}

    def worthwhile(self, sql: bytes) -> bool:
        """Whether a statement was executed often enough to be prepared; this counts as once more."""
        uses = self._uses.get(sql, 0)
        if self._threshold is None or (not uses and len(self._uses) >= MOST):
            return False
        self._uses[sql] = uses + 1
        return uses >= self._threshold

    # One statement

    def execute(self, sql: bytes, values: list[Any]) -> PQGen[PostgresRows]:
        """Execute a statement by its name, and prepare it where it has none; its rows."""
        try:
            return (yield from self._execute(sql, values))
        except MISNAMED:
            return (yield from self._as_text([(sql, values)]))[0]

    def _execute(self, sql: bytes, values: list[Any]) -> PQGen[PostgresRows]:
        statement = self._adapt(sql, values)
        name = self._names.get(statement.key)
        if name is None:
            name = self._names[statement.key] = yield from self._prepare(statement.key)
        self._pgconn.send_query_prepared(name, statement.values, statement.formats, Format.BINARY)
        return self._rows((yield from self._result()))

    def _prepare(self, key: StatementKey) -> PQGen[bytes]:
        name = _name(key)
        self._pgconn.send_prepare(name, *key)
        yield from self._result()
        return name

    def _result(self) -> PQGen[PGresult]:
        results = yield from execute(self._pgconn)
        _check(results)  # a commit that fails comes after the rows
        result: PGresult = results[0]
        return result

    # Several

    def execute_together(self, statements: list[PostgresStatement]) -> PQGen[list[PostgresRows]]:
        """Execute several statements, words like BEGIN among them; the rows of each."""
        by_name = [values is not None and self.worthwhile(sql) for sql, values in statements]
        try:
            return (yield from self._pipeline(statements, by_name))
        except MISNAMED:
            return (yield from self._as_text(statements))

    def _as_text(self, statements: list[PostgresStatement]) -> PQGen[list[PostgresRows]]:
        """Execute statements without names, after the session has forgotten all of them."""
        self._names.clear()
        rows = yield from self._pipeline([DEALLOCATE, *statements], [False] * (len(statements) + 1))
        return rows[1:]

    def _pipeline(
        self, statements: list[PostgresStatement], by_name: list[bool]
    ) -> PQGen[list[PostgresRows]]:
        # What failed within a transaction has left it open.
        undo = [ROLLBACK] if self._pgconn.transaction_status == TransactionStatus.INERROR else []
        several = [self._adapt(sql, values or []) for sql, values in (*undo, *statements)]
        self._pgconn.enter_pipeline_mode()
        preparing: list[StatementKey | None] = []
        for statement, named in zip(several, [False] * len(undo) + by_name, strict=True):
            preparing += self._send(statement, named)
        self._pgconn.pipeline_sync()
        results = yield from self._until_sync()
        self._pgconn.exit_pipeline_mode()
        if any(result.status not in GOOD for result in results):
            self._forget(preparing, results)
        _check(results)
        rows = [self._rows(result) for key, result in zip(preparing, results, strict=True) if key is None]
        return rows[len(undo) :]

    def _send(self, statement: AdaptedStatement, named: bool) -> list[StatementKey | None]:
        """Send a statement, by its name if it is to have one; for each result, the key that it prepares."""
        sql, types = statement.key
        if not named:
            self._pgconn.send_query_params(sql, statement.values, types, statement.formats, Format.BINARY)
            return [None]
        name = self._names.get(statement.key)
        results: list[StatementKey | None] = [None]
        if name is None:
            name = self._names[statement.key] = _name(statement.key)
            self._pgconn.send_prepare(name, sql, types)
            results = [statement.key, None]
        self._pgconn.send_query_prepared(name, statement.values, statement.formats, Format.BINARY)
        return results

    def _until_sync(self) -> PQGen[list[PGresult]]:
        yield from send(self._pgconn)
        results: list[PGresult] = []
        while fetched := (yield from fetch_many(self._pgconn)):
            if fetched[0].status == SYNC:
                return results
            results += fetched
        raise psycopg.OperationalError("the connection was closed")

    def _forget(self, preparing: list[StatementKey | None], results: list[PGresult]) -> None:
        """Forget the names that were not given after all."""
        # A commit that fails is one result more.
        for key, result in zip(preparing, results, strict=False):
            if key is not None and result.status not in GOOD:
                self._names.pop(key, None)

    # Values and rows

    def _adapt(self, sql: bytes, values: list[Any]) -> AdaptedStatement:
        transformer = self._transformer
        adapted = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        return AdaptedStatement((sql, transformer.types), adapted, transformer.formats)

    def _rows(self, result: PGresult) -> PostgresRows:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)


def _name(key: StatementKey) -> bytes:
    """A name that is never another statement's: whoever has given it before meant the same."""
    sql, types = key
    return b"semel_" + blake2b(sql + repr(types).encode(), digest_size=16).hexdigest().encode()


def _check(results: list[PGresult]) -> None:
    for result in results:
        if result.status not in GOOD:
            raise error_from_result(result)
