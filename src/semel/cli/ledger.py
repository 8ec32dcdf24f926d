"""`semel ledger`: inspect a ledger, and settle records that need a person."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, TypeAlias

import typer

import semel
from semel import errors
from semel.cli import views
from semel.cli.common import (
    AfterOption,
    JsonOption,
    LimitOption,
    StoreOptions,
    UnreachedOverflow,
    absent,
    connected,
    json_value,
    number,
    on_a_store,
    print_json,
    print_more,
    unreached,
)
from semel.cli.filters import ScanOption, find
from semel.core import lifecycle
from semel.core.drive import Reaping
from semel.ops.model import Search, SearchPage

app: Final = typer.Typer(
    no_args_is_help=True, help="Inspect a ledger, and settle records that need a person."
)

KeyArgument: TypeAlias = Annotated[str, typer.Argument(metavar="KEY", help="The key, as `list` shows it.")]


@app.command("list")
@on_a_store()
def list_records(
    *,
    where: StoreOptions,
    status: Annotated[
        semel.Status | None,
        typer.Option(case_sensitive=False, help="Only records with this status.", show_choices=True),
    ] = None,
    limit: LimitOption = 20,
    after: AfterOption = None,
    scan: ScanOption = False,
    as_json: JsonOption = False,
) -> None:
    """List records with their results, a page at a time; `semel ls` searches for them.

    For those that need a person: semel ledger doubts
    """
    with connected(where) as s:
        page = find(s, Search(status=status), limit, after, scan=scan)
        _print_page(s.ledger, page, "No records.", as_json=as_json)


@app.command()
@on_a_store()
def doubts(
    *, where: StoreOptions, limit: LimitOption = 20, after: AfterOption = None, as_json: JsonOption = False
) -> None:
    """List records whose outcome somebody has to find out, oldest first.

    Then settle it: semel ledger resolve KEY --happened '"paid"'
    """
    with _ledger(where) as ledger:
        page = ledger.doubts(limit=limit, after=after)
        _print_page(ledger, page, "No doubts.", as_json=as_json)


def _print_page(
    ledger: semel.Ledger, page: semel.Listing | SearchPage, nothing: str, *, as_json: bool
) -> None:
    """Print a page of records, for people or for programs."""
    if as_json:
        records = [views.as_json(ledger, record) for record in page.records]
        print_json({"records": records, "unreadable": page.unreadable, "after": page.after})
        return
    if page.records:
        rows = [views.record_row(ledger, record) for record in page.records]
        views.print_table(views.RECORD, rows, cut=True)
    else:
        typer.echo(nothing)
    for key in page.unreadable:
        typer.echo(f"{key} cannot be read; semel ledger forget removes it for good.")
    print_more(page.after)


@app.command()
@on_a_store()
def show(key: KeyArgument, *, where: StoreOptions, as_json: JsonOption = False) -> None:
    """Show one record with its whole result."""
    with _ledger(where) as ledger:
        record = _found(ledger.get(key), key)
        if as_json:
            print_json(views.as_json(ledger, record))
        else:
            views.print_pairs(views.record_pairs(ledger, record))


@app.command()
@on_a_store()
def resolve(
    key: KeyArgument,
    *,
    happened: Annotated[
        str | None, typer.Option(metavar="JSON", help="It happened, with this result.")
    ] = None,
    not_happened: Annotated[
        bool, typer.Option("--not-happened", help="It did not happen; it may run again.")
    ] = False,
    abandon: Annotated[str | None, typer.Option(metavar="REASON", help="It stays failed.")] = None,
    where: StoreOptions,
) -> None:
    """Settle the outcome of an attempt that vanished.

    First find out whether the effect happened: ask the bank, look into the mailbox. Then record it here.
    """
    settlement = _settlement(happened, not_happened, abandon)
    with _ledger(where) as ledger:
        ledger.resolve(key, settlement)
        typer.echo(f"{key} is {_found(ledger.get(key), key).status.value}.")


@app.command()
@on_a_store()
def forget(
    key: KeyArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm that it may run again.")] = False,
    where: StoreOptions,
) -> None:
    """Delete a record, so that the next call with its key runs again."""
    if not yes:
        raise errors.UsageError(f"once {key!r} is forgotten, the next call runs again: say --yes")
    with unreached() as overflow, _ledger(where, overflow) as ledger:
        if not ledger.forget(key):
            raise absent("record of", key)
        typer.echo(f"{key} is forgotten.")


@app.command("drop-result")
@on_a_store()
def drop_result(key: KeyArgument, *, where: StoreOptions) -> None:
    """Delete a result and keep the record, so that duplicates are still recognised."""
    with unreached() as overflow, _ledger(where, overflow) as ledger:
        record = _found(ledger.get(key), key)
        if not ledger.drop_result(key):
            raise errors.Refused(
                key, f"is {record.status.value}; only what is COMPLETED has a result to drop"
            )
        typer.echo(f"{key} is still known to be done; its result is gone.")


@app.command()
@on_a_store()
def reap(*, where: StoreOptions) -> None:
    """Delete expired records, from a store that does not do so by itself."""
    with connected(where) as s:
        if not isinstance(s.store, Reaping):
            raise errors.UsageError("this store needs no reaping: it removes by itself what has expired")
        s.ledger.list(limit=1)  # a store reaps the tables that are in use, and by now none is
        removed = 0
        while bite := s.store.reap():
            removed += bite
        typer.echo(f"Removed {number(removed, 'expired record')}.")


@app.command()
def diagram() -> None:
    """Print the life of a record as a Mermaid diagram."""
    typer.echo(lifecycle.diagram())


@contextmanager
def _ledger(where: StoreOptions, overflow: UnreachedOverflow | None = None) -> Iterator[semel.Ledger]:
    with connected(where, overflow=overflow) as s:
        yield s.ledger


def _found(record: semel.Record | None, key: str) -> semel.Record:
    if record is None:
        raise absent("record of", key)
    return record


def _settlement(happened: str | None, not_happened: bool, abandon: str | None) -> semel.Settlement:
    if (happened is not None) + not_happened + (abandon is not None) != 1:
        raise errors.UsageError("say one of --happened JSON, --not-happened and --abandon REASON")
    if happened is not None:
        return semel.Happened(json_value("--happened", happened))
    return semel.NotHappened() if abandon is None else semel.Abandoned(abandon)
