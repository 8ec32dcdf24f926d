"""The pure half: commands as requests, made from what the clock says when they are sent."""

from typing import Any, TypeAlias

from semel.core.commands import (
    ABSENT,
    NOW,
    Add,
    Delete,
    Get,
    Item,
    Put,
    Query,
    Transact,
    Update,
    Watch,
    Write,
)
from semel.errors import UsageError
from semel.stores.dynamodb.conditions import Conditions, Guard, Use
from semel.stores.dynamodb.layout import DynamoLayout
from semel.stores.dynamodb.queries import ItemSearch, Path, path
from semel.stores.dynamodb.time import ClockReading
from semel.stores.dynamodb.values import Value, number_value, size
from semel.tables import Table

RequestBody: TypeAlias = dict[str, Any]
AttributeChanges: TypeAlias = dict[str, Value | None]

NOTHING: AttributeChanges = {}

# DynamoDB's own limits.
TRANSACT_WRITES = 100
TRANSACT_BYTES = 4 * 1024 * 1024
ITEM_BYTES = 400 * 1024


class UpdateExpression:
    """The text of an UpdateExpression for changes of one shape, and the names in it."""

    def __init__(self, changes: AttributeChanges, once: AttributeChanges, counted: str | None) -> None:
        names = [*changes, *once]
        self.names: dict[str, str] = {f"#u{place}": name for place, name in enumerate(names)}
        sets, gone = [], []
        if counted is not None:
            self.names["#n"] = counted
            sets.append("#n = if_not_exists(#n, :start) + :by")
        for place, name in enumerate(names):
            if name in once:
                sets.append(f"#u{place} = if_not_exists(#u{place}, :u{place})")
            elif changes[name] is None:
                gone.append(f"#u{place}")
            else:
                sets.append(f"#u{place} = :u{place}")
        self.text = (f"SET {', '.join(sets)}" if sets else "") + (
            f" REMOVE {', '.join(gone)}" if gone else ""
        )


