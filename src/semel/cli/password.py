"""`semel hash-password`: a password as the settings of a dashboard keep it."""

import sys

import typer

from semel.core.runtime import require


def hash_password() -> None:
    """Print the hash of a password, for a user in the settings of a service.

    semel hash-password

    It asks for the password twice, or reads one line where it is not at a terminal.
    """
    require("jinja2", "dashboard")
    require("starlette", "dashboard")
    from semel.dashboard.passwords import hash_password as hashed

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    typer.echo(hashed(password))
