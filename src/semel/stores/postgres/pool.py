"""Sessions with the server: one pool for threads, and one for the tasks of each event loop.

psycopg_pool is not used. It connects in threads of its own, so a caller would learn after a timeout that
there is no connection, and not why; after an outage it waits twice as long before each new try; and a
connection taken from it costs half as much as the statement. Here a caller that finds no idle session
connects.
"""

import asyncio
import random
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from semel.core.clock import Clock, FairSemaphore, SignalSafeEvent, Waiter
from semel.core.running import RENEWING
from semel.errors import StoreClosed, StoreThrottled, StoreUnavailable
from semel.stores.postgres.address import DRIVER_ERRORS, PostgresAddress, broken, translated
from semel.stores.postgres.interpreter import ConditionFailed, RoundTrip, RoundTrips, TransactionConflict
from semel.stores.postgres.session import (
    IDLE,
    MISNAMED,
    NO_PIPELINE,
    AsyncSession,
    PostgresSession,
    SyncSession,
    Waits,
)

T = TypeVar("T")

# The longest pause after a conflict; at random, so that the two do not meet again.
PAUSE_SECONDS = 0.05


class ConnectionGroup:
    """The connections of callers, or those of renewals: how many may be in use, and which are idle."""

    def __init__(self, address: PostgresAddress, places: Any) -> None:
        self.address = address
        self.places = places
        self.idle: deque[PostgresSession] = deque()


class PostgresPool:
    """The sessions of threads. Those for renewals of leases wait for no caller.

    Threads that take and return sessions at the same moment, and a signal between any two lines, find it
    consistent: one operation of a deque takes or returns a session.
    """

    session_type: type[PostgresSession] = SyncSession
    semaphore: Callable[[int], Any] = FairSemaphore

    def __init__(self, address: PostgresAddress, clock: Clock) -> None:
        self.closed: bool = False
        self.callers: ConnectionGroup = self._group(address)
        self.renewals: ConnectionGroup = self._group(address.for_renewals())
        self._clock = clock
        # If a signal takes a session from its thread, the session is closed because nothing refers to it.
        self._open: weakref.WeakValueDictionary[int, PostgresSession] = weakref.WeakValueDictionary()

    def _group(self, address: PostgresAddress) -> ConnectionGroup:
        return ConnectionGroup(address, self.semaphore(address.pool_size))

    def run(self, waiter: Waiter | None, steps: RoundTrips[T], round_trip: RoundTrip) -> Waits[T]:
        """Make round trips on one session, beginning with this one.

        One that only reads is made once more, on another connection, if its connection is found broken.
        """
        group, session = yield from self.take(waiter)
        readable_again = True
        try:
            while True:
                try:
                    rows = yield from session.execute(round_trip.statements)
                    round_trip = steps.send(rows)
                except StopIteration as end:
                    value: T = end.value
                    return value
                except DRIVER_ERRORS as error:
                    if isinstance(error, MISNAMED) and session.forget_names():
                        continue
                    if readable_again and not round_trip.commits and broken(error):
                        session.drop()
                        session, readable_again = (yield from self._opened(group)), False
                        continue
                    failure = translated(error, group.address, round_trip)
                    if not isinstance(failure, TransactionConflict | ConditionFailed):
                        raise failure from error
                    if type(failure) is TransactionConflict:
                        yield self._pause(random.uniform(0, PAUSE_SECONDS))
                    round_trip = steps.throw(failure)
        finally:
            self.give(group, session, waiter)

    def take(self, waiter: Waiter | None) -> Waits[tuple[ConnectionGroup, PostgresSession]]:
        """Return a session that is the caller's until `give`, and its group.

        A renewal has connections of its own, unless the server gives no more.
        """
        group = self.renewals if RENEWING.get() else self.callers
        while True:
            acquired = self._acquire(group, waiter)
            if not (acquired is True or (yield acquired)):
                address = group.address
                raise StoreThrottled(
                    f"all {address.pool_size} connections to PostgreSQL at {address.place} were in use for "
                    f"{address.timeout:g} s: raise pool_size in the URL"
                )
            try:
                return group, self.pop(group) or (yield from self._opened(group))
            except BaseException as error:
                self._release(group, waiter)
                crowded = isinstance(error, StoreUnavailable) and group is self.renewals
                if not (crowded and self.callers.idle):
                    raise
            group = self.callers

    def pop(self, group: ConnectionGroup) -> PostgresSession | None:
        """Take an idle session that works, if there is one."""
        while not self.closed:
            try:
                session = group.idle.pop()
            except IndexError:  # there is none, or another thread took it
                return None
            if session.usable():
                return session
            session.drop()
        return None

    def _opened(self, group: ConnectionGroup) -> Waits[PostgresSession]:
        if self.closed:
            raise StoreClosed("the store was closed")
        session = yield from self.session_type.open(group.address)
        self._open[id(session)] = session
        return session

    def give(self, group: ConnectionGroup, session: PostgresSession, waiter: Waiter | None) -> None:
        """Return a session. One that is not idle is closed, and the server undoes what it began."""
        pgconn = session.pgconn
        # libpq also calls idle what has entered a pipeline, and has sent nothing.
        if pgconn.transaction_status == IDLE and pgconn.pipeline_status == NO_PIPELINE:
            group.idle.append(session)
        else:
            session.drop()
        if self.closed:  # perhaps by another thread, which looked before the session was back
            self.close()
        self._release(group, waiter)

    def close(self) -> None:
        """Close idle sessions; the others are closed when they are returned."""
        self.closed = True
        for group in (self.callers, self.renewals):
            while group.idle:
                try:
                    group.idle.pop().drop()
                except IndexError:  # another thread took the last
                    break

    def drop_all(self) -> None:
        """Close every session, whatever it is doing."""
        self.close()
        for reference in self._open.valuerefs():
            if (session := reference()) is not None:
                session.drop()

    # What waits

    def _acquire(self, group: ConnectionGroup, waiter: Waiter | None) -> Any:
        return group.places.acquire(waiter, group.address.timeout)

    def _release(self, group: ConnectionGroup, waiter: Waiter | None) -> None:
        group.places.release(waiter)

    def _pause(self, seconds: float) -> Any:
        self._clock.wait(SignalSafeEvent(), seconds)


class AsyncPostgresPool(PostgresPool):
    """The sessions of the tasks of one event loop."""

    session_type: type[PostgresSession] = AsyncSession
    semaphore: Callable[[int], Any] = asyncio.Semaphore

    async def leave(self) -> None:
        """Close every session."""
        self.drop_all()

    async def _acquire(self, group: ConnectionGroup, _waiter: Waiter | None) -> bool:
        places: asyncio.Semaphore = group.places
        if not places.locked():
            return await places.acquire()
        try:
            async with asyncio.timeout(group.address.timeout):
                return await places.acquire()
        except TimeoutError:
            return False

    def _release(self, group: ConnectionGroup, _waiter: Waiter | None) -> None:
        group.places.release()

    def _pause(self, seconds: float) -> Any:
        return self._clock.wait_async(asyncio.Event(), seconds)
