"""`semel journal`: journal entries, sorted by time."""

from typing import Annotated, Any, Final, TypeAlias

import typer

from semel.cli import views
from semel.cli.common import (
    AfterOption,
    JsonOption,
    LimitOption,
    StoreOptions,
    connected,
    on_a_store,
    print_json,
    print_more,
)
from semel.cli.elsewhere import place_of
from semel.cli.filters import when
from semel.state.journal import Entries, Entry

app: Final = typer.Typer(no_args_is_help=True, help="Show journal entries, sorted by time.")

Since: TypeAlias = Annotated[
    str | None, typer.Option(metavar="WHEN", help="The first time: 2h ago, or 2026-10-25T08:00Z.")
]
Until: TypeAlias = Annotated[str | None, typer.Option(metavar="WHEN", help="The last time, inclusive.")]
Reverse: TypeAlias = Annotated[bool, typer.Option("--reverse", help="The latest first.")]


@app.command("list")
@on_a_store()
def list_entries(
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="The owner, such as a conversation.")],
    *,
    since: Since = None,
    until: Until = None,
    reverse: Reverse = False,
    limit: LimitOption = 20,
    after: AfterOption = None,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """List an owner's entries, a page at a time.

    The latest five: semel journal list chat:42 --reverse --limit 5
    """
    first, last = when("--since", since), when("--until", until)
    with connected(where) as s:
        page = s.journal.list(owner, since=first, until=last, reverse=reverse, limit=limit, after=after)
    print_page(page, as_json, place_of(s), owners=False)


@app.command("by")
@on_a_store()
def by_actor(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="Who did it.")],
    *,
    since: Since = None,
    until: Until = None,
    reverse: Reverse = False,
    limit: LimitOption = 20,
    after: AfterOption = None,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """List what one actor did, for any owner, a page at a time.

    It reads an index, which in DynamoDB may lag behind by a moment.

    semel journal by assistant --since 2026-10-25T08:00Z
    """
    first, last = when("--since", since), when("--until", until)
    with connected(where) as s:
        page = s.journal.by_actor(actor, since=first, until=last, reverse=reverse, limit=limit, after=after)
    print_page(page, as_json, place_of(s), owners=True)


def print_page(page: Entries, as_json: bool, place: str, *, owners: bool) -> None:
    """Print a page, or that the place has none."""
    if as_json:
        print_json({"entries": [for_programs(entry) for entry in page.entries], "after": page.after})
        return
    if page.entries:
        names = ("at", "owner" if owners else "actor", "what")
        views.print_table(names, [_row(entry, owners) for entry in page.entries], whole=2)
    else:
        typer.echo(f"No entries in {place}.")
    print_more(page.after)


def _row(entry: Entry, owners: bool) -> views.TableRow:
    """An entry for looking over; none of its text is cut."""
    who = entry.owner if owners else entry.actor
    return views.moment_or_none(entry.at) or "", "" if who is None else str(who), views.compact(entry.body)


def for_programs(entry: Entry) -> dict[str, Any]:
    """An entry as JSON."""
    return {
        "owner": entry.owner,
        "id": entry.id,
        "at": views.moment_or_none(entry.at),
        "actor": entry.actor,
        "key": entry.key,
        "body": entry.body,
    }
