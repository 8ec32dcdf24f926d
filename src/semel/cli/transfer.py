"""`semel export`, `semel import` and `semel copy`: a ledger moves to another store."""

from typing import Annotated, TypeAlias

import msgspec
import typer

from semel import errors
from semel.apps.ledgers import ledger_at
from semel.cli import views
from semel.cli.common import JsonOption, StoreOptions, bound, connected, number, on_a_store, print_json
from semel.ops.copying import WAIT, Copied, Copier, Differences
from semel.ops.transfer import Exported, Imported, export_to, import_from
from semel.tables import LEDGER

FileArgument: TypeAlias = Annotated[str, typer.Argument(metavar="FILE", help="The file, in lines of JSON.")]


@on_a_store("app", "scope")
def export(file: FileArgument, *, where: StoreOptions, as_json: JsonOption = False) -> None:
    """Write everything that is kept for an environment to a new file, in all its scopes.

    What is encrypted stays so; the rest can be read, and may be personal: only you may read the file.

    semel export prod.jsonl --url "$OLD" --env prod
    """
    check_layout(bound(where).url)
    with connected(where) as s, views.progress("Exporting", _exported, Exported()) as on_progress:
        done = export_to(file, s.store, s.env, on_progress=on_progress)
    if as_json:
        print_json({"file": file, "env": s.env, "items": done.items, "tables": done.tables})
    else:
        typer.echo(f"Exported to {file}: {_exported(done)}.")


@on_a_store("app", "scope")
def import_(
    file: FileArgument,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write over what is there already, which is lost.")
    ] = False,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Put what was exported into a store; what is there already is left alone.

    The file is checked whole before anything is written. If it is stopped half-way, the same command goes on.

    semel import prod.jsonl --url "$NEW" --env prod
    """
    check_layout(bound(where).url)
    with connected(where) as s, views.progress("Importing", _imported, Imported()) as on_progress:
        done = import_from(file, s.store, s.env, replace=replace, on_progress=on_progress)
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        typer.echo(f"Imported from {file}: {_imported(done)}.")
    if done.refused:
        raise errors.SemelError(
            f"the store has no room for {number(len(done.refused), 'item')}: {'; '.join(done.refused)}"
        )


@on_a_store("app", "scope", "url")
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of the store in use.")],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="The URL of the store that nobody works on yet.")
    ],
    *,
    switch_over: Annotated[
        bool, typer.Option("--switch-over", help="The workers of FROM were stopped: copy the last of it.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="With --switch-over: so many seconds for running work to finish.")
    ] = WAIT,
    check: Annotated[bool, typer.Option("--check", help="Only compare the two.")] = False,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Copy everything that is kept for an environment to another store, while the first is in use.

    Then stop the workers, and switch over; start them on the new store when it says that it is done:

    semel copy "$OLD" "$NEW" --env prod

    semel copy "$OLD" "$NEW" --env prod --switch-over
    """
    if switch_over and check:
        raise errors.UsageError("--check writes nothing, and --switch-over does: give one of them")
    old, new = (msgspec.structs.replace(where, url=url) for url in (source, target))
    if bound(old).url == bound(new).url:
        raise errors.UsageError("FROM and TO are the same store")
    for each in (source, target):
        check_layout(each)
    with connected(old) as s, connected(new) as t:
        if check:
            _print_differences(Copier(s.store, t.store, s.env).check(), as_json)
            return
        with views.progress("Copying", _copied, Copied()) as on_progress:
            copier = Copier(s.store, t.store, s.env, on_progress=on_progress)
            done = copier.switch_over(wait) if switch_over else copier.copy()
    _print_copied(done, switch_over, as_json)


def _print_copied(done: Copied, switch_over: bool, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        typer.echo(f"Copied: {_copied(done)}.")
        for line in (*done.refused, *(done.differences.places if done.differences else ())):
            typer.echo(f"  {line}")
    if switch_over and not done.done:
        raise errors.SemelError(f"the switch-over is not done: {done.why}")
    if done.refused:
        raise errors.SemelError(f"the new store has no room for {number(len(done.refused), 'item')}")
    if not as_json:
        typer.echo(DONE if done.done else NEXT)


DONE = "The switch-over is done: start the workers on the new store, and none on the old one."
NEXT = "Now stop the workers of the old store, and run the same command with --switch-over."


def _print_differences(found: Differences, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(found) | {"complete": found.complete})
    else:
        typer.echo(
            f"Compared {number(found.items, 'item')}: {found.missing:,} missing in the new store, "
            f"{found.older:,} older there, {found.newer:,} newer there, {found.only_there:,} only there."
        )
        for line in found.places:
            typer.echo(f"  {line}")
    if not found.complete:
        raise errors.SemelError("the new store lacks something that the old one has")


def _copied(done: Copied) -> str:
    words = f"{number(done.items, 'item')} in pass {done.passes}, {done.changed:,} of them changed"
    words += f", {number(done.running, 'record is', 'records are')} being worked on" if done.running else ""
    words += f", {number(done.lapsed, 'worker has', 'workers have')} vanished" if done.lapsed else ""
    return words + (f", {done.newer:,} newer in the new store and left alone" if done.newer else "")


def check_layout(url: str) -> None:
    """Refuse a ledger in a table of somebody else's layout, which has no place for all that an item says."""
    table = ledger_at(url)
    if table is not LEDGER and table.name != LEDGER.name:
        raise errors.UsageError(
            f"table {table.name} is not of semel's own layout: its items cannot be moved as they are"
        )


def _exported(done: Exported) -> str:
    tables = ", ".join(f"{name} {count:,}" for name, count in done.tables.items())
    return f"{number(done.items, 'item')} ({tables})" if tables else "nothing yet"


def _imported(done: Imported) -> str:
    words = f"{number(done.written, 'item')} written, {done.there:,} there already"
    return words + (f", {done.expired:,} expired since" if done.expired else "")
