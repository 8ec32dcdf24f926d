"""The pure half: commands as scripts with their keys and arguments, and what a script answers as items."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from semel.core.commands import (
    Absent,
    Add,
    After,
    AllOf,
    AnyOf,
    AtMost,
    Begins,
    Condition,
    Delete,
    Equals,
    Get,
    Item,
    OneOf,
    Past,
    Present,
    Put,
    Query,
    Sort,
    Update,
    Watch,
    Write,
    holds,
    outcome,
    place_of,
)
from semel.errors import RecordCorrupt, UsageError
from semel.stores.redis.indexes import KEPT, IndexEntry, Indexes
from semel.stores.redis.keys import KeyNames
from semel.stores.redis.protocol import RedisCommand
from semel.stores.redis.scripts import PAGE, READ, Binary, Bounds, ScriptCondition, ScriptWrite, time_argument
from semel.stores.shared import PYTHON_TYPES
from semel.tables import FOREVER, Kind, Table

# Lua's numbers are floats, which have every whole number up to here; larger ones travel, and stay, as text.
EXACT = 2**53

Packer: TypeAlias = Callable[[Any, Binary], Any]


# What is never so: a write that is only asked where it would bring its item.
NEVER: ScriptCondition = ("never",)

# Conditions that are not on one attribute.
OF_NO_ATTRIBUTE = frozenset({Present, AllOf, AnyOf})


class PlannedWrite(NamedTuple):
    """A write, what has to lead to the item that it leaves, and what has to be so still for it to be made."""

    plan: "RedisPlan"
    write: Write
    entries: tuple[IndexEntry, ...] = ()
    end: float | After | None = None
    """When that item ends."""
    still: ScriptCondition | None = None


class ItemShape(NamedTuple):
    """What is known of all items with the same names and types."""

    numbers: tuple[str, ...]
    packers: tuple[tuple[str, Packer], ...]
    gone: tuple[str, ...]


class RedisPlan:
    """Everything about one table that does not change from command to command."""

    def __init__(self, table: Table, prefix: str, scoped: bool = False) -> None:
        self.table = table
        self._key = table.key
        self.kinds: dict[str, Kind] = table.kinds
        self.sorted: bool = table.sort is not None
        self.numbered: bool = table.sort is not None and self.kinds[table.sort] is Kind.NUMBER
        self._naming = KeyNames(prefix, table.name, scoped)
        self.indexes: Indexes = Indexes(table, self._naming)
        self._columns = {name.encode(): (name, UNPACK[kind]) for name, kind in self.kinds.items()}
        self._quick = {
            word: (name, QUICK.get(unpack, unpack)) for word, (name, unpack) in self._columns.items()
        }
        # The script's own, of which nobody else knows.
        self._quick[KEPT.encode()] = (KEPT, bytes)
        self._shapes: dict[tuple[Any, ...], ItemShape] = {}
        self._makes: dict[type, Callable[[Any, Binary], ScriptWrite]] = {
            Put: self._put,
            Update: self._update,
            Add: self._add,
            Delete: self._delete,
        }
        self._clauses: dict[type, Callable[[Any, Any, Binary], ScriptCondition]] = {
            Present: lambda _, _command, _binary: ("present",),
            Equals: self._equals,
            OneOf: self._one_of,
            AtMost: lambda asked, _, _binary: ("at most", asked.attribute, float(asked.value)),
            Past: lambda asked, _, _binary: ("past", asked.attribute),
            Begins: lambda asked, _, _binary: ("begins", asked.attribute, asked.value),
            AllOf: self._all,
            AnyOf: self._any,
        }

    # Names

    def keys(self, command: Get | Watch | Write) -> tuple[bytes, ...]:
        """The key of an item, and that of its partition's index where there is a sort key."""
        if not self.sorted:
            return (self.partition(command.key),)
        index = self.partition(command.key)
        return index + b":" + self.member(command.sort).encode(), index

    def partition(self, key: str) -> bytes:
        """The key of a partition: the only item in it, or the order of all."""
        if not key:
            raise UsageError(f"the key {self.table.partition!r} of table {self.table.name} is empty")
        return self._naming.partition(key).encode()

    def member(self, sort: Sort | float) -> str:
        """A sort key as text."""
        if type(sort) is not (int if self.numbered else str):
            kind = "a whole number" if self.numbered else "a text"
            raise UsageError(f"the sort key of table {self.table.name} is {kind}, not {sort!r}")
        if self.numbered and not -EXACT <= sort <= EXACT:  # type: ignore[operator]
            raise UsageError(f"a sort key of Redis is a number up to 2**53, not {sort}")
        return str(sort)

    def sort_of(self, member: bytes) -> Sort:
        """The sort key that a text stands for."""
        return int(member) if self.numbered else member.decode()

    def place(self, name: str) -> tuple[str, Sort] | None:
        """The partition and sort key of an item's key; None for a key that is no item's."""
        parsed = self._naming.parse(name)
        if parsed is None or parsed[1][:1] != (":" if self.sorted else ""):
            return None
        partition, ending = parsed
        try:
            return partition, self.sort_of(ending[1:].encode()) if self.sorted else None
        except ValueError:
            return None

    # Reading

    def get(self, keys: Sequence[bytes], now: float | None) -> RedisCommand:
        """Read one item."""
        return RedisCommand(keys[0], (b"1", keys[0], time_argument(now)), READ)

    def item(self, flat: Sequence[bytes], key: str, sort: Sort) -> Item:
        """Names and values as an item. What cannot be read stays as it is, for the rules to find."""
        item: Item = {self.table.partition: key}
        if self.table.sort is not None:
            item[self.table.sort] = sort
        quick = self._quick
        try:
            for word, value in zip(flat[::2], flat[1::2]):  # noqa: B905 - every replay comes through here
                name, unpack = quick[word]
                item[name] = unpack(value)
        except UNREADABLE:
            self._read_carefully(flat, item)
        if self.indexes:
            item.pop(KEPT, None)
        return item

    def _read_carefully(self, flat: Sequence[bytes], item: Item) -> None:
        """An item that has unknown attributes, or values that are not what they should be."""
        for word, value in zip(flat[::2], flat[1::2], strict=True):
            if word in self._columns:
                name, unpack = self._columns[word]
                try:
                    item[name] = unpack(value)
                except UNREADABLE:
                    item[name] = value

    def alive(self, item: Item, now: float) -> bool:
        """Whether an item's time is not up; where it cannot be read, it is not taken for absent."""
        moment = item.get(self.table.expires)
        return not (isinstance(moment, int | float) and moment <= now)

    # Writing

    def planned_write(self, command: Write, now: float | None = None) -> "PlannedWrite":
        """A write that may move its item in an index; where it alone does not tell where to, it is asked."""
        known = self.indexes.known(command)  # type: ignore[arg-type]  # a Delete touches nothing
        if known is None:
            return PlannedWrite(self, command, still=NEVER)
        if now is not None:
            command = self.indexes.dated(command, now)
            known = self.indexes.known(command)  # type: ignore[arg-type]
        end = (known or {}).get(self.table.expires)
        return PlannedWrite(self, command, self.indexes.entries(known or {}), FOREVER if end is None else end)

    def planned_write_from(self, command: Write, before: Item | None, now: float) -> "PlannedWrite":
        """A write that is made only if its item still has the places in the indexes that it had."""
        self._refuse_unreadable(command, before or {})
        command = self.indexes.dated(command, now)
        after = outcome(command, before, now) or {}
        end = after.get(self.table.expires)
        entries = () if end is None else self.indexes.entries(after)
        return PlannedWrite(self, command, entries, end, self._still(command, before))

    def _refuse_unreadable(self, command: Write, before: Item) -> None:
        for name in (*self.indexes.attributes, self.table.expires):
            if isinstance(before.get(name), bytes):
                raise RecordCorrupt(command.key, f"its {name!r} is no {self.kinds[name]}")

    def _still(self, command: Write, before: Item | None) -> ScriptCondition:
        if before is None:
            return ("absent",)
        names = self.indexes.attributes
        if self.table.expires not in (command.set if isinstance(command, Update | Add) else ()):
            names = (*names, self.table.expires)
        return "all", [self._as_it_was(name, before.get(name)) for name in names]

    def _as_it_was(self, name: str, value: Any) -> ScriptCondition:
        return ("lacks", name) if value is None else ("equals", name, self._compared(name, value, []))

    def arguments(self, command: Write, binary: Binary) -> ScriptWrite:
        """One write as write.lua takes it."""
        write = self._makes[type(command)](command, binary)
        if command.when is not None:
            write.when = self.clause(command.when, command, binary)
        if self.sorted:
            write.member = str(command.sort)  # `keys` has seen to it
            if self.numbered:
                write.score = command.sort  # type: ignore[assignment]
        return write

    def _put(self, command: Put, binary: Binary) -> ScriptWrite:
        item, _ = self._changes(self._ending(command.item), binary)
        return ScriptWrite("put", self.table.expires, None, item)

    def _update(self, command: Update, binary: Binary) -> ScriptWrite:
        change = command.set
        if self.table.expires in change:
            change = self._ending(change)
        return ScriptWrite("update", self.table.expires, None, *self._changes(change, binary))

    def _add(self, command: Add, binary: Binary) -> ScriptWrite:
        once, set_ = command.once, command.set
        if self.table.forever and once.get(self.table.expires) is None:
            once = {**once, self.table.expires: FOREVER}
        if self.table.expires in set_:
            set_ = self._ending(set_)
        changes, gone = self._changes(set_, binary)
        once, _ = self._changes(once, binary)
        by = exact(command.by, binary)
        return ScriptWrite("add", self.table.expires, None, changes, gone, once, command.attribute, by)

    def _delete(self, _: Delete, _binary: Binary) -> ScriptWrite:
        return ScriptWrite("delete", self.table.expires)

    def _ending(self, item: Item) -> Item:
        """The item with an end: an item without one lives for ever, where its table lets it."""
        expires = self.table.expires
        if item.get(expires) is not None:
            return item
        if not self.table.forever:
            raise UsageError(f"an item of table {self.table.name} needs the attribute {expires!r}")
        return {**item, expires: FOREVER}

    def _changes(self, item: Item, binary: Binary) -> tuple[Item, Sequence[str]]:
        """Values as a script takes them, and the names of those that are to go."""
        # Items come in few shapes, and each shape is checked once.
        names = (*item, *map(type, item.values()))
        shape = self._shapes.get(names)
        if shape is None:
            shape = self._shapes[names] = self._learn(item)
        for name in shape.numbers:
            if not -EXACT <= item[name] <= EXACT:
                packers = (*shape.packers, *((each, exact) for each in shape.numbers))
                return _packed(item, packers, binary, shape.gone)
        return _packed(item, shape.packers, binary, shape.gone) if shape.packers else (item, shape.gone)

    def _learn(self, item: Item) -> ItemShape:
        numbers: list[str] = []
        packers: list[tuple[str, Packer]] = []
        gone: list[str] = []
        for name, value in item.items():
            kind = self._kind(name)
            if value is None:
                gone.append(name)
            elif name in self._key:
                packers.append((name, _nothing))  # the key itself says it
            elif type(value) is After and kind is Kind.NUMBER:
                continue
            elif not isinstance(value, PYTHON_TYPES[kind]):
                raise UsageError(f"{name!r} holds {kind}, not {type(value).__name__}")
            elif kind in PACK or isinstance(value, bool):
                packers.append((name, PACK.get(kind, exact)))
            elif kind is Kind.NUMBER:
                numbers.append(name)
        return ItemShape(tuple(numbers), tuple(packers), tuple(gone))

    def _kind(self, name: str) -> Kind:
        try:
            return self.kinds[name]
        except KeyError:
            known = ", ".join(self.kinds)
            raise UsageError(f"table {self.table.name} has no attribute {name!r}; it has {known}") from None

    # Conditions. Those on the key are decided here: an item that is there has the key that was asked for.

    def clause(self, condition: Condition, command: Write, binary: Binary) -> ScriptCondition:
        """A condition as write.lua knows it."""
        kind = type(condition)
        if kind is Absent:  # as nearly every one
            return ("absent",)
        if kind not in OF_NO_ATTRIBUTE and condition.attribute in self._key:  # type: ignore[union-attr]
            return self._decided(condition, command)
        return self._clauses[kind](condition, command, binary)

    def _decided(self, condition: Any, command: Write) -> ScriptCondition:
        if isinstance(condition, Past):
            raise UsageError(f"{condition.attribute!r} is a key, and no moment that a write could ask for")
        key = {self.table.partition: command.key, self.table.sort: command.sort}
        return ("present",) if holds(condition, key, 0.0) else ("never",)  # type: ignore[arg-type]

    def _equals(self, condition: Equals, _command: Write, binary: Binary) -> ScriptCondition:
        value = self._compared(condition.attribute, condition.value, binary)
        return "equals", condition.attribute, value

    def _one_of(self, condition: OneOf, _command: Write, binary: Binary) -> ScriptCondition:
        values = [self._compared(condition.attribute, value, binary) for value in condition.values]
        return "one of", condition.attribute, values

    def _all(self, condition: AllOf, command: Write, binary: Binary) -> ScriptCondition:
        return "all", [self.clause(each, command, binary) for each in condition.conditions]

    def _any(self, condition: AnyOf, command: Write, binary: Binary) -> ScriptCondition:
        return "any", [self.clause(each, command, binary) for each in condition.conditions]

    def _compared(self, attribute: str, value: Any, binary: Binary) -> Any:
        """A value that an attribute is compared with."""
        if self.kinds.get(attribute) is Kind.TEXT and type(value) is str:  # as nearly every one
            return value
        kind = self._kind(attribute)
        if kind in (Kind.OBJECT, Kind.SET) or not isinstance(value, PYTHON_TYPES[kind]):
            raise UsageError(f"{attribute!r} holds {kind}, which is not compared with {value!r}")
        return value if kind is Kind.TEXT else PACK.get(kind, exact)(value, binary)

    # Pages

    def page(self, index: bytes, bounds: Bounds, count: int, now: float | None) -> RedisCommand:
        """Read so many items of a partition."""
        return RedisCommand(index, (b"1", index, time_argument(now), *bounds, b"%d" % count), PAGE)

    def bounds(self, query: Query) -> Bounds:
        """The range of sort keys that a page can come from."""
        after = None if query.after is None else self._within(query)
        low = None if query.low is None else self.member(query.low)
        high = None if query.high is None else self.member(query.high)
        least, most, closed = (b"-inf", b"+inf", b"") if self.numbered else (b"-", b"+", b"[")
        first = least if low is None else closed + low.encode()
        last = most if high is None else closed + high.encode()
        command = b"BYSCORE" if self.numbered else b"BYLEX"
        if query.reverse:
            bounds = Bounds(b"ZREVRANGE" + command, last, first)
            later = after is not None and (query.high is None or after <= query.high)  # type: ignore[operator]
        else:
            bounds = Bounds(b"ZRANGE" + command, first, last)
            later = after is not None and (query.low is None or after >= query.low)  # type: ignore[operator]
        return bounds.beyond(self.member(after).encode()) if later else bounds

    def _within(self, query: Query) -> str | float:
        place = place_of(self.table, query.after or "")
        if place[0] != query.key:
            raise UsageError(f"not a cursor of partition {query.key!r}: {query.after!r}")
        return place[-1]

    def pattern(self, query: Query) -> bytes:
        """What the keys of a whole table's items, or of those with the prefix asked for, look like."""
        prefix = "" if query.where is None else _prefix(query.where, self.table.partition)
        return self._naming.pattern(prefix)


