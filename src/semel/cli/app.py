"""What the `semel` command offers."""

from typing import Annotated

import typer

from semel.cli import (
    cost,
    counter,
    demo,
    document,
    gate,
    inbox,
    journal,
    ledger,
    provision,
    serve,
    subject,
    switch,
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("work")(serve.work)
app.command("provision")(provision.provision)
app.command("cost")(cost.cost)
app.command("forget-subject")(subject.forget_subject)
app.add_typer(ledger.app, name="ledger")
app.add_typer(document.app, name="document")
app.add_typer(journal.app, name="journal")
app.add_typer(counter.app, name="counter")
app.add_typer(gate.app, name="gate")
app.add_typer(switch.app, name="switch")
app.add_typer(inbox.app, name="inbox")


def _say_version(asked: bool) -> None:
    if asked:
        from semel import __version__  # which takes a while to find

        typer.echo(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def semel(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and leave."),
    ] = False,
) -> None:
    """A ledger for things that must happen once.

    Begin with semel demo: real processes, really killed, and what came of each call.

    Then look into a ledger of your own, by the URL of its store:

    semel ledger list --url sqlite:///semel.db

    It finds its store as semel serve does: by semel.toml in this folder, by SEMEL_URL, by its options.

    So beside the settings of a service there is little to say:

    semel ledger list --app support --status UNKNOWN

    semel switch on safe_mode --reason "wrong replies"
    """
