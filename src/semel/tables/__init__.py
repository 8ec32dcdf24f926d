"""A table is data: its keys, its attributes, the attribute that ends its items, and its indexes.

From one such value come the statements that stores send, and the text that provisions the table. How other
programs write a table of theirs is a `TableMapping`, in `semel.tables.mapping`.
"""

from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from importlib import import_module

import msgspec

from semel.errors import InvalidOption, UsageError


class Kind(StrEnum):
    """What an attribute of a table holds."""

    TEXT = "text"
    NUMBER = "number"
    BYTES = "bytes"
    FLAG = "flag"
    """True or False."""
    OBJECT = "object"
    """A dict, as JSON knows it."""
    SET = "set"
    """A set of texts; an empty one is no attribute."""


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to find items, by attributes of theirs; an item that lacks one of these is not in it."""

    name: str
    partition: str
    sort: str | None = None
    carries: tuple[str, ...] | None = None
    """What of an item it gives besides its key and its end; None for everything."""
    by_realm: bool = False
    """Its partition is not that attribute but the environment and scope that it begins with."""

    @property
    def key(self) -> tuple[str, ...]:
        """The attributes that it finds items by."""
        return (self.partition,) if self.sort is None else (self.partition, self.sort)


def attributes_of(listed: str) -> dict[str, Kind]:
    """Attributes out of a list of their names and kinds, such as `status text, attempt number`."""
    return {name: Kind(kind) for name, kind in map(str.split, listed.split(","))}


class Table(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A table that stores keep; the rules name its attributes as `attributes` does."""

    name: str
    partition: str
    sort: str | None = None
    attributes: dict[str, Kind]
    expires: str
    """The attribute that says when an item's life ends."""
    forever: str = ""
    """Why items may live for ever; an item without an end is refused by a table that does not say."""
    listed_by: tuple[str, ...] = ()
    """Attributes that operators list by: an index where that costs no second write."""
    indexes: tuple[Index, ...] = ()
    optional_indexes: tuple[Index, ...] = ()
    """Indexes that a SQL store has only if its owner provisions them, since every write pays for them."""
    title: str = "semel-{env}-{name}"
    """The table's name in DynamoDB."""
    ttl: str = "ttl"
    """The attribute, in whole seconds, by which DynamoDB removes what has expired; "" where there is none."""

    def __post_init__(self) -> None:
        if not self.ttl and not self.forever:
            raise InvalidOption(
                f"table {self.name} has no TTL attribute, so nothing in it would ever go: "
                "name one with ttl=..., or say with forever=... why its items are kept"
            )

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<table {self.name}>"

    @property
    def key(self) -> tuple[str, ...]:
        """The attributes that name an item."""
        return (self.partition,) if self.sort is None else (self.partition, self.sort)

    @property
    def kinds(self) -> dict[str, Kind]:
        """Every attribute with what it holds, the key first; keys are text unless they say otherwise."""
        return dict.fromkeys(self.key, Kind.TEXT) | {self.expires: Kind.NUMBER} | self.attributes

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all its attributes."""
        return frozenset(self.kinds)

    def titled(self, title: str) -> "Table":
        """Return the table under another name in DynamoDB."""
        return msgspec.structs.replace(self, title=title)

    def index(self, name: str) -> Index | None:
        """The index of this name; None for no name, which is the table itself."""
        if not name:
            return None
        known = self.indexes + self.optional_indexes
        for index in known:
            if index.name == name:
                return index
        names = ", ".join(index.name for index in known) or "none"
        raise UsageError(f"table {self.name} has no index {name!r}; it has {names}")


FOREVER = float("inf")
"""The end of an item that has none."""
YEAR = 365 * 86400.0
"""A year in seconds."""

DOUBTS = Index(name="doubts", partition="doubt", sort="doubt_since", carries=())
"""What may be in doubt, by environment and scope, oldest first.

That is what is UNKNOWN, and attempts that would be held or asked after if they vanished. Other records are
not in it, and cost nothing.
"""

FAILURES = Index(name="failures", partition="failed", sort="failed_at", carries=())
"""What failed for good, by environment and scope, in the order of when it did; other records cost nothing."""

RECENT = Index(name="recent", partition="id", sort="updated_at", by_realm=True)
"""All records, by environment and scope, in the order of when they changed.

It is optional in a SQL store: every claim pays for it, and every change of a record.
"""

SUBJECT = Index(name="subject", partition="subject", carries=())
"""Every row of a person, for whoever has to forget it; rows that name nobody cost nothing."""


LEDGER = Table(
    name="ledger",
    partition="id",
    attributes=attributes_of(
        "status text, token text, attempt number, fingerprint text, created_at number, updated_at number, "
        "lease_until number, expires_at number, result bytes, encoding text, error text, version number, "
        "subject text, details object, doubt text, doubt_since number, worker text, began_at number, "
        "history text, failed text, failed_at number"
    ),
    expires="expires_at",
    forever="what is in doubt stays until somebody settles it",
    listed_by=("status",),
    indexes=(SUBJECT, DOUBTS, FAILURES),
    optional_indexes=(RECENT,),
)
"""The ledger's records, one for each key."""

DOCUMENTS = Table(
    name="documents",
    partition="id",
    attributes=attributes_of(
        "body object, ends object, version number, token text, created_at number, updated_at number, "
        "expires_at number, subject text"
    ),
    expires="expires_at",
    indexes=(SUBJECT,),
)
"""Documents, one for each key."""

JOURNAL = Table(
    name="journal",
    partition="owner",
    sort="entry",
    attributes=attributes_of(
        "key text, actor text, at number, body object, token text, expires_at number, subject text"
    ),
    expires="expires_at",
    indexes=(Index(name="actor-at", partition="actor", sort="at"), SUBJECT),
)
"""Entries of the journal, by their owner and in the order of time."""

COUNTERS = Table(
    name="counters",
    partition="counter",
    sort="entry",
    attributes=attributes_of(
        "count number, by number, period text, token text, state text, updated_at number, expires_at number"
    ),
    expires="expires_at",
)
"""The totals of a counter by period, and beside them what was charged under which token."""

INBOX = Table(
    name="inbox",
    partition="inbox",
    sort="entry",
    attributes=attributes_of(
        "key text, group text, body bytes, encoding text, attempts number, not_before number, error text, "
        "at number, expires_at number, subject text, record text"
    ),
    expires="expires_at",
)
"""Messages that were accepted and wait to be handled; and, beside them, those that nobody could handle."""

OWN = (LEDGER, DOCUMENTS, JOURNAL, COUNTERS, INBOX)
"""The tables that semel makes for itself."""

# Modules that list other programs' tables as `TABLES`: Powertools', and those of the applications.
OTHERS = ("semel.tables.powertools", "semel.apps.tables")


def known() -> Iterator[Table]:
    """Yield every table that has a name in URLs and for `semel provision`: semel's own, then others'."""
    yield from OWN
    for module in OTHERS:
        yield from import_module(module).TABLES


def optional_index(name: str) -> tuple[Table, Index]:
    """Find an optional index of semel's own tables, and its table."""
    known = {index.name: (table, index) for table in OWN for index in table.optional_indexes}
    if name not in known:
        raise InvalidOption(f"there is no optional index {name!r}; there is {', '.join(known)}")
    return known[name]
