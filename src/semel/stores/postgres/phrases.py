"""Statements that are said again and again: the server knows them by name, and no cursor carries them.

A cursor decides anew each time whether to prepare, and sets itself up for results of every kind; that is
two fifths of what such a statement costs the client. Values are adapted, results are loaded and answers are
waited for by the driver here too. The cursor takes what is said seldom, or in a transaction of the caller's.

Several statements are sent together and answered together, in one round trip, and a name is given on the way.
If one fails, the server carries out none that follow.
"""

from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName, error_from_result
from psycopg.generators import execute, fetch_many, send
from psycopg.pq import DiagnosticField, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from semel.stores.postgres.clerk import Rows
from semel.stores.postgres.forms import Statement

GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
SYNC = ExecStatus.PIPELINE_SYNC
# Each takes memory of the server's, in every session. A table has a few; the rest is told as text.
MOST = 100

# What the server says of a name that the session does not know, and of one that it knows already.
UNKNOWN_NAME, KNOWN_NAME = b"26000", b"42P05"

ROLLBACK: Statement = b"ROLLBACK", None

# A statement, and the types of its values as they are sent.
Phrase: TypeAlias = tuple[bytes, Any]


class Said(NamedTuple):
    """A statement with its values as they are sent."""

    phrase: Phrase
    values: Any
    formats: Any


class Phrases:
    """The statements that one session knows by name. It is in no transaction when it is spoken to."""

    def __init__(
        self, connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]", threshold: int | None
    ) -> None:
        self._line = connection.pgconn
        self._threshold = threshold
        self._adapted = Transformer(connection)
        self._uses: dict[bytes, int] = {}
        self._names: dict[Phrase, bytes] = {}

    def familiar(self, sql: bytes) -> bool:
        """Whether a statement was said so often that it is worth a name; this counts as once more."""
        uses = self._uses.get(sql, 0)
        if self._threshold is None or (not uses and len(self._uses) >= MOST):
            return False
        self._uses[sql] = uses + 1
        return uses >= self._threshold

    # One statement

    def say(self, sql: bytes, values: list[Any]) -> PQGen[Rows]:
        """Have a statement carried out by its name; its rows."""
        try:
            return (yield from self._said(sql, values))
        except InvalidSqlStatementName:
            # Somebody has had the session forget its names, as DISCARD ALL does. Nothing was done.
            self._names.clear()
            return (yield from self._said(sql, values))

    def _said(self, sql: bytes, values: list[Any]) -> PQGen[Rows]:
        said = self._adapt(sql, values)
        name = self._names.get(said.phrase)
        if name is None:
            name = self._names[said.phrase] = yield from self._named(said.phrase)
        self._line.send_query_prepared(name, said.values, said.formats, Format.BINARY)
        return self._rows((yield from self._answer()))

    def _named(self, phrase: Phrase) -> PQGen[bytes]:
        name = _name(phrase)
        self._line.send_prepare(name, *phrase)
        with suppress(DuplicatePreparedStatement):
            yield from self._answer()
        return name

    def _answer(self) -> PQGen[PGresult]:
        results = yield from execute(self._line)
        _check(results)  # a commit that fails comes after the rows
        answer: PGresult = results[0]
        return answer

    # Several

    def say_together(self, statements: list[Statement]) -> PQGen[list[Rows]]:
        """Have several statements carried out, words like BEGIN among them; the rows of each."""
        by_name = [values is not None and self.familiar(sql) for sql, values in statements]
        try:
            return (yield from self._said_together(statements, by_name))
        except (InvalidSqlStatementName, DuplicatePreparedStatement):
            # The session knows fewer names than it was thought to, or more. Nothing was done: as text, then.
            return (yield from self._said_together(statements, [False] * len(statements)))

    def _said_together(self, statements: list[Statement], by_name: list[bool]) -> PQGen[list[Rows]]:
        # What failed within a transaction has left it open.
        undo = [ROLLBACK] if self._line.transaction_status == TransactionStatus.INERROR else []
        several = [self._adapt(sql, values or []) for sql, values in (*undo, *statements)]
        self._line.enter_pipeline_mode()
        naming: list[Phrase | None] = []
        for said, named in zip(several, [False] * len(undo) + by_name, strict=True):
            naming += self._send(said, named)
        self._line.pipeline_sync()
        results = yield from self._until_sync()
        self._line.exit_pipeline_mode()
        if any(result.status not in GOOD for result in results):
            self._forget(naming, results)
        _check(results)
        rows = [self._rows(result) for phrase, result in zip(naming, results, strict=True) if phrase is None]
        return rows[len(undo) :]

    def _send(self, said: Said, named: bool) -> list[Phrase | None]:
        """Send a statement, by its name if it is to have one; for each answer, the phrase that it names."""
        sql, types = said.phrase
        if not named:
            self._line.send_query_params(sql, said.values, types, said.formats, Format.BINARY)
            return [None]
        name = self._names.get(said.phrase)
        answers: list[Phrase | None] = [None]
        if name is None:
            name = self._names[said.phrase] = _name(said.phrase)
            self._line.send_prepare(name, sql, types)
            answers = [said.phrase, None]
        self._line.send_query_prepared(name, said.values, said.formats, Format.BINARY)
        return answers

    def _until_sync(self) -> PQGen[list[PGresult]]:
        yield from send(self._line)
        answers: list[PGresult] = []
        while answer := (yield from fetch_many(self._line)):
            if answer[0].status == SYNC:
                return answers
            answers += answer
        raise psycopg.OperationalError("the connection was closed")

    def _forget(self, naming: list[Phrase | None], results: list[PGresult]) -> None:
        """Forget the names that were not given after all, and all of them where the session has."""
        codes = [result.error_field(DiagnosticField.SQLSTATE) for result in results]
        if UNKNOWN_NAME in codes:
            self._names.clear()
        # A commit that fails is one result more.
        for phrase, result, code in zip(naming, results, codes, strict=False):
            if phrase is not None and result.status not in GOOD and code != KNOWN_NAME:
                self._names.pop(phrase, None)

    # Values and rows

    def _adapt(self, sql: bytes, values: list[Any]) -> Said:
        adapted = self._adapted
        told = adapted.dump_sequence(values, [PyFormat.AUTO] * len(values))
        return Said((sql, adapted.types), told, adapted.formats)

    def _rows(self, result: PGresult) -> Rows:
        self._adapted.set_pgresult(result)
        return self._adapted.load_rows(0, result.ntuples, tuple)


def _name(phrase: Phrase) -> bytes:
    """A name that is never another phrase's: whoever has given it before meant the same."""
    sql, types = phrase
    return b"semel_" + blake2b(sql + repr(types).encode(), digest_size=16).hexdigest().encode()


def _check(results: list[PGresult]) -> None:
    for result in results:
        if result.status not in GOOD:
            raise error_from_result(result)
