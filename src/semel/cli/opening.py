"""What the commands that look into a store share: how it is named, how it is opened, how JSON is printed."""

import json
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

import semel
from semel import errors

Url: TypeAlias = Annotated[
    str | None, typer.Option(envvar="SEMEL_URL", help="The store, such as sqlite:///semel.db.")
]
Env: TypeAlias = Annotated[str, typer.Option(envvar="SEMEL_ENV", help="The environment of the keys.")]
Scope: TypeAlias = Annotated[
    str, typer.Option(envvar="SEMEL_SCOPE", help="The scope of the keys, such as a tenant.")
]
Limit: TypeAlias = Annotated[int, typer.Option(min=1, help="How many at most.")]
After: TypeAlias = Annotated[str | None, typer.Option(help="Where the page before ended.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Unreached:
    """An overflow that the command line knows nothing about: what is to go from there is noted."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def put(self, name: str, data: bytes) -> str:
        """Nothing is put where nobody would find it."""
        raise LookupError(f"the overflow of {name} is not known here")

    def get(self, ref: str) -> bytes:
        """It is out of reach."""
        raise LookupError(ref)

    def delete(self, ref: str) -> None:
        """Its operator has to, by this name."""
        self.left.append(ref)


@contextmanager
def unreached() -> Iterator[Unreached]:
    """Such an overflow; what is left there is told at the end, since nothing else names it any more."""
    overflow = Unreached()
    try:
        yield overflow
    finally:
        if overflow.left:
            typer.echo(
                "semel: the overflow store is not reached from here, and still holds what was dropped: "
                f"delete it there, by name: {', '.join(overflow.left)}",
                err=True,
            )
    if overflow.left:
        raise typer.Exit(1)


@contextmanager
def connected(
    url: str | None,
    env: str,
    scope: str = "",
    *,
    secret: bytes | None = None,
    overflow: Unreached | None = None,
) -> Iterator[semel.Semel]:
    """The store that was named, if it is there; looking at one must not make one."""
    if not url:
        raise errors.UsageError("name the store: --url sqlite:///semel.db, or set SEMEL_URL")
    if url.startswith("memory:"):
        raise errors.UsageError("a ledger in memory is gone with its process; there is nothing to look at")
    _check_file(url)
    with semel.connect(url, env=env, scope=scope, secret=secret, overflow=overflow) as s:
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


def absent(what: str, key: str) -> errors.SemelError:
    """What is said where a key leads to nothing."""
    return errors.SemelError(f"there is no {what} {key!r} in this environment and scope")


def print_json(value: Any) -> None:
    """Print a value for programs."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def tell_more(after: str | None) -> None:
    """Say how to go on, where a page was not the last."""
    if after is not None:
        typer.echo(f"There may be more: --after {shlex.quote(after)}")


def number(count: int, one: str, many: str = "") -> str:
    """So many of something, in words."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
