"""The contract between rules and stores: commands, replies, and what they mean.

A rule yields a command, a frozen value, and receives its reply. A store executes commands and knows no rule.

- **A write compares and swaps.** `expect` says what the item must be: `ANY`, `ABSENT`, or the attributes that
  must still be what the rule read. A refused write returns the item that it found, read in the same step.
- **The rule decides.** Stores compare values; they know no lease and no status. A store keeps an expired item
  until it removes it, and only queries leave it out: `read`, `write` and `alive` treat it as absent.
- **Time is the store's.** `After(30)` is thirty seconds after the store's now, and every reply carries it.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from enum import Enum
from itertools import starmap
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import msgspec

from semel.errors import (
    StoreError,
    StoreOutcomeUnknown,
    StoreThrottled,
    StoreUnavailable,
    UsageError,
    WrongReply,
)
from semel.tables import FOREVER, Index, Kind, Table

T = TypeVar("T")

Item: TypeAlias = dict[str, Any]
Sort: TypeAlias = str | int | None
Bound: TypeAlias = str | float | None


class After(msgspec.Struct, frozen=True):
    """A moment this many seconds after the store's now."""

    seconds: float


NOW = After(0)


class Presence(Enum):
    """What a write expects, when it expects no values: anything or nothing, or no item."""

    ANY = "any"
    ABSENT = "absent"


ANY, ABSENT = Presence.ANY, Presence.ABSENT

# Or the attributes that the item must still have; None stands for an attribute that it must not have.
Expect: TypeAlias = Presence | Mapping[str, Any]

PRESENT: Mapping[str, Any] = {}
"""Expects an item, whatever its attributes are."""


# Commands on one item. `key` is the partition; `sort` is given where the table has a sort key.


class Get(msgspec.Struct, frozen=True):
    """Read one item, never from a replica. The reply is `Found`."""

    table: Table
    key: str
    sort: Sort = None


class Put(msgspec.Struct, frozen=True):
    """Write a whole item. The reply is `Applied` or `Refused`."""

    table: Table
    key: str
    item: Item
    expect: Expect = ANY
    sort: Sort = None


class Update(msgspec.Struct, frozen=True):
    """Change attributes of an existing item; `None` removes one. The reply is `Applied` or `Refused`."""

    table: Table
    key: str
    set: Item
    expect: Mapping[str, Any] = PRESENT
    sort: Sort = None


class Delete(msgspec.Struct, frozen=True):
    """Remove an existing item. The reply is `Applied` or `Refused`."""

    table: Table
    key: str
    expect: Mapping[str, Any] = PRESENT
    sort: Sort = None


class Add(msgspec.Struct, frozen=True):
    """Add to a number, and write `set`. The reply is `Applied` with the item as it then is, or `Refused`.

    It is refused if the sum would exceed `cap`. Adding creates a missing item; subtracting needs one. An item
    that exists keeps its end: `set` has the end of a new one.
    """

    table: Table
    key: str
    attribute: str
    by: float
    set: Item
    cap: float | None = None
    sort: Sort = None


Write: TypeAlias = Put | Update | Add | Delete


# Commands on several items.


class Query(msgspec.Struct, frozen=True):
    """Read a page of items: of one partition in sort order, or of the whole table in no promised order.

    `low` and `high` bound the sort key, both included. `equal` names attributes and their values. `prefix` is
    how partition keys begin, in a query of the whole table. The reply is a `Page`, without expired items.

    With an `index`, `key` is a value of its partition and the order is that of its sort attribute; the order
    of equals is the store's. An index may lag behind, so it decides nothing; of an item it returns the key
    and what it `carries`. `only` names the attributes that are wanted: a store may leave out others.

    A store that has to read many items to find the ones that are wanted ends a page after about `most` of
    them, however few it has found; 0 lets it go on until the page is full.
    """

    table: Table
    key: str | float | None = None
    low: Bound = None
    high: Bound = None
    reverse: bool = False
    prefix: str = ""
    equal: Mapping[str, Any] = {}
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
        if self.prefix and self.key is not None:
            raise UsageError("a prefix is one of keys in a whole table; a query of one key has low and high")
        self.table.index(self.index)


_place = attrgetter("table.name", "key", "sort")


class Transact(msgspec.Struct, frozen=True):
    """Several writes on different items, all or none. The reply is `Applied` or `Cancelled`."""

    writes: tuple[Write, ...]

    def __post_init__(self) -> None:
        if len(set(map(_place, self.writes))) < len(self.writes):
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

