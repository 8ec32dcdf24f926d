"""Naming the person that a row is about, so that it is found when that person is to be erased."""

from semel.connect import Semel
from semel.core.keys import MAX_KEY_BYTES
from semel.state.erasure import as_written


def person(s: Semel, *names: str) -> str | None:
    """The first of these names that says something, as it is written everywhere.

    None where none does, or where the ledger has no secret: a hash that anybody can make hides nobody.
    """
    if s.ledger.steps.realm.secret is None:
        return None
    return next(filter(_is_name, map(as_written, names)), None)


def _is_name(text: str) -> bool:
    """Whether somebody may be called so: what a webhook brings may be anything."""
    return bool(text) and text.isprintable() and len(text.encode()) <= MAX_KEY_BYTES
