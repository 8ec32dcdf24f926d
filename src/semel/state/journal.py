"""The journal: entries that are appended and never changed, sorted by the time of what they describe.

An entry belongs to an owner (a conversation, a chat) and is found again by its time, or by its actor. It is
named by a ULID, which is made from its time.
"""

import os
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from semel import errors
from semel.core.clock import SignalSafeLock
from semel.core.commands import ABSENT, After, Bound, Get, Item, Page, Put, Query, Steps, Write, read
from semel.core.keys import Key, check
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict, TimedPlan, unrefusable
from semel.core.policy import DAY, Seconds, check_limit, seconds
from semel.core.realm import Moment, Realm, copied, moment_of, plain
from semel.core.runtime import FORKING
from semel.tables import JOURNAL, Table

# Long enough to find out what happened and why; the seed's audit keeps as long.
TTL = 60 * DAY

# Before every key that was used, where a journal remembers them: no ULID begins so.
USED = "key:"

# The last second that a date can be written of: a later moment is meant to be in milliseconds.
LAST = 253402300799.0


# ULIDs

RANDOM_BITS = 80
LATEST = 2**48 - 1
# An id is 26 letters of five bits each, written two at a time.
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PAIRS = [first + second for first in LETTERS for second in LETTERS]
TENS = range(120, -1, -10)
# The number of milliseconds that are remembered: events come roughly in order.
REMEMBERED = 4096


class Ulids:
    """Makes ids that sort by time; those of one millisecond in the order in which an object makes them."""

    def __init__(self) -> None:
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """Forget what was made: a child that counted on would make the ids of its parent."""
        self.lock: SignalSafeLock = SignalSafeLock()
        self._last: OrderedDict[int, int] = OrderedDict()

    def make(self, at: float) -> str:
        """Make an id for an event of this moment."""
        moment = milliseconds(at)
        with self.lock:
            last = self._last.get(moment)
            # One bit less than there is room for: counting on from there does not run over.
            number = last + 1 if last is not None else int.from_bytes(os.urandom(10)) >> 1
            self._last[moment] = number
            if len(self._last) > REMEMBERED:
                self._last.popitem(last=False)
        return ulid_of(moment, number)


ULIDS: Final = Ulids()
"""The one source of a process: its ids are in order, whichever inbox or journal they are for."""


def milliseconds(at: float) -> int:
    """A moment in whole milliseconds since the epoch, within what an id can hold."""
    return min(max(int(at * 1000 + 0.5), 0), LATEST)


def ulid_of(moment: int, number: int) -> str:
    """The id of a millisecond and a number under 2**80."""
    bits = moment << RANDOM_BITS | number
    return "".join([PAIRS[bits >> place & 1023] for place in TENS])


def first_ulid(at: float) -> str:
    """The lowest id of this moment."""
    return ulid_of(milliseconds(at), 0)


def last_ulid(at: float) -> str:
    """The highest id of this moment."""
    return ulid_of(milliseconds(at), 2**RANDOM_BITS - 1)


# Entries


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """How a table keeps entries: which attribute holds what."""

    table: Table
    ids: Literal["ulid", "time", "own"] = "ulid"
    """How entries are named: by a ULID, by their time and their key, or by a number of the caller's."""
    at: str = ""
    """The attribute with the time of an entry; "" if only its name has it."""
    per_second: int = 1
    """The unit of that attribute: 1 for seconds, 1000 for milliseconds."""
    actor: str = ""
    key: str = ""
    body: str = ""
    index: str = ""
    """The index by actor and time."""
    fields: tuple[str, ...] = ()
    """The fields of a body that have attributes of their own."""
    remembers: bool = False
    """Whether keys that were used are kept beside the entries."""

    def time(self, at: float) -> float:
        """A moment in the unit of this table."""
        return at if self.per_second == 1 else int(at * self.per_second + 0.5)


OWN = Book(
    table=JOURNAL,
    at="at",
    actor="actor",
    key="key",
    body="body",
    index="actor-at",
    remembers=True,
)
BOOKS: dict[str, Book] = {OWN.table.name: OWN}
"""The books of known tables, by the names of these; applications add theirs."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of a journal: what was done, when and by whom."""

    owner: str
    id: str | int
    at: float | None
    body: dict[str, Any]
    actor: str | int | None = None
    key: str | None = None


class Entries(msgspec.Struct, frozen=True):
    """A page of entries, and where the next page begins; None on the last page."""

    entries: tuple[Entry, ...]
    after: str | None


