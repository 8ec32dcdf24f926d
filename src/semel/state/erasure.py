"""Erasing a subject: find and empty every row about a person, and still recognise duplicates."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from semel.core.codecs import not_kept
from semel.core.commands import NOW, Applied, Delete, Get, Item, Page, Query, Steps, Update, read, write
from semel.core.keys import key_of
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.realm import Realm
from semel.errors import NotPermitted, TableMissing, UsageError
from semel.model import Claimed, ProgressCallback
from semel.state.mailbox import TTL
from semel.tables import DOCUMENTS, INBOX, JOURNAL, LEDGER, OWN, SUBJECT, Table, known

ERASED = not_kept("erased")

# Rows are found through an index, which may lag behind: it is read until it has nothing new, up to 10 times.
PASSES = 10

# These may still get a result, and without the subject it would not be found then.
UNSETTLED = (Status.IN_PROGRESS, Status.UNKNOWN)

# Marking a message as done takes no longer than this.
LEASE = 30.0


class Erasure(msgspec.Struct, frozen=True):
    """What was done to forget a person."""

    records: int = 0
    """Records of the ledger whose result and error are gone; the fact stays, so duplicates are recognised."""
    documents: int = 0
    entries: int = 0
    running: tuple[str, ...] = ()
    """Keys that are running or unresolved. They are left alone: forget the person again after that."""
    more: bool = False
    """Rows about the person kept coming: stop what writes them, and forget the person again."""
    messages: int = 0
    """Messages that waited in inboxes on the store, or were dead letters: they are never handled."""
    skipped: tuple[str, ...] = ()
    """Tables of applications that this program may not read; if they are yours, use a role that may."""


RowKind: TypeAlias = Literal["records", "documents", "entries", "messages"]

# Where rows about subjects are, and what they are called. Messages come first: one that is handled meanwhile
# has a record by then.
HOMES: tuple[tuple[Table, RowKind], ...] = (
    (INBOX, "messages"),
    (LEDGER, "records"),
    (DOCUMENTS, "documents"),
    (JOURNAL, "entries"),
)

PHONE = re.compile(r"\+[\d\s()./-]{6,30}")


def _homes() -> Iterator[tuple[Table, RowKind]]:
    """Return semel's own tables with rows about persons, and then those of applications."""
    yield from HOMES
    for table in known():
        if "subject" in table.attributes and table not in OWN:
            yield table, "documents" if table.sort is None else "entries"


def as_written(person: str) -> str:
    """A person as applications write the name: one spelling for an e-mail address or a phone number."""
    text = person.strip()
    if "@" in text:
        return text.casefold()
    return f"+{''.join(filter(str.isdigit, text))}" if PHONE.fullmatch(text) else text


