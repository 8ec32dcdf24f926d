"""Who acts, and whether it is meant: what the commands share that change something by hand."""

import getpass
import sys
from typing import Annotated, TypeAlias

import typer

from semel import errors

WhyOption: TypeAlias = Annotated[
    str, typer.Option(metavar="TEXT", help="The reason, for whoever looks back.")
]
ByOption: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="Who wants it; your login name, unless said.")
]
PreviewOption: TypeAlias = Annotated[bool, typer.Option("--preview", help="Only say what it would do.")]


def login_name() -> str:
    """Who is logged in here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        raise errors.UsageError("nobody is logged in here by a name: say who you are with --by") from None


def check_why(why: str) -> None:
    """Refuse a reason that says nothing."""
    if not why.strip():
        raise errors.UsageError("--why is empty: say the reason, for whoever looks back")


def can_ask(as_json: bool) -> bool:
    """Whether there is somebody who can be asked."""
    return not as_json and sys.stdin.isatty()


def ask(question: str) -> None:
    """Go on only with a yes."""
    try:
        sure = typer.confirm(question)
    except typer.Abort:
        sure = False
    if not sure:
        typer.echo("Nothing was done.")
        raise typer.Exit(1)
