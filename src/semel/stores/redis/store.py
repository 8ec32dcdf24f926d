"""The store in Redis."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.clock import Clock
from semel.commands import Found, Stored, Time, Watch
from semel.errors import StoreClosed
from semel.loops import PerLoop
from semel.stores.redis.address import Address, Node, parse
from semel.stores.redis.bell import Bell, Heard
from semel.stores.redis.lines import AsyncLines, Lines, aconverse, converse
from semel.stores.redis.talk import Talk
from semel.stores.shared import STORES, place_named, wake
from semel.stores.waiting import WaitingRoom

if TYPE_CHECKING:
    from semel.codecs import Overflow


class RedisStore:
    """Items in Redis, or Valkey, for whoever can reach it."""

    def __init__(
        self,
        address: Address | str,
        *,
        env: str = "dev",
        clock: Clock | None = None,
        overflow: "Overflow | None" = None,
    ) -> None:
        self.overflow = overflow
        self._address = parse(address) if isinstance(address, str) else address
        self._clock = clock or Clock()
        self._talk = Talk(self._address, env, self._clock)
        self._closed = False
        self._connect()
        STORES.add(self)

    def _connect(self) -> None:
        self._lines = Lines(self._address)
        self._per_loop = PerLoop(lambda: AsyncLines(self._address), AsyncLines.close, AsyncLines.drop)
        self._room = WaitingRoom(self._clock)
        self._bell = Bell(self._address, self._owner, self._room.ring)

    def __repr__(self) -> str:
        return f"<RedisStore {self._address.home}/{self._address.db}, prefix {self._address.prefix!r}>"

    @classmethod
    def from_url(cls, url: str, *, env: str, clock: Clock) -> "RedisStore":
        """`redis://:password@host:port/db`, or `rediss://` with TLS; nothing is sent yet."""
        return cls(parse(url), env=env, clock=clock)

    # The three ways to ask

    def execute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if type(command) is Watch:
            with self._watching(command) as heard:
                return self._room.watch(
                    place_named(command), command.seconds, lambda: self._look(command, heard)
                )
        reply = self._ask(command)
        wake(self._room, command, reply)  # others hear of it from the server
        return reply

    def at_once(self, command: Stored) -> Found | None:
        """What time it is, if that was heard lately: every other answer comes over a network."""
        return self._talk.time.tell() if type(command) is Time and not self._closed else None

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out and answer it."""
        if type(command) is Watch:
            with self._watching(command) as heard:
                look = partial(self._alook, command, heard)
                return await self._room.awatch(place_named(command), command.seconds, look)
        reply = await self._aask(command)
        wake(self._room, command, reply)  # others hear of it from the server
        return reply

    async def leave(self) -> None:
        """Let go of the running loop's connections."""
        await self._per_loop.leave()

    def close(self) -> None:
        """Let go of every connection."""
        self._closed = True
        self._bell.close()
        self._lines.close()
        self._per_loop.drop_all()
        STORES.discard(self)

    def _ask(self, command: Stored) -> Any:
        return converse(self._talk.perform(command), self._lines.exchange)

    async def _aask(self, command: Stored) -> Any:
        if self._closed:
            raise StoreClosed("the store was closed")
        return await aconverse(self._talk.perform(command), self._per_loop.here().exchange)

    # Waiting

    def _watching(self, command: Watch) -> AbstractContextManager[Heard]:
        """Listen for the item meanwhile; where time is imposed, waiting takes none of it."""
        place = place_named(command)
        if self._clock.imposed() is not None:
            return nullcontext(Heard(place))
        return self._bell.listening(self._talk.plan(command.table).keys(command)[0], place)

    def _look(self, command: Watch, heard: Heard) -> Any:
        heard.news = False
        return self._ask(command)

    async def _alook(self, command: Watch, heard: Heard) -> Any:
        heard.news = False
        return await self._aask(command)

    def _owner(self, channel: bytes) -> Node | None:
        """The server on which a channel is heard; None in a cluster that nobody has spoken to yet."""
        if not self._address.cluster:
            return self._address.home
        return self._talk.slots.owner(channel) if self._talk.slots else None

    def begin_anew(self) -> Any:
        """In a forked child: connections of its own."""
        inherited = self._lines, self._per_loop, self._bell
        self._connect()
        return inherited