def erased_key(subject: str) -> str:
    """The key of the mark that a subject was erased: messages from before it are not handled any more."""
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
        """Erase everything kept about a person, but not the fact that something was done.

        Row by row: after a crash, the same call continues with what is left. `on_progress` is called after
        each row.
        """
        return self.erase([self.realm.subject(person)], on_progress=on_progress)

    def erase(
        self,
        subjects: Collection[str],
        *,
        on_progress: ProgressCallback[Erasure] | None = None,
        preview: bool = False,
        tables: dict[str, int] | None = None,
    ) -> Steps[Erasure]:
        """Erase everything kept under these hashes, or count what that would be; by table in `tables`."""
        done, erase_row = Erasure(), self._preview if preview else self._erase_row
        for _ in range(PASSES):
            before = done = msgspec.structs.replace(done, running=(), skipped=())
            for table, kind in _homes():
                rows = yield from _rows(table, subjects)
                if rows is None:
                    done = msgspec.structs.replace(done, skipped=(*done.skipped, table.name))
                for subject, item in rows or ():
                    erased = yield from erase_row(table, item, subject)
                    done = _counted(done, kind, erased)
                    if erased is True and tables is not None:
                        tables[table.name] = tables.get(table.name, 0) + 1
                    if on_progress is not None:
                        on_progress(done)
            if preview or msgspec.structs.replace(done, running=(), skipped=()) == before:
                return done
        return msgspec.structs.replace(done, more=True)

    def mark(self, subject: str) -> Steps[None]:
        """Record when a subject was erased, for messages that wait in a queue which cannot be searched."""
        key = erased_key(subject)
        yield from self._ledger.forget(key)
        yield from self._ledger.mark_processed(key, max(TTL, self._ledger.horizon))

    def _preview(self, table: Table, item: Item, _subject: str) -> Steps[bool | str]:
        """What erasing a row would return."""
        if table is not LEDGER and table is not INBOX:
            return True
        id = item[LEDGER.partition] if table is LEDGER else self.realm.name(item["record"])
        found = yield from read(Get(LEDGER, id))
        unsettled = found.item is not None and found.item.get("status") in UNSETTLED
        return key_of(id) if unsettled else True

    def _erase_row(self, table: Table, item: Item, subject: str) -> Steps[bool | str]:
        """Erase one row, and return whether that was done, or the key that is running or unresolved."""
        if table is LEDGER:
            return (yield from self._empty(item[LEDGER.partition], subject))
        if table is INBOX and not (yield from self._mark_done(item["record"])):
            return str(item["record"])
        # A journal entry's memory of its key stays: it names only the entry.
        key, sort = item[table.partition], None if table.sort is None else item[table.sort]
        found = yield from read(Get(table, key, sort))
        if found.item is None:
            return False
        # By now its place may be another subject's.
        reply = yield from write(Delete(table, key, {"subject": subject}, sort))
        # If a reply was lost, what was there a moment ago is found gone.
        return type(reply) is Applied or reply.item is None

    def _empty(self, id: str, subject: str) -> Steps[bool | str]:
        """Remove the result, the error and the subject from a record, in one write."""
        while True:
            found = yield from read(Get(LEDGER, id))
            record = found.item
            if record is None or record.get("subject") != subject:
                return False
            if record.get("status") in UNSETTLED:
                return key_of(id)
            if not self._has_overflow() and str(record.get("encoding")).endswith("+overflow"):
                raise UsageError(
                    f"the result of {key_of(id)!r} is in an overflow store, which this program was not "
                    "given, and has to go from there too: connect(..., overflow=...)"
                )
            # First what lies elsewhere: nothing leads there any more once the row is empty.
            yield from self._ledger.discard(record.get("result"), record.get("encoding"))
            change: Item = {"result": None, "error": None, "subject": None, "updated_at": NOW}
            change |= {name: None for name in ("details", "history") if record.get(name) is not None}
            if record.get("result") is not None:
                change["encoding"] = ERASED.encoding
            reply = yield from write(Update(LEDGER, id, change, _as_found(record)))
            # If a reply was lost, the subject is found gone.
            if type(reply) is Applied or (reply.item is not None and reply.item.get("subject") is None):
                return True

    def _mark_done(self, key: str) -> Steps[bool]:
        """Mark a message as done, for its redeliveries; False if it is running or unresolved."""
        record = yield from self._ledger.get(key)
        if record is None or record.status is Status.RELEASED:
            ttl = max(TTL, self._ledger.horizon)
            claim = yield from self._ledger.claim(key, lease=LEASE, ttl=ttl)
            if not isinstance(claim, Claimed):
                return False
            yield from self._ledger.complete(claim, None)
            return True
        return record.status not in UNSETTLED


def _counted(done: Erasure, kind: RowKind, erased: bool | str) -> Erasure:
    if isinstance(erased, str):
        return msgspec.structs.replace(done, running=tuple(dict.fromkeys((*done.running, erased))))
    return msgspec.structs.replace(done, **{kind: getattr(done, kind) + erased})


def _rows(table: Table, subjects: Iterable[str]) -> Steps[list[tuple[str, Item]] | None]:
    """The rows of subjects: none in a table that does not exist, None if this program may not read the table.

    Without an index of subjects, the whole table is read.
    """
    rows: list[tuple[str, Item]] = []
    try:
        for subject in subjects:
            query = Query(table, equal={"subject": subject})
            if SUBJECT in table.indexes:
                query = Query(table, subject, index=SUBJECT.name)
            page: Page = yield query
            rows += [(subject, item) for item in page.items]
            while page.after is not None:
                page = yield msgspec.structs.replace(query, after=page.after)
                rows += [(subject, item) for item in page.items]
    except TableMissing:
        if table is LEDGER:  # every place has one, so this is the wrong place
            raise
    except NotPermitted:
        if table in OWN:  # those of applications that are not here may be other programs'
            raise
        return None
    return rows


def _as_found(record: Item) -> Item:
    """Return what a write expects of a record that was read, as far as that one could be read."""
    seen = {name: record.get(name) for name in ("token", "status", "subject")}
    return {name: value for name, value in seen.items() if isinstance(value, str)}
