"""`semel act`: put records right, with a reason that everybody can read later."""

from collections import Counter
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import typer

import semel
from semel import errors
from semel.cli import subject, views
from semel.cli.asking import SHOWN, ByHandOptions
from semel.cli.common import (
    AfterOption,
    JsonOption,
    LimitOption,
    StoreOptions,
    connected,
    json_value,
    number,
    on_a_store,
    print_json,
    print_more,
    unreached,
    with_options,
)
from semel.cli.elsewhere import place_of
from semel.cli.filters import SearchOptions, check_scan
from semel.cli.journal import for_programs
from semel.cli.look import pages
from semel.ops.model import PAGE_SIZE, Action, ActionName, Done, version_of
from semel.state.journal import Entry

app: Final = typer.Typer(no_args_is_help=True, help="Put records right, and say why.")

KeysArgument: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY]...", help="The keys, as `semel ls` shows them.")
]


class ActOptions(ByHandOptions, frozen=True, kw_only=True):
    """The options of every action."""

    force: Annotated[
        bool, typer.Option("--force", help="Though somebody is at work on it, who then loses the claim.")
    ] = False
    everything: Annotated[
        bool, typer.Option("--all", help="All records that the other options find, in place of keys.")
    ] = False
    seen: Annotated[
        str,
        typer.Option(
            metavar="VERSION",
            help="Only if the record still has this version, as `semel explain KEY --json` prints it.",
        ),
    ] = ""


class CompleteOptions(ActOptions, frozen=True, kw_only=True):
    """The options of `complete`."""

    result: Annotated[
        str, typer.Option(metavar="JSON", help="What came of it, for later calls; null, unless said.")
    ] = "null"


class ActionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants done to some records."""

    name: ActionName
    by: str
    options: ActOptions
    result: Any = None

    def perform(self, s: semel.Semel, key: str, seen: str, *, preview: bool) -> Done:
        """Do it to one of them."""
        options = self.options
        action = Action(
            name=self.name,
            key=key,
            by=self.by,
            why=options.why,
            result=self.result,
            seen=seen,
            force=options.force,
        )
        try:
            return s.ops.perform(action, preview=preview)
        except errors.RecordCorrupt:
            refused = "it cannot be read; semel act forget removes it for good"
            return Done(key, self.name, "unreadable", "unreadable", False, refused)


# The actions


class ActionCommand(msgspec.Struct, frozen=True):
    """The command of an action: its help, and how what it did is told."""

    participle: str
    help: str
    options: type[ActOptions] = ActOptions


ACTIONS: dict[ActionName, ActionCommand] = {
    "release": ActionCommand(
        "released",
        """Let the next call run: it did not happen, or it failed and is to be retried.

        semel act release charge:7 --why "the bank knows nothing of it"

        semel act release --all --status failed --error TimeoutError --since 2h --why "the bank is back"
        """,
    ),
    "complete": ActionCommand(
        "completed",
        """Say that it happened, so that no call runs it again.

        semel act complete charge:7 --result '{"receipt": "R-1"}' --why "the bank has it"
        """,
        CompleteOptions,
    ),
    "fail": ActionCommand(
        "failed",
        """Give it up, so that no call runs it again; callers are told the reason.

        semel act fail charge:7 --why "the order was cancelled"
        """,
    ),
    "drop": ActionCommand(
        "dropped",
        """Let the result go and keep the fact, so that duplicates are still known.

        semel act drop reply:42:7 --why "it names a third person"
        """,
    ),
    "forget": ActionCommand(
        "forgotten",
        """Remove the record, so that the next call is the first, whatever happened before.

        semel act forget import:2026-10-25 --why "the file was wrong, and comes again"
        """,
    ),
}


def _command(name: ActionName, action: ActionCommand) -> None:
    @app.command(name, help=action.help)
    @on_a_store()
    @with_options("asked", SearchOptions)
    @with_options("options", action.options)
    def act(
        keys: KeysArgument = None, *, options: ActOptions, asked: SearchOptions, where: StoreOptions
    ) -> None:
        _act(name, keys, options, asked, where)


for _name, _action in ACTIONS.items():
    _command(_name, _action)
app.command("erase")(subject.erase)


@app.command()
@on_a_store()
def journal(
    *,
    limit: LimitOption = PAGE_SIZE,
    after: AfterOption = None,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """List what operators did, newest first: when, to what, who and why."""
    with connected(where) as s:
        page, place = s.ops.journal(limit=limit, after=after), place_of(s)
    if as_json:
        print_json({"entries": [for_programs(entry) for entry in page.entries], "after": page.after})
        return
    if page.entries:
        names = ("at", "about", "action", "by", "why")
        views.print_table(names, [_entry(entry) for entry in page.entries], whole=2)
    else:
        typer.echo(f"No operator has changed anything in {place}.")
    print_more(page.after)


def _entry(entry: Entry) -> views.TableRow:
    body = entry.body if isinstance(entry.body, dict) else {}
    about, action, why = (str(body.get(name, "")) for name in ("about", "action", "why"))
    return views.moment_or_none(entry.at) or "", about, action, str(entry.actor or ""), why


# Doing it


def _act(
    name: ActionName, keys: list[str] | None, options: ActOptions, asked: SearchOptions, where: StoreOptions
) -> None:
    _check(keys, options, asked)
    result = json_value("--result", options.result) if isinstance(options, CompleteOptions) else None
    order = ActionOrder(name=name, by=options.who, options=options, result=result)
    with unreached() as overflow:
        # What cannot be reached from here is not written to either.
        removing = overflow if name in ("drop", "forget") else None
        with connected(where, overflow=removing) as s:
            _act_in_bulk(s, order, asked) if options.everything else _act_on_keys(s, order, keys or [])


def _check(keys: list[str] | None, options: ActOptions, asked: SearchOptions) -> None:
    narrowed = asked.narrowed
    if bool(keys) == options.everything:
        raise errors.UsageError("name the keys, or say --all with options that find them, as semel ls has")
    if options.everything and not narrowed:
        raise errors.UsageError("--all is never every record: say which, as for semel ls, such as --prefix")
    if keys and narrowed:
        raise errors.UsageError(
            "keys are named, so nothing is searched for: leave out the other, or say --all"
        )
    if options.seen and len(keys or []) != 1:
        raise errors.UsageError("--seen is the version of one record: name one key")
    options.check_why()


def _act_on_keys(s: semel.Semel, order: ActionOrder, keys: list[str]) -> None:
    done = ActionReport(order, total=len(set(keys)), preview=order.options.preview)
    done.carry_out(s, dict.fromkeys(keys, order.options.seen))


def _act_in_bulk(s: semel.Semel, order: ActionOrder, asked: SearchOptions) -> None:
    """Show what would be done to what is found, ask, and do it to what has not changed meanwhile."""
    targets = _found(s, asked)
    plan = ActionReport(order, total=len(targets), preview=True)
    plan.perform(s, targets)
    if order.options.preview or not plan.changed:
        plan.finish()
        return
    if not order.options.yes:
        count, be = number(len(plan.changed), "record"), f"be {plan.participle}"
        order.options.confirm(f"{count} would {be}", plan.print_words, f"Shall {count} {be}?")
    done = ActionReport(order, total=len(targets), preview=False)
    done.dones += [each for each in plan.dones if not each.changed]
    done.carry_out(s, {each.key: targets[each.key] for each in plan.changed})


def _found(s: semel.Semel, asked: SearchOptions) -> dict[str, str]:
    """The keys that are found, and of each the version in which it was seen."""
    targets: dict[str, str] = {}
    search = asked.search
    if not asked.scan:
        check_scan(s, search)
    with views.progress("Looking", lambda count: number(count, "record"), 0) as on_progress:
        for page in pages(s, search):
            targets |= {record.key: version_of(record) for record in page.records}
            on_progress(len(targets))
    return targets


# Telling it


class ActionReport:
    """What was done so far, or would be, of all that is wanted."""

    def __init__(self, order: ActionOrder, *, total: int, preview: bool) -> None:
        self.order = order
        self.participle: str = ACTIONS[order.name].participle
        self.dones: list[Done] = []
        self._total = total
        self._preview = preview

    @property
    def changed(self) -> list[Done]:
        """What was done, or would be."""
        return [each for each in self.dones if each.changed]

    @property
    def refused(self) -> list[Done]:
        """What was refused, or would be."""
        return [each for each in self.dones if each.refused]

    def perform(self, s: semel.Semel, targets: dict[str, str]) -> None:
        """Do it to each, and note what came of it."""
        with views.progress_bar("Looking" if self._preview else "Acting", len(targets)) as advance:
            for key, seen in targets.items():
                self.dones.append(self.order.perform(s, key, seen, preview=self._preview))
                advance()

    def carry_out(self, s: semel.Semel, targets: dict[str, str]) -> None:
        """Do it to each and tell it, also where the store fails in the midst of it."""
        try:
            self.perform(s, targets)
        except BaseException:
            self.print()
            raise
        self.finish()

    def finish(self) -> None:
        """Print it; leave with 1 if anything was refused."""
        self.print()
        if self.refused:
            raise typer.Exit(1)

    def print(self) -> None:
        """Print it, for people or for programs."""
        if self.order.options.as_json:
            print_json(self._for_programs())
        else:
            self.print_words()

    def print_words(self) -> None:
        """Print it for people: each key that was named, or the first of many and how many there are."""
        if self.order.options.everything:
            self._print_many()
        else:
            for each in self.dones:
                typer.echo(f"{each.key} {self._words(each)}.", err=bool(each.refused))

    def _print_many(self) -> None:
        listed = self.changed[:SHOWN] if self._preview else []
        if listed:
            views.print_table(
                ("key", "is", "would be"), [(each.key, each.before, self.participle) for each in listed]
            )
        if len(self.changed) > len(listed) > 0:
            typer.echo(f"and {len(self.changed) - len(listed):,} more.")
        verb = "would be" if self._preview else "were"
        typer.echo(f"{len(self.changed):,} of {number(self._total, 'record')} {verb} {self.participle}.")
        for reason, count in Counter(each.refused for each in self.refused).most_common():
            first = next(each.key for each in self.refused if each.refused == reason)
            typer.echo(f"{number(count, 'record')} refused, such as {first}: {reason}.", err=True)

    def _words(self, done: Done) -> str:
        if done.refused:
            return f"is not {self.participle}: {done.refused}"
        if not done.changed:
            return f"was {self.participle} before"
        is_so = f"would be {self.participle}" if self._preview else f"is {self.participle}"
        return f"{'is' if self._preview else 'was'} {done.before}, and {is_so}"

    def _for_programs(self) -> dict[str, Any]:
        about = {"action": self.order.name, "by": self.order.by, "why": self.order.options.why}
        dones = [_done(each) for each in self.dones]
        return about | {"preview": self._preview, "of": self._total, "done": dones}


def _done(done: Done) -> dict[str, Any]:
    return {
        "key": done.key,
        "before": done.before,
        "after": done.after,
        "changed": done.changed,
        "refused": done.refused,
    }
