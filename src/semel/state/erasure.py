"""Erasing a person: every row about the person is found and emptied, and duplicates are still recognised."""

import re
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from semel.core.codecs import not_kept
from semel.core.commands import (
    NOW,
    AllOf,
    Applied,
    Delete,
    Equals,
    Get,
    Item,
    Page,
    Query,
    Refused,
    Sort,
    Steps,
    Update,
    read,
    write,
)
from semel.core.keys import key_of
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.realm import Realm
from semel.errors import NotPermitted, TableMissing, UsageError
from semel.model import Claimed, ProgressCallback
from semel.state.mailbox import TTL
from semel.tables import DOCUMENTS, INBOX, JOURNAL, LEDGER, OWN, SUBJECT, Table
from semel.tables.seeds import ACTIVITIES, MESSAGES, SUPPORT_AUDIT, SUPPORT_STATE

ERASED = not_kept("erased")

# Rows are found through an index, which may lag behind: it is asked again until it has nothing new, so often.
PASSES = 10

# These may still get a result, and without the person's name nobody would find it then.
UNSETTLED = (Status.IN_PROGRESS, Status.UNKNOWN)

# Whoever writes down that a message will never be handled needs no longer than this.
LEASE = 30.0


class Erasure(msgspec.Struct, frozen=True):
    """What was done to forget a person."""

    records: int = 0
    """Records of the ledger whose result and error are gone; the fact stays, so duplicates are recognised."""
    documents: int = 0
    entries: int = 0
    running: tuple[str, ...] = ()
    """Keys being worked on, or waiting to be settled, are left alone: forget the person again after that."""
    more: bool = False
    """Rows about the person kept coming: stop what writes them, and forget the person again."""
    messages: int = 0
    """Messages that waited in inboxes on the store, or were dead letters: they are never handled."""
    skipped: tuple[str, ...] = ()
    """Tables of applications that this program may not look into; if they are yours, use a role that may."""


ActOnRow: TypeAlias = Callable[[Table, Item, str], Steps[bool | str]]

RowKind: TypeAlias = Literal["records", "documents", "entries", "messages"]

# Where rows about persons are, and what they are called. Messages come first: one that is handled meanwhile
# has a record by then.
HOMES: tuple[tuple[Table, RowKind], ...] = (
    (INBOX, "messages"),
    (LEDGER, "records"),
    (DOCUMENTS, "documents"),
    (SUPPORT_STATE, "documents"),
    (JOURNAL, "entries"),
    (SUPPORT_AUDIT, "entries"),
    (ACTIVITIES, "entries"),
    (MESSAGES, "entries"),
)


def as_written(person: str) -> str:
    """A person as applications write the name: one spelling for an e-mail address or a phone number."""
    text = person.strip()
    if "@" in text:
        return text.casefold()
    digits = "".join(filter(str.isdigit, text))
    return f"+{digits}" if text.startswith("+") and PHONE.fullmatch(text) else text


PHONE = re.compile(r"\+[\d\s()./-]{6,30}")


def erased_key(subject: str) -> str:
    """The key of the mark that a person was erased: what was accepted before is not handled any more."""
    return f"semel:erased:{subject}"


