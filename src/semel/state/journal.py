"""The journal: entries that are appended and never changed, sorted by the time of what they describe.

An entry belongs to an owner (a conversation, a chat) and is found again by its time, or by who did it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

from semel import errors
from semel.core.commands import (
    ABSENT,
    After,
    Bound,
    Get,
    Item,
    Page,
    Put,
    Query,
    Steps,
    Write,
    read,
)
from semel.core.keys import Key, check
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict, TimedPlan, unrefusable
from semel.core.policy import DAY, Seconds, check_limit, seconds
from semel.core.realm import Moment, Realm, copied, moment_of, plain
from semel.state import ulids
from semel.state.ulids import ULIDS, Ulids
from semel.tables import JOURNAL, Table
from semel.tables.seeds import ACTIVITIES, MESSAGES, SUPPORT_AUDIT

# Long enough to find out what happened and why; the seed's audit keeps as long.
TTL = 60 * DAY

# Before every key that was used, where a journal remembers them: no ULID begins so.
USED = "key:"

Sign: TypeAlias = tuple[str | int | None, float]


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """How a table keeps entries: which attribute tells what."""

    table: Table
    ids: Literal["ulid", "time", "own"] = "ulid"
    """How entries are named: by a ULID, by their time and their key, or by a number of the caller's."""
    at: str = ""
    """The attribute with the time of what an entry tells; "" where only its name tells it."""
    per_second: int = 1
    """In what that attribute counts: 1 for seconds, 1000 for milliseconds."""
    actor: str = ""
    key: str = ""
    body: str = ""
    index: str = ""
    """By whom and when: the index over the two."""
    fields: tuple[str, ...] = ()
    """What of a body has an attribute of its own."""
    remembers: bool = False
    """Whether keys that were used are kept beside the entries."""

    def time(self, at: float) -> float:
        """A moment as this table counts."""
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
BOOKS = {
    book.table.name: book
    for book in (
        OWN,
        Book(
            table=ACTIVITIES,
            at="timestamp",
            per_second=1000,
            actor="userId",
            body="body",
            index="userId-timestamp-index",
            fields=("messageId", "type", "activity", "effort", "confidence"),
        ),
        Book(
            table=SUPPORT_AUDIT,
            ids="time",
            key="idempotency_key",
            fields=("action_type", "action_payload_redacted", "result"),
        ),
        Book(table=MESSAGES, ids="own", at="timestamp", per_second=1000, actor="userId", fields=("text",)),
    )
}


class Entry(msgspec.Struct, frozen=True):
    """One entry of a journal: what was done, when and by whom."""

    owner: str
    id: str | int
    at: float | None
    body: dict[str, Any]
    actor: str | int | None = None
    key: str | None = None


class Entries(msgspec.Struct, frozen=True):
    """Some entries, and where the next page begins; None when this is the last."""

    entries: tuple[Entry, ...]
    after: str | None


