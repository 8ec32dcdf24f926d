"""Which server has a key, what is sent to it, and what is done where another one has it by now.

These are generators, which do no I/O themselves: each yields a `RedisRequest` and is sent its replies. Sync
and async run the same ones (see `pool`).
"""

from bisect import bisect_right
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, NoScriptError, ResponseError

from semel.errors import SemelError, StoreOutcomeUnknown, StoreUnavailable
from semel.stores.redis.address import Node, RedisAddress
from semel.stores.redis.errors import refusal
from semel.stores.redis.protocol import RedisCommand, RedisRequest, pack

__all__ = ["Requests", "Router", "SlotMap", "key_slot"]

T = TypeVar("T")

# A slot moves seldom, and never so often within one command.
REDIRECTIONS = 5


Requests: TypeAlias = Generator[RedisRequest, list[Any], T]


class SlotMap:
    """Which node has which slots, as one of them replied, and what was learned since."""

    def __init__(self, ranges: list[tuple[int, int, Node]]) -> None:
        self._ranges = sorted(ranges, key=lambda each: each[0])
        self._starts = [start for start, _, _ in self._ranges]
        self._moved: dict[int, Node] = {}

    @classmethod
    def from_reply(cls, reply: list[Any], by: Node) -> "SlotMap":
        """Read a reply to CLUSTER SLOTS; a node without a name is the one that was asked."""
        ranges = []
        for start, end, (host, port, *_), *_replicas in reply:
            ranges.append((start, end, Node((host or b"").decode() or by.host, port)))
        return cls(ranges)

    def owner(self, key: bytes) -> Node | None:
        """The node that has a key; None where nobody does."""
        slot = key_slot(key)
        if slot in self._moved:
            return self._moved[slot]
        place = bisect_right(self._starts, slot) - 1
        if place < 0:
            return None
        _, end, node = self._ranges[place]
        return node if slot <= end else None

    def move(self, slot: int, node: Node) -> None:
        """Note that another node has this slot now."""
        self._moved[slot] = node

    @property
    def nodes(self) -> list[Node]:
        """Every node that has slots, in one order."""
        return sorted({node for _, _, node in self._ranges} | set(self._moved.values()), key=str)


