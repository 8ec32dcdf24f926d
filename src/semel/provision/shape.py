"""The description of a table in DynamoDB, from which requests, templates and checks are made.

How a `Table` is written in DynamoDB is read only here.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from semel.errors import InvalidOption
from semel.stores.dynamodb.items import SCHEMA, ItemFormat, title
from semel.tables import Index, Kind, Table
from semel.tables.mapping import Column, Form, mapped

TableRequest: TypeAlias = dict[str, Any]

SCALARS = {Kind.TEXT: "S", Kind.NUMBER: "N", Kind.BYTES: "B"}
# What CreateTable does not take, by the operation that sets it.
SEPARATE = {
    "UpdateTimeToLive": "TimeToLiveSpecification",
    "UpdateContinuousBackups": "PointInTimeRecoverySpecification",
}


def description(table: Table, env: str) -> TableRequest:
    """Describe a table with the properties that CloudFormation and DynamoDB's API have in common."""
    mapping = mapped(table)
    keys = [*table.key, *(name for each in table.indexes for name in each.key)]
    described = {
        "TableName": title(table, env),
        "AttributeDefinitions": definitions(table, dict.fromkeys(keys)),
        "KeySchema": key_schema(table.partition, table.sort),
        "BillingMode": "PAY_PER_REQUEST" if mapping.capacity is None else "PROVISIONED",
        **throughput(table),
    }
    if table.indexes:
        described["GlobalSecondaryIndexes"] = [index(table, each) for each in table.indexes]
    if table.ttl:
        described["TimeToLiveSpecification"] = {"Enabled": True, "AttributeName": table.ttl}
    if mapping.recoverable:
        described["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": True}
    if mapping.tags:
        described["Tags"] = [{"Key": key, "Value": value} for key, value in mapping.tags.items()]
    return described


def requests(table: Table, env: str) -> dict[str, TableRequest]:
    """Return the requests that create a table, by their operations and in order."""
    create = description(table, env)
    name = {"TableName": create["TableName"]}
    separate = {
        operation: name | {part: create.pop(part)} for operation, part in SEPARATE.items() if part in create
    }
    return {"CreateTable": create} | separate | {"PutItem": stamp_request(table, env)}


def create_request(table: Table, env: str) -> TableRequest:
    """Return the CreateTable request."""
    return requests(table, env)["CreateTable"]


def definitions(table: Table, names: Iterable[str]) -> list[TableRequest]:
    """Define attributes that are part of a key, with their types."""
    return [
        {"AttributeName": column(table, name).name, "AttributeType": scalar(table, name)} for name in names
    ]


def column(table: Table, attribute: str) -> Column:
    """Return the column of an attribute. A table that stands for another one names its own as they are."""
    mapping = mapped(table)
    return Column(name=attribute) if mapping.holds or attribute in table.key else mapping.column(attribute)


def scalar(table: Table, name: str) -> str:
    """Return the type of an attribute that is part of a key."""
    kind = table.kinds.get(name)
    if kind not in SCALARS:
        raise InvalidOption(
            f"{name!r} is part of a key of table {table.name}, so it has to hold text, a number or bytes; "
            f"say which in the table's attributes"
        )
    return "S" if column(table, name).form is Form.ISO else SCALARS[kind]


def key_schema(partition: str, sort: str | None = None) -> list[TableRequest]:
    """Return a key in the form that DynamoDB expects."""
    schema = [{"AttributeName": partition, "KeyType": "HASH"}]
    return schema if sort is None else [*schema, {"AttributeName": sort, "KeyType": "RANGE"}]


def throughput(table: Table) -> TableRequest:
    """Return the units per second of a table that has a fixed capacity."""
    capacity = mapped(table).capacity
    if capacity is None:
        return {}
    read, write = capacity
    return {"ProvisionedThroughput": {"ReadCapacityUnits": read, "WriteCapacityUnits": write}}


def index(table: Table, each: Index) -> TableRequest:
    """Describe a global secondary index. An item that lacks its key is not in it, and costs nothing."""
    return {
        "IndexName": each.name,
        "KeySchema": key_schema(*(column(table, name).name for name in each.key)),
        "Projection": projection(table, each),
        **throughput(table),
    }


def projection(table: Table, each: Index) -> TableRequest:
    """Return what an index holds besides keys: at least the end, since expired items are left out."""
    if each.carries is None:
        return {"ProjectionType": "ALL"}
    keys = {*table.key, *each.key}
    carried = [name for name in dict.fromkeys((table.expires, *each.carries)) if name not in keys]
    if not carried:
        return {"ProjectionType": "KEYS_ONLY"}
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": [column(table, name).name for name in carried]}


def title_variables(tables: Iterable[Table]) -> dict[str, Table]:
    """Return the tables that an environment variable can name, by that variable."""
    return {each.titled_by: each for each in map(mapped, tables) if each.titled_by}


def stamp_key(table: Table, env: str) -> TableRequest:
    """Return the key of a table's stamp."""
    return ItemFormat(table, table, env).stamp_key()


def stamp(table: Table, env: str) -> TableRequest:
    """Return the item that says which environment a table belongs to. It never expires."""
    return stamp_key(table, env) | {"environment": {"S": env}, "schema": {"N": str(SCHEMA)}}


def stamp_request(table: Table, env: str) -> TableRequest:
    """Return the PutItem request of the stamp, which is refused if there is a stamp."""
    return {
        "TableName": title(table, env),
        "Item": stamp(table, env),
        "ConditionExpression": "attribute_not_exists(#key)",
        "ExpressionAttributeNames": {"#key": table.partition},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
