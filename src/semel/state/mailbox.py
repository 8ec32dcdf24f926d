"""Messages that were accepted and wait to be handled: lanes, retries and dead letters.

A group has a lane, in which its messages stand in the order of their ids, which are made from the store's
time; a message without a group has a lane of its own, which it shares with its duplicates. One worker at a
time is in the lane of a group. That each message is handled once is the ledger's business, under a key made
of the mailbox's name and the message's key; removing one twice is no error.

Lanes are spread over shards, as `shards` says: each shard is a partition of the store.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any

import msgspec

from semel import errors
from semel.core.codecs import Body, decoder_for
from semel.core.commands import (
    ABSENT,
    NOW,
    After,
    Applied,
    Cancelled,
    Delete,
    Found,
    Get,
    Item,
    Page,
    Put,
    Query,
    Refused,
    Steps,
    Transact,
    Update,
    Write,
    cursor,
    place_of,
    read,
    resend,
    write,
    write_each,
)
from semel.core.keys import check, message_key
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.policy import DAY, Seconds, seconds
from semel.core.realm import Realm, SubjectHash
from semel.state.journal import ULIDS
from semel.state.shards import ALONE, BEYOND, DEAD, GROUP, Shards, ShardSteps
from semel.tables import INBOX

# As long as SQS keeps a message at most: a sender that has not retried by then does not retry.
TTL = 14 * DAY

# What is read in one request.
PAGE = 100

# What is counted at most, and in one request: that takes a fraction of a second.
COUNTED = 10_000
COUNTED_PAGE = 1000

# Enough to tell a person why, and no place for data.
MAX_ERROR_TEXT = 1000

DEAD_BOUNDS = (f"{DEAD}.", f"{DEAD}{BEYOND}")
# After all digits of a lane.
BEYOND_DIGITS = "g"
# Enough of a hash that two groups never share a lane; if they did, they would only wait for each other.
DIGITS = 20

_anything = decoder_for(Any)
_entry = itemgetter("entry")


class Message(msgspec.Struct, frozen=True):
    """Something to be handled once, under its key, and after those before it in its group."""

    key: str
    body: Any
    """What it says, in the types that JSON has."""
    group: str | None = None
    """Messages of one group are handled in their order, one at a time; those of none in any."""
    attempt: int = 1
    """The number of this delivery, for the handler."""
    subject: str | None = None
    """The person that it is about. It is stored as a keyed hash, which the handler gets and may pass on."""

    @property
    def lane(self) -> str:
        """Where it waits."""
        return lane_of(self.key, self.group)


class Letter(msgspec.Struct, frozen=True):
    """A message as it waits, or as a dead letter, with its body as it is stored."""

    id: str
    lane: str
    key: str
    group: str | None
    attempts: int
    not_before: float
    """It failed, and is not tried again before this moment."""
    at: float
    """When it was accepted, or dead-lettered."""
    error: str
    body: Body
    subject: str | None = None
    """The keyed hash of the person that it is about."""
    partition: str = ""
    """The shard that it is in, as the store knows it."""

    @property
    def place(self) -> str:
        """Its place in the order of its shard."""
        return f"{self.lane}.{self.id}"


class Letters(msgspec.Struct, frozen=True):
    """A page of messages in their order, and where the next page begins; None on the last page."""

    letters: tuple[Letter, ...]
    now: float
    after: str | None


class Lane(msgspec.Struct, frozen=True):
    """A lane with waiting messages."""

    name: str
    wait: float
    """For how many seconds nothing can be begun in it."""
    entered: bool
    """A worker is in it; otherwise its first message is not tried again before."""


class Lanes(msgspec.Struct, frozen=True):
    """Some lanes of one shard, and where looking continues: behind them, or in the next shard."""

    lanes: tuple[Lane, ...]
    after: str
    ended: bool
    """Whether there are no more in this shard."""
    shards: int


class Survey(msgspec.Struct, frozen=True):
    """How much waits in an inbox, in numbers."""

    waiting: int
    oldest: float | None = None
    """When the oldest message was accepted."""
    lanes: int | None = None
    """The number of lanes with messages; None if the queue does not tell."""
    resting: int | None = None
    """Lanes whose first message has failed, and is tried again later."""
    entered: int | None = None
    """Groups that a worker is at work on."""
    more: bool = False
    """There are more messages than were counted."""


class Counted(msgspec.Struct, frozen=True):
    """How many messages were found from one place on; several of these make a whole count."""

    number: int
    oldest: float | None = None
    """When the oldest of them was accepted, or dead-lettered."""
    now: float = 0.0
    after: str | None = None
    """Where counting continues; None at the end."""


def checked(message: Message) -> Message:
    """A message with its key and its group as plain texts; `InvalidKey` if one cannot be that."""
    group = None if message.group is None else check(message.group)
    return Message(check(message.key), message.body, group, subject=message.subject)


def lane_of(key: str, group: str | None) -> str:
    """Where messages of a group wait, or those of one key that have none."""
    kind, name = (ALONE, key) if group is None else (GROUP, group)
    return kind + sha256(name.encode()).hexdigest()[:DIGITS]


def is_shared(lane: str) -> bool:
    """Whether it is a group's, whose messages must not be handled side by side."""
    return lane.startswith(GROUP)