class Router:
    """Sends commands to the servers that have their keys."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self.slots: SlotMap | None = None
        wait = (b"WAIT", b"%d" % address.wait_replicas, b"%d" % (address.wait_seconds * 1000))
        self._wait = pack(wait) if address.wait_replicas else b""

    def one(self, command: RedisCommand, writes: bool = False) -> Requests[Any]:
        """The reply to one command, by the shortest way, as nearly all go alone."""
        if not self.address.cluster and not (writes and self._wait):
            [reply] = yield RedisRequest(self.address.home, command.encode(), 1, writes)
            if not isinstance(reply, ResponseError):
                return reply
            if type(reply) is not NoScriptError:
                raise refusal(reply, self.address.home, writes=writes)
        [reply] = yield from self.send([command], writes)
        return reply

    def send(self, commands: Sequence[RedisCommand], writes: bool = False) -> Requests[list[Any]]:
        """The replies to these, from whichever servers; what a server refuses is raised."""
        if not self.address.cluster:
            return (yield from self.on(self.address.home, commands, writes))
        answers: list[Any] = [None] * len(commands)
        waiting = list(range(len(commands)))
        try:
            for _ in range(REDIRECTIONS):
                waiting = yield from self._round(commands, writes, waiting, answers)
                if not waiting:
                    return _granted(answers, self.address.home, writes)
        except StoreUnavailable as error:
            raise _partly(error, answers) if writes else error from error
        raise StoreUnavailable(f"the cluster at {self.address.home} sent its caller from node to node")

    def on(self, node: Node, commands: Sequence[RedisCommand], writes: bool = False) -> Requests[list[Any]]:
        """The replies of one server."""
        return _granted((yield from self._exchange(node, commands, writes)), node, writes)

    def _exchange(self, node: Node, commands: Sequence[RedisCommand], writes: bool) -> Requests[list[Any]]:
        """Send, and send once more with the scripts themselves where a server does not know them."""
        replies = yield from self._request(node, [command.encode() for command in commands], writes)
        unknown = [place for place, reply in enumerate(replies) if type(reply) is NoScriptError]
        if not unknown:
            return replies
        known: set[Any] = set()
        again = []
        for place in unknown:
            again.append(commands[place].encode(script_known=commands[place].script in known))
            known.add(commands[place].script)
        for place, reply in zip(unknown, (yield from self._request(node, again, writes)), strict=True):
            replies[place] = reply
        return replies

    def _request(self, node: Node, encoded: list[bytes], writes: bool) -> Requests[list[Any]]:
        if not encoded:
            # From Python 3.12 on, asyncio goes on for ever trying to send nothing, and cannot close.
            return []
        if not (writes and self._wait):
            return (yield RedisRequest(node, b"".join(encoded), len(encoded), writes))
        *replies, replicas = yield RedisRequest(
            node, b"".join([*encoded, self._wait]), len(encoded) + 1, writes
        )
        made = not all(isinstance(reply, ResponseError) for reply in replies)
        if made and (not isinstance(replicas, int) or replicas < self.address.wait_replicas):
            raise StoreOutcomeUnknown(
                f"{replicas} replicas of Redis at {node} confirmed it in {self.address.wait_seconds:g} s; "
                f"wait_replicas asks for {self.address.wait_replicas}: a failover may undo it"
            )
        return replies

    # A cluster

    def _round(
        self, commands: Sequence[RedisCommand], writes: bool, waiting: list[int], answers: list[Any]
    ) -> Requests[list[int]]:
        """Send what waits to the nodes that should have it; which commands have to go elsewhere."""
        slots = self.slots or (yield from self.refresh())
        groups: dict[Node, list[int]] = {}
        for place in waiting:
            groups.setdefault(self._owner(slots, commands[place]), []).append(place)
        elsewhere: list[int] = []
        for node, group in groups.items():
            try:
                replies = yield from self._exchange(node, [commands[place] for place in group], writes)
            except StoreUnavailable:
                # It was not reached, so it was sent nothing; another one may have its slots by now.
                if (yield from self.refresh()).owner(commands[group[0]].key) in (node, None):
                    raise
                elsewhere += group
                continue
            for place, reply in zip(group, replies, strict=True):
                answers[place] = yield from self._followed(commands[place], reply, node, writes)
                if answers[place] is None:
                    elsewhere.append(place)
        return elsewhere

    def _owner(self, slots: SlotMap, command: RedisCommand) -> Node:
        node = slots.owner(command.key)
        if node is None:
            self.slots = None  # the next command asks for them anew
            raise StoreUnavailable(f"no node of the cluster at {self.address.home} has the slot of a key")
        return node

    def _followed(self, command: RedisCommand, reply: Any, node: Node, writes: bool) -> Requests[Any]:
        """The reply, or None where another node has the slot now."""
        if not isinstance(reply, AskError):
            return reply
        # An empty host is the one that answered.
        other = Node(reply.host or node.host, reply.port)
        if isinstance(reply, MovedError):
            if self.slots is not None:
                self.slots.move(reply.slot_id, other)
            return None
        _, reply = yield from self._request(
            other, [pack((b"ASKING",)), command.encode(script_known=False)], writes
        )
        return reply

    def refresh(self) -> Requests[SlotMap]:
        """Ask any node of the cluster which one has which slots."""
        known = self.slots.nodes if self.slots else []
        for node in dict.fromkeys([*known, self.address.home]):
            try:
                [reply] = yield from self.on(node, [RedisCommand(b"", (b"CLUSTER", b"SLOTS"))])
            except StoreUnavailable as error:
                last = error
            else:
                self.slots = SlotMap.from_reply(reply, node)
                return self.slots
        raise last

    def nodes(self) -> Requests[list[Node]]:
        """Every server that has items."""
        if not self.address.cluster:
            return [self.address.home]
        slots = self.slots or (yield from self.refresh())
        return slots.nodes


def _granted(replies: list[Any], node: Node, writes: bool) -> list[Any]:
    """The replies, if no server refused; one that did may have been one of several."""
    for reply in replies:
        if isinstance(reply, ResponseError):
            raised = refusal(reply, node, writes=writes)
            raise _partly(raised, replies) if writes else raised
    return replies


def _partly(error: SemelError, answers: list[Any]) -> SemelError:
    """What to raise for an error that stopped several writes, of which some may have been made."""
    made = any(answer is not None and not isinstance(answer, ResponseError) for answer in answers)
    return StoreOutcomeUnknown(f"part of it was made before this: {error}") if made else error
