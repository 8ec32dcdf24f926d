"""Who acts, and whether it is meant: what the commands share that change something by hand."""

import getpass
import sys
from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec
import typer

from semel import errors
from semel.cli.common import JsonOption

# So many are shown before somebody is asked whether all of them are meant.
SHOWN = 20


WhyOption: TypeAlias = Annotated[
    str, typer.Option(metavar="TEXT", help="The reason, recorded in the operators' journal.")
]
ByOption: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="The operator; your login name by default.")
]


class ByHandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of what is done by hand: who wants it, why, and whether it is meant."""

    why: WhyOption
    by: ByOption = ""
    preview: Annotated[bool, typer.Option("--preview", help="Only say what it would do.")] = False
    yes: Annotated[bool, typer.Option("--yes", help="Yes: do not ask.")] = False
    as_json: JsonOption = False

    @property
    def who(self) -> str:
        """Return the operator's name: as given, or the login name."""
        return operator_name(self.by)

    def check_why(self) -> None:
        """Refuse an empty reason."""
        check_why(self.why)

    def confirm(self, would: str, show: Callable[[], None], question: str) -> None:
        """Show what would be done, and go on only with a yes; who cannot be asked has to say it before."""
        if self.as_json or not sys.stdin.isatty():
            raise errors.UsageError(f"{would}: look with --preview, then say --yes")
        show()
        try:
            sure = typer.confirm(question)
        except typer.Abort:
            sure = False
        if not sure:
            typer.echo("Nothing was done.")
            raise typer.Exit(1)


def operator_name(by: str) -> str:
    """Return the operator's name: as given, or the login name."""
    if by:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        raise errors.UsageError("there is no login name here: name the operator with --by") from None


def check_why(why: str) -> None:
    """Refuse an empty reason."""
    if not why.strip():
        raise errors.UsageError("--why is empty: give the reason, which the operators' journal records")
