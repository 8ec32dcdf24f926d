"""The commands that the rules send to a store, and its replies: frozen values.

The rules of the house yield a command and receive its reply. A store interprets commands; it knows no
rule. Two things hold for every command on every store:

- **An item whose time is up does not exist.** Whether it has been deleted yet changes no answer.
- **Time is the store's.** `After(30)` means thirty seconds after the store's now, and every reply says
  what that now was.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from semel.errors import StoreError, StoreOutcomeUnknown, StoreThrottled, StoreUnavailable, UsageError
from semel.tables import FOREVER, Index, Kind, Table

T = TypeVar("T")

Item: TypeAlias = dict[str, Any]
Sort: TypeAlias = str | int | None
Bound: TypeAlias = str | float | None


class After(msgspec.Struct, frozen=True):
    """A moment so many seconds after the store's now."""

    seconds: float


NOW = After(0)


# Conditions: each is one clause of a ConditionExpression, of a WHERE, of a Lua `if`.


class Absent(msgspec.Struct, frozen=True):
    """There is no such item."""


class Present(msgspec.Struct, frozen=True):
    """There is such an item."""


class Equals(msgspec.Struct, frozen=True):
    """The item exists, and this attribute has this value."""

    attribute: str
    value: str | int | float | bytes


class OneOf(msgspec.Struct, frozen=True):
    """The item exists, and this attribute has one of these values."""

    attribute: str
    values: tuple[str | int | float | bytes, ...]


class AtMost(msgspec.Struct, frozen=True):
    """The item exists, and this number is no larger than that; a missing number is 0."""

    attribute: str
    value: float


class Past(msgspec.Struct, frozen=True):
    """The item exists, and this moment is not after the store's now."""

    attribute: str


class Begins(msgspec.Struct, frozen=True):
    """The item exists, and this text begins with that."""

    attribute: str
    value: str


class AllOf(msgspec.Struct, frozen=True):
    """Every one of them holds."""

    conditions: tuple["Condition", ...]


class AnyOf(msgspec.Struct, frozen=True):
    """At least one of them holds."""

    conditions: tuple["Condition", ...]


Condition: TypeAlias = Absent | Present | Equals | OneOf | AtMost | Past | Begins | AllOf | AnyOf

ABSENT = Absent()
PRESENT = Present()


# Commands on one item. `key` is the partition; `sort` is given where the table has a sort key.


class Get(msgspec.Struct, frozen=True):
    """Read one item, never from a replica. The reply is `Found`."""

    table: Table
    key: str
    sort: Sort = None


class Put(msgspec.Struct, frozen=True):
    """Write a whole item if the condition holds. The reply is `Applied` or `Refused`."""

    table: Table
    key: str
    item: Item
    when: Condition | None = None
    sort: Sort = None


class Update(msgspec.Struct, frozen=True):
    """Change attributes of an item that exists; it never brings one to life. `None` removes an attribute."""

    table: Table
    key: str
    set: Item
    when: Condition = PRESENT
    sort: Sort = None


class Add(msgspec.Struct, frozen=True):
    """Add to a number, making the item if there is none. The reply carries the item as it then is.

    `set` is written every time, `once` only where the attribute is missing.
    """

    table: Table
    key: str
    attribute: str
    by: float
    set: Item
    once: Item
    when: Condition | None = None
    sort: Sort = None


class Delete(msgspec.Struct, frozen=True):
    """Remove an item if the condition holds; deleting what is not there is refused."""

    table: Table
    key: str
    when: Condition = PRESENT
    sort: Sort = None


Write: TypeAlias = Put | Update | Add | Delete


# Commands on several items.


class Query(msgspec.Struct, frozen=True):
    """A page of items: of one partition in sort order, or of the whole table in no promised order.

    `low` and `high` bound the sort key, both included. `where` filters. The reply is a `Page`.

    With an `index`, `key` is a value of its partition and the order is that of its sort attribute; among
    equals it is the store's own. An index may lag behind, so nothing is decided by it; and of an item it
    gives its key and what it `carries`. `only` names the attributes that are wanted: others may be left out.

    A store that has to read many items to find those that are wanted, or to go over many keys, ends a page
    after about `most` of them, however few it has found; 0 lets it go on until the page is full.
    """

    table: Table
    key: str | float | None = None
    low: Bound = None
    high: Bound = None
    reverse: bool = False
    where: Condition | None = None
    limit: int = 100
    after: str | None = None
    index: str = ""
    only: tuple[str, ...] = ()
    most: int = 0

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UsageError(f"a page has room for at least one item, not for {self.limit}")
        if self.index and self.key is None:
            raise UsageError(f"index {self.index!r} is asked for one value of its partition: give it as key")
        self.table.index(self.index)


class Transact(msgspec.Struct, frozen=True):
    """Several writes on different items, all or none. The reply is `Applied` or `Cancelled`."""

    writes: tuple[Write, ...]

    def __post_init__(self) -> None:
        places = {(write.table.name, write.key, write.sort) for write in self.writes}
        if len(places) < len(self.writes):
            raise UsageError(
                "a transaction writes to an item once; which of two writes came first would be open"
            )


