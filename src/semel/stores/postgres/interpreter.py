"""Which statements execute a command, and in which round trips: generators that do no I/O themselves."""

from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from itertools import repeat
from typing import Any, TypeAlias, TypeVar

import msgspec

from semel.core.commands import (
    Add,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Found,
    Get,
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
from semel.errors import StoreError, StoreThrottled
from semel.model import COUNTED, TableSize
from semel.stores.postgres.statements import (
    ASK_TIME,
    QUERIES,
    PostgresPlan,
    PostgresRows,
    PostgresStatement,
    qualified,
)
from semel.stores.sql import PREFIX, countings, sized
from semel.tables import Table

T = TypeVar("T")

# Each time another write came in between, so another writer got on. This often in a row is no accident.
TRIES = 20
CLOCK = "extract(epoch FROM clock_timestamp())::float8"
# One refusal may be half of a race, and the next try succeed. Two are most likely followed by a third.
LIKELY_REFUSALS = 2
# Then all counts are forgotten.
MOST_COUNTS = 1000

# Whatever the default of the database is. Under a stricter one, of two writers that meet one must start over.
BEGIN: PostgresStatement = b"BEGIN ISOLATION LEVEL READ COMMITTED", None
# Everything in it is read as it was at one moment, and nothing is locked or waited for.
SNAPSHOT: PostgresStatement = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", None
COMMIT: PostgresStatement = b"COMMIT", None

SAVEPOINT: PostgresStatement = b"SAVEPOINT semel", None
RELEASE: PostgresStatement = b"RELEASE SAVEPOINT semel", None
UNDO: PostgresStatement = b"ROLLBACK TO SAVEPOINT semel", None


class RoundTrip(msgspec.Struct, frozen=True):
    """Statements that are sent together."""

    statements: list[PostgresStatement]
    commits: bool
    """They take effect by themselves, and may have done so if no reply comes."""
    undone_if_refused: bool = False
    """It fails, and nothing of it takes effect, if one of its writes is refused."""
    partial: bool = False
    """Something took effect in an earlier round trip: whatever fails now, the command was not left undone."""


class TransactionConflict(StoreThrottled):
    """The server gave up a round trip for another transaction; thrown into the generator, which may retry."""


class ConditionFailed(StoreError):
    """A write was refused, so the server undid its round trip; thrown into the generator too."""


# The reply to a round trip is the rows of each of its statements.
RoundTrips: TypeAlias = Generator[RoundTrip, list[PostgresRows], T]


class RefusalCounts:
    """How many transactions in a row each item has refused, as a full cap refuses them.

    There the next try most likely fails too, and leaves an error in the server's log: so the items are read
    first.
    """

    def __init__(self) -> None:
        self._refused: dict[Hashable, int] = {}

    def likely(self, places: Iterable[Hashable]) -> bool:
        """Return whether one of them will most likely refuse."""
        refused = self._refused
        return bool(refused) and any(refused.get(place, 0) >= LIKELY_REFUSALS for place in places)

    def add(self, places: Iterable[Hashable], refusals: Iterable[object] = repeat(None)) -> None:
        """Count those that refused; None stands for one that did not."""
        for place, refusal in zip(places, refusals):  # noqa: B905 - the usual refusals have no end
            count = self._refused.pop(place, 0)
            if refusal is not None:
                self._refused[place] = count + 1
        if len(self._refused) > MOST_COUNTS:
            self._refused.clear()


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
            **dict.fromkeys((Put, Update, Add, Delete), self._write),
            Get: self.read,
            Query: self._query,
            Transact: self._transact,
            Batch: self._batch,
            Time: self._time,
        }

    def of(self, command: Any) -> RoundTrips[Any]:
        """Return the round trips that execute a command; the value of the generator is its reply."""
        return self._steps[type(command)](command)

    # Reading

    def read(self, command: Get | Watch, subscribes: bool = False) -> RoundTrips[Found]:
        """Read an item, and perhaps ask to be notified of the next write to it."""
        plan = self.plan(command.table)
        statement = plan.get(command, self._imposed(), subscribes=subscribes)
        [[row]] = yield RoundTrip([statement], commits=False)
        return Found(row[0], plan.item(row[1:]))

    def _query(self, command: Query) -> RoundTrips[Page]:
        if self._check_index is not None and command.index:
            yield from self._check_index(command)
        plan = self.plan(command.table)
        [rows] = yield RoundTrip([plan.query(command, self._imposed())], commits=False)
        return plan.page(command, rows)

    def _time(self, _command: Time) -> RoundTrips[Found]:
        [[[now]]] = yield RoundTrip([(ASK_TIME, [self._imposed(), False])], commits=False)
        return Found(now, None)

    # Writing

    def _write(self, command: Write) -> RoundTrips[Applied | Refused]:
        plan = self.plan(command.table)
        round_trip = RoundTrip([plan.write(command, self._imposed())], commits=True)
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
        """Make the writes in one round trip, and those again that were refused by what they did not read."""
        replies: list[Any] = [None] * len(command.writes)
        waiting = self._in_order(command.writes, self._imposed())
        partial = False
        for _ in range(TRIES):
            statements = list(waiting.values())
            try:
                answers = yield RoundTrip(statements, commits=True, partial=partial)
            except TransactionConflict:
                continue
            partial = True
            self._reply(command.writes, waiting, answers, replies)
            waiting = {number: waiting[number] for number in waiting if replies[number] is None}
            if not waiting:
                return Many(tuple(replies))
        raise contended()

    def _in_order(
        self, writes: Sequence[Write], now: float | None, together: bool = False
    ) -> dict[int, PostgresStatement]:
        """The writes' numbers and statements, in the order of their places.

        Every writer locks in this order, so no two wait for each other.
        """
        numbered = sorted(enumerate(writes), key=lambda each: _place(each[1]))
        return {number: self.plan(write.table).write(write, now, together) for number, write in numbered}

    def _reply(
        self, writes: Sequence[Write], sent: Iterable[int], answers: list[PostgresRows], replies: list[Any]
    ) -> None:
        for number, [row] in zip(sent, answers, strict=True):
            replies[number] = self.plan(writes[number].table).reply(writes[number], row)

    # Several writes, all or none

    def _transact(self, command: Transact) -> RoundTrips[Applied | Cancelled]:
        """Write everything in one round trip, which the server undoes if one write is refused.

        Only then are the items read, to see which refused; or before, if a refusal is likely.
        """
        now = self._imposed()
        prepared = self._in_order(command.writes, now, True).values() or [(ASK_TIME, [now, True])]
        all_or_nothing = RoundTrip([BEGIN, *prepared, COMMIT], commits=True, undone_if_refused=True)
        places = [_place(write) for write in command.writes]
        look = self._refusal_counts.likely(places)
        for _ in range(TRIES):
            if look:
                cancelled = yield from self._refusals(command)
                self._refusal_counts.add(places, cancelled.refusals)
                if any(cancelled.refusals):
                    return cancelled
            try:
                _, [row], *_ = yield all_or_nothing
            except (TransactionConflict, ConditionFailed) as undone:
                look = type(undone) is ConditionFailed
            else:
                self._refusal_counts.add(places)
                return Applied(row[0])
        raise contended()

    def _refusals(self, command: Transact) -> RoundTrips[Cancelled]:
        plans, now = [self.plan(write.table) for write in command.writes], self._imposed()
        reads = [plan.get(write, now, True) for plan, write in zip(plans, command.writes, strict=True)]
        _, *answers, _ = yield RoundTrip([SNAPSHOT, *reads, COMMIT], commits=False)
        found = zip(plans, command.writes, answers, strict=True)
        return Cancelled(
            answers[0][0][0],
            tuple(plan.refusal(write, plan.item(row[1:]), row[0]) for plan, write, [row] in found),
        )

    # Reaping and measuring

    def reap(self, tables: Iterable[Table], limit: int) -> RoundTrips[int]:
        """Remove up to `limit` expired items, and return how many there were."""
        reaped = 0
        for table in tables:
            statement = self.plan(table).reap(limit - reaped, self._imposed())
            [[[count]]] = yield RoundTrip([statement], commits=True)
            reaped += count
        return reaped

    def measure(self, tables: Sequence[Table], schema: str | None) -> RoundTrips[list[TableSize]]:
        """Return the sizes of existing tables: by the planner's figures, and counted up to a bound."""
        sizes, imposed = [], self._imposed()
        # Read once, so that it can be looked up in an index.
        now = f"(SELECT {CLOCK})" if imposed is None else repr(imposed)
        for table in tables:
            name = qualified(PREFIX + table.name, schema)
            [known] = yield RoundTrip([(QUERIES["relation"].encode(), [name])], commits=False)
            if not known:
                continue
            [[rows, size]] = known
            statements = countings(name, table, now)
            replies = yield RoundTrip([(sql.encode(), None) for sql in statements.values()], commits=False)
            counts = {key: int(reply[0][0]) for key, reply in zip(statements, replies, strict=True)}
            how = f"items as ANALYZE last saw them; the rest counted up to {COUNTED:,}"
            sizes.append(sized(table, counts, how, int(size), int(rows)))
        return sizes


