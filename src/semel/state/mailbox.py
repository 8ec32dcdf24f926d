"""Messages that were accepted and wait to be handled: lanes, retries and dead letters.

They wait in lanes. A group has a lane, in which its messages stand in the order of their ids, and these are
made from the store's time; a message of no group has a lane of its own, which it shares with its duplicates.
Whoever handles messages of a group enters its lane first, and nobody else is in it meanwhile. That each is
handled once is the ledger's business, under a key made of the mailbox's name and the message's key; taking
one away twice is no error.

Lanes are spread over shards, as `shards` says: each shard is a partition of the store.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from math import inf
from typing import Any

import msgspec

from semel import errors
from semel.core.codecs import Body, Codec, decoder_for
from semel.core.commands import (
    ABSENT,
    NOW,
    After,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Equals,
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
    again,
    cursor,
    place_of,
    read,
    write,
    write_each,
)
from semel.core.keys import check, message_key
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.policy import DAY, Seconds, seconds
from semel.core.realm import Realm, SubjectHash
from semel.core.runtime import FORKING
from semel.core.threads import SignalSafeLock
from semel.state.shards import ALONE, BEYOND, DEAD, GROUP, Shards, ShardSteps
from semel.state.ulids import ULIDS
from semel.tables import INBOX

# As long as SQS keeps a message at most: who has not come back to it by then will not.
TTL = 14 * DAY

# What is looked at in one request.
PAGE = 100

# So many are counted in one go, and so many of them in one request: that takes a fraction of a second.
COUNTED = 10_000
COUNTED_PAGE = 1000

# Enough to tell a person why, and no place for data.
MAX_ERROR_TEXT = 1000

BEYOND_DIGITS = "g"
DEAD_BOUNDS = (f"{DEAD}.", f"{DEAD}{BEYOND}")
# So much of a hash that two groups never share a lane; if they did, they would only wait for each other.
DIGITS = 20

_anything = decoder_for(Any)


class Message(msgspec.Struct, frozen=True):
    """Something to be handled once, under its key, and after those before it in its group."""

    key: str
    body: Any
    """What it says, in the types that JSON has."""
    group: str | None = None
    """Messages of one group are handled in their order, one at a time; those of none in any."""
    attempt: int = 1
    """Which delivery this is, for whoever handles it."""
    subject: str | None = None
    """Whom it is about. It is kept as a keyed hash; whoever handles it is given that, and may pass it on."""

    @property
    def lane(self) -> str:
        """Where it waits."""
        return lane_of(self.key, self.group)


class Letter(msgspec.Struct, frozen=True):
    """A message as it waits, its body as it is kept; the same put aside, because nobody could handle it."""

    id: str
    lane: str
    """Where it waits."""
    key: str
    group: str | None
    attempts: int
    """How often it was tried and failed."""
    not_before: float
    """It failed, and is not tried again before this moment."""
    at: float
    """When it was accepted, or put aside."""
    error: str
    """Why it failed last."""
    body: Body
    subject: str | None = None
    """The keyed hash of whom it is about."""
    partition: str = ""
    """The shard that it is in, as the store knows it."""

    @property
    def place(self) -> str:
        """Its place in the order of its shard."""
        return f"{self.lane}.{self.id}"


class Letters(msgspec.Struct, frozen=True):
    """Some letters in their order, and where the next page begins; None when this is the last."""

    letters: tuple[Letter, ...]
    now: float
    after: str | None


class Lane(msgspec.Struct, frozen=True):
    """A lane in which something waits."""

    name: str
    wait: float
    """For so many seconds nothing can be begun in it."""
    entered: bool
    """Because somebody is in it; otherwise because its first letter is not to be tried again before."""


class Lanes(msgspec.Struct, frozen=True):
    """Some lanes of one shard, and where looking goes on: behind them, or in the next shard."""

    lanes: tuple[Lane, ...]
    after: str
    ended: bool
    """Whether there are no more in this shard."""
    shards: int
    """How many there are to look at."""


class Survey(msgspec.Struct, frozen=True):
    """How much waits in an inbox, in numbers."""

    waiting: int
    oldest: float | None = None
    """When the oldest of them was accepted."""
    lanes: int | None = None
    """In how many lanes they stand; None where the queue does not tell."""
    resting: int | None = None
    """Lanes whose first letter has failed, and is tried again later."""
    entered: int | None = None
    """Groups that somebody is at work on."""
    more: bool = False
    """There are more than were looked at."""


class Counted(msgspec.Struct, frozen=True):
    """How many were found from one place on; several of these make a whole count."""

    number: int
    oldest: float | None = None
    """When the oldest of them was accepted, or put aside."""
    now: float = 0.0
    """What time it is where that was written down."""
    after: str | None = None
    """Where counting goes on; None where this was the last."""


def checked(message: Message) -> Message:
    """A message with its key and its group as plain texts; `InvalidKey` where one cannot be that."""
    group = None if message.group is None else check(message.group)
    return Message(check(message.key), message.body, group, subject=message.subject)


def lane_of(key: str, group: str | None) -> str:
    """Where messages of a group wait, or those of one key that have none."""
    kind, name = (ALONE, key) if group is None else (GROUP, group)
    return kind + sha256(name.encode()).hexdigest()[:DIGITS]


def is_shared(lane: str) -> bool:
    """Whether it has messages that must not be handled side by side: those of a group."""
    return lane.startswith(GROUP)


class LatestMoment:
    """When a process last accepted a letter for a mailbox, by the store's clock."""

    def __init__(self) -> None:
        self._moment = 0.0
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """Have a lock that no thread of the parent holds."""
        self._lock = SignalSafeLock()

    def at_least(self, now: float) -> float:
        """Return this moment, or the latest one if the clock was set back since."""
        with self._lock:
            self._moment = max(self._moment, now)
            return self._moment


