"""What is sent for each command, and in what order: generators, which do no I/O."""

import re
from collections.abc import Callable, Sequence
from math import ceil, inf
from operator import itemgetter
from os.path import commonprefix
from typing import Any, NoReturn, TypeVar

import msgspec

from semel.core.clock import Clock
from semel.core.commands import (
    Add,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Found,
    Get,
    Item,
    Many,
    Page,
    Put,
    Query,
    Refused,
    Time,
    Transact,
    Update,
    Write,
    alive,
    cursor,
)
from semel.errors import SchemaTooNew, UsageError, WrongEnvironment, WrongSchema
from semel.model import ScanCost, TableSize
from semel.stores.redis.connection import RedisRequest, pack
from semel.stores.redis.plan import ENCODER, REPLY, Bounds, RedisPlan, scope_of
from semel.stores.redis.router import WRITE, RedisCommand, Requests, Router, granted, redis_command
from semel.stores.redis.server import ErrorReply, Node, RedisAddress
from semel.stores.servertime import ServerTime
from semel.stores.shared import Plans, not_offered
from semel.tables import Table

T = TypeVar("T")

SCHEMA = 1
UNSTAMPED = [None, None, None]

NO_RECENT = (
    "on Redis programs that run already would leave their records out of it, and every claim and every "
    "completion would write to one sorted set of the scope"
)

# The most writes in one call of the script: commands of other clients wait for that long.
WRITES_PER_CALL = 50
# A page is filled by reading at most so many items at a time, and if it is filtered at least so many.
MOST_READ, LEAST_READ = 1000, 100
# How many keys one SCAN goes over: few at first, more if it finds few, and never enough to block the server.
FIRST_STEP, LAST_STEP = 10, 10_000


class ScanCursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the next page of a whole table begins."""

    node: str
    cursor: int | None
    """How far the server was scanned; None if to its end."""
    start: str
    """What the keys that were found, and had no room on a page, begin with: a cursor is part of a URL."""
    rest: list[str]
    """How each of them goes on."""


def parse_cursor(after: str) -> ScanCursor:
    """Read the cursor of an earlier page."""
    try:
        return msgspec.json.decode(after, type=ScanCursor)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a cursor of an earlier page: {after!r}") from error


class TableScan(msgspec.Struct):
    """The scan of a table for one page: what was found, and what is still to be read."""

    plan: RedisPlan
    query: Query
    now: float
    cursor: int | None
    keys: list[str]
    items: list[Item] = []
    seen: set[str] = set()
    scanned: int = 0
    read: int = 0

    def is_full(self) -> bool:
        """Whether the page ends here."""
        most = self.query.most or inf
        # Keys that were found are read first, or the cursor would have to name them.
        over = self.read >= most or (self.scanned >= most and not self.keys)
        return over or len(self.items) >= self.query.limit

    def step(self) -> int:
        """How many keys to go over next: they are in no order, so the rest is as dense as what was seen."""
        left = (self.query.most or inf) - self.scanned
        need = max(self.query.limit - len(self.items), FIRST_STEP)
        step = need * self.scanned // len(self.seen) if self.seen else max(need, 4 * self.scanned)
        return int(max(FIRST_STEP, min(step, left, LAST_STEP)))

    def page(self, node: str, more: bool) -> Page:
        """Return what was found so far, and where the next page begins."""
        after = None
        if more:
            start = commonprefix(self.keys)  # noqa: RUF071 - of any texts
            at = ScanCursor(node, self.cursor, start, [key[len(start) :] for key in self.keys])
            after = msgspec.json.encode(at).decode()
        return Page(self.now, tuple(self.items), after, max(self.read, self.scanned))


class Interpreter(Router):
    """Answers commands with requests to the servers."""

    def __init__(self, address: RedisAddress, env: str, clock: Clock) -> None:
        super().__init__(address)
        self._env = env
        self._imposed = clock.imposed
        self.time: ServerTime = ServerTime(clock)
        self._open = False
        flags = {"confirm": address.wait_replicas > 0, "cluster": address.cluster}
        self._flags = {name: True for name, given in flags.items() if given}
        self.stamp: bytes = f"{address.prefix}:meta".encode()
        self._layout = b"cluster" if address.cluster else b"server"
        plans = Plans(lambda table: RedisPlan(table, address.prefix, address.cluster))
        self.plan: Callable[[Table], RedisPlan] = plans.of
        self._perform: dict[type, Callable[[Any], Requests[Any]]] = {
            Get: self._get,
            **dict.fromkeys((Put, Update, Add, Delete), self._write),
            Query: self._query,
            Transact: self._transact,
            Batch: self._batch,
            Time: self._time,
        }

    def perform(self, command: Any) -> Requests[Any]:
        """Return the requests that answer a command."""
        requests = self._perform[type(command)](command)
        return requests if self._open else self._opened(requests)

    # The stamp

    def stamped(self) -> Requests[list[bytes | None]]:
        """Read the stamp."""
        [found] = yield from self.send(
            [redis_command(b"HMGET", self.stamp, b"environment", b"schema", b"layout")]
        )
        return list(found)

    def open(self) -> Requests[None]:
        """Stamp a new prefix; refuse one of another environment or of a newer semel."""
        found = yield from self.stamped()
        if found == UNSTAMPED:
            fields = {b"environment": self._env.encode(), b"schema": b"%d" % SCHEMA, b"layout": self._layout}
            yield from self.send([redis_command(b"HSETNX", self.stamp, *field) for field in fields.items()])
            found = yield from self.stamped()
        self.check(found)
        self._open = True

    def _opened(self, requests: Requests[T]) -> Requests[T]:
        yield from self.open()
        return (yield from requests)

    def check(self, stamped: list[bytes | None]) -> None:
        """Refuse a stamp that is not this store's."""
        environment, schema, layout = stamped
        if environment is None or schema is None or not schema.isdigit():
            raise WrongSchema(f"{self.stamp.decode()!r} is no stamp of semel's: choose another ?prefix=...")
        if int(schema) > SCHEMA:
            raise SchemaTooNew(int(schema), SCHEMA)
        if environment.decode() != self._env:
            raise WrongEnvironment(environment.decode(), self._env)
        if layout != self._layout:
            other = "on a single server" if self.address.cluster else "in a cluster"
            raise WrongSchema(
                f"prefix {self.address.prefix!r} was made {other}, where indexes have other names: copy its "
                "records with semel export and semel import, or open it as it was made"
            )

    # Time

    def _now_word(self) -> bytes:
        """The time that a script goes by; nothing leaves it to the server."""
        imposed = self._imposed()
        return b"" if imposed is None else repr(imposed).encode()

    def _time(self, _command: Time) -> Requests[Found]:
        known = self.time.known()
        if known is None:
            known = Found((yield from self._now()), None)
            self.time.observe(known)
        return known

    def _now(self) -> Requests[float]:
        imposed = self._imposed()
        if imposed is not None:
            return imposed
        # Any node would do; one always has the stamp.
        [(seconds, microseconds)] = yield from self.send([RedisCommand(self.stamp, pack((b"TIME",)))])
        return int(seconds) + int(microseconds) / 1e6

    # One item

    def _get(self, command: Get) -> Requests[Found]:
        plan = self.plan(command.table)
        [reply] = yield from self.send([plan.get(plan.item_key(command), self._now_word())])
        now, [(_, fields)] = REPLY.decode(reply)
        return Found(now, plan.item(fields, command.key, command.sort) if fields else None)

    def _write(self, command: Write) -> Requests[Applied | Refused]:
        # Every claim comes through here: with as few calls as possible.
        plan = self.plan(command.table)
        key = plan.key(command.key)
        argument = ENCODER.encode({"writes": (plan.write(command),), **self._flags})
        data = WRITE.call_on(key, self._now_word(), argument)
        if self._flags:
            replies = yield from self.send([RedisCommand(key, data)], True)
        else:
            home = self.address.home
            replies = yield RedisRequest(home, data, 1, True)
            if type(replies[0]) is ErrorReply:
                sent = [RedisCommand(key, data)]
                replies = granted((yield from self.completed(home, sent, True, replies)), home, True)
        now, [(made, fields)] = REPLY.decode(replies[0])
        return plan.answer(command, now, made, fields)

    # Several items

    def _call(self, writes: Sequence[Write], **flags: bool) -> RedisCommand:
        keys = [self.plan(write.table).key(write.key) for write in writes]
        parts = [self.plan(write.table).write(write) for write in writes]
        argument = ENCODER.encode({"writes": parts, **flags, **self._flags})
        return RedisCommand(keys[0], WRITE.call(b"%d" % len(keys), *keys, self._now_word(), argument))

    def _answers(self, writes: Sequence[Write], reply: bytes) -> list[Applied | Refused]:
        now, found = REPLY.decode(reply)
        return [
            self.plan(write.table).answer(write, now, *outcome)
            for write, outcome in zip(writes, found, strict=True)
        ]

    def _batch(self, command: Batch) -> Requests[Many]:
        groups = self._groups(command.writes)
        parts = [[command.writes[place] for place in group] for group in groups]
        replies = yield from self.send([self._call(part) for part in parts], writes=True)
        answers: dict[int, Applied | Refused] = {}
        for group, part, reply in zip(groups, parts, replies, strict=True):
            answers |= zip(group, self._answers(part, reply), strict=True)
        return Many(tuple(answers[place] for place in range(len(command.writes))))

    def _groups(self, writes: Sequence[Write]) -> list[list[int]]:
        """Group writes into calls of the script: in a cluster, those of one scope."""
        groups: dict[str, list[int]] = {}
        for place, write in enumerate(writes):
            groups.setdefault(scope_of(write.key) if self.address.cluster else "", []).append(place)
        return [
            group[at : at + WRITES_PER_CALL]
            for group in groups.values()
            for at in range(0, len(group), WRITES_PER_CALL)
        ]

    def _transact(self, command: Transact) -> Requests[Applied | Cancelled]:
        writes = command.writes
        if not writes:
            return Applied((yield from self._now()))
        scopes = {scope_of(write.key): write for write in writes} if self.address.cluster else {}
        if len(scopes) > 1:
            _refuse_scopes(scopes)
        [reply] = yield from self.send([self._call(writes, together=True)], writes=True)
        now, found = REPLY.decode(reply)
        if all(made for made, _ in found):
            return Applied(now)
        answers = self._answers(writes, reply)
        return Cancelled(now, tuple(each if type(each) is Refused else None for each in answers))

    # Pages

    def _query(self, query: Query) -> Requests[Page]:
        plan = self.plan(query.table)
        if query.index:
            return (yield from self._by_index(query))
        if query.key is None:
            return (yield from self._whole(query))
        if not isinstance(query.key, str):
            raise UsageError(f"the key of table {query.table.name} is a text, not {query.key!r}")
        if plan.sorted:
            return (yield from self._range(query, [plan.key(query.key)], plan.bounds(query), query.key))
        found = yield from self._get(Get(query.table, query.key))
        item = found.item or {}
        return Page(found.now, (item,) if wanted(query, item, found.now) else (), None)

    def _by_index(self, query: Query) -> Requests[Page]:
        plan, index = self.plan(query.table), query.table.index(query.index)
        if index is None or index in query.table.optional_indexes:
            raise not_offered(query.index, NO_RECENT)
        bounds = plan.index_bounds(query, index)
        key, is_pattern = plan.index_key(index, query.key)
        keys = (yield from self._matching(key)) if is_pattern else [key]
        return (yield from self._range(query, keys, bounds, None))

    def _matching(self, pattern: bytes) -> Requests[list[bytes]]:
        """Find keys in a cluster: the entries for a value without a scope are in the slots of their items."""
        found: set[bytes] = set()
        for node in (yield from self.nodes()):
            at: int | None = 0
            while at is not None:
                at, names = yield from self._scanned(node, at, pattern, LAST_STEP)
                found.update(names)
        return sorted(found)

    def _scanned(
        self, node: Node, at: int, pattern: bytes, count: int
    ) -> Requests[tuple[int | None, list[bytes]]]:
        """Go over keys of a server, and return where to go on and what was found."""
        scan = redis_command(b"SCAN", b"%d" % at, b"MATCH", pattern, b"COUNT", b"%d" % count)
        [(following, names)] = yield from self.on(node, [scan])
        return int(following) or None, names

    def _range(
        self, query: Query, keys: list[bytes], bounds: Bounds, partition: str | None
    ) -> Requests[Page]:
        """Fill a page from a range of a sorted set, or of several in the same order."""
        plan = self.plan(query.table)
        items: list[Item] = []
        now = 0.0 if keys else (yield from self._now())
        while True:
            want = min(query.limit - len(items) + 1, MOST_READ)
            if query.equal:
                want = max(want, LEAST_READ)
            calls = [plan.page(key, bounds, want, self._now_word(), bool(query.index)) for key in keys]
            replies = yield from self.send(calls)
            found = [each for _, *entries in replies for each in zip(*entries, strict=True)]
            if replies:
                now = float(replies[0][0])
            if len(keys) > 1:
                found.sort(key=itemgetter(0), reverse=query.reverse)
            for entry, fields in found[:want]:
                item = plan.item(fields, *plan.place_of_entry(entry, partition)) if fields else {}
                if wanted(query, item, now):
                    items.append(item)
            if len(items) > query.limit:
                last = items[query.limit - 1]
                after = cursor(query.table, last, query.table.index(query.index))
                return Page(now, tuple(items[: query.limit]), after)
            if len(found) < want:
                return Page(now, tuple(items), None)
            bounds = bounds._replace(first=b"(" + found[want - 1][0])

    def _whole(self, query: Query) -> Requests[Page]:
        """Fill a page from a whole table by SCAN: no write pays for an index that only operators use."""
        nodes = {str(node): node for node in (yield from self.nodes())}
        names = list(nodes)
        start = ScanCursor(names[0], 0, "", []) if query.after is None else parse_cursor(query.after)
        if start.node not in nodes:
            raise UsageError("the cluster has changed since the page before; start from the first page")
        now = yield from self._now()
        keys = [start.start + rest for rest in start.rest]
        scan = TableScan(self.plan(query.table), query, now, start.cursor, keys)
        for name in names[names.index(start.node) :]:
            while scan.cursor is not None or scan.keys:
                yield from (self._read_found if scan.keys else self._find)(nodes[name], scan)
                if scan.is_full():
                    more = bool(scan.keys) or scan.cursor is not None or name != names[-1]
                    return scan.page(name, more)
            scan.cursor = 0
        return scan.page("", more=False)

    def _find(self, node: Node, scan: TableScan) -> Requests[None]:
        """Look for keys of the table; SCAN may return one twice while Redis resizes its table."""
        step = scan.step()
        scan.scanned += step
        pattern = scan.plan.pattern(scan.query.prefix)
        scan.cursor, names = yield from self._scanned(node, scan.cursor or 0, pattern, step)
        fresh = dict.fromkeys(name.decode(errors="replace") for name in names)
        scan.keys = [name for name in fresh if name not in scan.seen and scan.plan.place(name)]
        scan.seen.update(scan.keys)

    def _read_found(self, node: Node, scan: TableScan) -> Requests[None]:
        """Read as many items as are missing, or as many as were read in vain so far."""
        plan, word = scan.plan, self._now_word()
        count = max(scan.query.limit - len(scan.items), min(scan.read - len(scan.items), MOST_READ))
        names, scan.keys = scan.keys[:count], scan.keys[count:]
        replies = yield from self.on(node, [plan.get(name.encode(), word) for name in names])
        scan.read += len(names)
        spare: list[str] = []
        for name, reply in zip(names, replies, strict=True):
            _, [(_, fields)] = REPLY.decode(reply)
            item = plan.item(fields, *(plan.place(name) or ("", None))) if fields else {}
            if not wanted(scan.query, item, scan.now):
                continue
            if len(scan.items) < scan.query.limit:
                scan.items.append(item)
            else:
                spare.append(name)
        scan.keys = spare + scan.keys

    # Sizes

    def scan_cost(self) -> Requests[ScanCost]:
        """Count the keys of all servers, of this ledger and of other programs."""
        if not self._open:
            yield from self.open()
        keys = sum((yield from self._everywhere(b"DBSIZE")))
        note = "SCAN goes over all keys of the server, in steps that do not block it"
        return ScanCost(items=keys, requests=max(1, ceil(keys / LAST_STEP)), note=note)

    def measure(self) -> Requests[TableSize]:
        """Count the keys of all servers, and the memory that they use."""
        cost = yield from self.scan_cost()
        infos = yield from self._everywhere(b"INFO", b"memory")
        used = sum(int(size) for info in infos for size in re.findall(rb"used_memory:(\d+)", info))
        how = "all keys and all memory of the server, including those of other programs"
        return TableSize(table="", items=cost.items, bytes=used, how=how)

    def _everywhere(self, *words: bytes) -> Requests[list[Any]]:
        replies: list[Any] = []
        for node in (yield from self.nodes()):
            replies += yield from self.on(node, [redis_command(*words)])
        return replies


def wanted(query: Query, item: Item, now: float) -> bool:
    """Whether an item belongs on a page; an empty one does not."""
    table = query.table
    if not item or alive(table, item, now) is None or not item[table.partition].startswith(query.prefix):
        return False
    if query.key is None and table.sort is not None:
        sort = item[table.sort]
        if (query.low is not None and sort < query.low) or (query.high is not None and sort > query.high):
            return False
    return all(item.get(name) == value for name, value in query.equal.items())


def _refuse_scopes(scopes: dict[str, Write]) -> NoReturn:
    places = "; ".join(f"{write.key!r} of {write.table.name}" for write in scopes.values())
    raise UsageError(
        "a transaction in a cluster is limited to one scope, since each scope is on one node, and these "
        f"items are of {len(scopes)} scopes: {places}. Use one transaction per scope, or a single server"
    )
