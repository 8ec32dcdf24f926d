"""Which statements carry a command out, in which round trips: generators that do no I/O themselves."""

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

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
    alive,
)
from semel.errors import StoreError, StoreThrottled
from semel.model import COUNTED, TableSize
from semel.stores.postgres.plan import PostgresPlan, PostgresRows
from semel.stores.postgres.statements import ASK_TIME, TIME, PostgresStatement, StatementTemplate, qualified
from semel.stores.sql import PREFIX, countings, sized
from semel.tables import Table

T = TypeVar("T")

# Each time somebody else's write came in between, so somebody has got on; so often in a row is no accident.
TRIES = 20
# A statement that writes so many rows takes some tens of milliseconds, and its locks are held as long.
ROWS = 2000
# One refusal may be half of a race, and the next try succeed; two are most likely followed by a third.
LIKELY_REFUSALS = 2
# Then all counts are forgotten, and found out anew.
MOST_COUNTS = 1000


# How many rows a table has, as ANALYZE last saw it, and how many bytes it takes with its indexes.
RELATION = (
    b"SELECT greatest(c.reltuples, 0)::float8, pg_total_relation_size(c.oid)::float8 "
    b"FROM pg_class c WHERE c.oid = to_regclass($1::text)"
)


class RoundTrip(NamedTuple):
    """Statements that are sent together."""

    statements: list[PostgresStatement]
    commits: bool
    """They take effect by themselves, and may have done so if no answer comes."""
    partial: bool = False
    """Something has taken effect before: whatever fails now, the command was not left undone."""
    undone_if_refused: bool = False
    """It fails, and nothing of it takes effect, where one of its writes is refused."""


class TransactionConflict(StoreThrottled):
    """The server gave up a round trip for another transaction; thrown into the generator, which may go on."""


class ConditionFailed(StoreError):
    """A write was refused, so the server has undone its round trip; thrown into the generator too."""


# By table and key.
ItemsByKey: TypeAlias = dict[tuple[Any, ...], Item | None]
# The answer to a round trip is the rows of each of its statements.
RoundTrips: TypeAlias = Generator[RoundTrip, list[PostgresRows], T]
# Each with the plan of its table.
WritesByTable: TypeAlias = list[tuple[PostgresPlan, list[Write]]]


class BatchWrite(NamedTuple):
    """A write of a batch: its place there, and its statement."""

    place: int
    write: Write
    template: StatementTemplate
    values: list[Any]


class RefusalCounts:
    """How many transactions in a row each item has refused, as a cap that is full refuses them.

    There another try would most likely be in vain, and each leaves an error in the server's log: so the items
    are read first.
    """

    def __init__(self) -> None:
        self._refused: dict[Hashable, int] = {}

    def likely(self, places: Iterable[Hashable]) -> bool:
        """Whether one of them will most likely refuse."""
        refused = self._refused
        return bool(refused) and any(refused.get(place, 0) >= LIKELY_REFUSALS for place in places)

    def add(self, places: Iterable[Hashable], refusals: Iterable[object]) -> None:
        """Count those that have refused; None stands for one that has not."""
        for place, refusal in zip(places, refusals, strict=True):
            if refusal is None:
                self._refused.pop(place, None)
            else:
                self._refused[place] = self._refused.get(place, 0) + 1
        if len(self._refused) > MOST_COUNTS:
            self._refused.clear()

    def clear(self, places: Iterable[Hashable]) -> None:
        """Forget the counts of items that have not refused."""
        if self._refused:
            for place in places:
                self._refused.pop(place, None)


# Whatever the default of the database is. Under a stricter one each of two writers who meet would begin anew.
BEGIN: PostgresStatement = b"BEGIN ISOLATION LEVEL READ COMMITTED", None
# Everything in it is read as it was at one moment, and nothing is locked or waited for.
SNAPSHOT: PostgresStatement = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", None
COMMIT: PostgresStatement = b"COMMIT", None


