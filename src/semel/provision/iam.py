"""The least permissions of each role: exact actions on exact tables and indexes."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import msgspec

from semel.stores.dynamodb.layout import title
from semel.tables import Table


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

    def arn(table: Table, path: str) -> str:
        return f"arn:aws:dynamodb:{region}:{account}:table/{title(table, env)}{path}"

    return document(tables, role, arn)


def document(tables: Iterable[Table], role: Role, arn: Callable[[Table, str], Any]) -> dict[str, Any]:
    """The policy of a role, with resources as somebody else writes them: a table, and a path below it."""
    listed, rights = tuple(tables), RIGHTS[role]
    plain = [arn(table, "") for table in listed if table.sort is None]
    paged = [arn(table, "") for table in listed if table.sort is not None]
    indexes = [arn(table, f"/index/{index.name}") for table in listed for index in table.indexes]
    statements = (
        ("Records", rights.items + rights.table, plain),
        ("Pages", rights.items + rights.pages + rights.table, paged),
        ("Indexes", rights.pages, indexes),
    )
    allowed = [_allow(*each) for each in statements if each[1] and each[2]]
    return {"Version": "2012-10-17", "Statement": allowed}


def _allow(sid: str, actions: Iterable[str], resources: list[Any]) -> dict[str, Any]:
    allowed = [f"dynamodb:{action}" for action in sorted(actions)]
    return {"Sid": sid, "Effect": "Allow", "Action": allowed, "Resource": resources}
