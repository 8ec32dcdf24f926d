"""What a store has to say to its servers, command by command: generators, which do no I/O themselves."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeAlias

import msgspec

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
    Time,
    Transact,
    Update,
    Watch,
    Write,
    cursor,
    holds,
)
from semel.errors import (
    SchemaTooNew,
    StoreError,
    StoreOutcomeUnknown,
    StoreThrottled,
    StoreUnavailable,
    UsageError,
    WrongEnvironment,
    WrongSchema,
)
from semel.stores.redis.address import Address
from semel.stores.redis.asks import Ask
from semel.stores.redis.indexes import LATE_SECONDS, Entry, Way
from semel.stores.redis.orders import Manner, Outcome, outcomes
from semel.stores.redis.plan import Plan, Spot, Step, spot_of
from semel.stores.redis.runs import enter_asks, write_ask
from semel.stores.redis.scripts import OPEN
from semel.stores.redis.servers import Dialogue, Servers
from semel.stores.redis.slots import key_slot
from semel.stores.servertime import ServerTime
from semel.tables import Table

SCHEMA = 1

# So many writes of a batch are one run of a script: others' commands wait for no more than that at a time.
RUN = 50
# A page is filled by reading so many items at a time at most, and where it is filtered at least so many.
MOST_READ, LEAST_READ = 1000, 100
# How far SCAN goes in one step: a little at first, more where it finds little, and never for long.
FIRST_STEP, LAST_STEP = 10, 10_000
# So often a write that moves an item in an index is thought over, each time because another one was quicker.
THOUGHTS = 100


Run: TypeAlias = tuple[Sequence[Plan], Sequence[Step]]


class Talk(Servers):
    """What a store has to say."""

    def __init__(self, address: Address, env: str, clock: Clock) -> None:
        super().__init__(address)
        self._env = env
        self._imposed = clock.imposed
        self.time = ServerTime(clock)
        self._open = False
        self._plans: dict[str, Plan] = {}
        publish = "SPUBLISH" if address.cluster else "PUBLISH"
        self._manner = Manner(publish, address.wait_replicas > 0, address.cluster)
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
            Time: self._time,
        }

    def perform(self, command: Any) -> Dialogue[Any]:
        """Carry a command out, and answer it."""
        try:
            if not self._open:
                yield from self.open()
            reply = yield from self._perform[type(command)](command)
        except UnicodeEncodeError as error:
            raise UsageError(f"not a text that UTF-8 can write: {error.object!r}") from error
        if type(command) is not Time:
            self.time.hear(reply)
        return reply

    def _time(self, _command: Time) -> Dialogue[Found]:
        told = self.time.tell()
        if told is None:
            told = Found((yield from self._now()), None)
            self.time.hear(told)
        return told

    def plan(self, table: Table) -> Plan:
        """The plan of a table."""
        plan = self._plans.get(table.name)
        if plan is None:
            plan = self._plans.setdefault(table.name, Plan(table, self.address.prefix, self.address.scoped))
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
        slots = b"scope" if self.address.scoped else b""
        ask = Ask(self.stamp, (b"1", self.stamp, self._env.encode(), b"%d" % SCHEMA, slots), OPEN)
        [found] = yield from self.send([ask])
        self.check(found)
        self._open = True

    def check(self, stamped: list[bytes | None]) -> None:
        """Refuse a stamp that is not this store's."""
        environment, schema, slots = stamped
        if environment is None or schema is None or not schema.isdigit():
            raise WrongSchema(f"{self.stamp.decode()!r} is no stamp of semel's: choose another ?prefix=...")
        if int(schema) > SCHEMA:
            raise SchemaTooNew(int(schema), SCHEMA)
        if environment.decode() != self._env:
            raise WrongEnvironment(environment.decode(), self._env)
        if slots != (b"scope" if self.address.scoped else None):
            self._refuse_slots()

    def _refuse_slots(self) -> NoReturn:
        made, remedy = "with slots=scope", "add slots=scope to"
        if self.address.scoped:
            made, remedy = "without slots=scope", "take slots=scope out of"
        raise WrongSchema(
            f"prefix {self.address.prefix!r} was made {made}, and its keys are named by that: "
            f"{remedy} the URL, or begin anew with another ?prefix=..."
        )

    # One item

    def _get(self, command: Get | Watch) -> Dialogue[Found]:
        plan = self.plan(command.table)
        reply = yield from self.one(plan.get(plan.keys(command), self._imposed()))
        now, [outcome] = outcomes(reply)
        item = None if outcome.flat is None else plan.item(outcome.flat, command.key, command.sort)
        return Found(now, item if item is not None and plan.alive(item, now) else None)

    def _write(self, command: Write) -> Dialogue[Applied | Refused]:
        plan = self.plan(command.table)
        if plan.indexes.touched(command):
            steps = yield from self._steps((command,))
        else:  # as nearly every write, and by the shortest way
            ask = write_ask((plan,), (Step(command),), self._imposed(), self._manner)
            now, [outcome] = outcomes((yield from self.one(ask, writes=True)))
            if not outcome.again:
                return _answered(plan, command, now, outcome)
            steps = [plan.step_from(command, _item(plan, command, outcome), now)]
        now, [outcome] = yield from self._made((command,), steps)
        return _answered(plan, command, now, outcome)

    # Writes

    def _made(
        self, writes: Sequence[Write], steps: list[Step], together: bool = False
    ) -> Dialogue[tuple[float, list[Outcome]]]:
        """Make writes in one run, thinking those over whose items have moved in an index meanwhile."""
        plans = self._plans_of(writes)
        for _ in range(THOUGHTS):
            [ask] = yield from self._entered([(plans, steps)], together)
            now, found = outcomes((yield from self.one(ask, writes=True)))
            if not any(outcome.again for outcome in found):
                return now, found
            for place, (plan, write, outcome) in enumerate(zip(plans, writes, found, strict=True)):
                if outcome.again:
                    steps[place] = plan.step_from(write, _item(plan, write, outcome), now)
        raise StoreThrottled(
            f"{THOUGHTS} times somebody else moved {writes[0].key!r} in an index of table "
            f"{writes[0].table.name} first; nothing was written"
        )

    def _plans_of(self, writes: Sequence[Write]) -> list[Plan]:
        return [self.plan(write.table) for write in writes]

    def _steps(self, writes: Sequence[Write]) -> Dialogue[list[Step]]:
        steps = []
        for plan, write in zip(self._plans_of(writes), writes, strict=True):
            if not plan.indexes.touched(write):
                steps.append(Step(write))
                continue
            now = (yield from self._time(Time())).now if plan.indexes.undated(write) else None
            steps.append(plan.step(write, now))
        return steps

    def _entered(self, runs: Sequence[Run], together: bool = False) -> Dialogue[list[Ask]]:
        """Runs of the script, once indexes in other slots lead to what they will leave."""
        now, manner = self._imposed(), self._manner
        asks = [write_ask(*run, now, manner, together=together) for run in runs]
        entering = [
            ask for run, made in zip(runs, asks, strict=True) for ask in enter_asks(*run, made, now, manner)
        ]
        if not entering:
            return asks
        try:
            replies = yield from self.send(entering, writes=True)
        except StoreOutcomeUnknown as error:
            raise StoreUnavailable(f"nothing was written, as an index could not be: {error}") from error
        late = min(outcomes(reply)[0] for reply in replies) + LATE_SECONDS
        return [write_ask(*run, now, manner, together=together, late=late) for run in runs]

    # Several items

    def _batch(self, command: Batch) -> Dialogue[Many]:
        groups, runs = self._groups(command.writes), []
        for group in groups:
            writes = [command.writes[place] for place in group]
            runs.append((self._plans_of(writes), (yield from self._steps(writes))))
        replies = yield from self.send((yield from self._entered(runs)), writes=True)
        answers: dict[int, Applied | Refused] = {}
        again: list[int] = []
        for group, reply in zip(groups, replies, strict=True):
            now, found = outcomes(reply)
            for place, outcome in zip(group, found, strict=True):
                write = command.writes[place]
                answers[place] = _answered(self.plan(write.table), write, now, outcome)
                again += [place] if outcome.again else []
        for place in again:
            answers[place] = yield from self._rest(command.writes[place])
        return Many(tuple(answers[place] for place in range(len(command.writes))))

    def _rest(self, command: Write) -> Dialogue[Applied | Refused]:
        """One write of a batch, of which others were made already."""
        try:
            return (yield from self._write(command))
        except (StoreUnavailable, StoreThrottled) as error:
            raise StoreOutcomeUnknown(f"part of it was made before this: {error}") from error

    def _groups(self, writes: Sequence[Write]) -> list[list[int]]:
        """Which writes go into one run of the script: those whose keys are in one slot."""
        groups: dict[int, list[int]] = {}
        for place, write in enumerate(writes):
            slot = key_slot(self.plan(write.table).partition(write.key)) if self.address.cluster else 0
            groups.setdefault(slot, []).append(place)
        return [group[at : at + RUN] for group in groups.values() for at in range(0, len(group), RUN)]

    def _transact(self, command: Transact) -> Dialogue[Applied | Cancelled]:
        if not command.writes:
            return Applied((yield from self._now()))
        if self.address.cluster:
            self._refuse_apart(command.writes)
        steps = yield from self._steps(command.writes)
        now, found = yield from self._made(command.writes, steps, together=True)
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
            remedy = "or the store be made with slots=scope, which keeps all of a scope in one slot"
            if self.address.scoped:
                remedy = "or at least their scope"
            raise UsageError(
                f"a cluster keeps these items in different slots, and a transaction needs one ({apart}); "
                f"items that change together have to share their partition key, {remedy}"
            )

    # Pages

    def _query(self, query: Query) -> Dialogue[Page]:
        plan = self.plan(query.table)
        if query.index:
            return (yield from self._by_index(plan, query))
        if query.key is None:
            return (yield from self._whole(plan, query))
        if not isinstance(query.key, str):
            raise UsageError(f"the key of table {query.table.name} is a text, not {query.key!r}")
        if plan.sorted:
            return (yield from self._partition(plan, query, query.key))
        found = yield from self._get(Get(query.table, query.key))
        wanted = found.item is not None and (query.where is None or holds(query.where, found.item, found.now))
        return Page(found.now, (found.item,) if wanted and found.item is not None else (), None)

    def _partition(self, plan: Plan, query: Query, key: str) -> Dialogue[Page]:
        index, bounds = plan.partition(key), plan.bounds(query)
        items: list[Item] = []
        while True:
            want = _to_read(query, items)
            [reply] = yield from self.send([plan.page(index, bounds, want, self._imposed())])
            now, found = outcomes(reply)
            for _, flat, _ in found:
                item = plan.item(flat[1:], key, plan.sort_of(flat[0])) if flat else {}
                if _wanted(plan, query, item, now):
                    items.append(item)
            if len(items) > query.limit or reply[2] < want:
                return _page(query, items, now)
            bounds = bounds.beyond(reply[3])

    def _by_index(self, plan: Plan, query: Query) -> Dialogue[Page]:
        """Read entries, and the items that they lead to; those that lead nowhere are told of."""
        way = plan.indexes.way(query.index)
        key, bounds = way.key(query.key), way.bounds(query)
        items: list[Item] = []
        while True:
            want = _to_read(query, items)
            head, members = yield from self.one(way.page(key, bounds, want, self._imposed()))
            now, _ = outcomes(head)
            astray = []
            for member, item in zip(members, (yield from self._targets(plan, way, members)), strict=True):
                if not plan.alive(item, now) or not way.leads_to(item, Entry(key, member.decode())):
                    astray.append(member)
                elif _wanted(plan, query, item, now):
                    items.append(item)
            if astray:
                yield from self._doubt(way.doubt(key, astray, now, self._imposed()))
            if len(items) > query.limit or len(members) < want:
                return _page(query, items, now)
            bounds = bounds.beyond(members[-1])

    def _targets(self, plan: Plan, way: Way, members: list[bytes]) -> Dialogue[list[Item]]:
        """The items that entries lead to, in their order; an empty one is none."""
        gets = [Get(plan.table, *way.target(member.decode())) for member in members]
        replies = yield from self.send([plan.get(plan.keys(get), self._imposed()) for get in gets])
        found = [outcomes(reply)[1][0].flat for reply in replies]
        return [
            plan.item(flat, get.key, get.sort) if flat else {} for get, flat in zip(gets, found, strict=True)
        ]

    def _doubt(self, ask: Ask) -> Dialogue[None]:
        try:
            yield from self.one(ask)
        except StoreError:  # whoever reads them next will tell
            return

    def _whole(self, plan: Plan, query: Query) -> Dialogue[Page]:
        """Every item of a table, by SCAN: no write pays for an index that only operators would use."""
        nodes = yield from self.nodes()
        spot = Spot(str(nodes[0]), 0, []) if query.after is None else spot_of(query.after)
        names = [str(node) for node in nodes]
        if spot.node not in names:
            raise UsageError("the cluster has changed since the page before; begin again")
        walk = _Walk(plan, query, spot)
        now = yield from self._now()
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

    def _now(self) -> Dialogue[float]:
        imposed = self._imposed()
        if imposed is not None:
            return imposed
        # Any node would do; there is always one that has the stamp.
        [(seconds, microseconds)] = yield from self.send([Ask(self.stamp, (b"TIME",))])
        return int(seconds) + int(microseconds) / 1e6


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


def _to_read(query: Query, items: list[Item]) -> int:
    """How many to read at a time: what is lacking and one more, or several where they are filtered."""
    want = min(query.limit - len(items) + 1, MOST_READ)
    return want if query.where is None else max(want, LEAST_READ)


def _page(query: Query, items: list[Item], now: float) -> Page:
    """A page of these, of which one more than there is room for says that there are others."""
    if len(items) <= query.limit:
        return Page(now, tuple(items), None)
    index = query.table.index(query.index)
    return Page(now, tuple(items[: query.limit]), cursor(query.table, items[query.limit - 1], index))


def _answered(plan: Plan, command: Write, now: float, outcome: Outcome) -> Applied | Refused:
    item = _item(plan, command, outcome)
    return Applied(now, item) if outcome.made else Refused(now, item)


def _item(plan: Plan, command: Write, outcome: Outcome) -> Item | None:
    return None if outcome.flat is None else plan.item(outcome.flat, command.key, command.sort)
