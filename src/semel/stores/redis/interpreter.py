"""The interpreter of commands: what is sent for each, and in what order, as generators that do no I/O."""

import re
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any, NoReturn

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
    Watch,
    Write,
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
from semel.model import ScanCost, TableSize
from semel.stores.redis.address import RedisAddress
from semel.stores.redis.cluster import Requests, Router, key_slot
from semel.stores.redis.indexes import LATE_SECONDS, IndexEntry, RedisIndex
from semel.stores.redis.plan import PlannedWrite, RedisPlan
from semel.stores.redis.protocol import RedisCommand
from semel.stores.redis.scan import (
    LAST_STEP,
    ScanCursor,
    TableScan,
    count_to_read,
    page_of,
    parse_cursor,
    wanted,
)
from semel.stores.redis.scripts import OPEN, ScriptOutcome, WriteSettings, outcomes
from semel.stores.redis.writes import index_commands, write_command
from semel.stores.servertime import ServerTime
from semel.stores.shared import Plans, not_offered
from semel.tables import Table

SCHEMA = 1

# On one server the script could write the entry; docs/how-to/provision.md has what it would cost, and whom.
NO_RECENT = (
    "on Redis programs that run already would leave their records out of it, and in a cluster every claim "
    "and every completion would take another round trip"
)

# So many writes of a batch are one call of the script: others' commands wait for no more than that at a time.
WRITES_PER_CALL = 50
# So often a write that moves an item in an index is planned anew, each time because another one was quicker.
ATTEMPTS = 100


