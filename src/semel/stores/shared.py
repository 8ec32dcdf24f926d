"""What stores have in common: values, places, what was written, and a fork."""

import os
import weakref
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

from semel.core.commands import Applied, Batch, Get, Sort, Transact, Watch, Write
from semel.stores.waiting import WaitingRoom
from semel.tables import Kind, Table

ItemId: TypeAlias = tuple[str, str, Sort]

PYTHON_TYPES: dict[Kind, tuple[type, ...]] = {
    Kind.TEXT: (str,),
    Kind.NUMBER: (int, float),
    Kind.BYTES: (bytes, bytearray, memoryview),
    Kind.FLAG: (bool,),
    Kind.OBJECT: (dict,),
    Kind.SET: (set, frozenset),
}


def place_named(command: Get | Watch | Write) -> ItemId:
    """What tells an item from every other one."""
    return command.table.name, command.key, command.sort


def tables_of(command: Any) -> Iterable[Table]:
    """The tables that a command is about."""
    if type(command) in (Transact, Batch):
        return {write.table.name: write.table for write in command.writes}.values()
    return (command.table,)


def made(command: Any, reply: Any) -> Iterable[Write]:
    """The writes of a command that were made."""
    if type(command) is Batch:
        pairs = zip(command.writes, reply.replies, strict=True)
        return [write for write, each in pairs if type(each) is Applied]
    if type(reply) is not Applied:
        return ()
    written: Iterable[Write] = command.writes if type(command) is Transact else (command,)
    return written


def wake(room: WaitingRoom, command: Any, reply: Any) -> None:
    """Wake whoever waits in this process for what was written."""
    for write in made(command, reply):
        room.ring(place_named(write))


class Forking(Protocol):
    """A store with connections, which are its process's own."""

    def begin_anew(self) -> Any:
        """In a forked child: have nothing of the parent's; what it had is given back, to be kept."""
        ...


STORES: "weakref.WeakSet[Forking]" = weakref.WeakSet()

# What a child inherits is its parent's: to close it would speak on connections, or change selectors, that the
# parent still uses. So it is kept, and never touched.
INHERITED: list[Any] = []


def _after_fork_in_child() -> None:
    INHERITED.extend([store.begin_anew() for store in list(STORES)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
