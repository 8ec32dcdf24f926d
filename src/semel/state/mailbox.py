"""Messages that were accepted and wait to be handled: lanes, retries and dead letters.

They wait in lanes. A group has a lane, in which its messages stand in the order of their ids, and these are
made from the store's time; a message of no group has a lane of its own, which it shares with its duplicates.
Whoever handles messages of a group enters its lane first, and nobody else is in it meanwhile. That each is
handled once is the ledger's business, under the message's key; taking one away twice is no error.
"""

import threading
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
    read,
    write,
    write_each,
)
from semel.core.keys import check
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.realm import Realm, SubjectHash
from semel.core.spans import DAY, Seconds, seconds
from semel.core.ulids import Ulids
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

# An inbox is one partition, in which any store can move a letter at once. There is `LANE.ID` for each letter,
# and `LANE` while somebody is in that lane. A lane ends before `LANE/`: one of thousands of letters is passed
# over by one request. Dead letters have a lane to themselves, before all others.
BEYOND = "/"
BEYOND_DIGITS = "g"
DEAD, GROUP, ALONE = "dead", "g", "k"
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

    @property
    def place(self) -> str:
        """Its place in the order of all."""
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
    """Some lanes, and where the next page begins; None when this is the last."""

    lanes: tuple[Lane, ...]
    after: str | None


class Survey(msgspec.Struct, frozen=True):
    """What waits, in numbers."""

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