# A write whose reply was lost is sent again with the same token, so sending it twice is harmless. Three times
# covers one broken connection in a pool; after that the store is down.
TRIES = 3
# An item that expired is replaced, unless another writer replaces it first. That does not happen this often.
OVERTAKEN = 20


def write(command: Write) -> Steps[Applied | Refused]:
    """Send a write, and send it again if its reply was lost. An expired item counts as absent.

    Callers recognise their own write by its token.
    """
    try:
        reply: Applied | Refused = yield command
    except StoreOutcomeUnknown as lost:
        reply = yield from resend(command, lost)
    for _ in range(OVERTAKEN):
        if type(reply) is not Refused:
            return reply
        retry = over_expired(command, reply)
        if retry is None:
            return as_absent(command.table, reply)
        reply = yield from send(retry)
    raise StoreThrottled(f"other writers replaced an expired item {OVERTAKEN} times in a row; retry later")


def write_each(writes: Sequence[Write]) -> Steps[list[Applied | Refused]]:
    """Send writes that do not depend on each other, as `write` sends one: in one batch where possible."""
    return (yield from side_by_side([write(each) for each in writes]))


def send(command: Command) -> Steps[Any]:
    """Send what is harmless to send twice, and send it again if its reply was lost."""
    try:
        return (yield command)
    except StoreOutcomeUnknown as lost:
        return (yield from resend(command, lost))


def resend(command: Command, unknown: StoreError) -> Steps[Any]:
    """Send a command again whose reply was lost."""
    for _ in range(TRIES - 1):
        try:
            return (yield command)
        except (StoreOutcomeUnknown, StoreUnavailable, StoreThrottled) as error:
            # Whatever this attempt reports, an earlier one may have been applied.
            unknown = error
    raise StoreOutcomeUnknown(f"tried {TRIES} times, and no reply came: {unknown}") from unknown


def over_expired(command: Write, refused: Refused) -> Put | None:
    """Return the write to send after a refusal, if a `Put` that expects no item found an expired one.

    It expects the end that was read. Every writer moves that end, so only one of several can replace it.
    """
    if type(command) is not Put or command.expect is not ABSENT:
        return None
    table, item = command.table, refused.item
    if item is None:  # it was removed in between
        return command
    if alive(table, item, refused.now) is not None:
        return None
    return Put(table, command.key, command.item, {table.expires: item[table.expires]}, command.sort)


def as_absent(table: Table, refused: Refused) -> Refused:
    """Return a refusal whose item is None if it has expired."""
    if refused.item is None or alive(table, refused.item, refused.now) is not None:
        return refused
    return Refused(refused.now, None)


