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
    Transact,
    Update,
    Watch,
    Write,
    alive,
)
from semel.errors import StoreThrottled, UsageError
from semel.stores.postgres.forms import ASK_TIME, Form, Statement
from semel.stores.postgres.plan import Plan, Row
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


class Collision(StoreThrottled):
    """The server gave up a trip for somebody else's sake. It is thrown into the talk, which may go on."""


Rows: TypeAlias = list[Row]
# The answer to a trip is the rows of each of its statements.
Talk: TypeAlias = Generator[Trip, list[Rows], T]


class Prepared(NamedTuple):
    """A write of a batch: its place there, and its statement."""

    place: int
    write: Write
    form: Form
    values: list[Any]


class Frame(NamedTuple):
    """The words around several statements that are made together or not at all."""

    begin: Statement
    commit: Statement
    undo: Statement


TRANSACTION = Frame((b"BEGIN", None), (b"COMMIT", None), (b"ROLLBACK", None))
# Inside a transaction that is somebody else's to end.
SAVEPOINT = Frame(
    (b"SAVEPOINT semel", None), (b"RELEASE SAVEPOINT semel", None), (b"ROLLBACK TO SAVEPOINT semel", None)
)


class Clerk:
    """Knows the tables, and turns commands into talk."""

    def __init__(self, schema: str | None, imposed: Callable[[], float | None], frame: Frame) -> None:
        self._schema = schema
        self._imposed = imposed
        self._frame = frame
        self._plans: dict[str, Plan] = {}
        self._talk: dict[type, Callable[[Any], Talk[Any]]] = {
            Get: self.look,
            Put: self._write,
            Update: self._write,
            Add: self._write,
            Delete: self._write,
            Query: self._query,
            Transact: self._transact,
            Batch: self._batch,
        }

    def talk(self, command: Any) -> Talk[Any]:
        """The steps that carry a command out; their value is its reply."""
        return self._talk[type(command)](command)

    def within(self, frame: Frame) -> "Clerk":
        """The same clerk, in a transaction of somebody else's."""
        clerk = Clerk(self._schema, self._imposed, frame)
        clerk._plans = self._plans
        return clerk

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

    def _transact(self, command: Transact) -> Talk[Applied | Cancelled]:
        prepared = [(write, *self.plan(write.table).write(write)) for write in command.writes]
        # Everybody locks in this order, so that nobody waits for somebody who waits for him.
        prepared.sort(key=lambda each: _place(each[0]))
        for _ in range(TRIES):
            try:
                now, found = yield from self._locked([write for write, _, _ in prepared])
                refusals = tuple(self._refusal(write, found, now) for write in command.writes)
                if any(refusals):
                    # Nothing was written, so a COMMIT ends it as well as a ROLLBACK would.
                    yield Trip([self._frame.commit], commits=False)
                    return Cancelled(now, refusals)
                answers = yield Trip(
                    [(form.one, [now, *values]) for _, form, values in prepared], commits=False
                )
                # What was not there could not be locked, and may be there now.
                if all(row[1] is not None for [row] in answers):
                    yield Trip([self._frame.commit], commits=True)
                    return Applied(now)
            except Collision:
                pass
            yield Trip([self._frame.undo], commits=False)
        raise contended()

    def _locked(self, writes: list[Write]) -> Talk[tuple[float, dict[Any, Row]]]:
        """The time, and the rows that the writes are about, which nobody else changes from now on."""
        tables: dict[str, list[Write]] = defaultdict(list)
        for write in writes:
            tables[write.table.name].append(write)
        plans = [self.plan(several[0].table) for several in tables.values()]
        locks = [plan.lock(several) for plan, several in zip(plans, tables.values(), strict=True)]
        time: Statement = ASK_TIME, [self._imposed()]
        _, *answers, [[now]] = yield Trip([self._frame.begin, *locks, time], commits=False)
        found = {
            (name, *plan.place(row)): row
            for name, plan, rows in zip(tables, plans, answers, strict=True)
            for row in rows
        }
        return now, found

    def _refusal(self, write: Write, found: dict[Any, Row], now: float) -> Refused | None:
        plan, row = self.plan(write.table), found.get(_place(write))
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


def contended() -> StoreThrottled:
    """What is said of an item that others write all the time."""
    return StoreThrottled(f"other writes came in between {TRIES} times in a row; try again later")
