"""The store of a URL as provisioning sees it: creates its tables, and reports problems."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from semel import errors
from semel.connect import open_store
from semel.core.clock import Clock
from semel.core.runtime import masked, require
from semel.model import PROVISION, Problem
from semel.provision import dynamodb
from semel.provision.dynamodb import Say
from semel.stores.shared import not_offered
from semel.stores.sql import missing_index
from semel.tables import Table, optional_index


class ProvisionTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A store that may not be there yet, and the tables it is to have."""

    url: str
    env: str
    tables: tuple[Table, ...]
    clock: Clock
    chosen: tuple[str, ...] = ()
    """Optional indexes that it is to have."""
    dropped: tuple[str, ...] = ()
    """Optional indexes that it is to have no more."""

    def __post_init__(self) -> None:
        for name in self.chosen + self.dropped:
            optional_index(name)

    @property
    def scheme(self) -> str:
        """What kind of store it is."""
        return self.url.partition(":")[0]


class StoreBuilder(Protocol):
    """What makes the tables of one kind of store."""

    def provision(self, say: Say) -> list[str]:
        """Make what is missing, and tell what was done."""
        ...

    def problems(self) -> list[Problem]:
        """What is not as it should be; nothing is changed."""
        ...

    def close(self) -> None:
        """Let go of connections, where any are kept."""


@contextmanager
def opened(target: ProvisionTarget) -> Iterator[StoreBuilder]:
    """What makes the tables of a store."""
    if target.scheme not in BUILDERS:
        known = ", ".join(f"{name}:" for name in BUILDERS)
        raise errors.InvalidOption(
            f"{masked(target.url)!r} names no store that has tables to make; a URL begins with one of {known}"
        )
    with closing(BUILDERS[target.scheme](target)) as builder:
        yield builder