class MailboxSteps:
    """The rules of one mailbox, as generators of commands."""

    def __init__(
        self,
        realm: Realm,
        ledger: LedgerSteps,
        codec: Codec,
        name: str,
        *,
        ttl: Seconds = TTL,
        shards: int = 1,
        shared: bool = False,
        latest: LatestMoment | None = None,
    ) -> None:
        check(name)
        if ":" in name:
            raise errors.InvalidOption(f"an inbox is named by one word, not by {name!r}")
        self.ttl: float = seconds(ttl)
        self.realm: Realm = realm
        self._ledger, self._codec = ledger, codec
        self._name = realm.name(name)
        self._inbox = None if shared else name
        self._latest = latest or LatestMoment()
        self.shards: ShardSteps = ShardSteps(realm, self._name, shards)

    def record_key(self, key: str) -> str:
        """The key under which the ledger knows a message."""
        return check(key) if self._inbox is None else message_key(self._inbox, key)

    # Accepting

    def put(self, messages: Sequence[Message]) -> Steps[None]:
        """Accept messages: whoever gets an answer may forget them."""
        sealed = [(message, self.sealed(message)) for message in map(checked, messages)]
        shards, now = yield from self.shards.now()
        made = [(message.group, self._put(message, body, now, shards)) for message, body in sealed]
        for puts in _in_turn(made):
            if len(puts) == 1:
                yield from write(puts[0])
            else:
                yield from write_each(Batch(tuple(puts)))

    def _put(self, message: Message, body: Body, now: float, shards: Shards) -> Put:
        at = self._latest.at_least(now)
        person = self.realm.subject_of(message.subject)
        item = _kept(message.key, message.group, body, person) | {"at": at, "expires_at": After(self.ttl)}
        return Put(INBOX, self._home(shards, message.lane, at), item, sort=f"{message.lane}.{ULIDS.make(at)}")

    def sealed(self, message: Message) -> Body:
        """What a message says, as it is kept: encrypted where the ledger encrypts."""
        self.record_key(message.key)  # which may be too long
        encoded = self._codec.encode(message.body, self._identity(message.key))
        if encoded.problem is not None:
            raise errors.MessageRefused(f"message {message.key!r} cannot be kept: {encoded.problem}")
        return encoded.body

    def unsealed(self, key: str, body: Body) -> Any:
        """What it said; `MessageUnreadable` where that cannot be told any more."""
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
        """Lanes of a shard in which something waits, from this place on; one page of letters is read."""
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
        """Move letters to the shard of their lane that were put in elsewhere, by whoever knew no better."""
        page: Page = yield Query(INBOX, start, f"{lane}.", f"{lane}{BEYOND}")
        for item in page.items:
            kept = {name: value for name, value in item.items() if name not in INBOX.key}
            # For a moment there are two of it, which is no error.
            yield from write(Put(INBOX, to, kept, sort=item["entry"]))
            yield from write(Delete(INBOX, start, sort=item["entry"]))

    def letters(self, lane: str, limit: int = PAGE, after: str | None = None) -> Steps[Letters]:
        """What waits in a lane, the oldest first."""
        shards, _ = yield from self.shards.now()
        homes = self.shards.partitions(shards.homes(lane))
        return (yield from self._in_order(homes, (f"{lane}.", f"{lane}{BEYOND}"), limit, after))

    def _in_order(
        self, partitions: Sequence[str], bounds: tuple[str, str], limit: int, after: str | None
    ) -> Steps[Letters]:
        """Letters of several partitions by their places; each partition is asked for a page."""
        pages: list[Page] = []
        for partition in partitions:
            begin = None if after is None else cursor(INBOX, {INBOX.partition: partition, "entry": after})
            pages.append((yield Query(INBOX, partition, *bounds, limit=limit, after=begin)))
        items, following = _merged(pages, limit)
        return Letters(tuple(map(self._letter, items)), pages[-1].now, following)

    def alone(
        self, start: str = "", stop: str = "", limit: int = PAGE, after: str | None = None
    ) -> Steps[Letters]:
        """What waits in lanes of no group, after one lane and before another; in an order of no meaning."""
        low, high = (start and f"{start}{BEYOND}") or ALONE, stop or f"{ALONE}{BEYOND_DIGITS}"
        shards, now = yield from self.shards.now()
        # From the lane's own shard on: whoever is at another lane begins elsewhere.
        first = shards.home(start or stop, now) if start or stop else 0
        around = self.shards.partitions((first + each) % shards.number for each in range(shards.number))
        page = yield from self._walk(around, low, high, limit=limit, after=after)
        return Letters(tuple(map(_letter, page.items)), page.now, page.after)

    def survey(self, most: int = COUNTED) -> Steps[Survey]:
        """How much waits, counted up to a limit."""
        waiting, oldest, after, now = 0, None, None, 0.0
        lanes: dict[str, float] = {}
        entered: set[str] = set()
        every = yield from self._everywhere()
        while waiting < most:
            wanted = ("at", "not_before", "expires_at")
            room = min(COUNTED_PAGE, most - waiting)
            page = yield from self._walk(every, GROUP, limit=room, after=after, only=wanted)
            now, after = page.now, page.after
            for item in page.items:
                name, dot, _ = item["entry"].partition(".")
                if not dot:
                    entered.add(name)
                    continue
                waiting += 1
                lanes.setdefault(name, item.get("not_before") or 0.0)
                at = item.get("at") or now
                oldest = at if oldest is None else min(oldest, at)
            if after is None:
                break
        resting = sum(until > now for until in lanes.values())
        return Survey(waiting, oldest, len(lanes), resting, len(entered), more=after is not None)

    def count(self, *, dead: bool = False, after: str | None = None, most: int = COUNTED) -> Steps[Counted]:
        """How many letters wait from this place on, or were put aside; no more than so many are looked at."""
        low, high = DEAD_BOUNDS if dead else (GROUP, None)
        number, oldest, now, left = 0, inf, 0.0, most
        every = yield from self._everywhere()
        while left > 0:
            room = min(COUNTED_PAGE, left)
            page = yield from self._walk(every, low, high, limit=room, after=after, only=("at", "expires_at"))
            moments = [item.get("at") or page.now for item in page.items if "." in item["entry"]]
            number, oldest, now = number + len(moments), min([oldest, *moments]), page.now
            left, after = left - len(page.items), page.after
            if after is None:
                break
        return Counted(number, None if oldest == inf else oldest, now, after)

    def find(self, key: str) -> Steps[tuple[Letter, bool] | None]:
        """The letter of a key, without its body, and whether it was put aside; None where none is seen.

        Of those put aside, and of those that wait in groups, the first so many are looked at: that is one
        request to each shard for either, at most.
        """
        lane, (shards, _) = lane_of(key, None), (yield from self.shards.now())
        homes = self.shards.partitions(shards.homes(lane))
        every = self.shards.partitions(range(shards.number))
        wanted = ("key", "group", "attempts", "not_before", "error", "at")
        for where, low, high in (
            (homes, f"{lane}.", f"{lane}{BEYOND}"),
            (every, *DEAD_BOUNDS),
            (every, GROUP, ALONE),
        ):
            page = yield from self._walk(where, low, high, limit=COUNTED_PAGE, only=wanted)
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

    def _walk(
        self,
        partitions: Sequence[str],
        low: str,
        high: str | None = None,
        *,
        limit: int,
        after: str | None = None,
        only: tuple[str, ...] = (),
    ) -> Steps[Page]:
        """A page of one partition after the other."""
        begun = None if after is None else str(place_of(INBOX, after)[0])
        left = list(partitions)
        if begun in left:
            left = left[left.index(begun) :]
        else:
            after = None
        items: list[Item] = []
        while True:
            page: Page = yield Query(
                INBOX, left.pop(0), low, high, limit=limit - len(items), after=after, only=only
            )
            items += page.items
            after = page.after
            if after is not None or not left:
                break
            if len(items) >= limit:
                after = cursor(INBOX, {INBOX.partition: left[0], "entry": low})
                break
        return Page(page.now, tuple(items), after)

    # Being in a lane

    def enter(self, lane: str, token: str, lease: float) -> Steps[float]:
        """Be the only one in a lane; 0 where that is so now, else for how long somebody else may be."""
        shards, now = yield from self.shards.now()
        home, *others = dict.fromkeys((shards.home(lane, now), *shards.homes(lane)))
        # It ends as any item does when its time is up: with whoever does not say in time that he is there.
        mark: Item = {"key": token, "expires_at": After(lease)}
        reply = yield from write(Put(INBOX, self.shards.partition(home), mark, ABSENT, sort=lane))
        there = reply.item if isinstance(reply, Refused) else None
        if isinstance(reply, Refused) and (there is None or there["key"] != token):
            return _left(there, reply.now)
        # Whoever is in it by another number of shards looks here, as he is looked for there: one gives way.
        for other in others:
            found = yield from read(Get(INBOX, self.shards.partition(other), sort=lane))
            if found.item is not None and found.item["key"] != token:
                yield from self.leave((), lane, token)
                return _left(found.item, found.now)
        return 0.0

    def stay(self, lanes: Mapping[str, str], lease: float) -> Steps[tuple[str, ...]]:
        """Say that one is still in these lanes, under these tokens; those that one is not in any more."""
        shards, now = yield from self.shards.now()
        marks = [
            Update(
                INBOX,
                self._home(shards, lane, now),
                {"expires_at": After(lease)},
                Equals("key", token),
                sort=lane,
            )
            for lane, token in lanes.items()
        ]
        many = yield from write_each(Batch(tuple(marks)))
        return tuple(
            lane for lane, reply in zip(lanes, many.replies, strict=True) if isinstance(reply, Refused)
        )

    def leave(self, settled: Sequence[Letter], lane: str = "", token: str = "") -> Steps[None]:
        """These letters are settled, and nobody has to look at them again; and one is out of the lane."""
        writes: list[Write] = [Delete(INBOX, letter.partition, sort=letter.place) for letter in settled]
        if lane:
            # Who came in by an earlier number of shards left a mark elsewhere, which ends by itself.
            shards, now = yield from self.shards.now()
            home = self._home(shards, lane, now)
            writes.append(Delete(INBOX, home, Equals("key", token), sort=lane))
        if writes:
            yield from write_each(Batch(tuple(writes)))

    def put_off(self, letter: Letter, span: float, error: str, *, counted: bool = True) -> Steps[None]:
        """One failed, or has to wait for its turn: it is tried again after so many seconds."""
        attempts = letter.attempts + counted
        change = {"not_before": After(span), "attempts": attempts, "error": self._error_text(letter, error)}
        yield from write(Update(INBOX, letter.partition, change, sort=letter.place))

    # Dead letters

    def bury(self, letter: Letter, error: str) -> Steps[bool]:
        """Nobody can handle one: it is put aside, for a person to look at; False when it is gone."""
        more = {"attempts": letter.attempts + 1, "error": self._error_text(letter, error), "at": NOW}
        return self._move(letter, letter.place, f"{DEAD}.{letter.id}", more)

    def dead(self, limit: int = PAGE, after: str | None = None) -> Steps[Letters]:
        """What was put aside, those first that were accepted first; each shard is asked for a page."""
        every = yield from self._everywhere()
        return (yield from self._in_order(every, DEAD_BOUNDS, limit, after))

    def dead_letter(self, id: str) -> Steps[Letter | None]:
        """One that was put aside, or None."""
        for partition in (yield from self._everywhere()):
            found = yield from read(Get(INBOX, partition, sort=f"{DEAD}.{id}"))
            if found.item is not None:
                return self._letter(found.item)
        return None

    def redrive(self, letter: Letter) -> Steps[bool]:
        """Put one back in its place, to be handled as if it were new; False when it is gone."""
        yield from self.forget(letter.key)
        return (yield from self._move(letter, f"{DEAD}.{letter.id}", letter.place, {"at": NOW}))

    def forget(self, key: str) -> Steps[None]:
        """Let a message that was given up be handled again."""
        name = self.record_key(key)
        record = yield from self._ledger.get(name)
        if record is not None and record.status is Status.FAILED:
            yield from self._ledger.forget(name)

    def _move(self, letter: Letter, start: str, to: str, more: Item) -> Steps[bool]:
        kept = _kept(letter.key, letter.group, letter.body, letter.subject)
        item = kept | more | {"expires_at": After(self.ttl)}
        where = letter.partition
        move = Transact((Delete(INBOX, where, sort=start), Put(INBOX, where, item, sort=to)))
        try:
            reply: Applied | Cancelled = yield move
        except errors.StoreOutcomeUnknown:
            # It may be refused now, as the letter is gone from where it was: then it has arrived.
            yield from again(move)
            return True
        return isinstance(reply, Applied)

    def _error_text(self, letter: Letter, error: str) -> str:
        text = self.realm.events.scrubbed(error, MAX_ERROR_TEXT)
        return self.realm.sealing.text(text, *self._place(letter.key))

    def _place(self, key: str) -> tuple[str, ...]:
        return INBOX.name, self._name, key, "error"

    def _letter(self, item: Item) -> Letter:
        """A letter, its error as it reads, or with why that cannot be read."""
        letter = _letter(item)
        error = self.realm.sealing.opened_text(letter.error, *self._place(letter.key))
        return letter if error is letter.error else msgspec.structs.replace(letter, error=error)

    def open(self, letter: Letter) -> Message:
        """What a letter says."""
        body = self.unsealed(letter.key, letter.body)
        person = None if letter.subject is None else SubjectHash(letter.subject)
        return Message(letter.key, body, letter.group, letter.attempts + 1, person)


