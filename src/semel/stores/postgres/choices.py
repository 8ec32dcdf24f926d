"""Indexes that a database's owner chooses: made and dropped while everybody works."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from semel.errors import WrongSchema
from semel.stores.choices import named
from semel.stores.postgres.address import PostgresAddress
from semel.stores.postgres.errors import DRIVER_ERRORS, translated
from semel.stores.postgres.layout import PostgresLayout
from semel.stores.postgres.statements import qualified

VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1::text)"
ANALYZED = "SELECT reltuples > 0 FROM pg_class WHERE oid = to_regclass($1::text)"


def choose(
    url: str, chosen: Sequence[str], dropped: Sequence[str], say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Make the indexes that are chosen and drop the others, as far as that is to be done; what was done."""
    with _opened(url) as choices:
        done = [did for name in chosen for did in choices.made(name, say)]
        return done + [did for name in dropped for did in choices.dropped(name)]


def missing(url: str, chosen: Sequence[str]) -> list[str]:
    """Which of the indexes that are chosen are not there."""
    with _opened(url) as choices:
        return [name for name in chosen if not choices.has(name)]


@contextmanager
def _opened(url: str) -> "Iterator[_Choices]":
    address = PostgresAddress.from_url(url)
    try:
        with closing(address.connect()) as connection:
            connection.autocommit = True
            # Whoever asks for it waits for as long as it takes; nobody else does.
            connection.execute("SET statement_timeout = 0")
            yield _Choices(connection, address.schema)
    except DRIVER_ERRORS as error:
        raise translated(error, address) from error


class _Choices:
    """The indexes of one schema that can be chosen."""

    def __init__(self, connection: "psycopg.Connection[Any]", schema: str | None) -> None:
        self._connection = connection
        self._schema = schema

    def has(self, name: str) -> bool:
        """Whether an index is there and can be used."""
        table, choice = named(name)
        return bool(self._valid(PostgresLayout(table).choice(choice.index)[0]))

    def made(self, name: str, say: Callable[[str], None]) -> Iterator[str]:
        """Make an index; one that was left unfinished is made anew."""
        table, choice = named(name)
        layout = PostgresLayout(table)
        title, columns = layout.choice(choice.index)
        on = qualified(layout.title, self._schema)
        valid = self._valid(title)
        if valid:
            return
        say(f"Making index {title}; it waits for transactions that are open ...")
        if valid is False:
            self._drop(title)
        self._run(f'CREATE INDEX CONCURRENTLY IF NOT EXISTS "{title}" ON {on} ({columns})')
        if not self._valid(title):
            raise WrongSchema(f"index {title} is being made by somebody else: run this again when it is")
        # Without it the server guesses how many rows each scope has. On a new table it would be taught that
        # there are none, and read the whole of it for each claim until it learns better.
        if self._one(ANALYZED, on):
            self._run(f"ANALYZE {on}")
        yield f"made index {title}"

    def dropped(self, name: str) -> Iterator[str]:
        """Drop an index."""
        table, choice = named(name)
        title, _ = PostgresLayout(table).choice(choice.index)
        if self._valid(title) is not None:
            self._drop(title)
            yield f"dropped index {title}"

    def _valid(self, title: str) -> bool | None:
        """Whether an index can be used; None where there is none."""
        found: bool | None = self._one(VALID, qualified(title, self._schema))
        return found

    def _one(self, query: str, name: str) -> Any:
        """What a query finds out about a table or an index; None where there is none."""
        found = psycopg.RawCursor(self._connection).execute(query.encode(), [name]).fetchone()
        return None if found is None else found[0]

    def _drop(self, title: str) -> None:
        self._run(f"DROP INDEX CONCURRENTLY IF EXISTS {qualified(title, self._schema)}")

    def _run(self, sql: str) -> None:
        self._connection.execute(sql.encode())
