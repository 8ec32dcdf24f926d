"""`semel inbox`: the messages that wait in an inbox, and its dead letters."""

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Annotated, Final, TypeAlias

import msgspec
import typer

import semel
from semel import errors
from semel.apps.configuration import Configuration, read
from semel.cli import views
from semel.cli.asking import SHOWN, ByHandOptions
from semel.cli.common import (
    JsonOption,
    LimitOption,
    StoreOptions,
    app_names,
    configuration_for,
    connected,
    known_apps,
    number,
    on_a_store,
    print_json,
    sections,
    with_options,
)
from semel.cli.elsewhere import inboxes_in, ledger_option, place_of
from semel.cli.filters import when
from semel.doors.inbox import Dead, DeadFilter, Inbox, Redriven, Survey, open_inbox
from semel.doors.inbox.redriving import redrive as redriven
from semel.model import ProgressCallback
from semel.ops.model import PAGE_SIZE
from semel.ops.standing import InboxPlace

app: Final = typer.Typer(
    no_args_is_help=True, help="Show the messages that wait in an inbox, and redrive dead letters."
)

InboxArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The name of the inbox, such as the name of an app.",
        autocompletion=app_names,
    ),
]
QueueOption: TypeAlias = Annotated[
    str, typer.Option(metavar="URL", help="The SQS FIFO queue, if the inbox is on SQS.")
]
DeadLettersOption: TypeAlias = Annotated[
    str, typer.Option(metavar="URL", help="The SQS queue for dead letters.")
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
    """Show how many messages wait, how old the oldest is, and how many groups are paused.

    A group is paused after a failure, until its first message is retried. At most ten thousand are counted.

    semel inbox list support
    """
    with _inbox(name, where, queue) as inbox:
        found = inbox.survey()
    if as_json:
        print_json({"inbox": name, **views.readable(found)})
    else:
        _print_survey(found)


@app.command("dead")
@on_a_store()
def list_dead(
    name: InboxArgument,
    *,
    limit: LimitOption = PAGE_SIZE,
    queue: QueueOption = "",
    dead_letters: DeadLettersOption = "",
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters, oldest first: why, when, and after how many attempts.

    Bodies are not shown. Fix the cause, then put a message back: semel inbox redrive NAME ID
    """
    with _inbox(name, where, queue, dead_letters) as inbox:
        found = inbox.dead(limit)
    if as_json:
        print_json({"inbox": name, "dead": views.readable(found)})
        return
    if found:
        views.print_table(DEAD, [_row(dead) for dead in found], whole=2, cut=True)
    else:
        typer.echo("Nothing was put aside.")
    if len(found) == limit:
        typer.echo(f"There may be more: --limit {limit * 10}")


class RedriveOptions(ByHandOptions, frozen=True, kw_only=True):
    """Which dead letters are put back, who wants it, and why."""

    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False
    error: Annotated[
        str, typer.Option(metavar="TYPE", help="Those with this type of error, such as TimeoutError.")
    ] = ""
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Those whose key begins so.")] = ""
    group: Annotated[str | None, typer.Option(metavar="TEXT", help="Those of one group.")] = None
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Put aside since: 2h ago, or 2026-10-25T08:00Z.")
    ] = None
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Put aside until: 10min ago, or 2026-10-25T08:00Z.")
    ] = None

    def which(self, id: str | None) -> DeadFilter:
        """The dead letters that are meant."""
        wanted = DeadFilter(
            id=id or "",
            error=self.error,
            prefix=self.prefix,
            group=self.group,
            since=when("--since", self.since),
            until=when("--until", self.until),
        )
        narrowed = msgspec.structs.replace(wanted, id="") != DeadFilter()
        if [id is not None, self.everything, narrowed].count(True) != 1:
            raise errors.UsageError(
                "name one message, by its id as `semel inbox dead` shows it; or say --all, or which: "
                "--error, --prefix, --group, --since, --until"
            )
        self.check_why()
        return wanted


@app.command()
@on_a_store()
@with_options("options", RedriveOptions)
def redrive(
    name: InboxArgument,
    id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The id of one message, as `dead` shows it.", show_default=False),
    ] = None,
    *,
    queue: QueueOption = "",
    dead_letters: DeadLettersOption = "",
    options: RedriveOptions,
    where: StoreOptions,
) -> None:
    """Put dead letters back, to be handled as new messages: one, all, or those that options find.

    A message returns to its old position in its group: before those that still wait, after those that were
    handled since. On SQS it comes last. If interrupted, run it again: it continues with what is left. Who did
    it and why is in the operators' journal.

    semel inbox redrive support --error TimeoutError --since 2h --why "the bank is back"
    """
    which = options.which(id)
    with _opened(name, where, queue, dead_letters) as (s, inbox):
        _redrive(s, inbox, which, options)


def _redrive(s: semel.Semel, inbox: Inbox, which: DeadFilter, options: RedriveOptions) -> None:
    """Show what would be put back, ask where it is more than one, and put it back."""
    by, found = options.who, None
    if options.preview or not (which.id or options.yes):
        with views.progress("Looking", _messages, 0) as on_progress:
            found = redriven(s, inbox, which, by=by, why=options.why, preview=True, on_progress=on_progress)
        if options.preview or not found.letters:
            _print_redriven(found, options, preview=True)
            return
        show, count = partial(_print_redriven, found, options, preview=True), _messages(len(found.letters))
        question = f"Shall {count} be put back?"
        options.confirm(f"{count} would be put back", show, question)
    with _progress(found) as on_progress:
        done = redriven(s, inbox, which, by=by, why=options.why, on_progress=on_progress)
    _print_redriven(done, options, preview=False)
    if done.refused:
        raise typer.Exit(1)


@contextmanager
def _progress(found: Redriven | None) -> Iterator[ProgressCallback[int]]:
    """A bar where it is known how many there are."""
    if found is None:
        with views.progress("Putting back", _messages, 0) as on_progress:
            yield on_progress
        return
    with views.progress_bar("Putting back", len(found.letters)) as advance:
        yield lambda _count: advance()


def _print_redriven(done: Redriven, options: RedriveOptions, *, preview: bool) -> None:
    if options.as_json:
        letters = views.readable(done.letters)
        print_json({"preview": preview, "redriven": letters, "refused": dict(done.refused)})
        return
    if preview and done.letters:
        views.print_table(DEAD, [_row(dead) for dead in done.letters[:SHOWN]], whole=2, cut=True)
        if len(done.letters) > SHOWN:
            typer.echo(f"and {len(done.letters) - SHOWN:,} more.")
    count = _messages(len(done.letters))
    typer.echo(f"{count} would be put back." if preview else f"Put back {count}.")
    for id, why in done.refused.items():
        typer.echo(f"{id} was not put back: {why}.", err=True)


def _messages(count: int) -> str:
    return number(count, "message")


@contextmanager
def _inbox(name: str, where: StoreOptions, queue: str, dead_letters: str = "") -> Iterator[Inbox]:
    with _opened(name, where, queue, dead_letters) as (_, inbox):
        yield inbox


@contextmanager
def _opened(
    name: str, where: StoreOptions, queue: str, dead_letters: str
) -> Iterator[tuple[semel.Semel, Inbox]]:
    """The ledger that an inbox belongs to, and the inbox."""
    if dead_letters and not queue:
        raise errors.UsageError("--dead-letters goes with --queue: name both, or neither")
    configuration = configuration_for(where)
    if where.scope is None and where.app is None:
        where = _of_its_app(name, where, configuration)
    if not queue:
        queue, dead_letters = _queues(name, configuration)
    with (
        connected(where) as s,
        closing(
            open_inbox(s, name, queue=queue, dead_letters=dead_letters, shared=where.app is not None)
        ) as inbox,
    ):
        if not (queue or name == where.app):
            _check_there(s, inbox, known_apps(configuration))
        yield s, inbox


def _of_its_app(name: str, where: StoreOptions, configuration: Configuration) -> StoreOptions:
    """An inbox that has an app's name is the app's, where the settings have such an app."""
    if name in sections(configuration, "apps"):
        return msgspec.structs.replace(where, app=name)
    if name in known_apps(configuration) and not os.environ.get("SEMEL_SCOPE"):
        # Elsewhere than in the app's ledger nothing waits, and a message that is put back is never handled.
        raise errors.UsageError(
            f"{name} is an application, and these settings do not have it: say --app {name} for its inbox, "
            "or --scope for an inbox of your own"
        )
    return where


def _check_there(s: semel.Semel, inbox: Inbox, apps: list[str]) -> None:
    """Refuse an inbox that holds nothing and that no setting names: its name may be mistyped."""
    if inbox.count().number or inbox.count(dead=True).number:
        return
    there = inboxes_in(s)
    if InboxPlace(s.scope, inbox.name) in there:
        return
    names = [
        each.name if each.scope == s.scope else f"{each.name} ({ledger_option(each.scope, apps)})"
        for each in there
    ]
    raise errors.SemelError(
        f"there is no inbox {inbox.name!r} with messages in {place_of(s)}; "
        f"inboxes with messages: {', '.join(names) or 'none'}"
    )


def _queues(name: str, configuration: Configuration) -> tuple[str, str]:
    """The queues of SQS that an inbox is on by the settings; "" where it is on the store."""
    from semel.service.settings import InboxSection as Section

    chosen = read(Section, sections(configuration, "inbox").get(name, {}), ("inbox", name), configuration)
    return chosen.queue, chosen.dead_letters


def _print_survey(found: Survey) -> None:
    if not found.waiting:
        typer.echo("Nothing waits.")
        return
    pairs = [("waiting", f"{found.waiting:,}{' or more' if found.more else ''}")]
    if found.oldest is not None:
        pairs.append(("oldest", f"accepted {views.span(time.time() - found.oldest)} ago"))
    groups = (
        ("lanes", found.lanes, "a group is one, and so is a message of none"),
        ("resting", found.resting, "failed, and tried again later"),
        ("at work", found.entered, "groups that somebody is at work on"),
    )
    pairs += [(name, f"{count:,}  ({note})") for name, count, note in groups if count is not None]
    views.print_pairs(pairs)


DEAD = ("id", "key", "attempts", "since", "error")


def _row(dead: Dead) -> views.TableRow:
    since = f"{views.span(time.time() - dead.at)} ago"
    return dead.id, dead.key, str(dead.attempts), since, views.cut(dead.error)
