"""A store that fails on demand."""

from collections import deque
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from semel.core.commands import Add, Batch, Delete, Put, Stored, Transact, Update
from semel.core.drive import Store, leave
from semel.errors import StoreOutcomeUnknown, StoreUnavailable

if TYPE_CHECKING:
    from semel.core.codecs import Overflow

WRITES = (Put, Update, Add, Delete, Transact, Batch)

Fault: TypeAlias = Literal["lose reply", "lose request", "refuse"]


class Faulty:
    """A store around another one, which fails on demand as networks do.

        store = Faulty(MemoryStore())
        store.lose_reply()  # the next write is made, and nobody is told

    `seen` has every command that came, in order, those that were not carried out included.
    """

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.seen: list[Stored] = []
        self._faults: deque[Fault] = deque()

    @property
    def overflow(self) -> "Overflow | None":
        """The inner store's."""
        return self.inner.overflow

    @overflow.setter
    def overflow(self, overflow: "Overflow | None") -> None:
        self.inner.overflow = overflow

    def lose_reply(self, times: int = 1) -> None:
        """Make the next writes and raise `StoreOutcomeUnknown`."""
        self._faults.extend(["lose reply"] * times)

    def lose_request(self, times: int = 1) -> None:
        """Raise `StoreOutcomeUnknown` for the next writes, and make none of them."""
        self._faults.extend(["lose request"] * times)

    def refuse(self, times: int = 1) -> None:
        """Raise `StoreUnavailable` for the next writes, and make none of them."""
        self._faults.extend(["refuse"] * times)

    def recover(self) -> None:
        """Misbehave no more."""
        self._faults.clear()

    def execute(self, command: Stored) -> Any:
        """Carry the command out, unless a fault comes before or after."""
        fault = self._begin(command)
        reply = self.inner.execute(command)
        return self._end(fault, reply)

    def at_once(self, command: Stored) -> Any | None:
        """Nothing, where a fault may come; else what the inner store says."""
        if self._faults:
            return None
        reply = self.inner.at_once(command)
        if reply is not None:
            self.seen.append(command)
        return reply

    async def aexecute(self, command: Stored) -> Any:
        """Carry the command out, unless a fault comes before or after."""
        fault = self._begin(command)
        reply = await self.inner.aexecute(command)
        return self._end(fault, reply)

    async def leave(self) -> None:
        """The inner store's."""
        await leave(self.inner)

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def _begin(self, command: Stored) -> Fault | None:
        self.seen.append(command)
        if not self._faults or not isinstance(command, WRITES):
            return None
        fault = self._faults.popleft()
        if fault == "refuse":
            raise StoreUnavailable("the store cannot be reached (a planned fault)")
        if fault == "lose request":
            raise StoreOutcomeUnknown("the connection broke (a planned fault)")
        return fault

    def _end(self, fault: Fault | None, reply: Any) -> Any:
        if fault == "lose reply":
            raise StoreOutcomeUnknown("the connection broke (a planned fault)")
        return reply