class Batch(msgspec.Struct, frozen=True):
    """Several writes, each on its own, in as few round trips as the store can. The reply is `Many`."""

    writes: tuple[Write, ...]


class Watch(msgspec.Struct, frozen=True):
    """Read an item once it may have changed, or after so many seconds. The reply is `Found`."""

    table: Table
    key: str
    seconds: float
    sort: Sort = None


class Time(msgspec.Struct, frozen=True):
    """What time it is for the store, told without a round trip where it was heard lately; `Found` nothing."""


# Commands that are not the store's: a pause, a body too large for a row, and the caller's own work.


class Pause(msgspec.Struct, frozen=True):
    """Let so many seconds pass on a clock, the machine's where none is given; the reply is what it shows."""

    seconds: float
    clock: Any = None


class Stash(msgspec.Struct, frozen=True):
    """Put bytes into the overflow. The reply is a reference, or None where there is no overflow."""

    name: str
    data: bytes


class Fetch(msgspec.Struct, frozen=True):
    """Bring bytes back from the overflow. The reply is the bytes, or None when they are gone."""

    reference: str


class Discard(msgspec.Struct, frozen=True):
    """Remove bytes from the overflow. The reply is None."""

    reference: str


class Call(msgspec.Struct, frozen=True):
    """Do the caller's work. The reply is `Returned` or `Raised`: no error of his is taken for ours."""

    work: Callable[[], Any]


Stored: TypeAlias = Get | Put | Update | Add | Delete | Query | Transact | Batch | Watch | Time
Command: TypeAlias = Stored | Pause | Stash | Fetch | Discard | Call


# Replies.


class Found(msgspec.Struct, frozen=True):
    """What a reading found; `waited` is how long a `Watch` took."""

    now: float
    item: Item | None
    waited: float = 0.0


class Applied(msgspec.Struct, frozen=True):
    """The write was made; `item` is given by `Add`."""

    now: float
    item: Item | None = None


class Refused(msgspec.Struct, frozen=True):
    """The condition did not hold; `item` is what stood in the way, None when there was nothing."""

    now: float
    item: Item | None


class Cancelled(msgspec.Struct, frozen=True):
    """Nothing of a transaction was written; one entry a write, None where that one would have held."""

    now: float
    refusals: tuple[Refused | None, ...]


class Many(msgspec.Struct, frozen=True):
    """The replies of a batch, in its order."""

    replies: tuple[Applied | Refused, ...]


class Page(msgspec.Struct, frozen=True):
    """Items, and where the next page begins; None when this is the last."""

    now: float
    items: tuple[Item, ...]
    after: str | None
    read: int = 0
    """How many items it has read, or keys it has gone over, where that is more than it gives; else 0."""


class Returned(msgspec.Struct, frozen=True, gc=False):
    """The caller's work gave this value; now, or when the record was made that says so."""

    value: Any
    record: Any = None


class Raised(msgspec.Struct, frozen=True):
    """The caller's work raised this error, or was stopped by it before it had begun."""

    error: BaseException
    begun: bool = True
    final: bool = False
    """It is to stay failed, as the ledger was told."""


Steps: TypeAlias = Generator[Command, Any, T]

# A write whose answer was lost is sent again with the same token, so that sending it again is harmless.
# Three times rides out one broken connection in a pool; past that the store is down.
TRIES = 3


def write(command: Write) -> Steps[Applied | Refused]:
    """Send a write, again where its answer was lost; every caller recognises its own token afterwards."""
    return resent(command)


def write_each(command: Batch) -> Steps[Many]:
    """Send several writes that do not depend on each other."""
    return resent(command)


def resent(command: Write | Batch) -> Steps[Any]:
    """Send what may be sent twice, again where its answer was lost."""
    try:
        return (yield command)
    except StoreOutcomeUnknown:
        return (yield from again(command))


def again(command: Write | Batch | Transact) -> Steps[Any]:
    """Send a write again whose answer was lost: whoever finds its own mark there afterwards made it."""
    unknown: StoreError | None = None
    for _ in range(TRIES - 1):
        try:
            return (yield command)
        except (StoreOutcomeUnknown, StoreUnavailable, StoreThrottled) as error:
            # Whatever this try says of itself, an earlier one may have been applied.
            unknown = error
    raise StoreOutcomeUnknown(f"tried {TRIES} times, and no answer came: {unknown}") from unknown


