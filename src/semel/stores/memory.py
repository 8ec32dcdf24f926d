"""The store in memory: the reference implementation of every command."""

import heapq
import operator
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from semel.core import commands
from semel.core.clock import Clock, SignalSafeLock
from semel.core.commands import Applied, Found, Item, Refused, Sort, Write, alive, allowed, outcome
from semel.core.drive import Glance
from semel.core.runtime import masked
from semel.errors import InvalidOption, StoreClosed, WriteUnderWay
from semel.model import TableSize
from semel.stores.shared import place_named
from semel.stores.waiting import KeyWatchers
from semel.tables import Index, Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

# What tells an item from the others of its table: its key, and where the table has a sort key, that too.
ItemKey: TypeAlias = str | tuple[str, Sort]

# Expiry is kept by the minute: few buckets, and an item goes at most a minute after its time.
BUCKET_SECONDS = 60
# A write removes at most this many expired items, so that no write pays for a crowd of them.
SWEEP = 4


class MemoryStore:
    """Items in dictionaries, for one process. A call takes the same time however many there are.

    A query looks at every item of its partition, or of its table. A write is made by one step of C, so that
    an exception out of a signal handler finds it made or not begun, and what helps to find or to remove an
    item may be there without the item, and never the item without it.
    """

    def __repr__(self) -> str:
        return "<MemoryStore>"

    def __init__(self, clock: Clock | None = None, overflow: "Overflow | None" = None) -> None:
        self.overflow = overflow
        self._clock = clock or Clock()
        self._now = self._clock.steady
        self._lock = SignalSafeLock()
        self._owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # as Condition asks it
        self._tables: dict[str, dict[ItemKey, Item]] = {}
        # Where the items of a partition are, of tables with a sort key: there it has many.
        self._partitions: dict[tuple[str, str], dict[ItemKey, None]] = {}
        self._buckets: dict[float, list[tuple[Table, ItemKey]]] = {}
        self._due: list[float] = [float("inf")]
        self._watchers = KeyWatchers(self._clock)
        self._answers: dict[type, Callable[[Any], Any]] = {
            commands.Get: self._look,
            **dict.fromkeys(get_args(Write), self._write),
            commands.Query: self._query,
            commands.Transact: self._transact,
            commands.Batch: self._batch,
            commands.Watch: self._watch,
            commands.Time: self._time,
        }

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "MemoryStore":  # noqa: ARG003 - every store's form
        """`memory:`, for as long as the process lives."""
        if url != "memory:":
            raise InvalidOption(f"{masked(url)!r}: a store in memory has no path; its URL is 'memory:'")
        return cls(clock)

    def execute(self, command: Any) -> Any:
        """Execute the command, and return its reply."""
        return self._answers[type(command)](command)

    at_once = execute

    async def aexecute(self, command: commands.Stored) -> Any:
        """Carry the command out and answer it; only a `Watch` takes any waiting."""
        if not isinstance(command, commands.Watch):
            return self.execute(command)

        async def look() -> Found:
            found: Found = self.execute(commands.Get(command.table, command.key, command.sort))
            return found

        return await self._watchers.awatch(place_named(command), command.seconds, look)

    def glance(self, table: Table, attributes: tuple[str, ...], where: dict[str, str | int]) -> Glance:
        """A function from a key to these attributes of its item, if it is alive and as `where` says."""
        items, now, asked = self._table(table), self._now, tuple(where.items())
        expires = table.expires

        def look(key: str) -> tuple[Any, ...] | None:
            item = items.get(key)
            if item is None or item[expires] <= now():
                return None
            for name, value in asked:
                if item.get(name) != value:
                    return None
            return tuple([item.get(name) for name in attributes])

        return look

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The sizes of tables, counted: what is in memory is counted quickly."""
        return [self._measured(table) for table in tables if self._tables.get(table.name)]

    def _measured(self, table: Table) -> TableSize:
        with self._lock:
            items, now = list(self._table(table).values()), self._now()
        by_status = Counter(item["status"] for item in items if "status" in table.listed_by)
        expired = sum(alive(table, item, now) is None for item in items)
        return TableSize(
            table=table.name, items=len(items), by_status=dict(by_status), expired=expired, how="counted"
        )

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._answers = dict.fromkeys(self._answers, _refuse)
            for items in self._tables.values():
                items.clear()
            self._partitions.clear()
            self._buckets.clear()

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    def _table(self, table: Table) -> dict[ItemKey, Item]:
        return self._tables.setdefault(table.name, {})

    def _time(self, _command: commands.Time) -> Found:
        return Found(self._now(), None)

    def _look(self, command: commands.Get | commands.Watch) -> Found:
        # Without a global lock in Python, another thread may be in the midst of a transaction.
        with self._lock:
            return Found(self._now(), self._table(command.table).get(_spot(command)))

    def _watch(self, command: commands.Watch) -> Found:
        return self._watchers.watch(place_named(command), command.seconds, lambda: self._look(command))

    def _write(self, command: Any) -> Applied | Refused:
        if self._owned():
            raise WriteUnderWay
        table: Table = command.table
        with self._lock:
            now = self._now()
            items = self._tables.setdefault(table.name, {})
            spot = command.key if table.sort is None else (command.key, command.sort)
            item = items.get(spot)
            if not allowed(command, item):
                return Refused(now, item)
            after = outcome(command, item, now)
            if after is None:
                self._remove(table, spot)
            else:
                if item is None:
                    self._announce(table, spot, after)
                items[spot] = after
            if self._due[0] <= now:
                self._sweep(now)
        if self._watchers.watches or self._watchers.async_watches:
            self._watchers.notify(place_named(command))
        return Applied(now, after if type(command) is commands.Add else None)

    def _batch(self, command: commands.Batch) -> commands.Many:
        return commands.Many(tuple(self._write(write) for write in command.writes))

    def _transact(self, command: commands.Transact) -> Applied | commands.Cancelled:
        if self._owned():
            raise WriteUnderWay
        with self._lock:
            now = self._now()
            found = [(write, self._table(write.table).get(_spot(write))) for write in command.writes]
            refusals = tuple(None if allowed(write, item) else Refused(now, item) for write, item in found)
            if any(refusals):
                return commands.Cancelled(now, refusals)
            steps = [self._step(write, item, now) for write, item in found]
            # All of them in one call of C, where no signal comes in between.
            deque(map(operator.call, steps), maxlen=0)
            for write in command.writes:
                if type(write) is commands.Delete:
                    self._remove(write.table, _spot(write))
            if self._due[0] <= now:
                self._sweep(now)
        for write in command.writes:
            self._watchers.notify(place_named(write))
        return Applied(now)

    def _step(self, command: Write, item: Item | None, now: float) -> Callable[[], Any]:
        """What makes an allowed write, as one call of C."""
        spot, items = _spot(command), self._table(command.table)
        after = outcome(command, item, now)
        if after is None:
            return partial(items.pop, spot, None)
        if item is None:
            self._announce(command.table, spot, after)
        return partial(items.__setitem__, spot, after)

    def _announce(self, table: Table, spot: ItemKey, item: Item) -> None:
        """What helps to find or to remove an item that is about to be there."""
        # It is looked at when its time may be up; until then it may be written as often as it likes.
        bucket = item[table.expires] // BUCKET_SECONDS * BUCKET_SECONDS + BUCKET_SECONDS
        if bucket not in self._buckets:
            heapq.heappush(self._due, bucket)
        self._buckets.setdefault(bucket, []).append((table, spot))
        if type(spot) is tuple:
            self._partitions.setdefault((table.name, spot[0]), {})[spot] = None

    def _remove(self, table: Table, spot: ItemKey) -> None:
        self._tables[table.name].pop(spot, None)
        if type(spot) is tuple:
            partition = self._partitions.get((table.name, spot[0]), {})
            partition.pop(spot, None)
            if not partition:
                self._partitions.pop((table.name, spot[0]), None)

    def _sweep(self, now: float) -> None:
        bucket = self._due[0]
        places = self._buckets.get(bucket, [])
        for _ in range(min(SWEEP, len(places))):
            table, spot = places[-1]
            item = self._tables[table.name].get(spot)
            if item is None or item[table.expires] <= now:
                self._remove(table, spot)
            else:
                self._announce(table, spot, item)
            places.pop()
        if not places:
            self._buckets.pop(bucket, None)
            heapq.heappop(self._due)

    def _query(self, command: commands.Query) -> commands.Page:
        now = self._now()
        table, index = command.table, command.table.index(command.index)
        order = commands.ordering(table, index)

        def place(item: Item) -> list[Any]:
            return [item[name] for name in order]

        rows = [item for item in self._among(command) if _asked_for(command, index or table, item, now)]
        if command.after is not None:
            start = commands.place_of(table, command.after, index)
            beyond = operator.lt if command.reverse else operator.gt
            rows = [item for item in rows if beyond(place(item), start)]
        rows.sort(key=place, reverse=command.reverse)
        page = rows[: command.limit]
        after = commands.cursor(table, page[-1], index) if len(rows) > len(page) else None
        return commands.Page(now, tuple(page), after)

    def _among(self, command: commands.Query) -> list[Item]:
        table = command.table
        key: Any = command.key
        with self._lock:
            if command.index or key is None:
                return list(self._table(table).values())
            items = self._table(table)
            spots = [key] if table.sort is None else self._partitions.get((table.name, key), ())
            return [items[spot] for spot in spots if spot in items]


def _spot(command: commands.Get | commands.Watch | Write) -> ItemKey:
    return command.key if command.table.sort is None else (command.key, command.sort)


def _refuse(_: Any) -> Any:
    raise StoreClosed("the store was closed")


def _asked_for(command: commands.Query, by: Table | Index, item: Item, now: float) -> bool:
    place = None if by.sort is None else item.get(by.sort)
    return (
        alive(command.table, item, now) is not None
        and (command.key is None or _partition(by, item) == command.key)
        and (by.sort is None or place is not None)
        and (command.low is None or place is None or place >= command.low)
        and (command.high is None or place is None or place <= command.high)
        and str(item[command.table.partition]).startswith(command.prefix)
        and all(item.get(name) == value for name, value in command.equal.items())
    )


def _partition(by: Table | Index, item: Item) -> Any:
    """What it is found by; for an index by realm that is `env/scope/`, or "" of another name."""
    value = item.get(by.partition)
    if not (isinstance(by, Index) and by.by_realm):
        return value
    pieces = str(value).split("/", 2)
    return "/".join(pieces[:2]) + "/" if len(pieces) > 2 else ""