class PostgresSteps:
    """Turns commands into round trips; `check_index` refuses an optional index that is not there."""

    def __init__(
        self,
        plan: Callable[[Table], PostgresPlan],
        imposed: Callable[[], float | None],
        check_index: "Callable[[Query], RoundTrips[None]] | None" = None,
    ) -> None:
        self.plan = plan
        self._imposed = imposed
        self._check_index = check_index
        self._refusal_counts = RefusalCounts()
        self._steps: dict[type, Callable[[Any], RoundTrips[Any]]] = {
            Get: self.read,
            Put: self._write,
            Update: self._write,
            Add: self._write,
            Delete: self._write,
            Query: self._query,
            Transact: self._transact,
            Batch: self._batch,
            Time: self._time,
        }

    def of(self, command: Any) -> RoundTrips[Any]:
        """The round trips that carry a command out; the value of the generator is its reply."""
        return self._steps[type(command)](command)

    # Reading

    def read(self, command: Get | Watch) -> RoundTrips[Found]:
        """Read an item."""
        plan = self.plan(command.table)
        return (yield from self._found(plan, plan.get(command, self._imposed())))

    def subscribe(self, command: Watch) -> RoundTrips[Found]:
        """Read an item, and ask to be notified of the next write to it."""
        plan = self.plan(command.table)
        return (yield from self._found(plan, plan.subscribe(command, self._imposed())))

    def _found(self, plan: PostgresPlan, statement: PostgresStatement) -> RoundTrips[Found]:
        [[row]] = yield RoundTrip([statement], commits=False)
        return Found(row[0], plan.item(row[1:]))

    def _query(self, command: Query) -> RoundTrips[Page]:
        if self._check_index is not None and command.index:
            yield from self._check_index(command)
        plan = self.plan(command.table)
        [rows] = yield RoundTrip([plan.query(command, self._imposed())], commits=False)
        return plan.page(command, rows)

    def _time(self, _command: Time) -> RoundTrips[Found]:
        [[[now]]] = yield RoundTrip([(ASK_TIME, [self._imposed()])], commits=False)
        return Found(now, None)

    # Writing

    def _write(self, command: Write) -> RoundTrips[Applied | Refused]:
        plan = self.plan(command.table)
        template, values = plan.write(command)
        round_trip = RoundTrip([(template.one, [self._imposed(), *values])], commits=True)
        for _ in range(TRIES):
            try:
                [[row]] = yield round_trip
            except TransactionConflict:
                continue
            reply = plan.reply(command, row)
            if reply is not None:
                return reply
        raise contended()

    def _batch(self, command: Batch) -> RoundTrips[Many]:
        replies: list[Any] = [None] * len(command.writes)
        waiting = [
            BatchWrite(place, write, *self.plan(write.table).write(write))
            for place, write in enumerate(command.writes)
        ]
        partial = False
        for _ in range(TRIES + len(waiting)):
            first, later = _first_of_each_key(waiting)
            batches = self._batches(first)
            try:
                answers = yield RoundTrip(
                    [statement for statement, _ in batches], commits=True, partial=partial
                )
            except TransactionConflict:
                continue
            partial = True
            for (_, batch), rows in zip(batches, answers, strict=True):
                plan = self.plan(batch[0].write.table)
                for each, row in zip(batch, plan.answers([e.write for e in batch], rows), strict=True):
                    replies[each.place] = plan.reply(each.write, row)
            waiting = [each for each in first if replies[each.place] is None] + later
            if not waiting:
                return Many(tuple(replies))
        raise contended()

    def _batches(self, writes: "list[BatchWrite]") -> "list[tuple[PostgresStatement, list[BatchWrite]]]":
        """Writes of one shape share a statement."""
        alike: dict[StatementTemplate, list[BatchWrite]] = defaultdict(list)
        for each in writes:
            alike[each.template].append(each)
        now = self._imposed()
        return [
            (
                template.many(now, [each.values for each in several[start : start + ROWS]]),
                several[start : start + ROWS],
            )
            for template, several in alike.items()
            for start in range(0, len(several), ROWS)
        ]

    # Several writes, all or none

    def _transact(self, command: Transact) -> RoundTrips[Applied | Cancelled]:
        """Write everything in one round trip, of which the server undoes all if one write is refused.

        Only then is it looked up what has refused which; or before, where a refusal is to be expected.
        """
        prepared = self._in_order(command)
        places = [_place(write) for write in command.writes]
        look = self._refusal_counts.likely(places)
        for _ in range(TRIES):
            if look:
                now, refusals = yield from self._refusals(command)
                self._refusal_counts.add(places, refusals)
                if any(refusals):
                    return Cancelled(now, refusals)
            try:
                _, [row], *_ = yield self._all_or_nothing(prepared)
            except (TransactionConflict, ConditionFailed) as undone:
                look = type(undone) is ConditionFailed
            else:
                self._refusal_counts.clear(places)
                return Applied(row[0])
        raise contended()

    def _all_or_nothing(self, prepared: list[tuple[Write, StatementTemplate, list[Any]]]) -> RoundTrip:
        now = self._imposed()
        writes = [(template.or_fail, [now, *values]) for _, template, values in prepared]
        return RoundTrip(
            [BEGIN, *(writes or [(ASK_TIME, [now])]), COMMIT], commits=True, undone_if_refused=True
        )

    def _refusals(self, command: Transact) -> RoundTrips[tuple[float, tuple[Refused | None, ...]]]:
        """The time, and what refuses each of the writes, as it was at that moment."""
        tables = self._by_table(command.writes)
        rows = [plan.rows(several) for plan, several in tables]
        time: PostgresStatement = ASK_TIME, [self._imposed()]
        _, [[now]], *answers, _ = yield RoundTrip([SNAPSHOT, time, *rows, COMMIT], commits=False)
        return now, self._check_conditions(command, items_by_key(tables, answers), now)

    def _in_order(self, command: Transact) -> list[tuple[Write, StatementTemplate, list[Any]]]:
        """The writes with their statements, in the order of their places.

        Everybody locks in this order, so that nobody waits for somebody who waits for him.
        """
        prepared = [(write, *self.plan(write.table).write(write)) for write in command.writes]
        prepared.sort(key=lambda each: _place(each[0]))
        return prepared

    def _by_table(self, writes: Iterable[Write]) -> WritesByTable:
        tables: dict[str, list[Write]] = defaultdict(list)
        for write in writes:
            tables[write.table.name].append(write)
        return [(self.plan(several[0].table), several) for several in tables.values()]

    def _check_conditions(
        self, command: Transact, found: ItemsByKey, now: float
    ) -> tuple[Refused | None, ...]:
        items = [alive(write.table, found.get(_place(write)), now) for write in command.writes]
        return tuple(
            self.plan(write.table).refusal(write, item, now)
            for write, item in zip(command.writes, items, strict=True)
        )

    # Reaping

    def reap(self, tables: Iterable[Table], limit: int) -> RoundTrips[int]:
        """Delete up to so many expired rows; how many there were."""
        reaped = 0
        for table in tables:
            statement = self.plan(table).reap(limit - reaped, self._imposed())
            [[[count]]] = yield RoundTrip([statement], commits=True)
            reaped += count
        return reaped

    def measure(self, tables: Sequence[Table], schema: str | None) -> RoundTrips[list[TableSize]]:
        """The sizes of the tables that are there: by the planner's figures, and counted up to a bound."""
        sizes, imposed = [], self._imposed()
        for table in tables:
            name = qualified(PREFIX + table.name, schema)
            [known] = yield RoundTrip([(RELATION, [name])], commits=False)
            if not known:
                continue
            [[rows, size]] = known
            # Read once, so that it can be looked up in an index.
            now = f"(SELECT {TIME.replace('$1', 'NULL')})" if imposed is None else repr(imposed)
            statements = countings(name, table, now)
            replies = yield RoundTrip([(sql.encode(), None) for sql in statements.values()], commits=False)
            counts = {key: int(reply[0][0]) for key, reply in zip(statements, replies, strict=True)}
            how = f"items as ANALYZE last saw them; the rest counted up to {COUNTED:,}"
            sizes.append(sized(table, counts, how, int(size), int(rows)))
        return sizes


def _first_of_each_key(writes: list[BatchWrite]) -> tuple[list[BatchWrite], list[BatchWrite]]:
    """Those that can be made at once, and those that have to come after one of them."""
    first: list[BatchWrite] = []
    later: list[BatchWrite] = []
    seen: set[Any] = set()
    for each in writes:
        name = _place(each.write)
        (later if name in seen else first).append(each)
        seen.add(name)
    return first, later


def _place(write: Write) -> tuple[Any, ...]:
    if write.table.sort is None:
        return write.table.name, write.key
    return write.table.name, write.key, write.sort


def items_by_key(tables: WritesByTable, answers: list[PostgresRows]) -> ItemsByKey:
    """The items that were read for writes, expired ones too."""
    return {
        (plan.table.name, *plan.place(row)): plan.item(row)
        for (plan, _), rows in zip(tables, answers, strict=True)
        for row in rows
    }


def contended() -> StoreThrottled:
    """The error of an item that others write all the time."""
    return StoreThrottled(f"other writes came in between {TRIES} times in a row; try again later")
