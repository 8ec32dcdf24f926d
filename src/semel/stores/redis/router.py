"""Commands, and the servers that have their keys: one, or the nodes of a cluster."""

import hashlib
from collections.abc import Generator, Sequence
from importlib import resources
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from redis.crc import key_slot

from semel.errors import SemelError, StoreOutcomeUnknown, StoreUnavailable
from semel.stores.redis.connection import RedisRequest, bulk, is_error, pack
from semel.stores.redis.server import ErrorReply, Node, RedisAddress, refusal

T = TypeVar("T")

# A slot moves seldom, and never so often within one command.
REDIRECTIONS = 5


class Script(NamedTuple):
    """A Lua script, which is run by its digest, and by its text if the server does not have it."""

    digest: bytes
    text: bytes
    form: bytes
    """The command that runs it with one key and two arguments: a form, since every claim is one."""

    def call(self, *words: bytes) -> bytes:
        """Build a command that runs the script with these words."""
        return pack((b"EVALSHA", self.digest, *words))

    def call_on(self, key: bytes, now: bytes, argument: bytes) -> bytes:
        """Build the command that runs the script on one key."""
        return self.form % (len(key), key, len(now), now, len(argument), argument)


def load(name: str) -> Script:
    """Read a script from its file."""
    text = resources.files(__package__).joinpath(name).read_bytes()
    # Redis identifies scripts by SHA-1; no secret depends on it.
    digest = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
    form = b"*6\r\n" + bulk((b"EVALSHA", digest, b"1")) + b"$%d\r\n%b\r\n" * 3
    return Script(digest, text, form)


WRITE, PAGE = SCRIPTS = load("write.lua"), load("page.lua")


class RedisCommand(msgspec.Struct, frozen=True, gc=False):
    """A command as bytes, and the key that selects the server."""

    key: bytes
    data: bytes

    def with_text(self) -> bytes:
        """The command with the text of its script in place of the digest."""
        data = self.data
        for script in SCRIPTS:
            data = data.replace(bulk((b"EVALSHA", script.digest)), bulk((b"EVAL", script.text)), 1)
        return data


def redis_command(*words: bytes) -> RedisCommand:
    """Build a command that runs no script, whose first argument is its key."""
    return RedisCommand(words[1] if len(words) > 1 else b"", pack(words))


Requests: TypeAlias = Generator[RedisRequest, list[Any], T]


