"""`semel ledger`: look into a ledger, and settle what needs a person."""

import json
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

import semel
from semel import errors, lifecycle
from semel.cli import views

app = typer.Typer(no_args_is_help=True, help="Look into a ledger, and settle what needs a person.")

Url: TypeAlias = Annotated[
    str | None, typer.Option(envvar="SEMEL_URL", help="The store, such as sqlite:///semel.db.")
]
Env: TypeAlias = Annotated[str, typer.Option(envvar="SEMEL_ENV", help="The environment of the keys.")]
Scope: TypeAlias = Annotated[
    str, typer.Option(envvar="SEMEL_SCOPE", help="The scope of the keys, such as a tenant.")
]
KeyText: TypeAlias = Annotated[str, typer.Argument(metavar="KEY", help="The key, as `list` shows it.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_records(
    *,
    url: Url = None,
    env: Env = "dev",
    scope: Scope = "",
    status: Annotated[
        semel.Status | None, typer.Option(case_sensitive=False, help="Only these.", show_choices=True)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    after: Annotated[str | None, typer.Option(help="Where the page before ended.")] = None,
    as_json: AsJson = False,
) -> None:
    """List records, a page at a time.

    What needs a person: semel ledger list --status UNKNOWN
    """
    with _ledger(url, env, scope) as ledger:
        page = ledger.list(status=status, limit=limit, after=after)
        if as_json:
            records = [views.as_json(ledger, record) for record in page.records]
            _print_json({"records": records, "after": page.after})
            return
        console = Console(highlight=False)
        console.print(views.as_table(ledger, page.records) if page.records else "No records.")
        if page.after is not None:
            console.print(
                f"There may be more: --after {shlex.quote(page.after)}", soft_wrap=True, markup=False
            )


@app.command()
def show(
    key: KeyText, *, url: Url = None, env: Env = "dev", scope: Scope = "", as_json: AsJson = False
) -> None:
    """Show one record with its whole result."""
    with _ledger(url, env, scope) as ledger:
        record = _found(ledger.get(key), key)
        if as_json:
            _print_json(views.as_json(ledger, record))
        else:
            Console(highlight=False).print(views.as_lines(ledger, record))


@app.command()
def resolve(
    key: KeyText,
    *,
    happened: Annotated[
        str | None, typer.Option(metavar="JSON", help="It happened, and this came of it.")
    ] = None,
    not_happened: Annotated[
        bool, typer.Option("--not-happened", help="It did not; it may run again.")
    ] = False,
    abandon: Annotated[str | None, typer.Option(metavar="REASON", help="It is to stay failed.")] = None,
    url: Url = None,
    env: Env = "dev",
    scope: Scope = "",
) -> None:
    """Settle what became of an attempt that vanished.

    Find out first whether the effect happened: ask the bank, look into the mailbox. Then say so here.
    """
    settlement = _settlement(happened, not_happened, abandon)
    with _ledger(url, env, scope) as ledger:
        ledger.resolve(key, settlement)
        typer.echo(f"{key} is {_found(ledger.get(key), key).status.value}.")


@app.command()
def forget(
    key: KeyText,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, it may run again.")] = False,
    url: Url = None,
    env: Env = "dev",
    scope: Scope = "",
) -> None:
    """Remove a record, so that the next call with its key runs again."""
    if not yes:
        raise errors.UsageError(f"once {key!r} is forgotten, the next call runs again: say --yes")
    with _ledger(url, env, scope) as ledger:
        if not ledger.forget(key):
            raise _absent(key)
        typer.echo(f"{key} is forgotten.")


@app.command("drop-result")
def drop_result(key: KeyText, *, url: Url = None, env: Env = "dev", scope: Scope = "") -> None:
    """Let a result go and keep the fact, so that duplicates are still known."""
    with _ledger(url, env, scope) as ledger:
        record = _found(ledger.get(key), key)
        if not ledger.drop_result(key):
            raise errors.Refused(
                key, f"is {record.status.value}; only what is COMPLETED has a result to drop"
            )
        typer.echo(f"{key} is still known to be done; its result is gone.")


@app.command()
def reap(*, url: Url = None, env: Env = "dev", scope: Scope = "") -> None:
    """Remove what has expired, from a store that does not do so by itself."""
    with _connected(url, env, scope) as s:
        reaper = getattr(s.store, "reap", None)
        if reaper is None:
            raise errors.UsageError(f"{url} needs no reaping: it removes by itself what has expired")
        removed = 0
        while bite := reaper():
            removed += bite
        typer.echo(f"Removed {removed} expired {'record' if removed == 1 else 'records'}.")


@app.command()
def diagram() -> None:
    """Print the life of a record as a Mermaid diagram."""
    typer.echo(lifecycle.diagram())


@contextmanager
def _ledger(url: str | None, env: str, scope: str) -> Iterator[semel.Ledger]:
    with _connected(url, env, scope) as s:
        yield s.ledger


@contextmanager
def _connected(url: str | None, env: str, scope: str) -> Iterator[semel.Semel]:
    """The store that was named, if it is there; looking at one must not make one."""
    if not url:
        raise errors.UsageError("name the store: --url sqlite:///semel.db, or set SEMEL_URL")
    if url.startswith("memory:"):
        raise errors.UsageError("a ledger in memory is gone with its process; there is nothing to look at")
    _check_file(url)
    with semel.connect(url, env=env, scope=scope) as s:
        yield s


def _check_file(url: str) -> None:
    """Refuse an SQLite file that is not there, or that holds no ledger: opening it would put one there."""
    if not url.startswith("sqlite:"):
        return
    from semel.stores.sqlite.file import File

    path = Path(File.from_url(url).path)
    if not path.is_file():
        raise errors.StoreUnavailable(f"there is no file {path}")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'semel_meta'").fetchone()
        except sqlite3.Error as error:
            raise errors.StoreUnavailable(f"{path} cannot be read: {error}") from error
    if not found:
        raise errors.StoreUnavailable(f"{path} holds no ledger")


def _found(record: semel.Record | None, key: str) -> semel.Record:
    if record is None:
        raise _absent(key)
    return record


def _absent(key: str) -> errors.SemelError:
    return errors.SemelError(f"there is no record of {key!r} in this environment and scope")


def _settlement(happened: str | None, not_happened: bool, abandon: str | None) -> semel.Settlement:
    if (happened is not None) + not_happened + (abandon is not None) != 1:
        raise errors.UsageError("say one of --happened JSON, --not-happened and --abandon REASON")
    if happened is not None:
        return semel.Happened(_value(happened))
    return semel.NotHappened() if abandon is None else semel.Abandoned(abandon)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise errors.UsageError(
            f"--happened takes JSON, and {text} is none; a text is quoted twice: --happened '\"done\"'"
        ) from None


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