def side_by_side(many: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Carry out several steps at once: the writes that they come to in the same round are one batch."""
    results: dict[int, T] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(many)))
    while replies:
        writes: dict[int, Any] = {}
        others: dict[int, Any] = {}
        for number, reply in replies.items():
            try:
                asked = many[number].send(reply)
            except StopIteration as end:
                results[number] = end.value
            else:
                (writes if isinstance(asked, Write) else others)[number] = asked
        replies = {}
        if len(writes) > 1:
            batch: Many = yield from send(Batch(tuple(writes.values())))
            replies |= zip(writes, batch.replies, strict=True)
        for number, command in (others if replies else writes | others).items():
            replies[number] = yield from send(command)
    return [results[number] for number in range(len(many))]


def read(command: Get | Watch) -> Steps[Found]:
    """Read one item; an expired one counts as absent."""
    found: Found = yield command
    item = found.item
    if item is None or alive(command.table, item, found.now) is not None:
        return found
    return Found(found.now, None, found.waited)


# What commands mean: the reference for every store.


def alive(table: Table, item: Item | None, now: float) -> Item | None:
    """Return the item, unless it has expired. An end that is no number ends nothing: readers report it."""
    if item is None:
        return None
    end = item.get(table.expires)
    return None if isinstance(end, int | float) and end <= now else item


def allowed(command: Write, item: Item | None) -> bool:
    """Return whether a write may be made on the item that is there, or on None."""
    if type(command) is Add:
        if item is None and command.by < 0:
            return False
        sum_ = ((item or {}).get(command.attribute) or 0) + command.by
        return command.cap is None or sum_ <= command.cap
    expect = command.expect  # type: ignore[union-attr]  # every other write has one
    if expect is ANY:
        return True
    if isinstance(expect, Presence) or item is None:
        return item is None and expect is ABSENT
    for name, value in expect.items():  # noqa: SIM110 - all() takes three times as long
        if item.get(name) != value:
            return False
    return True


def outcome(command: Write, item: Item | None, now: float) -> Item | None:
    """Return the item as an allowed write leaves it, or None."""
    if type(command) is Delete:
        return None
    if type(command) is Put:
        after, changes = {}, command.item
    else:
        after, changes = {} if item is None else item.copy(), command.set  # type: ignore[union-attr]
    for name, value in changes.items():
        after[name] = now + value.seconds if type(value) is After else value
    if type(command) is Add:
        if item is not None and item.get(command.table.expires) is not None:
            after[command.table.expires] = item[command.table.expires]
        # An empty set is no attribute: DynamoDB and Redis have none.
        after = {name: value for name, value in after.items() if value is not None and value != set()}
        after[command.attribute] = after.get(command.attribute, 0) + command.by
    table = command.table
    after[table.partition] = command.key
    if table.sort is not None:
        after[table.sort] = command.sort
    if table.forever and after.get(table.expires) is None:
        after[table.expires] = FOREVER
    if not after.keys() <= table.names:  # a database has no column for it
        raise _no_attribute(table, after)
    return after


def _no_attribute(table: Table, item: Item) -> UsageError:
    unknown = min(item.keys() - table.names)
    return UsageError(f"table {table.name} has no attribute {unknown!r}; it has {', '.join(table.kinds)}")


# What a store may answer to each command, the usual answer first.
REPLIES: dict[type, tuple[type, ...]] = {
    Get: (Found,),
    Watch: (Found,),
    Time: (Found,),
    Put: (Applied, Refused),
    Update: (Applied, Refused),
    Delete: (Applied, Refused),
    Add: (Applied, Refused),
    Query: (Page,),
    Transact: (Applied, Cancelled),
    Batch: (Many,),
}
# Answers that can only be right; every other one is looked at, since steps would go on asking for ever.
SETTLED: dict[type, type] = {
    kind: replies[0] for kind, replies in REPLIES.items() if kind not in (Add, Query, Batch)
}


def check_reply(store: object, command: Stored, reply: Any) -> None:
    """Raise `WrongReply` if no store may give this reply to this command."""
    kind = type(reply)
    if kind is Refused and reply.item is not None and kind in REPLIES[type(command)]:  # as to every replay
        return
    problem = _problem(command, reply)
    if problem is not None:
        raise WrongReply(f"{store!r} answered {_named(command)} with {problem}: that store has a bug")


def _named(command: Stored) -> str:
    """The kind of a command and its tables; a key may be personal."""
    writes = command.writes if isinstance(command, Transact | Batch) else (command,)
    tables = {write.table.name for write in writes if not isinstance(write, Time)}
    return f"{type(command).__name__} on {', '.join(sorted(tables))}" if tables else type(command).__name__


def _problem(command: Stored, reply: Any) -> str | None:
    """What is wrong with an answer; None where nothing is."""
    if type(reply) not in REPLIES[type(command)]:
        return f"{type(reply).__name__}, which is none of its replies"
    match command, reply:
        case Batch(writes), Many(replies):
            if len(replies) != len(writes):
                return f"{len(replies)} replies to {len(writes)} writes"
            replied = zip(writes, replies, strict=True)
            return _first(pair for pair in replied if type(pair[1]) is not SETTLED.get(type(pair[0])))
        case Transact(writes), Cancelled(refusals=refusals):
            if len(refusals) != len(writes) or not any(refusals):
                return "a cancellation that does not say which of the writes was refused"
            return _first(pair for pair in zip(writes, refusals, strict=True) if pair[1] is not None)
        case Query(after=str(after)), Page(after=next_page) if after == next_page:
            return "a page that begins where the one before it began"
        case Add(), Applied(item=None):
            return "no item, which the reply to an addition has"
        case ((Put() | Update() | Add() | Delete()), Refused(item=None)) if allowed(command, None):
            return "a refusal in which nothing stands in the way, though its condition allows that"
    return None


def _first(pairs: Iterable[tuple[Stored, Any]]) -> str | None:
    return next(filter(None, starmap(_problem, pairs)), None)


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
