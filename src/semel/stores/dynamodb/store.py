"""The store in DynamoDB."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.aws.time import ENOUGH
from semel.aws.wire import Transport, WireSteps
from semel.core.clock import Clock, PerLoop, SignalSafeLock
from semel.core.commands import Batch, Many, Stored, Time, Watch
from semel.core.drive import run_async, run_sync
from semel.core.runtime import FORKING
from semel.errors import NotPermitted, StoreClosed, TableMissing
from semel.model import ScanCost, TableSize
from semel.stores.dynamodb.address import DynamoAddress, parse
from semel.stores.dynamodb.requests import TableRequests
from semel.stores.dynamodb.service import UNKNOWN_COST, ErrorTranslator, Timekeeper, scan_cost, table_size
from semel.stores.dynamodb.steps import BatchRow, DynamoOperations, ReadFirst, batch_reply
from semel.stores.shared import Plans, place_named, tables_of, wake
from semel.stores.waiting import KeyWatchers
from semel.tables import LEDGER, Table
from semel.tables.mapping import Form, asked

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

    The transport is semel's own wire, or a boto3 client of yours given as `client`. `tables` are those that
    are kept elsewhere than in semel's own: under another name, or in a `TableMapping` such as `POWERTOOLS`.
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
        self._clock = clock or Clock()
        kept = {name: table for table in tables for name in (table.name, asked(table).name)}
        self._requests = Plans(lambda table: TableRequests(table, kept.get(table.name, table), env))
        # Which tables were found, by the names that commands use.
        self._open: set[str] = set()
        self._closed = False
        self._ledger = self._requests.of(LEDGER)
        self._transport = transport or _transport(client, self._clock)
        self._time = Timekeeper(self._transport.time, self._clock, margin)
        self._operations = DynamoOperations(
            self._transport, self._time, self._requests.of, ErrorTranslator(url, env), read_first
        )
        self._own_overflow: Any = None
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """With nothing that threads share: a forked child must not wait for its parent's."""
        self._watchers = KeyWatchers(self._clock)
        self._opening = SignalSafeLock()
        self._workers: list[WorkerThreads] = []
        """The threads for what is asked side by side, once they are needed."""
        self._aopening: PerLoop[asyncio.Lock] = PerLoop(_lock)

    def __repr__(self) -> str:
        return f"<DynamoDBStore {self._ledger.title}>"

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
        return self._ledger.format.fields["result"].form is Form.JSON

    @property
    def spreads_details(self) -> bool:
        return "details" in self._ledger.format.spread

    @property
    def room(self) -> int:
        return ROOM * 3 // 4 if self.plain_results else ROOM

    # The ways to ask

    def execute(self, command: Any) -> Any:
        """Execute the command, and return its reply."""
        kind = type(command)
        if self._looks_first(command) and self._shut(command):
            with self._opening:
                self._run(self._look(command))
        if kind is Watch:
            look = partial(self._answer, command)
            return self._watchers.watch(place_named(command), command.seconds, look)
        reply = self._batch(command) if kind is Batch else self._answer(command)
        if self._watchers.watches or self._watchers.async_watches:
            wake(self._watchers, command, reply)
        return reply

    async def aexecute(self, command: Any) -> Any:
        """Execute the command in this task, and return its reply."""
        kind = type(command)
        if self._looks_first(command) and self._shut(command):
            async with self._aopening.here():
                await self._arun(self._look(command))
        if kind is Watch:
            look = partial(self._aanswer, command)
            return await self._watchers.awatch(place_named(command), command.seconds, look)
        reply = await (self._abatch(command) if kind is Batch else self._aanswer(command))
        wake(self._watchers, command, reply)
        return reply

    def at_once(self, command: Stored) -> Any | None:
        """Return what time it is, where that is known; every other reply takes a round trip."""
        if type(command) is not Time or self._closed or self._time.doubtful():
            return None
        return self._answer(command)

    def _run(self, steps: WireSteps[Any]) -> Any:
        return run_sync(steps, self._transport.perform)

    def _answer(self, command: Any) -> Any:
        return run_sync(self._operations.by_command[type(command)](command), self._transport.perform)

    async def _arun(self, steps: WireSteps[Any]) -> Any:
        return await run_async(steps, self._transport.aperform)

    async def _aanswer(self, command: Any) -> Any:
        return await self._arun(self._operations.by_command[type(command)](command))

    def reap(self, limit: int = 500) -> int:
        """Remove up to so many expired items of the tables in use; DynamoDB does that by itself, for free."""
        used, reaped = {requests.title: requests for requests in self._used()}, 0
        for requests in used.values():
            reaped += self._run(self._operations.reap(requests, limit - reaped)) if reaped < limit else 0
        return reaped

    def scan_cost(self, table: Table) -> ScanCost:
        """Return what it takes to read a whole table, as DynamoDB last counted it."""
        try:
            return scan_cost(self._run(self._operations.describe(table)))
        except NotPermitted:
            return UNKNOWN_COST

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """Return the sizes of the tables that are there, as DynamoDB last counted them."""
        sizes = []
        for table in tables:
            with suppress(TableMissing):
                sizes.append(table_size(table.name, self._run(self._operations.describe(table))))
        return sizes

    async def leave(self) -> None:
        """Close the running loop's connections."""
        await self._aopening.leave()
        await self._transport.leave()

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._open.clear()
        for workers in self._workers:
            workers.stop()
        self._transport.close()
        if self._own_overflow is not None:
            self._own_overflow.close()
        FORKING.discard(self)

    # Tables

    def _looks_first(self, command: Any) -> bool:
        """Return whether there may be a table to look at before a command: `_shut` says which."""
        table = getattr(command, "table", None)
        return table is None or table.name not in self._open or self._time.doubtful()

    def _shut(self, command: Any) -> list[TableRequests]:
        """Return the tables of a command that have to be looked at before it."""
        if self._closed:
            raise StoreClosed("the store was closed")
        if type(command) is Time:
            return [self._some_table()] if self._time.doubtful() else []
        tables = [self._requests.of(table) for table in tables_of(command)]
        shut = [requests for requests in tables if requests.table.name not in self._open]
        return shut or (tables[:1] if self._time.doubtful() else [])

    def _some_table(self) -> TableRequests:
        """Return a table to hear the time from: one that is in use, or the ledger, even if there is none."""
        return next(iter(self._used()), self._ledger)

    def _used(self) -> list[TableRequests]:
        return [requests for requests in self._requests if requests.table.name in self._open]

    def _look(self, command: Any) -> WireSteps[None]:
        """Read the stamps of its tables; a time that contradicts what was known is confirmed, or refuted."""
        for _ in range(ENOUGH):
            for requests in self._shut(command):
                if (yield from self._operations.open(requests, told=type(command) is Time)):
                    self._open.add(requests.table.name)
                self._time.settle()

    # Batches

    def _batch(self, command: Batch) -> Many:
        rows = self._operations.rows(command)
        if len(rows) < 2:
            return batch_reply(list(map(self._run, rows)))
        if self._closed:
            raise StoreClosed("the store was closed")
        if not self._workers:
            from semel.stores.workers import WorkerThreads

            # Two threads may each add some; the first are used, and others are never started.
            self._workers.append(WorkerThreads(AT_ONCE, "semel-dynamodb"))
        return batch_reply(self._workers[0].map(self._run, rows))

    async def _abatch(self, command: Batch) -> Many:
        import asyncio

        rows, replies = iter(self._operations.rows(command)), list[BatchRow]()

        async def work() -> None:
            for row in rows:
                replies.append(await self._arun(row))

        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(command.writes)))))
        return batch_reply(replies)


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
    from semel.aws.boto import BotoWire, Mock
    from semel.aws.environment import ServiceEndpoint
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
