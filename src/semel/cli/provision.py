"""`semel provision`: create a store's tables, check them, or print them as text."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
import typer
from rich.console import Console

from semel import errors
from semel.apps.configuration import Configuration
from semel.apps.deployment import Deployment
from semel.apps.ledgers import at, tables_of
from semel.apps.registry import deployment
from semel.apps.titles import deployed
from semel.cli.common import (
    ConfigOption,
    EnvOption,
    JsonOption,
    StoreOptions,
    UrlOption,
    app_names,
    configuration_for,
    print_json,
)
from semel.core.clock import Clock
from semel.core.runtime import require
from semel.model import Problem
from semel.provision import ProvisionTarget, problems
from semel.provision import provision as create
from semel.provision.formats import TEXTS, Role, policy
from semel.service.settings import ServiceSettings, enabled, settings, tables_needed, tables_of_app
from semel.tables import OWN, Table, known

TemplateFormat: TypeAlias = Literal["cloudformation", "sam", "terraform", "cdk", "sql", "iam"]
"""A tool that makes tables."""

TableNames: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="Only this table; can be repeated.", autocompletion=lambda: [table.name for table in known()]
    ),
]
AppNames: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="The tables of this app; can be repeated. With --print sam, the whole app.",
        autocompletion=app_names,
    ),
]
ChosenIndexes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="INDEX",
        help="An index that every write pays for, on SQLite and PostgreSQL: `recent` lists all records "
        "newest or oldest first.",
    ),
]
DroppedIndexes: TypeAlias = Annotated[
    list[str] | None, typer.Option("--without", metavar="INDEX", help="Drop such an index again.")
]
CheckOption: TypeAlias = Annotated[
    bool, typer.Option("--check", help="Change nothing; exit with 1 if there is a problem.")
]
PrintOption: TypeAlias = Annotated[
    TemplateFormat | None,
    typer.Option("--print", help="Print the tables for another tool; change nothing."),
]
RoleOption: TypeAlias = Annotated[Role, typer.Option(help="The role whose policy --print iam prints.")]


def provision(
    *,
    url: UrlOption = None,
    env: EnvOption = None,
    table: TableNames = None,
    app: AppNames = None,
    with_index: ChosenIndexes = None,
    without_index: DroppedIndexes = None,
    check: CheckOption = False,
    printed: PrintOption = None,
    role: RoleOption = Role.WORKER,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create the tables that the service needs, and stamp them with their environment.

    With a semel.toml these are the tables of its apps and of its API; without one, semel's own tables.
    Existing tables are left as they are; a second run changes nothing.

    semel provision

    semel provision --url dynamodb://eu-west-1 --env prod

    semel provision --print terraform --env prod

    semel provision --app support --print sam --env prod

    semel provision --url sqlite:///semel.db --with recent
    """
    if set(with_index or ()) & set(without_index or ()):
        raise errors.UsageError("the same index is named by --with and by --without: say which you mean")
    configuration = configuration_for(StoreOptions(config=config, url=url, env=env))
    chosen = settings(configuration)
    env = chosen.semel.env
    if app and printed == "sam":
        apps = [deployed(name, chosen.apps.get(name, {})) for name in dict.fromkeys(app)]
        typer.echo(stack_of(apps, env, table).rstrip("\n"))
        return
    if printed is not None:
        chosen = _for_text(printed, chosen)
    tables = tables_wanted(chosen, configuration, table or [], app or [])
    if printed is not None:
        made = text(printed, tables, env, chosen.semel.url, role, with_index or [])
        typer.echo(made.rstrip("\n"))
        return
    if not configuration.file and not configuration.where(("semel", "url")):
        raise errors.UsageError("name the store: --url dynamodb://eu-west-1, or set SEMEL_URL")
    place = ProvisionTarget(
        url=chosen.semel.url,
        env=env,
        tables=tables,
        clock=Clock(),
        chosen=tuple(with_index or ()),
        dropped=tuple(without_index or ()),
    )
    if check:
        report(problems(place), place, as_json)
    else:
        print_done(create(place, ProgressLines(quiet=as_json)), place, as_json)


def _for_text(printed: TemplateFormat, chosen: ServiceSettings) -> ServiceSettings:
    """The settings for a tool that knows one kind of store, whichever theirs is."""
    kind = "postgresql://" if printed == "sql" else "dynamodb:"
    same = chosen.semel.url.startswith("postgres" if printed == "sql" else kind)
    url = chosen.semel.url if same else kind
    return msgspec.structs.replace(chosen, semel=msgspec.structs.replace(chosen.semel, url=url))


