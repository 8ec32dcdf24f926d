"""Messages that were accepted and wait to be handled: who puts them there, and what becomes of them.

The order is that of their ids, which are made from the store's time. Nobody owns a message while it is
handled: that is the ledger's business, under the message's key. So a message may be seen by several workers,
and taking it away twice is no error.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from semel import errors
from semel.codecs import Body, Codec, decoder_for
from semel.commands import (
    NOW,
    After,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Item,
    Page,
    Put,
    Query,
    Steps,
    Transact,
    Update,
    again,
    write,
    write_each,
)
from semel.keys import check
from semel.ledger import DAY, LedgerSteps, Seconds, seconds
from semel.lifecycle import Status
from semel.realm import Realm
from semel.tables import INBOX
from semel.ulids import Ulids

# As long as SQS keeps a message at most: who has not come back to it by then will not.
TTL = 14 * DAY

# A page is what a worker takes in one look.
PAGE = 100

# Enough to tell a person why, and no place for data.
MAX_ERROR_TEXT = 1000

_anything = decoder_for(Any)


class Message(msgspec.Struct, frozen=True):
    """Something to be handled once, under its key, and after those before it in its group."""

    key: str
    body: Any
    """What it says, in the types that JSON has."""
    group: str | None = None
    """Messages of one group are handled in their order; those of none in any."""
    attempt: int = 1
    """Which delivery this is, for whoever handles it."""


class Letter(msgspec.Struct, frozen=True):
    """A message as it waits, its body as it is kept; the same put aside, because nobody could handle it."""

    id: str
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


class Letters(msgspec.Struct, frozen=True):
    """Some letters in their order, and where the next page begins; None when this is the last."""

    letters: tuple[Letter, ...]
    now: float
    after: str | None


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
        self._waiting, self._dead = realm.name(name), realm.name(f"{name}:dead")
        self._ids, self._last = Ulids(), 0.0

    def put(self, messages: Sequence[Message]) -> Steps[None]:
        """Accept messages: whoever gets an answer may forget them."""
        now = yield from self._realm.now()
        puts = tuple(self._put(message, self._later(now)) for message in messages)
        if len(puts) == 1:
            yield from write(puts[0])
        elif puts:
            yield from write_each(Batch(puts))

    def _later(self, now: float) -> float:
        """A moment that is not before the last one here, though the clock be set back."""
        self._last = max(self._last, now)
        return self._last

    def _put(self, message: Message, now: float) -> Put:
        body = self.sealed(message)
        item: Item = {
            "key": message.key,
            "group": message.group,
            "body": body.data,
            "encoding": body.encoding,
            "attempts": 0,
            "at": now,
            "expires_at": After(self.ttl),
        }
        return Put(INBOX, self._waiting, item, sort=self._ids.make(now))

    def sealed(self, message: Message) -> Body:
        """What a message says, as it is kept: encrypted where the ledger encrypts."""
        encoded = self._codec.encode(message.body, self._identity(check(message.key)))
        if encoded.problem is not None:
            raise errors.UsageError(f"message {message.key!r} cannot be kept: {encoded.problem}")
        return encoded.body

    def unsealed(self, key: str, body: Body) -> Any:
        """What it said; `ResultUnreadable` where the key is lost, or the bytes are damaged."""
        return self._codec.decode(body, _anything, self._identity(key))

    def _identity(self, key: str) -> str:
        return f"{self._waiting}:{key}"

    def look(self, after: str | None = None, limit: int = PAGE) -> Steps[Letters]:
        """What waits, the oldest first."""
        page: Page = yield Query(INBOX, self._waiting, limit=limit, after=after)
        return Letters(tuple(map(_letter, page.items)), page.now, page.after)

    def count(self, most: int = 10_000) -> Steps[int]:
        """How many wait, counted up to a limit."""
        total, after = 0, None
        while total < most:
            page: Page = yield Query(INBOX, self._waiting, limit=1000, after=after, only=("at",))
            total, after = total + len(page.items), page.after
            if after is None:
                break
        return min(total, most)

    def take_away(self, ids: Iterable[str]) -> Steps[None]:
        """They are settled: nobody has to look at them again."""
        deletes = tuple(Delete(INBOX, self._waiting, sort=id) for id in ids)
        if deletes:
            yield from write_each(Batch(deletes))

    def put_off(self, letter: Letter, span: float, error: str) -> Steps[None]:
        """One failed: it is tried again after so many seconds."""
        change = {"not_before": After(span), "attempts": letter.attempts + 1, "error": self._told(error)}
        yield from write(Update(INBOX, self._waiting, change, sort=letter.id))

    def bury(self, letter: Letter, error: str) -> Steps[bool]:
        """Nobody can handle one: it is put aside, for a person to look at."""
        item = _kept(letter) | {"attempts": letter.attempts + 1, "error": self._told(error), "at": NOW}
        return self._move(letter.id, self._waiting, self._dead, item)

    def dead(self, limit: int = PAGE, after: str | None = None) -> Steps[Letters]:
        """What was put aside, the oldest first."""
        page: Page = yield Query(INBOX, self._dead, limit=limit, after=after)
        return Letters(tuple(map(_letter, page.items)), page.now, page.after)

    def redrive(self, letter: Letter) -> Steps[bool]:
        """Put one back in its place, to be handled as if it were new; False when it is gone."""
        yield from self.forget(letter.key)
        item = _kept(letter) | {"attempts": 0, "at": NOW}
        return (yield from self._move(letter.id, self._dead, self._waiting, item))

    def forget(self, key: str) -> Steps[None]:
        """Let a message that was given up be handled again."""
        record = yield from self._ledger.get(key)
        if record is not None and record.status is Status.FAILED:
            yield from self._ledger.forget(key)

    def _move(self, id: str, start: str, to: str, item: Item) -> Steps[bool]:
        item["expires_at"] = After(self.ttl)
        move = Transact((Delete(INBOX, start, sort=id), Put(INBOX, to, item, sort=id)))
        try:
            reply: Applied | Cancelled = yield move
        except errors.StoreOutcomeUnknown:
            # It may be refused now, as the letter is gone from where it was: then it has arrived.
            yield from again(move)
            return True
        return isinstance(reply, Applied)

    def _told(self, error: str) -> str:
        # Scrubbed before it is cut: what is cut in half is not recognised any more.
        return self._realm.events.scrubbed(error)[:MAX_ERROR_TEXT]

    def open(self, letter: Letter) -> Message:
        """What a letter says."""
        body = self.unsealed(letter.key, letter.body)
        return Message(letter.key, body, letter.group, letter.attempts + 1)


def _kept(letter: Letter) -> Item:
    body = letter.body
    return {"key": letter.key, "group": letter.group, "body": body.data, "encoding": body.encoding}


def _letter(item: Item) -> Letter:
    return Letter(
        id=item["entry"],
        key=item["key"],
        group=item.get("group"),
        attempts=int(item.get("attempts") or 0),
        not_before=item.get("not_before") or 0.0,
        at=item.get("at") or 0.0,
        error=item.get("error") or "",
        body=Body(item["body"], item["encoding"]),
    )
