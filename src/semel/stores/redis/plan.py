"""The pure half: commands as scripts with their keys and arguments, and what a script answers as items."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from semel.commands import (
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
    place_of,
)
from semel.errors import UsageError
from semel.stores.redis.scripts import PAGE, READ, WRITE, Script
from semel.stores.shared import PYTHON_TYPES
from semel.tables import FOREVER, Kind, Table

# Lua's numbers are floats, which have every whole number up to here; larger ones travel, and stay, as text.
EXACT = 2**53

Clause: TypeAlias = tuple[Any, ...]
# Arguments of a script that MessagePack as Redis speaks it cannot carry.
Binary: TypeAlias = list[bytes]
Packer: TypeAlias = Callable[[Any, Binary], Any]


class Ask(msgspec.Struct, frozen=True):
    """One command for the server that has its key; `rest` is what follows a script's text or digest."""

    key: bytes
    rest: tuple[bytes, ...]
    script: Script | None = None

    def packed(self, taught: bool = True) -> bytes:
        """The command as it is sent, with the script itself to a server that does not know it yet."""
        if self.script is None:
            return packed(self.rest)
        if taught:
            return packed((b"EVALSHA", self.script.digest, *self.rest))
        return packed((b"EVAL", self.script.text, *self.rest))


def packed(words: Sequence[bytes]) -> bytes:
    """A command in the protocol of Redis."""
    return b"".join([b"*%d\r\n" % len(words), *[b"$%d\r\n%b\r\n" % (len(word), word) for word in words]])


# What write.lua is told. What is left out here is nil there.


class Order(msgspec.Struct, omit_defaults=True):
    """One write."""

    make: str
    expires: str
    when: Clause | None = None
    set: dict[str, Any] = {}
    gone: Sequence[str] = ()
    once: dict[str, Any] = {}
    count: str | None = None
    by: float | str | None = None
    member: str | None = None
    score: int | None = None


class Orders(msgspec.Struct, omit_defaults=True):
    """Several writes, and how they are made."""

    writes: Sequence[Order]
    publish: str
    now: float | None = None
    together: bool = False
    confirm: bool = False


class Manner(msgspec.Struct, frozen=True):
    """How a store has all its writes made."""

    publish: str = "PUBLISH"
    confirm: bool = False


ENCODER = msgspec.msgpack.Encoder()
HEAD = msgspec.msgpack.Decoder(tuple[float, list[int | list[int]]])


class Outcome(NamedTuple):
    """What became of one write or reading: whether it was made, and the item's names and values, if any."""

    made: bool
    flat: list[bytes] | None


def outcomes(reply: Any) -> tuple[float, list[Outcome]]:
    """The time, and what became of each."""
    head, body = (reply, b"") if type(reply) is bytes else reply[:2]
    now, each = HEAD.decode(head)
    start, found = 0, []
    for outcome in each:
        if type(outcome) is int:
            found.append(Outcome(outcome == 1, None))
            continue
        flat = []
        for length in outcome[1:]:  # type: ignore[index]  # it is a list
            end = start + length
            flat.append(body[start:end])
            start = end
        found.append(Outcome(outcome[0] == 1, flat))  # type: ignore[index]
    return now, found


class Shape(NamedTuple):
    """What is known of all items with the same names and types."""

    numbers: tuple[str, ...]
    packers: tuple[tuple[str, Packer], ...]
    gone: tuple[str, ...]