def named(names: Iterable[str]) -> tuple[Table, ...]:
    """Return the tables of these names, or semel's own if there are none."""
    chosen = dict.fromkeys(names)
    if not chosen:
        return OWN
    tables = {table.name: table for table in known()}
    unknown = [name for name in chosen if name not in tables]
    if unknown:
        raise errors.InvalidOption(f"there is no table {unknown[0]!r}; known are {', '.join(tables)}")
    return tuple(tables[name] for name in chosen)


def tables_wanted(
    chosen: ServiceSettings, configuration: Configuration, names: list[str], apps: list[str]
) -> tuple[Table, ...]:
    """The tables that were asked for; else those of the service."""
    url, named_ones = chosen.semel.url, at(chosen.semel.url, named(names) if names else ())
    if names or apps:
        of_apps = [one for app in apps for one in _of_app(app, chosen)]
        return tuple(dict.fromkeys([*named_ones, *of_apps]))
    serving = enabled(chosen, configuration)
    return tables_needed(chosen, serving) if configuration.file or serving else at(url, OWN)


def _of_app(app: str, chosen: ServiceSettings) -> tuple[Table, ...]:
    """The tables of an app: as its settings have it, or as it is deployed to AWS with a queue of its own."""
    if app in chosen.apps:
        return tables_of_app(app, chosen)
    return tables_of(deployment(app).app, chosen.semel.url, queued=True)


def text(  # noqa: PLR0917 - all of them belong to one text
    printed: TemplateFormat,
    tables: tuple[Table, ...],
    env: str,
    url: str,
    role: Role,
    with_index: Sequence[str] = (),
) -> str:
    """The tables as another tool wants them."""
    if printed == "sql":
        return sql(tables, env, url, with_index)
    if with_index:
        raise errors.UsageError("--with is for stores in SQL: leave it out, or print sql")
    if printed == "iam":
        return json.dumps(policy(tables, env, role, region=region(url)), indent=2)
    return TEXTS[printed](tables, env)


def stack_of(apps: list[Deployment], env: str, table: list[str] | None) -> str:
    """Applications as SAM makes them, with their functions and queues."""
    from semel.apps import stack

    if table:
        raise errors.UsageError("an app brings its own tables: leave out --table, or --app")
    return stack.text(apps, env)


def sql(tables: tuple[Table, ...], env: str, url: str, with_index: Sequence[str] = ()) -> str:
    """The tables as PostgreSQL has them, in the schema that a URL names."""
    require("psycopg", "postgres")
    from semel.stores.postgres.address import PostgresAddress
    from semel.stores.postgres.schema import ddl

    return ddl(tables, env, PostgresAddress.from_url(url).schema, with_index)


def region(url: str) -> str:
    """The region that a store's URL names."""
    from semel.stores.dynamodb.address import parse

    return parse(url).region or "*"


class ProgressLines:
    """Says what goes on, and the same thing only once."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._last = ""

    def __call__(self, line: str) -> None:
        """Say a line."""
        if line != self._last and not self._quiet:
            typer.echo(line, err=line.endswith("..."))
        self._last = line


def report(problems: list[Problem], place: ProvisionTarget, as_json: bool) -> None:
    """Tell what is wrong, each with its remedy; leave with 1 if anything is."""
    if as_json:
        print_json({"problems": [msgspec.structs.asdict(each) for each in problems]})
    else:
        console = Console(highlight=False, soft_wrap=True)
        for each in problems:
            console.print(each.what, style="bold", markup=False)
            console.print(f"  {each.remedy}", markup=False)
        if not problems:
            console.print(f"All is well: environment {place.env} has {counted(place)}.", markup=False)
    if problems:
        raise typer.Exit(1)


def print_done(done: list[str], place: ProvisionTarget, as_json: bool) -> None:
    """Tell what was done in all."""
    if as_json:
        print_json({"done": done})
    elif not done:
        typer.echo(f"Nothing to do: environment {place.env} has {counted(place)} as they should be.")


def counted(place: ProvisionTarget) -> str:
    """The tables in words."""
    return f"its tables ({', '.join(table.name for table in place.tables)})"