class StepsWithin(PostgresSteps):
    """The round trips in a transaction of the caller's, which an error from the server would end."""

    def __init__(self, outside: PostgresSteps) -> None:
        super().__init__(outside.plan, outside._imposed, outside._check_index)

    def _transact(self, command: Transact) -> RoundTrips[Applied | Cancelled]:
        """Write everything after a savepoint, and go back to it if a write was refused."""
        for _ in range(TRIES):
            ask_time = ASK_TIME, [self._imposed(), False]
            _, [[now]] = yield RoundTrip([SAVEPOINT, ask_time], commits=False)
            prepared = self._in_order(command.writes, now)
            answers = yield RoundTrip(list(prepared.values()), commits=False)
            replies: list[Any] = [None] * len(command.writes)
            self._reply(command.writes, prepared, answers, replies)
            made = all(type(reply) is Applied for reply in replies)
            yield RoundTrip([RELEASE if made else UNDO], commits=False)
            if made:
                return Applied(now)
            if None not in replies:
                return Cancelled(now, tuple(None if type(each) is Applied else each for each in replies))
        raise contended()


def _place(write: Write) -> tuple[Any, ...]:
    if write.table.sort is None:
        return write.table.name, write.key
    return write.table.name, write.key, write.sort


def contended() -> StoreThrottled:
    """Return the error of an item that others write all the time."""
    return StoreThrottled(f"other writes came in between {TRIES} times in a row; try again later")