class MailboxSteps:
    """The rules of one mailbox, as generators of commands."""

    def __init__(
        self,
        ledger: LedgerSteps,
        name: str,
        *,
        ttl: Seconds = TTL,
        shards: int = 1,
        shared: bool = False,
        latest: dict[str, float] | None = None,
    ) -> None:
        if ":" in check(name):
            raise errors.InvalidOption(f"an inbox is named by one word, not by {name!r}")
        self.ttl: float = seconds(ttl)
        self.realm: Realm = ledger.realm
        self._ledger, self._codec = ledger, ledger.codec
        self._name = self.realm.name(name)
        self._inbox = None if shared else name
        self._latest = {} if latest is None else latest
        self.shards: ShardSteps = ShardSteps(self.realm, self._name, shards)

    def record_key(self, key: str) -> str:
        """The key under which the ledger knows a message."""
        return check(key) if self._inbox is None else message_key(self._inbox, key)

    # Accepting

    def put(self, messages: Sequence[Message]) -> Steps[None]:
        """Accept messages: once this returns, they are stored."""
        items = [(message.lane, self._new(message)) for message in map(checked, messages)]
        shards, now = yield from self.shards.now()
        made = []
        for lane, item in items:
            with ULIDS.lock:  # the clock may have been set back since the last message
                item["at"] = at = self._latest[self._name] = max(now, self._latest.get(self._name, 0.0))
            put = Put(INBOX, self._home(shards, lane, at), item, sort=f"{lane}.{ULIDS.make(at)}")
            made.append((item["group"], put))
        for puts in _in_turn(made):
            yield from write(puts[0]) if len(puts) == 1 else write_each(puts)

    def _new(self, message: Message) -> Item:
        hashed = self.realm.subject_of(message.subject)
        return self._item(message.key, message.group, self.sealed(message), hashed)

    def _item(self, key: str, group: str | None, body: Body, hashed: str | None) -> Item:
        item: Item = {"key": key, "group": group, "body": body.data, "encoding": body.encoding, "attempts": 0}
        item["expires_at"] = After(self.ttl)
        # Erasing a subject completes the record of each message, and knows no inbox.
        return item if hashed is None else item | {"subject": hashed, "record": self.record_key(key)}

    def sealed(self, message: Message) -> Body:
        """The body of a message as it is stored: encrypted if the ledger encrypts."""
        self.record_key(message.key)  # which may be too long
        encoded = self._codec.encode(message.body, self._identity(message.key))
        if encoded.problem is not None:
            raise errors.MessageRefused(f"message {message.key!r} cannot be kept: {encoded.problem}")
        return encoded.body

    def unsealed(self, key: str, body: Body) -> Any:
        """What a message says; `MessageUnreadable` if that cannot be read."""
        try:
            return self._codec.decode(body, _anything, self._identity(key))
        except (errors.ResultUnreadable, errors.ResultNotKept) as error:
            raise errors.MessageUnreadable(
                f"message {key!r} cannot be read ({error.reason}): connect with the encryption that it was "
                "put in with, and redrive it"
            ) from error

    def _identity(self, key: str) -> str:
        return f"{self._name}:{key}"

    # Looking

    def look(self, start: str = "", limit: int = PAGE) -> Steps[Lanes]:
        """Lanes of a shard with waiting messages, from this place on; one page of messages is read."""
        shards, now = yield from self.shards.now()
        yield from self.shards.settle(shards, now)
        number, _, low = start.partition(":")
        shard = int(number or 0) % shards.number
        partition, wanted = self.shards.partition(shard), ("not_before", "expires_at")
        page: Page = yield Query(INBOX, partition, low=low or GROUP, limit=limit, only=wanted)
        lanes: dict[str, Lane] = {}
        for item in page.items:
            name, dot, _ = item["entry"].partition(".")
            if name not in lanes:
                until = item.get("not_before") if dot else item["expires_at"]
                lanes[name] = Lane(name, max(0.0, (until or 0.0) - page.now), entered=not dot)
        for name in lanes:
            if shard not in shards.homes(name):
                yield from self._move_to_shard(name, partition, self._home(shards, name, now))
        last = f"{shard}:{list(lanes)[-1]}{BEYOND}" if page.after is not None else f"{shard + 1}:"
        return Lanes(tuple(lanes.values()), last, page.after is None, shards.number)

    def _move_to_shard(self, lane: str, start: str, to: str) -> Steps[None]:
        """Move messages to the shard of their lane, which a process put elsewhere that knew no better."""
        page: Page = yield Query(INBOX, start, f"{lane}.", f"{lane}{BEYOND}")
        for item in page.items:
            kept = {name: value for name, value in item.items() if name not in INBOX.key}
            # For a moment there are two of it, which is no error.
            yield from write(Put(INBOX, to, kept, sort=item["entry"]))
            yield from write(Delete(INBOX, start, sort=item["entry"]))

    def letters(self, lane: str, limit: int = PAGE, after: str | None = None) -> Steps[Letters]:
        """The messages that wait in a lane, oldest first."""
        shards, _ = yield from self.shards.now()
        homes = self.shards.partitions(shards.homes(lane))
        return (yield from self._in_order(homes, (f"{lane}.", f"{lane}{BEYOND}"), limit, after))

    def _in_order(
        self, partitions: Sequence[str], bounds: tuple[str, str], limit: int, after: str | None
    ) -> Steps[Letters]:
        """Messages of several partitions by their places: a page of each is read."""
        pages: list[Page] = []
        for partition in partitions:
            begin = None if after is None else cursor(INBOX, {INBOX.partition: partition, "entry": after})
            pages.append((yield Query(INBOX, partition, *bounds, limit=limit, after=begin)))
        items = sorted([item for page in pages for item in page.items], key=_entry)
        # Behind the end of one page there may be more that come before what another has.
        ends = [str(place_of(INBOX, page.after)[1]) for page in pages if page.after is not None]
        known = [item for item in items if not ends or _entry(item) <= min(ends)][:limit]
        following: str | None = None
        if ends or len(known) < len(items):
            following = _entry(known[-1]) if known else min(ends)
        return Letters(tuple(map(self._letter, known)), pages[-1].now, following)

    def alone(
        self, start: str = "", stop: str = "", limit: int = PAGE, after: str | None = None
    ) -> Steps[Letters]:
        """The messages without a group, in lanes after `start` and before `stop`; in no promised order."""
        low, high = (start and f"{start}{BEYOND}") or ALONE, stop or f"{ALONE}{BEYOND_DIGITS}"
        shards, now = yield from self.shards.now()
        # From the lane's own shard on: a worker at another lane begins elsewhere.
        first = shards.home(start or stop, now) if start or stop else 0
        around = self.shards.partitions((first + each) % shards.number for each in range(shards.number))
        page = yield from self._walk(around, Query(INBOX, low=low, high=high, limit=limit, after=after))
        return Letters(tuple(map(self._letter, page.items)), page.now, page.after)

    def survey(self, most: int = COUNTED) -> Steps[Survey]:
        """How much waits, counted up to a limit."""
        query = Query(INBOX, low=GROUP, limit=most, only=("at", "not_before", "expires_at"))
        page = yield from self._walk((yield from self._everywhere()), query)
        waiting = [item for item in page.items if "." in item["entry"]]
        lanes: dict[str, float] = {}
        for item in waiting:
            lanes.setdefault(item["entry"].partition(".")[0], item.get("not_before") or 0.0)
        resting = sum(until > page.now for until in lanes.values())
        oldest = min((item.get("at") or page.now for item in waiting), default=None)
        entered = len(page.items) - len(waiting)
        return Survey(len(waiting), oldest, len(lanes), resting, entered, more=page.after is not None)

    def count(self, *, dead: bool = False, after: str | None = None, most: int = COUNTED) -> Steps[Counted]:
        """How many messages wait from this place on, or are dead letters; up to a limit."""
        low, high = DEAD_BOUNDS if dead else (GROUP, None)
        query = Query(INBOX, None, low, high, limit=most, after=after, only=("at", "expires_at"))
        page = yield from self._walk((yield from self._everywhere()), query)
        moments = [item.get("at") or page.now for item in page.items if "." in item["entry"]]
        return Counted(len(moments), min(moments, default=None), page.now, page.after)

    def find(self, key: str) -> Steps[tuple[Letter, bool] | None]:
        """The message of a key, without its body, and whether it is a dead letter; None if none is seen.

        Of the dead letters, and of those that wait in groups, the first are read: up to one request to each
        shard for either.
        """
        lane, (shards, _) = lane_of(key, None), (yield from self.shards.now())
        homes, every = shards.homes(lane), range(shards.number)
        wanted = ("key", "group", "attempts", "not_before", "error", "at")
        own = (f"{lane}.", f"{lane}{BEYOND}")
        for shard, low, high in ((homes, *own), (every, *DEAD_BOUNDS), (every, GROUP, ALONE)):
            query = Query(INBOX, None, low, high, limit=COUNTED_PAGE, only=wanted)
            page = yield from self._walk(self.shards.partitions(shard), query)
            for item in page.items:
                if item.get("key") == key and "." in item["entry"]:
                    return self._letter(item), item["entry"].startswith(DEAD)
        return None

    def _everywhere(self) -> Steps[list[str]]:
        """The partitions of all shards."""
        shards, _ = yield from self.shards.now()
        return self.shards.partitions(range(shards.number))

    def _home(self, shards: Shards, lane: str, moment: float) -> str:
        return self.shards.partition(shards.home(lane, moment))

    def _walk(self, partitions: Sequence[str], query: Query) -> Steps[Page]:
        """Read up to the query's limit, one partition after the other."""
        left, after = list(partitions), query.after
        begun = None if after is None else str(place_of(INBOX, after)[0])
        after, left = (after, left[left.index(begun) :]) if begun in left else (None, left)
        items: list[Item] = []
        while True:
            room = min(COUNTED_PAGE, query.limit - len(items))
            page: Page = yield msgspec.structs.replace(query, key=left[0], limit=room, after=after)
            items += page.items
            after = page.after
            if after is None and len(left) > 1:
                del left[0]
                if len(items) >= query.limit:
                    after = cursor(INBOX, {INBOX.partition: left[0], "entry": query.low})
            elif after is None:
                break
            if len(items) >= query.limit:
                break
        return Page(page.now, tuple(items), after)

    # Being in a lane

    def enter(self, lane: str, token: str, lease: float) -> Steps[float]:
        """Take the lease of a lane; return 0, or the seconds left of another worker's lease."""
        shards, now = yield from self.shards.now()
        home, *others = dict.fromkeys((shards.home(lane, now), *shards.homes(lane)))
        # It expires as any item does, if its worker does not renew it in time.
        mark: Item = {"key": token, "expires_at": After(lease)}
        reply = yield from write(Put(INBOX, self.shards.partition(home), mark, ABSENT, sort=lane))
        if isinstance(reply, Refused) and (reply.item is None or reply.item["key"] != token):
            return _left(reply)
        # A worker that is in it by another number of shards looks here as well: one of the two gives way.
        for other in others:
            found = yield from read(Get(INBOX, self.shards.partition(other), sort=lane))
            if found.item is not None and found.item["key"] != token:
                yield from self.leave((), lane, token)
                return _left(found)
        return 0.0

    def stay(self, lanes: Mapping[str, str], lease: float) -> Steps[tuple[str, ...]]:
        """Renew the leases of these lanes, passed with their tokens; return those that were lost."""
        shards, now = yield from self.shards.now()
        end = {"expires_at": After(lease)}
        marks = [
            Update(INBOX, self._home(shards, lane, now), end, {"key": token}, sort=lane)
            for lane, token in lanes.items()
        ]
        replies = yield from write_each(marks)
        return tuple(lane for lane, reply in zip(lanes, replies, strict=True) if isinstance(reply, Refused))

    def leave(self, settled: Sequence[Letter], lane: str = "", token: str = "") -> Steps[None]:
        """Remove these settled messages, and give up the lane."""
        writes: list[Write] = [Delete(INBOX, letter.partition, sort=letter.place) for letter in settled]
        if lane:
            # A mark by an earlier number of shards is elsewhere, and expires by itself.
            shards, now = yield from self.shards.now()
            writes.append(Delete(INBOX, self._home(shards, lane, now), {"key": token}, sort=lane))
        if writes:
            yield from write_each(writes)

    def put_off(self, letter: Letter, span: float, error: str, *, counted: bool = True) -> Steps[None]:
        """Try a message again after a span of seconds; unless it is `counted`, it only waits for its turn."""
        attempts = letter.attempts + counted
        change = {"not_before": After(span), "attempts": attempts, "error": self._error_text(letter, error)}
        yield from write(Update(INBOX, letter.partition, change, sort=letter.place))

    # Dead letters

    def bury(self, letter: Letter, error: str) -> Steps[bool]:
        """Move a message that cannot be handled to the dead letters; False if it is gone."""
        more = {"attempts": letter.attempts + 1, "error": self._error_text(letter, error), "at": NOW}
        return self._move(letter, letter.place, f"{DEAD}.{letter.id}", more)

    def dead(self, limit: int = PAGE, after: str | None = None) -> Steps[Letters]:
        """The dead letters, in the order in which they were accepted; a page of each shard is read."""
        every = yield from self._everywhere()
        return (yield from self._in_order(every, DEAD_BOUNDS, limit, after))

    def dead_letter(self, id: str) -> Steps[Letter | None]:
        """One dead letter, or None."""
        for partition in (yield from self._everywhere()):
            found = yield from read(Get(INBOX, partition, sort=f"{DEAD}.{id}"))
            if found.item is not None:
                return self._letter(found.item)
        return None

    def redrive(self, letter: Letter) -> Steps[bool]:
        """Put a dead letter back in its place, to be handled as a new one; False if it is gone."""
        yield from self.forget(letter.key)
        return (yield from self._move(letter, f"{DEAD}.{letter.id}", letter.place, {"at": NOW}))

    def forget(self, key: str) -> Steps[None]:
        """Allow a message that was given up to be handled again."""
        name = self.record_key(key)
        record = yield from self._ledger.get(name)
        if record is not None and record.status is Status.FAILED:
            yield from self._ledger.forget(name)

    def _move(self, letter: Letter, start: str, to: str, more: Item) -> Steps[bool]:
        item, where = (
            self._item(letter.key, letter.group, letter.body, letter.subject) | more,
            letter.partition,
        )
        move = Transact((Delete(INBOX, where, sort=start), Put(INBOX, where, item, sort=to)))
        try:
            reply: Applied | Cancelled = yield move
        except errors.StoreOutcomeUnknown as lost:
            # It may be refused now, as the message is gone from where it was: then it has arrived.
            yield from resend(move, lost)
            return True
        return isinstance(reply, Applied)

    def _error_text(self, letter: Letter, error: str) -> str:
        text = self.realm.events.scrubbed(error, MAX_ERROR_TEXT)
        return self.realm.sealing.text(text, INBOX.name, self._name, letter.key, "error")

    def _letter(self, item: Item) -> Letter:
        key, group = item.get("key") or "", item.get("group")
        lane, _, id = item["entry"].rpartition(".")
        return Letter(
            id,
            lane_of(key, group) if lane == DEAD else lane,
            key,
            group,
            int(item.get("attempts") or 0),
            item.get("not_before") or 0.0,
            item.get("at") or 0.0,
            # Unsealed, or why that cannot be read.
            self.realm.sealing.opened_text(item.get("error") or "", INBOX.name, self._name, key, "error"),
            Body(item.get("body"), item.get("encoding") or ""),
            item.get("subject"),
            item[INBOX.partition],
        )

    def open(self, letter: Letter) -> Message:
        """The message that waits, for its handler."""
        body = self.unsealed(letter.key, letter.body)
        subject = None if letter.subject is None else SubjectHash(letter.subject)
        return Message(letter.key, body, letter.group, letter.attempts + 1, subject)


def _in_turn(puts: Iterable[tuple[str | None, Put]]) -> Iterable[list[Put]]:
    """Lists of writes: those of one list may be seen in any order, but not before those of the list before.

    A store makes the writes of a batch in any order, and a worker may look in between.
    """
    turns: dict[int, list[Put]] = {}
    met: dict[str | None, int] = {}
    for group, put in puts:
        turn = met.get(group, 0)
        turns.setdefault(turn, []).append(put)
        met[group] = 0 if group is None else turn + 1
    return turns.values()


def _left(mark: Refused | Found) -> float:
    """How long another worker may be in a lane, by its mark."""
    return max(0.001, 0.0 if mark.item is None else mark.item["expires_at"] - mark.now)
