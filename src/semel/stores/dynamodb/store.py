"""The store in DynamoDB."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from semel.aws.errors import ServiceError
from semel.aws.time import ENOUGH
from semel.aws.transport import Transport
from semel.core.clock import Clock
from semel.core.commands import Found, Stored, Time, Watch
from semel.core.connections import PerLoop
from semel.core.drive import run_async, run_sync
from semel.core.runtime import FORKING
from semel.core.threads import SignalSafeLock
from semel.errors import NotPermitted, SemelError, StoreClosed, TableMissing, UsageError
from semel.model import ScanCost, TableSize
from semel.stores.dynamodb.address import DynamoAddress, parse
from semel.stores.dynamodb.errors import ErrorTranslator
from semel.stores.dynamodb.interpreter import Concurrently, DynamoOperations, DynamoStep, DynamoSteps
from semel.stores.dynamodb.plan import DynamoPlan
from semel.stores.dynamodb.read_first import ReadFirst, RefusalRate
from semel.stores.dynamodb.time import Timekeeper
from semel.stores.shared import Plans, place_named, tables_of, wake
from semel.stores.waiting import KeyWatchers
from semel.tables import LEDGER, Form, Table

if TYPE_CHECKING:
    import asyncio

    from semel.core.codecs import Overflow
    from semel.stores.workers import WorkerThreads

# An item has room for 409,600 bytes; what is left is for its key, an error and the rest.
ROOM = 380_000
# So many writes of a batch are under way at a time: enough to hide the way to the server and back.
AT_ONCE = 16


class DynamoDBStore:
    """Items in DynamoDB, for any number of machines.

    The transport is semel's own wire, or a boto3 client of yours given as `client`. `tables` says where a
    table of the rules is kept instead of in one of semel's own: in `POWERTOOLS`, say, or in one of yours.
    """

    def __init__(
        self,
        transport: Transport | None = None,
        *,
        client: Any = None,
        tables: Iterable[Table] = (),
        env: str = "dev",
        clock: Clock | None = None,
        read_first: ReadFirst = "no",
        margin: float | None = None,
        overflow: "Overflow | None" = None,
        url: str = "dynamodb://",
    ) -> None:
        self.overflow = overflow
        self._env = env
        self._clock = clock or Clock()
        kept = {name: table for table in tables for name in (table.name, (table.holds or table).name)}
        self._plans = Plans(lambda table: DynamoPlan(table, kept.get(table.name, table), env))
        self._plan = self._plans.of
        self._open: set[str] = set()
        self._closed = False
        self._errors = ErrorTranslator(url, env)
        self._plan(LEDGER)
        self._transport = transport or _transport(client, self._clock)
        self._time = Timekeeper(self._transport.time, self._clock, margin)
        self._operations = DynamoOperations(self._transport, self._time, self._plan, RefusalRate(read_first))
        self._own_overflow: Any = None
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """With nothing that threads share: a forked child must not wait for its parent's."""
        self._watchers = KeyWatchers(self._clock)
        self._opening = SignalSafeLock()
        self._workers: list[WorkerThreads] = []
        """The threads for what is asked side by side, once they are needed."""
        self._aopening: PerLoop[asyncio.Lock] = PerLoop(_lock, _nothing, lambda _: None)

    def __repr__(self) -> str:
        return f"<DynamoDBStore {self._plan(LEDGER).layout.title}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "DynamoDBStore":
        """`dynamodb://REGION/TITLE?endpoint=...`; `dynamodb://` alone leaves all of it to the environment."""
        address = parse(url)
        store = cls(
            transport_of(address, clock),
            tables=address.tables,
            env=env,
            clock=clock,
            read_first=address.read_first,
            margin=address.margin,
            url=url,
        )
        if address.overflow is not None:
            from semel.aws.s3 import S3Overflow

            bucket, prefix = address.overflow
            store.overflow = store._own_overflow = S3Overflow(
                bucket, prefix=prefix, region=address.region, clock=clock
            )
        return store

    @property
    def plain_results(self) -> bool:
        """Whether others read the results too, as JSON in a text; such are not compressed."""
        return self._plan(LEDGER).layout.fields["result"].form is Form.JSON

    @property
    def spreads_details(self) -> bool:
        """Whether a record's details stand in attributes of their own, which others read too."""
        return self._plan(LEDGER).layout.spreads("details")

    @property
    def room(self) -> int:
        """How large a result may be."""
        return ROOM * 3 // 4 if self.plain_results else ROOM

    # The ways to ask

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if self._shut(command):
            self._open_up(command)
        if type(command) is Watch:
            return self._watchers.watch(
                place_named(command), command.seconds, lambda: self._run(self._operations.get(command))
            )
        reply = self._run(self._operations.by_command[type(command)](command))
        wake(self._watchers, command, reply)
        return reply

    def at_once(self, command: Stored) -> Any | None:
        """What time it is, where that is known; every other answer takes a round trip."""
        if type(command) is not Time or self._closed or self._time.doubtful():
            return None
        return self._run(self._operations.time(command))

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out in this task and answer it."""
        if self._shut(command):
            await self._aopen_up(command)
        if type(command) is Watch:

            async def look() -> Found:
                found: Found = await self._arun(self._operations.get(command))
                return found

            return await self._watchers.awatch(place_named(command), command.seconds, look)
        reply = await self._arun(self._operations.by_command[type(command)](command))
        wake(self._watchers, command, reply)
        return reply

    def reap(self, limit: int = 500) -> int:
        """Remove up to so many expired items of the tables in use; DynamoDB does that by itself, for free."""
        plans = {plan.title: plan for plan in self._plans if plan.title in self._open}
        reaped = 0
        for plan in plans.values():
            reaped += self._run(self._operations.reap(plan, limit - reaped)) if reaped < limit else 0
        return reaped

    def scan_cost(self, table: Table) -> ScanCost:
        """What it takes to read a whole table, as DynamoDB last counted it."""
        from semel.stores.dynamodb.prices import UNKNOWN_COST, scan_cost

        try:
            described = self._run(self._operations.described(self._plan(table)))
        except NotPermitted:
            return UNKNOWN_COST
        return scan_cost(described["Table"])

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The sizes of the tables that are there, as DynamoDB last counted them."""
        from semel.stores.dynamodb.prices import table_size

        sizes = []
        for table in tables:
            with suppress(TableMissing):
                described = self._run(self._operations.described(self._plan(table)))
                sizes.append(table_size(table.name, described["Table"]))
        return sizes

    async def leave(self) -> None:
        """Let go of the running loop's connections."""
        await self._aopening.leave()
        await self._transport.leave()

    def close(self) -> None:
        """Let go of every connection."""
        self._closed = True
        for workers in self._workers:
            workers.stop()
        self._transport.close()
        if self._own_overflow is not None:
            self._own_overflow.close()
        FORKING.discard(self)

    # Tables

    def _shut(self, command: Any) -> list[DynamoPlan]:
        """The tables of a command that have to be looked at before it."""
        if self._closed:
            raise StoreClosed("the store was closed")
        if type(command) is Time:
            return [self._some_plan()] if self._time.doubtful() else []
        plans = [self._plan(table) for table in tables_of(command)]
        shut = [plan for plan in plans if plan.title not in self._open]
        return shut or (plans[:1] if self._time.doubtful() else [])

    def _some_plan(self) -> DynamoPlan:
        """A table to hear the time from: one that is in use, or else the ledger, even if there is none."""
        used = [plan for plan in self._plans if plan.title in self._open]
        return used[0] if used else self._plan(LEDGER)

    def _look(self, command: Any, plan: DynamoPlan) -> DynamoSteps[bool]:
        look = self._operations.ask_time if type(command) is Time else self._operations.open
        return look(plan, self._env)

    def _open_up(self, command: Any) -> None:
        with self._opening:
            for _ in range(ENOUGH):  # a time that contradicts what was known is confirmed, or refuted
                for plan in self._shut(command):
                    self._looked_at(plan, self._run(self._look(command, plan)))

    async def _aopen_up(self, command: Any) -> None:
        async with self._aopening.here():
            for _ in range(ENOUGH):
                for plan in self._shut(command):
                    self._looked_at(plan, await self._arun(self._look(command, plan)))

    def _looked_at(self, plan: DynamoPlan, seen: bool) -> None:
        if seen:
            self._open.add(plan.title)
        self._time.settle()

    # Running steps, for threads and for tasks

    def _run(self, steps: DynamoSteps[Any]) -> Any:
        try:
            return run_sync(steps, self._perform)
        except (ServiceError, UnicodeEncodeError) as error:
            raise self._translated(error) from error

    async def _arun(self, steps: DynamoSteps[Any]) -> Any:
        try:
            return await run_async(steps, self._aperform)
        except (ServiceError, UnicodeEncodeError) as error:
            raise self._translated(error) from error

    def _perform(self, step: DynamoStep) -> Any:
        if not isinstance(step, Concurrently):
            return self._transport.perform(step)
        if len(step.rows) < 2:
            return [self._row(row) for row in step.rows]
        if self._closed:
            raise StoreClosed("the store was closed")
        return self._threads().map(self._row, step.rows)

    def _threads(self) -> "WorkerThreads":
        from semel.stores.workers import WorkerThreads

        if not self._workers:
            # Two threads may each add some; the first are used, and others are never started.
            self._workers.append(WorkerThreads(AT_ONCE, "semel-dynamodb"))
        return self._workers[0]

    async def _aperform(self, step: DynamoStep) -> Any:
        if not isinstance(step, Concurrently):
            return await self._transport.aperform(step)
        import asyncio

        rows = iter(enumerate(step.rows))
        answers: list[list[Any]] = [[] for _ in step.rows]

        async def work() -> None:
            for place, row in rows:
                answers[place] = await self._arow(row)

        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(answers)))))
        return answers

    def _row(self, row: list[DynamoSteps[Any]]) -> list[Any]:
        """What came of steps that are run one after another in this thread, up to the first error."""
        answers: list[Any] = []
        try:
            answers.extend(map(self._run, row))
        except SemelError as error:
            answers.append(error)
        return answers

    async def _arow(self, row: list[DynamoSteps[Any]]) -> list[Any]:
        """What came of steps that are run one after another in this task, up to the first error."""
        answers: list[Any] = []
        try:
            for steps in row:
                answers.append(await self._arun(steps))  # noqa: PERF401 - one by one
        except SemelError as error:
            answers.append(error)
        return answers

    def _translated(self, error: ServiceError | UnicodeEncodeError) -> Exception:
        if isinstance(error, UnicodeEncodeError):
            return UsageError(f"text with half a character in it cannot be written: {error.object!r:.80}")
        request = error.request
        titles = request.title.split(", ")
        tables = [plan.table for plan in self._plans if plan.title in titles]
        return self._errors.translated(error, request.operation, request.title, tables)