class JournalSteps:
    """The rules of the journal, as generators of commands."""

    def __init__(self, realm: Realm, book: Book = OWN, ids: Ulids = ULIDS) -> None:
        self.realm = realm
        self._book = book
        self._table = book.table
        self._marked = "token" in book.table.attributes
        self._ids = ids
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
        """Add an entry about something that happened at a moment of its own (else: now), and give it.

        In a transaction, now is after all that the transaction reads.
        The same `key` again adds nothing and gives the entry that is there.
        """
        name, content, span = self.realm.name(owner), self._content(body), seconds(ttl)
        person = self.realm.subject_of(subject)
        if key is not None:
            key = check(key)
        self._check(key, id, actor, person)
        who = str(actor) if self._book.remembers and actor is not None else actor
        before: list[Entry] = []

        def plan(mark: str) -> "Steps[Part[Entry]]":
            if before:
                return (yield from self._standing(name, before[-1]))
            moment = _checked_moment((yield from self.realm.now(at)))
            entry = Entry(str(owner), self._name(moment, key, id), moment, content, who, key)
            return self._adding(name, entry, self._item(name, entry, span, mark, person), mark, before)

        return TimedPlan(plan)

    def _standing(self, name: str, entry: Entry) -> Steps[Part[Entry]]:
        """The entry that is there under a key, with nothing left to write; what it told may be forgotten."""
        found = yield from read(Get(self._table, name, entry.id))
        there = entry if found.item is None else self._entry(entry.owner, found.item)
        return Part((), unrefusable, lambda _: there)

    def _check(self, key: str | None, id: int | None, actor: str | int | None, person: str | None) -> None:
        book = self._book
        if (book.ids == "own") != (id is not None):
            one = "need" if id is None else "make"
            raise errors.UsageError(f"entries of table {self._table.name} {one} an id of their own")
        if book.ids == "time" and key is None:
            raise errors.UsageError(f"entries of table {self._table.name} are named by their key: give one")
        if key is not None and book.ids == "ulid" and not book.remembers:
            raise errors.UsageError(
                f"table {self._table.name} has no room to remember keys: append in a transaction with the "
                "completion of what the entry tells of, which happens once"
            )
        if actor is not None and not book.actor:
            raise errors.UsageError(f"table {self._table.name} has no attribute for an actor")
        if person is not None and "subject" not in self._table.attributes:
            raise errors.UsageError(f"table {self._table.name} has no attribute for a subject")

    def _name(self, moment: float, key: str | None, id: int | None) -> str | int:
        if id is not None:
            return id
        return f"{_iso(moment)}#{key}" if self._book.ids == "time" else self._ids.make(moment)

    def _content(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(body, Mapping):
            raise errors.UsageError(f"an entry tells of something in a dict, not in {type(body).__name__}")
        content: dict[str, Any] = plain("body", dict(body))
        if not self._book.body and (unknown := content.keys() - set(self._book.fields)):
            raise errors.UsageError(f"table {self._table.name} has no attribute {', '.join(sorted(unknown))}")
        return self.realm.redacted(content)  # type: ignore[no-any-return]  # a dict stays one

    def _item(self, name: str, entry: Entry, span: float, mark: str, person: str | None) -> Item:
        book, rest = self._book, entry.body.copy()
        columns = {field: rest.pop(field) for field in book.fields if field in rest}
        item: Item = {field: value for field, value in columns.items() if value is not None}
        if self._sealing is not None:
            item[book.body] = self._sealing.object(rest, self._table.name, name, str(entry.id), "body")
        elif book.body and (rest or not book.fields):
            item[book.body] = rest
        if book.at and entry.at is not None:
            item[book.at] = book.time(entry.at)
        if entry.actor is not None:
            item[book.actor] = self._actor(entry.actor)
        if book.key and entry.key is not None:
            item[book.key] = entry.key
        if not self._table.forever:
            item[self._table.expires] = After(span)
        if self._marked:
            item["token"] = mark
        if person is not None:
            item["subject"] = person
        return item

    def _adding(self, name: str, entry: Entry, item: Item, mark: str, before: "list[Entry]") -> Part[Entry]:
        """One write; or two where the key is remembered, so that it finds the entry whatever its time."""
        known = entry
        writes: tuple[Write, ...] = (Put(self._table, name, item, ABSENT, entry.id),)
        if self._book.remembers and entry.key is not None:
            memory = item | {"body": {"entry": entry.id, "at": entry.at}}
            memory = {at: value for at, value in memory.items() if at not in ("actor", "at", "subject")}
            writes = (Put(self._table, name, memory, ABSENT, USED + entry.key), *writes)

        def judge(refusals: PartRefusals) -> PartVerdict:
            nonlocal known
            there = next(refused for refused in refusals if refused is not None).item or {}
            drawn = self._book.ids == "ulid" and entry.key is None
            if there.get("token") == mark or (drawn and not self._book.remembers):
                return PartVerdict.MADE
            if drawn:
                return PartVerdict.STALE  # another process has drawn the same id; it is drawn again
            if "entry" in (there.get("body") or {}) and self._book.remembers:
                first = there["body"]
                before.append(msgspec.structs.replace(entry, id=first["entry"], at=first["at"]))
                return PartVerdict.STALE  # it is looked up
            known = self._entry(entry.owner, there)
            return PartVerdict.STANDS

        # An id that was drawn is drawn anew when it is asked for again, and a time is another one by then.
        named = entry.key is not None if self._book.remembers else self._book.ids == "own"
        return Part(writes, judge, lambda _: known, marked=named)

    # Reading

    def get(self, owner: str | Key, id: str | int) -> Steps[Entry | None]:
        """One entry."""
        name = self.realm.name(owner)
        if self._book.remembers and isinstance(id, str) and id.startswith(USED):
            return None
        found = yield from read(Get(self._table, name, id))
        return None if found.item is None else self._entry(str(owner), found.item)

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
        """A page of an owner's entries in the order of their times; both moments are included."""
        check_limit("limit", limit)
        low, high = self._bounds(since, until)
        page: Page = yield Query(
            self._table,
            self.realm.name(owner),
            low,
            high,
            reverse=reverse,
            limit=limit,
            after=after,
        )
        return Entries(tuple(self._entry(str(owner), item) for item in page.items), page.after)

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
        """A page of what one actor did, whoever owns it, in the order of time.

        It comes from an index, which may lag a moment behind.
        """
        check_limit("limit", limit)
        if not self._book.index:
            raise errors.UsageError(f"table {self._table.name} has no index by who did it")
        low, high = (None if at is None else self._book.time(moment_of(at)) for at in (since, until))
        page: Page = yield Query(
            self._table,
            self._actor(actor),
            low,
            high,
            reverse=reverse,
            limit=limit,
            after=after,
            index=self._book.index,
        )
        owners = [self._owner(item) for item in page.items]
        entries = [self._entry(owner, item) for owner, item in zip(owners, page.items, strict=True)]
        return Entries(tuple(entries), page.after)

    def recent(self, owner: str | Key, limit: int) -> Steps[tuple[Sign, ...]]:
        """Who did something last here, and when: the latest first, and nothing else of the entries."""
        low, high = self._bounds(None, None)
        page: Page = yield Query(
            self._table,
            self.realm.name(owner),
            low,
            high,
            reverse=True,
            limit=limit,
            only=(self._book.actor, self._book.at),
        )
        entries = [self._entry(str(owner), item) for item in page.items]
        return tuple((entry.actor, entry.at) for entry in entries if entry.at is not None)

    def _bounds(self, since: Moment | None, until: Moment | None) -> tuple[Bound, Bound]:
        if self._book.ids == "own" and (since is not None or until is not None):
            raise errors.UsageError(f"entries of table {self._table.name} are in the order of their numbers")
        if self._book.ids == "time":
            low = None if since is None else _iso(_within(moment_of(since)))
            return low, None if until is None else _iso(_within(moment_of(until))) + "~"
        if self._book.ids == "own":
            return None, None
        low = ulids.first(0 if since is None else moment_of(since))
        return low, ulids.last(FAR if until is None else moment_of(until))

    def _entry(self, owner: str, item: Item) -> Entry:
        book, id = self._book, item[self._table.sort or ""]
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
            name, id = item[self._table.partition], str(item[self._table.sort or ""])
            try:
                kept = self._sealing.opened(kept, self._table.name, name, id, "body")
            except ValueError as error:
                raise errors.RecordCorrupt(owner, f"entry {id}: {error}") from error
        return copied(kept)  # type: ignore[no-any-return]  # a dict stays one

    def _actor(self, actor: str | int | None) -> str | int | None:
        """An actor as he stands in the index, which all scopes share."""
        if not self._book.remembers or actor is None:
            return actor
        return self.realm.name(actor) if isinstance(actor, str) else self.realm.name(str(actor))

    def _owner(self, item: Item) -> str:
        owner: str = item[self._table.partition]
        return owner.removeprefix(self.realm.prefix)


FAR = ulids.LATEST / 1000
# The last second that a date can be written of: what is meant to be later is in milliseconds.
LAST = 253402300799.0


def _checked_moment(moment: float) -> float:
    if not 0 <= moment <= LAST:
        raise errors.InvalidOption(f"{moment:.0f} is no moment of our time, in seconds since the epoch")
    return moment


def _within(moment: float) -> float:
    return min(max(moment, 0.0), LAST)


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(id: str) -> float | None:
    try:
        return datetime.fromisoformat(id.partition("#")[0]).timestamp()
    except ValueError:  # somebody else writes it otherwise
        return None
