"""The tables as a SAM template, with what every function of it needs to know."""

from collections.abc import Iterable
from typing import Any

from semel.provision import cloudformation
from semel.tables import Table

TRANSFORM = "AWS::Serverless-2016-10-31"


def text(tables: Iterable[Table], env: str) -> str:
    """The template as YAML."""
    return cloudformation.written(template(tables, env), env)


def template(tables: Iterable[Table], env: str) -> dict[str, Any]:
    """The template: functions added to it find the store and the tables by their environment."""
    listed = tuple(tables)
    plain = cloudformation.template(listed, env)
    head = {name: plain.pop(name) for name in ("AWSTemplateFormatVersion", "Description")}
    function = {"Environment": {"Variables": variables(listed, env)}}
    return head | {"Transform": TRANSFORM, "Globals": {"Function": function}} | plain


def variables(tables: Iterable[Table], env: str) -> dict[str, Any]:
    """The environment of every function."""
    url = {"Fn::Sub": "dynamodb://${AWS::Region}"}
    titles = {table.titled_by: {"Ref": cloudformation.logical(table)} for table in tables if table.titled_by}
    return {"SEMEL_URL": url, "SEMEL_ENV": env} | titles
