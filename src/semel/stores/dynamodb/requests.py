"""The requests of one table: what is sent for each command. No I/O is done here.

The texts of a write depend only on which attributes it has and which it expects, so they are built once; a
request then is these texts with its values.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from semel.core.commands import (
    ABSENT,
    NOW,
    Add,
    Delete,
    Expect,
    Get,
    Item,
    Presence,
    Put,
    Query,
    Update,
    Watch,
    Write,
    alive,
    cursor,
    ordering,
    place_of,
)
from semel.errors import UsageError
from semel.stores.dynamodb.items import (
    SPELLINGS,
    STAMP,
    TOKEN,
    ClockReading,
    Field,
    ItemFormat,
    Value,
    number,
    size,
)
from semel.stores.dynamodb.service import too_large
from semel.tables import FOREVER, Index, Table
from semel.tables.mapping import Form, Same

RequestBody: TypeAlias = dict[str, Any]
Names: TypeAlias = dict[str, str]
ItemValues: TypeAlias = dict[str, Value]
# Texts of expressions with the names in them, and the placeholders of values in their order.
Texts: TypeAlias = tuple[str, Names, tuple[str, ...]]

# DynamoDB's own limits.
TRANSACT_WRITES = 100
TRANSACT_BYTES = 4 * 1024 * 1024
ITEM_BYTES = 400 * 1024

EXISTS, MISSING = "attribute_exists(#p)", "attribute_not_exists(#p)"
BOUNDED: Final[dict[tuple[str, ...], str]] = {
    (":low", ":high"): "BETWEEN :low AND :high",
    (":low",): ">= :low",
    (":high",): "<= :high",
}

# How many texts of each kind are kept: one for each set of names that rules write.
SHAPES = 1024
NOTHING: Final[dict[str, Any]] = {}


class Expression:
    """Clauses that all have to hold, and what stands for names and values in them."""

    def __init__(self, *clauses: str) -> None:
        self.clauses: list[str] = [clause for clause in clauses if clause]
        self.names: Names = {}
        self.values: ItemValues = {}

    def name(self, name: str) -> str:
        """Return what stands for an attribute's name."""
        known = {stands: placeholder for placeholder, stands in self.names.items()}
        placeholder = known.get(name) or f"#c{len(known)}"
        self.names[placeholder] = name
        return placeholder

    def value(self, value: Value) -> str:
        """Return what stands for a value."""
        placeholder = f":c{len(self.values)}"
        self.values[placeholder] = value
        return placeholder

    @property
    def text(self) -> str:
        """The clauses joined; DynamoDB refuses superfluous brackets."""
        if len(self.clauses) < 2:
            return "".join(self.clauses)
        return " AND ".join([f"({each})" if " OR " in each else each for each in self.clauses])