class MailboxSteps:
    """The rules of one mailbox, as generators of commands."""

    def __init__(
        self, realm: Realm, ledger: LedgerSteps, codec: Codec, name: str, ttl: Seconds = TTL
    ) -> None:
        check(name)
        if ":" in name:
            raise errors.InvalidOption(f"an inbox is named by one word, not by {name!r}")
        self.ttl = seconds(ttl)
        self._realm, self._ledger, self._codec = realm, ledger, codec
        self._name = realm.name(name)
        self._ids, self._last, self._lock = Ulids(), 0.0, threading.RLock()

    # Accepting

    def put(self, messages: Sequence[Message]) -> Steps[None]:
        """Accept messages: whoever gets an answer may forget them."""
        sealed = [(message, self.sealed(message)) for message in map(checked, messages)]
        now = yield from self._realm.now()
        for puts in _in_turn([(message.group, self._put(message, body, now)) for message, body in sealed]):
            if len(puts) == 1:
                yield from write(puts[0])
            else:
                yield from write_each(Batch(tuple(puts)))

    def _put(self, message: Message, body: Body, now: float) -> Put:
        at, id = self._named(now)
        person = self._realm.subject_of(message.subject)
        item = _kept(message.key, message.group, body, person) | {"at": at, "expires_at": After(self.ttl)}
        return Put(INBOX, self._name, item, sort=f"{message.lane}.{id}")

    def _named(self, now: float) -> tuple[float, str]:
        """A moment that is not before the last one here, though the clock be set back; and an id from it."""
        with self._lock:
            self._last = max(self._last, now)
            return self._last, self._ids.make(self._last)

    def sealed(self, message: Message) -> Body:
        """What a message says, as it is kept: encrypted where the ledger encrypts."""
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
        """Lanes in which something waits, from this place on; no more than a page's letters are read."""
        wanted = ("not_before", "expires_at")
        page: Page = yield Query(INBOX, self._name, low=start or GROUP, limit=limit, only=wanted)
        lanes: dict[str, Lane] = {}
        for item in page.items:
            name, dot, _ = item["entry"].partition(".")
            if name not in lanes:
                until = item.get("not_before") if dot else item["expires_at"]
                lanes[name] = Lane(name, max(0.0, (until or 0.0) - page.now), entered=not dot)
        last = None if page.after is None else f"{list(lanes)[-1]}{BEYOND}"
        return Lanes(tuple(lanes.values()), last)

    def letters(self, lane: str, limit: int = PAGE, after: str | None = None) -> Steps[Letters]:
        """What waits in a lane, the oldest first."""
        low, high = f"{lane}.", f"{lane}{BEYOND}"
        page: Page = yield Query(INBOX, self._name, low, high, limit=limit, after=after)
        return Letters(tuple(map(self._letter, page.items)), page.now, page.after)

    def alone(
        self, start: str = "", stop: str = "", limit: int = PAGE, after: str | None = None
    ) -> Steps[Letters]:
        """What waits in lanes of no group, after one lane and before another; in an order of no meaning."""
        low, high = (start and f"{start}{BEYOND}") or ALONE, stop or f"{ALONE}{BEYOND_DIGITS}"
        page: Page = yield Query(INBOX, self._name, low, high, limit=limit, after=after)
        return Letters(tuple(map(_letter, page.items)), page.now, page.after)

    def survey(self, most: int = COUNTED) -> Steps[Survey]:
        """How much waits, counted up to a limit."""
        waiting, oldest, after, now = 0, None, None, 0.0
        lanes: dict[str, float] = {}
        entered: set[str] = set()
        while waiting < most:
            wanted = ("at", "not_before", "expires_at")
            room = min(COUNTED_PAGE, most - waiting)
            page: Page = yield Query(INBOX, self._name, low=GROUP, limit=room, after=after, only=wanted)
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
        low, high = (f"{DEAD}.", f"{DEAD}{BEYOND}") if dead else (GROUP, None)
        number, oldest, now, left = 0, inf, 0.0, most
        while left > 0:
            room = min(COUNTED_PAGE, left)
            page: Page = yield Query(
                INBOX, self._name, low, high, limit=room, after=after, only=("at", "expires_at")
            )
            moments = [item.get("at") or page.now for item in page.items if "." in item["entry"]]
            number, oldest, now = number + len(moments), min([oldest, *moments]), page.now
            left, after = left - len(page.items), page.after
            if after is None:
                break
        return Counted(number, None if oldest == inf else oldest, now, after)

    def find(self, key: str) -> Steps[tuple[Letter, bool] | None]:
        """The letter of a key, without its body, and whether it was put aside; None where none is seen.

        It makes three requests at most: of those put aside, and of those that wait in groups, the first so
        many are looked at.
        """
        lane = lane_of(key, None)
        wanted = ("key", "group", "attempts", "not_before", "error", "at")
        for low, high in ((f"{lane}.", f"{lane}{BEYOND}"), (f"{DEAD}.", f"{DEAD}{BEYOND}"), (GROUP, ALONE)):
            page: Page = yield Query(INBOX, self._name, low, high, limit=COUNTED_PAGE, only=wanted)
            for item in page.items:
                if item.get("key") == key and "." in item["entry"]:
                    return self._letter(item), item["entry"].startswith(DEAD)
        return None

    # Being in a lane

    def enter(self, lane: str, token: str, lease: float) -> Steps[float]:
        """Be the only one in a lane; 0 where that is so now, else for how long somebody else may be."""
        # It ends as any item does when its time is up: with whoever does not say in time that he is there.
        mark: Item = {"key": token, "expires_at": After(lease)}
        reply = yield from write(Put(INBOX, self._name, mark, ABSENT, sort=lane))
        there = reply.item if isinstance(reply, Refused) else None
        if isinstance(reply, Applied) or (there is not None and there["key"] == token):
            return 0.0
        left: float = 0.0 if there is None else there["expires_at"] - reply.now
        return max(0.001, left)

    def stay(self, lanes: Mapping[str, str], lease: float) -> Steps[tuple[str, ...]]:
        """Say that one is still in these lanes, under these tokens; those that one is not in any more."""
        marks = [
            Update(INBOX, self._name, {"expires_at": After(lease)}, Equals("key", token), sort=lane)
            for lane, token in lanes.items()
        ]
        many = yield from write_each(Batch(tuple(marks)))
        return tuple(
            lane for lane, reply in zip(lanes, many.replies, strict=True) if isinstance(reply, Refused)
        )

    def leave(self, settled: Sequence[Letter], lane: str = "", token: str = "") -> Steps[None]:
        """These letters are settled, and nobody has to look at them again; and one is out of the lane."""
        writes: list[Write] = [Delete(INBOX, self._name, sort=letter.place) for letter in settled]
        if lane:
            writes.append(Delete(INBOX, self._name, Equals("key", token), sort=lane))
        if writes:
            yield from write_each(Batch(tuple(writes)))

    def put_off(self, letter: Letter, span: float, error: str, *, counted: bool = True) -> Steps[None]:
        """One failed, or has to wait for its turn: it is tried again after so many seconds."""
        attempts = letter.attempts + counted
        change = {"not_before": After(span), "attempts": attempts, "error": self._told(letter, error)}
        yield from write(Update(INBOX, self._name, change, sort=letter.place))

    # Dead letters

    def bury(self, letter: Letter, error: str) -> Steps[bool]:
        """Nobody can handle one: it is put aside, for a person to look at; False when it is gone."""
        more = {"attempts": letter.attempts + 1, "error": self._told(letter, error), "at": NOW}
        return self._move(letter, letter.place, f"{DEAD}.{letter.id}", more)

    def dead(self, limit: int = PAGE, after: str | None = None) -> Steps[Letters]:
        """What was put aside, those first that were accepted first."""
        return self.letters(DEAD, limit, after)

    def dead_letter(self, id: str) -> Steps[Letter | None]:
        """One that was put aside, or None."""
        found = yield from read(Get(INBOX, self._name, sort=f"{DEAD}.{id}"))
        return None if found.item is None else self._letter(found.item)

    def redrive(self, letter: Letter) -> Steps[bool]:
        """Put one back in its place, to be handled as if it were new; False when it is gone."""
        yield from self.forget(letter.key)
        return (yield from self._move(letter, f"{DEAD}.{letter.id}", letter.place, {"at": NOW}))

    def forget(self, key: str) -> Steps[None]:
        """Let a message that was given up be handled again."""
        record = yield from self._ledger.get(key)
        if record is not None and record.status is Status.FAILED:
            yield from self._ledger.forget(key)

    def _move(self, letter: Letter, start: str, to: str, more: Item) -> Steps[bool]:
        kept = _kept(letter.key, letter.group, letter.body, letter.subject)
        item = kept | more | {"expires_at": After(self.ttl)}
        move = Transact((Delete(INBOX, self._name, sort=start), Put(INBOX, self._name, item, sort=to)))
        try:
            reply: Applied | Cancelled = yield move
        except errors.StoreOutcomeUnknown:
            # It may be refused now, as the letter is gone from where it was: then it has arrived.
            yield from again(move)
            return True
        return isinstance(reply, Applied)

    def _told(self, letter: Letter, error: str) -> str:
        told = self._realm.events.scrubbed(error, MAX_ERROR_TEXT)
        return self._realm.sealing.text(told, *self._place(letter.key))

    def _place(self, key: str) -> tuple[str, ...]:
        return INBOX.name, self._name, key, "error"

    def _letter(self, item: Item) -> Letter:
        """A letter, its error as it reads, or with why that cannot be read."""
        letter = _letter(item)
        error = self._realm.sealing.opened_text(letter.error, *self._place(letter.key))
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
    )
