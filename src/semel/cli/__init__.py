"""The `semel` command. What it needs beyond semel itself, `pip install "semel[cli]"` brings."""

import os
import signal
import sys

from semel import errors
from semel.core.runtime import require


def main() -> None:
    """Run the command; an error of semel's, or a call that is wrong in itself, is one line on stderr."""
    _heed_sigterm()
    try:
        require("typer", "cli")
        require("rich", "cli")
        from semel.cli.app import app

        sys.exit(app(prog_name="semel", standalone_mode=False))
    except errors.SemelError as error:
        print(f"semel: {error}", file=sys.stderr)
        # 2 is what every command line says to a call that was wrong in itself.
        sys.exit(2 if isinstance(error, errors.UsageError) else 1)
    except Exception as error:
        # Typer's own errors, whose class has moved from one version to the next.
        if not hasattr(error, "format_message"):
            raise
        _print_usage_error(error, error.format_message())
        sys.exit(getattr(error, "exit_code", 1))


def _heed_sigterm() -> None:
    """As a container's first process, end by SIGTERM as any other would.

    The kernel gives that process no signal that it has not asked for: until a service has begun, and in a
    command that does not ask at all, a stop would last until the container is killed.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _print_usage_error(error: Exception, message: str) -> None:
    """Say in one line what is wrong with a call, and where to read how it is made."""
    if type(error).__name__ == "NoArgsIsHelpError":  # it is no error, and its message is the help itself
        if message:
            print(message, file=sys.stderr)
        return
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    print(f"semel: {' '.join(message.split()).rstrip('.')}{hint}", file=sys.stderr)
