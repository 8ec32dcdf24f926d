"""What the commands that open a store share: finding it, opening it, and printing JSON.

It is found as `semel serve` finds it: by `semel.toml`, by the environment over that, by options over both.
"""

import functools
import inspect
import json
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec
import typer

import semel
from semel import errors
from semel.apps.configuration import Configuration, SettingPath, gather, hint, store_of
from semel.apps.importing import look_beside
from semel.apps.keyfile import secrets_of
from semel.apps.ledgers import Binding, binding
from semel.apps.registry import known
from semel.apps.sections import StoreSection
from semel.core.runtime import Concealed

FILE = "semel.toml"


def app_names() -> list[str]:
    """The applications that can be named here, for whoever types one."""
    try:
        configuration = gathered(os.environ.get("SEMEL_CONFIG"))
    except errors.SemelError:
        return known()
    return known_apps(configuration)


ConfigOption: TypeAlias = Annotated[
    str | None,
    typer.Option(envvar="SEMEL_CONFIG", help=f"The settings file; by default {FILE} in this folder."),
]
UrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help=f"The store, such as sqlite:///semel.db; by default SEMEL_URL, or {FILE}."),
]
EnvOption: TypeAlias = Annotated[
    str | None, typer.Option(help=f"The environment of the keys; by default SEMEL_ENV, or {FILE}.")
]
LimitOption: TypeAlias = Annotated[int, typer.Option(min=1, help="The maximum number to print.")]
AfterOption: TypeAlias = Annotated[str | None, typer.Option(help="Where the previous page ended.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


# Which store


class StoreOptions(Concealed, msgspec.Struct, frozen=True, kw_only=True):
    """The options that say which store a command is about; the settings say the rest."""

    app: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The ledger of this app, wherever the service has it.",
            autocompletion=app_names,
        ),
    ] = None
    url: UrlOption = None
    env: EnvOption = None
    scope: Annotated[
        str | None,
        typer.Option(help="The scope of the keys, such as a tenant; by default the app's, or SEMEL_SCOPE."),
    ] = None
    config: ConfigOption = None


def on_a_store(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that say which store is meant: it is called with them as `where`."""
    return with_options("where", StoreOptions, *without)


def with_options(
    given_as: str, kind: type[msgspec.Struct], *without: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that the fields of a struct describe: it is called with them as one."""
    hints, defaults = get_type_hints(kind, include_extras=True), _defaults(kind)
    wanted = {name: hint for name, hint in hints.items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [one for name, one in inspect.signature(command).parameters.items() if name != given_as]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation
            )
            for name, annotation in wanted.items()
        ]

        @functools.wraps(command)
        def call(*args: Any, **chosen: Any) -> None:
            given = {name: chosen.pop(name) for name in wanted if name in chosen}
            command(*args, **chosen, **{given_as: kind(**given)})

        call.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in (*own, *options)}
        return call

    return decorate


def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    required = inspect.Parameter.empty
    fields = msgspec.structs.fields(kind)
    return {field.name: required if field.required else field.default for field in fields}


def gathered(config: str | None, options: Mapping[SettingPath, Any] | None = None) -> Configuration:
    """What is set here: by the file that is named, or by `semel.toml`, the environment and options."""
    if config is None and Path(FILE).is_file():
        config = FILE
    configuration = gather(config, os.environ, options)
    look_beside(configuration.folder)
    return configuration


def configuration_for(where: StoreOptions) -> Configuration:
    """What is set for a command."""
    options: dict[SettingPath, Any] = {
        ("semel", name): value for name in ("url", "env") if (value := getattr(where, name)) is not None
    }
    return gathered(where.config, options)


def sections(configuration: Configuration, name: str) -> dict[str, Any]:
    """What is set under a name that has a section for each app; nothing, where that is no section at all."""
    found = configuration.tree.get(name)
    return found if isinstance(found, dict) else {}


def known_apps(configuration: Configuration) -> list[str]:
    """The applications of these settings, and those of semel's own."""
    return list(dict.fromkeys([*sections(configuration, "apps"), *known()]))


def bound(where: StoreOptions, configuration: Configuration | None = None) -> Binding:
    """What the ledger that is meant is opened with."""
    configuration = configuration or configuration_for(where)
    if where.app is not None and where.app not in known_apps(configuration):
        meant = hint(where.app, known_apps(configuration))
        raise errors.UsageError(f"there is no app {where.app!r} here: {meant}")
    store = _store(configuration)
    section = configuration.tree.get("apps", {}).get(where.app or "", {})
    found = binding(where.app or "", store, secrets_of(store, configuration, looking=True), section)
    if where.scope is not None:
        return msgspec.structs.replace(found, scope=where.scope)
    if where.app is None:
        return msgspec.structs.replace(found, scope=os.environ.get("SEMEL_SCOPE", ""))
    return found


def _store(configuration: Configuration) -> StoreSection:
    """The section `semel`, if it names a store that can be looked at."""
    store = store_of(configuration)
    alone = not configuration.file and configuration.tree.keys() <= {"semel"}
    if alone and not configuration.where(("semel", "url")) and not Path("semel.db").is_file():
        raise errors.UsageError(
            f"name the store: --url sqlite:///semel.db, or set SEMEL_URL, or stand beside its {FILE}"
        )
    if store.url.startswith("memory:"):
        raise errors.UsageError("a ledger in memory is gone with its process; there is nothing to look at")
    if alone and (store.secret or store.secret_file) and not configuration.where(("semel", "encrypt")):
        # Nothing here is of a service, and a program that has only the secret could not read what is sealed.
        store = msgspec.structs.replace(store, encrypt=False)
    return store


@contextmanager
def connected(
    where: StoreOptions, *, secret: bytes | None = None, overflow: "UnreachedOverflow | None" = None
) -> Iterator[semel.Semel]:
    """The store that is meant, if it is there; looking at one must not make one."""
    found = bound(where)
    _check_file(found.url)
    with found.open(overflow=overflow, **{} if secret is None else {"secret": secret}) as s:
        yield s


def _check_file(url: str) -> None:
    """Refuse an SQLite file that is not there, or that holds no ledger: opening it would put one there."""
    if not url.startswith("sqlite:"):
        return
    from semel.stores.sqlite.file import SQLiteFile

    path = Path(SQLiteFile.from_url(url).path)
    if not path.is_file():
        raise errors.StoreUnavailable(f"there is no file {path}")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'semel_meta'").fetchone()
        except sqlite3.Error as error:
            raise errors.StoreUnavailable(f"{path} cannot be read: {error}") from error
    if not found:
        raise errors.StoreUnavailable(f"{path} holds no ledger")


# What is left elsewhere


class UnreachedOverflow:
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
def unreached() -> Iterator[UnreachedOverflow]:
    """Such an overflow; what is left there is told at the end, since nothing else names it any more."""
    overflow = UnreachedOverflow()
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


# What is said


def absent(what: str, key: str) -> errors.SemelError:
    """What is said where a key leads to nothing."""
    return errors.SemelError(f"there is no {what} {key!r} in this environment and scope")


def print_json(value: Any) -> None:
    """Print a value for programs."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_more(after: str | None) -> None:
    """Say how to go on, where a page was not the last."""
    if after is not None:
        typer.echo(f"There may be more: --after {shlex.quote(after)}")


def json_value(option: str, text: str) -> Any:
    """The value that an option gives as JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise errors.UsageError(
            f"{option} takes JSON, and {text} is none; a text is quoted twice: {option} '\"done\"'"
        ) from None


def number(count: int, one: str, many: str = "") -> str:
    """So many of something, in words."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