class Plan:
    """Everything about one table that does not change from command to command."""

    def __init__(self, table: Table, prefix: str) -> None:
        self.table = table
        self.kinds = table.kinds
        self.sorted = table.sort is not None
        self.numbered = table.sort is not None and self.kinds[table.sort] is Kind.NUMBER
        self.head = f"{prefix}:{table.name}:{{"
        self._columns = {name.encode(): (name, UNPACK[kind]) for name, kind in self.kinds.items()}
        self._quick = {
            word: (name, QUICK.get(unpack, unpack)) for word, (name, unpack) in self._columns.items()
        }
        self._shapes: dict[tuple[Any, ...], Shape] = {}
        self._makes: dict[type, Callable[[Any, Binary], Order]] = {
            Put: self._put,
            Update: self._update,
            Add: self._add,
            Delete: self._delete,
        }
        self._clauses: dict[type, Callable[[Any, Any, Binary], Clause]] = {
            Absent: lambda _, _command, _binary: ("absent",),
            Present: lambda _, _command, _binary: ("present",),
            Equals: self._equals,
            OneOf: self._one_of,
            AtMost: self._at_most,
            Past: self._past,
            Begins: self._begins,
            AllOf: self._all,
            AnyOf: self._any,
        }

    # Names. The braces are Redis' own: keys that have the same text between them are kept together.

    def keys(self, command: Get | Watch | Write) -> tuple[bytes, ...]:
        """The key of an item, and that of its partition's index where there is a sort key."""
        if not self.sorted:
            return (self.partition(command.key),)
        index = self.partition(command.key)
        return index + b":" + self.member(command.sort).encode(), index

    def partition(self, key: str) -> bytes:
        """The key of a partition: the only item in it, or the index of all."""
        if "}" in key or "%" in key:
            key = escaped(key)
        elif not key:
            raise UsageError(f"the key {self.table.partition!r} of table {self.table.name} is empty")
        return f"{self.head}{key}}}".encode()

    def member(self, sort: Sort) -> str:
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
        partition, brace, rest = name.removeprefix(self.head).partition("}")
        if not name.startswith(self.head) or not brace or rest[:1] != (":" if self.sorted else ""):
            return None
        try:
            sort = self.sort_of(rest[1:].encode()) if self.sorted else None
        except ValueError:
            return None
        return unquote(partition) if "%" in partition else partition, sort

    # Reading

    def get(self, keys: Sequence[bytes], now: float | None) -> Ask:
        """Read one item."""
        return Ask(keys[0], (b"1", keys[0], told(now)), READ)

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

    def order(self, command: Write, binary: Binary) -> Order:
        """What write.lua is told of one write."""
        order = self._makes[type(command)](command, binary)
        if command.when is not None:
            order.when = self.clause(command.when, command, binary)
        if self.sorted:
            order.member = self.member(command.sort)
            if self.numbered:
                order.score = command.sort  # type: ignore[assignment]  # `member` has seen to it
        return order

    def _put(self, command: Put, binary: Binary) -> Order:
        item, _ = self._changes(self._ending(command.item), binary)
        return Order("put", self.table.expires, None, item)

    def _update(self, command: Update, binary: Binary) -> Order:
        change = command.set
        if self.table.expires in change:
            change = self._ending(change)
        return Order("update", self.table.expires, None, *self._changes(change, binary))

    def _add(self, command: Add, binary: Binary) -> Order:
        once, set_ = command.once, command.set
        if self.table.forever and once.get(self.table.expires) is None:
            once = {**once, self.table.expires: FOREVER}
        if self.table.expires in set_:
            set_ = self._ending(set_)
        changes, gone = self._changes(set_, binary)
        once, _ = self._changes(once, binary)
        by = exact(command.by, binary)
        return Order("add", self.table.expires, None, changes, gone, once, command.attribute, by)

    def _delete(self, _: Delete, _binary: Binary) -> Order:
        return Order("delete", self.table.expires)

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

    def _learn(self, item: Item) -> Shape:
        numbers: list[str] = []
        packers: list[tuple[str, Packer]] = []
        gone: list[str] = []
        for name, value in item.items():
            kind = self._kind(name)
            if value is None:
                gone.append(name)
            elif name in self.table.key:
                packers.append((name, _nothing))  # the key itself says it
            elif type(value) is After and kind is Kind.NUMBER:
                continue
            elif not isinstance(value, PYTHON_TYPES[kind]):
                raise UsageError(f"{name!r} holds {kind}, not {type(value).__name__}")
            elif kind in PACK or isinstance(value, bool):
                packers.append((name, PACK.get(kind, exact)))
            elif kind is Kind.NUMBER:
                numbers.append(name)
        return Shape(tuple(numbers), tuple(packers), tuple(gone))

    def _kind(self, name: str) -> Kind:
        try:
            return self.kinds[name]
        except KeyError:
            known = ", ".join(self.kinds)
            raise UsageError(f"table {self.table.name} has no attribute {name!r}; it has {known}") from None

    # Conditions. Those on the key are decided here: an item that is there has the key that was asked for.

    def clause(self, condition: Condition, command: Write, binary: Binary) -> Clause:
        """A condition as write.lua knows it."""
        return self._clauses[type(condition)](condition, command, binary)

    def _decided(self, condition: Any, command: Write) -> Clause:
        key = {self.table.partition: command.key, self.table.sort: command.sort}
        return ("present",) if holds(condition, key, 0.0) else ("never",)  # type: ignore[arg-type]

    def _equals(self, condition: Equals, command: Write, binary: Binary) -> Clause:
        if condition.attribute in self.table.key:
            return self._decided(condition, command)
        value = self._compared(condition.attribute, condition.value, binary)
        return "equals", condition.attribute, value

    def _one_of(self, condition: OneOf, command: Write, binary: Binary) -> Clause:
        if condition.attribute in self.table.key:
            return self._decided(condition, command)
        values = [self._compared(condition.attribute, value, binary) for value in condition.values]
        return "one of", condition.attribute, values

    def _at_most(self, condition: AtMost, command: Write, binary: Binary) -> Clause:
        if condition.attribute in self.table.key:
            return self._decided(condition, command)
        return "at most", condition.attribute, float(condition.value)

    def _past(self, condition: Past, _command: Write, _binary: Binary) -> Clause:
        if condition.attribute in self.table.key:
            raise UsageError(f"{condition.attribute!r} is a key, and no moment that a write could ask for")
        return "past", condition.attribute

    def _begins(self, condition: Begins, command: Write, _binary: Binary) -> Clause:
        if condition.attribute in self.table.key:
            return self._decided(condition, command)
        return "begins", condition.attribute, condition.value

    def _all(self, condition: AllOf, command: Write, binary: Binary) -> Clause:
        return "all", [self.clause(each, command, binary) for each in condition.conditions]

    def _any(self, condition: AnyOf, command: Write, binary: Binary) -> Clause:
        return "any", [self.clause(each, command, binary) for each in condition.conditions]

    def _compared(self, attribute: str, value: Any, binary: Binary) -> Any:
        """A value that an attribute is compared with."""
        kind = self._kind(attribute)
        if kind in (Kind.OBJECT, Kind.SET) or not isinstance(value, PYTHON_TYPES[kind]):
            raise UsageError(f"{attribute!r} holds {kind}, which is not compared with {value!r}")
        return value if kind is Kind.TEXT else PACK.get(kind, exact)(value, binary)

    # Pages

    def page(self, index: bytes, bounds: "Bounds", count: int, now: float | None) -> Ask:
        """Read so many items of a partition."""
        return Ask(index, (b"1", index, told(now), *bounds, b"%d" % count), PAGE)

    def bounds(self, query: Query) -> "Bounds":
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

    def _within(self, query: Query) -> Sort:
        place = place_of(self.table, query.after or "")
        if place[0] != query.key:
            raise UsageError(f"not a cursor of partition {query.key!r}: {query.after!r}")
        return place[-1]

    def pattern(self, query: Query) -> bytes:
        """What the keys of a whole table's items, or of those with the prefix asked for, look like."""
        prefix = "" if query.where is None else _prefix(query.where, self.table.partition)
        return (globbed(self.head + escaped(prefix)) + "*").encode()


