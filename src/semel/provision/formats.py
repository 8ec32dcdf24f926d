"""The tables as text for other tools, with the policy of the worker: each made from `shape.description`."""

import json
from collections.abc import Callable, Iterable, Iterator
from textwrap import indent
from typing import Any, Final

from semel.core.runtime import require
from semel.provision import iam, shape
from semel.provision.shape import TableRequest
from semel.tables import Table

# What Terraform and the CDK both call these.
WORDS: Final = {
    "ReadCapacityUnits": "read_capacity",
    "WriteCapacityUnits": "write_capacity",
    "ProjectionType": "projection_type",
    "NonKeyAttributes": "non_key_attributes",
}


def logical(table: Table) -> str:
    """A table's name within a template, such as LedgerTable."""
    return "".join(word.capitalize() for word in table.name.replace("_", "-").split("-")) + "Table"


def local(table: Table) -> str:
    """A table's name within a Terraform module or a CDK stack."""
    return table.name.replace("-", "_")


# CloudFormation and SAM

VERSION: Final = "2010-09-09"
TRANSFORM: Final = "AWS::Serverless-2016-10-31"
YAML_HEADER: Final = """\
# Tables of semel for environment {env}.
# No template can write an item: after the deployment, semel provision stamps each table for its environment.
"""


def cloudformation(tables: Iterable[Table], env: str) -> str:
    """A CloudFormation template."""
    return YAML_HEADER.format(env=env) + yaml(template(tables, env))


def sam(tables: Iterable[Table], env: str) -> str:
    """A SAM template."""
    return YAML_HEADER.format(env=env) + yaml(sam_template(tables, env))


def yaml(template: dict[str, Any]) -> str:
    """A template as YAML."""
    # Copied by way of JSON: what stands in it twice would be an alias, which CloudFormation does not know.
    plain = json.loads(json.dumps(template))
    text: str = require("yaml", "cli").safe_dump(plain, sort_keys=False, width=110)
    return text


def template(tables: Iterable[Table], env: str) -> dict[str, Any]:
    """A CloudFormation template as a value."""
    listed = tuple(tables)
    policy = {"PolicyDocument": iam.document(listed, iam.Role.WORKER, _reference)}
    return {
        "AWSTemplateFormatVersion": VERSION,
        "Description": f"Tables of semel for environment {env}",
        "Resources": {logical(table): resource(table, env) for table in listed}
        | {"WorkerPolicy": {"Type": "AWS::IAM::ManagedPolicy", "Properties": policy}},
        "Outputs": {"WorkerPolicyArn": {"Value": {"Ref": "WorkerPolicy"}}},
    }


def sam_template(tables: Iterable[Table], env: str) -> dict[str, Any]:
    """A SAM template as a value: functions added to it find the store and the tables by their environment."""
    listed = tuple(tables)
    variables = {"SEMEL_URL": {"Fn::Sub": "dynamodb://${AWS::Region}"}, "SEMEL_ENV": env}
    variables |= {table.titled_by: {"Ref": logical(table)} for table in listed if table.titled_by}
    plain = template(listed, env)
    head = {name: plain.pop(name) for name in ("AWSTemplateFormatVersion", "Description")}
    function = {"Environment": {"Variables": variables}}
    return head | {"Transform": TRANSFORM, "Globals": {"Function": function}} | plain


def resource(table: Table, env: str) -> dict[str, Any]:
    """A table, which stays when its stack goes: without its ledger, everything would happen again."""
    return holding("AWS::DynamoDB::Table", shape.description(table, env), "Retain")


def holding(kind: str, properties: dict[str, Any], policy: str) -> dict[str, Any]:
    """A resource that holds something, which stays when its stack goes, or goes with it."""
    return {"Type": kind, "DeletionPolicy": policy, "UpdateReplacePolicy": policy, "Properties": properties}


def _reference(table: Table, path: str) -> dict[str, Any]:
    name = logical(table)
    return {"Fn::Sub": f"${{{name}.Arn}}{path}"} if path else {"Fn::GetAtt": [name, "Arn"]}


# Terraform, laid out as terraform fmt does

HCL_HEADER: Final = """\
# Tables of semel for environment {env}.
# After terraform apply, semel provision stamps each table for its environment.

"""
HCL_WORDS: Final = WORDS | {"HASH": "hash_key", "RANGE": "range_key"}


class Raw(str):
    """An expression, which stands as it is."""

    __slots__ = ()


def terraform(tables: Iterable[Table], env: str) -> str:
    """A Terraform module."""
    listed = tuple(tables)
    statements = [
        _block(
            "statement",
            {"sid": each["Sid"], "effect": "Allow", "actions": each["Action"], "resources": each["Resource"]},
        )
        for each in iam.document(listed, iam.Role.WORKER, _hcl_arn)["Statement"]
    ]
    document = Raw("data.aws_iam_policy_document.semel_worker.json")
    policy = {"name": f"semel-{env}-worker", "policy": document}
    blocks = [
        *(_hcl_table(table, env) for table in listed),
        _block('data "aws_iam_policy_document" "semel_worker"', {}, *statements),
        _block('resource "aws_iam_policy" "semel_worker"', policy),
    ]
    return HCL_HEADER.format(env=env) + "\n".join(blocks)


def _hcl_arn(table: Table, path: str) -> Raw:
    arn = f"aws_dynamodb_table.{local(table)}.arn"
    return Raw(f'"${{{arn}}}{path}"' if path else arn)


