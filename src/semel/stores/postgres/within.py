"""The store inside a transaction of the caller's: it stands or falls together with his own rows."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from semel.core.clock import Clock
from semel.core.commands import Applied, Cancelled, Found, Stored, Time, Transact, Watch, Write
from semel.errors import StoreUnavailable, UsageError
from semel.stores.postgres.address import PostgresAddress
from semel.stores.postgres.errors import STANDBY
from semel.stores.postgres.interpreter import (
    TRIES,
    ItemsByKey,
    PostgresSteps,
    RoundTrip,
    RoundTrips,
    contended,
    items_by_key,
)
from semel.stores.postgres.pool import PostgresSession, arun, run
from semel.stores.postgres.statements import ASK_TIME, PostgresStatement
from semel.stores.servertime import ServerTime
from semel.stores.waiting import KeyWatchers

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

T = TypeVar("T")

SAVEPOINT: PostgresStatement = b"SAVEPOINT semel", None
RELEASE: PostgresStatement = b"RELEASE SAVEPOINT semel", None
UNDO: PostgresStatement = b"ROLLBACK TO SAVEPOINT semel", None


class StepsWithin(PostgresSteps):
    """The round trips in a transaction of the caller's.

    An error of the server's would end it, so rows are locked and conditions checked before anything is
    written.
    """

    def __init__(self, outside: PostgresSteps) -> None:
        super().__init__(outside.plan, outside._imposed, outside._check_index)

    def _transact(self, command: Transact) -> RoundTrips[Applied | Cancelled]:
        prepared = self._in_order(command)
        for _ in range(TRIES):
            now, found = yield from self._locked([write for write, _, _ in prepared])
            refusals = self._check_conditions(command, found, now)
            if any(refusals):
                yield RoundTrip([RELEASE], commits=False)  # nothing was written
                return Cancelled(now, refusals)
            answers = yield RoundTrip(
                [(template.one, [now, *values]) for _, template, values in prepared], commits=False
            )
            # What was not there could not be locked, and may be there now.
            if all(row[1] is not None for [row] in answers):
                yield RoundTrip([RELEASE], commits=False)
                return Applied(now)
            yield RoundTrip([UNDO], commits=False)
        raise contended()

    def _locked(self, writes: list[Write]) -> RoundTrips[tuple[float, ItemsByKey]]:
        """The time, and the items that the writes are about, which nobody else changes from now on."""
        tables = self._by_table(writes)
        locks = [plan.lock(several) for plan, several in tables]
        time: PostgresStatement = ASK_TIME, [self._imposed()]
        _, *answers, [[now]] = yield RoundTrip([SAVEPOINT, *locks, time], commits=False)
        return now, items_by_key(tables, answers)


class PostgresWithin:
    """A store whose writes belong to the transaction that is open on a connection. It ends none itself.

    Sync and async connections serve; each is asked in its own way, by `execute` or by `aexecute`.
    """

    def __init__(
        self,
        connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]",
        steps: StepsWithin,
        checked: "Callable[[RoundTrips[Any]], RoundTrips[Any]]",
        address: PostgresAddress,
        *,
        clock: Clock,
        time: ServerTime,
    ) -> None:
        self.overflow: Overflow | None = None
        self._connection = connection
        self._steps = steps
        self._checked = checked
        self._address = address
        self._clock = clock
        self._time = time
        self._watchers = KeyWatchers(clock)

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if isinstance(command, Watch):
            return self._watchers.watch(
                command.key, command.seconds, lambda: self._run(self._steps.read(command))
            )
        reply = self.at_once(command)
        if reply is None:
            reply = self._run(self._steps.of(command))
            self._time.observe(reply)
        return reply

    def at_once(self, command: Stored) -> Any | None:
        """The time, where it was heard lately; every other answer comes over a network."""
        return self._time.known() if type(command) is Time else None

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out on an async connection and answer it."""
        if isinstance(command, Watch):
            return await self._awatch(command)
        reply = self.at_once(command)
        if reply is None:
            reply = await self._arun(self._steps.of(command))
            self._time.observe(reply)
        return reply

    async def _awatch(self, command: Watch) -> Found:
        async def look() -> Found:
            return await self._arun(self._steps.read(command))

        return await self._watchers.awatch(command.key, command.seconds, look)

    def close(self) -> None:
        """Nothing: the connection is the caller's."""

    def _run(self, steps: RoundTrips[T]) -> T:
        if not isinstance(self._connection, psycopg.Connection):
            raise UsageError("this connection belongs to asyncio: await the methods of an AsyncLedger on it")
        self._check_transaction()
        steps = _uncommitted(self._checked(steps))
        return run(PostgresSession(self._connection, self._clock), steps, self._address)

    async def _arun(self, steps: RoundTrips[T]) -> T:
        if not isinstance(self._connection, psycopg.AsyncConnection):
            raise UsageError("this connection is no asyncio's: use the methods of a Ledger on it")
        self._check_transaction()
        steps = _uncommitted(self._checked(steps))
        return await arun(PostgresSession(self._connection, self._clock), steps, self._address)

    def _check_transaction(self) -> None:
        idle = self._connection.pgconn.transaction_status == TransactionStatus.IDLE
        if idle and self._connection.autocommit:
            raise UsageError(
                "no transaction is open on this connection: begin one, as with connection.transaction()"
            )
        if self._connection.pgconn.parameter_status(b"in_hot_standby") == b"on":
            raise StoreUnavailable(f"the connection to share: {STANDBY}")


def _uncommitted(steps: RoundTrips[T]) -> RoundTrips[T]:
    """Round trips of which nothing has taken effect if the connection is lost, as the caller commits."""
    round_trip = next(steps)
    while True:
        answers = yield RoundTrip(round_trip.statements, commits=False)
        try:
            round_trip = steps.send(answers)
        except StopIteration as end:
            value: T = end.value
            return value
