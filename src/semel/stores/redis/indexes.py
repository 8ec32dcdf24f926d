"""Indexes: items found by other attributes than their key. Redis has none of its own, so semel keeps them.

For each value of an index's partition there are three keys, in one slot, which is seldom that of the items:

    semel:journal/actor-at:{prod/acme/ann}          a sorted set of entries, in the order of the index
    semel:journal/actor-at:{prod/acme/ann}:ends     when each of them ends
    semel:journal/actor-at:{prod/acme/ann}:doubts   those that were found to lead nowhere, and when that was

An entry is the value of the sort attribute, in a form that sorts as the values do, and the key of the item.
It says nothing else: whoever reads an index reads the items too.

**An index may have too much, and never too little**, whoever dies at whatever moment:

- The entry is there before its item is. On one server, and wherever both lie in one slot, the same call
  of write.lua makes both. Elsewhere the entry is made by a call of its own, and the item's is sent once that
  has a reply; it is refused if it comes long after (`LATE_SECONDS`).
- An entry is never moved. An item that comes to another place gets another one; readers leave out those whose
  item is gone, or has other values now.
- Only a reader removes an entry before its end: one that leads nowhere and was found so before, so long ago
  that what was then under way has arrived since (doubt.lua). To enter it again takes the doubt away.
- An entry ends a day after its item, and its keys with the last of them. The item has in its field `@` until
  when its entries are sure to be there; a write that would have it live longer has it entered anew.
- A write that does not name all attributes of the table's indexes may move an item without telling where to.
  It is answered with the item, which tells, and sent again, to be made if they are still the same then.

What leads to no item costs nothing: no entry, no field, no byte.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from semel.core.commands import Add, After, Delete, Item, Put, Query, Sort, Update, Write, ordering, place_of
from semel.errors import UsageError
from semel.stores.redis.keys import KeyNames
from semel.stores.redis.protocol import RedisCommand
from semel.stores.redis.scripts import DOUBT, INDEX, Bounds, time_argument
from semel.tables import Index, Kind, Table

# An item that comes so long after its entry is refused: a reader may soon find that it leads nowhere.
LATE_SECONDS = 300.0

# The field of an item in which the script keeps until when its entries are sure to be there.
KEPT = "@"

# What ends the sort attribute's value in an entry, and what a zero becomes in one: nothing sorts before them.
END, ZERO = "\0\0", "\0\1"


class IndexEntry(NamedTuple):
    """What leads to an item: a member of the sorted set that has this key."""

    key: bytes
    member: str


class RedisIndex:
    """One index of a table."""

    def __init__(self, table: Table, index: Index, naming: KeyNames) -> None:
        self.index = index
        self._table = table
        self._naming = naming
        kinds = table.kinds
        for name in attributes_of(index):
            if kinds[name] not in (Kind.TEXT, Kind.NUMBER):
                raise UsageError(
                    f"index {index.name!r} of table {table.name} is by {name!r}, which holds {kinds[name]}: "
                    "Redis keeps indexes by text and by number"
                )
        self._numbered = kinds[index.partition] is Kind.NUMBER
        self._sorted_by_number = index.sort is not None and kinds[index.sort] is Kind.NUMBER

    def entry(self, item: Item) -> IndexEntry | None:
        """The entry that leads to an item; None for one that lacks an attribute of the index."""
        value = item.get(self.index.partition)
        place = "" if self.index.sort is None else item.get(self.index.sort)
        if value is None or place is None:
            return None
        return IndexEntry(self.key(value), self._member(place, [item[name] for name in self._table.key]))

    def key(self, value: Any) -> bytes:
        """The key of the entries for one value."""
        self._check(self.index.partition, value, self._numbered)
        text = whole(value) if self._numbered else value
        return self._naming.index(self.index.name, text).encode()

    def target(self, member: str) -> tuple[str, Sort]:
        """The key of the item that an entry leads to."""
        key, *sort = msgspec.json.decode(member.rpartition("\0")[2])
        return key, sort[0] if sort else None

    def leads_to(self, item: Item, entry: IndexEntry) -> bool:
        """Whether an entry is where an item is found now."""
        try:
            return self.entry(item) == entry
        except UsageError:  # somebody else has written what no index can have
            return False

    def _member(self, place: Any, name: Sequence[Any]) -> str:
        return self._place(place) + msgspec.json.encode(name).decode()

    def _place(self, value: Any, end: str = END) -> str:
        """A value of the sort attribute, in a form that sorts as the values do."""
        if self.index.sort is None:
            return ""
        self._check(self.index.sort, value, self._sorted_by_number)
        return (in_order(value) if self._sorted_by_number else value.replace("\0", ZERO)) + end

    def _check(self, name: str, value: Any, number: bool) -> None:
        if not isinstance(value, int | float if number else str):
            kind = "a number" if number else "a text"
            raise UsageError(f"index {self.index.name!r} is by {name!r}, which is {kind}, not {value!r}")
        if number and not _fits(value):  # type: ignore[arg-type]  # it is a number
            raise UsageError(
                f"{name!r} is {value}, which is more digits than an index of Redis has: "
                "beyond 2**53 keep it as text"
            )

    # Pages

    def page(self, key: bytes, bounds: Bounds, count: int, now: float | None) -> RedisCommand:
        """Read so many entries."""
        return RedisCommand(key, (b"1", key, time_argument(now), *bounds, b"%d" % count), INDEX)

    def doubt(self, key: bytes, members: Iterable[bytes], seen: float, now: float | None) -> RedisCommand:
        """Report entries that led nowhere when they were read."""
        times = time_argument(now), time_argument(seen)
        return RedisCommand(key, (b"3", *keys_of(key), *times, *members), DOUBT)

    def bounds(self, query: Query) -> Bounds:
        """The range of entries that a page can come from."""
        low, high = (None, None) if self.index.sort is None else (query.low, query.high)
        first = b"" if low is None else self._place(low, "").encode()
        last = None if high is None else self._place(high, ZERO).encode()
        after = None if query.after is None else self._after(query.after).encode()
        least = b"[" + first if first else b"-"
        most = b"+" if last is None else b"(" + last
        if query.reverse:
            if after is not None and (last is None or after < last):
                most = b"(" + after
            return Bounds(b"ZREVRANGEBYLEX", most, least)
        if after is not None and after >= first:
            least = b"(" + after
        return Bounds(b"ZRANGEBYLEX", least, most)

    def _after(self, after: str) -> str:
        place = place_of(self._table, after, self.index)
        key = place[len(ordering(self._table, self.index)) - len(self._table.key) :]
        return self._member(place[0], key)


class Indexes:
    """All indexes of a table."""

    def __init__(self, table: Table, naming: KeyNames) -> None:
        self._table = table
        self._by_name = {index.name: RedisIndex(table, index, naming) for index in table.indexes}
        names = dict.fromkeys(name for index in table.indexes for name in attributes_of(index))
        self.attributes: tuple[str, ...] = tuple(name for name in names if name not in table.key)
        """What a write may change of what items are found by."""
        self._names = frozenset(self.attributes)
        # A whole item that lacks an attribute of an index is not in it; a change may add what one lacked.
        self._needed = [self._names.intersection(attributes_of(index)) for index in table.indexes]
        self._each = [frozenset({name}) for name in self.attributes]
        # By nothing but its key an item is found as soon as it is there.
        self._by_key = any(set(attributes_of(index)) <= set(table.key) for index in table.indexes)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def named(self, name: str) -> RedisIndex:
        """The index of this name."""
        return self._by_name[name]

    def entries(self, item: Item) -> tuple[IndexEntry, ...]:
        """Everything that leads to an item."""
        found = [index.entry(item) for index in self._by_name.values()]
        return tuple(entry for entry in found if entry is not None)

    def touched(self, command: Write) -> bool:
        """Whether a write may bring its item to another place in an index."""
        # Every write comes through here, and nearly none of them may.
        kind = type(command)
        if kind is Delete or not self._by_name:
            return False
        written = command.item if kind is Put else command.set  # type: ignore[union-attr]
        if not self._names.isdisjoint(written):
            for names in self._needed if kind is Put else self._each:
                if names <= written.keys() and None not in [written[name] for name in names]:
                    return True
        if isinstance(command, Add):
            once = any(command.once.get(name) is not None for name in self.attributes)
            return once or self._by_key or command.attribute in self.attributes
        return self._by_key and kind is Put

    def known(self, command: Put | Update | Add) -> Item | None:
        """What a write fixes of the item that it leaves, if that is all that its places depend on."""
        key = dict(zip(self._table.key, (command.key, command.sort), strict=False))
        if isinstance(command, Put):
            return command.item | key
        if isinstance(command, Add) and command.attribute in self.attributes:
            return None
        needed = (*self.attributes, self._table.expires)
        return command.set | key if all(name in command.set for name in needed) else None

    def undated(self, command: Write) -> bool:
        """Whether a write leaves it to the server's clock where its item will be."""
        return any(
            isinstance(item.get(name), After) for item in _written(command) for name in self.attributes
        )

    def dated(self, command: Write, now: float) -> Write:
        """A write that leaves nothing to the clock that an item is found by."""
        if not self.undated(command):
            return command
        fields = {"item": self._dated(command.item, now)} if isinstance(command, Put) else {}
        if isinstance(command, Update | Add):
            fields["set"] = self._dated(command.set, now)
        if isinstance(command, Add):
            fields["once"] = self._dated(command.once, now)
        return msgspec.structs.replace(command, **fields)

    def _dated(self, item: Item, now: float) -> Item:
        dates = {name: item[name] for name in self.attributes if isinstance(item.get(name), After)}
        return item | {name: now + after.seconds for name, after in dates.items()}


def keys_of(key: bytes) -> tuple[bytes, bytes, bytes]:
    """The three keys of an index."""
    return key, key + b":ends", key + b":doubts"


def _written(command: Write) -> tuple[Item, ...]:
    if isinstance(command, Put):
        return (command.item,)
    if isinstance(command, Add):
        return command.set, command.once
    return () if isinstance(command, Delete) else (command.set,)


def attributes_of(index: Index) -> tuple[str, ...]:
    """What items of an index are found by."""
    return (index.partition,) if index.sort is None else (index.partition, index.sort)


def _fits(number: float) -> bool:
    """Whether a number is one that Lua, and an order of bytes, can have."""
    try:
        return float(number) == number
    except OverflowError:
        return False


def whole(number: float) -> str:
    """A number as text; equal numbers are equal texts."""
    return str(int(number)) if float(number).is_integer() else repr(float(number))


def in_order(number: float) -> str:
    """A number as text that sorts as numbers do: its bits, with those of negative ones turned over."""
    [bits] = struct.unpack(">Q", struct.pack(">d", number + 0.0))
    return f"{bits ^ (SIGN if number >= 0 else ALL):016x}"


SIGN, ALL = 1 << 63, (1 << 64) - 1