def _in_turn(puts: Iterable[tuple[str | None, Put]]) -> Iterator[list[Put]]:
    """Writes of which each may be seen before the others of its list, but not before those of a list before.

    A store makes the writes of a batch in any order, and a worker may look in between.
    """
    turns: list[list[Put]] = []
    met: Counter[str] = Counter()
    for group, put in puts:
        turn = 0 if group is None else met[group]
        if group is not None:
            met[group] += 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(put)
    return iter(turns)


def _kept(key: str, group: str | None, body: Body, person: str | None) -> Item:
    item: Item = {
        "key": key,
        "group": group,
        "body": body.data,
        "encoding": body.encoding,
        "attempts": 0,
    }
    return item if person is None else item | {"subject": person}


def _letter(item: Item) -> Letter:
    key, group = item.get("key") or "", item.get("group")
    lane, _, id = item["entry"].rpartition(".")
    return Letter(
        id=id,
        lane=lane_of(key, group) if lane == DEAD else lane,
        key=key,
        group=group,
        attempts=int(item.get("attempts") or 0),
        not_before=item.get("not_before") or 0.0,
        at=item.get("at") or 0.0,
        error=item.get("error") or "",
        body=Body(item.get("body"), item.get("encoding") or ""),
        subject=item.get("subject"),
        partition=item[INBOX.partition],
    )


def _merged(pages: Sequence[Page], limit: int) -> tuple[list[Item], str | None]:
    """The first of all items by their place, and the place after which the next ones come; None for none."""
    items = sorted((item for page in pages for item in page.items), key=_entry)
    # Behind the end of one page there may be more that come before what another has.
    ends = [str(place_of(INBOX, page.after)[1]) for page in pages if page.after is not None]
    known = [item for item in items if not ends or _entry(item) <= min(ends)][:limit]
    if len(known) == len(items) and not ends:
        return known, None
    return known, _entry(known[-1]) if known else min(ends)


def _entry(item: Item) -> str:
    entry: str = item["entry"]
    return entry


def _left(mark: Item | None, now: float) -> float:
    """For how long somebody else may be in a lane, by his mark."""
    return max(0.001, 0.0 if mark is None else mark["expires_at"] - now)
