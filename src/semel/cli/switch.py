"""`semel switch`: stop work at once, everywhere, and let it go on."""

from typing import Annotated, Any, TypeAlias

import typer
from rich.text import Text

from semel.cli import views
from semel.cli.common import JsonOption, StoreOptions, connected, on_a_store, print_json
from semel.state.switches import Switch

app = typer.Typer(no_args_is_help=True, help="Stop work at once, everywhere, and let it go on.")

SwitchArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="The switch, as its gate names it.")
]
ReasonOption: TypeAlias = Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever looks later.")]


@app.command("list")
@on_a_store("app", "scope")
def list_switches(*, where: StoreOptions, as_json: JsonOption = False) -> None:
    """List the switches that were ever turned: how each stands, since when, and why."""
    with connected(where) as s:
        switches, env = s.switches.list(), s.env
    if as_json:
        print_json({"switches": [_for_programs(name, each) for name, each in sorted(switches.items())]})
    elif switches:
        rows = [_row(name, each) for name, each in sorted(switches.items())]
        views.print_table(("switch", "is", "since", "why"), rows)
    else:
        typer.echo(f"No switch was ever turned in environment {env}.")


@app.command("on")
@on_a_store("app", "scope")
def turn_on(name: SwitchArgument, *, reason: ReasonOption = "", where: StoreOptions) -> None:
    """Turn a switch on, for every worker of the environment and in all its scopes.

    A gate with KillSwitch(NAME) refuses everything within a second.

    semel switch on sending --reason "wrong prices in the replies"
    """
    _turn(name, True, reason, where)


@app.command("off")
@on_a_store("app", "scope")
def turn_off(name: SwitchArgument, *, reason: ReasonOption = "", where: StoreOptions) -> None:
    """Turn a switch off, for every worker of the environment and in all its scopes."""
    _turn(name, False, reason, where)


def _turn(name: str, on: bool, reason: str, where: StoreOptions) -> None:
    with connected(where) as s:
        known = name in s.switches.list()
        s.switches.turn(name, on=on, reason=reason)
    typer.echo(f"{name} is {_word(on)} for every worker of environment {s.env}.")
    if not known:
        # A name that is mistyped stops nothing, and nobody would notice.
        typer.echo("It was never turned before: see that a gate asks for it by this very name.")


def _word(on: bool) -> str:
    return "on" if on else "off"


def _row(name: str, switch: Switch) -> views.TableRow:
    state = Text(_word(switch.on), "bold yellow" if switch.on else "")
    return name, state, views.moment(switch.since), switch.reason


def _for_programs(name: str, switch: Switch) -> dict[str, Any]:
    since = views.moment(switch.since)
    return {"name": name, "on": switch.on, "since": since, "reason": switch.reason}