class TableRequests:
    """The requests of one table of the rules."""

    def __init__(self, asked: Table, kept: Table, env: str) -> None:
        self.table = asked
        self.format: ItemFormat = ItemFormat(asked, kept, env)
        self.title: str = self.format.title
        self._partition = self.format.partition.name
        self._absent = _conditional({}, MISSING, {"#p": self._partition}, {})
        self.by_write: dict[type, Callable[[Any, ClockReading], RequestBody]] = {
            Put: self.put,
            Update: self.update,
            Delete: self.delete,
            Add: self.add,
        }

    def get(self, command: Get | Watch | Write) -> RequestBody:
        """GetItem, never from a replica."""
        return self._at(command) | {"ConsistentRead": True}

    def _at(self, command: Get | Watch | Write) -> RequestBody:
        return {"TableName": self.title, "Key": self.format.key(command.key, command.sort)}

    def stamp(self) -> RequestBody:
        """GetItem of the table's stamp."""
        return {"TableName": self.title, "Key": self.format.stamp_key(), "ConsistentRead": True}

    # Writes

    def put(self, command: Put, now: ClockReading) -> RequestBody:
        """PutItem."""
        item = self.format.item(command.key, command.sort, command.item, now)
        request = {"TableName": self.title, "Item": item}
        return request | self._absent if command.expect is ABSENT else self._guarded(request, command.expect)

    def delete(self, command: Delete, _: ClockReading) -> RequestBody:
        """DeleteItem."""
        return self._guarded(self._at(command), command.expect)

    def update(self, command: Update, now: ClockReading) -> RequestBody:
        """UpdateItem of an item that exists."""
        if command.set.get(self.table.expires, NOW) is None and not self.table.forever:
            raise self.format.endless()
        gone: list[str] = []
        changes = self.format.encode(command.set, gone, now)
        return self._guarded(self._at(command), command.expect, changes, gone)

    def add(self, command: Add, now: ClockReading) -> RequestBody:
        """UpdateItem that adds to what is there, or creates it; an item that exists keeps its end."""
        fmt, expires = self.format, self.table.expires
        field = fmt.field(command.attribute)
        if command.attribute in command.set:
            raise UsageError(f"{command.attribute!r} cannot be set and added to in one write")
        gone: list[str] = []
        always = {name: value for name, value in command.set.items() if name != expires}
        changes = fmt.encode(always, gone, now)
        once = fmt.encode({expires: command.set[expires]}, [], now) if expires in command.set else {}
        condition = Expression(self._creating(command, ends=bool(once)))
        once |= fmt.pieces(command.key)
        text, names, marks = _update_text(tuple(changes), tuple(once), tuple(gone), field.name)
        values = dict(zip(marks, [*changes.values(), *once.values()], strict=True))
        values |= {":start": {"N": number(field.default or 0)}, ":by": {"N": number(command.by)}}
        if command.cap is not None:
            values[":max"] = {"N": number(command.cap - command.by)}
            # What is missing counts as zero.
            fits = "attribute_not_exists(#n) OR " if command.by <= command.cap else ""
            condition.clauses.append(f"{fits}#n <= :max")
        used = {"#p": fmt.partition.name, "#x": fmt.expires.name}
        names = names | {mark: name for mark, name in used.items() if mark in condition.text}
        request = self._at(command) | {"UpdateExpression": text, "ReturnValues": "ALL_NEW"}
        return _conditional(request, condition.text, names, values)

    def _creating(self, command: Add, *, ends: bool) -> str:
        """Return the clause that says whether an addition may create its item, and change this one."""
        if command.by < 0 or not (ends or self.table.forever):
            return EXISTS
        # An item without an end has none, and gets none: see `_again` in `steps`.
        return f"{MISSING} OR attribute_exists(#x)" if ends and self.table.forever else ""

    def creates(self, command: Add) -> bool:
        """Return whether an addition says when an item that it creates ends, or need not say it."""
        return bool(self.table.forever) or command.set.get(self.table.expires) is not None

    # What a write expects

    def _guarded(
        self, request: RequestBody, expect: Expect, changes: ItemValues = NOTHING, gone: Sequence[str] = ()
    ) -> RequestBody:
        presence, expected, missing = EXISTS, NOTHING, list[str]()
        foreign: Expression | None = None
        if isinstance(expect, Presence):
            presence = MISSING if expect is ABSENT else ""
        elif self.format.is_plain:
            expected = self.format.encode(expect, missing, None)
        else:
            foreign = Expression(EXISTS)
            foreign.clauses += [self.equals(foreign, name, value) for name, value in expect.items()]
        text, condition, names, marks = _write_texts(
            self._partition, presence, tuple(changes), tuple(gone), tuple(expected), tuple(missing)
        )
        values = dict(zip(marks, [*changes.values(), *expected.values()], strict=True))
        if text:
            request["UpdateExpression"] = text
        if foreign is not None:
            condition, names = foreign.text, names | foreign.names
            values |= foreign.values
        return _conditional(request, condition, names, values)

    def equals(self, expression: Expression, attribute: str, value: Any) -> str:
        """Return the clause that holds of items whose attribute reads as this value.

        Other programs leave attributes out, which then have their defaults, and spell values otherwise.
        """
        field = self.format.field(attribute)
        if field.form is Form.JSON:
            raise UsageError(f"{attribute!r} is a body here, and is not compared")
        name, default = expression.name(field.name), field.default
        missing = f"attribute_not_exists({name})"
        if value is None:
            return missing if default is None else f"{missing} AND NOT {self._adopted(expression)}"
        ways = []
        if value != FOREVER:
            found = [expression.value(each) for each in self._spellings(field, value)]
            ways.append(f"{name} IN ({', '.join(found)})" if len(found) > 1 else f"{name} = {found[0]}")
        elif field is self.format.expires:
            ways.append(missing)
        if isinstance(default, Same):
            same = self.equals(expression, default.attribute, value)
            ways.append(f"{missing} AND {self._adopted(expression)} AND {same}")
        elif default is not None and default == value:
            ways.append(f"{missing} AND {self._adopted(expression)}")
        return " OR ".join(ways) or f"attribute_exists({name}) AND {missing}"

    def _spellings(self, field: Field, value: Any) -> list[Value]:
        """Return how semel writes a value, and how other programs may have written it."""
        written = self.written(field, value)
        others = SPELLINGS[field.form](value) if field.form in SPELLINGS else ()
        return [*{str(each): each for each in (written, *others)}.values()]

    def written(self, field: Field, value: Any) -> Value:
        """Write a value, or a key as it stands in the table."""
        return field.write(self.format.bare(value) if field is self.format.partition else value)

    def _adopted(self, expression: Expression) -> str:
        """Return the clause for items in which defaults stand for what they lack: see `ItemFormat.decode`."""
        token = expression.name(self.format.field(TOKEN).name)
        bodies = [f"attribute_exists({expression.name(body.name)})" for body in self.format.bodies]
        ways = " OR ".join([f"attribute_not_exists({token})", *bodies])
        return f"({ways})" if bodies else ways

    # Several items

    def expired(self, now: ClockReading) -> RequestBody:
        """Scan for the keys of what has expired."""
        keys = {f"#k{place}": name for place, name in enumerate(self.format.stamp_key())}
        request = {"FilterExpression": "#x <= :now", "ProjectionExpression": ", ".join(keys)}
        return self._of_expired(request, now, keys)

    def sweep(self, key: ItemValues, now: ClockReading) -> RequestBody:
        """DeleteItem of what has expired, if it still has."""
        return self._of_expired({"Key": key, "ConditionExpression": "#x <= :now"}, now, NOTHING)

    def _of_expired(self, request: RequestBody, now: ClockReading, names: Names) -> RequestBody:
        return request | {
            "TableName": self.title,
            "ExpressionAttributeNames": names | {"#x": self.format.expires.name},
            "ExpressionAttributeValues": {":now": self.format.present(now)},
        }