class JournalSteps:
    """The rules of the journal, as generators of commands."""

    def __init__(self, realm: Realm, book: Book = OWN, ids: Ulids = ULIDS) -> None:
        self.realm = realm
        self._book, self._table, self._ids = book, book.table, ids
        self._sort = book.table.sort or ""
        self._has = book.table.attributes.keys()
        # Other tables have owners, who read them.
        self._sealing = realm.sealing if book is OWN else None

    def on(self, table: Table | Book) -> "JournalSteps":
        """The rules in another table: one of the seeds', or one of yours that a `Book` describes."""
        book = table if isinstance(table, Book) else BOOKS.get(table.name)
        if book is None:
            raise errors.UsageError(f"how table {table!r} keeps entries is not known: describe it by a Book")
        return JournalSteps(self.realm, book, self._ids)

    # Adding

    def append(
        self,
        owner: str | Key,
        body: Mapping[str, Any],
        *,
        at: Moment | None = None,
        actor: str | int | None = None,
        key: str | Key | None = None,
        id: int | None = None,
        ttl: Seconds = TTL,
        subject: str | None = None,
    ) -> PartPlan[Entry]:
        """Append an entry about something that happened at this moment, or now, and return it.

        In a transaction, now is after all that the transaction reads.
        The same `key` again appends nothing and returns the entry that is there.
        """
        if not isinstance(body, Mapping):
            raise errors.UsageError(f"an entry tells of something in a dict, not in {type(body).__name__}")
        content: dict[str, Any] = plain("body", dict(body))
        if not self._book.body and (unknown := content.keys() - set(self._book.fields)):
            raise errors.UsageError(f"table {self._table.name} has no attribute {', '.join(sorted(unknown))}")
        key = None if key is None else check(key)
        self._check(key, id, actor, subject)
        actor = str(actor) if self._book.remembers and actor is not None else actor
        moment = None if at is None else moment_of(at)
        return self.append_entry(
            Entry(check(owner), "" if id is None else id, moment, content, actor, key), ttl, subject
        )

    def append_entry(self, new: Entry, ttl: Seconds = TTL, subject: str | None = None) -> PartPlan[Entry]:
        """Append an entry whose values are known to be what the table keeps, and give it an id and a time."""
        name, span, hashed = self.realm.name(new.owner), seconds(ttl), self.realm.subject_of(subject)
        if new.at is not None and not 0 <= new.at <= LAST:
            raise errors.InvalidOption(f"{new.at:.0f} is no moment of our time, in seconds since the epoch")
        content, found = self.realm.redacted(new.body), list[Entry]()

        def plan(mark: str) -> "Steps[Part[Entry]]":
            if found:
                return (yield from self._standing(name, found[-1]))
            moment = (yield from self.realm.now()) if new.at is None else new.at
            id = new.id
            if id == "":
                id = f"{_iso(moment)}#{new.key}" if self._book.ids == "time" else self._ids.make(moment)
            entry = Entry(new.owner, id, moment, content, new.actor, new.key)
            item = self._item(name, entry, mark)
            if hashed is not None:
                item["subject"] = hashed
            if not self._table.forever:
                item[self._table.expires] = After(span)
            return self._entry_part(name, entry, item, mark, found)

        # A moment of the caller's depends on nothing that the transaction reads.
        return TimedPlan(plan) if new.at is None else plan

    def _standing(self, name: str, entry: Entry) -> Steps[Part[Entry]]:
        """Return the entry that is there under a key; what it says may have been forgotten."""
        found = yield from read(Get(self._table, name, entry.id))
        there = entry if found.item is None else self._entry(found.item)
        return Part((), unrefusable, lambda _: there)

    def _check(self, key: str | None, id: int | None, actor: str | int | None, subject: str | None) -> None:
        book, table = self._book, f"table {self._table.name}"
        if (book.ids == "own") != (id is not None):
            one = "need" if id is None else "make"
            raise errors.UsageError(f"entries of {table} {one} an id of their own")
        if book.ids == "time" and key is None:
            raise errors.UsageError(f"entries of {table} are named by their key: give one")
        if key is not None and book.ids == "ulid" and not book.remembers:
            raise errors.UsageError(
                f"{table} has no room to remember keys: append in a transaction with the "
                "completion of what the entry tells of, which happens once"
            )
        if actor is not None and not book.actor:
            raise errors.UsageError(f"{table} has no attribute for an actor")
        if subject is not None and "subject" not in self._has:
            raise errors.UsageError(f"{table} has no attribute for a subject")

    def _item(self, name: str, entry: Entry, mark: str) -> Item:
        book, body, item = self._book, entry.body.copy(), Item()
        for field in book.fields:
            if (value := body.pop(field, None)) is not None:
                item[field] = value
        if self._sealing is not None:
            item[book.body] = self._sealing.object(body, self._table.name, name, str(entry.id), "body")
        elif book.body and (body or not book.fields):
            item[book.body] = body
        if book.at and entry.at is not None:
            item[book.at] = book.time(entry.at)
        if entry.actor is not None:
            item[book.actor] = self._actor(entry.actor)
        if book.key and entry.key is not None:
            item[book.key] = entry.key
        if "token" in self._has:
            item["token"] = mark
        return item

    def _entry_part(
        self, name: str, entry: Entry, item: Item, mark: str, found: "list[Entry]"
    ) -> Part[Entry]:
        """One write; or two if the key is remembered, so that it finds the entry whatever its time."""
        book, known = self._book, entry
        drawn = book.ids == "ulid" and entry.key is None
        writes: tuple[Write, ...] = (Put(self._table, name, item, ABSENT, entry.id),)
        if book.remembers and entry.key is not None:
            memory = {at: value for at, value in item.items() if at not in ("actor", "at", "subject")}
            memory["body"] = {"entry": entry.id, "at": entry.at}
            writes = (Put(self._table, name, memory, ABSENT, USED + entry.key), *writes)

        def on_refused(refusals: PartRefusals) -> PartVerdict:
            nonlocal known
            there = next(refused for refused in refusals if refused is not None).item or {}
            if there.get("token") == mark or (drawn and not book.remembers):
                return PartVerdict.MADE
            if drawn:
                return PartVerdict.STALE  # another process has drawn the same id; it is drawn again
            first = there.get("body") or {}
            if book.remembers and "entry" in first:
                found.append(msgspec.structs.replace(entry, id=first["entry"], at=first["at"]))
                return PartVerdict.STALE  # it is read
            known = self._entry(there)
            return PartVerdict.STANDS

        # Asked for again, an id is drawn again, and a time is another one by then.
        named = entry.key is not None if book.remembers else book.ids == "own"
        return Part(writes, on_refused, lambda _: known, marked=named)

    # Reading

    def get(self, owner: str | Key, id: str | int) -> Steps[Entry | None]:
        """One entry, or None."""
        name = self.realm.name(owner)
        if self._book.remembers and isinstance(id, str) and id.startswith(USED):
            return None
        found = yield from read(Get(self._table, name, id))
        return None if found.item is None else self._entry(found.item)

    def list(
        self,
        owner: str | Key,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        reverse: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> Steps[Entries]:
        """A page of an owner's entries, sorted by time; both moments are included."""
        check_limit("limit", limit)
        low, high = self._bounds(since, until)
        name = self.realm.name(owner)
        return self._page(Query(self._table, name, low, high, reverse=reverse, limit=limit, after=after))

    def by_actor(
        self,
        actor: str | int,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        reverse: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> Steps[Entries]:
        """A page of what one actor did, for any owner, sorted by time.

        It is read from an index, which may lag behind.
        """
        check_limit("limit", limit)
        index = self._book.index
        if not index:
            raise errors.UsageError(f"table {self._table.name} has no index by who did it")
        low, high = (None if at is None else self._book.time(moment_of(at)) for at in (since, until))
        who = self._actor(actor)
        query = Query(self._table, who, low, high, reverse=reverse, limit=limit, after=after, index=index)
        return self._page(query)

    def recent(self, owner: str | Key, limit: int) -> Steps[Entries]:
        """The actors and times of the latest entries, the latest first, without anything else."""
        low, high = self._bounds(None, None)
        only = self._book.actor, self._book.at
        return self._page(
            Query(self._table, self.realm.name(owner), low, high, reverse=True, limit=limit, only=only)
        )

    def _page(self, query: Query) -> Steps[Entries]:
        page: Page = yield query
        return Entries(tuple(map(self._entry, page.items)), page.after)

    def _bounds(self, since: Moment | None, until: Moment | None) -> tuple[Bound, Bound]:
        low, high = (None if at is None else moment_of(at) for at in (since, until))
        if self._book.ids == "ulid":
            # From the first ULID on: what is remembered of keys comes after the last one.
            return first_ulid(low or 0), last_ulid(LATEST if high is None else high)
        if self._book.ids == "time":
            return None if low is None else _iso(low), None if high is None else f"{_iso(high)}~"
        if low is not None or high is not None:
            raise errors.UsageError(f"entries of table {self._table.name} are in the order of their numbers")
        return None, None

    def _entry(self, item: Item) -> Entry:
        book, id = self._book, item[self._sort]
        owner = item[self._table.partition].removeprefix(self.realm.prefix)
        body = self._body(owner, item) if book.body else {}
        body |= {name: item[name] for name in book.fields if item.get(name) is not None}
        at = item.get(book.at)
        moment = _moment(id) if book.ids == "time" else None if at is None else at / book.per_second
        actor = item.get(book.actor)
        if book.remembers and actor is not None:
            actor = actor.removeprefix(self.realm.prefix)
        return Entry(owner, id, moment, body, actor, item.get(book.key))

    def _body(self, owner: str, item: Item) -> dict[str, Any]:
        kept = item.get(self._book.body) or {}
        if self._sealing is not None:
            name, id = item[self._table.partition], str(item[self._sort])
            try:
                kept = self._sealing.opened(kept, self._table.name, name, id, "body")
            except ValueError as error:
                raise errors.RecordCorrupt(owner, f"entry {id}: {error}") from error
        return copied(kept)  # type: ignore[no-any-return]  # a dict stays one

    def _actor(self, actor: str | int) -> str | int:
        """An actor as the index has it, which all scopes share."""
        return self.realm.name(str(actor)) if self._book.remembers else actor


def _iso(moment: float) -> str:
    at = datetime.fromtimestamp(min(max(moment, 0.0), LAST), UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(id: str) -> float | None:
    try:
        return datetime.fromisoformat(id.partition("#")[0]).timestamp()
    except ValueError:  # another program writes it otherwise
        return None
