"""What is sent for each command, and in what order: generators, which do no I/O."""

import re
from collections.abc import Callable, Sequence
from math import ceil
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
from semel.errors import (
    SchemaTooNew,
    UsageError,
    WrongEnvironment,
    WrongSchema,
)
from semel.model import ScanCost, TableSize
from semel.stores.redis.plan import ENCODER, REPLY, Bounds, RedisPlan, Writes, scope_of
from semel.stores.redis.router import WRITE, RedisCommand, Requests, Router, lacks_script, redis_command
from semel.stores.redis.server import ErrorReply, Node, RedisAddress, RedisRequest, pack, refusal
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
    """What the keys that were found, and had no room on a page, begin with."""
    rest: list[str]
    """How each of them goes on."""


def cursor_at(node: str, cursor: int | None, keys: list[str]) -> ScanCursor:
    """Describe how far a scan has come; many keys begin alike, and a cursor is part of a URL."""
    start = commonprefix(keys)  # noqa: RUF071 - of any texts
    return ScanCursor(node, cursor, start, [key[len(start) :] for key in keys])


def parse_cursor(after: str) -> ScanCursor:
    """Read the cursor of an earlier page."""
    try:
        return msgspec.json.decode(after, type=ScanCursor)
    except msgspec.DecodeError as error:
        raise UsageError(f"not a cursor of an earlier page: {after!r}") from error


class TableScan(msgspec.Struct):
    """The scan of a table for one page: what was found, and what is still to be read."""

    keys: list[str]
    cursor: int | None
    items: list[Item] = []
    seen: set[str] = set()
    scanned: int = 0
    read: int = 0

    def is_full(self, query: Query) -> bool:
        """Whether the page ends here."""
        # Keys that were found are read first, or the cursor would have to name them.
        over = query.most and (self.read >= query.most or (self.scanned >= query.most and not self.keys))
        return bool(over) or len(self.items) >= query.limit

    def step(self, query: Query) -> int:
        """How many keys to go over next: they are in no order, so the rest is as dense as what was seen."""
        need = max(query.limit - len(self.items), FIRST_STEP)
        step = need * self.scanned // len(self.seen) if self.seen else max(need, 4 * self.scanned)
        return max(FIRST_STEP, min(step, query.most - self.scanned if query.most else LAST_STEP, LAST_STEP))


