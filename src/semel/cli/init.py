"""`semel init`: a first `semel.toml`, for the store and the applications that one chooses."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
import typer

from semel import errors
from semel.apps.registry import find, known
from semel.cli.common import FILE
from semel.cli.doctor import DRIVERS
from semel.service.settings_file import NewSettings, new_settings

StoreKind: TypeAlias = Literal["sqlite", "dynamodb", "postgresql", "redis"]


class StoreChoice(msgspec.Struct, frozen=True):
    """What there is to know of a kind of store before one is chosen."""

    schemes: tuple[str, ...]
    example: str
    ready: str = ""
    """The URL where none is given; "" where only its owner knows it."""


STORES: Final[dict[StoreKind, StoreChoice]] = {
    "sqlite": StoreChoice(("sqlite",), "sqlite:///semel.db", "sqlite:///semel.db"),
    # The region is AWS_REGION's.
    "dynamodb": StoreChoice(("dynamodb",), "dynamodb://eu-north-1", "dynamodb:"),
    "postgresql": StoreChoice(("postgresql", "postgres"), "postgresql://user@localhost/shop"),
    "redis": StoreChoice(("redis", "rediss"), "redis://localhost:6379/0"),
}


def init(
    *,
    store: Annotated[StoreKind | None, typer.Option(help="The kind of store.")] = None,
    url: Annotated[
        str | None, typer.Option(help="The store, such as postgresql://user@localhost/shop.")
    ] = None,
    app: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An app to run; can be repeated.", autocompletion=known),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help=f"Replace {FILE}; the old one is kept as {FILE}.old.")
    ] = False,
) -> None:
    """Write a semel.toml for a store and for the apps to run, with every setting explained.

    semel init

    semel init --store postgresql --url postgresql://user@localhost/shop --app support --app quill

    Without options it asks, at a terminal; elsewhere it takes SQLite and no apps. Secrets are made, or the
    environment variables are named that have to hold them.
    """
    target = Path(FILE)
    check_free(target, force=force)
    if store is None and url is None and not app and sys.stdin.isatty():
        try:
            store, url, app = _asked()
        except typer.Abort:
            typer.echo("\nNothing was written.")
            raise typer.Exit(1) from None
    place = _url(store, url)
    made = new_settings(place, [find(name) for name in dict.fromkeys(app or ())])
    if target.exists():
        target.rename(f"{target}.old")
    write_private(target, made.text)
    typer.echo(f"Wrote {FILE}; only you can read it, and secrets belong in it or in the environment.")
    print_secrets(made)
    typer.echo(f"Next:\n{next_steps(place)}")


def check_free(target: Path, *, force: bool) -> None:
    """Refuse to write over a file, of which there may be no other copy."""
    if target.exists() and not force:
        raise errors.UsageError(
            f"{target} is there already: --force replaces it, and keeps it as {target}.old"
        )
    if target.exists() and Path(f"{target}.old").exists():
        raise errors.UsageError(f"{target}.old is there already: move it away, it may hold secrets")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def print_secrets(settings: NewSettings) -> None:
    """Say which secrets were made, and which variables are for those that others give."""
    for name in settings.made:
        typer.echo(f"Made {name}, a secret.")
    for name, meaning in settings.lacking.items():
        typer.echo(f"If you have it, set {name}" + (f": {meaning}" if meaning else "."))


def next_steps(url: str) -> str:
    """The commands that come after the file, one to a line."""
    driver = DRIVERS.get(url.partition(":")[0])
    extras = ["postgres" if driver == "psycopg" else "redis"] if driver and not find_spec(driver) else []
    extras += [] if find_spec("uvicorn") else ["service"]
    install = [f'  pip install "semel[{",".join(extras)}]"'] if extras else []
    return "\n".join([*install, "  semel provision", "  semel serve"])


def _asked() -> tuple[StoreKind, str, list[str]]:
    """What somebody at a terminal chooses."""
    kind = typer.prompt(f"Store ({', '.join(get_args(StoreKind))})", default="sqlite", value_proc=_kind)
    choice = STORES[kind]
    url = typer.prompt(f"URL, such as {choice.example}", default=choice.ready or None)
    apps = typer.prompt(f"Apps, with commas ({', '.join(known())})", default="", show_default=False)
    return kind, url, [name.strip() for name in apps.split(",") if name.strip()]


def _kind(text: str) -> StoreKind:
    for kind in STORES:
        if kind == text.strip():
            return kind
    raise typer.BadParameter(f"it is one of {', '.join(STORES)}")


def _url(store: StoreKind | None, url: str | None) -> str:
    """The URL that was given, if it is one of this kind of store; else the one that kind has by itself."""
    if url is None:
        choice = STORES[store or "sqlite"]
        if not choice.ready:
            raise errors.UsageError(f"say where the store is: --url {choice.example}")
        return choice.ready
    scheme = url.partition(":")[0]
    fitting = [kind for kind, choice in STORES.items() if scheme in choice.schemes and store in (None, kind)]
    if not fitting:
        # The URL itself is not repeated: it may have a password in it.
        raise errors.UsageError(f"--url is no URL of {store or 'a store'}: {_examples(store)}")
    return url


def _examples(store: StoreKind | None) -> str:
    return "write it as " + " or ".join(
        choice.example for kind, choice in STORES.items() if store in (None, kind)
    )