class DynamoPlan:
    """Everything about one table that does not change from command to command."""

    def __init__(self, asked: Table, kept: Table, env: str) -> None:
        self.table = asked
        self.layout: DynamoLayout = DynamoLayout(asked, kept, env)
        self.title: str = self.layout.title
        self.conditions: Conditions = Conditions(self.layout)
        self._changes: dict[Any, UpdateExpression] = {}
        self._paths: dict[str, Path] = {}

    # Reading

    def get(self, command: Get | Watch | Write) -> RequestBody:
        """GetItem, never from a replica."""
        key = self.layout.key(command.key, command.sort)
        return {"TableName": self.title, "Key": key, "ConsistentRead": True}

    def stamp(self) -> RequestBody:
        """GetItem of the table's stamp."""
        return {"TableName": self.title, "Key": self.layout.stamp_key(), "ConsistentRead": True}

    # Writing

    def put(self, command: Put, reading: ClockReading) -> RequestBody:
        """PutItem."""
        guard, values = self.conditions.guard(command.when, "write", reading)
        request: RequestBody = {
            "TableName": self.title,
            "Item": self.layout.item(command.key, command.sort, command.item, reading),
        }
        return _guarded(request, guard, guard.filled(values, reading))

    def delete(self, command: Delete, reading: ClockReading) -> RequestBody:
        """DeleteItem."""
        guard, values = self.conditions.guard(command.when, "change", reading)
        return _guarded(self._at(command), guard, guard.filled(values, reading))

    def update(self, command: Update, reading: ClockReading) -> RequestBody:
        """UpdateItem of an item that is there."""
        if command.set.get(self.table.expires, NOW) is None and not self.table.forever:
            raise self.layout.endless()
        guard, values = self.conditions.guard(command.when, "change", reading)
        changes = self.layout.changes(command.set, reading)
        return self._changed(command, guard, guard.filled(values, reading), changes)

    def add(self, command: Add, reading: ClockReading) -> RequestBody:
        """UpdateItem that counts on from what is alive, or makes what is not there."""
        guard, values = self.conditions.guard(command.when, self._manner(command), reading)
        field = self.layout.fields.get(command.attribute)
        if field is None:
            raise self.layout.unknown(command.attribute)
        changes = self.layout.changes(command.set, reading)
        if field.name in changes:
            raise UsageError(f"{command.attribute!r} cannot be set and added to at once")
        once = self.layout.changes(self._once(command), reading) | self.layout.beside(command.key)
        start = once.pop(field.name, None) or field.write(field.default or 0)
        once = {name: value for name, value in once.items() if value is not None and name not in changes}
        filled = guard.filled(values, reading)
        filled[":start"], filled[":by"] = start, number_value(command.by)
        return self._changed(command, guard, filled, changes, once=once, counted=field.name)

    def lasting(self, command: Add) -> bool:
        """Whether an addition says when an item that it makes will end, or need not say it."""
        expires = self.table.expires
        given = command.set.get(expires) is not None or command.once.get(expires) is not None
        return given or bool(self.table.forever)

    def _manner(self, command: Add) -> Use:
        """Whether the same request may make the item: it must then know its end, and give it to no other."""
        only_if_made = bool(self.table.forever) and self.table.expires in command.once
        return "add" if self.lasting(command) and not only_if_made else "change"

    def _once(self, command: Add) -> Item:
        """What is written where it is missing; on an item that stays for ever, its end is not missing."""
        if not self.table.forever:
            return command.once
        return {name: value for name, value in command.once.items() if name != self.table.expires}

    def _at(self, command: Write) -> RequestBody:
        return {"TableName": self.title, "Key": self.layout.key(command.key, command.sort)}

    def _changed(
        self,
        command: Write,
        guard: Guard,
        filled: dict[str, Value],
        changes: AttributeChanges,
        *,
        once: AttributeChanges = NOTHING,
        counted: str | None = None,
    ) -> RequestBody:
        request = self._at(command)
        gone = tuple([value is None for value in changes.values()])
        shape = (tuple(changes), gone, tuple(once), counted)
        change = self._changes.get(shape)
        if change is None:
            change = self._changes[shape] = UpdateExpression(changes, once, counted)
        for place, value in enumerate((*changes.values(), *once.values())):
            if value is not None:
                filled[f":u{place}"] = value
        if change.text:
            request["UpdateExpression"] = change.text
        return _guarded(request, guard, filled, guard.names | change.names)

    # Several

    def search(self, command: Query) -> ItemSearch:
        """A query of this table or of one of its indexes."""
        way = self._paths.get(command.index)
        if way is None:
            way = self._paths[command.index] = path(self.layout, self.table.index(command.index))
        return ItemSearch(self.layout, self.conditions, way, command)

    def over(self, reading: ClockReading) -> RequestBody:
        """Scan for the keys of what has expired."""
        request: RequestBody = {"TableName": self.title, "FilterExpression": "#x <= :now"}
        names = {f"#k{place}": name for place, name in enumerate(self.layout.stamp_key())}
        request["ProjectionExpression"] = ", ".join(names)
        request["ExpressionAttributeNames"] = names | {"#x": self.layout.expires.name}
        request["ExpressionAttributeValues"] = self._now(reading)
        return request

    def sweep(self, key: dict[str, Value], reading: ClockReading) -> RequestBody:
        """DeleteItem of what has expired, if it is still so."""
        return {
            "TableName": self.title,
            "Key": key,
            "ConditionExpression": "#x <= :now",
            "ExpressionAttributeNames": {"#x": self.layout.expires.name},
            "ExpressionAttributeValues": self._now(reading),
        }

    def _now(self, reading: ClockReading) -> dict[str, Value]:
        return {":now": self.layout.expires.compared()(reading.earliest)}


def _guarded(
    request: RequestBody, guard: Guard, filled: dict[str, Value], names: dict[str, str] | None = None
) -> RequestBody:
    """The request with its condition, and with what stands for names and values in it."""
    if guard.text:
        request["ConditionExpression"] = guard.text
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    names = guard.names if names is None else names
    if names:
        request["ExpressionAttributeNames"] = names
    if filled:
        request["ExpressionAttributeValues"] = filled
    return request


def afresh(command: Add) -> Put:
    """What an addition writes where there is nothing, or only what has expired."""
    first = (command.once.get(command.attribute) or 0) + command.by
    item = command.once | command.set | {command.attribute: first}
    return Put(command.table, command.key, item, ABSENT, command.sort)


def check_count(command: Transact) -> None:
    """Refuse a transaction of more writes than DynamoDB makes at once."""
    if len(command.writes) > TRANSACT_WRITES:
        raise UsageError(
            f"a transaction of {len(command.writes)} writes is more than the {TRANSACT_WRITES} that DynamoDB "
            "makes at once: split it, or use a batch where each may stand alone"
        )


def check_sizes(actions: list[RequestBody]) -> None:
    """Refuse a transaction that is larger than DynamoDB takes."""
    total = 0
    for action in actions:
        for request in action.values():
            values = request.get("Item") or request["Key"] | request.get("ExpressionAttributeValues", {})
            bytes_ = size(values)
            if bytes_ > ITEM_BYTES:
                raise too_large(f"an item of about {bytes_} bytes for {request['TableName']}")
            total += bytes_
    if total > TRANSACT_BYTES:
        raise UsageError(f"a transaction of about {total} bytes is more than the 4 MB that DynamoDB takes")


def too_large(what: str) -> UsageError:
    """The error for an item that DynamoDB has no room for."""
    return UsageError(
        f"{what} is more than the 400 KB that DynamoDB keeps in one; results go elsewhere with overflow="
    )
