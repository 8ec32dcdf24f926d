"""The `semel` command. What it needs beyond semel itself, `pip install "semel[cli]"` brings."""

import sys

from semel import errors
from semel.extras import require


def main() -> None:
    """Run the command; an error of semel's is one line on stderr."""
    try:
        require("typer", "cli")
        require("rich", "cli")
        from semel.cli.app import app

        app(prog_name="semel")
    except errors.SemelError as error:
        print(f"semel: {error}", file=sys.stderr)
        # 2 is what every command line says to a call that was wrong in itself.
        sys.exit(2 if isinstance(error, errors.UsageError) else 1)
