"""What is sent and received for one table: the names of keys, the arguments of scripts, and items.

    semel:meta                                   the environment and the schema that the prefix belongs to
    semel:ledger:{prod/acme/}{charge:o-1}        an item
    semel:journal:{prod/acme/}{chat-7}           the order of a partition, if the table has a sort key
    semel:journal:{prod/acme/}{chat-7}:01J5...   an item of that partition
    semel:journal/actor-at:prod/acme/ann         the entries of an index for one value
    semel:journal/actor-at:{prod/acme/}prod/acme/ann     the same in a cluster

The first braces hold the environment and the scope. In a cluster they select the slot: all keys of a scope
are on one node, so one script can change any of them. An entry of an index is in the slot of its item.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from semel.core.commands import (
    ABSENT,
    ANY,
    Add,
    After,
    Applied,
    Delete,
    Get,
    Item,
    Put,
    Query,
    Refused,
    Sort,
    Update,
    Watch,
    Write,
    place_of,
)
from semel.errors import UsageError
from semel.stores.redis.router import PAGE, WRITE, RedisCommand
from semel.stores.shared import PYTHON_TYPES
from semel.tables import FOREVER, Index, Kind, Table

# Lua's numbers are floats, which represent every whole number up to here.
EXACT = 2**53
# Stands for the scope of a key that has none. A real one has two slashes.
NO_SCOPE = "/"
# The field in which write.lua keeps the entries that lead to an item.
ENTRIES = b"@"
# In an entry: what separates the value of the sort attribute from the item's key, what a zero in the value
# becomes, and what sorts after every key. No text sorts before the separator.
END, ZERO, LAST = b"\0\0", b"\0\1", b"\xff"


# Arguments and replies of write.lua


ENCODER = msgspec.msgpack.Encoder()
# A read is a write that is always refused.
READING = ENCODER.encode({"writes": [{"read": True}]})

# The time, and for each write whether it was made, and the fields of the item if the reply has it.
REPLY = msgspec.msgpack.Decoder(tuple[float, list[tuple[int, list[bytes]]]])


class Bounds(NamedTuple):
    """A range of a sorted set: the command that reads it, and its ends."""

    command: bytes
    first: bytes
    last: bytes


def bounds_of(
    query: Query, low: bytes | None, high: bytes | None, after: bytes | None, scores: bool = False
) -> Bounds:
    """The range between two texts or numbers, both included, and beyond a third."""
    by, mark, least, most = (b"SCORE", b"", b"-inf", b"+inf") if scores else (b"LEX", b"[", b"-", b"+")
    order: Callable[[bytes], Any] = float if scores else bytes
    first = least if low is None else mark + low
    last = most if high is None else mark + high
    if query.reverse:
        if after is not None and (high is None or order(after) <= order(high)):
            last = b"(" + after
        return Bounds(b"ZREVRANGEBY" + by, last, first)
    if after is not None and (low is None or order(after) >= order(low)):
        first = b"(" + after
    return Bounds(b"ZRANGEBY" + by, first, last)


# Names


def escaped(text: str) -> str:
    """Escape a text to stand between braces, which the first closing one ends."""
    return text.replace("%", "%25").replace("}", "%7D")


def globbed(text: str) -> str:
    """Escape a text to stand for nothing but itself in a pattern."""
    return "".join("\\" + sign if sign in "*?[]\\^-" else sign for sign in text)


def scope_of(key: str) -> str:
    """The environment and scope that a qualified key begins with, up to the second slash; "" without one."""
    return key[: key.find("/", key.find("/") + 1) + 1]


# The attributes that may need encoding, and how: of all values with the same names and types.
Shape: TypeAlias = tuple[list[str], list[tuple[str, Callable[[Any], Any]]]]


class RedisPlan:
    """What does not change from command to command of one table."""

    def __init__(self, table: Table, prefix: str, cluster: bool = False) -> None:
        self.table = table
        self.sorted: bool = table.sort is not None
        self.numbered: bool = table.sort is not None and table.kinds[table.sort] is Kind.NUMBER
        self._expires = table.expires
        self._key = frozenset(table.key)
        self._base = f"{prefix}:{table.name}"
        self._head = f"{self._base}:{{"
        self._cluster = cluster
        self._kinds: dict[str, Kind] = table.kinds
        self._shapes: dict[tuple[Any, ...], Shape] = {}
        self._decoders = {name.encode(): (name, DECODERS[kind]) for name, kind in table.kinds.items()}
        self._decoders[ENTRIES] = ("", bytes)
        self._indexed = frozenset(name for index in table.indexes for name in index.key)
        self._indexes = msgspec.Raw(ENCODER.encode([self._script_index(index) for index in table.indexes]))

    def _script_index(self, index: Index) -> dict[str, Any]:
        for name in index.key:
            if self._kinds[name] not in (Kind.TEXT, Kind.NUMBER) or name in self.table.key:
                raise UsageError(
                    f"index {index.name!r} of table {self.table.name} is by {name!r}, which holds "
                    f"{self._kinds[name]}: on Redis an index is by texts and numbers outside the key"
                )
        given = {"key": f"{self._base}/{index.name}:", "by": index.partition}
        if index.sort is None:
            return given
        return given | {"sort": index.sort, "number": self._kinds[index.sort] is Kind.NUMBER}

    # Names

    def key(self, partition: str) -> bytes:
        """The key of a partition: of its only item, or of the order of its items."""
        if not partition:
            raise UsageError(f"the key {self.table.partition!r} of table {self.table.name} is empty")
        if "}" in partition or "%" in partition:
            partition = escaped(partition)
        end = partition.find("/", partition.find("/") + 1) + 1
        return f"{self._head}{partition[:end] or NO_SCOPE}}}{{{partition[end:]}}}".encode()

    def item_key(self, command: Get | Watch | Write) -> bytes:
        """The key of an item."""
        key = self.key(command.key)
        return b"%b:%b" % (key, self.member(command.sort).encode()) if self.sorted else key

    def member(self, sort: Sort | float) -> str:
        """A sort key as text."""
        if type(sort) is not (int if self.numbered else str):
            kind = "a whole number" if self.numbered else "a text"
            raise UsageError(f"the sort key of table {self.table.name} is {kind}, not {sort!r}")
        if self.numbered and not -EXACT <= sort <= EXACT:  # type: ignore[operator]
            raise UsageError(f"a sort key on Redis is a number up to 2**53, not {sort}")
        return str(sort)

    def place(self, name: str) -> tuple[str, Sort] | None:
        """The partition and sort key of an item's key; None if the key is not an item's."""
        scope, _, text = name.removeprefix(self._head).partition("}{")
        partition, brace, sort = text.partition("}")
        if not name.startswith(self._head) or not brace or "}" in scope:
            return None
        partition = unquote(partition if scope == NO_SCOPE else scope + partition)
        if not self.sorted:
            return None if sort else (partition, None)
        try:
            return (partition, int(sort[1:]) if self.numbered else sort[1:]) if sort[:1] == ":" else None
        except ValueError:
            return None

    def place_of_entry(self, entry: bytes, partition: str | None) -> tuple[str, Sort]:
        """The partition and sort key that an entry of a partition's order, or of an index, leads to."""
        if partition is not None:
            return partition, int(entry) if self.numbered else entry.decode()
        return self.place(entry.partition(END)[2].decode()) or ("", None)

    def pattern(self, prefix: str) -> bytes:
        """The pattern of the keys of all partitions that begin so."""
        prefix = escaped(prefix)
        scope = scope_of(prefix)
        # Less than a scope matches any key; pages leave out the others.
        start = f"{scope}}}{{{prefix[len(scope) :]}" if scope else ""
        return (globbed(self._head + start) + "*").encode()

    def index_key(self, index: Index, value: Any) -> tuple[bytes, bool]:
        """The key of an index for one value; in a cluster, a pattern and True if the value has no scope."""
        text = number_text(value) if self._checked(index, index.partition, value) else value
        start, slot = f"{self._base}/{index.name}:", scope_of(escaped(text))
        if not self._cluster:
            return (start + text).encode(), False
        if slot:
            return f"{start}{{{slot}}}{text}".encode(), False
        return f"{globbed(start)}{{*}}{globbed(text)}".encode(), True

    # Reading

    def get(self, key: bytes, now: bytes) -> RedisCommand:
        """Read an item."""
        return RedisCommand(key, WRITE.call_on(key, now, READING))

    def answer(self, command: Write, now: float, made: int, fields: list[bytes]) -> Applied | Refused:
        """Build the reply to a write."""
        item = self.item(fields, command.key, command.sort) if fields else None
        return Applied(now, item) if made else Refused(now, item)

    def item(self, fields: Sequence[bytes], key: str, sort: Sort) -> Item:
        """Build an item from its fields. An unreadable value stays bytes, and the rules report it."""
        item: Item = {self.table.partition: key}
        if self.table.sort is not None:
            item[self.table.sort] = sort
        decoders = self._decoders
        try:
            for word, value in zip(fields[::2], fields[1::2]):  # noqa: B905 - every replay comes through here
                name, decode = decoders[word]
                item[name] = decode(value)
        except UNREADABLE:
            self._read_carefully(fields, item)
        item.pop("", None)
        return item

    def _read_carefully(self, fields: Sequence[bytes], item: Item) -> None:
        for word, value in zip(fields[::2], fields[1::2], strict=True):
            if word in self._decoders:
                name, decode = self._decoders[word]
                try:
                    item[name] = number(value) if self._kinds.get(name) is Kind.NUMBER else decode(value)
                except UNREADABLE:
                    item[name] = value

    # Writing

    def write(self, command: Any) -> dict[str, Any]:
        """Translate a write for write.lua, which names its fields."""
        kind = type(command)
        write: dict[str, Any] = {"expires": self._expires}
        if kind is Put or kind is Delete:
            write["whole"] = True
        if kind is not Delete:
            self._change(write, kind, command)
        if kind is Add:
            write |= {"count": command.attribute, "by": exact(command.by), "cap": command.cap}
        elif command.expect is ABSENT:
            write["absent"] = True
        elif command.expect is not ANY:
            if not self._key.isdisjoint(command.expect):
                raise UsageError("a write names its item by the key; it expects other attributes")
            write["expect"] = self._encoded(command.expect)
        if self.sorted:
            write["member"] = self.member(command.sort)
            write["score"] = command.sort if self.numbered else 0
        return write

    def _change(self, write: dict[str, Any], kind: type, command: Any) -> None:
        values, expires = command.item if kind is Put else command.set, self._expires
        if values.get(expires) is None and (expires in values or kind is Put or self.table.forever):
            if not self.table.forever:
                raise UsageError(f"an item of table {self.table.name} needs the attribute {expires!r}")
            if kind is not Update or expires in values:
                values = {**values, expires: FOREVER}
        write["set"] = self._encoded(values)
        if not self._indexed.isdisjoint(values) or (kind is Add and command.attribute in self._indexed):
            write["indexes"] = self._indexes

    def _encoded(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Encode values for a script, which reads `false` for one that is missing."""
        # Values come in few shapes, and each shape is checked once.
        names = (*values, *map(type, values.values()))
        shape = self._shapes.get(names)
        if shape is None:
            shape = self._shapes[names] = self._learn(values)
        numbers, encoded = shape
        for name in numbers:
            if not -EXACT <= values[name] <= EXACT:
                encoded = [*encoded, (name, exact)]
        if not encoded:
            return values
        changed = {**values}
        for name, encode in encoded:
            changed[name] = encode(values[name])
        return changed

    def _learn(self, values: Mapping[str, Any]) -> Shape:
        numbers: list[str] = []
        encoded: list[tuple[str, Callable[[Any], Any]]] = []
        for name, value in values.items():
            kind = self._kind(name)
            if value is None or name in self._key:  # the item's key tells it
                encoded.append((name, lambda _: False))
            elif type(value) is After and kind is Kind.NUMBER:
                continue
            elif not isinstance(value, PYTHON_TYPES[kind]):
                raise UsageError(f"{name!r} holds {kind}, not {type(value).__name__}")
            elif kind in ENCODERS or isinstance(value, bool):
                encoded.append((name, ENCODERS.get(kind, exact)))
            elif kind is Kind.NUMBER:
                numbers.append(name)
        return numbers, encoded

    def _kind(self, name: str) -> Kind:
        try:
            return self._kinds[name]
        except KeyError:
            known = ", ".join(self._kinds)
            raise UsageError(f"table {self.table.name} has no attribute {name!r}; it has {known}") from None

    # Pages

    def page(self, key: bytes, bounds: Bounds, count: int, now: bytes, index: bool) -> RedisCommand:
        """Read so many items of a partition, or of one value of an index."""
        words = (b"1", key, now, *bounds, b"%d" % count, b"index" if index else b"")
        return RedisCommand(key, PAGE.call(*words))

    def bounds(self, query: Query) -> Bounds:
        """The range of sort keys that a page can come from."""
        after: Any
        partition, after = (query.key, None) if query.after is None else place_of(self.table, query.after)
        if partition != query.key:
            raise UsageError(f"not a cursor of partition {query.key!r}: {query.after!r}")
        ends = (query.low, query.high, after)
        low, high, after = (None if end is None else self.member(end).encode() for end in ends)
        return bounds_of(query, low, high, after, self.numbered)

    def index_bounds(self, query: Query, index: Index) -> Bounds:
        """The range of entries that a page can come from."""
        low, high = (None, None) if index.sort is None else (query.low, query.high)
        first = None if low is None else self._sortable(index, low)
        last = None if high is None else self._sortable(index, high) + END + LAST
        after = None if query.after is None else self._index_after(index, query.after)
        return bounds_of(query, first, last, after)

    def _index_after(self, index: Index, after: str) -> bytes:
        place = place_of(self.table, after, index)
        item = Get(self.table, *place[-len(self.table.key) :])  # type: ignore[arg-type]
        value = b"" if index.sort is None else self._sortable(index, place[0])
        return value + END + self.item_key(item)

    def _sortable(self, index: Index, value: Any) -> bytes:
        """A value of the sort attribute in the form in which entries sort as values do."""
        if self._checked(index, index.sort or "", value):
            return sortable(value)
        encoded: bytes = value.encode().replace(b"\0", ZERO)
        return encoded

    def _checked(self, index: Index, name: str, value: Any) -> bool:
        """Whether a value of an index is a number; a value of another kind is refused."""
        number = self._kinds[name] is Kind.NUMBER
        if not isinstance(value, int | float if number else str):
            kind = "a number" if number else "a text"
            raise UsageError(f"index {index.name!r} is by {name!r}, which is {kind}, not {value!r}")
        return number


# Values


def exact(number: float) -> float | str:
    """A number that Lua reads as it is; a whole number that is not a float is sent as text."""
    if number != number:  # noqa: PLR0124 - only NaN does; a large whole number is no float
        raise UsageError("NaN equals nothing, so it cannot be stored: use None")
    if isinstance(number, int) and abs(number) > EXACT:
        try:
            rounded = float(number)
        except OverflowError:
            raise UsageError(f"{str(number)[:20]}... is too large for a number: keep it as text") from None
        return rounded if rounded == number else str(number)
    return number + 0


def number_text(number: float) -> str:
    """A number as write.lua stores it."""
    value = exact(number)
    return value if isinstance(value, str) else f"{value + 0.0:.17g}"


def sortable(number: float) -> bytes:
    """A number as a text that sorts as numbers do: its bits, those of a negative number inverted."""
    [bits] = struct.unpack(">Q", struct.pack(">d", float(exact(number)) + 0.0))
    return b"%016x" % (bits ^ (1 << 63 if number >= 0 else (1 << 64) - 1))


def _raw(value: Any) -> msgspec.Raw:
    """Bytes as a text of MessagePack, since Redis does not read its bytes."""
    data = bytes(value)
    return msgspec.Raw(b"\xdb%b%b" % (len(data).to_bytes(4, "big"), data))


ENCODERS: dict[Kind, Callable[[Any], Any]] = {
    Kind.BYTES: _raw,
    Kind.FLAG: lambda value: "1" if value else "0",
    Kind.OBJECT: lambda value: msgspec.json.encode(value).decode(),
    # Sorted, so that equal sets are equal texts.
    Kind.SET: lambda value: msgspec.json.encode(sorted(value)).decode() if value else False,
}


def number(text: bytes) -> float:
    """Read a number."""
    try:
        return int(text)
    except ValueError:
        return float(text)


DECODERS: dict[Kind, Callable[[bytes], Any]] = {
    Kind.TEXT: bytes.decode,
    Kind.NUMBER: msgspec.json.Decoder().decode,  # reads nearly every number, and faster than `number`
    Kind.BYTES: bytes,
    Kind.FLAG: lambda text: {b"1": True, b"0": False}[text],
    Kind.OBJECT: msgspec.json.decode,
    Kind.SET: lambda text: set(msgspec.json.decode(text)),
}
UNREADABLE = (ValueError, KeyError, TypeError, msgspec.DecodeError)
