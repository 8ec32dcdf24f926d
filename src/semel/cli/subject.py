"""`semel forget-subject`: a person asks to be forgotten."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from semel import errors
from semel.cli.common import (
    JsonOption,
    StoreOptions,
    UnreachedOverflow,
    bound,
    connected,
    number,
    on_a_store,
    print_json,
    unreached,
)
from semel.state.erasure import Erasure, Told

VARIABLE = "SEMEL_SECRET"


@on_a_store()
def forget_subject(
    person: Annotated[
        str, typer.Argument(metavar="PERSON", help="As the programs name the person; - reads it from stdin.")
    ],
    *,
    secret_from: Annotated[
        str | None,
        typer.Option(
            metavar="ENVVAR", help="The variable with the programs' secret, where it is not SEMEL_SECRET."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, what is kept about the person may go.")] = False,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Drop everything kept about a person; what was done once is still known to be done.

    Records lose their result and their error, documents and journal entries go. If it is stopped half-way,
    the same command goes on with what is left. Whoever lists processes sees arguments, and not stdin:

    semel forget-subject - --yes < person.txt
    """
    secret = _secret(secret_from, where)
    if not yes:
        raise errors.UsageError("what is kept about a person cannot be brought back: say --yes")
    name = _name(person)
    with unreached() as overflow, connected(where, secret=secret, overflow=overflow) as s:
        with _shown() as told:
            done = s.forget_subject(name, told=told)
        _tell(done, overflow, as_json)
        _check_left(done)


def _secret(variable: str | None, where: StoreOptions) -> bytes:
    if variable is None and (found := bound(where).secret):
        return found
    text = os.environ.get(variable or VARIABLE)
    if not text:
        raise errors.UsageError(
            f"{variable or VARIABLE} is not set: it must hold the secret that the programs connect with, by "
            "which persons are found; --secret-from names another variable"
        )
    return os.fsencode(text)  # its very bytes, whatever the locale


def _name(person: str) -> str:
    """The person that is meant; no message ever repeats it."""
    text = _stdin().rstrip("\r\n") if person == "-" else person
    if not text.strip():
        raise errors.UsageError("no person was named: give one, or write one line to stdin for -")
    if "\n" in text:
        raise errors.UsageError("stdin names more than one person, in several lines: forget one at a time")
    return text


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise errors.UsageError(f"stdin is no text in {error.encoding}: write the name in that") from None


@contextmanager
def _shown() -> Iterator[Told]:
    """Show on a terminal how far it has come."""
    console, text = Console(stderr=True), TextColumn("Forgetting: {task.description}")
    quiet = not console.is_terminal
    with Progress(SpinnerColumn(), text, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task(_words(Erasure()), total=None)
        yield lambda done: progress.update(task, description=_words(done))


def _tell(done: Erasure, overflow: UnreachedOverflow, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(done) | {"overflow": overflow.left})
    elif done == Erasure():
        typer.echo(
            "Nothing is kept about this person here. If that is a surprise: are the secret, the environment "
            "and the scope those of the programs, and the name as they write it?"
        )
    else:
        typer.echo(f"Forgotten: {_words(done)}.")


def _words(done: Erasure) -> str:
    entries = number(done.entries, "journal entry", "journal entries")
    return f"{number(done.records, 'record')}, {number(done.documents, 'document')} and {entries}"


def _check_left(done: Erasure) -> None:
    if done.more:
        raise errors.SemelError("rows about this person keep coming: stop what writes them, and run it again")
    if done.running:
        raise errors.SemelError(
            f"{number(len(done.running), 'key is', 'keys are')} being worked on and left alone: "
            f"{', '.join(done.running)}; run the same command again when that is over "
            "(semel ledger show KEY tells)"
        )