def _transport(client: Any, clock: Clock) -> Transport:
    if client is not None:
        from semel.aws.boto import BotoWire

        return BotoWire(client, clock=clock)
    from semel.aws.wire import Wire

    return Wire("dynamodb", clock=clock)


def transport_of(address: DynamoAddress, clock: Clock) -> Transport:
    """The transport that a URL asks for."""
    if address.botocore:
        return _botocore(_client(address), clock)
    from semel.aws.pool import ConnectionLimits
    from semel.aws.wire import Wire

    limits = ConnectionLimits(connect_timeout=address.timeout, read_timeout=address.timeout)
    return Wire("dynamodb", region=address.region, endpoint=address.endpoint, clock=clock, limits=limits)


def _botocore(client: Any, clock: Clock) -> Transport:
    """The transport of a client that is ours."""
    from semel.aws.boto import BotoWire
    from semel.aws.endpoint import ServiceEndpoint
    from semel.aws.mocked import Mock
    from semel.aws.time import ServiceTime

    time, place = ServiceTime(clock), ServiceEndpoint.from_url(client.meta.endpoint_url)
    mock = Mock("dynamodb", client.meta.region_name, place, clock=clock, time=time)
    return BotoWire(client, clock=clock, time=time, mock=mock)


def _client(address: DynamoAddress) -> Any:
    """A boto3 client that leaves retrying to us: we know what may be sent twice."""
    from semel.core.runtime import require

    config = require("botocore.config", "boto").Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=address.timeout,
        read_timeout=address.timeout,
        max_pool_connections=50,
    )
    session = require("boto3.session", "boto").Session(
        profile_name=address.profile, region_name=address.region
    )
    return session.client("dynamodb", endpoint_url=address.endpoint, config=config)


def _lock() -> "asyncio.Lock":
    import asyncio

    return asyncio.Lock()


async def _nothing(_: Any) -> None:
    return None