def _hcl_table(table: Table, env: str) -> str:
    """A table, which terraform destroy refuses: without its ledger, everything would happen again."""
    made = shape.description(table, env)
    values = {"name": made["TableName"], "billing_mode": made["BillingMode"], **_hcl_shape(made)}
    if table.tags:
        values["tags"] = table.tags
    return _block(f'resource "aws_dynamodb_table" "{local(table)}"', values, *_hcl_parts(table, made))


def _hcl_parts(table: Table, made: TableRequest) -> Iterator[str]:
    for each in made["AttributeDefinitions"]:
        yield _block("attribute", {"name": each["AttributeName"], "type": each["AttributeType"]})
    for each in made.get("GlobalSecondaryIndexes", ()):
        yield _block("global_secondary_index", {"name": each["IndexName"], **_hcl_shape(each)})
    if table.ttl:
        yield _block("ttl", {"attribute_name": table.ttl, "enabled": True})
    if table.recoverable:
        yield _block("point_in_time_recovery", {"enabled": True})
    yield _block("lifecycle", {"prevent_destroy": True})


def _hcl_shape(made: TableRequest) -> dict[str, Any]:
    """What tables and indexes have alike."""
    keys = {each["KeyType"]: each["AttributeName"] for each in made["KeySchema"]}
    found = keys | made.get("Projection", {}) | made.get("ProvisionedThroughput", {})
    return {HCL_WORDS[name]: value for name, value in found.items()}


def _block(head: str, values: dict[str, Any], *blocks: str) -> str:
    groups = [_aligned(values), *blocks] if values else blocks
    return f"{head} {{\n" + indent("\n".join(groups), "  ") + "}\n"


def _aligned(values: dict[str, Any]) -> str:
    """Values, their signs of equality one below the other; what takes several lines stands apart."""
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
CDK_KEYS: Final = {"HASH": "partition_key", "RANGE": "sort_key"}
CDK_RECOVERY: Final = """\
point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
    point_in_time_recovery_enabled=True,
)"""


def cdk(tables: Iterable[Table], env: str) -> str:
    """A module with a CDK stack."""
    listed = tuple(tables)
    names = ["RemovalPolicy", "Stack", *(["Tags"] if any(table.tags for table in listed) else [])]
    parts = [*("\n".join(_cdk_table(table, env)) for table in listed), _cdk_policy(listed)]
    head = CDK_HEADER.format(env=env, names=", ".join(names))
    return head + indent("\n\n".join(parts), " " * 8) + "\n"


def _cdk_table(table: Table, env: str) -> Iterator[str]:
    made, name = shape.description(table, env), f"self.{local(table)}"
    types = {each["AttributeName"]: CDK_TYPES[each["AttributeType"]] for each in made["AttributeDefinitions"]}
    arguments = ["self", json.dumps(logical(table)), f"table_name={json.dumps(made['TableName'])}"]
    arguments += _cdk_shape(made, types)
    if table.ttl:
        arguments.append(f"time_to_live_attribute={json.dumps(table.ttl)}")
    if table.recoverable:
        arguments.append(CDK_RECOVERY)
    yield _call(f"{name} = dynamodb.Table", [*arguments, "removal_policy=RemovalPolicy.RETAIN"])
    for each in made.get("GlobalSecondaryIndexes", ()):
        index = [f"index_name={json.dumps(each['IndexName'])}", *_cdk_shape(each, types)]
        yield _call(f"{name}.add_global_secondary_index", index)
    for key, value in table.tags.items():
        yield f"Tags.of({name}).add({json.dumps(key)}, {json.dumps(value)})"


def _cdk_shape(made: TableRequest, types: dict[str, str]) -> Iterator[str]:
    """The arguments that tables and indexes have alike."""
    for each in made["KeySchema"]:
        word, name = CDK_KEYS[each["KeyType"]], each["AttributeName"]
        kind = f"dynamodb.AttributeType.{types[name]}"
        yield f"{word}=dynamodb.Attribute(name={json.dumps(name)}, type={kind})"
    if "BillingMode" in made:
        yield f"billing_mode=dynamodb.BillingMode.{made['BillingMode']}"
    for name, value in (made.get("ProvisionedThroughput", {}) | made.get("Projection", {})).items():
        constant = name == "ProjectionType"
        yield f"{WORDS[name]}={f'dynamodb.ProjectionType.{value}' if constant else json.dumps(value)}"


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
        for each in iam.document(tables, iam.Role.WORKER, _cdk_arn)["Statement"]
    ]
    arguments = ["self", '"WorkerPolicy"', _call("statements=", statements, "[]")]
    return _call("self.worker_policy = iam.ManagedPolicy", arguments)


def _cdk_arn(table: Table, path: str) -> str:
    arn = f"self.{local(table)}.table_arn"
    return f'f"{{{arn}}}{path}"' if path else arn


def _call(head: str, arguments: Iterable[str], ends: str = "()") -> str:
    """A call, or a list in brackets, with an argument a line."""
    return f"{head}{ends[0]}\n" + indent("".join(f"{each},\n" for each in arguments), "    ") + ends[1]


TEXTS: Final[dict[str, Callable[[Iterable[Table], str], str]]] = {
    "cloudformation": cloudformation,
    "sam": sam,
    "terraform": terraform,
    "cdk": cdk,
}
"""What writes each format."""