def side_by_side(many: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Carry out several steps at once: the writes that they come to in the same round are one batch."""
    results: dict[int, T] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(many)))
    while replies:
        asked: dict[int, Command] = {}
        for number, reply in replies.items():
            try:
                asked[number] = many[number].send(reply)
            except StopIteration as end:
                results[number] = end.value
        replies = yield from _answers(asked)
    return [results[number] for number in range(len(many))]


def _answers(asked: Mapping[int, Command]) -> Steps[dict[int, Any]]:
    writes = {number: command for number, command in asked.items() if isinstance(command, Write)}
    replies: dict[int, Any] = {}
    if writes:
        together = yield from write_each(Batch(tuple(writes.values())))
        replies |= zip(writes, together.replies, strict=True)
    for number in asked.keys() - writes.keys():
        replies[number] = yield asked[number]
    return replies


def read(command: Get | Watch) -> Steps[Found]:
    """Read one item."""
    reply: Found = yield command
    return reply


def alive(table: Table, item: Item | None, now: float) -> Item | None:
    """The item, unless its time is up."""
    if item is None or item[table.expires] <= now:
        return None
    return item


def holds(condition: Condition, item: Item | None, now: float) -> bool:
    """What a condition means, for an item that is alive or None: the reference for every store."""
    return _MEANINGS[type(condition)](condition, item, now)


def _all_hold(condition: AllOf, item: Item | None, now: float) -> bool:
    for each in condition.conditions:  # noqa: SIM110 - all() takes three times as long
        if not _MEANINGS[type(each)](each, item, now):
            return False
    return True


def _past(condition: Past, item: Item | None, now: float) -> bool:
    moment = None if item is None else item.get(condition.attribute)
    return moment is not None and moment <= now


def _begins(condition: Begins, item: Item | None, _now: float) -> bool:
    text = None if item is None else item.get(condition.attribute)
    return isinstance(text, str) and text.startswith(condition.value)


# By type, since this is the hottest line of the store in memory.
_MEANINGS: dict[type, Callable[[Any, Item | None, float], bool]] = {
    Absent: lambda _, item, _now: item is None,
    Present: lambda _, item, _now: item is not None,
    Equals: lambda c, item, _now: item is not None and item.get(c.attribute) == c.value,
    OneOf: lambda c, item, _now: item is not None and item.get(c.attribute) in c.values,
    AtMost: lambda c, item, _now: item is not None and (item.get(c.attribute) or 0) <= c.value,
    Past: _past,
    Begins: _begins,
    AllOf: _all_hold,
    AnyOf: lambda c, item, now: any(holds(each, item, now) for each in c.conditions),
}


def timed(item: Item, now: float) -> Item:
    """The item with every `After` turned into a moment."""
    after = item.copy()
    for name, value in item.items():
        if type(value) is After:
            after[name] = now + value.seconds
    return after


def allowed(command: Write, item: Item | None, now: float) -> bool:
    """Whether a write may be made on an item that is alive or None."""
    if item is None and type(command) in _NEED_AN_ITEM:
        return False
    when = command.when
    return when is None or _MEANINGS[type(when)](when, item, now)


_NEED_AN_ITEM = frozenset({Update, Delete})


def outcome(command: Write, item: Item | None, now: float) -> Item | None:
    """The item as an allowed write leaves it; None when it leaves nothing."""
    if isinstance(command, Put):
        after = timed(command.item, now)
    elif isinstance(command, Update):
        after = {} if item is None else item.copy()
        for name, value in command.set.items():
            after[name] = now + value.seconds if type(value) is After else value
    elif isinstance(command, Delete):
        return None
    else:
        # An empty set is no attribute: DynamoDB and Redis have none.
        kept = {name: value for name, value in (item or {}).items() if value is not None and value != set()}
        after = timed(command.once, now) | kept | timed(command.set, now)
        after[command.attribute] = after.get(command.attribute, 0) + command.by
    return placed(command, after)


def placed(command: Write, item: Item) -> Item:
    """Give an item the key of the write that leaves it, and an end where it has none and its table lets it.

    An attribute that the table lacks is refused: a database has no column for it.
    """
    table = command.table
    item[table.partition] = command.key
    if table.sort is not None:
        item[table.sort] = command.sort
    if table.forever and item.get(table.expires) is None:
        item[table.expires] = FOREVER
    if not item.keys() <= table.names:
        raise _no_attribute(table, item)
    return item


def _no_attribute(table: Table, item: Item) -> UsageError:
    unknown = min(item.keys() - table.names)
    return UsageError(f"table {table.name} has no attribute {unknown!r}; it has {', '.join(table.kinds)}")


def ordering(table: Table, index: Index | None) -> tuple[str, ...]:
    """The attributes that items of a page are ordered by."""
    return table.key if index is None or index.sort is None else (index.sort, *table.key)


def cursor(table: Table, item: Item, index: Index | None = None) -> str:
    """Where the page after this item begins, as an opaque text."""
    return msgspec.json.encode([item[name] for name in ordering(table, index)]).decode()


def place_of(table: Table, after: str, index: Index | None = None) -> list[str | float]:
    """The values that a cursor of this table stands for, in the order of `ordering`."""
    try:
        place = msgspec.json.decode(after, type=list[str | float | int])
    except msgspec.DecodeError as error:
        raise UsageError(f"not a cursor of an earlier page: {after!r}") from error
    kinds = table.kinds
    numbers = [kinds[name] is Kind.NUMBER for name in ordering(table, index)]
    if [isinstance(piece, int | float) for piece in place] != numbers:
        raise UsageError(f"not a cursor of table {table.name}: {after!r}")
    return place
