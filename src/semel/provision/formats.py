"""The tables as text for other tools, with the worker's policy, and the policies of each role.

Every format is made from `shape.description`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from textwrap import indent
from typing import Any, Final

from semel.core.runtime import require
from semel.provision import shape
from semel.provision.shape import TableRequest
from semel.stores.dynamodb.items import title
from semel.tables import Table


def logical(table: Table) -> str:
    """Return a table's name within a template, such as LedgerTable."""
    return "".join(word.capitalize() for word in table.name.replace("_", "-").split("-")) + "Table"


def local(table: Table) -> str:
    """Return a table's name within a Terraform module or a CDK stack."""
    return table.name.replace("-", "_")


def flat(described: TableRequest) -> dict[str, Any]:
    """Return the properties of a table or an index, with its keys, projection and units among them."""
    keys = {each["KeyType"]: each["AttributeName"] for each in described["KeySchema"]}
    parts = ("Projection", "ProvisionedThroughput", "TimeToLiveSpecification")
    return (
        described | keys | {name: value for part in parts for name, value in described.get(part, {}).items()}
    )


# Policies for IAM


class Role(StrEnum):
    """A group of callers with the same permissions."""

    WORKER = "worker"
    """Claims keys, runs the work and stores its results."""
    INGRESS = "ingress"
    """Drops duplicates at the door, with check_and_set and is_processed only."""
    OPERATOR = "operator"
    """Runs the `semel` command: creates tables, lists, resolves and forgets records."""
    READ_ONLY = "read-only"
    """Reads."""


INSPECTING = ("DescribeContinuousBackups", "DescribeTable", "DescribeTimeToLive", "ListTagsOfResource")
BUILDING = ("CreateTable", "TagResource", "UpdateContinuousBackups", "UpdateTable", "UpdateTimeToLive")
# A transaction has no action of its own: it needs those of the writes in it, and semel's are these three.
WRITING = ("DeleteItem", "PutItem", "UpdateItem")

