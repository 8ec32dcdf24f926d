"""The clerk: what is said to the server to carry a command out, as steps that do no I/O themselves."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from semel.commands import (
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
    alive,
)
from semel.errors import StoreError, StoreThrottled, UsageError
from semel.stores.postgres.forms import ASK_TIME, Form, Statement
from semel.stores.postgres.plan import Plan, Row
from semel.stores.postgres.refusers import Refusers
from semel.tables import Table

T = TypeVar("T")

# Each time somebody else's write came in between, so somebody has got on; so often in a row is no accident.
TRIES = 20
# A statement that writes so many rows takes some tens of milliseconds, and its locks are held as long.
ROWS = 2000


class Trip(NamedTuple):
    """Statements that are sent together."""

    statements: list[Statement]
    commits: bool
    """They take effect by themselves, and may have done so if no answer comes."""
    partial: bool = False
    """Something has taken effect before: whatever fails now, the command was not left undone."""
    daring: bool = False
    """It fails, and nothing of it takes effect, where one of its writes is refused."""


class Collision(StoreThrottled):
    """The server gave up a trip for somebody else's sake. It is thrown into the talk, which may go on."""


class Objection(StoreError):
    """A write of a daring trip was refused, so the server has undone it. It is thrown into the talk too."""


Rows: TypeAlias = list[Row]
# For each write of a transaction what has refused it, if anything has.
Refusals: TypeAlias = tuple[Refused | None, ...]
# Rows by their places.
Sight: TypeAlias = dict[tuple[Any, ...], Row]
# The answer to a trip is the rows of each of its statements.
Talk: TypeAlias = Generator[Trip, list[Rows], T]


class Prepared(NamedTuple):
    """A write of a batch: its place there, and its statement."""

    place: int
    write: Write
    form: Form
    values: list[Any]


# Whatever the default of the database is. Under a stricter one each of two writers who meet would begin anew.
BEGIN: Statement = b"BEGIN ISOLATION LEVEL READ COMMITTED", None
# Everything in it is read as it was at one moment, and nothing is locked or waited for.
SNAPSHOT: Statement = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", None
COMMIT: Statement = b"COMMIT", None


