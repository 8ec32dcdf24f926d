"""What is asked of a ledger and what it answers, as frozen values."""

from typing import Any, Literal, TypeAlias

import msgspec

from semel.core.events import digest
from semel.core.lifecycle import Status
from semel.core.policy import DAY
from semel.model import Record, ScanCost

# How many entries a page has, unless the caller says otherwise.
PAGE_SIZE = 50
# No record is kept for longer than this when an operator says how long.
LONGEST_TTL = 3650 * DAY

# What somebody can do to a record. `release` lets the next call run; `complete` and `fail` end it; `drop`
# lets the result go and keeps the fact; `forget` removes the record, so that the next call is the first.
ActionName: TypeAlias = Literal["release", "complete", "fail", "drop", "forget"]


# In which order records are wanted: by when they changed, failed, or came to be in doubt.
SortOrder: TypeAlias = Literal["newest", "oldest"]


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted. What is left out does not narrow it."""

    status: Status | None = None
    prefix: str = ""
    """What the key begins with."""
    in_doubt: bool = False
    """Only what waits for somebody to find out what became of it."""
    error: str = ""
    """The type of the kept error, such as "TimeoutError"."""
    worker: str = ""
    """What the name of the worker contains: a host, a process, a function."""
    subject: str = ""
    """The person that it is about."""
    digest: str = ""
    """The digest by which a log line names a key, or its beginning."""
    since: float | None = None
    """Changed at this moment or later."""
    until: float | None = None
    """Changed at this moment or earlier."""
    order: SortOrder | None = None
    """Newest or oldest first. Of what failed or is in doubt every store knows the order; of all records a
    store in memory, and one in SQL that was provisioned for it (`semel provision --with recent`)."""

    @property
    def way(self) -> str:
        """By what it is looked for: an index, or the keys themselves."""
        if self.subject:
            return "subject"
        if self.in_doubt or self.status is Status.UNKNOWN:
            return "doubts"
        if self.status is Status.FAILED:
            return "failures"
        if self.order is not None:
            return "recent"
        return "key" if self.status is None else "status"

    def scans(self, *, unordered: bool) -> bool:
        """Whether records are read one after the other, in a store whose keys lie in no order or in one."""
        if self.way in ("subject", "doubts", "failures", "recent"):
            return False
        return unordered or (self.status is None and not self.prefix)


class SearchPage(msgspec.Struct, frozen=True):
    """A page of the records that were asked for, and what it cost to find them."""

    records: tuple[Record, ...]
    after: str | None
    """Where the next page begins; None when this is the last."""
    now: float
    examined: int
    """About how many keys the store has gone over to find these, as far as it tells."""
    how: str
    """By which way they were found; see `Search.way`."""
    unreadable: tuple[str, ...] = ()
    scan: bool = False
    """They were found by reading one record after the other, as no index leads to them."""


class SearchCost(msgspec.Struct, frozen=True):
    """What it takes to go through a search to its end."""

    how: Literal["index", "scan"]
    """By an index, or by reading one record after the other."""
    way: str
    """See `Search.way`."""
    whole: ScanCost | None = None
    """What reading the whole table takes, where this store has to; a page takes a small part of that."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator wants done to a record, and why."""

    name: ActionName
    key: str
    by: str
    """Who wants it."""
    why: str
    """The reason, for whoever looks back."""
    result: Any = None
    """With `complete`: what came of it."""
    seen: str = ""
    """The version of the record that was looked at (see `version_of`); "" for whichever is there."""
    force: bool = False
    """Though somebody is at work on it at this moment."""
    ttl: float | None = None
    """How long the record is kept from then on; None for as long as it had left, and 30 days at least."""


class Done(msgspec.Struct, frozen=True):
    """What an operator's action did, or would do."""

    key: str
    name: ActionName
    before: str
    """How the record stood: its status, "absent" or "unreadable"."""
    after: str
    changed: bool
    """False where this very action was done before, or was refused."""
    refused: str = ""
    """Why it was not done."""


class Erased(msgspec.Struct, frozen=True):
    """What was erased of a person, or would be."""

    subjects: tuple[str, ...]
    """The hashes that stand for the person here: of the name as it was given, and as it is written."""
    tables: dict[str, int]
    """How many rows, by their table; those of `ledger` lose their result, others are deleted."""
    running: tuple[str, ...] = ()
    """Keys being worked on, or waiting to be settled, are left alone: erase the person again after that."""
    more: bool = False
    """Rows about the person kept coming: stop what writes them, and erase the person again."""
    skipped: tuple[str, ...] = ()
    """Tables of applications that this program may not look into; if they are yours, use a role that may."""
    preview: bool = False

    @property
    def rows(self) -> int:
        """How many rows in all."""
        return sum(self.tables.values())

    @property
    def whole(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.running or self.more)


def version_of(record: Record) -> str:
    """A name for how a record stands at this moment: another one as soon as it changes."""
    # Whoever knows a token can end its claim, so it is not told.
    return digest(f"{record.token} {record.attempt} {record.status.value}")
