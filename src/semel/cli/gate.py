"""`semel gate`: why something was allowed, or was not."""

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from semel.cli import views
from semel.cli.opening import AsJson, Where, absent, connected, on_a_store, print_json
from semel.gate import RECORD, Allowed, Decision, Refused, Sight, Taken

app = typer.Typer(no_args_is_help=True, help="Look up why something was allowed, or was not.")


@app.command()
@on_a_store()
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the action.")],
    *,
    where: Where,
    as_json: AsJson = False,
) -> None:
    """Show the recorded decision about an action, with each rule and what it saw.

    semel gate show reply:42:7
    """
    with connected(where) as s:
        # `ledger list` shows a decision by the key of its record.
        decision = s.gate().recorded(key.removesuffix(RECORD))
    if decision is None:
        raise absent("decision about", key)
    if as_json:
        print_json(for_programs(decision))
    else:
        Console(highlight=False).print(for_people(decision))


def for_people(decision: Decision) -> Group:
    """The decision, then each rule."""
    about = Table.grid(padding=(0, 2))
    about.add_column(style="dim", no_wrap=True)
    about.add_column(overflow="fold")
    about.add_row("action", Text(decision.key))
    about.add_row("decision", _verdict(decision))
    about.add_row("at", views.moment(decision.at))
    if isinstance(decision, Refused) and decision.not_before is not None:
        about.add_row("not before", views.moment(decision.not_before))
    for taken in decision.taken if isinstance(decision, Allowed) else ():
        about.add_row("used up", Text(_taking(taken)))
    return Group(about, _rules(decision.seen)) if decision.seen else Group(about)


def _verdict(decision: Decision) -> Text:
    if isinstance(decision, Allowed):
        return Text("allowed", "green")
    told = f"refused: {decision.reason}"
    return Text(f"{told} (all other rules would allow it)" if decision.would_allow else told, "red")


def _taking(taken: Taken) -> str:
    return f"{taken.by} of {taken.counter} in {taken.entry}" if taken.by else f"{taken.entry} {taken.counter}"


def _rules(seen: tuple[Sight, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("rule", overflow="fold")
    table.add_column("says", no_wrap=True)
    table.add_column("saw", overflow="fold")
    for sight in seen:
        says = Text("pass", "green") if sight.passed else Text("refuse", "red")
        table.add_row(Text(sight.rule), says, Text(sight.saw))
    return table


def for_programs(decision: Decision) -> dict[str, Any]:
    """A decision as JSON, without its token, which is its holder's alone."""
    view: dict[str, Any] = {
        "action": decision.key,
        "allowed": decision.allowed,
        "at": views.moment(decision.at),
    }
    if isinstance(decision, Allowed):
        view["taken"] = [msgspec.to_builtins(taken) for taken in decision.taken]
    else:
        not_before = _moment(decision.not_before)
        view |= {"reason": decision.reason, "not_before": not_before, "would_allow": decision.would_allow}
    return view | {"rules": [_rule(sight) for sight in decision.seen]}


def _rule(sight: Sight) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(sight)
    return told | {"not_before": _moment(sight.not_before)}


def _moment(at: float | None) -> str | None:
    return None if at is None else views.moment(at)