class DynamoDB(StoreBuilder):
    """Tables in DynamoDB."""

    def __init__(self, target: ProvisionTarget) -> None:
        from semel.stores.dynamodb.address import parse
        from semel.stores.dynamodb.store import transport_of

        self._target = target
        self._transport = transport_of(parse(target.url), target.clock)

    def provision(self, say: Say) -> list[str]:
        """Make what is missing."""
        target = self._target
        self._check_choices()
        with self._translated_errors():
            return dynamodb.provision(self._transport, target.tables, target.env, clock=target.clock, say=say)

    def _check_choices(self) -> None:
        from semel.stores.dynamodb.prices import why_no_recent

        _refuse_chosen(self._target, why_no_recent())

    def problems(self) -> list[Problem]:
        """What is not as it should be."""
        self._check_choices()
        with self._translated_errors():
            return dynamodb.problems(self._transport, self._target.tables, self._target.env)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate an error of the service that is no finding, as the store does."""
        from semel.aws.errors import ServiceError
        from semel.stores.dynamodb.errors import ErrorTranslator

        try:
            yield
        except ServiceError as error:
            translator = ErrorTranslator(self._target.url, self._target.env)
            raise translator.translated(error, "provisioning", self._target.url) from error

    def close(self) -> None:
        """Let go of connections."""
        self._transport.close()


class SQLite(StoreBuilder):
    """Tables in a file, which whoever opens it makes."""

    def __init__(self, target: ProvisionTarget) -> None:
        from semel.stores.sqlite.address import SQLiteFile

        self._target = target
        self._file = SQLiteFile.from_url(target.url)
        self._path = Path(self._file.path)

    def provision(self, say: Say) -> list[str]:
        """Open the file, which makes what is missing, and then what is chosen."""
        found, target = list(self._found(())), self._target
        open_store(target.url, env=target.env, clock=target.clock).close()
        missing = [each for each in found if each.remedy == PROVISION]
        done = [f"made the ledger in {self._path}"] if missing else []
        return _reported([*done, *self._choose()], say)

    def _choose(self) -> list[str]:
        from semel.stores.sqlite.errors import translated
        from semel.stores.sqlite.schema import choose

        target = self._target
        if not target.chosen and not target.dropped:
            return []
        try:
            with closing(self._file.writer()) as connection:
                return list(choose(connection, target.chosen, target.dropped))
        except sqlite3.Error as error:
            raise translated(error, self._file) from error

    def problems(self) -> list[Problem]:
        """What is not as it should be."""
        return list(self._found(self._target.chosen))

    def _found(self, chosen: tuple[str, ...]) -> Iterator[Problem]:
        if not self._path.is_file():
            yield Problem(f"there is no file {self._path}", PROVISION)
            return
        try:
            with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True)) as connection:
                yield from self._wrong(connection)
                yield from self._unchosen(connection, chosen)
        except sqlite3.Error as error:
            yield Problem(f"{self._path} cannot be read: {error}", "name another file with --url")

    def _unchosen(self, connection: sqlite3.Connection, chosen: tuple[str, ...]) -> Iterator[Problem]:
        from semel.stores.sqlite.plan import SQLitePlan
        from semel.stores.sqlite.schema import has_index

        for name in chosen:
            table, _ = optional_index(name)
            if not has_index(connection, SQLitePlan(table).index_title(name)):
                yield missing_index(table, name)

    def _wrong(self, connection: sqlite3.Connection) -> Iterator[Problem]:
        from semel.stores.sqlite.address import LEAST_ROOM
        from semel.stores.sqlite.schema import SCHEMA, meta_of

        if (room := self._file.room()) < LEAST_ROOM:
            what = f"the disk that {self._path} is on is full, but for {room:,} bytes"
            yield Problem(what, "make room there, or move the file to a larger one while nobody has it open")
        meta = meta_of(connection)
        if not meta:
            yield Problem(f"{self._path} holds no ledger", PROVISION)
            return
        stamped, schema = meta.get("environment"), meta.get("schema", 0)
        if stamped != self._target.env:
            yield Problem(f"{self._path} belongs to environment {stamped!r}", f"use --env {stamped}")
        if schema > SCHEMA:
            yield Problem(f"{self._path} was written by a newer semel", "upgrade semel")


class PostgreSQL(StoreBuilder):
    """Tables in a database; semel's own are always among them."""

    def __init__(self, target: ProvisionTarget) -> None:
        require("psycopg", "postgres")
        self._target = target

    def provision(self, say: Say) -> list[str]:
        """Bring the schema to the newest, and make what is chosen."""
        from semel.stores.postgres import schema

        target = self._target
        done = _reported(schema.migrate(target.url, target.env, target.tables), say)
        if target.chosen or target.dropped:
            done += _reported(schema.choose(target.url, target.chosen, target.dropped, say), say)
        return done

    def problems(self) -> list[Problem]:
        """What is not as it should be."""
        from semel.stores.postgres import schema

        target = self._target
        return schema.problems(target.url, target.env, target.tables, target.chosen)


class Redis(StoreBuilder):
    """A Redis has no tables: it is stamped, and looked after for how it keeps what it is given."""

    def __init__(self, target: ProvisionTarget) -> None:
        require("redis", "redis")
        self._target = target

    def provision(self, say: Say) -> list[str]:
        """Stamp it."""
        from semel.stores.redis import schema

        self._check_choices()
        return _reported(schema.provision(self._target.url, self._target.env), say)

    def problems(self) -> list[Problem]:
        """What is not as it should be."""
        from semel.stores.redis import schema

        self._check_choices()
        return schema.problems(self._target.url, self._target.env)

    def _check_choices(self) -> None:
        from semel.stores.redis.interpreter import NO_RECENT

        _refuse_chosen(self._target, NO_RECENT)


def _refuse_chosen(target: ProvisionTarget, why: str) -> None:
    for name in target.chosen + target.dropped:
        raise not_offered(name, why)


def _reported(done: list[str], say: Say) -> list[str]:
    for did in done:
        say(f"{did[0].upper()}{did[1:]}.")
    return done


BUILDERS: dict[str, Callable[[ProvisionTarget], StoreBuilder]] = {
    "dynamodb": DynamoDB,
    "sqlite": SQLite,
    "postgresql": PostgreSQL,
    "postgres": PostgreSQL,
    "redis": Redis,
    "rediss": Redis,
}