class ErasureSteps:
    """The rules of forgetting, as generators of commands."""

    def __init__(self, realm: Realm, ledger: LedgerSteps, has_overflow: Callable[[], bool]) -> None:
        self.realm = realm
        self._ledger = ledger
        self._has_overflow = has_overflow

    def forget_subject(
        self, person: str, *, on_progress: ProgressCallback[Erasure] | None = None
    ) -> Steps[Erasure]:
        """Drop everything kept about a person, but not the fact that something was done.

        Row by row: after a crash the same call goes on with what is left. `on_progress` is called after each.
        """
        return self.erase(self.realm.subject(person), on_progress=on_progress)

    def erase(
        self,
        subject: str,
        *,
        on_progress: ProgressCallback[Erasure] | None = None,
        preview: bool = False,
        tables: dict[str, int] | None = None,
    ) -> Steps[Erasure]:
        """Drop everything kept under a person's hash, or count what that would be; by table in `tables`."""
        done, act = Erasure(), self._previewed if preview else self._row
        for _ in range(PASSES):
            before = msgspec.structs.replace(done, running=(), skipped=())
            done = before
            for table, kept in HOMES:
                before_it = getattr(done, kept)
                done = yield from self._table(table, kept, subject, done, on_progress, act)
                if tables is not None and (rows := getattr(done, kept) - before_it):
                    tables[table.name] = tables.get(table.name, 0) + rows
            if preview or msgspec.structs.replace(done, running=(), skipped=()) == before:
                return done
        return msgspec.structs.replace(done, more=True)

    def mark(self, subject: str) -> Steps[None]:
        """Note when a person was erased, for messages that wait in a queue which cannot be searched."""
        key = erased_key(subject)
        yield from self._ledger.forget(key)
        yield from self._ledger.mark_processed(key, max(TTL, self._ledger.horizon))

    def _table(  # noqa: PLR0917 - all of them belong to one pass
        self,
        table: Table,
        kept: RowKind,
        subject: str,
        done: Erasure,
        on_progress: ProgressCallback[Erasure] | None,
        act: ActOnRow,
    ) -> Steps[Erasure]:
        after = None
        while True:
            try:
                page = yield from _named(table, subject, after)
            except NotPermitted:
                # Semel's own tables are everybody's; those of applications that are not here may be others'.
                if table in OWN:
                    raise
                return msgspec.structs.replace(done, skipped=(*done.skipped, table.name))
            for item in page.items:
                gone = yield from act(table, item, subject)
                done = _counted(done, kept, gone)
                if on_progress is not None:
                    on_progress(done)
            after = page.after
            if after is None:
                return done

    def _row(self, table: Table, item: Item, subject: str) -> Steps[bool | str]:
        """Erase one row: whether that was done, or the key that is being worked on."""
        if table is LEDGER:
            return (yield from self._emptied(item[LEDGER.partition], subject))
        if table is INBOX:
            return (yield from self._unsent(item, subject))
        # Of an entry the key stays that it was added under, which names only the entry.
        sort = None if table.sort is None else item[table.sort]
        return (yield from _deleted(table, subject, item[table.partition], sort))

    def _previewed(self, table: Table, item: Item, _subject: str) -> Steps[bool | str]:
        """What would become of one row."""
        if table is not LEDGER and table is not INBOX:
            return True
        id = item[LEDGER.partition] if table is LEDGER else self.realm.name(item["key"])
        found = yield from read(Get(LEDGER, id))
        unsettled = found.item is not None and found.item.get("status") in UNSETTLED
        return key_of(id) if unsettled else True

    def _emptied(self, id: str, subject: str) -> Steps[bool | str]:
        """The result and the error go, and the name of the person with them, in one write."""
        while True:
            found = yield from read(Get(LEDGER, id))
            record = found.item
            if record is None or record.get("subject") != subject:
                return False
            if record.get("status") in UNSETTLED:
                return key_of(id)
            # First what lies elsewhere: nothing leads there any more once the row is empty.
            yield from self._discard(record)
            change: Item = {"result": None, "error": None, "subject": None, "updated_at": NOW}
            change |= {name: None for name in ("details", "history") if record.get(name) is not None}
            if record.get("result") is not None:
                change["encoding"] = ERASED.encoding
            reply = yield from write(Update(LEDGER, id, change, _as_found(record)))
            if type(reply) is Applied or _erased(reply):
                return True

    def _discard(self, record: Item) -> Steps[None]:
        if not self._has_overflow() and str(record.get("encoding")).endswith("+overflow"):
            key = key_of(record[LEDGER.partition])
            raise UsageError(
                f"the result of {key!r} is in an overflow store, which this program was not given, "
                "and has to go from there too: connect(..., overflow=...)"
            )
        yield from self._ledger.discard(record.get("result"), record.get("encoding"))

    def _unsent(self, item: Item, subject: str) -> Steps[bool | str]:
        """A message goes, and will not be handled when it is delivered again: it counts as done."""
        record = yield from self._ledger.get(item["key"])
        if record is not None and record.status in UNSETTLED:
            return str(item["key"])
        if record is None or record.status is Status.RELEASED:
            ttl = max(TTL, self._ledger.horizon)
            claim = yield from self._ledger.claim(item["key"], lease=LEASE, ttl=ttl)
            if not isinstance(claim, Claimed):
                return str(item["key"])
            yield from self._ledger.complete(claim, None)
        return (yield from _deleted(INBOX, subject, item[INBOX.partition], item[INBOX.sort or ""]))


def joined(one: Erasure, other: Erasure) -> Erasure:
    """What was done in two goes."""
    return Erasure(
        records=one.records + other.records,
        documents=one.documents + other.documents,
        entries=one.entries + other.entries,
        running=tuple(dict.fromkeys((*one.running, *other.running))),
        more=one.more or other.more,
        messages=one.messages + other.messages,
        skipped=tuple(dict.fromkeys((*one.skipped, *other.skipped))),
    )


def _counted(done: Erasure, kept: RowKind, gone: bool | str) -> Erasure:
    if isinstance(gone, str):
        known = gone in done.running
        return done if known else msgspec.structs.replace(done, running=(*done.running, gone))
    return msgspec.structs.replace(done, **{kept: getattr(done, kept) + gone})


def _named(table: Table, subject: str, after: str | None) -> Steps[Page]:
    """A page of a person's rows; of a table that nobody has made there are none.

    Where there is no index of persons, all of the table is looked through.
    """
    asked = (
        Query(table, subject, index=SUBJECT.name, after=after)
        if SUBJECT in table.indexes
        else Query(table, where=Equals("subject", subject), after=after)
    )
    try:
        page: Page = yield asked
    except TableMissing:
        # Everybody has a ledger: where that is missing, this is the wrong place.
        if table is LEDGER:
            raise
        return Page(0, (), None)
    return page


def _deleted(table: Table, subject: str, key: str, sort: Sort = None) -> Steps[bool]:
    """Delete a row that is the person's still; by now its place may be somebody else's."""
    found = yield from read(Get(table, key, sort))
    if found.item is None:
        return False
    reply = yield from write(Delete(table, key, Equals("subject", subject), sort))
    # Where the answer was lost, what was there a moment ago is found gone.
    return type(reply) is Applied or reply.item is None


def _as_found(record: Item) -> AllOf:
    """That a record is still the one that was read, so far as that one could be read."""
    seen = {name: record.get(name) for name in ("token", "status", "subject")}
    return AllOf(tuple(Equals(name, value) for name, value in seen.items() if isinstance(value, str)))


def _erased(reply: Applied | Refused) -> bool:
    """Whether my write was made though its answer was lost."""
    return reply.item is not None and reply.item.get("subject") is None
