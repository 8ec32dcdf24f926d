"""Where a command looked, and which other ledgers of the store need an operator."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import typer

import semel
from semel import errors
from semel.cli.common import StoreOptions, bound, configuration_for, known_apps, number
from semel.cli.filters import is_billed
from semel.ops.model import PAGE_SIZE, Search
from semel.ops.standing import InboxPlace


class NeedsOperator(msgspec.Struct, frozen=True):
    """What needs an operator in a ledger that a command did not look into."""

    look_with: str
    """The option that names the ledger, such as "--app support"."""
    unresolved: int
    dead_letters: int
    more: bool = False
    """There are more unresolved records than were counted."""

    def __str__(self) -> str:
        unresolved = number(self.unresolved, "unresolved record") + (" or more" if self.more else "")
        dead = number(self.dead_letters, "dead letter")
        return f"Not listed, elsewhere in this store: {unresolved}, {dead}. Look with {self.look_with}."


def place_of(s: semel.Semel) -> str:
    """Name the environment and the scope that a command looks into."""
    return f"environment {s.env}, {f'scope {s.scope}' if s.scope else 'no scope'}"


def ledger_option(scope: str, apps: list[str]) -> str:
    """Return the option that names the ledger of an application or a scope."""
    return f"--app {scope}" if scope in apps else f"--scope {shlex.quote(scope)}"


def needs_operator(where: StoreOptions, s: semel.Semel) -> list[NeedsOperator]:
    """Find what other ledgers of the store have, where neither an application nor a scope was named.

    Unresolved records and dead letters are counted; where reading is billed, only those of applications.
    """
    if where.app is not None or where.scope is not None or s.scope:
        return []
    apps, inboxes = known_apps(configuration_for(where)), inboxes_in(s)
    scopes = dict.fromkeys([*apps, *(each.scope for each in inboxes if each.scope)])
    found = [_count(where, s, scope, apps, inboxes) for scope in scopes]
    return [each for each in found if each.unresolved or each.dead_letters]


def inboxes_in(s: semel.Semel) -> tuple[InboxPlace, ...]:
    """List the inboxes of the environment that hold messages; none where that would be billed."""
    try:
        return () if is_billed(s) else s.ops.inboxes()
    except errors.StoreError:  # without a table for inboxes there are none
        return ()


def dead_letters_of(where: StoreOptions, s: semel.Semel) -> dict[str, int]:
    """Count the dead letters of each inbox of the ledger that a command looks into."""
    try:
        return dead_letters(s, where.app, inboxes_in(s))
    except errors.StoreError:
        return {}


def dead_letters(s: semel.Semel, app: str | None, inboxes: tuple[InboxPlace, ...]) -> dict[str, int]:
    """Count the dead letters of each inbox of a ledger that has any; an application has one of its name."""
    names = [*([app] if app else []), *(each.name for each in inboxes if each.scope == s.scope)]
    counts = {name: s.mailbox(name).count(dead=True).number for name in names}
    return {name: count for name, count in counts.items() if count}


def _count(
    where: StoreOptions, s: semel.Semel, scope: str, apps: list[str], inboxes: tuple[InboxPlace, ...]
) -> NeedsOperator:
    unresolved, dead, more = 0, 0, False
    # A ledger that is not there, or that may not be read, has nothing to tell.
    with suppress(errors.SemelError), _opened(where, s, scope, apps) as other:
        # In DynamoDB an application may use this very ledger, which was looked into; its inbox was not.
        if (other.store, other.scope) != (s.store, s.scope):
            page = other.ops.search(Search(in_doubt=True), limit=PAGE_SIZE)
            unresolved, more = len(page.records), page.after is not None
        dead = sum(dead_letters(other, scope if scope in apps else None, inboxes).values())
    return NeedsOperator(ledger_option(scope, apps), unresolved, dead, more)


@contextmanager
def _opened(where: StoreOptions, s: semel.Semel, scope: str, apps: list[str]) -> Iterator[semel.Semel]:
    """Open the ledger of an application or a scope; in DynamoDB an application may have its own table."""
    if scope not in apps:
        yield s.scoped(scope)
        return
    theirs = bound(msgspec.structs.replace(where, app=scope))
    if theirs.url == bound(where).url:
        yield s.scoped(theirs.scope)
        return
    with theirs.open() as other:
        yield other


def print_elsewhere(found: list[NeedsOperator]) -> None:
    """Print what other ledgers have, on stderr: it is not what was asked for."""
    for each in found:
        typer.echo(str(each), err=True)