@lru_cache(SHAPES)
def _update_text(
    changes: tuple[str, ...], once: tuple[str, ...], gone: tuple[str, ...], counted: str
) -> Texts:
    """Return the text that sets attributes, some only where they are missing, and removes others."""
    names = {f"#u{place}": name for place, name in enumerate((*changes, *once, *gone))}
    values = tuple(f":u{place}" for place in range(len(changes) + len(once)))
    marks = [*names]
    sets = ["#n = if_not_exists(#n, :start) + :by"] if counted else []
    for place, (name, value) in enumerate(zip(marks, values, strict=False)):
        sets.append(
            f"{name} = {value}" if place < len(changes) else f"{name} = if_not_exists({name}, {value})"
        )
    text = f"SET {', '.join(sets)}" if sets else ""
    text += f" REMOVE {', '.join(marks[len(values) :])}" if gone else ""
    return text, names | ({"#n": counted} if counted else {}), values


@lru_cache(SHAPES)
def _write_texts(  # noqa: PLR0917 - the shape of a write
    partition: str,
    presence: str,
    changes: tuple[str, ...],
    gone: tuple[str, ...],
    expected: tuple[str, ...],
    missing: tuple[str, ...],
) -> tuple[str, str, Names, tuple[str, ...]]:
    """Return the texts of a change and of what it expects, their names, and the marks of their values."""
    text, names, marks = _update_text(changes, (), gone, "")
    expecting = {f"#e{place}": name for place, name in enumerate((*expected, *missing))}
    values = tuple(f":e{place}" for place in range(len(expected)))
    clauses = [presence, *[f"{name} = {value}" for name, value in zip(expecting, values, strict=False)]]
    clauses += [f"attribute_not_exists({name})" for name in [*expecting][len(expected) :]]
    named = names | expecting | ({"#p": partition} if presence else {})
    return text, " AND ".join(clauses), named, marks + values