class Bounds(NamedTuple):
    """How a range of an index is read."""

    command: bytes
    first: bytes
    last: bytes

    def beyond(self, member: bytes) -> "Bounds":
        """The rest of the range after this one."""
        return self._replace(first=b"(" + member)


class Spot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the next page of a whole table begins."""

    node: str
    cursor: int | None
    """How far the server was walked through; None when it was to its end."""
    keys: list[str]
    """What it gave already, and no page had room for."""


def spot_of(after: str) -> Spot:
    """The spot that a cursor stands for."""
    try:
        return msgspec.json.decode(after, type=Spot)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a cursor of an earlier page: {after!r}") from error


def write_ask(
    plans: Sequence[Plan], writes: Sequence[Write], now: float | None, manner: Manner, together: bool = False
) -> Ask:
    """Writes in one run of one script."""
    binary: Binary = []
    keys: list[bytes] = []
    orders = []
    for plan, write in zip(plans, writes, strict=True):
        keys += plan.keys(write)
        orders.append(plan.order(write, binary))
    told = ENCODER.encode(Orders(orders, manner.publish, now, together, manner.confirm))
    return Ask(keys[0], (b"%d" % len(keys), *keys, told, *binary), WRITE)


def told(now: float | None) -> bytes:
    """The time as a script is told; nothing leaves it to the server."""
    return b"" if now is None else repr(now).encode()


def escaped(partition: str) -> str:
    """A partition as it stands between braces: the first closing one ends it."""
    return partition.replace("%", "%25").replace("}", "%7D")


def globbed(text: str) -> str:
    """A text as a pattern that matches nothing else."""
    return "".join("\\" + sign if sign in "*?[]\\^-" else sign for sign in text)


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
