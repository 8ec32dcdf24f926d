"""What is said to the servers, and in what order: generators, which do no I/O themselves.

Each yields an `Exchange` and is sent the answers to it; sync and async carry the same ones out (see `lines`).
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
from redis.exceptions import AskError, MovedError, NoScriptError, ResponseError

from semel.clock import Clock
from semel.commands import (
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
    Transact,
    Update,
    Watch,
    Write,
    cursor,
    holds,
)
from semel.errors import (
    SchemaTooNew,
    SemelError,
    StoreOutcomeUnknown,
    StoreUnavailable,
    UsageError,
    WrongEnvironment,
    WrongSchema,
)
from semel.stores.redis.address import Address, Node
from semel.stores.redis.faults import refusal
from semel.stores.redis.plan import Ask, Manner, Outcome, Plan, Spot, outcomes, packed, spot_of, write_ask
from semel.stores.redis.scripts import OPEN
from semel.stores.redis.slots import Slots, key_slot
from semel.tables import Table

T = TypeVar("T")

SCHEMA = 1

# So many writes of a batch are one run of a script: others' commands wait for no more than that at a time.
RUN = 50
# A page is filled by reading so many items at a time at most, and where it is filtered at least so many.
MOST_READ, LEAST_READ = 1000, 100
# How far SCAN goes in one step: a little at first, more where it finds little, and never for long.
FIRST_STEP, LAST_STEP = 10, 10_000
# A slot moves seldom, and never so often within one command.
REDIRECTIONS = 5


class Exchange(msgspec.Struct, frozen=True):
    """Bytes for one server, and how many answers they have."""

    node: Node
    data: bytes
    count: int
    writes: bool = False
    """Whether what is lost may have been made."""


Dialogue: TypeAlias = Generator[Exchange, list[Any], T]


class Talk:
    """What a store has to say, and what it knows of its servers."""

    def __init__(self, address: Address, env: str, clock: Clock) -> None:
        self.address = address
        self.slots: Slots | None = None
        self._env = env
        self._imposed = clock.imposed
        self._open = False
        self._plans: dict[str, Plan] = {}
        self._manner = Manner("SPUBLISH" if address.cluster else "PUBLISH", address.wait_replicas > 0)
        wait = (b"WAIT", b"%d" % address.wait_replicas, b"%d" % (address.wait_seconds * 1000))
        self._wait = packed(wait) if address.wait_replicas else b""
        self._perform: dict[type, Callable[[Any], Dialogue[Any]]] = {
            Get: self._get,
            Watch: self._get,
            Put: self._write,
            Update: self._write,
            Add: self._write,
            Delete: self._write,
            Query: self._query,
            Transact: self._transact,
            Batch: self._batch,
        }

    def perform(self, command: Any) -> Dialogue[Any]:
        """Carry a command out, and answer it."""
        try:
            if not self._open:
                yield from self.open()
            return (yield from self._perform[type(command)](command))
        except UnicodeEncodeError as error:
            raise UsageError(f"not a text that UTF-8 can write: {error.object!r}") from error

    def plan(self, table: Table) -> Plan:
        """The plan of a table."""
        plan = self._plans.get(table.name)
        if plan is None:
            plan = self._plans.setdefault(table.name, Plan(table, self.address.prefix))
        if plan.table is not table and plan.table != table:
            raise UsageError(f"this store has another table named {table.name!r}")
        return plan

    # Opening

    @property
    def stamp(self) -> bytes:
        """The key of the stamp."""
        return f"{self.address.prefix}:meta".encode()

    def open(self) -> Dialogue[None]:
        """Stamp what is new; refuse what is another environment's, or a newer semel's."""
        ask = Ask(self.stamp, (b"1", self.stamp, self._env.encode(), b"%d" % SCHEMA), OPEN)
        [found] = yield from self.send([ask])
        self.check(found)
        self._open = True

    def check(self, stamped: list[bytes | None]) -> None:
        """Refuse a stamp that is not this store's."""
        environment, schema = stamped
        if environment is None or schema is None or not schema.isdigit():
            raise WrongSchema(f"{self.stamp.decode()!r} is no stamp of semel's: choose another ?prefix=...")
        if int(schema) > SCHEMA:
            raise SchemaTooNew(int(schema), SCHEMA)
        if environment.decode() != self._env:
            raise WrongEnvironment(environment.decode(), self._env)

    # One item

    def _get(self, command: Get | Watch) -> Dialogue[Found]:
        plan = self.plan(command.table)
        reply = yield from self._one(plan.get(plan.keys(command), self._imposed()))
        now, [outcome] = outcomes(reply)
        item = None if outcome.flat is None else plan.item(outcome.flat, command.key, command.sort)
        return Found(now, item if item is not None and plan.alive(item, now) else None)

    def _write(self, command: Write) -> Dialogue[Applied | Refused]:
        plan = self.plan(command.table)
        ask = write_ask([plan], [command], self._imposed(), self._manner)
        reply = yield from self._one(ask, writes=True)
        now, [outcome] = outcomes(reply)
        return _answered(plan, command, now, outcome)

    # Several items

    def _batch(self, command: Batch) -> Dialogue[Many]:
        runs = self._runs(command.writes)
        asks = [self._run([command.writes[place] for place in run]) for run in runs]
        answers: dict[int, Applied | Refused] = {}
        for run, reply in zip(runs, (yield from self.send(asks, writes=True)), strict=True):
            now, found = outcomes(reply)
            for place, outcome in zip(run, found, strict=True):
                write = command.writes[place]
                answers[place] = _answered(self.plan(write.table), write, now, outcome)
        return Many(tuple(answers[place] for place in range(len(command.writes))))

    def _runs(self, writes: Sequence[Write]) -> list[list[int]]:
        """Which writes go into one run of a script: those whose keys are on one server."""
        groups: dict[int, list[int]] = {}
        for place, write in enumerate(writes):
            slot = key_slot(self.plan(write.table).partition(write.key)) if self.address.cluster else 0
            groups.setdefault(slot, []).append(place)
        return [group[at : at + RUN] for group in groups.values() for at in range(0, len(group), RUN)]

    def _run(self, writes: Sequence[Write], together: bool = False) -> Ask:
        plans = [self.plan(write.table) for write in writes]
        return write_ask(plans, writes, self._imposed(), self._manner, together)

    def _transact(self, command: Transact) -> Dialogue[Applied | Cancelled]:
        if not command.writes:
            return Applied((yield from self._now(self.address.home)))
        if self.address.cluster:
            self._refuse_apart(command.writes)
        [reply] = yield from self.send([self._run(command.writes, together=True)], writes=True)
        now, found = outcomes(reply)
        if all(outcome.made for outcome in found):
            return Applied(now)
        refusals = []
        for write, outcome in zip(command.writes, found, strict=True):
            answer = _answered(self.plan(write.table), write, now, outcome)
            refusals.append(answer if isinstance(answer, Refused) else None)
        return Cancelled(now, tuple(refusals))

    def _refuse_apart(self, writes: Iterable[Write]) -> None:
        """Refuse a transaction that no single node could make."""
        slots: dict[int, list[str]] = {}
        for write in writes:
            slot = key_slot(self.plan(write.table).partition(write.key))
            slots.setdefault(slot, []).append(f"{write.key!r} of {write.table.name}")
        if len(slots) > 1:
            apart = "; ".join(f"slot {slot}: {', '.join(keys)}" for slot, keys in slots.items())
            raise UsageError(
                f"a cluster keeps these items in different slots, and a transaction needs one ({apart}); "
                "items that change together have to share their partition key"
            )

    # Pages

    def _query(self, query: Query) -> Dialogue[Page]:
        plan = self.plan(query.table)
        if query.key is None:
            return (yield from self._whole(plan, query))
        if plan.sorted:
            return (yield from self._partition(plan, query, query.key))
        found = yield from self._get(Get(query.table, query.key))
        wanted = found.item is not None and (query.where is None or holds(query.where, found.item, found.now))
        return Page(found.now, (found.item,) if wanted and found.item is not None else (), None)

    def _partition(self, plan: Plan, query: Query, key: str) -> Dialogue[Page]:
        index, bounds = plan.partition(key), plan.bounds(query)
        items: list[Item] = []
        while True:
            want = min(query.limit - len(items) + 1, MOST_READ)
            if query.where is not None:
                want = max(want, LEAST_READ)
            [reply] = yield from self.send([plan.page(index, bounds, want, self._imposed())])
            now, found = outcomes(reply)
            for _, flat in found:
                item = plan.item(flat[1:], key, plan.sort_of(flat[0])) if flat else {}
                if _wanted(plan, query, item, now):
                    items.append(item)
            if len(items) > query.limit:
                return Page(now, tuple(items[: query.limit]), cursor(query.table, items[query.limit - 1]))
            if reply[2] < want:
                return Page(now, tuple(items), None)
            bounds = bounds.beyond(reply[3])

    def _whole(self, plan: Plan, query: Query) -> Dialogue[Page]:
        """Every item of a table, by SCAN: no write pays for an index that only operators would use."""
        nodes = yield from self.nodes()
        spot = Spot(str(nodes[0]), 0, []) if query.after is None else spot_of(query.after)
        names = [str(node) for node in nodes]
        if spot.node not in names:
            raise UsageError("the cluster has changed since the page before; begin again")
        walk = _Walk(plan, query, spot)
        now = yield from self._now(nodes[0])
        for place in range(names.index(spot.node), len(nodes)):
            while walk.cursor is not None or walk.keys:
                if walk.keys:
                    asks, reads = walk.reading(self._imposed())
                    walk.read(reads, (yield from self.on(nodes[place], asks)), now)
                    if len(walk.items) >= query.limit:
                        more = bool(walk.keys) or walk.cursor is not None or place + 1 < len(nodes)
                        return walk.page(now, names[place] if more else None)
                else:
                    [reply] = yield from self.on(nodes[place], [walk.scan()])
                    walk.scanned(reply)
            walk.cursor = 0
        return walk.page(now, None)

    def _now(self, node: Node) -> Dialogue[float]:
        imposed = self._imposed()
        if imposed is not None:
            return imposed
        [(seconds, microseconds)] = yield from self.on(node, [Ask(b"", (b"TIME",))])
        return int(seconds) + int(microseconds) / 1e6

    # To the server that has the keys

    def _one(self, ask: Ask, writes: bool = False) -> Dialogue[Any]:
        """The answer to one, by the shortest way, as nearly all that is asked goes this one."""
        if not self.address.cluster and not (writes and self._wait):
            [reply] = yield Exchange(self.address.home, ask.packed(), 1, writes)
            if not isinstance(reply, ResponseError):
                return reply
            if type(reply) is not NoScriptError:
                raise refusal(reply, self.address.home, writes=writes)
        [reply] = yield from self.send([ask], writes)
        return reply

    def send(self, asks: Sequence[Ask], writes: bool = False) -> Dialogue[list[Any]]:
        """The answers to these, from whichever servers; what a server refuses is raised."""
        if not self.address.cluster:
            return (yield from self.on(self.address.home, asks, writes))
        answers: list[Any] = [None] * len(asks)
        waiting = list(range(len(asks)))
        try:
            for _ in range(REDIRECTIONS):
                waiting = yield from self._round(asks, writes, waiting, answers)
                if not waiting:
                    return _granted(answers, self.address.home, writes)
        except StoreUnavailable as error:
            raise _partly(error, answers) if writes else error from error
        raise StoreUnavailable(f"the cluster at {self.address.home} sent its caller from node to node")

    def on(self, node: Node, asks: Sequence[Ask], writes: bool = False) -> Dialogue[list[Any]]:
        """The answers of one server."""
        return _granted((yield from self._exchange(node, asks, writes)), node, writes)

    def _exchange(self, node: Node, asks: Sequence[Ask], writes: bool) -> Dialogue[list[Any]]:
        """Ask, and ask again with the scripts themselves where a server does not know them."""
        replies = yield from self._ask(node, [ask.packed() for ask in asks], writes)
        unknown = [place for place, reply in enumerate(replies) if type(reply) is NoScriptError]
        if not unknown:
            return replies
        taught: set[Any] = set()
        again = []
        for place in unknown:
            again.append(asks[place].packed(taught=asks[place].script in taught))
            taught.add(asks[place].script)
        for place, reply in zip(unknown, (yield from self._ask(node, again, writes)), strict=True):
            replies[place] = reply
        return replies

    def _ask(self, node: Node, commands: list[bytes], writes: bool) -> Dialogue[list[Any]]:
        if not (writes and self._wait):
            return (yield Exchange(node, b"".join(commands), len(commands), writes))
        *replies, replicas = yield Exchange(
            node, b"".join([*commands, self._wait]), len(commands) + 1, writes
        )
        made = not all(isinstance(reply, ResponseError) for reply in replies)
        if made and (not isinstance(replicas, int) or replicas < self.address.wait_replicas):
            raise StoreOutcomeUnknown(
                f"{replicas} replicas of Redis at {node} confirmed it in {self.address.wait_seconds:g} s; "
                f"wait_replicas asks for {self.address.wait_replicas}: a failover may undo it"
            )
        return replies

    # A cluster

    def _round(
        self, asks: Sequence[Ask], writes: bool, waiting: list[int], answers: list[Any]
    ) -> Dialogue[list[int]]:
        """Ask the nodes that should know; which asks have to go elsewhere."""
        slots = self.slots or (yield from self.refresh())
        groups: dict[Node, list[int]] = {}
        for place in waiting:
            groups.setdefault(self._owner(slots, asks[place]), []).append(place)
        elsewhere: list[int] = []
        for node, group in groups.items():
            try:
                replies = yield from self._exchange(node, [asks[place] for place in group], writes)
            except StoreUnavailable:
                # It was not reached, so it was sent nothing; another one may have its slots by now.
                if (yield from self.refresh()).owner(asks[group[0]].key) in (node, None):
                    raise
                elsewhere += group
                continue
            for place, reply in zip(group, replies, strict=True):
                answers[place] = yield from self._followed(asks[place], reply, node, writes)
                if answers[place] is None:
                    elsewhere.append(place)
        return elsewhere

    def _owner(self, slots: Slots, ask: Ask) -> Node:
        node = slots.owner(ask.key)
        if node is None:
            self.slots = None  # it may be told better next time
            raise StoreUnavailable(f"no node of the cluster at {self.address.home} has the slot of a key")
        return node

    def _followed(self, ask: Ask, reply: Any, node: Node, writes: bool) -> Dialogue[Any]:
        """The answer, or None where another node has the slot now."""
        if not isinstance(reply, AskError):
            return reply
        # An empty host is the one that answered.
        other = Node(reply.host or node.host, reply.port)
        if isinstance(reply, MovedError):
            if self.slots is not None:
                self.slots.move(reply.slot_id, other)
            return None
        _, reply = yield from self._ask(other, [packed((b"ASKING",)), ask.packed(taught=False)], writes)
        return reply

    def refresh(self) -> Dialogue[Slots]:
        """Ask any node of the cluster who has which slots."""
        known = self.slots.nodes if self.slots else []
        for node in dict.fromkeys([*known, self.address.home]):
            try:
                [reply] = yield from self.on(node, [Ask(b"", (b"CLUSTER", b"SLOTS"))])
            except StoreUnavailable as error:
                last = error
            else:
                self.slots = Slots.told(reply, node)
                return self.slots
        raise last

    def nodes(self) -> Dialogue[list[Node]]:
        """Every server that has items."""
        if not self.address.cluster:
            return [self.address.home]
        slots = self.slots or (yield from self.refresh())
        return slots.nodes


