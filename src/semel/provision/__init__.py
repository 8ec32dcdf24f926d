"""Creates and checks the tables of a store, or writes them as templates for other tools.

shape     the description of a table in DynamoDB, and the requests that create it
dynamodb  compares tables with their description, and creates or changes what differs
formats   the description as text: CloudFormation, SAM, Terraform, CDK; and policies for IAM
cost      what a month of events costs, by the prices in `semel.stores.dynamodb`
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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
from semel.tables import LEDGER, Table, optional_index

if TYPE_CHECKING:
    from semel.aws.wire import Transport
    from semel.stores.sqlite.file import SQLiteFile

__all__ = ["ProvisionTarget", "problems", "provision"]


class ProvisionTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A store that may not exist yet, and the tables that it needs."""

    url: str
    env: str
    tables: tuple[Table, ...]
    clock: Clock
    chosen: tuple[str, ...] = ()
    """Optional indexes to create."""
    dropped: tuple[str, ...] = ()
    """Optional indexes to drop."""

    def __post_init__(self) -> None:
        for name in self.chosen + self.dropped:
            optional_index(name)

    @property
    def scheme(self) -> str:
        """The kind of store."""
        return self.url.partition(":")[0]


def provision(target: ProvisionTarget, say: Say = lambda _: None) -> list[str]:
    """Create and change the tables of a store as needed, and return what was done."""
    return _of(target)[0](target, say)


def problems(target: ProvisionTarget) -> list[Problem]:
    """Report what is missing or wrong in a store; nothing is changed."""
    return _of(target)[1](target)


def _of(target: ProvisionTarget) -> "tuple[Provision, Check]":
    if target.scheme not in SCHEMES:
        known = ", ".join(f"{name}:" for name in SCHEMES)
        raise errors.InvalidOption(
            f"{masked(target.url)!r} names no store that has tables to make; a URL begins with one of {known}"
        )
    return SCHEMES[target.scheme]


def _refuse_indexes(target: ProvisionTarget, why: str) -> None:
    for name in target.chosen + target.dropped:
        raise not_offered(name, why)


def _report(done: list[str], say: Say) -> list[str]:
    for did in done:
        say(f"{did[0].upper()}{did[1:]}.")
    return done


# DynamoDB


@contextmanager
def _dynamodb(target: ProvisionTarget) -> "Iterator[Transport]":
    """Open a client, and translate its errors as the store does."""
    from semel.aws.errors import ServiceError
    from semel.stores.dynamodb.address import parse
    from semel.stores.dynamodb.service import ErrorTranslator, why_no_recent
    from semel.stores.dynamodb.store import transport_of

    _refuse_indexes(target, why_no_recent())
    try:
        with closing(transport_of(parse(target.url), target.clock)) as transport:
            yield transport
    except ServiceError as error:
        translator = ErrorTranslator(target.url, target.env)
        raise translator.translated(error, "provisioning", {target.url: LEDGER}) from error


def _provision_dynamodb(target: ProvisionTarget, say: Say) -> list[str]:
    with _dynamodb(target) as client:
        return dynamodb.provision(client, target.tables, target.env, clock=target.clock, say=say)


def _check_dynamodb(target: ProvisionTarget) -> list[Problem]:
    with _dynamodb(target) as client:
        return dynamodb.problems(client, target.tables, target.env)


# SQLite: opening a file creates its tables


def _provision_sqlite(target: ProvisionTarget, say: Say) -> list[str]:
    from semel.stores.sqlite.file import SQLiteFile, choose, translated

    file = SQLiteFile.from_url(target.url)
    missing = any(each.remedy == PROVISION for each in _file_problems(target, file))
    open_store(target.url, env=target.env, clock=target.clock).close()
    done = [f"made the ledger in {file.path}"] if missing else []
    if target.chosen or target.dropped:
        try:
            with closing(file.writer()) as connection:
                done += choose(connection.execute, target.chosen, target.dropped)
        except sqlite3.Error as error:
            raise translated(error, file) from error
    return _report(done, say)


def _check_sqlite(target: ProvisionTarget) -> list[Problem]:
    from semel.stores.sqlite.file import SQLiteFile

    return list(_file_problems(target, SQLiteFile.from_url(target.url), target.chosen))


def _file_problems(
    target: ProvisionTarget, file: "SQLiteFile", chosen: tuple[str, ...] = ()
) -> Iterator[Problem]:
    from semel.stores.sqlite.file import names_in
    from semel.stores.sqlite.statements import SQLitePlan

    path = Path(file.path)
    if not path.is_file():
        yield Problem(f"there is no file {path}", PROVISION)
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            yield from _content_problems(target, file, connection)
            for name in chosen:
                table, _ = optional_index(name)
                if SQLitePlan(table).index_title(name) not in names_in(connection.execute):
                    yield missing_index(table, name)
    except sqlite3.Error as error:
        yield Problem(f"{path} cannot be read: {error}", "name another file with --url")


def _content_problems(
    target: ProvisionTarget, file: "SQLiteFile", connection: sqlite3.Connection
) -> Iterator[Problem]:
    from semel.stores.sqlite.file import LEAST_ROOM, SCHEMA, meta_of

    if (room := file.room()) < LEAST_ROOM:
        what = f"the disk that {file.path} is on is full, but for {room:,} bytes"
        yield Problem(what, "make room there, or move the file to a larger one while nobody has it open")
    meta = meta_of(connection.execute)
    if not meta:
        yield Problem(f"{file.path} holds no ledger", PROVISION)
        return
    stamped, schema = meta.get("environment"), meta.get("schema", 0)
    if stamped != target.env:
        yield Problem(f"{file.path} belongs to environment {stamped!r}", f"use --env {stamped}")
    if schema > SCHEMA:
        yield Problem(f"{file.path} was written by a newer semel", "upgrade semel")


# PostgreSQL


def _provision_postgres(target: ProvisionTarget, say: Say) -> list[str]:
    require("psycopg", "postgres")
    from semel.stores.postgres import schema

    done = _report(schema.migrate(target.url, target.env, target.tables), say)
    if target.chosen or target.dropped:
        done += _report(schema.choose(target.url, target.chosen, target.dropped, say), say)
    return done


def _check_postgres(target: ProvisionTarget) -> list[Problem]:
    require("psycopg", "postgres")
    from semel.stores.postgres import schema

    return schema.problems(target.url, target.env, target.tables, target.chosen)


# Redis has no tables: it is stamped, and its configuration checked


def _provision_redis(target: ProvisionTarget, say: Say) -> list[str]:
    from semel.stores.redis import interpreter, provision

    _refuse_indexes(target, interpreter.NO_RECENT)
    return _report(provision(target.url, target.env), say)


def _check_redis(target: ProvisionTarget) -> list[Problem]:
    from semel.stores.redis import interpreter, problems

    _refuse_indexes(target, interpreter.NO_RECENT)
    return problems(target.url, target.env)


Provision = Callable[[ProvisionTarget, Say], list[str]]
Check = Callable[[ProvisionTarget], list[Problem]]

SCHEMES: dict[str, tuple[Provision, Check]] = {
    "dynamodb": (_provision_dynamodb, _check_dynamodb),
    "sqlite": (_provision_sqlite, _check_sqlite),
    "postgresql": (_provision_postgres, _check_postgres),
    "postgres": (_provision_postgres, _check_postgres),
    "redis": (_provision_redis, _check_redis),
    "rediss": (_provision_redis, _check_redis),
}
"""How each kind of store is provisioned and checked, by the scheme of its URL."""