class Router:
    """Sends commands to the servers that have their keys.

    Its methods are generators, which do no I/O: each yields a `RedisRequest` and receives its replies.
    """

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self.slots: dict[int, Node] = {}
        """Which node has a slot of the cluster, as a node replied, and what redirections changed since."""
        wait = (b"WAIT", b"%d" % address.wait_replicas, b"%d" % (address.wait_timeout * 1000))
        self._wait = pack(wait) if address.wait_replicas else b""

    def send(self, commands: Sequence[RedisCommand], writes: bool = False) -> Requests[list[Any]]:
        """Return the replies to commands, from whichever servers; raise if a server refuses one."""
        if not self.address.cluster:
            return (yield from self.on(self.address.home, commands, writes))
        answers: list[Any] = [None] * len(commands)
        waiting: Sequence[int] = range(len(commands))
        try:
            for _ in range(REDIRECTIONS):
                yield from self._round(commands, writes, waiting, answers)
                waiting = [place for place in waiting if answers[place] is None]
                if not waiting:
                    return granted(answers, self.address.home, writes)
        except StoreUnavailable as error:
            raise _partly(error, answers) if writes else error from error
        raise StoreUnavailable(
            f"the cluster at {self.address.home} redirected a command {REDIRECTIONS} times"
        )

    def on(self, node: Node, commands: Sequence[RedisCommand], writes: bool = False) -> Requests[list[Any]]:
        """Return the replies of one server."""
        return granted((yield from self._exchange(node, commands, writes)), node, writes)

    def _exchange(self, node: Node, commands: Sequence[RedisCommand], writes: bool) -> Requests[list[Any]]:
        replies = yield from self._request(node, [command.data for command in commands], writes)
        if ErrorReply in map(type, replies):
            replies = yield from self.completed(node, commands, writes, replies)
        return replies

    def completed(
        self, node: Node, commands: Sequence[RedisCommand], writes: bool, replies: list[Any]
    ) -> Requests[list[Any]]:
        """Send those commands again whose scripts the server does not have, and return all replies."""
        unknown = [place for place, reply in enumerate(replies) if is_error(reply, "NOSCRIPT")]
        again = yield from self._request(node, [commands[place].with_text() for place in unknown], writes)
        for place, reply in zip(unknown, again, strict=True):
            replies[place] = reply
        return replies

    def _request(self, node: Node, encoded: list[bytes], writes: bool) -> Requests[list[Any]]:
        if not encoded:  # since Python 3.12 asyncio never finishes sending nothing
            return []
        if not (writes and self._wait):
            return (yield RedisRequest(node, b"".join(encoded), len(encoded), writes))
        data = b"".join([*encoded, self._wait])
        *replies, replicas = yield RedisRequest(node, data, len(encoded) + 1, writes)
        made = not all(map(is_error, replies))
        if made and (not isinstance(replicas, int) or replicas < self.address.wait_replicas):
            raise StoreOutcomeUnknown(
                f"{replicas} replicas of Redis at {node} confirmed it in {self.address.wait_timeout:g} s; "
                f"wait_replicas asks for {self.address.wait_replicas}: a failover may undo it"
            )
        return replies

    # A cluster

    def _round(
        self, commands: Sequence[RedisCommand], writes: bool, waiting: Sequence[int], answers: list[Any]
    ) -> Requests[None]:
        """Send commands to the nodes of their slots; those that another node has now get no answer."""
        if not self.slots:
            yield from self.refresh()
        for node, group in self._by_node(commands, waiting).items():
            try:
                replies = yield from self._exchange(node, [commands[place] for place in group], writes)
            except StoreUnavailable:
                # It received nothing, and another node may have its slots by now.
                yield from self.refresh()
                if self.owner(commands[group[0]].key) in (node, None):
                    raise
                continue
            for place, reply in zip(group, replies, strict=True):
                answers[place] = yield from self._followed(commands[place], reply, node, writes)

    def _by_node(self, commands: Sequence[RedisCommand], waiting: Sequence[int]) -> dict[Node, list[int]]:
        groups: dict[Node, list[int]] = {}
        for place in waiting:
            node = self.owner(commands[place].key)
            if node is None:
                self.slots = {}  # the next command asks for them again
                raise StoreUnavailable(f"no node of the cluster at {self.address.home} has the slot of a key")
            groups.setdefault(node, []).append(place)
        return groups

    def owner(self, key: bytes) -> Node | None:
        """The node that has a key; None if it is not known."""
        return self.slots.get(key_slot(key)) if self.address.cluster else self.address.home

    def _followed(self, command: RedisCommand, reply: Any, node: Node, writes: bool) -> Requests[Any]:
        """Return the reply, or None if another node has the slot now."""
        if not is_error(reply, "MOVED", "ASK"):
            return reply
        word, slot, place = reply.split()[:3]
        host, _, port = place.rpartition(":")
        other = Node(host or node.host, int(port))
        if word == "MOVED":
            self.slots[int(slot)] = other
            return None
        _, reply = yield from self._request(other, [pack((b"ASKING",)), command.with_text()], writes)
        return reply

    def refresh(self) -> Requests[None]:
        """Ask any node of the cluster which node has which slots."""
        for node in dict.fromkeys([*self.slots.values(), self.address.home]):
            try:
                [ranges] = yield from self.on(node, [redis_command(b"CLUSTER", b"SLOTS")])
            except StoreUnavailable as error:
                last = error
                continue
            self.slots = {
                # A node without a name is the one that replied.
                slot: Node((host or b"").decode() or node.host, port)
                for start, end, (host, port, *_), *_ in ranges
                for slot in range(start, end + 1)
            }
            return
        raise last

    def nodes(self) -> Requests[list[Node]]:
        """Return every server that has items, always in the same order."""
        if not self.address.cluster:
            return [self.address.home]
        if not self.slots:
            yield from self.refresh()
        return sorted(set(self.slots.values()), key=str)


def granted(replies: list[Any], node: Node, writes: bool) -> list[Any]:
    """Return the replies, if no server refused a command; it may have been one of several."""
    for reply in filter(is_error, replies):
        raised = refusal(reply, node, writes=writes)
        raise _partly(raised, replies) if writes else raised
    return replies


def _partly(error: SemelError, answers: list[Any]) -> SemelError:
    """Return the error to raise after several writes, of which some may have been made."""
    made = any(answer is not None and not is_error(answer) for answer in answers)
    return StoreOutcomeUnknown(f"part of it was written before this: {error}") if made else error
