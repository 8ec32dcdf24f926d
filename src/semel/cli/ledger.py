"""`semel ledger`: delete expired records, and print the life of a record."""

from typing import Final

import typer

from semel import errors
from semel.cli.common import StoreOptions, connected, number, on_a_store
from semel.core import lifecycle
from semel.core.drive import Reaping

app: Final = typer.Typer(
    no_args_is_help=True, help="Delete expired records, and print the life of a record as a diagram."
)


@app.command()
@on_a_store()
def reap(*, where: StoreOptions) -> None:
    """Delete expired records, from a store that does not do so by itself."""
    with connected(where) as s:
        if not isinstance(s.store, Reaping):
            raise errors.UsageError("this store needs no reaping: it removes by itself what has expired")
        s.ledger.list(limit=1)  # a store reaps the tables that are in use, and by now none is
        removed = 0
        while bite := s.store.reap():
            removed += bite
        typer.echo(f"Removed {number(removed, 'expired record')}.")


@app.command()
def diagram() -> None:
    """Print the life of a record as a Mermaid diagram."""
    typer.echo(lifecycle.diagram())
