"""The servers: which one has a key, what is sent to it, and what is done where another one has it by now.

These are generators, which do no I/O themselves: each yields an `Exchange` and is sent the answers to it;
sync and async carry the same ones out (see `lines`).
"""

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from redis.exceptions import AskError, MovedError, NoScriptError, ResponseError

from semel.errors import SemelError, StoreOutcomeUnknown, StoreUnavailable
from semel.stores.redis.address import Address, Node
from semel.stores.redis.asks import Ask, Exchange, packed
from semel.stores.redis.faults import refusal
from semel.stores.redis.slots import Slots

T = TypeVar("T")

# A slot moves seldom, and never so often within one command.
REDIRECTIONS = 5


Dialogue: TypeAlias = Generator[Exchange, list[Any], T]


class Servers:
    """What is known of the servers, and how they are asked."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.slots: Slots | None = None
        wait = (b"WAIT", b"%d" % address.wait_replicas, b"%d" % (address.wait_seconds * 1000))
        self._wait = packed(wait) if address.wait_replicas else b""

    def one(self, ask: Ask, writes: bool = False) -> Dialogue[Any]:
        """The answer to one, by the shortest way, as nearly all that is asked goes this one."""
        if not self.address.cluster and not (writes and self._wait):
            [reply] = yield Exchange(self.address.home, ask.packed(), 1, writes)
            if not isinstance(reply, ResponseError):
                return reply
            if type(reply) is not NoScriptError:
                raise refusal(reply, self.address.home, writes=writes)
        [reply] = yield from self.send([ask], writes)
        return reply

    def send(self, asks: Sequence[Ask], writes: bool = False) -> Dialogue[list[Any]]:
        """The answers to these, from whichever servers; what a server refuses is raised."""
        if not self.address.cluster:
            return (yield from self.on(self.address.home, asks, writes))
        answers: list[Any] = [None] * len(asks)
        waiting = list(range(len(asks)))
        try:
            for _ in range(REDIRECTIONS):
                waiting = yield from self._round(asks, writes, waiting, answers)
                if not waiting:
                    return _granted(answers, self.address.home, writes)
        except StoreUnavailable as error:
            raise _partly(error, answers) if writes else error from error
        raise StoreUnavailable(f"the cluster at {self.address.home} sent its caller from node to node")

    def on(self, node: Node, asks: Sequence[Ask], writes: bool = False) -> Dialogue[list[Any]]:
        """The answers of one server."""
        return _granted((yield from self._exchange(node, asks, writes)), node, writes)

    def _exchange(self, node: Node, asks: Sequence[Ask], writes: bool) -> Dialogue[list[Any]]:
        """Ask, and ask again with the scripts themselves where a server does not know them."""
        replies = yield from self._ask(node, [ask.packed() for ask in asks], writes)
        unknown = [place for place, reply in enumerate(replies) if type(reply) is NoScriptError]
        if not unknown:
            return replies
        taught: set[Any] = set()
        again = []
        for place in unknown:
            again.append(asks[place].packed(taught=asks[place].script in taught))
            taught.add(asks[place].script)
        for place, reply in zip(unknown, (yield from self._ask(node, again, writes)), strict=True):
            replies[place] = reply
        return replies

    def _ask(self, node: Node, commands: list[bytes], writes: bool) -> Dialogue[list[Any]]:
        if not commands:
            # From Python 3.12 on, asyncio goes on for ever trying to send nothing, and cannot close.
            return []
        if not (writes and self._wait):
            return (yield Exchange(node, b"".join(commands), len(commands), writes))
        *replies, replicas = yield Exchange(
            node, b"".join([*commands, self._wait]), len(commands) + 1, writes
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
        self, asks: Sequence[Ask], writes: bool, waiting: list[int], answers: list[Any]
    ) -> Dialogue[list[int]]:
        """Ask the nodes that should know; which asks have to go elsewhere."""
        slots = self.slots or (yield from self.refresh())
        groups: dict[Node, list[int]] = {}
        for place in waiting:
            groups.setdefault(self._owner(slots, asks[place]), []).append(place)
        elsewhere: list[int] = []
        for node, group in groups.items():
            try:
                replies = yield from self._exchange(node, [asks[place] for place in group], writes)
            except StoreUnavailable:
                # It was not reached, so it was sent nothing; another one may have its slots by now.
                if (yield from self.refresh()).owner(asks[group[0]].key) in (node, None):
                    raise
                elsewhere += group
                continue
            for place, reply in zip(group, replies, strict=True):
                answers[place] = yield from self._followed(asks[place], reply, node, writes)
                if answers[place] is None:
                    elsewhere.append(place)
        return elsewhere

    def _owner(self, slots: Slots, ask: Ask) -> Node:
        node = slots.owner(ask.key)
        if node is None:
            self.slots = None  # it may be told better next time
            raise StoreUnavailable(f"no node of the cluster at {self.address.home} has the slot of a key")
        return node

    def _followed(self, ask: Ask, reply: Any, node: Node, writes: bool) -> Dialogue[Any]:
        """The answer, or None where another node has the slot now."""
        if not isinstance(reply, AskError):
            return reply
        # An empty host is the one that answered.
        other = Node(reply.host or node.host, reply.port)
        if isinstance(reply, MovedError):
            if self.slots is not None:
                self.slots.move(reply.slot_id, other)
            return None
        _, reply = yield from self._ask(other, [packed((b"ASKING",)), ask.packed(taught=False)], writes)
        return reply

    def refresh(self) -> Dialogue[Slots]:
        """Ask any node of the cluster who has which slots."""
        known = self.slots.nodes if self.slots else []
        for node in dict.fromkeys([*known, self.address.home]):
            try:
                [reply] = yield from self.on(node, [Ask(b"", (b"CLUSTER", b"SLOTS"))])
            except StoreUnavailable as error:
                last = error
            else:
                self.slots = Slots.told(reply, node)
                return self.slots
        raise last

    def nodes(self) -> Dialogue[list[Node]]:
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
