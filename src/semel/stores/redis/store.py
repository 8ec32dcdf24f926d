"""The store in Redis."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.core.clock import Clock
from semel.core.commands import Found, Stored, Time, Watch
from semel.core.connections import PerLoop
from semel.core.drive import run_async, run_sync
from semel.core.runtime import FORKING
from semel.errors import StoreClosed
from semel.model import ScanCost, TableSize
from semel.stores.redis.address import Node, RedisAddress, parse
from semel.stores.redis.interpreter import Interpreter
from semel.stores.redis.listener import RedisListener, Subscription
from semel.stores.redis.pool import AsyncRedisPool, RedisPool
from semel.stores.shared import place_named, wake
from semel.stores.waiting import KeyWatchers
from semel.tables import Table

if TYPE_CHECKING:
    from semel.core.codecs import Overflow


class RedisStore:
    """Items in Redis, or Valkey, for whoever can reach it."""

    def __init__(
        self,
        address: RedisAddress | str,
        *,
        env: str = "dev",
        clock: Clock | None = None,
        overflow: "Overflow | None" = None,
    ) -> None:
        self.overflow = overflow
        self._address = parse(address) if isinstance(address, str) else address
        self._clock = clock or Clock()
        self._interpreter = Interpreter(self._address, env, self._clock)
        self._closed = False
        self._connect()
        FORKING.add(self)

    def _connect(self) -> None:
        self._pool = RedisPool(self._address)
        self._per_loop = PerLoop(
            lambda: AsyncRedisPool(self._address), AsyncRedisPool.close, AsyncRedisPool.drop
        )
        self._watchers = KeyWatchers(self._clock)
        self._listener = RedisListener(self._address, self._owner, self._watchers.notify)

    def __repr__(self) -> str:
        return f"<RedisStore {self._address.home}/{self._address.db}, prefix {self._address.prefix!r}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "RedisStore":
        """`redis://:password@host:port/db`, or `rediss://` with TLS; nothing is sent yet."""
        return cls(parse(url), env=env, clock=clock)

    # Carrying out

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if type(command) is Watch:
            with self._subscribed(command) as subscription:
                return self._watchers.watch(
                    place_named(command), command.seconds, lambda: self._look(command, subscription)
                )
        if type(command) is Time and (known := self.at_once(command)) is not None:
            return known
        reply = self._perform(command)
        wake(self._watchers, command, reply)  # others are notified by the server
        return reply

    def at_once(self, command: Stored) -> Found | None:
        """What time it is, if a reply told it lately: every other answer comes over a network."""
        return self._interpreter.time.known() if type(command) is Time and not self._closed else None

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if type(command) is Watch:
            with self._subscribed(command) as subscription:
                look = partial(self._alook, command, subscription)
                return await self._watchers.awatch(place_named(command), command.seconds, look)
        reply = await self._aperform(command)
        wake(self._watchers, command, reply)  # others are notified by the server
        return reply

    def scan_cost(self, table: Table) -> ScanCost:
        """What it takes to read a whole table: SCAN goes over all keys of the server."""
        return run_sync(self._interpreter.scan_cost(), self._pool.exchange)

    def measure(self, tables: Sequence[Table]) -> list[TableSize]:
        """The size of the server: Redis counts no keys by what they begin with, and removes expired ones."""
        return [run_sync(self._interpreter.measure(), self._pool.exchange)] if tables else []

    async def leave(self) -> None:
        """Let go of the running loop's connections."""
        await self._per_loop.leave()

    def close(self) -> None:
        """Let go of every connection."""
        self._closed = True
        self._listener.close()
        self._pool.close()
        self._per_loop.drop_all()
        FORKING.discard(self)

    def _perform(self, command: Stored) -> Any:
        return run_sync(self._interpreter.perform(command), self._pool.exchange)

    async def _aperform(self, command: Stored) -> Any:
        if self._closed:
            raise StoreClosed("the store was closed")
        return await run_async(self._interpreter.perform(command), self._per_loop.here().exchange)

    # Waiting

    def _subscribed(self, command: Watch) -> AbstractContextManager[Subscription]:
        """Subscribe to the item's channel meanwhile; where time is imposed, waiting takes none of it."""
        place = place_named(command)
        if self._clock.imposed() is not None:
            return nullcontext(Subscription(place))
        return self._listener.subscribed(self._interpreter.plan(command.table).keys(command)[0], place)

    def _look(self, command: Watch, subscription: Subscription) -> Any:
        subscription.news = False
        return self._perform(command)

    async def _alook(self, command: Watch, subscription: Subscription) -> Any:
        subscription.news = False
        return await self._aperform(command)

    def _owner(self, channel: bytes) -> Node | None:
        """The server that has a channel; None in a cluster that nothing was sent to yet."""
        if not self._address.cluster:
            return self._address.home
        return self._interpreter.slots.owner(channel) if self._interpreter.slots else None

    def reset_after_fork(self) -> Any:
        """In a forked child: connections of its own."""
        inherited = self._pool, self._per_loop, self._listener
        self._connect()
        return inherited
