"""`semel act erase`: erase everything kept about a person."""

import os
import sys
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
import typer

import semel
from semel import errors
from semel.cli import views
from semel.cli.asking import ByHandOptions
from semel.cli.common import (
    StoreOptions,
    UnreachedOverflow,
    bound,
    configuration_for,
    connected,
    number,
    on_a_store,
    print_json,
    sections,
    unreached,
    with_options,
)
from semel.ops.actions import left_in_queue
from semel.ops.model import Erased
from semel.state.erasure import Erasure

VARIABLE = "SEMEL_SECRET"

PersonArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PERSON", help="The person, as the programs write the name; - reads it from stdin."
    ),
]
SecretFromOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="ENVVAR", help="The variable with the programs' secret, if it is not SEMEL_SECRET."),
]


@on_a_store()
@with_options("options", ByHandOptions)
def erase(
    person: PersonArgument,
    *,
    secret_from: SecretFromOption = None,
    options: ByHandOptions,
    where: StoreOptions,
) -> None:
    """Erase a person: everything kept about it goes, and work that was done still counts as done.

    What would go is shown first, and you are asked; where stdin has the name, look with --preview, then say
    --yes. Messages that wait in the inbox are never handled. The operators' journal has a hash in place of
    the name. Tables without an index of persons are read whole. If interrupted, run it again: it continues
    with what is left.

    semel act erase - --app support --why "request no. 17" --yes < person.txt
    """
    options.check_why()
    secret, name = _secret(secret_from, where), person_named(person)
    with unreached() as overflow, connected(where, secret=secret, overflow=overflow) as s:
        _erase(s, name, options, overflow, _queues(where))


def _erase(
    s: semel.Semel, name: str, options: ByHandOptions, overflow: UnreachedOverflow, queues: list[str]
) -> None:
    by = options.who
    if options.preview or not options.yes:
        with views.progress("Looking", _words, Erasure()) as on_progress:
            found = s.ops.erase(name, by=by, why=options.why, preview=True, on_progress=on_progress)
        if options.preview or not (found.rows or queues):
            _print_erased(found, options, overflow, queues)
            return _check_left(found)
        show = partial(_print_erased, found, options, overflow, queues)
        question = "Shall all of it go? It cannot be brought back."
        options.confirm(f"{_in_tables(found)} would go", show, question)
    with views.progress("Erasing", _words, Erasure()) as on_progress:
        done = s.ops.erase(name, by=by, why=options.why, on_progress=on_progress)
    _print_erased(done, options, overflow, queues)
    return _check_left(done)


def _queues(where: StoreOptions) -> list[str]:
    """The inboxes that the settings have on SQS: that of the app, or all where none is named."""
    inboxes = sections(configuration_for(where), "inbox")
    on_sqs = [name for name, chosen in inboxes.items() if isinstance(chosen, dict) and chosen.get("queue")]
    return [name for name in on_sqs if where.app in (None, name)]


def _print_erased(
    done: Erased, options: ByHandOptions, overflow: UnreachedOverflow, queues: list[str]
) -> None:
    if options.as_json:
        print_json(msgspec.to_builtins(done) | {"overflow": overflow.left, "queues": queues})
        return
    if done.rows or done.running:
        typer.echo(f"{'Would go' if done.preview else 'Erased'}: {_in_tables(done)}.")
    else:
        typer.echo(NOBODY)
    for name in queues:
        typer.echo(left_in_queue(name), err=True)
    if done.skipped:
        typer.echo(
            f"Not looked into, since these credentials may not: {', '.join(done.skipped)}. If these are "
            "yours, run it again with credentials that may.",
            err=True,
        )


def _in_tables(done: Erased) -> str:
    """So many rows, and where."""
    counts = [f"{number(rows, 'row')} of {table}" for table, rows in done.tables.items()]
    return ", ".join(counts) or "nothing"


NOBODY = (
    "Nothing is kept about this person here. If that is a surprise: are the secret, the environment and the "
    "scope those of the programs, and the name as they write it?"
)


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


def person_named(person: str) -> str:
    """The person that is meant; no message ever repeats it."""
    text = _stdin().rstrip("\r\n") if person == "-" else person
    if not text.strip():
        raise errors.UsageError("no person was named: give one, or write one line to stdin for -")
    if "\n" in text:
        raise errors.UsageError("stdin names more than one person, in several lines: erase one at a time")
    return text


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise errors.UsageError(f"stdin is no text in {error.encoding}: write the name in that") from None


def _words(done: Erasure) -> str:
    entries = number(done.entries, "journal entry", "journal entries")
    words = f"{number(done.records, 'record')}, {number(done.documents, 'document')} and {entries}"
    return f"{words}, and {number(done.messages, 'message')} that waited" if done.messages else words


def _check_left(done: Erased) -> None:
    if done.more:
        raise errors.SemelError("rows about this person keep coming: stop what writes them, and run it again")
    if done.running:
        raise errors.SemelError(
            f"{number(len(done.running), 'key is', 'keys are')} being worked on and left alone: "
            f"{', '.join(done.running)}; run the same command again when that is over "
            "(see semel show KEY)"
        )
