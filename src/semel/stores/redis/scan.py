"""Pages: what belongs on one, and the SCAN that fills those of a whole table."""

from typing import Any

import msgspec

from semel.core.commands import Item, Page, Query, cursor, holds
from semel.errors import UsageError
from semel.stores.redis.plan import RedisPlan
from semel.stores.redis.protocol import RedisCommand
from semel.stores.redis.scripts import outcomes

# A page is filled by reading so many items at a time at most, and where it is filtered at least so many.
MOST_READ, LEAST_READ = 1000, 100
# How far SCAN goes in one step: a little at first, more where it finds little, and never for long.
FIRST_STEP, LAST_STEP = 10, 10_000


class ScanCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the next page of a whole table begins."""

    node: str
    cursor: int | None
    """How far the server was scanned; None when it was to its end."""
    keys: list[str]
    """What it gave already, and no page had room for."""


def parse_cursor(after: str) -> ScanCursor:
    """Read the cursor of an earlier page."""
    try:
        return msgspec.json.decode(after, type=ScanCursor)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a cursor of an earlier page: {after!r}") from error


class TableScan:
    """The scan of a table for one page: what was found, and what is still to be read."""

    def __init__(self, plan: RedisPlan, query: Query, start: ScanCursor) -> None:
        self.items: list[Item] = []
        self.keys: list[Any] = start.keys
        self.cursor = start.cursor
        self._plan = plan
        self._query = query
        self._pattern = plan.pattern(query)
        self._seen: set[str] = set()
        self._scanned = 0
        self._read = 0

    @property
    def examined(self) -> int:
        """How many keys were gone over, which is about as many as SCAN was asked for."""
        return max(self._read, self._scanned)

    @property
    def is_full(self) -> bool:
        """Whether the page ends here."""
        most = self._query.most
        # Keys that were found are read before it ends: else its cursor would have to name them.
        over = most > 0 and (self._read >= most or (self._scanned >= most and not self.keys))
        return over or len(self.items) >= self._query.limit

    def scan(self) -> RedisCommand:
        """Look for more keys."""
        need = max(self._query.limit - len(self.items), FIRST_STEP)
        # Keys lie in no order, so what is still to come is as thick with them as what was seen.
        step = need * self._scanned // len(self._seen) if self._seen else max(need, 4 * self._scanned)
        left = self._query.most - self._scanned if self._query.most else LAST_STEP
        step = max(FIRST_STEP, min(step, left, LAST_STEP))
        self._scanned += step
        cursor = b"%d" % (self.cursor or 0)
        return RedisCommand(b"", (b"SCAN", cursor, b"MATCH", self._pattern, b"COUNT", b"%d" % step))

    def scanned(self, reply: Any) -> None:
        """Keys that were found; one may be found twice while Redis makes room for more."""
        following, names = reply
        self.cursor = int(following) or None
        fresh = dict.fromkeys(name.decode(errors="replace") for name in names)
        self.keys = [name for name in fresh if name not in self._seen and self._plan.place(name)]
        self._seen.update(self.keys)

    def reading(self, now: float | None) -> tuple[list[RedisCommand], list[str]]:
        """Read as many as are lacking, or as many as were read in vain so far."""
        count = max(self._query.limit - len(self.items), min(self._read - len(self.items), MOST_READ))
        some, self.keys = self.keys[:count], self.keys[count:]
        return [self._plan.get([name.encode()], now) for name in some], some

    def read(self, names: list[str], replies: list[Any], now: float) -> None:
        """Keep what is wanted, as far as there is room; the rest is for the next page."""
        self._read += len(names)
        spare: list[str] = []
        for name, reply in zip(names, replies, strict=True):
            _, [outcome] = outcomes(reply)
            key, sort = self._plan.place(name) or ("", None)
            item = self._plan.item(outcome.flat, key, sort) if outcome.flat else {}
            if not wanted(self._plan, self._query, item, now):
                continue
            if len(self.items) < self._query.limit:
                self.items.append(item)
            else:
                spare.append(name)
        self.keys = spare + self.keys

    def page(self, now: float, node: str | None) -> Page:
        """What was found, and the cursor from where to go on, on this node."""
        after = (
            None if node is None else msgspec.json.encode(ScanCursor(node, self.cursor, self.keys)).decode()
        )
        return Page(now, tuple(self.items), after, self.examined)


def wanted(plan: RedisPlan, query: Query, item: Item, now: float) -> bool:
    """Whether an item belongs on a page; an empty one is none."""
    if not item or not plan.alive(item, now):
        return False
    if query.key is None and plan.table.sort is not None:
        sort = item[plan.table.sort]
        if (query.low is not None and sort < query.low) or (query.high is not None and sort > query.high):
            return False
    return query.where is None or holds(query.where, item, now)


def count_to_read(query: Query, items: list[Item]) -> int:
    """How many to read at a time: what is lacking and one more, or several where they are filtered."""
    want = min(query.limit - len(items) + 1, MOST_READ)
    return want if query.where is None else max(want, LEAST_READ)


def page_of(query: Query, items: list[Item], now: float) -> Page:
    """A page of these, of which one more than there is room for says that there are others."""
    if len(items) <= query.limit:
        return Page(now, tuple(items), None)
    index = query.table.index(query.index)
    return Page(now, tuple(items[: query.limit]), cursor(query.table, items[query.limit - 1], index))
