"""The store inside a transaction of the caller's: it stands or falls together with his own rows."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from semel.clock import Clock
from semel.commands import Found, Stored, Time, Watch
from semel.errors import UsageError
from semel.stores.postgres.address import Address
from semel.stores.postgres.clerk import Clerk, Talk, Trip
from semel.stores.postgres.pool import Line, aconverse, converse
from semel.stores.servertime import ServerTime
from semel.stores.waiting import WaitingRoom

if TYPE_CHECKING:
    from semel.codecs import Overflow

T = TypeVar("T")


class Within:
    """A store whose writes belong to the transaction that is open on a connection. It ends none itself.

    Sync and async connections serve; each is asked in its own way, by `execute` or by `aexecute`.
    """

    def __init__(
        self,
        connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]",
        clerk: Clerk,
        opening: "Callable[[Talk[Any]], Talk[Any]]",
        address: Address,
        *,
        clock: Clock,
        time: ServerTime,
    ) -> None:
        self.overflow: Overflow | None = None
        self._connection = connection
        self._clerk = clerk
        self._opening = opening
        self._address = address
        self._clock = clock
        self._time = time
        self._room = WaitingRoom(clock)

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if isinstance(command, Watch):
            return self._room.watch(
                command.key, command.seconds, lambda: self._told(self._clerk.look(command))
            )
        reply = self.at_once(command)
        if reply is None:
            reply = self._told(self._clerk.talk(command))
            self._time.hear(reply)
        return reply

    def at_once(self, command: Stored) -> Any | None:
        """The time, where it was heard lately; every other answer comes over a network."""
        return self._time.tell() if type(command) is Time else None

    async def aexecute(self, command: Stored) -> Any:
        """The same as `execute`, awaited."""
        if isinstance(command, Watch):
            return await self._awatch(command)
        reply = self.at_once(command)
        if reply is None:
            reply = await self._atold(self._clerk.talk(command))
            self._time.hear(reply)
        return reply

    async def _awatch(self, command: Watch) -> Found:
        async def look() -> Found:
            return await self._atold(self._clerk.look(command))

        return await self._room.awatch(command.key, command.seconds, look)

    def close(self) -> None:
        """Nothing: the connection is the caller's."""

    def _told(self, talk: Talk[T]) -> T:
        if not isinstance(self._connection, psycopg.Connection):
            raise UsageError("this connection belongs to asyncio: await the methods of an AsyncLedger on it")
        self._check_transaction()
        talk, trip = self._begun(talk)
        return converse(Line(self._connection, self._clock), talk, trip, self._address)

    async def _atold(self, talk: Talk[T]) -> T:
        if not isinstance(self._connection, psycopg.AsyncConnection):
            raise UsageError("this connection is no asyncio's: use the methods of a Ledger on it")
        self._check_transaction()
        talk, trip = self._begun(talk)
        return await aconverse(Line(self._connection, self._clock), talk, trip, self._address)

    def _begun(self, talk: Talk[T]) -> tuple[Talk[T], Trip]:
        """The talk and its first trip. Whatever is said here takes effect when the caller commits."""
        talk = _uncommitted(self._opening(talk))
        return talk, next(talk)

    def _check_transaction(self) -> None:
        idle = self._connection.pgconn.transaction_status == TransactionStatus.IDLE
        if idle and self._connection.autocommit:
            raise UsageError(
                "no transaction is open on this connection: begin one, as with connection.transaction()"
            )


def _uncommitted(talk: Talk[T]) -> Talk[T]:
    """The same talk, of which nothing has taken effect if the connection is lost."""
    trip = next(talk)
    while True:
        answers = yield Trip(trip.statements, commits=False)
        try:
            trip = talk.send(answers)
        except StopIteration as end:
            value: T = end.value
            return value