def _prefix(condition: Condition, partition: str) -> str:
    """What every key begins with for which the condition holds."""
    match condition:
        case Begins(attribute, value) if attribute == partition:
            return value
        case AllOf(conditions):
            return max((_prefix(each, partition) for each in conditions), key=len, default="")
    return ""


# Values on their way there. What gives None is no attribute.


def _packed(
    item: Item, packers: Iterable[tuple[str, Packer]], binary: Binary, gone: Sequence[str] = ()
) -> tuple[Item, Sequence[str]]:
    plain, missing = item.copy(), list(gone)
    for name, pack in packers:
        plain[name] = pack(item[name], binary)
        if plain[name] is None:
            missing.append(name)
    return plain, missing


def exact(number: float, _binary: Binary) -> float | str:
    """A number that arrives as it is."""
    if math.isnan(number):
        raise UsageError("not a number, and so nothing that could be compared")
    if isinstance(number, bool):
        return int(number)
    return str(number) if isinstance(number, int) and abs(number) > EXACT else number


def _aside(value: Any, binary: Binary) -> dict[str, int]:
    binary.append(bytes(value))
    return {"at": len(binary) + 1}


def _nothing(_value: Any, _binary: Binary) -> None:
    return None


PACK: dict[Kind, Packer] = {
    Kind.BYTES: _aside,
    Kind.FLAG: lambda value, _: "1" if value else "0",
    Kind.OBJECT: lambda value, binary: _aside(msgspec.json.encode(value), binary),
    # In one order, so that equal sets are equal texts.
    Kind.SET: lambda value, binary: _aside(msgspec.json.encode(sorted(value)), binary) if value else None,
}


# Values on their way back.


def number(text: bytes) -> float:
    """A number as it was written."""
    if text.isdigit():
        return int(text)
    if b"." in text:
        return float(text)
    try:
        return int(text)
    except ValueError:
        return float(text)


UNPACK: dict[Kind, Callable[[bytes], Any]] = {
    Kind.TEXT: bytes.decode,
    Kind.NUMBER: number,
    Kind.BYTES: bytes,
    Kind.FLAG: lambda text: {b"1": True, b"0": False}[text],
    Kind.OBJECT: msgspec.json.decode,
    Kind.SET: lambda text: set(msgspec.json.decode(text)),
}
# Nearly every number is one of JSON's too.
QUICK: dict[Callable[[bytes], Any], Callable[[bytes], Any]] = {number: msgspec.json.Decoder().decode}
UNREADABLE = (ValueError, KeyError, TypeError, msgspec.DecodeError)
