"""A `Table` as DynamoDB has it: its description, the requests that create it, and its environment's stamp."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from semel.errors import InvalidOption
from semel.stores.dynamodb.layout import SCHEMA, DynamoLayout, title
from semel.tables import Column, Form, Index, Kind, Table

TableRequest: TypeAlias = dict[str, Any]

SCALARS = {Kind.TEXT: "S", Kind.NUMBER: "N", Kind.BYTES: "B"}


def description(table: Table, env: str) -> TableRequest:
    """A table in full, as CloudFormation has it: what CreateTable takes, and what further requests say."""
    made = create_request(table, env)
    tags = made.pop("Tags", None)
    if table.ttl:
        made |= ttl_request(table, env)
    if table.recoverable:
        made |= pitr_request(table, env)
    return made | ({"Tags": tags} if tags else {})


def create_request(table: Table, env: str) -> TableRequest:
    """The CreateTable request."""
    request = {
        "TableName": title(table, env),
        "AttributeDefinitions": attributes(table),
        "KeySchema": key_schema(table.partition, table.sort),
        **billing(table),
    }
    if table.indexes:
        request["GlobalSecondaryIndexes"] = [index(table, each) for each in table.indexes]
    if table.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in table.tags.items()]
    return request


def attributes(table: Table) -> list[TableRequest]:
    """The attributes that are part of a key, with their types."""
    names = dict.fromkeys(table.key)
    for each in table.indexes:
        names |= dict.fromkeys(each.key)
    return _defined(table, names)


def index_attributes(table: Table, each: Index) -> list[TableRequest]:
    """The attributes that are part of an index's key, with their types."""
    return _defined(table, each.key)


def _defined(table: Table, names: Iterable[str]) -> list[TableRequest]:
    return [
        {"AttributeName": column(table, name).name, "AttributeType": scalar(table, name)} for name in names
    ]


def column(table: Table, attribute: str) -> Column:
    """How an attribute stands in a table; one that holds another names its own as they are."""
    if table.holds is not None or attribute in table.key:
        return Column(name=attribute)
    return table.column(attribute)


def scalar(table: Table, name: str) -> str:
    """The type of an attribute that is part of a key."""
    kind = table.kinds.get(name)
    if kind not in SCALARS:
        raise InvalidOption(
            f"{name!r} is part of a key of table {table.name}, so it has to hold text, a number or bytes; "
            f"say which in the table's attributes"
        )
    return "S" if column(table, name).form is Form.ISO else SCALARS[kind]


def key_schema(partition: str, sort: str | None) -> list[TableRequest]:
    """A key as DynamoDB wants it told."""
    schema = [{"AttributeName": partition, "KeyType": "HASH"}]
    return schema if sort is None else [*schema, {"AttributeName": sort, "KeyType": "RANGE"}]


def billing(table: Table) -> TableRequest:
    """How a table is paid for."""
    if table.capacity is None:
        return {"BillingMode": "PAY_PER_REQUEST"}
    return {"BillingMode": "PROVISIONED", **throughput(table)}


def throughput(table: Table) -> TableRequest:
    """The units a second of a table that says how many."""
    if table.capacity is None:
        return {}
    read, write = table.capacity
    return {"ProvisionedThroughput": {"ReadCapacityUnits": read, "WriteCapacityUnits": write}}


def index(table: Table, each: Index) -> TableRequest:
    """A global secondary index; what lacks its key is not in it, and costs nothing."""
    names = [column(table, name).name for name in each.key]
    return {
        "IndexName": each.name,
        "KeySchema": key_schema(names[0], names[1] if len(names) > 1 else None),
        "Projection": projection(table, each),
        **throughput(table),
    }


def projection(table: Table, each: Index) -> TableRequest:
    """What of an item an index has besides keys: at the least its end, as what is over does not exist."""
    if each.carries is None:
        return {"ProjectionType": "ALL"}
    keys = {*table.key, *each.key}
    carried = [name for name in dict.fromkeys((table.expires, *each.carries)) if name not in keys]
    if not carried:
        return {"ProjectionType": "KEYS_ONLY"}
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": [column(table, name).name for name in carried]}


def ttl_request(table: Table, env: str) -> TableRequest:
    """The UpdateTimeToLive request."""
    specification = {"Enabled": True, "AttributeName": table.ttl}
    return {"TableName": title(table, env), "TimeToLiveSpecification": specification}


def pitr_request(table: Table, env: str) -> TableRequest:
    """The UpdateContinuousBackups request."""
    specification = {"PointInTimeRecoveryEnabled": True}
    return {"TableName": title(table, env), "PointInTimeRecoverySpecification": specification}


def stamp_key(table: Table, env: str) -> TableRequest:
    """Where a table's stamp is."""
    return DynamoLayout(table, table, env).stamp_key()


def stamp(table: Table, env: str) -> TableRequest:
    """The item that says which environment a table belongs to; it has no end."""
    return stamp_key(table, env) | {"environment": {"S": env}, "schema": {"N": str(SCHEMA)}}


def stamp_request(table: Table, env: str) -> TableRequest:
    """The PutItem request of the stamp, refused where there is one."""
    return {
        "TableName": title(table, env),
        "Item": stamp(table, env),
        "ConditionExpression": "attribute_not_exists(#key)",
        "ExpressionAttributeNames": {"#key": table.partition},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
