"""Forgetting a person: every row that names him is found and emptied, and duplicates are still recognised."""

from collections.abc import Callable
from typing import TypeAlias

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
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.realm import Realm
from semel.errors import TableMissing, UsageError
from semel.tables import DOCUMENTS, JOURNAL, LEDGER, SUBJECT, Table

ERASED = not_kept("erased")

# Rows are found through an index, which may lag behind: it is asked again until it has nothing new, so often.
PASSES = 10

# These may still get a result, and without the person's name nobody would find it then.
UNSETTLED = (Status.IN_PROGRESS, Status.UNKNOWN)


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


Told: TypeAlias = Callable[[Erasure], object]


class ErasureSteps:
    """The rules of forgetting, as generators of commands."""

    def __init__(self, realm: Realm, ledger: LedgerSteps, has_overflow: Callable[[], bool]) -> None:
        self.realm = realm
        self._ledger = ledger
        self._has_overflow = has_overflow

    def forget_subject(self, person: str, *, told: Told | None = None) -> Steps[Erasure]:
        """Drop everything kept about a person, but not the fact that something was done.

        Row by row: after a crash the same call goes on with what is left. `told` is called as it goes on.
        """
        subject, done = self.realm.subject(person), Erasure()
        for _ in range(PASSES):
            before = msgspec.structs.replace(done, running=())
            done = before
            for table, erase in (
                (LEDGER, self._record),
                (DOCUMENTS, self._document),
                (JOURNAL, self._entry),
            ):
                done = yield from self._table(table, subject, erase, done, told)
            if msgspec.structs.replace(done, running=()) == before:
                return done
        return msgspec.structs.replace(done, more=True)

    def _table(
        self,
        table: Table,
        subject: str,
        erase: Callable[[Item, str, Erasure], Steps[Erasure]],
        done: Erasure,
        told: Told | None,
    ) -> Steps[Erasure]:
        after = None
        while True:
            page = yield from _named(table, subject, after)
            for item in page.items:
                done = yield from erase(item, subject, done)
                if told is not None:
                    told(done)
            after = page.after
            if after is None:
                return done

    def _record(self, item: Item, subject: str, done: Erasure) -> Steps[Erasure]:
        """The result and the error go, and the name of the person with them, in one write."""
        id = item[LEDGER.partition]
        while True:
            found = yield from read(Get(LEDGER, id))
            record = found.item
            if record is None or record.get("subject") != subject:
                return done
            if record.get("status") in UNSETTLED:
                return msgspec.structs.replace(done, running=(*done.running, _key(record)))
            # First what lies elsewhere: nothing leads there any more once the row is empty.
            yield from self._discard(record)
            change: Item = {"result": None, "error": None, "subject": None, "updated_at": NOW}
            if record.get("details") is not None:
                change["details"] = None
            if record.get("result") is not None:
                change["encoding"] = ERASED.encoding
            reply = yield from write(Update(LEDGER, id, change, _as_found(record)))
            if type(reply) is Applied or _erased(reply):
                return msgspec.structs.replace(done, records=done.records + 1)

    def _discard(self, record: Item) -> Steps[None]:
        if not self._has_overflow() and str(record.get("encoding")).endswith("+overflow"):
            raise UsageError(
                f"the result of {_key(record)!r} is in an overflow store, which this program was not given, "
                "and has to go from there too: connect(..., overflow=...)"
            )
        yield from self._ledger.discard(record.get("result"), record.get("encoding"))

    def _document(self, item: Item, subject: str, done: Erasure) -> Steps[Erasure]:
        gone = yield from _deleted(DOCUMENTS, subject, item[DOCUMENTS.partition])
        return msgspec.structs.replace(done, documents=done.documents + gone)

    def _entry(self, item: Item, subject: str, done: Erasure) -> Steps[Erasure]:
        """The entry goes; the key it was added under stays, which names only the entry."""
        gone = yield from _deleted(JOURNAL, subject, item[JOURNAL.partition], item[JOURNAL.sort or ""])
        return msgspec.structs.replace(done, entries=done.entries + gone)


def _named(table: Table, subject: str, after: str | None) -> Steps[Page]:
    """A page of a person's rows; of a table that nobody has made there are none."""
    try:
        page: Page = yield Query(table, subject, index=SUBJECT.name, after=after)
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


def _key(record: Item) -> str:
    id: str = record[LEDGER.partition]
    return id.split("/", 2)[2]


def _as_found(record: Item) -> AllOf:
    """That a record is still the one that was read, so far as that one could be read."""
    seen = {name: record.get(name) for name in ("token", "status", "subject")}
    return AllOf(tuple(Equals(name, value) for name, value in seen.items() if isinstance(value, str)))


def _erased(reply: Applied | Refused) -> bool:
    """Whether my write was made though its answer was lost."""
    return reply.item is not None and reply.item.get("subject") is None
