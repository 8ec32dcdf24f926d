"""The tables as Terraform, with the policy of the worker."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from semel.provision import iam, shape
from semel.tables import Index, Table

HEADER = """\
# Tables of semel for environment {env}.
# After terraform apply, semel provision stamps each table for its environment.

"""


class Raw(str):
    """An expression, which stands as it is."""

    __slots__ = ()


class TerraformBlock(msgspec.Struct, frozen=True):
    """A block of HCL: its type and labels, then attributes, then blocks."""

    head: tuple[str, ...]
    attributes: dict[str, Any]
    blocks: tuple["TerraformBlock", ...] = ()


def text(tables: Iterable[Table], env: str) -> str:
    """The resources as HCL."""
    listed = tuple(tables)
    blocks = [*(resource(table, env) for table in listed), *worker_policy(listed, env)]
    return HEADER.format(env=env) + "\n".join(written(block) for block in blocks)


def local(table: Table) -> str:
    """A table's name within a module."""
    return table.name.replace("-", "_")


def resource(table: Table, env: str) -> TerraformBlock:
    """A table, which terraform destroy refuses: without its ledger, everything would happen again."""
    made = shape.create_request(table, env)
    attributes = {"name": made["TableName"], "billing_mode": made["BillingMode"]}
    attributes |= _keys(made) | _units(table)
    if table.tags:
        attributes["tags"] = table.tags
    return TerraformBlock(("resource", "aws_dynamodb_table", local(table)), attributes, tuple(_parts(table)))


def _keys(made: dict[str, Any]) -> dict[str, str]:
    words = {"HASH": "hash_key", "RANGE": "range_key"}
    return {words[each["KeyType"]]: each["AttributeName"] for each in made["KeySchema"]}


def _units(table: Table) -> dict[str, int]:
    if table.capacity is None:
        return {}
    read, write = table.capacity
    return {"read_capacity": read, "write_capacity": write}


def _parts(table: Table) -> Iterator[TerraformBlock]:
    for each in shape.attributes(table):
        yield TerraformBlock(("attribute",), {"name": each["AttributeName"], "type": each["AttributeType"]})
    for index in table.indexes:
        made = shape.index(table, index)
        attributes = {"name": index.name} | _keys(made) | _projection(made["Projection"]) | _units(table)
        yield TerraformBlock(("global_secondary_index",), attributes)
    if table.ttl:
        yield TerraformBlock(("ttl",), {"attribute_name": table.ttl, "enabled": True})
    if table.recoverable:
        yield TerraformBlock(("point_in_time_recovery",), {"enabled": True})
    yield TerraformBlock(("lifecycle",), {"prevent_destroy": True})


def _projection(made: dict[str, Any]) -> dict[str, Any]:
    words = {"ProjectionType": "projection_type", "NonKeyAttributes": "non_key_attributes"}
    return {words[name]: value for name, value in made.items()}


def worker_policy(tables: Iterable[Table], env: str) -> Iterator[TerraformBlock]:
    """The policy of the worker, on the tables of this module."""

    def arn(table: Table) -> Raw:
        return Raw(f"aws_dynamodb_table.{local(table)}.arn")

    def index_arn(table: Table, index: Index) -> Raw:
        return Raw(f'"${{{arn(table)}}}/index/{index.name}"')

    statements = [
        TerraformBlock(
            ("statement",),
            {"sid": each["Sid"], "effect": "Allow", "actions": each["Action"], "resources": each["Resource"]},
        )
        for each in iam.document(tables, iam.Role.WORKER, arn, index_arn)["Statement"]
    ]
    yield TerraformBlock(("data", "aws_iam_policy_document", "semel_worker"), {}, tuple(statements))
    document = Raw("data.aws_iam_policy_document.semel_worker.json")
    attributes = {"name": f"semel-{env}-worker", "policy": document}
    yield TerraformBlock(("resource", "aws_iam_policy", "semel_worker"), attributes)


# HCL, laid out as terraform fmt does.


def written(block: TerraformBlock, indent: str = "") -> str:
    """A block as text."""
    head = " ".join((block.head[0], *(json.dumps(label) for label in block.head[1:])))
    inner = indent + "  "
    groups = ["".join(_lines(block.attributes, inner))] if block.attributes else []
    groups += [written(each, inner) for each in block.blocks]
    return f"{indent}{head} {{\n" + "\n".join(groups) + f"{indent}}}\n"


def _lines(attributes: dict[str, Any], indent: str) -> Iterator[str]:
    """Attributes, their signs of equality one below the other; what takes several lines stands apart."""
    short = {name: value for name, value in attributes.items() if not isinstance(value, list | dict)}
    width = max(map(len, short), default=0)
    for name, value in short.items():
        yield f"{indent}{name.ljust(width)} = {_expression(value)}\n"
    for name, value in attributes.items():
        if isinstance(value, list):
            items = "".join(f"{indent}  {_expression(item)},\n" for item in value)
            yield f"{indent}{name} = [\n{items}{indent}]\n"
        elif isinstance(value, dict):
            named = {key if key.isidentifier() else json.dumps(key): each for key, each in value.items()}
            yield f"{indent}{name} = {{\n{''.join(_lines(named, indent + '  '))}{indent}}}\n"


def _expression(value: Any) -> str:
    return value if isinstance(value, Raw) else json.dumps(value)
