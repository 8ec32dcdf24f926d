"""Indexes that the owner of a store may choose: asked for one that is not there, a store says what to do."""

from typing import NoReturn

from semel.core.commands import Query
from semel.errors import InvalidOption, NotProvisioned
from semel.tables import OWN, Choice, Table

# What is in order in every store, and what to do where more is wanted.
INSTEAD = (
    "what failed and what is in doubt is in the order of time in every store; for all records, "
    "semel export and semel import bring them to a SQLite file, and semel provision --with recent orders "
    "them there"
)


def named(name: str) -> tuple[Table, Choice]:
    """An index that can be chosen, and its table."""
    known = {each.index.name: (table, each) for table in OWN for each in table.choices}
    if name not in known:
        raise InvalidOption(f"there is no index {name!r} to choose; there is {', '.join(known)}")
    return known[name]


def refuse_unchosen(query: Query, choice: Choice, command: str) -> NoReturn:
    """Refuse to ask an index that the store's owner has not chosen; `command` is what provisions it."""
    raise NotProvisioned(
        choice.serves, query.table.name, query.index, f"{command} --with {choice.index.name}"
    )


def not_offered(choice: Choice, why: str) -> InvalidOption:
    """What is wrong with asking a store for an index that its kind does not offer."""
    return InvalidOption(f"{choice.serves} is not to be had here: {why}; {INSTEAD}")