class _Walk:
    """One page's walk through a table: what was found, and what is still to be read."""

    def __init__(self, plan: Plan, query: Query, spot: Spot) -> None:
        self.items: list[Item] = []
        self.keys = spot.keys
        self.cursor = spot.cursor
        self._plan = plan
        self._query = query
        self._pattern = plan.pattern(query)
        self._seen: set[str] = set()
        self._walked = 0

    def scan(self) -> Ask:
        """Look for more keys."""
        need = max(self._query.limit - len(self.items), FIRST_STEP)
        # Keys lie in no order, so what is still to come is as thick with them as what was seen.
        step = need * self._walked // len(self._seen) if self._seen else max(need, 4 * self._walked)
        step = max(FIRST_STEP, min(step, LAST_STEP))
        self._walked += step
        cursor = b"%d" % (self.cursor or 0)
        return Ask(b"", (b"SCAN", cursor, b"MATCH", self._pattern, b"COUNT", b"%d" % step))

    def scanned(self, reply: Any) -> None:
        """Keys that were found; one may be found twice while Redis makes room for more."""
        following, names = reply
        self.cursor = int(following) or None
        fresh = dict.fromkeys(name.decode(errors="replace") for name in names)
        self.keys = [name for name in fresh if name not in self._seen and self._plan.place(name)]
        self._seen.update(self.keys)

    def reading(self, now: float | None) -> tuple[list[Ask], list[str]]:
        """Read the next few."""
        count = max(self._query.limit - len(self.items), LEAST_READ)
        some, self.keys = self.keys[:count], self.keys[count:]
        return [self._plan.get([name.encode()], now) for name in some], some

    def read(self, names: list[str], replies: list[Any], now: float) -> None:
        """Keep what is wanted, as far as there is room; the rest is for the next page."""
        spare: list[str] = []
        for name, reply in zip(names, replies, strict=True):
            _, [outcome] = outcomes(reply)
            key, sort = self._plan.place(name) or ("", None)
            item = self._plan.item(outcome.flat, key, sort) if outcome.flat else {}
            if not _wanted(self._plan, self._query, item, now):
                continue
            if len(self.items) < self._query.limit:
                self.items.append(item)
            else:
                spare.append(name)
        self.keys = spare + self.keys

    def page(self, now: float, node: str | None) -> Page:
        """What was found, and the spot on this node from where to go on."""
        after = None if node is None else msgspec.json.encode(Spot(node, self.cursor, self.keys)).decode()
        return Page(now, tuple(self.items), after)


def _wanted(plan: Plan, query: Query, item: Item, now: float) -> bool:
    """Whether an item belongs on a page; an empty one is none."""
    if not item or not plan.alive(item, now):
        return False
    if query.key is None and plan.table.sort is not None:
        sort = item[plan.table.sort]
        if (query.low is not None and sort < query.low) or (query.high is not None and sort > query.high):
            return False
    return query.where is None or holds(query.where, item, now)


def _answered(plan: Plan, command: Write, now: float, outcome: Outcome) -> Applied | Refused:
    made, flat = outcome
    item = None if flat is None else plan.item(flat, command.key, command.sort)
    return Applied(now, item) if made else Refused(now, item)


def _granted(replies: list[Any], node: Node, writes: bool) -> list[Any]:
    """The replies, if no server refused; one that did may have been one of several."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            raised = refusal(reply, node, writes=writes)
            raise _partly(raised, replies) if writes else raised
    return replies


def _partly(error: SemelError, answers: list[Any]) -> SemelError:
    """What to raise for an error that stopped several writes, of which some may have been made."""
    made = any(answer is not None and not isinstance(answer, ResponseError) for answer in answers)
    return StoreOutcomeUnknown(f"part of it was made before this: {error}") if made else error