class Clerk:
    """Knows the tables, and turns commands into talk."""

    def __init__(self, schema: str | None, imposed: Callable[[], float | None]) -> None:
        self._schema = schema
        self._imposed = imposed
        self._plans: dict[str, Plan] = {}
        self._refusers = Refusers()
        self._talk: dict[type, Callable[[Any], Talk[Any]]] = {
            Get: self.look,
            Put: self._write,
            Update: self._write,
            Add: self._write,
            Delete: self._write,
            Query: self._query,
            Transact: self._transact,
            Batch: self._batch,
            Time: self._time,
        }

    def talk(self, command: Any) -> Talk[Any]:
        """The steps that carry a command out; their value is its reply."""
        return self._talk[type(command)](command)

    def plan(self, table: Table) -> Plan:
        """The plan of a table."""
        plan = self._plans.get(table.name)
        if plan is None:
            plan = self._plans.setdefault(table.name, Plan(table, self._schema))
        if plan.table is not table and plan.table != table:
            raise UsageError(f"this store has another table named {table.name!r}")
        return plan

    # Reading

    def look(self, command: Get | Watch) -> Talk[Found]:
        """Read an item."""
        plan = self.plan(command.table)
        return (yield from self._found(plan, plan.get(command, self._imposed())))

    def mark(self, command: Watch) -> Talk[Found]:
        """Read an item, and ask to be told of the next write to it."""
        plan = self.plan(command.table)
        return (yield from self._found(plan, plan.mark(command, self._imposed())))

    def _found(self, plan: Plan, statement: Statement) -> Talk[Found]:
        [[row]] = yield Trip([statement], commits=False)
        return Found(row[0], plan.item(row[1:]))

    def _query(self, command: Query) -> Talk[Page]:
        plan = self.plan(command.table)
        [rows] = yield Trip([plan.query(command, self._imposed())], commits=False)
        return plan.page(command, rows)

    def _time(self, _command: Time) -> Talk[Found]:
        [[[now]]] = yield Trip([(ASK_TIME, [self._imposed()])], commits=False)
        return Found(now, None)

    # Writing

    def _write(self, command: Write) -> Talk[Applied | Refused]:
        plan = self.plan(command.table)
        form, values = plan.write(command)
        trip = Trip([(form.one, [self._imposed(), *values])], commits=True)
        for _ in range(TRIES):
            try:
                [[row]] = yield trip
            except Collision:
                continue
            reply = plan.reply(command, row)
            if reply is not None:
                return reply
        raise contended()

    def _batch(self, command: Batch) -> Talk[Many]:
        replies: list[Any] = [None] * len(command.writes)
        waiting = [
            Prepared(place, write, *self.plan(write.table).write(write))
            for place, write in enumerate(command.writes)
        ]
        partial = False
        for _ in range(TRIES + len(waiting)):
            first, later = _first_of_each_key(waiting)
            batches = self._batches(first)
            try:
                answers = yield Trip([statement for statement, _ in batches], commits=True, partial=partial)
            except Collision:
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

    def _batches(self, writes: "list[Prepared]") -> "list[tuple[Statement, list[Prepared]]]":
        """Writes of one shape share a statement."""
        alike: dict[Form, list[Prepared]] = defaultdict(list)
        for each in writes:
            alike[each.form].append(each)
        now = self._imposed()
        return [
            (
                form.many(now, [each.values for each in several[start : start + ROWS]]),
                several[start : start + ROWS],
            )
            for form, several in alike.items()
            for start in range(0, len(several), ROWS)
        ]

    # Several writes, all or none

    def _transact(self, command: Transact) -> Talk[Applied | Cancelled]:
        """Dare to write everything in one trip, of which the server undoes all if one write is refused.

        Only then is it looked up what has refused which; or before, where a refusal is to be expected.
        """
        prepared = self._in_order(command)
        places = [_place(write) for write in command.writes]
        look = self._refusers.expected(places)
        for _ in range(TRIES):
            if look:
                now, refusals = yield from self._refusals(command)
                self._refusers.note(places, refusals)
                if any(refusals):
                    return Cancelled(now, refusals)
            try:
                _, [row], *_ = yield self._daring(prepared)
            except (Collision, Objection) as undone:
                look = type(undone) is Objection
            else:
                self._refusers.relent(places)
                return Applied(row[0])
        raise contended()

    def _daring(self, prepared: list[tuple[Write, Form, list[Any]]]) -> Trip:
        now = self._imposed()
        writes = [(form.firm, [now, *values]) for _, form, values in prepared]
        return Trip([BEGIN, *(writes or [(ASK_TIME, [now])]), COMMIT], commits=True, daring=True)

    def _refusals(self, command: Transact) -> Talk[tuple[float, Refusals]]:
        """The time, and what refuses each of the writes, as it was at that moment."""
        tables = by_table(command.writes)
        rows = [self.plan(several[0].table).rows(several) for several in tables.values()]
        time: Statement = ASK_TIME, [self._imposed()]
        _, [[now]], *answers, _ = yield Trip([SNAPSHOT, time, *rows, COMMIT], commits=False)
        return now, self._judged(command, self._sight(tables, answers), now)

    def _in_order(self, command: Transact) -> list[tuple[Write, Form, list[Any]]]:
        """The writes with their statements, in the order of their places.

        Everybody locks in this order, so that nobody waits for somebody who waits for him.
        """
        prepared = [(write, *self.plan(write.table).write(write)) for write in command.writes]
        prepared.sort(key=lambda each: _place(each[0]))
        return prepared

    def _sight(self, tables: Iterable[str], answers: list[Rows]) -> Sight:
        return {
            (name, *self._plans[name].place(row)): row
            for name, rows in zip(tables, answers, strict=True)
            for row in rows
        }

    def _judged(self, command: Transact, found: Sight, now: float) -> Refusals:
        return tuple(self._refusal(write, found.get(_place(write)), now) for write in command.writes)

    def _refusal(self, write: Write, row: Row | None, now: float) -> Refused | None:
        plan = self.plan(write.table)
        item = None if row is None else alive(write.table, plan.item(row), now)
        return plan.refusal(write, item, now)

    # Housekeeping

    def reap(self, tables: Iterable[Table], limit: int) -> Talk[int]:
        """Delete up to so many expired rows; how many there were."""
        reaped = 0
        for table in tables:
            statement = self.plan(table).reap(limit - reaped, self._imposed())
            [[[count]]] = yield Trip([statement], commits=True)
            reaped += count
        return reaped


def _first_of_each_key(writes: list[Prepared]) -> tuple[list[Prepared], list[Prepared]]:
    """Those that can be made at once, and those that have to come after one of them."""
    first: list[Prepared] = []
    later: list[Prepared] = []
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


def by_table(writes: Iterable[Write]) -> dict[str, list[Write]]:
    """The writes by the names of their tables."""
    tables: dict[str, list[Write]] = defaultdict(list)
    for write in writes:
        tables[write.table.name].append(write)
    return tables


def contended() -> StoreThrottled:
    """What is said of an item that others write all the time."""
    return StoreThrottled(f"other writes came in between {TRIES} times in a row; try again later")
