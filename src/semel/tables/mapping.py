# ruff: noqa: RUF012 - a Struct copies its defaults
"""Other programs' tables: how DynamoDB has what the rules know by other names and in other forms.

Only the store in DynamoDB and provisioning read this. For the rules, and in every other store, a mapping is
the `Table` that it also is.
"""

from enum import StrEnum
from typing import Any

import msgspec

from semel.tables import Table


class Form(StrEnum):
    """How a value is written, where a table's owner chose another way than the value itself."""

    PLAIN = "plain"
    SECONDS = "seconds"
    """A moment as whole seconds since the epoch, rounded up."""
    MILLISECONDS = "milliseconds"
    """A moment as whole milliseconds since the epoch, rounded up."""
    ISO = "iso"
    """A moment as ISO 8601 text in UTC, to the millisecond."""
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
    """What an item means that lacks it: one that another program wrote."""
    comparable: bool = False
    """Whether callers compare with what another program wrote here: a fingerprint made as theirs is."""

    def __hash__(self) -> int:
        return hash(self.name)


def defaults(**values: Any) -> dict[str, Column]:
    """Return columns that are named as in the ledger, with what an item means that lacks them."""
    return {name: Column(name=name, default=value) for name, value in values.items()}


class TableMapping(Table, frozen=True, kw_only=True, dict=True):
    """A table of another program, as it is in DynamoDB."""

    holds: Table | None = None
    """The table of the rules that it stands for; None where the rules use it as it is."""
    columns: dict[str, Column] = {}
    """How attributes of that table, or its own, are written where they are written otherwise."""
    bare_keys: bool = False
    """Keys are as callers write them, without environment and scope: the title tells the environment."""
    parts: tuple[str, ...] = ()
    """Attributes that repeat the pieces of the key between separators; "" passes over one."""
    separator: str = ":"
    copies: dict[str, tuple[str, Form]] = {}
    """Attributes that repeat another one, in another form."""
    spread: dict[str, tuple[str, ...]] = {}
    """Attributes whose fields are attributes of their own."""
    longest: float | None = None
    """How many seconds an item stays that would stay for ever, where its owner's code looks for an end."""
    titled_by: str = ""
    """The environment variable that names the table, where one is set."""
    located_by: tuple[str, str] = ("", "")
    """The environment variables for its region and its endpoint, where no URL says them."""
    capacity: tuple[int, int] | None = None
    """Read and write units a second; None pays for each request."""
    recoverable: bool = False
    """Point-in-time recovery."""
    tags: dict[str, str] = {}

    def __hash__(self) -> int:
        return hash(self.name)

    def titled(self, title: str) -> "TableMapping":
        """Return the table under another name in DynamoDB, whatever the environment says."""
        return msgspec.structs.replace(self, title=title, titled_by="")

    def column(self, attribute: str) -> Column:
        """Return how an attribute is written here."""
        return self.columns.get(attribute) or Column(name=attribute)


def mapped(table: Table) -> TableMapping:
    """Return how DynamoDB has a table: a mapping as it says, and semel's own tables as they are."""
    if isinstance(table, TableMapping):
        return table
    return TableMapping(**{field: getattr(table, field) for field in Table.__struct_fields__})


def asked(table: Table) -> Table:
    """Return the table that the rules ask for where this one is used."""
    return mapped(table).holds or table