def _conditional(request: RequestBody, text: str, names: Names, values: ItemValues) -> RequestBody:
    if text:
        request["ConditionExpression"] = text
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if names:
        request["ExpressionAttributeNames"] = names
    if values:
        request["ExpressionAttributeValues"] = values
    return request


def check_sizes(actions: list[RequestBody]) -> None:
    """Refuse a transaction that has more writes or bytes than DynamoDB takes."""
    if len(actions) > TRANSACT_WRITES:
        raise UsageError(
            f"a transaction of {len(actions)} writes is more than the {TRANSACT_WRITES} that DynamoDB "
            "takes in one: split it, or use a batch where each may stand alone"
        )
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


# Queries


class ItemSearch:
    """One query: its request, where it begins, and which of the items that it finds are meant."""

    def __init__(self, requests: TableRequests, command: Query) -> None:
        self._requests = requests
        self._format = fmt = requests.format
        self._command = command
        self._index = index = command.table.index(command.index)
        self._name = "" if index is None else self._index_name(index)
        self._lacks_index = index is not None and not self._name
        self._partition = fmt.partition if index is None else fmt.fields[index.partition]
        sort = command.table.sort if index is None else index.sort
        self._sort = None if sort is None else fmt.fields[sort]
        self._scans = command.key is None or self._lacks_index
        self.operation = "Scan" if self._scans else "Query"
        self.filters: bool = bool(command.equal or command.prefix) or self._lacks_index
        """Whether many items may have to be read to find one."""
        self.bounded: bool = command.most > 0 and not self._lacks_index
        """Whether a page ends after so many items were read; where an index is missing, none does."""
        self._check()

    def _index_name(self, index: Index) -> str:
        """Return the name of an index in the table that items are kept in; "" if it has none."""
        fmt = self._format
        if not fmt.shared:
            return index.name if any(there.name == index.name for there in fmt.kept.indexes) else ""
        # What items of other programs mean depends on what they lack, so that only whole ones can be read.
        wanted = (*[fmt.fields[name].name for name in index.key], None)
        return next((one.name for one in fmt.kept.indexes if (*one.key, one.carries) == wanted), "")

    def _check(self) -> None:
        """Refuse to ask an index for what it does not carry: items would seem to lack it."""
        index, table = self._index, self._format.asked
        if index is None or index.carries is None:
            return
        carried = {*table.key, table.expires, *index.key, *index.carries}
        for name in (*self._command.only, *self._command.equal):
            if name in self._format.fields and name not in carried:
                raise UsageError(
                    f"index {index.name!r} of table {table.name} does not carry {name!r}; "
                    "it leads to keys, by which the items can be read"
                )

    def request(self, now: ClockReading) -> RequestBody | None:
        """Return Query or Scan without its beginning and its limit; None if there is nothing to find."""
        command, fmt = self._command, self._format
        if command.low is not None and command.high is not None and _beyond(command.low, command.high):
            return None
        expression = self._filter(now)
        # An index is never read consistently.
        source = {"IndexName": self._name} if self._name else {"ConsistentRead": True}
        request: RequestBody = {"TableName": fmt.title, **source}
        if expression.clauses:
            request["FilterExpression"] = expression.text
        if not self._scans:
            request["KeyConditionExpression"] = self._range(expression)
            request["ScanIndexForward"] = not command.reverse
        if command.only and not fmt.shared:
            request["ProjectionExpression"] = ", ".join(map(expression.name, self._wanted()))
        return request | {
            "ExpressionAttributeNames": expression.names,
            "ExpressionAttributeValues": expression.values,
        }

    def _filter(self, now: ClockReading) -> Expression:
        """Return what items have to be; the filter of a Query may not name the key that it goes by."""
        fmt, command, expression = self._format, self._command, Expression()
        tacit = () if self._scans else (self._partition, self._sort)
        if fmt.expires not in tacit:
            end = expression.name(fmt.expires.name)
            expression.clauses.append(f"attribute_not_exists({end}) OR {end} > :now")
        if self._scans:
            partition = expression.name(fmt.partition.name)
            expression.clauses.append(f"{partition} <> :stamp")
            if beginning := fmt.bare_prefix(command.prefix) if command.prefix else "":
                placed = expression.value({"S": beginning})
                expression.clauses.append(f"begins_with({partition}, {placed})")
        equal = dict(command.equal)
        if self._index is not None and self._lacks_index:
            equal[self._index.partition] = command.key
        for attribute, value in equal.items():
            if fmt.field(attribute) not in tacit:
                expression.clauses.append(self._requests.equals(expression, attribute, value))
        if fmt.expires not in tacit:
            expression.values[":now"] = fmt.present(now)
        if self._scans:
            expression.values[":stamp"] = {"S": STAMP}
        return expression

    def _range(self, expression: Expression) -> str:
        """Return the key condition: one partition, and the bounds of the sort key."""
        command, sort, written = self._command, self._sort, self._requests.written
        text = f"{expression.name(self._partition.name)} = :k"
        expression.values[":k"] = written(self._partition, command.key)
        bounds = {":low": command.low, ":high": command.high}
        bounds = {mark: bound for mark, bound in bounds.items() if bound is not None}
        if sort is None or not bounds:
            return text
        expression.values |= {mark: written(sort, bound) for mark, bound in bounds.items()}
        return f"{text} AND {expression.name(sort.name)} {BOUNDED[tuple(bounds)]}"

    def _wanted(self) -> list[str]:
        """Return what is read: what is wanted, the key, the end, and what `wanted` looks at."""
        table, command = self._format.asked, self._command
        wanted = (*ordering(table, self._index), table.expires, *command.only, *command.equal)
        return [self._format.field(attribute).name for attribute in dict.fromkeys(wanted)]

    # Pages

    def start(self) -> ItemValues | None:
        """Return where a later page begins."""
        command, table = self._command, self._format.asked
        if command.after is None:
            return None
        place = place_of(table, command.after, self._index)
        key, *sort = place[-len(table.key) :]
        if self._index is None and command.key not in (None, key):
            raise UsageError(f"not a cursor of this partition: {command.after!r}")
        own = self._format.key(str(key), sort[0] if sort else None)  # type: ignore[arg-type]  # as its kind is
        if not self._name:
            return own
        fields = [field for field in (self._partition, self._sort) if field is not None]
        entry = zip(fields, (command.key, *place), strict=False)
        return {field.name: self._requests.written(field, value) for field, value in entry} | own

    def wanted(self, item: Item, now: ClockReading) -> bool:
        """Return whether an item is meant, also by what a filter could not say."""
        command, sort = self._command, self._sort
        if alive(command.table, item, now[0]) is None:
            return False
        if self._scans and sort is not None and not _between(command, item.get(sort.attribute)):
            return False
        return all(item.get(name) == value for name, value in command.equal.items())

    def page(self, found: list[Item]) -> tuple[Item, ...]:
        """Return the items of a page in order; where an index is missing, within their page only."""
        if not self._lacks_index:
            return tuple(found)
        names = ordering(self._format.asked, self._index)
        return tuple(
            sorted(found, key=lambda item: [item[name] for name in names], reverse=self._command.reverse)
        )

    def cursor(self, item: Item) -> str:
        """Return where the page after this item begins."""
        return cursor(self._format.asked, item, self._index)


def _beyond(one: Any, other: Any) -> bool:
    try:
        return bool(one > other)
    except TypeError:
        raise UsageError(f"a sort key of this table is not both {one!r} and {other!r}") from None


def _between(command: Query, sort: str | float | None) -> bool:
    """Return whether a place in the order is within the bounds; an item without one is nowhere."""
    if sort is None or (command.low is not None and _beyond(command.low, sort)):
        return False
    return command.high is None or not _beyond(sort, command.high)