class Interpreter(Router):
    """Answers commands with requests to the servers."""

    def __init__(self, address: RedisAddress, env: str, clock: Clock) -> None:
        super().__init__(address)
        self._env = env
        self._imposed = clock.imposed
        self.time: ServerTime = ServerTime(clock)
        self._open = False
        self._confirm = address.wait_replicas > 0
        self._direct = not address.cluster and not self._confirm
        self.plan: Callable[[Table], RedisPlan] = Plans(
            lambda table: RedisPlan(table, address.prefix, address.cluster)
        ).of
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

    @property
    def stamp(self) -> bytes:
        """The key of the stamp."""
        return f"{self.address.prefix}:meta".encode()

    @property
    def _layout(self) -> bytes:
        return b"cluster" if self.address.cluster else b"server"

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
        call = self._call([(plan, command)])
        if self._direct:
            [reply] = yield RedisRequest(self.address.home, call.data, 1, True)
            if type(reply) is ErrorReply:
                reply = yield from self._with_script(call, reply)
        else:
            [reply] = yield from self.send([call], True)
        now, [(made, fields)] = REPLY.decode(reply)
        item = plan.item(fields, command.key, command.sort) if fields else None
        return Applied(now, item) if made else Refused(now, item)

    def _with_script(self, call: RedisCommand, reply: ErrorReply) -> Requests[Any]:
        """Send a write again whose script the server does not have; raise any other error."""
        if not lacks_script(reply):
            raise refusal(reply, self.address.home, writes=True)
        [reply] = yield from self.send([RedisCommand(call.key, call.with_text())], True)
        return reply

    # Several items

    def _call(self, writes: Sequence[tuple[RedisPlan, Write]], together: bool = False) -> RedisCommand:
        """Call the script that makes writes."""
        keys, parts = [], []
        for plan, write in writes:
            keys.append(plan.key(write.key))
            parts.append(plan.write(write))
        arguments = ENCODER.encode(Writes(parts, together, self._confirm, self.address.cluster))
        now = self._imposed()
        word = b"" if now is None else repr(now).encode()
        return RedisCommand(keys[0], WRITE.call(b"%d" % len(keys), *keys, word, arguments))

    def _batch(self, command: Batch) -> Requests[Many]:
        writes = [(self.plan(write.table), write) for write in command.writes]
        groups = self._groups(command.writes)
        calls = [self._call([writes[place] for place in group]) for group in groups]
        replies = yield from self.send(calls, writes=True)
        answers: dict[int, Applied | Refused] = {}
        for group, reply in zip(groups, replies, strict=True):
            now, found = REPLY.decode(reply)
            for place, outcome in zip(group, found, strict=True):
                plan, write = writes[place]
                answers[place] = plan.answer(write, now, *outcome)
        return Many(tuple(answers[place] for place in range(len(writes))))

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
        if not command.writes:
            return Applied((yield from self._now()))
        scopes = {scope_of(write.key): write for write in command.writes} if self.address.cluster else {}
        if len(scopes) > 1:
            _refuse_scopes(scopes)
        writes = [(self.plan(write.table), write) for write in command.writes]
        [reply] = yield from self.send([self._call(writes, together=True)], writes=True)
        now, found = REPLY.decode(reply)
        answers = [
            plan.answer(write, now, *outcome) for (plan, write), outcome in zip(writes, found, strict=True)
        ]
        refusals = tuple(answer if isinstance(answer, Refused) else None for answer in answers)
        return Cancelled(now, refusals) if any(refusals) else Applied(now)

    # Pages

    def _query(self, query: Query) -> Requests[Page]:
        plan = self.plan(query.table)
        if query.index:
            return (yield from self._by_index(plan, query))
        if query.key is None:
            return (yield from self._whole(plan, query))
        if not isinstance(query.key, str):
            raise UsageError(f"the key of table {query.table.name} is a text, not {query.key!r}")
        if plan.sorted:
            keys, place = [plan.key(query.key)], plan.place_in(query.key)
            return (yield from self._range(plan, query, keys, plan.bounds(query), place))
        found = yield from self._get(Get(query.table, query.key))
        item = found.item or {}
        return Page(found.now, (item,) if wanted(query, item, found.now) else (), None)

    def _by_index(self, plan: RedisPlan, query: Query) -> Requests[Page]:
        index = query.table.index(query.index)
        if index is None or index in query.table.optional_indexes:
            raise not_offered(query.index, NO_RECENT)
        bounds = plan.index_bounds(query, index)
        key, is_pattern = plan.index_key(index, query.key)
        keys = (yield from self._matching(key)) if is_pattern else [key]
        return (yield from self._range(plan, query, keys, bounds, plan.place_of_entry))

    def _matching(self, pattern: bytes) -> Requests[list[bytes]]:
        """Find keys in a cluster: the entries for a value without a scope are in the slots of their items."""
        found: set[bytes] = set()
        for node in (yield from self.nodes()):
            at = b"0"
            while True:
                [(at, names)] = yield from self.on(node, [scan_command(at, pattern, LAST_STEP)])
                found.update(names)
                if at == b"0":
                    break
        return sorted(found)

    def _range(
        self,
        plan: RedisPlan,
        query: Query,
        keys: list[bytes],
        bounds: Bounds,
        place: Callable[[bytes], tuple[str, Any]],
    ) -> Requests[Page]:
        """Fill a page from a range of a sorted set, or of several in the same order."""
        items: list[Item] = []
        now = 0.0 if keys else (yield from self._now())
        while True:
            want = min(query.limit - len(items) + 1, MOST_READ)
            if query.equal:
                want = max(want, LEAST_READ)
            index = bool(query.index)
            calls = [plan.page(key, bounds, want, self._now_word(), index) for key in keys]
            replies = yield from self.send(calls)
            found = [each for _, *entries in replies for each in zip(*entries, strict=True)]
            if len(keys) > 1:
                found.sort(key=itemgetter(0), reverse=query.reverse)
            for entry, fields in found[:want]:
                now = float(replies[0][0])
                item = plan.item(fields, *place(entry)) if fields else {}
                if wanted(query, item, now):
                    items.append(item)
            if len(items) > query.limit or len(found) < want:
                return page_of(query, items, float(replies[0][0]) if replies else now)
            bounds = bounds.beyond(found[want - 1][0])

    def _whole(self, plan: RedisPlan, query: Query) -> Requests[Page]:
        """Fill a page from a whole table by SCAN: no write pays for an index that only operators use."""
        nodes = yield from self.nodes()
        names = [str(node) for node in nodes]
        start = cursor_at(names[0], 0, []) if query.after is None else parse_cursor(query.after)
        if start.node not in names:
            raise UsageError("the cluster has changed since the page before; start from the first page")
        scan = TableScan([start.start + rest for rest in start.rest], start.cursor)
        now = yield from self._now()
        for place in range(names.index(start.node), len(nodes)):
            while scan.cursor is not None or scan.keys:
                if scan.keys:
                    yield from self._read_found(plan, query, nodes[place], scan, now)
                else:
                    yield from self._find(plan, query, nodes[place], scan)
                if scan.is_full(query):
                    more = bool(scan.keys) or scan.cursor is not None or place + 1 < len(nodes)
                    after = cursor_at(names[place], scan.cursor, scan.keys) if more else None
                    return scan_page(scan, now, after)
            scan.cursor = 0
        return scan_page(scan, now, None)

    def _find(self, plan: RedisPlan, query: Query, node: Node, scan: TableScan) -> Requests[None]:
        """Look for keys of the table; SCAN may return one twice while Redis resizes its table."""
        step = scan.step(query)
        scan.scanned += step
        found = scan_command(b"%d" % (scan.cursor or 0), plan.pattern(query.prefix), step)
        [(following, names)] = yield from self.on(node, [found])
        scan.cursor = int(following) or None
        fresh = dict.fromkeys(name.decode(errors="replace") for name in names)
        scan.keys = [name for name in fresh if name not in scan.seen and plan.place(name)]
        scan.seen.update(scan.keys)

    def _read_found(
        self, plan: RedisPlan, query: Query, node: Node, scan: TableScan, now: float
    ) -> Requests[None]:
        """Read as many items as are missing, or as many as were read in vain so far."""
        count = max(query.limit - len(scan.items), min(scan.read - len(scan.items), MOST_READ))
        names, scan.keys = scan.keys[:count], scan.keys[count:]
        word = self._now_word()
        replies = yield from self.on(node, [plan.get(name.encode(), word) for name in names])
        scan.read += len(names)
        spare: list[str] = []
        for name, reply in zip(names, replies, strict=True):
            _, [(_, fields)] = REPLY.decode(reply)
            item = plan.item(fields, *(plan.place(name) or ("", None))) if fields else {}
            if wanted(query, item, now):
                if len(scan.items) < query.limit:
                    scan.items.append(item)
                else:
                    spare.append(name)
        scan.keys = spare + scan.keys

    # Sizes

    def scan_cost(self) -> Requests[ScanCost]:
        """Count the keys of all servers, of this ledger and of other programs."""
        if not self._open:
            yield from self.open()
        keys = 0
        for node in (yield from self.nodes()):
            [count] = yield from self.on(node, [redis_command(b"DBSIZE")])
            keys += int(count)
        note = "SCAN goes over all keys of the server, in steps that do not block it"
        return ScanCost(items=keys, requests=max(1, ceil(keys / LAST_STEP)), note=note)

    def measure(self) -> Requests[TableSize]:
        """Count the keys of all servers, and the memory that they use."""
        cost = yield from self.scan_cost()
        used = 0
        for node in (yield from self.nodes()):
            [reply] = yield from self.on(node, [redis_command(b"INFO", b"memory")])
            found = re.search(rb"used_memory:(\d+)", bytes(reply))
            used += int(found[1]) if found else 0
        how = "all keys and all memory of the server, including those of other programs"
        return TableSize(table="", items=cost.items, bytes=used, how=how)


def scan_page(scan: TableScan, now: float, after: ScanCursor | None) -> Page:
    """Build a page of a scan."""
    text = None if after is None else msgspec.json.encode(after).decode()
    return Page(now, tuple(scan.items), text, max(scan.read, scan.scanned))


def scan_command(cursor: bytes, pattern: bytes, count: int) -> RedisCommand:
    """Go over keys of a server."""
    return redis_command(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % count)


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


def page_of(query: Query, items: list[Item], now: float) -> Page:
    """Build a page of items; one more than it has room for means that there are others."""
    if len(items) <= query.limit:
        return Page(now, tuple(items), None)
    index = query.table.index(query.index)
    return Page(now, tuple(items[: query.limit]), cursor(query.table, items[query.limit - 1], index))


def _refuse_scopes(scopes: dict[str, Write]) -> NoReturn:
    places = "; ".join(f"{write.key!r} of {write.table.name}" for write in scopes.values())
    raise UsageError(
        "a transaction in a cluster is limited to one scope, since each scope is on one node, and these "
        f"items are of {len(scopes)} scopes: {places}. Use one transaction per scope, or a single server"
    )
