"""The `semel` command with all its subcommands."""

from typing import Annotated, Final

import typer

from semel.cli import (
    act,
    bench,
    cost,
    counter,
    demo,
    doctor,
    document,
    gate,
    inbox,
    init,
    journal,
    ledger,
    look,
    new,
    password,
    provision,
    serve,
    switch,
    tail,
    top,
    transfer,
)

app: Final = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("demo")(demo.demo)
app.command("init")(init.init)
app.add_typer(new.app, name="new")
app.command("serve")(serve.serve)
app.command("work")(serve.work)
app.command("ls")(look.ls)
app.command("show")(look.show)
app.command("explain")(look.explain)
app.command("stuck")(look.stuck)
app.command("sizes")(look.sizes)
app.command("tail")(tail.tail)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("hash-password")(password.hash_password)
app.command("provision")(provision.provision)
app.command("cost")(cost.cost)
app.command("bench")(bench.bench)
app.add_typer(act.app, name="act")
app.command("export")(transfer.export)
app.command("import")(transfer.import_)
app.command("copy")(transfer.copy)
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
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A ledger for things that must happen once.

    Begin with semel demo: it kills real processes, and shows the result of each call.

    Then inspect a ledger of your own, by the URL of its store:

    semel ls --url sqlite:///semel.db

    The store is found as semel serve finds it: by semel.toml in this folder, by SEMEL_URL, by options.

    In a folder with the settings of a service, the name of the application is enough:

    semel ls --app support --status UNKNOWN

    What needs somebody, and how it came to be so: semel stuck, then semel explain KEY

    semel switch on safe_mode --reason "wrong replies"
    """
