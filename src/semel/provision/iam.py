"""The least permissions of each role: exact actions on exact tables and indexes."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from semel.stores.dynamodb.layout import title
from semel.tables import Index, Table

PolicyStatement: TypeAlias = dict[str, Any]


class Role(StrEnum):
    """Who asks."""

    WORKER = "worker"
    """Claims, does the work, keeps what came of it."""
    INGRESS = "ingress"
    """Drops duplicates at the door: check_and_set and is_processed, and nothing else."""
    OPERATOR = "operator"
    """Runs the `semel` command: provisions, lists, settles, forgets."""
    READ_ONLY = "read-only"
    """Looks."""


class Rights(msgspec.Struct, frozen=True):
    """What a role may do to a table, and to the pages of those that have pages or indexes."""

    items: tuple[str, ...]
    pages: tuple[str, ...] = ()
    table: tuple[str, ...] = ()


LOOKING = ("DescribeContinuousBackups", "DescribeTable", "DescribeTimeToLive", "ListTagsOfResource")
BUILDING = ("CreateTable", "TagResource", "UpdateContinuousBackups", "UpdateTable", "UpdateTimeToLive")
# A transaction has no action of its own: it needs those of the writes in it, and semel's are these three.
WRITING = ("DeleteItem", "PutItem", "UpdateItem")

RIGHTS = {
    Role.WORKER: Rights(("GetItem", *WRITING), ("Query",)),
    Role.INGRESS: Rights(("GetItem", "PutItem")),
    Role.OPERATOR: Rights(
        ("GetItem", *WRITING, "Scan"),
        ("Query",),
        (*LOOKING, *BUILDING),
    ),
    Role.READ_ONLY: Rights(("GetItem", "Scan"), ("Query",), LOOKING),
}


def policy(
    tables: Iterable[Table], env: str, role: Role, *, region: str = "*", account: str = "*"
) -> dict[str, Any]:
    """The policy of a role; where a region or an account is not named, the table's name still is."""

    def arn(table: Table) -> str:
        return f"arn:aws:dynamodb:{region}:{account}:table/{title(table, env)}"

    def index_arn(table: Table, index: Index) -> str:
        return f"{arn(table)}/index/{index.name}"

    return document(tables, role, arn, index_arn)


def document(
    tables: Iterable[Table],
    role: Role,
    arn: Callable[[Table], Any],
    index_arn: Callable[[Table, Index], Any],
) -> dict[str, Any]:
    """The policy of a role, with resources as somebody else writes them."""
    listed = tuple(tables)
    statements = [*_on_tables(listed, RIGHTS[role], arn), *_on_indexes(listed, RIGHTS[role], index_arn)]
    return {"Version": "2012-10-17", "Statement": statements}


def _on_tables(
    tables: tuple[Table, ...], rights: Rights, arn: Callable[[Table], Any]
) -> Iterator[PolicyStatement]:
    """One statement for the tables without pages, one for those that have them."""
    for sid, paged in (("Records", False), ("Pages", True)):
        chosen = [table for table in tables if (table.sort is not None) is paged]
        actions = (*rights.items, *(rights.pages if paged else ()), *rights.table)
        if chosen:
            yield _statement(sid, actions, [arn(table) for table in chosen])


def _on_indexes(
    tables: tuple[Table, ...], rights: Rights, index_arn: Callable[[Table, Index], Any]
) -> Iterator[PolicyStatement]:
    resources = [index_arn(table, index) for table in tables for index in table.indexes]
    if resources and rights.pages:
        yield _statement("Indexes", rights.pages, resources)


def _statement(sid: str, actions: Iterable[str], resources: list[Any]) -> PolicyStatement:
    allowed = [f"dynamodb:{action}" for action in sorted(actions)]
    return {"Sid": sid, "Effect": "Allow", "Action": allowed, "Resource": resources}
