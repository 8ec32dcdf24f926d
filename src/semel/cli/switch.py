"""`semel switch`: stop work at once on every worker, and let it continue."""

import getpass
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.text import Text

from semel import errors
from semel.cli import views
from semel.cli.common import JsonOption, LimitOption, StoreOptions, connected, on_a_store, print_json
from semel.ops.actions import NO_REASON
from semel.state.switches import Switch

app: Final = typer.Typer(no_args_is_help=True, help="Stop work at once on every worker, and let it continue.")

SwitchArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the switch, as in the gate's KillSwitch.")
]
ReasonOption: TypeAlias = Annotated[
    str, typer.Option(metavar="TEXT", help="The reason, for people who look later.")
]


@app.command("list")
@on_a_store("app", "scope")
def list_switches(*, where: StoreOptions, as_json: JsonOption = False) -> None:
    """List the switches that were ever turned: whether each is on, since when, by whom, and why."""
    with connected(where) as s:
        switches, env = s.switches.list(), s.env
    if as_json:
        print_json({"switches": [_for_programs(name, each) for name, each in sorted(switches.items())]})
    elif switches:
        rows = [_row(name, each) for name, each in sorted(switches.items())]
        views.print_table(("switch", "is", "since", "by", "why"), rows)
    else:
        typer.echo(f"No switch was ever turned in environment {env}.")


@app.command()
@on_a_store("app", "scope")
def history(
    name: SwitchArgument, *, limit: LimitOption = 20, where: StoreOptions, as_json: JsonOption = False
) -> None:
    """Show how a switch was turned, from every application, newest first: when, by whom, and why."""
    with connected(where) as s:
        turns = s.ops.switch_history(name, limit=limit)
        if not turns:
            known = ", ".join(sorted(s.switches.list())) or "none"
            raise errors.SemelError(
                f"no switch {name!r} was turned in environment {s.env}; those that were: {known}"
            )
    if as_json:
        print_json({"turns": views.readable(turns)})
        return
    rows = [(views.moment(turn.at), _word(turn.on), turn.by, turn.why) for turn in turns]
    views.print_table(("at", "turned", "by", "why"), rows)


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
        s.ops.turn(name, on=on, by=_login_name(), why=reason or NO_REASON)
    typer.echo(f"{name} is {_word(on)} for every worker of environment {s.env}.")
    if not known:
        # A name that is mistyped stops nothing, and nobody would notice.
        typer.echo("It was never turned before: see that a gate asks for it by this very name.")


def _login_name() -> str:
    """Who is logged in here; nobody is stopped because that is not known."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "somebody"


def _word(on: bool) -> str:
    return "on" if on else "off"


def _row(name: str, switch: Switch) -> views.TableRow:
    state = Text(_word(switch.on), "bold yellow" if switch.on else "")
    return name, state, views.moment(switch.since), switch.by, switch.reason


def _for_programs(name: str, switch: Switch) -> dict[str, Any]:
    return {"name": name, **views.readable(switch)}
