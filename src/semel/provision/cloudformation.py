"""The tables as a CloudFormation template, with the policy of the worker."""

import json
from collections.abc import Iterable
from typing import Any

from semel.core.extras import require
from semel.provision import iam, shape
from semel.tables import Index, Table

HEADER = """\
# Tables of semel for environment {env}.
# No template can write an item: after the deployment, semel provision stamps each table for its environment.
"""
VERSION = "2010-09-09"


def text(tables: Iterable[Table], env: str) -> str:
    """The template as YAML."""
    return written(template(tables, env), env)


def written(template: dict[str, Any], env: str) -> str:
    """A template as YAML, with its heading."""
    return HEADER.format(env=env) + yaml(template)


def yaml(template: dict[str, Any]) -> str:
    """A template as YAML."""
    # Copied by way of JSON: what stands in it twice would be an alias, which CloudFormation does not know.
    plain = json.loads(json.dumps(template))
    text: str = require("yaml", "cli").safe_dump(plain, sort_keys=False, width=110)
    return text


def template(tables: Iterable[Table], env: str) -> dict[str, Any]:
    """The template."""
    listed = tuple(tables)
    resources = {logical(table): resource(table, env) for table in listed}
    return {
        "AWSTemplateFormatVersion": VERSION,
        "Description": f"Tables of semel for environment {env}",
        "Resources": resources | {"WorkerPolicy": worker_policy(listed)},
        "Outputs": {"WorkerPolicyArn": {"Value": {"Ref": "WorkerPolicy"}}},
    }


def logical(table: Table) -> str:
    """A table's name within the template, such as LedgerTable."""
    return "".join(word.capitalize() for word in table.name.replace("_", "-").split("-")) + "Table"


def resource(table: Table, env: str) -> dict[str, Any]:
    """A table, which stays when its stack goes: without its ledger, everything would happen again."""
    return holding("AWS::DynamoDB::Table", properties(table, env), "Retain")


def holding(kind: str, properties: dict[str, Any], policy: str) -> dict[str, Any]:
    """A resource that holds something, which stays when its stack goes, or goes with it."""
    return {"Type": kind, "DeletionPolicy": policy, "UpdateReplacePolicy": policy, "Properties": properties}


def properties(table: Table, env: str) -> dict[str, Any]:
    """What CreateTable takes, and what it takes further requests to say."""
    made = shape.create_request(table, env)
    tags = made.pop("Tags", None)
    if table.ttl:
        made["TimeToLiveSpecification"] = shape.ttl_request(table, env)["TimeToLiveSpecification"]
    if table.recoverable:
        request = shape.pitr_request(table, env)
        made["PointInTimeRecoverySpecification"] = request["PointInTimeRecoverySpecification"]
    return made | ({"Tags": tags} if tags else {})


def worker_policy(tables: Iterable[Table]) -> dict[str, Any]:
    """The policy of the worker, on the tables of this template."""

    def arn(table: Table) -> Any:
        return {"Fn::GetAtt": [logical(table), "Arn"]}

    def index_arn(table: Table, index: Index) -> Any:
        return {"Fn::Sub": f"${{{logical(table)}.Arn}}/index/{index.name}"}

    document = iam.document(tables, iam.Role.WORKER, arn, index_arn)
    return {"Type": "AWS::IAM::ManagedPolicy", "Properties": {"PolicyDocument": document}}