# What a role may do to each table, and to tables with pages and to indexes.
RIGHTS: Final[dict[Role, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    Role.WORKER: (("GetItem", *WRITING), ("Query",)),
    Role.INGRESS: (("GetItem", "PutItem"), ()),
    Role.OPERATOR: (("GetItem", *WRITING, "Scan", *INSPECTING, *BUILDING), ("Query",)),
    Role.READ_ONLY: (("GetItem", "Scan", *INSPECTING), ("Query",)),
}


def policy(
    tables: Iterable[Table], env: str, role: Role, *, region: str = "*", account: str = "*"
) -> dict[str, Any]:
    """Return the policy of a role, with exact actions on exact tables and indexes."""

    def arn(table: Table, path: str) -> str:
        return f"arn:aws:dynamodb:{region}:{account}:table/{title(table, env)}{path}"

    return policy_document(tables, role, arn)


def policy_document(tables: Iterable[Table], role: Role, arn: Callable[[Table, str], Any]) -> dict[str, Any]:
    """Return the policy of a role; `arn` writes the resource of a table and a path below it."""
    listed, (actions, paging) = tuple(tables), RIGHTS[role]
    plain = [arn(table, "") for table in listed if table.sort is None]
    paged = [arn(table, "") for table in listed if table.sort is not None]
    indexes = [arn(table, f"/index/{index.name}") for table in listed for index in table.indexes]
    statements = (
        ("Records", actions, plain),
        ("Pages", actions + paging, paged),
        ("Indexes", paging, indexes),
    )
    return {"Version": "2012-10-17", "Statement": [_allow(*each) for each in statements if all(each)]}


def _allow(sid: str, actions: Iterable[str], resources: list[Any]) -> dict[str, Any]:
    allowed = [f"dynamodb:{action}" for action in sorted(actions)]
    return {"Sid": sid, "Effect": "Allow", "Action": allowed, "Resource": resources}


# CloudFormation and SAM

VERSION: Final = "2010-09-09"
TRANSFORM: Final = "AWS::Serverless-2016-10-31"
YAML_HEADER: Final = """\
# Tables of semel for environment {env}.
# No template can write an item: after the deployment, semel provision stamps each table for its environment.
"""


def cloudformation(tables: Iterable[Table], env: str) -> str:
    """Return a CloudFormation template."""
    return YAML_HEADER.format(env=env) + yaml(template(tables, env))


def sam(tables: Iterable[Table], env: str) -> str:
    """Return a SAM template."""
    return YAML_HEADER.format(env=env) + yaml(sam_template(tables, env))


def yaml(template: dict[str, Any]) -> str:
    """Write a template as YAML."""
    # Copied as JSON: a value that occurs twice would become an alias, which CloudFormation rejects.
    plain = json.loads(json.dumps(template))
    text: str = require("yaml", "cli").safe_dump(plain, sort_keys=False, width=110)
    return text


def template(tables: Iterable[Table], env: str) -> dict[str, Any]:
    """Return a CloudFormation template as a value."""
    listed = tuple(tables)
    policy = {"PolicyDocument": policy_document(listed, Role.WORKER, _reference)}
    return {
        "AWSTemplateFormatVersion": VERSION,
        "Description": f"Tables of semel for environment {env}",
        "Resources": {logical(table): resource(table, env) for table in listed}
        | {"WorkerPolicy": {"Type": "AWS::IAM::ManagedPolicy", "Properties": policy}},
        "Outputs": {"WorkerPolicyArn": {"Value": {"Ref": "WorkerPolicy"}}},
    }


def sam_template(tables: Iterable[Table], env: str) -> dict[str, Any]:
    """Return a SAM template as a value. Functions added to it find the tables by their environment."""
    listed = tuple(tables)
    variables = {"SEMEL_URL": {"Fn::Sub": "dynamodb://${AWS::Region}"}, "SEMEL_ENV": env}
    variables |= {name: {"Ref": logical(table)} for name, table in shape.title_variables(listed).items()}
    plain = template(listed, env)
    head = {name: plain.pop(name) for name in ("AWSTemplateFormatVersion", "Description")}
    function = {"Environment": {"Variables": variables}}
    return head | {"Transform": TRANSFORM, "Globals": {"Function": function}} | plain


def resource(table: Table, env: str) -> dict[str, Any]:
    """Return a table that stays when its stack is deleted: without its ledger, effects would repeat."""
    return holding("AWS::DynamoDB::Table", shape.description(table, env), "Retain")


def holding(kind: str, properties: dict[str, Any], policy: str) -> dict[str, Any]:
    """Return a resource that is retained or deleted with its stack."""
    return {"Type": kind, "DeletionPolicy": policy, "UpdateReplacePolicy": policy, "Properties": properties}


def _reference(table: Table, path: str) -> dict[str, Any]:
    name = logical(table)
    return {"Fn::Sub": f"${{{name}.Arn}}{path}"} if path else {"Fn::GetAtt": [name, "Arn"]}


# Terraform, laid out as terraform fmt does

HCL_HEADER: Final = """\
# Tables of semel for environment {env}.
# After terraform apply, semel provision stamps each table for its environment.

"""
# In the order of the text.
HCL_WORDS: Final = {
    "TableName": "name",
    "IndexName": "name",
    "BillingMode": "billing_mode",
    "HASH": "hash_key",
    "RANGE": "range_key",
    "ProjectionType": "projection_type",
    "NonKeyAttributes": "non_key_attributes",
    "ReadCapacityUnits": "read_capacity",
    "WriteCapacityUnits": "write_capacity",
}


class Raw(str):
    """An expression, written without quotes."""

    __slots__ = ()


def terraform(tables: Iterable[Table], env: str) -> str:
    """Return a Terraform module."""
    listed = tuple(tables)
    words = {"sid": "Sid", "effect": "Effect", "actions": "Action", "resources": "Resource"}
    statements = [
        _block("statement", {word: each[name] for word, name in words.items()})
        for each in policy_document(listed, Role.WORKER, _hcl_arn)["Statement"]
    ]
    document = Raw("data.aws_iam_policy_document.semel_worker.json")
    policy = {"name": f"semel-{env}-worker", "policy": document}
    blocks = [
        *(_hcl_table(local(table), shape.description(table, env)) for table in listed),
        _block('data "aws_iam_policy_document" "semel_worker"', {}, *statements),
        _block('resource "aws_iam_policy" "semel_worker"', policy),
    ]
    return HCL_HEADER.format(env=env) + "\n".join(blocks)


def _hcl_arn(table: Table, path: str) -> Raw:
    arn = f"aws_dynamodb_table.{local(table)}.arn"
    return Raw(f'"${{{arn}}}{path}"' if path else arn)


def _hcl_table(name: str, described: TableRequest) -> str:
    """Return a table that terraform destroy refuses: without its ledger, effects would repeat."""
    values = _hcl_values(described)
    if "Tags" in described:
        values["tags"] = {tag["Key"]: tag["Value"] for tag in described["Tags"]}
    return _block(f'resource "aws_dynamodb_table" "{name}"', values, *_hcl_parts(described))


def _hcl_values(described: TableRequest) -> dict[str, Any]:
    found = flat(described)
    return {word: found[name] for name, word in HCL_WORDS.items() if name in found}


def _hcl_parts(described: TableRequest) -> Iterator[str]:
    for each in described["AttributeDefinitions"]:
        yield _block("attribute", {"name": each["AttributeName"], "type": each["AttributeType"]})
    for each in described.get("GlobalSecondaryIndexes", ()):
        yield _block("global_secondary_index", _hcl_values(each))
    if ttl := described.get("TimeToLiveSpecification"):
        yield _block("ttl", {"attribute_name": ttl["AttributeName"], "enabled": True})
    if "PointInTimeRecoverySpecification" in described:
        yield _block("point_in_time_recovery", {"enabled": True})
    yield _block("lifecycle", {"prevent_destroy": True})


def _block(head: str, values: dict[str, Any], *blocks: str) -> str:
    groups = [_aligned(values), *blocks] if values else blocks
    return f"{head} {{\n" + indent("\n".join(groups), "  ") + "}\n"


def _aligned(values: dict[str, Any]) -> str:
    """Align the equals signs of values, and put those of several lines last."""
    written = {name: _hcl(value) for name, value in values.items()}
    apart = [name for name, text in written.items() if "\n" in text]
    short = [name for name in written if name not in apart]
    width = max(map(len, short), default=0)
    lines = [f"{name.ljust(width)} = {written[name]}\n" for name in short]
    return "".join(lines + [f"{name} = {written[name]}\n" for name in apart])


def _hcl(value: Any) -> str:
    match value:
        case Raw():
            return value
        case list():
            return "[\n" + "".join(f"  {_hcl(each)},\n" for each in value) + "]"
        case dict():
            named = {key if key.isidentifier() else json.dumps(key): each for key, each in value.items()}
            return "{\n" + indent(_aligned(named), "  ") + "}"
        case _:
            return json.dumps(value)


# CDK, as ruff formats Python

CDK_HEADER: Final = '''\
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
CDK_TYPES: Final = {"S": "STRING", "N": "NUMBER", "B": "BINARY"}
# In the order of the text.
CDK_WORDS: Final = {
    "TableName": "table_name",
    "IndexName": "index_name",
    "HASH": "partition_key",
    "RANGE": "sort_key",
    "BillingMode": "billing_mode",
    "ReadCapacityUnits": "read_capacity",
    "WriteCapacityUnits": "write_capacity",
    "ProjectionType": "projection_type",
    "NonKeyAttributes": "non_key_attributes",
    "AttributeName": "time_to_live_attribute",
}
CDK_RECOVERY: Final = """\
point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
    point_in_time_recovery_enabled=True,
)"""


def cdk(tables: Iterable[Table], env: str) -> str:
    """Return a module with a CDK stack."""
    listed = tuple(tables)
    described = {table: shape.description(table, env) for table in listed}
    tagged = any("Tags" in each for each in described.values())
    names = ["RemovalPolicy", "Stack"] + ["Tags"] * tagged
    parts = ["\n".join(_cdk_table(*each)) for each in described.items()]
    parts.append(_cdk_policy(listed))
    head = CDK_HEADER.format(env=env, names=", ".join(names))
    return head + indent("\n\n".join(parts), " " * 8) + "\n"


def _cdk_table(table: Table, described: TableRequest) -> Iterator[str]:
    name, definitions = f"self.{local(table)}", described["AttributeDefinitions"]
    types = {each["AttributeName"]: CDK_TYPES[each["AttributeType"]] for each in definitions}
    arguments = ["self", json.dumps(logical(table)), *_cdk_arguments(described, types)]
    if "PointInTimeRecoverySpecification" in described:
        arguments.append(CDK_RECOVERY)
    yield _call(f"{name} = dynamodb.Table", [*arguments, "removal_policy=RemovalPolicy.RETAIN"])
    for each in described.get("GlobalSecondaryIndexes", ()):
        yield _call(f"{name}.add_global_secondary_index", _cdk_arguments(each, types))
    for tag in described.get("Tags", ()):
        yield f"Tags.of({name}).add({json.dumps(tag['Key'])}, {json.dumps(tag['Value'])})"


def _cdk_arguments(described: TableRequest, types: dict[str, str]) -> Iterator[str]:
    found = flat(described)
    for name, word in CDK_WORDS.items():
        if name in found:
            yield f"{word}={_cdk_value(name, found[name], types)}"


def _cdk_value(name: str, value: Any, types: dict[str, str]) -> str:
    match name:
        case "HASH" | "RANGE":
            kind = f"dynamodb.AttributeType.{types[value]}"
            return f"dynamodb.Attribute(name={json.dumps(value)}, type={kind})"
        case "BillingMode" | "ProjectionType":
            return f"dynamodb.{name}.{value}"
        case _:
            return json.dumps(value)


def _cdk_policy(tables: tuple[Table, ...]) -> str:
    statements = [
        _call(
            "iam.PolicyStatement",
            [
                f"sid={json.dumps(each['Sid'])}",
                _call("actions=", map(json.dumps, each["Action"]), "[]"),
                _call("resources=", each["Resource"], "[]"),
            ],
        )
        for each in policy_document(tables, Role.WORKER, _cdk_arn)["Statement"]
    ]
    arguments = ["self", '"WorkerPolicy"', _call("statements=", statements, "[]")]
    return _call("self.worker_policy = iam.ManagedPolicy", arguments)


def _cdk_arn(table: Table, path: str) -> str:
    arn = f"self.{local(table)}.table_arn"
    return f'f"{{{arn}}}{path}"' if path else arn


def _call(head: str, arguments: Iterable[str], ends: str = "()") -> str:
    """Write a call, or a list in brackets, with one argument per line."""
    return f"{head}{ends[0]}\n" + indent("".join(f"{each},\n" for each in arguments), "    ") + ends[1]


TEXTS: Final[dict[str, Callable[[Iterable[Table], str], str]]] = {
    "cloudformation": cloudformation,
    "sam": sam,
    "terraform": terraform,
    "cdk": cdk,
}
"""The function that writes each format."""
