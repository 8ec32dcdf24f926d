"""The tables as a CDK stack in Python, with the policy of the worker."""

import json
from collections.abc import Iterable, Iterator
from typing import Final

from semel.provision import iam, shape
from semel.provision.cloudformation import logical
from semel.provision.terraform import local
from semel.stores.dynamodb.layout import title
from semel.tables import Index, Table

HEADER = '''\
"""Tables of semel for environment {env}.

After cdk deploy, semel provision stamps each table for its environment.
"""

from typing import Any

from aws_cdk import {names}
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from constructs import Construct


class SemelTables(Stack):
    """Tables, which stay when their stack goes, and a policy for the worker."""

    def __init__(self, scope: Construct, construct_id: str, **kwargs: Any) -> None:
        super().__init__(scope, construct_id, **kwargs)
'''
RECOVERY = """\
dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True,
            )"""
# A text as Python has it.
python_text: Final = json.dumps
TYPES = {"S": "STRING", "N": "NUMBER", "B": "BINARY"}


def text(tables: Iterable[Table], env: str) -> str:
    """The stack as a module."""
    listed = tuple(tables)
    lines = [line for table in listed for line in _table(table, env)]
    lines += _policy(listed)
    names = ", ".join(["RemovalPolicy", "Stack", *(["Tags"] if any(table.tags for table in listed) else [])])
    return HEADER.format(env=env, names=names) + "".join(
        f"        {line}\n" if line else "\n" for line in lines
    )


def _table(table: Table, env: str) -> Iterator[str]:
    yield ""
    yield f"self.{local(table)} = dynamodb.Table("
    yield "    self,"
    yield f'    "{logical(table)}",'
    for name, value in _arguments(table, env):
        yield f"    {name}={value},"
    yield ")"
    for index in table.indexes:
        made = shape.index(table, index)
        yield f"self.{local(table)}.add_global_secondary_index("
        yield f"    index_name={python_text(index.name)},"
        for name, value in (*_keys(table, made), *_units(table), *_projection(made["Projection"])):
            yield f"    {name}={value},"
        yield ")"
    for key, value in table.tags.items():
        yield f"Tags.of(self.{local(table)}).add({python_text(key)}, {python_text(value)})"


def _arguments(table: Table, env: str) -> Iterator[tuple[str, str]]:
    yield "table_name", python_text(title(table, env))
    yield from _keys(table, shape.create_request(table, env))
    yield "billing_mode", f"dynamodb.BillingMode.{shape.billing(table)['BillingMode']}"
    yield from _units(table)
    if table.ttl:
        yield "time_to_live_attribute", python_text(table.ttl)
    if table.recoverable:
        yield "point_in_time_recovery_specification", RECOVERY
    yield "removal_policy", "RemovalPolicy.RETAIN"


def _keys(table: Table, made: shape.TableRequest) -> Iterator[tuple[str, str]]:
    words = {"HASH": "partition_key", "RANGE": "sort_key"}
    types = {each["AttributeName"]: TYPES[each["AttributeType"]] for each in shape.attributes(table)}
    for each in made["KeySchema"]:
        name = each["AttributeName"]
        kind = f"dynamodb.AttributeType.{types[name]}"
        yield words[each["KeyType"]], f"dynamodb.Attribute(name={python_text(name)}, type={kind})"


def _projection(made: shape.TableRequest) -> Iterator[tuple[str, str]]:
    yield "projection_type", f"dynamodb.ProjectionType.{made['ProjectionType']}"
    if "NonKeyAttributes" in made:
        yield "non_key_attributes", f"[{', '.join(map(python_text, made['NonKeyAttributes']))}]"


def _units(table: Table) -> Iterator[tuple[str, str]]:
    if table.capacity is not None:
        read, write = table.capacity
        yield "read_capacity", str(read)
        yield "write_capacity", str(write)


def _policy(tables: Iterable[Table]) -> Iterator[str]:
    def arn(table: Table) -> str:
        return f"self.{local(table)}.table_arn"

    def index_arn(table: Table, index: Index) -> str:
        return f'f"{{{arn(table)}}}/index/{index.name}"'

    yield ""
    yield "self.worker_policy = iam.ManagedPolicy("
    yield "    self,"
    yield '    "WorkerPolicy",'
    yield "    statements=["
    for each in iam.document(tables, iam.Role.WORKER, arn, index_arn)["Statement"]:
        yield "        iam.PolicyStatement("
        yield f"            sid={python_text(each['Sid'])},"
        yield "            actions=["
        yield from (f"                {python_text(action)}," for action in each["Action"])
        yield "            ],"
        yield "            resources=["
        yield from (f"                {resource}," for resource in each["Resource"])
        yield "            ],"
        yield "        ),"
    yield "    ],"
    yield ")"
