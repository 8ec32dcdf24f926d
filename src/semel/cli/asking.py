"""Who acts, and whether it is meant: what the commands share that change something by hand."""

import getpass
import sys
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from semel import errors
from semel.cli.common import JsonOption

# So many are shown before somebody is asked whether all of them are meant.
SHOWN = 20


class ByHandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of what is done by hand: who wants it, why, and whether it is meant."""

    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for whoever looks back.")]
    by: Annotated[str, typer.Option(metavar="NAME", help="Who wants it; your login name, unless said.")] = ""
    preview: Annotated[bool, typer.Option("--preview", help="Only say what it would do.")] = False
    yes: Annotated[bool, typer.Option("--yes", help="Yes: do not ask.")] = False
    as_json: JsonOption = False

    @property
    def who(self) -> str:
        """Who wants it: as said, or whoever is logged in here."""
        if self.by:
            return self.by
        try:
            return getpass.getuser()
        except (KeyError, OSError, ImportError):
            raise errors.UsageError("nobody is logged in here by a name: say who you are with --by") from None

    def check_why(self) -> None:
        """Refuse a reason that says nothing."""
        if not self.why.strip():
            raise errors.UsageError("--why is empty: say the reason, for whoever looks back")

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
