"""A table is data: its keys, its attributes, the attribute that ends an item's life, and how it is laid out.

From one such value come the statements that stores send, and the text that provisions the table.
"""

from enum import StrEnum
from typing import Any

import msgspec

from semel.errors import InvalidOption, UsageError


class Kind(StrEnum):
    """What an attribute holds."""

    TEXT = "text"
    NUMBER = "number"
    BYTES = "bytes"
    FLAG = "flag"
    """True or False."""
    OBJECT = "object"
    """A dict, as JSON knows it."""
    SET = "set"
    """A set of texts; an empty one is no attribute."""


class Form(StrEnum):
    """How a value is written, where a table's owner chose another way than the value itself."""

    PLAIN = "plain"
    SECONDS = "seconds"
    """A moment as whole seconds since the epoch, rounded up."""
    MILLISECONDS = "milliseconds"
    """A moment as whole milliseconds since the epoch, rounded up."""
    ISO = "iso"
    """A moment as ISO 8601 text in UTC, to the millisecond; it is not compared by any condition."""
    JSON = "json"
    """Bytes of JSON as text."""


class Same(msgspec.Struct, frozen=True):
    """As a default: the value that another attribute of the item has."""

    attribute: str


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """How one attribute is written in a table whose owner names or spells it otherwise."""

    name: str
    form: Form = Form.PLAIN
    spelled: dict[str, str] = {}
    """Other words for some of its values."""
    default: Any = None
    """What an item means that lacks it: one that somebody else has written."""

    def __hash__(self) -> int:
        return hash(self.name)


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to find items, by attributes of theirs; an item that lacks one of these is not in it."""

    name: str
    partition: str
    sort: str | None = None
    carries: tuple[str, ...] | None = None
    """What of an item it gives besides its key and its end; None for everything."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table that stores keep.

    The rules name attributes by the names in `attributes`. Stores of semel's own layout write them under
    these names; the fields from `title` on say how the table looks in DynamoDB, where it may have been first.
    """

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

    title: str = "semel-{env}-{name}"
    """The table's name in DynamoDB."""
    titled_by: str = ""
    """The environment variable that names it, where one is set."""
    longest: float | None = None
    """How many seconds an item stays that would stay for ever, where its owner's code looks for an end."""
    holds: "Table | None" = None
    """The table of the rules that this one stands for, whose attributes `columns` finds in it."""
    columns: dict[str, Column] = {}
    ttl: str = "ttl"
    """The attribute, in whole seconds, by which DynamoDB removes what has expired; "" where there is none."""
    bare_keys: bool = False
    """Keys stand in it as callers write them, without environment and scope: its title tells the first."""
    parts: tuple[str, ...] = ()
    """Attributes that repeat the pieces of the key between separators; "" passes over one."""
    separator: str = ":"
    copies: dict[str, tuple[str, Form]] = {}
    """Attributes that repeat another one, in another form."""
    spread: dict[str, tuple[str, ...]] = {}
    """Attributes whose fields stand in it as attributes of their own."""
    fixed: dict[str, str | int | bool] = {}
    """Attributes that every item has alike."""
    capacity: tuple[int, int] | None = None
    """Read and write units a second; None pays for each request."""
    recoverable: bool = False
    """Point-in-time recovery."""
    tags: dict[str, str] = {}

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

    def titled(self, title: str) -> "Table":
        """The same under another name in DynamoDB, whatever the environment says."""
        return msgspec.structs.replace(self, title=title, titled_by="")

    def index(self, name: str) -> Index | None:
        """The index of this name; None for no name, which is the table itself."""
        if not name:
            return None
        for index in self.indexes:
            if index.name == name:
                return index
        known = ", ".join(index.name for index in self.indexes) or "none"
        raise UsageError(f"table {self.name} has no index {name!r}; it has {known}")

    def column(self, attribute: str) -> Column:
        """How an attribute is written here."""
        return self.columns.get(attribute) or Column(name=attribute)


# What an item's end is where it has none.
FOREVER = float("inf")
YEAR = 365 * 86400.0

# What may be in doubt, by environment and scope, oldest first: what is UNKNOWN, and attempts that would be
# held or asked after if they vanished. Others are not in it, and cost nothing.
DOUBTS = Index(name="doubts", partition="doubt", sort="doubt_since", carries=())

# Every row of a person, for whoever has to forget it. Rows that name nobody are not in it, and cost nothing.
SUBJECT = Index(name="subject", partition="subject", carries=())

LEDGER = Table(
    name="ledger",
    partition="id",
    attributes={
        "status": Kind.TEXT,
        "token": Kind.TEXT,
        "attempt": Kind.NUMBER,
        "fingerprint": Kind.TEXT,
        "created_at": Kind.NUMBER,
        "updated_at": Kind.NUMBER,
        "lease_until": Kind.NUMBER,
        "expires_at": Kind.NUMBER,
        "result": Kind.BYTES,
        "encoding": Kind.TEXT,
        "error": Kind.TEXT,
        "version": Kind.NUMBER,
        "subject": Kind.TEXT,
        "details": Kind.OBJECT,
        "doubt": Kind.TEXT,
        "doubt_since": Kind.NUMBER,
    },
    expires="expires_at",
    forever="what is in doubt stays until somebody settles it",
    listed_by=("status",),
    indexes=(SUBJECT, DOUBTS),
)

DOCUMENTS = Table(
    name="documents",
    partition="id",
    attributes={
        "body": Kind.OBJECT,
        "ends": Kind.OBJECT,
        "version": Kind.NUMBER,
        "token": Kind.TEXT,
        "created_at": Kind.NUMBER,
        "updated_at": Kind.NUMBER,
        "expires_at": Kind.NUMBER,
        "subject": Kind.TEXT,
    },
    expires="expires_at",
    indexes=(SUBJECT,),
)

JOURNAL = Table(
    name="journal",
    partition="owner",
    sort="entry",
    attributes={
        "key": Kind.TEXT,
        "actor": Kind.TEXT,
        "at": Kind.NUMBER,
        "body": Kind.OBJECT,
        "token": Kind.TEXT,
        "expires_at": Kind.NUMBER,
        "subject": Kind.TEXT,
    },
    expires="expires_at",
    indexes=(Index(name="actor-at", partition="actor", sort="at"), SUBJECT),
)

# A partition has the totals of one counter by period, and beside them what was charged under which token.
COUNTERS = Table(
    name="counters",
    partition="counter",
    sort="entry",
    attributes={
        "count": Kind.NUMBER,
        "by": Kind.NUMBER,
        "period": Kind.TEXT,
        "token": Kind.TEXT,
        "state": Kind.TEXT,
        "updated_at": Kind.NUMBER,
        "expires_at": Kind.NUMBER,
    },
    expires="expires_at",
)

# Messages that were accepted and wait to be handled; and, beside them, those that nobody could handle.
INBOX = Table(
    name="inbox",
    partition="inbox",
    sort="entry",
    attributes={
        "key": Kind.TEXT,
        "group": Kind.TEXT,
        "body": Kind.BYTES,
        "encoding": Kind.TEXT,
        "attempts": Kind.NUMBER,
        "not_before": Kind.NUMBER,
        "error": Kind.TEXT,
        "at": Kind.NUMBER,
        "expires_at": Kind.NUMBER,
    },
    expires="expires_at",
)

OWN = (LEDGER, DOCUMENTS, JOURNAL, COUNTERS, INBOX)
