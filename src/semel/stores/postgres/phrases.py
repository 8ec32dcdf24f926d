"""Statements that are said again and again: the server knows them by name, and no cursor carries them.

A cursor decides anew each time whether to prepare, and sets itself up for results of every kind; that is
two fifths of what such a statement costs the client. Values are adapted, results are loaded and answers are
waited for by the driver here too. The cursor takes what is said seldom, or within a transaction.
"""

from contextlib import suppress
from hashlib import blake2b
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from semel.stores.postgres.clerk import Rows

GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
# Each takes memory of the server's, in every session. A table has a few; the cursor takes the rest.
MOST = 100


class Phrases:
    """The statements that one session knows by name."""

    def __init__(
        self, connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]", threshold: int
    ) -> None:
        self._line = connection.pgconn
        self._threshold = threshold
        self._adapted = Transformer(connection)
        self._uses: dict[bytes, int] = {}
        self._names: dict[Any, bytes] = {}

    def familiar(self, sql: bytes) -> bool:
        """Whether a statement was said so often that it is worth a name; this counts as once more."""
        uses = self._uses.get(sql, 0)
        if not uses and len(self._uses) >= MOST:
            return False
        self._uses[sql] = uses + 1
        return uses >= self._threshold

    def say(self, sql: bytes, values: list[Any]) -> PQGen[Rows]:
        """Have a statement carried out by its name, outside of any transaction; its rows."""
        try:
            return (yield from self._said(sql, values))
        except InvalidSqlStatementName:
            # Somebody has had the session forget its names, as DISCARD ALL does. Nothing was done.
            self._names.clear()
            return (yield from self._said(sql, values))

    def _said(self, sql: bytes, values: list[Any]) -> PQGen[Rows]:
        adapted = self._adapted
        told = adapted.dump_sequence(values, [PyFormat.AUTO] * len(values))
        formats, phrase = adapted.formats, (sql, adapted.types)
        name = self._names.get(phrase)
        if name is None:
            name = yield from self._named(sql, adapted.types)
            self._names[phrase] = name
        self._line.send_query_prepared(name, told, formats, Format.BINARY)
        result = yield from self._answer()
        adapted.set_pgresult(result)
        return adapted.load_rows(0, result.ntuples, tuple)

    def _named(self, sql: bytes, types: Any) -> PQGen[bytes]:
        """Give a statement its name, which is never another's: whoever has given it before meant the same."""
        name = b"semel_" + blake2b(sql + repr(types).encode(), digest_size=16).hexdigest().encode()
        self._line.send_prepare(name, sql, types)
        with suppress(DuplicatePreparedStatement):
            yield from self._answer()
        return name

    def _answer(self) -> PQGen[PGresult]:
        results = yield from execute(self._line)
        for result in results:  # a commit that fails comes after the rows
            if result.status not in GOOD:
                raise error_from_result(result)
        answer: PGresult = results[0]
        return answer
