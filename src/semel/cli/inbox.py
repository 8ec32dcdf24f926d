"""`semel inbox`: what waits to be handled, and what nobody could handle."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from semel import errors
from semel.apps.configuration import Configuration, read, store_of
from semel.apps.ledgers import in_dynamodb, ledger_at
from semel.apps.registry import own_ledger
from semel.cli import views
from semel.cli.common import (
    JsonOption,
    LimitOption,
    StoreOptions,
    app_names,
    configuration_for,
    connected,
    number,
    on_a_store,
    print_json,
    sections,
)
from semel.doors.inbox import Dead, Inbox, Survey, open_inbox

app = typer.Typer(
    no_args_is_help=True, help="Look at what waits to be handled, and put back what nobody could handle."
)

InboxArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The inbox, as its programs name it: an app's name, say.",
        autocompletion=app_names,
    ),
]
QueueOption: TypeAlias = Annotated[
    str, typer.Option(metavar="URL", help="The FIFO queue of SQS that it is on, if it is on one.")
]
DeadLettersOption: TypeAlias = Annotated[
    str, typer.Option(metavar="URL", help="The queue of SQS that its dead letters go to.")
]


@app.command("list")
@on_a_store()
def list_waiting(
    name: InboxArgument,
    *,
    queue: QueueOption = "",
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Tell how much waits: how many messages, how old the oldest is, and how many groups rest.

    A group rests after a failure, until its first message is tried again. Counted are ten thousand at most.

    semel inbox list support
    """
    with _inbox(name, where, queue) as inbox:
        told = inbox.survey()
    if as_json:
        oldest = None if told.oldest is None else views.moment(told.oldest)
        print_json({"inbox": name, **msgspec.to_builtins(told), "oldest": oldest})
    else:
        _tell(told)


@app.command("dead")
@on_a_store()
def list_dead(
    name: InboxArgument,
    *,
    limit: LimitOption = 20,
    queue: QueueOption = "",
    dead_letters: DeadLettersOption = "",
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """List messages that were put aside, the oldest first: why, when, and after how many attempts.

    What a message says is not shown. Mend what was wrong, then put it back: semel inbox redrive NAME ID
    """
    with _inbox(name, where, queue, dead_letters) as inbox:
        found = inbox.dead(limit)
    if as_json:
        letters = [msgspec.to_builtins(dead) | {"at": views.moment(dead.at)} for dead in found]
        print_json({"inbox": name, "dead": letters})
        return
    if found:
        views.print_table(DEAD, [_row(dead) for dead in found], whole=2, cut=True)
    else:
        typer.echo("Nothing was put aside.")
    if len(found) == limit:
        typer.echo(f"There may be more: --limit {limit * 10}")


@app.command()
@on_a_store()
def redrive(
    name: InboxArgument,
    id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="One message, as `dead` shows it.", show_default=False),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that were put aside.")] = False,
    queue: QueueOption = "",
    dead_letters: DeadLettersOption = "",
    where: StoreOptions,
) -> None:
    """Put messages back that were put aside, to be handled as if they were new.

    Each takes its old place in its group: before those that still wait, after those that were handled since.
    On SQS it comes last. If this is stopped half-way, the same command goes on with what is left.

    semel inbox redrive support --all
    """
    if (id is None) == (not everything):
        raise errors.UsageError("name one message, by its id as `semel inbox dead` shows it; or say --all")
    with _inbox(name, where, queue, dead_letters) as inbox, _shown() as told:
        done = inbox.redrive(id, told=told)
    typer.echo(f"Put back {number(done, 'message')}.")


@contextmanager
def _inbox(name: str, where: StoreOptions, queue: str, dead_letters: str = "") -> Iterator[Inbox]:
    if dead_letters and not queue:
        raise errors.UsageError("--dead-letters goes with --queue: name both, or neither")
    configuration = configuration_for(where)
    if where.scope is None and where.app is None:
        where = _of_its_app(name, where, configuration)
    if not queue:
        queue, dead_letters = _queues(name, configuration)
    with (
        connected(where) as s,
        closing(open_inbox(s, name, queue=queue, dead_letters=dead_letters)) as inbox,
    ):
        yield inbox


def _of_its_app(name: str, where: StoreOptions, configuration: Configuration) -> StoreOptions:
    """An inbox that has an app's name is the app's, where the settings have such an app."""
    if name in sections(configuration, "apps"):
        return msgspec.structs.replace(where, app=name)
    url = store_of(configuration).url
    if os.environ.get("SEMEL_SCOPE") or not in_dynamodb(url):
        return where
    ledger = own_ledger(name, {})
    if ledger is not None and ledger_at(url).name != ledger.name:
        # What was given up stays so in the app's own ledger, and a message that is put back comes to nothing.
        raise errors.UsageError(
            f"{name} has a ledger of its own in DynamoDB: say --app {name}; or --scope, for an inbox of yours"
        )
    return where


def _queues(name: str, configuration: Configuration) -> tuple[str, str]:
    """The queues of SQS that an inbox is on by the settings; "" where it is on the store."""
    from semel.service.settings import InboxSection as Section

    chosen = read(Section, sections(configuration, "inbox").get(name, {}), ("inbox", name), configuration)
    return chosen.queue, chosen.dead_letters


@contextmanager
def _shown() -> Iterator[Callable[[int], None]]:
    """Show on a terminal how far it has come."""
    console, text = Console(stderr=True), TextColumn("Putting back: {task.description}")
    quiet = not console.is_terminal
    with Progress(SpinnerColumn(), text, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task(number(0, "message"), total=None)
        yield lambda done: progress.update(task, description=number(done, "message"))


def _tell(told: Survey) -> None:
    if not told.waiting:
        typer.echo("Nothing waits.")
        return
    pairs = [("waiting", f"{told.waiting:,}{' or more' if told.more else ''}")]
    if told.oldest is not None:
        pairs.append(("oldest", f"accepted {views.span(time.time() - told.oldest)} ago"))
    rows: dict[str, Any] = {"lanes": told.lanes, "resting": told.resting, "at work": told.entered}
    notes = {
        "lanes": "a group is one, and so is a message of none",
        "resting": "failed, and tried again later",
        "at work": "groups that somebody is at work on",
    }
    for name, count in rows.items():
        if count is not None:
            pairs.append((name, f"{count:,}  ({notes[name]})"))
    views.print_pairs(pairs)


DEAD = ("id", "key", "attempts", "since", "error")


def _row(dead: Dead) -> views.TableRow:
    since = f"{views.span(time.time() - dead.at)} ago"
    return dead.id, dead.key, str(dead.attempts), since, views.cut(dead.error)