class Interpreter(Router):
    """Carries commands out by requests to the servers."""

    def __init__(self, address: RedisAddress, env: str, clock: Clock) -> None:
        super().__init__(address)
        self._env = env
        self._imposed = clock.imposed
        self.time: ServerTime = ServerTime(clock)
        self._open = False
        self.plan: Callable[[Table], RedisPlan] = Plans(
            lambda table: RedisPlan(table, address.prefix, address.scoped)
        ).of
        publish = "SPUBLISH" if address.cluster else "PUBLISH"
        self._settings = WriteSettings(publish, address.wait_replicas > 0, address.cluster)
        self._perform: dict[type, Callable[[Any], Requests[Any]]] = {
            Get: self._get,
            Watch: self._get,
            **dict.fromkeys((Put, Update, Add, Delete), self._write),
            Query: self._query,
            Transact: self._transact,
            Batch: self._batch,
            Time: self._time,
        }

    def perform(self, command: Any) -> Requests[Any]:
        """Carry a command out, and answer it."""
        try:
            if not self._open:
                yield from self.open()
            reply = yield from self._perform[type(command)](command)
        except UnicodeEncodeError as error:
            raise UsageError(f"not a text that UTF-8 can write: {error.object!r}") from error
        if type(command) is not Time:
            self.time.observe(reply)
        return reply

    def _time(self, _command: Time) -> Requests[Found]:
        known = self.time.known()
        if known is None:
            known = Found((yield from self._now()), None)
            self.time.observe(known)
        return known

    # Opening

    @property
    def stamp(self) -> bytes:
        """The key of the stamp."""
        return f"{self.address.prefix}:meta".encode()

    def open(self) -> Requests[None]:
        """Stamp what is new; refuse what is another environment's, or a newer semel's."""
        slots = b"scope" if self.address.scoped else b""
        words = (b"1", self.stamp, self._env.encode(), b"%d" % SCHEMA, slots)
        [found] = yield from self.send([RedisCommand(self.stamp, words, OPEN)])
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

    def _get(self, command: Get | Watch) -> Requests[Found]:
        plan = self.plan(command.table)
        reply = yield from self.one(plan.get(plan.keys(command), self._imposed()))
        now, [outcome] = outcomes(reply)
        item = None if outcome.flat is None else plan.item(outcome.flat, command.key, command.sort)
        return Found(now, item if item is not None and plan.alive(item, now) else None)

    def _write(self, command: Write) -> Requests[Applied | Refused]:
        plan = self.plan(command.table)
        if plan.indexes.touched(command):
            planned = yield from self._planned((command,))
        else:  # as nearly every write, and by the shortest way
            call = write_command((PlannedWrite(plan, command),), self._imposed(), self._settings)
            now, [outcome] = outcomes((yield from self.one(call, writes=True)))
            if not outcome.again:
                return _answered(plan, command, now, outcome)
            planned = [plan.planned_write_from(command, _item(plan, command, outcome), now)]
        now, [outcome] = yield from self._made((command,), planned)
        return _answered(plan, command, now, outcome)

    # Writes

    def _made(
        self, writes: Sequence[Write], planned: list[PlannedWrite], together: bool = False
    ) -> Requests[tuple[float, list[ScriptOutcome]]]:
        """Make writes in one call, planning those anew whose items have moved in an index meanwhile."""
        for _ in range(ATTEMPTS):
            [call] = yield from self._calls([planned], together)
            now, found = outcomes((yield from self.one(call, writes=True)))
            if not any([outcome.again for outcome in found]):  # noqa: C419 - a list is quicker for few
                return now, found
            for place, (write, outcome) in enumerate(zip(writes, found, strict=True)):
                if outcome.again:
                    plan = planned[place].plan
                    planned[place] = plan.planned_write_from(write, _item(plan, write, outcome), now)
        raise StoreThrottled(
            f"{ATTEMPTS} times somebody else moved {writes[0].key!r} in an index of table "
            f"{writes[0].table.name} first; nothing was written"
        )

    def _planned(self, writes: Sequence[Write]) -> Requests[list[PlannedWrite]]:
        planned = []
        for write in writes:
            plan = self.plan(write.table)
            if not plan.indexes.touched(write):
                planned.append(PlannedWrite(plan, write))
                continue
            now = (yield from self._time(Time())).now if plan.indexes.undated(write) else None
            planned.append(plan.planned_write(write, now))
        return planned

    def _calls(
        self, groups: Sequence[Sequence[PlannedWrite]], together: bool = False
    ) -> Requests[list[RedisCommand]]:
        """Calls of the script, sent once indexes in other slots lead to what they will leave."""
        now, settings = self._imposed(), self._settings
        calls = [write_command(group, now, settings, together=together) for group in groups]
        entering = [
            command
            for group, call in zip(groups, calls, strict=True)
            if settings.cluster
            for command in index_commands(group, call, now, settings)
        ]
        if not entering:
            return calls
        try:
            replies = yield from self.send(entering, writes=True)
        except StoreOutcomeUnknown as error:
            raise StoreUnavailable(f"nothing was written, as an index could not be: {error}") from error
        late = min(outcomes(reply)[0] for reply in replies) + LATE_SECONDS
        return [write_command(group, now, settings, together=together, late=late) for group in groups]

    # Several items

    def _batch(self, command: Batch) -> Requests[Many]:
        places, groups = self._groups(command.writes), []
        for group in places:
            writes = [command.writes[place] for place in group]
            groups.append((yield from self._planned(writes)))
        replies = yield from self.send((yield from self._calls(groups)), writes=True)
        answers: dict[int, Applied | Refused] = {}
        again: list[int] = []
        for group, reply in zip(places, replies, strict=True):
            now, found = outcomes(reply)
            for place, outcome in zip(group, found, strict=True):
                write = command.writes[place]
                answers[place] = _answered(self.plan(write.table), write, now, outcome)
                again += [place] if outcome.again else []
        for place in again:
            answers[place] = yield from self._rest(command.writes[place])
        return Many(tuple(answers[place] for place in range(len(command.writes))))

    def _rest(self, command: Write) -> Requests[Applied | Refused]:
        """One write of a batch, of which others were made already."""
        try:
            return (yield from self._write(command))
        except (StoreUnavailable, StoreThrottled) as error:
            raise StoreOutcomeUnknown(f"part of it was made before this: {error}") from error

    def _groups(self, writes: Sequence[Write]) -> list[list[int]]:
        """Which writes go into one call of the script: those whose keys are in one slot."""
        groups: dict[int, list[int]] = {}
        for place, write in enumerate(writes):
            slot = key_slot(self.plan(write.table).partition(write.key)) if self.address.cluster else 0
            groups.setdefault(slot, []).append(place)
        return [
            group[at : at + WRITES_PER_CALL]
            for group in groups.values()
            for at in range(0, len(group), WRITES_PER_CALL)
        ]

    def _transact(self, command: Transact) -> Requests[Applied | Cancelled]:
        if not command.writes:
            return Applied((yield from self._now()))
        if self.address.cluster:
            self._refuse_apart(command.writes)
        planned = yield from self._planned(command.writes)
        now, found = yield from self._made(command.writes, planned, together=True)
        if all([outcome.made for outcome in found]):  # noqa: C419 - a list is quicker for few
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

    def _query(self, query: Query) -> Requests[Page]:
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
        item = found.item or {}
        return Page(found.now, (item,) if wanted(plan, query, item, found.now) else (), None)

    def _partition(self, plan: RedisPlan, query: Query, key: str) -> Requests[Page]:
        index, bounds = plan.partition(key), plan.bounds(query)
        items: list[Item] = []
        while True:
            want = count_to_read(query, items)
            [reply] = yield from self.send([plan.page(index, bounds, want, self._imposed())])
            now, found = outcomes(reply)
            for _, flat, _ in found:
                item = plan.item(flat[1:], key, plan.sort_of(flat[0])) if flat else {}
                if wanted(plan, query, item, now):
                    items.append(item)
            if len(items) > query.limit or reply[2] < want:
                return page_of(query, items, now)
            bounds = bounds.beyond(reply[3])

    def _by_index(self, plan: RedisPlan, query: Query) -> Requests[Page]:
        """Read entries, and the items that they lead to; those that lead nowhere are reported."""
        if plan.table.index(query.index) in plan.table.optional_indexes:
            raise not_offered(query.index, NO_RECENT)
        index = plan.indexes.named(query.index)
        key, bounds = index.key(query.key), index.bounds(query)
        items: list[Item] = []
        while True:
            want = count_to_read(query, items)
            head, members = yield from self.one(index.page(key, bounds, want, self._imposed()))
            now, _ = outcomes(head)
            stale = []
            for member, item in zip(members, (yield from self._targets(plan, index, members)), strict=True):
                if not plan.alive(item, now) or not index.leads_to(item, IndexEntry(key, member.decode())):
                    stale.append(member)
                elif wanted(plan, query, item, now):
                    items.append(item)
            if stale:
                yield from self._report(index.doubt(key, stale, now, self._imposed()))
            if len(items) > query.limit or len(members) < want:
                return page_of(query, items, now)
            bounds = bounds.beyond(members[-1])

    def _targets(self, plan: RedisPlan, index: RedisIndex, members: list[bytes]) -> Requests[list[Item]]:
        """The items that entries lead to, in their order; an empty one is none."""
        gets = [Get(plan.table, *index.target(member.decode())) for member in members]
        replies = yield from self.send([plan.get(plan.keys(get), self._imposed()) for get in gets])
        found = [outcomes(reply)[1][0].flat for reply in replies]
        return [
            plan.item(flat, get.key, get.sort) if flat else {} for get, flat in zip(gets, found, strict=True)
        ]

    def _report(self, command: RedisCommand) -> Requests[None]:
        try:
            yield from self.one(command)
        except StoreError:  # whoever reads them next reports them
            return

    def _whole(self, plan: RedisPlan, query: Query) -> Requests[Page]:
        """Every item of a table, by SCAN: no write pays for an index that only operators would use."""
        nodes = yield from self.nodes()
        start = ScanCursor(str(nodes[0]), 0, []) if query.after is None else parse_cursor(query.after)
        names = [str(node) for node in nodes]
        if start.node not in names:
            raise UsageError("the cluster has changed since the page before; begin again")
        scan = TableScan(plan, query, start)
        now = yield from self._now()
        for place in range(names.index(start.node), len(nodes)):
            while scan.cursor is not None or scan.keys:
                if scan.keys:
                    commands, reads = scan.reading(self._imposed())
                    scan.read(reads, (yield from self.on(nodes[place], commands)), now)
                else:
                    [reply] = yield from self.on(nodes[place], [scan.scan()])
                    scan.scanned(reply)
                if scan.is_full:
                    more = bool(scan.keys) or scan.cursor is not None or place + 1 < len(nodes)
                    return scan.page(now, names[place] if more else None)
            scan.cursor = 0
        return scan.page(now, None)

    def scan_cost(self) -> Requests[ScanCost]:
        """How many keys all servers have, of this ledger and of whatever else is there."""
        if not self._open:
            yield from self.open()
        keys = 0
        for node in (yield from self.nodes()):
            [count] = yield from self.on(node, [RedisCommand(b"", (b"DBSIZE",))])
            keys += int(count)
        note = "SCAN goes over all keys of the server, in steps that hold nobody up"
        return ScanCost(items=keys, requests=max(1, ceil(keys / LAST_STEP)), note=note)

    def measure(self) -> Requests[TableSize]:
        """How many keys all servers have, and how much memory they use."""
        cost = yield from self.scan_cost()
        used = 0
        for node in (yield from self.nodes()):
            [reply] = yield from self.on(node, [RedisCommand(b"", (b"INFO", b"memory"))])
            found = re.search(rb"used_memory:(\d+)", bytes(reply))
            used += int(found[1]) if found else 0
        how = "all keys and all memory of the server, of whatever else is there too"
        return TableSize(table="", items=cost.items, bytes=used, how=how)

    def _now(self) -> Requests[float]:
        imposed = self._imposed()
        if imposed is not None:
            return imposed
        # Any node would do; there is always one that has the stamp.
        [(seconds, microseconds)] = yield from self.send([RedisCommand(self.stamp, (b"TIME",))])
        return int(seconds) + int(microseconds) / 1e6


def _answered(plan: RedisPlan, command: Write, now: float, outcome: ScriptOutcome) -> Applied | Refused:
    item = _item(plan, command, outcome)
    return Applied(now, item) if outcome.made else Refused(now, item)


def _item(plan: RedisPlan, command: Write, outcome: ScriptOutcome) -> Item | None:
    return None if outcome.flat is None else plan.item(outcome.flat, command.key, command.sort)
